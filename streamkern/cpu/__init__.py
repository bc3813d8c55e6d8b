"""Heavy arithmetic on the CPU: compiled loops and tiles in threads, and the engine that is made of them."""

from __future__ import annotations

from functools import cache
from typing import cast

from streamkern.engine import Engine, NumpyEngine
from streamkern.engine.elementwise import HostLoops
from streamkern.startup import paused_collector

__all__ = ["default_engine", "host_loops"]


@cache
def default_engine() -> Engine:
    """Return the compiled engine of the CPU, or the NumPy reference where no compiler (Numba) can be imported.

    It is imported here, since importing the compiler takes half a second.
    """
    try:
        with paused_collector():
            from streamkern.cpu.engine import HostEngine
    except ImportError:
        return NumpyEngine()
    return HostEngine()


def host_loops() -> HostLoops:
    """Return the loops of the CPU's engine."""
    return cast(HostLoops, default_engine().loops)
