"""Blocks on a GPU: the protocol of a device, its loops in CUDA C++, and the engine that computes with them."""

from __future__ import annotations

from streamkern.engine.gpu.protocol import Device
from streamkern.errors import UsageError

__all__ = ["DEVICES", "Device", "get_device"]

DEVICES = ("auto", "cpu", "cuda")


def get_device(name: str = "auto") -> Device | None:
    """Return the device of this name; None for the CPU.

    Args:
        name: ``"cuda"`` for the first GPU that CUDA shows, ``"cpu"``, or ``"auto"``: so far the CPU.

    Raises:
        UsageError: the name is unknown, or ``"cuda"`` on a machine without a usable GPU.
    """
    if name not in DEVICES:
        raise UsageError(f"Unknown device {name!r}.", where="device", expected="auto, cpu or cuda")
    if name != "cuda":
        return None
    try:
        from streamkern.engine.gpu.cupy import open_device
    except ImportError as error:
        why, extra = str(error).rstrip("."), "cuda13"
    else:
        found = open_device()
        if not isinstance(found, tuple):
            return found
        why, extra = found
    raise UsageError(
        f"CUDA is not available: {why}.",
        where="device",
        expected="an NVIDIA GPU with its driver, and CuPy",
        remedy=f"pip install 'streamkern[{extra}]'; or use --device cpu (device=\"cpu\")",
    )
