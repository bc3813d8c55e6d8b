"""EigenPro 3 and 4: held to the suite, to their definitions, and to what must not break them."""

import itertools
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from streamkern.errors import UsageError
from streamkern.execute.base import Executor
from streamkern.kernels import Gaussian, Kernel, Laplace
from streamkern.precondition.nystrom import StepSize
from streamkern.solvers import EigenPro, Problem, train
from streamkern.solvers.batch_size import default_batch
from streamkern.testing.solver import (
    BANDWIDTH,
    C,
    P,
    SolverSuite,
    distance,
    least_squares,
    small_data,
    small_problem,
    solve,
)
from tests import references

FULL = 4096  # more rows than there are: a step is a pass
laplace = partial(references.laplace, bandwidth=BANDWIDTH)


class EigenProSuite(SolverSuite):
    """The projection is the subclass's."""

    projection: str
    to_converge: ClassVar[dict[str, Any]] = {"epochs": 300, "batch": FULL, "q": 40, "average": False}
    quick: ClassVar[dict[str, Any]] = {"epochs": 3, "batch": 128, "step": 8.0}

    def solver(self, **settings: Any) -> EigenPro:
        return EigenPro(projection=self.projection, **settings)

    def test_the_step_that_is_measured_is_stable_and_near_the_limit(self, executor: Executor) -> None:
        """Full gradients converge with it, and diverge with four times it unless single rows set it."""
        problem = small_problem(executor)
        iteration = self.solver(batch=FULL, epochs=300).setup(problem)
        size = iteration.prepared.size
        assert size.beta <= size.peak
        assert size.top <= size.beta
        outcome = solve(problem, self.solver(batch=FULL, epochs=60, step=4 / size.top, average=False))
        assert outcome.failure is not None

    @pytest.mark.parametrize("settings", [{}, {"average": False}, {"batch": 7}, {"q": 1}, {"q": 59}, {"s": 20}])
    def test_every_pass_gains(self, executor: Executor, settings: dict[str, Any]) -> None:
        """Whatever is set by hand, batch and step are measured for it."""
        problem = small_problem(executor, lanes=1)
        outcome = solve(problem, self.solver(epochs=5, **settings))
        assert outcome.failure is None
        losses = [entry["loss"] for entry in outcome.history]
        assert losses[-1] < losses[0]

    def test_the_average_is_nearer_than_the_last_iterate(self, executor: Executor) -> None:
        X, y = small_data()
        best = least_squares(X, y, X[:P])
        problem = small_problem(executor, X, y)
        apart = [
            distance(problem, X, solve(problem, self.solver(epochs=10, batch=32, q=40, average=mean)).weights, best)
            for mean in (True, False)
        ]
        assert apart[0] < 0.5 * apart[1]


class TestExact(EigenProSuite):
    projection = "exact"


class TestPacked(EigenProSuite):
    projection = "packed"


class TestInexact(EigenProSuite):
    projection = "inexact"


class TestDelayed(EigenProSuite):
    projection = "delayed"
    quick: ClassVar[dict[str, Any]] = {"epochs": 2, "batch": 16, "step": 4.0}  # four steps a projection


def steps_of(problem: Problem, iteration: Any, passes: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and targets of the steps of training."""
    stream, found = iteration.stream, []
    for pass_, step in itertools.product(range(passes), range(stream.steps)):
        blocks = [stream.block((pass_, lane, step)) for lane in range(stream.lanes)]
        found.append((np.concatenate([b.X for b in blocks]) + problem.center, np.concatenate([b.y for b in blocks])))
    return found


def test_full_gradients_with_exact_projection_are_algorithm_1_of_the_paper(executor: Executor):
    X, y = small_data()
    Z, q, epochs = X[:P], 8, 7
    expected = references.eigenpro3_exact(laplace, X, y, Z, s=P, q=q, epochs=epochs, batch=len(X), X_s=Z)
    values = np.linalg.eigvalsh(laplace(Z, Z))[::-1]
    step = 0.99 * len(X) / (1 + (len(X) - 1) * values[q] / P)
    solver = EigenPro(projection="exact", q=q, batch=FULL, step=step, epochs=epochs, average=False, momentum=0.0)
    outcome = solve(small_problem(executor, X, y), solver)
    np.testing.assert_allclose(outcome.weights, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("products", [0, 1, 3])
def test_delayed_projection_is_its_definition(executor: Executor, products: int):
    """f gains −η/m (K(·, X_m) r − K(·, Z) Q_s K(Z, X_m) r) a step; every third, what it gained is projected."""
    X, y = small_data()
    Z, q, every = X[:P], 8, 3
    problem = small_problem(executor, X, y)
    solver = EigenPro(
        projection="delayed", q=q, batch=P // every, epochs=1, average=False, projection_products=products
    )
    iteration = solver.setup(problem)
    assert iteration.report["project_every"] == every
    projection = np.stack([iteration.projection.apply(e[:, None])[:, 0] for e in np.eye(P)], axis=1)
    K = laplace(Z, Z)
    values, U = np.linalg.eigh(K)
    values, U = values[::-1], U[:, ::-1]
    Q = (U[:, :q] * ((1 - values[q] / values[:q]) / values[:q])) @ U[:, :q].T
    steps = steps_of(problem, iteration)
    alpha = np.zeros((P, C))
    for start in range(0, len(steps), every):
        live, temporary, coefficients = alpha.copy(), np.empty((0, Z.shape[1])), np.empty((0, C))
        for rows, targets in steps[start : start + every]:
            r = laplace(rows, Z) @ live + laplace(rows, temporary) @ coefficients - targets
            rate = iteration.prepared.size.step(len(rows)) / len(rows)
            temporary, coefficients = np.concatenate([temporary, rows]), np.concatenate([coefficients, -rate * r])
            live += rate * Q @ (laplace(Z, rows) @ r)
        alpha += projection @ (laplace(Z, temporary) @ coefficients)
    np.testing.assert_allclose(train(problem, iteration).weights, alpha, rtol=1e-7, atol=1e-7)


HARD = {
    "one feature": (lambda X: X[:, :1], Laplace(1.0)),
    "rows three times": (lambda X: np.repeat(X[: len(X) // 3 + 1], 3, axis=0)[: len(X)], Laplace(3.0)),
    "eigenvalues below rounding": (lambda X: X[:, :2], Gaussian(4.0)),
    "constant features": (lambda X: np.concatenate([X, np.ones((len(X), 3))], axis=1), Gaussian(2.0)),
    "far from the origin": (lambda X: X + 100, Laplace(3.0)),
    "one row far away": (lambda X: X * np.where(np.arange(len(X)) == 7, 1e4, 1.0)[:, None], Laplace(3.0)),
    "nearly the identity": (lambda X: X, Laplace(0.01)),
    "nearly constant": (lambda X: X, Laplace(1e4)),
}


PROJECTIONS = ["exact", "packed", "inexact", "delayed"]


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_hard_problems_do_not_diverge(executor: Executor, name: str, projection: str):
    """In float32 and float64 by turns: each problem and each projection in both."""
    change, kernel = HARD[name]
    X, y = small_data(600)
    dtype = (np.float32, np.float64)[(list(HARD).index(name) + PROJECTIONS.index(projection)) % 2]
    assert_gains(executor, change(X), y, kernel, 150, dtype, projection=projection)


def test_momentum_is_mass_with_the_preconditioned_gradient(executor: Executor):
    """Liu & Belkin 2018, eq. 6 and 8, step by step; and it gets closer to least squares in as many passes."""
    X, y = small_data()
    Z, gamma = X[:P], 0.7
    problem = small_problem(executor, X, y)
    solver = EigenPro(projection="exact", q=8, batch=300, epochs=2, average=False, momentum=gamma)
    iteration = solver.setup(problem)
    size = iteration.prepared.size
    M = np.linalg.inv(laplace(Z, Z))
    nystrom = iteration.prepared.nystrom
    M -= (nystrom.eigensystem.vectors * nystrom.damping) @ nystrom.eigensystem.vectors.T
    ratio = size.critical_batch / 300
    second = (1 + gamma) / 2 * (1 - 1 / (1 + ratio))
    alpha = u = np.zeros((P, C))
    for rows, targets in steps_of(problem, iteration, 2):
        K = laplace(rows, Z)
        move = size.step(len(rows)) / len(rows) * M @ (K.T @ (K @ u - targets))
        before, alpha = alpha, u - move
        u = (1 + gamma) * alpha - gamma * before + second * move
    weights = train(problem, iteration).weights
    np.testing.assert_allclose(weights, alpha, rtol=1e-5, atol=1e-6 * np.abs(alpha).max())


def test_large_batches_get_momentum_and_few_centers_do_not(executor: Executor):
    solver = EigenPro()
    size = StepSize(beta=0.5, top=0.01, peak=1.0)  # 50 rows
    assert solver.chosen_momentum(size, 400, 10_000) == 0.0
    assert solver.chosen_momentum(size, 4_000, 10_000) == pytest.approx(0.9)
    assert solver.chosen_momentum(size, 4_000, 400) == 0.0
    assert EigenPro(momentum=0.3).chosen_momentum(size, 10, 10) == 0.3
    for settings in ({"momentum": 1.0}, {"momentum": -0.1}, {"momentum": 0.5, "projection": "delayed"}):
        with pytest.raises(UsageError, match="momentum"):
            EigenPro(**settings)
    X, y = small_data()
    problem = small_problem(executor, X, y)
    exact = least_squares(X, y, X[:P])
    off = {
        gamma: distance(
            problem, X, solve(problem, EigenPro(epochs=20, batch=FULL, momentum=gamma, average=False)).weights, exact
        )
        for gamma in (0.0, 0.6)
    }
    assert off[0.6] < 0.8 * off[0.0]


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2, 3, 5, 40, 600])
@pytest.mark.parametrize("projection", ["auto", "exact", "packed", "inexact", "delayed"])
def test_any_number_of_centers(executor: Executor, p: int, projection: str):
    X, y = small_data(600)
    if p == 1 and projection in ("packed", "inexact", "delayed"):
        with pytest.raises(UsageError, match='use projection="exact"'):
            EigenPro(projection=projection).setup(small_problem(executor, X, y, centers=X[:p]))
        return
    assert_gains(executor, X, y[:, :1], Laplace(3.0), p, np.float32, projection=projection)


def assert_gains(
    executor: Executor, X: np.ndarray, y: np.ndarray, kernel: Kernel, p: int, dtype: type, **settings: Any
) -> None:
    """Five passes: no failure, and a loss that falls or is at its floor."""
    ids = np.random.default_rng(1).permutation(len(X))[:p]
    problem = small_problem(executor, X, y, centers=X[ids], kernel=kernel, dtype=dtype)
    outcome = solve(problem, EigenPro(epochs=5, **settings))
    assert outcome.failure is None
    assert np.isfinite(outcome.weights).all()
    losses = [entry["loss"] for entry in outcome.history]
    assert max(losses) <= 1.05 * losses[0]
    assert losses[-1] <= 1.05 * min(losses)


def test_a_batch_is_what_gains_as_far_as_there_are_rows_for_steps():
    batches = [default_batch(critical, 10**6, 4) for critical in (10, 500, 2000, 3000, 10_000, 10**6)]
    assert batches == sorted(batches)
    assert batches[2:4] == [2000, 3000]  # the critical one
    assert batches[0] > 10  # enough for the processor
    assert batches[-1] == batches[-2]  # no larger than gains anything
    assert 1600 / default_batch(10, 1600, 4) >= 10  # few rows: still some steps
    assert default_batch(10, 3, 4) >= 3


@pytest.mark.parametrize("rows", [60_000, 600_000, 10**7])
def test_a_long_run_affords_larger_batches(rows: int):
    for kind in ("exact", "inexact"):
        batches = [default_batch(EigenPro(epochs=n).affordable_batch(kind, rows, 5000), rows, 4) for n in (1, 5, 25)]
        assert batches == sorted(batches)
        assert EigenPro(epochs=5, momentum=0).affordable_batch(kind, rows, 5000) == 0
    assert batches[-1] > default_batch(0, rows, 4)
    assert EigenPro(epochs=5).affordable_batch("exact", 60_000, 1000) <= 1000  # more rows gain no directions
    assert EigenPro(epochs=5).affordable_batch("delayed", rows, 5000) == 0  # takes no momentum


def test_rows_to_measure_on_are_not_centers(executor: Executor):
    problem = small_problem(executor)
    ids = problem.held_out()
    assert len(np.unique(ids)) == len(ids) == 1200 - P
    assert not np.isin(ids, problem.centers.ids).any()
    X, y = small_data(P)
    assert len(small_problem(executor, X, y).held_out()) == P  # every row is a center
