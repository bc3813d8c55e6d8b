"""EigenPro 2: every training row a center."""

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from streamkern.centers import CenterSet, Uniform
from streamkern.data import from_arrays, open_dataset
from streamkern.data.companion_blocks import AllTiles
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.kernels import Laplace
from streamkern.rng import generator
from streamkern.solvers import Problem
from streamkern.solvers.eigenpro2 import EigenPro2
from streamkern.sweep import StepWork
from streamkern.testing.solver import C, small_data, small_problem, solve
from tests import references

N = 240
X, y = small_data(N)


def problem(executor: ThreadsExecutor, **changes: Any) -> Problem:
    rows = changes.pop("train", None) or from_arrays(X, y)
    centers = changes.pop("centers", None) or Uniform(rows.base_rows).choose(rows, executor, np.dtype(np.float64))
    return replace(small_problem(executor, X, y, data=rows, lanes=2, **changes), centers=centers)


def run(solver: EigenPro2, given: Problem) -> np.ndarray:
    outcome = solve(given, solver)
    assert outcome.failure is None
    return outcome.weights


def test_centers_in_another_order_give_their_weights_in_that_order(executor: ThreadsExecutor) -> None:
    given = problem(executor)
    order = generator("order").permutation(N)
    shuffled = replace(given, centers=CenterSet(given.centers.Z[order], given.centers.ids[order]))
    np.testing.assert_allclose(run(EigenPro2(), shuffled), run(EigenPro2(), given)[order], atol=1e-7)


class Replay(np.random.Generator):
    """Gives the reference the subsample and the batches that the solver takes."""

    def __init__(self, iteration: Any) -> None:
        super().__init__(np.random.Philox(0))
        self.subsample = iteration.rows[iteration.chosen]
        stream = iteration.stream
        self.orders = [
            np.concatenate([stream.block((pass_, lane, step)).ids for step in range(stream.steps) for lane in (0, 1)])
            for pass_ in range(iteration.epochs)
        ]

    def choice(self, n: int, size: int, replace: bool) -> np.ndarray:  # type: ignore[override]
        return self.subsample

    def permutation(self, n: int) -> np.ndarray:  # type: ignore[override]
        return self.orders.pop(0)


@pytest.mark.parametrize("s", [60, N])
def test_it_is_the_published_algorithm_on_the_same_batches(executor: ThreadsExecutor, s: int) -> None:
    kernel = partial(references.laplace, bandwidth=3.0)
    m = 30
    given = problem(executor)
    sub = given.train.draw(s)
    tail = references.nystrom_top_eigensystem(kernel(X[sub], X[sub]), 12)[2] / s
    step = m / 2 if m < 1 / tail else 0.99 * m / (1 + (m - 1) * tail)
    solver = EigenPro2(epochs=3, s=s, q=12, batch=m, step=step, average=False)
    replay: Any = Replay(solver.setup(given))
    expected = references.eigenpro2(kernel, X, y, s=s, q=12, epochs=3, batch=m, seed=replay)
    assert not replay.orders
    np.testing.assert_allclose(run(solver, given), expected[given.centers.ids], atol=1e-6 * abs(expected).max())


def test_with_no_eigenpairs_it_is_gradient_descent_in_the_rkhs_and_the_average_is_of_its_iterates(executor):
    given, solver = problem(executor), EigenPro2(epochs=2, q=0, batch=30)
    iteration = solver.setup(given)
    K, alpha, mean = references.laplace(X, X, 3.0), np.zeros((N, C)), np.zeros((N, C))
    batches = [m for order in Replay(iteration).orders for m in order.reshape(-1, 30)]
    for t, m in enumerate(batches, start=1):
        alpha[m] -= iteration.size.step(30) / 30 * (K[m] @ alpha - y[m])
        mean += 6 / (t + 5) * (alpha - mean)
    scale = abs(alpha).max()
    np.testing.assert_allclose(run(replace(solver, average=False), given), alpha[given.centers.ids], atol=1e-6 * scale)
    np.testing.assert_allclose(run(solver, given), mean[given.centers.ids], atol=1e-6 * scale)
    assert iteration.size.top == pytest.approx(np.linalg.eigvalsh(K)[-1] / N, rel=0.06)


def test_the_measured_step_is_exact_where_all_rows_are_measured(executor: ThreadsExecutor) -> None:
    """Few rows: λ is the top of P K over the very rows that are fitted, which is σ_{q+1} for s = n."""
    iteration = EigenPro2(s=N, q=20).setup(problem(executor))
    assert iteration.size.top * N == pytest.approx(iteration.report["spectrum"][-1], rel=0.06)


def test_streamed_rows_give_what_resident_rows_give(executor: ThreadsExecutor, tmp_path: Path) -> None:
    """From zarr in small chunks with no cache; of the centers nothing but the mean is there."""
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    for name, values in (("X", X), ("y", y)):
        group.create_array(name, shape=values.shape, chunks=(32, values.shape[1]), dtype="float64")[:] = values
    stored = open_dataset(tmp_path / "rows.zarr", target="y")
    resident = problem(executor)
    mean = np.broadcast_to(resident.centers.Z.mean(axis=0), X.shape)
    streamed = problem(executor, train=stored, centers=CenterSet(mean, resident.centers.ids), cache_bytes=0)
    # The same order of rows: it depends on the chunks, so one full batch makes the two comparable.
    solver = EigenPro2(epochs=20, s=80, batch=N)
    np.testing.assert_allclose(run(solver, streamed), run(solver, resident), rtol=1e-7, atol=1e-7)


def test_tiles_of_any_size_give_the_same_sums(executor: ThreadsExecutor) -> None:
    iteration = EigenPro2(batch=40).setup(problem(executor))
    block = iteration.stream.block((0, 0, 0))
    alpha = generator("alpha").standard_normal((N, C))

    def sums(rows: int) -> Any:
        extra_blocks = AllTiles(iteration.stream, rows)
        contribution = replace(iteration.contribution, cuts=extra_blocks.cuts(iteration.contribution.ids))
        return contribution(block, alpha, None, extra_blocks(alpha))

    whole, tiled = sums(N), sums(7)
    np.testing.assert_allclose(tiled[1], whole[1], atol=1e-9)
    np.testing.assert_allclose(tiled[0][0][1], whole[0][0][1], atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_meets_itself_at_distance_zero(executor: ThreadsExecutor, dtype: str) -> None:
    """Rows far from the origin of the kernel's units: k(x, x) by cancellation would be far from 1."""
    given = problem(executor, kernel=Laplace(1e-4), dtype=np.dtype(dtype))
    iteration = EigenPro2(batch=40, step=1.0).setup(given)
    block = iteration.stream.block((0, 1, 0))
    alpha = np.ones((N, C), dtype=dtype)
    (pieces, *_) = iteration.contribution(block, alpha, None, iteration.extra_blocks(alpha))
    np.testing.assert_allclose(pieces[0][1] + block.y, 1.0, atol=1e-6)


def test_the_contribution_travels(executor: ThreadsExecutor) -> None:
    iteration = EigenPro2(batch=40).setup(problem(executor))
    block, alpha = iteration.stream.block((0, 0, 0)), iteration.broadcast(iteration.init()) + 1
    here = StepWork(iteration.stream, iteration.contribution, iteration.extra_blocks)
    there = pickle.loads(pickle.dumps(here))
    assert there.extra_blocks.scan.reader is there.extra_blocks.stream.reader  # a process keeps stored rows once
    assert np.array_equal(there.contribute(block, alpha)[1], here.contribute(block, alpha)[1])


@pytest.mark.slow
def test_a_part_of_the_stored_rows_can_be_fitted(executor: ThreadsExecutor) -> None:
    part, _ = from_arrays(X, y).split(test=0.3)
    given = problem(executor, train=part)
    ids = given.centers.ids
    assert ids is not None
    assert len(ids) < N
    exact = np.linalg.solve(references.laplace(X[ids], X[ids], 3.0), y[ids])
    np.testing.assert_allclose(
        run(EigenPro2(epochs=150, q=40, average=False), given), exact, atol=1e-5 * abs(exact).max()
    )
