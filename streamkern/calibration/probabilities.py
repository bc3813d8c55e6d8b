"""Probabilities of classes from outputs, by a calibration on rows that the model was not fitted to.

Outputs are regressed on one-hot codes, so each is near the probability of its class, and may be below 0 or above 1.
With s(u) = ε log(1 + exp(u/ε)), which is u for u ≫ ε and stays positive, and s' of a larger ε,

    z_k = a_k log s(f_k) − c_k log s(1 − f_k) + a' log s'(f_k) − c' log s'(1 − f_k) + b_k,    p = softmax(z).

At a = 1 and all others 0 the probabilities are the outputs themselves, made positive and divided by their sum; the
parameters turn that into the observed classes. Those of each class are near those of all, a_k = a + δ_k, by a Gaussian
prior, so that rare classes lean on the others. The posterior is log-concave: Newton's method finds its mode.
(Platt 1999; Guo, Pleiss, Sun and Weinberger 2017; Kull, Silva Filho and Flach 2017, beta calibration; Kull et al. 2019,
Dirichlet calibration, diagonal.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from streamkern.calibration.out_of_sample import OutOfSample, require_coverage
from streamkern.defaults import (
    BIAS_PRIOR,
    LINK_SOFTNESS,
    MAX_CLASSES_WITH_OWN_PARAMETERS,
    MAX_NEWTON_STEPS,
    MIN_NEWTON_DECREMENT,
    PARAMETER_PRIOR,
    WIDE_LINK_SOFTNESS,
)
from streamkern.engine import Engine
from streamkern.storage.serialize import is_valid_array, serializable
from streamkern.types import Array, IntArray


@serializable
@dataclass(frozen=True, eq=False)
class ClassScores:
    """Scores for prediction sets: 1 − p of the true class on rows that the model was not fitted to.

    ``scores`` ascend in each class, class after class, (m,); ``shares`` (m,) of the class's weight lie up to each, with
    one row more that is counted as the worst; each class begins at its ``starts``, (K + 1,).
    """

    scores: Array
    shares: Array
    starts: Array

    @classmethod
    def of(cls, P: Array, y: Array, w: Array) -> ClassScores:
        """Return the scores of rows with probabilities (m, K), class codes (m,) and weights (m,)."""
        scores = 1.0 - P[np.arange(len(y)), y]
        order = np.lexsort((scores, y))
        starts = np.searchsorted(y[order], np.arange(P.shape[1] + 1))
        shares = np.zeros(len(y))
        for a, b in pairwise(starts):
            mass = w[order[a:b]]
            shares[a:b] = np.cumsum(mass) / (mass.sum() + (mass.mean() if mass.sum() > 0 else 1.0)) if b > a else 0.0
        return cls(scores[order], shares, starts)

    def least(self, coverage: float) -> Array:
        """Return the probability from which on each class is in the set, (K,); 0 for classes of too few rows."""
        require_coverage(coverage)
        found = np.zeros(len(self.starts) - 1)
        for k, (a, b) in enumerate(pairwise(self.starts)):
            place = a + int(np.searchsorted(self.shares[a:b], coverage - 1e-12))
            found[k] = 1.0 - self.scores[place] if place < b else 0.0
        return found

    def sound(self, classes: int) -> bool:
        """Return True if the arrays are those of so many classes, and finite."""
        m, starts = len(self.scores), self.starts
        right = is_valid_array(starts, (classes + 1,), "iu")
        right = right and is_valid_array(self.scores, (m,)) and is_valid_array(self.shares, (m,))
        return bool(right and starts[0] == 0 and starts[-1] == m and (np.diff(starts) >= 0).all())


@serializable
@dataclass(frozen=True, eq=False)
class ProbabilityCalibration:
    """Probabilities from outputs, with a, c and b as ``below``, ``above`` and ``bias``, shape (K,) each.

    Attributes:
        cut: of two classes the second is predicted where its output less the first's is greater.
        logits: whether outputs are logits, which stand for log s(f), and −log s(1 − f) for 0.
        wide: a' and c', shape (2,); None of logits.
        decides: whether the prediction is the class of the largest probability.
        facts: ``source`` and ``rows`` it was fitted to, ``missing`` classes among them, as codes.
    """

    below: Array
    above: Array
    bias: Array
    facts: dict[str, Any]
    sets: ClassScores | None = None
    cut: float = 0.0
    logits: bool = False
    wide: Array | None = None
    decides: bool = False

    def probabilities(self, outputs: Array) -> Array:
        """Return probabilities (n, K), float64, of outputs of that shape; rows sum to 1."""
        return np.asarray(np.exp(self.log_probabilities(outputs)))

    def log_probabilities(self, outputs: Array) -> Array:
        """Return logarithms that stay finite where a probability rounds to 0."""
        from scipy.special import log_softmax

        return np.asarray(log_softmax(self.scores(outputs), axis=1))

    def most_probable(self, outputs: Array) -> IntArray:
        """Return the codes of the classes of the largest probability, shape (n,)."""
        return np.asarray(self.scores(outputs).argmax(axis=1))

    def scores(self, outputs: Array) -> Array:
        """Return logarithms (n, K) of probabilities, but for a number that a row's classes share."""
        F = _comparable_outputs(outputs, self.logits)
        if self.logits:
            return np.asarray(self.below * F + self.bias)
        z = self.below * _log_soft(F, LINK_SOFTNESS) - self.above * _log_soft(1.0 - F, LINK_SOFTNESS)
        if self.wide is not None:
            z += self.wide[0] * _log_soft(F, WIDE_LINK_SOFTNESS) - self.wide[1] * _log_soft(1.0 - F, WIDE_LINK_SOFTNESS)
        return np.asarray(z + self.bias)

    def sound(self, classes: int, functions: int = 0) -> bool:
        """Return True if the arrays are those of so many classes, and finite."""
        right = all(is_valid_array(each, (classes,)) for each in (self.below, self.above, self.bias))
        right = right and (self.wide is None or is_valid_array(self.wide, (2,)))
        return right and (self.sets is None or self.sets.sound(classes))


@serializable
@dataclass(frozen=True, eq=False)
class LabelCalibration:
    """A calibration from outputs of several labels a row to a probability of each, as of two classes, label by label.

    a, c and b, ``below``, ``above`` and ``bias``, are of the label's absence and presence, (L, 2); so are a' and c', or
    None. Labels that all rows or none have are ``missing`` in the facts. Labels are decided at ``cuts`` (L,), or at
    1/2.
    """

    below: Array
    above: Array
    bias: Array
    facts: dict[str, Any]
    cuts: Array | None = None
    wide: Array | None = None

    def probabilities(self, outputs: Array) -> Array:
        return np.asarray(np.exp(self.log_probabilities(outputs)))

    def log_probabilities(self, outputs: Array) -> Array:
        pairs = (np.column_stack([1.0 - f, f]) for f in outputs.astype(np.float64).T)
        made = [self.label(j).log_probabilities(pair)[:, 1] for j, pair in enumerate(pairs)]
        return np.column_stack(made)

    def label(self, j: int) -> ProbabilityCalibration:
        """Return the calibration of one label."""
        wide = None if self.wide is None else self.wide[j]
        return ProbabilityCalibration(self.below[j], self.above[j], self.bias[j], {}, wide=wide)

    def sound(self, labels: int, functions: int = 0) -> bool:
        """Return True if the arrays are those of so many labels, and finite."""
        pairs = [self.below, self.above, self.bias, *([] if self.wide is None else [self.wide])]
        cut = self.cuts is None or is_valid_array(self.cuts, (labels,))
        return cut and all(is_valid_array(each, (labels, 2)) for each in pairs)


def fit_label_probabilities(out_of_sample: OutOfSample, engine: Engine) -> LabelCalibration:
    """The calibration that outputs on rows of several labels, shape (m, L), teach."""
    made, missing = [], []
    for j, (f, y) in enumerate(zip(out_of_sample.outputs.T, out_of_sample.y.T, strict=True)):
        pair = replace(out_of_sample, outputs=np.column_stack([1.0 - f, f]), y=(y > 0.5).astype(np.int64))
        made.append(fit_probabilities(pair, engine))
        missing += [j] if made[-1].facts["missing"] else []
    facts = {"source": out_of_sample.source, "rows": len(out_of_sample.y), "missing": missing}
    arrays = {name: np.stack([getattr(each, name) for each in made]) for name in ("below", "above", "bias", "wide")}
    return LabelCalibration(facts=facts, **arrays)


def _comparable_outputs(outputs: Array, logits: bool) -> Array:
    """Of two classes f is (f_1 − f_0 + 1)/2, so that its order is that of the score."""
    F = outputs.astype(np.float64)
    if F.shape[1] == 2:
        second = (F[:, 1:] - F[:, :1] + (0.0 if logits else 1.0)) / 2
        F = np.concatenate([-second if logits else 1.0 - second, second], axis=1)
    return F


def _features(F: Array, logits: bool) -> list[Array]:
    """Variables that z is linear in besides the bias; those with class parameters first."""
    if logits:
        return [F]
    return [
        sign * _log_soft(each, width)
        for width in (LINK_SOFTNESS, WIDE_LINK_SOFTNESS)
        for sign, each in ((1.0, F), (-1.0, 1.0 - F))
    ]


def _log_soft(F: Array, width: float) -> Array:
    """log(ε log(1 + exp(f/ε))), which is f/ε + log ε far below 0."""
    u = F / width
    soft = np.logaddexp(0.0, u)
    tiny = u < -30
    return np.asarray(np.where(tiny, u, np.log(np.where(tiny, 1.0, soft))) + np.log(width))


def softmax_of_logits(classes: int) -> ProbabilityCalibration:
    """Return the softmax of logits, without calibration."""
    one, none = np.ones(classes), np.zeros(classes)
    return ProbabilityCalibration(one, none, none, {"source": "softmax", "rows": 0, "missing": []}, logits=True)


def parameter_count(classes: int) -> int:
    """Parameters that the calibration of so many classes has."""
    return 4 + (3 if classes <= MAX_CLASSES_WITH_OWN_PARAMETERS else 1) * classes


def fit_probabilities(out_of_sample: OutOfSample, engine: Engine, logits: bool = False) -> ProbabilityCalibration:
    """The calibration that outputs on rows teach."""
    F, y, w = out_of_sample.outputs, out_of_sample.y, out_of_sample.w
    K = F.shape[1]
    if w is not None:
        counted = w > 0 if w.any() else np.ones(len(w), dtype=bool)
        F, y, w = F[counted], y[counted], w[counted] if w.any() else None
    mass = np.bincount(y, weights=w, minlength=K)
    present = np.flatnonzero(mass > 0)
    code = np.searchsorted(present, y)
    weight = np.ones(len(y)) if w is None else w / w.mean()
    features = [each[:, present] for each in _features(_comparable_outputs(F, logits), logits)]
    made = _solved(features, code, weight, engine, K, present, logits)
    if K == 2 and not _increases_with_output(made):  # few rows: one softness has the order of the scores
        made = _solved(features[:2], code, weight, engine, K, present, logits)
    # Outputs on rows left out may say the opposite, as of few rows that are far from one another.
    if not _orders_as_outputs(made):
        one, none = np.ones(K), np.zeros(K)
        made = replace(made, below=one, above=none, bias=none, wide=None if logits else np.zeros(2))
    missing = np.flatnonzero(mass == 0).tolist()
    facts = {"source": out_of_sample.source, "rows": len(y), "missing": missing} | made.facts
    return replace(made, facts=facts, sets=ClassScores.of(made.probabilities(F), y, weight))


def calibrated_losses(outputs: Array, y: IntArray, w: Array, engine: Engine) -> Array:
    """Return log losses (n,) of rows with outputs (n, K), class codes and weights, by which models are compared.

    The calibration has parameters that classes share, and is fitted to these rows; rows of weight 0 have no loss.
    """
    losses, counted = np.zeros(len(y)), w > 0
    present, code = np.unique(y[counted], return_inverse=True)
    features = _features(_comparable_outputs(outputs[counted], False), False)[:2]
    weight = w[counted] / w[counted].mean()
    fit = _Newton([each[:, present] for each in features], code, weight, engine, own=False)
    fit.solved()
    losses[counted] = -fit.loss(fit.theta)[1][fit.at]
    return losses


def _solved(
    features: list[Array], code: Array, w: Array, engine: Engine, classes: int, present: Array, logits: bool
) -> ProbabilityCalibration:
    fit = _Newton(features, code, w, engine, own=classes <= MAX_CLASSES_WITH_OWN_PARAMETERS)
    steps = fit.solved()
    shared, b = fit.theta[: len(features)], fit.coefficient(fit.theta, len(features))
    below, above = np.full(classes, shared[0]), np.full(classes, 0.0 if logits else shared[1])
    bias = np.full(classes, b.mean())
    below[present], bias[present] = fit.coefficient(fit.theta, 0), b
    if not logits:
        above[present] = fit.coefficient(fit.theta, 1)
    wide = None if logits else np.append(shared[2:], np.zeros(4 - len(features)))
    return ProbabilityCalibration(below, above, bias, {"steps": steps}, logits=logits, wide=wide, decides=True)


def _increases_with_output(made: ProbabilityCalibration) -> bool:
    f = np.linspace(-1.0, 2.0, 601)
    log_p = made.log_probabilities(np.column_stack([1.0 - f, f]))
    return bool((np.diff(log_p[:, 1] - log_p[:, 0]) > 0).all())


def _orders_as_outputs(made: ProbabilityCalibration) -> bool:
    """Is each class's score greater where its output is 1 than where it is 0; of two, the difference?"""
    K = len(made.bias)
    Z = made.scores(np.eye(K))
    if K == 2:
        return bool(Z[0, 0] - Z[0, 1] > Z[1, 0] - Z[1, 1])
    return bool((np.diag(Z) > made.scores(np.zeros((1, K)))[0]).all())


class _Newton:
    """Newton's method with a line search on the log loss of all rows plus the prior.

    Parameters: of each feature (n, K) the one that classes share, of the first two the δ of each class where classes
    have their ``own``, b.
    """

    def __init__(self, features: Sequence[Array], code: Array, w: Array, engine: Engine, own: bool) -> None:
        self.features, self.w, self.engine = [*features, np.ones((len(code), 1))], w, engine
        self.k, count = features[0].shape[1], len(features)
        self.own = min(2, count) if own else 0
        self.at = (np.arange(len(code)), code)
        self.theta = np.zeros(count + (self.own + 1) * self.k)
        self.theta[0] = 1.0
        self.center = self.theta.copy()
        self.prior = np.full(len(self.theta), PARAMETER_PRIOR * float(w.sum()))
        self.prior[-self.k :] = BIAS_PRIOR * float(w.sum())

    def coefficient(self, theta: Array, feature: int) -> Array:
        """Coefficient of a feature in every class, shape (K,); b of the last one, which is 1."""
        return np.asarray(sum((theta[place] for place in self._places(feature)), np.zeros(self.k)))

    def _places(self, feature: int) -> list[Any]:
        k, count = self.k, len(self.features) - 1
        if feature == count:
            return [slice(len(self.theta) - k, len(self.theta))]
        first = count + feature * k
        return [feature, *([slice(first, first + k)] if feature < self.own else [])]

    def loss(self, theta: Array) -> tuple[float, Array]:
        """The objective, and log p, shape (n, K)."""
        from scipy.special import log_softmax

        z = sum(self.coefficient(theta, j) * x for j, x in enumerate(self.features))
        log_p = log_softmax(z, axis=1)
        penalty = 0.5 * float(np.sum(self.prior * np.square(theta - self.center)))
        return float(np.sum(self.w * -log_p[self.at])) + penalty, log_p

    def slopes(self, theta: Array, log_p: Array) -> tuple[Array, Array]:
        P = np.exp(log_p)
        pull = P * self.w[:, None]
        residual = pull.copy()
        residual[self.at] -= self.w
        gradient, root = self.prior * (theta - self.center), np.sqrt(self.w)
        columns = np.empty((len(theta), len(P)))  # √w times the mean of each parameter's feature, under p
        for j, x in enumerate(self.features):
            by_class, mean = (residual * x).sum(axis=0), P * x
            for place in self._places(j):
                shared = isinstance(place, int)
                gradient[place] += by_class.sum() if shared else by_class
                columns[place] = (mean.sum(axis=1) if shared else mean.T) * root
        H = -self.engine.here().gram(columns)
        # Σ w p_k x_k x'_k: of a class with itself.
        for i, x in enumerate(self.features):
            for j, other in enumerate(self.features[: i + 1]):
                d = (pull * x * other).sum(axis=0)
                self._add_own(H, i, j, d)
                if j < i:
                    self._add_own(H, j, i, d)
        H[np.diag_indices(len(H))] += self.prior
        return gradient, H

    def _add_own(self, H: Array, i: int, j: int, d: Array) -> None:
        """Add each class's product with itself to the entries of features i and j of the Hessian."""
        for rows in self._places(i):
            for cols in self._places(j):
                if isinstance(rows, int) and isinstance(cols, int):
                    H[rows, cols] += d.sum()
                elif isinstance(rows, int) or isinstance(cols, int):
                    H[rows, cols] += d
                else:
                    H[np.arange(rows.start, rows.stop), np.arange(cols.start, cols.stop)] += d

    def solved(self) -> int:
        """Move to the mode; return the steps that it took."""
        value, log_p = self.loss(self.theta)
        step = 0
        while step < MAX_NEWTON_STEPS:
            step += 1
            gradient, H = self.slopes(self.theta, log_p)
            change = self.engine.here().spd_solve(H, gradient[:, None])[:, 0]
            decrement = float(gradient @ change)
            if decrement <= MIN_NEWTON_DECREMENT * float(self.w.sum()):
                break
            scale = 1.0
            while True:
                then = self.theta - scale * change
                found, log_found = self.loss(then)
                if found <= value - 0.25 * scale * decrement or scale < 1e-6:
                    break
                scale /= 2
            self.theta, value, log_p = then, found, log_found
        return step
