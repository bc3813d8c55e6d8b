"""The workers of a cluster during a run: their threads, and when each came and was lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any


class WorkerLog:
    """Workers seen since a run began, by address.

    Attributes:
        on_loss: called with a sentence when a worker is lost; None to call nothing.
    """

    def __init__(self) -> None:
        self.on_loss: Callable[[str], None] | None = None
        self._found: dict[str, dict[str, Any]] = {}
        self._lock = Lock()

    def joined(self, address: str, threads: int) -> None:
        """Note a worker that takes tasks, unless it is known."""
        with self._lock:
            if self._found.get(address, {"lost": 0})["lost"] is not None:
                self._found[address] = {"worker": address, "threads": threads, "came": time.time(), "lost": None}

    def lost(self, address: str) -> None:
        """Note that a worker is gone, and report it once."""
        with self._lock:
            known = self._found.get(address)
            if known is None or known["lost"] is not None:
                return
            known["lost"] = time.time()
            left = sum(each["lost"] is None for each in self._found.values())
        if self.on_loss is not None:
            at = time.strftime("%H:%M:%S", time.localtime(known["lost"]))
            self.on_loss(
                f"the worker {address} ({known['threads']} threads) was lost at {at}; its work is repeated on the "
                f"{left} that are left"
            )

    def to_json(self) -> list[dict[str, Any]]:
        """Return ``worker`` (address), ``threads``, and ``came`` and ``lost`` (seconds since the epoch, or None)."""
        with self._lock:
            return [dict(each) for each in self._found.values()]
