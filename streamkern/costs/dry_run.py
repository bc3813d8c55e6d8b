"""Predict a solver's operations and memory by its ``prepare``, ``begin`` and ``update`` on shapes, see ``CostMeter``.

A plan is the run, on shapes. There is no other formula of what a method costs, so none can disagree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from streamkern.centers import CenterSet
from streamkern.cpu import default_engine
from streamkern.data.row_order import SCAN_ROWS, Block, Key
from streamkern.data.targets import Classes
from streamkern.defaults import ASSUMED_THREADS, HELD_OUT, LIKELY_CRITICAL_BATCH, MAX_CRITICAL_BATCH
from streamkern.engine.abstract_array import AbstractArray, CostMeter
from streamkern.engine.cost_meter import MeterEngine
from streamkern.engine.operation_counts import Operations
from streamkern.engine.quantised_factor import PackedFactor
from streamkern.engine.reference import Engine
from streamkern.evaluation.score import EVALUATION_BLOCK_ROWS, SquaredError
from streamkern.execute.base import Parts, Stack
from streamkern.gpu.memory_meter import MeteredDeviceEngine
from streamkern.kernels import Basis, Expansion, FeatureMap, Laplace
from streamkern.solvers.base import Iteration, Problem, Solver
from streamkern.solvers.solution_residual import measured_by_itself, unlearned
from streamkern.sweep import task_level
from streamkern.types import Array


def nominal_prices(d: int) -> Operations:
    """Fixed prices, in multiples of an operation of a large float32 product, for rows of d features."""
    value = 2.0 * d + 40.0
    return Operations(
        values=value, values64=2.3 * value, panel=2, gemm=1, gemm64=2, thin=2.5, thin64=10, vector64=24, serial64=4,
        eigen=40, numbers=36,
    )  # fmt: skip


def sums_in_flight(slots: int, blocks: int) -> int:
    """Return the sums that a sweep holds: of running tasks, of as many finished ones, and in the tree."""
    level = task_level(blocks)
    return slots * (3 if level else 2) + max(1, (blocks >> level).bit_length() - 1)


@dataclass(frozen=True)
class ProblemSize:
    """The size of a problem: n rows of a pass, p functions of the basis, rows of width d.

    Attributes:
        lanes: blocks of a step; ``slots`` of them run at a time.
        memory: bytes the solver may use for its own matrices; None for no bound.
        overlaps: whether the executor evaluates two stages of the set-up at a time; by default with several threads.
        stored: whether the centers stay where the rows are stored, and a tile of them is held.
        blocks: of a sweep over all rows; None where it is not known.
        held_out_rows: rows, at most, whose outputs are wanted, each row left out; 0 for none.
        better: whether data may make a solver try a better solve: see ``Problem.better_budget``.
    """

    n: int
    p: int
    d: int
    outputs: int
    itemsize: int = 4
    lanes: int = 4
    slots: int = 1
    memory: int | None = None
    overlaps: bool | None = None
    features: FeatureMap | None = field(default=None, compare=False)
    stored: bool = False
    blocks: int | None = None
    held_out_rows: int = 0
    better: bool = False
    all_rows_are_centers: bool = False
    weighted: bool = False

    @property
    def scanned(self) -> int:
        """Blocks of a sweep over all rows; where chunks are not known, as many as make the most sums wait."""
        return max(127, -(-self.n // SCAN_ROWS)) if self.blocks is None else self.blocks

    @property
    def overlapping(self) -> bool:
        """True if two stages of the set-up are evaluated at a time."""
        return self.slots > 1 if self.overlaps is None else self.overlaps

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64 if self.itemsize == 8 else np.float32)

    @property
    def entry(self) -> int:
        """Operations for one value of the basis: an inner product and about ten more."""
        return 2 * self.d + 10


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a method, beyond those of reading rows: peaks of set-up and training, with ``slots`` blocks at a time.

    Attributes:
        residual: after training, while what is left to learn is measured; 0 of a method that measures itself.
        block: of a block that is computed, with the next one begun: what each thread holds.
        sums: of what a block contributes, to a step or to a sweep over all rows.
        state: of what is broadcast to the lanes of a step.
        evaluation: of a block that is evaluated, what each thread holds.
        batch: rows of a step, at most; 0 for a method of whole passes.
        sweeps: times that a pass goes over all rows in its beginning, with all threads.
    """

    setup: int
    training: int
    residual: int
    block: int
    sums: int
    state: int
    centers: int
    evaluation: int
    batch: int
    sweeps: int


@dataclass(frozen=True)
class WorkEstimate:
    """Operations and assembled rows of set-up and passes, at most; whole passes have no ``steps`` and ``batch``."""

    setup: Operations
    setup_rows: float
    training: Operations
    rows: float
    passes: int
    steps: int
    batch: int


@dataclass(frozen=True, eq=False)
class CostEstimate:
    """Operations and memory of a solver on a problem of a size."""

    solver: Solver
    size: ProblemSize

    @cached_property
    def memory(self) -> MemoryEstimate:
        """Bytes, where the spectrum allows a batch as large as its rules let it be."""
        return cast(MemoryEstimate, self._once(_memory))

    @cached_property
    def on_device(self) -> int:
        """Bytes at the peak of a device that computes blocks, beyond rows that are on their way."""
        return _DryRun(self.solver, self.size, 1.0 / MAX_CRITICAL_BATCH, on_device=True).device_peak()

    @cached_property
    def work_estimate(self) -> WorkEstimate:
        """Operations, at a likely batch."""
        return cast(WorkEstimate, self._once(_effort))

    def _once(self, of: Any) -> Any:
        """Call through the cache where solver and size are no more than numbers."""
        try:
            hash(self.solver)
            cached = self.size.features is None
        except TypeError:
            cached = False
        return (of if cached else of.__wrapped__)(self.solver, self.size)

    @property
    def choice(self) -> str:
        """The method's automatic choice, in a word that results depend on."""
        return self.solver.choices(self.size.p, self.size.memory)[0]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The choices and their reasons, one sentence each."""
        return self.solver.choices(self.size.p, self.size.memory)[1]


class _DryRun:
    def __init__(
        self, solver: Solver, size: ProblemSize, top: float, likely: bool = False, on_device: bool = False
    ) -> None:
        self.size, self.meter = size, CostMeter()
        self.engine = (
            MeteredDeviceEngine(self.meter, default_engine(), size.slots, top)
            if on_device
            else MeterEngine(self.meter, default_engine(), size.slots, size.overlapping, top, likely)
        )
        self.sums = self.state = self.block = 0
        self.problem = ShapeProblem.of(size, self.engine, self)
        prepared = solver.prepare(self.problem)
        self.setup_peak, self.setup = self.meter.peak, self.meter.taken()
        self.iteration: Iteration = solver.setup(self.problem, prepared)
        del prepared
        self.meter.taken()

    def memory(self) -> MemoryEstimate:
        iteration, meter = self.iteration, self.meter
        setup = max(self.setup_peak, meter.peak)
        basis = self.problem.predictor()
        centers = self.problem.held.nbytes + basis_bytes(basis)
        meter.peak = before = meter.alive
        self._evaluate(basis)
        evaluation = meter.peak - before
        del basis
        meter.peak = 0
        self._train()
        training, residual = int(meter.peak), 0  # sizes of NumPy are no numbers of JSON
        if not measured_by_itself(iteration.report):
            meter.peak = 0
            W = self.engine.zeros((self.problem.predictor().width, self.size.outputs), self.size.dtype)
            unlearned(self.problem, W)
            residual = meter.peak
            del W
        batch = iteration.stream.batch_rows if iteration.minibatches else 0
        return MemoryEstimate(
            setup, training, residual, self.block, self.sums, self.state, centers, evaluation, batch,
            iteration.sweeps,
        )  # fmt: skip

    def device_peak(self) -> int:
        self._train()
        self._evaluate(self.problem.predictor())
        engine: Any = self.engine
        return int(engine.device.meter.peak)

    def _evaluate(self, basis: Basis) -> None:
        W = self.engine.zeros((basis.width, self.size.outputs), self.size.dtype)
        SquaredError(basis)(self.problem.block((0,), min(EVALUATION_BLOCK_ROWS, self.size.n)), W)

    def work_estimate(self) -> WorkEstimate:
        iteration, size = self.iteration, self.size
        begins, block, update = self._train()
        passes = iteration.epochs
        first, more = begins[0], begins[-1]
        training, rows = first[0] + (passes - 1.0) * more[0], first[1] + (passes - 1) * more[1]
        steps = batch = 0
        if iteration.minibatches:
            batch = iteration.stream.batch_rows
            steps = passes * iteration.stream.steps
            times = passes * size.n / iteration.stream.block_rows
            training += times * block[0] + float(steps) * update[0]
            rows += times * block[1]
        return WorkEstimate(*self.setup, training, rows, passes, steps, batch)

    def _train(self) -> tuple[list[tuple[Operations, float]], Any, Any]:
        """Cost of the begins of the first passes, of a block, and of an update: operations and rows each."""
        iteration, meter, size = self.iteration, self.meter, self.size
        state, nothing = iteration.init(), (Operations(), 0.0)
        meter.taken()
        begins = []
        for pass_ in range(min(2, iteration.epochs)):  # the first may differ from all others
            state = iteration.begin(state, pass_, self.problem.sweep)
            begins.append(meter.taken())
        if not iteration.minibatches:
            iteration.weights(state)
            meter.taken()
            return begins, nothing, nothing
        stream: Any = iteration.stream
        cycle = steps = max(1, min(iteration.cycle, iteration.epochs * stream.steps))
        groups = 32  # updates of a cycle that are run on shapes: of a longer one, each stands for several
        if cycle > groups:
            stream.stands_for = -(-cycle // groups)
            given: Any = iteration  # a dataclass with a cycle
            iteration = replace(given, cycle=-(-cycle // stream.stands_for))
            steps = iteration.cycle
        blocks, updates = [], []
        parts: Parts = ()
        for step in range(steps):
            if step in (0, steps - 1):
                parts = self._block(iteration.broadcast(state), step)
                blocks.append(meter.taken())
            # Each lane's pieces are its own.
            whole = tuple(self._pieces(part, step) if isinstance(part, Stack) else part for part in parts)
            with meter.scratch((size.slots + size.lanes) * self.sums):  # sums of lanes, and their parents in the tree
                state = iteration.update(state, whole, (0, max(step, stream.steps - 1)))
            del whole
            updates.append(meter.taken())
        iteration.weights(iteration.settle(state))
        meter.taken()
        return begins, _mean(blocks), _mean(updates, cycle - steps)

    def _block(self, state: Any, step: int) -> Parts:
        iteration, meter, size = self.iteration, self.meter, self.size
        peak, meter.peak = meter.peak, meter.alive
        held, meter.parallel = meter.alive, True
        rows = iteration.stream.block_rows
        block = iteration.stream.block((0, 0, step))
        extra_blocks = () if iteration.extra_blocks is None else iteration.extra_blocks(state)
        prepared, following = (iteration.contribution.begin(block) for _ in range(2))
        parts = iteration.contribution(block, state, prepared, extra_blocks)
        meter.count("rows", rows)
        meter.parallel = False
        self.sums = max(self.sums, bytes_of(parts))
        self.state = max(self.state, bytes_of(state))
        self.block = max(self.block, meter.peak - held)
        # The other threads hold as much, but for what a process keeps once.
        kept = getattr(iteration.extra_blocks, "kept_bytes", 0)
        meter.peak = max(peak, meter.peak + (size.slots - 1) * max(0, self.block - kept))
        del following
        return parts

    def _pieces(self, stack: Stack, step: int) -> Stack:
        pieces: list[tuple[Any, ...]] = []
        stream: Any = self.iteration.stream
        for lane in range(self.size.lanes):
            for piece in stack:
                # Arrays are those of all steps that an update stands for.
                fresh = tuple(
                    self.meter.array((stream.stands_for * len(x), *x.shape[1:]), x.dtype)
                    if isinstance(x, AbstractArray)
                    else x
                    for x in piece
                )
                pieces.append(((0, lane, step), *fresh[1:]) if isinstance(piece[0], tuple) else fresh)
        return Stack(pieces)


@lru_cache(maxsize=1024)  # a fit in leaves asks for the same ones again and again
def _memory(solver: Solver, size: ProblemSize) -> MemoryEstimate:
    return _DryRun(solver, size, 1.0 / MAX_CRITICAL_BATCH).memory()


@lru_cache(maxsize=1024)
def _effort(solver: Solver, size: ProblemSize) -> WorkEstimate:
    return _DryRun(solver, size, 1.0 / LIKELY_CRITICAL_BATCH, likely=True).work_estimate()


def _mean(found: list[tuple[Operations, float]], more: int = 0) -> tuple[Operations, float]:
    """Mean cost of the steps of a cycle, ``more`` of them as the first: it grows in proportion to their number."""
    total, rows = float(more) * found[0][0], more * found[0][1]
    for operations, count in found:
        total, rows = total + operations, rows + count
    return (1.0 / (more + len(found))) * total, rows / (more + len(found))


# ------------------------------------------------------------------------------------------------- rows on shapes


class _Rows:
    _last_round = ()
    roles = None

    def __init__(self, n: int, weighted: bool) -> None:
        self.n, self.base_rows, self.weighted = n, n, weighted
        self.source = self
        self.bounds = (0, n)

    def __len__(self) -> int:
        return self.n

    def plain(self) -> _Rows:
        return self


class _Stream:
    def __init__(self, problem: ShapeProblem, batch: int, chances: Array | None = None) -> None:
        self.problem, self.lanes = problem, problem.lanes
        self.block_rows = max(1, batch // self.lanes)
        self.batch_rows, self.rows = self.lanes * self.block_rows, len(problem.train)
        self.steps = -(-self.rows // self.batch_rows)
        self.stands_for = 1  # steps that a block of earlier ones stands for
        self.ends = None if chances is None else chances.copy()

    def block(self, key: Key) -> Block:
        return self.problem.block(key, self.block_rows)


class _Tiles:
    def __init__(self, problem: ShapeProblem, rows: int) -> None:
        self.problem, self.rows = problem, min(rows, len(problem.train))

    def cuts(self, ids: Array) -> list[slice]:
        return [slice(0, len(ids))]

    def __call__(self, state: Any) -> Iterator[Block]:
        n, meter = len(self.problem.train), self.problem.meter
        with meter.scaled(n / self.rows):
            meter.count("rows", self.rows)
            yield self.problem.block((0,), self.rows)._replace(ids=self.problem.draw(self.rows))


class _RecentBlocks:
    def __init__(self, stream: _Stream, keys: Callable[[Any], Iterable[Key]]) -> None:
        self.stream, self.keys = stream, keys
        self.kept: dict[Key, Block] = {}

    @property
    def kept_bytes(self) -> int:
        """Bytes of blocks that a process keeps, each counted once."""
        return sum(block.X.nbytes for block in self.kept.values())

    def __call__(self, state: Any) -> Iterator[Block]:
        names = list(self.keys(state))
        problem, rows = self.stream.problem, self.stream.stands_for * self.stream.block_rows
        self.kept = {key: self.kept.get(key) or problem.block(key, rows) for key in names}
        if names:  # a block was new in the step before, and is built once by every process
            self.stream.problem.meter.count("rows", self.stream.block_rows)
        return iter(list(self.kept.values()))


@dataclass(frozen=True, eq=False)
class ShapeProblem(Problem):
    """A problem of shapes; ``run`` notes the bytes that a block contributes to a sweep."""

    size: ProblemSize = field(kw_only=True)
    run: Any = field(kw_only=True)

    @classmethod
    def of(cls, size: ProblemSize, engine: MeterEngine, run: Any) -> ShapeProblem:
        given: Any = _Rows(size.n, size.weighted)
        logistic = Classes(np.empty(0))
        outputs: Any = SimpleNamespace(
            outputs=size.outputs, curvature=logistic.curvature, derivatives=logistic.derivatives, errors_per_loss=1.0
        )
        nobody: Any = None
        p = 0 if size.features is not None and not size.features.needs_centers else size.p
        rows = 0 if size.stored else p
        Z: Any = engine.meter.array((rows, size.d), size.dtype)
        ids = None if size.stored else np.arange(p if size.all_rows_are_centers else min(p, 4096))
        return cls(
            given, outputs, Laplace(1.0), CenterSet(Z, ids), nobody, size.dtype, lanes=size.lanes, memory=size.memory,
            better_budget=0 if size.better else 1, held_out_rows=size.held_out_rows, features=size.features,
            engine=engine,
            all_rows_are_centers=size.all_rows_are_centers, largest_weight=2.0 if size.weighted else 1.0, size=size,
            run=run,
        )  # fmt: skip

    @property
    def meter(self) -> CostMeter:
        """The meter that counts operations and bytes."""
        engine: Any = self.engine
        return cast(CostMeter, engine.meter)

    @property
    def held(self) -> Any:
        """The centers that are in memory."""
        return self.centers.Z

    def expansion(self) -> Expansion:
        Z: Any = self.meter.array((self.size.p, self.size.d), self.dtype)
        return Expansion(self.kernel, Z, self.engine)

    def basis(self) -> Basis:
        return self.expansion() if self.features is None else _Features(self.features, self.size, self.engine)

    def predictor(self) -> Basis:
        """Predict with a tile of centers that stay where they are stored."""
        if not self.size.stored:
            return self.basis()
        tile: Any = self.meter.array((min(512, self.size.p), self.size.d), self.dtype)
        return Expansion(self.kernel, tile, self.engine)

    def block(self, key: Key, rows: int) -> Block:
        X: Any = self.meter.array((rows, self.size.d), self.dtype)
        y: Any = self.meter.array((rows, self.size.outputs), np.float64)
        return Block(X, y, np.arange(rows), key, None)

    def stream(self, batch: int, replacement: bool = False, chances: Array | None = None) -> Any:
        return _Stream(self, batch, chances)

    def all_tiles(self, stream: Any, rows: int) -> Any:
        return _Tiles(self, rows)

    def recent_blocks(self, stream: Any, keys: Callable[[Any], Iterable[Key]]) -> Any:
        return _RecentBlocks(stream, keys)

    def draw(self, count: int, *key: int) -> Any:
        return np.linspace(0, max(0, self.size.n - 1), min(count, self.size.n)).astype(np.int64)

    def held_out(self) -> Any:
        n, p = self.size.n, self.size.p
        return self.draw(min(HELD_OUT, n - p if n - p >= min(64, max(1, n // 4)) else n))

    def rows(self, ids: Array) -> tuple[Array, Array | None]:
        self.meter.count("rows", len(ids))
        return self.meter.array((len(ids), self.size.d), self.dtype), None

    def full_rows(self, ids: Any, data: Any = None) -> Any:
        X, _ = self.rows(ids)
        return X, self.meter.array((len(X), self.size.outputs), np.float64), None

    def drawn_by_weight(self, count: int) -> Any:
        k = min(self.size.n, count + self.size.p)
        self.meter.count("rows", self.size.n)
        return np.arange(k), self.meter.array((k,), np.float64)

    def by_features(self, X: Array, values: Array, w: Array | None) -> Any:
        return values, self.meter.array((len(X),), np.float64), np.arange(len(X))

    def all_rows(self) -> Any:
        ids, places = (self.meter.array((self.size.n,), np.int64) for _ in range(2))
        return ids, places

    def sweep(self, contribution: Any, state: Any = None, data: Any = None) -> Parts:
        """Count one block in place of all rows, with the blocks of other threads and the waiting sums."""
        meter, slots = self.meter, self.size.slots
        rows = min(SCAN_ROWS, self.size.n)
        peak, held, meter.parallel = meter.peak, meter.alive, True
        meter.peak = held
        with meter.scaled(self.size.n / rows):
            meter.count("rows", rows)
            parts = contribution(self.block((0,), rows), state)
        meter.parallel = False
        self.run.sums = max(self.run.sums, bytes_of(parts))
        others = (slots - 1) * (meter.peak - held) + (sums_in_flight(slots, self.size.scanned) - slots) * bytes_of(
            parts
        )
        meter.peak = max(peak, meter.peak + others)
        return (*parts[:-1], self.size.n) if isinstance(parts[-1], int) else parts


@dataclass(eq=False)
class _Features(Basis):
    def __init__(self, features: FeatureMap, size: ProblemSize, engine: Engine) -> None:
        meter: Any = engine
        p = size.p if features.needs_centers else 0
        self.engine, self._width, self._dtype = engine, features.width(size.d, p), size.dtype
        size_ = features.resident_bytes(size.d, size.dtype, p)
        with meter.meter.scratch(4 * size_ if features.needs_centers else 0):  # made in float64, in two matrices
            self.held = meter.meter.array((size_,), np.uint8)

    @property
    def width(self) -> int:
        return self._width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def block(self, X: Array, out: Array | None = None) -> Array:
        engine: Any = self.engine
        return cast(Array, engine.evaluated(len(X), self.width, self.dtype, out))


def bytes_of(value: Any) -> int:
    """Bytes of the arrays of shapes in nested tuples."""
    if isinstance(value, AbstractArray | PackedFactor):
        return value.nbytes
    if isinstance(value, Expansion):
        return basis_bytes(value)
    return sum(map(bytes_of, value)) if isinstance(value, tuple) else 0


def basis_bytes(basis: Basis) -> int:
    """Bytes of a metered basis."""
    return basis.Z.nbytes + basis.resident.nbytes if isinstance(basis, Expansion) else bytes_of(vars(basis).get("held"))


def nominal_work(solver: Solver, size: ProblemSize) -> float:
    """Return all operations at nominal prices, with ten for each number of a row; the same for any threads."""
    size = replace(size, slots=ASSUMED_THREADS, overlaps=True)
    takes = CostEstimate(solver, size).work_estimate
    return (takes.setup + takes.training).priced(nominal_prices(size.d)) + 10.0 * (
        takes.setup_rows + takes.rows
    ) * size.d
