"""The protocol of devices: arrays in their memory, loops over these, and transfers of rows.

Only arrays of p or d numbers a row live on a device: rows, centers, a panel of kernel values, the factor of an exact
projection. Arrays of a number an output, for a row or a center (residuals, gradients, weights), comes back to the host,
where solvers, sums and checkpoints are the same as without a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import ArrayLike

from streamkern.backends.base import Backend
from streamkern.types import Array, IntArray

NARROW = 64
"""Features up to which kernel values are summed up as they are made, and never written."""

PANEL_BYTES = 512 << 20
"""Largest panel k(X_tile, Z) on a device, in bytes. Of any card the same, because it decides the order of sums."""

TURNS = 2
"""Threads that compute at a time: while one waits for residuals of the host, the other's panel is evaluated."""

COLUMNS = 1024
"""Columns of the inverse of a factor that are substituted at a time."""

NARROW_OUTPUTS = 16
"""Outputs of which one thread holds the sums in registers."""


class DeviceLoops(Backend, Protocol):
    """The loops of ``Backend`` on arrays of a device, and the fused product of narrow rows."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of the device whose numbers are not set."""
        ...

    def narrow(self, A: Any, B: Any, W: Any, kind: str, params: Mapping[str, float]) -> Any:
        """k(A, B) W without writing a kernel value, for rows and outputs up to ``NARROW`` and ``NARROW_OUTPUTS``."""


class Device(Protocol):
    """A device for blocks. Arrays of it follow the array API; pickled, it is the device of the other process."""

    @property
    def name(self) -> str:
        """Name of the device in reports."""

    def describe(self) -> str:
        """Name, memory and precision, for people."""

    @property
    def budget(self) -> int:
        """Bytes of its memory that this process may use."""

    @property
    def loops(self) -> DeviceLoops:
        """Elementwise loops over its arrays."""

    def turn(self) -> AbstractContextManager[None]:
        """Compute: all else here but ``rows`` and ``upload`` is called within. A bounded number of threads has one.

        Raises:
            StorageError: on leaving: the device had no memory left.
        """

    def put(self, array: Any, dtype: Any = None) -> Any:
        """A copy of a host array, in rows and of a dtype where one is given; an array of the device is itself."""

    def take(self, array: Any) -> Array:
        """A host copy, once everything before it is computed."""

    def rows(
        self,
        raw: Array,
        index: IntArray,
        *,
        scale: ArrayLike,
        offset: ArrayLike,
        ids: IntArray,
        copies: IntArray,
        noises: Sequence[tuple[int, float]],
    ) -> Any:
        """Rows ``index`` of ``raw`` copied as they are stored, scaled and made noisy there while panels are computed.

        Args:
            raw: stored rows on the host, shape (N, d).
            index: shape (b,).
            scale: a number or shape (d,).
            offset: a number or shape (d,).
            ids: row ids, shape (b,).
            copies: copy numbers, shape (b,).
            noises: (seed, sigma) of each Gaussian noise.

        Returns:
            shape (b, d), float32, ready.
        """

    def upload(self, array: Array) -> Any:
        """A copy of a host array, ready, made in parallel with computing."""

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """L⁻¹ of A = L Lᵀ, float64 in and ``dtype`` out, shape (p, p) each, zero above the diagonal.

        Raises:
            NumericalError: A is not positive definite.
        """
