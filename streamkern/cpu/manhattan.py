"""Kernels of the L1 distance Σ_k |x_k − z_k| on the CPU, which needs its own loops, since no matrix product gives it.

The loops are those of ``gemm`` with a subtraction, an absolute value and an addition in place of the fused
multiply-add: three instructions for each pair of rows and feature, at full vector width, with the sums in registers and
centers packed so that a panel of them stays in the first-level cache. Bits depend on a row and a center alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import types

from streamkern.cpu.compiled import OPTIONS, copy_rows, loop, rows, vector
from streamkern.cpu.gemm import _SIZE, DEPTH, LANES, WIDTH, packed_by, panel
from streamkern.cpu.loops import radial, widest
from streamkern.types import Array


def _absolute_difference(
    builder: Any, absolute: Callable[..., Any], left: Any, right: Any, total: Any, third: Any
) -> Any:
    return builder.fadd(total, absolute(builder.fsub(left, right)))


_sums = panel(WIDTH // LANES, "llvm.fabs", _absolute_difference)


@numba.njit(**OPTIONS)
def _tile(X: Any, packed: Any, first: Any, out: Any) -> None:
    """Write distances to the centers from panel ``first`` on."""
    n, m = out.shape
    d, width, size = packed.shape[1], packed.shape[2], out.itemsize
    left, right, place = X.ctypes.data, packed.ctypes.data, out.ctypes.data
    x_row, out_row = X.strides[0] // size, out.strides[0] // size
    edge = np.empty((n, width), out.dtype)
    for j in range(0, m, width):
        whole = j + width <= m
        target, step = (place + size * j, out_row) if whole else (edge.ctypes.data, width)
        panels = right + size * d * width * (first + j // width)
        for k in range(0, d, DEPTH):
            depth, fresh = min(DEPTH, d - k), 0 if k else 1
            A, B = left + size * k, panels + size * width * k
            _sums(out, target, step, A, x_row, B, width, depth, fresh, n, 0, 0)
        if not whole:
            copy_rows(edge[:, : m - j], out[:, j:])


def _panels(dtype: Any) -> Any:
    return types.Array(dtype, 3, "C", readonly=True)


_radial = radial.inside
_COLUMNS = 512  # size of a tile, whose values stay in the second-level cache for the next pass


@loop(lambda dtype: types.void(rows(dtype, readonly=True), _panels(dtype), rows(dtype)), types.float32, types.float64)
def distances(X: Any, packed: Any, out: Any) -> None:
    """Compute L1 distances of rows to packed centers."""
    widest()
    for j in range(0, out.shape[1], _COLUMNS):
        _tile(X, packed, j // packed.shape[2], out[:, j : j + _COLUMNS])


@loop(
    lambda dtype: types.void(rows(dtype, readonly=True), _panels(dtype), rows(dtype), types.int64, vector(dtype)),
    types.float32,
    types.float64,
)
def products(X: Any, packed: Any, out: Any, kind: Any, coefficients: Any) -> None:
    """Compute values of a radial kernel of the L1 distance: tile by tile, distances and then the profile."""
    widest()
    n, p = out.shape
    unread = np.empty(0, out.dtype)
    tile_rows = 64  # of a tile, whose values stay in the second-level cache for the next pass
    for i in range(0, n, tile_rows):
        for j in range(0, p, _COLUMNS):
            tile = out[i : i + tile_rows, j : j + _COLUMNS]
            _tile(X[i : i + tile_rows], packed, j // packed.shape[2], tile)
            _radial(tile, unread, unread, kind, coefficients, True)


def packed_for_manhattan(Z: Array) -> Array:
    """Return Z (p, d) in panels of ``WIDTH`` float32 columns, or half as many of float64, on any processor."""
    return packed_by(Z, WIDTH * _SIZE // Z.dtype.itemsize)
