"""Preprocessing steps, as users request them; each is fitted to the training rows in at most one sweep.

A fitted step is a ``Transform`` (or, for scaling, a factor and a shift) of the dataset and the model; prediction
applies it. A step sees rows after the steps before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from streamkern.data.chunk_cache import reading_bytes
from streamkern.data.dataset import Dataset
from streamkern.data.encoders import Encode, TargetMeans
from streamkern.data.row_order import RawRows
from streamkern.data.statistics import Statistics
from streamkern.data.transforms import ExpectedWidth, Fill, Project, Transform, UnitRows
from streamkern.defaults import MAX_COMPONENTS, MEDIAN_BYTES, MIN_EFFECTIVE_SHARE
from streamkern.errors import DataError, StreamkernError, UsageError, require_counts, require_finite, require_types
from streamkern.memory import check_memory
from streamkern.rng import Draw
from streamkern.sources.base import Source
from streamkern.sources.format_rules import positions
from streamkern.types import Array, IntArray, Parameters

T = TypeVar("T")

AUTOMATIC = "auto"
"""Value of ``preprocess`` for steps chosen by the schema and the statistics of the rows; of ``scaling``, the same."""

STANDARD = "standard"
"""Value of ``scaling`` for features of mean 0 and variance 1."""

Contribution = Callable[[tuple[RawRows, str], Any], tuple[Any, ...]]
"""A function from a block of stored rows, after the earlier steps, to the terms of sums over all rows."""


class Scaling(Parameters, ABC):
    """A step that scales features, computed from the statistics of a fit without a further sweep."""

    @abstractmethod
    def scaling(self, low: Array, high: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return factors and shifts, shape (d,), from the range and the moments of each feature."""


class Learning(Parameters, ABC):
    """A step other than scaling: it becomes a transform, by default without a sweep and of the same width."""

    def only(self, dataset: Dataset) -> IntArray | None:
        """Return ascending ids of the rows to read; None for all."""
        return None

    def contribution(self, dataset: Dataset) -> Contribution | None:
        """Return the function that sums terms of a block of rows; None if the step needs no sums.

        Raises:
            UsageError: the step cannot be applied to the columns of the dataset.
        """
        return None

    @abstractmethod
    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform | tuple[Transform, ...]:
        """Return the transform, or several in order, from the sums over all rows; DataError if rows do not allow it."""

    def rest(self, dataset: Dataset) -> tuple[Any, ...]:
        """Return the steps that follow after this step is fitted to the dataset."""
        return ()

    def width(self, dataset: Dataset) -> int:
        """Return the number of features after the step; an estimate from the first chunk if it depends on the rows."""
        return dataset.n_features

    def bytes(self, d: int) -> int:
        """Return an upper bound of the bytes of the sums, for rows of d features."""
        return 0


Step = Scaling | Learning


@dataclass(frozen=True)
class Standardise(Scaling):
    """Scale features to mean 0 and variance 1. A constant feature is only shifted.

    Args:
        columns: positions among the features that the earlier preprocessing steps return; None for all.
    """

    columns: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.columns != ():  # there are no columns to scale
            require_columns(self)

    def scaling(self, low: Array, high: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        spread = np.sqrt(variance)
        factor = np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 1.0)
        shift = -mean * factor
        if self.columns is not None:
            others = np.ones(len(factor), dtype=bool)
            others[list(self.columns)] = False
            factor[others], shift[others] = 1.0, 0.0
        return factor, shift


@dataclass(frozen=True)
class UnitRange(Scaling):
    """Scale every feature to [0, 1] over the training rows, and a constant feature to 0. Other rows may be outside."""

    def scaling(self, low: Array, high: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        spread = high - low
        factor = np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 1.0)
        return factor, -low * factor


def scale(dataset: Dataset, step: Scaling, facts: Statistics) -> Dataset:
    """Return the dataset scaled after its scaling; ``facts`` are after its transforms, before factor and shift."""
    factor, shift = np.asarray(dataset.factor), np.asarray(dataset.shift)
    if isinstance(step, Units) and not step.differ(facts.variance):
        return dataset
    ends = np.sort([facts.low * factor + shift, facts.high * factor + shift], axis=0)
    scaled = dataset.plain().scale(
        *step.scaling(ends[0], ends[1], facts.mean * factor + shift, facts.variance * np.square(factor))
    )
    return dataset._prepared_like(scaled)


@dataclass(frozen=True)
class Units(Standardise):
    """Standardise features if their units differ; leave rows of one unit, such as images, unchanged.

    Units differ if a few features dominate the distance between rows: if the effective number of features, (Σ v)² / Σ
    v² for their variances v, is below a quarter of the number of varying features (both numbers less one).
    """

    def differ(self, variance: Array) -> bool:
        """Return True if the units of features with these variances differ."""
        effective, varying = _effective_features(variance)
        return varying > 1 and (effective - 1) / (varying - 1) < MIN_EFFECTIVE_SHARE

    def reason(self, variance: Array, differ: bool = False) -> str:
        """Return a sentence on the scaling for variances (d,); with ``differ`` a sample has shown that units differ."""
        effective, varying = _effective_features(variance)
        one = f"{effective:.1f} of {varying:,} features make the distance between rows"
        if differ or self.differ(variance):
            return f"features standardised: their units differ ({one})"
        return f"features left as they are: their units are alike ({one})"


def _effective_features(variance: Array) -> tuple[float, int]:
    """Return the effective number of features in row distances, and that of varying features."""
    v = variance[variance > 0]
    v = v / v.max(initial=0.0)
    return float(np.square(v.sum()) / np.square(v).sum()) if len(v) else 1.0, len(v)


@dataclass(frozen=True)
class Normalise(Learning):
    """Scale every row to Euclidean norm 1; a row of zeros is unchanged."""

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        return UnitRows(dataset.n_features)


@dataclass(frozen=True)
class RandomProjection(Learning):
    """Multiply rows by a random d × m matrix R, with m = ``components``.

    The relative change of distances between n rows is about √(8 ln n / m) (Johnson and Lindenstrauss 1984). R is in
    memory; a model saves only its seed.

    Args:
        components: number of columns of R.
        density: share of nonzero entries (Li, Hastie, Church 2006); None for normally distributed entries.
        seed: seed of the matrix.

    Raises:
        UsageError: a parameter is out of range.
    """

    components: int
    density: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_counts(self, components=1)
        if self.components > MAX_COMPONENTS:
            raise UsageError(
                f"components is {self.components:,}.",
                where="RandomProjection(components=...)",
                expected=f"at most {MAX_COMPONENTS:,}",
            )
        if self.density is not None and not 0 < self.density <= 1:
            raise UsageError(
                f"The density is {self.density}.", where="RandomProjection(density=...)", expected="in (0, 1], or None"
            )

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        return Project(dataset.n_features, self.components, self.density, self.seed)

    def width(self, dataset: Dataset) -> int:
        return self.components


@dataclass(frozen=True)
class Impute(Learning):
    """Replace missing values (NaN). Without this step, a missing value is an error.

    Args:
        policy: the replacement: ``mean`` of the feature over the training rows; ``median`` over a uniform sample of at
            most 32 MiB of them; or ``constant``.
        value: the replacement if the policy is ``constant``.
        columns: names or positions of the features to fill. None for all except categories, where "missing" is a
            category.
        indicator: whether to add, after the other features, an indicator for each feature that has missing values in
            training.

    Raises:
        UsageError: the policy is unknown, or the value is not finite.
    """

    policy: Literal["mean", "median", "constant"] = "mean"
    value: float = 0.0
    columns: tuple[str | int, ...] | None = None
    indicator: bool = False

    def __post_init__(self) -> None:
        require_types(self, "policy", "value", "indicator")
        require_columns(self)
        require_finite(self)

    def only(self, dataset: Dataset) -> IntArray | None:
        rows = max(1, MEDIAN_BYTES // (8 * dataset.n_features))
        if self.policy != "median" or rows >= dataset.base_rows:
            return None
        return np.sort(dataset.draw(rows, Draw.MEDIANS))

    def contribution(self, dataset: Dataset) -> Contribution | None:
        self._chosen(dataset)
        constant = sum_present if self.indicator else None
        return {"mean": sum_present, "median": unchanged_rows, "constant": constant}[self.policy]

    def _chosen(self, dataset: Dataset) -> IntArray:
        d, categories = dataset.n_features, category_positions(dataset)
        if self.columns is None:
            return np.setdiff1d(np.arange(d), categories)
        found = column_positions(self.columns, dataset, "Impute(columns=...)")
        if both := sorted(set(found) & set(categories)):
            raise UsageError(
                f"Feature {both[0] if dataset.columns is None else dataset.columns[both[0]]!r} is a category.",
                where="Impute(columns=...)",
                expected="features of numbers: a missing category is a category of its own",
                remedy="leave it out of columns=(...); sk.OneHot gives a missing category an indicator",
            )
        return np.array(found, dtype=np.int64)

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        """Return the transform with the fitted values.

        Raises:
            DataError: a feature has no value in any row.
        """
        chosen, d = self._chosen(dataset), dataset.n_features
        values, count, n = np.full(d, float(self.value)), np.ones(d), np.ones(d)
        if self.policy == "median":
            assert sums is not None
            X = np.concatenate(sums[0])
            count, n = (~np.isnan(X)).sum(axis=0), np.full(d, len(X))
            values = np.array([np.median(x[~np.isnan(x)]) if n else 0.0 for x, n in zip(X.T, count, strict=True)])
        elif sums is not None:
            count, n = sums[0].count, sums[0].rows
            values = sums[0].mean if self.policy == "mean" else values
        if self.policy != "constant" and not count[chosen].all():
            column = int(chosen[np.argmin(count[chosen])])
            names = dataset.columns
            raise DataError(
                f"Feature {column if names is None else repr(names[column])} has no value in any row.",
                where=f"Impute({self.policy!r})",
                expected="at least one value to learn from",
                remedy='leave the column out, or use Impute("constant")',
            )
        values = np.array(values, dtype=np.float64)
        values[np.setdiff1d(np.arange(d), chosen)] = np.nan
        marked = tuple(int(column) for column in chosen if count[column] < n[column]) if self.indicator else ()
        return Fill(values, marked)

    def width(self, dataset: Dataset) -> int:
        """Return an upper bound of the number of features, with an indicator for each feature."""
        if not self.indicator:
            return dataset.n_features
        named = dataset.n_features if self.columns is None else len(self.columns)
        return dataset.n_features + (named if dataset.columns is None else len(self._chosen(dataset)))

    def bytes(self, d: int) -> int:
        """Return an upper bound of bytes: of the sampled rows for medians, otherwise of sums over the rows."""
        return 3 * MEDIAN_BYTES if self.policy == "median" else 64 * 16 * d


class PresentValues:
    """Counts and means of values that are not missing, (d,); adds by the parallel rule of Chan, Golub, LeVeque (1979).

    The mean is 0 for a column without values; ``rows`` include missing values.
    """

    def __init__(self, count: Array, mean: Array, rows: Array) -> None:
        self.count = count
        self.mean = mean
        self.rows = rows

    def __add__(self, other: PresentValues) -> PresentValues:
        count = self.count + other.count
        with np.errstate(invalid="ignore"):
            mean = self.mean + (other.mean - self.mean) * (other.count / np.maximum(count, 1))
            return PresentValues(count, mean, self.rows + other.rows)


def sum_present(block: tuple[RawRows, str], state: Any) -> tuple[Any, ...]:
    """Return counts and means of the values of a block that are not missing."""
    X = block[0].X.astype(np.float64)
    missing = np.isnan(X)
    count = (~missing).sum(axis=0)
    # Sums about a pivot among the values keep their digits.
    pivot = np.where(count > 0, np.fmin.reduce(X, axis=0, initial=np.inf), 0.0)
    with np.errstate(invalid="ignore"):  # the statistics refuse infinite values
        centred = np.where(missing, 0.0, X - pivot)
        return (PresentValues(count, pivot + centred.sum(axis=0) / np.maximum(count, 1), np.full(X.shape[1], len(X))),)


def unchanged_rows(block: tuple[RawRows, str], state: Any) -> tuple[Any, ...]:
    """Return the rows of a block in a tuple, which adding joins."""
    return ((block[0].X.astype(np.float64),),)


def category_positions(dataset: Dataset) -> tuple[int, ...]:
    """Return positions of the categories that are not encoded yet."""
    schema, names = dataset.source.schema, dataset.columns
    if schema is None or names is None:
        return ()
    left, before = {column.name for column in schema.columns if column.kind == "category"}, dataset.source.columns
    for transform in dataset.transforms:
        if isinstance(transform, Encode | TargetMeans) and before is not None:
            left -= {before[column] for column in transform.columns}
        before = transform.names(before)
    return tuple(j for j, name in enumerate(names) if name in left)


def require_columns(step: Any) -> None:
    """Convert the columns of a step to a tuple; raise UsageError unless they are names, positions or None."""
    columns = step.columns
    if columns is None:
        return
    named = isinstance(columns, Sequence) and not isinstance(columns, str) and bool(columns)
    if not named or not all(type(c) in (str, int) for c in columns) or len(set(columns)) != len(columns):
        raise UsageError(
            f"columns is {columns!r}.",
            where=f"{type(step).__name__}(columns=...)",
            expected='names or positions, each once: ("brand", "year"); or None',
        )
    object.__setattr__(step, "columns", tuple(columns))


def column_positions(columns: Sequence[str | int], dataset: Dataset, where: str) -> tuple[int, ...]:
    """Return ascending positions of features given by name or position."""
    d, named = dataset.n_features, [column for column in columns if isinstance(column, str)]
    found = positions(named, dataset.columns, where).tolist() if named else []
    for column in columns:
        if not isinstance(column, str):
            if not 0 <= column < d:
                raise UsageError(f"There is no column {column}.", where=where, expected=f"0 to {d - 1}")
            found.append(int(column))
    if len(set(found)) != len(found):
        raise UsageError("A column is given twice.", where=where, expected="each column once")
    return tuple(sorted(found))


def require_steps(steps: Any, where: str) -> None:
    """Raise UsageError unless ``steps`` are preprocessing steps or "auto"."""
    if isinstance(steps, str) and steps == AUTOMATIC:
        return
    if isinstance(steps, list | tuple) and all(isinstance(step, Scaling | Learning) for step in steps):
        return
    raise UsageError(
        f"preprocess is {steps!r}.", where=where, expected='"auto", or steps: (sk.Impute("mean"), sk.Standardise())'
    )


_OF_FIRST_CHUNKS: WeakKeyDictionary[Source, dict[Any, Any]] = WeakKeyDictionary()


def of_first_chunk(source: Source, keys: Sequence[Any], find: Callable[[Any, Array | None], T]) -> list[T]:
    """Return what ``find`` finds of a key and the features of the first chunk, which is read once for new keys.

    The features are None without chunks, or if a run will fail to read them, and say so.
    """
    known = _OF_FIRST_CHUNKS.setdefault(source, {})
    if missing := [key for key in keys if key not in known]:
        X = None
        if len(source.bounds) > 1:
            with suppress(StreamkernError):
                check_memory(reading_bytes(source, 1), source.where(0))
                X = source.read(0).X
        known.update({key: find(key, X) for key in missing})
    return [known[key] for key in keys]


def with_expected_width(dataset: Dataset, steps: Sequence[Step]) -> Dataset:
    """Return the dataset with the expected width after the steps, to estimate costs; it cannot be read."""
    d = dataset.n_features
    for step in steps:
        if isinstance(step, Learning):
            wide = step.width(dataset)
            # A random projection learns nothing from rows, so its transform is known before the fit.
            known = step.fitted(dataset, None) if isinstance(step, RandomProjection) else ExpectedWidth(d, wide)
            dataset = replace(dataset, transforms=(*dataset.transforms, known), factor=1.0, shift=0.0)
            d = wide
    return dataset


def learning_bytes(dataset: Dataset, steps: Sequence[Step]) -> int:
    """Return the largest number of bytes of one step's sums."""
    d = with_expected_width(dataset, steps)._widest
    return max((step.bytes(d) for step in steps if isinstance(step, Learning)), default=0)
