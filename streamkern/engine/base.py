"""What engines take: a basis, an executor, a response; and the sizes of their tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np

from streamkern.types import Array, IntArray

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


class Basis(ABC):
    """M functions φ_1 .. φ_M of a row, evaluated by panels: every model here is f(x) = Σ_j w_j φ_j(x).

    Both kernel values at centers (``Expansion``) and feature maps are such functions. A ridge λ stands for the penalty
    λ tr Wᵀ R W of weights W: R is the identity for features, and K(Z, Z) for kernel values at centers.
    """

    identity_penalty: ClassVar[bool] = True
    """True if R is the identity."""

    centers_in_memory: ClassVar[bool] = True
    """False if centers are read from disk in each evaluation."""

    tile_bytes: int = TILE_BYTES
    engine: Any

    @property
    @abstractmethod
    def width(self) -> int:
        """Number M of functions."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values, and of the arithmetic."""

    @abstractmethod
    def block(self, X: Array, out: Array | None = None) -> Array:
        """Return φ(X), shape (b, M), written to ``out`` if given."""

    @property
    def row_tile(self) -> int:
        """Rows of one panel."""
        return int(np.clip(self.tile_bytes // max(1, self.width * self.dtype.itemsize), 1, ROW_TILE))

    @property
    def scratch_bytes(self) -> int:
        """Bytes of one thread during evaluation."""
        return self.row_tile * self.width * self.dtype.itemsize

    def predict(self, X: Array, W: Array) -> Array:
        """Return φ(X) W, shape (b, c)."""
        return cast(Array, self.engine.predict(self, X, W))

    def values_of(self, functions: IntArray, X: Array, engine: Any) -> Array:
        """Return φ_j(X) of the functions with these numbers j, shape (n, k), float64, evaluated by ``engine``."""
        values: Array = engine.values(self, X, lambda tile: tile[:, functions])
        return values.astype(np.float64)

    def penalty_matrix(self) -> Array | None:
        """Return R, shape (M, M), float64; None if it is the identity."""
        return None

    def add_penalty(self, A: Array, ridge: float) -> None:
        """Add λ R to A (M, M), float64, on its diagonal and below; elements above the diagonal's tiles stay."""
        A[np.diag_indices(len(A))] += ridge

    def penalise(self, W: Array) -> Array:
        """Return R W, shape (M, c), float64, for weights W in float64."""
        return W

    @cached_property
    def buffers(self) -> list[Array]:
        """Reusable memory for panels."""
        return []

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "buffers"}


class Centered(Basis):
    """A kernel against centers, as engines see an ``Expansion``."""

    kernel: Any
    Z: Array
    resident: Any

    @property
    def p(self) -> int:
        """Number of centers."""
        return int(self.Z.shape[0])

    @abstractmethod
    def at(self, Z: Array, engine: Any = None) -> Centered:
        """Return the same kernel with other centers, on the same engine or another."""

    @abstractmethod
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
