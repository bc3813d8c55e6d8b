"""Squared errors of models on the same rows, which say whether one model is better than another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamkern.storage.serialize import serializable
from streamkern.types import Array

MAX_ERROR_RATIO = 0.99
"""A model beats another where its squared error is less than this part of the other's, by more than the standard error
of the difference.
"""


@serializable
@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of a model on rows that it was not fitted to: squares, means over outputs, and row weights, shape (n,)."""

    squares: Array
    weights: Array

    @property
    def mean(self) -> float:
        """The mean squared error."""
        return float(np.average(self.squares, weights=self.weights))

    def on_rows_of(self, other: Errors) -> Errors:
        """Return these errors with another model's weights, which may exclude rows by a weight of 0."""
        return Errors(self.squares, other.weights)

    def doubt(self, other: Errors) -> float:
        """Return the standard error of the difference of two means on the same rows: much less than that of either."""
        apart = self.squares - other.squares
        apart = self.weights * (apart - np.average(apart, weights=self.weights))
        return float(np.sqrt(np.square(apart).sum()) / self.weights.sum())

    def beats(self, other: Errors, doubts: float = 1.0) -> bool:
        """Return True if the mean is below ``MAX_ERROR_RATIO`` of another's by that many standard errors."""
        return self.mean < MAX_ERROR_RATIO * other.mean and other.mean - self.mean > doubts * self.doubt(other)
