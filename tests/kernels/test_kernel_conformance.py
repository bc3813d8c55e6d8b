"""Kernels, held to the suite."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import laplacian_kernel

from streamkern.kernels import (
    NTK,
    ArcCosine,
    Cauchy,
    ExponentialPower,
    Gaussian,
    Kernel,
    Laplace,
    Linear,
    Matern,
    Polynomial,
)
from streamkern.testing.kernel import KernelSuite
from tests.cpu.test_angular import expected as angular


def matern(t: np.ndarray) -> np.ndarray:
    return (1 + t + t**2 / 3) * np.exp(-t)


CASES: dict[str, tuple[Kernel, Callable[[np.ndarray, np.ndarray], np.ndarray], float]] = {
    # kernel, its formula, and the largest error of a value in float32: square roots magnify rounding near x = z
    "Laplace": (Laplace(1.7), lambda X, Z: np.exp(-cdist(X, Z) / 1.7), 2e-3),
    "Laplace of L1": (Laplace(3.7, norm=1), lambda X, Z: laplacian_kernel(X, Z, gamma=1 / 3.7), 2e-5),
    "sum of L1": (
        Laplace(3.7, norm=1) + 0.5 * ExponentialPower(2.0, 0.7, norm=1),
        lambda X, Z: np.exp(-cdist(X, Z, "cityblock") / 3.7) + 0.5 * np.exp(-((cdist(X, Z, "cityblock") / 2) ** 0.7)),
        2e-5,
    ),
    "Gaussian": (Gaussian(1.7), lambda X, Z: np.exp(-cdist(X, Z, "sqeuclidean") / (2 * 1.7**2)), 2e-5),
    "Matern 1.5": (
        Matern(2.0),
        lambda X, Z: (1 + 3**0.5 * cdist(X, Z) / 2) * np.exp(-(3**0.5) * cdist(X, Z) / 2),
        2e-5,
    ),
    "Matern 2.5": (Matern(1.7, nu=2.5), lambda X, Z: matern(5**0.5 * cdist(X, Z) / 1.7), 2e-5),
    "Cauchy": (Cauchy(1.7), lambda X, Z: 1 / (1 + cdist(X, Z, "sqeuclidean") / 1.7**2), 2e-5),
    "power": (ExponentialPower(2.0, 0.7), lambda X, Z: np.exp(-((cdist(X, Z) / 2) ** 0.7)), 2e-3),
    "linear": (Linear(0.5), lambda X, Z: X @ Z.T + 0.5, 2e-5),
    "polynomial": (Polynomial(degree=3, gamma=0.3, offset=1.0), lambda X, Z: (0.3 * X @ Z.T + 1.0) ** 3, 2e-5),
    "arc cosine of order 0": (ArcCosine(0), lambda X, Z: angular("arccos0", 1, X, Z), 1e-4),
    "arc cosine": (ArcCosine(1, 2), lambda X, Z: angular("arccos1", 2, X, Z), 1e-4),
    "tangent": (NTK(3), lambda X, Z: angular("ntk", 3, X, Z), 1e-4),
    "sums and products": (
        0.5 * Laplace(2.0) + Gaussian(1.0) * Linear(),
        lambda X, Z: 0.5 * np.exp(-cdist(X, Z) / 2) + np.exp(-(cdist(X, Z) ** 2) / 2) * (X @ Z.T),
        2e-3,
    ),
}


class TestKernel(KernelSuite):
    @pytest.fixture(params=CASES)
    def kernel(self, request: pytest.FixtureRequest) -> Kernel:
        kernel, self.plain, self.single = CASES[request.param]
        return kernel

    def formula(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return self.plain(X, Z)
