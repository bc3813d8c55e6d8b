"""Growing the tree level by level: directions from a sample in memory, cuts from it or from counts over all rows.

A level is two things. For each leaf that is to be cut, the direction of the largest variance, from the rows of the
sample that lie in it. Then the median along it. Where the sample has ``MIN_SAMPLE_ROWS_OF_LEAF`` rows of the leaf, it
is that of these, and one sweep over all rows counts those of every leaf when all that are so have been cut. Elsewhere
each level has a sweep, in which a block counts, for the leaves that are cut, how many of its rows fall between
neighbouring quantiles of the sample: the median to a thousandth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from streamkern.costs.dry_run import ProblemSize
from streamkern.cpu import host_loops
from streamkern.data.row_order import Assembly, Block, Scan
from streamkern.defaults import (
    LEAF_ROWS_SLACK,
    MAX_EDGES,
    MAX_EIGENVECTORS,
    MAX_FULL_FEATURES,
    MAX_VALUES,
    MIN_BALANCE,
    MIN_CUT_ROWS,
    MIN_ROWS_OF_VALUE,
    MIN_SAMPLE_ROWS,
    MIN_SAMPLE_ROWS_OF_LEAF,
    MIN_SIDE_SHARE,
    SAMPLE_BYTES,
    SAMPLE_PART,
    SAMPLE_ROWS,
    VARIANCE_ROWS,
)
from streamkern.engine.operation_counts import Operations, eigh
from streamkern.errors import UsageError
from streamkern.execute.base import Executor, Parts
from streamkern.models.cut_tree import CutTree, Partition
from streamkern.partition.leaf_rows import encoded_row_bytes, routed_scan
from streamkern.rng import Draw
from streamkern.storage.serialize import serializable_as
from streamkern.sweep import ScanWork, gather_weighted, sweep
from streamkern.types import Array, IntArray


@serializable_as("Grown")
@dataclass(frozen=True, eq=False)
class GrownTree:
    """A tree, rows of each leaf (L,), and the mask of leaves that no direction cuts, (L,)."""

    tree: CutTree
    counts: IntArray
    final: Array


class Axis(NamedTuple):
    """A direction (d,), float64, with ascending edges (E,) between counted rows."""

    direction: Array
    edges: Array

    def counts(self, t: Array) -> IntArray:
        """Count projections before the first edge, between neighbouring edges, and from the last on: shape (E + 1,)."""
        return np.bincount(np.searchsorted(self.edges, t, side="right"), minlength=len(self.edges) + 1)


class SampledAxis(NamedTuple):
    """The axis of a leaf, projections (m,) of the leaf's rows of the sample on it, and their counts between edges."""

    axis: Axis
    t: Array
    counts: IntArray


def _count_rows(tree: CutTree, lines: dict[int, Axis], block: Block, state: Any) -> Parts:
    """Contribute the rows of each leaf, and then how many of the leaves in ``lines`` lie between edges, int64."""
    rows = np.zeros(tree.leaves, dtype=np.int64)
    counts = {leaf: np.zeros(len(line.edges) + 1, dtype=np.int64) for leaf, line in lines.items()}
    for leaf, at in tree.training(block.X, block.w):
        rows[leaf] = len(at)
        if leaf in counts:
            counts[leaf] = lines[leaf].counts(host_loops().project(block.X[at], lines[leaf].direction))
    return (np.concatenate([rows, *counts.values()]),)


def _tally(direction: Array, codes: bool, block: Block, state: Any) -> Parts:
    """Contribute rows by their value of a direction (d,): of ``codes`` a whole number, which rounding moves."""
    X = block.X if block.w is None else block.X[block.w > 0]
    t = host_loops().project(X, direction)
    values, counts = np.unique(np.round(t, 3) if codes else t, return_counts=True)
    return (ValueCounts(zip(values.tolist(), counts.tolist(), strict=True)),)


class ValueCounts(dict[float, int]):
    """Rows of each value, of no more values than tell that there are too many."""

    def __add__(self, other: Mapping[float, int]) -> ValueCounts:
        made = dict(self)
        for value, rows in other.items():
            made[value] = made.get(value, 0) + rows
        return ValueCounts(islice(made.items(), MAX_VALUES + 1))


def sample_rows(partition: Partition, rows: int, width: int) -> int:
    """Return the rows of the sample, of so many of ``width`` bytes: enough for a partition's last cuts, if few."""
    leaves = partition.expected(rows)[0] // partition.n_trees
    # Three quarters: halves at the median of a sample vary.
    enough = min(MIN_SAMPLE_ROWS_OF_LEAF * leaves * 3 // 4, rows // SAMPLE_PART)
    return min(rows, max(SAMPLE_ROWS, enough), max(MIN_SAMPLE_ROWS, SAMPLE_BYTES // width))


def counting_sweeps(rows: int, sample: int, leaves: int, stored: bool) -> int:
    """Return the sweeps that count rows until leaves are so many: one for cuts by the sample, one a further level.

    Where rows are ``stored`` and the sample makes all cuts, scattering counts them.
    """
    levels = sum(sample >> level < MIN_SAMPLE_ROWS_OF_LEAF for level in range(max(0, leaves - 1).bit_length()))
    return 0 if sample >= rows or (stored and not levels) else 1 + levels


def direction_work(size: ProblemSize, rows: int) -> Operations:
    """Return the operations of finding the direction of a leaf of so many rows, on arrays of shapes."""
    sample, d = min(rows, VARIANCE_ROWS), min(size.d, MAX_FULL_FEATURES)
    return Operations(gemm64=2.0 * sample * d * d, eigen=eigh(d))


@dataclass(eq=False)
class TreeBuilder:
    """The data and settings that a tree is grown from.

    ``count`` counts each leaf's rows of a tree that is probably the last one, as they are scattered; None for a sweep.
    ``weights`` (d,) multiply the features whose variance is taken; None for ones.
    """

    partition: Partition
    assembly: Assembly
    executor: Executor
    seed: int
    count: Callable[[CutTree], IntArray] | None = None
    weights: Array | None = None

    def grow(self, keep: Callable[[str, CutTree, Callable[[], GrownTree]], GrownTree]) -> GrownTree:
        """Return the tree; ``keep`` carries out a level, or has its result: name, tree before, computation."""
        data = self.assembly.dataset
        n, d = data.base_rows, data.n_features
        trees = self.partition.n_trees
        tree = CutTree.of(d) if trees == 1 else CutTree.pair(d)
        grown = GrownTree(tree, np.full(trees, n, dtype=np.int64), np.zeros(trees, dtype=bool))
        if self.partition.by is not None:
            grown = keep("level-by", grown.tree, partial(self._by, self.partition.by))
        elif self._chosen(grown):  # else all rows are one leaf
            grown = keep("level-sample", grown.tree, partial(self._from_sample, grown))
            if self._left_open(grown):
                assert self.count is not None
                grown = replace(grown, counts=self.count(grown.tree))
        level, slack = 1, 0.0 if self._whole else LEAF_ROWS_SLACK
        while len(chosen := self._chosen(grown, slack)):
            grown = keep(f"level-{level}", grown.tree, partial(self._level, grown, chosen))
            level += 1
        return grown

    @cached_property
    def overlap(self) -> float:
        """Share of the rows at a cut that both sides get."""
        return self.partition.overlap_at_cut(self.assembly.dataset.base_rows)

    def _left_open(self, grown: GrownTree) -> bool:
        """Does the sample see nothing more to be cut, with all rows yet to be counted?"""
        return self.count is not None and not self._whole and not self._chosen(grown)

    def _chosen(self, grown: GrownTree, slack: float = 0.0) -> list[int]:
        """Leaves that are cut next, ascending; with a part of their most rows that they may have more."""
        wanted, open_ = self.partition, ~grown.final & (grown.counts >= 2 * MIN_CUT_ROWS)
        if wanted.leaves == "auto":
            return np.flatnonzero(open_ & (grown.counts > (1 + slack) * wanted.most)).tolist()
        if wanted.by is not None:
            return []
        # The largest first, and each once a level; in each tree.
        order, found = np.argsort(-grown.counts, kind="stable"), list[int]()
        for number in range(grown.tree.trees):
            of_tree = order[grown.tree.tree_of_leaves[order] == number]
            room = max(0, int(wanted.leaves) - len(of_tree))
            found += of_tree[open_[of_tree]][:room].tolist()
        return sorted(found)

    @property
    def _sample_rows(self) -> int:
        return sample_rows(self.partition, self.assembly.dataset.base_rows, encoded_row_bytes(self.assembly))

    @property
    def _whole(self) -> bool:
        return self._sample_rows == self.assembly.dataset.base_rows

    @cached_property
    def sample(self) -> tuple[Array, Array | None]:
        """Encoded rows and weights of the sample, read when a level first needs them."""
        data = self.assembly.dataset
        ids = np.sort(data.draw(self._sample_rows, Draw.PARTITION, self.seed))
        X, _, w = gather_weighted(self.executor, self.assembly, ids)
        return X, w

    def _from_sample(self, grown: GrownTree) -> GrownTree:
        (X, w), n, whole = self.sample, self.assembly.dataset.base_rows, self._whole

        def expected(rows: int) -> int:
            """No fewer rows than there probably are."""
            return rows if whole else int((rows + 2 * rows**0.5) * n / len(X))

        at = dict(grown.tree.training(X, w))
        while True:
            chosen = [leaf for leaf in self._chosen(grown) if whole or len(at.get(leaf, ())) >= MIN_SAMPLE_ROWS_OF_LEAF]
            if not chosen:
                break
            found = self._found(grown.tree, chosen, at)
            lines = {leaf: each.axis for leaf, each in found.items()}
            bins = [each.counts for each in found.values()]
            before, grown = len(grown.tree.cuts), self._cut(grown, chosen, lines, bins, expected)
            for node in range(before, len(grown.tree.cuts)):
                left, right = (-1 - grown.tree.children[node]).tolist()
                at[left], at[right] = (at[left][side] for side in grown.tree.sides(node, found[left].t))
        if not whole and not self._left_open(grown):
            grown = replace(grown, counts=self._counted(grown.tree, {}))
        return grown

    def _level(self, grown: GrownTree, chosen: list[int]) -> GrownTree:
        X, w = self.sample
        at = dict(grown.tree.training(X, w))
        lines, bins = {leaf: each.axis for leaf, each in self._found(grown.tree, chosen, at).items()}, []
        if lines:
            ends = np.cumsum([len(line.edges) + 1 for line in lines.values()])
            bins = np.split(self._counted(grown.tree, lines)[grown.tree.leaves :], ends[:-1])
        return self._cut(grown, chosen, lines, bins, int)

    def _counted(self, tree: CutTree, lines: dict[int, Axis]) -> IntArray:
        (counts,) = sweep(self.executor, ScanWork(routed_scan(self.assembly), partial(_count_rows, tree, lines)))
        return np.asarray(counts)

    def _found(self, tree: CutTree, chosen: list[int], at: dict[int, IntArray]) -> dict[int, SampledAxis]:
        X, w = self.sample
        none = np.empty(0, dtype=np.int64)
        here = self.executor.in_process  # where nothing is sent, no row is copied
        # A generator, because the items of all leaves together would be a second copy of the sample.
        items = (
            (X, w, rows, second, self.weights)
            if here
            else (X[rows], None if w is None else w[rows], None, second, self.weights)
            for rows, second in ((at.get(leaf, none), int(tree.tree_of_leaves[leaf])) for leaf in chosen)
        )
        found = self.executor.imap(principal_axis, items)
        return {leaf: each for leaf, each in zip(chosen, found, strict=True) if each is not None}

    def _cut(
        self, grown: GrownTree, chosen: list[int], lines: dict[int, Axis], bins: Sequence[IntArray],
        rows: Callable[[int], int],
    ) -> GrownTree:  # fmt: skip
        tree, counts, final = grown.tree, grown.counts.tolist(), grown.final.tolist()
        for leaf in chosen:
            final[leaf] = leaf not in lines
        for (leaf, line), counted in zip(lines.items(), bins, strict=True):
            cut = split_at(line.edges, counted, self.overlap)
            if cut is None:
                final[leaf] = True
                continue
            tree = tree.grown(leaf, line.direction, cut.places)
            counts[leaf] = rows(cut.left)
            counts.append(rows(cut.right))
            final.append(False)
        return GrownTree(tree, np.array(counts, dtype=np.int64), np.array(final, dtype=bool))

    def _by(self, column: str) -> GrownTree:
        data = self.assembly.dataset
        names = data.columns
        one_hot = [] if names is None else [j for j, name in enumerate(names) if name.startswith(f"{column}=")]
        if names is None or (column not in names and not one_hot):
            raise UsageError(
                f"There is no column {column!r} among the encoded features.",
                where="Partition(by=...)",
                expected="a column of numbers, or a category with an indicator for each value"
                + ("" if names is None else f": one of {', '.join(sorted({n.partition('=')[0] for n in names})[:12])}"),
                remedy="name such a column; a category of many values is encoded by means, and cannot be cut by",
            )
        every = np.ones(data.n_features)
        factor, shift = np.asarray(data.factor) * every, np.asarray(data.shift - data.origin) * every
        at = np.array(one_hot or [names.index(column)])
        direction = np.zeros(data.n_features)
        if one_hot:
            codes = np.arange(1, len(at) + 1)
            direction[at] = codes / factor[at]
            base, found = float(shift @ direction), Counter[int]()
            for value, n in self._values(direction, column, True).items():
                found[round(value - base)] += n
            rows = np.array([found[code] for code in codes.tolist()])
            # Values of few rows share number 0 with values that training did not see; the commonest is number 1.
            order = np.argsort(-rows, kind="stable")
            codes[order] = np.where(rows[order] >= MIN_ROWS_OF_VALUE, np.arange(1, len(order) + 1), 0)
            direction[at] = codes / factor[at]
            base, numbers = float(shift @ direction), Counter({0: found[0]})
            for code, n in zip(codes.tolist(), rows.tolist(), strict=True):
                numbers[code] += n
            counted = {base + code: n for code, n in numbers.items() if n}
        else:
            direction[at] = 1.0 / factor[at]
            counted = self._values(direction, column, False)
        parts = _merge_rare_values(sorted(counted.items()))
        tree = CutTree.of(data.n_features)
        counts = [0]

        def split(leaf: int, group: list[tuple[float, float, int]]) -> None:
            nonlocal tree
            if len(group) == 1:
                counts[leaf] = group[0][2]
                return
            middle = len(group) // 2
            border = (group[middle - 1][1] + group[middle][0]) / 2
            right = tree.leaves
            tree = tree.grown(leaf, direction, (border, border, border))
            counts.append(0)
            split(leaf, group[:middle])
            split(right, group[middle:])

        split(0, parts)
        return GrownTree(tree, np.array(counts, dtype=np.int64), np.zeros(len(counts), dtype=bool))

    def _values(self, direction: Array, column: str, codes: bool) -> dict[float, int]:
        (found,) = sweep(self.executor, ScanWork(Scan(self.assembly), partial(_tally, direction, codes)))
        if len(found) > MAX_VALUES:
            raise UsageError(
                f"The column {column!r} has more than {MAX_VALUES:,} values.",
                where="Partition(by=...)",
                expected=f"at most {MAX_VALUES:,}",
                remedy="leave by out: rows are then cut along their largest variance",
            )
        return dict(found)


def _merge_rare_values(values: list[tuple[float, int]]) -> list[tuple[float, float, int]]:
    parts: list[tuple[float, float, int]] = []
    for value, rows in values:
        if parts and (parts[-1][2] < MIN_ROWS_OF_VALUE or rows < MIN_ROWS_OF_VALUE):
            parts[-1] = (parts[-1][0], value, parts[-1][2] + rows)
        else:
            parts.append((value, value, rows))
    return parts


SampleOfLeaf = tuple[Array, Array | None, IntArray | None, int, Array | None]
"""Encoded rows (m, d) and weights; which of the rows are the leaf's, None for all; the number of its tree; and weights
of the features, (d,), None for ones."""


def principal_axis(item: SampleOfLeaf) -> SampledAxis | None:
    """Find the axis along which a leaf's rows vary most, None if no direction has rows on both sides; a task.

    In the second of two trees it is a diagonal between the two axes of the largest variance: borders lie elsewhere.
    Features are in the units of the kernel's distances: those that the metric weighs most have the largest variance.
    """
    X, w, rows, second, weights = item
    rows = np.arange(len(X)) if rows is None else rows
    if len(rows) < 2:
        return None
    some = rows[:: -(-len(rows) // VARIANCE_ROWS)]
    mass = np.ones(len(some)) if w is None else np.asarray(w[some], dtype=np.float64)
    units = np.ones(X.shape[1]) if weights is None else weights
    Z = X[some] * units
    Z = (Z - np.average(Z, axis=0, weights=mass)) * np.sqrt(mass / mass.mean())[:, None]
    varying = np.flatnonzero(Z.any(axis=0))
    if not len(varying):
        return None
    directions = np.zeros((min(len(varying), MAX_EIGENVECTORS), X.shape[1]))
    if len(varying) <= MAX_FULL_FEATURES:
        values, vectors = np.linalg.eigh(Z[:, varying].T @ Z[:, varying])
        vectors = vectors * np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(len(varying))])
        directions[:, varying] = vectors[:, ::-1][:, : len(directions)].T
        if second and len(directions) > 1:
            sizes = np.sqrt(np.maximum(values[[-1, -2]], 0.0))
            turn = np.array([[sizes[0], sizes[1]], [sizes[1], -sizes[0]]]) / np.linalg.norm(sizes)
            directions[:2] = turn @ directions[:2]
    else:
        widest = np.argsort(-np.square(Z).sum(axis=0), kind="stable")[: len(directions)]
        directions[np.arange(len(directions)), widest] = 1.0
    best: SampledAxis | None = None
    share = 0.0
    for direction in directions * units:
        direction = direction * np.sign(direction[np.argmax(np.abs(direction))])
        t = host_loops().project(X, direction, rows)
        edges, counts, smaller = quantile_edges(t)
        if smaller > share:
            best, share = SampledAxis(Axis(direction, edges), t, counts), smaller
        if share >= MIN_BALANCE:
            break
    return best if share >= MIN_SIDE_SHARE else None


def quantile_edges(t: Array) -> tuple[Array, IntArray, float]:
    """Edges between a sample's values, at most ``MAX_EDGES``; counts as of ``Axis``; and the best cut's smaller side.

    That is a share of the values.
    """
    values, counts = np.unique(t, return_counts=True)
    if len(values) < 2:
        return values[:0], counts.sum(keepdims=True), 0.0
    below = np.cumsum(counts)[:-1]
    middles = values[:-1] + np.diff(values) / 2
    middles = np.where(middles > values[:-1], middles, values[1:])  # neighbouring numbers have none in between
    share = float(np.minimum(below, len(t) - below).max()) / len(t)
    if len(middles) > MAX_EDGES:
        wanted = np.arange(1, MAX_EDGES + 1) * len(t) / (MAX_EDGES + 1)
        middles = middles[np.unique(np.minimum(np.searchsorted(below, wanted), len(middles) - 1))]
    under = np.append(0, below)[np.searchsorted(values, middles)]
    return middles, np.diff(under, prepend=0, append=len(t)), share


class Split(NamedTuple):
    """A cut of counted rows: its places (low, threshold, high), and the rows that are trained on either side."""

    places: tuple[float, float, float]
    left: int
    right: int


def split_at(edges: Array, bins: IntArray, overlap: float) -> Split | None:
    """Cut at the edge nearest to the median of counted rows, with those about it that bound the overlap.

    Edges are (E,), and bins (E + 1,), as of ``Axis.counts``. ``overlap`` is the share of the rows that both sides get.
    None where a side has too few rows.
    """
    below, n = np.cumsum(bins)[:-1], int(bins.sum())
    k = int(np.argmin(np.abs(below - n / 2)))
    if min(below[k], n - below[k]) < max(MIN_CUT_ROWS, MIN_SIDE_SHARE * n):
        return None
    half = overlap * n / 2
    i = max(0, int(np.searchsorted(below, below[k] - half, side="right")) - 1)
    j = min(len(edges) - 1, int(np.searchsorted(below, below[k] + half)))
    # A value that very many rows share is not trained on both sides.
    i = i if below[k] - below[i] <= 2 * half else k
    j = j if below[j] - below[k] <= 2 * half else k
    return Split((float(edges[i]), float(edges[k]), float(edges[j])), int(below[j]), int(n - below[i]))
