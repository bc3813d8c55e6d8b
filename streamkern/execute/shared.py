"""A share of the centers, on a worker of a cluster: some tiles of them, with their weights, for all rows of a step.

The workers of a step form a tree, and their sums go along it from worker to worker; the driver calls its root.
Three things are exchanged, each up the tree and down again: the rows of the step, each lane's read by one worker; sums
over tiles of centers, such as outputs; and sums that follow from those. A message up holds the sums of the largest
complete subtrees of tiles, so the additions are those of ``Tree`` whatever the workers (ADR 26). Rows do not depend on
the state: those of the next step are exchanged by a thread of their own, while this one is computed.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from distributed import get_worker
from distributed.protocol.serialize import to_serialize

from streamkern.execute.base import Parts, Position, Share, SharedWork, Tree
from streamkern.execute.prefetch import Prefetch
from streamkern.execute.request_counts import ProcessCounts
from streamkern.execute.wire import LostError, Shared, counts, dumps, give_way, loads, packed
from streamkern.memory import check, keep_heap

T = TypeVar("T")
Sums = dict[int, dict[tuple[int, int], Parts]]
"""By lane: sums of the largest complete subtrees of tiles, by (level, index)."""

_TICK = 1.0  # seconds between looks whether a message is still waited for
_CLOSED = "closed"


class Route(NamedTuple):
    """A worker's part in a step with shared centers.

    Attributes:
        rank: its number; 0 is the root.
        peers: address and actor's key of every worker, by rank.
        tiles: of centers, held by this one.
        lanes: whose rows this one reads.
        threads: that compute here.
        timeout: seconds that a message is waited for.
        driver: name of the driver's machine.
    """

    rank: int
    peers: tuple[tuple[str, str], ...]
    tiles: range
    lanes: range
    threads: int
    timeout: float
    driver: str

    @property
    def parent(self) -> int:
        """Rank of the worker that sums are sent to."""
        return self.rank & (self.rank - 1)

    @property
    def children(self) -> list[int]:
        """Ranks of the workers that send their sums here, in the order of their tiles."""
        below = self.rank & -self.rank or len(self.peers)
        return [self.rank + (1 << k) for k in range(below.bit_length()) if 1 << k < below
                and self.rank + (1 << k) < len(self.peers)]  # fmt: skip


class _Failure(NamedTuple):
    """An error of one worker, raised by all of them."""

    error: Exception


class Done(NamedTuple):
    """Reply of the root: sums of the step, shares of the workers, seconds of the slowest, and counts of requests."""

    parts: Parts
    shares: tuple[Share, ...]
    slowest: float
    counts: tuple[ProcessCounts | None, ...]


class ShareActor:
    """Some tiles of the centers, on a worker.

    Args:
        shared: the work.
        route: which tiles.
        parts: the part of the state for each of them, pickled.
        first: number of the first step.
    """

    def __init__(self, shared: Shared, route: Route, parts: bytes, first: int) -> None:
        keep_heap()
        self._shared, self._route = shared, route
        self._work: SharedWork = shared.value
        self._parts: list[Any] = loads(parts)
        self._held: list[Any] = []
        self._values: dict[int, list[Any]] = {}
        self._worker, self._context = get_worker(), contextvars.copy_context()
        loop: Any = self._worker.loop
        self._loop: asyncio.AbstractEventLoop = loop.asyncio_loop
        self._wait = self._busy = 0.0  # seconds of the running step, of all threads together
        self._mail: dict[Any, bytes] = {}
        self._came = threading.Condition()
        self._prefetch = Prefetch(self._work.build)
        self._blocks: dict[Position, Future[dict[int, Any]]] = {}
        self._next, self._turns = first, dict[int, asyncio.Event]()
        self._rows = ThreadPoolExecutor(1, thread_name_prefix="streamkern-rows")
        self._steps = ThreadPoolExecutor(1, thread_name_prefix="streamkern-share")
        self._threads = ThreadPoolExecutor(
            route.threads, thread_name_prefix="streamkern", initializer=give_way, initargs=(route.driver,)
        )

    async def deliver(self, name: tuple[Any, ...], message: bytes) -> None:
        """Accept a message of another worker: a step to begin with, or sums that a running one waits for."""
        if name[0] == "go":
            self._steps.submit(self._context.copy().run, self._step, message)
            return
        with self._came:
            self._mail[name] = message
            self._came.notify_all()

    async def stop(self) -> None:
        """Cancel running steps and release the tiles: threads that wait for a message raise ``LostError``."""
        self._give_up()
        self._held, self._parts, self._values = [], [], {}
        self._blocks.clear()
        for turn in self._turns.values():  # those whose turn had not come end, too
            turn.set()

    async def step(self, message: bytes) -> bytes:
        """At the root: the sums of a step and each worker's share of the work; or the exception.

        Requests are sent before earlier ones are answered, each through a connection of its own, and may overtake one
        another: steps run in the order of their numbers.
        """
        number, _, _ = loads(message)
        turn = self._turns.setdefault(number, asyncio.Event())
        if number == self._next:
            turn.set()
        await turn.wait()
        running = self._steps.submit(self._context.copy().run, self._step, message)
        self._next = number + 1
        self._turns.pop(number)
        self._turns.setdefault(self._next, asyncio.Event()).set()
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Release the worker's arrays."""
        for pool in (self._steps, self._rows, self._threads):
            pool.shutdown()
        self._prefetch.close()

    def _step(self, message: bytes) -> bytes:
        return packed(self._shared, lambda: self._run(message))

    def _run(self, message: bytes) -> Done:
        number, position, ahead = loads(message)
        for child in self._route.children:
            self._send(child, ("go", number), message)
        started, work = time.perf_counter(), self._work
        self._busy = 0.0
        if position not in self._blocks:
            self._exchange(position, ahead)
        if not self._held:
            self._held = list(self._threads.map(work.hold, self._route.tiles))
        blocks = self._blocks.pop(position).result()
        self._wait = time.perf_counter() - started
        if ahead and ahead[0] not in self._blocks:
            self._exchange(ahead[0], ahead[1:])
        sums = self._together(
            (number, "sums"), lambda: self._over_tiles(blocks, self._forward), self._joined, self._totals
        )
        responses: dict[int, Any] = {}

        def backward() -> tuple[Sums, tuple[Any, ...]]:
            responses.update({lane: work.respond(block, *sums[lane]) for lane, block in blocks.items()})
            found = self._over_tiles(responses, self._backward)
            share = Share(self._worker.address, len(self._route.lanes), self._wait, self._busy)
            return found, ((share, time.perf_counter() - started, counts(self._shared)),)

        totals, reports = self._together(
            (number, "backward"),
            backward,
            lambda a, b: (self._joined(a[0], b[0]), (*a[1], *b[1])),
            lambda both: (self._totals(both[0]), both[1]),
        )
        tree = Tree(len(blocks))
        for lane in sorted(blocks):
            tree.put(0, lane, work.contribute(blocks[lane], responses[lane], *totals[lane]))
        parts = tree.total()
        self._parts = [work.advance(held, part, parts) for held, part in zip(self._held, self._parts, strict=True)]
        shares, elapsed, requests = zip(*reports, strict=True)
        return Done(parts, shares, max(elapsed), requests)

    def _exchange(self, position: Position, ahead: Sequence[Position]) -> None:
        """Begin to exchange the blocks of a step; those of ``ahead`` are read meanwhile."""
        lanes = self._route.lanes

        def taken() -> dict[int, Any]:
            return {lane: self._prefetch.take((position[0], lane, position[1]))[0] for lane in lanes}

        def exchanged() -> dict[int, Any]:
            self._prefetch.announce((pass_, lane, step) for pass_, step in (position, *ahead) for lane in lanes)
            return self._together((*position, "rows"), taken, _both, lambda blocks: blocks, _others)

        self._blocks[position] = self._rows.submit(self._context.copy().run, exchanged)

    def _forward(self, i: int, blocks: dict[int, Any]) -> list[Parts]:
        found = self._work.forward(self._held[i], self._parts[i], list(blocks.values()))
        self._values[i] = [values for _, values in found]
        return [sums for sums, _ in found]

    def _backward(self, i: int, responses: dict[int, Any]) -> list[Parts]:
        pairs = zip(self._values.pop(i), responses.values(), strict=True)
        return [self._work.backward(self._parts[i], values, response) for values, response in pairs]

    def _over_tiles(self, given: dict[int, Any], compute: Callable[[int, dict[int, Any]], list[Parts]]) -> Sums:
        """Sums over the tiles held here for each lane."""
        first, count, cuts = self._route.tiles.start, len(self._route.tiles), self._route.threads

        def some(cut: int) -> tuple[list[Tree], float]:
            start, trees = time.perf_counter(), [Tree(self._work.leaves) for _ in given]
            for i in range(count * cut // cuts, count * (cut + 1) // cuts):
                if _CLOSED in self._mail:
                    raise LostError
                for tree, sums in zip(trees, compute(i, given), strict=True):
                    tree.put(0, first + i, sums)
                check()
            return trees, time.perf_counter() - start

        found = dict[int, Tree]()
        for trees, seconds in self._threads.map(some, range(cuts)):
            self._busy += seconds
            for lane, tree in zip(given, trees, strict=True):
                found[lane] = _merged(found[lane], tree.nodes) if lane in found else tree
        return {lane: tree.nodes for lane, tree in found.items()}

    def _joined(self, sums: Sums, others: Sums) -> Sums:
        """Sums of this worker and of one below it."""
        return {lane: _merged(Tree(self._work.leaves, sums[lane]), others[lane]).nodes for lane in sums}

    def _totals(self, sums: Sums) -> dict[int, Parts]:
        return {lane: Tree(self._work.leaves, nodes).total() for lane, nodes in sums.items()}

    # ---------------------------------------------------------------------------------------------------- messages

    def _together(
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
        try:
            value = compute()
        except LostError:
            raise
        except Exception as error:
            value = _Failure(error)
        below = {}
        for child in self._route.children:
            other = below[child] = loads(self._take((*name, child)))
            if not isinstance(value, _Failure):
                value = other if isinstance(other, _Failure) else join(value, other)
        if self._route.rank:
            self._send(self._route.parent, (*name, self._route.rank), dumps(value))
            found = loads(self._take((*name, self._route.parent)))
            if rest is not None and not isinstance(found, _Failure):
                found = join(value, found)
        else:
            found = value if isinstance(value, _Failure) else close(value)
        for child, part in below.items():
            sent = found if rest is None or isinstance(found, _Failure) else rest(found, part)
            self._send(child, (*name, self._route.rank), dumps(sent))
        if isinstance(found, _Failure):
            raise found.error
        done: T = found
        return done

    def _take(self, name: tuple[Any, ...]) -> bytes:
        """Wait for a message.

        Raises:
            LostError: it does not come, or this share is given up.
        """
        deadline = time.monotonic() + self._route.timeout
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
        address, key = self._route.peers[rank]

        async def send() -> None:
            arguments: list[Any] = [to_serialize(name), to_serialize(message)]  # type: ignore[no-untyped-call]
            try:
                answer = await self._worker.rpc(address).actor_execute(
                    function="deliver", actor=key, args=arguments, kwargs={}
                )
                if answer["status"] != "OK":
                    self._give_up()
            except Exception:
                self._give_up()

        asyncio.run_coroutine_threadsafe(send(), self._loop)

    def _give_up(self) -> None:
        with self._came:
            self._mail[_CLOSED] = b""
            self._came.notify_all()


def _both(a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
    return a | b


def _others(all_: dict[int, Any], some: dict[int, Any]) -> dict[int, Any]:
    return {lane: block for lane, block in all_.items() if lane not in some}


def _merged(tree: Tree, nodes: dict[tuple[int, int], Parts]) -> Tree:
    for (level, index), parts in nodes.items():
        tree.put(level, index, parts)
    return tree
