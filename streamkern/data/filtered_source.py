"""A source of selected rows of another source."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import itemgetter

import numpy as np

from streamkern.data.row_selection import SelectionRule, count_selected, selected_ids
from streamkern.sources.base import ColumnDescription, DerivedSource, Reading, Source
from streamkern.sources.format_rules import check_chunk
from streamkern.storage.value_digest import digest
from streamkern.types import IntArray, Rows


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
        start, stop = self.source.bounds[self._chunks[chunk] :][:2].tolist()
        ids = selected_ids(self._rules, start, stop)
        return np.arange(start, stop, dtype=np.int64) if ids is None else ids

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
