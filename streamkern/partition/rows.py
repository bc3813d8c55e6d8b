"""The rows of a leaf in memory, encoded: by their ids where all rows are in memory, else from runs on the disk.

Rows in memory are encoded once for all leaves where that takes little of the budget, or for each leaf anew.

Where rows are stored, reading those of one leaf would decode every chunk. So they are scattered once: each run holds
the encoded rows of some neighbouring blocks, ordered by leaf, and appears under its name when it is whole. The rows of
a leaf are one slice of every run. What an interrupted scatter has written is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamkern.data.stream import Assembly, Block, Scan
from streamkern.errors import StorageError
from streamkern.execute.base import Executor, Parts, Stack
from streamkern.execute.threads import ThreadsExecutor
from streamkern.partition.tree import CutTree
from streamkern.storage.serialize import serializable
from streamkern.storage.writer import staged
from streamkern.sweep import ScanWork, gathered, sweep
from streamkern.types import Array, IntArray

RUN_BYTES = 32 << 20
"""Encoded rows of a run, before the overlap."""

_BLOCK_ROWS = 4096


class Leaf(NamedTuple):
    """Rows of a leaf.

    Attributes:
        X: encoded features, shape (n, d).
        y: class codes (n,), int64, or encoded values (n, c), float64.
        w: sample weights, shape (n,), float64, or None.
    """

    X: Array
    y: Array
    w: Array | None


class LeafRows(Protocol):
    """Where the rows of leaves come from. Picklable."""

    def read(self, leaf: int) -> Leaf:
        """Return the rows of a leaf, in the order in which they are stored.

        Raises:
            StorageError: they cannot be read.
        """


@dataclass(frozen=True, eq=False)
class LeafIds:
    """Rows of a source in memory, by id.

    Args:
        rows: all of them, encoded, in the order in which they are stored; or what encodes them.
        ids: of each leaf, ascending: places in ``rows``, where those are encoded.
    """

    rows: Leaf | Assembly
    ids: tuple[IntArray, ...]

    @classmethod
    def of(cls, assembly: Assembly, tree: CutTree, executor: Executor, keep: bool) -> LeafIds:
        """One sweep over the rows: 8 bytes for each are kept, and with ``keep`` the encoded rows."""
        (pieces,) = sweep(executor, ScanWork(Scan(assembly, _BLOCK_ROWS), _Routed(tree, keep)))
        ids: list[list[IntArray]] = [[np.empty(0, dtype=np.int64)] for _ in range(tree.leaves)]
        before, found = 0, list(pieces)
        for routed, block in found:
            for leaf, some in routed:
                ids[leaf].append(before + some if keep else block[some])
            before += len(block.X) if keep else len(block)
        every = tuple(map(np.concatenate, ids))
        if not keep:
            return cls(assembly, every)
        weighted = found[0][1].w is not None
        X, y = (np.concatenate([block[k] for _, block in found]) for k in range(2))
        return cls(Leaf(X, y, np.concatenate([block.w for _, block in found]) if weighted else None), every)

    def read(self, leaf: int) -> Leaf:
        """Return the rows of a leaf."""
        at = self.ids[leaf]
        if isinstance(self.rows, Leaf):
            rows = self.rows
            return Leaf(rows.X[at], rows.y[at], None if rows.w is None else rows.w[at])
        with ThreadsExecutor(1) as executor:
            X, y, w = gathered(executor, self.rows, at)
        assert y is not None
        return Leaf(X, y, w)


@dataclass(frozen=True, eq=False)
class _Routed:
    """Contributes, of a block, (leaf, positions of rows) for its leaves, with its rows or their ids."""

    tree: CutTree
    keep: bool

    def __call__(self, block: Block, state: Any) -> Parts:
        routed = list(self.tree.training(block.X, block.w))
        if not self.keep:
            return (Stack(((routed, block.ids),)),)
        assert block.y is not None
        return (Stack(((routed, Leaf(block.X, block.y, block.w)),)),)


@serializable
@dataclass(frozen=True, eq=False)
class Prints:
    """What the rows of each leaf are.

    Attributes:
        counts: rows of each leaf, shape (L,).
        digests: of their encoded features, targets and weights, in their order.
    """

    counts: IntArray
    digests: tuple[str, ...]

    @classmethod
    def of(cls, assembly: Assembly, tree: CutTree, executor: Executor) -> Prints:
        """One sweep over the rows."""
        (pieces,) = sweep(executor, ScanWork(Scan(assembly, _BLOCK_ROWS), _Printed(tree)))
        counts, found = np.zeros(tree.leaves, dtype=np.int64), [hashlib.sha256() for _ in range(tree.leaves)]
        for leaf, rows, piece in pieces:
            counts[leaf] += rows
            found[leaf].update(piece)
        return cls(counts, tuple(each.hexdigest() for each in found))


@dataclass(frozen=True, eq=False)
class _Printed:
    """Contributes (leaf, number of rows, digest) of a block."""

    tree: CutTree

    def __call__(self, block: Block, state: Any) -> Parts:
        made = []
        for leaf, at in self.tree.training(block.X, block.w):
            rows = hashlib.sha256()
            for values in (block.X, block.y, block.w):
                if values is not None:
                    rows.update(np.ascontiguousarray(values[at]).data)
            made.append((leaf, len(at), rows.digest()))
        return (Stack(made),)


@dataclass(frozen=True, eq=False)
class Scattered:
    """Rows of leaves in runs on a disk that every reader sees.

    Args:
        folder: of the runs.
        runs: how many.
    """

    folder: Path
    runs: int

    @classmethod
    def of(cls, assembly: Assembly, tree: CutTree, executor: Executor, folder: Path) -> Scattered:
        """Write the runs that are not there yet; tasks of the executor, which hold one run each.

        Raises:
            StorageError: the disk is full or cannot be written; the runs that were written are kept.
        """
        scan = Scan(assembly, _BLOCK_ROWS)
        blocks = blocks_of_run(scan)
        runs = -(-len(scan) // blocks)
        folder.mkdir(parents=True, exist_ok=True)
        missing = [run for run in range(runs) if not (folder / _name(run)).is_dir()]
        for _ in executor.imap(write_run, missing, (folder, scan, tree, blocks)):
            pass
        return cls(folder, runs)

    def read(self, leaf: int) -> Leaf:
        """Return the rows of a leaf, run after run."""
        pieces = list(self._pieces(leaf))
        X, y = (np.concatenate([piece[k] for piece in pieces]) for k in (0, 1))
        weighted = pieces[0][2] is not None
        return Leaf(X, y, np.concatenate([piece[2] for piece in pieces]) if weighted else None)

    def _pieces(self, leaf: int) -> Iterator[tuple[Any, ...]]:
        for run in range(self.runs):
            place = self.folder / _name(run)
            try:
                first, last = np.load(place / "offsets.npy")[leaf : leaf + 2].tolist()
                parts = [np.load(place / f"{name}.npy", mmap_mode="r")[first:last] for name in "Xy"]
                weights = place / "w.npy"
                w = np.load(weights, mmap_mode="r")[first:last] if weights.exists() else None
            except (OSError, ValueError) as error:
                raise StorageError(
                    f"Rows of a leaf cannot be read: {error}.",
                    where=str(place),
                    expected="what this run has written, on a disk that every worker sees",
                    remedy="remove the folder and run again; for workers on other machines use a shared directory",
                ) from error
            yield (*parts, w)


def blocks_of_run(scan: Scan) -> int:
    """Blocks of a scan that go into a run: a function of the stored rows alone."""
    data = scan.assembly.dataset
    row = data.n_features * scan.assembly.dtype.itemsize
    return max(1, RUN_BYTES * len(scan) // max(1, data.base_rows * row))


def _name(run: int) -> str:
    return f"run-{run:06}"


def write_run(run: int, folder: Path, scan: Scan, tree: CutTree, blocks: int) -> None:
    """Write one run: its rows leaf after leaf, and in their order within one.

    Args:
        run: its number.
        folder: of the runs.
        scan: over all rows.
        tree: says which leaves a row is trained in.
        blocks: of a run.
    """
    found = [scan.block((i,)) for i in range(run * blocks, min((run + 1) * blocks, len(scan)))]
    pieces: list[list[tuple[int, IntArray]]] = [[] for _ in range(tree.leaves)]
    for number, block in enumerate(found):
        for leaf, at in tree.training(block.X, block.w):
            pieces[leaf].append((number, at))
    sizes = [sum(len(at) for _, at in some) for some in pieces]
    with staged(folder / _name(run), folder=True) as staging:
        for name in "Xyw":
            if getattr(found[0], name) is None:
                continue
            taken = [getattr(found[number], name)[at] for some in pieces for number, at in some]
            np.save(staging / f"{name}.npy", np.concatenate([getattr(found[0], name)[:0], *taken]))
        np.save(staging / "offsets.npy", np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
