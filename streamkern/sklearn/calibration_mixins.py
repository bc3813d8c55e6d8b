"""Probabilities, prediction sets and intervals of estimators, under scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamkern.calibration.probabilities import LabelCalibration, ProbabilityCalibration
from streamkern.models.calibrated_model import CalibratedModel
from streamkern.types import Array


def has_probabilities(estimator: Any) -> bool:
    """Return True, or raise AttributeError, so that ``hasattr`` is false if a classifier cannot have them."""
    if hasattr(estimator, "model_") and estimator.model_.calibration is None:
        raise AttributeError(
            "This classifier has no probabilities: fit it with validation=0.1, or with "
            "solver=sk.Direct(), which computes leave-one-out outputs"
        )
    return True


class ClassifierCalibrationMixin:
    """Answers of a classifier under scikit-learn's conventions."""

    model_: CalibratedModel
    _outputs: Callable[..., Array]

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities of the classes, in the order of ``classes_``: shape (n, K), float64, rows with sum 1.

        With several labels a row, return the probability of each label: shape (n, L), rows with any sum.

        Args:
            X: as in ``predict``.

        Raises:
            AttributeError: there were no rows to learn probabilities from; the message has the remedy.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X)
        return self.model_.probabilities(outputs)

    def predict_log_proba(self, X: Any) -> Array:
        """Return logarithms of ``predict_proba``: shape (n, K), float64, finite even if a probability rounds to 0.

        Args:
            X: as in ``predict``.

        Raises:
            AttributeError: as ``predict_proba``.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X)
        assert isinstance(self.model_.calibration, ProbabilityCalibration | LabelCalibration)
        return self.model_.calibration.log_probabilities(outputs)

    def prediction_set(self, X: Any, coverage: float = 0.9) -> Array:
        """Return for each row a set of classes that contains the true class with this probability: a mask (n, K).

        The probability holds for the rows of each class, rare classes included (split conformal prediction for each
        class). If the model is unsure of a row, its set has several classes, or none.

        Args:
            X: as in ``predict``.
            coverage: the probability, between 0 and 1.

        Raises:
            UsageError: there were no rows to learn the sets from, or the coverage is not between 0 and 1.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X)
        return self.model_.sets(outputs, coverage)


class RegressorCalibrationMixin:
    """Answers of a regressor under scikit-learn's conventions."""

    model_: CalibratedModel
    _outputs: Callable[..., Array]

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Return lower and upper ends of intervals that contain the target with this probability: (n, 2) or (n, c, 2).

        Intervals are learned from rows that the model was not fitted to. These are the ``validation`` rows; with the
        solver ``Direct``, they are training rows that are left out one at a time. The probability is an average over
        rows like these, and holds for any quality of the model (split conformal prediction). Intervals are wider for
        rows with larger predicted errors; see ``streamkern.calibration.intervals``.

        Args:
            X: as in ``predict``.
            coverage: the probability, between 0 and 1. If there were too few rows for it, the ends are infinite.

        Raises:
            UsageError: there were no rows to learn intervals from, or the coverage is not between 0 and 1.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X, scales=True)
        return self.model_.intervals(outputs, coverage)
