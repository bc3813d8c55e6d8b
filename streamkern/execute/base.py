"""The protocol of executors, and the fixed order of sums.

A sum over blocks 0 .. n-1 is the sum over a binary tree whose leaves are the blocks: nodes at level k hold the blocks
whose numbers agree after k bits are dropped. Any executor may hold any nodes; the additions, and so the bits, are the
same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from streamkern.execute.request_counts import WorkerCounts
from streamkern.execute.worker_roster import WorkerLog

Parts = tuple[Any, ...]
"""The contribution of a block: values that add with ``+``, each to its like."""

Position = tuple[int, int]
"""(pass, step)."""

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
        """Prepare the block before the state is known, and return a token of it.

        It may be called by another thread than ``contribute``, or never.
        """

    def contribute(self, block: Any, state: Any, prepared: Any = None) -> Parts:
        """The block's contribution under ``state``; ``prepared`` is the token of ``begin``, or None."""


class Share(NamedTuple):
    """Share of one worker in a step: lanes, and seconds.

    Attributes:
        worker: its address; ``here`` for this process.
        wait: seconds that its slots waited for rows, together.
        compute: seconds that its slots computed, together.
    """

    worker: str
    lanes: int
    wait: float
    compute: float


class StepResult(NamedTuple):
    """Sums over a step's lanes, and where its time went.

    Attributes:
        shares: of each worker in the work.
        reduce: seconds outside the slowest worker: pickling, the wire, adding up.
        retries: attempts that were lost with a worker.
        losses: workers that went away meanwhile.
    """

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
        return {
            "steps": 1,
            "compute": self.compute,
            "wait": self.wait,
            "reduce": self.reduce,
            "retries": self.retries,
            "losses": self.losses,
            "workers": {
                share.worker: {"lanes": share.lanes, "compute": share.compute, "wait": share.wait}
                for share in self.shares
            },
        }


class Allowance(NamedTuple):
    """Memory that a worker process may hold.

    Attributes:
        budget: bytes, whatever it held before: the budget of the run.
        first: bytes projected for a worker of one thread, beyond its memory before; they are allowed as well.
        more: bytes projected for each further thread.
    """

    budget: int
    first: int
    more: int

    def bytes(self, before: int, threads: int) -> int:
        """Return the bytes that a worker may hold, given its memory before and its threads."""
        return max(self.budget, before + self.first + (threads - 1) * self.more)


class Placement(Protocol):
    """Lanes placed on threads or workers, with the data they need resident there."""

    def step(self, position: Position, state: Any, ahead: Sequence[Position] = ()) -> StepResult:
        """Sum of all lanes' contributions to the step at ``position``; blocks of ``ahead`` are read meanwhile."""

    def close(self) -> None:
        """Release resident state."""


class Executor(ABC):
    """An executor of blocks. Parallelism is across blocks: inside one, BLAS has one thread.

    Attributes:
        name: of the executor, in reports.
        in_process: whether blocks run in threads of this process: what they are given is not copied.
        allowed: memory that each worker process may hold; None for no bound. Of this process, ``memory.limited`` says.
        request_counts: requests of workers to remote stores; those of this process are counted separately.
        members: workers seen since the executor was opened; none for threads of this process.
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
        """``fn(item, *shared)`` in the order of the items, with a bounded number in flight.

        Args:
            fn: an importable function.
            items: small values, one a task.
            shared: large values, placed once.
        """

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
    """Sums nodes of the tree in whatever order they arrive.

    A sum that waits for its sibling is never written over by one that comes after it in the tree's order: where nodes
    arrive in that order, what ``nodes`` holds at a moment stays the sum of those that had arrived by then.

    Args:
        leaves: number n of leaves.
        nodes: sums to go on from, by level and index.
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
