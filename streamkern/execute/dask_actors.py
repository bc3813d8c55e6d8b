"""Lanes of a step on the workers of a Dask cluster: one long-lived actor a worker, made again where one is lost.

The driver sends the state to ``MAX_TREE_ROOTS`` workers and receives their sums. With more workers, each of these is
the root of a tree of workers, which passes the state down and adds the sums up (ADR 26), in the order of ``Tree``.
"""

from __future__ import annotations

import asyncio
import contextvars
import platform
import secrets
import time
from asyncio import CancelledError
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import dask
from distributed import Future, get_worker

from streamkern.execute.base import Parts, Position, Share, StepResult, Tree, ranges_of_lanes
from streamkern.execute.request_counts import ProcessCounts, WorkerCounts
from streamkern.execute.threads_executor import LanePool
from streamkern.execute.tree_allreduce import Peers, Route
from streamkern.execute.worker_protocol import (
    MAX_ATTEMPTS,
    LostError,
    Shared,
    dumps,
    loads,
    lower_priority,
    packed_reply,
    request_counts_of_worker,
    too_many_losses_error,
)
from streamkern.memory import keep_heap

T = TypeVar("T")

POLL_SECONDS = 1.0
"""Seconds between looks at the workers while an answer is awaited."""

WORKER_UPDATE_SECONDS = 5.0
"""Seconds between looks at the workers while answers keep coming."""

FAILED_STATUSES = ("lost", "error", "cancelled")
"""Status of a future that will have no result."""

CLOSE_SECONDS = 5.0
"""Seconds that an actor may take to release its state."""

MAX_TREE_ROOTS = 8
"""Most workers with which the driver exchanges messages in a step, one after another, in about 1 ms each."""


class Cluster(Protocol):
    """The executor whose workers lanes are placed on, see ``DaskExecutor``."""

    client: Any
    losses: int
    step_timeout: float
    request_counts: WorkerCounts

    @property
    def workers(self) -> dict[str, int]:
        """Threads of every worker that takes tasks, by address."""

    def update_workers(self, age: float = 0.0) -> None:
        """See which workers there are."""

    def require_workers(self) -> None:
        """Wait until there is a worker."""

    def broadcast(self, payload: bytes) -> Future[Shared]:
        """Unpickle ``payload`` once, on a worker; the others copy it when they need it."""

    def task_result(self, answer: bytes, worker: str | None = None) -> Any:
        """The result of a task; its error is raised here."""

    def wait(self, future: Future[T], worker: str | None = None, deadline: float | None = None) -> T:
        """The result of a future."""

    def explain_delay(self, future: Future[Any], worker: str | None, deadline: float | None) -> None:
        """Look for the reason why an answer that depends on ``future`` is late."""


class Lanes:
    """Lanes on the workers of a cluster, made again wherever there are workers when one is lost."""

    def __init__(self, executor: Cluster, payload: bytes, lanes: int) -> None:
        self.executor = executor
        self.payload = payload
        self.lanes = lanes
        self._futures: list[Future[Any]] = []
        self._actors: list[PlacedActor] = []
        self._number = 0

    def step(self, position: Position, state: Any, ahead: Sequence[Position] = ()) -> StepResult:
        """Sum over all lanes; repeated from the start if a worker is lost.

        Raises:
            StorageError: the cluster is gone, has no workers, or loses them at every attempt.
        """
        before = self.executor.losses
        for retries in range(MAX_ATTEMPTS):
            start = time.perf_counter()
            try:
                with self.executor.client.as_current():  # an actor talks through the current client
                    self._place()
                    parts, shares, slowest = self._step(position, state, tuple(ahead))
            except LostError as error:
                self._stop()
                self._drop()
                lost = error
            else:
                reduce = time.perf_counter() - start - slowest
                return StepResult(parts, shares, reduce, retries, self.executor.losses - before)
        raise too_many_losses_error(f"Pass {position[0] + 1}, step {position[1] + 1}") from lost

    def close(self) -> None:
        self._stop()
        with self.executor.client.as_current():
            for placed in self._actors:
                with suppress(Exception, CancelledError):  # a worker that cannot be reached is gone
                    self.executor.request_counts.add(placed.actor.close().result(timeout=CLOSE_SECONDS))
        self._drop()

    def _drop(self) -> None:
        with suppress(Exception):  # a client that has lost its scheduler has nothing to cancel
            self.executor.client.cancel(self._futures)
        self._futures.clear()
        self._actors.clear()

    def _place(self) -> None:
        """Create actors if absent, or again if the current workers would need fewer rounds for a step."""
        executor = self.executor
        executor.update_workers(WORKER_UPDATE_SECONDS if self._actors else 0.0)
        executor.require_workers()
        threads = executor.workers
        parts = ranges_of_lanes(self.lanes, threads)
        if self._actors:
            held = max(-(-len(placed.assigned) // placed.threads) for placed in self._actors)
            if held <= max(-(-len(assigned) // threads[address]) for address, assigned in parts.items()):
                return
            self.close()
        deadline = time.monotonic() + executor.step_timeout
        self._futures = self._submitted(parts, threads)
        self._actors = [
            PlacedActor(address, assigned, threads[address], future, executor.wait(future, address, deadline))
            for (address, assigned), future in zip(parts.items(), self._futures, strict=True)
        ]

    def _submitted(self, parts: Mapping[str, range], threads: Mapping[str, int]) -> list[Future[Any]]:
        broadcast, name = self.executor.broadcast(self.payload), f"streamkern-lanes-{secrets.token_hex(8)}"
        peers, roots = [(address, f"{name}-{number}") for number, address in enumerate(parts)], tree_roots(len(parts))
        futures = list[Future[Any]]()
        for first, last in pairwise([*roots, len(parts)]):
            tree = tuple(peers[first:last])
            for rank, (address, key) in enumerate(tree):
                futures.append(
                    self.executor.client.submit(
                        LaneActor,
                        broadcast,
                        Route(rank, tree, self.executor.step_timeout),
                        parts[address],
                        self.lanes,
                        threads[address],
                        platform.node(),
                        actor=True,
                        workers=[address],
                        key=key,
                    )
                )
        return futures

    def _step(
        self, position: Position, state: Any, ahead: tuple[Position, ...]
    ) -> tuple[Parts, tuple[Share, ...], float]:
        executor, tree, shares, slowest = self.executor, Tree(self.lanes), list[Share](), 0.0
        self._number += 1
        message, deadline = dumps((self._number, position, state, ahead)), time.monotonic() + executor.step_timeout
        roots = [self._actors[number] for number in tree_roots(len(self._actors))]
        calls = [(placed, call_actor(placed, message)) for placed in roots]
        for placed, call in calls:
            done: TreeResult = executor.task_result(self._answer(placed, call, deadline), placed.address)
            for (level, index), parts in done.sums.items():
                tree.put(level, index, parts)
            for requests in done.counts:
                executor.request_counts.add(requests)
            shares += done.shares
            slowest = max(slowest, done.elapsed)
        return tree.total(), tuple(shares), slowest

    def _answer(self, placed: PlacedActor, call: Any, deadline: float) -> bytes:
        while True:
            try:
                return bytes(call.result(timeout=POLL_SECONDS))
            except TimeoutError:
                late = placed if time.monotonic() <= deadline else self._late(placed)
                self.executor.explain_delay(late.future, late.address, deadline)
                self._require_others()
            except (Exception, CancelledError) as error:  # exceptions of the work itself come as replies
                raise LostError from error

    def _late(self, placed: PlacedActor) -> PlacedActor:
        """Return the actor that the others wait for, a root through those below it: the root itself may be well."""
        below = {each.address: each for each in self._actors}
        while True:
            try:
                address = placed.actor.awaited().result(timeout=CLOSE_SECONDS)
            except (Exception, CancelledError):
                return placed
            if address is None:
                return placed
            placed = below[address]

    def _require_others(self) -> None:
        """Raise ``LostError`` where an actor is gone, since a reply may depend on any of them."""
        if any(
            placed.address not in self.executor.workers or placed.future.status in FAILED_STATUSES
            for placed in self._actors
        ):
            raise LostError

    def _stop(self) -> None:
        if len(self._actors) <= MAX_TREE_ROOTS:  # none waits for another
            return
        with self.executor.client.as_current():
            for placed in self._actors:
                with suppress(Exception, CancelledError):
                    placed.actor.stop().result(timeout=CLOSE_SECONDS)


def tree_roots(workers: int, most: int | None = None) -> list[int]:
    """Return the numbers of the workers that are roots, at most ``most``; a tree ends before the next root."""
    count = min(MAX_TREE_ROOTS if most is None else most, workers)
    return [workers * number // count for number in range(count)]


class PlacedActor(NamedTuple):
    """An actor, its lanes and threads, and the future that keeps it alive."""

    address: str
    assigned: range
    threads: int
    future: Future[Any]
    actor: Any


def call_actor(placed: PlacedActor, message: bytes) -> Any:
    """Ask an actor for a step; an actor that is gone is a ``LostError``, not one of the work."""
    try:
        return placed.actor.step(message)
    except RuntimeError as error:
        raise LostError from error


def large_arguments() -> dask.config.set:
    """Let tasks be submitted with arguments of any size."""
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": 1 << 60})


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
