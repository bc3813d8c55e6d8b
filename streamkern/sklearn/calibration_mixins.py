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
        """Probabilities of the classes, in the order of ``classes_``: shape (n, K), float64; rows sum to 1.

        Of several labels a row, the probability of each: shape (n, L), whose rows need not sum to 1.

        Args:
            X: as in ``predict``.

        Raises:
            AttributeError: there were no rows to learn them from; the message has the remedy.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X)
        return self.model_.probabilities(outputs)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of ``predict_proba``, finite where a probability rounds to 0: shape (n, K), float64.

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
        """Mask of the classes in a set that holds the true one with the given probability: shape (n, K).

        Of the rows of each class, rare ones too, that share has it in their set (split conformal prediction class by
        class); sets of several classes, or of none, are where the model is unsure.

        Args:
            X: as in ``predict``.
            coverage: the probability, between 0 and 1.

        Raises:
            UsageError: there were no rows to learn it from, or the coverage is not between 0 and 1.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X)
        return self.model_.sets(outputs, coverage)


class RegressorCalibrationMixin:
    """Answers of a regressor under scikit-learn's conventions."""

    model_: CalibratedModel
    _outputs: Callable[..., Array]

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Lower and upper ends that hold the target with the given probability: shape (n, 2), or (n, c, 2).

        From rows that the model was not fitted to: those of ``validation``; or, with the solver ``Direct``, training
        rows that are left out one at a time. On average over rows like these, whatever the model is worth (split
        conformal prediction); their width follows a predicted scale, see ``streamkern.calibration.intervals``.

        Args:
            X: as in ``predict``.
            coverage: the probability, between 0 and 1; where there were too few rows for it, ends are infinite.

        Raises:
            UsageError: there were no rows to learn them from, or the coverage is not between 0 and 1.
            DataError: as ``predict``.
        """
        outputs = self._outputs(X, scales=True)
        return self.model_.intervals(outputs, coverage)
