"""Messages among the workers of a step, which form a tree: a request goes down it, and sums go up.

A message is a call of an actor on another worker, over the connections that Dask's workers have to each other.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from distributed import get_worker

from streamkern.execute.worker_protocol import LostError, dumps, loads, sendable_error

T = TypeVar("T")

_CLOSED = ("closed",)


class Route(NamedTuple):
    """The position of a worker in the tree of a step: rank 0 is the root.

    ``peers`` have address and actor key by rank; after ``timeout`` seconds a missing message counts as lost.
    """

    rank: int
    peers: tuple[tuple[str, str], ...]
    timeout: float

    @property
    def parent(self) -> int:
        """Rank of the worker that receives this worker's results."""
        return self.rank & (self.rank - 1)

    @property
    def children(self) -> list[int]:
        """Ranks of the workers that send their results here, in the order of their lanes."""
        below = self.rank & -self.rank or len(self.peers)
        return [self.rank + (1 << k) for k in range(below.bit_length()) if 1 << k < below
                and self.rank + (1 << k) < len(self.peers)]  # fmt: skip


class Failed(NamedTuple):
    """Message with the error of a worker, which those above it raise, too."""

    error: Exception


class Peers:
    """The other workers of a tree."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self._worker = get_worker()
        loop: Any = self._worker.loop
        self._loop: asyncio.AbstractEventLoop = loop.asyncio_loop
        self._mail: dict[Any, bytes] = {}
        self._came = threading.Condition()
        self._waiting: tuple[Any, ...] | None = None  # name of the message that the step's thread waits for

    @property
    def awaited(self) -> str | None:
        """Address of the child whose message the step's thread waits for, or None."""
        with self._came:
            waiting = self._waiting
        return None if waiting is None else self.route.peers[waiting[-1]][0]

    def deliver(self, name: tuple[Any, ...], message: bytes) -> None:
        """Store a message: the thread that it is for may wait for it only later."""
        with self._came:
            self._mail[name] = message
            self._came.notify_all()

    def close(self) -> None:
        """Raise ``LostError`` in all threads that wait for a message."""
        self.deliver(_CLOSED, b"")

    def go(self, number: int, message: bytes) -> None:
        """Send the request for a step to the children."""
        for child in self.route.children:
            self._send(child, ("go", number), message)

    def gathered(self, name: tuple[Any, ...], compute: Callable[[], T], join: Callable[[T, T], T]) -> T | None:
        """Combine the results of all workers up the tree; return them at the root, and None elsewhere."""
        value: T | Failed
        try:
            value = compute()
        except LostError:
            raise
        except Exception as error:
            value = Failed(sendable_error(error))
        for child in self.route.children:
            other: T | Failed = loads(self._take((*name, child)))
            if not isinstance(value, Failed):
                value = other if isinstance(other, Failed) else join(value, other)
        if self.route.rank:
            self._send(self.route.parent, (*name, self.route.rank), dumps(value))
        if isinstance(value, Failed):
            raise value.error
        return None if self.route.rank else value

    def _take(self, name: tuple[Any, ...]) -> bytes:
        deadline = time.monotonic() + self.route.timeout
        tick = 1.0  # seconds between checks of the deadline while a thread waits for a message
        with self._came:
            self._waiting = name
            try:
                while name not in self._mail:
                    if _CLOSED in self._mail or time.monotonic() > deadline:
                        raise LostError
                    self._came.wait(tick)
                return self._mail.pop(name)
            finally:
                self._waiting = None

    def _send(self, rank: int, name: tuple[Any, ...], message: bytes) -> None:
        """Send without waiting: if the message is lost, threads that wait for an answer to it must not."""
        address, key = self.route.peers[rank]

        async def send() -> None:
            try:
                answer = await self._worker.rpc(address).actor_execute(
                    function="deliver", actor=key, args=[name, message], kwargs={}
                )
                if answer["status"] != "OK":
                    self.close()
            except Exception:
                self.close()

        asyncio.run_coroutine_threadsafe(send(), self._loop)
