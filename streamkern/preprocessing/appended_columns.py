"""Choice of the columns of numbers to which normal quantiles or means of the target are appended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamkern.defaults import (
    APPENDED_SAMPLE_ROWS,
    MAX_CATEGORIES,
    MAX_NUMBER_COLUMNS,
    MIN_DISTINCT_VALUES,
    MIN_EXPLAINED_VARIANCE,
    MIN_HEAVY_TAIL_KURTOSIS,
    MIN_ROWS_PER_VALUE,
    NEIGHBOUR_COUNTS,
)
from streamkern.preprocessing.steps import Units, of_first_chunk
from streamkern.sources.base import Source
from streamkern.types import Array


class AppendedColumns(NamedTuple):
    """Columns of numbers to which normal quantiles, or the mean target of each value, are appended."""

    quantiles: list[int]
    means: list[int]


def appended_columns(X: Array, columns: Sequence[int]) -> AppendedColumns:
    """Return the columns of numbers to which quantiles or means are appended, chosen on a sample.

    Quantiles: all columns with more than a few values, if there are up to ``MAX_NUMBER_COLUMNS`` columns; else those
    with heavy tails. The kernel then sees differences of values and of ranks. It needs both: beyond the last quantile
    the curve is constant, and in a column with heavy tails nearly all values are close together.

    Means of the target: among up to ``MAX_NUMBER_COLUMNS`` columns, candidates are those with repeated values, such as
    ids, codes, or amounts fixed by law; those with the fewest, up to ``MAX_CATEGORIES`` values together. See
    ``explains_more``.
    """
    found, repeated = AppendedColumns([], []), list[tuple[int, int]]()
    for j in columns:
        x = X[np.isfinite(X[:, j]), j]
        values = len(np.unique(x))
        if values > MIN_DISTINCT_VALUES and (len(columns) <= MAX_NUMBER_COLUMNS or _has_heavy_tails(x)):
            found.quantiles.append(j)
        if MIN_DISTINCT_VALUES < values <= len(x) / MIN_ROWS_PER_VALUE and len(columns) <= MAX_NUMBER_COLUMNS:
            repeated.append((values, j))
    repeated.sort()
    within = np.cumsum([values for values, _ in repeated]) <= MAX_CATEGORIES
    found.means.extend(sorted(j for (_, j), fits in zip(repeated, within, strict=True) if fits))
    return found


def units_differ(X: Array) -> bool:
    """Return True if the units of features differ among these rows; values that are not finite are refused later."""
    with np.errstate(over="ignore", invalid="ignore"):  # the run refuses rows that overflow, and names them
        variance = X.var(axis=0)
    return bool(np.isfinite(variance).all()) and Units().differ(variance)


def appended_in_first_chunk(source: Source, columns: Sequence[int], alike: bool = True) -> AppendedColumns:
    """Return ``appended_columns`` of the first chunk, which is read once; with ``alike``, for like units, too."""

    def chosen(columns: tuple[int, ...], X: Array | None) -> AppendedColumns:
        some = None if X is None else X[:APPENDED_SAMPLE_ROWS].astype(np.float64)
        if some is None or not (alike or units_differ(some)):
            return AppendedColumns([], [])
        return appended_columns(some, columns)

    return of_first_chunk(source, [tuple(columns)], chosen)[0] if columns else AppendedColumns([], [])


def explains_more(mass: Array, sums: Array, smooth: float, variance: float) -> bool:
    """Return True if means of the target by value explain more than means of neighbouring values.

    Both are estimated on the other folds and compared on a fold's rows; a value counts as its own neighbour. Means by
    value must explain ``MIN_EXPLAINED_VARIANCE`` of the variance more, and more than two standard errors. ``mass``
    (folds, values) has the weights of ascending values, ``sums`` (folds, values, outputs) the weighted targets less
    their mean; ``smooth`` is the weight of the overall mean in every mean; ``variance`` is the weighted sum of squares
    of the targets less their mean, over all outputs.
    """
    if not variance > 0:
        return False
    others, targets = mass.sum(axis=0) - mass, sums.sum(axis=0) - sums

    def missed(means: Array) -> float:
        return float(np.sum(mass[:, :, None] * np.square(means) - 2 * sums * means))

    own = targets / (others + smooth)[:, :, None]
    near = [_window(targets, r) / (_window(others, r) + smooth)[:, :, None] for r in NEIGHBOUR_COUNTS]
    best = min(near, key=missed)
    apart = float(np.sum(mass[:, :, None] * np.square(own - best)))
    gained = (missed(best) - missed(own)) / variance
    error = 2 * float(np.sqrt(apart / variance / max(float(mass.sum()), 1.0)))
    return gained > max(MIN_EXPLAINED_VARIANCE, 2 * error)


def _window(A: Array, reach: int) -> Array:
    """Sum along axis 1 over ``reach`` entries on each side."""
    ends = [(0, 0), (reach + 1, reach), *[(0, 0)] * (A.ndim - 2)]
    upto = np.cumsum(np.pad(A, ends), axis=1)
    return np.asarray(upto[:, 2 * reach + 1 :] - upto[:, : -2 * reach - 1])


def _has_heavy_tails(x: Array) -> bool:
    """With heavy tails, the standard deviation is not a useful unit."""
    spread = x.std()
    if not spread > 0:
        return False
    return bool(np.mean(np.square(np.square((x - x.mean()) / spread))) - 3 > MIN_HEAVY_TAIL_KURTOSIS)
