"""Eigenpairs from random vectors, and the preconditioner of EigenPro in feature space."""

import numpy as np
import pytest
import scipy.linalg

from streamkern.kernels import Gaussian, Laplace
from streamkern.precondition import eigensystem
from streamkern.precondition.eigensystem import randomized_eigensystem, top_eigensystem
from streamkern.precondition.nystrom import RandomizedSVD, theorem_1
from streamkern.rng import generator

S, Q = 500, 40


def matrix(size: int, decay: float = 1.5) -> np.ndarray:
    """Symmetric, with eigenvalues 1, 2^-decay, 3^-decay, ..."""
    Q = scipy.linalg.qr(generator("matrix", size).standard_normal((size, size)))[0]
    return (Q * np.arange(1.0, size + 1) ** -decay) @ Q.T


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kernel", "d"), [(Laplace(4.0), 5), (Gaussian(3.0), 5), (Laplace(0.5), 1)], ids=str)
def test_pairs_from_random_vectors_take_off_no_more_than_there_is(kernel, d, dtype, monkeypatch):
    monkeypatch.setattr(eigensystem, "MIN_RANDOMISED_ROWS", S)
    K = kernel(np.random.default_rng(0).standard_normal((S, d)))
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


def test_it_is_exact_where_the_random_vectors_span_everything() -> None:
    H = matrix(30)
    found, exact = randomized_eigensystem(lambda V: H @ V, 30, 12), top_eigensystem(H, 12)
    np.testing.assert_allclose(found.values, exact.values, rtol=1e-12)
    np.testing.assert_allclose(abs(np.sum(found.vectors * exact.vectors, axis=0)), 1.0, rtol=1e-12)
    assert found.tail == pytest.approx(exact.tail, rel=1e-12)


def test_it_is_a_function_of_its_seed() -> None:
    H = matrix(200)
    a, b, other = (randomized_eigensystem(lambda V: H @ V, 200, 5, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(a.vectors, b.vectors)
    assert np.array_equal(a.values, b.values)
    assert not np.array_equal(a.vectors, other.vectors)


def test_pairs_below_the_floor_are_left_out() -> None:
    """A matrix of rank 4: what else the arithmetic shows is rounding."""
    H = matrix(50)
    values, vectors = np.linalg.eigh(H)
    low = (vectors[:, -4:] * values[-4:]) @ vectors[:, -4:].T
    found = randomized_eigensystem(lambda V: low @ V, 50, 20)
    assert len(found.values) == 4
    floored = randomized_eigensystem(lambda V: H @ V, 50, 20, floor=0.3)
    np.testing.assert_allclose(floored.values, values[:-3:-1], rtol=1e-6)
    assert floored.tail == pytest.approx(0.3 * values[-1])


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_preconditioned_spectrum_is_flat_on_top(tau: float) -> None:
    """P H has τ λ_{q+1} q times, and below it what H has (eq. 17)."""
    H = matrix(60)
    P = RandomizedSVD(top_eigensystem(H, 10), tau)
    values = np.sort(np.linalg.eigvals(P.apply(H)).real)[::-1]
    exact = np.linalg.eigvalsh(H)[::-1]
    np.testing.assert_allclose(values, np.sort([*[tau * exact[10]] * 10, *exact[10:]])[::-1], rtol=1e-9)


def test_the_gradient_keeps_its_dtype() -> None:
    P = RandomizedSVD(top_eigensystem(matrix(20), 5))
    g = generator("gradient").standard_normal((20, 3))
    assert P.apply(g.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(P.apply(g.astype(np.float32)), P.apply(g), rtol=1e-5, atol=1e-6)


def test_theorem_1_bounds_the_norm_of_most_batches() -> None:
    rng = generator("theorem 1")
    X = rng.standard_normal((4000, 40)) * np.arange(1.0, 41) ** -1.0
    P = RandomizedSVD(top_eigensystem(X.T @ X / len(X), 8))
    root = scipy.linalg.sqrtm(P.apply(np.eye(40))).real
    features = X @ root
    kappa = float(np.square(features).sum(axis=1).max())
    for m in (8, 64, 512):
        bound = theorem_1(P.eigensystem.tail, kappa, m, 40, delta=0.1)
        batches = [features[rng.choice(len(X), m, replace=False)] for _ in range(100)]
        norms = np.array([np.linalg.eigvalsh(batch.T @ batch / m)[-1] for batch in batches])
        assert np.mean(norms <= bound) >= 0.9
        assert bound < 40 * norms.mean(), "of the norms' order"
    assert theorem_1(0.1, 1.0, 10**9, 40) == pytest.approx(0.1, rel=1e-3), "λ_{q+1} is what is left for large m"
