"""Heavy arithmetic: one protocol of verbs, and its implementations side by side."""

from __future__ import annotations

from functools import cache

from streamkern.backends.device import Device
from streamkern.engine.base import Engine
from streamkern.engine.numpy import NumpyEngine

__all__ = ["Engine", "NumpyEngine", "default_engine", "engine_on"]


@cache
def default_engine() -> Engine:
    """The compiled engine of the CPU; the reference in plain NumPy where no compiler (Numba) is installed."""
    try:
        from streamkern.engine.host import HostEngine
    except ImportError:
        return NumpyEngine()
    return HostEngine()


def engine_on(device: Device | None) -> Engine:
    """The engine of a device; the default one for None."""
    if device is None:
        return default_engine()
    from streamkern.engine.device import DeviceEngine

    return DeviceEngine(device)
