"""The protocol of devices: arrays in device memory, loops over them, and transfers of rows.

Only arrays with p or d numbers a row are on a device: rows, centers, a panel of kernel values, the factor of an exact
projection. Arrays with a number for each output (residuals, gradients, weights) are copied to the host, where solvers,
sums and checkpoints are the same as without a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import ArrayLike

from streamkern.backends.base import Backend
from streamkern.types import Array, IntArray

NARROW = 64
"""Most features of rows whose kernel values are summed without being stored."""

PANEL_BYTES = 512 << 20
"""Bytes of the largest panel k(X_tile, Z) on a device; equal for all cards, because it determines the order of sums."""

TURNS = 2
"""Threads that compute concurrently: while one waits for residuals from the host, the other evaluates its panel."""

COLUMNS = 1024
"""Columns of the inverse of a factor that are solved at once."""

NARROW_OUTPUTS = 16
"""Most outputs whose sums one thread keeps in registers."""


class DeviceLoops(Backend, Protocol):
    """The loops of ``Backend`` on arrays of a device, and the fused product of narrow rows."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array of the device."""
        ...

    def narrow(self, A: Any, B: Any, W: Any, kind: str, params: Mapping[str, float]) -> Any:
        """Return k(A, B) W without storing kernel values, for up to ``NARROW`` features, ``NARROW_OUTPUTS`` outputs."""


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
    def loops(self) -> DeviceLoops:
        """Elementwise loops over its arrays."""

    def turn(self) -> AbstractContextManager[None]:
        """Context for all methods but ``rows`` and ``upload``. It limits the number of threads that compute.

        Raises:
            StorageError: raised on exit, if the device had no memory left.
        """

    def put(self, array: Any, dtype: Any = None) -> Any:
        """Return a contiguous device copy of a host array, in ``dtype`` if given; device arrays are unchanged."""

    def take(self, array: Any) -> Array:
        """Return a host copy, after all earlier computations."""

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
        """Copy stored rows ``index`` of ``raw``, and scale them and add noise on the device while panels are computed.

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
        """Return a completed device copy of a host array, made in parallel with computing."""

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """Return L⁻¹ in ``dtype`` for A = L Lᵀ in float64, shape (p, p), zero above the diagonal.

        Raises:
            NumericalError: A is not positive definite.
        """
