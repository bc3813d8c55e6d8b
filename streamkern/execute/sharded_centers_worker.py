"""A share of the centers, on a worker of a cluster: some tiles of them, with their weights, for all rows of a step.

The workers of a step form a tree, and their sums go along it from worker to worker; the driver calls its root.
Exchanged, each up the tree and down again, are the rows of the step, each lane's read by one worker; sums over tiles
of centers, such as outputs; and sums that follow from those, as many as the method has. A message up holds the sums of
the largest complete subtrees of tiles, so the additions are those of ``Tree`` whatever the workers (ADR 26). Results
that belong to one tile go up only, for the driver. Rows do not depend on the state: those of the next step are
exchanged by a thread of their own, while this one is computed. When the driver asks for it, each worker writes its
tiles' part of the state to the directory of checkpoints, while steps go on.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from distributed import get_worker

from streamkern.execute.base import Parts, Position, Share, SharedWork, Tile, Tree
from streamkern.execute.prefetch import Prefetch
from streamkern.execute.request_counts import ProcessCounts
from streamkern.execute.sharded_centers_checkpoint import read_tiles, stacked_tiles, write_share
from streamkern.execute.tree_allreduce import Peers, Route
from streamkern.execute.worker_protocol import (
    LostError,
    Shared,
    loads,
    lower_priority,
    packed_reply,
    request_counts_of_worker,
)
from streamkern.memory import check_memory, keep_heap
from streamkern.types import Array

T = TypeVar("T")
Sums = list[dict[tuple[int, int], Parts]]
"""For each of several: sums of the largest complete subtrees of tiles, by (level, index)."""


class Assignment(NamedTuple):
    """The work of one worker in steps with shared centers.

    Attributes:
        tiles: tiles of centers in this worker's memory.
        lanes: lanes whose rows this worker reads.
        folder: directory of checkpoints if this worker may write there, else empty.
    """

    tiles: range
    lanes: range
    threads: int
    driver: str
    folder: str = ""


def can_share_files(path: str, token: str) -> bool:
    """Return True if this process reads ``token`` from a file, and may write to its directory."""
    try:
        return Path(path).read_text(encoding="utf-8") == token and os.access(Path(path).parent, os.W_OK)
    except (OSError, ValueError):
        return False


class StepReply(NamedTuple):
    """Reply of the root: sums of the step, shares of the workers, seconds of the slowest, and counts of requests."""

    parts: Parts
    shares: tuple[Share, ...]
    slowest: float
    counts: tuple[ProcessCounts | None, ...]


class ShareReply(NamedTuple):
    """Reply of a worker that was asked for its share of a state: its first tile; and the tiles, if it did not write."""

    first: int
    tiles: list[Tile] | None


class ShareActor:
    """Some tiles of the centers, on a worker."""

    def __init__(self, shared: Shared, route: Route, assignment: Assignment, first: int) -> None:
        keep_heap()
        self._shared, self._assignment, self._peers = shared, assignment, Peers(route)
        self._work: SharedWork = shared.value[0]
        self._given: dict[int, tuple[Any, Tile | None]] = {}
        self._parts: list[Any] = []
        self._held: list[Any] = []
        self._shares: dict[str, Future[bytes]] = {}
        self._values: dict[int, Any] = {}
        self._worker, self._context = get_worker(), contextvars.copy_context()
        self._wait = self._busy = 0.0  # seconds of the running step, of all threads together
        self._prefetch = Prefetch(self._work.build)
        self._blocks: dict[Position, Future[dict[int, Any]]] = {}
        self._next, self._turns = first, dict[int, asyncio.Event]()
        self._rows = ThreadPoolExecutor(1, thread_name_prefix="streamkern-rows")
        self._steps = ThreadPoolExecutor(1, thread_name_prefix="streamkern-share")
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="streamkern-disk")
        self._threads = ThreadPoolExecutor(
            assignment.threads,
            thread_name_prefix="streamkern",
            initializer=lower_priority,
            initargs=(assignment.driver,),
        )

    async def give(self, message: bytes) -> bytes:
        """Accept a tile: its constants, and its arrays in the set of shares, where they are not read here."""
        tile, constants, kept = loads(message)
        self._given[tile] = constants, kept
        return b""

    async def deliver(self, name: tuple[Any, ...], message: bytes) -> None:
        """Accept a message of another worker: the request for a step, or sums for the running step."""
        if name[0] == "go":
            self._steps.submit(self._context.copy().run, self._step, message)
            return
        self._peers.deliver(name, message)

    async def awaited(self) -> str | None:
        """Address of the worker that this one waits for."""
        return self._peers.awaited

    async def stop(self) -> None:
        """Cancel running steps and release the tiles: threads that wait for a message raise ``LostError``."""
        self._peers.close()
        self._given, self._held, self._parts, self._values = {}, [], [], {}
        self._blocks.clear()
        for turn in self._turns.values():  # those whose turn had not come end, too
            turn.set()

    async def step(self, message: bytes) -> bytes:
        """At the root: the sums of a step and each worker's share of the work; or the exception.

        Requests are sent before earlier ones are answered, each through a connection of its own, and may overtake one
        another: steps run in the order of their numbers.
        """
        number, *_ = loads(message)
        turn = self._turns.setdefault(number, asyncio.Event())
        if number == self._next:
            turn.set()
        await turn.wait()
        running = self._steps.submit(self._context.copy().run, self._step, message)
        self._next = number + 1
        self._turns.pop(number)
        self._turns.setdefault(self._next, asyncio.Event()).set()
        return await asyncio.wrap_future(running)

    async def weights(self) -> bytes:
        """The solution for each tile, after the steps that were asked for before; or the exception."""
        return await asyncio.wrap_future(
            self._steps.submit(self._context.copy().run, packed_reply, self._shared, self._weights)
        )

    async def written(self, name: str) -> bytes:
        """Wait for the share of a set whose step the root has answered; a ``ShareReply``, or the exception."""
        running = await asyncio.wrap_future(self._steps.submit(self._shares.pop, name))
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Release the worker's arrays, and end what it writes."""
        for pool in (self._steps, self._rows, self._threads, self._disk):
            pool.shutdown()
        self._prefetch.close()

    def _step(self, message: bytes) -> bytes:
        return packed_reply(self._shared, lambda: self._run(message))

    def _run(self, message: bytes) -> StepReply:
        number, position, ahead, name = loads(message)
        self._peers.go(number, message)
        started, work = time.perf_counter(), self._work
        self._busy = 0.0
        if position not in self._blocks:
            self._exchange(position, ahead)
        blocks = list(self._blocks.pop(position).result().values())
        self._wait = time.perf_counter() - started
        if ahead and ahead[0] not in self._blocks:
            self._exchange(ahead[0], ahead[1:])

        def forward() -> Sums:
            self._hold()
            return self._over_tiles(partial(self._forward, blocks))

        outputs = self._peers.together((number, "sums"), forward, self._joined, self._totals)
        responses, totals = list[Any](), list[list[Parts]]()
        reports: tuple[Any, ...] = ()
        for index in range(work.sums):

            def addends(index: int = index) -> tuple[Sums, tuple[Any, ...]]:
                if not index:
                    responses.extend(work.respond(block, *sums) for block, sums in zip(blocks, outputs, strict=True))
                found = self._over_tiles(partial(self._addend, index, responses, totals))
                if index < work.sums - 1:
                    return found, ()
                share = Share(self._worker.address, len(self._assignment.lanes), self._wait, self._busy)
                return found, ((share, time.perf_counter() - started, request_counts_of_worker(self._shared)),)

            total, reports = self._peers.together(
                (number, index),
                addends,
                lambda a, b: (self._joined(a[0], b[0]), (*a[1], *b[1])),
                lambda both: (self._totals(both[0]), both[1]),
            )
            totals.append(total)
        common = work.common(blocks, responses, totals)
        advance = partial(self._advance, responses, totals, common)
        parts = common
        if work.owns:
            own = self._peers.gathered((number, "own"), advance, self._joined)
            parts = common if own is None else self._totals(own)[0] + common
        else:
            advance()
        if name is not None:
            copies = stacked_tiles([work.kept(part) for part in self._parts])
            self._shares[name] = self._disk.submit(
                self._context.copy().run, packed_reply, self._shared, lambda: self._written(name, *copies)
            )
        shares, elapsed, requests = zip(*reports, strict=True)
        return StepReply(parts, shares, max(elapsed), requests)

    def _hold(self) -> None:
        """Read the tiles, and make their parts of the state: kept ones, and the steps since."""
        if self._held:
            return
        work, (_, base, log) = self._work, self._shared.value
        constants, tiles = zip(*(self._given.pop(tile) for tile in self._assignment.tiles), strict=True)
        self._held = list(self._threads.map(work.hold, self._assignment.tiles, constants))
        if base is not None and tiles[0] is None:
            tiles = tuple(read_tiles(Path(self._assignment.folder), base, self._assignment.tiles))
        steps = 0 if base is None else base.steps
        parts = [work.start(*each, steps) for each in zip(self._held, tiles, strict=True)]
        for _, sums in log:
            parts = [work.advance(held, part, sums) for held, part in zip(self._held, parts, strict=True)]
        self._parts = parts

    def _weights(self) -> list[Array]:
        self._hold()
        return list(map(self._work.weights, self._parts))

    def _written(self, name: str, rows: list[int], arrays: dict[str, Array]) -> ShareReply:
        """Write the share of a set, or return it where nobody else would see it."""
        first = self._assignment.tiles.start
        if name and self._assignment.folder:
            write_share(Path(self._assignment.folder) / name, first, rows, arrays)
            return ShareReply(first, None)
        ends = np.cumsum([0, *rows]).tolist()
        tiles: list[Tile] = [{key: array[a:b] for key, array in arrays.items()} for a, b in pairwise(ends)]
        return ShareReply(first, tiles)

    def _exchange(self, position: Position, ahead: Sequence[Position]) -> None:
        """Begin to exchange the blocks of a step; those of ``ahead`` are read meanwhile."""
        lanes = self._assignment.lanes

        def taken() -> dict[int, Any]:
            return {lane: self._prefetch.take((position[0], lane, position[1]))[0] for lane in lanes}

        def exchanged() -> dict[int, Any]:
            self._prefetch.announce((pass_, lane, step) for pass_, step in (position, *ahead) for lane in lanes)
            blocks = self._peers.together((*position, "rows"), taken, _add_sums, lambda blocks: blocks, _others)
            return dict(sorted(blocks.items()))

        self._blocks[position] = self._rows.submit(self._context.copy().run, exchanged)

    def _cut(self, cut: int) -> range:
        """Places in this worker's list of tiles that one of its threads goes over."""
        count, cuts = len(self._assignment.tiles), self._assignment.threads
        return range(count * cut // cuts, count * (cut + 1) // cuts)

    def _forward(self, blocks: list[Any], i: int) -> list[Parts]:
        found = self._work.forward(self._held[i], self._parts[i], blocks)
        self._values[i] = [values for _, values in found]
        return [sums for sums, _ in found]

    def _addend(self, index: int, responses: list[Any], totals: list[list[Parts]], i: int) -> list[Parts]:
        values = self._values.pop(i)
        sums: list[Parts]
        sums, self._values[i] = self._work.addend(index, self._held[i], values, responses, totals)
        return sums

    def _advance(self, responses: list[Any], totals: list[list[Parts]], common: Parts) -> Sums:
        """Advance all tiles; return their results of ``SharedWork.own``."""
        work, tree, parts = self._work, Tree(self._work.leaves), list[Any]()
        for i, held in enumerate(self._held):
            own = work.own(held, self._values.pop(i), responses, totals)
            parts.append(work.advance(held, self._parts[i], (*own, *common)))
            tree.put(0, self._assignment.tiles.start + i, own)
        self._parts = parts
        return [tree.nodes]

    def _over_tiles(self, compute: Callable[[int], list[Parts]]) -> Sums:
        """Sums over the tiles held here, of each of the contributions of a tile."""
        first = self._assignment.tiles.start

        def some(cut: int) -> tuple[list[Tree], float]:
            start, trees = time.perf_counter(), list[Tree]()
            for i in self._cut(cut):
                if self._peers.closed:
                    raise LostError
                parts = compute(i)
                trees = trees or [Tree(self._work.leaves) for _ in parts]
                for tree, sums in zip(trees, parts, strict=True):
                    tree.put(0, first + i, sums)
                check_memory()
            return trees, time.perf_counter() - start

        found = list[Tree]()
        for trees, seconds in self._threads.map(some, range(self._assignment.threads)):
            self._busy += seconds
            if found and trees:
                found = [_merged(a, b.nodes) for a, b in zip(found, trees, strict=True)]
            found = found or trees
        return [tree.nodes for tree in found]

    def _joined(self, sums: Sums, others: Sums) -> Sums:
        """Sums of this worker and of one below it."""
        return [_merged(Tree(self._work.leaves, a), b).nodes for a, b in zip(sums, others, strict=True)]

    def _totals(self, sums: Sums) -> list[Parts]:
        return [Tree(self._work.leaves, nodes).total() for nodes in sums]


def _add_sums(a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
    return a | b


def _others(all_: dict[int, Any], some: dict[int, Any]) -> dict[int, Any]:
    return {lane: block for lane, block in all_.items() if lane not in some}


def _merged(tree: Tree, nodes: dict[tuple[int, int], Parts]) -> Tree:
    for (level, index), parts in nodes.items():
        tree.put(level, index, parts)
    return tree
