"""Batch and step under sample weights of mean 1, which scale the residuals: minimise 1/n Σ w_i ‖f(x_i) − y_i‖².

A row of weight w is k(·, x) scaled by √w: all that is said of the kernel of an iteration is then to be said of
diag(w)^½ K diag(w)^½. In mean square a step on a batch of m rows is bound by E[w² k(x, x) k_x ⊗ k_x]/m besides the
squared mean E[w k_x ⊗ k_x], so that in place of the mean diagonal β stands its mean over rows drawn by weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamkern.data.class_weights import WeightTotals
from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Extremes, RawScan
from streamkern.data.stream import Assembly, Raw, Scan, scan_rows
from streamkern.execute.base import Executor
from streamkern.precondition.nystrom import StepSize
from streamkern.solvers.base import Problem
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array, IntArray

_ROUNDING = 1e-6  # beyond the rounding of a mean in float64 of as many rows as there are, and nothing to a step


def measured_rows(problem: Problem, ids: IntArray) -> tuple[Array, Array | None]:
    """Rows to measure the kernel of an iteration on, and their weights.

    Where rows have weights, as many are drawn again in proportion to them, each ⌊w⌋ or ⌈w⌉ times: the rows' kernel
    matrix then stands for that of the weighted kernel, whatever way it is computed.

    Args:
        problem: whose training rows are measured.
        ids: row ids, shape (k,).

    Returns:
        X of shape (k, d), as the basis wants them, and weights (k,) of mean 1 over the training rows, or None.
    """
    X, w = problem.rows(ids)
    if w is None:
        return X, None
    if not w.any():
        return X, np.ones(len(w))
    places = np.cumsum(w) * (len(w) / w.sum())
    copies = np.diff(np.floor(places + 0.5).astype(np.int64), prepend=0)
    index = np.repeat(np.arange(len(w)), copies)
    return X[index], w[index]


def weighted_size(size: StepSize, w: Array | None, problem: Problem) -> StepSize:
    """The step on scaled residuals, from measurements on ``measured_rows``.

    The largest weight bounds the step too: beyond it, one such row would overshoot by itself. The weight of a row and
    its value of the preconditioned diagonal are taken to be independent.

    Args:
        size: β, λ and the largest diagonal value of rows drawn by weight.
        w: their weights; None leaves the size as it is.
        problem: which knows the largest weight.
    """
    if w is None:
        return size
    largest = max(problem.largest_weight, float(w.max()))
    return StepSize(size.beta * float(w.mean()), size.top, size.peak * largest)


def center_weights(problem: Problem) -> Array | None:
    """Sample weights of the centers, shape (p,), where they are training rows that have some; else None."""
    if not problem.train.weighted or problem.centers.ids is None:
        return None
    return problem.rows(problem.centers.ids)[1]


def unequal(problem: Problem) -> bool:
    """Return True if the training rows' sample weights, of mean 1, differ by more than rounding."""
    return problem.train.weighted and problem.largest_weight > 1.0 + _ROUNDING


def weight_totals(dataset: Dataset, executor: Executor) -> WeightTotals:
    """Sum and largest of the rows' weights: one sweep."""
    work = ScanWork(RawScan(Scan(Assembly(dataset.plain()), scan_rows(dataset.widest))), _weights_of_rows)
    mass, ends = sweep(executor, work)
    return WeightTotals(float(mass), float(ends.high))


def _weights_of_rows(block: tuple[Raw, str], state: Any) -> tuple[float, Extremes]:
    w = block[0].w
    assert w is not None
    return float(w.sum()), Extremes(np.inf, float(w.max(initial=0.0)))
