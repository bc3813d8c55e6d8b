"""Projected memory of a fit, stage by stage, before it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamkern.calibration.intervals import MAX_SCALE_FUNCTIONS, MAX_SCALE_ROWS
from streamkern.calibration.out_of_sample import MAX_HELD_OUT_ROWS, held_out_count
from streamkern.calibration.probabilities import parameter_count
from streamkern.costs.dry_run import CostEstimate, ProblemSize, sums_in_flight
from streamkern.cpu import default_engine
from streamkern.data.chunk_cache import SCAN_CACHE_BYTES, reading_bytes
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import ORDER_ROWS, SCAN_ROWS, scan_rows
from streamkern.engine.base import CENTER_TILE
from streamkern.engine.operation_counts import Operations
from streamkern.errors import PlanRefusedError, UsageError
from streamkern.evaluation.metrics import ranks_bytes
from streamkern.evaluation.score import MAX_SAMPLED_ROWS
from streamkern.execute.base import LOG_BYTES, LOG_STEPS, Allowance
from streamkern.kernels import FeatureMap
from streamkern.kernels.stored_centers import TILE_ROWS
from streamkern.memory import format_bytes, parse_bytes, release_free_memory, resident_bytes
from streamkern.resources import default_threads
from streamkern.solvers.base import HELD_OUT, MIX_BYTES, MIX_CHUNKS, Solver, ahead_bytes, row_bytes
from streamkern.sources.base import Source
from streamkern.sources.format_rules import rows_per_chunk

_LIBRARIES = 64 << 20
"""Compiled code that a fit loads beyond the engine, and slack of heaps: 56 MiB measured for a run of 200 rows."""

_ENGINE = 90 << 20
"""The engine's compiler, in a process that has not loaded it: 57 MiB measured, and 86 on a system that maps files by
large pages and so keeps unread parts of libraries resident."""

_MODULES = 104 << 20
"""The library's modules, in a worker that has not imported them: 78 MiB measured, 102 with large pages."""

THREAD_BYTES = 16 << 20
"""A thread's stack, its buffers in BLAS and the codecs, and its share of the allocator's slack."""

_USUAL_SLOTS, _FRESH = 4, 192 << 20
"""Threads, and bytes of a process before a fit, for which it is decided whether a better solve is tried."""

_ORDERING = 2  # numbers for each row of a group while its order is made
_IDS = 1 << 20  # row ids hashed at a time
_GATHER_ROWS = 4096
_MIN_BATCH_DIVISOR = 64  # part of the batch that would do, beyond which a smaller one is not looked for
_DETAILS = 6  # of targets and outputs of a sample: in pieces, joined, and decoded
_WINDOW = 8  # blocks of a window of the stream


CALIBRATION_VALUES_PER_OUTPUT = 14
"""Numbers in float64 for each output of a row that is left out, while answers are made from them."""


class CalibrationSource(NamedTuple):
    """Outputs that answers are made from.

    Attributes:
        source: see ``out_of_sample_source``.
        rows: that are left out, at most.
    """

    source: str
    task: str
    rows: int = MAX_HELD_OUT_ROWS


def calibration_bytes(task: str, rows: int, outputs: int, row: int) -> int:
    """Bytes that making answers takes, of so many rows and outputs, and bytes of a row."""
    count, parameters = held_out_count(rows, outputs), parameter_count(outputs)
    if task == "classification":
        return 8 * (CALIBRATION_VALUES_PER_OUTPUT * count * outputs + 3 * count * parameters + 3 * parameters**2)
    functions, learned = min(MAX_SCALE_FUNCTIONS, count), min(MAX_SCALE_ROWS, count)
    return count * (3 * row + 8 * CALIBRATION_VALUES_PER_OUTPUT * outputs) + 8 * functions * (
        6 * learned + 8 * functions
    )


class SearchCost(NamedTuple):
    """Operations and memory of learning a metric, or of choosing a kernel.

    Attributes:
        work: operations of all rounds, each of them the most.
        rows: rows that are assembled.
        memory: bytes at the peak, with the sample.
    """

    work: Operations
    rows: float
    memory: int
    sample: int
    rounds: int


class SampledSearch(Protocol):
    """A choice from a sample of the rows before centers are chosen: a metric, or a kernel."""

    def cost_estimate(self, size: ProblemSize, rows: int) -> SearchCost:
        """The cost for so many training rows."""


@dataclass(frozen=True)
class Footprint:
    """Projected memory of one process.

    Attributes:
        baseline: bytes resident before the run, with those that the libraries will add.
        stages: bytes that each stage adds at its peak, by name.
        cache_bytes: bytes of stored chunks kept in memory, part of the stages that read.
        cost_estimate: of the solver, given how many bytes its own matrices may have.
        budget: bytes the process may hold.
        worker: bytes of centers, weights and rows in a process of a cluster, by name, and of a thread there with its
            blocks and sums.
        extra: bytes that training adds to its stage where data make the solver try a better solve.
        better_budget: budget in bytes that allows it; 0 where this one does, or nothing is added.
        share: whether centers are shared out over the workers.
        evaluates_here: whether models are evaluated in the process, as with all centers workers would have too much.
    """

    baseline: int
    stages: dict[str, int]
    cache_bytes: int
    cost_estimate: CostEstimate
    budget: int
    worker: dict[str, int]
    extra: int
    better_budget: int = 0
    share: bool = False
    evaluates_here: bool = False

    @property
    def solver_bytes(self) -> int:
        """Bytes for the solver's own matrices."""
        return self.cost_estimate.size.memory or 0

    def worker_bytes(self, threads: int = 1) -> int:
        """Bytes that a worker process needs at its peak, beyond its memory before the run."""
        return _MODULES + _ENGINE + _LIBRARIES + sum(self.worker.values()) + (threads - 1) * self.worker["thread"]

    def allowance(self) -> Allowance:
        """Memory that worker processes may hold."""
        return Allowance(self.budget, self.worker_bytes(1), self.worker["thread"])

    def worker_text(self, threads: int = 1) -> str:
        """The memory of a worker process by name, the largest first."""
        parts = self.worker | {"thread": threads * self.worker["thread"]}
        names = {
            "thread": "threads" if threads > 1 else "its thread", "share": "its share of the centers",
            "step": "rows and sums of a step",
        }  # fmt: skip
        largest = sorted(parts, key=lambda name: -parts[name])
        return ", ".join(f"{names.get(name, name)} {format_bytes(parts[name])}" for name in largest)

    def require_worker(self, limit: int, threads: int, p: int) -> None:
        """Raise PlanRefusedError where a worker needs over ``limit`` bytes, those before the run included."""
        needed = _FRESH + self.worker_bytes(threads)
        if needed <= limit:
            return
        fixed, shared = (
            needed - self.worker.get("share", 0),
            0 if self.cost_estimate.shared is None else self.cost_estimate.shared.whole,
        )
        centers, remedies = self.worker.get("centers", 0), ["give workers more memory"]
        if shared and fixed < limit:
            remedies.append(f"use at least {-(-shared // (limit - fixed)) + 1} workers, which share the centers out")
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
    def peak(self) -> int:
        """Projected peak in bytes."""
        return self.baseline + max(self.stages.values())

    def after(self, report: dict[str, Any]) -> Footprint:
        """The projection of a fit whose solver ended with this report."""
        if report.get("sweeps", 1) == 1:
            return self
        return replace(self, stages=self.stages | {"train": self.stages["train"] + self.extra}, extra=0)


def footprint(
    dataset: Dataset,
    p: int,
    outputs: int,
    solver: Solver,
    *,
    budget: int,
    baseline: int,
    slots: int,
    lanes: int,
    itemsize: int = 4,
    validate: bool = False,
    centers_bytes: int = 0,
    learning_bytes: int = 0,
    model_rows: int = 1024,
    stored_centers: bool = False,
    features: FeatureMap | None = None,
    overlaps: bool | None = None,
    learning: SampledSearch | None = None,
    calibration: CalibrationSource | None = None,
    better: bool = False,
    processes: int = 0,
    all_rows_are_centers: bool = False,
) -> Footprint:
    """Project the memory of a fit.

    What only some data need, as a second sweep of ``Direct``, is not part of the peak: the budget decides whether it is
    tried (``better_budget``).

    Sizes are in bytes: ``itemsize`` of the arithmetic's numbers; ``centers_bytes`` of choosing the centers at its peak,
    beyond reading rows; ``learning_bytes`` of preprocessing for the rows it learns from. ``outputs`` is 10 where it is
    not known yet, ``slots`` is the number of threads, and ``model_rows`` that of rows in a block of an evaluation.

    With ``stored_centers`` the centers stay where the rows are stored, and a tile of them is held. With ``overlaps``,
    the default for several threads, the executor evaluates two stages of the set-up at a time. ``learning`` is the
    metric to learn, or the search for a kernel; ``better`` projects a fit whose data need the better solve; and
    ``processes`` are workers that centers may be shared out over, 0 for none.

    Raises:
        PlanRefusedError: it cannot fit; with the remedy.
    """
    project = partial(
        _project, dataset=dataset, p=p, outputs=outputs, solver=solver, budget=budget, baseline=baseline, slots=slots,
        lanes=lanes, itemsize=itemsize, validate=validate, centers_bytes=centers_bytes, learning_bytes=learning_bytes,
        model_rows=model_rows, stored_centers=stored_centers, features=features, overlaps=overlaps, learning=learning,
        calibration=calibration,
        better=better,
        processes=processes,
        all_rows_are_centers=all_rows_are_centers,
    )  # fmt: skip
    result = project()
    if result.peak <= budget:
        return _with_better(project, result)
    enough = project(budget=result.peak)
    while enough.peak > enough.budget:  # with more room the solver may choose a method that takes more
        enough = project(budget=enough.peak)
    needed = _rounded_up(enough.budget)
    others = _alternatives(project, result, solver, p, slots, lanes)
    stored = dataset.source.n_features * dataset.source.dtype.itemsize
    smaller = rows_per_chunk(stored)
    ingested = project(most_rows=smaller).peak if not dataset.source.in_memory else result.peak
    first: list[str] = []
    if result.peak - ingested > (result.peak - budget) // 2:
        largest = format_bytes(int(np.diff(dataset.source.bounds).max(initial=1)) * stored)
        enough_then = "" if ingested <= budget else f", and raise memory to {format_bytes(ingested + ingested // 20)}"
        first.append(
            f"store the rows in chunks of {format_bytes(smaller * stored)} with streamkern ingest: the largest now has "
            f"{largest}{enough_then}"
        )
    raise PlanRefusedError(
        f"The run needs {format_bytes(result.peak)} and may use {format_bytes(budget)}; the "
        f"{_largest_stages(result.stages)} "
        "stage is the largest.",
        where=f"memory={format_bytes(budget)}, centers={p}, threads={slots}",
        expected=f"a budget of at least {needed}",
        remedy="; or ".join(
            [*first, *(others[-1:] if slots > default_threads() else [f"raise memory to {needed}", *others])]
        ),
    )


def _with_better(project: Callable[..., Footprint], result: Footprint) -> Footprint:
    """The projection, with the budget that a better solve needs. Weights depend on it: it is that of any process."""
    if not result.extra:
        return result

    def needed(budget: int) -> int:
        found = project(slots=_USUAL_SLOTS, baseline=_FRESH, spare=True, budget=budget)
        return found.baseline + found.stages["train"] + found.extra

    if needed(result.budget) <= result.budget:
        return project(spare=True)
    enough = needed(result.budget)
    while (more := needed(enough)) > enough:
        enough = more
    return replace(result, better_budget=parse_bytes(_rounded_up(enough)))


def _rounded_up(size: int) -> str:
    """A size as it is written, and no less than it is."""
    text = format_bytes(size)
    return text if parse_bytes(text) >= size else format_bytes(size + size // 20)


def _project(
    *,
    dataset: Dataset,
    p: int,
    outputs: int,
    solver: Solver,
    budget: int,
    baseline: int,
    slots: int,
    lanes: int,
    itemsize: int,
    validate: bool,
    centers_bytes: int,
    learning_bytes: int,
    model_rows: int,
    stored_centers: bool,
    features: FeatureMap | None,
    overlaps: bool | None,
    most_rows: int | None = None,
    learning: SampledSearch | None,
    calibration: CalibrationSource | None,
    better: bool,
    processes: int,
    all_rows_are_centers: bool,
    spare: bool = False,
) -> Footprint:
    """The projection for a budget, whether it fits or not; parameters as in ``footprint``.

    ``most_rows`` are those of a chunk, as if the rows were stored in chunks of so many. With ``spare``, chunks that are
    kept leave room for a better solve.
    """
    source, d, widest = dataset.source, dataset.n_features, dataset._widest
    stored = source.n_features * source.dtype.itemsize
    sizes = np.diff(source.bounds)
    if most_rows is not None:
        sizes = np.minimum(sizes, most_rows)
    stored_rows, chunk_rows = int(source.bounds[-1]), int(sizes.max(initial=1))
    values = 1 if source.target is None else source.target.width
    as_read = source.reading()
    row = as_read.row + 32  # of a window: with id and copy number
    share = chunk_rows / max(1, int(np.diff(source.bounds).max(initial=1)))  # of the chunks as they are stored
    read, read_ahead = (int(share * reading_bytes(source, readers)) for readers in (slots, 1))
    ahead = min(2, len(sizes)) * chunk_rows * as_read.row  # of that, rows read and decoded
    whole = stored_rows * stored

    # What decides the weights depends on budget and data alone, never on threads or on what the process holds already:
    # stored rows stay in memory, and are mixed in short runs, up to an eighth of the budget.
    room = solver_memory(budget, dataset, p, itemsize, slots if stored_centers else None)
    blocks = len(dataset) // max(1, dataset.base_rows) * int(np.sum(-(-sizes // SCAN_ROWS))) or 1
    size = ProblemSize(
        len(dataset), p, d, outputs, itemsize, lanes, slots, room, overlaps, features, stored_centers, blocks
    )
    held_out_rows = 0 if calibration is None or calibration.source != "leave-one-out" else calibration.rows
    size = replace(
        size,
        all_rows_are_centers=all_rows_are_centers and p == len(dataset),
        held_out_rows=held_out_rows,
        weighted=dataset.weighted,
    )  # p may be fewer than asked for
    cost_estimate = CostEstimate(solver, replace(size, better=better), model_rows)
    takes = cost_estimate.memory
    extra = max(0, CostEstimate(solver, replace(size, better=True), model_rows).memory.training - takes.training)
    batch = max(takes.batch, lanes)
    small = whole <= budget // 8
    # A group of chunks whose rows are mixed, as ``Problem.mix_chunks`` and ``Stream`` choose it.
    mix = MIX_CHUNKS if small else max(1, MIX_BYTES // ((lanes + 1) * chunk_rows * stored))
    group = min(stored_rows, mix * chunk_rows)
    walked = min(lanes, -(-stored_rows // group)) + 1 if group else 1
    # Chunks that are best kept; those of the lanes, each with the one that it reads, are the least.
    needed = stored_rows * as_read.row if small else min(walked * group, stored_rows) * as_read.row

    ids = 40 * min(stored_rows, _IDS)
    scan = read + slots * 3 * min(scan_rows(widest), chunk_rows) * (widest + values) * 8 + SCAN_CACHE_BYTES
    gather = read + slots * 2 * min(_GATHER_ROWS, chunk_rows) * (d * itemsize + 8 * values) + SCAN_CACHE_BYTES
    # Blocks of the steps ahead and of the one being made; raw windows; the order of the rows.
    step = batch * row_bytes(d, itemsize, values)
    reading = ahead_bytes(step) + (lanes + 1) * _WINDOW * -(-batch // lanes) * row
    reading += 8 * (ORDER_ROWS + (walked + _ORDERING) * group)
    evaluation = read + slots * (takes.evaluation + min(model_rows, chunk_rows) * row) + SCAN_CACHE_BYTES
    evaluation_sums = sums_in_flight(slots, -(-stored_rows // model_rows) or 1) + 2 * slots
    ranked = ranks_bytes(stored_rows, outputs) * evaluation_sums
    weights = p * outputs * (itemsize + 8)
    stages = {
        "statistics": scan + ids + learning_bytes,
        "centers": gather + ids + 2 * takes.centers + centers_bytes,
        "eigensystem": gather + takes.setup,
        "train": takes.training + (read + SCAN_CACHE_BYTES if takes.sweeps else read_ahead) + reading,
        "evaluate": takes.centers
        + 2 * weights
        + evaluation
        + _DETAILS * min(MAX_SAMPLED_ROWS, stored_rows) * outputs * 8
        + ranked,
    }
    if learning is not None:
        stages["metric"] = gather + ids + learning.cost_estimate(size, dataset.base_rows).memory
    if calibration is not None:
        held = calibration_bytes(calibration.task, min(stored_rows, calibration.rows), outputs, d * itemsize)
        stages["calibrate"] = takes.centers + weights + max(gather, evaluation) + held
    if validate:
        stages["train"] += evaluation + takes.centers + weights
    # What is left to learn is measured on rows that are gathered, beside the weights of the best pass.
    measuring = gather + ids + takes.residual + validate * weights if takes.residual else 0
    baseline += _LIBRARIES + slots * THREAD_BYTES + dataset._held_bytes(itemsize, outputs)
    transforming = 0
    if dataset.transforms:  # each thread's rows before and after the widest of them
        longest = min(max(_GATHER_ROWS, model_rows, -(-batch // lanes)), chunk_rows)
        transforming = 2 * longest * widest * 8
    baseline += slots * transforming
    if source.in_memory:
        cache = max(needed, whole) if small else min(needed, whole - 1)
    else:
        # Elsewhere it does not decide the weights, and what the budget does not hold is read again.
        least = min(needed, (walked + 1) * chunk_rows * as_read.row)
        training = max(stages["train"] + (extra if spare else 0), measuring)
        cache = int(np.clip(budget - baseline - training, least, needed))
        cache = max(cache, whole) if small else min(cache, whole - 1)
        # A chunk that is kept and read is one.
        stages["train"] += cache if takes.sweeps else min(cache, stored_rows * as_read.row - ahead)
    stages["train"] = max(stages["train"], measuring + cache)
    # A worker has the lanes' blocks or tiles of the set-up: its copy of the work, messages, and what a thread holds.
    thread = (
        THREAD_BYTES
        + transforming
        + takes.block
        + read_ahead
        + lanes * takes.sums
        + row_bytes(d, itemsize, values) * batch
    )
    worker = {
        "centers": 3 * takes.centers, "weights": 2 * takes.state, "rows": reading + needed + ids, "thread": thread,
    }  # fmt: skip
    found = Footprint(baseline, stages, cache, cost_estimate, budget, worker, extra)
    tiles = -(-p // CENTER_TILE)
    shared = cost_estimate.shared if 0 < processes <= tiles else None
    if shared is None:
        return found
    share, rows = shared.of(-(-tiles // processes), tiles), reading + needed // processes + ids
    # What is sent is held as arrays, as a message, and as it came; meanwhile a step is computed.
    worker |= {"share": share, "rows": rows, "thread": thread + shared.working}
    worker["step"] = 4 * (shared.exchanged + shared.own) + 2 * LOG_BYTES + 3 * shared.given
    # The driver has the steps since the workers wrote their shares; weights when a pass is evaluated, and at the end. A
    # set of shares that is held here, for want of a directory, comes while the one before is still there.
    log = 2 * max(LOG_BYTES, LOG_STEPS * shared.own)
    stages = stages | {"train": takes.waiting + 4 * (shared.exchanged + shared.given) + log + 3 * weights}
    if validate:
        stages["train"] += evaluation + takes.centers + weights
    stages["train"] = max(stages["train"], measuring)
    sharing = replace(found, share=True, worker=worker, stages=stages)
    if _FRESH + sharing.worker_bytes() > budget and not stored_centers:
        less = {name: size for name, size in worker.items() if name not in ("centers", "weights")}
        sharing = replace(sharing, worker=less, evaluates_here=True)
    return sharing if sharing.worker_bytes() <= max(budget, found.worker_bytes()) else found


def load_libraries() -> int:
    """Load the libraries that every fit uses, and return the bytes that projections start from.

    They are those resident then, and those that compiling will take where no earlier process has done it.
    """
    engine = default_engine()
    release_free_memory()
    return resident_bytes() + engine.compiling_bytes()


def require_sweep_memory(what: str, source: Source, working: int, budget: int, slots: int, held: int = 0) -> int:
    """Return the projected bytes of going over rows once; PlanRefusedError names the work ``what``, and has the remedy.

    ``working`` are bytes that a thread holds of the rows that it works on; ``held`` bytes are held besides.
    """
    reading = reading_bytes(source, slots) + SCAN_CACHE_BYTES
    projected = int(load_libraries() + _LIBRARIES + reading + held + slots * (THREAD_BYTES + working))
    if projected > budget:
        raise PlanRefusedError(
            f"The {what} needs {format_bytes(projected)} and may use {format_bytes(budget)}.",
            where=f"memory={format_bytes(budget)}, threads={slots}",
            expected=f"a budget of at least {format_bytes(1.05 * projected)}",
            remedy="give more memory, or fewer threads; or write the data in smaller chunks (row groups)",
        )
    return projected


def solver_memory(budget: int, dataset: Dataset, p: int, itemsize: int, tiles: int | None = None) -> int:
    """Bytes of a budget that a solver may use for its own matrices: half, less centers and rows to measure on.

    ``tiles`` are the tiles of centers that are held where the others stay stored; None where all centers are held.
    """
    Z = (p if tiles is None else tiles * TILE_ROWS) * dataset.n_features * itemsize
    return max(0, budget // 2 - 4 * Z - 2 * min(HELD_OUT, dataset.base_rows) * p * itemsize)


def _largest_stages(stages: dict[str, int]) -> str:
    return max(stages, key=lambda name: stages[name])


def _alternatives(
    project: Callable[..., Footprint], result: Footprint, solver: Solver, p: int, slots: int, lanes: int
) -> list[str]:
    """Changes that would fit the budget, each by itself: a projection, and the largest of each number that does."""

    def fits(**changes: Any) -> bool:
        try:
            return project(**changes).peak <= result.budget
        except UsageError:  # EigenPro refuses centers too few for its preconditioner
            return False

    def most(value: int, name: str) -> int:
        return _largest_fitting(value, lambda fewer: fits(**{name: fewer}))

    found = []
    if fewer := most(p, "p"):
        found.append(f"use at most {fewer:,} centers (or features)")
    for other, remedy in solver.smaller(p, result.cost_estimate.size.memory):
        if fits(solver=other):
            found.append(remedy)
            break
    rows = result.cost_estimate.memory.batch
    if rows:
        given: Any = solver  # a dataclass with a batch
        # A step of far fewer rows is no remedy, and of delayed projection takes long to look at.
        batch = _largest_fitting(
            rows, lambda fewer: fits(solver=replace(given, batch=fewer)), rows // _MIN_BATCH_DIVISOR
        )
        found += [f"use batch={batch}"] if batch else []
    found += [f"use lanes={fewer}"] if (fewer := most(lanes, "lanes")) else []
    if fewer := min(most(slots, "slots"), default_threads()):
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
