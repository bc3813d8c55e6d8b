"""Predict the stages, seconds and memory of a run before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from streamkern.costs.dry_run import ProblemSize
from streamkern.costs.fit_shape import FitShape
from streamkern.costs.footprint import Footprint, footprint, load_libraries
from streamkern.costs.machine_speed import Prices, Shapes, SpeedMeasurements
from streamkern.data.row_order import Assembly, Scan
from streamkern.data.statistics import scale_warning
from streamkern.defaults import LIKELY_CLASSES
from streamkern.fitting.calibrate import calibration_note, out_of_sample_source
from streamkern.fitting.device_placement import device_for, require_room
from streamkern.fitting.fit import planned_shape
from streamkern.fitting.memory_projection import planned_rows, preprocessing_steps
from streamkern.fitting.stage import Runner, reasons, works
from streamkern.memory import format_bytes, parse_bytes
from streamkern.partition.leaf_tasks import LeafSettings
from streamkern.partition.one_or_leaves import resolve_with_held_out
from streamkern.partition.partition_shape import PartitionShape
from streamkern.preprocessing.automatic_steps import planned_note
from streamkern.resources import Resources, given_resources
from streamkern.runs.pipeline_definition import Pipeline
from streamkern.runs.run_stages import after_fit, stages
from streamkern.selection.median_bandwidth import with_median_distances
from streamkern.solvers.lbfgs import Pinball, loss_of


@dataclass(frozen=True)
class PlannedStage:
    """One line of a plan.

    Attributes:
        rows: rows it goes over, counting every pass.
        bytes_read: decoded bytes read from the source.
        memory: projected peak of the process, in bytes.
        seconds: predicted, from the calibration of this machine.
        device_memory: projected peak on a device, in bytes; None where arithmetic runs on the processor.
        why: what it will do, and why, in sentences.
    """

    name: str
    rows: int
    passes: int
    flops: float
    bytes_read: int
    memory: int
    seconds: float
    device_memory: int | None = None
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Stages of a run with their costs, and the choices of ``"auto"``.

    Attributes:
        stages: the stages, in order.
        choices: the choices with their reasons, one sentence each.
        footprint: projected memory.
        budget: memory limit of the process in bytes.
        solver: name of the solver.
        worker_threads: number of threads of a worker of a cluster.
    """

    stages: tuple[PlannedStage, ...]
    choices: tuple[str, ...]
    footprint: Footprint
    budget: int
    solver: str
    worker_threads: int = 1

    @property
    def seconds(self) -> float:
        """Predicted seconds of all stages."""
        return sum(stage.seconds for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-serialisable data."""
        return {
            "stages": [vars(stage) for stage in self.stages],
            "seconds": self.seconds,
            "solver": self.solver,
            "choices": list(self.choices),
            "projected_memory_bytes": self.footprint.peak,
            "projected_worker_bytes": self.footprint.worker_bytes(self.worker_threads),
            "memory_budget_bytes": self.budget,
        }

    def text(self, result: Mapping[str, Any] | None = None) -> str:
        """Return the plan as a table for a terminal. With ``result``, as ``run`` returns it, add the measured costs."""
        width = max([12, *(len(stage.name) + 1 for stage in self.stages)])
        names = f"{'stage':<{width}}{'rows':>15}{'passes':>8}{'GFLOP':>13}{'read':>12}{'memory':>12}"
        lines = [f"{names}{'device':>12}{'seconds':>10}"]
        for stage in self.stages:
            device = "none" if stage.device_memory is None else format_bytes(stage.device_memory)
            lines.append(
                f"{stage.name:<{width}}{stage.rows:>15,}{stage.passes:>8,}{stage.flops / 1e9:>13,.1f}"
                f"{format_bytes(stage.bytes_read):>12}{format_bytes(stage.memory):>12}{device:>12}{stage.seconds:>10,.1f}"
            )
        lines.append(
            f"{'total':<{width}}{'':>15}{'':>8}{sum(s.flops for s in self.stages) / 1e9:>13,.1f}"
            f"{format_bytes(sum(s.bytes_read for s in self.stages)):>12}{format_bytes(self.footprint.peak):>12}"
            f"{'':>12}{self.seconds:>10,.1f}"
        )
        if result is not None:
            planned = {stage.name for stage in self.stages}
            took = ["took", *(_took(stage.name, planned, result) for stage in self.stages), f"{result['seconds']:,.1f}"]
            lines = [f"{line}{each:>12}" for line, each in zip(lines, took, strict=True)]
        lines.append(f"memory: {format_bytes(self.footprint.peak)} of {format_bytes(self.budget)}")
        if result is not None:
            lines[-1] += f"; the run held {format_bytes(result['peak_memory_bytes'])}"
        if self.footprint.extra:
            needed, where = self.footprint.better_budget, "where rounding spoils the first solution"
            more = f"would be needed {where}, from a budget of {format_bytes(needed)}" if needed else where
            lines[-1] += f"; {format_bytes(self.footprint.extra)} more {more}"
        worker = format_bytes(self.footprint.worker_bytes(self.worker_threads))
        lines.append(
            f"a worker of a cluster, {self.worker_threads} thread(s), needs {worker} in addition to its process: "
            f"{self.footprint.worker_text(self.worker_threads)}, libraries"
        )
        return "\n".join(lines + [f"- {choice}" for choice in self.choices])


def _took(name: str, planned: set[str], result: Mapping[str, Any]) -> str:
    """Seconds of a stage in a run, with its parts that have no line of their own; ``kept`` of an earlier run's."""
    parts = [
        each
        for each in result["stages"]
        if name == each["name"] or (name == each.get("of") and each["name"] not in planned)
    ]
    if not parts:
        return "not run"
    return "kept" if all(each["cached"] for each in parts) else f"{sum(each['seconds'] for each in parts):,.1f}"


def plan(
    pipeline: Pipeline,
    *,
    memory: str | int | None = None,
    threads: int | None = None,
    resources: Resources | None = None,
    prices: Prices | None = None,
) -> Plan:
    """Return the predicted costs of running a pipeline on this machine.

    The call reads the first chunk of rows, to measure how long reading takes and how the features are scaled. With
    ``prices``, it reads no row.

    Args:
        pipeline: a ``Pipeline``, which defines data, model and solver.
        memory: as for ``run``.
        threads: as for ``run``.
        resources: as for ``run``. Its ``worker_memory`` is compared with the memory that a worker of a cluster needs.
        prices: seconds that one operation of each kind takes. By default they are measured on this machine once, in a
            few seconds, and kept.

    Raises:
        PlanRefusedError: the run needs more memory than this process or a worker may use; the message has a remedy.
        DataError: the training set is empty, or has fewer rows than centers.
        UsageError: ``memory`` cannot be parsed, or differs from that of ``resources``.
    """
    given = given_resources(resources, memory, threads)
    pipeline, reason = resolve_with_held_out(pipeline, given.budget, given.device)
    pipeline.train._require_rows()
    made = _planned(pipeline, reason, given, prices)
    if given.worker_memory is not None:
        limit = parse_bytes(given.worker_memory)
        made.footprint.require_worker(limit, given.worker_threads, made.footprint.cost_estimate.size.p)
    return made


def _planned(pipeline: Pipeline, reason: str, given: Resources, prices: Prices | None) -> Plan:
    budget, slots, leaves = given.budget, given.slots, pipeline.partition is not None
    how: dict[str, Any] = {"budget": budget, "slots": slots, "baseline": load_libraries()}
    if leaves:  # sweeps over all rows, and as many fits of a leaf as there will be
        listed = stages(pipeline)
        shape: Any = PartitionShape.before_rows(pipeline, on=LeafSettings.of(pipeline).on, **how)
        fits, one = shape.footprint(listed), shape.largest[0]
    else:
        if pipeline.centers is not None:
            rows = planned_rows(pipeline)
            rows.draw(pipeline.centers.count(rows))
        shape, listed = planned_shape(pipeline, Runner.held_out_rows, after=after_fit(pipeline), **how)
        fits, one = footprint(shape, listed), shape
    doubt = _unlike(pipeline) if prices is None else None
    prices = prices or measured_prices(pipeline, slots, one.p if leaves else None)
    likely, solver = replace(shape, outputs=_outputs(pipeline)), one.solver.to_json()["name"]
    why = reasons(listed, likely)
    source = out_of_sample_source(one.solver, pipeline.train, pipeline.validation)
    choices = (
        *([] if leaves else [_passes(likely, solver)]),
        *([reason] if reason else []),
        *planned_note(pipeline.train, preprocessing_steps(pipeline)),
        *([] if leaves else _on_device(pipeline, given.device, fits, likely.cost_estimate.size)),
        *chain.from_iterable(why.values()),
        calibration_note(pipeline.task, source, pipeline.train, pipeline.validation, _outputs(pipeline)),
        f"{slots} thread(s), {pipeline.lanes} lanes; matrix products run at {1e-9 / prices.work.gemm:.0f} GFLOP/s",
        *([] if leaves else [_cached(fits.cache_bytes, shape.stored_bytes)]),
        *([] if doubt is None else [f"warning: {doubt}"]),
    )
    entry = float((one if leaves else likely).size.entry)
    planned = tuple(
        PlannedStage(
            name, work.rows, work.passes, work.flops(entry), work.read, fits.baseline + fits.stages[name],
            work.seconds(prices, slots), why=why.get(name, ()),
        )
        for name, work in works(listed, likely).items()
    )  # fmt: skip
    return Plan(planned, choices, fits, budget, solver, given.worker_threads)


def _passes(shape: FitShape, solver: str) -> str:
    passes = shape.cost_estimate.work_estimate.passes
    return f"solver {solver}, {passes} pass(es) at most over {len(shape.dataset):,} rows"


def _cached(cache: int, stored: int) -> str:
    where = "stay in memory" if cache >= stored else "are read again each pass"
    return f"stored rows {where} ({format_bytes(min(cache, stored))} of {format_bytes(stored)} cached)"


def _unlike(pipeline: Pipeline) -> str | None:
    """Differences of the features' scales in the first rows; None where preprocessing learns from all rows."""
    if preprocessing_steps(pipeline) or pipeline.train.source.text:
        return None
    checked_rows = 1024  # rows that are looked at before a run
    rows = Scan(Assembly(pipeline.train.plain()), checked_rows).block((0,)).X.astype(np.float64)
    rows = rows[np.isfinite(rows).all(axis=1)]
    return scale_warning(rows.var(axis=0), pipeline.train.columns) if len(rows) else None


def _on_device(pipeline: Pipeline, name: str, fits: Footprint, size: ProblemSize) -> list[str]:
    device = device_for(pipeline, name)
    if device is None:
        return []
    needed = require_room(device, fits, size.p, size.d, size.itemsize)
    return [
        f"blocks are computed on {device.name}: {format_bytes(needed)} of {format_bytes(device.budget)} there; "
        "seconds are those of the CPU"
    ]


def measured_prices(pipeline: Pipeline, slots: int, p: int | None = None) -> Prices:
    """Measure seconds of operations on this machine at the shapes of a pipeline, where they are not known."""
    data = planned_rows(pipeline)
    if p is None:
        p = 0 if pipeline.centers is None else pipeline.centers.count(data)
    known = with_median_distances(pipeline, {1: 1.0, 2: 1.0})  # a value takes as long at any bandwidth
    kernel = known.kernel and known.kernel.at_median(1.0)
    shapes = Shapes(
        kernel, known.features, p, data.n_features, _outputs(pipeline), np.dtype(pipeline.dtype),
        pipeline.lanes,
    )  # fmt: skip
    return SpeedMeasurements(slots).prices(shapes, pipeline.train)


def _outputs(pipeline: Pipeline) -> int:
    target = pipeline.train.target
    if isinstance(loss := loss_of(pipeline), Pinball):
        return len(loss.levels)
    if pipeline.task == "regression" and target is not None:
        return max(1, int(np.prod(target.outputs)))
    return LIKELY_CLASSES
