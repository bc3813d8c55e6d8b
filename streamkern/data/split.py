"""Choosing rows by a hash of their ids: chunk-invariant splits, samples and draws, without reading a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkern.rng import row_hash
from streamkern.types import IntArray

HASH_SPAN = 1 << 64
_ID_BLOCK = 1 << 20  # row ids hashed at a time: 8 MB


@dataclass(frozen=True)
class Rule:
    """Rows whose 64-bit hash under ``key`` lies in [low, high)."""

    key: tuple[int, ...]
    low: int = 0
    high: int = HASH_SPAN

    def keep(self, row_ids: IntArray) -> NDArray[np.bool_]:
        """Which of the rows are chosen: shape (n,)."""
        h = row_hash(row_ids, *self.key)
        kept = h >= np.uint64(self.low) if self.low else np.ones(len(h), dtype=bool)
        if self.high < HASH_SPAN:
            kept &= h < np.uint64(self.high)
        return kept


def chosen(rules: Sequence[Rule], start: int, stop: int) -> IntArray | None:
    """Ids in [start, stop) that every rule keeps, ascending; None where there is no rule, which means all."""
    if not rules:
        return None
    ids = np.arange(start, stop, dtype=np.int64)
    for rule in rules:
        ids = ids[rule.keep(ids)]
    return ids


def count_chosen(rules: Sequence[Rule], starts: IntArray, stops: IntArray) -> IntArray:
    """How many rows of each range [starts[i], stops[i]) the rules keep; ranges ascend and do not overlap."""
    if not rules:
        return np.asarray(stops - starts, dtype=np.int64)
    counts = np.zeros(len(starts), dtype=np.int64)
    for ids in _chosen_blocks(rules, int(starts[0]) if len(starts) else 0, int(stops[-1]) if len(stops) else 0):
        where = np.searchsorted(stops, ids, side="right")
        inside = ids >= starts[where]
        counts += np.bincount(where[inside], minlength=len(starts))
    return counts


def smallest(rules: Sequence[Rule], n_rows: int, k: int, key: tuple[int, ...]) -> tuple[IntArray, NDArray[np.uint64]]:
    """The k chosen rows of smallest hash under ``key``: a uniform draw without replacement, in a random order.

    A draw of k rows begins with the draw of any smaller number. Memory is O(k).

    Args:
        rules: which rows take part.
        n_rows: row ids run over [0, n_rows).
        k: how many to draw; all there are, if fewer.
        key: integers that name the draw.

    Returns:
        ids, shape (k,), by ascending hash, and the hashes.
    """
    ids = np.empty(0, dtype=np.int64)
    hashes = np.empty(0, dtype=np.uint64)
    for block in _chosen_blocks(rules, 0, n_rows):
        ids = np.concatenate([ids, block])
        hashes = np.concatenate([hashes, row_hash(block, *key)])
        if len(ids) > k:
            keep = np.argpartition(hashes, k - 1)[:k] if k else np.empty(0, dtype=np.int64)
            ids, hashes = ids[keep], hashes[keep]
    order = np.argsort(hashes, kind="stable")
    return ids[order], hashes[order]


def _chosen_blocks(rules: Sequence[Rule], start: int, stop: int) -> Iterator[IntArray]:
    for a in range(start, stop, _ID_BLOCK):
        b = min(a + _ID_BLOCK, stop)
        ids = chosen(rules, a, b)
        yield np.arange(a, b, dtype=np.int64) if ids is None else ids
