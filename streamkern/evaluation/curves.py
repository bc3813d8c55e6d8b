"""Curves of reports (reliability, ROC, precision-recall, coverage), from the sums of the metrics."""

from __future__ import annotations

import numpy as np

from streamkern.calibration.intervals import Intervals
from streamkern.calibration.serialization import Calibration
from streamkern.data.targets import Classes, Continuous, Encoding, Indicators
from streamkern.defaults import CALIBRATION_BINS, CURVE_STEPS, MAX_CURVES, SCALE_GROUPS, SCORED_COVERAGE
from streamkern.evaluation.metrics import MetricSums, Ranked
from streamkern.types import Array


def curves_of(encoding: Encoding, found: MetricSums, calibration: Calibration | None) -> dict[str, Array]:
    """Return points of the curves, of bounded size whatever the number of rows.

    ``reliability``, shape (15, 3), of probabilities: by bin of width 1/15 the weight of the rows, their mean
    probability and the share of them that are right, NaN in a bin without rows. With two classes it is the probability
    of the second, with more the largest, with several labels a row that of each label. ``curves``, shape (m, 5), of at
    most ``MAX_CURVES`` classes: class, score, and the false positive rate, recall and precision of the rows with this
    score or a larger one, scores descending within a class. ``decided``, shape (k, 4): class, false positive rate,
    recall and precision of what the model predicts. Of values with intervals ``fifths``, shape (c, 5, 3), by output and
    fifth of the rows' weight, the predicted scale ascending: weight, share inside, and mean width of the 90% intervals
    in stored units.
    """
    if isinstance(encoding, Classes | Indicators):
        return _of_classes(encoding, found)
    if not isinstance(calibration, Intervals) or found.ranks is None or not found.sums["mass"] > 0:
        return {}
    unit = encoding.unit if isinstance(encoding, Continuous) else 1.0
    units, parts = np.broadcast_to(unit, encoding.outputs), []
    for j, (logs, inside, outside) in enumerate(found.ranks.by_class(encoding.outputs)):
        widths = 2 * calibration.half_widths(np.exp(logs)[:, None], SCORED_COVERAGE, slice(j, j + 1))[:, 0] * units[j]
        parts.append(_fifths(widths, inside, outside))
    return {"fifths": np.stack(parts)}


def _of_classes(encoding: Classes | Indicators, found: MetricSums) -> dict[str, Array]:
    k, sums, made = encoding.outputs, found.sums, {}
    classes = range(k)
    if isinstance(encoding, Classes) and k == 2:
        classes = range(1, 2)  # rows not of the second class are of the first
    ranked = {} if found.ranks is None else dict(zip(classes, found.ranks.by_class(len(classes)), strict=True))
    largest = isinstance(encoding, Classes) and k > 2
    if "log" in sums and (largest or ranked):
        pieces = [sums[f"bin_{name}"] for name in ("rows", "sure", "right")] if largest else _binned([*ranked.values()])
        mass = np.where(pieces[0] > 0, pieces[0], np.nan)
        made["reliability"] = np.stack([pieces[0], pieces[1] / mass, pieces[2] / mass], axis=1)
    areas = {j: area for j, each in ranked.items() if np.isfinite(area := _area(*each))}
    shown = sorted(sorted(areas, key=lambda j: areas[j])[:MAX_CURVES])
    if not shown:
        return made
    made["curves"] = np.concatenate([_curve(j, *ranked[j]) for j in shown])
    actual, predicted, right = (sums[name][shown] for name in ("actual", "predicted", "right"))
    others = sums["mass"] - actual
    precision = right / np.where(predicted > 0, predicted, np.nan)
    made["decided"] = np.stack(
        [np.array(shown, float), (predicted - right) / others, right / actual, precision], axis=1
    )
    return made


def _binned(ranked: list[Ranked]) -> list[Array]:
    scores, hits, others = (np.concatenate(parts) for parts in zip(*ranked, strict=True))
    cell = np.clip((scores * CALIBRATION_BINS).astype(np.int64), 0, CALIBRATION_BINS - 1)
    mass = hits + others
    return [np.bincount(cell, weights=each, minlength=CALIBRATION_BINS) for each in (mass, scores * mass, hits)]


def _area(scores: Array, hits: Array, others: Array) -> float:
    pairs = hits.sum() * others.sum()
    return float(hits @ (np.cumsum(others) - 0.5 * others)) / pairs if pairs > 0 else np.nan


def _curve(j: int, scores: Array, hits: Array, others: Array) -> Array:
    true, false = np.cumsum(hits[::-1]), np.cumsum(others[::-1])
    recall, rate = true / true[-1], false / false[-1]
    cell = np.floor(recall * CURVE_STEPS) * (CURVE_STEPS + 1) + np.floor(rate * CURVE_STEPS)
    kept = (np.diff(cell, prepend=-1.0) != 0) & (true + false > 0)
    kept[-1] = True
    precision = true[kept] / (true[kept] + false[kept])
    return np.stack([np.full(kept.sum(), float(j)), scores[::-1][kept], rate[kept], recall[kept], precision], axis=1)


def _fifths(widths: Array, inside: Array, outside: Array) -> Array:
    """Weight, share inside and mean width by fifth, shape (5, 3), of rows by their scale; ties are shared out."""
    mass = inside + outside
    upto = np.concatenate([[0.0], np.cumsum(mass)])
    at = np.linspace(0.0, upto[-1], SCALE_GROUPS + 1)
    weight, held, width = (
        np.diff(np.interp(at, upto, np.concatenate([[0.0], np.cumsum(each)]))) for each in (mass, inside, mass * widths)
    )
    return np.stack([weight, held / weight, width / weight], axis=1)
