"""What every solver promises: the closed form, the same from any chunks, the same bits from any executor, and a failure
with a remedy where a step is forced too long. That each can be left at any step: tests/pipeline/test_checkpoints.py.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import streamkern as sk
from streamkern.data.dataset import Dataset
from streamkern.execute import ThreadsExecutor
from streamkern.execute.base import Executor
from streamkern.execute.dask_executor import local_processes_executor
from streamkern.formats import ArraySource
from streamkern.solvers import Outcome, Problem, Solver
from streamkern.sources.array_source import WeightedSource
from streamkern.testing.solver import small_data, small_problem, solve
from tests.references import kernel_least_squares

N, RIDGE = 1200, 1e-2


class Case(NamedTuple):
    """A solver under test.

    Attributes:
        solver: with settings that bring it near the closed form.
        basis: what it works on: ``kernel`` values at 60 centers, ``rows`` (all of them centers), or ``columns``.
        ridge: λ of the closed form, in the solver's own convention.
        off: how far its predictions on the training rows may be, relative to their norm.
        step: a step that is too long; None where there is none.
    """

    solver: Solver
    basis: str
    ridge: float
    off: float
    step: float | None


CASES = {
    "EigenPro exact": Case(sk.EigenPro(epochs=60, projection="exact"), "kernel", 0.0, 0.025, 1e4),
    "EigenPro inexact": Case(sk.EigenPro(epochs=40, projection="inexact"), "kernel", 0.0, 0.03, 1e4),
    "EigenPro delayed": Case(sk.EigenPro(epochs=40, projection="delayed"), "kernel", 0.0, 0.03, 1e4),
    "EigenPro1": Case(sk.EigenPro1(epochs=60, q=20, ridge=RIDGE), "columns", RIDGE, 0.02, 1e4),
    "EigenPro2": Case(sk.EigenPro2(epochs=40, s=300, q=60), "rows", 0.0, 0.02, 1e4),
    "SGD": Case(sk.SGD(epochs=60, average=True, ridge=RIDGE), "columns", RIDGE, 0.02, 1e4),
    "SGD with replacement": Case(
        sk.SGD(epochs=60, average=True, ridge=RIDGE, replacement=True), "columns", RIDGE, 0.1, 1e4
    ),
    "GradientDescent": Case(sk.GradientDescent(epochs=200, ridge=RIDGE), "columns", RIDGE, 1e-4, 1e4),
    "SVRG": Case(sk.SVRG(epochs=8, ridge=RIDGE, k=3), "columns", RIDGE, 1e-4, 1e6),
    "Falkon": Case(sk.Falkon(epochs=60, ridge=1e-6, tolerance=1e-10), "kernel", 1e-6, 1e-4, None),
    "Direct": Case(sk.Direct(1e-6), "kernel", 1e-6, 1e-6, None),
}


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadsExecutor(2) as executor:
        yield executor


@pytest.fixture(scope="module")
def cluster() -> Iterator[Executor]:
    with local_processes_executor(2) as executor:
        yield executor


def posed(case: Case, executor: Executor, *, n: int = N, chunk: int = N, dtype: Any = np.float64) -> Problem:
    X, y = small_data(n)
    problem = small_problem(executor, X, y, data=Dataset(ArraySource(X, y, chunk_rows=chunk)), dtype=dtype)
    if case.basis == "columns":
        return replace(problem, features=sk.Identity())
    if case.basis == "rows":
        return replace(problem, centers=sk.AllRows().choose(problem.train, executor, np.dtype(dtype)))
    return problem


def predictions(problem: Problem, outcome: Outcome) -> np.ndarray:
    X, _ = small_data(len(problem.train))
    return np.asarray(problem.predictor().predict(X.astype(problem.dtype) - problem.center, outcome.weights))


def closed_form(case: Case, problem: Problem, w: np.ndarray | float = 1.0) -> np.ndarray:
    X, y = small_data(len(problem.train))
    root = np.sqrt(w * np.ones((len(X), 1)))
    if case.basis == "columns":
        A, b = root * X, root * y
        return np.asarray(X @ np.linalg.solve(A.T @ A / len(X) + case.ridge * np.eye(X.shape[1]), A.T @ b / len(X)))
    Z = X[:60] if case.basis == "kernel" else X
    K = problem.kernel(X, Z)
    return np.asarray(K @ kernel_least_squares(root * K, problem.kernel(Z), root * y, case.ridge))


SOON = ("EigenPro1", "GradientDescent", "Falkon", "Direct")
"""Solvers that converge within two seconds."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SOON else pytest.mark.slow) for name in CASES])
def test_it_converges_to_the_closed_form_from_any_chunks(name: str, threads: Executor):
    case = CASES[name]
    n = 400 if case.basis == "rows" else N
    whole = posed(case, threads, n=n, chunk=n)
    exact = closed_form(case, whole)
    for problem in (whole, posed(case, threads, n=n, chunk=137)):
        outcome = solve(problem, case.solver)
        assert outcome.failure is None
        assert np.linalg.norm(predictions(problem, outcome) - exact) <= case.off * np.linalg.norm(exact)


def weighed(problem: Problem, w: np.ndarray) -> Problem:
    data = replace(problem.train, source=WeightedSource(problem.train.source, w))
    return replace(problem, train=data, mean_weight=float(w.mean()), largest_weight=float(w.max() / w.mean()))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_weights_lead_to_the_weighted_closed_form(name: str, threads: Executor):
    case = CASES[name]
    n = 300 if case.basis == "rows" else 600
    X, _ = small_data(n)
    # Rows on one side of a plane, where the targets are others than on the whole, count much more.
    least, most = (0.5, 2.0) if case.basis == "rows" else (0.0, 8.0)
    w = np.where(X[:, 0] > 0.5, most, np.where(X[:, 1] > 1, least, 1.0))
    problem = weighed(posed(case, threads, n=n, chunk=137), w)
    exact, plain = closed_form(case, problem, w[:, None] / w.mean()), closed_form(case, problem)
    outcome = solve(problem, case.solver)
    assert outcome.failure is None
    taken = w > 0
    off = np.linalg.norm((predictions(problem, outcome) - exact)[taken])
    assert off <= 2.5 * case.off * np.linalg.norm(exact[taken])
    if case.basis != "rows":  # whose solution goes through every row, whatever it weighs
        assert off < 0.5 * np.linalg.norm((plain - exact)[taken])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_equal_weights_do_not_change_a_bit(name: str, threads: Executor):
    case = CASES[name]
    solver = case.solver if case.step is None else replace(case.solver, epochs=3)  # type: ignore[type-var]
    problem = posed(case, threads, n=300, chunk=70, dtype=np.float32)
    plain, weighted = solve(problem, solver), solve(weighed(problem, np.full(300, 4.0)), solver)
    np.testing.assert_array_equal(weighted.weights, plain.weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_executor_gives_the_same_bits(name: str, threads: Executor, cluster: Executor):
    case = CASES[name]
    solver = case.solver if case.step is None else replace(case.solver, epochs=3)  # type: ignore[type-var]
    first = solve(posed(case, threads, n=300, chunk=70, dtype=np.float32), solver).weights
    assert np.abs(first).max() > 0
    for opened in (nullcontext(cluster), ThreadsExecutor(1), ThreadsExecutor(3)):
        with opened as executor:
            again = solve(posed(case, executor, n=300, chunk=70, dtype=np.float32), solver).weights
        np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.step is not None])
def test_a_step_that_is_too_long_is_a_failure_with_a_remedy(name: str, threads: Executor):
    case = CASES[name]
    solver = replace(case.solver, step=case.step, epochs=20)  # type: ignore[type-var]
    failure = solve(posed(case, threads, n=400), solver).failure
    assert failure.kind in ("diverged", "non-finite")
    assert "step" in failure.remedy
