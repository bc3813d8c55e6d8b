"""What a run will cost, before it costs it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from streamkern.execute.threads import default_threads
from streamkern.memory import default_budget, format_bytes, parse_bytes, resident
from streamkern.pipeline.pipeline import Pipeline
from streamkern.pipeline.stages import TRAIN_SAMPLE
from streamkern.solvers.eigenpro import HELD_OUT
from streamkern.solvers.fit import OUTPUTS_GUESS, centers_bytes, width
from streamkern.solvers.footprint import Footprint, footprint


@dataclass(frozen=True)
class PlannedStage:
    """One line of a plan.

    Attributes:
        name: the stage.
        rows: rows it goes over, counting every pass.
        flops: floating-point operations.
        bytes_read: decoded bytes read from the source.
        memory: projected peak of the process, in bytes.
        seconds: predicted, from the measured rate of matrix products.
    """

    name: str
    rows: int
    flops: float
    bytes_read: int
    memory: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """Stages with their costs, and the choices behind them.

    Attributes:
        stages: in order.
        choices: what was chosen and why, one sentence each.
        footprint: projected memory.
        budget: bytes the process may hold.
    """

    stages: tuple[PlannedStage, ...]
    choices: tuple[str, ...]
    footprint: Footprint
    budget: int

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-serialisable data."""
        return {
            "stages": [vars(stage) for stage in self.stages],
            "choices": list(self.choices),
            "projected_memory_bytes": self.footprint.peak,
            "memory_budget_bytes": self.budget,
        }

    def text(self) -> str:
        """The plan as a table for a terminal."""
        lines = [f"{'stage':<12}{'rows':>15}{'GFLOP':>13}{'read':>12}{'memory':>12}{'seconds':>10}"]
        for stage in self.stages:
            lines.append(
                f"{stage.name:<12}{stage.rows:>15,}{stage.flops / 1e9:>13,.1f}{format_bytes(stage.bytes_read):>12}"
                f"{format_bytes(stage.memory):>12}{stage.seconds:>10,.1f}"
            )
        total = sum(stage.seconds for stage in self.stages)
        lines.append(
            f"{'total':<12}{'':>15}{sum(s.flops for s in self.stages) / 1e9:>13,.1f}{'':>12}"
            f"{format_bytes(self.footprint.peak):>12}{total:>10,.1f}"
        )
        lines.append(f"memory: {format_bytes(self.footprint.peak)} of {format_bytes(self.budget)}")
        return "\n".join(lines + [f"- {choice}" for choice in self.choices])


def plan(
    pipeline: Pipeline, *, memory: str | int | None = None, threads: int | None = None, rate: float | None = None
) -> Plan:
    """Cost of a pipeline on this machine, with threads.

    Args:
        pipeline: the definition.
        memory: as for ``run``.
        threads: as for ``run``.
        rate: float32 operations per second of one thread's matrix products; measured (a fifth of a second) by default.

    Raises:
        PlanRefusedError: it would not fit; says what would make it fit.
        DataError: the training set is empty, or has fewer rows than centers.
    """
    data, solver = pipeline.train, pipeline.solver
    data.require_rows()
    p, d, slots = width(pipeline), data.n_features, threads or default_threads()
    if pipeline.centers is not None:
        data.draw(pipeline.centers.count(data))
    budget = default_budget() if memory is None else parse_bytes(memory)
    itemsize = 4 if pipeline.dtype == "float32" else 8
    fits = footprint(
        data, p, OUTPUTS_GUESS, solver, budget=budget, baseline=resident(), slots=slots, lanes=pipeline.lanes,
        itemsize=itemsize, validate=pipeline.validation is not None, centers_bytes=centers_bytes(pipeline, slots),
    )  # fmt: skip
    rate = (rate or gemm_rate()) * slots * (1.0 if itemsize == 4 else 0.5)
    cost = fits.cost
    stored = int(data.source.bounds[-1])
    row_bytes = d * data.source.dtype.itemsize
    rows = cost.passes * len(data)
    entry = 2.0 * d + 10
    tests = min(len(data), TRAIN_SAMPLE) + (0 if pipeline.test is None else len(pipeline.test))
    cached = fits.cache_bytes >= stored * row_bytes
    read = stored * row_bytes if cached else rows * row_bytes
    costs = [
        ("statistics", stored, stored * d * 4.0, stored * row_bytes),
        ("centers", p, 0.0, stored * row_bytes),
        ("eigensystem", min(HELD_OUT, len(data)), cost.setup.flops(entry), 0),
        ("train", rows, cost.training(len(data)).flops(entry), read),
        ("evaluate", tests, tests * p * (2.0 * d + 10 + 2 * OUTPUTS_GUESS), tests * row_bytes),
    ]
    stages = tuple(
        PlannedStage(name, n, flops, size, fits.baseline + fits.stages[name], flops / rate + size / 1e9)
        for name, n, flops, size in costs
    )
    choices = (
        f"solver {solver.to_json()['name']}, {cost.passes} pass(es) at most over {len(data):,} rows",
        *cost.reasons,
        f"{slots} thread(s), {pipeline.lanes} lanes; matrix products run at {rate / slots / 1e9:.0f} GFLOP/s a thread",
        f"stored rows {'stay in memory' if cached else 'are read again each pass'} "
        f"({format_bytes(fits.cache_bytes)} of {format_bytes(stored * row_bytes)} cached)",
    )
    return Plan(stages, choices, fits, budget)


def gemm_rate() -> float:
    """Single-precision operations per second of one thread's matrix products, measured for about 0.2 s."""
    A = np.ones((256, 784), dtype=np.float32)
    B = np.ones((784, 2048), dtype=np.float32)
    out = np.empty((256, 2048), dtype=np.float32)
    best = np.inf
    with threadpool_limits(1, user_api="blas"):
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            start = time.perf_counter()
            np.matmul(A, B, out=out)
            best = min(best, time.perf_counter() - start)
    return 2.0 * A.size * B.shape[1] / best
