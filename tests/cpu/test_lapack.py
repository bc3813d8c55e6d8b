"""LAPACK without Python's lock gives what SciPy's calls with it give."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import scipy.linalg

from streamkern.cpu.lapack import potrf, trtrs


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
