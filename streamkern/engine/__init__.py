"""The contract of heavy arithmetic, its reference in NumPy, and its costs on shapes; ``cpu`` and ``gpu`` are faster."""

from __future__ import annotations

from streamkern.engine.device import Device
from streamkern.engine.reference import Engine

__all__ = ["Device", "Engine"]
