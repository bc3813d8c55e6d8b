"""Heavy arithmetic on the CPU: compiled loops and tiles in threads, and the engine that is made of them."""

from __future__ import annotations

from functools import cache

from streamkern.engine import Engine
from streamkern.engine.elementwise import Loops
from streamkern.startup import paused_collector

__all__ = ["default_engine", "host_loops"]


@cache
def default_engine() -> Engine:
    """Return the CPU's compiled engine, imported at need (half a second), or NumPy's where Numba is absent."""
    try:
        with paused_collector():
            from streamkern.cpu.engine import HostEngine
    except ImportError:
        return Engine()
    return HostEngine()


def host_loops() -> Loops:
    """Return the loops of the CPU's engine."""
    return default_engine().loops
