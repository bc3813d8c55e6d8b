"""Products of a matrix of 16-bit integers with the columns of float32 ones, A W and Aᵀ R: half the bytes of float32.

Where such a product is taken in every step it waits for memory, and integers become floating-point numbers in the
registers, exactly. Sums are those of ``thin``: their bits depend on neither tiles nor threads nor the width of vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from streamkern.backends.base import has_dense_rows
from streamkern.backends.compiled import loop, rows
from streamkern.backends.product import LANES, VECTORS
from streamkern.backends.thin import BLOCKS, CHUNK, ROWS, across, down, group
from streamkern.types import Array

_SIZE, _FLOAT = 2, 4  # bytes of a number here, and there
_INDEX = ir.IntType(64)
_INTEGERS = ir.VectorType(ir.IntType(16), LANES)


def _integers(builder: Any, A: Any, offset: Any) -> Any:
    """A vector of a matrix of integers, as float32."""
    address = builder.add(A, builder.mul(offset, _INDEX(_SIZE)))
    read = builder.load(builder.inttoptr(address, _INTEGERS.as_pointer()), align=_SIZE)
    return builder.sitofp(read, ir.VectorType(ir.FloatType(), LANES))


_many_rows, _one_row = across(ROWS, _integers), across(1, _integers)
_many_columns, _one_vector = down(BLOCKS, _integers), down(1, _integers)

_i16, _f32 = types.int16, types.float32


@loop(lambda dtype: types.void(rows(dtype, readonly=True), rows(_f32, readonly=True), rows(_f32)), _i16)
def _times(A: Any, W: Any, out: Any) -> None:
    """A Wᵀ for A (n, p) and W (c, p): into ``out`` (n, c); p is a number of whole vectors."""
    n, p = A.shape
    c, whole = W.shape[0], p // LANES
    a_row, w_row, t_row = A.strides[0] // _SIZE, W.strides[0] // _FLOAT, out.strides[0] // _FLOAT
    left, right, place = A.ctypes.data, W.ctypes.data, out.ctypes.data
    i = 0
    while i < n:
        many = ROWS if i + ROWS <= n else 1
        j = 0
        while j < c:
            columns = group(c - j)
            T, L, R = place + _FLOAT * (t_row * i + j), left + _SIZE * a_row * i, right + _FLOAT * w_row * j
            if many == ROWS:
                _many_rows(T, t_row, L, a_row, R, w_row, whole, columns)
            else:
                _one_row(T, t_row, L, a_row, R, w_row, whole, columns)
            j += columns
        i += many


@loop(lambda dtype: types.void(rows(dtype, readonly=True), rows(_f32, readonly=True), rows(_f32)), _i16)
def _add_transposed(A: Any, R: Any, out: Any) -> None:
    """Add Rᵀ A to ``out`` (c, p), for A (n, p) and R (n, c); p is a number of whole vectors."""
    n, p = A.shape
    c = R.shape[1]
    a_row, r_row, g_row = A.strides[0] // _SIZE, R.strides[0] // _FLOAT, out.strides[0] // _FLOAT
    left, right, place = A.ctypes.data, R.ctypes.data, out.ctypes.data
    for i in range(0, n, CHUNK):
        many = min(CHUNK, n - i)
        k = 0
        while k < p:
            wide = k + BLOCKS * LANES <= p
            j = 0
            while j < c:
                columns = group(c - j)
                G, L = place + _FLOAT * (g_row * j + k), left + _SIZE * (a_row * i + k)
                F = right + _FLOAT * (r_row * i + j)
                if wide:
                    _many_columns(G, g_row, L, a_row, F, r_row, many, columns)
                else:
                    _one_vector(G, g_row, L, a_row, F, r_row, many, columns)
                j += columns
            k += BLOCKS * LANES if wide else LANES


def times_integers(A: Array, W: Array) -> Array:
    """A W for integers A (n, p) and float32 W (p, c) with dense columns, p whole vectors: shape (n, c)."""
    if not _compiled(A, W.T):
        return np.asarray(A.astype(np.float32) @ W)
    out = np.empty((len(A), W.shape[1]), np.float32)
    _times(A, W.T, out)
    return out


def add_transposed_integers(A: Array, R: Array, out: Array) -> None:
    """``out`` (p, c) += Aᵀ R for integers A (n, p), p whole vectors, and float32 R (n, c); columns of ``out`` dense."""
    if _compiled(A, R) and has_dense_rows(out.T):
        _add_transposed(A, R, out.T)
    else:
        out += A.astype(np.float32).T @ R


def _compiled(A: Array, B: Array) -> bool:
    whole = bool(VECTORS) and A.size > 0 and min(B.shape) > 0 and not A.shape[1] % LANES
    return whole and has_dense_rows(A) and has_dense_rows(B)
