"""Ranges and sums of columns, compiled: one pass over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from streamkern.cpu.compiled import loop, rows, vector
from streamkern.cpu.loops import dense_row
from streamkern.engine.elementwise import has_dense_rows
from streamkern.types import Array

_SUMS = types.Array(types.float64, 1, "C")


def moments(X: Array, w: Array | None, pivot: Array) -> tuple[Array, Array, Array, Array]:
    """Return min x, max x, Σ w (x − c) and Σ w (x − c)² of each column, four of shape (d,), float64.

    X (n, d) is finite, and its rows are summed in their order. w (n,) is float64, or None for weights of 1; c (d,) is
    float64.
    """
    if X.dtype not in (np.float32, np.float64):
        X = X.astype(np.float64)
    d, weights = X.shape[1], np.ones(len(X)) if w is None else np.ascontiguousarray(w, dtype=np.float64)
    found = np.full(d, np.inf), np.full(d, -np.inf), np.zeros(d), np.zeros(d)
    X = X if has_dense_rows(X) else np.ascontiguousarray(X)
    _moments(X, weights, np.ascontiguousarray(pivot, dtype=np.float64), *found)
    return found


@loop(
    lambda dtype: types.void(rows(dtype, readonly=True), *[vector(types.float64)] * 2, *[_SUMS] * 4),
    types.float32,
    types.float64,
)
def _moments(X: Any, w: Any, pivot: Any, low: Any, high: Any, first: Any, second: Any) -> None:
    n, d = X.shape
    for i in range(n):
        row, weight = dense_row(X[i]), w[i]
        for j in range(d):
            x = np.float64(row[j])
            centred = x - pivot[j]
            weighted = weight * centred
            low[j] = x if x < low[j] else low[j]
            high[j] = x if x > high[j] else high[j]
            first[j] += weighted
            second[j] += weighted * centred
