"""Intervals about predicted values, by split conformal prediction on rows that the model was not fitted to.

A scale s(x) of the residuals is fitted to some of the rows. The quantile q of |y − f(x)|/s(x) over the other rows gives
the interval f(x) ± q s(x). If rows are exchangeable, it contains the target with the requested probability, whatever
the quality of model and scale: with m rows between coverage and coverage + 1/(m + 1), over draws of them (Papadopoulos
et al. 2002; Lei et al. 2018). Weights count as in a weighted quantile.

Each fifth of the predicted scale has its own quantile, if there are enough rows, so that the coverage holds in each of
them (Mondrian conformal prediction: Vovk, Gammerman and Shafer 2005, section 4.5; Boström and Johansson 2020).

The scale is a second output: ridge regression of |residual| on the first functions of the model's own basis, so that it
costs a prediction one column more. Its ridge is the best by leave-one-out error, a constant scale among the choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from streamkern.calibration.out_of_sample import OutOfSample, require_coverage
from streamkern.defaults import (
    MAX_SCALE_FUNCTIONS,
    MAX_SCALE_ROWS,
    MIN_RELATIVE_SCALE,
    MIN_SCALE_GROUPS,
    MIN_SCALE_ROWS,
    RIDGES,
    SCALE_GROUPS,
    SCORED_COVERAGE,
)
from streamkern.engine import Engine
from streamkern.engine.packed_triangle import cuts
from streamkern.engine.ridge import left_out_path
from streamkern.errors import NumericalError
from streamkern.kernels import Basis, Expansion
from streamkern.rng import Draw, uniform_rows
from streamkern.storage.serialize import is_valid_array, serializable
from streamkern.types import Array


@serializable
@dataclass(frozen=True, eq=False)
class Intervals:
    """Intervals from outputs.

    Attributes:
        scores: |residual| over scale of each output, in encoded units, fifth after fifth, ascending in each: (m, c).
        shares: share of the rows' weight up to each score: shape (m, c), below 1.
        mean: mean scale of each output, in encoded units, shape (c,).
        weights: of the first functions of the basis, what is added to 1 as a share of the mean scale: shape (q, c).
        levels: scale of each row as a share of the mean one, shape (m, c).
        starts: where each fifth begins, shape (6, c). It and ``levels`` are None without scores, as of a leaf, whose
            scores are those of all leaves.
    """

    scores: Array
    shares: Array
    mean: Array
    weights: Array
    facts: dict[str, Any]
    levels: Array | None = None
    starts: Array | None = None

    def widened(self, weights: Array) -> Array:
        """Return weights of the outputs and of their scales, side by side: shape (M, 2c)."""
        scales = np.zeros_like(weights)
        scales[: len(self.weights)] = self.weights
        return np.concatenate([weights, scales], axis=1)

    def scales(self, found: Array) -> Array:
        """Return predicted scales in encoded units, shape (n, c), from the outputs for the scales' weights."""
        return np.asarray(self.mean * relative_scales(found))

    def half_widths(self, scale: Array, coverage: float, outputs: slice = slice(None)) -> Array:
        """Return half widths in encoded units, infinite where rows are too few, for ``relative_scales``."""
        require_coverage(coverage)
        q = self._known.get(coverage)
        if q is None:
            q = self._quantiles(coverage)
            self._known.clear()
            self._known[coverage] = q
        bounds = self._bounds[outputs]
        fifth = np.stack([np.searchsorted(b, s, side="right") for b, s in zip(bounds, scale.T, strict=True)])
        return np.asarray(np.take_along_axis(q[:, outputs], fifth.T, axis=0) * self.mean[outputs] * scale)

    @cached_property
    def _known(self) -> dict[float, Array]:
        """Quantiles of the last requested coverage: every block of a prediction requests the same."""
        return {}

    def _quantiles(self, coverage: float) -> Array:
        """Quantiles of the fifths, (5, c), that of all rows for a fifth of few."""
        assert self.starts is not None
        (m, c), groups = self.scores.shape, self.facts.get("groups")
        found, groups = np.full((SCALE_GROUPS, c), np.inf), m if groups is None else int(groups)
        for j in range(c):
            scores, shares = self.scores[:, j], self.shares[:, j]
            for i, (a, b) in enumerate(pairwise(self.starts[:, j])):
                found[i, j] = _quantile(scores[a:b], shares[a:b], shares[a - 1] if a else 0.0, coverage, groups)
            few = np.isinf(found[:, j])
            if few.any():
                order = np.argsort(scores, kind="stable")
                shares = np.cumsum(np.diff(shares, prepend=0.0)[order])
                found[few, j] = _quantile(scores[order], shares, 0.0, coverage, groups)
        return found

    @cached_property
    def _bounds(self) -> Array:
        """Scale from which on each fifth but the first is meant, shape (c, 4)."""
        assert self.levels is not None
        assert self.starts is not None
        found = np.full((self.scores.shape[1], SCALE_GROUPS - 1), np.inf)
        for j, (level, starts) in enumerate(zip(self.levels.T, self.starts.T, strict=True)):
            for i, (a, b) in enumerate(pairwise(starts[1:])):
                found[j, i] = level[a:b].min() if b > a else np.inf
        return found

    def sound(self, outputs: int, functions: int) -> bool:
        """Return True if the arrays are those of a model of so many outputs and functions, and finite."""
        shape, q = np.shape(self.scores), len(self.weights)
        right = shape[1:] == (outputs,) and is_valid_array(self.scores, shape) and is_valid_array(self.shares, shape)
        right = right and is_valid_array(self.mean, (outputs,)) and is_valid_array(self.weights, (q, outputs))
        if not right or q > functions or self.starts is None:
            return right and q <= functions and not shape[0]
        if not is_valid_array(self.levels, shape) or not is_valid_array(self.starts, (SCALE_GROUPS + 1, outputs), "iu"):
            return False
        ends = not self.starts[0].any() and bool((self.starts[-1] == shape[0]).all())
        return ends and bool((np.diff(self.starts, axis=0) >= 0).all())


def _quantile(scores: Array, shares: Array, before: float, coverage: float, groups: int) -> float:
    """The score with so much of the weight up to it; ``shares`` are beyond ``before``, that of other fifths."""
    if not len(scores):
        return np.inf
    # One row more, the one that is predicted, of the mean weight: it may be the worst of all. With groups, one more.
    mass = float(shares[-1] - before) * (1.0 + 1.0 / min(groups, len(scores)))
    place = int(np.searchsorted(shares, before + (coverage - 1e-12) * mass))
    return float(scores[place]) if mass > 0 and place < len(scores) else np.inf


def fit_intervals(out_of_sample: OutOfSample, X: Array, basis: Basis, engine: Engine) -> Intervals:
    """The intervals that outputs (m, c) on rows teach; X has the rows as the basis wants them, shape (m, d)."""
    missed = np.abs(out_of_sample.outputs - out_of_sample.y)
    m, c = missed.shape
    w = np.ones(m) if out_of_sample.w is None else np.asarray(out_of_sample.w, dtype=np.float64)
    rest, weights, mean = np.arange(m), np.zeros((0, c)), np.ones(c)
    functions = 0
    by = out_of_sample.ids if out_of_sample.groups is None else out_of_sample.groups
    groups = m if out_of_sample.groups is None else len(np.unique(by))
    if m >= MIN_SCALE_ROWS and (groups == m or groups >= MIN_SCALE_GROUPS):
        first = uniform_rows(0, Draw.HALVES, by, 1)[:, 0] < 0.5
        learning = np.flatnonzero(first)[:MAX_SCALE_ROWS]
        rest = np.setdiff1d(rest, learning, assume_unique=True)
        mean = w[learning] @ missed[learning] / max(float(w[learning].sum()), np.finfo(np.float64).tiny)
        mean = np.where(mean > 0, mean, 1.0)
        if isinstance(basis, Expansion) and isinstance(basis.Z, np.ndarray) and w[learning].sum() > 0:
            functions = min(basis.p, MAX_SCALE_FUNCTIONS, len(learning) // 5)
            targets = missed[learning] / mean - 1.0
            weights = _scale(basis.head(functions), X[learning], targets, w[learning], engine)
    found = np.zeros((len(rest), c))
    if functions:
        head = basis.head(functions)  # type: ignore[attr-defined]
        for rows in cuts(len(rest)):
            found[rows] = engine.product(engine.values(head, X[rest[rows]]).astype(np.float64), weights)
    levels = relative_scales(found)
    parts = rank_scores(missed[rest] / (mean * levels), w[rest], levels)
    fifths = [SCALE_GROUPS if each else 1 for each in (parts.starts[1] < len(rest)).tolist()]
    facts = {"source": out_of_sample.source, "rows": len(rest), "functions": functions, "fifths": fifths}
    facts |= {} if out_of_sample.groups is None else {"groups": len(np.unique(by[rest]))}
    return Intervals(mean=mean, weights=weights, facts=facts, **parts._asdict())


class ScoresByScale(NamedTuple):
    """Scores by fifth of the scale: the fields of ``Intervals``, by their names."""

    scores: Array
    shares: Array
    levels: Array
    starts: Array


def rank_scores(scores: Array, w: Array, levels: Array) -> ScoresByScale:
    """Sort scores (m, c) into fifths of the scale's weight, ascending in each; equal scales are in one fifth.

    Where a fifth would have fewer than ``MIN_SCALE_ROWS`` rows, the first has all of them. Weights are (m,), or (m, c)
    where they differ by output; ``levels`` (m, c) are scales as shares of the mean one.
    """
    m, c = scores.shape
    w = np.broadcast_to(w[:, None] if w.ndim == 1 else w, scores.shape)
    order, starts = np.argsort(levels, axis=0, kind="stable"), np.zeros((SCALE_GROUPS + 1, c), dtype=np.int64)
    for j in range(c):
        rows = order[:, j]
        upto = np.cumsum(w[rows, j])
        inner = np.searchsorted(upto, np.linspace(0.0, upto[-1] if m else 0.0, SCALE_GROUPS + 1)[1:-1])
        level = levels[rows, j]
        starts[1:-1, j] = np.searchsorted(level, level[np.minimum(inner, m - 1)]) if m else 0
        starts[-1, j] = m
        if np.diff(starts[:, j]).min() < MIN_SCALE_ROWS:
            starts[1:, j] = m
        fifth = np.searchsorted(starts[1:-1, j], np.arange(m), side="right")
        order[:, j] = rows[np.lexsort((scores[rows, j], fifth))]
    scores, mass, levels = (np.take_along_axis(each, order, axis=0) for each in (scores, w, levels))
    total = mass.sum(axis=0)
    total = total + np.where(total > 0, total / max(1, m), 1.0)
    return ScoresByScale(scores, np.cumsum(mass, axis=0) / total, levels, starts)


def _scale(basis: Expansion, X: Array, t: Array, w: Array, engine: Engine) -> Array:
    """Weights of ridge regression of t on the basis at the ridge of least leave-one-out error; 0 where 0 is better."""
    here = engine.here()
    root = np.sqrt(w / w.mean())[:, None]
    phi = engine.values(basis, X).astype(np.float64) * root
    K = here.kernel_matrix(basis, basis.p)
    K[np.diag_indices(len(K))] += 1e-6 * np.trace(K) / len(K)
    try:
        path = left_out_path(here, phi, t * root, K, RIDGES)
    except NumericalError:
        return np.zeros((basis.p, t.shape[1]))
    errors = np.square(path.missed).sum(axis=0)
    best, each = errors.argmin(axis=0), path.weights.reshape(basis.p, *errors.shape)
    chosen = np.take_along_axis(each, best[None, None, :], axis=1)[:, 0]
    return np.where(errors.min(axis=0) < np.square(t * root).sum(axis=0), chosen, 0.0)


def relative_scales(found: Array) -> Array:
    """Return scales as shares of the mean one, (n, c), from the outputs for the scales' weights."""
    return np.maximum(1.0 + found.astype(np.float64), MIN_RELATIVE_SCALE)


class IntervalCoverage(NamedTuple):
    """Mask of the targets ``inside`` their intervals, and scales as shares of the mean one: (n, c) each."""

    inside: Array
    scale: Array


def interval_coverage(intervals: Intervals, F: Array, found: Array, y: Array) -> IntervalCoverage:
    """Mask of the targets in their intervals of coverage ``SCORED_COVERAGE``; F and y, shape (n, c), are encoded."""
    scale = relative_scales(found)
    return IntervalCoverage(
        np.abs(np.subtract(F, y, dtype=np.float64)) <= intervals.half_widths(scale, SCORED_COVERAGE), scale
    )
