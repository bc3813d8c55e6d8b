"""The contract of heavy arithmetic, its reference in NumPy, and its costs on shapes; ``cpu`` and ``gpu`` are faster."""

from __future__ import annotations

from streamkern.engine.base import Engine
from streamkern.engine.device import Device
from streamkern.engine.reference import NumpyEngine

__all__ = ["Device", "Engine", "NumpyEngine"]
