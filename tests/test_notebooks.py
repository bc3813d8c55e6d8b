"""Notebooks run from top to bottom and print what is stored in them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import same

ROOT = Path(__file__).parent.parent


def printed(path: Path) -> list[str]:
    """What each code cell has printed; a drawing of characters left out, which other processors may draw otherwise."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    return ["".join(cell["outputs"][0]["text"]) for cell in cells if "picture" not in "".join(cell["source"])]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    copy = shutil.copy(path, tmp_path)
    command = [sys.executable, "-W", "error", ROOT / "docs/img/notebook.py", copy]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for told, found in zip(printed(path), printed(Path(copy)), strict=True):
        assert same(told, found), f"{path.name} shows\n{told}and it is\n{found}"
