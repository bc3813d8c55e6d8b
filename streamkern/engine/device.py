"""The protocol of devices: arrays in device memory, loops over them, and transfers of rows.

Rows, centers, panels and the factor of an exact projection are on a device; so are targets, residuals and the state of
a training whose blocks are all computed in this process. A worker copies its sums to the host, where they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import ArrayLike

from streamkern.types import Array, IntArray

PANEL_BYTES = 1 << 30
"""Bytes of the largest panel k(X_tile, Z) on a device; equal for all cards, because it determines the order of sums."""

TURNS = 2
"""Threads that compute concurrently: while one waits for residuals from the host, the other evaluates its panel."""

COLUMNS = 1024
"""Columns of the inverse of a factor that are solved at once."""

Change = Callable[[Any, Any, Any, Any], Any]
"""(loops, rows, ids, copies) -> rows: an augmentation of rows on a device, in place or not."""


class Device(Protocol):
    """A device for blocks. Its arrays follow the array API. Unpickled, it is the device of the other process."""

    @property
    def name(self) -> str:
        """Name of the device in reports."""

    def describe(self) -> str:
        """Return name, memory and precision, for display."""

    @property
    def budget(self) -> int:
        """Bytes of its memory that this process may use."""

    @property
    def measured(self) -> bool:
        """Whether this library has been measured on cards of this kind; only then ``auto`` takes it."""

    @property
    def peak_bytes(self) -> int:
        """Most bytes of its memory that arrays have held."""

    @property
    def splits(self) -> bool:
        """Whether float32 products are products of split rows, ``half_product``: faster, and as accurate."""

    @property
    def loops(self) -> Any:
        """Loops over its arrays: ``CudaLoops`` of ``gpu/loops.py``, or what has their methods."""

    def turn(self) -> AbstractContextManager[None]:
        """Context for all methods but ``rows`` and ``put``, with few threads; ``StorageError`` if memory ran out."""

    def put(self, array: Any, dtype: Any = None) -> Any:
        """Return a contiguous device copy of a host array, in ``dtype`` if given; device arrays are unchanged."""

    def take(self, array: Any) -> Array:
        """Return a host copy, after all earlier computations."""

    def number(self, parts: Sequence[Any]) -> Any:
        """Return the sum of arrays as a number that ``float`` waits for; they are copied without waiting."""

    def half_product(self, A: Any, B: Any) -> Any:
        """Return A Bᵀ in float32 for numbers of 16 bits of ``CudaLoops.split_halves``: shapes (n, w) and (p, w)."""

    def rows(
        self,
        raw: Any,
        index: IntArray,
        *,
        scale: ArrayLike,
        offset: ArrayLike,
        ids: IntArray,
        copies: IntArray,
        noise: tuple[int, float] | None = None,
        then: Sequence[Change] = (),
    ) -> Any:
        """Copy stored rows ``index`` (b,) of ``raw`` (N, d), and scale and augment them on the device: (b, d), float32.

        ``raw`` is on the host or the device; of the latter nothing is copied. Scale and offset are numbers or (d,), row
        ids and copy numbers (b,), ``noise`` (seed, sigma) of Gaussian noise; changes in ``then`` follow in their order.
        """

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """Return L⁻¹ (p, p) in ``dtype``, A = L Lᵀ in float64; ``NumericalError`` if A is not positive definite."""
