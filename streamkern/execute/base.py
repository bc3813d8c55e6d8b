"""The protocol of executors, and the fixed order of sums.

A sum over blocks 0 .. n-1 is the sum over a binary tree whose leaves are the blocks: nodes at level k hold the blocks
whose numbers agree after k bits are dropped. Any executor may hold any nodes; the additions, and so the bits, are the
same.
"""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

Parts = tuple[Any, ...]
"""The contribution of a block: values that add with ``+``, each to its like."""

Position = tuple[int, int]
"""(pass, step)."""

_PROCESS = secrets.token_hex(8)

PIPELINE_FILE = "streamkern_pipeline_"
"""How the names of modules begin that are pipeline files: no worker can import them, so their definitions are sent."""

T = TypeVar("T")
R = TypeVar("R")


class Stack(tuple[Any, ...]):
    """A contribution that is kept rather than added up: ``+`` puts pieces behind one another, in the tree's order."""

    __slots__ = ()

    def __add__(self, other: tuple[Any, ...]) -> Stack:
        return Stack((*self, *other))


class LaneWork(Protocol):
    """Work of a lane in a step. Picklable."""

    def build(self, pass_: int, lane: int, step: int) -> Any:
        """Read and assemble a block; called ahead of time, from a thread of its own."""

    def begin(self, block: Any) -> Any:
        """Return a token of what can be prepared before the state is known; called by any thread, or never."""

    def contribute(self, block: Any, state: Any, prepared: Any = None) -> Parts:
        """The block's contribution under ``state``; ``prepared`` is the token of ``begin``, or None."""


class Share(NamedTuple):
    """Share of a worker, or of ``here``, in a step: seconds that its slots waited and computed are added up."""

    worker: str
    lanes: int
    wait: float
    compute: float


class StepResult(NamedTuple):
    """Sums over a step's lanes, with lost attempts and workers; ``reduce`` are seconds outside the slowest worker."""

    parts: Parts
    shares: tuple[Share, ...]
    reduce: float
    retries: int = 0
    losses: int = 0

    @property
    def wait(self) -> float:
        """Seconds that slots waited for rows."""
        return sum(share.wait for share in self.shares)

    @property
    def compute(self) -> float:
        """Seconds that slots computed."""
        return sum(share.compute for share in self.shares)

    def timeline(self) -> dict[str, Any]:
        """Seconds of each activity, as numbers that add up over steps; JSON-serialisable."""
        activities = ("compute", "wait", "reduce", "retries", "losses")
        workers = {
            share.worker: {name: getattr(share, name) for name in ("lanes", "compute", "wait")} for share in self.shares
        }
        return {"steps": 1, **{name: getattr(self, name) for name in activities}, "workers": workers}


class Allowance(NamedTuple):
    """Bytes that a worker may hold: the budget, or those projected for its first thread and each one more."""

    budget: int
    first: int
    more: int

    def bytes(self, before: int, threads: int) -> int:
        """Return the allowance of a worker that held ``before`` already."""
        return max(self.budget, before + self.first + (threads - 1) * self.more)


class ProcessCounts(NamedTuple):
    """Requests to remote stores of a process, whose name no other has, ``before`` its first work and at the reply.

    Counts are cumulative, so a lost or repeated reply cannot distort them.
    """

    process: str
    worker: str
    before: dict[str, int]
    now: dict[str, int]


class WorkerCounts:
    """Requests of each worker since it was first given work by this executor. Safe to read from another thread."""

    def __init__(self) -> None:
        self._processes: dict[str, ProcessCounts] = {}

    def add(self, counts: ProcessCounts | None) -> None:
        """Add the counts of a reply; those of this process are left out, since it counts its own."""
        if counts is None or counts.process == process_name():
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


def process_name() -> str:
    """Return a name that no other process has."""
    return f"{_PROCESS}-{os.getpid()}"  # a forked process has the random part of its parent


class WorkerLog:
    """Workers seen since a run began, by address; ``on_loss`` is called with a sentence when one is lost."""

    def __init__(self) -> None:
        self.on_loss: Callable[[str], None] | None = None
        self._found: dict[str, dict[str, Any]] = {}
        self._lock = Lock()

    def joined(self, address: str, threads: int) -> None:
        """Note a worker that takes tasks, unless it is known."""
        with self._lock:
            if self._found.get(address, {"lost": 0})["lost"] is not None:
                self._found[address] = {"worker": address, "threads": threads, "came": time.time(), "lost": None}

    def lost(self, address: str) -> None:
        """Note that a worker is gone, and report it once."""
        with self._lock:
            known = self._found.get(address)
            if known is None or known["lost"] is not None:
                return
            known["lost"] = time.time()
            left = sum(each["lost"] is None for each in self._found.values())
        if self.on_loss is not None:
            at = time.strftime("%H:%M:%S", time.localtime(known["lost"]))
            self.on_loss(
                f"the worker {address} ({known['threads']} threads) was lost at {at}; its work is repeated on the "
                f"{left} that are left"
            )

    def to_json(self) -> list[dict[str, Any]]:
        """Return ``worker`` (address), ``threads``, and ``came`` and ``lost`` (seconds since the epoch, or None)."""
        with self._lock:
            return [dict(each) for each in self._found.values()]


class Placement(Protocol):
    """Lanes placed on threads or workers, with the data they need resident there."""

    def step(self, position: Position, state: Any, ahead: Sequence[Position] = ()) -> StepResult:
        """Sum of all lanes' contributions to the step at ``position``; blocks of ``ahead`` are read meanwhile."""

    def close(self) -> None:
        """Release resident state."""


class Executor(ABC):
    """An executor of blocks. Parallelism is across blocks: inside one, BLAS has one thread.

    Attributes:
        in_process: whether blocks run in threads of this process: what they are given is not copied.
        allowed: memory that each worker process may hold; None for no bound. Of this process, ``memory_limit`` says.
        request_counts: requests of workers, not of this process, to remote stores.
    """

    name: str
    in_process: bool
    allowed: Allowance | None = None

    def __init__(self) -> None:
        self.request_counts, self.members = WorkerCounts(), WorkerLog()

    @property
    @abstractmethod
    def slots(self) -> int:
        """Blocks that run at a time."""

    @property
    def overlaps(self) -> bool:
        """True if two stages of the set-up may be evaluated at a time, by threads that would wait otherwise."""
        # Of a cluster, one thread at a time requests kernel values of the set-up from the workers.
        return self.in_process and self.slots > 1

    @property
    def dashboard(self) -> str | None:
        """URL of a page that shows the workers, or None."""
        return None

    def doubts(self) -> list[str]:
        """Why results might not be those of this process, one sentence each."""
        return []

    @abstractmethod
    def imap(self, fn: Callable[..., R], items: Iterable[Any], shared: tuple[Any, ...] = ()) -> Iterator[R]:
        """``fn(item, *shared)``, of an importable ``fn``, in order: a task each, with large values placed once."""

    @abstractmethod
    def host_map(self, fn: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """``fn(item)`` in threads of this process: tiles of the host-side linear algebra."""

    @abstractmethod
    def place(self, work: LaneWork, lanes: int) -> Placement:
        """Place ``lanes`` lanes of ``work``."""


def add(a: Parts, b: Parts) -> Parts:
    """Sum of two contributions; arrays of ``b`` may be overwritten."""
    return tuple(
        np.add(x, y, out=y) if isinstance(x, np.ndarray) and x.ndim and x.dtype == y.dtype else x + y
        for x, y in zip(a, b, strict=True)
    )


class Tree:
    """Sums nodes of the tree in whatever order they arrive, from those, by level and index, that are there.

    A sum that waits for its sibling is never written over by one that comes after it in the tree's order: where nodes
    arrive in that order, what ``nodes`` holds at a moment stays the sum of those that had arrived by then.
    """

    def __init__(self, leaves: int, nodes: Mapping[tuple[int, int], Parts] | None = None) -> None:
        self.leaves = leaves
        self.nodes: dict[tuple[int, int], Parts] = dict(nodes or {})

    def put(self, level: int, index: int, parts: Parts) -> None:
        """Add a node, and every node that this completes."""
        while True:
            sibling = (level, index ^ 1)
            if sibling in self.nodes:
                other = self.nodes.pop(sibling)
                parts = add(other, parts) if index & 1 else add(parts, other)
            elif index & 1 or (index + 1) << level < self.leaves or (1 << level) >= self.leaves:
                self.nodes[level, index] = parts
                return
            # else: an only child, whose sibling would lie past the last leaf, stands for its parent
            level, index = level + 1, index >> 1

    def total(self) -> Parts:
        return self.nodes[max(0, self.leaves - 1).bit_length(), 0]


def ranges_of_lanes(lanes: int, threads: Mapping[str, int]) -> dict[str, range]:
    """Contiguous ranges of lanes for workers, in proportion to their threads; workers without lanes are left out."""
    chosen = sorted(threads, key=lambda address: (-threads[address], address))[:lanes]
    total, before, parts = sum(threads[address] for address in chosen), 0, {}
    for address in chosen:
        after = before + threads[address]
        assigned = range((lanes * before + total // 2) // total, (lanes * after + total // 2) // total)
        if assigned:
            parts[address] = assigned
        before = after
    return parts
