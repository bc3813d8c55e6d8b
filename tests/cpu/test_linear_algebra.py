"""Tiled linear algebra against LAPACK, to the same bits on any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from streamkern.cpu.engine import HostEngine
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
