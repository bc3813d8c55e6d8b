"""Predict the memory of centers that are shared out over workers: a step of their shared work on shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamkern.engine.abstract_array import AbstractArray, CostMeter
from streamkern.engine.quantised_factor import PackedFactor
from streamkern.execute.base import Parts, Tree
from streamkern.kernels import Basis, Expansion
from streamkern.solvers.base import Iteration


@dataclass(frozen=True)
class SharedMemory:
    """Bytes of a method whose centers are shared out over workers.

    Attributes:
        tiles: each tile of centers with its weights and constants; a single entry where all tiles are alike.
        exchanged: the rows and sums of a step, which every worker holds.
        own: the contributions of all tiles to ``SharedWork.own``, which the driver receives.
        given: the largest message that sends a worker a tile.
        working: the working arrays of a thread that computes a tile's addends.
    """

    tiles: tuple[int, ...]
    exchanged: int
    own: int
    given: int
    working: int

    @property
    def whole(self) -> int:
        """Bytes of all tiles."""
        return sum(self.tiles)

    def of(self, part: int, count: int) -> int:
        """Return the most bytes that a worker needs for ``part`` of ``count`` tiles, which are neighbours."""
        if len(self.tiles) < count:
            return self.whole * part // count
        return max(sum(self.tiles[first : first + part]) for first in range(count - part + 1))


def shared_memory(iteration: Iteration, lanes: int, meter: CostMeter) -> SharedMemory | None:
    """Return the bytes of a metered iteration with shared-out centers; None if it cannot share them out."""
    work = iteration.shared_work
    if work is None:
        return None
    blocks = lanes * [work.build(0, 0, 0)]
    tiles, given, working = list[int](), 0, 0
    held, values, outputs = list[Any](), list[Any](), Tree(work.leaves)
    for leaf in range(work.leaves):
        constants = iteration.constants(leaf)
        held.append(work.hold(leaf, constants))
        part = work.start(held[-1], None, 0)
        ((sums, found),) = work.forward(held[-1], part, blocks[:1])
        copies = bytes_of(tuple(work.kept(part).values()))  # while they are written
        tiles.append(bytes_of(held[-1]) + bytes_of(tuple(vars(part).values())) + copies + lanes * bytes_of(found))
        given = max(given, bytes_of(constants))
        values.append(lanes * [found])
        outputs.put(0, leaf, sums)
    sums = outputs.total()
    responses, totals = [work.respond(block, *sums) for block in blocks], list[list[Parts]]()
    for number in range(work.sums):
        trees = list[Tree]()
        for leaf, tile in enumerate(held):
            before, meter.peak = meter.peak, meter.alive
            addends, values[leaf] = work.addend(number, tile, values[leaf], responses, totals)
            working, meter.peak = max(working, meter.peak - meter.alive), max(before, meter.peak)
            trees = trees or [Tree(work.leaves) for _ in addends]
            for tree, each in zip(trees, addends, strict=True):
                tree.put(0, leaf, each)
        totals.append([tree.total() for tree in trees])
    own = tuple(work.own(*both, responses, totals) for both in zip(held, values, strict=True))
    exchanged = lanes * (bytes_of(blocks[0]) + bytes_of(sums)) + bytes_of(tuple(map(tuple, totals)))
    return SharedMemory(tuple(tiles), exchanged, bytes_of(own), given, working)


def bytes_of(value: Any) -> int:
    """Bytes of the arrays of shapes in nested tuples."""
    if isinstance(value, AbstractArray | PackedFactor):
        return value.nbytes
    if isinstance(value, Expansion):
        return basis_bytes(value)
    return sum(map(bytes_of, value)) if isinstance(value, tuple) else 0


def basis_bytes(basis: Basis) -> int:
    """Bytes of a metered basis."""
    return basis.Z.nbytes + basis.resident.nbytes if isinstance(basis, Expansion) else bytes_of(vars(basis).get("held"))
