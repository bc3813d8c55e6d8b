"""Heavy arithmetic on the CPU: compiled loops and tiles in threads, and the engine that is made of them."""

from __future__ import annotations

from functools import cache

from streamkern.engine import Engine
from streamkern.startup import paused_collector

__all__ = ["default_engine"]


@cache
def default_engine() -> Engine:
    """Return the compiled engine of the CPU; it is imported here, since importing its compiler takes half a second."""
    with paused_collector():
        from streamkern.cpu.engine import HostEngine
    return HostEngine()
