"""Outputs k(X, Z) W of a radial kernel in one compiled call: tile by tile, values are computed and multiplied in cache.

The values of a whole panel would be written to memory and read again. The bits are those of ``loops.radial_products``
and ``gemv.times``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from streamkern.cpu.compiled import loop, rows, vector
from streamkern.cpu.gemm import LANES, inner_loop
from streamkern.cpu.gemv import add_rest, add_terms
from streamkern.cpu.loops import radial, widest

_inner, _radial = inner_loop.inside, radial.inside
_f32 = types.float32

ROWS, COLUMNS = 256, 512
"""Size of a tile, whose values fit the second-level cache beside rows and a panel of centers."""


def tile_bytes(c: int) -> int:
    """Return bytes of a tile, and of the sums of its rows for c outputs."""
    return ROWS * 4 * (COLUMNS + LANES + c * LANES)


@loop(
    lambda dtype: types.void(
        rows(dtype, readonly=True), types.Array(dtype, 3, "C", readonly=True), vector(dtype), vector(dtype),
        types.int64, vector(dtype), rows(dtype, readonly=True), rows(dtype), rows(dtype),
    ),
    _f32,
)  # fmt: skip
def radial_outputs(
    X: Any, packed: Any, x_norms: Any, z_norms: Any, kind: Any, coefficients: Any, W: Any, tile: Any, out: Any
) -> None:
    """Compute outputs (n, c) of a radial kernel for rows X (n, d) and packed centers; W (c, p) is transposed.

    ``tile`` is memory for a tile's values, whose width is a multiple of a panel's.
    """
    widest()
    n, c = out.shape
    p, (many, columns) = W.shape[1], tile.shape
    sums = np.empty((many, c, LANES), np.float32)
    for i in range(0, n, many):
        x = X[i : i + many]
        sums[:] = 0.0
        for j in range(0, p, columns):
            S = tile[: x.shape[0], : min(columns, p - j)]
            _inner(x, packed, j // packed.shape[2], S, False)
            _radial(S, x_norms[i : i + many], z_norms[j : j + columns], kind, coefficients, False)
            w = W[:, j : j + columns]
            add_terms(S, w, sums)
            if j + columns >= p:
                add_rest(S, w, sums, out[i : i + many])
