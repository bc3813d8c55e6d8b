"""Radial kernels: functions of the distance r = ‖x − z‖."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamkern.backends.base import Backend
from streamkern.errors import UsageError
from streamkern.kernels.base import Kernel
from streamkern.types import Array


@dataclass(frozen=True)
class Radial(Kernel):
    """A kernel of the distance with one length scale σ, in the units of the features.

    Args:
        bandwidth: σ > 0.

    Raises:
        UsageError: the bandwidth is not a positive finite number.
    """

    bandwidth: float = 1.0

    translation_invariant: ClassVar[bool] = True
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        if not (np.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise UsageError(
                f"The bandwidth is {self.bandwidth}.",
                where=f"{type(self).__name__}(bandwidth=...)",
                expected="a positive finite number",
            )

    def apply(self, S: Array, x_norms: Array, z_norms: Array, backend: Backend) -> None:
        """Inner products to kernel values, in place."""
        backend.radial(S, x_norms, z_norms, self.kind, {"bandwidth": self.bandwidth})

    def diag(self, X: Array) -> Array:
        """k(x, x) = 1."""
        return np.ones(len(X), dtype=X.dtype if X.dtype.kind == "f" else np.float64)


@dataclass(frozen=True)
class Laplace(Radial):
    """k(x, z) = exp(−‖x − z‖/σ)."""

    kind: ClassVar[str] = "laplace"


@dataclass(frozen=True)
class Gaussian(Radial):
    """k(x, z) = exp(−‖x − z‖²/(2σ²))."""

    kind: ClassVar[str] = "gaussian"
