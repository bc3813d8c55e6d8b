"""A compiled Cholesky factorisation by blocks of columns, using ``product``.

LAPACK's factors of the tiles on the diagonal and their inverses, one after another, take as long as the products of
all threads. Here blocks of ``TILE`` columns are updated by all columns before them, and then factored in steps of
``STEP`` columns, whose factor stays in the first-level cache. The task that computes the first rows below a
block goes on to factor the next block, while other threads compute the other rows. No step waits for Python's lock;
bits depend on the matrix alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from streamkern.backends.base import CACHE_LINE, aligned
from streamkern.backends.compiled import OPTIONS, loop, rows
from streamkern.backends.product import VECTORS, WIDTH, inner_loop, packed_by
from streamkern.types import Array

TILE = 128
"""Columns that are updated together, while rows of the earlier columns stay in the second-level cache."""

STEP = 32
"""Columns that are factored together."""

_TASK = 4 * TILE
"""Rows of a task below a block."""

_WIDTH = min(WIDTH, STEP)
_INDEX = ir.IntType(64)
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
def _own(A: Any, U: Any) -> bool:
    """Write the factor L of at most ``STEP`` rows to A; return False if a pivot is not positive.

    U gets Lᵀ, so that rows are contiguous, with the inverses of its diagonal on the diagonal, and has a fixed size, so
    that lengths are compile-time constants.
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


def _solver(size: int) -> Any:
    """Return an intrinsic that solves X U = A in place, for as many rows as a vector has numbers of ``size`` bytes.

    Arguments are the address of A, the distance of its rows in numbers, and the address of U (STEP, STEP), upper
    triangular, with the inverses of its diagonal on the diagonal. Rows are transposed in registers, so that a vector
    has a column, and each column that is solved is taken from all later ones.
    """
    number: Any = ir.FloatType() if size == 4 else ir.DoubleType()
    count = CACHE_LINE // size
    vector, place = ir.VectorType(number, count), ir.IntType(32)
    undefined = ir.Constant(vector, ir.Undefined)

    def transposed(builder: Any, columns: list[Any]) -> list[Any]:
        """Transpose square blocks of ``count`` vectors."""
        found = list(columns)
        for step in (1 << k for k in reversed(range(count.bit_length() - 1))):
            low = [lane if not lane & step else count + lane - step for lane in range(count)]
            high = [lane + step if not lane & step else count + lane for lane in range(count)]
            masks = [ir.Constant(ir.VectorType(place, count), lanes) for lanes in (low, high)]
            for i in range(len(found)):
                if not i & step:
                    one, other = found[i], found[i + step]
                    found[i], found[i + step] = (builder.shuffle_vector(one, other, mask) for mask in masks)
        return found

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        A, row, U = args
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{count}f{8 * size}"
        )

        def at(base: Any, offset: Any, kind: Any) -> Any:
            return builder.inttoptr(builder.add(base, builder.mul(offset, _INDEX(size))), kind.as_pointer())

        def of_row(i: int, block: int) -> Any:
            return at(A, builder.add(builder.mul(_INDEX(i), row), _INDEX(block * count)), vector)

        def repeated(i: int, j: int) -> Any:
            one = builder.insert_element(undefined, builder.load(at(U, _INDEX(i * STEP + j), number)), place(0))
            return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(place, count), [0] * count))

        blocks = range(STEP // count)
        X = [builder.load(of_row(i, block), align=size) for block in blocks for i in range(count)]
        X = transposed(builder, X)
        for k in range(STEP):
            X[k] = builder.fmul(X[k], repeated(k, k))
            negative = builder.fsub(ir.Constant(vector, [-0.0] * count), X[k])
            for j in range(k + 1, STEP):
                X[j] = builder.call(fma, [repeated(k, j), negative, X[j]])
        X = transposed(builder, X)
        for block in blocks:
            for i in range(count):
                builder.store(X[block * count + i], of_row(i, block), align=size)
        return context.get_dummy_value()

    @intrinsic
    def solver(typingctx: Any, A: Any, row: Any, U: Any) -> Any:
        return types.void(*[types.int64] * 3), generate

    return solver


_solve, _solve64 = _solver(4), _solver(8)


@numba.njit(**OPTIONS)
def _divide(A: Any, U: Any) -> None:
    """Solve X U = A in place, for at most ``STEP`` columns; U has the inverses of its diagonal on the diagonal.

    Multiplying by an inverse would be faster, but round by as much more as the block's condition: nearly singular
    matrices would have no factor.
    """
    n, m = A.shape
    size = A.itemsize
    count = CACHE_LINE // size
    whole = n - n % count if m == STEP else 0
    row = A.strides[0] // size
    for r in range(0, whole, count):
        if size == 4:
            _solve(A.ctypes.data + r * row * size, row, U.ctypes.data)
        else:
            _solve64(A.ctypes.data + r * row * size, row, U.ctypes.data)
    if whole < n:
        edge = np.zeros((count, STEP), A.dtype)
        for r in range(whole, n, count):
            here = min(count, n - r)
            edge[:here, :m] = A[r : r + here]
            if size == 4:
                _solve(edge.ctypes.data, STEP, U.ctypes.data)
            else:
                _solve64(edge.ctypes.data, STEP, U.ctypes.data)
            A[r : r + here] = edge[:here, :m]


def _packed(dtype: Any, dimensions: int) -> Any:
    return types.Array(dtype, dimensions, "C")


@loop(
    lambda dtype: types.boolean(rows(dtype), types.int64, _packed(dtype, 3), _packed(dtype, 4), _packed(dtype, 3)),
    types.float32,
    types.float64,
)
def _factored(A: Any, k: Any, left: Any, before: Any, uppers: Any) -> Any:
    """Factor the block of columns from k on in its own rows, given all columns before; False if it has no factor.

    Args:
        A: the matrix, shape (n, n).
        k: first column.
        left: the block's rows before k, negative and packed.
        before: to be written: of each step, the block's columns before it, negative and packed.
        uppers: to be written: of each step, its factor, transposed.
    """
    stop = min(k + TILE, A.shape[0])
    width = left.shape[2]
    for c in range(k, stop, width):
        if k:  # no rows above the diagonal's panel
            _add(A[c:stop, :k], left, (c - k) // width, A[c:stop, c : min(c + width, stop)], True)
    for s in range(k, stop, STEP):
        t, step, depth = min(s + STEP, stop), (s - k) // STEP, s - k
        if depth:
            _pack_negative(A[s:t, k:s], before[step, :, :depth])
            _add(A[s:stop, k:s], np.ascontiguousarray(before[step, :, :depth]), 0, A[s:stop, s:t], True)
        if not _own(A[s:t, s:t], uppers[step]):
            return False
        _divide(A[t:stop, s:t], uppers[step])
    return True


@loop(
    lambda dtype: types.void(
        rows(dtype), types.int64, types.int64, _packed(dtype, 3), _packed(dtype, 4), _packed(dtype, 3)
    ),
    types.float32,
    types.float64,
)
def _below(A: Any, k: Any, stop: Any, left: Any, before: Any, uppers: Any) -> None:
    """Compute columns k to ``stop`` of rows A below their block; other arguments as ``_factored`` leaves them."""
    for r in range(0, A.shape[0], TILE):
        own = A[r : min(r + TILE, A.shape[0])]
        if k:
            _add(own[:, :k], left, 0, own[:, k:stop], True)
        for s in range(k, stop, STEP):
            t, step, depth = min(s + STEP, stop), (s - k) // STEP, s - k
            if depth:
                _add(own[:, k:s], np.ascontiguousarray(before[step, :, :depth]), 0, own[:, s:t], True)
            _divide(own[:, s:t], uppers[step])


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

    def block(k: int) -> tuple[Array, Array, Array] | None:
        left = packed_by(-A[k : k + TILE, :k], width)
        before = aligned((TILE // STEP, STEP // _WIDTH, TILE, _WIDTH), A.dtype)
        uppers = np.empty((TILE // STEP, STEP, STEP), A.dtype)
        return (left, before, uppers) if _factored(A, k, left, before, uppers) else None

    found = block(0)
    for k in range(TILE, n + TILE, TILE):
        if found is None:
            return False

        def below(part: slice, k: int = k, found: Any = found) -> Any:
            _below(A[part], k - TILE, k, *found)
            return block(k) if part.start == k else None

        cuts = [slice(k, min(k + TILE, n))] if k < n else []
        cuts += [slice(a, min(a + _TASK, n)) for a in range(k + TILE, n, _TASK)]
        found, *_ = parallel(below, cuts) or [None]

    def clear(k: int) -> None:
        for s in range(k, min(k + TILE, n), STEP):
            A[s : s + STEP, s + STEP :] = 0.0

    parallel(clear, range(0, n, TILE))
    return True
