"""Predict the stages, seconds and memory of a run before it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkern.calibration.out_of_sample import held_out_count
from streamkern.costs.dry_run import CostEstimate, ProblemSize
from streamkern.costs.footprint import Footprint, load_libraries
from streamkern.costs.machine_speed import Prices, Shapes, SpeedMeasurements
from streamkern.data.row_order import Assembly, Scan
from streamkern.data.statistics import scale_warning
from streamkern.engine.base import CENTER_TILE
from streamkern.engine.operation_counts import Operations
from streamkern.errors import refusing_old_names
from streamkern.evaluation.metrics import ranking_work
from streamkern.fitting.calibrate import calibration_note, out_of_sample_source
from streamkern.fitting.device_placement import device_for, require_room
from streamkern.fitting.fit import Stages
from streamkern.fitting.memory_projection import kernel_search_of, planned_rows, preprocessing_steps, project_memory
from streamkern.memory import format_bytes, parse_bytes
from streamkern.models.cut_tree import MAX_LEAF_SEARCH_WORK_RATIO, Partition
from streamkern.partition.fit_partition import require_partition
from streamkern.partition.grow_tree import counting_sweeps, direction_work, sample_rows
from streamkern.partition.one_or_leaves import (
    decided,
    fits_one_leaf,
    leaves_of_sample,
    project_before_rows,
    resolve_with_held_out,
    with_rows_per_leaf,
    without_partition,
)
from streamkern.preprocessing.automatic_steps import planned_note
from streamkern.preprocessing.steps import Learning
from streamkern.resources import Resources, default_threads, given_resources
from streamkern.runs.cached_stages import MAX_TRAIN_SCORE_ROWS
from streamkern.runs.pipeline_definition import Pipeline
from streamkern.selection.kernel_search import Search
from streamkern.selection.median_bandwidth import MEDIAN_ROWS, needs_median, with_median_distances
from streamkern.solvers.base import HELD_OUT

LIKELY_CLASSES = 10
"""Outputs of a classifier that seconds are predicted for, before the labels are known."""

_CHECKED_ROWS = 1024  # rows that are looked at before a run
_HASH_SECONDS = 4e-8  # seconds in which the draw hashes and sorts a row id
_LOAD_SECONDS = 0.6  # seconds in which compiled code and libraries load on first use, and threads start


@dataclass(frozen=True)
class PlannedStage:
    """One line of a plan.

    Attributes:
        name: the stage.
        rows: rows it goes over, counting every pass.
        passes: times it goes over its rows.
        flops: floating-point operations.
        bytes_read: decoded bytes read from the source.
        memory: projected peak of the process, in bytes.
        seconds: predicted, from the calibration of this machine.
        device_memory: projected peak on a device, in bytes; None where arithmetic runs on the processor.
    """

    name: str
    rows: int
    passes: int
    flops: float
    bytes_read: int
    memory: int
    seconds: float
    device_memory: int | None = None


@dataclass(frozen=True)
class Plan:
    """Stages with their costs, and the choices behind them.

    Attributes:
        stages: in order.
        choices: with their reasons, one sentence each.
        footprint: projected memory.
        budget: bytes the process may hold.
        solver: name of the solver.
        worker_threads: threads of a worker of a cluster.
        workers: of the cluster; 0 where their number is not known.
    """

    stages: tuple[PlannedStage, ...]
    choices: tuple[str, ...]
    footprint: Footprint
    budget: int
    solver: str
    worker_threads: int = 1
    workers: int = 0

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

    def _better(self) -> str:
        if needed := self.footprint.better_budget:
            return f"would be needed where rounding spoils the first solution, from a budget of {format_bytes(needed)}"
        return "where rounding spoils the first solution"

    def text(self) -> str:
        """The plan as a table for a terminal."""
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
        lines.append(f"memory: {format_bytes(self.footprint.peak)} of {format_bytes(self.budget)}")
        if self.footprint.extra:
            lines[-1] += f"; {format_bytes(self.footprint.extra)} more {self._better()}"
        worker = format_bytes(self.footprint.worker_bytes(self.worker_threads))
        which = f"each of {self.workers:,} workers" if self.workers else "a worker of a cluster"
        lines.append(
            f"{which}, {self.worker_threads} thread(s): {worker} beyond what its process holds: "
            f"{self.footprint.worker_text(self.worker_threads)}, libraries"
        )
        return "\n".join(lines + [f"- {choice}" for choice in self.choices])


@refusing_old_names
def plan(
    pipeline: Pipeline,
    *,
    memory: str | int | None = None,
    threads: int | None = None,
    resources: Resources | None = None,
    prices: Prices | None = None,
) -> Plan:
    """Cost of a pipeline on this machine, with threads. Of the rows it reads the first chunk.

    That chunk is timed, and its features' scales are looked at; with ``prices`` given, no row is read.

    Args:
        pipeline: the definition.
        memory: as for ``run``.
        threads: as for ``run``.
        resources: as for ``run``; with ``workers``, the centers are shared out over them where the solver can, and
            ``worker_memory`` is compared with what each of them needs.
        prices: seconds of operations; by default this machine's, measured for a few seconds once and kept.

    Raises:
        PlanRefusedError: it would not fit here, or on a worker; with the remedy.
        DataError: the training set is empty, or has fewer rows than centers.
        UsageError: ``memory`` cannot be parsed, or differs from that of ``resources``.
    """
    given = given_resources(resources, memory, threads)
    pipeline = decided(pipeline, given.budget, given.device)
    if pipeline.partition is not None:
        pipeline = with_rows_per_leaf(pipeline)
    if pipeline.partition is not None and not fits_one_leaf(pipeline.partition, pipeline.train.base_rows):
        made = _in_leaves(pipeline, pipeline.partition, given.budget, given.slots, prices)
    else:
        made = _of_one(pipeline, given, prices)
    if given.worker_memory is not None:
        limit = parse_bytes(given.worker_memory)
        made.footprint.require_worker(limit, given.worker_threads, made.footprint.cost_estimate.size.p)
    return replace(made, worker_threads=given.worker_threads, workers=given.workers)


def _of_one(pipeline: Pipeline, given: Resources, prices: Prices | None) -> Plan:
    """The plan of one model of all rows."""
    budget, slots = given.budget, given.slots
    pipeline, reason = resolve_with_held_out(without_partition(pipeline), budget)
    pipeline.train._require_rows()
    data, solver = planned_rows(pipeline), pipeline.solver
    if pipeline.centers is not None:
        data.draw(pipeline.centers.count(data))
    source = out_of_sample_source(solver, pipeline.train, pipeline.validation)
    note = calibration_note(pipeline.task, source, pipeline.train, pipeline.validation, _outputs(pipeline))
    fits, search, _ = project_memory(
        pipeline, budget, load_libraries(), Stages.held_out_rows, slots=slots, processes=given.workers
    )
    cost_estimate = CostEstimate(solver, replace(fits.cost_estimate.size, outputs=_outputs(pipeline)))
    doubt = _unlike(pipeline) if prices is None else None
    if prices is None:
        prices = measured_prices(pipeline, slots)
    stages = _stages(pipeline, fits, cost_estimate, prices, search)
    stored = int(data.source.bounds[-1]) * data.source.n_features * data.source.dtype.itemsize
    choices = (
        f"solver {solver.to_json()['name']}, {cost_estimate.work_estimate.passes} pass(es) at most over {len(data):,} "
        f"rows",
        *([reason] if reason else []),
        *planned_note(pipeline.train, preprocessing_steps(pipeline)),
        *_on_device(pipeline, given.device, fits, cost_estimate.size),
        *cost_estimate.reasons,
        *_sharing(cost_estimate, fits, given.workers),
        *([] if pipeline.metric is None else [_metric_choice(pipeline)]),
        note,
        *([] if search is None else [search.text()]),
        *(
            [f"bandwidth: the median distance of {MEDIAN_ROWS:,} rows, once they are read"]
            if needs_median(pipeline)
            else []
        ),
        f"{slots} thread(s), {pipeline.lanes} lanes; matrix products run at {1e-9 / prices.work.gemm:.0f} GFLOP/s",
        f"stored rows {'stay in memory' if fits.cache_bytes >= stored else 'are read again each pass'} "
        f"({format_bytes(min(fits.cache_bytes, stored))} of {format_bytes(stored)} cached)",
    )
    if doubt is not None:
        choices = (*choices, f"warning: {doubt}")
    return Plan(stages, choices, fits, budget, solver.to_json()["name"])


def _sharing(cost_estimate: CostEstimate, fits: Footprint, workers: int) -> list[str]:
    """The distribution of centers over workers, where the solver can share them out."""
    if cost_estimate.shared is None:
        return []
    whole = f"centers can be shared out over workers of a cluster: {format_bytes(cost_estimate.shared.whole)} in all"
    if not workers:
        return [f"{whole}; --workers says what each holds"]
    if not fits.share:
        other = "read tiles of the stored ones" if cost_estimate.size.stored else "each have all"
        return [f"{whole}; {workers:,} would not hold them, or have no tile of {CENTER_TILE:,} each, and {other}"]
    where = "; models are evaluated in this process, as no worker holds all centers" if fits.evaluates_here else ""
    return [f"{whole}, over {workers:,}{where}"]


def _in_leaves(pipeline: Pipeline, partition: Partition, budget: int, slots: int, prices: Prices | None) -> Plan:
    """The plan of a partition: sweeps over all rows, and as many fits of a leaf as there will be."""
    pipeline.train._require_rows()
    require_partition(pipeline)
    doubt = _unlike(pipeline) if prices is None else None
    tried, project = project_before_rows(pipeline, partition, budget, slots, load_libraries())
    fits, at_once = project.first()
    leaves, rows = partition.expected(pipeline.train.base_rows)
    one, leafwise = project.leaf(planned_rows(pipeline), rows, fits.baseline, leaves)
    prices = measured_prices(pipeline, slots, one.cost_estimate.size.p) if prices is None else prices
    source = out_of_sample_source(leafwise.solver, pipeline.train, pipeline.validation)
    cost_estimate = CostEstimate(
        leafwise.solver, replace(one.cost_estimate.size, outputs=_outputs(pipeline), slots=slots)
    )
    leaf = replace(
        pipeline, train=leafwise.train, centers=leafwise.centers, solver=leafwise.solver, metric=leafwise.metric,
        preprocess=(), scaling=None, test=None, validation=None, partition=None,
    )  # fmt: skip
    each = [
        stage
        for stage in _stages(
            leaf, one, cost_estimate, prices, kernel_search_of(leafwise, one, MAX_LEAF_SEARCH_WORK_RATIO)
        )
        if stage.name != "evaluate"
    ]
    whole = replace(pipeline, metric=None, partition=None, solver=leafwise.solver)
    of_all = CostEstimate(leafwise.solver, replace(cost_estimate.size, n=len(pipeline.train), held_out_rows=0))
    search = None if tried is None else project.search(planned_rows(pipeline))
    held_by = one.stages | fits.stages | {"metric": fits.stages.get("kernel", 0)}
    around = _stages(whole, replace(one, baseline=fits.baseline, stages=held_by), of_all, prices, search)
    stored, data = int(pipeline.train.source.bounds[-1]), planned_rows(pipeline)
    sample = sample_rows(partition, data.base_rows, data.n_features * cost_estimate.size.itemsize)
    sweeps = counting_sweeps(data.base_rows, sample, leaves, not pipeline.train.source.in_memory)
    read = stored * pipeline.train.source.n_features * pipeline.train.source.dtype.itemsize
    direction = direction_work(cost_estimate.size, rows)
    once = next(stage for stage in around if stage.name == "statistics").seconds - _LOAD_SECONDS

    def stage(name: str, over: int, passes: int, flops: float, bytes_read: int, seconds: float) -> PlannedStage:
        return PlannedStage(name, over, passes, flops, bytes_read, fits.baseline + fits.stages[name], seconds)

    entry = float(cost_estimate.size.entry)
    between = (
        stage(
            "levels", (sweeps + 1) * stored, sweeps + 1, (leaves - 1) * direction.flops(entry), (sweeps + 1) * read,
            (sweeps + 1) * once + (leaves - 1) * direction.priced(prices.work),
        ),
        stage("scatter", stored, 1, 0.0, read, once),
        stage(
            "leaves", leaves * rows, 1, leaves * sum(part.flops for part in each),
            leaves * rows * cost_estimate.size.d * 4,
            leaves * (sum(part.seconds for part in each) - _LOAD_SECONDS),
        ),
    )  # fmt: skip
    trials: tuple[PlannedStage, ...] = ()
    if tried is not None:
        takes, one_leaf = tried.cost_estimate.work_estimate, cost_estimate.work_estimate
        # One model and leaves; with a search, two more leaves choose kernels of their own.
        fitted = leaves_of_sample(partition, data.base_rows) + (
            0.0 if search is None else 2 * (1 + MAX_LEAF_SEARCH_WORK_RATIO)
        )
        work = takes.setup + takes.training + fitted * (one_leaf.setup + one_leaf.training)
        took = once + work.priced(prices.work)
        trials = (stage("one-or-leaves", 2 * tried.cost_estimate.size.n, 1, work.flops(entry), read, took),)
    before = tuple(part for part in around if part.name.startswith(("preprocess-", "statistics", "check-", "kernel")))
    choices = (
        f"partition: about {leaves:,} leaves of up to {rows:,} rows, {min(at_once, slots)} at a time",
        *(["one model instead, where leaves are no better on held-out rows of a sample"] if trials else []),
        f"solver of a leaf: {leafwise.solver.to_json()['name']}, {cost_estimate.work_estimate.passes} pass(es) at most",
        calibration_note(pipeline.task, source, pipeline.train, pipeline.validation, _outputs(pipeline)),
        *planned_note(pipeline.train, preprocessing_steps(pipeline)),
        *([] if search is None else [f"{search.text()}; for all leaves, unless their own are better"]),
        f"{slots} thread(s), {pipeline.lanes} lanes; matrix products run at {1e-9 / prices.work.gemm:.0f} GFLOP/s",
        *([] if doubt is None else [f"warning: {doubt}"]),
    )
    stages = (*before, *trials, *between, *(part for part in around if part.name == "evaluate"))
    return Plan(stages, choices, fits, budget, leafwise.solver.to_json()["name"])


def _unlike(pipeline: Pipeline) -> str | None:
    """Differences of the features' scales in the first rows; None where preprocessing learns from all rows."""
    if preprocessing_steps(pipeline) or pipeline.train.source.text:
        return None
    rows = Scan(Assembly(pipeline.train.plain()), _CHECKED_ROWS).block((0,)).X.astype(np.float64)
    rows = rows[np.isfinite(rows).all(axis=1)]
    return scale_warning(rows.var(axis=0), pipeline.train.columns) if len(rows) else None


def _metric_choice(pipeline: Pipeline) -> str:
    """The trials of the metric, in a sentence."""
    agop = pipeline.metric
    assert agop is not None
    data = planned_rows(pipeline)
    sample, p = agop.sizes(data.base_rows)
    kinds = " and ".join(agop.kinds(data.n_features))
    return f"metric: {kinds}, at most {agop.rounds} round(s) each on {sample:,} rows and {p:,} centers"


def _on_device(pipeline: Pipeline, name: str, fits: Footprint, size: ProblemSize) -> list[str]:
    """The memory of a device, where there is one."""
    device = device_for(pipeline, name)
    if device is None:
        return []
    needed = require_room(device, fits, size.p, size.d, size.itemsize)
    return [
        f"blocks are computed on {device.name}: {format_bytes(needed)} of {format_bytes(device.budget)} there; "
        "seconds are those of the CPU"
    ]


def measured_prices(pipeline: Pipeline, slots: int, p: int | None = None) -> Prices:
    """Seconds of operations on this machine at the shapes of a pipeline, measured where they are not known."""
    data = planned_rows(pipeline)
    if p is None:
        p = 0 if pipeline.centers is None else pipeline.centers.count(data)
    known = with_median_distances(pipeline, {1: 1.0, 2: 1.0})  # a value takes as long at any bandwidth
    shapes = Shapes(
        known.kernel, known.features, p, data.n_features, _outputs(pipeline), np.dtype(pipeline.dtype),
        pipeline.lanes,
    )  # fmt: skip
    return SpeedMeasurements(slots).prices(shapes, pipeline.train)


def _outputs(pipeline: Pipeline) -> int:
    """Outputs that seconds are predicted for."""
    target = pipeline.train.target
    if pipeline.task == "regression" and target is not None:
        return max(1, int(np.prod(target.outputs)))
    return LIKELY_CLASSES


def _stages(
    pipeline: Pipeline, fits: Footprint, cost_estimate: CostEstimate, prices: Prices, search: Search | None
) -> tuple[PlannedStage, ...]:
    data, size, takes = pipeline.train, cost_estimate.size, cost_estimate.work_estimate
    n, slots, passes = size.n, size.slots, takes.passes
    stored = int(data.source.bounds[-1])
    row_bytes = data.source.n_features * data.source.dtype.itemsize
    whole = stored * row_bytes
    entry = float(size.entry)
    cores = max(slots, default_threads())

    def seconds(work: Operations, rows: float, read: float, ahead: bool = False) -> float:
        """Operations on all threads, with rows read and assembled in them or, ``ahead`` of them, on one thread more."""
        busy, reading = work.priced(prices.work), rows * prices.row + read * prices.byte
        if not ahead:
            return busy + reading / slots
        return max(busy, reading, (busy * slots + reading) / min(cores, slots + 1))

    def stage(
        name: str, rows: int, passes: int, work: Operations, read: int, took: float, held: str = ""
    ) -> PlannedStage:
        return PlannedStage(
            name, rows, passes, work.flops(entry), read, fits.baseline + fits.stages[held or name], took
        )

    sweeps = int(takes.setup_rows // n) if takes.setup_rows >= n else 0  # of the set-up over all rows
    read = whole if fits.cache_bytes >= whole else int(takes.rows * row_bytes)
    predicting = Operations(values=size.p, panel=2.0 * size.p * size.outputs)
    validation = 0 if pipeline.validation is None else passes * len(pipeline.validation)
    training = takes.training + float(validation) * predicting
    tested = 0 if pipeline.test is None else len(pipeline.test)
    scored = min(n, MAX_TRAIN_SCORE_ROWS) + tested
    looked_up = whole + tested * row_bytes  # the training rows among them lie in every chunk
    choosing = Operations() if pipeline.centers is None else pipeline.centers.operations(data)
    scanned = _LOAD_SECONDS + stored * prices.moments + whole * prices.byte / slots
    trained = seconds(training, takes.rows + validation, read, ahead=takes.steps > 0) + prices.step * takes.steps
    scanning = Operations(numbers=3.0 * stored * size.d)
    looked = min(MEDIAN_ROWS, data.base_rows)
    pairs = Operations(numbers=0.5 * size.d * looked**2)
    distances = stage(
        "bandwidth", looked, 1, pairs, whole, seconds(pairs, looked, whole) + stored * _HASH_SECONDS, "centers"
    )
    learnt = [step.to_json()["name"].lower() for step in preprocessing_steps(pipeline) if isinstance(step, Learning)]
    metrics = []
    if pipeline.metric is not None:
        costs = pipeline.metric.cost_estimate(size, data.base_rows)
        took = seconds(costs.work, costs.rows, whole) + stored * _HASH_SECONDS
        metrics = [stage("metric", costs.sample, costs.rounds, costs.work, whole, took)]
    if search is not None:
        costs = search.cost_estimate(size, data.base_rows)
        work = search.work(size)
        took = seconds(work, costs.rows, whole) + stored * _HASH_SECONDS
        metrics = [stage("kernel", costs.sample, search.fits, work, whole, took, "metric")]
    prepared = seconds(takes.setup, sweeps * n, whole * (1 + sweeps)) + cost_estimate.memory.setup * prices.page
    calibrating = []
    if "calibrate" in fits.stages:
        held = 0 if pipeline.validation is None else held_out_count(pipeline.validation.base_rows, size.outputs)
        fitted = held or held_out_count(data.base_rows, size.outputs)
        answered = float(held) * predicting + Operations(numbers=20.0 * fitted * (3 * size.outputs + 2) ** 2)
        took = seconds(answered, held, held * row_bytes)
        calibrating = [stage("calibrate", fitted, 1, answered, held * row_bytes, took)]
    evaluating = float(scored) * predicting
    if pipeline.task == "classification":
        evaluating += ranking_work(scored, size.outputs)
    evaluated = seconds(evaluating, scored, looked_up)
    return (
        *(stage(f"preprocess-{name}", stored, 1, scanning, whole, scanned, "statistics") for name in learnt),
        stage("statistics", stored, 1, scanning, whole, scanned),
        *(
            stage(
                f"check-{name}",
                len(rows),
                1,
                Operations(),
                len(rows) * row_bytes,
                seconds(Operations(), len(rows), len(rows) * row_bytes),
                "statistics",
            )
            for name, rows in (("validation", pipeline.validation), ("test", pipeline.test))
            if rows is not None
        ),
        *metrics,
        *([] if not needs_median(pipeline) else [distances]),
        stage("centers", stored, 1, choosing, whole, seconds(choosing, size.p, whole) + stored * _HASH_SECONDS),
        stage("eigensystem", sweeps * n or min(HELD_OUT, n), 1 + sweeps, takes.setup, whole * (1 + sweeps), prepared),
        stage("train", passes * n, passes, training, read, trained),
        *calibrating,
        stage("evaluate", scored, 1, evaluating, looked_up, evaluated),
    )
