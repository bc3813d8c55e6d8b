"""Sketches of columns: what two sweeps over the stored rows tell of each, in memory that does not grow with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.statistics import Extremes
from streamkern.data.stream import Raw
from streamkern.types import Array, IntArray

BINS = 16


@dataclass(eq=False)
class ColumnSums:
    """Contributes, for each column: missing values, infinite ones, and of all others extremes, Σ(x − c) and Σ(x − c)².

    Args:
        pivot: c, shape (d,): sums about a value of the column keep float64's digits.
    """

    pivot: Array

    def __call__(self, block: tuple[Raw, str], state: Any) -> tuple[Any, ...]:
        """Sums over one block."""
        X = block[0].X
        n, d = X.shape
        missing = infinite = np.zeros(d, dtype=np.int64)
        nothing = Extremes(np.full(d, np.inf), np.full(d, -np.inf))
        if not n:
            return 0, missing, infinite.copy(), nothing, np.zeros(d), np.zeros(d)
        values = X.astype(np.float64)
        low, high = values.min(axis=0), values.max(axis=0)
        if X.dtype.kind == "f" and not np.isfinite(low + high).all():
            usual = np.isfinite(values)
            missing = np.isnan(values).sum(axis=0)
            infinite = n - usual.sum(axis=0) - missing
            low = np.where(usual, values, np.inf).min(axis=0)
            high = np.where(usual, values, -np.inf).max(axis=0)
            values = np.where(usual, values, self.pivot)
        values -= self.pivot
        return n, missing, infinite.copy(), Extremes(low, high), values.sum(axis=0), np.square(values).sum(axis=0)


@dataclass(eq=False)
class Histogram:
    """Contributes how many values of each column fall in each of ``BINS`` equal parts of its range, shape (d, BINS).

    Args:
        low: lowest values, shape (d,).
        high: highest values, shape (d,).
    """

    low: Array
    high: Array

    def __call__(self, block: tuple[Raw, str], state: Any) -> tuple[IntArray]:
        """Counts over one block."""
        X = block[0].X
        width = self.high - self.low
        with np.errstate(invalid="ignore"):
            places = (X - self.low) * (BINS / np.where(width > 0, width, 1.0))
        usual = np.isfinite(places)
        bins = np.clip(np.where(usual, places, 0), 0, BINS - 1).astype(np.int64)
        bins += np.arange(X.shape[1]) * BINS
        return (np.bincount(bins[usual], minlength=X.shape[1] * BINS).reshape(-1, BINS),)


@dataclass(frozen=True, eq=False)
class Columns:
    """Sketches of d columns.

    Attributes:
        n: rows.
        missing: NaN, shape (d,).
        infinite: shape (d,).
        low: lowest finite value, shape (d,); infinite where there is none, as are the others then.
        high: highest finite value.
        mean: of the finite values.
        std: over their number.
        histogram: counts, shape (d, BINS).
    """

    n: int
    missing: IntArray
    infinite: IntArray
    low: Array
    high: Array
    mean: Array
    std: Array
    histogram: IntArray


def finish(sums: tuple[Any, ...], pivot: Array, histogram: IntArray) -> Columns:
    """Sketches from the sums of ``ColumnSums`` and ``Histogram``."""
    n, missing, infinite, ranges, first, second = sums
    count = np.maximum(n - missing - infinite, 1)
    shift = first / count
    std = np.sqrt(np.maximum(second / count - shift**2, 0.0))
    empty = n - missing - infinite == 0
    mean = np.where(empty, np.nan, pivot + shift)
    return Columns(n, missing, infinite, ranges.low, ranges.high, mean, np.where(empty, np.nan, std), histogram)
