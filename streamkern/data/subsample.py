"""Stratified and weighted subsamples, drawn in sweeps over the rows; and rows read by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkern.data.row_selection import FilteredSource, SelectionRule, smallest
from streamkern.errors import DataError, UsageError
from streamkern.rng import row_hash
from streamkern.sources.base import Source
from streamkern.sources.format_rules import joined_blocks, positions
from streamkern.types import Array, IntArray, Rows

_WAITING_ROWS = 1 << 16  # further candidates kept before those outside the sample are released


def stratified_sample(source: Source, rules: Sequence[SelectionRule], rows: int, key: tuple[int, ...]) -> IntArray:
    """Draw uniformly within each class, keeping every class's share of the rows to within one row; ids ascend, (rows,).

    Shares are rounded by largest remainders. In each class the rows of smallest hash are drawn: the sample does not
    depend on chunks, and a larger share contains a smaller one. Makes two passes over the targets; memory is O(rows).
    """
    if source.target is None or source.target.outputs:
        raise UsageError(
            "There are no classes to keep the shares of.",
            where="sample(stratify=True)",
            expected="a target with one label a row",
            remedy="name the target column, or leave stratify out",
        )
    counts, part = class_counts(source, rules), FilteredSource(source, rules)
    labels = np.array(sorted(counts), dtype=source.target.dtype)
    sizes = np.array([counts[label] for label in labels.tolist()], dtype=np.int64)
    quota = proportional_split(sizes, rows)

    ids, codes = np.empty(0, np.int64), np.empty(0, np.int64)
    hashes = np.empty(0, np.uint64)
    bound = np.full(len(labels), np.iinfo(np.uint64).max, dtype=np.uint64)  # largest hash that may still enter
    waiting, count = [(ids, codes, hashes)], 0
    for chunk in range(len(part.bounds) - 1):
        some, y = part.ids(chunk), part.read(chunk).y
        assert y is not None
        code, h = np.searchsorted(labels, y), row_hash(some, *key)
        near = h <= bound[code]
        waiting.append((some[near], code[near], h[near]))
        count += int(near.sum())
        if count > rows + _WAITING_ROWS:
            ids, codes, hashes, bound = _first(waiting, quota)
            waiting, count = [(ids, codes, hashes)], len(ids)
    return np.sort(_first(waiting, quota)[0])


def class_counts(source: Source, rules: Sequence[SelectionRule]) -> dict[Any, int]:
    """Count the selected rows of each label, in one pass over the targets."""
    counts: Counter[Any] = Counter()
    part = FilteredSource(source, rules)
    for chunk in range(len(part.bounds) - 1):
        y = part.read(chunk).y
        assert y is not None
        if y.dtype.kind == "f" and np.isnan(y).any():
            raise DataError(
                "A label is NaN.",
                where=part.where_row(chunk, int(np.argmax(np.isnan(y)))),
                expected="a label in every row",
                remedy="leave out or fill the rows without a label",
            )
        counts.update(y.tolist())
    return dict(counts)


def proportional_split(sizes: IntArray, rows: int) -> IntArray:
    """Return ``rows`` split in proportion to ``sizes``, shape (k,), by largest remainders; the first wins a tie."""
    exact = [divmod(int(size) * rows, int(sizes.sum())) for size in sizes]
    quota = np.array([whole for whole, _ in exact], dtype=np.int64)
    order = np.argsort([-rest for _, rest in exact], kind="stable")
    quota[order[: rows - int(quota.sum())]] += 1
    return quota


def weighted_sample(
    source: Source, rules: Sequence[SelectionRule], rows: int, weights: str | int | Array, key: tuple[int, ...]
) -> IntArray:
    """Draw ids (rows,), ascending, without replacement: each next row by its weight among the remaining rows.

    Efraimidis and Spirakis (2006), "Weighted random sampling with a reservoir": the rows of smallest −ln(u)/w, where u
    is uniform and a function of the row id. Weights w >= 0 are a stored column's name or position, or an array with one
    for each stored row. One pass; memory is O(rows).
    """
    column, given = _weight_column(source, weights)
    part = FilteredSource(source, rules)

    def raced() -> Iterator[tuple[Array, IntArray]]:
        for chunk in range(len(part.bounds) - 1):
            some = part.ids(chunk)
            w = part.read(chunk).X[:, column].astype(np.float64) if given is None else given[some]
            wrong = ~(np.isfinite(w) & (w >= 0))
            if wrong.any():
                i = int(np.argmax(wrong))
                raise DataError(
                    f"A weight is {w[i]}.",
                    where=part.where_row(chunk, i),
                    expected="a finite number >= 0",
                    remedy="correct the weight: 0 leaves a row out",
                )
            some, w = some[w > 0], w[w > 0]
            u = ((row_hash(some, *key) >> np.uint64(11)) + np.float64(0.5)) * 2.0**-53
            yield -np.log(u) / w, some

    ids, _ = smallest(raced(), rows, np.empty(0))
    if len(ids) < rows:
        raise UsageError(
            f"Only {len(ids)} rows have a positive weight.",
            where="sample(weights=...)",
            expected=f"at least {rows}",
            remedy="ask for fewer rows",
        )
    return np.sort(ids)


def _weight_column(source: Source, weights: str | int | Array) -> tuple[int, Array | None]:
    if isinstance(weights, str):
        return int(positions([weights], source.columns, "sample(weights=...)")[0]), None
    if isinstance(weights, int | np.integer):
        column = int(weights)
        if not 0 <= column < source.n_features:
            raise UsageError(
                f"There is no column {column}.", where="sample(weights=...)", expected=f"0 to {source.n_features - 1}"
            )
        return column, None
    n, given = int(source.bounds[-1]), np.asarray(weights, dtype=np.float64)
    if given.shape != (n,):
        raise UsageError(
            f"The weights have shape {given.shape}.",
            where="sample(weights=...)",
            expected=f"one a stored row: shape ({n},)",
        )
    return 0, given


def read_rows(source: Source, ids: IntArray) -> Rows:
    """Return stored rows by ascending id. Reads each of their chunks once, and caches none."""
    chunks = np.searchsorted(source.bounds, ids, side="right") - 1
    pieces = []
    for number in np.unique(chunks).tolist():
        rows = source.read(number)
        local = ids[chunks == number] - int(source.bounds[number])
        pieces.append(rows.each(itemgetter(local)))
    return joined_blocks(pieces)


def _first(
    waiting: list[tuple[IntArray, IntArray, NDArray[np.uint64]]], quota: IntArray
) -> tuple[IntArray, IntArray, NDArray[np.uint64], NDArray[np.uint64]]:
    """Each class's rows of smallest hash, up to its quota, and the hash below which further rows enter."""
    ids, codes, hashes = (np.concatenate(arrays) for arrays in zip(*waiting, strict=True))
    order = np.lexsort((hashes, codes))
    ids, codes, hashes = ids[order], codes[order], hashes[order]
    begins = np.searchsorted(codes, np.arange(len(quota)))
    kept = np.arange(len(codes)) - begins[codes] < quota[codes]
    ids, codes, hashes = ids[kept], codes[kept], hashes[kept]
    held = np.bincount(codes, minlength=len(quota))
    bound = np.full(len(quota), np.iinfo(np.uint64).max, dtype=np.uint64)
    full = np.flatnonzero((held == quota) & (quota > 0))
    bound[full] = hashes[np.cumsum(held)[full] - 1]
    bound[quota == 0] = 0
    return ids, codes, hashes, bound
