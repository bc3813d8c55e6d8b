"""How a run stands, told from outside it: live, ended in every way there is, and killed."""

import fcntl
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.report import read_run, status, status_text
from streamkern.report.page import page
from streamkern.report.run_status import duration_text

SLOW = """
import numpy as np

import streamkern as sk


def pipeline(rows: int = 40_000_000) -> sk.Pipeline:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 10))
    data = sk.from_arrays(X, X[:, 0] > 0)
    return sk.Pipeline(data.augment(sk.augment.GaussianNoise(0.1), rows=rows), sk.Laplace(4.0), sk.Uniform(100))
"""


def words(folder: Path) -> str:
    return status_text(status(read_run(folder)))


def edited(folder: Path, to: Path, name: str, **changes: object) -> Path:
    """A copy of a run with some of a file's fields changed."""
    shutil.copytree(folder, to)
    found = json.loads((to / name).read_text()) | changes
    (to / name).write_text(json.dumps(found))
    return to


@pytest.mark.slow
def test_a_finished_run_is_told_with_its_metrics(finished: Path):
    result = json.loads((finished / "result.json").read_text())
    found = status(read_run(finished))
    assert found["state"] == "done"
    assert found["metrics"] == result["metrics"]
    assert found["memory"] == {
        "budget": 4 << 30,
        "projected": result["projected_memory_bytes"],
        "peak": result["peak_memory_bytes"],
        "resident": found["memory"]["resident"],
    }
    assert found["memory"]["resident"] > 0
    assert found["fraction"] == 1.0
    metric = "r2" if "r2" in result["metrics"]["test"] else "accuracy"
    assert f"{metric} {result['metrics']['test'][metric]:.4g}" in words(finished)
    json.dumps(found)


@pytest.mark.slow
def test_a_live_run_is_told_from_another_process_and_one_that_was_killed_is_told_to_be_dead(tmp_path, forked, capsys):
    (tmp_path / "slow.py").write_text(SLOW)
    given = ["run", "slow.py", "--run-dir", "run", "--memory", "4GiB", "--quiet"]
    run = forked("streamkern", given, tmp_path / "out", cwd=str(tmp_path))
    try:
        while True:
            assert run.poll() is None
            try:
                found = status(read_run(tmp_path / "run"))
            except sk.UsageError:
                found = {}
            if found.get("fraction", 0) > 0 and found["rows"] > 10_000:
                break
            time.sleep(0.05)
        assert found["state"] == "running"
        assert found["process"] == run.pid
        assert found["stage"] == "train"
        assert 0 < found["fraction"] < 1
        assert found["total_rows"] == 40_000_000
        left = (found["total_rows"] - found["rows"]) / found["rows_per_second"]
        assert found["eta_seconds"] == pytest.approx(left)
        assert 0 < found["memory"]["resident"] <= found["memory"]["budget"] == 4 << 30
        assert found["advice"] is None
        told = status_text(found)
        assert f"running (process {run.pid})" in told
        assert "rows/s" in told
        assert "left" in told
        with pytest.raises(sk.errors.BusyError):  # to look has not taken the lock away
            sk.run(sk.Pipeline(sk.from_arrays(np.zeros((2, 1)), [0, 1]), centers=sk.Uniform(1)), tmp_path / "run")
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    found = status(read_run(tmp_path / "run"))
    assert found["state"] == "dead"
    assert found["stage"] == "train"
    assert found["last_event"]["event"].startswith("step ")
    assert abs(found["last_event"]["time"] - time.time()) < 30
    assert f"streamkern resume {tmp_path / 'run'}" in words(tmp_path / "run")
    record = read_run(tmp_path / "run")
    seconds = record.events[-1]["time"] - record.unfinished["time"]
    assert f"<b>≥ {seconds:.2f} s</b>" in page([record])
    with (tmp_path / "run/events.jsonl").open("a") as file:
        file.write('{"time": 1e10, "event": "st')  # what a kill in the middle of a line leaves
    assert status(read_run(tmp_path / "run")) == found | {"seconds": pytest.approx(found["seconds"])} | {
        "stage_seconds": pytest.approx(found["stage_seconds"], abs=30)
    }
    assert main(["status", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "dead"


def test_who_looks_at_a_run_does_not_keep_another_from_beginning(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "streamkern.storage.atomic_writes._SHORT_WAIT_SECONDS", 60.0
    )  # a busy machine may look for longer
    folder = edited(runs["digits"], tmp_path / "run", "manifest.json", file="digits.py", settings={})
    with (folder / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # in the middle of a look
        release = threading.Timer(0.05, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        release.start()
        assert sk.resume(folder)["status"] == "done"
        release.join()


def test_a_refused_run_says_what_would_make_it_fit(tmp_path: Path):
    rng = np.random.default_rng(0)
    data = sk.from_arrays(rng.standard_normal((5000, 10)), rng.integers(0, 2, 5000))
    with pytest.raises(sk.errors.PlanRefusedError):
        sk.run(sk.Pipeline(data, centers=sk.Uniform(4000), name="big"), tmp_path / "run", memory="50MB")
    told = words(tmp_path / "run")
    assert told.startswith("big: refused")
    assert "do: " in told
    assert "correct the cause that the error names and run again" in told


@pytest.mark.parametrize("state", ["failed", "diverged", "interrupted"])
def test_every_other_end_is_told_with_the_error_the_advice_and_the_model_that_is_kept(state, runs, tmp_path):
    result = json.loads((runs["digits"] / "result.json").read_text())
    failure = {"status": state, "error": "It went wrong.\n  do: this", "last_done": result, "metrics": None}
    folder = edited(runs["digits"], tmp_path / "run", "result.json", **failure)
    told = words(folder)
    assert told.startswith(f"digits: {state}")
    assert "It went wrong." in told
    assert f"accuracy {result['metrics']['test']['accuracy']:.4g}" in told  # of the last complete run
    assert status(read_run(folder))["advice"]


def test_a_result_of_an_earlier_run_is_not_taken_for_this_one(runs: dict[str, Path], tmp_path: Path):
    folder = edited(runs["digits"], tmp_path / "run", "manifest.json", run="another")
    events = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join([*events, events[0]]))  # begun again, and killed
    found = status(read_run(folder))
    assert found["state"] == "dead"
    assert found["earlier_metrics"]["test"]["n"] > 0
    assert "fraction" not in found  # no step of this run
    assert "resume" in found["advice"] or "sk.run" in found["advice"]


def test_the_steps_before_an_interruption_belong_to_the_curve_of_the_run_that_went_on(runs, tmp_path):
    def line(event: str, **fields: object) -> str:
        return json.dumps({"time": 1.0, "event": event, **fields}) + "\n"

    def step(rows: int) -> str:
        return line("step", rows=rows, loss=1.0)

    shutil.copytree(runs["digits"], tmp_path / "run")
    begin, resume = line("run", state="begin"), line("resume", rows=200)
    for text, rows in (
        (begin + step(100) + step(200) + step(300) + begin + resume + step(300) + step(400), [100, 200, 300, 400]),
        (begin + step(100) + step(200) + begin + begin + resume + step(300), [100, 200, 300]),
        (begin + step(100) + step(200) + begin + step(50), [50]),
    ):
        (tmp_path / "run/events.jsonl").write_text(text)
        assert [event["rows"] for event in read_run(tmp_path / "run").steps] == rows


@pytest.mark.parametrize("broken", ["events.jsonl", "result.json", "manifest.json"])
def test_files_that_cannot_be_read_do_not_hide_the_others(broken: str, runs: dict[str, Path], tmp_path: Path):
    shutil.copytree(runs["digits"], tmp_path / "run")
    (tmp_path / "run" / broken).write_bytes(b"\xff\x00{")
    assert words(tmp_path / "run")


def test_a_directory_without_a_run_is_an_error_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["status", str(tmp_path)]) == 2
    assert "There is no run here." in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "said"), [(-1, "0.0 s"), (4.21, "4.2 s"), (59.97, "1:00"), (3723, "1:02:03")])
def test_durations_are_for_people(seconds: float, said: str):
    assert duration_text(seconds) == said
