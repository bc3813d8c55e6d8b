"""Exact projection on a device: K(Z, Z) is made, factored and kept there, and a step is two products with its inverse.

The factor takes p² numbers of the device; a step moves a gradient of p × c numbers there and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamkern.backends.device import Device
from streamkern.errors import PlanRefusedError
from streamkern.kernels.device import DeviceExpansion, device_bytes
from streamkern.memory import format_bytes
from streamkern.precondition.nystrom import Nystrom
from streamkern.solvers.dense import Map
from streamkern.solvers.projection import JITTER, ExactProjection
from streamkern.types import Array


@dataclass(frozen=True, eq=False)
class DeviceProjection(ExactProjection):
    """``ExactProjection`` with a copy of W on the device.

    Args:
        device: where.
    """

    device: Device | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_held", None)

    def apply(self, g: Array, parallel: Map) -> Array:
        """M g, shape (p, c)."""
        assert self.device is not None
        with self.device.turn():
            W = self._resident()
            out = self.device.take(W.T @ (W @ self.device.put(np.ascontiguousarray(g, dtype=self.W.dtype))))
        if self.nystrom is not None:
            s = len(self.nystrom.eigensystem.vectors)
            out[:s] -= self.nystrom.correction(g[:s]).astype(out.dtype)
        return out

    def _resident(self) -> Any:
        assert self.device is not None
        held = getattr(self, "_held", None)
        if held is None:
            held = self.device.put(self.W)
            object.__setattr__(self, "_held", held)
        return held


def project_on_device(expansion: DeviceExpansion, nystrom: Nystrom | None) -> DeviceProjection:
    """As ``project_exactly``, on the expansion's device.

    Raises:
        NumericalError: K(Z, Z) + ε I is not positive definite.
    """
    device, dtype = expansion.on, expansion.dtype
    wide = replace(expansion, Z=np.asarray(expansion.Z, dtype=np.float64))
    diagonal = wide.kernel.diag(np.asarray(wide.Z))
    scale = float(np.mean(diagonal) * expansion.p)
    if nystrom is not None:
        scale = float(nystrom.eigensystem.values[0]) * expansion.p / len(nystrom.eigensystem.vectors)
    with device.turn():
        A = wide.values(wide.centers()[0])
        wide.set_diagonal(A, diagonal + JITTER[dtype] * scale)
        W = device.take(device.inverse_factor(A, dtype))
    return DeviceProjection(W, nystrom, device=device)


def projection_memory(device: Device, p: int, d: int, outputs: int, itemsize: int) -> int:
    """Bytes of the host that ``exact_bytes`` may reach for exact projection to fit the device: p² (8 + itemsize)."""
    fits = device_bytes(p, d, outputs, _BATCH, itemsize, exact=True) <= device.budget
    return p * p * (8 + itemsize) if fits else p * p * (8 + itemsize) - 1


_BATCH = 4096  # rows of a step at most, where nobody sets them


def require_room(device: Device, p: int, d: int, outputs: int, batch: int, itemsize: int, exact: bool) -> int:
    """Bytes that training will hold on a device.

    Raises:
        PlanRefusedError: it has fewer.
    """
    needed = device_bytes(p, d, outputs, batch, itemsize, exact)
    if needed > device.budget:
        raise PlanRefusedError(
            f"The run needs {format_bytes(needed)} of the device and may use {format_bytes(device.budget)}.",
            where=f"{device.name}, centers={p}",
            expected="a device with room for centers, panels and blocks" + (", and for K(Z, Z)" if exact else ""),
            remedy=('use projection="inexact", or ' if exact else "") + "use fewer centers, or --device cpu",
        )
    return needed
