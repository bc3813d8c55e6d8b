"""Ranges and sums of columns, compiled: one pass over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from streamkern.cpu.compiled import loop, rows, vector
from streamkern.cpu.loops import dense_row

_SUMS = types.Array(types.float64, 1, "C")


@loop(
    lambda dtype: types.void(rows(dtype, readonly=True), *[vector(types.float64)] * 2, *[_SUMS] * 4),
    types.float32,
    types.float64,
)
def moments(X: Any, w: Any, pivot: Any, low: Any, high: Any, first: Any, second: Any) -> None:
    """Compute ranges and sums of columns, reading the rows once; see ``Loops.moments``."""
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
