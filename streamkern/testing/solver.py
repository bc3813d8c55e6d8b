"""Conformance tests of solvers on kernel values: subclass `SolverSuite` to hold a new one to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import scipy.linalg
from scipy.spatial.distance import cdist

from streamkern.centers import CenterSet
from streamkern.data import from_arrays
from streamkern.data.dataset import Dataset
from streamkern.data.targets import Continuous
from streamkern.evaluation.score import score
from streamkern.execute.base import Executor
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.formats import ArraySource
from streamkern.kernels import Kernel, Laplace
from streamkern.solvers import Outcome, Problem, Solver, train
from streamkern.types import Array

N, P, D, C = 1200, 60, 5, 3
BANDWIDTH = 3.0


def small_data(n: int = N, seed: int = 0) -> tuple[Array, Array]:
    """Rows and noisy targets: X of shape (n, D), y of shape (n, C)."""
    rng = np.random.default_rng([n, seed])
    X = rng.normal(size=(n, D))
    y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2], np.abs(X[:, 3])], axis=1)
    return X, y - y.mean(axis=0) + 0.3 * rng.normal(size=(n, C))


def small_problem(
    executor: Executor,
    X: Array | None = None,
    y: Array | None = None,
    *,
    data: Dataset | None = None,
    centers: Array | None = None,
    kernel: Kernel | None = None,
    dtype: Any = np.float64,
    **changes: Any,
) -> Problem:
    """Rows of `small_data`, or others, with the first of them as centers."""
    if X is None or y is None:
        X, y = small_data()
    ids = None if centers is not None else np.arange(min(P, len(X)))
    Z = np.asarray(X[ids] if ids is not None else centers, dtype=dtype)
    encoding = Continuous(np.zeros(1 if y.ndim == 1 else y.shape[1]), flat=y.ndim == 1)
    return Problem(
        data or from_arrays(X, y), encoding, kernel or Laplace(BANDWIDTH), CenterSet(Z, ids), executor,
        dtype=np.dtype(dtype), **changes,
    )  # fmt: skip


def solve(problem: Problem, solver: Solver) -> Outcome:
    """Train as the solver's own settings say."""
    return train(problem, solver.setup(problem), patience=solver.patience)


def least_squares(X: Array, y: Array, Z: Array) -> Array:
    """The closed form that a solver without a ridge converges to."""
    L = np.linalg.cholesky(np.exp(-cdist(Z, Z) / BANDWIDTH))  # the model is linear in features with K(Z, Z) = L L^T
    features = scipy.linalg.solve_triangular(L, np.exp(-cdist(X, Z) / BANDWIDTH).T, lower=True).T
    b = scipy.linalg.lstsq(features, y, lapack_driver="gelsy")[0]
    return cast(Array, scipy.linalg.solve_triangular(L, b, lower=True, trans="T"))


def distance(problem: Problem, X: Array, a: Array, b: Array) -> float:
    """Norm of the difference of two models' predictions, relative to the second's."""
    K = problem.kernel(X, np.asarray(problem.centers.Z, dtype=np.float64))
    return float(np.linalg.norm(K @ (a - b)) / np.linalg.norm(K @ b))


class SolverSuite:
    """Conformance tests of a Solver on kernel values at centers.

    A subclass gives the method ``solver``: the solver with some settings. It says in ``to_converge`` with which it
    comes within ``tolerance`` of the least squares solution of `small_problem` in float64, and in ``quick`` with which
    a fit is short.
    """

    to_converge: ClassVar[dict[str, Any]]
    quick: ClassVar[dict[str, Any]]
    tolerance: float = 1e-3

    def solver(self, **settings: Any) -> Solver:
        """The solver with these settings."""
        raise NotImplementedError

    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        """Two threads."""
        with ThreadsExecutor(2) as executor:
            yield executor

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_it_converges_to_least_squares(self, executor: Executor, dtype: type) -> None:
        """To the closed form in float64, and near it in float32."""
        X, y = small_data()
        problem = small_problem(executor, X, y, dtype=dtype)
        outcome = solve(problem, self.solver(**self.to_converge))
        assert outcome.failure is None
        assert outcome.weights.shape == (P, C)
        assert outcome.weights.dtype == dtype
        tolerance = self.tolerance if dtype == np.float64 else max(0.01, 2 * self.tolerance)
        assert distance(problem, X, outcome.weights, least_squares(X, y, X[:P])) <= tolerance

    @pytest.mark.parametrize("chunk_rows", [100, 257, N])
    def test_chunks_do_not_matter(self, executor: Executor, chunk_rows: int) -> None:
        """Streamed from chunks of any size, it converges to the same weights as on the whole."""
        X, y = small_data()
        source = ArraySource(X, y, chunk_rows=chunk_rows)
        problem = small_problem(executor, X, y, data=Dataset(source))
        weights = solve(problem, self.solver(**self.to_converge)).weights
        assert distance(problem, X, weights, least_squares(X, y, X[:P])) <= self.tolerance

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_threads_do_not_change_a_bit(self, dtype: type) -> None:
        """One, two or three, with repeated runs alike."""
        found = []
        for threads in (1, 2, 3, 2):
            with ThreadsExecutor(threads) as executor:
                found.append(solve(small_problem(executor, dtype=dtype), self.solver(**self.quick)).weights)
        for weights in found[1:]:
            np.testing.assert_array_equal(weights, found[0])

    def test_outputs_do_not_disturb_one_another(self, executor: Executor) -> None:
        """Each is fitted as it is alone."""
        X, y = small_data()
        together = solve(small_problem(executor, X, y), self.solver(**self.quick)).weights
        for j in range(C):
            alone = solve(small_problem(executor, X, y[:, [j]]), self.solver(**self.quick)).weights
            np.testing.assert_allclose(together[:, [j]], alone, rtol=1e-6, atol=1e-9 * np.abs(together).max())

    def test_targets_scale_weights(self, executor: Executor) -> None:
        """Twice the targets give twice the weights, and none give none."""
        X, y = small_data()
        once = solve(small_problem(executor, X, y), self.solver(**self.quick)).weights
        twice = solve(small_problem(executor, X, 2 * y), self.solver(**self.quick)).weights
        np.testing.assert_allclose(twice, 2 * once, rtol=1e-9, atol=1e-12)
        nothing = solve(small_problem(executor, X, 0 * y), self.solver(**self.quick))
        assert nothing.failure is None
        np.testing.assert_array_equal(nothing.weights, 0 * once)

    def test_it_stops_when_validation_rows_gain_nothing(self, executor: Executor) -> None:
        """And gives the weights of the best pass, whose score it reported."""
        X, y = small_data(150)
        y = np.random.default_rng(0).normal(size=y.shape)  # nothing to learn: training longer only fits noise
        problem = small_problem(executor, X, y, validation=from_arrays(*small_data(400, 1)))
        outcome = solve(problem, self.solver(**{**self.quick, "epochs": 200, "patience": 2}))
        assert outcome.failure is None
        errors = [entry["validation"]["mse"] for entry in outcome.history]
        assert outcome.passes == len(errors) < 200
        assert problem.validation is not None
        metrics = score(executor, problem.assembly(problem.validation), problem.expansion(), outcome.weights)
        assert metrics["mse"] == min(errors)

    def test_json_says_what_it_was_told(self) -> None:
        """Name and parameters, serialisable."""
        described = json.loads(json.dumps(self.solver(**self.quick).to_json()))
        assert described["name"] == type(self.solver(**self.quick)).__name__
        for name, value in self.quick.items():
            assert described[name] == value
