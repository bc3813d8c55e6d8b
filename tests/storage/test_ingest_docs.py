"""Every command and example of docs/ingest.md runs, and does what the page says."""

import gzip
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk

PAGE = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("## Data that were never shuffled")[0]  # which tests/test_docs.py runs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for part in range(3):
        rows = "".join(f"{x:.4f},{part},{'yes' if x > 0 else 'no'}\n" for x in rng.normal(size=50))
        (tmp_path / "data" / f"part-{part}.csv").write_text("x,part,label\n" + rows)
    with gzip.open("higgs.csv.gz", "wt") as file:
        file.writelines(f"{i % 2}.0,{rng.normal():.3f},{rng.normal():.3f}\n" for i in range(100))
    return tmp_path


def run(*command):
    """What a command prints, in a process of its own: the page's budgets are for one, not for what tests have left."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@pytest.mark.slow
def test_the_commands_run_in_the_order_of_the_page(folder):
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
    assert len(lines) == 5
    printed = ""
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "streamkern"
        printed += run("-m", "streamkern", *words)
    assert sk.open_dataset("train.zarr").target.name == "label"
    assert len(sk.open_dataset("train.zarr")) == 150
    assert sk.open_dataset("higgs.parquet").source.dtype == np.float32
    assert '"label"' in printed


def test_the_examples_run(folder):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert "1,000 rows of 5 features (float64), in random order" in run("-c", block)
