"""Resuming from elsewhere, and with a pipeline file that has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.runs import resume

FILE = """
import os

import streamkern as sk

def pipeline() -> sk.Pipeline:
    data = sk.open_dataset("rows.zarr", target="label")
    return sk.Pipeline(data, sk.Laplace(3.0), sk.Uniform(20), Stopped(epochs=2, batch=20), task="regression")

class Stopped(sk.EigenPro):
    def setup(self, problem, prepared=None):
        iteration = super().setup(problem, prepared)
        update = iteration.update
        steps = []

        def once(*given):
            steps.append(1)
            if len(steps) > int(os.environ["STEPS"]):
                raise KeyboardInterrupt
            return update(*given)

        iteration.update = once
        return iteration

    def to_json(self):
        return {**super().to_json(), "name": "EigenPro"}
"""


@pytest.fixture
def folder(tmp_path: Path, write_rows: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was started in ``tmp_path`` and interrupted."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.zarr")
    monkeypatch.setenv("STEPS", "5")  # not in the file: an edited class is another solver
    Path("p.py").write_text(FILE)
    assert main(["run", "p.py", "--run-dir", "run", "--quiet"]) == 130
    monkeypatch.setenv("STEPS", "1000")
    return tmp_path / "run"


def test_a_run_goes_on_where_it_was_started(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(folder.parent / "elsewhere")
    result = resume("../run")
    assert result["resumed_rows"] > 0
    assert Path.cwd() == folder.parent / "elsewhere"
    assert not list(Path.cwd().iterdir())


def test_a_working_directory_that_is_gone_is_told(folder: Path):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "directory": str(folder / "gone")}))
    with pytest.raises(sk.UsageError, match="working directory"):
        resume(folder)


@pytest.mark.parametrize("changed", [True, False])
def test_another_training_than_the_interrupted_one_is_warned_of(folder: Path, changed: bool):
    if changed:
        Path("p.py").write_text(FILE.replace("Laplace(3.0)", "Laplace(4.0)"))
    told = []
    result = resume(
        folder, listeners=(lambda kind, fields: told.append(fields["message"]) if kind == "warning" else 0,)
    )
    assert [message.split(" of ")[0] for message in told] == (["kernel"] if changed else [])
    assert (result["resumed_rows"] == 0) == changed


@pytest.mark.parametrize("text", ["[]", "3", "{", "\x00"])
def test_a_manifest_that_is_none_is_no_run(folder: Path, text: str):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(sk.UsageError, match="no run here"):
        resume(folder)


def test_what_is_no_pipeline_and_no_interval_is_refused(tmp_path: Path):
    with pytest.raises(sk.UsageError, match="pipeline is 3"):
        sk.run(3, tmp_path / "run")
    pipeline = sk.Pipeline(sk.from_arrays([[0.0], [1.0]], [0, 1]), centers=sk.Uniform(2))
    for seconds in (float("nan"), -1.0):
        with pytest.raises(sk.UsageError, match="checkpoint_seconds"):
            sk.run(pipeline, tmp_path / "run", checkpoint_seconds=seconds)
    assert not (tmp_path / "run").exists()
