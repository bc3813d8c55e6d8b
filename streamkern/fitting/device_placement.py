"""Decide whether a run is computed on a device, and whether it fits there, before the first row is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamkern.costs.dry_run import CostEstimate
from streamkern.costs.footprint import Footprint
from streamkern.data.row_order import SCAN_ROWS
from streamkern.defaults import MIN_DEVICE_TERMS
from streamkern.engine.device import TURNS, Device
from streamkern.errors import PlanRefusedError, UsageError
from streamkern.gpu import get_device
from streamkern.kernels import Kernel
from streamkern.memory import format_bytes
from streamkern.solvers.base import ahead_bytes, traits_of
from streamkern.solvers.eigenpro import exact_bytes


def device_for(recipe: Any, name: str) -> Device | None:
    """The device that a resolved recipe is computed on; None for the CPU.

    ``name`` is ``"cpu"``, ``"cuda"`` or ``"auto"``, which takes a card for as much work as opening it is worth.
    """
    if name == "cpu":
        return None
    why = None
    if recipe.partition is not None:  # each leaf chooses its solver by itself
        why = "leaves are"
    elif recipe.features is not None:
        why = "feature maps are"
    elif not traits_of(recipe.solver).on_device:
        why = f"{recipe.solver.to_json()['name']} is"
    elif isinstance(recipe.kernel, Kernel) and not recipe.kernel.on_device:
        why = "a kernel of a user's function is"
    elif recipe.centers is not None and recipe.centers.stored:
        why = "centers that are read from storage are"
    p = 0 if recipe.centers is None else recipe.centers.count(recipe.train)
    terms = float(len(recipe.train)) * float(p) * float(recipe.train.n_features)  # of the inner products of a pass
    if name == "auto" and (why is not None or terms < MIN_DEVICE_TERMS):
        return None
    if why is None:
        return get_device(name)
    raise UsageError(
        f"{why[0].upper()}{why[1:]} computed on the CPU only.",
        where="device",
        expected="one model with a kernel at centers in memory",
        remedy='use --device auto or cpu (sk.Resources(device="auto"))',
    )


def room_for_solver(device: Device | None, projected: Footprint, p: int, d: int, itemsize: int) -> int:
    """Bytes for the solver's own matrices: the host's, or the rest of a device's where they do not fit."""
    room = projected.solver_bytes
    if device is None or device_bytes(projected.cost_estimate, p, d, itemsize, room) <= device.budget:
        return room
    return min(
        room, exact_bytes(p) - 1, max(0, device.budget - device_bytes(projected.cost_estimate, p, d, itemsize, 0))
    )


def require_room(device: Device | None, projected: Footprint, p: int, d: int, itemsize: int) -> int:
    """Bytes that training holds on a device, 0 on the CPU; a device with fewer raises PlanRefusedError."""
    if device is None:
        return 0
    room = room_for_solver(device, projected, p, d, itemsize)
    needed = device_bytes(projected.cost_estimate, p, d, itemsize, room)
    if needed > device.budget:
        cost_estimate = projected.cost_estimate
        remedies = [
            remedy
            for solver, remedy in cost_estimate.solver.smaller(p, room)
            if device_bytes(replace(cost_estimate, solver=solver), p, d, itemsize, room) < needed
        ]
        raise PlanRefusedError(
            f"The run needs {format_bytes(needed)} of the device's memory and may use {format_bytes(device.budget)}.",
            where=f"{device.name}, centers={p}",
            expected=f"{format_bytes(needed)} of memory on the device",
            remedy=", or ".join([*remedies, "use fewer centers, or --device cpu"]),
        )
    return needed


def device_bytes(cost_estimate: CostEstimate, p: int, d: int, itemsize: int, room: int) -> int:
    """Bytes on a device at the peak: those of the run on shapes, and the rows of the steps ahead.

    ``cost_estimate`` is that of the solver on the host; ``room`` are bytes that the solver may use for its own
    matrices.
    """
    cost_estimate = replace(cost_estimate, size=replace(cost_estimate.size, p=p, d=d, itemsize=itemsize, memory=room))
    rows = d * itemsize * max(cost_estimate.memory.batch, min(SCAN_ROWS, cost_estimate.size.n) * TURNS)
    # Beside rows of steps ahead, those being made as they are stored, and as they are sent.
    return cost_estimate.on_device + ahead_bytes(rows) + 2 * rows
