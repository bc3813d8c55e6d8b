"""Metrics that decisions are made by, from sums over blocks: of classes, of their order and probabilities, of values.

Names, and values, are scikit-learn's: ``roc_auc_score`` is ``auc``. With two classes ``auc``, ``average_precision``,
``precision``, ``recall`` and ``f1`` are those of the second class; with more, means over the classes, each against the
rest. Sample weights count in all of them.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np

from streamkern.calibration.intervals import IntervalCoverage
from streamkern.data.targets import Classes, Continuous, Encoding, Indicators
from streamkern.defaults import (
    CALIBRATION_BINS,
    MAX_DISTINCT_SCORES,
    MAX_RANKED_CLASSES,
    RANKING_WORK,
    SCORE_BITS,
    SCORE_UNITS,
)
from streamkern.engine.operation_counts import Operations
from streamkern.types import Array, IntArray

Ranked = tuple[Array, Array, Array]


def ranks_bytes(rows: int, outputs: int) -> int:
    """Bytes that the order of so many rows' scores takes in a sum."""
    return 24 * min(2 * MAX_DISTINCT_SCORES, rows * outputs) if outputs <= MAX_RANKED_CLASSES else 0


def ranking_work(rows: int, outputs: int) -> Operations:
    """Operations that the order of so many rows' scores takes: each is sorted, and merged up a tree of sums."""
    return Operations(numbers=RANKING_WORK * rows * outputs if outputs <= MAX_RANKED_CLASSES else 0.0)


class Ranks:
    """Weight of the hits and of the others at every score of every class. Adds, in bounded memory.

    Scores are whole numbers of 2⁻⁴⁰. Where there are more than ``MAX_DISTINCT_SCORES`` different ones, the unit is
    doubled, ``shift`` times, until there are not: scores in the same unit are ties. Pieces are key (class and score),
    weight of hits and of others; ``compacted``, the only one has every score once, ascending.
    """

    def __init__(self, pieces: tuple[Ranked, ...] = (), shift: int = 0, compacted: bool = False) -> None:
        self.pieces, self.shift, self.compacted = pieces, shift, compacted

    @classmethod
    def of(cls, scores: Array, codes: Array, w: Array | None) -> Ranks:
        """Return ranks of scores (n, K) of each class, or (n, 1) of the second of two; the code -1 is no class."""
        k = scores.shape[1]
        classes = np.arange(k) if k > 1 else np.ones(1, dtype=np.int64)
        return cls.of_hits(scores, codes[:, None] == classes, w)

    @classmethod
    def of_hits(cls, scores: Array, hit: Array, w: Array | None) -> Ranks:
        """Return ranks of rows with several right classes, or none: scores and hits (booleans) are (n, k)."""
        n, k = scores.shape
        half = 1 << (SCORE_BITS - 1)
        units = np.clip(np.floor(scores.astype(np.float64) * SCORE_UNITS), -half, half - 1).astype(np.int64) + half
        keys = (units + (np.arange(k, dtype=np.int64) << SCORE_BITS)).ravel()
        weight = np.ones((n, k)) if w is None else np.repeat(np.asarray(w, dtype=np.float64)[:, None], k, axis=1)
        return cls(((keys, np.where(hit, weight, 0.0).ravel(), np.where(hit, 0.0, weight).ravel()),)).compact(False)

    def __add__(self, other: Ranks) -> Ranks:
        shift = max(self.shift, other.shift)
        pieces = tuple((key >> (shift - each.shift), a, b) for each in (self, other) for key, a, b in each.pieces)
        return Ranks(pieces, shift).compact(False)

    def compact(self, always: bool = True) -> Ranks:
        """Return the same with every score once, ascending; unless ``always``, only where there are many."""
        if self.compacted or (not always and sum(len(key) for key, _, _ in self.pieces) <= 2 * MAX_DISTINCT_SCORES):
            return self
        keys, hits, others = (np.concatenate(arrays) for arrays in zip(*self.pieces, strict=True))
        order = np.argsort(keys, kind="stable")
        keys, hits, others = keys[order], hits[order], others[order]
        # Neighbours are one key once the highest bit in which they differ is shifted out.
        differ = np.frexp((keys[1:] ^ keys[:-1]).astype(np.float64))[1]
        shift = (
            int(np.partition(differ, -MAX_DISTINCT_SCORES)[-MAX_DISTINCT_SCORES])
            if len(differ) >= MAX_DISTINCT_SCORES
            else 0
        )
        first = np.concatenate(([0], 1 + np.flatnonzero(differ > shift)))
        pieces = (keys[first] >> shift, np.add.reduceat(hits, first), np.add.reduceat(others, first))
        return Ranks((pieces,), self.shift + shift, compacted=True)

    def metrics(self, k: int) -> dict[str, Array]:
        """Return ``auc`` and ``average_precision`` of the k classes, (k,), NaN for those without both hits and others.

        ``auc_error`` bounds how far each ``auc`` is from that of the scores themselves: half the share of tied pairs.
        """
        whole, found = self.compact() if self.pieces else self, np.full((3, k), np.nan)
        for j, (_, p, n) in enumerate(whole.by_class(k)):
            pairs = p.sum() * n.sum()
            if not pairs > 0:
                continue
            below = np.cumsum(n) - n
            tied = 0.5 * float(p @ n) / pairs
            upto = np.cumsum(p[::-1]), np.cumsum((p + n)[::-1])
            precision = upto[0] / np.where(upto[1] > 0, upto[1], 1.0)
            found[:, j] = (
                float(p @ below) / pairs + tied,
                float(p[::-1] @ precision) / p.sum(),
                tied if whole.shift else 0.0,
            )
        return dict(zip(("auc", "average_precision", "auc_error"), found, strict=True))

    def by_class(self, k: int) -> list[Ranked]:
        """Return each class's scores, ascending and every one once, with the weight of its hits and of its others."""
        if not self.pieces:
            return [(np.zeros(0),) * 3] * k
        whole = self.compact()
        ((keys, hits, others),) = whole.pieces
        place = SCORE_BITS - whole.shift
        ends = np.searchsorted(keys >> place, np.arange(k + 1))
        # Tied scores share a key: use the middle of its range.
        units = ((keys & ((1 << place) - 1)) << whole.shift) - (1 << (SCORE_BITS - 1)) + ((1 << whole.shift) >> 1)
        scores = units / SCORE_UNITS
        return [(scores[a:b], hits[a:b], others[a:b]) for a, b in pairwise(ends)]


@dataclass(frozen=True, eq=False)
class MetricSums:
    """Sums that metrics come from. They add.

    Ranks are of the scores of classes; of values with intervals, of the logarithm of each output's scale, where a
    target inside its interval is a hit. None for values without, or too many outputs.
    """

    sums: dict[str, Any]
    ranks: Ranks | None = None

    def __add__(self, other: MetricSums) -> MetricSums:
        ranks = None if self.ranks is None or other.ranks is None else self.ranks + other.ranks
        return MetricSums({name: value + other.sums[name] for name, value in self.sums.items()}, ranks)

    def compact(self) -> MetricSums:
        return self if self.ranks is None or not self.ranks.pieces else replace(self, ranks=self.ranks.compact())


def metric_sums(
    encoding: Encoding,
    F: Array,
    y: Array,
    w: Array | None,
    P: Array | None = None,
    covered: IntervalCoverage | None = None,
    predicted: IntArray | None = None,
) -> MetricSums:
    """Return sums over rows of outputs F (n, c), probabilities P and codes y (n,), -1 if unseen, or values (n, c)."""
    if isinstance(encoding, Classes):
        return _measured_classes(F, y, w, P, encoding.decided(F) if predicted is None else predicted)
    if isinstance(encoding, Indicators):
        return _measured_labels(encoding, F, y > 0.5, w, P)
    miss = np.abs(np.subtract(F, y, dtype=np.float64))
    mass = float(len(y)) if w is None else float(w.sum())
    sums = {"mass": mass, "absolute": miss.sum(axis=0) if w is None else w @ miss}
    if covered is None:
        return MetricSums(sums)
    sums["inside"] = covered.inside.sum(axis=0) if w is None else w @ covered.inside
    ranked = covered.inside.shape[1] <= MAX_RANKED_CLASSES
    return MetricSums(sums, Ranks.of_hits(np.log(covered.scale), covered.inside, w) if ranked else None)


def _measured_classes(F: Array, y: Array, w: Array | None, P: Array | None, predicted: IntArray) -> MetricSums:
    n, k = F.shape
    weight = np.ones(n) if w is None else np.asarray(w, dtype=np.float64)
    known = y >= 0
    code = np.where(known, y, k)
    right = known & (predicted == y)
    sums: dict[str, Any] = {
        "mass": float(weight.sum()),
        "actual": _counts(code, weight, k + 1)[:k],
        "predicted": _counts(predicted, weight, k),
        "right": _counts(predicted, weight * right, k),
    }
    if P is not None:
        P = P.astype(np.float64, copy=False)
        of_class = np.where(known, P[np.arange(n), np.where(known, y, 0)], 0.0)
        eps = float(np.finfo(P.dtype).eps)
        # Σ_k (p_k − 1[k = y])²
        squares = np.square(P).sum(axis=1) - 2 * of_class + 1
        surest = P.argmax(axis=1)
        top = P[np.arange(n), surest]
        cell = np.minimum((top * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        sums |= {
            "log": float(weight @ -np.log(np.clip(of_class, eps, 1 - eps))),
            "squares": float(weight @ squares),
            "bin_rows": _counts(cell, weight, CALIBRATION_BINS),
            "bin_sure": _counts(cell, weight * top, CALIBRATION_BINS),
            "bin_right": _counts(cell, weight * (known & (surest == y)), CALIBRATION_BINS),
        }
    if k > MAX_RANKED_CLASSES:
        return MetricSums(sums)
    if k == 2:
        return MetricSums(sums, Ranks.of(F[:, 1:] - F[:, :1] if P is None else P[:, 1:], y, w))
    return MetricSums(sums, Ranks.of(F if P is None else P, y, w))


def _measured_labels(encoding: Indicators, F: Array, y: Array, w: Array | None, P: Array | None) -> MetricSums:
    n, k = F.shape
    weight = np.ones(n) if w is None else np.asarray(w, dtype=np.float64)
    predicted = encoding.decided(F) > 0
    sums: dict[str, Any] = {
        "mass": float(weight.sum()),
        "all_right": float(weight @ (predicted == y).all(axis=1)),
        "wrong": weight @ (predicted != y),
        "actual": weight @ y,
        "predicted": weight @ predicted,
        "right": weight @ (predicted & y),
    }
    if P is not None:
        eps = float(np.finfo(P.dtype).eps)
        sums |= {
            "log": weight @ -np.log(np.clip(np.where(y, P, 1 - P), eps, 1 - eps)),
            "squares": weight @ np.square(P - y),
        }
    return MetricSums(sums, Ranks.of_hits(F if P is None else P, y, w) if k <= MAX_RANKED_CLASSES else None)


def _label_metrics(encoding: Indicators, found: MetricSums) -> dict[str, Any]:
    k, sums, mass = encoding.outputs, found.sums, found.sums["mass"] or np.nan
    scores = _rates(sums)
    total = 2 * sums["right"].sum(), (sums["actual"] + sums["predicted"]).sum()
    metrics: dict[str, Any] = {
        "accuracy": _number(sums["all_right"] / mass),
        "hamming_loss": _number(sums["wrong"].mean() / mass),
        "f1_micro": float(total[0] / total[1]) if total[1] > 0 else 0.0,
        "f1_macro": float(scores["f1"].mean()),
    }
    if "log" in sums:
        scores |= {"log_loss": sums["log"] / mass, "brier": sums["squares"] / mass}
        metrics |= {name: _number(scores[name].mean()) for name in ("log_loss", "brier")}
    scores |= _rank_metrics(found, k, metrics)
    return metrics | {"by_class": _by_class(encoding.names, scores, sums["actual"])}


def _rates(sums: dict[str, Any]) -> dict[str, Array]:
    actual, predicted, right = (sums[name] for name in ("actual", "predicted", "right"))
    found = {"precision": _ratio(right, predicted), "recall": _ratio(right, actual)}
    return found | {"f1": _ratio(2 * right, actual + predicted)}


def _rank_metrics(found: MetricSums, k: int, metrics: dict[str, Any]) -> dict[str, Array]:
    """Metrics of the order of scores by class; their means are added to ``metrics``."""
    if found.ranks is None:
        return {}
    ranked = found.ranks.metrics(k)
    error = ranked.pop("auc_error")
    metrics |= {name: _mean(values, np.isfinite(values)) for name, values in ranked.items()}
    if np.any(error > 0):
        metrics["auc_error"] = _number(np.nanmax(error))
    return ranked


def _by_class(labels: Sequence[Any], scores: dict[str, Array], actual: Array) -> dict[str, dict[str, float | None]]:
    of = {name: values.tolist() for name, values in scores.items()} | {"support": actual.tolist()}
    return {
        str(label): {name: _number(values[j]) for name, values in of.items() if np.isfinite(values[j])}
        for j, label in enumerate(labels)
    }


_BY_CLASS = ("precision", "recall", "f1", "auc", "average_precision")
METRIC_NAMES = {
    "classes": (
        *("accuracy", "mse", "balanced_accuracy", *_BY_CLASS, "auc_error", "log_loss", "brier", "ece"),
        *(f"{name}.LABEL" for name in (*_BY_CLASS, "support")),
    ),
    "labels": (
        *("accuracy", "mse", "r2", "rmse", "hamming_loss", "f1_micro", "f1_macro", "auc", "average_precision"),
        *("auc_error", "log_loss", "brier"),
        *(f"{name}.LABEL" for name in (*_BY_CLASS, "support", "log_loss", "brier")),
    ),
    "values": (
        *("mse", "r2", "rmse", "mae", "coverage_90", "poisson_deviance", "pinball_loss"),
        *("mae.LABEL", "coverage_90.LABEL", "pinball_loss.LABEL"),
    ),
}
"""Names of the metrics of classes, of several labels a row, and of values; LABEL is a class, a label or an output."""


def metrics_of(encoding: Encoding, found: MetricSums) -> dict[str, Any]:
    """Return the metrics of ``METRIC_NAMES`` from sums; a number that the rows do not define is None.

    ``brier`` of two classes is that of the second, as scikit-learn's; of more, the sum over the classes. ``auc_error``
    is there where scores were tied to bound the memory, and what needs probabilities or intervals where the model has
    them. By label, in ``by_class``, ``support`` is the weight of the rows. Of several labels a row, ``accuracy`` is
    the share of rows with all of them right.
    """
    if isinstance(encoding, Classes):
        return _class_metrics(encoding, found)
    if isinstance(encoding, Indicators):
        return _label_metrics(encoding, found)
    assert isinstance(encoding, Continuous)
    mass = found.sums["mass"] or np.nan
    several = {"mae": found.sums["absolute"] * encoding.unit / mass}
    if "inside" in found.sums:
        several["coverage_90"] = found.sums["inside"] / mass
    metrics: dict[str, Any] = {name: _number(np.mean(values)) for name, values in several.items()}
    if encoding.outputs > 1:
        metrics["by_output"] = {name: values.tolist() for name, values in several.items()}
    return metrics


def _counts(codes: Array, w: Array, k: int) -> Array:
    return cast(Array, np.bincount(codes, weights=w, minlength=k))


def _class_metrics(encoding: Classes, found: MetricSums) -> dict[str, Any]:
    k, sums, mass = encoding.outputs, found.sums, found.sums["mass"] or np.nan
    scores, present = _rates(sums), sums["actual"] > 0
    seen = present | (sums["predicted"] > 0)
    metrics: dict[str, Any] = {"balanced_accuracy": _mean(scores["recall"], present)}
    if "log" in sums:
        gap = np.abs(sums["bin_sure"] - sums["bin_right"]).sum()
        halves = 2.0 if k == 2 else 1.0
        metrics |= {
            "log_loss": _number(sums["log"] / mass),
            "brier": _number(sums["squares"] / mass / halves),
            "ece": _number(gap / mass),
        }
    ranked = _rank_metrics(found, 1 if k == 2 else k, metrics)
    scores |= {name: np.array([np.nan, each[0]]) if k == 2 else each for name, each in ranked.items()}
    for name in ("precision", "recall", "f1"):
        metrics[name] = _number(scores[name][1]) if k == 2 else _mean(scores[name], seen)
    if k > MAX_RANKED_CLASSES:
        return metrics
    return metrics | {"by_class": _by_class(encoding.values.tolist(), scores, sums["actual"])}


def flat_metrics(metrics: dict[str, Any]) -> dict[str, float | None]:
    """Metrics as one name for each number, such as ``recall.yes`` of a class and ``mae.output_0`` of an output.

    A label that cannot be a name in Python, such as 1 or "not-yet", is ``class_1``, ``class_not_yet``.
    """
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        if name == "by_class":
            found |= {f"{each}.{_name(label)}": v for label, values in value.items() for each, v in values.items()}
        elif name == "by_output":
            found |= {f"{each}.output_{j}": v for each, values in value.items() for j, v in enumerate(values)}
        else:
            found[name] = value
    return found


def _name(label: str) -> str:
    plain = label.isascii() and label.isidentifier() and not keyword.iskeyword(label)
    return label if plain else "class_" + re.sub(r"\W", "_", label, flags=re.ASCII)


def r2_scores(errors: Array, spread: Array) -> Array:
    """Return R² of outputs from sums of squared errors and of squares about the mean; of a constant, 1 or 0."""
    varies = spread > 0
    return np.asarray(np.where(varies, 1 - errors / np.where(varies, spread, 1.0), np.where(errors > 0, 0.0, 1.0)))


def _ratio(a: Array, b: Array) -> Array:
    """0 where b is 0, as scikit-learn's ``zero_division=0``."""
    return np.asarray(np.where(b > 0, a / np.where(b > 0, b, 1.0), 0.0))


def _mean(values: Array, of: Array) -> float | None:
    return float(values[of].mean()) if of.any() else None


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
