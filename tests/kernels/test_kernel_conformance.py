"""Kernels, held to the suite."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import laplacian_kernel

from streamkern.kernels import Cauchy, ExponentialPower, Gaussian, Kernel, Laplace, Linear, Matern, Polynomial
from streamkern.testing.kernel import KernelSuite


class TestLaplace(KernelSuite):
    single = 2e-3  # the square root magnifies rounding near x = z

    @pytest.fixture
    def kernel(self) -> Kernel:
        return Laplace(1.7)

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.exp(-cdist(X, Z) / 1.7)


class TestLaplaceOfL1(KernelSuite):
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Laplace(3.7, norm=1)

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return laplacian_kernel(X, Z, gamma=1 / 3.7)


class TestSumOfL1(KernelSuite):
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Laplace(3.7, norm=1) + 0.5 * ExponentialPower(2.0, 0.7, norm=1)

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        r = cdist(X, Z, "cityblock")
        return np.exp(-r / 3.7) + 0.5 * np.exp(-((r / 2.0) ** 0.7))


class TestGaussian(KernelSuite):
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Gaussian(1.7)

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.exp(-cdist(X, Z, "sqeuclidean") / (2 * 1.7**2))


class TestMatern(KernelSuite):
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Matern(1.7, nu=2.5)

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        t = np.sqrt(5) * cdist(X, Z) / 1.7
        return (1 + t + t**2 / 3) * np.exp(-t)


class TestCauchy(KernelSuite):
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Cauchy(1.7)

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return 1 / (1 + cdist(X, Z, "sqeuclidean") / 1.7**2)


class TestLinear(KernelSuite):
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Linear()

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return X @ Z.T


class TestPolynomial(KernelSuite):
    @pytest.fixture
    def kernel(self) -> Kernel:
        return Polynomial(degree=3, offset=1.0)

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return (X @ Z.T + 1.0) ** 3


class TestSum(KernelSuite):
    single = 2e-3

    @pytest.fixture
    def kernel(self) -> Kernel:
        return 0.5 * Laplace(2.0) + Gaussian(1.0) * Linear()

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        D = cdist(X, Z)
        return 0.5 * np.exp(-D / 2) + np.exp(-(D**2) / 2) * (X @ Z.T)
