"""What engines take: a basis, an executor, a response; and the sizes of their tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from streamkern.types import Array

R = TypeVar("R")

Map = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""A function that maps over items in threads of this process: ``Executor.host_map``."""

Imap = Callable[..., Iterator[Any]]
"""A function that maps over items in the processes that compute blocks: ``Executor.imap``."""

Respond = Callable[[Array, slice], Array]
"""A function (F, rows) -> r from a tile's outputs F, shape (tile, c), which it may overwrite, to its response r."""

TILE_BYTES = 16 << 20
"""Bytes of the largest panel k(X_tile, Z) of a thread, unless a single row is larger."""

ROW_TILE = 256
CENTER_TILE = 2048
"""Rows and centers of one matrix product: enough for BLAS, and few enough to stay in cache for the next pass."""

TILE = 256
"""Rows of a tile of a matrix: two of float64 fit the second-level cache."""

SUMS, SLAB = 8, 32
"""Number of partial sums in ``gram_product``, and columns it processes at once."""

MANY = 64
"""Number of columns from which packing the right factor of a product is faster."""

COVARIANCE_GROUP = 4
"""Products of a covariance's tiles in memory at once."""

KERNEL_TILE = 128
"""Rows of a kernel matrix in one task; each thread has two tasks at a time."""


class Evaluated(Protocol):
    """Functions of a row, as engines see a ``Basis``."""

    engine: Any

    @property
    def width(self) -> int:
        """Number M of functions."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""

    @property
    def row_tile(self) -> int:
        """Rows of one panel."""

    @property
    def buffers(self) -> list[Array]:
        """Reusable memory for panels."""

    def block(self, X: Array, out: Array | None = None) -> Array:
        """Return φ(X), shape (b, M)."""


class Centered(Evaluated, Protocol):
    """A kernel against centers, as engines see an ``Expansion``."""

    kernel: Any
    Z: Array
    resident: Any

    @property
    def p(self) -> int:
        """Number of centers."""

    def at(self, Z: Array, engine: Any = None) -> Centered:
        """Return the same kernel with other centers, on the same engine or another."""

    def head(self, n: int) -> Centered:
        """Return the expansion of the first n centers, which share their memory."""


class TaskRunner(Protocol):
    """The part of an executor that an engine uses."""

    @property
    def overlaps(self) -> bool:
        """True if two stages of the set-up may run concurrently, on threads that would otherwise wait."""

    @property
    def in_process(self) -> bool:
        """True if this process computes blocks."""

    def host_map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Return ``fn(item)`` for all items, computed in threads of this process."""

    def imap(self, fn: Callable[..., Any], items: Iterable[Any], shared: tuple[Any, ...] = ()) -> Iterator[Any]:
        """``fn(item, *shared)`` in order, wherever blocks are computed."""
