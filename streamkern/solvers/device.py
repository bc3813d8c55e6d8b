"""Exact projection on a device: K(Z, Z) is made, factored and kept there, and a step is two products with its inverse.

The factor takes p² numbers of the device; a step moves a gradient of p × c numbers there and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamkern.backends.device import Device
from streamkern.kernels.device import DeviceExpansion
from streamkern.precondition.nystrom import Nystrom
from streamkern.solvers.dense import Map, gram_matmul
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
            out[:s] -= gram_matmul(self._damped, g[:s], parallel)
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
