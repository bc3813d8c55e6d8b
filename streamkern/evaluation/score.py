"""Error of a model over the rows of a scan: one sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from streamkern.calibration.intervals import Intervals, interval_coverage
from streamkern.calibration.serialization import Calibration
from streamkern.data.encoders import warn_unseen
from streamkern.data.row_order import Assembly, Block, Scan
from streamkern.data.row_selection import SelectionRule
from streamkern.data.targets import Classes, Continuous, Encoding, Indicators, Quantiles
from streamkern.defaults import MAX_CONFUSION_CLASSES, MAX_SAMPLED_ROWS
from streamkern.engine.residuals import residual
from streamkern.evaluation.curves import curves_of
from streamkern.evaluation.metrics import metric_sums, metrics_of, r2_scores
from streamkern.execute.base import Executor, Parts, Stack
from streamkern.kernels import Basis
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array, IntArray

EVALUATION_BLOCK_ROWS = 1024
"""Rows of a block in which a model is evaluated."""


@dataclass(eq=False)
class SquaredError:
    """Contributes unseen categories, rows, Σ w, Σ w‖f(x) − y‖², Σ w of rows whose class is predicted, Σ wy, Σ wy².

    Of rates and quantiles, Σ w of the errors that judge them stands in place of the classes'.

    Then details and, with ``all_metrics``, the sums of all other metrics. Without sample weights every w is 1. Details
    are, for classes, how many rows of class i are predicted as j, (K, K); for values, (y, f(x)) of rows that ``sample``
    keeps.
    """

    basis: Basis
    encoding: Encoding | None = None
    sample: SelectionRule | None = None
    all_metrics: bool = False
    calibration: Calibration | None = None

    def __call__(self, block: Block, state: Array) -> Parts:
        """Sum over the block under weights ``state``, (M, c); with intervals (M, 2c), with those of scales."""
        n, y, w, encoding = len(block.X), block.y, block.w, self.encoding
        assert y is not None
        F, held, P = self.basis.predict(block.X, state), None, None
        if isinstance(self.calibration, Intervals):
            F, found = np.ascontiguousarray(F[:, : F.shape[1] // 2]), F[:, F.shape[1] // 2 :]
            held = interval_coverage(self.calibration, F, found, y)
        elif self.calibration is not None:
            P = self.calibration.probabilities(F)
        if isinstance(encoding, Continuous):
            F = encoding.comparable(F)
        predicted = encoding.decided(F) if isinstance(encoding, Classes) else None
        details = self._details(block, y, F, predicted)
        more = metric_sums(encoding, F, y, w, P, held, predicted) if self.all_metrics and encoding is not None else 0
        correct: Any
        if isinstance(encoding, Classes):
            right = predicted == y
            correct = int(np.count_nonzero(right)) if w is None else float(w @ right)
            F = encoding.comparable(F)
            total = squares = np.zeros(F.shape[1])
        else:
            other = None if encoding is None or encoding.least_squares else encoding.errors(F, y)
            correct = 0.0 if other is None else _total(other, w)
            total, squares = _total(y, w), _total(np.square(y), w)
        residual(F, y)
        error, mass = _total(np.square(F, dtype=np.float64), w), n if w is None else float(w.sum())
        return block.unseen, n, mass, error, correct, total, squares, details, more

    def _details(self, block: Block, y: Array, F: Array, predicted: IntArray | None) -> Any:
        if self.sample is None:
            return 0
        if predicted is not None:
            K = F.shape[1]
            return np.bincount(y * K + predicted, minlength=K * K).reshape(K, K) if K <= MAX_CONFUSION_CLASSES else 0
        keep = self.sample.keep(block.ids)
        return Stack(((y[keep], np.asarray(F[keep], dtype=np.float64)),))


def _total(values: Array, w: Array | None) -> Array:
    return cast(Array, values.sum(axis=0) if w is None else w @ values)


class ScoreResult(NamedTuple):
    """The metrics of a model on a dataset, from ``score``, and curves, from ``curves_of``.

    ``confusion`` (K, K) says how many rows of class i were taken for class j; None for values, or more than
    ``MAX_CONFUSION_CLASSES``. ``actual`` (k, c) and ``predicted`` are of a fixed sample of rows, in stored units; None
    for classes.
    """

    metrics: dict[str, Any]
    confusion: Array | None = None
    actual: Array | None = None
    predicted: Array | None = None
    curves: Mapping[str, Array] = MappingProxyType({})

    @property
    def details(self) -> dict[str, Array]:
        """All arrays that are there, by name."""
        named = {"confusion": self.confusion, "actual": self.actual, "predicted": self.predicted}
        return {name: array for name, array in named.items() if array is not None} | dict(self.curves)


def score(
    executor: Executor,
    assembly: Assembly,
    basis: Basis,
    weights: Array,
    *,
    all_metrics: bool = False,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Return metrics of f(x) = Σ_j w_j φ_j(x) on a dataset, for weights of shape (M, c).

    ``n``, ``mse`` (mean over rows of the mean squared error over outputs) and, for classes, ``accuracy``, else ``r2``
    (mean over outputs); means are weighted where rows have sample weights. With ``all_metrics`` those of ``metrics_of``
    and, for values, ``rmse``; by output, where there are several. The assembly has the centre of the basis.
    """
    error = SquaredError(basis, assembly.encoding, None, all_metrics, calibration)
    unseen, *sums = _sums(executor, assembly, error, weights)
    if all_metrics:
        warn_unseen(unseen, sums[0])
    return _metrics(assembly.encoding, sums)


def score_in_detail(
    executor: Executor,
    assembly: Assembly,
    basis: Basis,
    weights: Array,
    calibration: Calibration | None = None,
) -> ScoreResult:
    """As ``score``, with the details that a report shows, in the same sweep."""
    encoding, data = assembly.encoding, assembly.dataset
    sample = data.sample(min(MAX_SAMPLED_ROWS, data.base_rows)).rules[-1]
    _, *sums = _sums(executor, assembly, SquaredError(basis, encoding, sample, True, calibration), weights)
    metrics, details = _metrics(encoding, sums), sums[-2]
    curves = curves_of(encoding, sums[-1], calibration) if encoding is not None and sums[-1] else {}
    if isinstance(encoding, Classes):
        return ScoreResult(metrics, details if isinstance(details, np.ndarray) else None, curves=curves)
    assert isinstance(encoding, Continuous)
    actual, predicted = (
        np.concatenate(pieces) * encoding.unit + encoding.mean for pieces in zip(*details, strict=True)
    )
    return ScoreResult(metrics, None, actual, predicted, curves)


def _sums(executor: Executor, assembly: Assembly, error: SquaredError, weights: Array) -> Parts:
    if isinstance(error.calibration, Intervals):
        weights = error.calibration.widened(weights)
    *sums, more = sweep(executor, ScanWork(Scan(assembly, EVALUATION_BLOCK_ROWS), error), weights)
    return (*sums, more.compact() if more else more)


def _metrics(encoding: Encoding | None, sums: Sequence[Any]) -> dict[str, Any]:
    n, mass, error, correct, total, squares, _, more = sums
    mass = mass or np.nan  # every weight is 0: there is no mean
    unit = encoding.unit if isinstance(encoding, Continuous) else 1.0
    errors = error * unit**2 / mass
    metrics: dict[str, Any] = {"n": int(n), "mse": float(np.mean(errors))}
    found = metrics_of(encoding, more) if more and encoding is not None else {}
    if isinstance(encoding, Classes):
        metrics["accuracy"] = correct / mass
    if isinstance(encoding, Classes | Indicators):
        return metrics | found
    spread = squares - total**2 / mass
    if encoding is not None and not encoding.least_squares:
        judged = correct * unit**encoding.degree / mass
        metrics[encoding.judged_by] = float(np.mean(judged))
        if "by_output" in found:
            found["by_output"] |= {encoding.judged_by: judged.tolist()}
    if isinstance(encoding, Quantiles):  # which are no means
        return metrics | found
    r2 = r2_scores(error, spread)
    metrics["r2"] = float(np.mean(r2))
    if not found:
        return metrics
    # The mean over the outputs of their RMSE, as scikit-learn's root_mean_squared_error has it.
    metrics["rmse"] = float(np.mean(np.sqrt(errors)))
    if "by_output" in found:
        found["by_output"] |= {"rmse": np.sqrt(errors).tolist(), "r2": r2.tolist()}
    return metrics | found
