"""Probabilities and intervals of a partition: one calibration of its leaves' outputs on rows that are left out of them.

Of classes each leaf hands over its outputs on some of its rows, each row left out (``calibration.out_of_sample``), and
all of them together teach one calibration. Of values each leaf learns a scale of its own, as any fit does; the quantile
of |y - f(x)|/s(x) is that of all leaves, in which each weighs as much as its rows. Where there are validation rows,
those take the place of rows that are left out: they are predicted by the whole model, blending and all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamkern.calibration.intervals import Intervals, rank_scores, relative_scales
from streamkern.calibration.out_of_sample import OutOfSample
from streamkern.calibration.serialization import Calibration
from streamkern.costs.fit_shape import calibration_bytes
from streamkern.data.targets import Classes, Continuous, Indicators, as_values
from streamkern.defaults import (
    JOINT_CALIBRATION_VALUES_PER_OUTPUT,
    MAX_HELD_OUT_ROWS,
    MAX_HELD_OUT_VALUES,
    MIN_HELD_OUT_ROWS_OF_LEAF,
    MIN_RELATIVE_SCALE,
)
from streamkern.engine.base import Basis
from streamkern.fitting.calibrate import fit_class_calibration, on_validation
from streamkern.models.kernel_machine import KernelMachine
from streamkern.solvers.base import Problem
from streamkern.solvers.loop import Outcome
from streamkern.types import Array, IntArray

_TINY = np.finfo(np.float64).tiny


def held_out_rows_of_leaf(task: str, leaves: int, outputs: int) -> int:
    """Return each leaf's most rows to leave out one at a time: all leaves' outputs are held together."""
    least = MIN_HELD_OUT_ROWS_OF_LEAF if task == "regression" else 1
    return max(1, min(max(least, MAX_HELD_OUT_ROWS // leaves), MAX_HELD_OUT_VALUES // (leaves * max(1, outputs))))


def joint_calibration_bytes(task: str, leaves: int, outputs: int, row: int) -> int:
    """Return bytes of the answers of all leaves while they are joined; ``row`` are those of a row."""
    rows = leaves * held_out_rows_of_leaf(task, leaves, outputs)
    return (
        8 * JOINT_CALIBRATION_VALUES_PER_OUTPUT * rows * outputs
        if task == "regression"
        else calibration_bytes(task, rows, outputs, row)
    )


def out_of_sample_of_constant(constant: Array, y: Array, w: Array | None, encoding: Any, rows: int) -> OutOfSample:
    """Return a constant, a class code (1,) or values (c,), on some rows, whose omission changes nothing."""
    at = np.unique(np.linspace(0, len(y) - 1, min(rows, len(y))).astype(np.int64))
    outputs = np.arange(encoding.outputs) == constant if isinstance(encoding, Classes) else constant
    shown = np.broadcast_to(np.asarray(outputs, dtype=np.float64), (len(at), encoding.outputs))
    return OutOfSample(shown, y[at], None if w is None else w[at], "leave-one-out", at)


def out_of_sample_of_leaf(
    outcome: Outcome, problem: Problem, encoding: Any, in_leaf: Callable[[IntArray], Array]
) -> OutOfSample | None:
    """Return a leaf's outputs on rows that were left out, as codes and outputs of all classes; None for values.

    ``in_leaf`` masks the rows that the leaf predicts: beyond a border its outputs are worse than the model's.
    """
    found, own = outcome.out_of_sample, problem.encoding
    if found is None or not isinstance(own, Classes | Indicators):
        return None
    at = in_leaf(found.ids)
    outputs, y, w = found.outputs[at], found.y[at], None if found.w is None else found.w[at]
    if isinstance(own, Classes):
        outputs, y = np.zeros((len(y), encoding.outputs)), own.values[y]
        outputs[:, own.values] = found.outputs[at]
    return OutOfSample(outputs, y, w, found.source, found.ids[at])


def fit_joint_probabilities(
    out_of_sample: Sequence[OutOfSample | None],
    mass: Array,
    problem: Problem,
    basis: Basis,
    warn: Callable[[str], None],
    threshold: str | None = None,
) -> Calibration | None:
    """Fit the calibration; None where a leaf's solver leaves no rows out and there is no validation.

    ``out_of_sample`` and ``mass``, the weight of the rows, are by leaf; ``basis`` has the functions of all leaves.
    ``warn`` hears of classes that the rows lack.
    """
    encoding = problem.encoding
    if problem.validation is not None:
        rows = on_validation(problem, np.empty((0, encoding.outputs), dtype=problem.dtype), basis)
    else:
        found = [each for each in out_of_sample if each is not None]
        if len(found) < len(out_of_sample) or not found:
            if threshold is not None:
                warn("the threshold keeps its default: the solver of a leaf leaves no rows out to choose it on")
            return None
        rows = _joined(found, mass)
    return fit_class_calibration(rows, problem, warn, threshold)


def _joined(out_of_sample: Sequence[OutOfSample], mass: Array) -> OutOfSample:
    weights = [np.ones(len(each.y)) if each.w is None else np.asarray(each.w) for each in out_of_sample]
    # A leaf may predict none of the rows that were left out of it.
    shares = [w * (m / w.sum() if w.sum() > 0 else 0.0) for w, m in zip(weights, mass, strict=True)]
    outputs, y, ids = (np.concatenate([getattr(each, k) for each in out_of_sample]) for k in ("outputs", "y", "ids"))
    return OutOfSample(outputs, y, np.concatenate(shares), "leave-one-out", ids)


def fit_joint_intervals(
    models: list[KernelMachine | None],
    constant: Sequence[OutOfSample | None],
    mass: Array,
    problem: Problem,
    basis: Callable[[list[KernelMachine | None]], Basis],
) -> tuple[Calibration | None, list[KernelMachine | None]]:
    """Fit the intervals; return them, and the models with scales that they understand.

    A model is None where a leaf's outputs are ``constant``, on rows that are left out; ``mass`` is the weight of each
    leaf's rows. ``basis`` makes the functions of all leaves from their models.
    """
    c, nothing = problem.encoding.outputs, np.zeros((0, problem.encoding.outputs))
    own = [_intervals(model) for model in models]
    found = [each for each in own if each is not None]
    learned = len(found) == sum(model is not None for model in models)
    if problem.validation is None and not learned:
        return None, models
    # No scale is less than a share of the mean one: with the least mean of all leaves each leaf keeps its scales.
    least = np.min([each.mean for each in found], axis=0) if learned and found else np.ones(c)
    models = [
        model if model is None else replace(model, calibration=_relative_to(each, least) if learned else None)
        for each, model in zip(own, models, strict=True)
    ]
    if problem.validation is not None:
        rows = on_validation(problem, np.empty((0, 2 * c), dtype=problem.dtype), basis(models))
        missed = np.abs(rows.outputs[:, :c] - rows.y)
        if not learned:
            least = np.where(missed.any(axis=0), missed.mean(axis=0), 1.0)
        levels = relative_scales(rows.outputs[:, c:])
        scores = missed / (least * levels)
        w, source = np.ones(len(scores)) if rows.w is None else rows.w, rows.source
    else:
        pieces = [_scores(each, rest, least) for each, rest in zip(own, constant, strict=True)]
        scores, levels = (np.concatenate([piece[k] for piece in pieces]) for k in (0, 2))
        w = np.concatenate(
            [m * piece[1] / np.maximum(piece[1].sum(axis=0), _TINY) for piece, m in zip(pieces, mass, strict=True)]
        )
        source, rows = "leave-one-out", None
    functions = sum(len(each.weights) for each in found) if learned else 0
    facts = {"source": source, "rows": len(scores), "functions": functions}
    facts |= {} if rows is None or rows.groups is None else {"groups": len(np.unique(rows.groups))}
    return Intervals(mean=least, weights=nothing, facts=facts, **rank_scores(scores, w, levels)._asdict()), models


def _intervals(model: KernelMachine | None) -> Intervals | None:
    """With scales in the units of all rows' encoded targets."""
    if model is None or not isinstance(model.calibration, Intervals) or not isinstance(model.encoding, Continuous):
        return None
    return replace(model.calibration, mean=model.calibration.mean * model.encoding.unit)


def _relative_to(own: Intervals | None, least: Array) -> Intervals | None:
    """In parts of ``least``, without the scores, which are those of all leaves."""
    if own is None:
        return None
    none = own.scores[:0]
    return replace(own, scores=none, shares=none, mean=own.mean / least, levels=None, starts=None)


def _scores(calibration: Intervals | None, constant: OutOfSample | None, least: Array) -> tuple[Array, Array, Array]:
    """Scores of a leaf's rows, shape (m, c), their weights and their scales in parts of ``least``, of that shape."""
    if calibration is not None:
        assert calibration.levels is not None
        levels = calibration.levels * (calibration.mean / least)
        return calibration.scores, np.diff(calibration.shares, axis=0, prepend=0.0), levels
    assert constant is not None
    scores = np.abs(constant.outputs - as_values(constant.y, constant.outputs.shape[1])) / (MIN_RELATIVE_SCALE * least)
    w = np.ones(len(scores)) if constant.w is None else constant.w
    return scores, np.broadcast_to(w[:, None], scores.shape), np.full(scores.shape, MIN_RELATIVE_SCALE)
