"""Checkpoints: training that is left at any step goes on to the same weights, bit for bit."""

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu.engine import HostEngine
from streamkern.defaults import KEPT_CHECKPOINTS
from streamkern.events import EventLog
from streamkern.execute import ThreadsExecutor
from streamkern.runs import checkpoints, load_pipeline, run
from streamkern.runs.checkpoints import Checkpoints
from streamkern.solvers import Checkpoint, Problem, loop, train
from streamkern.testing.solver import small_data, small_problem
from tests.slow_solver import SLOW

SOLVERS: dict[str, Any] = {
    "exact": sk.EigenPro(epochs=3, batch=100),
    "inexact": sk.EigenPro(epochs=3, batch=100, projection="inexact"),
    "delayed": sk.EigenPro(epochs=3, batch=16, projection="delayed"),
    "eigenpro1": sk.EigenPro1(epochs=3, q=10, batch=100),
    "eigenpro2": sk.EigenPro2(epochs=2, batch=60),
    "sgd": sk.SGD(epochs=3, batch=100, average=True),
    "descent": sk.GradientDescent(epochs=4),
    "svrg": sk.SVRG(epochs=3, ridge=1e-3, k=5, batch=100),
    "falkon": sk.Falkon(epochs=5),
    "direct": sk.Direct(1e-6),
    "patient": sk.EigenPro(epochs=6, batch=100, patience=1),
}


class Stop(Exception):
    """An end in the middle."""


class Memory:
    """Keeps every checkpoint, and stops training at one."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.seen: list[Checkpoint] = []
        self.last: Checkpoint | None = None

    def offer(self, checkpoint: Checkpoint, wait: bool = False, kept: Any = None) -> None:
        self.seen.append(checkpoint)
        if len(self.seen) == self.stop:
            raise Stop

    def interrupted(self, checkpoint: Checkpoint) -> None:
        self.last = checkpoint


@pytest.fixture
def executor() -> Iterator[ThreadsExecutor]:
    with ThreadsExecutor(2) as executor:
        yield executor


def posed(executor: ThreadsExecutor, solver: Any) -> Problem:
    problem = small_problem(executor, dtype=np.float32)
    if isinstance(solver, sk.EigenPro2):
        problem = replace(
            problem, centers=sk.Uniform(len(problem.train)).choose(problem.train, executor, problem.dtype)
        )
    if isinstance(solver, sk.SGD | sk.EigenPro1):
        problem = replace(problem, features=sk.RandomFourier(sk.Gaussian(3.0), 50))
    if solver.patience is not None:
        problem = replace(problem, validation=sk.from_arrays(*small_data(300, 1)))
    return problem


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_going_on_at_any_step_gives_the_same_bits(name, executor, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SCAN_ROWS", 60)  # sweeps of several tasks
    solver = SOLVERS[name]
    problem = posed(executor, solver)
    whole = Memory()
    iteration = solver.setup(problem)
    expected = train(problem, iteration, patience=solver.patience, keeper=whole)
    assert whole.last is None
    count = len(whole.seen)
    assert count >= 1
    rng = np.random.default_rng(0)
    assert any(seen.swept for seen in whole.seen) == (solver.setup(problem).sweeps > 0)
    # The first and the last moment, the end of a pass, and any others: of a sweep over all rows too.
    ends = [i + 1 for i, seen in enumerate(whole.seen) if seen.position[0] and not seen.begun]
    for stop in sorted({1, count, ends[0], *rng.integers(1, count + 1, 2).tolist()}):
        stopped = Memory(stop)
        with pytest.raises(Stop):
            train(problem, solver.setup(problem), patience=solver.patience, keeper=stopped)
        assert stopped.last is not None
        # Through the file, with what was prepared, as another process would.
        with EventLog() as events, Checkpoints(tmp_path / f"{stop}", events) as kept:
            kept.prepared = iteration.prepared
            kept.interrupted(stopped.last)
        with EventLog() as events, Checkpoints(tmp_path / f"{stop}", events) as kept:
            found = kept.latest()
        assert found is not None
        start, prepared = found
        again = Memory()
        outcome = train(problem, solver.setup(problem, prepared), patience=solver.patience, start=start, keeper=again)
        np.testing.assert_array_equal(outcome.weights, expected.weights)
        assert (outcome.rows, outcome.passes) == (expected.rows, expected.passes)
        assert [entry["loss"] for entry in outcome.history] == [entry["loss"] for entry in expected.history]
        # No step is done twice.
        assert len(again.seen) == count - stop


def test_a_solution_that_is_interrupted_keeps_the_sums(executor: ThreadsExecutor, monkeypatch: pytest.MonkeyPatch):
    """After the sweep, in the factorisation of what it has summed."""
    solver = sk.Direct(1e-6)
    problem = posed(executor, solver)
    whole, stopped, again = Memory(), Memory(), Memory()
    expected = train(problem, solver.setup(problem), keeper=whole)

    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HostEngine, "cholesky", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(problem, solver.setup(problem), keeper=stopped)
    assert stopped.last.rows == expected.rows
    outcome = train(problem, solver.setup(problem), start=stopped.last, keeper=again)
    np.testing.assert_array_equal(outcome.weights, expected.weights)
    assert outcome.rows == expected.rows
    assert len(again.seen) == len(whole.seen) - len(stopped.seen) < len(whole.seen)


# -------------------------------------------------------------------------------------------------------- the files


def some(step: int) -> Checkpoint:
    return Checkpoint(np.arange(4.0) * step, (1, step), True, rows=10 * step, history=({"pass": 1, "loss": 0.5},))


def test_the_last_few_are_kept_and_a_damaged_one_costs_itself_only(tmp_path: Path):
    told: list[tuple[str, dict[str, Any]]] = []
    with EventLog(None, (lambda *event: told.append(event),)) as events:
        with Checkpoints(tmp_path / "kept", events, seconds=0.0) as kept:
            kept.prepared = {"W": np.ones((3, 3))}
            for step in range(1, 6):
                kept.interrupted(some(step))
        names = [place.name for place in sorted((tmp_path / "kept").glob("0*"))]
        assert names == ["000001-1-000000004", "000001-1-000000005"]
        assert len(names) == KEPT_CHECKPOINTS
        assert [fields["step"] for kind, fields in told if kind == "checkpoint"] == [1, 2, 3, 4, 5]
        for file in (tmp_path / "kept" / names[-1]).rglob("c/*"):
            damaged = bytearray(file.read_bytes())
            damaged[-1] ^= 1
            file.write_bytes(damaged)
        with Checkpoints(tmp_path / "kept", events) as kept:
            found = kept.latest()
        assert found is not None
        start, prepared = found
        assert start.position == (1, 4)
        np.testing.assert_array_equal(start.state, np.arange(4.0) * 4)
        assert start.history == some(4).history
        np.testing.assert_array_equal(prepared["W"], np.ones((3, 3)))
        (warning,) = [fields["message"] for kind, fields in told if kind == "warning"]
        assert names[-1] in warning


def test_a_step_never_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = threading.Event()
    monkeypatch.setattr(checkpoints, "save_value", lambda place, kind, value: disk.wait(60))
    with EventLog() as events, Checkpoints(tmp_path / "kept", events, seconds=0.0) as kept:
        for step in range(50):
            kept.offer(some(step))
        assert kept.written == 0  # who had waited would be here a minute later, with one written
        disk.set()


def test_a_sweep_waits_for_its_sums_to_be_written_and_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They are held once; and what waits is at most a fiftieth of the time."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(checkpoints, "time", clock)

    def save(place: Path, kind: str, value: Any) -> None:
        time.sleep(0.1)
        clock.now += 0.1

    monkeypatch.setattr(checkpoints, "save_value", save)
    with EventLog() as events, Checkpoints(tmp_path / "kept", events, seconds=0.0) as kept:
        for step, (seconds, written) in enumerate([(0.0, 1), (0.0, 1), (4.9, 1), (0.2, 2), (4.9, 2), (0.2, 3)]):
            clock.now += seconds
            kept.offer(some(step), wait=True)
            assert kept.written == written


def test_a_training_shorter_than_the_interval_writes_nothing(tmp_path: Path):
    with EventLog() as events, Checkpoints(tmp_path / "never", events, seconds=1e6) as kept:
        for step in range(20):
            kept.offer(some(step))
    assert not (tmp_path / "never").exists()


# ------------------------------------------------------------------------------------------------- runs that are killed

PIPELINE = """
def pipeline(epochs: int = 4, batch: int = 40) -> sk.Pipeline:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 6)).astype(np.float32)
    data = sk.from_arrays(X, np.sin(X[:, 0]) + X[:, 1]).split(test=0.2)
    return sk.Pipeline(data[0], sk.Laplace(3.0), sk.Uniform(100), Slow(epochs=epochs, batch=batch), test=data[1],
                       task="regression")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "slow.py"
    path.write_text(SLOW + PIPELINE)
    return path


@pytest.fixture
def start(command: Callable[..., Any]) -> Callable[..., Any]:
    """Starts ``streamkern`` with pauses between the steps."""
    return lambda *words, pause: command(*words, PAUSE=str(pause))


def wait_for(folder: Path, text: str, process: Any) -> None:
    """Until the process has written it, however long that takes: the suite has a limit for every test."""
    log = folder / "events.jsonl"
    while not (log.exists() and text in log.read_text()):
        assert process.poll() is None, f"{text} never happened"
        time.sleep(0.02)


def resumed(start: Callable[..., Any], folder: Path) -> None:
    """Go on, to the end."""
    process = start("resume", folder, pause=0.0)
    _, said = process.communicate()
    assert process.returncode == 0, said


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    log = folder / "events.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [event for event in found if event["event"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_loses_no_step(file: Path, tmp_path: Path, start: Callable[..., Any], number: signal.Signals):
    expected = run(load_pipeline(file), tmp_path / "whole")
    folder = tmp_path / "run"
    process = start("run", file, "--run-dir", folder, "--threads", "1", pause=0.5)  # 160 steps: it does not end first
    wait_for(folder, '"event": "step"', process)
    time.sleep(0.3)
    for _ in range(3):  # as a wrapper does that passes on what its group was sent already
        process.send_signal(number)
        time.sleep(0.002)
    _, said = process.communicate()
    assert process.returncode == 128 + number, said
    assert f"streamkern resume {folder}" in said
    ended = json.loads((folder / "result.json").read_text())
    assert (ended["status"], ended["error"]) == ("interrupted", f"stopped by {number.name}")
    (written,) = events(folder, "checkpoint")
    resumed(start, folder)
    result = json.loads((folder / "result.json").read_text())
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert result["resumed_rows"] == written["rows"] > 0
    assert not list((folder / "checkpoints").iterdir())
    # Done is done.
    stamp = (folder / "model.zarr/zarr.json").stat().st_mtime_ns
    resumed(start, folder)
    assert (folder / "model.zarr/zarr.json").stat().st_mtime_ns == stamp


@pytest.mark.slow
def test_kill_9_at_random_moments(file: Path, tmp_path: Path, start: Callable[..., Any]):
    expected = run(load_pipeline(file), tmp_path / "whole")
    folder = tmp_path / "run"
    luck = random.Random(20)
    for killed in range(5):
        kind = ("run", "checkpoint")[killed % 2]  # counted from the beginning, or from the first checkpoint
        seen = len(events(folder, kind))
        process = start("run", file, "--run-dir", folder, "--checkpoint-seconds", "0", pause=0.1)
        while process.poll() is None and len(events(folder, kind)) <= seen:
            time.sleep(0.01)
        time.sleep(luck.uniform(0.0, 0.7))
        process.kill()
        process.communicate()
    assert any(event["rows"] > 0 for event in events(folder, "resume"))
    result = run(load_pipeline(file), folder)
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert result["metrics"] == expected["metrics"]


@pytest.mark.slow
def test_a_changed_setting_starts_anew_and_the_old_training_can_still_go_on(file, tmp_path, start):
    folder = tmp_path / "run"
    process = start("run", file, "--run-dir", folder, pause=0.5)
    wait_for(folder, '"event": "step"', process)
    process.terminate()
    process.communicate()
    other = run(load_pipeline(file, {"epochs": "1"}), folder)
    assert other["resumed_rows"] == 0
    assert other["weights_sha256"] == run(load_pipeline(file, {"epochs": "1"}), tmp_path / "alone")["weights_sha256"]
    result = run(load_pipeline(file), folder)
    assert result["resumed_rows"] > 0
    assert result["weights_sha256"] == run(load_pipeline(file), tmp_path / "whole")["weights_sha256"]
