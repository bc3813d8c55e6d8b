"""``preprocess="auto"``: steps by each column's kind and statistics, after skrub's ``TableVectorizer``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.encoders import BY_VALUE, ByValue, Calendar, Curves, Encode, Encoder, Keep, TargetMeans
from streamkern.data.row_order import RawRows
from streamkern.data.row_selection import SelectedIds
from streamkern.data.statistics import Statistics, scale_warning
from streamkern.data.transforms import Fill, Transform
from streamkern.defaults import (
    APPENDED_SAMPLE_BYTES,
    APPENDED_SAMPLE_ROWS,
    MAX_CATEGORIES,
    MAX_CLASSES_OF_MEANS,
    MAX_EXAMINED_TEXTS,
    MAX_INDICATORS,
    MAX_NUMBER_COLUMNS,
    QUANTILE_KNOTS,
)
from streamkern.errors import DataError, UsageError, require_counts
from streamkern.preprocessing.appended_columns import (
    AppendedColumns,
    appended_columns,
    appended_in_first_chunk,
    explains_more,
    units_differ,
)
from streamkern.preprocessing.category_steps import (
    CategoriesSeen,
    CategorySums,
    SumsByColumn,
    TargetEncode,
    TargetSums,
    category_sums,
    first_chunk_counts,
    fold_count,
    labels_of,
    related_rows_notes,
)
from streamkern.preprocessing.steps import (
    Contribution,
    Learning,
    Standardise,
    Step,
    Units,
    column_positions,
    require_columns,
    unchanged_rows,
)
from streamkern.rng import Draw
from streamkern.sources.input_types import DAY, looks_like
from streamkern.sources.schema import Schema
from streamkern.types import Array, IntArray


class _Sampled(Learning):
    def only(self, dataset: Dataset) -> IntArray | None:
        return _sample(dataset, Draw.QUANTILES)

    def contribution(self, dataset: Dataset) -> Contribution | None:
        return unchanged_rows

    def bytes(self, d: int) -> int:
        return 3 * min(APPENDED_SAMPLE_BYTES, 8 * d * APPENDED_SAMPLE_ROWS)


@dataclass(frozen=True)
class Quantile(_Sampled):
    """Map features with heavy tails to normal quantiles, as scikit-learn's ``QuantileTransformer`` does.

    The map interpolates between quantiles of a sample of the training rows. A value below the lowest quantile, or above
    the highest, is mapped like that quantile.

    Args:
        columns: names or positions; None for all columns of numbers.
        knots: number of quantiles, at least 2.

    Raises:
        UsageError: ``knots`` is below 2.
    """

    columns: tuple[str | int, ...] | None = None
    knots: int = QUANTILE_KNOTS

    def __post_init__(self) -> None:
        require_counts(self, knots=2)
        require_columns(self)

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        assert sums is not None
        X = np.concatenate(sums[0])
        chosen = _of_kind(dataset, ("number",), self.columns, "Quantile(columns=...)")
        return _curves(X, dataset.n_features, chosen, self.knots)


@dataclass(frozen=True)
class Dates(Learning):
    """Replace dates and times by parts of the calendar. A periodic part, such as the weekday, becomes sine and cosine.

    Args:
        columns: names or positions of columns of seconds since 1970; None for all columns of kind ``datetime``.
        parts: some of ``time`` (the seconds), ``year``, ``month``, ``day``, ``yearday`` (the day of the year),
            ``weekday`` and ``hour``.

    Raises:
        UsageError: a part is unknown.
    """

    columns: tuple[str | int, ...] | None = None
    parts: tuple[str, ...] = ("time", "year", "yearday", "weekday", "hour")

    def __post_init__(self) -> None:
        require_columns(self)
        several = isinstance(self.parts, list | tuple) and all(isinstance(part, str) for part in self.parts)
        object.__setattr__(self, "parts", tuple(self.parts) if several else (self.parts,))
        if not several or not Calendar(1, (0,), (self.parts,)).sound:
            raise UsageError(
                f"parts is {self.parts!r}.",
                where="Dates(parts=...)",
                expected="some of time, year, month, day, yearday, weekday, hour",
            )

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> Transform:
        chosen = _of_kind(dataset, ("datetime",), self.columns, "Dates(columns=...)")
        return Calendar(dataset.n_features, chosen, (self.parts,) * len(chosen))

    def width(self, dataset: Dataset) -> int:
        columns = len(self.columns) if self.columns is not None else len(_kinds(dataset).positions("datetime"))
        return dataset.n_features + columns * (Calendar(1, (0,), (self.parts,)).n_out - 1)


@dataclass(frozen=True)
class JoinQuantiles(_Sampled):
    """Append normal quantiles to numbers of unlike units, and means by value; leave rows of one unit.

    Rows are standardised if quantiles were appended, for units unlike in a sample, or if all rows' variances show such.
    See ``appended_columns``; ``task`` and ``means`` are as in ``automatic``.
    """

    task: str = ""
    means: bool = False

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> tuple[Transform, ...]:
        assert sums is not None
        X = np.concatenate(sums[0])
        if not units_differ(X):
            return ()
        return tuple(_appended(X, X.shape[1], appended_columns(X, range(X.shape[1])), self.means))

    def width(self, dataset: Dataset) -> int:
        found = appended_in_first_chunk(dataset.source, range(dataset.n_features), alike=False)
        return dataset.n_features + len(found.quantiles) + len(found.means) * self.means

    def bytes(self, d: int) -> int:
        return super().bytes(d) + MeansByValue().bytes(d) * self.means

    def rest(self, dataset: Dataset) -> tuple[Step | AutoScale, ...]:
        """Return the steps that follow: means by value, then the scaling."""
        return (*_means_by_value(dataset, self.task), Standardise() if dataset.transforms else Units())


@dataclass(frozen=True)
class Auto(Learning):
    """Preprocess a table's columns by kind, from one sweep; means of the target take another. See ``automatic``."""

    task: str
    categories: int = 0
    means: bool = True

    def contribution(self, dataset: Dataset) -> Contribution | None:
        return TableSums(dataset, self.task == "classification")

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> tuple[Transform, ...]:
        """Return transforms: fill and mark gaps, append quantiles, encode categories and dates, drop columns."""
        assert sums is not None
        n, gaps, pieces, seen, (labels,) = *sums[:4], sums[4].columns
        schema, d = _kinds(dataset), dataset.n_features
        X = np.concatenate(pieces)
        kinds = [column.kind for column in schema.columns]
        values, marked, dropped = np.full(d, np.nan), [], set[int]()
        parts: dict[int, tuple[str, ...]] = {}
        for j in (j for j in range(d) if kinds[j] != "category"):
            x = X[~np.isnan(X[:, j]), j]
            if gaps[j] == n:
                dropped.add(j)
                continue
            middle = float(np.median(x)) if len(x) else 0.0
            values[j] = float(middle >= 0.5) if kinds[j] == "boolean" else middle
            if gaps[j]:
                marked.append(j)
            if kinds[j] == "datetime":
                parts[j] = _parts(x)
        one_hot: dict[int, Array] = {}
        words: dict[int, tuple[str | None, ...]] = {}
        for number, j in enumerate(schema.positions("category")):
            found, counts = seen.values[number], seen.counts.columns[number]
            almost_unique = found is not None and len(found) > max(MAX_INDICATORS, (n - gaps[j]) / 2)
            if found is None or len(found) < 2 or almost_unique:
                dropped.add(j)
            elif len(found) <= MAX_INDICATORS:
                one_hot[j] = found
            elif labels is None:  # with too many classes for a mean each, keep the most frequent categories
                often = sorted(counts, key=lambda value: (-counts[value], value))[:MAX_INDICATORS]
                one_hot[j] = np.sort(np.where(np.isinf(often), np.nan, often))
            words[j] = tuple(seen.words[number].get(v) for v in one_hot.get(j, np.empty(0)).tolist())
        numbers = appended_columns(X, [j for j in schema.positions("number") if j not in dropped])
        if len(dropped) == len(schema.columns):
            raise DataError(
                "No column distinguishes rows: each has no value, one value only, or too many categories.",
                where='preprocess="auto"',
                expected="at least one column of numbers, dates or categories",
                remedy="check which columns were read; preprocess=None takes them as they are",
            )
        made: list[Transform] = []  # each refers to columns by their positions after those before it
        width = len(schema.columns) + len(marked)
        if np.isfinite(values).any():  # a column without missing values in training may have some later
            made.append(Fill(values, tuple(marked)))
        made += _appended(X, width, numbers, self.means and labels is not None)
        width = made[-1].n_out if made else width
        begins = np.arange(width + 1)
        if one_hot:
            names, texts = tuple(schema.names[j] for j in one_hot), tuple(words[j] for j in one_hot)
            encode = Encode(width, tuple(one_hot), tuple(one_hot.values()), True, "missing", names, texts)
            made.append(encode)
            begins, width = encode.begins(), encode.n_out
        if parts:
            calendar = Calendar(width, tuple(begins[list(parts)].tolist()), tuple(parts.values()))
            made.append(calendar)
            begins, width = calendar.begins()[begins], calendar.n_out
        if dropped:
            gone = {int(begins[j]) for j in dropped}
            made.append(Keep(width, tuple(j for j in range(width) if j not in gone)))
        return tuple(made)

    def width(self, dataset: Dataset) -> int:
        schema = _kinds(dataset)
        columns = schema.positions("category")
        counts = first_chunk_counts(dataset.source, columns) if columns else ()
        more = sum(count - 1 for count in counts if count <= MAX_INDICATORS)
        dates = Calendar(1, (0,), (Dates().parts,)).n_out - 1
        marked = sum(column.kind != "category" and column.missing is not False for column in schema.columns)
        known = marked if schema.missing else 0
        numbers = appended_in_first_chunk(dataset.source, schema.positions("number"))
        more += len(numbers.quantiles) + len(numbers.means) * self.means
        return dataset.n_features + more + dates * len(schema.positions("datetime")) + known

    def bytes(self, d: int) -> int:
        """Bytes of the sample, joined, of a column of it, and of categories and values in sums waiting to be added."""
        sums = 8 * 100 * MAX_CATEGORIES * self.categories + MeansByValue().bytes(d) * self.means
        return 3 * min(APPENDED_SAMPLE_BYTES, 8 * d * APPENDED_SAMPLE_ROWS) + sums

    def rest(self, dataset: Dataset) -> tuple[Step | AutoScale, ...]:
        """Return the steps that follow: means for the remaining categories, then the scaling."""
        left = tuple(j for j, tag in enumerate(feature_roles(dataset)) if tag == "category")
        means = (TargetEncode(left, task=self.task),) if left else ()
        return (*means, *_means_by_value(dataset, self.task), AutoScale())


def _appended(X: Array, width: int, found: AppendedColumns, means: bool) -> list[Transform]:
    """The transforms that append quantiles, and copies of columns by whose values means may be taken."""
    made: list[Transform] = []
    if found.quantiles:
        made.append(_curves(X, width, found.quantiles, QUANTILE_KNOTS, kept=True))
        width += len(found.quantiles)
    return [*made, ByValue(width, tuple(found.means))] if means and found.means else made


def _means_by_value(dataset: Dataset, task: str) -> tuple[Step, ...]:
    return (MeansByValue(task=task),) if "value" in feature_roles(dataset) else ()


@dataclass(frozen=True)
class MeansByValue(TargetEncode):
    """Append mean targets by value, for numbers whose values act as codes; see ``appended_columns.explains_more``."""

    def contribution(self, dataset: Dataset) -> Contribution | None:
        rows = dataset._folds(self.folds)
        return TargetSums(self._positions(dataset), self.folds, self.task == "classification", squares=True, rows=rows)

    def fitted(self, dataset: Dataset, sums: tuple[Any, ...] | None) -> tuple[Transform, ...]:
        """Return the means by value that explain more than neighbouring values, and drop the other copies."""
        assert sums is not None
        table, squares = sums
        chosen: dict[int, CategorySums] = {}
        for column, found in zip(self._positions(dataset), table.columns, strict=True):
            if found is None or len(found.outputs) > MAX_CLASSES_OF_MEANS:  # a sample had fewer values
                continue
            folds = fold_count(self.folds, dataset._folds(self.folds))
            _, _, mass, targets = category_sums(found, folds, self.task == "classification")
            total, summed = float(mass.sum()), targets.sum(axis=(0, 1))
            mean = summed / total
            variance = float(np.sum((summed if self.task == "classification" else squares) - total * np.square(mean)))
            more = explains_more(mass, targets - mass[:, :, None] * mean, self.smooth, variance)
            if more and (len(chosen) + 1) * len(mean) <= MAX_NUMBER_COLUMNS:  # each output has a mean
                chosen[column] = found
        values = set(self._positions(dataset))
        stay = tuple(j for j in range(dataset.n_features) if j in chosen or j not in values)
        keep = Keep(dataset.n_features, stay)
        if not chosen:
            return (keep,)
        means = TargetEncode(tuple(np.searchsorted(stay, list(chosen)).tolist()), self.smooth, self.folds, self.task)
        (made,) = means.fitted(dataset.transform(keep), (SumsByColumn(tuple(chosen.values()), MAX_CATEGORIES),))
        copied = next(each for each in dataset.transforms if isinstance(each, ByValue)).columns
        names = dataset.source.columns or [str(j) for j in range(dataset.source.n_features)]
        places = dict(zip(self._positions(dataset), copied, strict=True))
        return keep, replace(
            cast(TargetMeans, made), labels=tuple(names[places[column]] + BY_VALUE for column in chosen)
        )

    def _positions(self, dataset: Dataset) -> tuple[int, ...]:
        return tuple(j for j, tag in enumerate(feature_roles(dataset)) if tag == "value")


@dataclass(frozen=True)
class AutoScale:
    """Standardise the features that are numbers, once the other steps are fitted and the features known."""

    def settled(self, dataset: Dataset) -> Standardise:
        """Return the scaling of numbers and times; indicators, sines and cosines already have unit size."""
        return Standardise(tuple(j for j, tag in enumerate(feature_roles(dataset)) if tag == "number"))


class TableSums:
    """Sums of rows, missing values of each column, a sample, categories and classes."""

    def __init__(self, dataset: Dataset, classes: bool) -> None:
        schema = _kinds(dataset)
        self.names, self.classes = schema.names, classes
        self.seen = CategoriesSeen(schema.positions("category"), dataset)
        self.measured = [j for j, column in enumerate(schema.columns) if column.kind != "category"]
        self.sample = _sample(dataset, Draw.COLUMNS)

    def __call__(self, block: tuple[RawRows, str], state: Any) -> tuple[Any, ...]:
        """Return the sums over one block."""
        raw, where = block
        X = raw.X.astype(np.float64, copy=False)
        bad = np.isinf(X[:, self.measured])
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise DataError(
                "A feature is infinity.",
                where=f"{where}, row {int(raw.ids[row])}, column {self.names[self.measured[column]]!r}",
                expected="finite numbers; Input X contains NaN or infinity",
                remedy="correct the value, or leave it empty: a missing value is filled",
            )
        taken = slice(None) if self.sample is None else SelectedIds(self.sample).keep(raw.ids)
        labels: Counter[Any] | None = Counter()
        if self.classes and raw.y is not None:
            found = Counter(raw.y.tolist()) if raw.y.ndim == 1 else None  # no means for several labels a row
            labels = found if found is not None and len(found) <= MAX_CLASSES_OF_MEANS else None
        classes = SumsByColumn((labels,), MAX_CLASSES_OF_MEANS)
        return len(X), np.isnan(X).sum(axis=0), (X[taken].copy(),), *self.seen(block, state), classes


def automatic(dataset: Dataset, task: str, adaptive: bool, scaled: bool, means: bool = True) -> tuple[Step, ...]:
    """Return the steps of ``preprocess="auto"``.

    With ``adaptive``, kernel and centers follow the rows, so that their units may be changed; with ``scaled``, the user
    requests standardised features anyway; with ``means``, features of a row may depend on the targets of others.
    """
    schema = dataset.source.schema
    if dataset.transforms:
        return ()
    if schema is not None and (not schema.plain or schema.missing):
        return (Auto(task, len(schema.positions("category")), means),)
    as_stored = np.ndim(dataset.factor) == 0 and np.ndim(dataset.shift) == 0
    if not adaptive or scaled or not as_stored:
        return ()
    return (JoinQuantiles(task, means),) if 1 < dataset.n_features <= MAX_NUMBER_COLUMNS else (Units(),)


def feature_roles(dataset: Dataset) -> list[str]:
    """Return each feature's role: number, boolean, category or time not encoded, indicator, or part of a cycle."""
    found = [column.kind for column in _kinds(dataset).columns] or ["number"] * dataset.source.n_features
    for transform in dataset.transforms:
        if isinstance(transform, Fill):
            found += ["indicator"] * len(transform.indicators)
        elif isinstance(transform, Encoder):
            found = transform.roles(found)
    return found


def preprocessing_notes(dataset: Dataset, steps: Sequence[Any], facts: Statistics) -> list[str]:
    """Return the automatic choices and their reasons, a sentence each; ``facts`` are of rows before scaling."""
    found = column_notes(dataset)
    if any(isinstance(step, Units | JoinQuantiles) for step in steps):
        curves = [each for each in dataset.transforms if isinstance(each, Curves)]
        joined = [_joined_note(labels_of(dataset, each.columns)) for each in curves]
        means = [_means_note(each) for each in dataset.transforms if isinstance(each, TargetMeans)]
        return [*found, Units().reason(facts.variance[: dataset.source.n_features], bool(joined)), *joined, *means]
    if not any(isinstance(step, Auto) for step in steps):
        return found
    names: Sequence[str] = dataset.source.columns or ()
    all_tags = feature_roles(dataset)
    for transform in dataset.transforms:
        columns = [names[j] for j in getattr(transform, "columns", ())]
        if isinstance(transform, Fill) and transform.indicators:
            gaps = [names[j] for j in transform.indicators]
            found.append(f"missing values filled with the median and marked: {_listed(gaps)}")
        elif isinstance(transform, Curves):
            found.append(_joined_note(columns))
        elif isinstance(transform, Encode):
            counted = [f"{c} ({len(v):,})" for c, v in zip(columns, transform.categories, strict=True)]
            found.append(f"an indicator for each category: {_listed(counted)}")
        elif isinstance(transform, TargetMeans):
            found.append(_means_note(transform))
        elif isinstance(transform, Calendar):
            found.append(f"dates as parts of the calendar: {_listed(columns)}")
        elif isinstance(transform, Keep):
            left = [name for j, name in enumerate(names) if j not in transform.columns and not name.endswith(BY_VALUE)]
            why = f"no value, one value only, or a category for every other row or {MAX_CATEGORIES:,} of them"
            found += [f"left out ({why}): {_listed(left)}"] if left else []
        names = transform.names(tuple(names)) or ()
    if numbers := [name for name, tag in zip(names, all_tags, strict=True) if tag == "number"]:
        found.append(f"standardised: {_listed(numbers)}")
    return found


def data_warnings(dataset: Dataset, steps: Sequence[Any], facts: Statistics) -> list[str]:
    """Return warnings about the rows, a sentence each: unlike scales, and texts that look like numbers or dates."""
    unlike = scale_warning(facts.variance * np.square(dataset.factor), dataset.columns)
    found = [unlike] if unlike is not None else []
    if not any(isinstance(step, Auto) for step in steps):
        return found
    for j, column in enumerate(_kinds(dataset).columns):
        # At least the texts of the first chunk, which the plan has read.
        words = [*islice(dataset.source.words(j).values(), MAX_EXAMINED_TEXTS)] if column.text else []
        if (kind := looks_like(words)) is not None:
            how = "pandas.to_numeric" if kind == "numbers" else "pandas.to_datetime"
            found.append(
                f"column {column.name!r} is text that looks like {kind} ({min(words)!r}), and counts as a category: "
                f"convert it, by {how} or in the file; if it is a category, leave it"
            )
    return found


def column_notes(dataset: Dataset) -> list[str]:
    """Return a sentence that names the index columns left out, if there are any, and ``related_rows_notes``."""
    names = [repr(name) for name in dataset.source.left_out]
    found = [f"left out (an index of the rows, unless columns= names it): {_listed(names)}"] if names else []
    return found + related_rows_notes(dataset)


def planned_note(dataset: Dataset, steps: Sequence[Any]) -> list[str]:
    """Describe the steps of the automatic preprocessing before the rows are read."""
    found = column_notes(dataset)
    if any(isinstance(step, JoinQuantiles) for step in steps):
        joined = (
            "preprocessing: if the features' units differ, which their variances will show, features are standardised "
            "and their normal quantiles are added"
        )
        return [*found, joined]
    if any(isinstance(step, Units) for step in steps):
        units = "preprocessing: features are standardised if their units differ, which their variances will show"
        return [*found, units]
    if not any(isinstance(step, Auto) for step in steps):
        return found
    schema = _kinds(dataset)
    columns = schema.positions("category")
    counts = dict(zip(columns, first_chunk_counts(dataset.source, columns) if columns else (), strict=True))
    counted_each = ", ".join(f"{schema.names[j]}: {count:,}" for j, count in [*counts.items()][:6])
    words = []
    plurals = {"number": "numbers", "boolean": "booleans", "category": "categories", "datetime": "dates"}
    for kind, plural in plurals.items():
        if there := schema.positions(kind):
            words.append(f"{len(there)} {plural}" + (f" ({counted_each})" if kind == "category" else ""))
    counted = "; categories as the first chunk has them" if columns else ""
    return [*found, f"preprocessing by the kinds of columns: {', '.join(words)}{counted}"]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _kinds(dataset: Dataset) -> Schema:
    schema = dataset.source.schema
    return Schema(()) if schema is None else schema


def _of_kind(dataset: Dataset, kinds: tuple[str, ...], columns: Any, where: str) -> tuple[int, ...]:
    if columns is not None:
        return column_positions(columns, dataset, where)
    schema, names = dataset.source.schema, dataset.columns
    if schema is None or names is None:
        return tuple(range(dataset.n_features)) if "number" in kinds else ()
    chosen = {column.name for column in schema.columns if column.kind in kinds}
    return tuple(j for j, name in enumerate(names) if name in chosen)


def _sample(dataset: Dataset, name: int) -> IntArray | None:
    """A sample of all rows is None."""
    rows = min(APPENDED_SAMPLE_ROWS, max(1, APPENDED_SAMPLE_BYTES // (8 * dataset.n_features)))
    return None if rows >= dataset.base_rows else np.sort(dataset.draw(rows, name))


def _means_note(means: TargetMeans) -> str:
    counted = [f"{name} ({len(values):,})" for name, values in zip(means.labels, means.categories, strict=True)]
    return f"means of the target for each category, out of fold: {_listed(counted)}"


def _joined_note(columns: Sequence[str]) -> str:
    return f"normal quantiles added as further columns: {_listed(columns)}"


def _curves(X: Array, d: int, columns: Sequence[int], knots: int, kept: bool = False) -> Curves:
    """Equal quantiles of the sample map to the middle of their normal quantiles."""
    from scipy.special import ndtri

    levels = (np.arange(knots) + 0.5) / knots
    heights = ndtri(levels)
    made, at = [], []
    for j in columns:
        x = X[~np.isnan(X[:, j]), j]
        ends, place = np.unique(np.quantile(x, levels) if len(x) else np.zeros(1), return_inverse=True)
        sums = np.bincount(place, heights if len(x) else np.zeros(1)) / np.bincount(place)
        made.append(ends)
        at.append(sums)
    return Curves(d, tuple(columns), tuple(made), tuple(at), kept)


def _parts(x: Array) -> tuple[str, ...]:
    """Return the parts of the calendar that differ among these times."""
    span = float(np.ptp(x)) if len(x) else 0.0
    years = x.astype("datetime64[s]").astype("datetime64[Y]")
    checks = (
        ("time", True),
        ("year", len(np.unique(years)) > 1),
        ("yearday", span > 30 * DAY),
        ("weekday", span >= 2 * DAY),
        ("hour", len(np.unique(x % DAY)) > 1),
    )
    return tuple(part for part, varies in checks if varies)
