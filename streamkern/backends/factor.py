"""A compiled Cholesky factorisation for matrices that fit the caches, by blocks of columns, using ``product``.

For a matrix of a thousand rows, LAPACK's factors of the tiles on the diagonal, their inverses and the calls from Python
take as long as the products. Here blocks of ``TILE`` columns are updated by all columns before them, and then factored
in steps of ``STEP`` columns, whose factor and inverse stay in the first-level cache. It runs on one thread without
Python's lock; bits depend on the matrix alone.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types

from streamkern.backends.compiled import OPTIONS, loop, rows
from streamkern.backends.product import VECTORS, WIDTH, inner_loop
from streamkern.types import Array

TILE = 128
"""Columns that are updated together, while rows of the earlier columns stay in the second-level cache."""

STEP = 32
"""Columns that are factored together."""

_WIDTH = min(WIDTH, STEP)
_PANELS = STEP // _WIDTH
_add = inner_loop.inside


@numba.njit(**OPTIONS)
def _pack_negative(Z: Any, packed: Any) -> None:
    """Write −Z in the layout of ``inner_loop``."""
    width = packed.shape[2]
    for block in range(packed.shape[0]):
        here = min(width, Z.shape[0] - block * width)
        for k in range(Z.shape[1]):
            for l in range(here):  # noqa: E741
                packed[block, k, l] = -Z[block * width + l, k]
            for l in range(here, width):  # noqa: E741
                packed[block, k, l] = 0.0


@numba.njit(**OPTIONS)
def _own(A: Any, U: Any, W: Any) -> bool:
    """Write the factor of at most ``STEP`` rows to A, and its inverse to W; return False if a pivot is not positive.

    The work array U has Lᵀ, so that rows are contiguous, and a fixed size, so that lengths are compile-time constants.
    """
    m = A.shape[0]
    for i in range(STEP):
        for j in range(STEP):
            U[i, j] = W[i, j] = 0.0
    for i in range(m):
        for j in range(i + 1):
            U[j, i] = A[i, j]
    for c in range(m):
        if not U[c, c] > 0.0:
            return False
        scale = np.float32(1.0) / np.sqrt(U[c, c])
        for q in range(STEP):
            U[c, q] *= scale
        for i in range(c + 1, m):
            factor = U[c, i]
            for q in range(STEP):
                U[i, q] -= factor * U[c, q]
    for i in range(m):
        W[i, i] = 1.0
        for k in range(i):
            factor = U[k, i]
            for q in range(STEP):
                W[i, q] -= factor * W[k, q]
        scale = np.float32(1.0) / U[i, i]
        for q in range(STEP):
            W[i, q] *= scale
    for i in range(m):
        for j in range(i + 1):
            A[i, j] = U[j, i]
        for j in range(i + 1, m):
            A[i, j] = 0.0
    return True


@loop(lambda dtype: types.boolean(rows(dtype)), types.float32)
def _factored(A: Any) -> Any:
    n = A.shape[0]
    U, W = np.empty((STEP, STEP), A.dtype), np.empty((STEP, STEP), A.dtype)
    before = np.empty((TILE // STEP, _PANELS, TILE, _WIDTH), A.dtype)  # for each step, the tile's columns before it
    inverses = np.empty((TILE // STEP, _PANELS, STEP, _WIDTH), A.dtype)
    divided = np.empty((TILE, STEP), A.dtype)
    for k in range(0, n, TILE):
        stop = min(k + TILE, n)
        left = np.empty(((stop - k + _WIDTH - 1) // _WIDTH, k, _WIDTH), A.dtype)
        _pack_negative(A[k:stop, :k], left)
        for r in range(k, n, TILE):
            end = min(r + TILE, n)
            if r > k > 0:
                _add(A[r:end, :k], left, 0, A[r:end, k:stop], True)
            for s in range(k, stop, STEP):
                t, step, depth = min(s + STEP, stop), (s - k) // STEP, s - k
                first = s if r == k else r
                if r == k > 0:  # no rows above the diagonal
                    _add(A[s:end, :k], left, step * _PANELS, A[s:end, s:t], True)
                if depth:
                    if r == k:
                        _pack_negative(A[s:t, k:s], before[step, :, :depth])
                    _add(A[first:end, k:s], np.ascontiguousarray(before[step, :, :depth]), 0, A[first:end, s:t], True)
                if r == k:
                    if not _own(A[s:t, s:t], U, W):
                        return False
                    for panel in range(_PANELS):
                        for i in range(STEP):
                            for l in range(_WIDTH):  # noqa: E741
                                inverses[step, panel, i, l] = W[panel * _WIDTH + l, i]
                    first = t
                if first < end:
                    divided[:, t - s :] = 0.0
                    for i in range(end - first):
                        for l in range(t - s):  # noqa: E741
                            divided[i, l] = A[first + i, s + l]
                    _add(divided[: end - first], inverses[step], 0, A[first:end, s:t], False)
        for i in range(k, stop):
            for j in range(i + 1, n):
                A[i, j] = 0.0
    return True


def is_factored_here(A: Array) -> bool:
    """Return True if the loops here are faster than LAPACK's: float32 on a processor with fused multiply-adds."""
    return bool(VECTORS) and A.dtype == np.float32


def cholesky_factor(A: Array) -> bool:
    """Compute the lower factor L of A = L Lᵀ in place, with zeros above the diagonal.

    Args:
        A: shape (p, p), float32, with contiguous rows; only the diagonal and the triangle below it are read.

    Returns:
        False if a pivot is not positive; the content of A is then undefined.
    """
    return bool(_factored(A))
