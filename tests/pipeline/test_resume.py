"""Resuming from elsewhere, and with a pipeline file that has changed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.runs import resume
from tests.slow_solver import SLOW

PIPELINE = """
def pipeline() -> sk.Pipeline:
    data = sk.open_dataset("rows.zarr", target="label")
    return sk.Pipeline(data, sk.Laplace(3.0), sk.Uniform(20), Slow(epochs=2, batch=20), task="regression")
"""


@pytest.fixture
def folder(tmp_path: Path, write_rows: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was started in ``tmp_path`` and interrupted."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.zarr")
    monkeypatch.setenv("STEPS", "5")  # not in the file: an edited class is another solver
    Path("p.py").write_text(SLOW + PIPELINE)
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
        Path("p.py").write_text(SLOW + PIPELINE.replace("Laplace(3.0)", "Laplace(4.0)"))
    told = []
    result = resume(
        folder, listeners=(lambda kind, fields: told.append(fields["message"]) if kind == "warning" else 0,)
    )
    assert [message.split(" of ")[0] for message in told] == (["kernel"] if changed else [])
    assert (result["resumed_rows"] == 0) == changed


@pytest.mark.parametrize("text", [None, "[]", "3", "{", "\x00"])
def test_a_directory_without_a_manifest_is_no_run(tmp_path: Path, text: str | None):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(sk.UsageError, match="no run here"):
        resume(tmp_path)


def test_what_is_no_pipeline_and_no_interval_is_refused_and_so_is_a_run_of_no_file(tmp_path: Path):
    with pytest.raises(sk.UsageError, match="pipeline is 3"):
        sk.run(3, tmp_path / "run")
    pipeline = sk.Pipeline(sk.from_arrays([[0.0], [1.0]], [0, 1]), centers=sk.Uniform(2))
    for seconds in (float("nan"), -1.0):
        with pytest.raises(sk.UsageError, match="checkpoint_seconds"):
            sk.run(pipeline, tmp_path / "run", checkpoint_seconds=seconds)
    assert not (tmp_path / "run").exists()
    sk.run(pipeline, tmp_path / "run")
    with pytest.raises(sk.UsageError, match="pipeline file"):
        resume(tmp_path / "run")
