"""Drift: how far rows have moved away from those a model was trained on, column by column.

A ``DataProfile`` holds, for each column, how many training rows lie between the deciles of a sample of them, below its
lowest and above its highest value, and where a value is missing. Two counts over the same bins are compared by the
population stability index Σ (p − q) ln(p/q), and by the largest difference of the two distribution functions, which is
the Kolmogorov-Smirnov distance at the bins' edges. By convention an index below 0.1 is no change, one above 0.25 a
change of population.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamkern.data.stream import Raw
from streamkern.types import Array, IntArray

SHIFTED = 0.25
"""A population stability index above which a warning is given."""

NAMES = ("drift.max_psi", "drift.mean_psi", "drift.max_ks", "drift.target_psi", "drift.score_psi")
"""What a gate may name."""

SAMPLE_ROWS = 4096
"""Rows, at most, that the edges of the bins are taken from."""

SAMPLE_BYTES = 32 << 20
"""Bytes of that sample, at most."""

_DECILES = np.linspace(0, 1, 11)
_EDGES = len(_DECILES)
_BINS = _EDGES + 2  # below and above all edges, and missing
_FLOOR = 1e-4  # share of an empty bin: its logarithm is finite, and a stray row is no change of population


def edges_of(values: Array) -> Array:
    """Edges of the bins of each column: its deciles, the lowest just below the lowest value.

    Args:
        values: a sample, shape (k, d); NaN is missing.

    Returns:
        Shape (d, 11), float64; NaN for a column without a value.
    """
    edges = np.full((values.shape[1], _EDGES), np.nan)
    for column, sample in enumerate(np.asarray(values, dtype=np.float64).T):
        usual = sample[np.isfinite(sample)]
        if len(usual):
            edges[column] = np.quantile(usual, _DECILES, method="inverted_cdf")
            with np.errstate(over="ignore"):  # below the least float64 there is -inf
                edges[column, 0] = np.nextafter(edges[column, 0], -np.inf)
    return edges


def count(values: Array, edges: Array) -> IntArray:
    """How many values of each column lie in each bin.

    Args:
        values: shape (n, d).
        edges: from ``edges_of``, shape (d, 11).

    Returns:
        Shape (d, 13): below, between the edges, above, and not finite.
    """
    counts = np.zeros((len(edges), _BINS), dtype=np.int64)
    for column, steps in enumerate(edges):
        found = np.asarray(values[:, column], dtype=np.float64)
        usual = np.isfinite(found)
        places = (
            np.searchsorted(steps, found[usual], side="left") if np.isfinite(steps[0]) else np.zeros(usual.sum(), int)
        )
        counts[column, :-1] = np.bincount(places, minlength=_BINS - 1)
        counts[column, -1] = len(found) - usual.sum()
    return counts


def psi(before: Array, after: Array) -> Array:
    """Population stability index of counts over the same bins, along the last axis: ≥ 0, and 0 for equal shares."""
    p, q = (np.maximum(_shares(counts), _FLOOR) for counts in (before, after))
    return np.asarray(np.sum((p - q) * np.log(p / q), axis=-1))


def ks(before: Array, after: Array) -> Array:
    """Largest difference of two distribution functions at the bins' edges, along the last axis: in [0, 1]."""
    difference = np.cumsum(_shares(before), axis=-1) - np.cumsum(_shares(after), axis=-1)
    return np.asarray(np.max(np.abs(difference), axis=-1))


def label_psi(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """Population stability index of two counts of labels."""
    labels = sorted({*before, *after})
    if not labels:
        return 0.0
    return float(psi(*(np.array([counts.get(label, 0) for label in labels]) for counts in (before, after))))


def _shares(counts: Array) -> Array:
    counts = np.asarray(counts, dtype=np.float64)
    return np.asarray(counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1.0))


@dataclass(eq=False)
class Tally:
    """Contributes rows, counts of every column of stored rows, and labels, or counts of targets.

    Args:
        edges: of the features, shape (d, 11).
        target_edges: of the targets for regression, shape (c, 11); None counts labels.
    """

    edges: Array
    target_edges: Array | None

    def __call__(self, block: tuple[Raw, str], state: Any) -> tuple[Any, ...]:
        """Counts over one block."""
        raw = block[0]
        labels: Counter[str] = Counter()
        targets = np.zeros((0, _BINS), dtype=np.int64)
        if raw.y is not None and self.target_edges is not None:
            targets = count(raw.y.reshape(len(raw.y), -1), self.target_edges)
        elif raw.y is not None:
            values, counts = np.unique(raw.y, return_counts=True)
            labels.update({str(v): int(n) for v, n in zip(values.tolist(), counts, strict=True)})
        return len(raw.X), count(raw.X, self.edges), targets, labels


@dataclass(frozen=True, eq=False)
class DataProfile:
    """How training rows are distributed.

    Attributes:
        n: rows.
        edges: of the features' bins, shape (d, 11).
        counts: rows in each, shape (d, 13).
        target_edges: of the targets' bins, shape (c, 11); c = 0 for classes.
        target_counts: shape (c, 13).
        labels: rows of each class.
        score_edges: of the model's outputs on test rows, shape (1, 11).
        score_counts: shape (1, 13).
        columns: names of the features.
    """

    n: int
    edges: Array
    counts: IntArray
    target_edges: Array
    target_counts: IntArray
    labels: dict[str, int] = field(default_factory=dict)
    score_edges: Array = field(default_factory=lambda: np.full((1, _EDGES), np.nan))
    score_counts: IntArray = field(default_factory=lambda: np.zeros((1, _BINS), dtype=np.int64))
    columns: tuple[str, ...] = ()

    def dump(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays by name, and the rest as JSON."""
        names = ("edges", "counts", "target_edges", "target_counts", "score_edges", "score_counts")
        arrays: dict[str, Array] = {name: getattr(self, name) for name in names}
        return arrays, {"n": self.n, "labels": dict(self.labels), "columns": list(self.columns)}

    @classmethod
    def load(cls, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> DataProfile:
        """What ``dump`` described."""
        return cls(**arrays, n=facts["n"], labels=facts["labels"], columns=tuple(facts["columns"]))


@dataclass(frozen=True, eq=False)
class Drift:
    """How far rows have moved from a profile.

    Attributes:
        columns: names of the features.
        psi: population stability index of each, shape (d,).
        ks: Kolmogorov-Smirnov distance of each at the bins' edges, shape (d,).
        target_psi: of the classes, or the largest of the targets.
        score_psi: of the model's outputs on test rows, or None.
    """

    columns: tuple[str, ...]
    psi: Array
    ks: Array
    target_psi: float
    score_psi: float | None = None

    def metrics(self) -> dict[str, float | None]:
        """By the names that a gate knows them by."""
        return {
            "drift.max_psi": float(self.psi.max(initial=0.0)),
            "drift.mean_psi": float(self.psi.mean()) if len(self.psi) else 0.0,
            "drift.max_ks": float(self.ks.max(initial=0.0)),
            "drift.target_psi": self.target_psi,
            "drift.score_psi": self.score_psi,
        }

    def warnings(self, threshold: float = SHIFTED) -> list[str]:
        """What has shifted, the worst first, in words."""
        order = [int(i) for i in np.argsort(-self.psi, kind="stable") if self.psi[i] > threshold]
        said = [
            f"column {self.columns[i]} has shifted: PSI {self.psi[i]:.3g}, KS distance {self.ks[i]:.2g}"
            for i in order[:5]
        ]
        if len(order) > 5:
            said.append(f"{len(order) - 5} more columns have shifted")
        if self.target_psi > threshold:
            said.append(f"the target has shifted: PSI {self.target_psi:.3g}")
        if self.score_psi is not None and self.score_psi > threshold:
            said.append(f"the champion's outputs on test rows have shifted: PSI {self.score_psi:.3g}")
        return said


def measure_drift(before: DataProfile, tally: tuple[Any, ...], scores: Array | None = None) -> Drift:
    """The drift of rows from a profile.

    Args:
        before: of the training rows.
        tally: the sums of ``Tally`` over the rows, in the profile's bins.
        scores: the same model's outputs on test rows, shape (k,), or None.
    """
    _, counts, targets, labels = tally
    target = float(psi(before.target_counts, targets).max()) if len(targets) else label_psi(before.labels, labels)
    score = None
    if scores is not None and before.score_counts.sum():
        score = float(psi(before.score_counts, count(scores[:, None], before.score_edges))[0])
    return Drift(before.columns, psi(before.counts, counts), ks(before.counts, counts), target, score)
