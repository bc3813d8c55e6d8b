"""The README's Python runs as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.slow
def test_the_python_block_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    # In a process of its own: the block bounds the memory of its process.
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    accuracy, labels = done.stdout.splitlines()
    assert float(accuracy) > 0.98
    assert re.fullmatch(r"\[\d \d \d \d \d\]", labels)
    assert (tmp_path / "model.zarr").is_dir()
