"""Comparison of champion and challenger on the same rows, with a significance test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import bdtr, stdtr

from streamkern.calibration.intervals import Intervals, interval_coverage
from streamkern.calibration.probabilities import LabelCalibration, ProbabilityCalibration
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan
from streamkern.data.statistics import RawScan
from streamkern.data.targets import Classes, Continuous, Encoding, Quantiles
from streamkern.defaults import MAX_KEPT_SCORES, MIN_GROUPS_TO_PAIR
from streamkern.evaluation.metrics import MetricSums, flat_metrics, metric_sums, metrics_of, r2_scores
from streamkern.execute.base import Executor
from streamkern.models.kernel_machine import KernelMachine
from streamkern.rng import HashFamily
from streamkern.types import Array


@dataclass(frozen=True, eq=False)
class ModelComparison:
    """A comparison of two models on the same rows.

    Metrics are ``n_test``, ``mse``, ``accuracy`` or ``r2``, and those of ``metrics_of`` under the names of
    ``flat_metrics``; NaN if undefined for the rows, or if only one of the models has it. ``test`` holds the paired
    test's name and numbers, with a two-sided ``p_value``. Scores (k,) are the largest outputs, or values, on a fixed
    sample of the rows.
    """

    challenger: dict[str, float]
    champion: dict[str, float] | None
    test: dict[str, Any] | None
    challenger_scores: Array
    champion_scores: Array | None


def without_scaling(dataset: Dataset) -> Dataset:
    """Return a dataset's rows without scaling, because models scale stored rows themselves."""
    return replace(dataset.plain(), transforms=(), factor=1.0, shift=0.0)


def compare_models(
    challenger: KernelMachine, champion: KernelMachine | None, test: Dataset, executor: Executor
) -> ModelComparison:
    """Score both models on every row of ``test``, block by block; memory does not grow with the rows.

    A label unknown to a model counts as its mistake. Classes are compared by McNemar's exact test (1947) on the
    rows that one model gets right and the other wrong; values by the t test of the rows' differences in squared error,
    or in the loss that is minimised.
    Rows of a group are wrong alike: where there are ten groups or more, both by the t test of the sums of each group's
    differences.

    The dataset's scaling is ignored, since models scale stored rows themselves.
    """
    rows = without_scaling(test)
    models = [challenger] if champion is None else [challenger, champion]
    sample = rows.sample(min(MAX_KEPT_SCORES, rows.base_rows)).rules[-1]
    tallies = [_Tally(model, challenger.encoding) for model in models]
    only_first = only_second = n = 0
    difference = squares = 0.0
    streams = [
        _Outputs(model._stream_outputs(rows, executor=executor, scales=isinstance(model.calibration, Intervals)))
        for model in models
    ]
    scan, groups = RawScan(Scan(Assembly(rows))), None
    if champion is not None and rows.roles is not None and rows.roles.group is not None:
        hashes = (values.hashes(HashFamily.FOLDS) for _, values in rows.roles.blocks(rows.rules))
        groups = _GroupSums(_Outputs(hashes))
    for i in range(len(scan)):
        raw, _ = scan.block((i,))
        y, keep = raw.y, sample.keep(raw.ids)
        assert y is not None
        outputs = [stream.take(len(y)) for stream in streams]
        n += len(y)
        found = [tally.add(y, F, keep) for tally, F in zip(tallies, outputs, strict=True)]
        if champion is not None:
            (right, error), (right_before, error_before) = found
            only_first += int(np.count_nonzero(right & ~right_before))
            only_second += int(np.count_nonzero(right_before & ~right))
            d = error - error_before
            difference, squares = difference + float(d.sum()), squares + float(np.square(d).sum())
            if groups is not None:
                of_labels = isinstance(challenger.encoding, Classes)
                groups.add(right_before.astype(np.float64) - right if of_labels else d)
    scores = [np.concatenate(tally.scores) for tally in tallies]
    metrics = [tally.metrics(n) for tally in tallies]
    names = {name for each in metrics for name in each}
    metrics = [{name: each.get(name, np.nan) for name in sorted(names)} for each in metrics]
    if champion is None:
        return ModelComparison(metrics[0], None, None, scores[0], None)
    classes = isinstance(challenger.encoding, Classes)
    significance = _mcnemar(only_first, only_second) if classes else _paired_t(n, difference, squares)
    significance = significance if groups is None else groups.paired_t(significance)
    return ModelComparison(metrics[0], metrics[1], significance, scores[0], scores[1])


class _Outputs:
    """The two models have different blocks."""

    def __init__(self, pieces: Iterator[Array]) -> None:
        self.pieces = pieces
        self.left: Array | None = None

    def take(self, n: int) -> Array:
        held: list[Array] = [] if self.left is None else [self.left]
        while sum(map(len, held)) < n:
            held.append(next(self.pieces))
        found = np.concatenate(held)
        self.left = found[n:]
        return found[:n]


class _Tally:
    """Sums over the rows for one model, whose errors are judged by the loss of ``judge``, the challenger's encoding."""

    def __init__(self, model: KernelMachine, judge: Encoding) -> None:
        self.model, self.judge = model, judge
        self.right = 0
        self.judged = 0.0
        self.errors, self.sums, self.squares = np.zeros((3, model.encoding.outputs))
        self.scores: list[Array] = []
        self.more: MetricSums | None = None

    def add(self, y: Array, F: Array, keep: Array) -> tuple[Array, Array]:
        """Return a mask of rows predicted correctly, and errors of the loss, averaged over the outputs."""
        encoding, calibration, F = self.model.encoding, self.model.calibration, F.astype(np.float64)
        F, scales = F[:, : encoding.outputs], F[:, encoding.outputs :]
        if isinstance(encoding, Classes):
            right = np.asarray(self.model.decide(F) == y.reshape(len(y)))
            wanted = np.asarray(y.reshape(len(y), 1) == encoding.values[None, :], dtype=np.float64)
            codes = np.where(wanted.any(axis=1), wanted.argmax(axis=1), -1)
            P = calibration.probabilities(F) if isinstance(calibration, ProbabilityCalibration) else None
            found = metric_sums(encoding, F, codes, None, P)
            self.scores.append(F[keep].max(axis=1))
        else:
            assert isinstance(encoding, Continuous)
            wanted = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
            right = np.zeros(len(y), dtype=bool)
            shifted = wanted - encoding.mean
            self.sums += shifted.sum(axis=0)
            self.squares += np.square(shifted).sum(axis=0)
            self.scores.append(F[keep, 0])
            units, held = (F / encoding.unit, wanted / encoding.unit), None
            if isinstance(calibration, Intervals):
                held = interval_coverage(calibration, units[0], scales, units[1])
            P = calibration.probabilities(F) if isinstance(calibration, LabelCalibration) else None
            found = metric_sums(encoding, *units, None, P, held)
        self.more = found if self.more is None else self.more + found
        if isinstance(encoding, Classes):
            F = encoding.comparable(F)
        errors = np.square(F - wanted)
        self.errors += errors.sum(axis=0)
        if isinstance(self.judge, Continuous) and not self.judge.least_squares:
            unit = self.judge.unit
            errors = self.judge.errors(F / unit, wanted / unit) * unit**self.judge.degree
            self.judged += float(errors.mean(axis=1).sum())
        self.right += int(right.sum())
        return right, errors.mean(axis=1)

    def metrics(self, n: int) -> dict[str, float]:
        assert self.more is not None
        found: dict[str, float] = {"n_test": float(n), "mse": float(self.errors.mean() / n)}
        encoding = self.model.encoding
        others = metrics_of(encoding, self.more)
        if isinstance(encoding, Classes):
            found["accuracy"] = self.right / n
        else:
            if not isinstance(encoding, Quantiles):
                r2 = r2_scores(self.errors, self.squares - self.sums**2 / n)
                found |= {"r2": float(r2.mean()), "rmse": float(np.mean(np.sqrt(self.errors / n)))}
            if isinstance(self.judge, Continuous) and not self.judge.least_squares:
                found[self.judge.judged_by] = self.judged / n
        return found | {name: np.nan if value is None else value for name, value in flat_metrics(others).items()}


class _GroupSums:
    """Sums of differences by group, in the order of the rows."""

    def __init__(self, hashes: _Outputs) -> None:
        self.hashes = hashes
        self.keys, self.sums = np.empty(0, dtype=np.uint64), np.empty((0, 2))

    def add(self, d: Array) -> None:
        keys = np.concatenate([self.keys, self.hashes.take(len(d))])
        sums = np.concatenate([self.sums, np.stack([d, np.ones(len(d))], axis=1)])
        self.keys, at = np.unique(keys, return_inverse=True)
        self.sums = np.stack([np.bincount(at, column, len(self.keys)) for column in sums.T], axis=1)

    def paired_t(self, rows: dict[str, Any]) -> dict[str, Any]:
        """The t test of the mean difference of a row, whose variance is that of the groups' sums about it."""
        total, n = self.sums.sum(axis=0)
        G, mean = len(self.keys), total / n
        if G < MIN_GROUPS_TO_PAIR:
            return rows | {"groups": G}
        apart = self.sums[:, 0] - mean * self.sums[:, 1]
        found = _t_test(G, mean, G / (G - 1) * float(np.square(apart).sum()) / n**2)
        return rows | found | {"name": "paired t by group", "groups": G}


def _t_test(n: int, mean: float, variance: float) -> dict[str, Any]:
    """The t test of a mean with the variance of the mean, from n differences."""
    if variance > 0:
        t = mean / np.sqrt(variance)
        p = 2.0 * float(stdtr(max(1, n - 1), -abs(t)))
    else:
        t, p = 0.0, 1.0 if mean == 0 else 0.0
    return {"p_value": p, "t": float(t), "mean_difference": float(mean)}


def _mcnemar(only_first: int, only_second: int) -> dict[str, Any]:
    """Return McNemar's exact test: without a difference, either model is equally likely to be the one that is right."""
    total = only_first + only_second
    p = min(1.0, 2.0 * float(bdtr(min(only_first, only_second), total, 0.5))) if total else 1.0
    return {"name": "McNemar", "p_value": p, "only_challenger_right": only_first, "only_champion_right": only_second}


def _paired_t(n: int, total: float, squares: float) -> dict[str, Any]:
    mean = total / n
    variance = max(0.0, squares - n * mean**2) / max(1, n - 1)
    return {"name": "paired t"} | _t_test(n, mean, variance / n)
