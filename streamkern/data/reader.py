"""Reading chunks once: a thread-safe cache with a budget in bytes."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.storage.base import Source
from streamkern.types import Array

AT_ONCE = 8
"""Chunks of a store that are read at a time."""


KEPT_BYTES = 16 << 20
"""Bytes of chunks that a scan keeps: neighbouring blocks share one."""


def reading_bytes(source: Source, readers: int) -> int:
    """Bytes that threads hold which go through chunks of a source: each has one, and reads the next."""
    row, decoding, once, libraries = source.reading()
    chunks, largest = len(source.bounds) - 1, int(np.diff(source.bounds).max(initial=0))
    rows = 0 if source.in_memory else min(2 * readers, chunks) * largest * row
    return rows + min(readers, chunks) * decoding + once + libraries


class Chunk(NamedTuple):
    """A stored chunk in memory: features as stored (n, d), targets, the id of its first row, and sample weights."""

    X: Array
    y: Array | None
    first: int
    w: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows; a text that rows share counts once."""
        size = sum(int(values.nbytes) for values in (self.X, self.y, self.w) if values is not None)
        if self.y is not None and self.y.dtype == object:
            size += sum(map(sys.getsizeof, {id(text): text for text in self.y.reshape(-1).tolist()}.values()))
        return size


class Reader:
    """Chunks of a dataset's source, kept while they fit.

    Two threads that want one chunk read it once. Each thread's most recent chunk stays, even over the budget: threads
    that go through chunks of their own do not push out one another's. A read that fails leaves nothing behind.

    Attributes:
        remote: whether a read is a round trip to a store.
        wanted: sets of chunks that will be requested again; the others go first. Lanes that take turns, each with
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
        source = dataset.source
        self._row_bytes = source.n_features * source.dtype.itemsize + 16
        self.remote = source.remote
        self._sent: dict[int, int] = {}
        self._pool: ThreadPoolExecutor | None = None

    def chunk(self, index: int) -> Chunk:
        """One chunk, from the cache or from the source."""
        mine: tuple[int, Chunk] | None = getattr(self._mine, "chunk", None)
        if mine is not None and mine[0] == index:
            return mine[1]
        found = self._shared(index)
        self._mine.chunk = (index, found)
        return found

    def ahead(self, indices: Iterable[int]) -> None:
        """Begin to read chunks that will be requested, several at a time: a read is a round trip to a store.

        Chunks being read count as kept, in place of chunks that nobody will request. Those that do not fit are read on
        request.
        """
        for index in indices:
            size = self._row_bytes * int(self._bounds[index + 1] - self._bounds[index])
            with self._lock:
                if index in self._chunks or index in self._sent:
                    continue
                requested = sum(self._sent.values()) + size
                wanted = set().union(*self.wanted)
                for spare in [held for held in self._chunks if held not in wanted]:
                    if self._held + requested <= self.cache_bytes:
                        break
                    self._held -= self._chunks.pop(spare).nbytes
                if self._held + requested > self.cache_bytes or requested > self.cache_bytes // 2:
                    return
                self._sent[index] = size
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="streamkern-ahead")
            self._pool.submit(self._fetch, index)

    def _fetch(self, index: int) -> None:
        try:
            self._shared(index)
        except Exception:  # raised for the caller that requests the chunk
            pass
        finally:
            with self._lock:
                del self._sent[index]

    def _shared(self, index: int) -> Chunk:
        """One chunk, which is read by one thread at a time."""
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
        return found

    def _look(self, index: int) -> Chunk | None:
        found = self._chunks.get(index)
        if found is not None:
            self._chunks.move_to_end(index)
        return found

    def _read(self, index: int) -> Chunk:
        rows = self.dataset.source.read_checked(index)
        chunk = Chunk(rows.X, rows.y, int(self._bounds[index]), rows.w)
        with self._lock:
            self._reading.pop(index, None)
            if index not in self._chunks:  # an old gate may have let two threads in
                self._chunks[index] = chunk
                self._held += chunk.nbytes
            others_sent = sum(size for sent, size in self._sent.items() if sent != index)
            while self._held + others_sent > self.cache_bytes and len(self._chunks) > 1:
                keep = {index}.union(*self.wanted)
                spare = (held for held in self._chunks if held not in keep)
                # Where not even the wanted fit, the one just used is the one whose turn comes last.
                others = (held for held in reversed(self._chunks) if held != index)
                least = next(chain(spare, others))
                self._held -= self._chunks.pop(least).nbytes
        return chunk
