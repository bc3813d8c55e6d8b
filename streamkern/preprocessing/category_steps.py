"""Steps for columns of categories: indicators, ranks, means of the target."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.encoders import Encode, TargetMeans, Unknown, fold_numbers
from streamkern.data.row_order import RawRows
from streamkern.data.row_roles import Folds
from streamkern.data.transforms import Transform
from streamkern.defaults import MAX_CATEGORIES, MAX_CLASSES_OF_MEANS, MAX_FOLDS, MIN_ROWS_OF_ID
from streamkern.errors import DataError, UsageError, require_counts, require_types
from streamkern.preprocessing.steps import (
    Contribution,
    Learning,
    Step,
    category_positions,
    column_positions,
    of_first_chunk,
    require_columns,
)
from streamkern.sources.base import Source
from streamkern.types import Array, IntArray


def _sums_bytes(columns: Sequence[str | int] | None) -> int:
    """Return bytes of a few columns' sums that wait to be added, and of their texts; without names, of one column."""
    text_bytes = 256  # bytes of a category's text in the dictionary for messages, and of its entry there
    return (64 * 8 + text_bytes) * MAX_CATEGORIES * (1 if columns is None else len(columns))


@dataclass(frozen=True)
class _Categorical(Learning):
    columns: Sequence[str | int] | None = None
    unknown: Unknown = "missing"

    def __post_init__(self) -> None:
        require_columns(self)
        require_types(self, "unknown")

    def contribution(self, dataset: Dataset) -> Contribution | None:
        return CategoriesSeen(self._positions(dataset), dataset)

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        assert sums is not None
        positions, seen = self._positions(dataset), sums[0]
        labels = labels_of(dataset, positions)
        for name, values in zip(labels, seen.values, strict=True):
            if values is None:
                raise _too_many(name)
        one_hot = isinstance(self, OneHot)
        return Encode(dataset.n_features, positions, seen.values, one_hot, self.unknown, labels, seen.texts())

    def bytes(self, d: int) -> int:
        return _sums_bytes(self.columns)

    def _positions(self, dataset: Dataset) -> tuple[int, ...]:
        where = f"{type(self).__name__}(columns)"
        if self.columns is not None:
            return column_positions(self.columns, dataset, where)
        if not (found := category_positions(dataset)):
            raise UsageError("There are no columns of categories.", where=where, expected="names or positions")
        return found


@dataclass(frozen=True)
class OneHot(_Categorical):
    """Replace each column of categories by indicators, one for each category of the training rows.

    A missing value is a category too, if the training rows have one.

    Args:
        columns: names or positions of columns of categories; by default, all columns of this kind.
        unknown: treatment of a category that training did not see. ``missing`` treats it as a missing value, or gives
            indicators of 0 if training had no missing value. ``ignore`` gives indicators of 0. ``error`` raises
            DataError.

    Raises:
        UsageError: there are no columns of categories, or ``unknown`` is not one of these values.
    """

    def width(self, dataset: Dataset) -> int:
        """Return the number of features after the step, estimated from the first chunk of rows."""
        wanted = self.columns if self.columns is not None else category_positions(dataset)
        names = dataset.source.columns or ()
        places = {name: column for column, name in enumerate(names)}
        at = [places.get(c, c) if isinstance(c, str) else c for c in wanted]
        inside = [c for c in at if isinstance(c, int) and c < dataset.source.n_features]
        return dataset.n_features + sum(n - 1 for n in first_chunk_counts(dataset.source, inside))


@dataclass(frozen=True)
class Ordinal(_Categorical):
    """Replace each category by its rank 0, 1, ... among the categories of the training rows; "missing" is last.

    Args:
        columns: as in ``OneHot``.
        unknown: treatment of a category that training did not see. ``missing`` treats it as a missing value, or gives
            the rank −1 if training had no missing value. ``ignore`` gives the rank −1. ``error`` raises DataError.

    Raises:
        UsageError: as in ``OneHot``.
    """


@dataclass(frozen=True)
class TargetEncode(Learning):
    """Replace categories by the mean target of their rows, or by class shares; for columns of many categories.

    In prediction, the means are over all training rows. For training, the rows are divided into folds, by a hash of
    their ids or of their groups. Each row gets means over the other folds, so the mean of its category does not
    contain its own target. If rows have a time, folds follow it. A row then gets means over earlier folds. All rows of
    the first fold get one value, the mean target of this fold. The mean of a category with few rows is shrunk towards
    the overall mean, which is the mean over all categories' rows (Micci-Barreca 2001).

    Args:
        columns: names or positions; by default, all columns of categories.
        smooth: weight of the overall mean in the mean of each category, as a number of rows.
        folds: number of folds of the training rows, at least 2.
        task: ``classification`` or ``regression``; by default, that of the pipeline or estimator.

    Raises:
        UsageError: a parameter is out of range.
    """

    columns: Sequence[str | int] | None = None
    smooth: float = 10.0
    folds: int = 5
    task: str = ""

    def __post_init__(self) -> None:
        require_columns(self)
        require_counts(self, folds=2)
        require_types(self, "smooth")
        if self.smooth < 0 or self.task not in ("", "classification", "regression") or self.folds > MAX_FOLDS:
            raise UsageError(
                f"smooth is {self.smooth!r}, folds {self.folds!r}, task {self.task!r}.",
                where="TargetEncode",
                expected=f"smooth >= 0, at most {MAX_FOLDS} folds, classification or regression",
            )

    def contribution(self, dataset: Dataset) -> Contribution | None:
        rows = dataset._folds(self.folds)
        return TargetSums(self._positions(dataset), self.folds, self.task == "classification", rows=rows)

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> tuple[Transform, ...]:
        assert sums is not None
        positions = self._positions(dataset)
        labels, rows = labels_of(dataset, positions), dataset._folds(self.folds)
        categories, tables = [], []
        for name, found in zip(labels, sums[0].columns, strict=True):
            if found is None:
                raise _too_many(name)
            folds = fold_count(self.folds, rows)
            values, made = _means(found, folds, self.smooth, self.task == "classification", name, rows)
            categories.append(values)
            tables.append(made)
        return (TargetMeans(dataset.n_features, positions, tuple(categories), tuple(tables), self.folds, labels, rows),)

    def bytes(self, d: int) -> int:
        return _sums_bytes(self.columns)

    def _positions(self, dataset: Dataset) -> tuple[int, ...]:
        if self.columns is None:
            return category_positions(dataset)
        return column_positions(self.columns, dataset, "TargetEncode(columns=...)")


class TargetSums:
    """Sum targets by category and fold, for each column; ``squares`` adds sums of squares (c,), zeros for labels."""

    def __init__(
        self, columns: tuple[int, ...], folds: int, classes: bool, squares: bool = False, rows: Folds | None = None
    ) -> None:
        self.columns, self.classes, self.squares, self.rows = columns, classes, squares, rows
        self.folds = fold_count(folds, rows)

    def __call__(self, block: tuple[RawRows, str], state: Any) -> tuple[Any, ...]:
        raw, _ = block
        assert raw.y is not None
        fold = fold_numbers(raw.ids, self.folds, self.rows)
        w = np.ones(len(raw.ids)) if raw.w is None else raw.w
        y = raw.y.reshape(len(raw.y), -1)
        if self.classes:
            labels, codes = np.unique(raw.y.astype(str) if raw.y.dtype == object else raw.y, return_inverse=True)
            names: list[Any] = labels.tolist()
        else:
            codes, names = np.zeros(len(y), dtype=np.int64), list(range(y.shape[1]))
        # Numbers have no means by value for several labels a row, or more classes than have a mean each.
        without = self.squares and self.classes and (raw.y.ndim > 1 or len(names) > MAX_CLASSES_OF_MEANS)
        found: list[CategorySums | None] = []
        for column in self.columns:
            values, at = np.unique(raw.X[:, column], return_inverse=True)
            if without or len(values) > MAX_CATEGORIES:
                found.append(None)
                continue
            flat = at * self.folds + fold
            mass = np.bincount(flat, w, minlength=len(values) * self.folds).reshape(len(values), self.folds)
            cells = (flat * len(names) + codes) if self.classes else flat[:, None] * len(names) + np.arange(len(names))
            terms = w if self.classes else w[:, None] * y
            places, where = np.unique(cells, return_inverse=True)
            sums = np.bincount(where.ravel(), terms.ravel(), len(places))
            last = np.inf if np.isnan(values[-1:]).any() else None  # NaN is not equal to itself
            values = values.astype(np.float64) if last is None else np.append(values[:-1].astype(np.float64), last)
            there = np.asarray(mass.any(axis=1))
            found.append(CategorySums(values, names, mass, places[sums != 0], sums[sums != 0]).of(there))
        table = SumsByColumn(tuple(found), MAX_CATEGORIES)
        return (table, np.zeros(1) if self.classes else w @ np.square(y)) if self.squares else (table,)


@dataclass(frozen=True, eq=False)
class CategorySums:
    """Sums of weights by category and fold, (v, folds), and of weighted targets by output; cells of one column add.

    The v categories ascend, infinity for a missing value; ``outputs`` are ascending labels, or positions of outputs.
    ``places`` are ascending positions of the targets' sums in an array of shape (v, folds, outputs).
    """

    values: Array
    outputs: list[Any]
    mass: Array
    places: IntArray
    sums: Array

    def __len__(self) -> int:
        return len(self.values)

    def of(self, there: Array) -> CategorySums:
        """Return the cells of some categories, a mask of shape (v,); the others have no sums."""
        if there.all():
            return self
        cells = self.mass.shape[1] * len(self.outputs)
        rank = np.cumsum(there) - 1
        places = rank[self.places // cells] * cells + self.places % cells
        return CategorySums(self.values[there], self.outputs, self.mass[there], places, self.sums)

    def __add__(self, other: CategorySums) -> CategorySums:
        values, outputs = np.union1d(self.values, other.values), sorted({*self.outputs, *other.outputs})
        number = {output: j for j, output in enumerate(outputs)}
        folds = self.mass.shape[1]
        mass, places = np.zeros((len(values), folds)), []
        for part in (self, other):
            at = np.searchsorted(values, part.values)
            mass[at] += part.mass
            cell, output = np.divmod(part.places, max(1, len(part.outputs)))
            i, fold = np.divmod(cell, folds)
            moved = np.array([number[output] for output in part.outputs], dtype=np.int64)
            places.append((at[i] * folds + fold) * len(outputs) + moved[output])
        joined, where = np.unique(np.concatenate(places), return_inverse=True)
        sums = np.bincount(where, np.concatenate([self.sums, other.sums]), len(joined))
        return CategorySums(values, outputs, mass, joined, sums)


class SumsByColumn:
    """Cells or counts of some columns, which add column by column; None for a column with more than ``most``."""

    def __init__(self, columns: tuple[Any, ...], most: int) -> None:
        self.columns, self.most = columns, most

    def __add__(self, other: SumsByColumn) -> SumsByColumn:
        pairs = zip(self.columns, other.columns, strict=True)
        joined = (None if one is None or more is None else one + more for one, more in pairs)
        return SumsByColumn(
            tuple(None if each is None or len(each) > self.most else each for each in joined), self.most
        )


def category_sums(found: CategorySums, folds: int, classes: bool) -> tuple[Array, list[Any], Array, Array]:
    """Return ascending values, outputs, weights (folds, values) and target sums (folds, values, outputs)."""
    there = np.unique(found.places % max(1, len(found.outputs)))  # of outputs that have a sum
    outputs = [found.outputs[j] for j in there.tolist()]
    sums = np.zeros((len(found.values), folds, max(1, len(found.outputs))))
    sums.reshape(-1)[found.places] = found.sums
    sums = sums[:, :, there] if outputs else sums[:, :, :1]
    if classes and len(outputs) == 2:
        outputs, sums = outputs[1:], sums[:, :, 1:]
    return found.values.copy(), outputs, found.mass.T.copy(), np.ascontiguousarray(sums.transpose(1, 0, 2))


def _means(
    found: CategorySums, folds: int, smooth: float, classes: bool, name: str, rows: Folds | None = None
) -> tuple[Array, Array]:
    """Categories and their means, shape (folds + 1, categories + 1, outputs)."""
    values, outputs, mass, sums = category_sums(found, folds, classes)
    if classes and len(outputs) > MAX_CLASSES_OF_MEANS:
        raise DataError(
            f"The column {name!r} has too many categories for indicators, and the target {len(outputs)} classes.",
            where=f"TargetEncode(({name!r},))",
            expected=f"at most {MAX_CLASSES_OF_MEANS} classes",
            remedy=f"leave the column out: exclude=[{name!r}]; or encode it with sk.OneHot or sk.Ordinal",
        )
    total, whole = sums.sum(axis=0, keepdims=True), mass.sum(axis=0, keepdims=True)
    if rows is not None and rows.steps > 1:
        own = sums[: rows.parts].sum(axis=(0, 1)) / max(float(mass[: rows.parts].sum()), 1e-300)
        sums, mass = (_earlier(each, rows) for each in (sums, mass))
        prior = sums.sum(axis=1) / np.maximum(mass.sum(axis=1), 1e-300)[:, None]
        prior[: rows.parts] = own  # the first fold in time sees nothing else
        prior = np.concatenate([prior, total.sum(axis=1) / whole.sum()])
    else:  # each leaves its own rows out
        sums, mass = total - sums, whole - mass
        # Shrink to the mean of all rows in every fold: a mean of the other folds would reveal a row's fold.
        prior = np.repeat(total.sum(axis=1) / whole.sum(), len(mass) + 1, axis=0)
    sums, mass = np.concatenate([sums, total]), np.concatenate([mass, whole])
    made = (sums + smooth * prior[:, None]) / np.maximum(mass + smooth, 1e-300)[:, :, None]
    made = np.where((mass > 0)[:, :, None], made, prior[:, None])
    values[np.isinf(values)] = np.nan
    return values, np.concatenate([made, prior[:, None]], axis=1)


def _earlier(sums: Array, rows: Folds) -> Array:
    """Sums over the folds that are earlier in time, of other groups: no other fold changes them by rounding."""
    by_step = sums.reshape(rows.steps, rows.parts, *sums.shape[1:])
    if rows.parts > 1:
        by_step = np.stack([np.delete(by_step, part, axis=1).sum(axis=1) for part in range(rows.parts)], axis=1)
    before = np.concatenate([np.zeros_like(by_step[:1]), np.cumsum(by_step[:-1], axis=0)])
    return before.reshape(sums.shape)


def fold_count(folds: int, rows: Folds | None) -> int:
    """Return the number of folds of training rows."""
    return folds if rows is None else rows.steps * rows.parts


class Categories:
    """The values of some columns, with their rows (None beyond ``MAX_CATEGORIES``) and texts; adding joins them."""

    def __init__(self, counts: SumsByColumn, words: tuple[dict[float, str], ...]) -> None:
        self.counts, self.words = counts, words

    def __add__(self, other: Categories) -> Categories:
        words = tuple(a | b for a, b in zip(self.words, other.words, strict=True))
        return Categories(self.counts + other.counts, words)

    @cached_property
    def values(self) -> tuple[Array | None, ...]:
        """Ascending values of each column, NaN last; None for a column with too many values."""
        columns = self.counts.columns
        ascending = (None if found is None else np.array(sorted(found), dtype=np.float64) for found in columns)
        return tuple(None if values is None else np.where(np.isinf(values), np.nan, values) for values in ascending)

    def texts(self) -> tuple[tuple[str | None, ...], ...]:
        """Texts of the values of each column, in their order; none for a column with too many values."""
        pairs = zip(self.values, self.words, strict=True)
        return tuple(tuple(words.get(v) for v in values.tolist()) for values, words in pairs if values is not None)


class CategoriesSeen:
    """Collect the values of some columns, with infinity for a missing value."""

    def __init__(self, columns: tuple[int, ...], dataset: Dataset) -> None:
        self.columns, self.source = columns, dataset.source
        names, stored = dataset.columns, {name: at for at, name in enumerate(dataset.source.columns or ())}
        # Earlier transforms may have moved a stored column.
        self.stored = tuple(stored.get(names[c], -1) if names else -1 for c in columns)
        self.names = labels_of(dataset, columns)

    def __call__(self, block: tuple[RawRows, str], state: Any) -> tuple[Any, ...]:
        """Return the values in one block."""
        raw, where = block
        counts: list[Counter[float] | None] = []
        words: list[dict[float, str]] = []
        for column, stored, name in zip(self.columns, self.stored, self.names, strict=True):
            x = raw.X[:, column].astype(np.float64)
            if np.isinf(x).any():
                raise DataError(
                    "A category is infinity.",
                    where=f"{where}, row {int(raw.ids[np.argmax(np.isinf(x))])}, column {name!r}",
                    expected="a finite number, or a missing value",
                    remedy="correct the value, or leave it empty",
                )
            values, rows = np.unique(x, return_counts=True)
            few = len(values) <= MAX_CATEGORIES
            values_or_inf = np.where(np.isnan(values), np.inf, values).tolist()
            counts.append(Counter(dict(zip(values_or_inf, rows.tolist(), strict=True))) if few else None)
            known: Mapping[float, str] = self.source.words(stored) if stored >= 0 and few else {}
            words.append({v: known[v] for v in values.tolist() if v in known})
        return (Categories(SumsByColumn(tuple(counts), MAX_CATEGORIES), tuple(words)),)


def labels_of(dataset: Dataset, columns: Sequence[int]) -> tuple[str, ...]:
    """Return names of features for messages, or positions if they have no names."""
    names = dataset.columns
    return tuple(str(column) if names is None else names[column] for column in columns)


def _too_many(name: str) -> DataError:
    return DataError(
        f"Column {name!r} has more than {MAX_CATEGORIES:,} different values.",
        where="categories",
        expected="a column of categories",
        remedy=f"leave it out, as you would an id: exclude=[{name!r}]; or out of columns=(...) if it is a number",
    )


def first_chunk_counts(source: Source, columns: Sequence[int]) -> tuple[int, ...]:
    """Number of distinct values of stored columns in the first chunk, which is read for it once."""

    def count(column: int, X: Array | None) -> int:
        return 1 if X is None else max(1, len(np.unique(X[:, column])))

    return tuple(of_first_chunk(source, columns, count))


def related_rows_notes(dataset: Dataset) -> list[str]:
    """Say of columns of dates or ids, in a sentence each, that rows held out at random know others through them.

    Nothing is said of rows with a time or a group. Ids are recognised by their name; of the first chunk's, each value
    has ``MIN_ROWS_OF_ID`` rows on average.
    """
    source = dataset.source
    if dataset.roles is not None or source.columns is None:
        return []
    kinds = {} if source.schema is None else {column.name: column.kind for column in source.schema.columns}
    found = [
        f"{name!r} has dates: a random split trains on later rows than it tests on; if the model is to predict the "
        f"future, open the rows with time={name!r}"
        for name in source.columns
        if kinds.get(name) == "datetime"
    ][:1]
    ids = [j for j, name in enumerate(source.columns) if _ID.search(str(name)) and kinds.get(name) != "datetime"]
    rows = int(np.diff(source.bounds[:2]).sum())
    for j, count in zip(ids, first_chunk_counts(source, ids), strict=True):
        if count > 1 and count * MIN_ROWS_OF_ID <= rows:
            name = source.columns[j]
            found.append(
                f"{name!r} has {count:,} values in {rows:,} rows: a random split has rows of a value on both sides; if "
                f"the model is to predict new values, open the rows with group={name!r}"
            )
    return found


_ID = re.compile(r"(^|[^a-zA-Z])[iI][dD]$|[a-z]I[dD]$")


def require_encoded(dataset: Dataset, steps: Sequence[Step]) -> None:
    """Raise UsageError if a feature is text and no step encodes it: its integer codes have no numerical meaning."""
    text, names = dataset.source.text, {name: at for at, name in enumerate(dataset.source.columns or ())}
    encoding = [step for step in steps if isinstance(step, _Categorical | TargetEncode)]
    if any(step.columns is None for step in encoding):
        return
    named = {column for step in encoding for column in step.columns or ()}
    for name in () if dataset.transforms else text:
        if name in names and not {name, names[name]} & named:
            raise UsageError(
                f"The feature {name!r} is text.",
                where="preprocess",
                expected="a step that encodes it",
                remedy=f"preprocess=(sk.OneHot(({name!r},)),), or leave it out: exclude=[{name!r}]",
            )
