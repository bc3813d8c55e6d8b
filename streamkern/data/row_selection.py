"""Selection of rows by rules, most by a hash of their ids: splits, samples and draws that do not depend on chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamkern.rng import row_hash
from streamkern.sources.base import ColumnDescription, DerivedSource, Reading, Source
from streamkern.sources.format_rules import check_chunk
from streamkern.storage.value_digest import digest
from streamkern.types import IntArray, Rows

HASH_SPAN = 1 << 64
_ID_BLOCK = 1 << 16  # row ids hashed at once: half a megabyte fits in the processor's cache


@dataclass(frozen=True)
class Rule:
    """Rows whose 64-bit hash under ``key`` lies in [low, high)."""

    key: tuple[int, ...]
    low: int = 0
    high: int = HASH_SPAN

    def keep(self, row_ids: IntArray) -> NDArray[np.bool_]:
        """Return a mask of the selected rows, shape (n,)."""
        h = row_hash(row_ids, *self.key)
        kept = h >= np.uint64(self.low) if self.low else np.ones(len(h), dtype=bool)
        if self.high < HASH_SPAN:
            kept &= h < np.uint64(self.high)
        return kept

    def to_json(self) -> list[Any]:
        """Return the rule's description, for fingerprints."""
        return [list(self.key), self.low, self.high]


@dataclass(frozen=True, eq=False)
class SelectedIds:
    """Rows listed by ascending id (k,), 8 bytes each, or all ``others``, for a selection that depends on values."""

    ids: IntArray
    others: bool = False

    def keep(self, row_ids: IntArray) -> NDArray[np.bool_]:
        if not len(self.ids):
            return np.full(len(row_ids), self.others)
        at = np.minimum(np.searchsorted(self.ids, row_ids), len(self.ids) - 1)
        return np.asarray((self.ids[at] == row_ids) != self.others)

    def to_json(self) -> list[Any]:
        content = hashlib.sha256(self.ids.astype("<i8").tobytes()).hexdigest()
        return [*(["others than"] if self.others else []), len(self.ids), content]


class Quarantined(NamedTuple):
    """A range of rows that are excluded because their chunk is corrupt.

    Attributes:
        start: id of the first row.
        stop: id of the last row + 1.
        where: description of the chunk.
        why: the error in reading the chunk.
    """

    start: int
    stop: int
    where: str
    why: str


@dataclass(frozen=True)
class OutsideRanges:
    """All rows outside ascending and disjoint ranges of (first row, last row + 1)."""

    ranges: tuple[tuple[int, int], ...]

    def keep(self, row_ids: IntArray) -> NDArray[np.bool_]:
        edges = np.array(self.ranges, dtype=np.int64).reshape(-1)
        return np.asarray(np.searchsorted(edges, row_ids, side="right") % 2 == 0)

    def to_json(self) -> list[Any]:
        return ["without", *map(list, self.ranges)]


@dataclass(frozen=True, eq=False)
class RowBitmap:
    """Rows marked in bits (⌈n / 8⌉,) of ``numpy.packbits``, for a selection of many rows that depends on values.

    It ``splits`` if it is a side of a split, so that a split of this side is another one.
    """

    bits: NDArray[np.uint8]
    rows: int
    splits: bool = False

    @classmethod
    def of(cls, rows: int, parts: Iterable[tuple[IntArray, NDArray[np.bool_]]]) -> RowBitmap:
        """Mark, of ids (k,) that ascend, those that a mask (k,) keeps; parts ascend, too."""
        bits = np.zeros(-(-rows // 8), dtype=np.uint8)
        for ids, kept in parts:
            if len(ids):
                first = int(ids[0]) // 8
                dense = np.zeros(int(ids[-1]) + 1 - 8 * first, dtype=bool)
                dense[ids - 8 * first] = kept
                packed = np.packbits(dense)
                bits[first : first + len(packed)] |= packed
        return cls(bits, rows)

    def complement(self) -> RowBitmap:
        """Return the rows that are not marked."""
        return RowBitmap(~self.bits, self.rows)

    def __and__(self, other: RowBitmap) -> RowBitmap:
        return RowBitmap(self.bits & other.bits, self.rows)

    def keep(self, row_ids: IntArray) -> NDArray[np.bool_]:
        return np.asarray(self.bits[row_ids >> 3] >> (7 - (row_ids & 7)).astype(np.uint8) & 1, dtype=bool)

    def to_json(self) -> list[Any]:
        return ["marked", self.rows, hashlib.sha256(self.bits.tobytes()).hexdigest()]


SelectionRule = Rule | SelectedIds | OutsideRanges | RowBitmap
"""A rule that selects rows."""


def selected_ids(rules: Sequence[SelectionRule], start: int, stop: int) -> IntArray:
    """Return the ids in [start, stop) that every rule keeps, ascending."""
    ids = np.arange(start, stop, dtype=np.int64)
    for rule in rules:
        ids = ids[rule.keep(ids)]
    return ids


def count_selected(rules: Sequence[SelectionRule], starts: IntArray, stops: IntArray) -> IntArray:
    """Return how many rows of each range [starts[i], stops[i]) the rules keep; ranges ascend and do not overlap."""
    if not rules or not len(starts):
        return np.asarray(stops - starts, dtype=np.int64)
    counts = np.zeros(len(starts), dtype=np.int64)
    for ids in selected_blocks(rules, int(starts[0]), int(stops[-1])):
        if len(ids):
            first = np.searchsorted(stops, ids[0], side="right")
            last = np.searchsorted(starts, ids[-1], side="right")
            counts[first:last] += np.searchsorted(ids, stops[first:last]) - np.searchsorted(ids, starts[first:last])
    return counts


def ranges(starts: IntArray, stops: IntArray) -> IntArray:
    """Return the integers of [starts[0], stops[0]), then of [starts[1], stops[1]), and so on."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    numbers = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
    numbers += np.repeat(starts - (ends - lengths), lengths)
    return numbers


def runs(starts: IntArray, stops: IntArray, rows: int) -> tuple[IntArray, IntArray]:
    """Cut each range [starts[i], stops[i]) into runs of ``rows`` and a shorter last run; return starts and stops."""
    counts = -(-(stops - starts) // rows)
    within = ranges(np.zeros_like(counts), counts) * rows
    first = np.repeat(starts, counts) + within
    return first, np.minimum(first + rows, np.repeat(stops, counts))


def draw_ids(
    rules: Sequence[SelectionRule], n_rows: int, k: int, key: tuple[int, ...]
) -> tuple[IntArray, NDArray[np.uint64]]:
    """Return ids (k,) of the selected rows with the smallest hashes under ``key``, ascending by hash, and the hashes.

    This is a uniform draw without replacement, in random order; a larger draw begins with every smaller one. If there
    are fewer than k, all are returned. Memory is O(k).
    """
    blocks = ((row_hash(block, *key), block) for block in selected_blocks(rules, 0, n_rows))
    return smallest(blocks, k, np.empty(0, dtype=np.uint64))


def smallest(
    parts: Iterable[tuple[NDArray[Any], IntArray]], k: int, keys: NDArray[Any]
) -> tuple[IntArray, NDArray[Any]]:
    """Return the ids (k,) of the k smallest keys of parts of keys and ascending ids, and the keys, ascending.

    Of equal keys the smaller id comes first. ``keys`` is empty and has their dtype. Memory is O(k).
    """
    ids = np.empty(0, dtype=np.int64)
    waiting, count = [(keys, ids)], 0

    def kept() -> tuple[IntArray, NDArray[Any]]:
        keys, ids = (np.concatenate(arrays) for arrays in zip(*waiting, strict=True))
        order = np.lexsort((ids, keys))[:k]
        return ids[order], keys[order]

    for some, block in parts:
        if len(ids) == k:  # then only smaller keys than the last can still enter
            near = some < keys.max(initial=0)
            some, block = some[near], block[near]
        waiting.append((some, block))
        count += len(block)
        if count > max(k, _ID_BLOCK):
            ids, keys = kept()
            waiting, count = [(keys, ids)], 0
    return kept()


def sample_rule(rules: Sequence[SelectionRule], n_rows: int, k: int, key: tuple[int, ...]) -> Rule:
    """Return the rule that keeps the k rows that ``draw_ids`` draws, for k from 1 to the number of selected rows.

    Hashes under one key are distinct, so the k-th smallest bounds exactly k rows. Two passes over the ids find it, in
    memory independent of k: the first which of 2¹⁶ equal parts of the range has it, the second its value in the part.
    """
    parts = np.zeros(1 << 16, dtype=np.int64)
    for block in selected_blocks(rules, 0, n_rows):
        parts += np.bincount(_part(row_hash(block, *key)), minlength=1 << 16)
    ends = np.cumsum(parts)
    part = int(np.searchsorted(ends, k))
    inside = []
    for block in selected_blocks(rules, 0, n_rows):
        h = row_hash(block, *key)
        inside.append(h[_part(h) == part])
    kth = k - 1 - int(ends[part] - parts[part])
    return Rule(key, high=int(np.partition(np.concatenate(inside), kth)[kth]) + 1)


def _part(hashes: NDArray[np.uint64]) -> IntArray:
    return (hashes >> np.uint64(48)).astype(np.int64)


def selected_blocks(rules: Sequence[SelectionRule], start: int, stop: int) -> Iterator[IntArray]:
    """Yield the ids in [start, stop) that every rule keeps, ascending, in blocks of at most 65,536."""
    for a in range(start, stop, _ID_BLOCK):
        yield selected_ids(rules, a, min(a + _ID_BLOCK, stop))


class FilteredSource(DerivedSource):
    """The rows of a source that rules select, in stored order; a chunk without selected rows is never read."""

    def __init__(self, source: Source, rules: Sequence[SelectionRule]) -> None:
        super().__init__(source)
        self._rules = tuple(rules)
        counts = count_selected(self._rules, source.bounds[:-1], source.bounds[1:])
        self._chunks = np.flatnonzero(counts)
        self.bounds = np.concatenate([[0], np.cumsum(counts[self._chunks])]).astype(np.int64)
        self.in_memory = False
        self.non_features = ()  # only all rows are inspected

    @cached_property
    def fingerprint(self) -> str:
        return digest("filtered", self.source.fingerprint, [rule.to_json() for rule in self._rules])

    def ids(self, chunk: int) -> IntArray:
        """Return the original row numbers of a chunk's rows, ascending, shape (n,)."""
        check_chunk(chunk, self.bounds)
        return selected_ids(self._rules, *self.source.bounds[self._chunks[chunk] :][:2].tolist())

    def reading(self) -> Reading:
        """Return the bytes of reading a chunk: all its rows, before the selection."""
        found = self.source.reading()
        whole = 0 if self.source.in_memory else int(np.diff(self.source.bounds).max(initial=0)) * found.row
        return found._replace(decoding=found.decoding + whole)

    def read(self, chunk: int) -> Rows:
        local = self._local(chunk)
        return self.source.read(int(self._chunks[chunk])).each(itemgetter(local))

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        return f"{self.source.where(int(self._chunks[chunk]))} (chosen rows {a} to {b - 1})"

    def where_row(self, chunk: int, row: int) -> str:
        return self.source.where_row(int(self._chunks[chunk]), int(self._local(chunk)[row]))

    def describe(self, chunk: int) -> Sequence[ColumnDescription]:
        return ()

    def _local(self, chunk: int) -> IntArray:
        return self.ids(chunk) - int(self.source.bounds[self._chunks[chunk]])
