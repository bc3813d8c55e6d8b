"""Blocks in threads of this process: the embedded default."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from threadpoolctl import threadpool_info

from streamkern.engine.parallel import one_blas_thread
from streamkern.execute.base import Executor, LaneWork, Parts, Position, Share, StepResult, Tree
from streamkern.memory import check_memory
from streamkern.resources import thread_count

T = TypeVar("T")
R = TypeVar("R")


def blas_kernels() -> tuple[str, ...]:
    """Kernels that BLAS has chosen in this process: others round differently."""
    found = {f"{info['internal_api']} {info.get('architecture', '')}".strip() for info in threadpool_info()
             if info["user_api"] == "blas"}  # fmt: skip
    return tuple(sorted(found))


_thread = threading.local()


def _serve(executor: object) -> None:
    _thread.executor = executor


def _served() -> object:
    """The executor of this thread: where it waited for the other threads it could deadlock, so it computes itself."""
    return getattr(_thread, "executor", None)


class ThreadsExecutor(Executor):
    """Runs blocks in a pool of threads. A context manager: BLAS has one thread while it is open."""

    name = "threads"
    in_process = True

    def __init__(self, threads: int | None = None) -> None:
        super().__init__()
        self._slots = thread_count(threads)
        self._pool: ThreadPoolExecutor | None = None
        self._limits: Any = None
        self._within: object = None  # the executor in whose task this one is open

    def __enter__(self) -> ThreadsExecutor:
        # In a task BLAS has one thread already, and looking for its libraries takes milliseconds.
        self._within = _served()
        if self._within is None:
            self._limits = one_blas_thread()
        elif self.slots == 1:  # the task's thread is the one: another would take turns with it at Python's lock
            _serve(self)
        self._pool = ThreadPoolExecutor(self.slots, "streamkern", initializer=_serve, initargs=(self,))
        return self

    def __exit__(self, *error: object) -> None:
        assert self._pool is not None
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._within is not None:
            _serve(self._within)
        if self._limits is not None:
            self._limits.restore_original_limits()
        self._pool = self._limits = None

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The pool; the executor must be open."""
        assert self._pool is not None, "the executor is used outside its with block"
        return self._pool

    @property
    def slots(self) -> int:
        return self._slots

    def imap(self, fn: Callable[..., R], items: Iterable[Any], shared: tuple[Any, ...] = ()) -> Iterator[R]:
        if _served() is self:
            yield from (fn(item, *shared) for item in items)
            return
        flying: deque[Future[R]] = deque()
        try:
            for item in items:
                flying.append(self.pool.submit(fn, item, *shared))
                if len(flying) >= 2 * self.slots:
                    yield flying.popleft().result()
            while flying:
                yield flying.popleft().result()
        finally:
            for future in flying:
                future.cancel()

    def host_map(self, fn: Callable[[T], R], items: Iterable[T]) -> list[R]:
        if _served() is self:
            return list(map(fn, items))
        return list(self.pool.map(fn, items))

    def place(self, work: LaneWork, lanes: int) -> LanePool | SingleThreadLanes:
        """All lanes in the pool; in a task whose thread is the only one, one after another."""
        if _served() is self:
            return SingleThreadLanes(work, lanes)
        return LanePool(work, range(lanes), lanes, self.pool, self.slots)


class Prefetch:
    """Builds blocks by a thread of its own, in the order they were announced, and hands each out once."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self._build = build
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="streamkern-prefetch")
        self._ready: dict[tuple[Hashable, ...], Future[Any]] = {}
        self._lock = threading.Lock()

    def announce(self, keys: Iterable[tuple[Hashable, ...]]) -> None:
        """Keep blocks of these keys, and of no others, on the way."""
        wanted = dict.fromkeys(keys)
        with self._lock:
            for key in [key for key in self._ready if key not in wanted]:
                self._ready.pop(key).cancel()
            for key in wanted:
                if key not in self._ready:
                    self._ready[key] = self._pool.submit(self._build, *key)

    def take(self, key: tuple[Hashable, ...]) -> tuple[Any, float]:
        """The block, and how many seconds it was waited for."""
        start = time.perf_counter()
        with self._lock:
            future = self._ready.pop(key)
        block = future.result()
        return block, time.perf_counter() - start

    def peek(self, key: tuple[Hashable, ...], wait: bool = True) -> Any:
        """Return the block of a key, which stays for ``take``; None if it was not begun, failed or needs ``wait``."""
        with self._lock:
            future = self._ready.get(key)
        try:
            return None if future is None or not (wait or future.done()) else future.result()
        except (Exception, CancelledError):  # raised when the block is taken
            return None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class SubtreeSums(NamedTuple):
    """Sums of complete subtrees by (level, index), and seconds: ``wait`` and ``compute`` of all threads together."""

    sums: dict[tuple[int, int], Parts]
    wait: float
    compute: float
    elapsed: float
    adding: float


class _Begun:
    """A block that a thread has begun before the state was known."""

    def __init__(self) -> None:
        self.ended = threading.Event()  # set once no thread works on the block
        self.token: Any = None

    def result(self) -> Any:
        """The token; None where the thread failed, which the contribution will do again."""
        self.ended.wait()
        return self.token


class LanePool:
    """Some of a run's lanes; ``begin`` of the next step are begun before this one's sums are returned."""

    def __init__(
        self, work: LaneWork, own_lanes: Sequence[int], lanes: int, pool: ThreadPoolExecutor, begin: int = 0
    ) -> None:
        self.work, self.own_lanes, self.lanes, self.pool, self.begin = work, own_lanes, lanes, pool, begin
        self.prefetch = Prefetch(work.build)
        self._lock = threading.Lock()
        self._ahead: Position | None = None
        self._begun: dict[tuple[Position, int], _Begun] = {}

    def nodes(self, position: Position, state: Any, ahead: Sequence[Position] = ()) -> SubtreeSums:
        """Sums over the lanes held here; blocks of ``ahead`` are read meanwhile."""
        started, todo = time.perf_counter(), list(self.own_lanes)
        with self._lock:
            self._ahead = None
            begun = {lane: done for (at, lane), done in self._begun.items() if at == position}
            self._begun.clear()
        self.prefetch.announce((pass_, lane, step) for pass_, step in (position, *ahead) for lane in self.own_lanes)

        def run(_: int) -> tuple[int, Parts, float, float]:
            with self._lock:  # last those that a thread is still beginning
                lane = min(todo, key=lambda lane: lane in begun and not begun[lane].ended.is_set())
                todo.remove(lane)
            block, wait = self.prefetch.take((position[0], lane, position[1]))
            start = time.perf_counter()
            token = begun.pop(lane).result() if lane in begun else None
            parts = self.work.contribute(block, state, token)
            check_memory()
            return lane, parts, wait, time.perf_counter() - start

        results = self.pool.map(run, self.own_lanes)
        if self.begin and ahead:  # by threads that have no lane of this step left to do
            self.begin_ahead(ahead[0], self.begin, wait=False)
        tree, wait, compute, adding = Tree(self.lanes), 0.0, 0.0, 0.0
        for lane, parts, waited, computed in results:
            start = time.perf_counter()
            tree.put(0, lane, parts)
            wait, compute, adding = wait + waited, compute + computed, adding + time.perf_counter() - start
        return SubtreeSums(tree.nodes, wait, compute, time.perf_counter() - started, adding)

    def begin_ahead(self, position: Position, count: int, wait: bool = True) -> None:
        """Begin blocks before their state is known; at most ``count``, since they stay in memory."""
        with self._lock:
            self._ahead = position

        def begin(lane: int) -> None:
            with self._lock:
                if self._ahead != position:
                    return
                done = self._begun[position, lane] = _Begun()
            try:
                block = self.prefetch.peek((position[0], lane, position[1]), wait)
                if block is not None:
                    done.token = self.work.begin(block)
            finally:
                done.ended.set()

        for lane in self.own_lanes[:count]:
            self.pool.submit(begin, lane)

    def step(self, position: Position, state: Any, ahead: Sequence[Position] = ()) -> StepResult:
        done = self.nodes(position, state, ahead)
        (parts,) = done.sums.values()
        return StepResult(parts, (Share("here", self.lanes, done.wait, done.compute),), done.adding)

    def close(self) -> None:
        with self._lock:
            self._ahead, begun = None, list(self._begun.values())
        for done in begun:
            done.ended.wait()
        self.prefetch.close()


class SingleThreadLanes:
    """All of a run's lanes, stepped by the thread that asks for them: nothing is read ahead, and nobody waits."""

    def __init__(self, work: LaneWork, lanes: int) -> None:
        self.work, self.lanes = work, lanes

    def step(self, position: Position, state: Any, ahead: Sequence[Position] = ()) -> StepResult:
        tree, wait, compute, adding = Tree(self.lanes), 0.0, 0.0, 0.0
        for lane in range(self.lanes):
            started = time.perf_counter()
            block = self.work.build(position[0], lane, position[1])
            read = time.perf_counter()
            parts = self.work.contribute(block, state)
            check_memory()
            computed = time.perf_counter()
            tree.put(0, lane, parts)
            wait, compute = wait + read - started, compute + computed - read
            adding += time.perf_counter() - computed
        return StepResult(tree.total(), (Share("here", self.lanes, wait, compute),), adding)

    def close(self) -> None:
        """Nothing runs between two steps."""
