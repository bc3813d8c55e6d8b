"""Whether a run is computed on a device, and whether it fits there: said before the first row is read."""

from __future__ import annotations

from typing import Any

from streamkern.backends import get_device
from streamkern.backends.device import Device, device_bytes
from streamkern.engine.packed import factor_bytes
from streamkern.errors import PlanRefusedError, UsageError
from streamkern.memory import format_bytes
from streamkern.solvers.base import STEPS_AHEAD, Solver
from streamkern.solvers.eigenpro import exact_bytes
from streamkern.solvers.footprint import Footprint

OUTPUTS = 16
"""Outputs assumed; they take little memory compared with the centers."""


def device_for(recipe: Any, name: str) -> Device | None:
    """The device that a resolved recipe is computed on; None for the CPU.

    Args:
        recipe: what is to be fitted.
        name: ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Raises:
        UsageError: ``"cuda"`` on a machine without a GPU, or for a kernel or solver that runs on the CPU only.
    """
    device = get_device(name)
    if device is None:
        return None
    why = None
    if recipe.partition is not None:  # each leaf chooses its solver by itself
        why = "leaves are"
    elif recipe.features is not None:
        why = "feature maps are"
    elif recipe.solver.to_json()["name"] == "EigenPro2":
        why = "EigenPro2 is"
    elif recipe.centers is not None and recipe.centers.stored:
        why = "centers that stay where they are stored are"
    if why is None:
        return device
    if name == "auto":
        return None
    raise UsageError(
        f"{why[0].upper()}{why[1:]} computed on the CPU only.",
        where="device",
        expected="one model, of a kernel at centers that are held in memory",
        remedy='use --device auto or cpu (device="auto")',
    )


def fits_exactly(device: Device, p: int, d: int, batch: int, itemsize: int) -> bool:
    """Whether K(Z, Z) of p centers can be factored on a device."""
    return _bytes(p, d, batch, itemsize, exact=True) <= device.budget


def room_for_solver(device: Device | None, projected: Footprint, p: int, d: int, itemsize: int) -> int:
    """Bytes of the solver's own matrices: the host's, or what a device has left where K(Z, Z) does not fit it."""
    batch = projected.bill.memory.batch
    if device is None or fits_exactly(device, p, d, batch, itemsize):
        return projected.solver_bytes
    rest = max(0, device.budget - _bytes(p, d, batch, itemsize, exact=False))
    return min(projected.solver_bytes, exact_bytes(p) - 1, rest)


def require_room(device: Device | None, solver: Solver, projected: Footprint, p: int, d: int, itemsize: int) -> int:
    """Bytes that training holds on a device; 0 on the CPU.

    Raises:
        PlanRefusedError: it has fewer.
    """
    if device is None:
        return 0
    settings = solver.to_json()
    exact = settings.get("projection") == "exact" or (
        projected.bill.choice == "exact" and fits_exactly(device, p, d, projected.bill.memory.batch, itemsize)
    )
    lead = settings.get("projection") == "packed" and projected.bill.choice.partition(" ")[2]
    needed = _bytes(p, d, projected.bill.memory.batch, itemsize, exact, factor_bytes(p, int(lead)) if lead else 0)
    if needed > device.budget:
        raise PlanRefusedError(
            f"The run needs {format_bytes(needed)} of the device and may use {format_bytes(device.budget)}.",
            where=f"{device.name}, centers={p}",
            expected=f"{format_bytes(needed)} of memory on the device",
            remedy=('use projection="inexact", or ' if exact or lead else "") + "use fewer centers, or --device cpu",
        )
    return needed


def _bytes(p: int, d: int, batch: int, itemsize: int, exact: bool, packed: int = 0) -> int:
    return device_bytes(p, d, OUTPUTS, (STEPS_AHEAD + 2) * max(1, batch), itemsize, exact, packed)
