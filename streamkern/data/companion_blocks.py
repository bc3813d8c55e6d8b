"""Blocks that a step needs in addition to its own, read in the process that runs the step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from streamkern.data.row_order import Block, Key, Scan, Stream
from streamkern.types import IntArray


class AllTiles:
    """All training rows in stored order, by tiles of at most ``rows`` rows, through the stream's cache of chunks."""

    def __init__(self, stream: Stream, rows: int) -> None:
        self.stream, self.rows = stream, rows
        self.scan = Scan(replace(stream.assembly, encoding=None), rows)
        self.scan.reader = stream.reader  # share the cache: stored rows are kept once in a process

    def __reduce__(self) -> tuple[Any, ...]:
        return AllTiles, (self.stream, self.rows)

    def __call__(self, state: Any) -> Iterator[Block]:
        return (self.scan.block((index,)) for index in range(len(self.scan)))

    def cuts(self, ids: IntArray) -> list[slice]:
        """Return slices of ``ids``, ascending row ids, one for each tile."""
        starts, stops = self.scan.spans
        return list(map(slice, np.searchsorted(ids, starts).tolist(), np.searchsorted(ids, stops).tolist()))


class RecentBlocks:
    """Blocks of earlier steps, rebuilt from the keys in a state, so that a state holds integers and not rows."""

    def __init__(self, stream: Stream, keys: Callable[[Any], Iterable[Key]]) -> None:
        self.stream, self.keys = stream, keys
        self._kept: dict[Key, Block] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return RecentBlocks, (self.stream, self.keys)

    def __call__(self, state: Any) -> Iterator[Block]:
        keys = list(self.keys(state))
        with self._lock:
            for key in self._kept.keys() - set(keys):
                del self._kept[key]
        return map(self._block, keys)

    def _block(self, key: Key) -> Block:
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            found = self.stream.block(key)
            with self._lock:
                self._kept[key] = found
        return found
