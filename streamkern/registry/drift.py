"""Drift: the change of rows since a model's training, column by column.

A ``DataProfile`` counts, for each column, the training rows between the deciles of a sample, below its lowest and above
its highest value, and with a missing value. Two counts over the same bins are compared by the population stability
index Σ (p − q) ln(p/q), and by the largest difference of the two distribution functions, which is the
Kolmogorov-Smirnov distance at the bins' edges. By convention an index below 0.1 means no change, and one above 0.25 a
change of population.

For a partitioned model, rows are also counted by leaf, and targets within each leaf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, RawRows, Scan
from streamkern.data.statistics import RawScan
from streamkern.defaults import DRIFT_BINS, DRIFT_EDGES, MAX_STABLE_PSI, MIN_DRIFT_LEAF_ROWS, MIN_DRIFT_SHARE
from streamkern.execute.base import Executor, Parts
from streamkern.models.cut_tree import CutTree
from streamkern.models.partitioned_machine import PartitionedMachine
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array, IntArray

DRIFT_METRICS = ("drift.max_psi", "drift.mean_psi", "drift.max_ks", "drift.target_psi", "drift.score_psi",
         "drift.leaf_psi", "drift.max_leaf_target_psi")  # fmt: skip
"""Names that a gate may use."""


def edges_of(values: Array) -> Array:
    """Return the edges (d, 11), float64, of each column of a sample (k, d): its deciles, NaN without a finite value."""
    edges = np.full((values.shape[1], DRIFT_EDGES), np.nan)
    for column, sample in enumerate(np.asarray(values, dtype=np.float64).T):
        usual = sample[np.isfinite(sample)]
        if len(usual):
            edges[column] = np.quantile(usual, np.linspace(0, 1, DRIFT_EDGES), method="inverted_cdf")
            with np.errstate(over="ignore"):  # the next value below the least float64 is -inf
                edges[column, 0] = np.nextafter(edges[column, 0], -np.inf)
    return edges


def count(values: Array, edges: Array) -> IntArray:
    """Count the values (n, d) by the edges (d, 11): shape (d, 13), below, between the edges, above, and not finite."""
    counts = np.zeros((len(edges), DRIFT_BINS), dtype=np.int64)
    for column, steps in enumerate(edges):
        found = np.asarray(values[:, column], dtype=np.float64)
        usual = np.isfinite(found)
        places = (
            np.searchsorted(steps, found[usual], side="left") if np.isfinite(steps[0]) else np.zeros(usual.sum(), int)
        )
        counts[column, :-1] = np.bincount(places, minlength=DRIFT_BINS - 1)
        counts[column, -1] = len(found) - usual.sum()
    return counts


def psi(before: Array, after: Array) -> Array:
    """Return the population stability index of two counts, along the last axis: ≥ 0, and 0 for equal shares."""
    p, q = (np.maximum(_shares(counts), MIN_DRIFT_SHARE) for counts in (before, after))
    return np.asarray(np.sum((p - q) * np.log(p / q), axis=-1))


def ks(before: Array, after: Array) -> Array:
    """Return the largest difference of two distribution functions at the edges, along the last axis: in [0, 1]."""
    difference = np.cumsum(_shares(before), axis=-1) - np.cumsum(_shares(after), axis=-1)
    return np.asarray(np.max(np.abs(difference), axis=-1))


def label_psi(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """Return the population stability index of two counts of labels."""
    labels = sorted({*before, *after})
    if not labels:
        return 0.0
    return float(psi(*(np.array([counts.get(label, 0) for label in labels]) for counts in (before, after))))


def _shares(counts: Array) -> Array:
    counts = np.asarray(counts, dtype=np.float64)
    return np.asarray(counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1.0))


def count_columns(edges: Array, target_edges: Array, block: tuple[RawRows, str], state: Any = None) -> tuple[Any, ...]:
    """Count rows, features by bin (edges (d, 11)), and targets by bin (edges (c, 11)), or labels if c = 0."""
    raw = block[0]
    return len(raw.X), count(raw.X, edges), *_targets(raw.y, target_edges)


def _targets(y: Array | None, edges: Array) -> tuple[IntArray, Counter[str]]:
    if y is None:
        return np.zeros((len(edges), DRIFT_BINS), dtype=np.int64), Counter()
    if len(edges):
        return count(y.reshape(len(y), -1), edges), Counter()
    values, counts = np.unique(y, return_counts=True)
    labels = Counter({str(v): int(n) for v, n in zip(values.tolist(), counts, strict=True)})
    return np.zeros((0, DRIFT_BINS), dtype=np.int64), labels


def column_tally(rows: Dataset, edges: Array, target_edges: Array, executor: Executor) -> Parts:
    """Return the sums of ``count_columns`` over stored rows."""
    return sweep(executor, ScanWork(RawScan(Scan(Assembly(rows))), partial(count_columns, edges, target_edges)))


@dataclass(eq=False)
class RoutedScan(RawScan):
    """The stored blocks of a scan, with the leaf of each row."""

    tree: CutTree

    def block(self, key: tuple[int, ...]) -> Any:
        """Return stored targets of block (index,), and leaves of its rows, shape (n,)."""
        return self.scan.raw(key)[0].y, self.tree.routes(self.scan.block(key).X, 0.0)[0][:, 0]


def count_leaves(
    leaves: int, target_edges: Array, block: tuple[Array | None, IntArray], state: Any = None
) -> tuple[Any, ...]:
    """Count the rows of each leaf, and their targets by bin, or labels by (leaf, label)."""
    y, at = block
    targets = np.zeros((leaves, len(target_edges), DRIFT_BINS), dtype=np.int64)
    labels: Counter[tuple[int, str]] = Counter()
    for leaf in np.unique(at).tolist():
        targets[leaf], found = _targets(None if y is None else y[at == leaf], target_edges)
        labels.update({(leaf, label): rows for label, rows in found.items()})
    return np.bincount(at, minlength=leaves), targets, labels


def leaf_tally(model: PartitionedMachine, rows: Dataset, target_edges: Array, executor: Executor) -> Parts:
    """Return the sums of ``count_leaves`` over stored rows, in the leaves of a model."""
    scan, _ = model.blocks(rows)
    tally = partial(count_leaves, model.tree.leaves, target_edges)
    return sweep(executor, ScanWork(RoutedScan(scan, model.tree), tally))


def leaf_profile(tally: tuple[Any, ...]) -> dict[str, Any]:
    """Return the fields of a ``DataProfile`` from the sums of ``count_leaves``."""
    counts, targets, labels = tally
    found: tuple[dict[str, int], ...] = tuple({} for _ in counts)
    for (leaf, label), rows in sorted(labels.items()):
        found[leaf][label] = rows
    return {"leaf_counts": np.asarray(counts), "leaf_target_counts": np.asarray(targets), "leaf_labels": found}


@dataclass(frozen=True, eq=False)
class DataProfile:
    """Distributions of the training rows.

    Features have edges (d, 11) and counts (d, 13); targets (c, 11) and (c, 13), with c = 0 for classes; the model's
    outputs on test rows (1, 11) and (1, 13). Of a partitioned model, ``leaf_counts`` (L,) are the rows of each leaf,
    and ``leaf_target_counts`` (L, c, 13) its targets by bin; L = 0 otherwise.
    """

    n: int
    edges: Array
    counts: IntArray
    target_edges: Array
    target_counts: IntArray
    labels: dict[str, int] = field(default_factory=dict)
    score_edges: Array = field(default_factory=lambda: np.full((1, DRIFT_EDGES), np.nan))
    score_counts: IntArray = field(default_factory=lambda: np.zeros((1, DRIFT_BINS), dtype=np.int64))
    columns: tuple[str, ...] = ()
    leaf_counts: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    leaf_target_counts: IntArray = field(default_factory=lambda: np.zeros((0, 0, DRIFT_BINS), dtype=np.int64))
    leaf_labels: tuple[dict[str, int], ...] = ()

    def dump(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return arrays by name, and the rest as JSON."""
        names = ["edges", "counts", "target_edges", "target_counts", "score_edges", "score_counts"]
        facts = {"n": self.n, "labels": dict(self.labels), "columns": list(self.columns)}
        if len(self.leaf_counts):
            names += ["leaf_counts", "leaf_target_counts"]
            facts["leaf_labels"] = [dict(labels) for labels in self.leaf_labels]
        return {name: getattr(self, name) for name in names}, facts

    @classmethod
    def load(cls, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> DataProfile:
        """Return the profile that ``dump`` described."""
        lists: dict[str, Any] = {name: tuple(facts.get(name, ())) for name in ("columns", "leaf_labels")}
        return cls(**arrays, n=facts["n"], labels=facts["labels"], **lists)


@dataclass(frozen=True, eq=False)
class LeafDrift:
    """Shift of rows between the leaves of a model: shares ``before`` and ``after`` (L,), and of targets within them.

    ``target_psi`` (L,) is 0 with fewer than ``MIN_DRIFT_LEAF_ROWS`` rows.
    """

    before: Array
    after: Array
    psi: float
    target_psi: Array

    @property
    def order(self) -> list[int]:
        """Leaves, sorted by their contribution to the index or their targets' index, whichever is larger."""
        p, q = np.maximum(self.before, MIN_DRIFT_SHARE), np.maximum(self.after, MIN_DRIFT_SHARE)
        order: IntArray = np.argsort(-np.maximum((q - p) * np.log(q / p), self.target_psi), kind="stable")
        return [int(leaf) for leaf in order]

    def summary(self) -> list[dict[str, Any]]:
        """Return the ten leaves that changed most, as JSON."""
        return [
            {
                "leaf": leaf, "before": float(self.before[leaf]), "after": float(self.after[leaf]),
                "target_psi": float(self.target_psi[leaf]),
            }
            for leaf in self.order[:10]
        ]  # fmt: skip

    def warnings(self) -> list[str]:
        """Return sentences on shifts."""
        said = []
        if self.psi > MAX_STABLE_PSI:
            leaf = int(np.argmax(np.abs(self.after - self.before)))
            said.append(
                f"rows have moved between leaves: PSI {self.psi:.3g}; leaf {leaf} has {self.after[leaf]:.1%} of them, "
                f"{self.before[leaf]:.1%} before"
            )
        worst = [leaf for leaf in self.order if self.target_psi[leaf] > MAX_STABLE_PSI]
        said += [f"the target has shifted in leaf {leaf}: PSI {self.target_psi[leaf]:.3g}" for leaf in worst[:5]]
        if len(worst) > 5:
            said.append(f"the target has shifted in {len(worst) - 5} more leaves")
        return said


def leaf_drift(before: DataProfile, tally: tuple[Any, ...]) -> LeafDrift:
    """Return the drift between the leaves of a profile, from sums of ``count_leaves`` in the profile's bins."""
    now = leaf_profile(tally)
    counts, targets, labels = (now[name] for name in ("leaf_counts", "leaf_target_counts", "leaf_labels"))
    shifted = np.zeros(len(counts))
    for leaf in np.flatnonzero(np.minimum(counts, before.leaf_counts) >= MIN_DRIFT_LEAF_ROWS).tolist():
        if targets.shape[1]:
            shifted[leaf] = psi(before.leaf_target_counts[leaf], targets[leaf]).max()
        else:
            shifted[leaf] = label_psi(before.leaf_labels[leaf], labels[leaf])
    return LeafDrift(_shares(before.leaf_counts), _shares(counts), float(psi(before.leaf_counts, counts)), shifted)


@dataclass(frozen=True, eq=False)
class Drift:
    """Shift of rows from a profile, psi and ks (d,); ``target_psi`` is the classes', or the largest of the targets."""

    columns: tuple[str, ...]
    psi: Array
    ks: Array
    target_psi: float
    score_psi: float | None = None
    leaves: LeafDrift | None = None

    def metrics(self) -> dict[str, float | None]:
        """Return the drift's metrics under the names for gates."""
        return {
            "drift.max_psi": float(self.psi.max(initial=0.0)),
            "drift.mean_psi": float(self.psi.mean()) if len(self.psi) else 0.0,
            "drift.max_ks": float(self.ks.max(initial=0.0)),
            "drift.target_psi": self.target_psi,
            "drift.score_psi": self.score_psi,
            "drift.leaf_psi": None if self.leaves is None else self.leaves.psi,
            "drift.max_leaf_target_psi": None if self.leaves is None else float(self.leaves.target_psi.max()),
        }

    def summary(self) -> dict[str, Any]:
        """Return the metrics, and the ten columns and leaves that changed most, as JSON."""
        order = np.argsort(-self.psi, kind="stable")[:10]
        columns = {self.columns[i]: {"psi": float(self.psi[i]), "ks": float(self.ks[i])} for i in order}
        leaves = {} if self.leaves is None else {"leaves": self.leaves.summary()}
        return {name.removeprefix("drift."): n for name, n in self.metrics().items()} | {"columns": columns} | leaves

    def warnings(self) -> list[str]:
        order = [int(i) for i in np.argsort(-self.psi, kind="stable") if self.psi[i] > MAX_STABLE_PSI]
        said = [
            f"column {self.columns[i]} has shifted: PSI {self.psi[i]:.3g}, KS distance {self.ks[i]:.2g}"
            for i in order[:5]
        ]
        if len(order) > 5:
            said.append(f"{len(order) - 5} more columns have shifted")
        if self.target_psi > MAX_STABLE_PSI:
            said.append(f"the target has shifted: PSI {self.target_psi:.3g}")
        if self.score_psi is not None and self.score_psi > MAX_STABLE_PSI:
            said.append(f"the champion's outputs on test rows have shifted: PSI {self.score_psi:.3g}")
        return said if self.leaves is None else said + self.leaves.warnings()


def measure_drift(before: DataProfile, tally: tuple[Any, ...], scores: Array | None = None) -> Drift:
    """Return the drift of rows from sums of ``count_columns`` in a profile's bins, and outputs on test rows (k,)."""
    _, counts, targets, labels = tally
    target = float(psi(before.target_counts, targets).max()) if len(targets) else label_psi(before.labels, labels)
    score = None
    if scores is not None and before.score_counts.sum():
        score = float(psi(before.score_counts, count(scores[:, None], before.score_edges))[0])
    return Drift(before.columns, psi(before.counts, counts), ks(before.counts, counts), target, score)
