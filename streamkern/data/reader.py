"""Reading chunks once: a thread-safe cache with a budget in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import chain
from typing import NamedTuple

from streamkern.data.dataset import Dataset
from streamkern.types import Array


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

    Two threads that want one chunk read it once. Each thread's most recent chunk stays, even over the budget: threads
    that go through chunks of their own do not push out one another's. A read that fails leaves nothing behind.

    Args:
        dataset: whose source is read.
        cache_bytes: bytes of chunks kept.

    Attributes:
        wanted: sets of chunks that will be asked for again; the others go first. Lanes that take turns, each with
            chunks of its own, would otherwise lose them just before their turn.
    """

    def __init__(self, dataset: Dataset, cache_bytes: int) -> None:
        self.dataset = dataset
        self.cache_bytes = cache_bytes
        self.wanted: list[set[int]] = []
        self._bounds = dataset.source.bounds
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()
        self._reading: dict[int, threading.Lock] = {}
        self._mine = threading.local()

    def chunk(self, index: int) -> Chunk:
        """One chunk, from the cache or from the source."""
        mine: tuple[int, Chunk] | None = getattr(self._mine, "chunk", None)
        if mine is not None and mine[0] == index:
            return mine[1]
        with self._lock:
            found = self._look(index)
            gate = self._reading.setdefault(index, threading.Lock()) if found is None else None
        if found is None and gate is not None:
            with gate:
                with self._lock:
                    found = self._look(index)
                if found is None:
                    found = self._read(index)
        assert found is not None
        self._mine.chunk = (index, found)
        return found

    def _look(self, index: int) -> Chunk | None:
        found = self._chunks.get(index)
        if found is not None:
            self._chunks.move_to_end(index)
        return found

    def _read(self, index: int) -> Chunk:
        rows = self.dataset.source.read(index)
        chunk = Chunk(rows.X, rows.y, int(self._bounds[index]))
        with self._lock:
            self._reading.pop(index, None)
            if index not in self._chunks:  # an old gate may have let two threads in
                self._chunks[index] = chunk
                self._held += chunk.nbytes
            while self._held > self.cache_bytes and len(self._chunks) > 1:
                keep = {index}.union(*self.wanted)
                spare = (held for held in self._chunks if held not in keep)
                # Where not even the wanted fit, the one just used is the one whose turn comes last.
                others = (held for held in reversed(self._chunks) if held != index)
                least = next(chain(spare, others))
                self._held -= self._chunks.pop(least).nbytes
        return chunk
