"""Errors of models on the same rows, which say whether one model is better than another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from streamkern.calibration.probabilities import calibrated_losses
from streamkern.defaults import MAX_ERROR_RATIO
from streamkern.engine import Engine
from streamkern.engine.packed_triangle import cuts
from streamkern.storage.serialize import serializable
from streamkern.types import Array, IntArray


@serializable
@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of a model on rows that it was not fitted to, and row weights, shape (n,).

    They are squares, means over outputs, or log losses of classes.
    """

    errors: Array
    weights: Array

    @property
    def mean(self) -> float:
        """The mean error."""
        return float(np.average(self.errors, weights=self.weights))

    def doubt(self, other: Errors) -> float:
        """Return the standard error of the difference of two means on the same rows: much less than that of either."""
        apart = self.errors - other.errors
        apart = self.weights * (apart - np.average(apart, weights=self.weights))
        return float(np.sqrt(np.square(apart).sum()) / self.weights.sum())

    def surely_less(self, other: Errors, doubts: float = 1.0) -> bool:
        """Return True if the mean is below another's by more than that many standard errors of the difference."""
        return other.mean - self.mean > doubts * self.doubt(other)

    def beats(self, other: Errors, doubts: float = 1.0) -> bool:
        """Return True if the mean is below ``MAX_ERROR_RATIO`` of another's, and surely less."""
        return self.mean < MAX_ERROR_RATIO * other.mean and self.surely_less(other, doubts)


class Scored(Protocol):
    """A model with its mean squared error on the rows that others are compared on."""

    @property
    def mse(self) -> float:
        """The error."""


M = TypeVar("M", bound=Scored)


def first_as_good(models: Sequence[M]) -> M:
    """Return the first of models, in the order of preference, whose error is the least, or so near that none beats it.

    Standard errors do not count: on noisy rows much worse models are within them.
    """
    least = min(model.mse for model in models)
    return next(model for model in models if least >= MAX_ERROR_RATIO * model.mse)


class ModelErrors(NamedTuple):
    """Errors of k models on the same n rows, none of which they were fitted to.

    Attributes:
        squares: means over outputs, shape (n, k).
        weights: of the rows, shape (n,).
        score: accuracy, or the mean R² of the outputs, shape (k,).
        outputs: of classes, shape (n, k, c), None of values.
        codes: of classes, shape (n,), None of values.
    """

    squares: Array
    weights: Array
    score: Array
    outputs: Array | None = None
    codes: IntArray | None = None

    @classmethod
    def of(
        cls, outputs: Callable[[slice], Array], targets: Array, w: Array | None, models: int, classify: bool
    ) -> ModelErrors:
        """Compare outputs with targets (n, c), float64; ``outputs`` returns those of some rows, (b, k, c)."""
        n, c = targets.shape
        mass = np.ones(n) if w is None or not np.any(w) else np.asarray(w, dtype=np.float64)
        squares, total, kept = np.zeros((n, models)), np.zeros((models, c)), []
        for rows in cuts(n, max(256, (1 << 20) // (models * c))):  # about a million outputs at a time
            F = outputs(rows)
            if classify:
                kept.append(F)
            found = np.square(F - targets[rows][:, None])
            squares[rows] = found.mean(axis=2)
            total += np.tensordot(mass[rows], found, 1)
        if classify:
            found, codes = np.concatenate(kept), targets.argmax(axis=1)
            right = mass @ (found.argmax(axis=2) == codes[:, None])
            return cls(squares, mass, right / mass.sum(), found, codes)
        apart = targets - mass @ targets / mass.sum()
        spread = np.maximum(mass @ np.square(apart), np.finfo(np.float64).tiny)
        return cls(squares, mass, np.mean(1 - total / spread, axis=1))

    @property
    def mse(self) -> Array:
        """Weighted mean squared errors, shape (k,)."""
        return np.asarray(self.weights @ self.squares / self.weights.sum())

    def errors(self, model: int, engine: Engine) -> Errors:
        """Return what one of the models is compared by: log losses of calibrated classes, or the squares of values.

        Squares of classes are those of outputs, which may be far from 0 and 1 and still tell the classes apart.
        """
        if self.outputs is None or self.codes is None:
            return Errors(self.squares[:, model], self.weights)
        return Errors(calibrated_losses(self.outputs[:, model], self.codes, self.weights, engine), self.weights)
