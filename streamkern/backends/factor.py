"""A compiled Cholesky factorisation by blocks of columns, using ``product``.

LAPACK's factors of the tiles on the diagonal and their inverses, one after another, take as long as the products of
all threads. Here blocks of ``TILE`` columns are updated by all columns before them, and then factored in steps of
``STEP`` columns, whose factor and inverse stay in the first-level cache. The task that computes the first rows below a
block goes on to factor the next block, while other threads compute the other rows. No step waits for Python's lock;
bits depend on the matrix alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numba
import numpy as np
from numba.core import types

from streamkern.backends.base import aligned
from streamkern.backends.compiled import OPTIONS, loop, rows
from streamkern.backends.product import VECTORS, WIDTH, inner_loop, packed_by
from streamkern.types import Array

TILE = 128
"""Columns that are updated together, while rows of the earlier columns stay in the second-level cache."""

STEP = 32
"""Columns that are factored together."""

_ROWS = 4 * TILE
"""Rows of a task below a block."""

_WIDTH = min(WIDTH, STEP)
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
    m, one = A.shape[0], A.dtype.type(1.0)
    for i in range(STEP):
        for j in range(STEP):
            U[i, j] = W[i, j] = 0.0
    for i in range(m):
        for j in range(i + 1):
            U[j, i] = A[i, j]
    for c in range(m):
        if not U[c, c] > 0.0:
            return False
        scale = one / np.sqrt(U[c, c])
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
        scale = one / U[i, i]
        for q in range(STEP):
            W[i, q] *= scale
    for i in range(m):
        for j in range(i + 1):
            A[i, j] = U[j, i]
        for j in range(i + 1, m):
            A[i, j] = 0.0
    return True


@numba.njit(**OPTIONS)
def _divide(A: Any, s: Any, t: Any, inverse: Any, work: Any) -> None:
    """Multiply columns s to t of at most ``TILE`` rows A by a packed inverse, through ``work`` (TILE, STEP)."""
    n = A.shape[0]
    work[:, t - s :] = 0.0
    for i in range(n):
        for l in range(t - s):  # noqa: E741
            work[i, l] = A[i, s + l]
    _add(work[:n], inverse, 0, A[:, s:t], False)


def _packed(dtype: Any, dimensions: int) -> Any:
    return types.Array(dtype, dimensions, "C")


@loop(
    lambda dtype: types.boolean(rows(dtype), types.int64, _packed(dtype, 3), _packed(dtype, 4), _packed(dtype, 4)),
    types.float32,
    types.float64,
)
def _factored(A: Any, k: Any, left: Any, before: Any, inverses: Any) -> Any:
    """Factor the block of columns from k on in its own rows, given all columns before; False if it has no factor.

    Args:
        A: the matrix, shape (n, n).
        k: first column.
        left: the block's rows before k, negative and packed.
        before: to be written: of each step, the block's columns before it, negative and packed.
        inverses: to be written: of each step, the packed inverse of its factor.
    """
    stop = min(k + TILE, A.shape[0])
    U, W = np.empty((STEP, STEP), A.dtype), np.empty((STEP, STEP), A.dtype)
    work, width = np.empty((TILE, STEP), A.dtype), left.shape[2]
    for c in range(k, stop, width):
        if k:  # no rows above the diagonal's panel
            _add(A[c:stop, :k], left, (c - k) // width, A[c:stop, c : min(c + width, stop)], True)
    for s in range(k, stop, STEP):
        t, step, depth = min(s + STEP, stop), (s - k) // STEP, s - k
        if depth:
            _pack_negative(A[s:t, k:s], before[step, :, :depth])
            _add(A[s:stop, k:s], np.ascontiguousarray(before[step, :, :depth]), 0, A[s:stop, s:t], True)
        if not _own(A[s:t, s:t], U, W):
            return False
        for panel in range(inverses.shape[1]):
            for i in range(STEP):
                for l in range(_WIDTH):  # noqa: E741
                    inverses[step, panel, i, l] = W[panel * _WIDTH + l, i]
        if t < stop:
            _divide(A[t:stop], s, t, inverses[step], work)
    return True


@loop(
    lambda dtype: types.void(
        rows(dtype), types.int64, types.int64, _packed(dtype, 3), _packed(dtype, 4), _packed(dtype, 4)
    ),
    types.float32,
    types.float64,
)
def _below(A: Any, k: Any, stop: Any, left: Any, before: Any, inverses: Any) -> None:
    """Compute columns k to ``stop`` of rows A below their block; other arguments as ``_factored`` leaves them."""
    work = np.empty((TILE, STEP), A.dtype)
    for r in range(0, A.shape[0], TILE):
        own = A[r : min(r + TILE, A.shape[0])]
        if k:
            _add(own[:, :k], left, 0, own[:, k:stop], True)
        for s in range(k, stop, STEP):
            t, step, depth = min(s + STEP, stop), (s - k) // STEP, s - k
            if depth:
                _add(own[:, k:s], np.ascontiguousarray(before[step, :, :depth]), 0, own[:, s:t], True)
            _divide(own, s, t, inverses[step], work)


def is_factored_here(A: Array) -> bool:
    """Return True if the loops here are faster than LAPACK's: with fused multiply-adds, of float64 the widest ones."""
    return bool(VECTORS) and (A.dtype == np.float32 or (VECTORS > 1 and A.dtype == np.float64))


def cholesky_factor(A: Array, parallel: Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]) -> bool:
    """Compute the lower factor L of A = L Lᵀ in place, with zeros above the diagonal.

    Args:
        A: shape (p, p), float32 or float64, with contiguous rows; only the diagonal and the triangle below it are read.
        parallel: runs tasks.

    Returns:
        False if a pivot is not positive; the content of A is then undefined.
    """
    n, width = len(A), WIDTH * 4 // A.itemsize
    shape = (TILE // STEP, STEP // _WIDTH, TILE, _WIDTH), (TILE // STEP, STEP // _WIDTH, STEP, _WIDTH)

    def block(k: int) -> tuple[Array, Array, Array] | None:
        left = packed_by(-A[k : k + TILE, :k], width)
        found = left, aligned(shape[0], A.dtype), aligned(shape[1], A.dtype)
        return found if _factored(A, k, *found) else None

    found = block(0)
    for k in range(TILE, n + TILE, TILE):
        if found is None:
            return False

        def below(part: slice, k: int = k, found: Any = found) -> Any:
            _below(A[part], k - TILE, k, *found)
            return block(k) if part.start == k else None

        cuts = [slice(k, min(k + TILE, n))] if k < n else []
        cuts += [slice(a, min(a + _ROWS, n)) for a in range(k + TILE, n, _ROWS)]
        found, *_ = parallel(below, cuts) or [None]

    def clear(k: int) -> None:
        for s in range(k, min(k + TILE, n), STEP):
            A[s : s + STEP, s + STEP :] = 0.0

    parallel(clear, range(0, n, TILE))
    return True
