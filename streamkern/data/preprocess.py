"""Preprocessing as asked for: steps that are fitted to the training rows, one sweep at most each.

A step becomes a ``Transform`` (or, for scaling, a factor and a shift) that the dataset carries, the model keeps and
prediction applies. Steps see rows as the steps before them leave them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Statistics
from streamkern.data.stream import Raw
from streamkern.data.transforms import Encode, Expected, Fill, Project, Transform, UnitRows
from streamkern.errors import DataError, UsageError, require_counts, require_types
from streamkern.storage.layout import positions
from streamkern.types import Array, IntArray, Parameters

MAX_CATEGORIES = 10_000
"""Most categories of a column."""

CATEGORIES_GUESS = 16
"""Categories of a column assumed before it was read, for the projection of memory."""

MEDIAN_BYTES = 32 << 20
"""Most bytes of the rows that medians are taken over."""

Contribution = Callable[[tuple[Raw, str], Any], tuple[Any, ...]]
"""What the stored rows of a block, prepared by the steps before, add to a sum."""


@runtime_checkable
class Scaling(Protocol):
    """A step that scales features: its factor and shift follow from statistics that a fit takes anyway."""

    def scaling(self, low: Array, high: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Factor and shift, shape (d,), from each feature's range and moments."""

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""


@runtime_checkable
class Learning(Protocol):
    """Any other step: what is learnt in a sweep, and the transform that comes of it."""

    def only(self, dataset: Dataset) -> IntArray | None:
        """Ascending ids of the rows that are swept over; None for all."""

    def contribution(self, dataset: Dataset) -> Contribution | None:
        """What a block adds; None where nothing is to be learnt.

        Raises:
            UsageError: the step does not fit the dataset.
        """

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        """The transform, from the sums over all rows.

        Raises:
            DataError: the rows do not allow it.
        """

    def width(self, d: int) -> int:
        """Features that go out for d that come in, or a guess before the rows are read."""

    def bytes(self, d: int) -> int:
        """Most bytes that the sums hold, for rows of d features."""

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""


Step = Scaling | Learning


@dataclass(frozen=True)
class Standardise(Parameters):
    """Every feature to mean 0 and variance 1; a constant feature is only shifted."""

    def scaling(self, low: Array, high: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        spread = np.sqrt(variance)
        factor = np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 1.0)
        return factor, -mean * factor


@dataclass(frozen=True)
class UnitRange(Parameters):
    """Every feature to [0, 1] over the training rows; a constant feature to 0. Later rows may lie outside."""

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
    ends = np.sort([facts.low * factor + shift, facts.high * factor + shift], axis=0)
    scaled = dataset.plain().scale(
        *step.scaling(ends[0], ends[1], facts.mean * factor + shift, facts.variance * np.square(factor))
    )
    return dataset.prepared_like(scaled)


class _WithoutSweep(Parameters):
    """What steps share that learn nothing from the rows."""

    def bytes(self, d: int) -> int:
        """None."""
        return 0

    def only(self, dataset: Dataset) -> IntArray | None:
        """All rows."""
        return None

    def contribution(self, dataset: Dataset) -> Contribution | None:
        """Nothing."""
        return None


@dataclass(frozen=True)
class Normalise(_WithoutSweep):
    """Every row to Euclidean norm 1; a row of zeros stays."""

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        return UnitRows(dataset.n_features)

    def width(self, d: int) -> int:
        return d


@dataclass(frozen=True)
class RandomProjection(_WithoutSweep):
    """Rows times a random matrix R, shape (d, width): distances are kept to about √(8 ln n / width).

    Johnson and Lindenstrauss (1984). R is a function of the seed, and a model keeps the seed. It is held in memory.

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
        if self.density is not None and not 0 < self.density <= 1:
            raise UsageError(
                f"The density is {self.density}.", where="RandomProjection(density=...)", expected="in (0, 1], or None"
            )

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        return Project(dataset.n_features, self.components, self.density, self.seed)

    def width(self, d: int) -> int:
        return self.components


@dataclass(frozen=True)
class Impute(Parameters):
    """A value for each feature that is missing (NaN). Without this step a missing value is an error.

    Args:
        policy: ``mean`` of the feature's values over the training rows; ``median``, over a uniform sample of at most
            32 MiB of them; or ``constant``.
        value: for ``constant``.

    Raises:
        UsageError: an unknown policy, or a value that is not finite.
    """

    policy: str = "mean"
    value: float = 0.0

    def __post_init__(self) -> None:
        require_types(self)
        if self.policy not in ("mean", "median", "constant"):
            raise UsageError(
                f"The policy is {self.policy!r}.", where="Impute(policy)", expected='"mean", "median" or "constant"'
            )
        if not np.isfinite(self.value):
            raise UsageError(f"The value is {self.value}.", where="Impute(value=...)", expected="a finite number")

    def only(self, dataset: Dataset) -> IntArray | None:
        rows = max(1, MEDIAN_BYTES // (8 * dataset.n_features))
        if self.policy != "median" or rows >= dataset.base_rows:
            return None
        return np.sort(dataset.draw(rows, _MEDIAN))

    def contribution(self, dataset: Dataset) -> Contribution | None:
        return {"mean": sum_present, "median": rows_themselves, "constant": None}[self.policy]

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        """Its values.

        Raises:
            DataError: a feature has no value in any row.
        """
        if sums is None:
            return Fill(np.full(dataset.n_features, float(self.value)))
        if self.policy == "mean":
            total = sums[0]
            count, values = total.count, total.mean
        else:
            X = np.concatenate(sums[0].pieces)
            count = (~np.isnan(X)).sum(axis=0)
            values = np.array([np.median(x[~np.isnan(x)]) if n else 0.0 for x, n in zip(X.T, count, strict=True)])
        if not count.all():
            column = int(np.argmin(count))
            names = dataset.columns
            raise DataError(
                f"Feature {column if names is None else repr(names[column])} has no value in any row.",
                where=f"Impute({self.policy!r})",
                expected="at least one value to learn from",
                remedy='leave the column out, or use Impute("constant")',
            )
        return Fill(values)

    def width(self, d: int) -> int:
        return d

    def bytes(self, d: int) -> int:
        """Two numbers a feature; for medians the rows, joined, and a column of them."""
        return 3 * MEDIAN_BYTES if self.policy == "median" else 64 * 16 * d


class Present:
    """Numbers and means of the values that are there; adds by the parallel rule of Chan, Golub, LeVeque (1979).

    Args:
        count: shape (d,).
        mean: shape (d,), float64; 0 where there is none.
    """

    def __init__(self, count: Array, mean: Array) -> None:
        self.count = count
        self.mean = mean

    def __add__(self, other: Present) -> Present:
        count = self.count + other.count
        with np.errstate(invalid="ignore"):
            return Present(count, self.mean + (other.mean - self.mean) * (other.count / np.maximum(count, 1)))


def sum_present(block: tuple[Raw, str], state: Any) -> tuple[Any, ...]:
    """Contributes numbers and means of the values that are there."""
    X = block[0].X.astype(np.float64)
    missing = np.isnan(X)
    count = (~missing).sum(axis=0)
    pivot = np.where(count > 0, np.fmin.reduce(X, axis=0, initial=np.inf), 0.0)  # sums about it keep their digits
    with np.errstate(invalid="ignore"):  # what is infinite is refused by the statistics
        centred = np.where(missing, 0.0, X - pivot)
        return (Present(count, pivot + centred.sum(axis=0) / np.maximum(count, 1)),)


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


@dataclass(frozen=True)
class _Categorical(Parameters):
    """What ``OneHot`` and ``Ordinal`` share; see them for the parameters."""

    columns: Sequence[str | int]
    unknown: str = "error"

    def __post_init__(self) -> None:
        name = type(self).__name__
        several = isinstance(self.columns, Sequence) and not isinstance(self.columns, str)
        if not several or not self.columns or len(set(self.columns)) != len(self.columns):
            raise UsageError(
                f"columns is {self.columns!r}.",
                where=f"{name}(columns)",
                expected='names or positions, each once: ("brand", "year")',
            )
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.unknown not in ("error", "ignore"):
            raise UsageError(
                f"unknown is {self.unknown!r}.", where=f"{name}(unknown=...)", expected='"error" or "ignore"'
            )

    def only(self, dataset: Dataset) -> IntArray | None:
        """All rows."""
        return None

    def contribution(self, dataset: Dataset) -> Contribution | None:
        """The values of each column."""
        return CategoriesSeen(self._positions(dataset))

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        """Its categories."""
        assert sums is not None
        for column, values in zip(self._positions(dataset), sums[0].values, strict=True):
            if len(values) > MAX_CATEGORIES:
                raise _too_many(column)
        one_hot = isinstance(self, OneHot)
        return Encode(dataset.n_features, self._positions(dataset), sums[0].values, one_hot, self.unknown)

    def bytes(self, d: int) -> int:
        """The values of each column, in the sums that are waiting."""
        return 64 * 8 * MAX_CATEGORIES * len(self.columns)

    def _positions(self, dataset: Dataset) -> tuple[int, ...]:
        where = f"{type(self).__name__}(columns)"
        d = dataset.n_features
        found = []
        for column in self.columns:
            if isinstance(column, str):
                found.append(int(positions([column], dataset.columns, where)[0]))
            elif 0 <= column < d:
                found.append(int(column))
            else:
                raise UsageError(f"There is no column {column}.", where=where, expected=f"0 to {d - 1}")
        if len(set(found)) != len(found):
            raise UsageError("A column is given twice.", where=where, expected="each column once")
        return tuple(sorted(found))


@dataclass(frozen=True)
class OneHot(_Categorical):
    """A column of categories to one indicator for each category that the training rows have, where it stood.

    Args:
        columns: names or positions of columns of numbers that stand for categories.
        unknown: of a category that training did not see, ``error``, or ``ignore`` for indicators of 0.

    Raises:
        UsageError: no columns, or an unknown policy.
    """

    def width(self, d: int) -> int:
        """A guess: the categories are counted in the fit."""
        return d + (CATEGORIES_GUESS - 1) * len(self.columns)


@dataclass(frozen=True)
class Ordinal(_Categorical):
    """A column of categories to their ranks 0, 1, ... among the categories of the training rows.

    Args:
        columns: as in ``OneHot``.
        unknown: of a category that training did not see, ``error``, or ``ignore`` for the code −1.

    Raises:
        UsageError: as in ``OneHot``.
    """

    def width(self, d: int) -> int:
        return d


class Categories:
    """The values of each of some columns; adds by joining.

    Args:
        values: an ascending array for each column.
    """

    def __init__(self, values: tuple[Array, ...]) -> None:
        self.values = values

    def __add__(self, other: Categories) -> Categories:
        return Categories(tuple(np.union1d(a, b) for a, b in zip(self.values, other.values, strict=True)))


@dataclass(frozen=True)
class CategoriesSeen:
    """Contributes the values of some columns.

    Args:
        columns: their positions.
    """

    columns: tuple[int, ...]

    def __call__(self, block: tuple[Raw, str], state: Any) -> tuple[Any, ...]:
        """The values in one block.

        Raises:
            DataError: a value is missing, or there are too many of them.
        """
        raw, where = block
        found = []
        for column in self.columns:
            x = raw.X[:, column]
            bad = ~np.isfinite(x)
            if bad.any():
                raise DataError(
                    f"A category is {'NaN' if np.isnan(x[bad][0]) else 'infinity'}.",
                    where=f"{where}, row {int(raw.ids[np.argmax(bad)])}, feature {column}",
                    expected="a number that stands for a category",
                    remedy='fill missing values first: sk.Impute("constant", value=-1)',
                )
            values = np.unique(x).astype(np.float64)
            if len(values) > MAX_CATEGORIES:
                raise _too_many(column)
            found.append(values)
        return (Categories(tuple(found)),)


def _too_many(column: int) -> DataError:
    return DataError(
        f"Feature {column} has more than {MAX_CATEGORIES:,} different values.",
        where="categories",
        expected="a column of categories",
        remedy="leave a continuous column out of columns=(...)",
    )


def require_steps(steps: Any, where: str) -> None:
    """Raises UsageError unless these are steps."""
    if isinstance(steps, list | tuple) and all(
        isinstance(step, Scaling | Learning) and not isinstance(step, type) for step in steps
    ):
        return
    raise UsageError(f"preprocess is {steps!r}.", where=where, expected='steps: (sk.Impute("mean"), sk.Standardise())')


def require_encoded(dataset: Dataset, steps: Sequence[Step]) -> None:
    """Raises UsageError where a feature is text and no step encodes it: the numbers that stand for it mean nothing."""
    text, names = dataset.source.text, dataset.source.columns or ()
    named = {column for step in steps if isinstance(step, _Categorical) for column in step.columns}
    for name in () if dataset.transforms else text:
        if name in names and not {name, names.index(name)} & named:
            raise UsageError(
                f"The feature {name!r} is text.",
                where="preprocess",
                expected="a step that encodes it",
                remedy=f"preprocess=(sk.OneHot(({name!r},)),), or choose other columns",
            )


def expected(dataset: Dataset, steps: Sequence[Step]) -> Dataset:
    """The dataset as wide as the steps are expected to make it: for projections, not for reading."""
    d = dataset.n_features
    for step in steps:
        if isinstance(step, Learning):
            wide = step.width(d)
            # A projection learns nothing: it is what it will be.
            known = step.fitted(dataset, None) if isinstance(step, RandomProjection) else Expected(d, wide)
            dataset = replace(dataset, transforms=(*dataset.transforms, known), factor=1.0, shift=0.0)
            d = wide
    return dataset


def learning_bytes(dataset: Dataset, steps: Sequence[Step]) -> int:
    """Most bytes that the sums of one of the steps hold."""
    d = expected(dataset, steps).widest
    return max((step.bytes(d) for step in steps if isinstance(step, Learning)), default=0)


_MEDIAN = 1  # names the draw
