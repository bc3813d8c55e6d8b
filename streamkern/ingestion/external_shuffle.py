"""A uniform random permutation of more rows than fit in memory, in two passes over them.

Rows are sorted by ``row_hash(i, seed)`` of their number i, so the order depends on the seed and the number of rows, not
on chunks, threads, memory or interruptions. The first pass writes runs of neighbouring rows, each sorted by hash. The
second cuts the range of hashes into buckets that fit in memory, gathers each bucket's rows, which are contiguous in
every run, and sorts them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.rng import HashFamily, row_hash
from streamkern.sources.format_rules import rows_per_chunk
from streamkern.storage.atomic_writes import staged_part
from streamkern.types import Array, IntArray, Rows, Target

_NAME = "run-{:015}-{:015}"
ROW_EXTRA = 24
"""Bytes of a row's hash, position and label code while runs are made and buckets sorted."""


@dataclass(frozen=True)
class SortedRun:
    """Rows of a run while it is filled; for string targets they have codes, and ``labels`` the strings."""

    rows: Rows
    labels: dict[Any, int] = field(default_factory=dict)

    @property
    def sections(self) -> list[Array]:
        """The arrays of the rows, in stored order."""
        return [values for values in self.rows if values is not None]

    def taken(self, index: IntArray) -> Rows:
        """Return rows by position, with codes for labels."""
        return self.rows.each(lambda values: np.take(values, index, axis=0))

    def first(self, n: int) -> SortedRun:
        """Return the first n rows, with their own labels."""
        return SortedRun(self.rows.each(lambda values: values[:n]))

    def put(self, at: int, rows: Rows) -> None:
        """Copy rows to positions from ``at`` on."""
        if rows.y is not None and rows.y.dtype == object:
            codes = [self.labels.setdefault(value, len(self.labels)) for value in rows.y.tolist()]
            rows = rows._replace(y=np.array(codes, dtype=np.int32))
        for into, values in zip(self.rows, rows, strict=True):
            if into is not None:
                into[at : at + len(rows.X)] = values


@dataclass(frozen=True)
class SortedRuns:
    """Runs of sorted rows in a folder.

    The file of a run has rows [a, b) of the source in the order of their hashes: all features, then targets (codes for
    strings), weights and hashes; labels are in another file. It gets its name when complete.
    """

    folder: Path
    n_features: int
    dtype: np.dtype[Any]
    target: Target | None
    seed: int
    weighted: bool = False

    @property
    def done(self) -> int:
        """Number of rows in runs: rows [0, done)."""
        return max((b for _, b in self.spans), default=0)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Return (a, b) of the existing runs, ascending. Runs are written in order, so there are no gaps."""
        names = sorted(path.name.split("-") for path in self.folder.glob("run-*-*"))
        spans = [(int(a), int(b)) for _, a, b in names]
        if any(a != b for (a, _), (_, b) in zip(spans, [(0, 0), *spans], strict=False)):
            raise OSError(f"a run is missing in {self.folder}: remove the directory, and begin again")
        return spans

    @property
    def _target_dtype(self) -> np.dtype[Any]:
        assert self.target is not None
        return np.dtype(np.int32) if self.target.dtype == object else self.target.dtype

    @property
    def row_bytes(self) -> int:
        outputs = 0 if self.target is None else self.target.width * self._target_dtype.itemsize
        return self.n_features * self.dtype.itemsize + outputs + 8 * self.weighted + 8

    def empty(self, n: int) -> SortedRun:
        """Return a run of n rows to be filled."""
        y = None if self.target is None else np.empty((n, *self.target.outputs), self._target_dtype)
        w = np.empty(n) if self.weighted else None
        return SortedRun(Rows(np.empty((n, self.n_features), dtype=self.dtype), y, w))

    def write(self, a: int, run: SortedRun) -> None:
        """Write rows [a, a + n) of the source as a run."""
        n = len(run.rows.X)
        hashes = row_hash(np.arange(a, a + n, dtype=np.int64), HashFamily.SHUFFLE, self.seed)
        order = np.argsort(hashes)
        path = self.folder / _NAME.format(a, a + n)
        (self.folder / f"labels-{a:015}.json").write_text(json.dumps(list(run.labels)), encoding="utf-8")
        step = rows_per_chunk(self.row_bytes)
        with staged_part(path) as unfinished, open(unfinished, "wb") as stream:
            for values in (*run.sections, hashes):
                buffer = np.empty_like(values[:step])
                for start in range(0, n, step):
                    rows = order[start : start + step]
                    # Several times as fast as indexing, and reuses allocated pages.
                    stream.write(np.take(values, rows, axis=0, out=buffer[: len(rows)], mode="clip").data)

    def permuted(self, run: SortedRun, start: int, rows: int) -> Iterator[Rows]:
        """Yield all rows in permuted order from one run in memory; see ``shuffled``."""
        order = np.argsort(row_hash(np.arange(len(run.rows.X), dtype=np.int64), HashFamily.SHUFFLE, self.seed))
        labels = [list(run.labels)]
        for first in range(start, len(order), rows):
            part = order[first : first + rows]
            yield self._with_texts(run.taken(part), labels, [len(order)], part)

    def shuffled(self, start: int, bucket_rows: int, rows: int) -> Iterator[Rows]:
        """Yield blocks of ``rows`` rows (fewer where a bucket ends) in permuted order, from ``start`` on."""
        spans = self.spans
        n = spans[-1][1] if spans else 0
        buckets = max(1, -(-n // bucket_rows))
        edges = np.array([(i << 64) // buckets for i in range(1, buckets)], dtype=np.uint64)
        cuts = np.array([[0, *np.searchsorted(self._hashes(span), edges), span[1] - span[0]] for span in spans])
        sizes = np.diff(cuts, axis=1).sum(axis=0) if spans else np.zeros(0, dtype=np.int64)
        labels = [json.loads((self.folder / f"labels-{a:015}.json").read_text(encoding="utf-8")) for a, _ in spans]
        bucket = self.empty(int(sizes.max(initial=0)))  # reused, because freed memory may not return to the system
        hashes = np.empty(len(bucket.rows.X), dtype=np.uint64)
        end = 0
        for number, size in enumerate(sizes.tolist()):
            begin, end = end, end + size
            if end <= start:
                continue
            counts = cuts[:, number + 1] - cuts[:, number]
            at = 0
            for span, low, count in zip(spans, cuts[:, number].tolist(), counts.tolist(), strict=True):
                here = slice(at, at + count)
                self._fill(span, low, [values[here] for values in (*bucket.sections, hashes)])
                at = here.stop
            order = np.argsort(hashes[:size])
            first = max(begin, start)
            while first < end:
                stop = min(end, first - first % rows + rows)
                part = order[first - begin : stop - begin]
                first = stop
                yield self._with_texts(bucket.taken(part), labels, np.cumsum(counts), part)

    def _with_texts(self, rows: Rows, labels: list[list[Any]], ends: Any, at: IntArray) -> Rows:
        """Replace codes by texts: rows at positions below ``ends[r]`` have the labels of run r."""
        if rows.y is None or self.target is None or self.target.dtype != object:
            return rows
        run = np.searchsorted(ends, at, side="right")
        texts = [labels[r][code] for r, code in zip(run.tolist(), rows.y.tolist(), strict=True)]
        return rows._replace(y=np.array(texts, dtype=object))

    def _fill(self, span: tuple[int, int], low: int, sections: list[Array]) -> None:
        begin = 0
        with open(self.folder / _NAME.format(*span), "rb") as stream:
            for into in sections:
                item = into.itemsize * int(np.prod(into.shape[1:]))
                stream.seek(begin + low * item)
                if into.size and stream.readinto(into.reshape(-1).view(np.uint8).data) != into.nbytes:
                    raise OSError(f"{stream.name} is shorter than it was")
                begin += (span[1] - span[0]) * item

    def _hashes(self, span: tuple[int, int]) -> Array:
        n = span[1] - span[0]
        return np.fromfile(self.folder / _NAME.format(*span), dtype=np.uint64, offset=n * (self.row_bytes - 8))
