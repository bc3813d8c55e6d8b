"""Equations that rounding spoils are solved in a better way, and what is not reached is said."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import streamkern as sk
from streamkern.costs import footprint
from streamkern.defaults import MAX_RESIDUAL
from streamkern.solvers.solution_residual import relative_residual
from streamkern.types import Array

N, P = 1200, 150
rng = np.random.default_rng(0)
X = rng.standard_normal((N + 400, 5))
Y = np.sin(X[:, 0] * X[:, 1]) + 0.5 * np.square(X[:, 2]) + X[:, 3] + 0.1 * rng.standard_normal(N + 400)
NARROW = X.astype(np.float32).astype(np.float64)


def exact(name: str, bandwidth: float, ridge: float) -> Array:
    """Predictions for the last rows by least squares in an eigenbasis of K(Z, Z): never squared, hence exact."""

    def values(A: Array, B: Array) -> Array:
        squared = np.square(A[:, None, :] - B[None, :, :]).sum(axis=2)
        return np.exp(-squared / (2 * bandwidth**2) if name == "Gaussian" else -np.sqrt(squared) / bandwidth)

    Z, mean = NARROW[:P], Y[:N].mean()
    s, U = np.linalg.eigh(values(Z, Z))
    kept = s > 1e-15 * P * s[-1]
    V = U[:, kept] / np.sqrt(s[kept])
    A = np.vstack([values(NARROW[:N], Z) @ V / np.sqrt(N), np.sqrt(ridge) * np.eye(V.shape[1])])
    b = np.concatenate([(Y[:N] - mean) / np.sqrt(N), np.zeros(V.shape[1])])
    return mean + values(NARROW[N:], Z) @ (V @ scipy.linalg.lstsq(A, b, lapack_driver="gelsy", cond=1e-14)[0])


def fitted(solver: Any, name: str, bandwidth: float, dtype: str, quiet: bool = False) -> tuple[Any, Array]:
    model = sk.KernelRegressor(
        kernel=getattr(sk, name)(bandwidth), centers=sk.Given(X[:P]), solver=solver, dtype=dtype, memory="8GiB"
    )  # fmt: skip
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        model.fit(X[:N].astype(dtype), Y[:N])
    return model, np.asarray(model.predict(X[N:].astype(dtype)), dtype=np.float64)


def off(found: Array, right: Array) -> float:
    return float(np.sqrt(np.mean(np.square(found - right))) / right.std())


@pytest.mark.parametrize(("name", "bandwidth"), [("Gaussian", 20.0), ("Laplace", 1e6)])
def test_direct_reaches_the_exact_solution_where_one_sweep_cannot(name: str, bandwidth: float):
    """A jitter, of which the report alone told, cost up to 0.3 of R²."""
    model, found = fitted(sk.Direct(1e-9), name, bandwidth, "float64")
    assert off(found, exact(name, bandwidth, 1e-9)) < 0.03
    report = model.result_.report
    assert report["sweeps"] == 2
    assert report["residual"] < 1e-5
    assert report["jitter_per_ridge"] < 1e-6
    assert 1 < report["condition"] < 1e11
    assert "warnings" not in report


def test_direct_takes_one_sweep_where_that_is_enough():
    model, found = fitted(sk.Direct(1e-7), "Gaussian", 2.0, "float64")
    assert off(found, exact("Gaussian", 2.0, 1e-7)) < 1e-5
    assert "sweeps" not in model.result_.report
    assert model.result_.report["residual"] < 1e-5
    assert model.result_.report["rounding"] < 1e-4


@pytest.mark.parametrize("ridge", [1e-9, 0.0], ids=["factored", "not positive definite"])
def test_direct_keeps_its_first_answer_where_memory_allows_no_second_sweep(ridge, monkeypatch):
    monkeypatch.setattr(footprint, "FRESH_BYTES", 9 << 30)
    with pytest.warns(UserWarning, match=r"Direct has not reached .*rounding.* Remedies: memory='[0-9.]+ GiB', which"):
        model, found = fitted(sk.Direct(ridge), "Gaussian", 20.0, "float64")
    report = model.result_.report
    assert "sweeps" not in report
    assert report["rounding"] > MAX_RESIDUAL
    assert np.isfinite(found).all()
    assert off(found, exact("Gaussian", 20.0, 1e-9)) < 0.7  # 0.03 with a second sweep
    monkeypatch.undo()
    fine = fitted(sk.Direct(1e-7), "Gaussian", 2.0, "float64")[0]
    assert "warnings" not in fine.result_.report


def test_dependent_features_without_a_ridge_are_least_squares():
    doubled = np.hstack([X, X[:, :2]])
    model = sk.KernelRegressor(
        kernel=sk.Linear(), centers=sk.Given(doubled[:40]), solver=sk.Direct(0.0), dtype="float64", memory="8GiB"
    ).fit(doubled[:N], Y[:N])  # fmt: skip
    mean = Y[:N].mean()
    right = mean + doubled[N:] @ np.linalg.lstsq(doubled[:N], Y[:N] - mean, rcond=None)[0]
    assert off(np.asarray(model.predict(doubled[N:])), right) < 1e-6


def test_direct_in_float32_says_what_rounding_costs():
    with pytest.warns(UserWarning, match=r"Direct has not reached .*float32.* times the one given.*float64"):
        model, found = fitted(sk.Direct(1e-9), "Gaussian", 20.0, "float32")
    assert model.result_.report["jitter_per_ridge"] > 1
    assert model.result_.report["warnings"]
    right = exact("Gaussian", 20.0, 1e-9)
    assert off(found, right) < 0.3  # 0.37 with a jitter


@pytest.mark.parametrize(("name", "bandwidth"), [("Gaussian", 5.0), ("Laplace", 1e4)])
def test_falkon_in_float32_comes_near_the_exact_solution(name: str, bandwidth: float):
    """Sums in float32 gave R² below 0, with status 0."""
    model, found = fitted(sk.Falkon(ridge=1e-9), name, bandwidth, "float32", quiet=True)
    assert model.result_.report["products"] == "float64"
    assert off(found, exact(name, bandwidth, 1e-9)) < 0.2
    plain, _ = fitted(sk.Falkon(ridge=1e-6), "Laplace", 3.0, "float32")
    assert plain.result_.report["products"] == "float32"
    assert plain.result_.report["residual"] < MAX_RESIDUAL


def test_falkon_says_where_its_passes_end_too_early():
    with pytest.warns(UserWarning, match=r"Falkon has not reached .*after 2 iterations of at most 2.*more epochs"):
        model, _ = fitted(sk.Falkon(ridge=1e-7, epochs=3), "Gaussian", 2.0, "float64")
    assert model.result_.report["residual"] > MAX_RESIDUAL
    assert model.result_.report["iterations"] == 2


@pytest.mark.parametrize("kernel", [sk.Laplace(3.0), sk.Gaussian(2.0)], ids=repr)
@pytest.mark.parametrize("weights", ["cubes", "few"])
def test_falkon_reaches_the_solution_of_unequal_weights(kernel: Any, weights: str):
    """Centers that are drawn evenly, as its preconditioner, left it .4 to 1 standard deviations away, unsaid."""
    rng = np.random.default_rng(1)
    w = rng.exponential(size=N) ** 3 if weights == "cubes" else np.where(rng.random(N) < 0.01, 1e6, 1.0)
    direct, falkon = (
        sk.KernelRegressor(kernel, sk.Given(X[:P]), solver).fit(X[:N], Y[:N], w).predict(X[N:])
        for solver in (sk.Direct(ridge=1e-6), sk.Falkon(ridge=1e-6))
    )
    assert off(falkon, direct) < 0.03


def test_a_run_tells_it_in_its_result_and_as_an_event(tmp_path: Path):
    heard: list[str] = []
    pipeline = sk.Pipeline(
        train=sk.from_arrays(X[:N].astype(np.float32), Y[:N]), kernel=sk.Gaussian(20.0), centers=sk.Uniform(P),
        solver=sk.Direct(1e-9), task="regression",
    )  # fmt: skip
    result = sk.run(
        pipeline, tmp_path / "run", memory="8GiB", threads=1,
        listeners=(lambda kind, fields: heard.append(fields["message"]) if kind == "warning" else None,),
    )  # fmt: skip
    assert result["solver_report"]["warnings"] == [each for each in heard if "Direct" in each]
    assert result["solver_report"]["residual"] > 0


def test_a_relative_residual_is_the_worst_of_the_outputs():
    assert relative_residual(np.array([[3.0, 0.0, 0.0]]), np.array([[4.0, 1.0, 0.0]])) == 0.75
