"""The compiled Cholesky factor: that of the matrix, of any size, and no number above the diagonal is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from streamkern.cpu.cholesky import STEP, TILE, cholesky_factor, is_factored_here
from streamkern.engine.reference import one_by_one

DTYPES = [dtype for dtype in (np.float32, np.float64) if is_factored_here(np.empty((1, 1), dtype))]
if not DTYPES:
    pytest.skip("this processor has no fused multiply-add", allow_module_level=True)


def positive(n: int) -> np.ndarray:
    """Kernel values with a condition of about a thousand."""
    X = np.random.default_rng(n).normal(size=(n, 5))
    distances = np.sqrt(np.square(X[:, None] - X[None]).sum(axis=2))
    return np.exp(-distances / 3) + 0.01 * np.eye(n)


@pytest.mark.parametrize("n", [1, 2, STEP - 1, STEP, STEP + 1, TILE, TILE + 1, TILE + STEP + 3, 700])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_factor(dtype: type, n: int) -> None:
    A = positive(n)
    L = A.astype(dtype)
    L[np.triu_indices(n, 1)] = np.nan
    assert cholesky_factor(L, one_by_one)
    np.testing.assert_allclose(L, np.linalg.cholesky(A), atol=2e-5 if dtype == np.float32 else 1e-13)
    assert not np.triu(L, 1).any()


def test_rows_may_be_those_of_a_larger_matrix() -> None:
    A = positive(200)
    whole = np.full((200, 300), 7.0, np.float32)
    whole[:, :200] = A
    assert cholesky_factor(whole[:, :200], one_by_one)
    np.testing.assert_allclose(whole[:, :200], np.linalg.cholesky(A), atol=2e-5)
    assert (whole[:, 200:] == 7).all()


@pytest.mark.parametrize("n", [100, 500, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_smooth_kernel_has_a_factor_with_no_more_on_its_diagonal_than_rounding(dtype: type, n: int) -> None:
    """As with LAPACK. Multiplying by inverses of blocks took a diagonal tens to a thousand times as large."""
    X = np.random.default_rng(n).normal(size=(n, 2))
    A = np.exp(-np.square(X[:, None] - X[None]).sum(axis=2) / 8).astype(dtype)
    A[np.diag_indices(n)] += n * np.finfo(dtype).eps
    L = A.copy()
    assert cholesky_factor(L, one_by_one)
    wide = L.astype(np.float64)
    np.testing.assert_allclose(wide @ wide.T, A, rtol=0, atol=64 * np.finfo(dtype).eps)


@pytest.mark.parametrize("at", [0, STEP, TILE, 299])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pivot_that_is_not_positive_is_told(dtype: type, at: int) -> None:
    for value in (-1.0, np.nan):
        A = positive(300).astype(dtype)
        A[at, at] = value
        assert not cholesky_factor(A, one_by_one)
