"""Rayleigh quotients and the effective dimension, against what eigenvectors say."""

from __future__ import annotations

import numpy as np
import pytest

import streamkern as sk
from streamkern.solvers.diagnostics import effective_dimension, rayleigh_quotient, relative_rayleigh_quotient


@pytest.fixture
def K():
    return sk.Gaussian(1.0)(np.random.default_rng(0).standard_normal((30, 3)))


def test_quotients_of_eigenvectors_are_squared_eigenvalues(K: np.ndarray):
    values, vectors = np.linalg.eigh(K)
    for value, vector in zip(values, vectors.T, strict=True):
        assert rayleigh_quotient(K, 3.0 * vector) == pytest.approx(value**2, abs=1e-12)
    assert relative_rayleigh_quotient(K, vectors[:, -1]) == pytest.approx(1.0)
    assert relative_rayleigh_quotient(K, vectors[:, 0]) < 1e-6


def test_several_columns_weigh_by_their_norms(K: np.ndarray):
    values, vectors = np.linalg.eigh(K)
    both = np.stack([2.0 * vectors[:, -1], vectors[:, -2]], axis=1)
    assert rayleigh_quotient(K, both) == pytest.approx((4 * values[-1] ** 2 + values[-2] ** 2) / 5)


def test_no_direction_is_an_error(K: np.ndarray):
    with pytest.raises(sk.UsageError, match="no direction"):
        rayleigh_quotient(K, np.zeros(30))


def test_effective_dimension_counts_what_the_ridge_leaves():
    values = np.array([1.0, 1.0, 1e-12])
    assert effective_dimension(values, 1e-6) == pytest.approx(2.0, abs=1e-4)
    assert effective_dimension(values, 1.0) == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(sk.UsageError, match="ridge"):
        effective_dimension(values, 0.0)
