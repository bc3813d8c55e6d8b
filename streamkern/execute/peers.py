"""Messages among the workers of a step, which form a tree: their parts go up it, and the whole goes down again.

A worker calls an actor of another worker, through the connections that Dask's workers have among themselves.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from distributed import get_worker

from streamkern.execute.wire import LostError, as_sent, dumps, loads

T = TypeVar("T")

_TICK = 1.0  # seconds between looks whether a message is still waited for
_CLOSED = "closed"


class Route(NamedTuple):
    """A worker's place in the tree of a step.

    Attributes:
        rank: its number; 0 is the root.
        peers: address and actor's key of every worker of the tree, by rank.
        timeout: seconds that a message is waited for.
    """

    rank: int
    peers: tuple[tuple[str, str], ...]
    timeout: float

    @property
    def parent(self) -> int:
        """Rank of the worker that sums are sent to."""
        return self.rank & (self.rank - 1)

    @property
    def children(self) -> list[int]:
        """Ranks of the workers that send their sums here, in the order of what they hold."""
        below = self.rank & -self.rank or len(self.peers)
        return [self.rank + (1 << k) for k in range(below.bit_length()) if 1 << k < below
                and self.rank + (1 << k) < len(self.peers)]  # fmt: skip


class Failed(NamedTuple):
    """An error of one worker, raised by all of them."""

    error: Exception


class Peers:
    """A worker's messages to and from the others of its tree.

    Args:
        route: its place.
    """

    def __init__(self, route: Route) -> None:
        self.route = route
        self._worker = get_worker()
        loop: Any = self._worker.loop
        self._loop: asyncio.AbstractEventLoop = loop.asyncio_loop
        self._mail: dict[Any, bytes] = {}
        self._came = threading.Condition()
        self._awaited: int | None = None

    @property
    def closed(self) -> bool:
        """True once nothing more is waited for."""
        return _CLOSED in self._mail

    @property
    def awaited(self) -> str | None:
        """Address of the worker below whose part a step waits for; None while it waits for none of them."""
        rank = self._awaited
        return None if rank is None else self.route.peers[rank][0]

    def deliver(self, name: tuple[Any, ...], message: bytes) -> None:
        """Accept a message that a step waits for, or will."""
        with self._came:
            self._mail[name] = message
            self._came.notify_all()

    def close(self) -> None:
        """Have threads that wait for a message raise ``LostError``."""
        with self._came:
            self._mail[_CLOSED] = b""
            self._came.notify_all()

    def go(self, number: int, message: bytes) -> None:
        """Have the workers below begin a step."""
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
        """Results of all workers, joined up the tree, closed at its root and sent down again.

        Args:
            name: of the messages.
            compute: a worker's part.
            join: two neighbours' parts.
            close: the whole, from the parts joined.
            rest: what of the whole is sent to who has a joined part, and joins it to that; None for all of it.

        Raises:
            LostError: a worker does not answer.
            Exception: that of one of them.
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
        """At the root, the parts of all workers joined; elsewhere None, once the own part is on its way.

        Raises:
            LostError, Exception: see ``together``.
        """
        value, _ = self._up(name, compute, join)
        if isinstance(value, Failed):
            raise value.error
        found: T | None = None if self.route.rank else value
        return found

    def _up(
        self, name: tuple[Any, ...], compute: Callable[[], Any], join: Callable[[Any, Any], Any]
    ) -> tuple[Any, dict[int, Any]]:
        """This worker's part joined with those below, sent on to the one above; and those below, by rank."""
        try:
            value = compute()
        except LostError:
            raise
        except Exception as error:
            value = Failed(as_sent(error))
        below = {}
        for child in self.route.children:
            self._awaited = child
            other = below[child] = loads(self._take((*name, child)))
            self._awaited = None
            if not isinstance(value, Failed):
                value = other if isinstance(other, Failed) else join(value, other)
        if self.route.rank:
            self._send(self.route.parent, (*name, self.route.rank), dumps(value))
        return value, below

    def _take(self, name: tuple[Any, ...]) -> bytes:
        """Wait for a message.

        Raises:
            LostError: it does not come, or this worker is told to give up.
        """
        deadline = time.monotonic() + self.route.timeout
        with self._came:
            while name not in self._mail:
                if _CLOSED in self._mail or time.monotonic() > deadline:
                    raise LostError
                self._came.wait(_TICK)
            return self._mail.pop(name)

    def _send(self, rank: int, name: tuple[Any, ...], message: bytes) -> None:
        """Begin to send a message to another worker.

        If that worker is gone, the threads here that wait for a message raise ``LostError``.
        """
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
