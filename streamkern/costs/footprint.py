"""Projected memory of a fit, stage by stage, before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkern.costs.dry_run import CostEstimate
from streamkern.costs.fit_shape import FitShape
from streamkern.cpu import default_engine
from streamkern.data.chunk_cache import kept_bytes, reading_bytes
from streamkern.defaults import (
    ENGINE_BYTES,
    FRESH_BYTES,
    LIBRARY_BYTES,
    MIN_BATCH_DIVISOR,
    MODULES_BYTES,
    THREAD_BYTES,
    USUAL_THREADS,
)
from streamkern.errors import PlanRefusedError, UsageError
from streamkern.execute.base import Allowance
from streamkern.memory import format_bytes, parse_bytes, release_free_memory, resident_bytes
from streamkern.resources import default_threads
from streamkern.sources.base import Source
from streamkern.sources.format_rules import rows_per_chunk


@dataclass(frozen=True)
class Footprint:
    """Projected memory of one process, and of worker processes, in bytes.

    Attributes:
        baseline: what is resident before the run, with what the libraries will add.
        stages: what each stage adds at its peak, by name.
        cache_bytes: stored chunks kept in memory, part of the stages that read.
        worker_parts: centers, weights and rows in a worker, by name, and a thread there with its blocks.
        extra: what training adds where data make the solver try a better solve.
        better_budget: the budget that allows it; 0 where this one does, or nothing is added.
    """

    baseline: int
    stages: dict[str, int]
    cache_bytes: int
    cost_estimate: CostEstimate
    budget: int
    worker_parts: dict[str, int]
    extra: int = 0
    better_budget: int = 0

    @property
    def solver_bytes(self) -> int:
        """Bytes for the solver's own matrices."""
        return self.cost_estimate.size.memory or 0

    def allowance(self) -> Allowance:
        """Memory that worker processes may hold."""
        return Allowance(self.budget, self.worker_bytes(), self.worker_parts["thread"])

    def worker_bytes(self, threads: int = 1) -> int:
        """Return the bytes that a worker needs at its peak, beyond its memory before the run."""
        more = (threads - 1) * self.worker_parts["thread"]
        return MODULES_BYTES + ENGINE_BYTES + LIBRARY_BYTES + sum(self.worker_parts.values()) + more

    def worker_text(self, threads: int = 1) -> str:
        """The memory of a worker process by name, the largest first."""
        parts = self.worker_parts | {"thread": threads * self.worker_parts["thread"]}
        names = {"thread": "threads" if threads > 1 else "its thread"}
        largest = sorted(parts, key=lambda name: -parts[name])
        return ", ".join(f"{names.get(name, name)} {format_bytes(parts[name])}" for name in largest)

    def require_worker(self, limit: int, threads: int, p: int) -> None:
        """Raise PlanRefusedError where a worker needs over ``limit`` bytes, those before the run included."""
        needed = FRESH_BYTES + self.worker_bytes(threads)
        if needed <= limit:
            return
        centers, remedies = self.worker_parts.get("centers", 0), ["give workers more memory"]
        if self.cost_estimate.size.stored:
            remedies.append("use EigenPro with fewer centers, or a partition")
        elif not centers:
            remedies.append("use smaller leaves")
        elif fewer := max(0, limit - needed + centers) * p // centers:
            remedies.append(f"use at most {fewer:,} centers")
        if threads > 1:
            remedies.append("use fewer threads a worker")
        raise PlanRefusedError(
            f"A worker needs {format_bytes(needed)} and may use {format_bytes(limit)}: {self.worker_text(threads)}.",
            where=f"worker_memory={format_bytes(limit)}, worker_threads={threads}, centers={p:,}",
            expected=f"workers with at least {_rounded_up(needed)}",
            remedy="; or ".join(remedies),
        )

    @property
    def largest(self) -> str:
        return max(self.stages, key=lambda name: self.stages[name])

    @property
    def peak(self) -> int:
        """Projected peak in bytes."""
        return self.baseline + max(self.stages.values(), default=0)

    def after(self, report: dict[str, Any]) -> Footprint:
        """Return the projection of a fit whose solver ended with this report."""
        if report.get("sweeps", 1) == 1:
            return self
        return replace(self, stages=self.stages | {"train": self.stages["train"] + self.extra}, extra=0)


def load_libraries() -> int:
    """Load what every fit uses; return the bytes resident then, and those that compiling will take."""
    engine = default_engine()
    release_free_memory()
    return resident_bytes() + engine.compiling_bytes()


def require_sweep_memory(what: str, source: Source, working: int, budget: int, slots: int, held: int = 0) -> int:
    """Project the bytes of a sweep, ``working`` of a thread and ``held`` by all; or ``PlanRefusedError``."""
    reading = reading_bytes(source, slots) + kept_bytes(source)
    projected = int(load_libraries() + LIBRARY_BYTES + reading + held + slots * (THREAD_BYTES + working))
    if projected > budget:
        raise PlanRefusedError(
            f"The {what} needs {format_bytes(projected)} and may use {format_bytes(budget)}.",
            where=f"memory={format_bytes(budget)}, threads={slots}",
            expected=f"a budget of at least {format_bytes(1.05 * projected)}",
            remedy="give more memory, or fewer threads; or write the data in smaller chunks (row groups)",
        )
    return projected


def footprint(shape: FitShape, stages: Sequence[Any]) -> Footprint:
    """Project the memory of a fit, without what only some data need; ``PlanRefusedError`` if it cannot fit."""
    result = projection(shape, stages)
    if result.peak <= shape.budget:
        return _with_better(shape, stages, result)
    enough = projection(replace(shape, budget=result.peak), stages)
    while enough.peak > enough.budget:  # with more room the solver may choose a method that takes more
        enough = projection(replace(shape, budget=enough.peak), stages)
    needed = _rounded_up(enough.budget)
    others = _alternatives(lambda **changes: projection(replace(shape, **changes), stages), result, shape)
    many = shape.slots > default_threads()
    raise PlanRefusedError(
        f"The run needs {format_bytes(result.peak)} and may use {format_bytes(shape.budget)}; the {result.largest} "
        "stage is the largest.",
        where=f"memory={format_bytes(shape.budget)}, centers={shape.p}, threads={shape.slots}",
        expected=f"a budget of at least {needed}",
        remedy="; or ".join(
            [
                *_smaller_chunks(shape, stages, result),
                *(others[-1:] if many else [f"raise memory to {needed}", *others]),
            ]
        ),
    )


def projection(shape: FitShape, stages: Sequence[Any]) -> Footprint:
    """Return the projection, whether it fits or not."""
    held = {stage.name: size for stage in stages if (size := stage.memory_of(shape)) is not None}
    return Footprint(shape.held, held, shape.cache, shape.cost_estimate, shape.budget, shape.worker_parts, shape.extra)


def _smaller_chunks(shape: FitShape, stages: Sequence[Any], result: Footprint) -> list[str]:
    if shape.dataset.source.in_memory:
        return []
    stored = shape.stored_row
    smaller = rows_per_chunk(stored)
    ingested = projection(replace(shape, most_rows=smaller), stages).peak
    if result.peak - ingested <= (result.peak - shape.budget) // 2:
        return []
    then = "" if ingested <= shape.budget else f", and raise memory to {format_bytes(ingested + ingested // 20)}"
    largest = format_bytes(int(np.diff(shape.dataset.source.bounds).max(initial=1)) * stored)
    return [
        f"store the rows in chunks of {format_bytes(smaller * stored)} with streamkern ingest: the largest now has "
        f"{largest}{then}"
    ]


def _with_better(shape: FitShape, stages: Sequence[Any], result: Footprint) -> Footprint:
    """With the budget that a better solve needs. Weights depend on it: it is that of any process."""
    if not result.extra:
        return result
    usual = replace(shape, slots=USUAL_THREADS, baseline=FRESH_BYTES, spare=True)

    def needed(budget: int) -> int:
        found = replace(usual, budget=budget)
        return found.held + found.training + found.extra

    if needed(result.budget) <= result.budget:
        return projection(replace(shape, spare=True), stages)
    enough = needed(result.budget)
    while (more := needed(enough)) > enough:
        enough = more
    return replace(result, better_budget=parse_bytes(_rounded_up(enough)))


def _rounded_up(size: int) -> str:
    """A size as it is written, and no less than it is."""
    text = format_bytes(size)
    return text if parse_bytes(text) >= size else format_bytes(size + size // 20)


def _alternatives(projected: Callable[..., Footprint], result: Footprint, shape: FitShape) -> list[str]:
    """Changes that would fit the budget, each by itself: a projection, and the largest of each number that does."""

    def fits(**changes: Any) -> bool:
        try:
            return projected(**changes).peak <= result.budget
        except UsageError:  # EigenPro refuses centers too few for its preconditioner
            return False

    def most(value: int, name: str) -> int:
        return _largest_fitting(value, lambda fewer: fits(**{name: fewer}))

    found, solver = [], shape.solver
    if fewer := most(shape.p, "p"):
        found.append(f"use at most {fewer:,} centers (or features)")
    for other, remedy in solver.smaller(shape.p, result.cost_estimate.size.memory):
        if fits(solver=other):
            found.append(remedy)
            break
    rows = result.cost_estimate.memory.batch
    if rows:
        given: Any = solver  # a dataclass with a batch
        # A step of far fewer rows is no remedy, and of delayed projection takes long to look at.
        batch = _largest_fitting(
            rows, lambda fewer: fits(solver=replace(given, batch=fewer)), rows // MIN_BATCH_DIVISOR
        )
        found += [f"use batch={batch}"] if batch else []
    found += [f"use lanes={fewer}"] if (fewer := most(shape.lanes, "lanes")) else []
    if fewer := min(most(shape.slots, "slots"), default_threads()):
        found.append(f"use {fewer} thread(s)")
    if not found and result.budget <= result.baseline:
        return ["hold less in memory before: the Python process alone holds more than this"]
    return found or ["change several of centers, batch, lanes and threads: none alone makes it fit"]


def _largest_fitting(value: int, fits: Callable[[int], bool], least: int = 1) -> int:
    """The largest number below ``value`` that fits, by bisection; 0 if none from ``least`` on does."""
    low, high = max(0, least - 1), value
    if low and not fits(low):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
