"""What a fit will hold in memory, stage by stage, before it begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.errors import PlanRefusedError
from streamkern.kernels.base import ROW_TILE, TILE_BYTES
from streamkern.memory import format_bytes
from streamkern.solvers.base import STEPS_AHEAD
from streamkern.solvers.eigenpro import _BLOCK_ROWS, _HELD_OUT, EigenPro, exact_bytes

_LIBRARIES = 160 << 20
"""Compiled code, thread stacks and allocator slack that appear during a run; measured, see tests/test_memory.py."""

_SCAN_ROWS = 4096


@dataclass(frozen=True)
class Footprint:
    """Projected memory of one process.

    Attributes:
        baseline: bytes resident before the run, with what the libraries will add.
        stages: bytes that each stage adds at its peak, by name.
        cache_bytes: bytes of stored chunks kept in memory, part of the stages that read.
        solver_bytes: bytes left for the solver's own matrices.
    """

    baseline: int
    stages: dict[str, int]
    cache_bytes: int
    solver_bytes: int

    @property
    def peak(self) -> int:
        """Projected peak in bytes."""
        return self.baseline + max(self.stages.values())


def footprint(
    dataset: Dataset,
    p: int,
    outputs: int,
    solver: EigenPro,
    *,
    budget: int,
    baseline: int,
    slots: int,
    lanes: int,
    itemsize: int = 4,
    model_rows: int = 1024,
) -> Footprint:
    """Project the memory of a fit.

    Args:
        dataset: training rows.
        p: number of centers.
        outputs: number of outputs; 10 where it is not known yet.
        solver: the solver.
        budget: bytes the process may hold.
        baseline: bytes it holds now.
        slots: threads.
        lanes: lanes of a step.
        itemsize: bytes of the arithmetic's numbers.
        model_rows: rows of a block of an evaluation.

    Raises:
        PlanRefusedError: it cannot fit; says what would.
    """
    source = dataset.source
    d = dataset.n_features
    sizes = np.diff(source.bounds)
    row = d * source.dtype.itemsize + 40  # with target, id and copy number
    chunk = int(sizes.max(initial=0)) * row
    stored = int(source.bounds[-1]) * row
    s, q = solver.sizes(p)
    baseline += _LIBRARIES

    scan = 3 * chunk * slots + slots * min(_SCAN_ROWS, int(sizes.max(initial=1))) * d * 8 * 4 + (16 << 20)
    centers = 3 * p * d * itemsize
    panels = slots * (min(TILE_BYTES, ROW_TILE * p * itemsize) + 3 * p * outputs * itemsize)
    batch = solver.batch or lanes * _BLOCK_ROWS
    batch = max(batch, lanes)
    blocks = (STEPS_AHEAD + 2) * batch * d * itemsize
    windows = (lanes + 1) * 8 * (-(-batch // lanes)) * row
    state = 8 * p * outputs * 8 + lanes * p * outputs * itemsize
    reading = blocks + windows + 2 * chunk
    evaluation = slots * (3 * chunk + 2 * min(model_rows, int(sizes.max(initial=1))) * d * itemsize) + (16 << 20)
    fixed = centers + panels + state
    eigen = 5 * s * s * 8
    held = min(_HELD_OUT, len(dataset))

    rest = budget - baseline - fixed
    exact = exact_bytes(p, itemsize) + 2 * held * p * itemsize
    kind = solver.chosen_projection(p, itemsize, max(0, rest - reading - 2 * held * p * itemsize))
    if kind == "exact":
        setup, resident_ = max(eigen, exact), p * p * itemsize
    else:
        temporary = (p + batch) * (d + outputs) * itemsize
        setup = eigen + 2 * held * (held + 2 * s) * 8
        resident_ = 2 * s * q * 8 + p * (4 * q + 2 * outputs) * itemsize + temporary
    setup += 3 * held * d * itemsize + scan
    cache = int(np.clip(rest - max(resident_ + reading, evaluation + resident_), 0, stored))
    stages = {
        "statistics": scan,
        "centers": scan + centers,
        "eigensystem": fixed + setup,
        "train": fixed + resident_ + reading + cache,
        "evaluate": fixed + resident_ + evaluation + cache,
    }
    result = Footprint(baseline, stages, cache, max(0, rest - reading))
    if result.peak > budget:
        raise PlanRefusedError(
            f"The run needs {format_bytes(result.peak)} and may use {format_bytes(budget)}; the {_largest(stages)} "
            "stage is the largest.",
            where=f"memory={format_bytes(budget)}, centers={p}, threads={slots}",
            expected=f"a budget of at least {format_bytes(result.peak)}",
            remedy=_remedy(solver, kind, p, budget - baseline, d, itemsize),
        )
    return result


def _largest(stages: dict[str, int]) -> str:
    return max(stages, key=lambda name: stages[name])


def _remedy(solver: EigenPro, kind: str, p: int, room: int, d: int, itemsize: int) -> str:
    if room <= 0:
        return "raise memory: the Python process alone holds more than this"
    if kind == "exact" and solver.projection == "exact":
        return 'raise memory, use projection="delayed" (or "auto"), or use fewer centers'
    fewer = max(1, min(p // 2, int(room / (8 * d * itemsize))))
    return f"raise memory, or use fewer centers (about {fewer:,}), or fewer threads"
