"""Rayleigh quotients and the effective dimension, against what eigenvectors say."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.papers.lanczos import speedup_ratio
from streamkern.runs.solution_spectrum import effective_dimension, rayleigh_quotient


def test_quotients_of_eigenvectors_are_squared_eigenvalues_and_several_columns_weigh_by_their_norms():
    K = sk.Gaussian(1.0)(np.random.default_rng(0).standard_normal((30, 3)))
    values, vectors = np.linalg.eigh(K)
    for value, vector in zip(values, vectors.T, strict=True):
        assert rayleigh_quotient(K, 3.0 * vector) == pytest.approx(value**2, abs=1e-12)
    both = np.stack([2.0 * vectors[:, -1], vectors[:, -2]], axis=1)
    assert rayleigh_quotient(K, both) == pytest.approx((4 * values[-1] ** 2 + values[-2] ** 2) / 5)


def test_effective_dimension_counts_what_the_ridge_leaves():
    values = np.array([1.0, 1.0, 1e-12])
    assert effective_dimension(values, 1e-6) == pytest.approx(2.0, abs=1e-4)
    assert effective_dimension(values, 1.0) == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(sk.UsageError, match="ridge"):
        effective_dimension(values, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("everywhere", [True, False])
def test_any_run_records_them(everywhere: bool, tmp_path: Path):
    """Against NumPy: with every row a center they are the paper's, of K(X, X); else those of the basis."""
    rng = np.random.default_rng(0)
    n, p = 300, 300 if everywhere else 40
    X = rng.normal(size=(n, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)
    pipeline = sk.Pipeline(
        sk.from_arrays(X, y), sk.Laplace(2.0), sk.Uniform(p), sk.EigenPro(epochs=3), task="regression", dtype="float64",
        diagnose=True,
    )  # fmt: skip
    found = sk.run(pipeline, tmp_path / "run")["diagnostics"]
    model = sk.load_model(tmp_path / "run/model.zarr")
    assert isinstance(model.Z, np.ndarray)
    K = sk.Laplace(2.0)(X, model.Z)
    exact = np.linalg.lstsq(K, y - y.mean(), rcond=None)[0][:, None]
    b = model.weights - exact
    values = np.linalg.svd(K, compute_uv=False) ** 2 / n
    assert found["rayleigh_quotient"] == pytest.approx(np.sum((K @ b) ** 2) / np.sum(b**2), rel=1e-3)
    assert found["relative_rayleigh_quotient"] == pytest.approx(found["rayleigh_quotient"] / (n * values[0]), rel=1e-6)
    assert found["excess_loss"] == pytest.approx(np.sum((K @ b) ** 2) / n, rel=1e-3)
    np.testing.assert_allclose(found["spectrum"], values, rtol=1e-6, atol=1e-9 * values[0])
    assert found["effective_dimension"] == pytest.approx(effective_dimension(values, n**-0.5), rel=1e-6)
    assert found["speedup_ratio"] == pytest.approx(speedup_ratio(values, 30), rel=1e-6)
    again = sk.run(pipeline, tmp_path / "run")
    assert again["diagnostics"] == found
    assert [stage["name"] for stage in again["stages"] if not stage["cached"]] == ["save"]
    with pytest.raises(sk.errors.PlanRefusedError):
        sk.run(dataclasses.replace(pipeline, centers=sk.Uniform(300), lanes=64), tmp_path / "small", memory="150MiB")
