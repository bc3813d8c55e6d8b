"""The reference implementations against closed forms, on tiny problems in float64."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray

from tests import references

Array = NDArray[Any]

KERNEL = partial(references.laplace, bandwidth=2.0)


def problem(n: int, p: int, outputs: int = 2, features: int = 6) -> tuple[Array, Array, Array]:
    """Rows, noisy targets and centers that are not among the rows."""
    rng = np.random.default_rng(7)
    X, Z = rng.normal(size=(n, features)), rng.normal(size=(p, features))
    y = np.sin(X[:, :outputs]) + 0.3 * rng.normal(size=(n, outputs))
    return X, y, Z


def predictions_apart(a: Array, b: Array, X: Array, Z: Array) -> float:
    """Root mean square difference of two models on the rows, relative to the size of the second."""
    K = KERNEL(X, Z)
    return float(np.linalg.norm(K @ (a - b)) / np.linalg.norm(K @ b))


@pytest.mark.parametrize(
    ("kernel", "formula"),
    [
        (references.laplace, lambda distance, bandwidth: np.exp(-distance / bandwidth)),
        (references.gaussian, lambda distance, bandwidth: np.exp(-(distance**2) / (2 * bandwidth**2))),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-14), (np.float32, 2e-5)])
@pytest.mark.parametrize("shape", [(3, 5), (700, 1100)], ids=["one tile", "many tiles on threads"])
def test_kernels_are_their_formulas(kernel, formula, dtype, tolerance, shape):
    rng = np.random.default_rng(0)
    X, Z = (rng.normal(size=(rows, 4)).astype(dtype) for rows in shape)
    K = kernel(X, Z, 1.7)
    distances = np.linalg.norm(X.astype(float)[:, None] - Z.astype(float), axis=2)
    assert K.dtype == dtype
    np.testing.assert_allclose(K, formula(distances, 1.7), rtol=0, atol=tolerance)


@pytest.mark.parametrize("keep_kernel", [False, True])
@pytest.mark.parametrize("q", [None, 20])
def test_eigenpro2_converges_to_the_interpolant(q: int | None, keep_kernel: bool) -> None:
    X, y, _ = problem(200, 1)
    a = references.eigenpro2(KERNEL, X, y, s=100, q=q, epochs=150, keep_kernel=keep_kernel)
    exact = scipy.linalg.solve(KERNEL(X, X), y, assume_a="pos")
    assert np.linalg.norm(a - exact) < 1e-6 * np.linalg.norm(exact)


def test_inexact_projection_tends_to_exact_projection() -> None:
    X, y, Z = problem(300, 30)
    settings: dict[str, Any] = {"s": 150, "q": 10, "epochs": 4, "seed": 3}
    # The inexact solver draws its own subsample first, so rows of the preconditioner and their order are given.
    settings |= {"X_s": X[:150], "batch": len(X)}
    exact = references.eigenpro3_exact(KERNEL, X, y, Z, **settings)
    apart = [
        predictions_apart(references.eigenpro3(KERNEL, X, y, Z, projection_epochs=T, **settings), exact, X, Z)
        for T in (1, 4, 64)
    ]
    assert 0.5 > apart[0] > apart[1] > apart[2]
    assert apart[2] < 1e-6


def test_seconds_are_those_of_training_with_set_up_and_without_the_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    kernel_calls = 0
    monkeypatch.setattr(references, "time", SimpleNamespace(perf_counter=lambda: now))

    def one_second_kernel(A: Array, B: Array) -> Array:
        nonlocal now, kernel_calls
        now += 1
        kernel_calls += 1
        return KERNEL(A, B)

    seen: list[int] = []

    def slow_callback(epoch: int, a: Array, seconds: float) -> None:
        nonlocal now
        assert a.shape == y.shape
        assert seconds == kernel_calls
        seen.append(epoch)
        now += 1000

    X, y, _ = problem(40, 1)
    references.eigenpro2(one_second_kernel, X, y, s=20, q=5, epochs=3, on_epoch=slow_callback)
    assert seen == [1, 2, 3]
