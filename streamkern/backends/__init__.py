"""Elementwise loops over blocks of rows (``numba`` by default, ``numpy`` as the reference), and the device."""

from __future__ import annotations

from functools import cache

from streamkern.backends.base import ANGULAR_KINDS, RADIAL_KINDS, Backend, HostBackend, Profile
from streamkern.backends.device import Device
from streamkern.backends.numpy import NumpyBackend
from streamkern.errors import UsageError
from streamkern.starting import paused_collector

__all__ = [
    "ANGULAR_KINDS",
    "RADIAL_KINDS",
    "Backend",
    "HostBackend",
    "NumpyBackend",
    "Profile",
    "get_backend",
    "get_device",
]

DEVICES = ("auto", "cpu", "cuda")


@cache
def get_backend(name: str = "auto") -> HostBackend:
    """Return the loops of the CPU.

    Args:
        name: ``"auto"`` or ``"cpu"`` for compiled loops, or the reference if no compiler (Numba) is installed;
            ``"numpy"`` for the plain reference.

    Raises:
        UsageError: the backend is unknown.
    """
    if name not in ("auto", "cpu", "numpy"):
        raise UsageError(f"Unknown backend {name!r}.", where="backend", expected="auto, cpu or numpy")
    if name == "numpy":
        return NumpyBackend()
    try:
        with paused_collector():
            from streamkern.backends.numba import NumbaBackend
    except ImportError:
        return NumpyBackend()
    return NumbaBackend()


def get_device(name: str = "auto") -> Device | None:
    """Return the device of this name; None for the CPU.

    Args:
        name: ``"cuda"`` for the first GPU that CUDA shows, ``"cpu"``, or ``"auto"``: so far the CPU.

    Raises:
        UsageError: the name is unknown, or ``"cuda"`` on a machine without a usable GPU.
    """
    if name not in DEVICES:
        raise UsageError(f"Unknown device {name!r}.", where="device", expected="auto, cpu or cuda")
    if name != "cuda":
        return None
    try:
        from streamkern.backends.cupy import open_device
    except ImportError as error:
        why = str(error).rstrip(".")
    else:
        found = open_device()
        if not isinstance(found, str):
            return found
        why = found
    raise UsageError(
        f"CUDA is not available: {why}.",
        where="device",
        expected="an NVIDIA GPU with its driver, CuPy and Numba's CUDA target",
        remedy="pip install 'streamkern[cuda]'; or use --device cpu (device=\"cpu\")",
    )
