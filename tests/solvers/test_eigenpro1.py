"""EigenPro in feature space."""

from typing import Any, ClassVar

import numpy as np
import pytest

from streamkern.cpu import default_engine
from streamkern.errors import NumericalError, UsageError
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.kernels import FeatureMap, Gaussian, Identity, Laplace, Nystrom, RandomFourier
from streamkern.precondition.eigensystem import top_eigensystem
from streamkern.precondition.nystrom import RandomizedSVD
from streamkern.rng import generator
from streamkern.solvers import Problem, train
from streamkern.solvers.eigenpro1 import EigenPro1, measure_features
from streamkern.testing.solver import C, D, SolverSuite, small_data, small_problem, solve

N = 300
F64 = np.dtype(np.float64)
X, y = small_data(N)


def problem(executor: ThreadsExecutor, p: int = 30, features: FeatureMap | None = None, **changes: Any) -> Problem:
    given = {"centers": X[:p], "kernel": Laplace(4.0), "lanes": 2} | changes
    return small_problem(executor, X, y, features=features, **given)


def run(solver: EigenPro1, given: Problem) -> np.ndarray:
    outcome = solve(given, solver)
    assert outcome.failure is None
    return outcome.weights


def values(given: Problem) -> np.ndarray:
    """φ of all rows, shape (N, M)."""
    return given.basis().block(X - given.center)


class TestConformance(SolverSuite):
    to_converge: ClassVar = {"epochs": 150, "q": 50, "batch": 1200, "average": False}
    quick: ClassVar = {"epochs": 2, "q": 20, "batch": 64}

    def solver(self, **settings: Any) -> EigenPro1:
        return EigenPro1(**settings)


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
@pytest.mark.parametrize(
    "features", [None, RandomFourier(Gaussian(3.0), 40), Nystrom(Laplace(4.0)), Identity()], ids=lambda f: str(f)[:8]
)
def test_full_gradients_converge_to_least_squares(executor, features, ridge):
    given = problem(executor, features=features)
    solver = EigenPro1(epochs=300, q=160, batch=N, ridge=ridge, average=False)
    weights, phi = run(solver, given), values(given)
    exact = np.linalg.solve(phi.T @ phi / N + ridge * np.eye(phi.shape[1]), phi.T @ y / N)
    np.testing.assert_allclose(phi @ weights, phi @ exact, atol=1e-6)


@pytest.mark.slow
def test_minibatches_converge_where_the_features_interpolate(executor: ThreadsExecutor) -> None:
    """More features than rows: no noise is left at the solution, and it is the one of least norm."""
    given = problem(executor, features=RandomFourier(Gaussian(0.5), 1000))
    weights = run(EigenPro1(epochs=100, q=240, batch=60, average=False), given)
    exact = np.linalg.lstsq(values(given), y, rcond=None)[0]
    assert np.linalg.norm(weights - exact) < 1e-4 * np.linalg.norm(exact)


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_a_step_is_table_1(executor: ThreadsExecutor, tau: float) -> None:
    given = problem(executor, p=28)  # few enough for the randomised SVD to be exact
    iteration = EigenPro1(epochs=1, q=8, batch=60, tau=tau, average=False).setup(given)
    stream = iteration.stream
    phi = values(given)
    H = phi.T @ phi / N
    lam, E = np.linalg.eigh(H)
    lam, E = lam[::-1], E[:, ::-1]
    P = np.eye(28) - (E[:, :8] * (1 - tau * lam[8] / lam[:8])) @ E[:, :8].T
    w = np.zeros((28, C))
    for step in range(stream.steps):
        rows = np.concatenate([stream.block((0, lane, step)).ids for lane in range(stream.lanes)])
        gradient = phi[rows].T @ (phi[rows] @ w - y[rows]) / len(rows)
        w -= iteration.size.step(len(rows)) * P @ gradient
    np.testing.assert_allclose(train(given, iteration).weights, w, atol=1e-6 * abs(w).max())


def test_the_covariance_is_that_of_all_features_at_once(executor: ThreadsExecutor) -> None:
    X, _ = small_data(1500)  # more tiles than are added up at a time
    basis = RandomFourier(Gaussian(3.0), 50).basis(D, F64)
    phi, V = basis.block(X), generator("V").standard_normal((50, 7))
    product = default_engine().bound(executor).covariance(basis, X, V)
    np.testing.assert_allclose(product, phi.T @ (phi @ V), rtol=1e-12, atol=1e-10)


def test_the_measured_step_is_that_of_the_preconditioned_kernel(executor: ThreadsExecutor) -> None:
    basis = RandomFourier(Gaussian(3.0), 50).basis(D, F64)
    phi = basis.block(X)
    P = RandomizedSVD(top_eigensystem(phi.T @ phi / N, 10), 0.5)
    size, K = measure_features(basis, P, X, default_engine().bound(executor)), phi @ P.apply(phi.T.copy())
    assert size.beta == pytest.approx(np.trace(K) / N)
    assert size.peak == pytest.approx(np.diag(K).max())
    assert size.top == pytest.approx(np.linalg.eigvalsh(K)[-1] / N, rel=0.06)


def test_theorem_1_is_more_careful_than_the_measured_step(executor: ThreadsExecutor) -> None:
    for batch in (10, 100):
        report = EigenPro1(q=10, batch=batch).setup(problem(executor)).report
        assert report["theorem_1_step"] < report["step"] < 60 * report["theorem_1_step"]


@pytest.mark.slow
def test_averaging_removes_noise(executor: ThreadsExecutor) -> None:
    given = problem(executor)
    phi = values(given)
    errors = [
        np.square(phi @ run(EigenPro1(epochs=20, q=20, batch=10, average=average), given) - y).mean()
        for average in (True, False)
    ]
    assert errors[0] < errors[1]


def test_a_seed_decides_the_subsample(executor: ThreadsExecutor) -> None:
    given = problem(executor)
    a, b, other = (run(EigenPro1(q=5, subsample=40, seed=seed), given) for seed in (0, 0, 1))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, other)


def test_features_that_leave_nothing_to_precondition_are_refused(executor: ThreadsExecutor) -> None:
    with pytest.raises(UsageError, match="eigenpairs of a matrix of size 1"):
        EigenPro1().setup(problem(executor, p=1))
    far = np.full((3, D), 1e6) + np.arange(3)[:, None]  # features that are all 0
    with pytest.raises(NumericalError, match="no positive eigenvalue"):
        EigenPro1().setup(problem(executor, centers=far))
