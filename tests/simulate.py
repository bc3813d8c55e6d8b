"""A discrete-event model of minibatch steps on workers: what many machines would do, from constants measured on one.

The driver serialises the state and sends it to each root in turn, which hands it down its tree of workers; workers
compute their lanes, sums come back up the trees and are added, the driver updates; a worker begins its next block ahead
as far as one panel goes. Processes on the same cores share them evenly. If a worker dies, its lanes are placed on the
others and the step is repeated.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise

import numpy as np

from streamkern.execute.dask_executor import MAX_TREE_ROOTS, tree_roots
from streamkern.rng import generator


@dataclass(frozen=True)
class Costs:
    """Constants of a step, measured or assumed, in seconds of one core unless they say otherwise.

    Attributes:
        lane: computing one lane's block.
        warm: of it, what can be done before the state is known; of two lanes a worker at most.
        build: reading and assembling one lane's block, by another thread of the worker.
        update: the update on the host, one core; shared by the driver's cores.
        message: handling one message, request or answer, on the driver.
        answer: the same on a worker.
        fixed: a step's overhead on the driver, however many workers.
        latency: a message's way, not a core's time.
        size: bytes of the state, and of one sum.
        bandwidth: bytes a second through the driver's network, and through a worker's.
        add: adding one sum to another.
        contention: how much slower a core computes when all others of its machine do; 1 for not at all.
        straggle: σ of the logarithm of a lane's time, beside its mean.
        mtbf: seconds between failures of one worker; inf for never.
        recover: seconds from a failure to the repetition of the step: noticed, placed, centers sent, blocks read.
    """

    lane: float
    warm: float = 0.0
    build: float = 0.0
    update: float = 0.0
    message: float = 0.0
    answer: float = 0.0
    fixed: float = 0.0
    latency: float = 0.0
    size: float = 0.0
    bandwidth: float = math.inf
    add: float = 0.0
    contention: float = 1.0
    straggle: float = 0.0
    mtbf: float = math.inf
    recover: float = 0.0


@dataclass(frozen=True)
class Machines:
    """Where it runs.

    Attributes:
        workers: worker processes of one thread each.
        lanes: blocks of a step.
        cores: cores of the one machine that holds the driver and all workers; None: every worker has its own core.
        host_cores: cores of the driver's machine that the update may use.
        roots: most workers that exchange messages with the driver, as roots of trees; None for all workers, a star.
    """

    workers: int
    lanes: int
    cores: int | None = None
    host_cores: int = 1
    roots: int | None = MAX_TREE_ROOTS


@dataclass(eq=False)
class _Job:
    left: float
    done: Callable[[], None]


class _Clock:
    """Events in the order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = count()

    def after(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._tie), act))

    def run(self, over: Callable[[], bool] = lambda: False) -> None:
        while self._queue and not over():
            self.now, _, act = heapq.heappop(self._queue)
            act()


class _Cores:
    """Cores that jobs share evenly; each runs on one at most."""

    def __init__(self, clock: _Clock, cores: int, contention: float) -> None:
        self._clock, self._cores, self._contention = clock, cores, contention
        self._jobs: list[_Job] = []
        self._seen, self._version = 0.0, 0

    def run(self, seconds: float, done: Callable[[], None]) -> _Job:
        """Begin a job."""
        self._advance()
        job = _Job(seconds, done)
        self._jobs.append(job)
        self._plan()
        return job

    def stop(self, job: _Job) -> float:
        """Seconds that a job still had to go."""
        self._advance()
        if job not in self._jobs:
            return 0.0
        self._jobs.remove(job)
        self._plan()
        return max(0.0, job.left)

    def _rate(self) -> float:
        n = len(self._jobs)
        busy = (min(n, self._cores) - 1) / max(1, self._cores - 1)
        return min(1.0, self._cores / n) / (1.0 + (self._contention - 1.0) * busy)

    def _advance(self) -> None:
        if self._jobs:
            rate = self._rate()
            for job in self._jobs:
                job.left -= (self._clock.now - self._seen) * rate
        self._seen = self._clock.now

    def _plan(self) -> None:
        self._version += 1
        if self._jobs:
            version, soonest = self._version, min(job.left for job in self._jobs)
            self._clock.after(max(0.0, soonest) / self._rate(), lambda: self._fire(version))

    def _fire(self, version: int) -> None:
        if version != self._version:
            return  # others came or went since
        self._advance()
        least = min(job.left for job in self._jobs) + 1e-12
        over = [job for job in self._jobs if job.left <= least]
        self._jobs = [job for job in self._jobs if job.left > least]
        self._plan()
        for job in over:
            job.done()


@dataclass
class Times:
    """Seconds of each step, and steps that had to be repeated."""

    steps: list[float] = field(default_factory=list)
    retries: int = 0

    @property
    def mean(self) -> float:
        """Seconds a step."""
        return float(np.mean(self.steps))


def simulate(costs: Costs, layout: Machines, steps: int = 20, seed: int = 0) -> Times:
    """Seconds of steps, one after another; a first one, with nothing begun ahead, is not counted."""
    return _Run(costs, layout, seed).times(steps)


class _Run:
    def __init__(self, costs: Costs, layout: Machines, seed: int) -> None:
        self.costs, self.layout = costs, layout
        self.rng = generator("simulate", seed)
        self.clock = _Clock()
        active = min(layout.workers, layout.lanes)
        self.lanes = [layout.lanes * (w + 1) // active - layout.lanes * w // active for w in range(active)]
        self.host = _Cores(self.clock, layout.cores or layout.host_cores, costs.contention)
        self.machines = [self.host if layout.cores else _Cores(self.clock, 1, 1.0) for _ in range(active)]
        self.warming: list[_Job | None] = [None] * active
        self.wire = costs.size / costs.bandwidth
        self.trees = [range(*ends) for ends in pairwise([*tree_roots(active, layout.roots or active), active])]

    def times(self, steps: int) -> Times:
        found = Times()
        for number in range(steps + 1):
            start, retries = self.clock.now, 0
            while not self.attempt():
                retries += 1
            if number:
                found.steps.append(self.clock.now - start)
                found.retries += retries
        return found

    def attempt(self) -> bool:
        """One attempt at a step; false if a worker died in it."""
        start, n = self.clock.now, len(self.lanes)
        self.queue: list[tuple[float, Callable[[], None]]] = []  # what the driver has yet to send or take in
        self.handling, self.left, self.over = False, len(self.trees), False
        self.below = [len(tree) for tree in self.trees]  # whose sums have yet to reach the root
        self.host.run(self.costs.fixed, self.send)
        self.clock.run(lambda: self.over)
        chance = -math.expm1(-n * (self.clock.now - start) / self.costs.mtbf)
        died = bool(chance) and bool(self.rng.random() < chance)
        if died:
            self.clock.after(self.costs.recover, lambda: None)
            self.clock.run()
            self.warming = [None] * n
        return not died

    def send(self) -> None:
        for number in range(len(self.trees)):
            hand_down = partial(self.hand_down, number)
            self.handle(self.costs.message, partial(self.clock.after, self.costs.latency, hand_down))

    def hand_down(self, number: int) -> None:
        """Send the state from a root down its tree."""
        for rank, w in enumerate(self.trees[number]):
            self.clock.after(self.relay(rank, self.costs.message), partial(self.compute, w, number, rank))

    def compute(self, w: int, number: int, rank: int) -> None:
        costs = self.costs
        seconds = sum(costs.lane * self.straggler() for _ in range(self.lanes[w]))
        job = self.warming[w]
        begun = 0.0 if job is None else self.ahead(w) - self.machines[w].stop(job)
        if costs.build:
            self.machines[w].run(costs.build * self.lanes[w], lambda: None)
        self.machines[w].run(max(0.0, seconds - begun) + costs.answer, partial(self.answer, w, number, rank))

    def ahead(self, w: int) -> float:
        """Seconds of a step that a worker may do before its state comes."""
        return self.costs.warm * min(2, self.lanes[w])

    def answer(self, w: int, number: int, rank: int) -> None:
        costs = self.costs
        if costs.warm:
            self.warming[w] = self.machines[w].run(self.ahead(w), lambda: None)
        self.clock.after(self.relay(rank, costs.message + costs.add), partial(self.joined, number))

    def joined(self, number: int) -> None:
        """Count the sums of a worker at the root; after the last, send the total to the driver."""
        self.below[number] -= 1
        if not self.below[number]:
            message = self.costs.message + self.costs.add
            self.clock.after(self.costs.latency, partial(self.handle, message, self.arrived))

    def arrived(self) -> None:
        self.left -= 1
        if not self.left:
            threads = self.layout.host_cores
            parts = [None] * threads

            def updated() -> None:
                parts.pop()
                self.over = not parts

            for _ in range(threads):
                self.host.run(self.costs.update / threads, updated)

    def handle(self, seconds: float, act: Callable[[], None]) -> None:
        """Have the driver send or take in a message, one after another, and act once it is through the wire."""
        self.queue.append((seconds, act))
        if not self.handling:
            self.following()

    def following(self) -> None:
        self.handling = bool(self.queue)
        if self.queue:
            seconds, act = self.queue.pop(0)

            def through() -> None:
                act()
                self.following()

            self.host.run(seconds, partial(self.clock.after, self.wire, through))

    def relay(self, rank: int, message: float) -> float:
        """Return the seconds of a message between a root and a worker of its tree.

        A node serves its children, in the order of ``Route.children``, one by one: the k-th waits for k messages.
        """
        seconds = 0.0
        while rank:
            place = (rank & -rank).bit_length()
            seconds += place * (message + self.wire) + self.costs.latency
            rank &= rank - 1
        return seconds

    def straggler(self) -> float:
        """A factor of mean 1."""
        sigma = self.costs.straggle
        return float(np.exp(self.rng.normal() * sigma - sigma * sigma / 2)) if sigma else 1.0


def ideal(costs: Costs, layout: Machines) -> float:
    """Seconds of a step where nothing is paid but its arithmetic, evenly shared by all cores."""
    cores = min(layout.workers, layout.lanes, layout.cores or layout.workers)
    return costs.lane * layout.lanes / cores


@dataclass(frozen=True)
class LeafCosts:
    """Constants of the leaves of a partition, in seconds of one core.

    Attributes:
        leaf: fit of a leaf, on a worker of one thread.
        keep: the driver's work for a leaf: the request, and reading and writing the result.
        straggle: σ of the logarithm of a leaf's time; the mean stays ``leaf``.
        mtbf: mean time between failures of a worker; a failure repeats the worker's leaf.
    """

    leaf: float
    keep: float = 0.0
    straggle: float = 0.0
    mtbf: float = math.inf


def simulate_leaves(costs: LeafCosts, leaves: int, workers: int, seed: int = 0) -> float:
    """Return the seconds until all leaves are fitted and kept, by workers of one thread on a core of their own.

    The request for the next leaf is there before the running leaf ends.
    """
    clock, rng = _Clock(), generator("simulate", seed)
    waiting, kept = leaves, 0.0  # leaves to begin, and the time at which the driver has kept all that have come

    def free() -> None:
        """A worker begins its next leaf."""
        nonlocal waiting
        if not waiting:
            return
        waiting -= 1
        seconds = costs.leaf * float(np.exp(rng.normal() * costs.straggle - costs.straggle**2 / 2))
        lost = 0.0
        while rng.random() < -math.expm1(-seconds / costs.mtbf):
            lost += seconds * rng.random()
        clock.after(lost + seconds, fitted)

    def fitted() -> None:
        nonlocal kept
        kept = max(kept, clock.now) + costs.keep
        free()

    for _ in range(min(workers, leaves)):
        free()
    clock.run()
    return kept
