"""The rows of a leaf in memory, encoded: by their ids where all rows are in memory, else from runs on the disk.

Rows in memory are encoded once for all leaves where that takes little of the budget, or for each leaf anew.

Where rows are stored, reading those of one leaf would decode every chunk. So they are scattered once: each run holds
the encoded rows of some neighbouring blocks, ordered by leaf, and appears under its name when it is whole. The rows of
a leaf are one slice of every run. The runs of an interrupted scatter are kept.
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

BLOCK_BYTES = 4 << 20
"""Encoded rows of a block that is routed to leaves: a leaf's share of it should be worth a call."""

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
    """Sources of the rows of leaves. Picklable."""

    def read(self, leaf: int) -> Leaf:
        """Return the rows of a leaf, in the order in which they are stored.

        Raises:
            StorageError: they cannot be read.
        """


@dataclass(frozen=True, eq=False)
class LeafIds:
    """Rows of a source in memory, by id.

    Args:
        rows: all of them, encoded, in the order in which they are stored; or their assembly.
        ids: of each leaf, ascending: places in ``rows``, where those are encoded.
    """

    rows: Leaf | Assembly
    ids: tuple[IntArray, ...]

    @classmethod
    def of(cls, assembly: Assembly, tree: CutTree, executor: Executor, keep: bool) -> LeafIds:
        """One sweep over the rows: 8 bytes for each are kept, and with ``keep`` the encoded rows."""
        (pieces,) = sweep(executor, ScanWork(routed_scan(assembly), _Routed(tree, keep)))
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
    """Fingerprints of the rows of each leaf.

    Attributes:
        counts: rows of each leaf, shape (L,).
        digests: of their encoded features, targets and weights, in their order.
    """

    counts: IntArray
    digests: tuple[str, ...]

    @classmethod
    def of(cls, assembly: Assembly, tree: CutTree, executor: Executor) -> Prints:
        """Read all rows, a run at a time, in their order."""
        scan = routed_scan(assembly)
        first = first_blocks(scan)
        counts, found = np.zeros(tree.leaves, dtype=np.int64), [hashlib.sha256() for _ in range(tree.leaves)]
        for pieces in executor.imap(print_run, range(len(first) - 1), (scan, tree, first)):
            for leaf, rows, piece in pieces:
                counts[leaf] += rows
                found[leaf].update(piece)
        return cls(counts, tuple(each.hexdigest() for each in found))


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
        scan = routed_scan(assembly)
        first = first_blocks(scan)
        folder.mkdir(parents=True, exist_ok=True)
        missing = [run for run in range(len(first) - 1) if not (folder / _name(run)).is_dir()]
        for _ in executor.imap(write_run, missing, (folder, scan, tree, first)):
            pass
        return cls(folder, len(first) - 1)

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
                    expected="the files of this run, on a disk that every worker sees",
                    remedy="remove the folder and run again; for workers on other machines use a shared directory",
                ) from error
            yield (*parts, w)


def routed_scan(assembly: Assembly) -> Scan:
    """A scan over all rows in blocks that are routed to leaves, none larger than a run."""
    row = _row_bytes(assembly)
    return Scan(assembly, max(1, min(max(_BLOCK_ROWS, BLOCK_BYTES // row), RUN_BYTES // row)))


def first_blocks(scan: Scan) -> IntArray:
    """The first block of each run, and the number of blocks: by the ids of rows, so that rows at the end move none."""
    run_rows = max(1, RUN_BYTES // _row_bytes(scan.assembly))
    return np.append(np.flatnonzero(np.diff(scan.spans[0] // run_rows, prepend=-1)), len(scan))


def _row_bytes(assembly: Assembly) -> int:
    return assembly.dataset.n_features * assembly.dtype.itemsize


def _name(run: int) -> str:
    return f"run-{run:06}"


def rows_of_run(run: int, scan: Scan, first: IntArray) -> Leaf:
    """The rows of a run, in their order.

    Args:
        run: its number.
        scan: over all rows.
        first: blocks with which runs begin.
    """
    found = [scan.block((i,)) for i in range(*first[run : run + 2].tolist())]
    X, y, w = ([getattr(block, name) for block in found] for name in "Xyw")
    return Leaf(np.concatenate(X), np.concatenate(y), None if w[0] is None else np.concatenate(w))


def print_run(run: int, scan: Scan, tree: CutTree, first: IntArray) -> list[tuple[int, int, bytes]]:
    """(leaf, number of rows, their digest) of a run."""
    rows = rows_of_run(run, scan, first)
    made = []
    for leaf, at in tree.training(rows.X, rows.w):
        values = hashlib.sha256()
        for each in rows:
            if each is not None:
                values.update(np.ascontiguousarray(each[at]).data)
        made.append((leaf, len(at), values.digest()))
    return made


def write_run(run: int, folder: Path, scan: Scan, tree: CutTree, first: IntArray) -> None:
    """Write one run: its rows leaf after leaf, and in their order within one.

    Args:
        run: its number.
        folder: of the runs.
        scan: over all rows.
        tree: says which leaves a row is trained in.
        first: blocks with which runs begin.
    """
    rows = rows_of_run(run, scan, first)
    found = dict(tree.training(rows.X, rows.w))
    places = [found.get(leaf, np.empty(0, dtype=np.int64)) for leaf in range(tree.leaves)]
    at = np.concatenate(places)
    with staged(folder / _name(run), folder=True) as staging:
        for name, values in zip(Leaf._fields, rows, strict=True):
            if values is not None:
                np.save(staging / f"{name}.npy", values[at])
        np.save(staging / "offsets.npy", np.cumsum([0, *map(len, places)], dtype=np.int64))
