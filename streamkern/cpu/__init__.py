"""Elementwise loops over blocks of rows (``numba`` by default, ``numpy`` as the reference)."""

from __future__ import annotations

from functools import cache

from streamkern.engine.elementwise import ANGULAR_KINDS, RADIAL_KINDS, Backend, HostBackend, Profile
from streamkern.engine.numpy_loops import NumpyBackend
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
]


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
            from streamkern.cpu.elementwise import NumbaBackend
    except ImportError:
        return NumpyBackend()
    return NumbaBackend()
