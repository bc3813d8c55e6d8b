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

        If rows have several labels, return the probability of each label: shape (n, L).

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
        """Return a set of classes for each row, which has the true class with probability ``coverage``: a mask (n, K).

        The coverage holds on average over rows like the training rows, and also among the rows of each class. The
        method is split conformal prediction for each class. If the model is unsure of a row, its set has several
        classes, or none.

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
        """Return ends of intervals that contain the target with probability ``coverage``: shape (n, 2).

        For c targets, the shape is (n, c, 2). Intervals are learned from rows that the model was not fitted to. These
        are the ``validation`` rows. Without them, the solver ``Direct`` leaves out training rows one at a time. The
        coverage holds on average over rows like the training rows, even for a bad model (split conformal prediction).
        Intervals are wider for rows with larger expected errors.

        Args:
            X: as in ``predict``.
            coverage: the probability, between 0 and 1, that an interval contains the target. If there were too few rows
                for this coverage, the ends are infinite.

        Raises:
            UsageError: there were no rows to learn intervals from, or the coverage is not between 0 and 1.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X, scales=True)
        return self.model_.intervals(outputs, coverage)
