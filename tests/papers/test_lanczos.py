"""Block Lanczos over sweeps against a dense SVD, and what is made of it."""

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu import default_engine
from streamkern.data.row_order import Assembly, Scan
from streamkern.errors import NumericalError
from streamkern.execute import ThreadsExecutor
from streamkern.kernels.feature_maps import Identity
from streamkern.papers.lanczos import (
    LowRank,
    block_lanczos,
    identity_preconditioner,
    sketched_preconditioner,
    speedup_ratio,
)
from streamkern.sweep import ScanWork, sweep

N, M = 700, 120


def matrix(values, n=N, seed=0):
    """Rows whose covariance ΦᵀΦ/n has these eigenvalues; and its eigenvectors."""
    random = np.random.default_rng(seed)
    U = np.linalg.qr(random.normal(size=(n, len(values))))[0]
    V = np.linalg.qr(random.normal(size=(len(values), len(values))))[0]
    return U * np.sqrt(n * np.asarray(values)) @ V.T, V


def run(X, k, *, dtype="float64", threads=2, **options):
    dtype = np.dtype(dtype)
    with ThreadsExecutor(threads) as executor:
        assembly = Assembly(sk.from_arrays(X), dtype=dtype)
        basis, engine = Identity().basis(X.shape[1], dtype), default_engine().bound(executor)

        def over(contribution, V):
            return sweep(executor, ScanWork(Scan(assembly), contribution), V)

        return block_lanczos(over, basis, k, engine, **options)


SPECTRA = {
    "1/q": 1.0 / np.arange(1, M + 1),
    "1/q^2": 1.0 / np.arange(1, M + 1) ** 2,
    "clustered": np.r_[np.full(15, 3.0), np.full(25, 1.0), np.full(80, 0.9)],
    "flat": np.ones(M),
    "geometric": 0.7 ** np.arange(M),
    "a gap at k": np.r_[np.full(10, 5.0), np.full(110, 1e-6)],
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("epsilon", [0.5, 0.05])
def test_every_eigenvalue_is_within_epsilon_of_the_next_one(name, epsilon):
    """Eq. 6 of Gonen et al. 2016, and that Ritz values never exceed the eigenvalues."""
    values, k = SPECTRA[name], 10
    X, _ = matrix(values)
    found = run(X, k, epsilon=epsilon)
    assert found.values.shape == (k,)
    error = values[:k] - found.values
    assert (error > -1e-10 * values[0]).all()
    assert (error <= epsilon * max(values[k], 1e-12)).all()
    assert found.sweeps <= np.ceil(np.log(M) / np.sqrt(epsilon))
    U = found.vectors  # orthonormal, and they capture what the best do
    np.testing.assert_allclose(U.T @ U, np.eye(k), atol=1e-10)
    C = X.T @ X / N
    np.testing.assert_allclose(np.diag(U.T @ C @ U), found.values, rtol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(C @ U - U * found.values, axis=0), found.residuals, atol=1e-9)
    # The error in the spectral norm, to 1 + ε of the best.
    left = np.linalg.norm((np.eye(M) - U @ U.T) @ C @ (np.eye(M) - U @ U.T), 2)
    assert left <= (1 + epsilon) * values[k] + 1e-9


def test_separated_vectors_are_those_of_a_dense_decomposition():
    values = 0.5 ** np.arange(M)
    X, V = matrix(values)
    found = run(X, 5, epsilon=1e-6)
    np.testing.assert_allclose(found.values, values[:5], rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(found.vectors * V[:, :5], axis=0)), 1.0, rtol=1e-8)


def test_fast_decay_stops_before_the_bound():
    assert run(matrix(0.5 ** np.arange(M))[0], 8, epsilon=0.5).sweeps <= 4


def test_float32_finds_the_spectrum_that_it_resolves():
    values = 0.3 ** np.arange(M)
    X, _ = matrix(values)
    found = run(X, 20, dtype="float32", epsilon=0.1)
    assert found.values.dtype == found.vectors.dtype == np.float64
    assert 10 <= len(found.values) < 20
    np.testing.assert_allclose(found.values[:8], values[:8], rtol=1e-3)


def test_rank_and_width_bound_what_is_found():
    X, _ = matrix(np.r_[np.ones(6), np.zeros(M - 6)])
    assert len(run(X, 10).values) == 6
    few, _ = matrix(np.array([3.0, 2.0, 1.0]))
    found = run(few, 10)
    np.testing.assert_allclose(found.values, [3.0, 2.0, 1.0])
    assert found.sweeps == 1


def test_neither_threads_nor_another_call_change_a_bit():
    X, _ = matrix(SPECTRA["1/q"], n=9000)
    one, two, again = (run(X, 8, dtype="float32", threads=threads) for threads in (1, 2, 2))
    for other in (two, again):
        np.testing.assert_array_equal(one.vectors, other.vectors)
        np.testing.assert_array_equal(one.values, other.values)


def test_features_that_are_all_zero_are_refused():
    with pytest.raises(NumericalError, match="not finite, or 0"):
        run(np.zeros((20, 5)), 2)


def test_the_preconditioner_is_equation_8():
    X, _ = matrix(SPECTRA["1/q"])
    found, ridge = run(X, 10), 0.01
    P = sketched_preconditioner(found, ridge)
    u, s = found.vectors, found.values
    root = u / np.sqrt(s + ridge) @ u.T + (np.eye(M) - u @ u.T) / np.sqrt(s[-1] + ridge)
    np.testing.assert_allclose(P.inverse_root(X), X @ root, atol=1e-10)
    np.testing.assert_allclose(P.inverse(X.T), root @ root @ X.T, atol=1e-9)
    np.testing.assert_allclose(P.norms(X), np.sum((X @ root) ** 2, axis=1))


def test_without_vectors_the_preconditioner_is_the_identity():
    X = np.random.default_rng(0).normal(size=(7, 5))
    P: LowRank = identity_preconditioner(5)
    np.testing.assert_array_equal(P.inverse(X.T), X.T)
    np.testing.assert_array_equal(P.inverse_root(X), X)
    np.testing.assert_allclose(P.norms(X), np.sum(X**2, axis=1))


@pytest.mark.parametrize("ridge", [0.0, 0.003])
@pytest.mark.parametrize("k", [1, 10, M])
def test_the_speedup_is_the_ratio_of_average_condition_numbers(k, ridge):
    """Tr H/λ_min H for H = C + λ I, over the same for P^{−1/2} H P^{−1/2} with the exact top of C."""
    values = SPECTRA["1/q^2"]
    H = values + ridge
    H_P = H / (np.where(np.arange(M) < k, values, values[k - 1]) + ridge)  # all of them share eigenvectors
    ratio = (H.sum() / H.min()) / (H_P.sum() / H_P.min())
    assert speedup_ratio(values[::-1], k, ridge) == pytest.approx(ratio)
