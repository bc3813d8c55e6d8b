"""Intervals about predicted values, by split conformal prediction on rows that the model was not fitted to.

The rows' residuals are divided by a predicted scale s(x), which is learned from one half of the rows; of the other half
the quantile q of |y − f(x)|/s(x) is taken, and the interval is f(x) ± q s(x). Where rows are exchangeable it holds the
target with the requested probability, whatever the model and the scale are worth: with m rows between coverage
and coverage + 1/(m + 1), over draws of them (Papadopoulos et al. 2002; Lei et al. 2018). Weights count as in a
weighted quantile.

The scale is a second output: ridge regression of |residual| on the first functions of the model's own basis, so that it
costs a prediction one column more. Its ridge is the best by leave-one-out error, a constant scale among the choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.engine import Engine
from streamkern.engine.triangle import cuts
from streamkern.errors import ModelFormatError, NumericalError
from streamkern.kernels import Basis, Expansion
from streamkern.rng import uniform_rows
from streamkern.solvers.left_out import LeftOut, require_coverage
from streamkern.solvers.metrics import Held
from streamkern.storage.serialize import serializable
from streamkern.types import Array

LEAST = 100
"""Rows below which the scale is a constant, and all of them tell the quantile."""

LEARNED = 2000
"""Rows, at most, that the scale is learned from."""

FUNCTIONS = 300
"""Functions of the basis, at most, that the scale is made of."""

FLOOR = 0.1
"""Least scale, as a share of the mean one."""

SCORED = 0.9
"""Coverage that metrics are of."""

_RIDGES = tuple(10.0**-e for e in range(8, -2, -1))
_HALF = 0x68616C66  # keeps the cut in halves apart from what else is drawn


@serializable
@dataclass(frozen=True, eq=False)
class Intervals:
    """What turns outputs into intervals.

    Attributes:
        scores: |residual| over scale of each output, in encoded units, ascending: shape (m, c).
        shares: share of the rows' weight up to each score: shape (m, c), below 1.
        mean: mean scale of each output, in encoded units, shape (c,).
        weights: of the first functions of the basis, what is added to 1 as a share of the mean scale: shape (q, c).
        facts: JSON-serialisable: ``source``, ``rows`` and ``functions``.
    """

    scores: Array
    shares: Array
    mean: Array
    weights: Array
    facts: dict[str, Any]

    def widened(self, weights: Array) -> Array:
        """Weights of the outputs and of their scales, side by side: shape (M, 2c)."""
        scales = np.zeros_like(weights)
        scales[: len(self.weights)] = self.weights
        return np.concatenate([weights, scales], axis=1)

    def scales(self, found: Array) -> Array:
        """Predicted scales in encoded units, shape (n, c), from what the basis gives for the scales' weights."""
        return np.asarray(self.mean * relative_scales(found))

    def quantile(self, coverage: float) -> Array:
        """Q for each output, shape (c,); infinite where there are too few rows for the coverage.

        Raises:
            UsageError: the coverage is not between 0 and 1.
        """
        require_coverage(coverage)
        m, c = self.scores.shape
        place = [int(np.searchsorted(self.shares[:, j], coverage - 1e-12)) for j in range(c)]
        return np.array([self.scores[i, j] if i < m else np.inf for j, i in enumerate(place)])

    def require(self, outputs: int) -> None:
        """Refuse intervals of other outputs.

        Raises:
            ModelFormatError: an array has another shape, or a number is not finite.
        """
        shape = np.shape(self.scores)
        right = len(shape) == 2 and np.shape(self.shares) == shape and shape[1] == outputs
        right = right and np.shape(self.mean) == (outputs,) and np.shape(self.weights)[1:] == (outputs,)
        if not right or not all(
            np.isfinite(each).all() for each in (self.scores, self.shares, self.mean, self.weights)
        ):
            raise ModelFormatError(
                f"The intervals' numbers have shape {shape}, or are not finite.",
                where="answers",
                expected=f"finite numbers of {outputs} output(s)",
                remedy="restore the model from a copy",
            )


def made_intervals(left_out: LeftOut, X: Array, basis: Basis, engine: Engine) -> Intervals:
    """The intervals that outputs on rows teach.

    Args:
        left_out: outputs and encoded targets, shape (m, c).
        X: the rows, as the basis wants them, shape (m, d).
        basis: the model's functions.
        engine: of the arithmetic.
    """
    missed = np.abs(left_out.outputs - left_out.y)
    m, c = missed.shape
    w = np.ones(m) if left_out.w is None else np.asarray(left_out.w, dtype=np.float64)
    rest, weights, mean = np.arange(m), np.zeros((0, c)), np.ones(c)
    functions = 0
    if m >= LEAST:
        first = uniform_rows(0, _HALF, left_out.ids, 1)[:, 0] < 0.5
        learning, rest = np.flatnonzero(first)[:LEARNED], np.flatnonzero(~first)
        mean = w[learning] @ missed[learning] / max(float(w[learning].sum()), np.finfo(np.float64).tiny)
        mean = np.where(mean > 0, mean, 1.0)
        if isinstance(basis, Expansion) and isinstance(basis.Z, np.ndarray) and w[learning].sum() > 0:
            functions = min(basis.p, FUNCTIONS, len(learning) // 5)
            targets = missed[learning] / mean - 1.0
            weights = _scale(basis.head(functions), X[learning], targets, w[learning], engine)
    made = Intervals(missed[:0], missed[:0], mean, weights, {})
    found = np.zeros((len(rest), c))
    if functions:
        head = basis.head(functions)  # type: ignore[attr-defined]
        for rows in cuts(len(rest)):
            found[rows] = engine.product(engine.values(head, X[rest[rows]]).astype(np.float64), weights)
    scores = missed[rest] / made.scales(found)
    facts = {"source": left_out.source, "rows": len(rest), "functions": functions}
    return Intervals(*ranked(scores, w[rest]), mean, weights, facts)


def ranked(scores: Array, w: Array) -> tuple[Array, Array]:
    """Scores of rows ascending, shape (m, c), and the share of the weight up to each: what ``Intervals`` hold.

    Args:
        scores: shape (m, c).
        w: weights of the rows, shape (m,), or (m, c) where they differ by output.
    """
    order = np.argsort(scores, axis=0, kind="stable")
    mass = w[order] if w.ndim == 1 else np.take_along_axis(w, order, axis=0)
    # One row more, the one that is predicted, of the mean weight: it may be the worst of all.
    total = mass.sum(axis=0)
    total = total + np.where(total > 0, total / max(1, len(mass)), 1.0)
    return np.take_along_axis(scores, order, axis=0), np.cumsum(mass, axis=0) / total


def _scale(basis: Expansion, X: Array, t: Array, w: Array, engine: Engine) -> Array:
    """Weights of ridge regression of t on the basis at the ridge of least leave-one-out error; 0 where 0 is better."""
    here = engine.here()
    root = np.sqrt(w / w.mean())[:, None]
    phi = engine.values(basis, X).astype(np.float64) * root
    m = len(phi)
    K = here.kernel_matrix(basis, basis.p)
    K[np.diag_indices(len(K))] += 1e-6 * np.trace(K) / len(K)
    try:
        L = here.cholesky(K)
    except NumericalError:
        return np.zeros((basis.p, t.shape[1]))
    white = here.triangular_solve(L, phi.T.copy(), lower=True).T.copy()  # rows φᵀL⁻ᵀ
    values, vectors = here.eigh(here.gram(white.T.copy()) / m)
    turned = here.product(white, vectors)
    moment = here.product(turned.T.copy(), t * root) / m
    squares = np.square(turned) / m
    best = np.square(t * root).sum(axis=0), np.zeros((basis.p, t.shape[1]))
    for ridge in _RIDGES:
        inverse = 1.0 / (np.maximum(values, 0.0) + ridge)
        h = squares @ inverse
        inside = moment * inverse[:, None]
        errors = np.square((t * root - here.product(turned, inside)) / np.maximum(1.0 - h, 1e-6)[:, None]).sum(axis=0)
        made = here.triangular_solve(L, here.product(vectors, inside), lower=True, transposed=True)
        better = errors < best[0]
        best = np.where(better, errors, best[0]), np.where(better, made, best[1])
    return best[1]


def relative_scales(found: Array) -> Array:
    """Predicted scales as shares of the mean one, shape (n, c), from what the basis gives for the scales' weights."""
    return np.maximum(1.0 + found.astype(np.float64), FLOOR)


def covered(intervals: Intervals, F: Array, found: Array, y: Array) -> Held:
    """Which targets lie in their intervals of coverage ``SCORED``: F and y, shape (n, c), in encoded units."""
    scale = relative_scales(found)
    scores = np.abs(np.subtract(F, y, dtype=np.float64)) / (intervals.mean * scale)
    return Held(np.asarray(scores <= intervals.quantile(SCORED)), scale)
