"""Base of the solvers: the problem, iterations, and failure as a value with a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from streamkern.calibration.held_out import LeftOut, alike
from streamkern.centers import CenterSet
from streamkern.data.dataset import Dataset
from streamkern.data.device import placed
from streamkern.data.extra_blocks import AllTiles, RecentBlocks
from streamkern.data.importance_order import Draws
from streamkern.data.split import HASH_SPAN
from streamkern.data.stream import Assembly, Block, Key, Scan, Stream
from streamkern.data.targets import Encoding
from streamkern.engine import Engine, default_engine
from streamkern.engine.gpu.protocol import BLOCK_ROWS
from streamkern.errors import UsageError
from streamkern.execute.base import Executor, KeptShares, Parts, Position, SharedWork, Stack, Tile
from streamkern.kernels import Basis, Expansion, FeatureMap, Kernel, StreamedExpansion, mean_row
from streamkern.rng import row_hash
from streamkern.sweep import Companions, Contribute, Contribution, ScanWork, gathered, sweep
from streamkern.types import Array, IntArray, Parameters

HELD_OUT = 2000
"""Rows, at most, that the spectrum of an iteration is measured on."""

LARGEST_BLOCK = 1024
"""Rows beyond which a block gains no rate on a processor, and costs memory."""

STEPS_AHEAD, MOST_STEPS_AHEAD, BYTES_AHEAD = 2, 32, 4 << 20
"""Steps whose blocks are read while one is computed: at least, at most, and bytes up to which there are more."""

MIX_BYTES = 64 << 20
"""Stored rows that lanes read side by side where not every chunk stays in memory."""

MIX_CHUNKS = 256
"""Chunks shuffled among each other at most: a window gathers its rows from that many places."""

_DRAW = 0x776569  # name of the draw of rows by weight


def row_bytes(d: int, itemsize: int, values: int = 1) -> int:
    """Bytes of a row as solvers see it: features, ``values`` of a target in float64, and id."""
    return d * itemsize + 16 + 8 * values


def steps_ahead(batch: int, width: int) -> int:
    """Steps that are read ahead: where rows are narrow, one takes less time than the chunks that the next one begins.

    Args:
        batch: rows of a step.
        width: bytes of a row, see ``row_bytes``.
    """
    return max(STEPS_AHEAD, min(MOST_STEPS_AHEAD, BYTES_AHEAD // max(1, batch * width)))


def ahead_bytes(step: int) -> int:
    """Bytes of the blocks of the steps ahead, at most, and of the one being made, for ``step`` bytes of a step."""
    return max(STEPS_AHEAD * step, BYTES_AHEAD) + step


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything a solver needs to know.

    Attributes:
        train: rows to fit.
        encoding: how targets become numbers.
        kernel: the kernel.
        centers: Z.
        executor: where blocks run.
        dtype: of the streaming arithmetic.
        seed: of the order of rows.
        lanes: blocks of a step.
        memory: bytes the solver may use for its own matrices; None for no bound.
        better_budget: budget in bytes from which a better solve is tried where rounding spoils the first, such as
            Direct's second sweep; 0 where the budget is enough.
        cache_bytes: bytes of stored chunks that stay in memory.
        validation: rows that choose the best pass, and to stop early on, or None.
        features: the feature map; None for kernel values at centers.
        mean_weight: mean of the training rows' sample weights, which solvers see divided by it.
        largest_weight: the largest of them, divided by it.
        engine: where heavy arithmetic runs, bound to the executor; by default the one of the CPU.
        leave_out: training rows, at most, whose outputs, each row left out, are wanted of solvers that have them in
            closed form; 0 for none.
        share: whether the centers may be shared out over workers; the weights are the same.
        evaluates_here: whether models are evaluated in this process, as no worker may hold all centers.
        every_row: whether the centers are drawn, and all training rows, each once, as they are stored.
        device_rest: bytes of a device that stored rows may take, to stay there.
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
    leave_out: int = 0
    share: bool = True
    evaluates_here: bool = False
    every_row: bool = False
    device_rest: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine", self.engine.bound(self.executor))

    @property
    def largest_block(self) -> int:
        """Most rows of a step's block, unless the batch is given."""
        return BLOCK_ROWS if self.engine.keeps_state else LARGEST_BLOCK

    @property
    def shares_out(self) -> bool:
        """True if there are workers to share centers out over."""
        return self.share and self.executor.processes > 0

    @property
    def center(self) -> Array:
        """The center of rows and centers, shape (d,): the mean of Z if the basis is translation invariant, else 0."""
        Z = self.centers.Z
        if not (self.features or self.kernel).translation_invariant or not len(Z):
            return np.zeros(Z.shape[1], dtype=self.dtype)
        return np.asarray(mean_row(Z), dtype=self.dtype)

    def expansion(self) -> Expansion:
        """The kernel against the centred centers."""
        return Expansion(self.kernel, self._held() - self.center, self.engine)

    def basis(self) -> Basis:
        """The functions that the model is linear in: features, or kernel values at centers."""
        if self.features is None:
            return self.expansion()
        Z = self._held()
        basis = self.features.basis(Z.shape[1], self.dtype, Z if self.features.needs_centers else None, self.center)
        basis.engine = self.engine
        return basis

    def predictor(self) -> Basis:
        """The basis to predict with, which may be wider than memory holds."""
        Z = self.centers.Z
        if isinstance(Z, np.ndarray) or self.features is not None:
            return self.basis()
        return StreamedExpansion(self.kernel, Z, self.center)

    def _held(self) -> Array:
        """The centers in memory.

        Raises:
            UsageError: they stay where they are stored.
        """
        if not isinstance(self.centers.Z, np.ndarray):
            raise UsageError(
                "The centers are all rows and stay in their files, which this solver does not support.",
                where="centers=AllRows()",
                expected="EigenPro2, without features",
                remedy="use EigenPro2, or centers in memory, such as Uniform(p)",
            )
        return np.asarray(self.centers.Z, dtype=self.dtype)

    def assembly(self, dataset: Dataset) -> Assembly:
        """Rows of a dataset as the expansion wants them."""
        return Assembly(dataset, self.encoding, self.center, self.dtype, mean_weight=self.mean_weight)

    def stream(self, batch: int, replacement: bool = False, chances: Array | None = None) -> Stream:
        """The order of the training rows, in steps of ``batch`` rows.

        Args:
            batch: rows of a step.
            replacement: whether rows are drawn with replacement.
            chances: of the stored rows, where each is drawn with one of its own.
        """
        stream = Stream(
            placed(self.assembly(self.train), self.engine.device, self.device_rest, self.cache_bytes),
            lanes=self.lanes,
            block_rows=max(1, batch // self.lanes),
            run_rows=1,
            mix_chunks=self.mix_chunks,
            seed=self.seed,
            cache_bytes=self.cache_bytes,
            replacement=replacement,
        )
        return stream if chances is None else Draws.instead_of(stream, chances)

    def all_tiles(self, stream: Stream, rows: int) -> AllTiles:
        """All training rows in tiles, read independently of the stream's rows."""
        return AllTiles(stream, rows)

    def recent_blocks(self, stream: Stream, keys: Callable[[Any], Iterable[Key]]) -> Companions:
        """Earlier blocks of a stream, by the keys that a state names."""
        return RecentBlocks(stream, keys)

    def draw(self, count: int, *key: int) -> IntArray:
        """Ids of that many training rows at most, drawn by hashes of the ids; of another draw for another key."""
        return self.train.draw(min(count, self.train.base_rows), *key)

    def held_out(self) -> IntArray:
        """Ids of rows to measure on: training rows that are not centers, or any where nearly all are."""
        if self.centers.ids is None:
            return self.draw(HELD_OUT)
        drawn = self.draw(len(self.centers.Z) + HELD_OUT)
        rest = drawn[~np.isin(drawn, self.centers.ids)][:HELD_OUT]  # in the draw's order: sorted ids may be sorted data
        return rest if len(rest) >= min(64, max(1, self.train.base_rows // 4)) else drawn[:HELD_OUT]

    def rows(self, ids: IntArray) -> tuple[Array, Array | None]:
        """Training rows by id, as the basis wants them, shape (k, d), and their sample weights, if they have some."""
        X, _, w = gathered(self.executor, self.assembly(self.train), ids)
        return X, w

    def full_rows(self, ids: IntArray, data: Dataset | None = None) -> tuple[Array, Array, Array | None]:
        """Rows by id of the training rows, or of ``data``: features, encoded targets, and sample weights."""
        X, y, w = gathered(self.executor, self.assembly(data or self.train), ids)
        assert y is not None
        return X, y, w

    def drawn_by_weight(self, count: int) -> tuple[IntArray, Array]:
        """Draw about ``count`` stored rows, each with a chance in proportion to its sample weight, and all centers.

        A row of weight w of mean 1 is drawn with the chance π = min(1, w count/n), by a hash of its id, and stands for
        w/π: sums over the drawn rows are unbiased, and no row of large weight is missed. Centers have π = 1. One sweep.

        Returns:
            Ids in stored order, and w/π, each of shape (k,).
        """
        data = self.train.plain()
        (pieces,) = self.sweep(_ByWeight(count / data.base_rows, self.centers.ids), None, data)
        ids, w = (np.concatenate([piece[k] for piece in pieces]) for k in (0, 1))
        return ids, w

    def by_features(self, X: Array, values: Array, w: Array | None) -> tuple[Array, Array, IntArray]:
        """Mean of values (n, c) and weight (n,) of the rows with each row's features; and numbers of those groups."""
        codes, first = alike(X)
        weight = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
        mass = np.bincount(codes, weights=weight)
        if len(first) == len(X):
            return values, weight, codes
        means = np.zeros((len(first), values.shape[1]))
        np.add.at(means, codes, values * weight[:, None])
        return (means / np.where(mass > 0, mass, 1.0)[:, None])[codes], mass[codes], codes

    def all_rows(self) -> tuple[IntArray, IntArray]:
        """Ids of the training rows, ascending, shape (n,), and where the rows that the centers are stand among them.

        Raises:
            UsageError: rows are augmented or repeated, or the centers are not all of them.
        """
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
        """Number of chunks whose rows are shuffled among each other: all, while the budget keeps every chunk in memory.

        Elsewhere a lane reads that many side by side, so their number is what ``MIX_BYTES`` holds for all lanes.
        """
        sizes = np.diff(self.train.source.bounds)
        row = self.train.source.n_features * self.train.source.dtype.itemsize
        if int(sizes.sum()) * row <= self.cache_bytes:
            return int(np.clip(len(sizes), 1, MIX_CHUNKS))
        return max(1, MIX_BYTES // ((self.lanes + 1) * int(sizes.max()) * row))


@dataclass(frozen=True)
class _ByWeight:
    """Contributes ids of the rows of a block that are drawn by weight, and the weights that they stand for.

    Args:
        share: of the rows, that is drawn of weights of 1.
        centers: ids of the rows that are centers, or None.
    """

    share: float
    centers: IntArray | None

    def __call__(self, block: Block, state: Any) -> Parts:
        assert block.w is not None
        chance = np.minimum(1.0, block.w * self.share)
        if self.centers is not None:
            chance[np.isin(block.ids, self.centers)] = 1.0
        taken = row_hash(block.ids, _DRAW) <= chance * float(HASH_SPAN)
        return (Stack(((block.ids[taken], block.w[taken] / chance[taken]),)),)


@dataclass(frozen=True)
class Failure:
    """The reason why an iteration ended without a solution, and the remedy.

    Attributes:
        kind: ``diverged``, ``non-finite`` or ``stagnated``.
        message: the finding.
        remedy: the change to make.
    """

    kind: str
    message: str
    remedy: str


Sweep = Callable[[Contribute, Any], Parts]
"""Sums a contribution over all training rows of a pass, under a state. Checkpoints hold the sums: change none."""


class Iteration(Protocol):
    """A solver set up for a problem. States are frozen and serializable: a step makes a new one, of new arrays.

    A pass is one call of ``begin``, which may sweep over all rows, and then the steps of the stream. A method of whole
    passes has no steps (``minibatches`` is False); one of minibatches alone leaves ``begin`` as it is.
    """

    @property
    def stream(self) -> Stream:
        """The order of the training rows."""

    @property
    def contribution(self) -> Contribution:
        """The contribution of a block of a step."""

    @property
    def companions(self) -> Companions | None:
        """Blocks that the contribution needs in addition to its own in a state; None if it needs no others."""

    @property
    def shared_work(self) -> SharedWork | None:
        """The work of a step where each worker holds a share of the centers; None where each holds all."""

    def constants(self, leaf: int) -> Any:
        """Values besides the state that the worker needs that holds a tile of centers, such as its rows of a factor."""

    def tiles(self, state: Any) -> KeptShares:
        """A state tile by tile."""

    def joined(self, steps: int, tiles: Sequence[Tile]) -> Any:
        """The state that ``tiles`` returned tile by tile, ``steps`` after the first one."""

    def in_order(self, tiles: Sequence[Array]) -> Array:
        """The solution in the order of the centers, shape (p, c), from that of each tile."""

    @property
    def cycle(self) -> int:
        """Steps after which a step's cost repeats itself: 1, except where a later step works on the sums of several."""

    @property
    def epochs(self) -> int:
        """Passes, at most."""

    @property
    def report(self) -> dict[str, Any]:
        """Findings of the setup, JSON-serialisable."""

    @property
    def prepared(self) -> Any:
        """The result of ``Solver.prepare``: a serializable value."""

    @property
    def minibatches(self) -> bool:
        """True if a pass has steps."""

    @property
    def sweeps(self) -> int:
        """Times that ``begin`` goes over all rows in a pass."""

    def init(self) -> Any:
        """The state before the first step."""

    def begin(self, state: Any, pass_: int, sweep: Sweep) -> Any:
        """The state before the steps of a pass; the parts of its sweeps end with (Σ loss, rows)."""

    def finished(self, state: Any) -> Failure | bool:
        """Return True if the solution is reached before all passes are done; or the reason why it never will be."""

    def broadcast(self, state: Any) -> Any:
        """The part of a state that the lanes need."""

    def update(self, state: Any, parts: Parts, position: Position) -> Any:
        """The state after a step whose lanes contributed ``parts``; parts end with (Σ loss, rows)."""

    def settle(self, state: Any) -> Any:
        """The state with nothing pending, as at the end of training."""

    def kept(self, state: Any) -> Any:
        """Return a state as checkpoints keep it: with all arrays in the memory of the process."""

    def weights(self, state: Any) -> Array:
        """Return the weights of a state, shape (p, c)."""

    def slower(self) -> Any:
        """Return ``prepared`` with a smaller step, for a new start after training diverged; None to give up."""

    def left_out(self, state: Any) -> LeftOut | None:
        """Outputs on training rows, each as if it had been left out; None where the method has no closed form."""

    def sums(self, state: Any) -> Any:
        """Sums over all rows, which rows can be added to and taken from, see ``solvers.direct``; or None."""


class OneByOne:
    """Defaults of an iteration in minibatches, which sweeps over no whole pass."""

    minibatches = True
    sweeps = 0
    cycle = 1
    companions: Companions | None = None

    @property
    def shared_work(self) -> SharedWork | None:
        """No centers are shared out."""
        return None

    def constants(self, leaf: int) -> Any:
        """Never called: no centers are shared out."""

    def tiles(self, state: Any) -> KeptShares:
        """Never called."""
        raise NotImplementedError

    def joined(self, steps: int, tiles: Sequence[Tile]) -> Any:
        """Never called."""

    def in_order(self, tiles: Sequence[Array]) -> Array:
        """Never called."""
        raise NotImplementedError

    def begin(self, state: Any, pass_: int, sweep: Sweep) -> Any:
        """The state itself: nothing precedes the steps of a pass."""
        return state

    def finished(self, state: Any) -> Failure | bool:
        """Runs all its passes."""
        return False

    def settle(self, state: Any) -> Any:
        """The state itself: it has nothing pending."""
        return state

    def kept(self, state: Any) -> Any:
        """The state itself: its arrays are on the host."""
        return state

    def slower(self) -> Any:
        """None: there is no other step."""
        return None

    def left_out(self, state: Any) -> LeftOut | None:
        """None: outputs on rows that are left out are not known."""
        return None

    def sums(self, state: Any) -> Any:
        """No sums are kept."""
        return None


class WholePasses(OneByOne):
    """Defaults of an iteration in whole passes, which has no steps."""

    minibatches = False
    sweeps = 1

    def broadcast(self, state: Any) -> Any:
        """Never called."""
        return state

    def update(self, state: Any, parts: Parts, position: Position) -> Any:
        """Never called."""
        return state


class ChoosesNothing(Parameters):
    """A method that runs with the parameters it was given."""

    def choices(self, p: int, memory: int | None) -> tuple[str, tuple[str, ...]]:
        """Nothing."""
        return "", ()

    def smaller(self, p: int, memory: int | None) -> list[tuple[Any, str]]:
        """None."""
        return []


class Solver(Protocol):
    """Hyperparameters of a method; ``prepare`` does the work that precedes the first step."""

    @property
    def patience(self) -> int | None:
        """Passes without improvement on validation rows before training stops; None runs all."""

    def choices(self, p: int, memory: int | None) -> tuple[str, tuple[str, ...]]:
        """Return automatic choices of the method for p functions and a number of bytes: a word, and why in sentences.

        The word is part of a run's fingerprint; empty where nothing is chosen.
        """

    def smaller(self, p: int, memory: int | None) -> list[tuple[Any, str]]:
        """The same method with choices that need less memory, and the text to type for each."""

    def prepare(self, problem: Problem) -> Any:
        """Prepare the first step; return a serializable value, a function of the problem alone.

        Raises:
            NumericalError: it is impossible for this kernel and data.
        """

    def setup(self, problem: Problem, prepared: Any = None) -> Iteration:
        """Return the iteration on a prepared value; prepare it first if it is None.

        Raises:
            NumericalError: see ``prepare``.
        """

    def to_json(self) -> dict[str, Any]:
        """Name and parameters, for fingerprints and reports."""
