"""Fewer centers than rows, shared out over workers: weights of packed projection equal those of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu import gemm
from streamkern.data.targets import Continuous
from streamkern.engine.quantised_factor import factor_bytes
from streamkern.evaluation.score import SquaredError
from streamkern.events import EventLog
from streamkern.execute.base import SharedState
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.runs.checkpoints import Checkpoints
from streamkern.solvers import Problem, train
from tests.execute.test_shared import killed_within, workers_of

N, P, TILE = 5_000, 2_400, 512  # five tiles, the last of which is not whole
LEAD, HALF = 1_024, 1_536  # columns of the factor: as many as the memory allows, and the most that it ever has


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N, 6)).astype(np.float32)
    w = np.exp(X[:, 3])
    y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
    return sk.from_arrays(X, y, sample_weight=w / w.mean())


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Use tiles of 512 centers, so that each of four workers has at least one."""
    monkeypatch.setattr("streamkern.precondition.int16_projection.CENTER_TILE", TILE)


def weights(
    rows: Any,
    executor: Any,
    lead: int,
    on_step: Any = None,
    keeper: Any = None,
    start: Any = None,
    on_outcome: Any = None,
    **changes: Any,
) -> np.ndarray:
    """Return the weights of EigenPro with packed projection after a pass; with momentum, which keeps one more array."""
    dtype = np.dtype(np.float32)
    problem = Problem(
        rows, Continuous(np.zeros(2)), sk.Laplace(3.0), sk.Uniform(P).choose(rows, executor, dtype), executor,
        dtype=dtype, memory=factor_bytes(P, lead), **changes,
    )  # fmt: skip
    iteration = sk.EigenPro(epochs=1, projection="packed", s=300, batch=700, momentum=0.3).setup(problem)
    assert iteration.report["lead"] == lead
    outcome = train(problem, iteration, on_step=on_step or (lambda progress: None), keeper=keeper, start=start)
    assert outcome.failure is None
    if on_outcome is not None:
        on_outcome(outcome)
    return outcome.weights


@pytest.fixture(scope="module")
def expected(rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamkern.precondition.int16_projection.CENTER_TILE", TILE)
        with ThreadsExecutor(2) as executor:
            return {lead: weights(rows, executor, lead) for lead in (LEAD, HALF)}


@pytest.mark.slow
@pytest.mark.parametrize("lead", [LEAD, HALF])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_weights_are_those_of_threads_whatever_the_workers(cluster, rows, expected, workers, lead):
    with workers_of(cluster, workers) as executor:
        seen = []
        np.testing.assert_array_equal(weights(rows, executor, lead, seen.append), expected[lead])
        assert len(seen[-1].timeline["workers"]) == workers
        assert sum(share["lanes"] for share in seen[-1].timeline["workers"].values()) == 4
        # Each with all centers; BLAS multiplies by the shapes of a worker's tiles where products are not our own.
        if workers == 2 and gemm.VECTORS == 2:
            np.testing.assert_array_equal(weights(rows, executor, lead, share=False), expected[lead])


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["the root", "another"])
def test_a_worker_killed_within_a_step_changes_no_bit(cluster, rows, expected, victim):
    with workers_of(cluster, 3) as executor, killed_within(cluster, executor, victim, 3, 0.02) as kill:
        np.testing.assert_array_equal(weights(rows, executor, LEAD, kill), expected[LEAD])


class Stop(Exception):
    """An end in the middle."""


def stop(progress):
    if progress.step == 4:
        raise Stop


@pytest.mark.slow
@pytest.mark.parametrize("first", ["threads", "workers"])
def test_training_goes_on_with_centers_shared_out_or_not(cluster, rows, expected, tmp_path, first, monkeypatch):
    """Resume from a whole state, and from a set of shares and the steps since, on other workers and on threads."""
    monkeypatch.setattr("streamkern.execute.base.LOG_BYTES", 1)  # a set is made once there are a few steps
    monkeypatch.setattr("streamkern.execute.base.LOG_STEPS", 2)

    def kept(events):
        return Checkpoints(tmp_path / "kept", events, seconds=1e6)

    begun = ThreadsExecutor(2) if first == "threads" else workers_of(cluster, 3)
    with EventLog() as events, kept(events) as keeper, begun as executor, pytest.raises(Stop):
        weights(rows, executor, LEAD, stop, keeper)
    with EventLog() as events, kept(events) as keeper:
        start, _ = keeper.latest()
        assert start.position == (0, 4)
        if first == "workers":
            assert isinstance(start.state, SharedState)
            assert start.state.log
            with ThreadsExecutor(2) as executor:
                np.testing.assert_array_equal(weights(rows, executor, LEAD, keeper=keeper, start=start), expected[LEAD])
        with workers_of(cluster, 2) as executor:
            np.testing.assert_array_equal(weights(rows, executor, LEAD, keeper=keeper, start=start), expected[LEAD])


@pytest.mark.slow
@pytest.mark.parametrize("here", [False, True])
def test_a_pass_is_evaluated_where_all_centers_may_be(cluster, rows, here, monkeypatch):
    """By the workers, or by threads of this process: with the same metrics."""

    def history(executor: Any, **changes: Any) -> Any:
        seen: list[Any] = []
        weights(rows, executor, LEAD, on_outcome=seen.append, validation=rows.sample(700), **changes)
        return seen[0].history[0]["validation"]

    with ThreadsExecutor(2) as executor:
        wanted = history(executor)
    sent = []
    with workers_of(cluster, 2) as executor:
        imap = executor.imap
        monkeypatch.setattr(
            executor, "imap", lambda fn, items, given=(): (sent.append(given), imap(fn, items, given))[1]
        )
        assert history(executor, evaluates_here=here) == wanted
    evaluated = [given for given in sent if given and isinstance(getattr(given[0], "contribution", None), SquaredError)]
    assert len(evaluated) == (not here)
