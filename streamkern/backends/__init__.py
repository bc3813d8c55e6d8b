"""Where array arithmetic runs: ``numpy`` is the reference, ``numba`` the CPU default."""

from __future__ import annotations

from streamkern.backends.base import ANGULAR_KINDS, RADIAL_KINDS, Backend, Profile
from streamkern.backends.numba import NumbaBackend
from streamkern.backends.numpy import NumpyBackend
from streamkern.errors import UsageError

__all__ = ["ANGULAR_KINDS", "RADIAL_KINDS", "Backend", "NumbaBackend", "NumpyBackend", "Profile", "get_backend"]


def get_backend(device: str = "auto") -> Backend:
    """Return the backend for a device.

    Args:
        device: ``"auto"`` or ``"cpu"`` for compiled loops on the CPU, ``"numpy"`` for the plain reference.

    Raises:
        UsageError: no such device, or not in this installation.
    """
    match device:
        case "auto" | "cpu":
            return NumbaBackend()
        case "numpy":
            return NumpyBackend()
        case "cuda":
            raise UsageError(
                "CUDA is not available in this installation.",
                where="device",
                expected="a CUDA device and the libraries for it",
                remedy='Use device="cpu" or "auto".',
            )
        case _:
            raise UsageError(f"Unknown device {device!r}.", where="device", expected="auto, cpu, numpy or cuda")
