from __future__ import annotations

import numpy as np
import pytest

from streamkern.cpu.engine import HostEngine
from streamkern.engine import krylov_eigenpairs
from streamkern.kernels import Gaussian, Kernel, Laplace
from streamkern.precondition.eigensystem import top_eigensystem

S, Q = 500, 40


def matrix(kernel: Kernel, d: int, seed: int = 0) -> np.ndarray:
    return kernel(np.random.default_rng(seed).standard_normal((S, d)))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(krylov_eigenpairs, "MIN_KRYLOV_ROWS", S)


@pytest.fixture
def decomposed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the matrices that LAPACK decomposed as a whole."""
    sizes: list[int] = []
    whole = HostEngine.whole_eigenpairs

    def eigenpairs(self: HostEngine, K: np.ndarray, k: int) -> object:
        sizes.append(len(K))
        return whole(self, K, k)

    monkeypatch.setattr(HostEngine, "whole_eigenpairs", eigenpairs)
    return sizes


@pytest.mark.parametrize(("kernel", "d"), [(Laplace(4.0), 5), (Gaussian(3.0), 5), (Laplace(0.5), 1)], ids=str)
def test_far_fewer_pairs_than_rows_come_from_a_krylov_space(kernel: Kernel, d: int, decomposed: list[int]):
    K = matrix(kernel, d)
    found = top_eigensystem(K, Q)
    assert decomposed == []
    values, vectors = np.linalg.eigh(K)
    values, vectors = values[::-1], vectors[:, ::-1]
    assert np.allclose(found.values, values[:Q], rtol=2e-4)
    assert found.tail == pytest.approx(values[Q], rel=2e-3)
    assert np.abs(found.vectors.T @ found.vectors - np.eye(Q)).max() < 1e-12
    residuals = np.linalg.norm(K @ found.vectors - found.vectors * found.values, axis=0)
    assert (residuals <= 1e-2 * found.values).all()
    # At most the inverse: what is preconditioned stays positive.
    inverse = found.vectors / found.values @ found.vectors.T
    assert np.linalg.eigvalsh(vectors.T @ inverse @ vectors * np.sqrt(np.outer(values, values)))[-1] < 1 + 1e-9


def test_the_same_bits_every_time():
    K = matrix(Laplace(4.0), 5)
    one, two = (top_eigensystem(K, Q) for _ in range(2))
    assert np.array_equal(one.vectors, two.vectors)
    assert np.array_equal(one.values, two.values)


def test_a_spectrum_that_a_krylov_space_does_not_resolve_is_decomposed_as_a_whole(decomposed: list[int]):
    rng = np.random.default_rng(1)
    E = np.linalg.qr(rng.standard_normal((S, S)))[0]
    values = 1 + np.sort(rng.random(S))[::-1]  # as many of any size
    found = top_eigensystem((E * values) @ E.T, Q)
    assert decomposed == [S]
    assert np.allclose(found.values, values[:Q], rtol=1e-10)


def test_a_rank_below_what_is_asked_for_is_found(decomposed: list[int]):
    A = np.random.default_rng(2).standard_normal((S, 20))
    found = top_eigensystem(A @ A.T, Q)
    assert len(found.values) == 20
    assert np.allclose(found.values, np.linalg.eigvalsh(A.T @ A)[::-1], rtol=1e-9)
