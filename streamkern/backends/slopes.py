"""Derivatives of radial kernels on the CPU: what the gradient of a model is summed from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.core import types

from streamkern.backends.base import RADIAL_KINDS
from streamkern.backends.compiled import loop, rows, vector
from streamkern.backends.loops import _exp, _power, dense_row, widest

_LAPLACE, _MATERN32, _MATERN52, _GAUSSIAN, _CAUCHY = (
    RADIAL_KINDS.index(k) for k in ("laplace", "matern32", "matern52", "gaussian", "cauchy")
)
_LANES = 64  # partial sums of a row: enough independent additions to hide their latency


@loop(
    lambda dtype: types.void(
        rows(dtype), rows(dtype, readonly=True), vector(dtype), vector(dtype), types.int64, vector(dtype), types.boolean
    ),
    types.float32,
    types.float64,
)
def radial_slopes(S: Any, V: Any, x_norms: Any, z_norms: Any, kind: Any, coefficients: Any, ready: Any) -> None:
    """Inner products, or L1 distances where those are ``ready``, to φ'(r)/r, or φ'(r), times V, in place.

    Coefficients are those of ``radial_formula``, and last the squared distance, or distance, up to which it is 0.
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
        elif kind == _GAUSSIAN:  # of the squared distance; of the L1 distance it is Laplace
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


@loop(lambda dtype: types.void(*[rows(dtype, readonly=True)] * 3, rows(dtype)), types.float32, types.float64)
def signed_sums(P: Any, X: Any, columns: Any, out: Any) -> None:
    """Sums over centers of P times the sign of each difference; ``columns`` are the centers transposed."""
    widest()
    zero, p = out.dtype.type(0), P.shape[1]
    lanes = np.empty(_LANES, out.dtype)
    whole = p // _LANES * _LANES
    for i in range(X.shape[0]):
        weights = dense_row(P[i])
        for k in range(X.shape[1]):
            x, z = X[i, k], dense_row(columns[k])
            for l in range(_LANES):  # noqa: E741
                lanes[l] = zero
            for start in range(0, whole, _LANES):
                for l in range(_LANES):  # noqa: E741
                    w, there = weights[start + l], z[start + l]
                    lanes[l] += (w if x > there else zero) - (w if x < there else zero)
            for l in range(p - whole):  # noqa: E741
                w, there = weights[whole + l], z[whole + l]
                lanes[l] += (w if x > there else zero) - (w if x < there else zero)
            total = zero
            for l in range(_LANES):  # noqa: E741
                total += lanes[l]
            out[i, k] = total
