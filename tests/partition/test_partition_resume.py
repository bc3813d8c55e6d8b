"""A partition that is killed at any moment goes on, and ends with the same bits."""

from __future__ import annotations

import json
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.partition import grow_tree
from streamkern.partition import leaf_rows as rows
from streamkern.serving.predict_files import predict

PROGRAM = """
import os, signal, sys
import streamkern as sk
from streamkern.partition import grow_tree, leaf_rows as rows, leaf_tasks
from streamkern.storage import artifact

moment, after = sys.argv[1], int(sys.argv[2])
calls, ended = [], []

def dying(function):
    def wrapped(*given, **named):
        calls.append(1)
        if len(calls) > after:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **named)
    return wrapped

rows._BLOCK_ROWS, rows.RUN_BYTES = 250, 1 << 12  # several runs of few rows
grow_tree.SAMPLE_ROWS, grow_tree.MIN_SAMPLE_ROWS_OF_LEAF = 1000, 600  # one level by the sample, the next by counts
if moment == "scatter":
    rows.write_run = dying(rows.write_run)
if moment == "leaves":
    leaf_tasks.fit_leaf = dying(leaf_tasks.fit_leaf)

def listener(kind, fields):
    if moment == "levels" and kind == "stage" and fields["name"] == "level-1" and fields["state"] == "begin":
        os.kill(os.getpid(), signal.SIGKILL)
    if moment == "saving" and kind == "stage" and fields["name"].startswith("leaf-") and fields["state"] == "end":
        ended.append(fields["name"])
        if len(ended) == 4:
            artifact._save = dying(artifact._save)

data = sk.open_dataset("rows.parquet", target="y")
pipeline = sk.Pipeline(
    data, centers=sk.Uniform(50), solver="auto", task="regression", partition=sk.Partition(rows=900),
    validation=data.sample(300),
)
result = sk.run(pipeline, "run", threads=2, listeners=(listener,))
print(result.weights_sha256)
"""


@pytest.fixture(scope="module")
def place(forked: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with rows, and the digest of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("partition")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4)).astype(np.float32)
    y = np.sign(X[:, 0]) * np.sin(3 * X[:, 1])
    sk.write_parquet(folder / "rows.parquet", X, y, target="y", row_group_rows=250)
    (folder / "program.py").write_text(PROGRAM)
    process = ran(forked, folder, "never")
    out, said = process.communicate()
    assert process.returncode == 0, said
    return folder, out.strip()


def ran(forked: Callable[..., Any], folder: Path, moment: str, after: int = 0) -> Any:
    return forked("python", ("program.py", moment, after), folder / "out", cwd=str(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "after", "kept"),
    [
        ("levels", 0, ["statistics", "level-sample"]),
        ("scatter", 2, ["level-sample", "level-1"]),
        ("leaves", 2, ["statistics", "level-1"]),
        ("saving", 5, ["leaf-0", "leaf-1", "leaf-2", "leaf-3"]),
    ],
)
def test_a_run_that_is_killed_goes_on_to_the_same_bits(
    forked: Callable[..., Any],
    place: tuple[Path, str],
    moment: str,
    after: int,
    kept: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    folder, expected = place
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "rows.parquet").symlink_to(folder / "rows.parquet")
    assert len(expected) == 64
    assert ran(forked, tmp_path, moment, after).wait() == -signal.SIGKILL
    if moment == "scatter":
        assert len(list((tmp_path / "run" / "scattered").glob("*/run-*"))) >= 1
    monkeypatch.chdir(tmp_path)
    for module, name in (
        (rows, "_BLOCK_ROWS"),
        (rows, "RUN_BYTES"),
        (grow_tree, "SAMPLE_ROWS"),
        (grow_tree, "MIN_SAMPLE_ROWS_OF_LEAF"),
    ):
        monkeypatch.setattr(module, name, 0)  # which the program sets: until the test ends
    monkeypatch.setattr(sys, "argv", ["program.py", "never", "0"])
    assert runpy.run_path("program.py")["result"].weights_sha256 == expected
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    cached = {stage["name"] for stage in result["stages"] if stage["cached"]}
    assert set(kept) <= cached
    assert not (tmp_path / "run" / "scattered").exists()


PREDICTION = """
import os, signal, sys
from streamkern.serving import predict_files as module

module.PART_BYTES = 8000

def kill(what, done, rows):
    if done > 1500:
        os.kill(os.getpid(), signal.SIGKILL)

module.predict(*sys.argv[1:], threads=1, on_progress=kill)
"""


def test_a_prediction_that_is_killed_goes_on_to_the_same_bytes(
    forked: Callable[..., Any], place: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, _ = place
    monkeypatch.setattr("streamkern.serving.predict_files.PART_BYTES", 8000)
    whole = predict(folder / "run" / "model.zarr", folder / "rows.parquet", tmp_path / "whole.zarr", threads=1)
    call = (folder / "run" / "model.zarr", folder / "rows.parquet", tmp_path / "halves.zarr")
    (tmp_path / "prediction.py").write_text(PREDICTION)
    killed = forked("python", ("prediction.py", *map(str, call)), tmp_path / "out", cwd=str(tmp_path))
    assert killed.wait() == -signal.SIGKILL
    assert not call[-1].exists()
    rest = predict(*call, threads=2)
    assert 0 < rest.kept < rest.rows == whole.rows == 3000
    first, second = (
        {file.relative_to(each): file.read_bytes() for file in sorted(each.rglob("c/*"))}
        for each in (tmp_path / "whole.zarr", tmp_path / "halves.zarr")
    )
    assert first
    assert first == second
