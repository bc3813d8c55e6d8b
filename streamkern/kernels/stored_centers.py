"""A kernel with centers that are read from disk in each evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streamkern.cpu import default_engine
from streamkern.engine import Engine
from streamkern.engine.base import Basis
from streamkern.kernels.base import Expansion, Kernel
from streamkern.types import Array

TILE_ROWS = 512
"""Centers of a tile, equal for all kinds of storage, so that sums over tiles have the same bits."""


@runtime_checkable
class StoredCenters(Protocol):
    """Centers that are read tile by tile. Picklable."""

    @property
    def shape(self) -> tuple[int, int]:
        """(p, d)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""

    @property
    def mean_row(self) -> Array:
        """Mean of the centers, shape (d,), float64."""

    def __len__(self) -> int:
        """Number of centers."""

    def tiles(self) -> Iterator[tuple[slice, Array]]:
        """Yield pairs of a slice and its centers, ``TILE_ROWS`` at a time, in order."""


def mean_row(Z: Array | StoredCenters) -> Array:
    """Return the mean of centers, in memory or stored, shape (d,), float64."""
    return np.asarray(Z.mean(axis=0, dtype=np.float64)) if isinstance(Z, np.ndarray) else Z.mean_row


def tiles_of_blocks(blocks: Iterable[Array]) -> Iterator[tuple[slice, Array]]:
    """Cut and join blocks of rows to tiles of ``TILE_ROWS``; yield pairs of a slice and its rows."""
    held: list[Array] = []
    count = first = 0
    for block in blocks:
        while len(block):
            part = block[: TILE_ROWS - count]
            held.append(part)
            count, block = count + len(part), block[len(part) :]
            if count == TILE_ROWS:
                yield slice(first, first + count), np.concatenate(held)
                first, held, count = first + count, [], 0
    if count:
        yield slice(first, first + count), np.concatenate(held)


@dataclass(eq=False)
class StreamedExpansion(Basis):
    """f(x) = Σ_j α_j k(x, z_j) as ``Expansion``, with centers less ``center`` (d,) read tile by tile."""

    centers_in_memory = False

    kernel: Kernel
    Z: StoredCenters
    center: Array
    engine: Engine = field(default_factory=default_engine)

    @property
    def width(self) -> int:
        return len(self.Z)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.Z.dtype

    def _tiles(self) -> Iterator[tuple[slice, Expansion]]:
        for rows, tile in self.Z.tiles():
            yield rows, Expansion(self.kernel, tile - self.center, self.engine)

    def block(self, X: Array, out: Array | None = None) -> Array:
        K = np.empty((len(X), self.width), dtype=self.dtype) if out is None else out
        for rows, expansion in self._tiles():
            K[:, rows] = expansion.block(X)
        return K

    def predict(self, X: Array, W: Array) -> Array:
        """Read the centers once for all of X."""
        out = np.zeros((len(X), W.shape[1]), dtype=self.dtype)
        for rows, expansion in self._tiles():
            out += expansion.predict(X, W[rows])
        return out
