"""Sketches of columns: statistics from two sweeps over the stored rows, in memory independent of their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.row_order import RawRows
from streamkern.data.statistics import Extremes
from streamkern.inspection.shuffle_quality import LabelCounts, is_given
from streamkern.types import Array, IntArray, Target

HISTOGRAM_BINS = 16
"""Most bins of a histogram."""


@dataclass(eq=False)
class ColumnSums:
    """Sum, for each column: missing and infinite values; and for finite values extremes, Σ(x − c) and Σ(x − c)².

    Between extremes and sums there is a count that is 0 if all values are whole numbers. The pivot c (d,) is a value of
    each column, so that sums of differences keep float64's digits. With a target there follow the number of missing
    labels and the counts of the others.
    """

    pivot: Array
    target: Target | None

    @np.errstate(over="ignore", invalid="ignore")
    def __call__(self, block: tuple[RawRows, str], state: Any) -> tuple[Any, ...]:
        values, y = block[0].X.astype(np.float64), block[0].y
        usual, missing = np.isfinite(values), np.isnan(values).sum(axis=0)
        infinite = len(values) - usual.sum(axis=0) - missing
        low = np.where(usual, values, np.inf).min(axis=0, initial=np.inf)
        high = np.where(usual, values, -np.inf).max(axis=0, initial=-np.inf)
        fractions = ((values != np.rint(values)) & usual).any(axis=0).astype(np.int64)
        values = np.where(usual, values - self.pivot, 0.0)
        first, second = values.sum(axis=0), np.square(values).sum(axis=0)
        sums = len(values), missing, infinite, Extremes(low, high), fractions, first, second
        if self.target is None or y is None:
            return sums
        given = is_given(y)
        labels = LabelCounts.of(y[given].astype(self.target.dtype, copy=False))
        return *sums, len(given) - int(given.sum()), labels


@dataclass(eq=False)
class Histogram:
    """Count each column's values in bins of ``width`` (d,), the first beginning at ``low`` (d,): shape (d, BINS)."""

    low: Array
    width: Array

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")
    def of(cls, sums: tuple[Any, ...]) -> Histogram:
        """Return ``HISTOGRAM_BINS`` bins over the range of columns with these sums of ``ColumnSums``.

        For whole numbers each bin spans the same number of possible values, so that none is low only because of its
        position; they may use fewer bins.
        """
        ranges, fractions = sums[3], sums[4]
        empty = ranges.low > ranges.high
        low = np.where(empty, 0.0, ranges.low)
        span = np.where(empty, 0.0, ranges.high) - low
        equal = np.where(span > 0, span, 1.0) / HISTOGRAM_BINS
        return cls(low, np.where(fractions == 0, np.ceil((span + 1) / HISTOGRAM_BINS), equal))

    @np.errstate(over="ignore", invalid="ignore")
    def __call__(self, block: tuple[RawRows, str], state: Any) -> tuple[IntArray]:
        X = block[0].X
        places = (X - self.low) / self.width
        usual = np.isfinite(places)
        bins = np.clip(np.where(usual, places, 0), 0, HISTOGRAM_BINS - 1).astype(np.int64)
        bins += np.arange(X.shape[1]) * HISTOGRAM_BINS
        return (np.bincount(bins[usual], minlength=X.shape[1] * HISTOGRAM_BINS).reshape(-1, HISTOGRAM_BINS),)


@dataclass(frozen=True, eq=False)
class ColumnSketches:
    """Sketches of d columns, shape (d,); the counts of the histogram are (d, BINS), from the lowest value on.

    ``missing`` are NaN. Other statistics are of finite values, infinite without any; ``std`` divides by their number.
    """

    n: int
    missing: IntArray
    infinite: IntArray
    low: Array
    high: Array
    mean: Array
    std: Array
    bin_width: Array
    histogram: IntArray

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")
    def of(cls, sums: tuple[Any, ...], pivot: Array, bin_width: Array, counts: IntArray) -> ColumnSketches:
        """Return sketches from the sums of ``ColumnSums`` and the counts of a ``Histogram``."""
        n, missing, infinite, ranges, _, first, second = sums[:7]
        count = n - missing - infinite
        shift = first / np.maximum(count, 1)
        std = np.sqrt(np.maximum(second / np.maximum(count, 1) - shift**2, 0.0))
        mean, std = (np.where(count == 0, np.nan, each) for each in (pivot + shift, std))
        return cls(n, missing, infinite, ranges.low, ranges.high, mean, std, bin_width, counts)

    def counts(self, j: int) -> IntArray:
        """Return counts of the bins within column j's range; empty without finite values."""
        span = self.high[j] - self.low[j]
        return self.histogram[j, : int(np.fmin(span // self.bin_width[j], HISTOGRAM_BINS - 1)) + 1 if span >= 0 else 0]
