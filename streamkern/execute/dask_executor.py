"""Blocks on the workers of a Dask cluster: anything that a ``distributed.Client`` can talk to.

Sweeps are tasks, a bounded number in flight. Minibatch steps are calls to one long-lived actor a worker, which holds
its lanes' blocks and the centers: a task a step would cost several times as much.

Nothing waits for ever. A worker that dies is noticed at once; one that is silent for ``stall_timeout``, or does not
answer a step within ``step_timeout``, is removed from the cluster and counts as lost; a run without any worker for
``worker_timeout`` ends with an error.
"""

from __future__ import annotations

import logging
import platform
import secrets
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeVar, cast

import dask
from distributed import Client, Future, KilledWorker, LocalCluster
from distributed.client import FutureCancelledError

from streamkern.engine.parallel import one_blas_thread
from streamkern.errors import MemoryLimitError, StorageError, UsageError
from streamkern.execute.base import Executor, LaneWork, Parts, Position, Share, StepResult, Tree, ranges_of_lanes
from streamkern.execute.dask_actors import LaneActor, TreeResult
from streamkern.execute.threads_executor import blas_kernels
from streamkern.execute.tree_allreduce import Route
from streamkern.execute.worker_protocol import (
    MAX_ATTEMPTS,
    LostError,
    Shared,
    dumps,
    loads,
    packed_reply,
    too_many_losses_error,
)
from streamkern.resources import default_threads

T = TypeVar("T")
R = TypeVar("R")

_WORKER_SETTINGS = {  # of workers started here, which share their cores with arithmetic: they watch themselves less
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "1s",
}


CONNECT_SECONDS = 5.0
"""Seconds that a scheduler may take to answer the first time."""

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


class _WorkerState(NamedTuple):
    """A worker as last seen; ``silent`` are seconds listened without a heartbeat."""

    threads: int
    running: bool
    beat: float
    silent: float


class _Client(Client):
    """Dask leaves a client that cannot be started with its thread, and a deadlock once Python collects it."""

    def start(self, **kwargs: Any) -> None:
        try:
            super().start(**kwargs)  # type: ignore[no-untyped-call]
        except BaseException:
            self.close()  # type: ignore[no-untyped-call]
            self._loop_runner.stop()  # type: ignore[no-untyped-call]
            raise


@contextmanager
def _connected(address: str) -> Iterator[Any]:  # a Client, whose methods have no types
    """A client that prints no tracebacks beside our error when it loses the scheduler."""
    loggers = [logging.getLogger(name) for name in ("distributed.client", "distributed.batched")]
    levels = [log.level for log in loggers]
    for log in loggers:
        log.setLevel(logging.CRITICAL + 1)
    try:
        with _client(address) as client:
            yield client
    finally:
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)


def _client(address: str) -> Client:
    try:
        return _Client(address, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except OSError as error:
        secure = ", and that both sides' certificates are of the authority in distributed.comm.tls.ca-file"
        raise StorageError(
            f"No Dask scheduler answered within {CONNECT_SECONDS:g} seconds.",
            where=address,
            expected="a scheduler that listens there",
            remedy="start one (dask scheduler), or check the address" + secure * address.startswith("tls:"),
        ) from error
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"The address of the scheduler cannot be used: {error}",
            where=address,
            expected="tcp://HOST:PORT, or tls://HOST:PORT with distributed.comm.tls configured",
        ) from error


@contextmanager
def local_processes_executor(processes: int | None = None, threads: int | None = None) -> Iterator[DaskExecutor]:
    """An executor over worker processes of one thread each on this machine, which end with it.

    By default there are as many as this process has cores; ``threads`` of it do host-side linear algebra.
    """
    try:
        with dask.config.set(_WORKER_SETTINGS):
            cluster = LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=processes or default_threads(),
                threads_per_worker=1,
                memory_limit=0,
                dashboard_address="127.0.0.1:0",
            )
    except RuntimeError as error:  # a worker's process ended before it was one
        raise UsageError(
            "The worker processes did not start.",
            where="processes",
            expected='a script that starts them under if __name__ == "__main__":, because each imports it again',
        ) from error
    with (
        cluster,
        Client(cluster, set_as_default=False, direct_to_workers=True) as client,  # type: ignore[no-untyped-call]
        DaskExecutor(client, threads) as executor,
    ):
        yield executor


class DaskExecutor(Executor):
    """Runs blocks on the workers of a cluster, which may come and go. While it is open, BLAS has one thread here.

    Args:
        client: a client of the cluster, or the address of its scheduler.
        threads: threads of this process, for host-side linear algebra; its cores by default.
        worker_timeout: seconds to wait for the first worker.
        stall_timeout: seconds without a heartbeat after which a worker is lost.
        step_timeout: seconds after which a worker that has not answered a step, or not got ready for one, is lost.
    """

    name = "dask"
    in_process = False

    def __init__(
        self,
        client: Client | str,
        threads: int | None = None,
        *,
        worker_timeout: float = 60.0,
        stall_timeout: float = 30.0,
        step_timeout: float = 600.0,
    ) -> None:
        super().__init__()
        self._given = client
        self._threads = threads or default_threads()
        self.worker_timeout = worker_timeout
        self.stall_timeout = stall_timeout
        self.step_timeout = step_timeout
        self.losses = 0
        self._workers: dict[str, _WorkerState] = {}
        self._looked = 0.0
        self._open: ExitStack | None = None

    def __enter__(self) -> DaskExecutor:
        with ExitStack() as stack:
            if isinstance(self._given, str):
                self.client = stack.enter_context(_connected(self._given))
            elif self._given.asynchronous:
                raise UsageError("The client is asynchronous.", where="client", expected="Client(asynchronous=False)")
            else:
                self.client = self._given
            limits = one_blas_thread()
            stack.callback(limits.restore_original_limits)
            self._pool = stack.enter_context(ThreadPoolExecutor(self._threads, thread_name_prefix="streamkern"))
            self._workers.clear()
            self.update_workers()
            self.require_workers()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._open is not None
        self._open.close()
        self._open = None

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        return str(self.client.scheduler.address)

    @property
    def dashboard(self) -> str | None:
        known = "dashboard" in self.client.scheduler_info(n_workers=0).get("services", {})
        return str(self.client.dashboard_link) if known else None

    def doubts(self) -> list[str]:
        """Workers whose BLAS runs other kernels than this process's: weights there differ by rounding."""
        here, others = blas_kernels(), dict[tuple[str, ...], int]()
        try:
            answers = self.client.run(blas_kernels, on_error="ignore")
        except (OSError, RuntimeError, CancelledError):
            self.update_workers()  # says so where the cluster is gone; a worker that is has no say
            answers = {}
        for found in answers.values():
            if found != here:
                others[found] = others.get(found, 0) + 1
        return [
            f"{number} of the workers run other BLAS kernels ({', '.join(found)}) than this process "
            f"({', '.join(here)}): weights differ by rounding; start all on the same machine type, with the same NumPy "
            "and OPENBLAS_CORETYPE"
            for found, number in others.items()
        ]

    @property
    def workers(self) -> dict[str, int]:
        """Threads of every worker that takes tasks, by address, when they were last looked at."""
        return {address: seen.threads for address, seen in self._workers.items() if seen.running}

    @property
    def slots(self) -> int:
        """Threads of all workers, when they were last looked at."""
        return sum(self.workers.values())

    def host_map(self, fn: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return list(self._pool.map(fn, items))

    def imap(self, fn: Callable[..., R], items: Iterable[Any], shared: tuple[Any, ...] = ()) -> Iterator[R]:
        """``fn(item, *shared)`` in order, at most two tasks in flight for each thread of the workers."""
        payload = dumps((fn, shared))
        broadcast = self.broadcast(payload)
        feed = map(dumps, items)
        flying: deque[tuple[bytes, Future[bytes]]] = deque()
        losses = 0
        try:
            while True:
                self.update_workers(WORKER_UPDATE_SECONDS)
                self.require_workers()
                for message in islice(feed, max(0, 2 * self.slots - len(flying))):
                    flying.append((message, self._submit(_run, broadcast, message)))
                if not flying:
                    return
                try:
                    answer = self.wait(flying[0][1])
                except LostError as error:
                    losses += 1
                    if losses == MAX_ATTEMPTS:
                        raise too_many_losses_error("A task") from error
                    # A worker may wait for ever for what it was copying from one that fell silent, so what is shared
                    # gets a new name, and with it a new home.
                    broadcast = self.broadcast(payload)
                    flying = deque(
                        (message, old if old.status == "finished" else self._submit(_run, broadcast, message))
                        for message, old in flying
                    )
                else:
                    flying.popleft()
                    losses = 0
                    yield self.task_result(answer)
        finally:
            flying.clear()  # Dask drops tasks that nobody waits for

    def place(self, work: LaneWork, lanes: int) -> Lanes:
        """Lanes in contiguous ranges on the workers, in proportion to their threads; workers beyond the lanes idle."""
        return Lanes(self, dumps(work), lanes)

    def broadcast(self, payload: bytes) -> Future[Shared]:
        """Send ``payload`` as the argument of a task: what is scattered to a worker is lost with the worker."""
        return self._submit(Shared, payload, self.allowed)

    def task_result(self, answer: bytes, worker: str | None = None) -> Any:
        """The result of a task; its error is raised here."""
        done, value, counts = loads(answer)
        self.request_counts.add(counts)
        if done:
            return value
        if isinstance(value, MemoryError) and not isinstance(value, MemoryLimitError):
            raise StorageError(
                f"A worker has no memory left: {value}",
                where=worker,
                expected="room for its lanes within --memory",
                remedy="give it more, start workers with fewer threads, or lower --memory",
            ) from value
        raise value

    def _submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": 1 << 60}):  # for the rows of a leaf
            return cast("Future[T]", self.client.submit(function, *arguments, pure=False))

    def update_workers(self, age: float = 0.0) -> None:
        """See which workers there are, unless that was seen less than ``age`` seconds ago."""
        now = time.monotonic()
        if now < self._looked + age:
            return
        try:
            found = self.client.sync(
                self.client.scheduler.identity, n_workers=-1, callback_timeout=max(CONNECT_SECONDS, self.stall_timeout)
            )["workers"]
        except (OSError, RuntimeError, CancelledError) as error:
            raise StorageError(
                "The Dask scheduler is gone, or does not answer.",
                where=self.address,
                expected="a scheduler that stays while the run does",
                remedy="start it and its workers again, then resume the run",
            ) from error
        # Silence counts only while someone listens, so that a pause of this process is not held against a worker.
        heard = min(now - self._looked, 2 * POLL_SECONDS)
        before, self._workers, self._looked = self._workers, {}, now
        for address, worker in found.items():
            old, beat = before.get(address), float(worker["last_seen"])
            silent = old.silent + heard if old is not None and old.beat == beat else 0.0
            self._workers[address] = _WorkerState(int(worker["nthreads"]), worker["status"] == "running", beat, silent)
        for address, threads in self.workers.items():
            self.members.joined(address, threads)
        gone = before.keys() - self._workers.keys()
        self.losses += len(gone)
        for address in sorted(gone):
            self.members.lost(address)

    def require_workers(self) -> None:
        """Wait until there is a worker, for ``worker_timeout`` seconds at most."""
        start = time.monotonic()
        while not self.workers:
            if time.monotonic() > start + self.worker_timeout:
                raise StorageError(
                    f"The cluster has had no workers for {self.worker_timeout:g} seconds.",
                    where=self.address,
                    expected="at least one worker",
                    remedy=f"start some (dask worker {self.address}), then resume the run",
                )
            time.sleep(0.1)
            self.update_workers()

    def wait(self, future: Future[T], worker: str | None = None, deadline: float | None = None) -> T:
        """The result of a future; ``worker`` is the only one that can run it, and is given up at ``deadline``."""
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except TimeoutError:
                self.explain_delay(future, worker, deadline)
            except KilledWorker as error:
                raise too_many_losses_error("A task") from error
            except (FutureCancelledError, CancelledError) as error:
                self.update_workers()
                raise LostError from error
            except Exception as error:
                self.update_workers()
                if worker is not None and worker not in self._workers:
                    raise LostError from error
                raise StorageError(
                    f"The cluster cannot run a task: {type(error).__name__}: {error}",
                    where=self.address,
                    expected="scheduler and workers that load pickles of this process",
                    remedy="install the same versions of streamkern and its requirements on scheduler and workers",
                ) from error

    def explain_delay(self, future: Future[Any], worker: str | None, deadline: float | None) -> None:
        """Raise ``LostError`` where an answer is late because a worker is gone or silent; arguments as for ``wait``."""
        self.update_workers()
        silent = [address for address, seen in self._workers.items() if seen.silent > self.stall_timeout]
        if worker is not None and deadline is not None and time.monotonic() > deadline:
            silent.append(worker)
        for address in silent:
            # Dask would do so too, after distributed.scheduler.worker-ttl.
            with suppress(OSError, CancelledError):
                unregister = self.client.scheduler.unregister
                self.client.sync(
                    unregister, address=address, stimulus_id="streamkern", callback_timeout=CONNECT_SECONDS
                )
        if silent:
            self.update_workers()
            raise LostError
        gone = worker is not None and worker not in self._workers
        if gone or future.status in FAILED_STATUSES:
            raise LostError
        self.require_workers()


class Lanes:
    """Lanes on the workers of a cluster, made again wherever there are workers when one is lost.

    The driver sends the state to ``MAX_TREE_ROOTS`` workers and receives their sums. With more workers, each of these
    is the root of a tree of workers, which passes the state down and adds the sums up (ADR 26), in ``Tree``'s order.
    """

    def __init__(self, executor: DaskExecutor, payload: bytes, lanes: int) -> None:
        self.executor, self.payload, self.lanes = executor, payload, lanes
        self._futures: list[Future[Any]] = []
        self._actors: list[PlacedActor] = []
        self._number = 0

    def step(self, position: Position, state: Any, ahead: Sequence[Position] = ()) -> StepResult:
        """Sum over all lanes; repeated from the start if a worker is lost."""
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
                route = Route(rank, tree, self.executor.step_timeout)
                arguments = (broadcast, route, parts[address], self.lanes, threads[address], platform.node())
                futures.append(
                    self.executor.client.submit(LaneActor, *arguments, actor=True, workers=[address], key=key)
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
                # A reply may depend on any of the actors.
                if any(
                    each.address not in self.executor.workers or each.future.status in FAILED_STATUSES
                    for each in self._actors
                ):
                    raise LostError from None
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


def _run(shared: Shared, message: bytes) -> bytes:
    fn, args = shared.value
    return packed_reply(shared, lambda: fn(loads(message), *args))
