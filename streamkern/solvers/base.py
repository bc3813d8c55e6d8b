"""Base of the solvers: the problem, iterations, and failure as a value with a remedy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from streamkern.calibration.out_of_sample import OutOfSample, equal_rows
from streamkern.centers import CenterSet
from streamkern.cpu import default_engine
from streamkern.data.companion_blocks import AllTiles, RecentBlocks
from streamkern.data.dataset import Dataset
from streamkern.data.device_assembly import assembly_on_device
from streamkern.data.row_order import Assembly, Block, Key, Scan, Stream
from streamkern.data.row_selection import HASH_SPAN
from streamkern.data.targets import Encoding
from streamkern.defaults import (
    BYTES_AHEAD,
    HELD_OUT,
    MAX_BLOCK_ROWS,
    MAX_DEVICE_BLOCK_ROWS,
    MAX_STEPS_AHEAD,
    MIX_BYTES,
    MIX_CHUNKS,
    STEPS_AHEAD,
)
from streamkern.engine import Engine
from streamkern.errors import UsageError
from streamkern.execute.base import Executor, Parts, Position, Stack
from streamkern.kernels import Basis, Expansion, FeatureMap, Kernel, StreamedExpansion, mean_row
from streamkern.rng import HashFamily, row_hash
from streamkern.sweep import Contribute, Contribution, ExtraBlocks, ScanWork, gather_weighted, sweep
from streamkern.types import Array, IntArray, Parameters


def row_bytes(d: int, itemsize: int, values: int = 1) -> int:
    """Return the bytes of a row as solvers see it: features, id, and ``values`` numbers of a target in float64."""
    return d * itemsize + 16 + 8 * values


def steps_ahead(batch: int, width: int) -> int:
    """Return the number of steps whose blocks are read ahead, for rows of ``row_bytes`` ``width``.

    It is larger for narrow rows, of which a step takes less time than decoding the chunks that the next step begins.
    """
    return max(STEPS_AHEAD, min(MAX_STEPS_AHEAD, BYTES_AHEAD // max(1, batch * width)))


def ahead_bytes(step: int) -> int:
    """Return the bytes, at most, of the blocks read ahead and of the block that is being assembled."""
    return max(STEPS_AHEAD * step, BYTES_AHEAD) + step


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of a solver: rows, kernel, centers, budgets, and where to compute.

    Attributes:
        dtype: dtype of the streaming arithmetic.
        lanes: blocks of a step.
        memory: bytes the solver may use for its own matrices; None for no bound.
        better_budget: budget in bytes from which a better solve is tried if rounding spoils the first, such as Direct's
            second sweep; 0 if the budget is enough.
        cache_bytes: bytes of stored chunks that stay in memory.
        validation: rows that choose the best pass, and stop training early; or None.
        features: the feature map; None for kernel values at centers.
        mean_weight: mean of the training rows' sample weights, which ``largest_weight`` and all others are divided by.
        engine: where heavy arithmetic runs, bound to the executor; by default the engine of the CPU.
        held_out_rows: largest number of training rows whose leave-one-out outputs are requested from solvers that have
            a closed form; 0 for none.
        all_rows_are_centers: whether the centers are drawn, and are all training rows, each once, as they are stored.
        device_rest: bytes of a device that stored rows may take and keep.
    """

    train: Dataset
    encoding: Encoding
    kernel: Kernel
    centers: CenterSet
    executor: Executor
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    seed: int = 0
    lanes: int = 4
    memory: int | None = None
    better_budget: int = 0
    cache_bytes: int = 64 << 20
    validation: Dataset | None = None
    features: FeatureMap | None = None
    mean_weight: float = 1.0
    largest_weight: float = 1.0
    engine: Engine = field(default_factory=default_engine)
    held_out_rows: int = 0
    all_rows_are_centers: bool = False
    device_rest: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine", self.engine.bound(self.executor))

    @property
    def largest_block(self) -> int:
        """The largest number of rows of a step's block, unless the batch is given."""
        return MAX_DEVICE_BLOCK_ROWS if self.engine.keeps_state else MAX_BLOCK_ROWS

    @property
    def center(self) -> Array:
        """The center of rows and centers, shape (d,): the mean of Z if the basis is translation invariant, else 0."""
        Z = self.centers.Z
        if not (self.features or self.kernel).translation_invariant or not len(Z):
            return np.zeros(Z.shape[1], dtype=self.dtype)
        return np.asarray(mean_row(Z), dtype=self.dtype)

    def refuse_features(self, what: str, remedy: str = "leave features out") -> None:
        """Raise UsageError if the functions are not kernel values at centers."""
        if self.features is not None:
            raise UsageError(what, where="features", expected="features=None", remedy=remedy)

    def expansion(self) -> Expansion:
        """Return the kernel at the centred centers."""
        return Expansion(self.kernel, self._held() - self.center, self.engine)

    def basis(self) -> Basis:
        """Return the functions that the model is linear in: features, or kernel values at centers."""
        if self.features is None:
            return self.expansion()
        Z = self._held()
        basis = self.features.basis(Z.shape[1], self.dtype, Z if self.features.needs_centers else None, self.center)
        basis.engine = self.engine
        return basis

    def predictor(self) -> Basis:
        """Return the basis to predict with; its centers may be read from disk."""
        Z = self.centers.Z
        if isinstance(Z, np.ndarray) or self.features is not None:
            return self.basis()
        return StreamedExpansion(self.kernel, Z, self.center)

    def _held(self) -> Array:
        if not isinstance(self.centers.Z, np.ndarray):
            raise UsageError(
                "The centers are all rows and stay in their files, which this solver does not support.",
                where="centers=AllRows()",
                expected="EigenPro2, without features",
                remedy="use EigenPro2, or centers in memory, such as Uniform(p)",
            )
        return np.asarray(self.centers.Z, dtype=self.dtype)

    def assembly(self, dataset: Dataset) -> Assembly:
        """Return rows of a dataset as the basis takes them: centred, encoded, and in the problem's dtype."""
        return Assembly(dataset, self.encoding, self.center, self.dtype, mean_weight=self.mean_weight)

    def stream(self, batch: int, replacement: bool = False, chances: Array | None = None) -> Stream:
        """Return the order of the training rows, in steps of ``batch`` rows.

        ``chances`` are relative chances of the stored rows to be drawn; None stands for equal ones.
        """
        return Stream(
            assembly_on_device(self.assembly(self.train), self.engine.device, self.device_rest, self.cache_bytes),
            lanes=self.lanes, block_rows=max(1, batch // self.lanes), mix_chunks=self.mix_chunks, seed=self.seed,
            cache_bytes=self.cache_bytes, replacement=replacement, chances=chances,
        )  # fmt: skip

    def all_tiles(self, stream: Stream, rows: int) -> AllTiles:
        """Return all training rows in tiles of ``rows``, read independently of the stream's rows."""
        return AllTiles(stream, rows)

    def recent_blocks(self, stream: Stream, keys: Callable[[Any], Iterable[Key]]) -> ExtraBlocks:
        """Return earlier blocks of a stream, by the keys that a state names."""
        return RecentBlocks(stream, keys)

    def draw(self, count: int, *key: int) -> IntArray:
        """Return ids of at most ``count`` training rows, drawn by hashes of the ids; another key gives another draw."""
        return self.train.draw(min(count, self.train.base_rows), *key)

    def held_out(self) -> IntArray:
        """Return ids of rows to measure on: training rows that are no centers, or any rows if nearly all are."""
        if self.centers.ids is None:
            return self.draw(HELD_OUT)
        drawn = self.draw(len(self.centers.Z) + HELD_OUT)
        rest = drawn[~np.isin(drawn, self.centers.ids)][:HELD_OUT]  # in the draw's order: sorted ids may be sorted data
        return rest if len(rest) >= min(64, max(1, self.train.base_rows // 4)) else drawn[:HELD_OUT]

    def rows(self, ids: IntArray) -> tuple[Array, Array | None]:
        """Return training rows by id as the basis takes them, shape (k, d), and their sample weights or None."""
        X, _, w = gather_weighted(self.executor, self.assembly(self.train), ids)
        return X, w

    def full_rows(self, ids: IntArray, data: Dataset | None = None) -> tuple[Array, Array, Array | None]:
        """Return features, encoded targets and sample weights of rows by id, of the training rows or of ``data``."""
        X, y, w = gather_weighted(self.executor, self.assembly(data or self.train), ids)
        assert y is not None
        return X, y, w

    def drawn_by_weight(self, count: int) -> tuple[IntArray, Array]:
        """Draw about ``count`` stored rows, each with a chance in proportion to its sample weight, and all centers.

        A row of weight w of mean 1 is drawn with the chance π = min(1, w count/n), by a hash of its id, and stands for
        w/π: sums over the drawn rows are unbiased, and no row of large weight is missed. Centers have π = 1. Return ids
        in stored order, and w/π, each of shape (k,), after one sweep.
        """
        data = self.train.plain()
        (pieces,) = self.sweep(partial(_drawn_by_weight, count / data.base_rows, self.centers.ids), None, data)
        ids, w = (np.concatenate([piece[k] for piece in pieces]) for k in (0, 1))
        return ids, w

    def by_features(self, X: Array, values: Array, w: Array | None) -> tuple[Array, Array, IntArray]:
        """Return each row's mean of ``values`` (n, c) over rows of equal features, their weight (n,), and their number.

        X is (n, d), and w (n,) or None.
        """
        codes, first = equal_rows(X)
        weight = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
        mass = np.bincount(codes, weights=weight)
        if len(first) == len(X):
            return values, weight, codes
        means = np.zeros((len(first), values.shape[1]))
        np.add.at(means, codes, values * weight[:, None])
        return (means / np.where(mass > 0, mass, 1.0)[:, None])[codes], mass[codes], codes

    def all_rows(self) -> tuple[IntArray, IntArray]:
        """Return the ids of the training rows, ascending, shape (n,), and the position among them of each center."""
        data, centers = self.train, self.centers.ids
        if data.augmentations or len(data) != data.base_rows:
            raise UsageError(
                f"The {data.base_rows:,} stored rows are augmented or repeated, to {len(data):,} in a pass.",
                where="EigenPro2",
                expected="rows as they are stored: each has a weight",
                remedy="leave the augmentation out, or use EigenPro, whose centers are not the training rows",
            )
        rows = np.sort(data.draw(data.base_rows))
        if centers is None or not np.array_equal(np.sort(centers), rows):
            raise UsageError(
                f"The {len(self.centers.Z):,} centers are not the {len(rows):,} training rows.",
                where="EigenPro2",
                expected="every training row once",
                remedy="use centers=AllRows(), or EigenPro for fewer centers",
            )
        return rows, np.searchsorted(rows, centers)

    def sweep(self, contribution: Contribute, state: Any = None, data: Dataset | None = None) -> Parts:
        """Sum a contribution over all training rows, or over those of ``data``."""
        return sweep(self.executor, ScanWork(Scan(self.assembly(data or self.train)), contribution), state)

    @property
    def mix_chunks(self) -> int:
        """The number of chunks whose rows are shuffled together: all, if the budget keeps every chunk in memory.

        Otherwise a lane reads that many chunks in parallel, so their number is what ``MIX_BYTES`` allows for all lanes.
        """
        sizes = np.diff(self.train.source.bounds)
        row = self.train.source.n_features * self.train.source.dtype.itemsize
        if int(sizes.sum()) * row <= self.cache_bytes:
            return int(np.clip(len(sizes), 1, MIX_CHUNKS))
        return max(1, MIX_BYTES // ((self.lanes + 1) * int(sizes.max()) * row))


def _drawn_by_weight(share: float, centers: IntArray | None, block: Block, state: Any) -> Parts:
    """Contribute the ids of the rows of a block that are drawn by weight, and the weights that they stand for.

    ``share`` is the part of the rows that is drawn if all weights are 1; ``centers`` are always drawn.
    """
    assert block.w is not None
    chance = np.minimum(1.0, block.w * share)
    if centers is not None:
        chance[np.isin(block.ids, centers)] = 1.0
    taken = row_hash(block.ids, HashFamily.ROWS_BY_WEIGHT) <= chance * float(HASH_SPAN)
    return (Stack(((block.ids[taken], block.w[taken] / chance[taken]),)),)


@dataclass(frozen=True)
class Failure:
    """Why an iteration ended without a solution, of a ``kind`` "diverged" or "non-finite", and the remedy."""

    kind: str
    message: str
    remedy: str


Sweep = Callable[[Contribute, Any], Parts]
"""Sums a contribution over all training rows of a pass, under a state. Checkpoints hold the sums: change none."""


class Iteration(ABC):
    """A solver set up for a problem. States are frozen and serializable: a step makes a new state, of new arrays.

    A pass is one call of ``begin``, which may sweep over all rows, and then the steps of the stream. A method of full
    passes has no steps (``minibatches`` is False); a method of minibatches need not override ``begin``.

    Attributes:
        stream: the order of the training rows.
        contribution: the contribution of a block of a step.
        epochs: the largest number of passes.
        report: measurements of the setup, JSON-serialisable.
        prepared: the result of ``Solver.prepare``: a serializable value.
        minibatches: whether a pass has steps.
        sweeps: the number of times that ``begin`` goes over all rows in a pass.
        takes_back: whether a step that raises the loss is taken back, so that a large loss is no divergence.
        cycle: the number of steps after which a step's cost repeats: 1, unless some steps work on the sums of several.
        extra_blocks: blocks that the contribution needs in addition to its own in a state; None if it needs no others.
    """

    stream: Stream
    contribution: Contribution
    epochs: int
    report: dict[str, Any]
    prepared: Any
    minibatches = True
    sweeps = 0
    takes_back = False
    cycle: int = 1
    extra_blocks: ExtraBlocks | None = None

    @abstractmethod
    def init(self) -> Any:
        """Return the state before the first step."""

    def begin(self, state: Any, pass_: int, sweep: Sweep) -> Any:
        """Return the state before the steps of a pass. The parts of its sweeps end with (Σ loss, rows)."""
        return state

    def finished(self, state: Any) -> Failure | bool:
        """Return True if the solution is reached before all passes are done, or the reason why it never will be."""
        return False

    def broadcast(self, state: Any) -> Any:
        """Return the part of a state that the lanes need."""
        return state

    def update(self, state: Any, parts: Parts, position: Position) -> Any:
        """Return the state after a step whose lanes contributed ``parts``, which end with (Σ loss, rows)."""
        return state

    def settle(self, state: Any) -> Any:
        """Return the state with nothing pending, as at the end of training."""
        return state

    def kept(self, state: Any) -> Any:
        """Return the state that checkpoints save: all arrays are in the memory of the process."""
        return state

    @abstractmethod
    def weights(self, state: Any) -> Array:
        """Return the weights of a state, shape (p, c)."""

    def with_halved_step(self) -> Any:
        """Return ``prepared`` with half the step, to restart after training diverged; None to give up."""
        return None

    def out_of_sample(self, state: Any) -> OutOfSample | None:
        """Return outputs on training rows, each as if it had been left out; None if the method has no closed form."""
        return None

    def sums(self, state: Any) -> Any:
        """Return the sums over all rows that rows can be added to and subtracted from (``direct.Sums``), or None."""
        return None


class FullPassIteration(Iteration):
    """Defaults of an iteration in full passes, which has no steps."""

    minibatches = False
    sweeps = 1


class Traits(NamedTuple):
    """What a method declares of itself, as ``traits``, where it is not what most are.

    Attributes:
        one_pass: whether one pass solves least squares, and outputs with each row left out are known in closed form.
        ridge: whether it has a ridge λ, as ``ridge``.
        least_squares: whether it minimises squares; else its outputs are those of another loss, such as logits.
        calibrated: whether probabilities or intervals can be learned from its outputs.
        keeps_sums: whether its model keeps sums that rows can be added to.
        on_device: whether a device computes it.
    """

    one_pass: bool = False
    ridge: bool = False
    least_squares: bool = True
    calibrated: bool = True
    keeps_sums: bool = False
    on_device: bool = True


def traits_of(solver: Any) -> Traits:
    """What a solver declares of itself; of one that is not chosen yet, what most are."""
    found: Traits = getattr(solver, "traits", Traits())
    return found


class Solver(Parameters, ABC):
    """Hyperparameters of a method, a frozen dataclass; ``prepare`` does the work before the first step.

    Attributes:
        patience: passes without improvement on validation rows before training stops; None runs all.
    """

    patience: int | None

    @property
    def traits(self) -> Traits:
        """Properties of the method, such as whether it makes only one pass."""
        return Traits()

    def choices(self, p: int, memory: int | None) -> tuple[str, tuple[str, ...]]:
        """Return a text that names the automatic choices of the solver, and the reasons, a sentence for each choice.

        The text is part of the fingerprint, a hash that identifies a run. The text is empty if the solver chooses
        nothing. ``plan`` prints the reasons.

        Args:
            p: number of centers, or of features of a feature map.
            memory: memory budget of the solver in bytes; None for no limit.
        """
        return "", ()

    def smaller(self, p: int, memory: int | None) -> list[tuple[Any, str]]:
        """Return solvers with settings that need less memory, each with a text that tells the user what to set."""
        return []

    @abstractmethod
    def prepare(self, problem: Problem) -> Any:
        """Prepare the first step; return a serializable value, a function of the problem alone.

        Raises:
            NumericalError: it is impossible for this kernel and data.
        """

    @abstractmethod
    def setup(self, problem: Problem, prepared: Any = None) -> Iteration:
        """Return the object that makes the training steps. If ``prepared`` is None, this method calls ``prepare``.

        Raises:
            NumericalError: the preparation is impossible for this kernel and data.
        """
