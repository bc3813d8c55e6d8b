"""Heavy arithmetic on a GPU: CuPy's arrays, loops in CUDA C++, and the engine that computes with them."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from streamkern.cpu import default_engine
from streamkern.engine import Device, Engine
from streamkern.errors import UsageError
from streamkern.resources import require_device

__all__ = ["engine_on", "get_device", "has_driver"]


def get_device(name: str = "auto") -> Device | None:
    """Return the device of this name; None for the CPU.

    ``"auto"`` is a GPU of a kind on which this library has been measured (docs/gpu.md), if there is one, else the CPU.
    ``UsageError`` if the name is unknown, or ``"cuda"`` without a usable GPU.
    """
    require_device(name)
    if name == "cpu" or (name == "auto" and not has_driver()):
        return None
    try:
        from streamkern.gpu.cupy import open_device
    except ImportError as error:
        found: Any = (str(error).rstrip("."), "cuda13")
    else:
        found = open_device()
    if not isinstance(found, tuple):
        device: Device = found
        return device if name == "cuda" or device.measured else None
    if name == "auto":
        return None
    why, extra = found
    raise UsageError(
        f"CUDA is not available: {why}.",
        where="device",
        expected="an NVIDIA GPU with its driver, and CuPy",
        remedy=f"pip install 'streamkern[{extra}]'; or use --device cpu (sk.Resources(device=\"cpu\"))",
    )


@cache
def has_driver() -> bool:
    """Return whether the library of CUDA's driver is there; importing CuPy to ask would take a second."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def engine_on(device: Device | None) -> Engine:
    """Return the engine of a device; for None that of the CPU."""
    if device is None:
        return default_engine()
    from streamkern.gpu.engine import DeviceEngine

    return DeviceEngine(device)
