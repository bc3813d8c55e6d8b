"""The README's Python runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_python_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})
    accuracy, labels = capsys.readouterr().out.splitlines()
    assert float(accuracy) > 0.98
    assert re.fullmatch(r"\[\d \d \d \d \d\]", labels)
    assert (tmp_path / "model.zarr").is_dir()
