"""Methods of models besides predictions: probabilities, sets of classes, intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamkern.calibration.intervals import Intervals, relative_scales
from streamkern.calibration.probabilities import LabelCalibration, ProbabilityCalibration
from streamkern.calibration.serialization import Calibration
from streamkern.data.targets import Classes, Continuous, Encoding, Indicators
from streamkern.errors import UsageError
from streamkern.execute.base import Executor
from streamkern.types import Array


class CalibratedModel:
    """Answers of a model."""

    calibration: Calibration | None
    encoding: Encoding
    weights: Array
    decision_function: Callable[..., Array]

    def predict_proba(self, X: Any, *, executor: Executor | None = None) -> Array:
        """Return probabilities of the classes, in the order of ``encoding.values``: shape (n, K), float64.

        With several labels a row, return the probability of each, in the order of ``encoding.names``: shape (n, L).

        Args:
            X: as in ``decision_function``.
            executor: as in ``decision_function``.

        Raises:
            UsageError: the model predicts values, or there were no rows to learn probabilities from.
            DataError: as in ``decision_function``.
        """
        return self._calibration().probabilities(self.decision_function(X, executor=executor))

    def predict_log_proba(self, X: Any, *, executor: Executor | None = None) -> Array:
        """Return logarithms of ``predict_proba``: shape (n, K), float64, finite even if a probability rounds to 0.

        Raises:
            UsageError: as ``predict_proba``.
            DataError: as ``predict_proba``.
        """
        return self._calibration().log_probabilities(self.decision_function(X, executor=executor))

    def probabilities(self, outputs: Array) -> Array:
        """Return probabilities of the classes from outputs: shape (n, K), float64.

        Raises:
            UsageError: as ``predict_proba``.
        """
        return self._calibration().probabilities(outputs)

    def prediction_set(self, X: Any, coverage: float = 0.9, *, executor: Executor | None = None) -> Array:
        """Return a set of classes for each row, which has the true class with probability ``coverage``: a mask (n, K).

        The probability holds for the rows of each class, rare classes included (split conformal prediction for each
        class). A class with too few rows for the coverage is in every set (Vovk 2012; Sadinle, Lei, Wasserman 2019).

        Args:
            X: as in ``decision_function``.
            coverage: the probability, between 0 and 1.
            executor: as in ``decision_function``.

        Raises:
            UsageError: as ``predict_proba``; or the coverage is not between 0 and 1.
            DataError: as in ``decision_function``.
        """
        return self.sets(self.decision_function(X, executor=executor), coverage)

    def sets(self, outputs: Array, coverage: float = 0.9) -> Array:
        """Return the mask of ``prediction_set`` from outputs (n, K).

        Raises:
            UsageError: as ``prediction_set``.
        """
        calibration = self._calibration()
        if isinstance(calibration, LabelCalibration):
            raise UsageError(
                "The model has several labels a row, and no sets of classes.",
                where="prediction_set",
                expected="a classifier of one label a row",
                remedy="predict_proba gives the probability of each label",
            )
        if calibration.sets is None:
            raise UsageError(
                "The model was trained without held-out rows, which prediction sets need.",
                where="prediction_set",
                expected="a classifier that was trained with validation rows",
                remedy="train with validation=0.1 (Pipeline(validation=...))",
            )
        return np.asarray(self.probabilities(outputs) >= calibration.sets.least(coverage))

    def _calibration(self) -> ProbabilityCalibration | LabelCalibration:
        if not isinstance(self.calibration, ProbabilityCalibration | LabelCalibration):
            classes = isinstance(self.encoding, Classes | Indicators)
            raise UsageError(
                "The model has no probabilities."
                if classes
                else "The model predicts values, which have no probabilities.",
                where="predict_proba",
                expected="a classifier that was trained with validation rows, or by Direct",
                remedy="train with validation=0.1 (Pipeline(validation=...)), or with solver=sk.Direct()",
            )
        return self.calibration

    def predict_interval(self, X: Any, coverage: float = 0.9, *, executor: Executor | None = None) -> Array:
        """Return lower and upper ends of intervals that contain the target with probability ``coverage``.

        Args:
            X: as in ``decision_function``.
            coverage: the probability, between 0 and 1. If there were too few rows to learn intervals of this coverage,
                the ends are infinite.
            executor: as in ``decision_function``.

        Returns:
            Shape (n, 2); or (n, c, 2) if targets have several values; float64.

        Raises:
            UsageError: the model is a classifier, or there were no rows to learn intervals from.
            DataError: as in ``decision_function``.
        """
        return self.intervals(self.decision_function(X, executor=executor, scales=True), coverage)

    def intervals(self, outputs: Array, coverage: float = 0.9) -> Array:
        """Return intervals as ``predict_interval`` does, from outputs (n, 2c) of ``decision_function(scales=True)``.

        Raises:
            UsageError: as ``predict_interval``.
        """
        intervals, c = self._intervals(), self.weights.shape[1]
        assert isinstance(self.encoding, Continuous)
        middle = outputs[:, :c].astype(np.float64)
        half = intervals.half_widths(relative_scales(outputs[:, c:]), coverage) * self.encoding.unit
        ends = np.stack([middle - half, middle + half], axis=-1)
        return ends[:, 0] if self.encoding.flat else ends

    def _intervals(self) -> Intervals:
        if not isinstance(self.calibration, Intervals):
            classes = isinstance(self.encoding, Classes | Indicators)
            other = not classes and not self.encoding.least_squares
            why = ": it is a classifier" if classes else ": it minimises another loss than squares" if other else ""
            raise UsageError(
                f"The model has no intervals{why}.",
                where="predict_interval",
                expected="a regressor that was trained with validation rows, or by Direct",
                remedy="leave loss out, or train quantiles with loss=sk.Pinball()"
                if other
                else "train with validation=0.1 (Pipeline(validation=...)), or with solver=sk.Direct()",
            )
        return self.calibration
