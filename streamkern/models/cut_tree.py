"""The tree of cuts: which leaves a row is trained in, and which leaves predict it, with which weights.

A cut is a direction of the encoded rows with three numbers, low <= threshold <= high. Rows whose projection is less
than ``high`` are trained on the left, rows from ``low`` on are trained on the right: those between the two on both
sides. In between, predictions go from the left side's to the right side's along a line.

Two trees have a cut without a direction above them. Every row is trained on both of its sides, and a prediction is the
mean of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from streamkern.centers import Uniform
from streamkern.cpu import host_loops
from streamkern.defaults import (
    FULL_OVERLAP_CUTS,
    FULL_OVERLAP_ROWS,
    LEAF_CENTERS,
    MAX_FILLED_SHARE,
    MAX_FULL_KERNEL_WORK,
    MAX_LEAF_ROWS,
    MAX_OVERLAP,
    MAX_ROWS_AS_CENTERS,
    MIN_FULL_KERNEL_ROWS,
    MIN_LEAF_ROWS,
    OVERLAP,
    ROWS_PER_CENTER,
    TREES,
)
from streamkern.errors import UsageError
from streamkern.kernels.base import set_integer
from streamkern.storage.serialize import serializable
from streamkern.storage.value_digest import digest
from streamkern.types import Array, IntArray


def max_full_kernel_rows(rows: int) -> int:
    """Rows of a leaf, at most, where all of them are centers; of so many rows in all: twofold steps, as of cuts."""
    steps = round(math.log2((3 * MAX_FULL_KERNEL_WORK / (TREES * max(1, rows))) ** 0.5 / MIN_FULL_KERNEL_ROWS))
    return min(MIN_FULL_KERNEL_ROWS << max(0, steps), MAX_ROWS_AS_CENTERS)


def leaf_centers(n: int, full_kernel_limit: int, seed: int) -> Uniform:
    """Centers of a leaf of n rows by default: all of up to ``full_kernel_limit`` rows, or ``LEAF_CENTERS``."""
    return Uniform(n if n <= full_kernel_limit else min(LEAF_CENTERS, n), seed)


@dataclass(frozen=True)
class Partition:
    """Divide the rows into parts, called leaves, and train a separate model in each.

    The rows are cut in two, and each part is cut again, until the leaves are small enough. The rows are cut at the
    median along the direction in which they vary most, in the units of the kernel's distances. A prediction uses only
    one or two leaves (ParK, Carratino et al. 2021; xRFM, Beaglehole et al. 2025).

    If you give no kernel, or only its name, all leaves have the same bandwidth, metric, ridge, and norm of the
    distance. One search on a sample of all rows chooses them. The metric is weights of the features in distances. If
    you pass a kernel object and ``metric=AGOP()`` (average gradient outer product) to the pipeline or estimator, each
    leaf learns its own metric. Each leaf has its own centers, which are the rows that it compares new rows with.

    Args:
        leaves: number of leaves. ``"auto"``: rows are cut until no leaf has more than ``rows`` rows.
        rows: largest number of rows of a leaf, if ``leaves`` is ``"auto"``. If you give centers, the default is four
            rows for each center, but at least 8,000 and at most 50,000 rows. If you give no centers, every row of a
            leaf is a center. The default is then 10,000 rows for small tables, down to 2,000 rows for large tables. If
            the rows are not in memory, a leaf may have a tenth more rows.
        overlap: number in [0, 0.5]. If n rows are cut in two, the ``overlap`` · n rows nearest to the cut belong to
            both parts. Near a cut of a single tree, the prediction is a weighted mean of two leaves. ``"auto"`` is the
            largest share, from 0.05 to 0.5, that two conditions allow. First, no leaf has more than ``rows`` rows.
            Second, all leaves of a tree take no more work than one model of 10,000 rows. If no share meets both, it is
            0.05. There is one exception. If leaves have more than 16,000 rows, and more than four cuts lead to a leaf,
            the share is less than 0.05. A number that you give is then reduced, too.
        by: name of a column. The rows are first divided into one part for each value of the column. Values with few
            rows share a part. This part also predicts rows with values that were not in the training rows.
        trees: 1, or 2: the rows are cut twice, in different directions. Each row is then trained in a leaf of each
            tree, and a prediction is the mean of two leaves. If the library has chosen the kernel, the second tree
            has its own weights of the features. They are learned from the models of the first tree. ``"auto"`` is 2
            if every row of a leaf is a center, and you give neither ``leaves`` nor ``by``. Otherwise it is 1.

    Raises:
        UsageError: a parameter is out of range.
    """

    leaves: int | str = "auto"
    rows: int | str = "auto"
    overlap: float | str = "auto"
    by: str | None = None
    trees: int | str = "auto"

    def __post_init__(self) -> None:
        for name, least in (("rows", 100), ("leaves", 1), ("trees", 1)):
            if not isinstance(getattr(self, name), str):
                set_integer(self, name, least)
        number = isinstance(self.overlap, int | float | np.number) and not isinstance(self.overlap, bool)
        share = number and 0 <= float(self.overlap) <= MAX_OVERLAP
        for name, right, expected in (
            ("rows", self.rows == "auto" or not isinstance(self.rows, str), 'a number, or "auto"'),
            ("leaves", self.leaves == "auto" or not isinstance(self.leaves, str), 'a number, or "auto"'),
            ("overlap", share or (isinstance(self.overlap, str) and self.overlap == "auto"),
             'a share from 0 to 0.5, or "auto"'),
            ("trees", self.trees in ("auto", 1) or (self.trees == TREES and not self.by),
             '1, 2 (without by), or "auto"'),
            ("by", isinstance(self.by, str | None), "the name of a column, or None"),
        ):  # fmt: skip
            if not right:
                raise UsageError(
                    f"{name} is {getattr(self, name)!r}.", where=f"Partition({name}=...)", expected=expected
                )

    @property
    def most(self) -> int:
        """Largest number of rows of a leaf.

        Raises:
            ValueError: ``rows`` is ``"auto"``, and the number of centers is not known yet.
        """
        return int(self.rows)

    def overlap_at_cut(self, rows: int) -> float:
        """Return the share of the rows that each cut puts into both parts, for a table of ``rows`` rows."""
        depth = self._depth(rows, 0.0)
        least = (OVERLAP if self.overlap == "auto" else float(self.overlap)) * min(
            1.0, max(FULL_OVERLAP_CUTS / max(1, depth), float(FULL_OVERLAP_ROWS << depth) / max(1, rows))
        )
        depth = self._depth(rows, least)
        if self.overlap != "auto" or self.leaves != "auto" or not depth:
            return least
        # Rows of a leaf, whose work goes with their third power; cuts by a sample make some leaves larger.
        widest = min(MAX_FILLED_SHARE * self.most, MAX_ROWS_AS_CENTERS / 2 ** (depth / 3))
        return float(np.clip(2 * (widest / rows) ** (1 / depth) - 1, least, MAX_OVERLAP))

    def expected(self, rows: int) -> tuple[int, int]:
        """Return the number of leaves of a table, and the number of rows of its largest leaf, for cuts at medians."""
        overlap = self.overlap_at_cut(rows)
        depth = self._depth(rows, overlap)
        leaves = 1 << depth if self.leaves == "auto" else int(self.leaves)
        return self.n_trees * leaves, math.ceil(rows * ((1 + overlap) / 2) ** depth)

    @property
    def n_trees(self) -> int:
        """Number of trees; 1 if it is not known yet."""
        return 1 if self.trees == "auto" else int(self.trees)

    def _depth(self, rows: int, overlap: float) -> int:
        if self.leaves != "auto":
            return math.floor(math.log2(int(self.leaves)))
        depth, left = 0, float(rows)
        while left > self.most:
            depth, left = depth + 1, left * (1 + overlap) / 2
        return depth

    def settled(self, rows: int, p: int | None) -> Partition:
        """Return a copy with the default numbers in place of ``rows="auto"`` and ``trees="auto"``.

        Args:
            rows: number of rows of the table.
            p: number of centers of a leaf; None if every row of a leaf is a center.
        """
        if self.trees == "auto":
            every = p is None and (self.rows == "auto" or int(self.rows) <= max_full_kernel_rows(rows))
            twice = every and self.leaves == "auto" and self.by is None
            return replace(self, trees=TREES if twice else 1).settled(rows, p)
        if self.rows != "auto":
            return self
        each = max_full_kernel_rows(rows) if p is None else min(max(ROWS_PER_CENTER * p, MIN_LEAF_ROWS), MAX_LEAF_ROWS)
        return replace(self, rows=each)

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": "Partition", **asdict(self)}


@serializable
@dataclass(frozen=True, eq=False)
class CutTree:
    """Cuts, the root first: directions (m, d), float64; low, threshold and high (m, 3). Without cuts it is one leaf.

    ``children`` (m, 2) are the left and right side of each cut: the number of a cut, or -1 - leaf.
    """

    directions: Array
    cuts: Array
    children: IntArray

    @classmethod
    def of(cls, d: int) -> CutTree:
        """One leaf, for rows of d features."""
        return cls(np.zeros((0, d)), np.zeros((0, 3)), np.zeros((0, 2), dtype=np.int64))

    @classmethod
    def pair(cls, d: int) -> CutTree:
        """Two trees of one leaf each."""
        return cls.of(d).grown(0, np.zeros(d), (-1.0, 0.0, 1.0))

    @cached_property
    def tree_of_leaves(self) -> IntArray:
        """The number of the tree that each leaf is in, shape (L,): 0, or 1 in the second of two."""
        found, of_cut = np.zeros(self.leaves, dtype=np.int64), np.zeros(len(self.cuts), dtype=np.int64)
        if self.trees > 1:
            for node, children in enumerate(self.children.tolist()):
                for side, child in enumerate(children):
                    (of_cut if child >= 0 else found)[max(child, -1 - child)] = of_cut[node] if node else side
        return found

    @property
    def trees(self) -> int:
        """Number of trees."""
        return TREES if len(self.cuts) and not self.directions[0].any() else 1

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return len(self.cuts) + 1

    @property
    def depth(self) -> int:
        """Cuts between the root of a tree and the leaf that is farthest from it."""
        depths = np.zeros(len(self.cuts), dtype=np.int64)
        for node, children in enumerate(self.children.tolist()):
            for child in children:
                if child >= 0:
                    depths[child] = depths[node] + 1
        return int(depths.max(initial=-1)) + 2 - self.trees

    @property
    def fingerprint(self) -> str:
        return digest(self.directions.tolist(), self.cuts.tolist(), self.children.tolist())

    @property
    def sound(self) -> bool:
        """True if every cut and every leaf is reached once, and nothing is missing."""
        m = len(self.cuts)
        shapes = self.directions.ndim == 2 and self.cuts.shape == (m, 3) and self.children.shape == (m, 2)
        kinds = self.directions.dtype.kind == self.cuts.dtype.kind == "f" and self.children.dtype.kind == "i"
        if not shapes or not kinds or len(self.directions) != m:
            return False
        if not (np.isfinite(self.directions).all() and np.isfinite(self.cuts).all()):
            return False
        if not (np.diff(self.cuts, axis=1) >= 0).all():
            return False
        expected = np.concatenate([np.arange(-m - 1, 0), np.arange(1, m)]) if m else np.zeros(0)
        after = self.children > np.arange(m)[:, None]  # a child comes after its parent: there is no circle
        reached = np.array_equal(np.sort(self.children, axis=None), expected)
        return reached and bool((after | (self.children < 0)).all())

    def grown(self, leaf: int, direction: Array, cut: tuple[float, float, float]) -> CutTree:
        """This tree with one leaf cut: its left side keeps the number, the right side gets the next."""
        m = len(self.cuts)
        children = self.children.copy()
        children[children == -1 - leaf] = m
        return CutTree(
            np.concatenate([self.directions, direction[None].astype(np.float64)]),
            np.concatenate([self.cuts, np.array([cut], dtype=np.float64)]),
            np.concatenate([children, np.array([[-1 - leaf, -1 - self.leaves]], dtype=np.int64)]),
        )

    def sides(self, node: int, t: Array) -> tuple[Array, Array]:
        """Masks of the rows that a cut gives its left and its right side for training, by their projections t."""
        low, _, high = self.cuts[node]
        return t < high, t >= low

    def training(self, X: Array, w: Array | None = None) -> Iterator[tuple[int, IntArray]]:
        """The leaves that rows X (n, d), encoded, of weight > 0 are trained in: (leaf, ascending positions of rows)."""
        spans, rows = self.assigned(X, w)
        for leaf in np.argsort(spans[:, 0], kind="stable").tolist():
            begin, end = spans[leaf].tolist()
            if begin < end:
                yield leaf, rows[begin:end]

    def assigned(self, X: Array, w: Array | None = None) -> tuple[IntArray, IntArray]:
        """Begin and end of each leaf's training rows, shape (L, 2), and the rows that these places are of."""
        directions, cuts, children = self._arrays
        at = np.arange(len(X), dtype=np.int64) if w is None else np.flatnonzero(w)
        return host_loops().assign(X, at, directions, cuts, children)

    def in_leaf(self, X: Array, leaf: int) -> Array:
        """Mask of the rows on a leaf's side of every cut, shape (n,)."""
        leaves, _ = self.routes(X, np.finfo(np.float64).tiny)  # of two trees a row is in a leaf of each
        return np.asarray((leaves == leaf).any(axis=1))

    def routes(self, X: Array, width: float) -> tuple[IntArray, Array]:
        """The leaves that predict each row, shape (n, 2), the second -1 if one leaf does, and their weights of sum 1.

        A row blends at the first cut that it is near, in ``width`` parts of the overlap: at most two leaves predict it.
        """
        directions, cuts, children = self._arrays
        return host_loops().route(X, directions, cuts, children, width)

    @cached_property
    def _arrays(self) -> tuple[Array, Array, IntArray]:
        return (
            np.ascontiguousarray(self.directions, dtype=np.float64),
            np.ascontiguousarray(self.cuts, dtype=np.float64),
            np.ascontiguousarray(self.children, dtype=np.int64),
        )
