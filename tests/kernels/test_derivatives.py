"""Gradients of models against central differences in float64, for every kind of kernel."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu import default_engine
from streamkern.engine import Engine
from streamkern.kernels import Expansion, Kernel


def multiquadric(squared: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(1 + squared)


def exponential(inner: np.ndarray) -> np.ndarray:
    return np.exp(inner / 4)


KERNELS = [
    sk.Laplace(2.0),
    sk.Laplace(3.0, norm=1),
    sk.Gaussian(1.5),
    sk.Cauchy(2.0),
    sk.Matern(2.0, 1.5),
    sk.Matern(2.0, 2.5),
    sk.ExponentialPower(2.0, 0.7),
    sk.ExponentialPower(2.0, 1.4),
    sk.ExponentialPower(2.0, 0.7, norm=1),
    sk.Linear(1.0),
    sk.Polynomial(3, 0.5, 1.0),
    sk.ArcCosine(0),
    sk.ArcCosine(1),
    sk.ArcCosine(2, 2),
    sk.NTK(2),
    sk.RadialProfile(multiquadric),
    sk.DotProfile(exponential),
    sk.Laplace(2.0) + 0.5 * sk.Polynomial(2),
    sk.Gaussian(2.0) * sk.NTK(1) * sk.Linear(1.0),
    sk.Laplace(3.0, norm=1) * sk.ExponentialPower(2.0, 0.7, norm=1),
]


@pytest.mark.parametrize("engine", [Engine(), default_engine()], ids=lambda engine: engine.name)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: repr(kernel)[:40])
def test_a_gradient_is_the_central_difference(kernel: Kernel, engine: Engine):
    rng = np.random.default_rng(0)
    Z, X, W = rng.normal(size=(40, 4)), rng.normal(size=(7, 4)), rng.normal(size=(40, 2))
    X[0] = Z[3] + 1e-3 * rng.normal(size=4)  # near a center, and not nearer than differences can see
    signs = np.where(rng.random((7, 2)) < 0.5, -1.0, 1.0)
    expansion = Expansion(kernel, Z, engine)
    found = expansion.engine.gradients(expansion, X, W, signs)
    step, expected = 1e-6, np.empty_like(X)
    for k in range(4):
        ahead, behind = (
            np.sum(signs * expansion.predict(X + sign * step * np.eye(4)[k], W), axis=1) for sign in (1, -1)
        )
        expected[:, k] = (ahead - behind) / (2 * step)
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    alone = expansion.engine.gradients(expansion, X, W[:, :1])
    np.testing.assert_allclose(alone, expansion.engine.gradients(expansion, X, W[:, :1], np.ones((7, 1))), atol=1e-10)


def test_a_row_that_is_a_center_counts_for_nothing():
    """Where a Laplace kernel has no derivative: the other centers' terms are left."""
    Z = np.random.default_rng(1).normal(size=(5, 3))
    W = np.ones((5, 1))
    kernels = sk.Laplace(2.0), sk.Laplace(2.0, norm=1), sk.ExponentialPower(2.0, 0.5)
    for kernel, engine in itertools.product(kernels, (Engine(), default_engine())):
        whole, rest = Expansion(kernel, Z, engine), Expansion(kernel, Z[1:], engine)
        found = whole.engine.gradients(whole, Z[:1], W)
        np.testing.assert_allclose(found, rest.engine.gradients(rest, Z[:1], W[1:]), atol=1e-12)
        assert np.isfinite(found).all()
