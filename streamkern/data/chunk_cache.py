"""A thread-safe cache of chunks with a budget in bytes."""

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
from streamkern.sources.base import Source
from streamkern.types import Array

CONCURRENT_READS = 8
"""Chunks of a remote store that are read concurrently."""


SCAN_CACHE_BYTES = 16 << 20
"""Bytes of chunks that a scan keeps, since neighbouring blocks share a chunk."""


def reading_bytes(source: Source, readers: int) -> int:
    """Return bytes of chunks while threads read a source in order: each has one chunk, and reads the next."""
    row, decoding, once, libraries = source.reading()
    chunks, largest = len(source.bounds) - 1, int(np.diff(source.bounds).max(initial=0))
    rows = 0 if source.in_memory else min(2 * readers, chunks) * largest * row
    return rows + min(readers, chunks) * decoding + once + libraries


def kept_bytes(source: Source) -> int:
    """Return bytes of the chunks that a sweep keeps; those of a source in memory are views of it."""
    return 0 if source.in_memory else SCAN_CACHE_BYTES


class Chunk(NamedTuple):
    """A stored chunk in memory: features as stored (n, d), targets, the id of its first row, and sample weights."""

    X: Array
    y: Array | None
    first: int
    w: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows; a text shared by rows counts once."""
        size = sum(int(values.nbytes) for values in (self.X, self.y, self.w) if values is not None)
        if self.y is not None and self.y.dtype == object:
            size += sum(map(sys.getsizeof, {id(text): text for text in self.y.reshape(-1).tolist()}.values()))
        return size


class CachedReader:
    """Read chunks of a dataset's source, and keep them as long as they fit.

    Two threads that request one chunk read it once. Each thread's most recent chunk stays, even above the budget, so
    that threads do not evict one another's. Chunks that are not ``wanted`` again are evicted first: lanes take turns,
    each with its own chunks, and would otherwise lose them just before their turn.
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
        self._own = threading.local()
        self._row_bytes = dataset.source.n_features * dataset.source.dtype.itemsize + 16
        self.remote = dataset.source.remote
        self._sent: dict[int, int] = {}
        self._pool: ThreadPoolExecutor | None = None

    def chunk(self, index: int) -> Chunk:
        """Return a chunk, from the cache or from the source."""
        own: tuple[int, Chunk] | None = getattr(self._own, "chunk", None)
        if own is not None and own[0] == index:
            return own[1]
        found = self._shared(index)
        self._own.chunk = (index, found)
        return found

    def ahead(self, indices: Iterable[int]) -> None:
        """Prefetch the chunks that fit, several at a time, because each read of a remote store waits."""
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
                    self._pool = ThreadPoolExecutor(CONCURRENT_READS, thread_name_prefix="streamkern-ahead")
            self._pool.submit(self._fetch, index)

    def _fetch(self, index: int) -> None:
        try:
            self._shared(index)
        except Exception:  # raised again when the chunk is requested
            pass
        finally:
            with self._lock:
                del self._sent[index]

    def _shared(self, index: int) -> Chunk:
        with self._lock:
            if (found := self._look(index)) is not None:
                return found
            gate = self._reading.setdefault(index, threading.Lock())
        with gate:
            with self._lock:
                found = self._look(index)
            return self._read(index) if found is None else found

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
            if index not in self._chunks:  # with a replaced lock, two threads may have read the chunk
                self._chunks[index] = chunk
                self._held += chunk.nbytes
            others_sent = sum(size for sent, size in self._sent.items() if sent != index)
            while self._held + others_sent > self.cache_bytes and len(self._chunks) > 1:
                keep = {index}.union(*self.wanted)
                spare = (held for held in self._chunks if held not in keep)
                # If not even the wanted chunks fit, evict the one used last: its next turn is furthest away.
                others = (held for held in reversed(self._chunks) if held != index)
                least = next(chain(spare, others))
                self._held -= self._chunks.pop(least).nbytes
        return chunk
