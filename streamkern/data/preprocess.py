"""Preprocessing as requested: steps that are fitted to the training rows, one sweep at most each.

A step becomes a ``Transform`` (or, for scaling, a factor and a shift) that the dataset carries, the model keeps and
prediction applies. Steps see rows as the steps before them leave them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.encoders import Encode, TargetMeans
from streamkern.data.statistics import Statistics
from streamkern.data.stream import Raw
from streamkern.data.transforms import MOST_COMPONENTS, Expected, Fill, Project, Transform, UnitRows
from streamkern.errors import DataError, UsageError, require_counts, require_finite, require_types
from streamkern.storage.layout import positions
from streamkern.types import Array, IntArray, Parameters

AUTOMATIC = "auto"
"""The preprocessing that follows from the schema and the statistics of the rows."""

MEDIAN_BYTES = 32 << 20
"""Most bytes of the rows that medians are taken over."""

Contribution = Callable[[tuple[Raw, str], Any], tuple[Any, ...]]
"""The terms of a sum from the stored rows of a block, prepared by the steps before."""


@runtime_checkable
class Scaling(Protocol):
    """A step that scales features: its factor and shift follow from statistics that a fit takes anyway."""

    def scaling(self, low: Array, high: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Factor and shift, shape (d,), from each feature's range and moments."""

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""


@runtime_checkable
class Learning(Protocol):
    """Any other step: it learns in one sweep, and becomes a transform."""

    def only(self, dataset: Dataset) -> IntArray | None:
        """Ascending ids of the rows that are swept over; None for all."""

    def contribution(self, dataset: Dataset) -> Contribution | None:
        """The contribution of a block; None where nothing is to be learnt.

        Raises:
            UsageError: the step does not fit the dataset.
        """

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform | tuple[Transform, ...]:
        """The transform, or several in order, from the sums over all rows.

        Raises:
            DataError: the rows do not allow it.
        """

    def width(self, dataset: Dataset) -> int:
        """Features that go out for those of a dataset; taken from its first chunk where it depends on rows."""

    def bytes(self, d: int) -> int:
        """Most bytes that the sums hold, for rows of d features."""

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""


Step = Scaling | Learning


@dataclass(frozen=True)
class Standardise(Parameters):
    """Features to mean 0 and variance 1; a constant feature is only shifted.

    Args:
        columns: positions among the features as the steps before leave them; None for all of them.
    """

    columns: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.columns != ():  # where nothing is to be scaled
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
class UnitRange(Parameters):
    """Scale every feature to [0, 1] over the training rows, a constant one to 0. Later rows may be outside."""

    def scaling(self, low: Array, high: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        spread = high - low
        factor = np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 1.0)
        return factor, -low * factor


def scale(dataset: Dataset, step: Scaling, facts: Statistics) -> Dataset:
    """The dataset with a scaling step on top of the scaling it has.

    Args:
        dataset: training rows, augmented or not; augmentations come after.
        step: the step.
        facts: statistics of its rows after its transforms, before its factor and shift.
    """
    factor, shift = np.asarray(dataset.factor), np.asarray(dataset.shift)
    if isinstance(step, Units) and not step.differ(facts.variance):
        return dataset
    ends = np.sort([facts.low * factor + shift, facts.high * factor + shift], axis=0)
    scaled = dataset.plain().scale(
        *step.scaling(ends[0], ends[1], facts.mean * factor + shift, facts.variance * np.square(factor))
    )
    return dataset.prepared_like(scaled)


@dataclass(frozen=True)
class Units(Standardise):
    """Standardise where the units of features differ; leave rows of one unit, such as images, as they are.

    Units differ where a few features make all of the distance between rows: where the effective number of features,
    (Σ v)² / Σ v² of their variances v, is below a quarter of those that vary (less one in both numbers).
    """

    def differ(self, variance: Array) -> bool:
        """Return True if the units of features of these variances differ."""
        return share_of_features(variance) < UNITS_DIFFER

    def reason(self, variance: Array, differ: bool = False) -> str:
        """The scaling of features of these variances, and its reason, in a sentence.

        Args:
            variance: of the features, shape (d,).
            differ: whether a sample has said so already.
        """
        v = variance[variance > 0]
        effective = 1.0 if not len(v) else float(np.square((v / v.max()).sum()) / np.square(v / v.max()).sum())
        one = f"{effective:.1f} of {len(v):,} features make the distance between rows"
        if differ or self.differ(variance):
            return f"features standardised: their units differ ({one})"
        return f"features left as they are: their units are alike ({one})"


UNITS_DIFFER = 0.25


def share_of_features(variance: Array) -> float:
    """Share of the features that vary which make the distance between rows, in [0, 1]; 1 where at most one varies."""
    v = variance[variance > 0]
    if len(v) < 2:
        return 1.0
    v = v / v.max()
    return float((np.square(v.sum()) / np.square(v).sum() - 1) / (len(v) - 1))


class Swept(Parameters):
    """Base class of steps that learn from all rows, and leave them as wide as they are."""

    def only(self, dataset: Dataset) -> IntArray | None:
        return None

    def width(self, dataset: Dataset) -> int:
        return dataset.n_features


class WithoutSweep(Swept):
    """Base class of steps that learn nothing from the rows."""

    def contribution(self, dataset: Dataset) -> Contribution | None:
        return None

    def bytes(self, d: int) -> int:
        return 0


@dataclass(frozen=True)
class Normalise(WithoutSweep):
    """Every row to Euclidean norm 1; a row of zeros stays."""

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        return UnitRows(dataset.n_features)


@dataclass(frozen=True)
class RandomProjection(WithoutSweep):
    """Rows times a random matrix R, shape (d, width): distances are kept to about √(8 ln n / width).

    Johnson and Lindenstrauss (1984). R is a function of the seed, which a model keeps; R itself is in memory.

    Args:
        components: columns of R.
        density: share of the entries that are not 0 (Li, Hastie, Church 2006); None for normal entries.
        seed: which matrix.

    Raises:
        UsageError: a parameter is out of range.
    """

    components: int
    density: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_counts(self, components=1)
        if self.components > MOST_COMPONENTS:
            raise UsageError(
                f"components is {self.components:,}.",
                where="RandomProjection(components=...)",
                expected=f"at most {MOST_COMPONENTS:,}",
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
class Impute(Parameters):
    """Replace missing values (NaN). Without this step a missing value is an error.

    Args:
        policy: ``mean`` of the feature's values over the training rows; ``median``, over a uniform sample of at most
            32 MiB of them; or ``constant``.
        value: for ``constant``.
        columns: names or positions of the features to fill; None for all except categories, where "missing" is a
            category.
        indicator: whether each feature that has missing values in training gets an indicator of them, after the others.

    Raises:
        UsageError: an unknown policy, or a value that is not finite.
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
        return np.sort(dataset.draw(rows, _MEDIAN))

    def contribution(self, dataset: Dataset) -> Contribution | None:
        self._chosen(dataset)
        constant = sum_present if self.indicator else None
        return {"mean": sum_present, "median": rows_themselves, "constant": constant}[self.policy]

    def _chosen(self, dataset: Dataset) -> IntArray:
        """Positions of the features to fill.

        Raises:
            UsageError: a named feature is a category, or is not there.
        """
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
        """The transform with the values found.

        Raises:
            DataError: a feature has no value in any row.
        """
        chosen = self._chosen(dataset)
        others = np.setdiff1d(np.arange(dataset.n_features), chosen)
        n = np.array([], dtype=np.int64)
        if self.policy == "constant":
            values = np.full(dataset.n_features, float(self.value))
            count, n = (values + 1, n) if sums is None else (sums[0].count, sums[0].rows)
        elif self.policy == "mean":
            assert sums is not None
            total = sums[0]
            count, values, n = total.count, total.mean, total.rows
        else:
            assert sums is not None
            X = np.concatenate(sums[0].pieces)
            count, n = (~np.isnan(X)).sum(axis=0), np.full(dataset.n_features, len(X))
            values = np.array([np.median(x[~np.isnan(x)]) if n else 0.0 for x, n in zip(X.T, count, strict=True)])
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
        values[others] = np.nan
        marked = tuple(int(column) for column in chosen if count[column] < n[column]) if self.indicator else ()
        return Fill(values, marked)

    def width(self, dataset: Dataset) -> int:
        """The same, and at most an indicator each."""
        if not self.indicator:
            return dataset.n_features
        named = dataset.n_features if self.columns is None else len(self.columns)
        return dataset.n_features + (named if dataset.columns is None else len(self._chosen(dataset)))

    def bytes(self, d: int) -> int:
        """Two numbers a feature; for medians the rows, joined, and a column of them."""
        return 3 * MEDIAN_BYTES if self.policy == "median" else 64 * 16 * d


class Present:
    """Numbers and means of the values that are there; adds by the parallel rule of Chan, Golub, LeVeque (1979).

    Args:
        count: shape (d,).
        mean: shape (d,), float64; 0 for a column without values.
        rows: with the missing ones, shape (d,).
    """

    def __init__(self, count: Array, mean: Array, rows: Array) -> None:
        self.count = count
        self.mean = mean
        self.rows = rows

    def __add__(self, other: Present) -> Present:
        count = self.count + other.count
        with np.errstate(invalid="ignore"):
            mean = self.mean + (other.mean - self.mean) * (other.count / np.maximum(count, 1))
            return Present(count, mean, self.rows + other.rows)


def sum_present(block: tuple[Raw, str], state: Any) -> tuple[Any, ...]:
    """Contributes numbers and means of the values that are there."""
    X = block[0].X.astype(np.float64)
    missing = np.isnan(X)
    count = (~missing).sum(axis=0)
    pivot = np.where(count > 0, np.fmin.reduce(X, axis=0, initial=np.inf), 0.0)  # sums about it keep their digits
    with np.errstate(invalid="ignore"):  # the statistics refuse infinite values
        centred = np.where(missing, 0.0, X - pivot)
        return (Present(count, pivot + centred.sum(axis=0) / np.maximum(count, 1), np.full(X.shape[1], len(X))),)


class Pieces:
    """Arrays of rows; adds by joining.

    Args:
        pieces: arrays of shape (b, d).
    """

    def __init__(self, pieces: tuple[Array, ...]) -> None:
        self.pieces = pieces

    def __add__(self, other: Pieces) -> Pieces:
        return Pieces(self.pieces + other.pieces)


def rows_themselves(block: tuple[Raw, str], state: Any) -> tuple[Any, ...]:
    """Contributes its rows."""
    return (Pieces((block[0].X.astype(np.float64),)),)


def category_positions(dataset: Dataset) -> tuple[int, ...]:
    """Positions of the features that are categories and are not encoded yet."""
    schema, names = dataset.source.schema, dataset.columns
    if schema is None or names is None:
        return ()
    categories = {column.name for column in schema.columns if column.kind == "category"}
    return tuple(j for j, name in enumerate(names) if name in categories and not _is_encoded(dataset, name))


def _is_encoded(dataset: Dataset, name: str) -> bool:
    names = dataset.source.columns
    for transform in dataset.transforms:
        at = -1 if names is None or name not in names else names.index(name)
        if isinstance(transform, Encode | TargetMeans) and at in transform.columns:
            return True
        names = transform.names(names)
    return False


def require_columns(step: Any) -> None:
    """Make the columns of a step a tuple, and raise UsageError unless they are names or positions, or None."""
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
    """Positions of features that are given by name or position, ascending.

    Raises:
        UsageError: one is not there, or is given twice.
        DataError: a name is not there.
    """
    d = dataset.n_features
    found = []
    for column in columns:
        if isinstance(column, str):
            found.append(int(positions([column], dataset.columns, where)[0]))
        elif 0 <= column < d:
            found.append(int(column))
        else:
            raise UsageError(f"There is no column {column}.", where=where, expected=f"0 to {d - 1}")
    if len(set(found)) != len(found):
        raise UsageError("A column is given twice.", where=where, expected="each column once")
    return tuple(sorted(found))


def require_steps(steps: Any, where: str) -> None:
    """Raises UsageError unless these are steps, or the word for the automatic ones."""
    if isinstance(steps, str) and steps == AUTOMATIC:
        return
    if isinstance(steps, list | tuple) and all(
        isinstance(step, Scaling | Learning) and not isinstance(step, type) for step in steps
    ):
        return
    raise UsageError(
        f"preprocess is {steps!r}.", where=where, expected='"auto", or steps: (sk.Impute("mean"), sk.Standardise())'
    )


def expected(dataset: Dataset, steps: Sequence[Step]) -> Dataset:
    """The dataset as wide as the steps are expected to make it: for projections, not for reading."""
    d = dataset.n_features
    for step in steps:
        if isinstance(step, Learning):
            wide = step.width(dataset)
            # A projection learns nothing, so it is known before the fit.
            known = step.fitted(dataset, None) if isinstance(step, RandomProjection) else Expected(d, wide)
            dataset = replace(dataset, transforms=(*dataset.transforms, known), factor=1.0, shift=0.0)
            d = wide
    return dataset


def learning_bytes(dataset: Dataset, steps: Sequence[Step]) -> int:
    """Most bytes that the sums of one of the steps hold."""
    d = expected(dataset, steps).widest
    return max((step.bytes(d) for step in steps if isinstance(step, Learning)), default=0)


_MEDIAN = 1  # names the draw
