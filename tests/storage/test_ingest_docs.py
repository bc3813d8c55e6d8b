"""Every command and example of docs/ingest.md runs, and does what the page says."""

from __future__ import annotations

import gzip
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.commands.parser import main

PAGE = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("## Data that were never shuffled")[0]  # which tests/test_docs.py runs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The page's budget is for a process of its own, not for one in which other tests have left their memory.
    for name, module in list(sys.modules.items()):
        if name.startswith("streamkern.") and name != "streamkern.memory" and hasattr(module, "resident"):
            monkeypatch.setattr(module, "resident", lambda: 250 << 20)
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for part in range(3):
        rows = "".join(f"{x:.4f},{part},{'yes' if x > 0 else 'no'}\n" for x in rng.normal(size=50))
        (tmp_path / "data" / f"part-{part}.csv").write_text("x,part,label\n" + rows)
    with gzip.open("higgs.csv.gz", "wt") as file:
        file.writelines(f"{i % 2}.0,{rng.normal():.3f},{rng.normal():.3f}\n" for i in range(100))
    return tmp_path


def test_the_commands_run_in_the_order_of_the_page(folder, capsys):
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
    assert len(lines) == 5
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "streamkern"
        assert main(words) == 0, line
    assert sk.open_dataset("train.zarr").target.name == "label"
    assert len(sk.open_dataset("train.zarr")) == 150
    assert sk.open_dataset("higgs.parquet").source.dtype == np.float32
    assert '"label"' in capsys.readouterr().out


def test_the_examples_run(folder, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(block, "docs/ingest.md", "exec"), {})
    assert "1,000 rows of 5 features (float64), in random order" in capsys.readouterr().out
