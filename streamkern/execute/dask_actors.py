"""Lanes of a step on a worker of a Dask cluster: one long-lived actor, which may be a node of a tree of workers."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from distributed import get_worker

from streamkern.execute.base import Parts, ProcessCounts, Share, Tree
from streamkern.execute.threads_executor import LanePool
from streamkern.execute.tree_allreduce import Peers, Route
from streamkern.execute.worker_protocol import (
    Shared,
    loads,
    lower_priority,
    packed_reply,
    request_counts_of_worker,
)
from streamkern.memory import keep_heap


class TreeResult(NamedTuple):
    """Reply of a root for all workers of its tree; ``elapsed`` are the seconds of the slowest."""

    sums: dict[tuple[int, int], Parts]
    shares: tuple[Share, ...]
    elapsed: float
    counts: tuple[ProcessCounts | None, ...]


class LaneActor:
    """Some of the lanes, on a worker."""

    def __init__(self, shared: Shared, route: Route, assigned: range, lanes: int, threads: int, driver: str) -> None:
        keep_heap()
        self._shared, self._slots, self._assigned, self._lanes = shared, threads, assigned, lanes
        self._peers, self._context = Peers(route), contextvars.copy_context()
        self._steps = ThreadPoolExecutor(1, thread_name_prefix="streamkern-step")
        self._threads = ThreadPoolExecutor(
            threads, thread_name_prefix="streamkern", initializer=lower_priority, initargs=(driver,)
        )
        self._pool = LanePool(shared.value, assigned, lanes, self._threads)

    async def step(self, message: bytes) -> bytes:
        """Run a step; called at a root."""
        return await asyncio.wrap_future(self._steps.submit(self._context.copy().run, self._step, message))

    async def deliver(self, name: tuple[Any, ...], message: bytes) -> None:
        """Accept the request for a step, or sums for the running one, from another worker."""
        if name[0] == "go":
            self._steps.submit(self._context.copy().run, self._step, message)
        else:
            self._peers.deliver(name, message)

    async def awaited(self) -> str | None:
        """Address of the worker that this one waits for."""
        return self._peers.awaited

    async def stop(self) -> None:
        """Raise ``LostError`` in threads that wait for a message."""
        self._peers.close()

    def close(self) -> ProcessCounts | None:
        self._steps.shutdown()
        self._pool.close()
        self._threads.shutdown()
        return request_counts_of_worker(self._shared)

    def _step(self, message: bytes) -> bytes:
        return packed_reply(self._shared, lambda: self._run(message))

    def _run(self, message: bytes) -> TreeResult | None:
        number, position, state, ahead = loads(message)
        self._peers.go(number, message)

        def own() -> TreeResult:
            done = self._pool.nodes(position, state, ahead)
            share = Share(get_worker().address, len(self._assigned), done.wait, done.compute)
            if ahead:  # while the sums travel and the host updates
                self._pool.begin_ahead(ahead[0], 2 * self._slots)
            return TreeResult(done.sums, (share,), done.elapsed, (request_counts_of_worker(self._shared),))

        return self._peers.gathered((number,), own, self._joined)

    def _joined(self, one: TreeResult, other: TreeResult) -> TreeResult:
        tree = Tree(self._lanes, one.sums)
        for (level, index), parts in other.sums.items():
            tree.put(level, index, parts)
        return TreeResult(
            tree.nodes, one.shares + other.shares, max(one.elapsed, other.elapsed), one.counts + other.counts
        )
