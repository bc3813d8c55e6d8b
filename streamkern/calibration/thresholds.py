"""Thresholds of two classes: the score from which on the second is predicted, best for a metric on rows left out.

Every cut of the rows, ordered by their score, is looked at: so the threshold is exact on them, at most 10,000.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamkern.errors import UsageError
from streamkern.types import Array

METRICS = ("accuracy", "balanced_accuracy", "f1", "matthews_corrcoef")
"""Metrics that a threshold is chosen for, by scikit-learn's names."""


def _at_cuts(metric: str, found: Array, wrong: Array, second: float, first: float) -> Array:
    """The metric at k cuts, above which lie weights ``found`` of the second class and ``wrong`` of the first."""
    if metric == "accuracy":
        return (found + first - wrong) / (first + second)
    if metric == "balanced_accuracy":
        return (found / second + (first - wrong) / first) / 2
    if metric == "f1":
        return 2 * found / (found + wrong + second)
    above, below = found + wrong, second - found + first - wrong
    size = np.sqrt(above * below * second * first)
    return np.asarray(np.where(size > 0, (found * first - wrong * second) / np.where(size > 0, size, 1.0), 0.0))


class BestThreshold(NamedTuple):
    """A threshold: the second class is predicted above ``value``; its metric, ``best``, and that of 0, ``plain``."""

    value: float
    best: float
    plain: float


def require_threshold(threshold: Any, where: str) -> None:
    """Raise UsageError where a threshold is neither None nor the name of a metric."""
    if threshold is not None and not (isinstance(threshold, str) and threshold in METRICS):
        names = ", ".join(f'"{name}"' for name in METRICS)
        raise UsageError(f"threshold is {threshold!r}.", where=where, expected=f"one of {names}; or None")


def best_threshold(metric: str, scores: Array, second: Array, w: Array | None = None) -> BestThreshold | None:
    """Return the best threshold of scores, f_1 − f_0 (m,), nearest to 0 among equals; None without both classes."""
    order = np.argsort(scores, kind="stable")[::-1]
    s, weight = scores[order], (np.ones(len(scores)) if w is None else np.asarray(w, dtype=np.float64)[order])
    hits = np.concatenate([[0.0], np.cumsum(weight * second[order])])
    others = np.concatenate([[0.0], np.cumsum(weight * ~second[order])])
    if not (hits[-1] > 0 and others[-1] > 0):
        return None
    # Equal scores fall on one side.
    apart = np.flatnonzero(np.concatenate([[True], s[1:] < s[:-1], [True]]))
    values = _at_cuts(metric, hits[apart], others[apart], float(hits[-1]), float(others[-1]))
    ends = np.concatenate([[s[0] + 2.0], s, [s[-1] - 2.0]])
    cuts = (ends[apart] + ends[apart + 1]) / 2
    plain = int(np.count_nonzero(s[apart[1:] - 1] > 0))
    cuts[plain] = 0.0
    best = np.flatnonzero(values >= values.max() - 1e-12)
    chosen = int(best[np.argmin(np.abs(cuts[best]))])
    return BestThreshold(float(cuts[chosen]), float(values[chosen]), float(values[plain]))
