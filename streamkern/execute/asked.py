"""What workers ask of remote stores, told with their answers.

A worker tells all that its process has asked so far, never what was added: an answer that is lost or read twice counts
nothing wrongly.
"""

from __future__ import annotations

import os
import secrets
from typing import NamedTuple

from streamkern.storage.remote import COUNTS

_PROCESS = secrets.token_hex(8)


class Told(NamedTuple):
    """Of one process.

    Attributes:
        process: its name, which no other has.
        worker: address of its worker.
        before: what it had asked when it was given something to do.
        now: what it has asked.
    """

    process: str
    worker: str
    before: dict[str, int]
    now: dict[str, int]


def tell(worker: str, before: dict[str, int]) -> Told | None:
    """What this process has asked; None where that is nothing."""
    now = COUNTS.now()
    return Told(_name(), worker, before, now) if now["requests"] else None


class Asked:
    """What workers have asked since each was first given something to do here. Another thread may look."""

    def __init__(self) -> None:
        self._told: dict[str, Told] = {}

    def note(self, told: Told | None) -> None:
        """Take what a worker tells, in any order; of a worker in this process nothing, which has counted it."""
        if told is None or told.process == _name():
            return
        old = self._told.get(told.process, told)
        before = {name: min(count, old.before[name]) for name, count in told.before.items()}
        now = {name: max(count, old.now[name]) for name, count in told.now.items()}
        self._told[told.process] = Told(told.process, told.worker, before, now)

    def by_worker(self) -> dict[str, dict[str, int]]:
        """``requests``, ``retries`` and ``rereads`` by address, of workers that have gone too."""
        found: dict[str, dict[str, int]] = {}
        for told in list(self._told.values()):
            earlier = found.get(told.worker, {})  # a process that had the address before
            found[told.worker] = {
                name: count - told.before[name] + earlier.get(name, 0) for name, count in told.now.items()
            }
        return found


def _name() -> str:
    return f"{_PROCESS}-{os.getpid()}"  # a forked process has the random part of its parent
