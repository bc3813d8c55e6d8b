"""The order of rows: a pure function of integers, cut into blocks that can be built from anywhere.

A pass is a sequence of rounds (copies). In each round the dataset's *runs* (chunks, or short runs of rows) are permuted,
and the rows, in that order, are dealt to the lanes in equal shares; a lane joins its shares of all rounds end to end,
shuffles row positions inside windows of a fixed number of rows, and cuts windows into blocks. Step t of a pass takes
block t of every lane. Nothing depends on how many workers there are, and block (pass, lane, t) needs no other block.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamkern.backends import get_backend
from streamkern.backends.base import Backend
from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.data.reader import Reader
from streamkern.data.split import Rule, count_chosen
from streamkern.data.targets import Encoding
from streamkern.errors import UsageError
from streamkern.rng import generator
from streamkern.types import Array, IntArray

Key = tuple[int, ...]
"""A block's name: (pass, lane, step) in a stream, (index,) in a scan."""


class Block(NamedTuple):
    """Rows ready for arithmetic.

    Attributes:
        X: scaled, augmented and shifted features, shape (b, d), float32 or float64.
        y: encoded targets: codes (b,) int64, values (b, c) float64, or None.
        ids: row ids, shape (b,), int64.
        key: the block's name.
    """

    X: Array
    y: Array | None
    ids: IntArray
    key: Key


class Raw(NamedTuple):
    """Rows as stored, before they are scaled and augmented; copies are their rounds."""

    X: Array
    y: Array | None
    ids: IntArray
    copies: IntArray


@dataclass(eq=False)
class Assembly:
    """From stored rows to arithmetic: gather, scale, augment, shift, encode.

    Args:
        dataset: gives scaling and augmentations.
        encoding: how targets become numbers; None leaves them out.
        center: subtracted from every row after augmentation, shape (d,) or a number.
        dtype: float32 or float64.
        backend: where the loops run.
    """

    dataset: Dataset
    encoding: Encoding | None = None
    center: float | Array = 0.0
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    backend: Backend = field(default_factory=get_backend)

    def build(self, raw: Raw, index: IntArray, key: Key, where: str) -> Block:
        """Rows ``index`` of ``raw`` as a block."""
        data = self.dataset
        ids, copies = raw.ids[index], raw.copies[index]
        X = np.empty((len(index), raw.X.shape[1]), dtype=self.dtype)
        augmentations = data.augmentations
        if X.dtype == np.float32:
            # Only noise commutes with the shift to the centre; anything else sees rows as the user scaled them.
            simple = all(isinstance(a, GaussianNoise) for a in augmentations)
            shift = data.shift - self.center if simple else data.shift
            if simple and augmentations:
                first = augmentations[0]
                assert isinstance(first, GaussianNoise)
                self.backend.assemble_noisy(
                    raw.X, index, X, scale=data.factor, offset=shift, row_ids=ids, copies=copies, seed=data.seed,
                    sigma=first.sigma,
                )  # fmt: skip
                augmentations = augmentations[1:]
            else:
                self.backend.assemble(raw.X, index, X, scale=data.factor, offset=shift)
        else:
            simple = False
            X[:] = raw.X[index]
            X *= data.factor
            X += data.shift
        for number, augmentation in enumerate(augmentations, start=len(data.augmentations) - len(augmentations)):
            augmentation.apply(X, ids, copies, data.seed + number, self.backend)
        if not simple and np.any(self.center):
            X -= np.asarray(self.center, dtype=self.dtype)
        y = None
        if self.encoding is not None and raw.y is not None:
            y = self.encoding.encode(raw.y[index], ids, where)
        return Block(X, y, ids, key)


@dataclass(eq=False)
class Stream:
    """The seekable order of blocks over a dataset.

    Args:
        assembly: the dataset and how its rows become numbers.
        lanes: how many blocks a step has; a property of the run, never of the cluster.
        block_rows: rows of a block; the last block of a lane may have fewer.
        window_blocks: blocks of a window: rows are shuffled within it.
        run_rows: longest run of neighbouring rows that stays together until the window; None for whole chunks.
        seed: seed of the order.
        cache_bytes: bytes of stored chunks kept in memory by each process.

    Raises:
        UsageError: a size is below 1.
    """

    assembly: Assembly
    lanes: int
    block_rows: int
    window_blocks: int = 8
    run_rows: int | None = None
    seed: int = 0
    cache_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in ("lanes", "block_rows", "window_blocks", "run_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}.", where=f"Stream({name}=...)", expected="at least 1")
        data = self.assembly.dataset
        self._starts, self._stops = _runs(data.source.bounds, self.run_rows)
        self._full = _Round(data.rules, count_chosen(data.rules, self._starts, self._stops))
        rest = data.last_round
        self._rest = _Round(rest, count_chosen(rest, self._starts, self._stops)) if rest else None
        self._reset()

    def _reset(self) -> None:
        self.reader = Reader(self.assembly.dataset, self.cache_bytes)
        self._lock = threading.Lock()
        self._orders: OrderedDict[Key, _Order] = OrderedDict()
        self._windows: dict[int, tuple[Key, Raw, IntArray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Caches stay behind: a worker fills its own.
        return {k: v for k, v in self.__dict__.items() if k not in ("reader", "_lock", "_orders", "_windows")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def batch_rows(self) -> int:
        """Rows of a full step: lanes times block rows."""
        return self.lanes * self.block_rows

    @property
    def rows(self) -> int:
        """Rows of a pass."""
        return len(self.assembly.dataset)

    def lane_rows(self, lane: int) -> int:
        """Rows that a lane sees in a pass."""
        rest = self._share(self._rest.rows, lane) if self._rest else (0, 0)
        full = self._share(self._full.rows, lane)
        return self.assembly.dataset.full_rounds * (full[1] - full[0]) + rest[1] - rest[0]

    @property
    def steps(self) -> int:
        """Steps of a pass."""
        return max(-(-self.lane_rows(lane) // self.block_rows) for lane in range(self.lanes))

    def step_rows(self, step: int) -> int:
        """Rows of one step of a pass, over all lanes."""
        start = step * self.block_rows
        return sum(int(np.clip(self.lane_rows(lane) - start, 0, self.block_rows)) for lane in range(self.lanes))

    def block(self, key: Key) -> Block:
        """Build block (pass, lane, step); a lane that has run out gives a block of no rows."""
        pass_, lane, step = key
        window, position = divmod(step, self.window_blocks)
        raw, order = self._window(pass_, lane, window)
        index = order[position * self.block_rows : (position + 1) * self.block_rows]
        return self.assembly.build(raw, index, key, f"pass {pass_}, lane {lane}, step {step}")

    @property
    def window_bytes(self) -> int:
        """Bytes of the stored rows in one window, of which each lane holds one (and makes the next)."""
        data = self.assembly.dataset
        return self.window_blocks * self.block_rows * (data.n_features * data.source.dtype.itemsize + 32)

    def _share(self, rows: int, lane: int) -> tuple[int, int]:
        return rows * lane // self.lanes, rows * (lane + 1) // self.lanes

    def _window(self, pass_: int, lane: int, window: int) -> tuple[Raw, IntArray]:
        name = (pass_, lane, window)
        with self._lock:
            held = self._windows.get(lane)
        if held is not None and held[0] == name:
            return held[1], held[2]
        size = self.window_blocks * self.block_rows
        raw = self._gather(pass_, lane, window * size, min((window + 1) * size, self.lane_rows(lane)))
        order = generator("window", self.seed, *name).permutation(len(raw.ids))
        with self._lock:
            self._windows[lane] = (name, raw, order)
        return raw, order

    def _gather(self, pass_: int, lane: int, start: int, stop: int) -> Raw:
        """Stored rows at positions [start, stop) of a lane's pass."""
        n = max(0, stop - start)
        source = self.assembly.dataset.source
        X = np.empty((n, source.n_features), dtype=source.dtype)
        ids, copies = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        y: Array | None = None
        at = 0
        for piece in self._pieces(pass_, lane, start, stop):
            chunk = self.reader.chunk(int(np.searchsorted(source.bounds, self._starts[piece.run], side="right") - 1))
            local = self.reader.local_rows(piece.rules, int(self._starts[piece.run]), int(self._stops[piece.run]))
            if isinstance(local, slice):
                rows: slice | IntArray = slice(local.start + piece.start, local.start + piece.stop)
                numbers = np.arange(local.start + piece.start, local.start + piece.stop)
            else:
                rows = numbers = local[piece.start : piece.stop]
            end = at + piece.stop - piece.start
            X[at:end] = chunk.X[rows]
            ids[at:end] = numbers + chunk.first
            copies[at:end] = piece.round
            if chunk.y is not None:
                if y is None:
                    y = np.empty((n, *chunk.y.shape[1:]), dtype=chunk.y.dtype)
                elif chunk.y.dtype != y.dtype:
                    y = y.astype(np.promote_types(y.dtype, chunk.y.dtype))
                y[at:end] = chunk.y[rows]
            at = end
        return Raw(X, y, ids, copies)

    def _pieces(self, pass_: int, lane: int, start: int, stop: int) -> Iterator[_Piece]:
        """Runs, and rows within them, at positions [start, stop) of a lane's pass, in order."""
        first, last = self._share(self._full.rows, lane)
        length, full_rounds = last - first, self.assembly.dataset.full_rounds
        while start < stop:
            round_ = min(start // length, full_rounds) if length and full_rounds else 0
            spec, a = (self._full, first) if round_ < full_rounds else (self._rest, 0)
            assert spec is not None
            if spec is self._rest:
                a, _ = self._share(spec.rows, lane)
                end = stop
            else:
                end = min(stop, (round_ + 1) * length)
            offset = a - round_ * length
            yield from self._order(pass_, round_, spec).pieces(start + offset, end + offset, round_, spec.rules)
            start = end

    def _order(self, pass_: int, round_: int, spec: _Round) -> _Order:
        name = (pass_, round_)
        with self._lock:
            found = self._orders.get(name)
        if found is None:
            permutation = generator("runs", self.seed, *name).permutation(len(spec.counts))
            found = _Order(permutation, np.concatenate([[0], np.cumsum(spec.counts[permutation])]))
            with self._lock:
                self._orders[name] = found
                while len(self._orders) > 2 * self.lanes:  # lanes cross from one round to the next at about one time
                    self._orders.popitem(last=False)
        return found


class _Round(NamedTuple):
    """Which rows a round takes: the rules, and how many of each run."""

    rules: tuple[Rule, ...]
    counts: IntArray

    @property
    def rows(self) -> int:
        return int(self.counts.sum())


class _Piece(NamedTuple):
    """Chosen rows [start, stop) of a run, in a round."""

    run: int
    start: int
    stop: int
    round: int
    rules: tuple[Rule, ...]


class _Order(NamedTuple):
    """A round's permutation of runs, and the position at which each begins."""

    permutation: IntArray
    begins: IntArray

    def pieces(self, start: int, stop: int, round_: int, rules: tuple[Rule, ...]) -> Iterator[_Piece]:
        at = int(np.searchsorted(self.begins, start, side="right") - 1)
        while start < stop:
            begin, end = int(self.begins[at]), int(self.begins[at + 1])
            cut = min(stop, end)
            if cut > start:
                yield _Piece(int(self.permutation[at]), start - begin, cut - begin, round_, rules)
                start = cut
            at += 1


def _runs(bounds: IntArray, run_rows: int | None) -> tuple[IntArray, IntArray]:
    """First and past-the-last row of each run; a run lies in one chunk."""
    if run_rows is None:
        return bounds[:-1], bounds[1:]
    starts = [np.arange(a, b, run_rows, dtype=np.int64) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    cuts: NDArray[np.int64] = np.concatenate([*starts, bounds[-1:]])
    return cuts[:-1], cuts[1:]


@dataclass(eq=False)
class Scan:
    """All rows once, in stored order: what statistics, metrics and predictions sweep over.

    Blocks never cross a chunk. A round over copies repeats the blocks with the next copy number.

    Args:
        assembly: the dataset and how its rows become numbers.
        block_rows: most rows of a block.
        only: ascending row ids to take; blocks without any are left out. None for all.
    """

    assembly: Assembly
    block_rows: int = 4096
    only: IntArray | None = None

    def __post_init__(self) -> None:
        starts, stops = _runs(self.assembly.dataset.source.bounds, self.block_rows)
        if self.only is not None:
            hit = np.searchsorted(self.only, stops) > np.searchsorted(self.only, starts)
            starts, stops = starts[hit], stops[hit]
        self._starts, self._stops = starts, stops
        self._reset()

    def _reset(self) -> None:
        # Neighbouring blocks share a chunk, so the last few stay; more would only be memory.
        self.reader = Reader(self.assembly.dataset, cache_bytes=16 << 20)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "reader"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __len__(self) -> int:
        """Number of blocks."""
        data = self.assembly.dataset
        if self.only is not None:
            return len(self._starts)
        return len(self._starts) * (data.full_rounds + bool(data.last_round))

    def block(self, key: Key) -> Block:
        """Build block (index,)."""
        raw, where = self.raw(key)
        return self.assembly.build(raw, np.arange(len(raw.ids), dtype=np.int64), key, where)

    def raw(self, key: Key) -> tuple[Raw, str]:
        """Stored rows of block (index,), and where they lie in words."""
        data = self.assembly.dataset
        round_, at = divmod(key[0], len(self._starts))
        rules = data.rules if round_ < data.full_rounds or self.only is not None else data.last_round
        chunk_number = int(np.searchsorted(data.source.bounds, self._starts[at], side="right") - 1)
        chunk = self.reader.chunk(chunk_number)
        local = self.reader.local_rows(rules, int(self._starts[at]), int(self._stops[at]))
        if self.only is not None:
            first, last = np.searchsorted(self.only, [self._starts[at], self._stops[at]])
            local = self.only[first:last] - chunk.first
        index = np.arange(local.start, local.stop) if isinstance(local, slice) else local
        where = data.source.where(chunk_number)
        copies = np.full(len(index), round_, dtype=np.int64)
        y = None if chunk.y is None else chunk.y[local]
        return Raw(chunk.X[local], y, index + chunk.first, copies), where
