"""The squared loss of a block: residuals on the host, or as an argument of a device's loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamkern.types import Array


def residual(F: Array, y: Array) -> None:
    """F − y in place: y holds class codes (b,) for targets in {0, 1}, or values (b, c)."""
    if y.ndim == 1:
        F[np.arange(len(y)), y] -= 1
    else:
        F -= y


def weigh(F: Array, w: Array | None) -> float:
    """Σ w ‖r‖² over residuals r = F, shape (b, c), each then scaled by its w in place; w is 1 if None."""
    squares = np.square(F, dtype=np.float64)
    if w is None:
        return float(np.sum(squares))
    F *= w[:, None].astype(F.dtype)
    return float(w @ squares.sum(axis=1))


class SquaredLoss:
    """The response of the squared loss: residuals F − y, times the rows' weights w (b,).

    y has codes (b,) int64, or values (b, c). ``loss`` is Σ w ‖F − y‖² of the tiles so far; of a device, a number that
    ``float`` waits for.
    """

    def __init__(self, y: Array, w: Array | None) -> None:
        self.y, self.w = y, w
        self.loss: Any = 0.0

    def __call__(self, F: Array, rows: slice) -> Array:
        residual(F, self.y[rows])
        self.loss += weigh(F, None if self.w is None else self.w[rows])
        return F
