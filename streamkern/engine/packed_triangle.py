"""Packed lower triangles of symmetric matrices: tiles on and below the diagonal, by columns of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamkern.engine.base import TILE
from streamkern.types import Array


def cuts(n: int, size: int = TILE) -> list[slice]:
    """Return slices of ``size`` that cover range(n)."""
    return [slice(a, min(a + size, n)) for a in range(0, n, size)]


def packed_size(p: int) -> int:
    """Return the length of the packed lower triangle of a symmetric p x p matrix: about p²/2."""
    whole, rest = divmod(p, TILE)
    return TILE * (whole * p - TILE * whole * (whole - 1) // 2) + rest * rest


def packed_panels(packed: Array, p: int) -> Iterator[tuple[slice, Array]]:
    """Yield the columns of each tile, and a view of their numbers from the tile's first row on."""
    end = 0
    for cols in cuts(p):
        begin, end = end, end + (p - cols.start) * (cols.stop - cols.start)
        yield cols, packed[begin:end].reshape(p - cols.start, -1)


def unpacked(packed: Array, p: int, engine: Any) -> Array:
    """Return the matrix of a packed triangle, shape (p, p); tiles above the diagonal are not allocated."""
    A: Array = engine.zeros((p, p), packed.dtype)
    for cols, panel in packed_panels(packed, p):
        A[cols.start :, cols] = panel
    return A
