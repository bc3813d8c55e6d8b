"""The order of rows: a pure function of integers, cut into blocks that any process can build.

A pass is a sequence of rounds, one for each copy. In each round the chunks are permuted and taken in groups, the rows
of a group are permuted, and the rows, in that order, are dealt to the lanes in equal shares; a lane joins its shares of
all rounds end to end, shuffles row positions inside windows of a fixed number of rows, and cuts windows into blocks.
Step t of a pass takes block t of every lane. Nothing depends on how many workers there are, and block (pass, lane, t)
needs no other block.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from streamkern.cpu import default_engine
from streamkern.data.augment import GaussianNoise, MixUp
from streamkern.data.chunk_cache import CONCURRENT_READS, SCAN_CACHE_BYTES, CachedReader
from streamkern.data.dataset import Dataset
from streamkern.data.encoders import Lookup
from streamkern.data.row_selection import SelectionRule, count_selected, ranges, runs, selected_ids
from streamkern.data.targets import Encoding, as_values
from streamkern.engine.elementwise import Loops, wide
from streamkern.errors import require_counts
from streamkern.rng import generator
from streamkern.types import Array, IntArray, Rows

Key = tuple[int, ...]
"""A block's name: (pass, lane, step) in a stream, (index,) in a scan."""

SCAN_ROWS = 4096
"""Rows of a block of a whole-data sweep."""


def scan_rows(d: int) -> int:
    """Rows of a block of the sweep over stored rows, which goes through float64: about 16 MiB of them."""
    return int(np.clip((16 << 20) // (8 * d), 1, 4096))


class Block(NamedTuple):
    """Rows ready for arithmetic: X (b, d), float32 or float64; y codes (b,) int64 or values (b, c) float64; w (b,).

    Classes have values, too, if rows are mixed. ``unseen`` counts rows by column with a category not seen in training.
    """

    X: Array
    y: Array | None
    ids: IntArray
    key: Key
    w: Array | None = None
    unseen: Counter[str] = Counter()  # noqa: RUF012 - empty, and never changed


class RawRows(NamedTuple):
    """Rows as stored, before scaling and augmentation, with their rounds ``copies`` and sample weights ``w``.

    Of rows that are held, see ``Assembly.held``, X has all, of which ``ids`` are the positions.
    """

    X: Array
    y: Array | None
    ids: IntArray
    copies: IntArray
    w: Array | None = None


@dataclass(eq=False)
class Assembly:
    """Make blocks from stored rows: gather, transform, scale, augment, shift, encode.

    The ``center``, a number or shape (d,), is subtracted after augmentation, in addition to the dataset's origin.
    Sample weights are divided by ``mean_weight``. Without an encoding, targets are left out.
    """

    dataset: Dataset
    encoding: Encoding | None = None
    center: float | Array = 0.0
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    loops: Loops = field(default_factory=lambda: default_engine().loops)
    mean_weight: float = 1.0

    def __post_init__(self) -> None:
        self._banks: dict[int, Rows] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        # Not pickled: a worker reads its own banks.
        return {k: v for k, v in self.__dict__.items() if k not in ("_banks", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def build(self, raw: RawRows, index: IntArray, key: Key, where: str, lookup: Lookup | None = None) -> Block:
        """Return rows ``index`` of ``raw`` as a block; ``lookup`` counts categories that training did not see."""
        data = self.dataset
        lookup = Lookup(data.source) if lookup is None else lookup
        ids, copies = raw.ids[index], raw.copies[index]
        rows, order = self.stored(raw.X, index)
        if data.transforms:
            rows, order = self.transformed(rows[order], ids, where, lookup), np.arange(len(index), dtype=np.int64)
        augmentations = data.augmentations
        # Only noise commutes with the shift to the center; other augmentations need rows as the user scaled them.
        simple = self.dtype == np.float32 and all(isinstance(a, GaussianNoise) for a in augmentations)
        away = not simple and bool(np.any(data.origin))
        X = np.empty((len(index), data.n_features), dtype=np.float64 if away else self.dtype)
        shift = data.shift - data.origin - self.center if simple else data.shift
        if X.dtype == np.float32:
            first = augmentations[0] if augmentations else None
            if isinstance(first, GaussianNoise):
                self.loops.assemble_noisy(
                    rows, order, X, scale=data.factor, offset=shift, row_ids=ids, copies=copies, seed=data.seed,
                    sigma=first.sigma,
                )  # fmt: skip
                augmentations = augmentations[1:]
            else:
                self.loops.assemble(rows, order, X, scale=data.factor, offset=shift)
        else:
            X[:] = rows[order]
            X *= data.factor
            X += shift
        y = None
        if self.encoding is not None and raw.y is not None:
            y = self.encoding.encode(raw.y[index], ids, where)
        for number, augmentation in enumerate(augmentations, start=len(data.augmentations) - len(augmentations)):
            seed = data.seed + number
            if isinstance(augmentation, MixUp):
                if y is not None and self.encoding is not None:
                    y = as_values(y, self.encoding.outputs)
                y = augmentation.mix(X, y, ids, copies, seed, self._bank(number))
            else:
                augmentation.apply(X, ids, copies, seed, self.loops)
        if away:
            X = np.subtract(X, data.origin + self.center).astype(self.dtype)
        elif not simple and np.any(self.center):
            X -= np.asarray(self.center, dtype=self.dtype)
        return Block(X, y, ids, key, None if raw.w is None else raw.w[index] / self.mean_weight, lookup.unseen)

    def held(self) -> Rows | None:
        """Return all stored rows, X on a device, if they stay there to make blocks; None if their chunks are read."""
        return None

    def stored(self, X: Array, index: IntArray) -> tuple[Array, IntArray]:
        """Return an array with rows ``index`` of X in the dataset's precision, and their positions in it."""
        taken = self.dataset._takes_float64
        if wide(X.dtype) == taken or self.dtype == np.float64:
            return X, index
        with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite, and finite_rows finds it
            return X[index].astype(np.float64 if taken else np.float32), np.arange(len(index), dtype=np.int64)

    def transformed(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        """Apply the dataset's transforms to stored rows (b, n_stored); returns shape (b, d), float32 or float64."""
        dtype = np.float64 if self.dataset._takes_float64 else self.dtype
        lookup = Lookup(self.dataset.source) if lookup is None else lookup
        X = np.array(X, dtype=dtype)
        for transform in self.dataset.transforms:
            X = transform.apply(X, ids, where, lookup)
        return X

    def _bank(self, number: int) -> Rows:
        with self._lock:
            if number not in self._banks:
                data = self.dataset
                ids, (X, y, _) = data._bank(number)
                raw, every = RawRows(X, y, ids, np.zeros_like(ids)), np.arange(len(ids), dtype=np.int64)
                dtype = np.dtype(np.float64) if np.any(data.origin) else self.dtype
                plain = replace(self, dataset=data.plain()._relative_to(0.0), center=0.0, dtype=dtype)
                block = plain.build(raw, every, (), f"the rows that MixUp draws from {data.source.where(0)}")
                targets = block.y
                if targets is not None and self.encoding is not None:
                    targets = as_values(targets, self.encoding.outputs)
                self._banks[number] = Rows(block.X, targets)
            return self._banks[number]


@dataclass(eq=False)
class Stream:
    """The seekable order of blocks over a dataset.

    ``lanes``, the blocks of a step, are a property of the run, never of the cluster. Rows are shuffled within a window,
    and gathered from their chunks together; before, the rows of ``mix_chunks`` chunks (None: of all) are shuffled
    together: a lane reads that many concurrently, and its order takes 8 bytes for each of their rows. With
    ``replacement`` a pass has the same number of rows, but some are missing and others repeated. With ``chances``
    (source rows,), relative and 0 for never, each row is drawn by them. ``cache_bytes`` are of stored chunks, in each
    process.
    """

    assembly: Assembly
    lanes: int
    block_rows: int
    window_blocks: int = 8
    seed: int = 0
    cache_bytes: int = 64 << 20
    mix_chunks: int | None = None
    replacement: bool = False
    chances: Array | None = None

    def __post_init__(self) -> None:
        require_counts(self, lanes=1, block_rows=1, window_blocks=1, mix_chunks=1)
        data = self.assembly.dataset
        bounds = data.source.bounds
        self._full = _Round(data.rules, data.counts, data.base_rows)
        rest = data._last_round
        counts = count_selected(rest, bounds[:-1], bounds[1:]) if rest else np.zeros(len(bounds) - 1, dtype=np.int64)
        self._rest = _Round(rest, counts, int(counts.sum()))
        self._group_chunks = self.mix_chunks or max(1, len(bounds) - 1)
        self._reset()

    def _reset(self) -> None:
        self.reader = CachedReader(self.assembly.dataset, self.cache_bytes)
        self.reader.wanted = [set()] * self.lanes
        sizes = np.diff(self.assembly.dataset.source.bounds)
        largest = int(np.sort(sizes)[-self._group_chunks :].sum())
        # Lanes advance together, each in its own group, and may span the end of one group or round and the next.
        walked = min(self.lanes, -(-len(sizes) // self._group_chunks)) + 1
        self._orders: _RecentArrays = _RecentArrays(ORDER_ROWS + walked * largest)
        self._lock = threading.Lock()
        self._windows: dict[int, tuple[Key, RawRows, IntArray]] = {}
        self._ends = None if self.chances is None else np.cumsum(self.chances)

    def __getstate__(self) -> dict[str, Any]:
        # Not pickled: a worker fills its own caches.
        return {k: v for k, v in self.__dict__.items() if k not in ("reader", "_lock", "_orders", "_windows", "_ends")}

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
        """Return the number of rows of a lane in a pass."""
        full, rest = self._share(self._full, lane), self._share(self._rest, lane)
        return self.assembly.dataset._full_rounds * (full[1] - full[0]) + rest[1] - rest[0]

    @property
    def steps(self) -> int:
        """Steps of a pass."""
        return max(-(-self.lane_rows(lane) // self.block_rows) for lane in range(self.lanes))

    def block(self, key: Key) -> Block:
        """Build block (pass, lane, step); the block of an exhausted lane has no rows."""
        pass_, lane, step = key
        window, position = divmod(step, self.window_blocks)
        raw, order = self._window(pass_, lane, window)
        index = order[position * self.block_rows : (position + 1) * self.block_rows]
        return self.assembly.build(raw, index, key, f"pass {pass_}, lane {lane}, step {step}")

    def _share(self, spec: _Round, lane: int) -> tuple[int, int]:
        return spec.rows * lane // self.lanes, spec.rows * (lane + 1) // self.lanes

    def _window(self, pass_: int, lane: int, window: int) -> tuple[RawRows, IntArray]:
        name = (pass_, lane, window)
        with self._lock:
            held = self._windows.get(lane)
        if held is not None and held[0] == name:
            return held[1], held[2]
        size = self.window_blocks * self.block_rows
        stop = min((window + 1) * size, self.lane_rows(lane))
        ids, copies, self.reader.wanted[lane] = self._rows(pass_, lane, window * size, stop)
        if self.reader.remote:
            chunks = np.searchsorted(self.assembly.dataset.source.bounds, ids, side="right") - 1
            self.reader.ahead(dict.fromkeys(chunks.tolist()))
        raw = self._gather(ids, copies)
        order = generator("window", self.seed, *name).permutation(len(raw.ids))
        with self._lock:
            self._windows[lane] = (name, raw, order)
        return raw, order

    def _gather(self, ids: IntArray, copies: IntArray) -> RawRows:
        """Neighbours in ``ids`` from the same chunk are copied together."""
        held = self.assembly.held()
        if held is not None:
            y, w = (None if values is None else values[ids] for values in (held.y, held.w))
            return RawRows(held.X, y, ids, copies, w)
        source = self.assembly.dataset.source
        X = np.empty((len(ids), source.n_features), dtype=source.dtype)
        target = source.target
        targets = [] if target is None else [np.empty((0, *target.outputs), dtype=target.dtype)]
        weights = [np.empty(0)] if self.assembly.dataset.weighted else []
        chunks = np.searchsorted(source.bounds, ids, side="right") - 1
        cuts = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(ids)]
        for start, stop in pairwise(cuts if len(ids) else []):
            chunk = self.reader.chunk(int(chunks[start]))
            local = ids[start:stop] - chunk.first
            np.take(chunk.X, local, axis=0, out=X[start:stop], mode="clip")  # mode="raise" would copy twice
            if chunk.y is not None:
                targets.append(chunk.y[local])
            if chunk.w is not None:
                weights.append(chunk.w[local])
        y, w = (np.concatenate(values) if values else None for values in (targets, weights))
        return RawRows(X, y, ids, copies, w)

    def _rows(self, pass_: int, lane: int, start: int, stop: int) -> tuple[IntArray, IntArray, set[int]]:
        """Row ids and rounds at positions [start, stop) of a lane's pass, and the last row's group of chunks."""
        if self._ends is not None:
            random = generator("draws", self.seed, pass_, lane, start)
            drawn = np.searchsorted(self._ends, random.random(stop - start) * self._ends[-1], side="right")
            return np.sort(drawn), random.integers(self.assembly.dataset._full_rounds, size=stop - start), set()
        first, last = self._share(self._full, lane)
        length, full_rounds = last - first, self.assembly.dataset._full_rounds
        ids: list[IntArray] = [np.empty(0, dtype=np.int64)]
        rounds, wanted = [0], set[int]()
        while start < stop:
            if start < full_rounds * length:
                spec, round_ = self._full, start // length
                a = first + start - round_ * length
                b = min(a + stop - start, last)
            else:
                spec, round_ = self._rest, full_rounds
                a = self._share(spec, lane)[0] + start - full_rounds * length
                b = a + stop - start
            part, wanted = self._between(pass_, round_, spec, a, b)
            ids.append(part)
            rounds.append(round_)
            start += b - a
        return np.concatenate(ids), np.repeat(rounds, [len(part) for part in ids]), wanted

    def _between(self, pass_: int, round_: int, spec: _Round, start: int, stop: int) -> tuple[IntArray, set[int]]:
        """Row ids at positions [start, stop) of a round, ascending in each group, and the last group."""
        begins, permutation = self._orders.get((pass_, round_), self._order, spec)
        parts: list[IntArray] = []
        for group in range(int(np.searchsorted(begins, start, side="right")) - 1, len(begins) - 1):
            begin, end = int(begins[group]), int(begins[group + 1])
            if begin >= stop:
                break
            if begin < end:
                chunks = permutation[group * self._group_chunks : (group + 1) * self._group_chunks]
                (ids,) = self._orders.get((pass_, round_, group), self._group, spec, chunks)
                # Sorted by id, so that a chunk's rows are neighbours; the window is shuffled later.
                parts.append(np.sort(ids[max(start - begin, 0) : stop - begin]))
        return np.concatenate(parts), set(chunks.tolist())

    def _order(self, name: Key, spec: _Round) -> tuple[IntArray, IntArray]:
        """The positions at which a round's groups of chunks begin, and its permutation of chunks."""
        permutation = generator("chunks", self.seed, *name).permutation(len(spec.counts))
        ends = np.cumsum(spec.counts[permutation])
        begins = np.concatenate([[0], ends[self._group_chunks - 1 : -1 : self._group_chunks], ends[-1:]])
        return begins, permutation

    def _group(self, name: Key, spec: _Round, chunks: IntArray) -> tuple[IntArray]:
        """The ids of a round's rows in some chunks, permuted."""
        bounds = self.assembly.dataset.source.bounds
        ids = ranges(bounds[chunks], bounds[chunks + 1])
        ids = ids[generator("runs", self.seed, *name).permutation(len(ids))]
        for rule in spec.rules:
            ids = ids[rule.keep(ids)]
        if self.replacement and len(ids):
            ids = ids[generator("replacement", self.seed, *name).integers(0, len(ids), len(ids))]
        return (ids,)


ORDER_ROWS = 1 << 17
"""Row ids, or chunks of an order, cached in addition to the largest groups: a window may span many small rounds."""


class _Round(NamedTuple):
    rules: tuple[SelectionRule, ...]
    counts: IntArray
    rows: int


class _RecentArrays:
    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._held: OrderedDict[Key, tuple[IntArray, ...]] = OrderedDict()
        self._elements = 0
        self._lock = threading.Lock()

    def get(self, name: Key, make: Callable[..., tuple[IntArray, ...]], *args: Any) -> tuple[IntArray, ...]:
        with self._lock:
            found = self._held.get(name)
            if found is not None:
                self._held.move_to_end(name)
                return found
        found = make(name, *args)  # two threads may both compute it, with equal results
        with self._lock:
            if name not in self._held:
                self._held[name] = found
                self._elements += sum(map(len, found))
            while self._elements > self.budget and len(self._held) > 1:
                _, old = self._held.popitem(last=False)
                self._elements -= sum(map(len, old))
        return found


@dataclass(eq=False)
class Scan:
    """Blocks of all rows, or of ascending ids ``only``, once and in stored order, for statistics and predictions.

    Blocks never cross a chunk, and a chunk without selected rows is not read. A round over copies repeats the blocks
    with the next copy number.
    """

    assembly: Assembly
    block_rows: int = 4096
    only: IntArray | None = None

    def __post_init__(self) -> None:
        data = self.assembly.dataset
        starts, stops = runs(data.source.bounds[:-1], data.source.bounds[1:], self.block_rows)

        def hit(counts: IntArray) -> tuple[IntArray, IntArray]:
            return starts[counts > 0], stops[counts > 0]

        if self.only is not None:
            self._full = hit(np.searchsorted(self.only, stops) - np.searchsorted(self.only, starts))
        else:
            self._full = hit(count_selected(data.rules, starts, stops))
        self._full_rounds = data._full_rounds if self.only is None else 1
        rest = data._last_round if self.only is None else ()
        self._rest = hit(count_selected(rest, starts, stops) if rest else np.zeros_like(starts))
        self._reset()

    def _reset(self) -> None:
        # Neighbouring blocks share a chunk, so a few recent chunks are enough.
        self.reader = CachedReader(self.assembly.dataset, SCAN_CACHE_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "reader"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __len__(self) -> int:
        return self._full_rounds * len(self._full[0]) + len(self._rest[0])

    @property
    def spans(self) -> tuple[IntArray, IntArray]:
        """Return the first row id of each block of a round, and the last + 1: (blocks,) each."""
        return self._full

    def block(self, key: Key) -> Block:
        raw, where = self.raw(key)
        return self.assembly.build(raw, np.arange(len(raw.ids), dtype=np.int64), key, where)

    def raw(self, key: Key) -> tuple[RawRows, str]:
        """Return the stored rows of block (index,), and a description of their location."""
        data = self.assembly.dataset
        round_, at = divmod(key[0], len(self._full[0]))  # the last round has a subset of the rows
        in_full = round_ < self._full_rounds
        starts, stops = self._full if in_full else self._rest
        start, stop = int(starts[at]), int(stops[at])
        number = int(np.searchsorted(data.source.bounds, start, side="right") - 1)
        if self.reader.remote:
            following = np.searchsorted(data.source.bounds, starts[at : at + 64], side="right") - 1
            self.reader.ahead(list(dict.fromkeys(following.tolist()))[:CONCURRENT_READS])
        chunk = self.reader.chunk(number)
        if self.only is not None:
            ids = self.only[np.searchsorted(self.only, start) : np.searchsorted(self.only, stop)]
            local: IntArray | slice = ids - chunk.first
        else:
            rules = data.rules if in_full else data._last_round
            ids = selected_ids(rules, start, stop)
            local = ids - chunk.first if rules else slice(start - chunk.first, stop - chunk.first)
        y, w = (None if values is None else values[local] for values in (chunk.y, chunk.w))
        return RawRows(chunk.X[local], y, ids, np.full(len(ids), round_, dtype=np.int64), w), data.source.where(number)
