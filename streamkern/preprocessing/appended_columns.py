"""Choice of the columns of numbers to which normal quantiles are appended."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from streamkern.defaults import (
    APPENDED_SAMPLE_ROWS,
    MAX_NUMBER_COLUMNS,
    MIN_DISTINCT_VALUES,
    MIN_HEAVY_TAIL_KURTOSIS,
)
from streamkern.preprocessing.steps import Units, first_chunk
from streamkern.sources.base import Source
from streamkern.types import Array


def appended_columns(X: Array, columns: Sequence[int]) -> list[int]:
    """Return the columns of numbers to which normal quantiles are appended, chosen on a sample.

    They are all columns with more than a few values, if there are up to ``MAX_NUMBER_COLUMNS`` columns; else those with
    heavy tails. The kernel then sees differences of values and of ranks. It needs both: beyond the last quantile the
    curve is constant, and in a column with heavy tails nearly all values are close together.
    """
    found = []
    for j in columns:
        x = X[np.isfinite(X[:, j]), j]
        several = any(len(np.unique(some)) > MIN_DISTINCT_VALUES for some in (x[:1000], x))
        if several and (len(columns) <= MAX_NUMBER_COLUMNS or _has_heavy_tails(x)):
            found.append(j)
    return found


def units_differ(X: Array) -> bool:
    """Return True if the units of features differ among these rows; values that are not finite are refused later."""
    with np.errstate(over="ignore", invalid="ignore"):  # the run refuses rows that overflow, and names them
        variance = X.var(axis=0)
    return bool(np.isfinite(variance).all()) and Units().differ(variance)


_FIRST_CHUNK_CHOICES: WeakKeyDictionary[Source, dict[tuple[int, ...], list[int]]] = WeakKeyDictionary()


def appended_in_first_chunk(source: Source, columns: Sequence[int], alike: bool = True) -> list[int]:
    """Return ``appended_columns`` of the first chunk, which is read once; with ``alike``, for like units, too."""
    known, key = _FIRST_CHUNK_CHOICES.setdefault(source, {}), tuple(columns)
    if key not in known:
        known[key], X = [], first_chunk(source) if key else None
        if X is not None:
            X = X[:APPENDED_SAMPLE_ROWS].astype(np.float64)
            known[key] = appended_columns(X, columns) if alike or units_differ(X) else known[key]
    return known[key]


def _has_heavy_tails(x: Array) -> bool:
    """With heavy tails, the standard deviation is not a useful unit."""
    spread = x.std()
    if not spread > 0:
        return False
    return bool(np.mean(np.square(np.square((x - x.mean()) / spread))) - 3 > MIN_HEAVY_TAIL_KURTOSIS)
