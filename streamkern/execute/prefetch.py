"""Blocks made ahead of time by one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any


class Prefetch:
    """Builds blocks in the background, in the order they were announced, and hands each out once.

    Its memory is bounded by the announced blocks: the caller announces a step or two.
    """

    def __init__(self, build: Callable[..., Any]) -> None:
        self._build = build
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="streamkern-prefetch")
        self._ready: dict[tuple[Hashable, ...], Future[Any]] = {}
        self._lock = threading.Lock()

    def announce(self, keys: Iterable[tuple[Hashable, ...]]) -> None:
        """Keep blocks of these keys, and of no others, on the way."""
        wanted = dict.fromkeys(keys)
        with self._lock:
            for key in [key for key in self._ready if key not in wanted]:
                self._ready.pop(key).cancel()
            for key in wanted:
                if key not in self._ready:
                    self._ready[key] = self._pool.submit(self._build, *key)

    def take(self, key: tuple[Hashable, ...]) -> tuple[Any, float]:
        """The block, and how many seconds it was waited for."""
        start = time.perf_counter()
        with self._lock:
            future = self._ready.pop(key)
        block = future.result()
        return block, time.perf_counter() - start

    def peek(self, key: tuple[Hashable, ...], wait: bool = True) -> Any:
        """Return the block of a key, which stays for ``take``; None if it was not begun, failed or needs ``wait``."""
        with self._lock:
            future = self._ready.get(key)
        try:
            return None if future is None or not (wait or future.done()) else future.result()
        except (Exception, CancelledError):  # raised when the block is taken
            return None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
