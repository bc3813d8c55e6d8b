"""Choice of the columns of numbers that get companions: their normal quantiles, and means of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from streamkern.data.preprocess import Units
from streamkern.data.reader import reading_bytes
from streamkern.errors import StreamkernError
from streamkern.memory import check
from streamkern.storage.base import Source
from streamkern.types import Array

FEW_VALUES = 10
"""Different values up to which a column says all there is: neither quantiles nor means by value are made of it."""

MOST_NUMBERS = 100
"""Columns of numbers up to which each is joined by its normal quantiles; of more, those with heavy tails."""

HEAVY_TAILS = 10.0
"""Excess kurtosis of heavy tails; an exponential distribution has 6."""

MOST_VALUES = 255
"""Different values of a column up to which it is joined by the mean target of each."""

ROWS_A_VALUE = 20
"""Rows of the sample for each of them, at least."""

TELLS_MORE = 0.003
"""Share of the target's variance that means by value must explain beyond means of neighbouring values."""

_REACHES = (1, 2, 4, 8)  # neighbours on each side

SAMPLE_ROWS, SAMPLE_BYTES = 20_000, 32 << 20
"""Rows that medians, tails and quantiles are taken of, at most, and their bytes; before that, of the first chunk."""


class Joined(NamedTuple):
    """Columns of numbers that are joined by something.

    Attributes:
        quantiles: by their normal quantiles.
        means: by the mean target of each of their values.
    """

    quantiles: list[int]
    means: list[int]


def joined_columns(X: Array, columns: Sequence[int]) -> Joined:
    """The columns of numbers that are joined, by a sample.

    By quantiles, of up to ``MOST_NUMBERS`` columns each with more than a few values; of more, those with heavy tails. A
    kernel then sees how far two values are apart, and how far their ranks. Neither alone will do: beyond the last
    quantile a curve is level, and of a column with heavy tails nearly all values lie in one place.

    By means of the target, those of up to ``MOST_NUMBERS`` columns whose values come again and again may be: numbers
    that are codes, or amounts that a law fixes. See ``explains_more``.
    """
    found = Joined([], [])
    for j in columns:
        x = X[np.isfinite(X[:, j]), j]
        first = len(np.unique(x[:1000]))
        values = len(np.unique(x)) if first <= MOST_VALUES else first
        if values > FEW_VALUES and (len(columns) <= MOST_NUMBERS or _has_heavy_tails(x)):
            found.quantiles.append(j)
        if FEW_VALUES < values <= min(MOST_VALUES, len(x) / ROWS_A_VALUE) and len(columns) <= MOST_NUMBERS:
            found.means.append(j)
    return found


def units_differ(X: Array) -> bool:
    """Return True if the units of features differ among these rows, of finite numbers: others are refused later."""
    with np.errstate(over="ignore", invalid="ignore"):  # the run refuses rows that overflow, and names them
        variance = X.var(axis=0)
    return bool(np.isfinite(variance).all()) and Units().differ(variance)


_AT_FIRST: WeakKeyDictionary[Source, dict[tuple[int, ...], Joined]] = WeakKeyDictionary()


def joined_at_first(source: Source, columns: Sequence[int], alike: bool = True) -> Joined:
    """``joined_columns`` by the first chunk, which is read for it once.

    Args:
        source: stored rows.
        columns: of numbers.
        alike: whether also where the units of the columns are alike.
    """
    known, key = _AT_FIRST.setdefault(source, {}), tuple(columns)
    if key not in known and len(source.bounds) > 1 and key:
        known[key] = Joined([], [])
        try:
            check(reading_bytes(source, 1), source.where(0))
            X = source.read(0).X[:SAMPLE_ROWS].astype(np.float64)
            if alike or units_differ(X):
                known[key] = joined_columns(X, columns)
        except StreamkernError:  # the run reports it, with the damaged place or the memory needed
            pass
    return known.get(key, Joined([], []))


def explains_more(mass: Array, sums: Array, smooth: float, variance: float) -> bool:
    """Return True if means of the target by value are not predicted by those of neighbouring values.

    Means by value and means of neighbouring values (the value among them) are compared on rows of a fold by those of
    the other folds. The first have to explain ``TELLS_MORE`` of the variance more, and more than two standard errors.

    Args:
        mass: weight of the rows of each fold with each value, values ascending: shape (folds, values).
        sums: weighted targets less their mean, shape (folds, values, outputs).
        smooth: weight of the mean of all rows in every mean.
        variance: weighted squares of the targets less their mean, of all outputs.
    """
    if not variance > 0:
        return False
    others, targets = mass.sum(axis=0) - mass, sums.sum(axis=0) - sums

    def missed(means: Array) -> float:
        return float(np.sum(mass[:, :, None] * np.square(means) - 2 * sums * means))

    own = targets / (others + smooth)[:, :, None]
    near = [_window(targets, r) / (_window(others, r) + smooth)[:, :, None] for r in _REACHES]
    best = min(near, key=missed)
    apart = float(np.sum(mass[:, :, None] * np.square(own - best)))
    gained = (missed(best) - missed(own)) / variance
    error = 2 * float(np.sqrt(apart / variance / max(float(mass.sum()), 1.0)))
    return gained > max(TELLS_MORE, 2 * error)


def _window(A: Array, reach: int) -> Array:
    """Sums along axis 1 over as many entries on each side."""
    ends = [(0, 0), (reach + 1, reach), *[(0, 0)] * (A.ndim - 2)]
    upto = np.cumsum(np.pad(A, ends), axis=1)
    return np.asarray(upto[:, 2 * reach + 1 :] - upto[:, : -2 * reach - 1])


def _has_heavy_tails(x: Array) -> bool:
    """Return True if a column's tails are so heavy that its standard deviation says little."""
    spread = x.std()
    if not spread > 0:
        return False
    return bool(np.mean(np.square(np.square((x - x.mean()) / spread))) - 3 > HEAVY_TAILS)
