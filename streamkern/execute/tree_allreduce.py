"""Messages among the workers of a step, which form a tree: each sends its result up, and receives the total from above.

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

_TICK = 1.0  # seconds between checks of the deadline while a thread waits for a message
_CLOSED = "closed"


class Route(NamedTuple):
    """The position of a worker in the tree of a step.

    Attributes:
        rank: number of the worker; 0 is the root.
        peers: address and actor key of every worker of the tree, by rank.
        timeout: seconds after which a missing message counts as lost.
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
        """Ranks of the workers that send their results here, in the order of their lanes or tiles."""
        below = self.rank & -self.rank or len(self.peers)
        return [self.rank + (1 << k) for k in range(below.bit_length()) if 1 << k < below
                and self.rank + (1 << k) < len(self.peers)]  # fmt: skip


class Failed(NamedTuple):
    """Message with the error of a worker, which all workers of the tree then raise."""

    error: Exception


class Peers:
    """Send messages to the other workers of a tree, and wait for theirs."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self._worker = get_worker()
        loop: Any = self._worker.loop
        self._loop: asyncio.AbstractEventLoop = loop.asyncio_loop
        self._mail: dict[Any, bytes] = {}
        self._came = threading.Condition()
        self._waiting = set[tuple[Any, ...]]()  # names of messages; the rows of the next step are a thread of their own

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return _CLOSED in self._mail

    @property
    def awaited(self) -> str | None:
        """Address of a child whose message a thread waits for; None if no thread waits for a child."""
        with self._came:
            senders = {name[-1] for name in self._waiting} & set(self.route.children)
        return self.route.peers[min(senders)][0] if senders else None

    def deliver(self, name: tuple[Any, ...], message: bytes) -> None:
        """Store a message for the thread that waits for it, now or later."""
        with self._came:
            self._mail[name] = message
            self._came.notify_all()

    def close(self) -> None:
        """Raise ``LostError`` in all threads that wait for a message."""
        with self._came:
            self._mail[_CLOSED] = b""
            self._came.notify_all()

    def go(self, number: int, message: bytes) -> None:
        """Send the request for a step to the children."""
        for child in self.route.children:
            self._send(child, ("go", number), message)

    def together(
        self,
        name: tuple[Any, ...],
        compute: Callable[[], Any],
        join: Callable[[Any, Any], Any],
        close: Callable[[Any], T],
        rest: Callable[[T, Any], Any] | None = None,
    ) -> T:
        """Combine the results of all workers up the tree, and return the total, which the root sends down.

        ``join`` combines the results of two neighbours. ``close`` is called at the root, and returns the total from the
        results of all workers. ``rest`` returns the part of the total that a child lacks, given the result of the
        child, which then joins the two; without it, the total is sent.

        Raises:
            LostError: a message did not arrive in time, or ``close`` was called.
            Exception: the exception of one of the workers.
        """
        value, below = self._up(name, compute, join)
        if self.route.rank:
            found = loads(self._take((*name, self.route.parent)))
            if rest is not None and not isinstance(found, Failed):
                found = join(value, found)
        else:
            found = value if isinstance(value, Failed) else close(value)
        for child, part in below.items():
            sent = found if rest is None or isinstance(found, Failed) else rest(found, part)
            self._send(child, (*name, self.route.rank), dumps(sent))
        if isinstance(found, Failed):
            raise found.error
        done: T = found
        return done

    def gathered(self, name: tuple[Any, ...], compute: Callable[[], T], join: Callable[[T, T], T]) -> T | None:
        """Combine the results of all workers up the tree; return them at the root, and None elsewhere.

        Arguments and exceptions are those of ``together``.
        """
        value, _ = self._up(name, compute, join)
        if isinstance(value, Failed):
            raise value.error
        found: T | None = None if self.route.rank else value
        return found

    def _up(
        self, name: tuple[Any, ...], compute: Callable[[], Any], join: Callable[[Any, Any], Any]
    ) -> tuple[Any, dict[int, Any]]:
        """Combine this worker's result with its children's and send it to the parent; return it, and the children's."""
        try:
            value = compute()
        except LostError:
            raise
        except Exception as error:
            value = Failed(sendable_error(error))
        below = {}
        for child in self.route.children:
            other = below[child] = loads(self._take((*name, child)))
            if not isinstance(value, Failed):
                value = other if isinstance(other, Failed) else join(value, other)
        if self.route.rank:
            self._send(self.route.parent, (*name, self.route.rank), dumps(value))
        return value, below

    def _take(self, name: tuple[Any, ...]) -> bytes:
        """Return a message, after waiting for it. The last entry of its name is the sender's rank.

        Raises:
            LostError: the message did not arrive in time, or ``close`` was called.
        """
        deadline = time.monotonic() + self.route.timeout
        with self._came:
            self._waiting.add(name)
            try:
                while name not in self._mail:
                    if _CLOSED in self._mail or time.monotonic() > deadline:
                        raise LostError
                    self._came.wait(_TICK)
                return self._mail.pop(name)
            finally:
                self._waiting.discard(name)

    def _send(self, rank: int, name: tuple[Any, ...], message: bytes) -> None:
        """Send a message to another worker, without waiting for its arrival; call ``close`` if it cannot be sent."""
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
