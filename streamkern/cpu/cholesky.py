"""A compiled Cholesky factorisation by blocks of columns, using the products of ``gemm``.

LAPACK's factors of the tiles on the diagonal and their inverses, one after another, take as long as the products of all
threads. Here blocks of ``TILE`` columns are updated by all columns before them, and then factored in steps of ``STEP``
columns, whose factor stays in the first-level cache. The task that computes the first rows below a block goes on to
factor the next block, while other threads compute the other rows. No step waits for Python's lock; bits depend on the
matrix alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from streamkern.cpu.alignment import CACHE_LINE, aligned
from streamkern.cpu.compiled import OPTIONS, copy_rows, loop, rows
from streamkern.cpu.gemm import _INDEX, VECTORS, WIDTH, address, inner_loop, pack_rows, repeated
from streamkern.types import Array

TILE = 128
"""Columns that are updated together, while rows of the earlier columns stay in the second-level cache."""

STEP = 16
"""Columns that are factored together."""

_WIDTH = min(WIDTH, STEP)
_add, _pack = inner_loop.inside, pack_rows.inside


@numba.njit(**OPTIONS)
def _own(A: Any, U: Any) -> bool:
    """Write the factor L of at most ``STEP`` rows to A; return False if a pivot is not positive.

    U gets Lᵀ, for contiguous rows, with a diagonal of inverses; its size is fixed, so that lengths are constants.
    """
    m, one = A.shape[0], A.dtype.type(1.0)
    for i in range(STEP):
        for j in range(STEP):
            U[i, j] = 0.0
    for i in range(m):
        for j in range(i + 1):
            U[j, i] = A[i, j]
    for c in range(m):
        if not U[c, c] > 0.0:
            return False
        root = np.sqrt(U[c, c])
        for q in range(STEP):
            U[c, q] /= root
        for i in range(c + 1, m):
            factor = U[c, i]
            for q in range(STEP):
                U[i, q] -= factor * U[c, q]
    for i in range(m):
        for j in range(i + 1):
            A[i, j] = U[j, i]
        for j in range(i + 1, m):
            A[i, j] = 0.0
        U[i, i] = one / U[i, i]
    return True


@intrinsic
def _solve(typingctx: Any, A: Any, row: Any, U: Any, like: Any) -> Any:
    """Solve X U = A in place, for as many rows as a vector has numbers.

    Arguments are the address of A, the distance of its rows in numbers, the address of U (STEP, STEP), upper
    triangular, with the inverses of its diagonal on the diagonal, and a number of their dtype. Rows are transposed in
    registers, so that a vector has a column, and each column that is solved is taken from all later ones.
    """
    size = like.bitwidth // 8
    number: Any = ir.FloatType() if size == 4 else ir.DoubleType()
    count = CACHE_LINE // size
    vector = ir.VectorType(number, count)

    def transposed(builder: Any, columns: list[Any]) -> list[Any]:
        found = list(columns)
        for step in (1 << k for k in reversed(range(count.bit_length() - 1))):
            low = [lane if not lane & step else count + lane - step for lane in range(count)]
            high = [lane + step if not lane & step else count + lane for lane in range(count)]
            masks = [ir.Constant(ir.VectorType(ir.IntType(32), count), lanes) for lanes in (low, high)]
            for i in range(len(found)):
                if not i & step:
                    one, other = found[i], found[i + step]
                    found[i], found[i + step] = (builder.shuffle_vector(one, other, mask) for mask in masks)
        return found

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        A, row, U, _ = args
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{count}f{8 * size}"
        )

        def of_row(i: int, block: int) -> Any:
            offset = builder.add(builder.mul(_INDEX(i), row), _INDEX(block * count))
            return address(builder, A, offset, size, vector)

        def of_factor(i: int, j: int) -> Any:
            return repeated(builder, builder.load(address(builder, U, _INDEX(i * STEP + j), size, number)), count)

        blocks = range(STEP // count)
        X = [builder.load(of_row(i, block), align=size) for block in blocks for i in range(count)]
        X = transposed(builder, X)
        for k in range(STEP):
            X[k] = builder.fmul(X[k], of_factor(k, k))
            negative = builder.fsub(ir.Constant(vector, [-0.0] * count), X[k])
            for j in range(k + 1, STEP):
                X[j] = builder.call(fma, [of_factor(k, j), negative, X[j]])
        X = transposed(builder, X)
        for block in blocks:
            for i in range(count):
                builder.store(X[block * count + i], of_row(i, block), align=size)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, like), generate


@numba.njit(**OPTIONS)
def _divide(A: Any, U: Any) -> None:
    """Solve X U = A in place, for at most ``STEP`` columns; U has the inverses of its diagonal on the diagonal.

    Multiplying by U's inverse would be slower, and leave nearly singular matrices without a factor, by rounding.
    """
    n, m = A.shape
    count, size, row = CACHE_LINE // A.itemsize, A.itemsize, A.strides[0] // A.itemsize
    edge = np.zeros((count, STEP), A.dtype)
    for r in range(0, n, count):
        here = min(count, n - r)
        whole = here == count and m == STEP
        if not whole:
            copy_rows(A[r : r + here], edge)
        place, step = (A.ctypes.data + r * row * size, row) if whole else (edge.ctypes.data, STEP)
        _solve(place, step, U.ctypes.data, U[0, 0])
        if not whole:
            copy_rows(edge[:here, :m], A[r : r + here])


def _signature(dtype: Any) -> Any:
    packed = [types.Array(dtype, dimensions, "C") for dimensions in (3, 4, 3)]
    return types.boolean(rows(dtype), types.int64, types.int64, types.int64, *packed)


@loop(_signature, types.float32, types.float64)
def _block(A: Any, k: Any, begin: Any, end: Any, left: Any, before: Any, uppers: Any) -> Any:
    """Compute ``TILE`` columns from k on, of rows from ``begin`` to ``end``, given all columns before.

    ``begin`` is k, where the block's own rows are factored first, or a row below the block. ``left`` has the block's
    rows before k, negative and packed; it is written if ``begin`` is k. Of each step, ``before`` has the block's
    columns before it, likewise, and ``uppers`` its factor, transposed. Return False if a pivot is not positive.
    """
    stop, width, minus = min(k + TILE, A.shape[0]), left.shape[2], A.dtype.type(-1.0)
    if begin == k:
        _pack(A[k:stop, :k], left, minus)
    for r in range(begin, end, TILE):
        last = min(r + TILE, end)
        for c in range(k, stop, width):
            top = c if r == k else r  # no rows above the diagonal's panel
            if k:
                _add(A[top:last, :k], left, (c - k) // width, A[top:last, c : min(c + width, stop)], True)
        for s in range(k, stop, STEP):
            t, step, depth = min(s + STEP, stop), (s - k) // STEP, s - k
            top = s if r == k else r
            if depth:
                if r == k:
                    _pack(A[s:t, k:s], before[step], minus)
                _add(A[top:last, k:s], before[step], 0, A[top:last, s:t], True)
            if r == k:
                if not _own(A[s:t, s:t], uppers[step]):
                    return False
                top = t
            _divide(A[top:last, s:t], uppers[step])
    return True


def is_factored_here(A: Array) -> bool:
    """Return True if the loops here are faster than LAPACK's: with fused multiply-adds, of float64 the widest ones."""
    return bool(VECTORS) and (A.dtype == np.float32 or (VECTORS > 1 and A.dtype == np.float64))


def cholesky_factor(A: Array, parallel: Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]) -> bool:
    """Compute the lower factor of A (p, p) in place, from its lower triangle, with zeros above the diagonal.

    A is float32 or float64 with contiguous rows. Return False if a pivot is not positive; A is then undefined.
    """
    n, width = len(A), WIDTH * 4 // A.itemsize

    def block(k: int) -> tuple[Array, Array, Array] | None:
        stop, steps = min(k + TILE, n), TILE // STEP
        left = aligned((-(-(stop - k) // width), k, width), A.dtype)
        before = aligned((steps, STEP // _WIDTH, TILE, _WIDTH), A.dtype)
        uppers = np.empty((steps, STEP, STEP), A.dtype)
        return (left, before, uppers) if _block(A, k, k, stop, left, before, uppers) else None

    found = block(0)
    task = 4 * TILE  # rows of a task below a block
    for k in range(TILE, n + TILE, TILE):
        if found is None:
            return False

        def below(part: slice, k: int = k, found: Any = found) -> Any:
            _block(A, k - TILE, part.start, part.stop, *found)
            return block(k) if part.start == k else None

        cuts = [slice(k, min(k + TILE, n))] if k < n else []
        cuts += [slice(a, min(a + task, n)) for a in range(k + TILE, n, task)]
        found, *_ = parallel(below, cuts) or [None]

    def clear(k: int) -> None:
        for s in range(k, min(k + TILE, n), STEP):
            A[s : s + STEP, s + STEP :] = 0.0

    parallel(clear, range(0, n, TILE))
    return True
