"""What a run leaves behind, what the next one takes over, and what is never lost."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import streamkern as sk
from streamkern.report import read_run
from streamkern.runs.run_pipeline import run

Make = Callable[..., sk.Pipeline]
STAGES = ["statistics", "check-test", "centers", "eigensystem", "train", "save", "evaluate"]


class Done(NamedTuple):
    """A run that is done: what makes its pipeline, its directory, its result."""

    make: Make
    folder: Path
    result: dict[str, Any]


@pytest.fixture(scope="module")
def once(maker: Callable[[Path], Make], tmp_path_factory: pytest.TempPathFactory) -> Done:
    """One run for all tests that begin with one; none of them changes it."""
    folder = tmp_path_factory.mktemp("once")
    make = maker(folder)
    return Done(make, folder / "run", run(make(), folder / "run", memory="4GiB"))


@pytest.fixture
def done(once: Done, tmp_path: Path) -> Done:
    """A copy of that run for one test."""
    shutil.copytree(once.folder, tmp_path / "run")
    return once._replace(folder=tmp_path / "run")


def computed(result: dict[str, Any]) -> list[str]:
    """Names of the stages that were not taken over."""
    return [stage["name"] for stage in result["stages"] if not stage["cached"]]


@pytest.mark.slow
def test_result_has_every_key_of_the_contract(once: Done):
    _, folder, result = once
    assert json.loads((folder / "result.json").read_text()) == result
    kinds = {
        "status": str,
        "samples_per_second": float,
        "data_wait_fraction": float,
        "peak_memory_bytes": int,
        "projected_memory_bytes": int,
        "weights_sha256": str,
        "n_rows": int,
        "n_centers": int,
        "solver": str,
        "seed": int,
        "seconds": float,
    }
    assert {name: type(result[name]) for name in kinds} == kinds
    assert result["status"] == "done"
    assert [stage["name"] for stage in result["stages"]] == STAGES
    for stage in result["stages"]:
        kinds = {name: type(value) for name, value in stage.items() if name != "artifact"}
        assert kinds == {"name": str, "seconds": float, "cached": bool}
        assert (folder / "stages" / stage.get("artifact", "")).is_dir()
    assert (result["n_rows"], result["n_centers"], result["solver"], result["seed"]) == (1800, 40, "EigenPro", 0)
    assert set(result["metrics"]) == {"train", "test"}
    assert result["metrics"]["test"]["n"] == 200
    assert 0.9 < result["metrics"]["test"]["accuracy"] <= 1
    assert 0 <= result["data_wait_fraction"] <= 1
    assert result["samples_per_second"] > 0
    assert len(result["weights_sha256"]) == 64


@pytest.mark.slow
def test_a_second_run_takes_every_stage_over(done: Done):
    first, second = done.result, run(done.make(), done.folder)
    assert computed(first) == STAGES
    assert computed(second) == ["save"]
    assert [stage["name"] for stage in second["stages"]] == STAGES
    same = ("weights_sha256", "metrics", "samples_per_second", "solver_report", "history")
    assert {k: first[k] for k in same} == {k: second[k] for k in same}


ALONE: list[dict[str, Any]] = [
    {"seed": 1},
    {"centers": sk.Uniform(30)},
    {"scaling": "standard"},
    {"task": "regression"},
]
"""Changes that keep more and fewer of the stages before."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "first_to_run"),
    [
        ({"kernel": sk.Laplace(3.0)}, "eigensystem"),
        ({"kernel": sk.Gaussian(2.0)}, "eigensystem"),
        ({"solver": sk.EigenPro(epochs=2)}, "eigensystem"),
        ({"solver": sk.EigenPro(projection="inexact")}, "eigensystem"),
        ({"noise": 0.2}, "eigensystem"),
        ({"augment_seed": 1}, "eigensystem"),
        ({"seed": 1}, "eigensystem"),
        ({"lanes": 2}, "eigensystem"),
        ({"centers": sk.Uniform(30)}, "centers"),
        ({"centers": sk.Uniform(40, seed=1)}, "centers"),
        ({"dtype": "float64"}, "centers"),
        ({"scaling": "standard"}, "centers"),
        ({"task": "regression"}, "statistics"),
        ({"test": None}, "evaluate"),
    ],
    ids=str,
)
def test_a_change_runs_again_what_depends_on_it_and_nothing_else(done, tmp_path, change, first_to_run):
    make, folder, before = done
    after = run(make(**change), folder)
    expected = ["save", *STAGES[STAGES.index(first_to_run) :]]
    expected = [name for name in STAGES if name in expected]
    if change in ({"dtype": "float64"}, {"scaling": "standard"}):
        expected = ["check-test", *expected]  # as the test rows are prepared now
    if change == {"task": "regression"}:
        expected = [name for name in STAGES if name != "centers"]  # the rows are the same
    assert computed(after) == expected
    assert (after["weights_sha256"] == before["weights_sha256"]) == (first_to_run == "evaluate")
    if change in ALONE:  # taking over or not, the weights are those of a run of its own
        assert run(make(**change), tmp_path / "alone")["weights_sha256"] == after["weights_sha256"]


@pytest.mark.slow
def test_two_pipelines_in_one_directory_do_not_mix(done: Done, write_rows: Callable[..., Path], tmp_path: Path):
    make, folder, first = done
    other = make(rows=write_rows(tmp_path / "wide.zarr", d=9, seed=3), test=None, name="other")
    alone = run(other, tmp_path / "alone")["weights_sha256"]
    assert run(other, folder)["weights_sha256"] == alone
    again = run(make(), folder)
    assert again["weights_sha256"] == first["weights_sha256"]
    assert computed(again) == ["save"]
    assert sk.load_model(folder / "model.zarr").weights_sha256 == first["weights_sha256"]


@pytest.mark.slow
def test_a_new_release_takes_nothing_over(done: Done, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("streamkern.runs.caching_runner.VERSION", "99.0")
    assert computed(run(done.make(), done.folder)) == STAGES


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["statistics", "centers", "train", "evaluate"])
def test_a_damaged_stage_is_computed_again_with_a_warning(done: Done, stage: str):
    make, folder, first = done
    (kept,) = (folder / "stages").glob(f"{stage}-*")
    chunks = [file for file in kept.rglob("*") if file.is_file() and "/c/" in str(file)]
    for chunk in chunks or [kept / "zarr.json"]:
        chunk.write_bytes(chunk.read_bytes()[:-3])
    warnings: list[str] = []
    second = run(make(), folder, listeners=(lambda k, f: warnings.append(f["message"]) if k == "warning" else None,))
    expected = [*(["eigensystem"] if stage == "train" else []), stage, "save"]
    assert sorted(computed(second)) == sorted(expected)
    assert [w for w in warnings if stage in w] == warnings != []
    assert second["weights_sha256"] == first["weights_sha256"]
    assert computed(run(make(), folder)) == ["save"]


# ---------------------------------------------------------------------------------------------------------- failures


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_a_refused_run_writes_its_manifest_and_result_and_nothing_else(make: Make, tmp_path: Path):
    with pytest.raises(sk.errors.PlanRefusedError) as caught:
        run(make(), tmp_path / "run", memory="10MB")
    assert caught.value.exit_status == 2
    assert caught.value.remedy is not None
    assert sorted(files(tmp_path / "run")) == [".lock", "events.jsonl", "manifest.json", "result.json"]
    assert result_of(tmp_path / "run")["status"] == "refused"


@pytest.mark.slow
@pytest.mark.parametrize(
    "failing",
    [
        {"solver": sk.EigenPro(step=1e6)},
        {"memory": "10MB"},
        {"centers": sk.Uniform(5000)},
        {"resources": sk.Resources(scheduler="nothing://127.0.0.1:1")},
    ],
    ids=["diverged", "refused", "too-few-rows", "no-scheduler"],
)
def test_a_failed_run_loses_nothing_of_an_earlier_one(done: Done, failing: dict[str, Any]):
    make, folder, first = done
    model, manifest = files(folder / "model.zarr"), (folder / "manifest.json").read_bytes()
    settings = {name: failing.pop(name) for name in ("memory", "resources") if name in failing}
    for _ in range(2):
        with pytest.raises(sk.StreamkernError):
            run(make(**failing), folder, **settings)
        left = result_of(folder)
        if "memory" in settings:  # refused
            assert left == first
            assert (folder / "manifest.json").read_bytes() == manifest
            assert read_run(folder).state == "done"
        else:
            assert left["status"] != "done"
            assert left["last_done"] == first
    assert files(folder / "model.zarr") == model
    assert computed(run(make(), folder)) == ["save"]


def test_a_listener_that_fails_is_a_failed_run(make: Make, tmp_path: Path):
    def listener(kind: str, fields: dict[str, Any]) -> None:
        if kind == "step":
            raise RuntimeError("told so")

    with pytest.raises(RuntimeError, match="told so"):
        run(make(), tmp_path / "run", listeners=(listener,))
    assert result_of(tmp_path / "run")["error"] == "RuntimeError: told so"
    assert run(make(), tmp_path / "run")["status"] == "done"


def test_a_place_that_cannot_be_a_directory_is_one_clear_error(make: Make, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(sk.errors.StorageError, match=r"(?s)directory cannot be written.*--run-dir"):
        run(make(), tmp_path / "file")
    (tmp_path / "run/.lock").mkdir(parents=True)
    with pytest.raises(sk.errors.StorageError, match=r"(?s)directory cannot be written.*--run-dir"):
        run(make(), tmp_path / "run")


@pytest.mark.slow
def test_what_a_killed_run_left_half_done_is_put_right(done: Done):
    """Killed while it replaced an artifact: staged bytes, or the old artifact under a name of its own."""
    make, folder, first = done
    (kept,) = (folder / "stages").glob("train-*")
    os.rename(folder / "model.zarr", folder / ".model.zarr.0123abcd.old")
    os.rename(kept, folder / "stages" / f".{kept.name}.0123abcd.tmp")
    (folder / ".model.zarr.0123abcd.tmp").mkdir()
    with pytest.raises(sk.errors.PlanRefusedError):
        run(make(), folder, memory="10MB")
    assert sk.load_model(folder / "model.zarr").weights_sha256 == first["weights_sha256"]
    assert [file.name for file in folder.rglob(".*") if file.name != ".lock"] == []
    assert computed(run(make(), folder)) == ["eigensystem", "train", "save"]


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 4 << 10, 32 << 10, 64 << 10])
def test_a_full_disk_is_one_clear_error_and_the_earlier_model_stays(once: Done, small_disk: Path, left: int):
    make, kept, first = once
    folder = small_disk / "run"
    shutil.copytree(kept, folder)
    model = files(folder / "model.zarr")
    with (small_disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            ballast.truncate(max(0, ballast.tell() - left))
    other = make(centers=sk.Uniform(600), kernel=sk.Laplace(3.0), dtype="float64")
    with pytest.raises(sk.errors.StorageError, match=r"could not be written|cannot be written") as caught:
        run(other, folder)
    assert "No space left" in caught.value.what
    assert files(folder / "model.zarr") == model
    result = result_of(folder)
    assert first in (result, result.get("last_done"))
    (small_disk / "ballast").unlink()
    assert computed(run(make(), folder)) == ["save"]


@pytest.mark.slow
def test_losing_the_log_of_events_does_not_lose_the_run(make: Make, tmp_path: Path):
    (tmp_path / "run").mkdir()
    os.symlink("/dev/full", tmp_path / "run/events.jsonl")
    warnings: list[str] = []
    result = run(
        make(), tmp_path / "run", listeners=(lambda k, f: warnings.append(f["message"]) if k == "warning" else None,)
    )
    assert result["status"] == "done"
    assert warnings == ["events cannot be written any more: No space left on device"]


def test_events_are_json_lines_and_steps_are_told_at_once(make: Make, tmp_path: Path):
    steps: list[int] = []
    result = run(
        make(solver=sk.EigenPro(epochs=2)),
        tmp_path / "run",
        listeners=(lambda k, f: steps.append(f["rows"]) if k == "step" else None,),
    )
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert steps[-1] == 3600
    assert steps == sorted(steps)
    assert 1 <= sum(event["event"] == "step" for event in events) < len(steps)
    ended = [event["name"] for event in events if event["event"] == "stage" and event["state"] == "end"]
    assert ended == STAGES
    assert events[-1]["result"] == result


@pytest.mark.slow
def test_threads_of_a_run_end_with_it(make: Make, tmp_path: Path):
    before = set(threading.enumerate())
    run(make(), tmp_path / "run")
    assert [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("streamkern")] == []


@pytest.mark.slow
def test_a_directory_used_every_night_does_not_grow(done: Done):
    for seed in range(1, 5):
        run(done.make(seed=seed), done.folder)
    kept = [place.name.rpartition("-")[0] for place in (done.folder / "stages").iterdir()]
    assert max(kept.count(name) for name in kept) == 3
    assert computed(run(done.make(seed=4), done.folder)) == ["save"]
