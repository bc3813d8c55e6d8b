"""The tree of cuts: which leaves a row is trained in, and which leaves predict it, with which weights.

A cut is a direction of the encoded rows with three numbers, low <= threshold <= high. Rows whose projection is less
than ``high`` are trained on the left, rows from ``low`` on are trained on the right: those between the two on both
sides. In between, predictions go from the left side's to the right side's along a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streamkern.errors import UsageError
from streamkern.kernels.base import set_integer
from streamkern.storage.base import digest
from streamkern.storage.serialize import serializable
from streamkern.types import Array, IntArray

LARGEST_OVERLAP = 0.5

MOST_LEAVES = 1 << 16


@dataclass(frozen=True)
class Partition:
    """Cut the rows into leaves and train a model of its own in each.

    Rows are cut in two at the median of the direction along which the outputs change most (the top eigenvector of the
    average gradient outer product of a sample of the rows), again and again. Each leaf is a fit like any other, with
    its own metric, kernel, centers and ridge; a row costs one leaf's prediction, whatever the number of leaves (ParK,
    Carratino et al. 2021; xRFM, Beaglehole et al. 2025).

    Args:
        leaves: how many; ``"auto"``: as many as it takes until a leaf has at most ``rows`` rows, or one model, where
            that is as good on held-out rows of a sample.
        rows: most rows of a leaf, where ``leaves`` is ``"auto"``.
        overlap: share of the rows at a cut that both sides are trained on, in [0, 0.5]; predictions blend there.
        by: a column: its values are cut first, each a part of its own; values of few rows share a part, which also
            predicts values that training did not see.

    Raises:
        UsageError: a parameter is out of range.
    """

    leaves: int | str = "auto"
    rows: int = 50_000
    overlap: float = 0.05
    by: str | None = None

    def __post_init__(self) -> None:
        set_integer(self, "rows", 100)
        if not isinstance(self.leaves, str):
            set_integer(self, "leaves", 1)
        elif self.leaves != "auto":
            raise UsageError(
                f"leaves is {self.leaves!r}.", where="Partition(leaves=...)", expected='a number, or "auto"'
            )
        number = isinstance(self.overlap, int | float | np.number) and not isinstance(self.overlap, bool)
        if not number or not 0 <= self.overlap <= LARGEST_OVERLAP:
            raise UsageError(
                f"overlap is {self.overlap!r}.", where="Partition(overlap=...)", expected="a share from 0 to 0.5"
            )
        if self.by is not None and not isinstance(self.by, str):
            raise UsageError(f"by is {self.by!r}.", where="Partition(by=...)", expected="the name of a column, or None")

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": "Partition", **asdict(self)}


def project(X: Array, direction: Array) -> Array:
    """X · direction, shape (n,), float64: the same bits for a row whatever rows are around it."""
    return np.asarray(np.multiply(X, direction, dtype=np.float64).sum(axis=1))


@serializable
@dataclass(frozen=True, eq=False)
class CutTree:
    """Cuts, the root first. A tree without cuts is one leaf.

    Attributes:
        directions: shape (m, d), float64.
        cuts: low, threshold and high of each cut, shape (m, 3).
        children: of each cut the left and the right side, shape (m, 2): the number of a cut, or -1 - leaf.
    """

    directions: Array
    cuts: Array
    children: IntArray

    @classmethod
    def of(cls, d: int) -> CutTree:
        """One leaf, for rows of d features."""
        return cls(np.zeros((0, d)), np.zeros((0, 3)), np.zeros((0, 2), dtype=np.int64))

    @property
    def leaves(self) -> int:
        """How many there are."""
        return len(self.cuts) + 1

    @property
    def depth(self) -> int:
        """Cuts between the root and the leaf that is farthest from it."""
        depths = np.zeros(len(self.cuts), dtype=np.int64)
        for node, children in enumerate(self.children.tolist()):
            for child in children:
                if child >= 0:
                    depths[child] = depths[node] + 1
        return int(depths.max(initial=-1)) + 1

    @property
    def fingerprint(self) -> str:
        """Hex digest."""
        return digest(self.directions.tolist(), self.cuts.tolist(), self.children.tolist())

    @property
    def sound(self) -> bool:
        """Whether every cut and every leaf is reached once, and nothing is missing."""
        m = len(self.cuts)
        shapes = self.directions.ndim == 2 and self.cuts.shape == (m, 3) and self.children.shape == (m, 2)
        if not shapes or len(self.directions) != m or self.children.dtype.kind != "i":
            return False
        if not (np.isfinite(self.directions).all() and np.isfinite(self.cuts).all()):
            return False
        if not (np.diff(self.cuts, axis=1) >= 0).all():
            return False
        expected = [*range(-m - 1, 0), *range(1, m)] if m else []
        after = self.children > np.arange(m)[:, None]  # a child comes after its parent: there is no circle
        return sorted(self.children.ravel().tolist()) == expected and bool((after | (self.children < 0)).all())

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

    def training(self, X: Array) -> Iterator[tuple[int, IntArray]]:
        """The leaves that rows are trained in: (leaf, positions of rows, ascending), for leaves that get any.

        Args:
            X: encoded rows, shape (n, d).
        """
        waiting = [(0 if len(self.cuts) else -1, np.arange(len(X), dtype=np.int64))]
        while waiting:
            node, at = waiting.pop()
            if not len(at):
                continue
            if node < 0:
                yield -1 - node, at
                continue
            t = project(X[at], self.directions[node])
            low, _, high = self.cuts[node]
            left, right = self.children[node].tolist()
            waiting += [(right, at[t >= low]), (left, at[t < high])]

    def mine(self, X: Array, leaf: int) -> Array:
        """Which rows lie on a leaf's side of every cut, shape (n,), boolean."""
        found = np.zeros(len(X), dtype=bool)
        for number, at, _ in self.predicting(X, 0.0):
            found[at] = number == leaf
        return found

    def predicting(self, X: Array, width: float) -> Iterator[tuple[int, IntArray, Array]]:
        """The leaves that predict rows: (leaf, positions of rows, weights); weights of a row sum to 1.

        A row blends at the first cut that it is near, so that at most two leaves predict it.

        Args:
            X: encoded rows, shape (n, d).
            width: of the blending, in parts of the overlap; 0 for none.
        """
        waiting: list[tuple[int, IntArray, Array]] = [
            (0 if len(self.cuts) else -1, np.arange(len(X), dtype=np.int64), np.ones(len(X)))
        ]
        places, children = self._places
        while waiting:
            node, at, weights = waiting.pop()
            if node < 0:
                yield -1 - node, at, weights
                continue
            t = project(X if len(at) == len(X) else X[at], self.directions[node])
            low, threshold, high = places[node]
            begin, end = threshold - width * (threshold - low), threshold + width * (high - threshold)
            left, right = children[node]
            if len(t) == 1:  # in Python's numbers, a tenth of what arrays take
                value, weight = t.item(), weights.item()
                share = float(value >= threshold)
                if begin < value < end and weight == 1.0:
                    share = (value - begin) / (end - begin)
                if share > 0:
                    waiting.append((right, at, weights if share == 1.0 else np.array([weight * share])))
                if share < 1:
                    waiting.append((left, at, weights if share == 0.0 else np.array([weight * (1.0 - share)])))
                continue
            shares = (t >= threshold).astype(np.float64)
            near = (t > begin) & (t < end) & (weights == 1.0)
            shares[near] = (t[near] - begin) / (end - begin)
            for child, part in ((right, shares), (left, 1.0 - shares)):
                taken = part > 0
                if taken.any():
                    waiting.append((child, at[taken], weights[taken] * part[taken]))

    @cached_property
    def _places(self) -> tuple[list[list[float]], list[list[int]]]:
        """Cuts and children as Python's numbers."""
        return self.cuts.tolist(), self.children.tolist()
