"""Heavy arithmetic: the protocol of an engine, and its implementations."""

from __future__ import annotations

from functools import cache

from streamkern.engine.base import Engine
from streamkern.gpu import Device
from streamkern.engine.reference import NumpyEngine

__all__ = ["Engine", "NumpyEngine", "default_engine", "engine_on"]


@cache
def default_engine() -> Engine:
    """Return the compiled engine of the CPU, or the NumPy reference if no compiler (Numba) is installed."""
    try:
        from streamkern.cpu.engine import HostEngine
    except ImportError:
        return NumpyEngine()
    return HostEngine()


def engine_on(device: Device | None) -> Engine:
    """Return the engine of a device; for None the default engine."""
    if device is None:
        return default_engine()
    from streamkern.gpu.engine import DeviceEngine

    return DeviceEngine(device)
