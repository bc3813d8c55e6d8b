"""Counts of remote-store requests, sent back by workers with each reply.

Counts are cumulative per process, so a lost or repeated reply cannot distort them.
"""

from __future__ import annotations

import os
import secrets
from typing import NamedTuple

from streamkern.sources.remote_store import REQUEST_COUNTS

_PROCESS = secrets.token_hex(8)


class ProcessCounts(NamedTuple):
    """Request counts of a worker process, whose name no other has, ``before`` its first work and at the reply."""

    process: str
    worker: str
    before: dict[str, int]
    now: dict[str, int]


def process_counts(worker: str, before: dict[str, int]) -> ProcessCounts | None:
    """Counts of this process; None if it has sent no request."""
    now = REQUEST_COUNTS.now()
    return ProcessCounts(_name(), worker, before, now) if now["requests"] else None


class WorkerCounts:
    """Requests of each worker since it was first given work by this executor. Safe to read from another thread."""

    def __init__(self) -> None:
        self._processes: dict[str, ProcessCounts] = {}

    def add(self, counts: ProcessCounts | None) -> None:
        """Add the counts of a reply; those of this process are left out, since it counts its own."""
        if counts is None or counts.process == _name():
            return
        old = self._processes.get(counts.process, counts)
        before = {name: min(count, old.before[name]) for name, count in counts.before.items()}
        now = {name: max(count, old.now[name]) for name, count in counts.now.items()}
        self._processes[counts.process] = ProcessCounts(counts.process, counts.worker, before, now)

    def by_worker(self) -> dict[str, dict[str, int]]:
        """``requests``, ``retries`` and ``rereads`` by address, including workers that have gone."""
        found: dict[str, dict[str, int]] = {}
        for process in list(self._processes.values()):
            earlier = found.get(process.worker, {})  # a process that had the address before
            found[process.worker] = {
                name: count - process.before[name] + earlier.get(name, 0) for name, count in process.now.items()
            }
        return found


def _name() -> str:
    return f"{_PROCESS}-{os.getpid()}"  # a forked process has the random part of its parent
