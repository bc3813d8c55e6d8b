"""The one primitive: sweep(rows, state) = Σ over blocks of rows of contribution(block, state), in a fixed order.

Here the data leg and the numerics leg meet: ``ScanWork`` puts a contribution on the blocks of a scan, ``StepWork`` on
those of a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.row_order import Assembly, Block, RawRows, Scan
from streamkern.errors import DataError
from streamkern.execute.base import Executor, Parts, Stack, Tree, add
from streamkern.memory import check_memory
from streamkern.storage.serialize import serializable
from streamkern.types import Array, IntArray

_BLOCK_ROWS = 4096

Contribute = Callable[[Any, Any], Parts]
"""The contribution of a block under a state: a picklable callable that returns a tuple of values that add."""

ExtraBlocks = Callable[[Any], Iterable[Any]]
"""state -> blocks that the contribution of a step needs in addition to its own; picklable."""


class Contribution(ABC):
    """Contribution of a block to a sum, under a state. Picklable; reads no data itself: blocks are passed in."""

    def begin(self, block: Any) -> Any:
        """Prepare a block before the state is known: return a token for the call, or None without preparation."""
        return None

    @abstractmethod
    def __call__(self, block: Any, state: Any, prepared: Any = None, extra_blocks: Iterable[Any] = ()) -> Parts:
        """Return values that add, of a block; ``prepared`` is the token of ``begin``, ``extra_blocks`` of the state."""


@dataclass(eq=False)
class ScanWork:
    """A contribution on the blocks of a scan: all rows, which ``block`` reads by key."""

    blocks: Any
    contribution: Contribute

    def build(self, *key: int) -> Any:
        """Read and assemble a block."""
        return self.blocks.block(key)

    def contribute(self, block: Any, state: Any) -> Parts:
        """Return the block's contribution."""
        return self.contribution(block, state)


@dataclass(eq=False)
class StepWork:
    """A contribution on the blocks of a stream, for the lanes of a step; it may need ``extra_blocks`` under a state."""

    blocks: Any
    contribution: Contribution
    extra_blocks: ExtraBlocks | None = None

    def build(self, *key: int) -> Any:
        return self.blocks.block(key)

    def begin(self, block: Any) -> Any:
        return self.contribution.begin(block)

    def contribute(self, block: Any, state: Any, prepared: Any = None) -> Parts:
        extra_blocks = () if self.extra_blocks is None else self.extra_blocks(state)
        return self.contribution(block, state, prepared, extra_blocks)


@serializable
@dataclass(frozen=True, eq=False)
class Partial:
    """A sweep to be continued: ``done`` tasks, and ``nodes`` that wait for siblings. Arrays are never changed."""

    done: int
    nodes: tuple[tuple[int, int, Parts], ...]

    def total(self, part: int) -> Any:
        """Return one of the parts, a number, summed so far."""
        return sum(parts[part] for _, _, parts in self.nodes)


def sweep(
    executor: Executor,
    work: ScanWork,
    state: Any = None,
    start: Partial | None = None,
    on_part: Callable[[Partial], None] | None = None,
) -> Parts:
    """Sum a contribution over all blocks, in the tree's order; ``start`` is where to go on.

    ``on_part`` is called with the progress after every task; after the last it holds the sums that are returned.
    Without a block a DataError is raised.
    """
    n = len(work.blocks)
    if not n:
        raise DataError(
            "The data set has no rows.",
            where="sweep",
            expected="at least one row",
            remedy="check the path, the glob or the split",
        )
    level, start = task_level(n), start or Partial(0, ())
    tree, tasks = Tree(n, {(level, index): parts for level, index, parts in start.nodes}), -(-n >> level)
    nodes = [(level, index, n) for index in range(start.done, tasks)]
    for (_, index, _), parts in zip(nodes, executor.imap(run_node, nodes, (work, state)), strict=True):
        tree.put(level, index, parts)
        if on_part is not None:
            on_part(Partial(index + 1, tuple((*place, parts) for place, parts in tree.nodes.items())))
    return tree.total()


def task_level(n: int) -> int:
    """Return the level of a tree of n blocks whose nodes are tasks: a function of n, because it decides the bits."""
    nodes_in_flight = 64  # a sweep is cut into at least this many tasks where it has the blocks for it
    return max(0, (n // nodes_in_flight).bit_length() - 1)


def run_node(node: tuple[int, int, int], work: ScanWork, state: Any) -> Parts:
    """Sum over the leaves below a node (level, index, number of leaves), one by one, so that a task holds one sum."""
    level, index, n = node
    total: Parts | None = None
    for leaf in range(index << level, min((index + 1) << level, n)):
        parts = work.contribute(work.build(leaf), state)
        total = parts if total is None else add(total, parts)
        check_memory()
    assert total is not None
    return total


def gather(executor: Executor, assembly: Assembly, ids: IntArray) -> tuple[Array, Array | None]:
    """Read rows in the order of ``ids``: features (k, d) and encoded targets. Reads each chunk they lie in once.

    Rows have copy number 0. An id that the source lacks is a DataError.
    """
    X, y, _ = gather_weighted(executor, assembly, ids)
    return X, y


def gather_weighted(executor: Executor, assembly: Assembly, ids: IntArray) -> tuple[Array, Array | None, Array | None]:
    """Read features (k, d), encoded targets and sample weights (k,) of rows by id; see ``gather``."""
    n = int(assembly.dataset.source.bounds[-1])
    if len(ids) and not 0 <= ids.min() <= ids.max() < n:
        raise DataError(
            f"Row ids run from {ids.min()} to {ids.max()}.",
            where="gather",
            expected=f"row ids in [0, {n})",
            remedy="the ids belong to other data: make them again from this source",
        )
    if len(ids) and assembly.dataset.source.rows(ids[:0]) is not None:  # no chunk is visited
        parts = [ids[first : first + _BLOCK_ROWS] for first in range(0, len(ids), _BLOCK_ROWS)]
        blocks = list(executor.imap(_rows_in_memory, parts, (assembly,)))
        return _joined(blocks, "X"), _joined(blocks, "y"), _joined(blocks, "w")
    # Blocks are longer where rows lie far apart: one for a few rows would take longer than reading them.
    scan = Scan(assembly, _BLOCK_ROWS * max(1, n // (4 * max(1, len(ids)))), only=np.sort(ids))
    (pieces,) = sweep(executor, ScanWork(scan, _rows))
    found = np.concatenate([piece[0] for piece in pieces])
    X = np.concatenate([piece[1] for piece in pieces])
    # sorted by id, whatever the chunks; put back in the requested order
    rank = np.searchsorted(found, ids)
    y, w = (None if pieces[0][k] is None else np.concatenate([piece[k] for piece in pieces])[rank] for k in (2, 3))
    return X[rank], y, w


def _rows(block: Block, state: Any) -> Parts:
    return (Stack(((block.ids, block.X, block.y, block.w),)) if len(block.ids) else Stack(),)


def _rows_in_memory(ids: IntArray, assembly: Assembly) -> Block:
    rows = assembly.dataset.source.rows(ids)
    assert rows is not None
    raw, every = RawRows(rows.X, rows.y, ids, np.zeros_like(ids), rows.w), np.arange(len(ids), dtype=np.int64)
    check_memory()
    return assembly.build(raw, every, (), f"rows in memory, {len(ids):,} of them")


def _joined(blocks: list[Block], name: str) -> Any:
    values = [getattr(block, name) for block in blocks]
    return None if values[0] is None else np.concatenate(values) if len(values) > 1 else values[0]
