"""A fit on shapes: the sizes of its rows, blocks and matrices, from which every stage's memory and work follow.

What decides the weights depends on budget and data alone, never on threads or on what the process holds already: stored
rows stay in memory, and are mixed in short runs, up to an eighth of the budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from streamkern.calibration.out_of_sample import LEFT_OUT, held_out_count
from streamkern.calibration.probabilities import parameter_count
from streamkern.costs.dry_run import CostEstimate, MemoryEstimate, ProblemSize, sums_in_flight
from streamkern.data.chunk_cache import kept_bytes, reading_bytes
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import ORDER_ROWS, SCAN_ROWS, scan_rows
from streamkern.defaults import (
    CALIBRATION_VALUES_PER_OUTPUT,
    HELD_OUT,
    LIBRARY_BYTES,
    MAX_HELD_OUT_ROWS,
    MAX_SAMPLED_ROWS,
    MAX_SCALE_FUNCTIONS,
    MAX_SCALE_ROWS,
    MIX_BYTES,
    MIX_CHUNKS,
    THREAD_BYTES,
)
from streamkern.engine.operation_counts import Operations
from streamkern.evaluation.metrics import ranks_bytes
from streamkern.evaluation.score import EVALUATION_BLOCK_ROWS
from streamkern.kernels import FeatureMap
from streamkern.kernels.stored_centers import TILE_ROWS
from streamkern.solvers.base import Solver, ahead_bytes, row_bytes
from streamkern.types import IntArray

_GATHER_ROWS = 4096


class CalibrationSource(NamedTuple):
    """Outputs that answers are made from: see ``out_of_sample_source``; ``rows`` are left out, at most."""

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
    """Operations of a search for a metric or kernel, each round the largest, and bytes at the peak, with the sample."""

    work: Operations
    rows: float
    memory: int
    sample: int
    rounds: int


def solver_memory(budget: int, dataset: Dataset, p: int, itemsize: int, tiles: int | None = None) -> int:
    """Return a solver's bytes for its matrices: half, less rows to measure on, and all centers, or ``tiles``."""
    Z = (p if tiles is None else tiles * TILE_ROWS) * dataset.n_features * itemsize
    return max(0, budget // 2 - 4 * Z - 2 * min(HELD_OUT, dataset.base_rows) * p * itemsize)


@dataclass(frozen=True, eq=False)
class FitShape:
    """The shape of a fit; what ``ProblemSize`` has, too, is described there. Sizes are in bytes, or said to be rows.

    Attributes:
        baseline: what the process holds before, of the ``budget`` that it may hold.
        centers_bytes: of choosing the centers at its peak, beyond reading rows.
        learning_bytes: of preprocessing, for the rows it learns from.
        search: a ``Search`` for a kernel, an ``AGOP`` for a metric, or None.
        most_rows: those of a chunk, as if the rows were stored in chunks of so many; None for the chunks there are.
        spare: whether chunks that are kept leave room for a better solve.
    """

    dataset: Dataset
    p: int
    outputs: int
    solver: Solver
    budget: int
    baseline: int
    slots: int
    lanes: int
    itemsize: int = 4
    validate: bool = False
    centers_bytes: int = 0
    learning_bytes: int = 0
    stored_centers: bool = False
    features: FeatureMap | None = None
    overlaps: bool | None = None
    search: Any = None
    calibration: CalibrationSource | None = None
    better: bool = False
    all_rows_are_centers: bool = False
    most_rows: int | None = None
    spare: bool = False
    recipe: Any = None

    facts = None  # of rows that are not read, nothing is known

    # ------------------------------------------------------------------------------------------------ rows as stored

    @cached_property
    def _chunks(self) -> IntArray:
        sizes: IntArray = np.diff(self.dataset.source.bounds)
        return sizes if self.most_rows is None else np.minimum(sizes, self.most_rows)

    @cached_property
    def chunk_rows(self) -> int:
        """Rows of the largest chunk."""
        return int(self._chunks.max(initial=1))

    @property
    def stored_rows(self) -> int:
        """Rows as they are stored, whatever augments them."""
        return int(self.dataset.source.bounds[-1])

    @property
    def stored_row(self) -> int:
        """Bytes of a stored row."""
        return self.dataset.source.n_features * self.dataset.source.dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes of all stored rows."""
        return self.stored_rows * self.stored_row

    @property
    def fits_memory(self) -> bool:
        """True if stored rows take little of the budget."""
        return self.stored_bytes <= self.budget // 8

    @cached_property
    def _row_read(self) -> int:  # a row of a window takes 32 bytes more, with id and copy number
        return self.dataset.source.reading().row

    @property
    def _values(self) -> int:
        target = self.dataset.source.target
        return 1 if target is None else target.width

    def read(self, readers: int) -> int:
        """Bytes that so many threads take to read chunks."""
        largest = max(1, int(np.diff(self.dataset.source.bounds).max(initial=1)))
        return int(self.chunk_rows / largest * reading_bytes(self.dataset.source, readers))

    @property
    def swept(self) -> int:
        """Bytes of the chunks that threads read in a sweep, and of those that it keeps."""
        return self.read(self.slots) + kept_bytes(self.dataset.source)

    # ---------------------------------------------------------------------------------------------------- the solver

    @cached_property
    def size(self) -> ProblemSize:
        """The size of the solver's problem."""
        data, rows = self.dataset, self.dataset.base_rows
        room = solver_memory(self.budget, data, self.p, self.itemsize, self.slots if self.stored_centers else None)
        blocks = len(data) // max(1, rows) * int(np.sum(-(-self._chunks // SCAN_ROWS))) or 1
        answers = self.calibration
        return ProblemSize(
            len(data), self.p, data.n_features, self.outputs, self.itemsize, self.lanes, self.slots, room,
            self.overlaps, self.features, self.stored_centers, blocks,
            held_out_rows=0 if answers is None or answers.source not in LEFT_OUT else answers.rows,
            better=self.better,
            all_rows_are_centers=self.all_rows_are_centers and self.p == len(data),  # p may be fewer than asked for
            weighted=data.weighted,
        )  # fmt: skip

    @cached_property
    def cost_estimate(self) -> CostEstimate:
        return CostEstimate(self.solver, self.size)

    @property
    def takes(self) -> MemoryEstimate:
        """Memory of the solver."""
        return self.cost_estimate.memory

    @cached_property
    def extra(self) -> int:
        """Bytes that training adds where data make the solver try a better solve."""
        better = CostEstimate(self.solver, replace(self.size, better=True))
        return max(0, better.memory.training - self.takes.training)

    @property
    def batch(self) -> int:
        """Rows of a step, at least one a lane."""
        return max(self.takes.batch, self.lanes)

    @property
    def weights(self) -> int:
        """Bytes of the weights, as they are updated and as they are summed."""
        return self.p * self.outputs * (self.itemsize + 8)

    # ---------------------------------------------------------------------------------- what going over rows takes

    @property
    def ids(self) -> int:
        """Bytes of hashing row ids."""
        return 40 * min(self.stored_rows, 1 << 20)  # row ids hashed at a time

    @cached_property
    def scan(self) -> int:
        """Bytes of a sweep over the rows as they are before scaling."""
        widest = self.dataset._widest
        rows = min(scan_rows(widest), self.chunk_rows)
        return self.swept + self.slots * 3 * rows * (widest + self._values) * 8

    @property
    def sweeping(self) -> int:
        """Bytes of a sweep over all rows, with the most that a step of preprocessing learns from."""
        return self.scan + self.ids + self.learning_bytes

    @cached_property
    def gather(self) -> int:
        """Bytes of bringing a sample of the rows together."""
        row = self.dataset.n_features * self.itemsize + 8 * self._values
        rows = min(_GATHER_ROWS, self.chunk_rows)
        return self.swept + self.slots * 2 * rows * row

    @cached_property
    def evaluation(self) -> int:
        """Bytes of evaluating a model block by block."""
        rows = self.takes.evaluation + min(EVALUATION_BLOCK_ROWS, self.chunk_rows) * (self._row_read + 32)
        return self.swept + self.slots * rows

    @cached_property
    def scored(self) -> int:
        """Bytes of metrics: a sample of predictions, and ranks of outputs in the sums of an evaluation."""
        sums = sums_in_flight(self.slots, -(-self.stored_rows // EVALUATION_BLOCK_ROWS) or 1) + 2 * self.slots
        copies = 6  # of targets and outputs of a sample: in pieces, joined, and decoded
        details = copies * min(MAX_SAMPLED_ROWS, self.stored_rows) * self.outputs * 8
        return details + ranks_bytes(self.stored_rows, self.outputs) * sums

    @cached_property
    def calibrating(self) -> int:
        """Bytes of making probabilities or intervals; 0 for none."""
        if self.calibration is None:
            return 0
        rows, row = min(self.stored_rows, self.calibration.rows), self.dataset.n_features * self.itemsize
        held = calibration_bytes(self.calibration.task, rows, self.outputs, row)
        return self.takes.centers + self.weights + max(self.gather, self.evaluation) + held

    @cached_property
    def searching(self) -> int:
        """Bytes of the search for a kernel or a metric; 0 for none."""
        if self.search is None:
            return 0
        return self.gather + self.ids + int(self.search.cost_estimate(self.size, self.dataset.base_rows).memory)

    # -------------------------------------------------------------------------------------------------- streamed steps

    @cached_property
    def _group(self) -> int:
        """Rows of the chunks that are mixed, as ``Problem.mix_chunks`` and ``Stream`` choose them."""
        mix = MIX_CHUNKS if self.fits_memory else MIX_BYTES // ((self.lanes + 1) * self.chunk_rows * self.stored_row)
        return min(self.stored_rows, max(1, mix) * self.chunk_rows)

    @property
    def _walked(self) -> int:
        return min(self.lanes, -(-self.stored_rows // self._group)) + 1 if self._group else 1

    @property
    def needed(self) -> int:
        """Bytes of the chunks that are best kept: all of few rows, or those that lanes go through."""
        rows = self.stored_rows if self.fits_memory else min(self._walked * self._group, self.stored_rows)
        return rows * self._row_read

    @cached_property
    def streaming(self) -> int:
        """Bytes of blocks of the steps ahead and of the one being made; of raw windows; of the order of the rows."""
        step = self.batch * row_bytes(self.dataset.n_features, self.itemsize, self._values)
        window = 8  # blocks of a window of the stream
        windows = (self.lanes + 1) * window * -(-self.batch // self.lanes) * (self._row_read + 32)
        ordering = 2  # numbers for each row of a group while its order is made
        return ahead_bytes(step) + windows + 8 * (ORDER_ROWS + (self._walked + ordering) * self._group)

    @cached_property
    def transforming(self) -> int:
        """Bytes of each thread's rows before and after the widest of the transforms."""
        if not self.dataset.transforms:
            return 0
        longest = min(max(_GATHER_ROWS, EVALUATION_BLOCK_ROWS, -(-self.batch // self.lanes)), self.chunk_rows)
        return 2 * longest * self.dataset._widest * 8

    @cached_property
    def held(self) -> int:
        """Bytes resident before the run, with those that libraries and threads add."""
        threads = self.slots * (THREAD_BYTES + self.transforming)
        return self.baseline + LIBRARY_BYTES + threads + self.dataset._held_bytes(self.itemsize, self.outputs)

    @cached_property
    def measuring(self) -> int:
        """Bytes of measuring, on rows that are gathered, what is left to learn, beside the weights of the best pass."""
        best = self.validate * self.weights
        return self.gather + self.ids + self.takes.residual + best if self.takes.residual else 0

    @cached_property
    def _steps(self) -> int:
        reading = self.swept if self.takes.sweeps else self.read(1)
        validating = self.evaluation + self.takes.centers + self.weights if self.validate else 0
        return self.takes.training + reading + self.streaming + validating

    @cached_property
    def cache(self) -> int:
        """Bytes of stored chunks that are kept in memory."""
        if self.dataset.source.in_memory:
            return max(self.needed, self.stored_bytes) if self.fits_memory else min(self.needed, self.stored_bytes - 1)
        # Elsewhere it does not decide the weights, and what the budget does not hold is read again.
        least = min(self.needed, (self._walked + 1) * self.chunk_rows * self._row_read)
        training = max(self._steps + (self.extra if self.spare else 0), self.measuring)
        cache = int(np.clip(self.budget - self.held - training, least, self.needed))
        return max(cache, self.stored_bytes) if self.fits_memory else min(cache, self.stored_bytes - 1)

    @cached_property
    def training(self) -> int:
        """Bytes of training in one process, with the chunks that are kept."""
        cached = 0
        if not self.dataset.source.in_memory:  # a chunk that is kept and read is one
            ahead = min(2, len(self._chunks)) * self.chunk_rows * self._row_read
            cached = self.cache if self.takes.sweeps else min(self.cache, self.stored_rows * self._row_read - ahead)
        return max(self._steps + cached, self.measuring + self.cache)

    # ------------------------------------------------------------------------------------------------ worker processes

    @cached_property
    def worker_parts(self) -> dict[str, int]:
        """Bytes of a worker process, which has all centers, by name; and of a thread there."""
        # A worker has the lanes' blocks or tiles of the set-up: a copy of the work, messages, and what a thread holds.
        takes, rows = self.takes, row_bytes(self.dataset.n_features, self.itemsize, self._values) * self.batch
        thread = THREAD_BYTES + self.transforming + takes.block + self.read(1) + self.lanes * takes.sums + rows
        return {
            "centers": 3 * takes.centers, "weights": 2 * takes.state,
            "rows": self.streaming + self.needed + self.ids, "thread": thread,
        }  # fmt: skip
