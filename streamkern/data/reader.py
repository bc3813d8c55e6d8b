"""Reading chunks once: a thread-safe cache with a budget in bytes, and the rows a round takes of each chunk."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.split import Rule, chosen
from streamkern.types import Array, IntArray


class Chunk(NamedTuple):
    """A stored chunk in memory: features as stored (n, d), targets, and the id of its first row."""

    X: Array
    y: Array | None
    first: int

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.X.nbytes) + (0 if self.y is None else int(self.y.nbytes))


class Reader:
    """Chunks of a dataset's source, kept while they fit.

    Two threads that want one chunk read it once. The most recent chunk stays even where it alone is over the budget.

    Args:
        dataset: whose source is read.
        cache_bytes: bytes of chunks kept.
    """

    def __init__(self, dataset: Dataset, cache_bytes: int) -> None:
        self.dataset = dataset
        self.cache_bytes = cache_bytes
        self._bounds = dataset.source.bounds
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()
        self._reading: dict[int, threading.Lock] = {}

    def chunk(self, index: int) -> Chunk:
        """One chunk, from the cache or from the source."""
        with self._lock:
            found = self._chunks.get(index)
            if found is not None:
                self._chunks.move_to_end(index)
                return found
            gate = self._reading.setdefault(index, threading.Lock())
        with gate:
            with self._lock:
                found = self._chunks.get(index)
            if found is None:
                rows = self.dataset.source.read(index)
                found = Chunk(rows.X, rows.y, int(self._bounds[index]))
                self._keep(index, found)
        return found

    def _keep(self, index: int, chunk: Chunk) -> None:
        with self._lock:
            self._reading.pop(index, None)
            self._chunks[index] = chunk
            self._held += chunk.nbytes
            while self._held > self.cache_bytes and len(self._chunks) > 1:
                _, old = self._chunks.popitem(last=False)
                self._held -= old.nbytes

    def local_rows(self, rules: Sequence[Rule], start: int, stop: int) -> IntArray | slice:
        """Rows in [start, stop), all of one chunk, that the rules keep, counted from the chunk's first row."""
        first = int(self._bounds[np.searchsorted(self._bounds, start, side="right") - 1])
        ids = chosen(rules, start, stop)
        return slice(start - first, stop - first) if ids is None else ids - first
