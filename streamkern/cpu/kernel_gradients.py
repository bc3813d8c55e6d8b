"""Derivatives of radial kernels on the CPU, for gradients of a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.core import types

from streamkern.cpu.compiled import loop, rows, vector
from streamkern.cpu.gemm import _WIDE, DEPTH, LANES, panel
from streamkern.cpu.loops import _exp, _power, dense_row, widest
from streamkern.engine.elementwise import RADIAL_KINDS
from streamkern.types import Array

_LAPLACE, _MATERN32, _MATERN52, _GAUSSIAN, _CAUCHY = (
    RADIAL_KINDS.index(k) for k in ("laplace", "matern32", "matern52", "gaussian", "cauchy")
)


@loop(
    lambda dtype: types.void(
        rows(dtype), rows(dtype, readonly=True), vector(dtype), vector(dtype), types.int64, vector(dtype), types.boolean
    ),
    types.float32,
    types.float64,
)
def radial_slopes(S: Any, V: Any, x_norms: Any, z_norms: Any, kind: Any, coefficients: Any, ready: Any) -> None:
    """Turn inner products into φ'(r)/r, or L1 distances (``ready``) into φ'(r), times V, in place.

    Coefficients are those of ``radial_formula``, and the squared distance, or distance, up to which the result is 0.
    """
    widest()
    zero, one, two, third = S.dtype.type(0), S.dtype.type(1), S.dtype.type(2), S.dtype.type(1 / 3)
    a, b, near = coefficients[0], coefficients[1], coefficients[3]
    for i in range(S.shape[0]):
        row, v = dense_row(S[i]), dense_row(V[i])
        if not ready:
            x_norm = x_norms[i]
            for j in range(S.shape[1]):
                row[j] = (x_norm + z_norms[j]) - (row[j] + row[j])
        if kind == _LAPLACE:
            for j in range(S.shape[1]):
                s = row[j]
                t = math.sqrt(a * (s if s > near else one))
                row[j] = -(a * _exp(-t) / t) * v[j] if s > near else zero
        elif kind == _MATERN32:
            for j in range(S.shape[1]):
                s = row[j]
                row[j] = -(a * _exp(-math.sqrt(a * (s if s > near else one)))) * v[j] if s > near else zero
        elif kind == _MATERN52:
            for j in range(S.shape[1]):
                s = row[j]
                t = math.sqrt(a * (s if s > near else one))
                row[j] = -(a * third * (one + t) * _exp(-t)) * v[j] if s > near else zero
        elif kind == _GAUSSIAN:  # for squared distances; for the L1 distance this formula is Laplace
            scale = a if ready else a + a
            for j in range(S.shape[1]):
                s = row[j]
                row[j] = -(scale * _exp(-(a * (s if s > near else one)))) * v[j] if s > near else zero
        elif kind == _CAUCHY:
            for j in range(S.shape[1]):
                s = row[j]
                u = one / (one + a * (s if s > near else one))
                row[j] = -(two * a * u * u) * v[j] if s > near else zero
        else:
            scale = b if ready else b + b
            for j in range(S.shape[1]):
                s = row[j]
                r = s if s > near else one
                u = _power(a * r, b)
                row[j] = -(scale * u * _exp(-u) / r) * v[j] if s > near else zero


def _signed(builder: Any, unused: Any, weight: Any, center: Any, total: Any, row: Any) -> Any:
    """Emit total + weight if the row's number is greater than the center's, total − weight if it is less."""
    more, less = (builder.fcmp_ordered(sign, row, center) for sign in "><")
    total = builder.select(more, builder.fadd(total, weight), total)
    return builder.select(less, builder.fsub(total, weight), total)


_two, _one = (panel(V, combine=_signed, third=True) for V in (2, 1))


@loop(lambda dtype: types.void(*[rows(dtype, readonly=True)] * 3, rows(dtype)), types.float32, types.float64)
def signed_sums(P: Any, X: Any, Z: Any, out: Any) -> None:
    """Sum P times the sign of each difference over centers; columns of X, Z and ``out`` are padded to whole vectors."""
    widest()
    (n, p), size = P.shape, out.itemsize
    lanes = 4 * LANES // size
    p_row, x_row, z_row = P.strides[0] // size, X.strides[0] // size, Z.strides[0] // size
    out_row = out.strides[0] // size
    weights, held, centers, place = P.ctypes.data, X.ctypes.data, Z.ctypes.data, out.ctypes.data
    for k in range(0, p, DEPTH):
        depth, fresh, j = min(DEPTH, p - k), 0 if k else 1, 0
        while j < out.shape[1]:
            target, factor, x = place + size * j, centers + size * (k * z_row + j), held + size * j
            if _WIDE and j + 2 * lanes <= out.shape[1]:
                _two(out, target, out_row, weights + size * k, p_row, factor, z_row, depth, fresh, n, x, x_row)
                j += 2 * lanes
            else:
                _one(out, target, out_row, weights + size * k, p_row, factor, z_row, depth, fresh, n, x, x_row)
                j += lanes


def sums_of_signs(P: Array, X: Array, centers: Array) -> Array:
    """Return ``Loops.signed_sums`` for centers padded by ``whole_vectors``."""
    padded = whole_vectors(X)
    out = np.empty_like(padded)
    signed_sums(P, padded, centers, out)
    return out[:, : X.shape[1]]


def whole_vectors(A: Array) -> Array:
    """Return A with columns padded with zeros to whole vectors."""
    lanes = LANES * 4 // A.itemsize
    padded = np.zeros((len(A), -(-A.shape[1] // lanes) * lanes), A.dtype)
    padded[:, : A.shape[1]] = A
    return padded
