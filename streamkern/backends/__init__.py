"""Elementwise loops over blocks of rows: ``numpy`` is the reference, ``numba`` the CPU default."""

from __future__ import annotations

from functools import cache

from streamkern.backends.base import ANGULAR_KINDS, RADIAL_KINDS, Backend, Profile
from streamkern.backends.numpy import NumpyBackend
from streamkern.errors import UsageError

__all__ = ["ANGULAR_KINDS", "RADIAL_KINDS", "Backend", "NumpyBackend", "Profile", "get_backend"]


@cache
def get_backend(name: str = "auto") -> Backend:
    """Return the loops of the CPU.

    Args:
        name: ``"auto"`` or ``"cpu"`` for compiled loops, or the reference where no compiler (Numba) is installed;
            ``"numpy"`` for the plain reference.

    Raises:
        UsageError: no such backend.
    """
    if name not in ("auto", "cpu", "numpy"):
        raise UsageError(f"Unknown backend {name!r}.", where="backend", expected="auto, cpu or numpy")
    if name == "numpy":
        return NumpyBackend()
    try:
        from streamkern.backends.numba import NumbaBackend
    except ImportError:
        return NumpyBackend()
    return NumbaBackend()
