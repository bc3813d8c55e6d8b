"""A kernel against fixed centers, evaluated on a device: what goes in on the host comes out on the host.

Every line here is of the array API, so that any device's namespace will do, and none knows which it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamkern.backends.device import NARROW, NARROW_OUTPUTS, Device
from streamkern.kernels.base import Expansion, tiles
from streamkern.kernels.radial import Radial
from streamkern.types import Array

PANEL_BYTES = 512 << 20
"""Largest panel k(X_tile, Z) on a device, in bytes. Of any card the same, because it decides the order of sums."""

PANELS = 3
"""Panels at once: two threads compute, and a product or a kernel's strip stands beside."""

_SQUARE = 1024  # of a matrix whose diagonal is set


@dataclass(eq=False)
class DeviceExpansion(Expansion):
    """``Expansion`` on a device. Centers go there when they are first needed, and stay.

    Rows may be of the host or of the device; values, sums and gradients come back to the host.

    Args:
        kernel: the kernel.
        Z: centers, shape (p, d), of the host or of the device.
        device: where values are computed.
    """

    device: Device | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        assert self.device is not None
        if isinstance(self.Z, np.ndarray):
            self.Z = np.ascontiguousarray(self.Z)
        self._lock = threading.Lock()
        self._held: tuple[Any, Any] | None = None
        self._state: tuple[Any, Any] = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_lock", "_held", "_state")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._held, self._state = threading.Lock(), None, (None, None)

    @property
    def on(self) -> Device:
        """The device."""
        assert self.device is not None
        return self.device

    @property
    def narrow(self) -> bool:
        """Whether rows are so narrow that values are summed up as they are made."""
        return self.Z.shape[1] <= NARROW and isinstance(self.kernel, Radial) and self.dtype == np.float32

    def warm(self, X: Any) -> None:
        """Nothing is begun ahead: a panel would take a turn from who has the state."""

    def block(self, X: Any, out: Array | None = None) -> Array:
        """k(X, Z) on the host, shape (b, p), written to ``out`` where given."""
        K = np.empty((X.shape[0], self.p), dtype=self.dtype) if out is None else out
        with self.on.turn():
            rows = self.on.put(X)
            for part in self._panels(X.shape[0]):
                K[part] = self.on.take(self.values(rows[part, :]))
        return K

    def predict(self, X: Any, W: Array) -> Array:
        """f(X) = k(X, Z) W on the host, shape (b, c)."""
        out = np.empty((X.shape[0], W.shape[1]), dtype=self.dtype)
        with self.on.turn():
            rows, weights = self.on.put(X), self.on.put(np.ascontiguousarray(W, dtype=self.dtype))
            for part in self._panels(X.shape[0]):
                out[part] = self.on.take(self._product(rows[part, :], weights))
        return out

    def pull(self, X: Any, W: Array, respond: Callable[[Array, slice], Array], outputs: int) -> Array:
        """As ``Basis.pull``: residuals are computed on the host, from F that comes back and to R that goes there."""
        total = None
        with self.on.turn():
            rows, weights = self.on.put(X), self._shared(W)
            for part in self._panels(X.shape[0]):
                tile = rows[part, :]
                if self.narrow and max(W.shape[1], outputs) <= NARROW_OUTPUTS:
                    # Twice evaluated and never written, which is less where a value costs little.
                    R = self.on.put(respond(self.on.take(self._product(tile, weights)), part))
                    g = self.on.loops.narrow(self.centers()[0], tile, R, self._kind, vars(self.kernel))
                else:
                    K = self.values(tile)
                    g = K.T @ self.on.put(respond(self.on.take(K @ weights), part))
                total = g if total is None else total + g
            return np.zeros((self.p, outputs), dtype=self.dtype) if total is None else self.on.take(total)

    def centers(self) -> tuple[Any, Any]:
        """Z and its squared norms on the device."""
        with self._lock:
            if self._held is None:
                Z = self.on.put(self.Z)
                self._held = Z, self.on.loops.row_norms(Z)
            return self._held

    def values(self, X: Any) -> Any:
        """k(X, Z) of rows of the device, on the device: one matrix product and one pass over it."""
        Z, norms = self.centers()
        S = X @ Z.T
        self.kernel.apply(S, self.on.loops.row_norms(X), norms, self.on.loops)
        return S

    def set_diagonal(self, K: Any, diagonal: Array) -> None:
        """Give K(Z, Z), shape (p, p) on the device, this diagonal, in place and row by row of a few."""
        for part in tiles(self.p, _SQUARE):
            square = self.on.take(K[part, part])
            np.fill_diagonal(square, diagonal[part])
            K[part, part] = self.on.put(square)

    @property
    def _kind(self) -> str:
        assert isinstance(self.kernel, Radial)
        return self.kernel.kind

    def _product(self, X: Any, W: Any) -> Any:
        if self.narrow and W.shape[1] <= NARROW_OUTPUTS:
            return self.on.loops.narrow(X, self.centers()[0], W, self._kind, vars(self.kernel))
        return self.values(X) @ W

    def _panels(self, n: int) -> list[slice]:
        return list(tiles(n, max(1, PANEL_BYTES // max(1, self.p * self.dtype.itemsize))))

    def _shared(self, W: Array) -> Any:
        """A state on the device: the lanes of a step are given one and the same, which is frozen."""
        held = self._state
        if held[0] is not W:
            held = self._state = (W, self.on.put(np.ascontiguousarray(W, dtype=self.dtype)))
        return held[1]


def device_bytes(p: int, d: int, outputs: int, batch: int, itemsize: int, exact: bool) -> int:
    """Bytes that training holds on a device at its peak.

    Args:
        p: number of centers.
        d: width of the rows.
        outputs: number of outputs.
        batch: rows that lie there at once: of the step that is computed, and of those ahead.
        itemsize: bytes of a number.
        exact: whether K(Z, Z) is factored there, in float64.
    """
    panel = min(PANEL_BYTES, max(1, batch) * p * itemsize)
    resident = p * (d + 1) * itemsize + 8 * p * outputs * itemsize
    training = PANELS * max(panel, p * itemsize) + batch * (2 * d + 2) * itemsize
    factor = p * p * itemsize if exact else 0
    # K in float64, its factor, the inverse, and columns on their way through the substitution.
    setup = p * p * (16 + itemsize) + 3 * p * min(p, 1024) * 8 if exact else 0
    return resident + max(training + factor, setup)
