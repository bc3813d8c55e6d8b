"""Packed lower triangles of symmetric matrices: the tiles on the diagonal and below it, column of tiles by column."""

from __future__ import annotations

from collections.abc import Iterator

from streamkern.engine.base import TILE, Engine
from streamkern.types import Array


def cuts(n: int, size: int = TILE) -> list[slice]:
    """Slices of ``size`` that cover range(n)."""
    return [slice(a, min(a + size, n)) for a in range(0, n, size)]


def packed_size(p: int) -> int:
    """Return how many numbers the packed lower triangle of a symmetric p x p matrix has: about half."""
    whole, rest = divmod(p, TILE)
    return TILE * (whole * p - TILE * whole * (whole - 1) // 2) + rest * rest


def packed_panels(packed: Array, p: int) -> Iterator[tuple[slice, Array]]:
    """Columns of each tile, and the numbers in them from the tile's first row on: views of a packed triangle."""
    end = 0
    for cols in cuts(p):
        begin, end = end, end + (p - cols.start) * (cols.stop - cols.start)
        yield cols, packed[begin:end].reshape(p - cols.start, -1)


def unpacked(packed: Array, p: int, engine: Engine) -> Array:
    """The matrix of a packed triangle, shape (p, p): tiles on its diagonal and below; those above are not in memory."""
    A = engine.zeros((p, p), packed.dtype)
    for cols, panel in packed_panels(packed, p):
        A[cols.start :, cols] = panel
    return A
