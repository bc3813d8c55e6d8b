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
        """Probabilities of the classes, in the order of ``encoding.values``, shape (n, K), float64.

        Of several labels a row that of each, in the order of ``encoding.names``: shape (n, L).

        Args:
            X: as in ``decision_function``.
            executor: where blocks run; threads of this process by default.

        Raises:
            UsageError: the model has no probabilities: it predicts values, or there were no rows to learn them from.
            DataError: as in ``decision_function``.
        """
        return self._calibration().probabilities(self.decision_function(X, executor=executor))

    def predict_log_proba(self, X: Any, *, executor: Executor | None = None) -> Array:
        """Logarithms of ``predict_proba``, finite where a probability rounds to 0: shape (n, K), float64.

        Raises:
            UsageError: as ``predict_proba``.
            DataError: as ``predict_proba``.
        """
        return self._calibration().log_probabilities(self.decision_function(X, executor=executor))

    def probabilities(self, outputs: Array) -> Array:
        """Probabilities of the classes, shape (n, K), float64, from outputs of that shape.

        Raises:
            UsageError: as ``predict_proba``.
        """
        return self._calibration().probabilities(outputs)

    def prediction_set(self, X: Any, coverage: float = 0.9, *, executor: Executor | None = None) -> Array:
        """Mask of the classes in a set that holds the true one with the given probability: shape (n, K).

        Split conformal prediction class by class: of the rows of each class, that share has it in their set, rare
        classes too. A class of too few rows for the coverage is in every set (Vovk 2012; Sadinle, Lei, Wasserman 2019).

        Args:
            X: as in ``decision_function``.
            coverage: the probability, between 0 and 1.
            executor: where blocks run; threads of this process by default.

        Raises:
            UsageError: as ``predict_proba``; or the coverage is not between 0 and 1.
            DataError: as in ``decision_function``.
        """
        return self.sets(self.decision_function(X, executor=executor), coverage)

    def sets(self, outputs: Array, coverage: float = 0.9) -> Array:
        """As ``prediction_set``, from outputs (n, K).

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
        """Lower and upper ends that hold the target with the given probability, see ``calibration.intervals``.

        Args:
            X: as in ``decision_function``.
            coverage: the probability, between 0 and 1; where there were too few rows for it, ends are infinite.
            executor: where blocks run; threads of this process by default.

        Returns:
            Shape (n, 2), or (n, c, 2) where targets have several values; float64.

        Raises:
            UsageError: the model has no intervals: it is a classifier, or there were no rows to learn them from.
            DataError: as in ``decision_function``.
        """
        return self.intervals(self.decision_function(X, executor=executor, scales=True), coverage)

    def intervals(self, outputs: Array, coverage: float = 0.9) -> Array:
        """As ``predict_interval``, from outputs followed by those for the scales: shape (n, 2c).

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
            classes = ": it is a classifier" if isinstance(self.encoding, Classes | Indicators) else ""
            raise UsageError(
                f"The model has no intervals{classes}.",
                where="predict_interval",
                expected="a regressor that was trained with validation rows, or by Direct",
                remedy="train with validation=0.1 (Pipeline(validation=...)), or with solver=sk.Direct()",
            )
        return self.calibration
