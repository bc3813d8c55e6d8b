"""The rows of leaves, encoded: gathered by their ids where all rows are in memory, else scattered to runs on the disk.

Where rows are stored, reading those of one leaf would decode every chunk. So they are scattered once: each run holds
the encoded rows of some neighbouring blocks, ordered by leaf, with their digests, and appears under its name when it is
whole. The rows of a leaf are one slice of every run. The runs of an interrupted scatter are kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.row_order import Assembly, Block, Scan
from streamkern.data.targets import encoding_to_json
from streamkern.errors import StorageError
from streamkern.execute.base import Executor, Parts, Stack
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.fitting.preparation import rows_key
from streamkern.fitting.stage import Runner
from streamkern.memory import release_free_memory
from streamkern.models.cut_tree import CutTree
from streamkern.storage.atomic_writes import boot_id, staged, write_text
from streamkern.storage.serialize import serializable_as
from streamkern.storage.value_digest import digest
from streamkern.sweep import ScanWork, gather_weighted, sweep
from streamkern.types import Array, IntArray

RUN_BYTES = 32 << 20
"""Encoded rows of a run, before the overlap."""

BLOCK_BYTES = 4 << 20
"""Encoded rows of a block that is routed to leaves: a leaf's share of it should be worth a call."""

_BLOCK_ROWS = 4096


class Leaf(NamedTuple):
    """Rows of a leaf: encoded features (n, d); class codes (n,), int64, or values (n, c); weights (n,) or None."""

    X: Array
    y: Array
    w: Array | None


@dataclass(frozen=True, eq=False)
class LeafIds:
    """Rows of a source in memory, and the ascending ids of each leaf's."""

    assembly: Assembly
    ids: tuple[IntArray, ...]

    @classmethod
    def of(cls, assembly: Assembly, tree: CutTree, executor: Executor) -> LeafIds:
        """Sweep once over the rows: 8 bytes for each are kept."""
        (pieces,) = sweep(executor, ScanWork(routed_scan(assembly), partial(_routed_ids, tree)))
        ids: list[list[IntArray]] = [[np.empty(0, dtype=np.int64)] for _ in range(tree.leaves)]
        for leaf, some in pieces:
            ids[leaf].append(some)
        return cls(assembly, tuple(map(np.concatenate, ids)))

    def read(self, leaf: int) -> Leaf:
        """Return the rows of a leaf, in the order in which they are stored."""
        with ThreadsExecutor(1) as executor:
            X, y, w = gather_weighted(executor, self.assembly, self.ids[leaf])
        assert y is not None
        return Leaf(X, y, w)


@dataclass(frozen=True, eq=False)
class RowsOfSomeLeaves:
    """The rows of a few leaves, in memory; a leaf without rows is not among them."""

    leaves: dict[int, Leaf]

    @classmethod
    def of(cls, assembly: Assembly, tree: CutTree, some: Sequence[int], executor: Executor) -> RowsOfSomeLeaves:
        """Sweep once over the rows."""
        (pieces,) = sweep(executor, ScanWork(routed_scan(assembly), partial(_routed_rows, tree, frozenset(some))))
        found: dict[int, list[Leaf]] = {}
        for leaf, rows in pieces:
            found.setdefault(leaf, []).append(rows)
        return cls({leaf: Leaf(*map(_joined, zip(*found[leaf], strict=True))) for leaf in sorted(found)})

    def read(self, leaf: int) -> Leaf:
        return self.leaves[leaf]


def _joined(parts: tuple[Array | None, ...]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)  # type: ignore[arg-type]


def _routed_rows(tree: CutTree, some: frozenset[int], block: Block, state: Any) -> Parts:
    found = ((leaf, at) for leaf, at in tree.training(block.X, block.w) if leaf in some)
    values = (block.X, block.y, block.w)
    return (Stack((leaf, Leaf(*(None if v is None else v[at] for v in values))) for leaf, at in found),)  # type: ignore[arg-type]


def _routed_ids(tree: CutTree, block: Block, state: Any) -> Parts:
    return (Stack((leaf, block.ids[rows]) for leaf, rows in tree.training(block.X, block.w)),)


@serializable_as("Prints")
@dataclass(frozen=True, eq=False)
class LeafFingerprints:
    """Rows of each leaf, (L,), and digests of their encoded features, targets and weights, in their order."""

    counts: IntArray
    digests: tuple[str, ...]

    @classmethod
    def of(cls, assembly: Assembly, tree: CutTree, executor: Executor) -> LeafFingerprints:
        """Read all rows, a run at a time, in their order."""
        scan = routed_scan(assembly)
        first = first_blocks(scan)
        return _join_fingerprints(
            tree.leaves, executor.imap(fingerprint_run, range(len(first) - 1), (scan, tree, first))
        )


class RowLayout(NamedTuple):
    """The arrays of rows in a file, as dtypes and shapes of a row; of the weights None where rows have none."""

    X: tuple[str, tuple[int, ...]]
    y: tuple[str, tuple[int, ...]]
    w: tuple[str, tuple[int, ...]] | None

    @classmethod
    def of(cls, rows: Leaf | Block) -> RowLayout:
        return cls(*(None if v is None else (v.dtype.str, v.shape[1:]) for v in (rows.X, rows.y, rows.w)))  # type: ignore[arg-type]

    def empty(self, n: int) -> Leaf:
        return Leaf(*(None if each is None else np.empty((n, *each[1]), each[0]) for each in self))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class LeafRuns:
    """Rows of leaves in runs on a disk that every reader sees.

    A run is a file: where the rows of each leaf begin, their digests, then features, targets and weights.
    """

    folder: Path
    runs: int
    leaves: int
    layout: RowLayout

    @classmethod
    def of(cls, assembly: Assembly, tree: CutTree, executor: Executor, folder: Path) -> LeafRuns:
        """Write the missing runs, in tasks that hold one each; they are kept where a disk is full (StorageError)."""
        scan = routed_scan(assembly)
        first = first_blocks(scan)
        mark = folder / "boot"  # runs are not synced: after a start of the machine they may not be whole
        if not mark.exists() or mark.read_text(encoding="utf-8") != boot_id():
            shutil.rmtree(folder, ignore_errors=True)
            write_text(mark, boot_id(), parents=True)
        missing = [run for run in range(len(first) - 1) if not (folder / _name(run)).is_file()]
        for _ in executor.imap(write_run, missing, (folder, scan, tree, first)):
            pass
        return cls(folder, len(first) - 1, tree.leaves, RowLayout.of(scan.block((0,))))

    def fingerprints(self) -> LeafFingerprints:
        return _join_fingerprints(self.leaves, map(self._index, range(self.runs)))

    def read(self, leaf: int) -> Leaf:
        spans = [self._span(run, leaf) for run in range(self.runs)]
        found, done = self.layout.empty(sum(end - begin for begin, end, _ in spans)), 0
        for run, (begin, end, rows) in enumerate(spans):
            if begin < end:
                here = slice(done, done + end - begin)
                self._fill(run, begin, rows, [None if values is None else values[here] for values in found])
                done = here.stop
        return found

    def _index(self, run: int) -> tuple[IntArray, Array]:
        """Where the rows of each leaf begin in a run, shape (L + 1,), and their digests, shape (L, 32)."""
        starts, digests = np.empty(self.leaves + 1, dtype=np.int64), np.empty((self.leaves, 32), dtype=np.uint8)
        self._read(run, 0, [starts, digests])
        return starts, digests

    def _span(self, run: int, leaf: int) -> tuple[int, int, int]:
        """Begin and end of a leaf's rows in a run, and the number of all its rows."""
        in_leaf, last = np.empty(2, dtype=np.int64), np.empty(1, dtype=np.int64)
        self._read(run, 8 * leaf, [in_leaf])
        self._read(run, 8 * self.leaves, [last])
        return int(in_leaf[0]), int(in_leaf[1]), int(last[0])

    def _fill(self, run: int, begin: int, rows: int, parts: list[Array | None]) -> None:
        at = 8 * (self.leaves + 1) + 32 * self.leaves
        for values in parts:
            if values is not None:
                row = values.nbytes // len(values)
                self._read(run, at + begin * row, [values])
                at += rows * row

    def _read(self, run: int, at: int, into: list[Array]) -> None:
        place = self.folder / _name(run)
        try:
            handle = os.open(place, os.O_RDONLY)
            try:
                wanted = sum(values.nbytes for values in into)
                if os.preadv(handle, [values.reshape(-1).view(np.uint8).data for values in into], at) != wanted:
                    raise OSError("the file is shorter than it was")
            finally:
                os.close(handle)
        except OSError as error:
            raise StorageError(
                f"Rows of a leaf cannot be read: {error}.",
                where=str(place),
                expected="the file of this run, on a disk that every worker sees",
                remedy="remove the folder and run again; for workers on other machines use a shared directory",
            ) from error


LeafRows = LeafIds | LeafRuns | RowsOfSomeLeaves
"""Sources of the rows of leaves. Picklable."""


def routed_scan(assembly: Assembly) -> Scan:
    """Scan all rows in blocks that are routed to leaves, none larger than a run."""
    row = encoded_row_bytes(assembly)
    return Scan(assembly, max(1, min(max(_BLOCK_ROWS, BLOCK_BYTES // row), RUN_BYTES // row)))


def first_blocks(scan: Scan) -> IntArray:
    """Return each run's first block, and their number: by the ids of rows, so that rows at the end move none."""
    run_rows = max(1, RUN_BYTES // encoded_row_bytes(scan.assembly))
    return np.append(np.flatnonzero(np.diff(scan.spans[0] // run_rows, prepend=-1)), len(scan))


def encoded_row_bytes(assembly: Assembly) -> int:
    """Return the bytes of an encoded row."""
    return assembly.dataset.n_features * assembly.dtype.itemsize


def _name(run: int) -> str:
    return f"run-{run:06}"


def sorted_run(run: int, scan: Scan, tree: CutTree, first: IntArray) -> tuple[Leaf, IntArray]:
    """Return a run's rows, leaf after leaf, and where each begins, (L + 1,); ``first`` blocks are those of runs."""
    blocks = [scan.block((i,)) for i in range(*first[run : run + 2].tolist())]
    # A block at a time: its rows are in the processor's cache while they go from cut to cut.
    routed = [tree.assigned(block.X, block.w) for block in blocks]
    sizes = np.array([spans[:, 1] - spans[:, 0] for spans, _ in routed])
    starts = np.concatenate([[0], np.cumsum(sizes.sum(axis=0))])
    begins = starts[:-1] + np.cumsum(sizes, axis=0) - sizes  # of each block's rows of each leaf
    at, before = np.empty(starts[-1], dtype=np.int64), 0
    for block, (spans, rows), size, begin in zip(blocks, routed, sizes, begins, strict=True):
        order = np.argsort(spans[:, 0], kind="stable")  # a leaf without rows begins where the next one does
        at[np.repeat((begin - spans[:, 0])[order], size[order]) + np.arange(len(rows))] = rows + before
        before += len(block.X)
    parts = [[getattr(block, name) for block in blocks] for name in "Xyw"]
    del blocks, block, routed

    def sort(values: list[Array]) -> Array:
        whole = np.concatenate(values)
        values.clear()
        return np.take(whole, at, axis=0, mode="clip")  # other modes would copy twice

    X, y = map(sort, parts[:2])
    return Leaf(X, y, None if parts[2][0] is None else sort(parts[2])), starts


def fingerprint_run(run: int, scan: Scan, tree: CutTree, first: IntArray) -> tuple[IntArray, Array]:
    """Return where each leaf's rows begin in a run, (L + 1,), and their digests, (L, 32)."""
    rows, starts = sorted_run(run, scan, tree, first)
    return starts, _digests(rows, starts)


def write_run(run: int, folder: Path, scan: Scan, tree: CutTree, first: IntArray) -> None:
    """Write one run; its arguments are those of ``sorted_run``, and the folder of the runs."""
    rows, starts = sorted_run(run, scan, tree, first)
    with staged(folder / _name(run), sync=False) as staging, open(staging, "wb") as stream:
        for values in (starts, _digests(rows, starts), *rows):
            if values is not None:
                stream.write(values.reshape(-1).view(np.uint8).data)


def _digests(rows: Leaf, starts: IntArray) -> Array:
    """SHA-256 of the rows of each leaf, shape (L, 32); zeros of a leaf without rows."""
    found = np.zeros((len(starts) - 1, 32), dtype=np.uint8)
    for leaf in np.flatnonzero(np.diff(starts)).tolist():
        begin, end = starts[leaf : leaf + 2].tolist()
        made = hashlib.sha256()
        for values in rows:
            if values is not None:
                made.update(values[begin:end].data)
        found[leaf] = np.frombuffer(made.digest(), dtype=np.uint8)
    return found


def _join_fingerprints(leaves: int, runs: Iterable[tuple[IntArray, Array]]) -> LeafFingerprints:
    counts, found = np.zeros(leaves, dtype=np.int64), [hashlib.sha256() for _ in range(leaves)]
    for starts, digests in runs:
        sizes = np.diff(starts)
        counts += sizes
        for leaf in np.flatnonzero(sizes).tolist():
            found[leaf].update(digests[leaf].data)
    return LeafFingerprints(counts, tuple(each.hexdigest() for each in found))


@dataclass(eq=False)
class RowsOfLeaves:
    """The rows of a tree's leaves, scattered to ``folder`` or a temporary one; deleted at the end, but for an error."""

    assembly: Assembly
    executor: Executor
    runner: Runner
    folder: Path | None
    _known: dict[str, LeafFingerprints] = field(default_factory=dict, init=False)
    _scattered: tuple[str, LeafRuns] | None = field(default=None, init=False)
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    def close(self, kind: type[BaseException] | None, *error: Any) -> None:
        """Delete the rows; the callback of an ``ExitStack``."""
        if self._temporary is not None:
            self._temporary.cleanup()
        elif kind is None and self.folder is not None:  # after an error they are gone on with
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def stored(self) -> bool:
        return not self.assembly.dataset.source.in_memory

    def fingerprints(self, tree: CutTree) -> LeafFingerprints:
        """Return counts and fingerprints of each leaf's rows: known, or a stage which writes nothing."""

        def read() -> LeafFingerprints:
            found = LeafFingerprints.of(self.assembly, tree, self.executor)
            release_free_memory()
            return found

        return self._noted(tree, "fingerprints", read)

    def scatter(self, tree: CutTree) -> LeafFingerprints:
        """Return counts and fingerprints of the rows of each leaf, as a stage which scatters them."""
        return self._noted(tree, "scatter", lambda: self._runs(tree).fingerprints())

    def _noted(self, tree: CutTree, stage: str, make: Callable[[], LeafFingerprints]) -> LeafFingerprints:
        if tree.fingerprint not in self._known:
            self._known[tree.fingerprint] = self.runner.keep(stage, lambda: self._key(tree), make)
        return self._known[tree.fingerprint]

    def rows(self, tree: CutTree) -> LeafRows:
        if not self.stored:
            return LeafIds.of(self.assembly, tree, self.executor)
        if self._scattered is None or self._scattered[0] != tree.fingerprint:
            return self.runner.keep("scatter", None, lambda: self._runs(tree))
        return self._scattered[1]

    def _runs(self, tree: CutTree) -> LeafRuns:
        if self.folder is None:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="streamkern-")
            place = Path(self._temporary.name)
        else:
            place = self.folder.absolute()
        in_leaf = place / digest("runs with digests", *self._key(tree))[:16]
        for other in place.glob("*") if place.is_dir() else ():
            if other != in_leaf:  # of other cuts
                shutil.rmtree(other, ignore_errors=True)
        self._scattered = tree.fingerprint, LeafRuns.of(self.assembly, tree, self.executor, in_leaf)
        release_free_memory()
        return self._scattered[1]

    def _key(self, tree: CutTree) -> tuple[Any, ...]:
        encoding = self.assembly.encoding
        return rows_key(self.assembly.dataset), tree.fingerprint, encoding_to_json(encoding), self.assembly.dtype.str
