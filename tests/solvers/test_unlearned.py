"""A fit that has not come near its solution says so; and the best pass on held-out rows is the model."""

import warnings
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.defaults import MAX_RESIDUAL
from streamkern.partition.one_or_leaves import resolve_with_held_out
from streamkern.solvers.batch_size import passes_of
from streamkern.types import Array


def easy(n: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * np.abs(X[:, 3])
    return X, y + 0.05 * rng.normal(size=n)


def noise(n: int, seed: int) -> tuple[Array, Array]:
    """Rare counts, of whose variance the columns explain two parts in a hundred."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10))
    return X, rng.poisson(0.05 * np.exp(0.5 * X[:, 0])).astype(float)


X, y = easy(1500, 0)
X_TEST, Y_TEST = easy(2000, 1)
ENOUGH = [
    sk.Direct(), sk.EigenPro(), sk.EigenPro(projection="inexact"), sk.EigenPro(projection="delayed"), sk.Falkon(),
    sk.SVRG(epochs=20),
]  # fmt: skip
TOO_FEW = [
    sk.EigenPro(epochs=1), sk.EigenPro(epochs=1, projection="delayed"), sk.SGD(), sk.SGD(epochs=20),
    sk.GradientDescent(),
]  # fmt: skip


def of(solver: Any, centers: int = 300) -> sk.KernelRegressor:
    return sk.KernelRegressor(sk.Laplace(4.0), centers, solver, threads=2)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ENOUGH, ids=lambda solver: repr(solver)[:40])
def test_the_passes_of_a_small_table_are_enough_by_default(solver: Any):
    model = of(solver)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y)
    assert model.result_.report["residual"] < MAX_RESIDUAL
    best = of(sk.Direct()).fit(X, y).score(X_TEST, Y_TEST)
    assert model.score(X_TEST, Y_TEST) > best - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("solver", TOO_FEW, ids=lambda solver: repr(solver)[:40])
def test_a_fit_that_has_far_to_go_says_how_far(solver: Any):
    with pytest.warns(UserWarning, match=rf"{type(solver).__name__} has not reached .* after \d+ pass.*more epochs"):
        report = of(solver).fit(X, y).result_.report
    assert report["residual"] > MAX_RESIDUAL


def test_noise_is_not_left_to_learn():
    X, y = noise(3000, 0)
    model = sk.KernelRegressor(sk.Laplace(4.0), 300, sk.EigenPro(epochs=10)).fit(X, y)
    assert model.result_.report["residual"] < MAX_RESIDUAL


def test_passes_by_default_see_half_a_million_rows():
    assert [passes_of(n) for n in (1, 1500, 60_000, 600_000)] == [20, 20, 8, 1]
    assert passes_of(1500, 3) == 3


@pytest.mark.filterwarnings("ignore:.*predicted below 0")  # of counts
@pytest.mark.slow
@pytest.mark.parametrize("patience", [None, 2])
def test_the_best_pass_on_held_out_rows_is_the_model(patience: int | None):
    X, y = noise(2000, 0)
    held = sk.from_arrays(*noise(1000, 1))
    solver = sk.EigenPro(epochs=6, patience=patience)
    model = sk.KernelRegressor(sk.Laplace(4.0), 1000, solver, validation=held).fit(X, y)
    errors = [entry["validation"]["mse"] for entry in model.result_.outcome.history]
    assert min(errors) < errors[-1]
    assert model.model_.score(held)["mse"] == pytest.approx(min(errors), rel=1e-9)
    assert model.result_.report["best_pass"] == 1 + int(np.argmin(errors))


def test_a_solver_that_takes_the_ridge_is_chosen_where_a_search_finds_one():
    """EigenPro took its place, without a ridge, and was worse than the mean on counts with noise."""
    rows = sk.from_arrays(*noise(80_000, 0))
    job = sk.Pipeline(train=rows, task="regression", partition=None)
    made, reason = resolve_with_held_out(job, 12 << 30)
    assert isinstance(made.solver, sk.Falkon)
    assert made.solver.patience == 3
    assert "ridge" in reason
    assert made.validation is not None


@pytest.mark.slow
def test_a_fit_that_is_no_better_than_the_mean_says_so():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 3))
    for model, y in (
        (sk.KernelRegressor(sk.Laplace(1.0), 300, sk.Direct()), rng.normal(size=1000)),
        (sk.KernelClassifier(sk.Laplace(1.0), 300, sk.EigenPro(), validation=0.5), rng.integers(0, 2, 1000)),
    ):
        with pytest.warns(UserWarning, match=r"no better on held-out rows than .* squared error .* ridge"):
            model.fit(X, y)


@pytest.mark.slow
def test_the_error_on_counts_with_noise_falls_with_the_rows():
    """``tests/benchmarks/noisy_counts.py`` goes to a million of them, with as many centers as the default has."""
    test = noise(50_000, 2)
    scores = [sk.KernelRegressor(centers=300).fit(*noise(n, 0)).score(*test) for n in (2000, 8000, 32_000)]
    assert scores == sorted(scores)
    assert scores[0] > 0.005
