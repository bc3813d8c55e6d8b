from __future__ import annotations

import numpy as np
import pytest

from streamkern.kernels import Gaussian, Kernel, Laplace
from streamkern.precondition import eigensystem
from streamkern.precondition.eigensystem import top_eigensystem

S, Q = 500, 40


def matrix(kernel: Kernel, d: int, seed: int = 0) -> np.ndarray:
    return kernel(np.random.default_rng(seed).standard_normal((S, d)))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigensystem, "MIN_RANDOMISED_ROWS", S)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kernel", "d"), [(Laplace(4.0), 5), (Gaussian(3.0), 5), (Laplace(0.5), 1)], ids=str)
def test_pairs_from_random_vectors_take_off_no_more_than_there_is(kernel: Kernel, d: int, dtype: str):
    K = matrix(kernel, d)
    found = top_eigensystem(K.astype(dtype), Q)
    values, vectors = np.linalg.eigh(K)
    values, vectors = values[::-1], vectors[:, ::-1]
    rounding = 1e-5 if dtype == "float32" else 1e-9
    assert (found.values <= values[:Q] * (1 + rounding)).all()
    assert np.allclose(found.values[: Q // 2], values[: Q // 2], rtol=0.05)
    assert 0.5 * values[Q] <= found.tail <= found.values[-1]
    assert np.abs(found.vectors.T @ found.vectors - np.eye(Q)).max() < 1e-12
    # At most the inverse: what is preconditioned stays positive.
    inverse = found.vectors / found.values @ found.vectors.T
    assert np.linalg.eigvalsh(vectors.T @ inverse @ vectors * np.sqrt(np.outer(values, values)))[-1] < 1 + rounding


def test_the_same_bits_every_time():
    K = matrix(Laplace(4.0), 5)
    one, two = (top_eigensystem(K, Q) for _ in range(2))
    assert np.array_equal(one.vectors, two.vectors)
    assert np.array_equal(one.values, two.values)


def test_a_rank_below_what_is_asked_for_is_found():
    A = np.random.default_rng(2).standard_normal((S, 20))
    found = top_eigensystem(A @ A.T, Q)
    assert len(found.values) == 20
    assert np.allclose(found.values, np.linalg.eigvalsh(A.T @ A)[::-1], rtol=1e-9)
