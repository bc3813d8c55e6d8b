"""Products of a panel of values with the columns of weights, A W, and of its transpose with residuals, Aᵀ R.

Up to 32 columns are stored one after another, and vectors run along the rows of A, so that ten columns cost ten and not
a whole vector of sixteen. An element of A W is a sum of sixteen chains of fused multiply-adds, each over every
sixteenth term, and of the rest beyond whole vectors; an element of Aᵀ R is a single chain in the order of the rows.
Bits depend on neither tiles nor threads nor the width of vectors.

A may have integers of 16 bits, in whole vectors, which are converted to float32 in registers without error: products in
every step are limited by memory, and 16 bits halve the bytes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from streamkern.cpu.compiled import OPTIONS, loop, rows
from streamkern.cpu.gemm import _INDEX, _SIZE, _WIDE, LANES, VECTORS, Factor, add_product, address, repeated
from streamkern.engine.elementwise import has_dense_rows
from streamkern.types import Array

MOST = 32
"""Most columns that are stored one after another."""

_GROUP = 5  # columns processed together
ROWS, BLOCKS = (4, 4) if _WIDE else (1, 1)  # number of accumulators that fit the registers

_FEW = 3  # most columns of float64 with separate sums; packed columns are padded to sixteen, which takes memory

_NUMBER, _VECTOR = ir.FloatType(), ir.VectorType(ir.FloatType(), LANES)
_f32, _i16 = types.float32, types.int16


def _at(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    return builder.load(address(builder, base, offset, _SIZE, kind), align=_SIZE)


def _store(builder: Any, value: Any, base: Any, offset: Any) -> None:
    builder.store(value, address(builder, base, offset, _SIZE, value.type), align=_SIZE)


def _fma(builder: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), "llvm.fma.v16f32")


def _total(builder: Any, value: Any) -> Any:
    width = LANES
    while width > 1:
        width //= 2
        low, high = (
            builder.shuffle_vector(
                value,
                ir.Constant(value.type, ir.Undefined),
                ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(start, start + width))),
            )
            for start in (0, width)
        )
        value = builder.fadd(low, high)
    return builder.extract_element(value, ir.IntType(32)(0))


def _zeros(builder: Any, rows: int, columns: int) -> list[list[Any]]:
    sums = [[cgutils.alloca_once(builder, _VECTOR) for _ in range(columns)] for _ in range(rows)]
    for row in sums:
        for total in row:
            builder.store(ir.Constant(_VECTOR, [0.0] * LANES), total)
    return sums


def _floats(builder: Any, A: Any, offset: Any) -> Any:
    return _at(builder, A, offset, _VECTOR)


def _integers(builder: Any, A: Any, offset: Any) -> Any:
    integers = ir.VectorType(ir.IntType(16), LANES)
    return builder.sitofp(builder.load(address(builder, A, offset, 2, integers), align=2), _VECTOR)


def _across(M: int) -> Any:
    """Return the code of A W over whole vectors, for M rows of A and C rows of Wᵀ.

    T (M, C) gets the totals; T (M, C, 16) has the sixteen sums of each element, to which terms are added.
    """

    def body(
        builder: Any, C: int, read: Any, held: bool, T: Any, t_row: Any, A: Any, a_row: Any, W: Any, w_row: Any,
        vectors: Any,
    ) -> None:  # fmt: skip
        fma, sums, wide = _fma(builder), _zeros(builder, M, C), LANES if held else 1
        places = [[builder.add(builder.mul(_INDEX(m), t_row), _INDEX(c * wide)) for c in range(C)] for m in range(M)]
        if held:
            for row, there in zip(sums, places, strict=True):
                for total, place in zip(row, there, strict=True):
                    builder.store(_at(builder, T, place, _VECTOR), total)
        with cgutils.for_range(builder, vectors) as step:
            k = builder.mul(step.index, _INDEX(LANES))
            right = [_at(builder, W, builder.add(builder.mul(_INDEX(c), w_row), k), _VECTOR) for c in range(C)]
            for m, row in enumerate(sums):
                left = read(builder, A, builder.add(builder.mul(_INDEX(m), a_row), k))
                for total, values in zip(row, right, strict=True):
                    builder.store(builder.call(fma, [left, values, builder.load(total)]), total)
        for row, there in zip(sums, places, strict=True):
            for total, place in zip(row, there, strict=True):
                value = builder.load(total)
                _store(builder, value if held else _total(builder, value), T, place)

    return _kernel(body)


def _down(V: int) -> Any:
    """Return the code of G (C, V vectors) += Rᵀ A, for C columns of R and V vectors of the rows of A."""

    def body(
        builder: Any, C: int, read: Any, held: bool, G: Any, g_row: Any, A: Any, a_row: Any, R: Any, r_row: Any, n: Any
    ) -> None:
        fma, sums = _fma(builder), _zeros(builder, C, V)
        places = [[builder.add(builder.mul(_INDEX(c), g_row), _INDEX(v * LANES)) for v in range(V)] for c in range(C)]
        for row, there in zip(sums, places, strict=True):
            for total, place in zip(row, there, strict=True):
                builder.store(_at(builder, G, place, _VECTOR), total)
        with cgutils.for_range(builder, n) as step:
            begin = builder.mul(step.index, a_row)
            left = [read(builder, A, builder.add(begin, _INDEX(v * LANES))) for v in range(V)]
            for c, row in enumerate(sums):
                number = _at(builder, R, builder.add(builder.mul(step.index, r_row), _INDEX(c)), _NUMBER)
                right = repeated(builder, number, LANES)
                for total, values in zip(row, left, strict=True):
                    builder.store(builder.call(fma, [values, right, builder.load(total)]), total)
        for row, there in zip(sums, places, strict=True):
            for total, place in zip(row, there, strict=True):
                _store(builder, builder.load(total), G, place)

    return _kernel(body)


def _kernel(body: Any) -> Any:
    """Return code for each number of columns, the last argument, up to ``_GROUP``; others are addresses and strides.

    The first two arguments are the arrays at ``A`` and ``to``, whose types determine how they are read.
    """

    @intrinsic
    def kernel(
        typingctx: Any, array: Any, target: Any, to: Any, to_row: Any, A: Any, a_row: Any, B: Any, b_row: Any,
        count: Any, columns: Any,
    ) -> Any:  # fmt: skip
        read = _integers if array.dtype == _i16 else _floats

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, _, *given, columns = args
            for C in range(1, _GROUP + 1):
                with builder.if_then(builder.icmp_signed("==", columns, _INDEX(C))):
                    body(builder, C, read, target.ndim == 3, *given)
            return context.get_dummy_value()

        return types.void(array, target, *[types.int64] * 8), generate

    return kernel


_many_rows, _one_row = _across(ROWS), _across(1)
_many_columns, _one_vector = _down(BLOCKS), _down(1)


@numba.njit(**OPTIONS)
def _group(left: Any) -> Any:
    """Columns of the next group; groups have nearly equal sizes."""
    groups = (left + _GROUP - 1) // _GROUP
    return (left + groups - 1) // groups


def _signature(dtype: Any) -> Any:
    return types.void(rows(dtype, readonly=True), rows(_f32, readonly=True), rows(_f32))


@numba.njit(**OPTIONS)
def add_terms(A: Any, W: Any, out: Any) -> None:
    """Write A Wᵀ over whole vectors to ``out`` (n, c), or add it to sums (n, c, LANES), for A (n, p) and W (c, p)."""
    n, c, whole = A.shape[0], W.shape[0], A.shape[1] // LANES
    a_row, w_row, t_row = A.strides[0] // A.itemsize, W.strides[0] // _SIZE, out.strides[0] // _SIZE
    left, right, place = A.ctypes.data, W.ctypes.data, out.ctypes.data
    i = 0
    while i < n:
        many = ROWS if i + ROWS <= n else 1
        j = 0
        while j < c:
            columns = _group(c - j)
            T = place + out.strides[0] * i + out.strides[1] * j
            L, R = left + A.strides[0] * i, right + W.strides[0] * j
            if many == ROWS:
                _many_rows(A, out, T, t_row, L, a_row, R, w_row, whole, columns)
            else:
                _one_row(A, out, T, t_row, L, a_row, R, w_row, whole, columns)
            j += columns
        i += many


@numba.njit(**OPTIONS)
def add_rest(A: Any, W: Any, sums: Any, out: Any) -> None:
    """Write the totals of ``sums``, with terms of A Wᵀ beyond whole vectors, to ``out`` (n, c); overwrites ``sums``."""
    n, c = out.shape
    for i in range(n):
        for j in range(c):
            width = LANES
            while width > 1:
                width //= 2
                for k in range(width):
                    sums[i, j, k] += sums[i, j, width + k]
            total = sums[i, j, 0]
            for k in range(A.shape[1] // LANES * LANES, A.shape[1]):
                total += A[i, k] * W[j, k]
            out[i, j] = total


@loop(_signature, _f32, _i16)
def _times(A: Any, W: Any, out: Any) -> None:
    """Write A Wᵀ to ``out`` (n, c), for A (n, p) and W (c, p)."""
    add_terms(A, W, out)
    n, p = A.shape
    if p % LANES:
        for i in range(n):
            for j in range(W.shape[0]):
                total = out[i, j]
                for k in range(p // LANES * LANES, p):
                    total += A[i, k] * W[j, k]
                out[i, j] = total


@loop(_signature, _f32, _i16)
def _add_transposed(A: Any, R: Any, out: Any) -> None:
    """Add Rᵀ A to ``out`` (c, p), for A (n, p) and R (n, c)."""
    n, p = A.shape
    c, whole = R.shape[1], p // LANES * LANES
    a_row, r_row, g_row = A.strides[0] // A.itemsize, R.strides[0] // _SIZE, out.strides[0] // _SIZE
    left, right, place = A.ctypes.data, R.ctypes.data, out.ctypes.data
    chunk = 32  # rows summed in one accumulator of Aᵀ R, whose part of A stays in the first-level cache
    for i in range(0, n, chunk):
        many = min(chunk, n - i)
        k = 0
        while k < whole:
            wide = k + BLOCKS * LANES <= whole
            j = 0
            while j < c:
                columns = _group(c - j)
                G, L = place + _SIZE * (g_row * j + k), left + A.itemsize * (a_row * i + k)
                F = right + _SIZE * (r_row * i + j)
                if wide:
                    _many_columns(A, out, G, g_row, L, a_row, F, r_row, many, columns)
                else:
                    _one_vector(A, out, G, g_row, L, a_row, F, r_row, many, columns)
                j += columns
            k += BLOCKS * LANES if wide else LANES
        for m in range(i, i + many):
            for j in range(c):
                for k in range(whole, p):
                    out[j, k] += A[m, k] * R[m, j]


def prepared(W: Array) -> Array | Factor:
    """Return W (p, c) for many ``times(A, W)``: packed if float64 with more than a few columns, else ``laid_out``."""
    if isinstance(W, np.ndarray) and W.dtype == np.float64:
        # Few columns are made contiguous here, once for all panels.
        return Factor(W.T) if W.shape[1] > _FEW and W.size else np.asfortranarray(W)
    return laid_out(W)


def laid_out(W: Array) -> Array:
    """Return W (p, c), few columns one by one, more padded to whole vectors; or W itself, which BLAS multiplies."""
    c = W.shape[1]
    if W.dtype != np.float32 or not VECTORS or not isinstance(W, np.ndarray):
        return W
    if c <= MOST:
        return np.ascontiguousarray(W.T).T
    wide = np.zeros((len(W), -(-c // LANES) * LANES), np.float32)
    wide[:, :c] = W
    return wide


def room(p: int, c: int, dtype: Any) -> Array:
    """Return zeros of shape (p, c) in the layout of ``add_transposed``."""
    return np.zeros((c, p), dtype).T if c <= MOST else np.zeros((p, c), dtype)


def times(A: Array, W: Array | Factor) -> Array:
    """Return A W for a panel A (n, p) and a prepared W (p, c): shape (n, c), including W's padding.

    The bits of a row do not depend on other rows of A, unless BLAS multiplies: on processors without AVX-512, and for
    more than a few columns of float64 from ``laid_out``.
    """
    most = 8192  # terms of a BLAS sum of float64; with more, BLAS may split them among threads
    if isinstance(W, Factor):
        out = W.times(A)
    elif W.dtype == A.dtype == np.float64 and W.shape[1] <= _FEW:
        out = np.zeros((len(A), W.shape[1]))
        for terms in range(0, len(W), most):
            part = slice(terms, terms + most)
            for j in range(W.shape[1]):
                # Contiguous, because BLAS adds the terms of a strided vector in another order.
                out[:, j] += np.vecdot(A[:, part], np.ascontiguousarray(W[part, j]))
    elif _compiled(A, W.T):
        out = np.empty((len(A), W.shape[1]), np.float32)
        _times(A, W.T, out)
    elif A.dtype == np.float32 and _compiled(A, W) and not W.shape[1] % LANES:
        out = np.zeros((len(A), W.shape[1]), np.float32)
        add_product(A, W, out)
    else:
        out = np.asarray(A @ W)
    return out


def add_transposed(A: Array, R: Array, out: Array) -> None:
    """Add Aᵀ R to ``out`` (p, c), made by ``room``, for a panel A (n, p) and R (n, c)."""
    if _compiled(A, R) and _compiled(A, out.T):
        _add_transposed(A, R, out.T)
    else:
        out += A.T @ R


def _compiled(A: Array, B: Array) -> bool:
    """Can the loops read both? They are dense, not empty, and float32, or integers in whole vectors."""
    known = A.dtype == np.float32 or (A.dtype == np.int16 and not A.shape[1] % LANES)
    single = bool(VECTORS) and known and B.dtype == np.float32 and A.size > 0 and min(B.shape) > 0
    return single and has_dense_rows(A) and has_dense_rows(B)
