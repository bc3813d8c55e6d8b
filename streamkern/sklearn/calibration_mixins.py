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
        """Return the probabilities of the classes, in the order of ``classes_``: shape (n, K), float64; rows sum to 1.

        With several labels a row, return the probability of each label: shape (n, L); rows need not sum to 1.

        Args:
            X: as in ``predict``.

        Raises:
            AttributeError: there were no rows to learn them from; the message has the remedy.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X)
        return self.model_.probabilities(outputs)

    def predict_log_proba(self, X: Any) -> Array:
        """Return logarithms of ``predict_proba``, finite where a probability rounds to 0: shape (n, K), float64.

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
        """Return for each row the set of classes that contains the true one with this probability: a mask (n, K).

        The probability holds for the rows of each class, also of rare ones (split conformal prediction, class by
        class). Where the model is unsure, a set has several classes, or none.

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
        """Return intervals that contain the target with this probability: lower, upper end, (n, 2) or (n, c, 2).

        Intervals are learned from rows that the model was not fitted to: those of ``validation``; or, with the solver
        ``Direct``, training rows that are left out one at a time. The probability holds on average over rows like
        these, however good or bad the model is (split conformal prediction). Where larger errors are predicted,
        intervals are wider: see ``streamkern.calibration.intervals``.

        Args:
            X: as in ``predict``.
            coverage: the probability, between 0 and 1. If there were too few rows for it, the ends are infinite.

        Raises:
            UsageError: there were no rows to learn them from, or the coverage is not between 0 and 1.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X, scales=True)
        return self.model_.intervals(outputs, coverage)
