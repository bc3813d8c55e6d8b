"""Tiled and compiled linear algebra against LAPACK, and LAPACK without Python's lock against SciPy's."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg

from streamkern.cpu.cholesky import STEP, cholesky_factor, is_factored_here
from streamkern.cpu.cholesky import TILE as BLOCK
from streamkern.cpu.engine import HostEngine
from streamkern.cpu.lapack import potrf, trtrs
from streamkern.cpu.linear_algebra import cholesky, tiled_cholesky
from streamkern.engine.base import TILE
from streamkern.engine.packed_triangle import packed_panels, packed_size, unpacked
from streamkern.engine.reference import one_by_one
from streamkern.errors import NumericalError
from streamkern.execute.threads_executor import ThreadsExecutor

ENGINE = HostEngine()
SIZES = [1, 2, 15, 16, 17, 31, 32, 33, 50]  # tiles of 16
F64 = np.dtype(np.float64)


def spd(p: int) -> np.ndarray:
    A = np.random.default_rng(p).normal(size=(p, 2 * p))
    return A @ A.T / p + 0.1 * np.eye(p)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("factor", [cholesky, tiled_cholesky])
def test_a_factor_is_lapack_s(factor: Callable[..., np.ndarray], p: int):
    A = spd(p)
    found = factor(np.where(np.tri(p, dtype=bool), A, 7.0), one_by_one, tile=16)
    np.testing.assert_allclose(found, np.linalg.cholesky(A), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_inverse_of_a_factor(p: int, dtype: type):
    A = spd(p)
    W = ENGINE.inverse_factor(A.copy(), np.dtype(dtype), tile=16)
    assert W.dtype == dtype
    assert np.array_equal(W, np.tril(W))
    tolerance = 1e-10 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(W, np.linalg.inv(np.linalg.cholesky(A)), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("p", [*SIZES, 300])
def test_products(p: int):
    rng = np.random.default_rng(p)
    A, B, W = rng.normal(size=(p, p + 3)), rng.normal(size=(p + 3, 4)), np.tril(rng.normal(size=(p, p)))
    np.testing.assert_allclose(ENGINE.product(A, B, tile=16), A @ B, atol=1e-12)
    np.testing.assert_allclose(ENGINE.product(A.T, A, tile=16), A.T @ A, atol=1e-12)
    np.testing.assert_allclose(ENGINE.gram(A, tile=16), A @ A.T, atol=1e-12)
    np.testing.assert_allclose(ENGINE.product(A.T, np.tile(A, 30), tile=16), A.T @ np.tile(A, 30), atol=1e-12)
    np.testing.assert_allclose(ENGINE.gram_product(A, B), A.T @ (A @ B), atol=1e-11)
    wide = np.concatenate([A] * 2, axis=1)  # more columns than one slab
    np.testing.assert_allclose(ENGINE.gram_product(W, wide, lower=True), W.T @ (W @ wide), atol=1e-11)
    narrow = ENGINE.gram_product(W.astype(np.float32), wide.astype(np.float32), lower=True)
    np.testing.assert_allclose(narrow, W.T @ (W @ wide), rtol=1e-4, atol=1e-4 * np.linalg.norm(W) ** 2)


@pytest.mark.parametrize("bad", [0, 20, 49])
def test_what_is_not_positive_definite_is_refused(bad: int):
    A = spd(50)
    A[bad, bad] = -1.0
    for factor in (cholesky, tiled_cholesky, lambda A, run, tile: ENGINE.inverse_factor(A, F64, tile)):
        with pytest.raises(NumericalError, match=r"(?s)not positive definite.*repeated centers"):
            factor(A.copy(), one_by_one, tile=16)


def test_threads_do_not_change_a_bit():
    """With several tiles, as large as they are in use."""
    p = 4 * TILE + 100
    A, B = spd(p), np.random.default_rng(0).normal(size=(p, 7)).astype(np.float32)
    found = []
    for threads in (1, 2, 3):
        with ThreadsExecutor(threads) as executor:
            run = executor.host_map
            engine = HostEngine(run)
            W = engine.inverse_factor(A.copy(), np.dtype(np.float32))
            factors = cholesky(A.copy(), run), tiled_cholesky(A.copy(), run), W
            products = engine.gram_product(W, B, lower=True), engine.gram(B)
            products += (engine.product(A, B),)
            found.append(factors + products)
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("p", [1, TILE - 1, TILE, TILE + 1, 3 * TILE, 3 * TILE + 5])
def test_a_packed_triangle_is_the_matrix_in_half_of_its_memory(p: int):
    A = spd(p)
    packed = np.full(packed_size(p), np.nan)
    for cols, panel in packed_panels(packed, p):
        panel[...] = A[cols.start :, cols]
    assert packed.size <= p * (p + TILE) / 2 + TILE**2
    np.testing.assert_array_equal(ENGINE.mirror(unpacked(packed, p, ENGINE)), A)


@pytest.mark.parametrize("p", [1, TILE, 2 * TILE + 3])
def test_a_solution_looks_at_the_lower_triangle_alone(p: int):
    A, B = spd(p), np.ones((p, 2))
    lower = np.tril(A)
    lower[np.triu_indices(p, 1)] = np.nan
    np.testing.assert_allclose(ENGINE.spd_solve(lower, B), np.linalg.solve(A, B), rtol=1e-8)


# --------------------------------------------------------------------------------------------- the compiled factor

COMPILED = [dtype for dtype in (np.float32, np.float64) if is_factored_here(np.empty((1, 1), dtype))]


def positive(n: int) -> np.ndarray:
    """Kernel values with a condition of about a thousand."""
    X = np.random.default_rng(n).normal(size=(n, 5))
    distances = np.sqrt(np.square(X[:, None] - X[None]).sum(axis=2))
    return np.exp(-distances / 3) + 0.01 * np.eye(n)


@pytest.mark.parametrize("n", [1, 2, STEP - 1, STEP, STEP + 1, BLOCK, BLOCK + 1, BLOCK + STEP + 3, 700])
@pytest.mark.parametrize("dtype", COMPILED)
def test_the_compiled_factor_looks_at_no_number_above_the_diagonal(dtype: type, n: int) -> None:
    A = positive(n)
    L = A.astype(dtype)
    L[np.triu_indices(n, 1)] = np.nan
    assert cholesky_factor(L, one_by_one)
    np.testing.assert_allclose(L, np.linalg.cholesky(A), atol=2e-5 if dtype == np.float32 else 1e-13)
    assert not np.triu(L, 1).any()


@pytest.mark.skipif(not COMPILED, reason="this processor has no fused multiply-add")
def test_rows_of_a_compiled_factor_may_be_those_of_a_larger_matrix() -> None:
    A = positive(200)
    whole = np.full((200, 300), 7.0, np.float32)
    whole[:, :200] = A
    assert cholesky_factor(whole[:, :200], one_by_one)
    np.testing.assert_allclose(whole[:, :200], np.linalg.cholesky(A), atol=2e-5)
    assert (whole[:, 200:] == 7).all()


@pytest.mark.parametrize("n", [100, 500, 1000])
@pytest.mark.parametrize("dtype", COMPILED)
def test_a_smooth_kernel_has_a_factor_with_no_more_on_its_diagonal_than_rounding(dtype: type, n: int) -> None:
    """As with LAPACK. Multiplying by inverses of blocks took a diagonal tens to a thousand times as large."""
    X = np.random.default_rng(n).normal(size=(n, 2))
    A = np.exp(-np.square(X[:, None] - X[None]).sum(axis=2) / 8).astype(dtype)
    A[np.diag_indices(n)] += n * np.finfo(dtype).eps
    L = A.copy()
    assert cholesky_factor(L, one_by_one)
    wide = L.astype(np.float64)
    np.testing.assert_allclose(wide @ wide.T, A, rtol=0, atol=64 * np.finfo(dtype).eps)


@pytest.mark.parametrize("at", [0, STEP, BLOCK, 299])
@pytest.mark.parametrize("dtype", COMPILED)
def test_a_pivot_that_is_not_positive_is_told(dtype: type, at: int) -> None:
    for value in (-1.0, np.nan):
        A = positive(300).astype(dtype)
        A[at, at] = value
        assert not cholesky_factor(A, one_by_one)


# --------------------------------------------------------------------------------------- LAPACK without Python's lock


def matrix(s: int, dtype: str) -> np.ndarray:
    X = np.random.default_rng(s).standard_normal((s, 5))
    return np.exp(-0.3 * np.square(X[:, None] - X[None]).sum(axis=2)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [1, 2, 37, 130, 300])
def test_a_factor_is_scipys_to_the_bit(p: int, dtype: str):
    whole = matrix(2 * p, dtype)
    whole[np.diag_indices(2 * p)] += 1e-2
    for A in (whole[:p, :p], np.tril(whole[:p, :p]), np.asfortranarray(whole[:p, :p])):
        before = A.copy()
        L = potrf(A)
        np.testing.assert_array_equal(L, scipy.linalg.cholesky(before, lower=True))
        np.testing.assert_array_equal(A, before)
        assert L.dtype == np.dtype(dtype)


def test_a_matrix_without_a_factor_and_one_that_is_singular_are_errors():
    with pytest.raises(np.linalg.LinAlgError, match="the pivot 2"):
        potrf(np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(np.linalg.LinAlgError, match="0 in row 1"):
        trtrs(np.array([[1.0, 0.0], [1.0, 0.0]]), np.ones(2), lower=True)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [1, 3, 130])
def test_a_division_by_a_triangle_is_scipys_to_the_bit(p: int, dtype: str, lower: bool, transposed: bool):
    whole = matrix(2 * p, dtype) + np.eye(2 * p, dtype=dtype)
    rng = np.random.default_rng(p)
    right = rng.normal(size=(p, 7)).astype(dtype)
    # By rows, a part of a larger matrix, by columns, every other row; right sides by rows, by columns, one, none.
    for R in (whole[:p, :p].copy(), whole[:p, :p], np.asfortranarray(whole[:p, :p]), whole[::2, ::2]):
        for B in (right, np.asfortranarray(right), right[:, 0], right[:, :0]):
            before = R.copy(), B.copy()
            X = trtrs(R, B, lower=lower, transposed=transposed)
            same = R if R.flags.f_contiguous else np.ascontiguousarray(R)
            np.testing.assert_array_equal(
                X, scipy.linalg.solve_triangular(same, B, lower=lower, trans="T" if transposed else "N")
            )
            np.testing.assert_array_equal(R, before[0])
            np.testing.assert_array_equal(B, before[1])
            assert X.shape == B.shape
            assert X.dtype == np.dtype(dtype)


def test_a_narrow_triangle_divides_in_the_wider_dtype():
    R, B = matrix(20, "float32") + np.eye(20, dtype=np.float32), np.random.default_rng(0).normal(size=(20, 2))
    X = trtrs(R, B, lower=True)
    assert X.dtype == np.float64
    np.testing.assert_allclose(np.tril(R).astype(np.float64) @ X, B, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("routine", ["factor", "division"])
def test_other_threads_go_on_meanwhile(routine: str):
    K = matrix(1200, "float64") + np.eye(1200)
    calls = {
        "factor": lambda: [potrf(K) for _ in range(5)],
        "division": lambda: [trtrs(K, K, lower=True) for _ in range(3)],
    }
    spent = []

    def decompose() -> None:
        begun = time.thread_time()
        calls[routine]()
        spent.append(time.thread_time() - begun)

    thread = threading.Thread(target=decompose)
    thread.start()
    begun = time.thread_time()
    while thread.is_alive():
        pass
    # Both compute as much, on whatever machine; this one next to nothing where the lock is held.
    assert time.thread_time() - begun > 0.2 * spent[0]
