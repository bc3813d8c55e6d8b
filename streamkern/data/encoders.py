"""Fitted transforms of single columns: categories, heavy tails, dates. Each replaces a column in place."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from streamkern.data.row_roles import Folds
from streamkern.defaults import DATE_PART_FEATURES, MAX_UNSEEN_SHARE
from streamkern.errors import DataError, warn
from streamkern.rng import HashFamily, row_hash
from streamkern.sources.base import Source
from streamkern.sources.input_types import DAY
from streamkern.storage.serialize import serializable
from streamkern.types import Array, IntArray

Names = tuple[str, ...] | None
"""Names of features, or None."""

Unknown = Literal["missing", "error", "ignore"]
"""Treatments of a category that training did not see."""


@dataclass(eq=False)
class Lookup:
    """The texts of encoded numbers, and rows by column whose category training did not see, while rows are encoded."""

    source: Source | None = None
    unseen: Counter[str] = field(default_factory=Counter)

    def count(self, name: str, strange: Array) -> None:
        """Count the rows with an unknown category in a column; ``strange`` is their mask."""
        if rows := int(strange.sum()):
            self.unseen[name] += rows

    def word(self, name: str, number: float) -> str:
        """Return the text of an encoded value, as the user wrote it if known."""
        columns = () if self.source is None else self.source.columns or ()
        words = self.source.words(columns.index(name)) if self.source is not None and name in columns else {}
        return repr(words[number]) if number in words else category_text(number)


def unseen_notes(unseen: Mapping[str, int], rows: int, what: str = "rows") -> list[str]:
    """Return a sentence for each column in which more than ``MAX_UNSEEN_SHARE`` of the rows have an unseen category."""
    return [
        f"{found / rows:.1%} of the {what} have a category of {name!r} that training did not see; it counts as missing"
        for name, found in unseen.items()
        if found > MAX_UNSEEN_SHARE * rows
    ]


def warn_unseen(unseen: Mapping[str, int], rows: int) -> None:
    """Warn of each column in which many of the rows have a category that training did not see."""
    for note in unseen_notes(unseen, rows):
        warn(note)


def category_text(number: float, word: str | None = None) -> str:
    """Return a category's text or number for messages, unambiguously."""
    if word is not None:
        return word
    if np.isnan(number):
        return "missing"
    return f"{number:g}" if float(f"{number:g}") == number else repr(float(number))


_ARRAYS = ("categories", "means", "knots", "heights")
"""Fields with an array for each column, which a file has one behind another: means along their second axis."""


class Saved:
    """A frozen dataclass that a model saves, by its fields."""

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return name and parameters, without what is as by default, and arrays; all columns' arrays concatenated."""
        facts: dict[str, Any] = {"name": type(self).__name__}
        arrays: dict[str, Array] = {}
        for part in fields(self):  # type: ignore[arg-type]
            value = getattr(self, part.name)
            if part.name in _ARRAYS:
                arrays[part.name] = np.concatenate(value, axis=int(part.name == "means"))
                facts.setdefault("sizes", [len(each) for each in value])
            elif isinstance(value, np.ndarray):
                arrays[part.name] = value
            elif part.name != "rows" and value != part.default:
                facts[part.name] = value
        return facts, arrays


@dataclass(frozen=True, eq=False)
class Encoder(Saved, ABC):
    """A fitted transform that replaces some of ``n_in`` columns, at ascending positions; other columns stay."""

    n_in: int
    columns: tuple[int, ...]

    @property
    def made(self) -> list[int]:
        """Number of output features for each of the columns."""
        return [1] * len(self.columns)

    @property
    def n_out(self) -> int:
        """Number of output features."""
        return self.n_in - len(self.columns) + sum(self.made)

    @abstractmethod
    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        """Encode the columns, see ``Transform``; ``where`` is for errors."""

    def begins(self) -> IntArray:
        """Index of each input column's first output column, and the number of outputs: shape (n_in + 1,)."""
        widths = np.ones(self.n_in, dtype=np.int64)
        widths[list(self.columns)] = self.made
        return np.concatenate([[0], np.cumsum(widths)])

    def names(self, names: Names) -> Names:
        return None if names is None else tuple(self._replaced(names, self._named))

    def roles(self, roles: list[str]) -> list[str]:
        """Return roles of the output features, see ``feature_roles``, from those of the input features."""
        return self._replaced(roles, self._role)

    def _replaced(self, inputs: Sequence[str], make: Callable[[str, int], list[str]]) -> list[str]:
        at = {column: number for number, column in enumerate(self.columns)}
        made = (make(each, at[j]) if j in at else [each] for j, each in enumerate(inputs))
        return list(itertools.chain.from_iterable(made))

    def _named(self, name: str, number: int) -> list[str]:
        return [name]

    def _role(self, role: str, number: int) -> list[str]:
        return ["number"] * self.made[number]

    @property
    def sound(self) -> bool:
        """True if the encoder can be applied to rows: the columns are positions, each once and ascending."""
        positions = all(type(column) is int and 0 <= column < self.n_in for column in self.columns)
        return positions and list(self.columns) == sorted(set(self.columns))

    def _around(self, X: Array) -> tuple[Array, IntArray]:
        """Return output rows, with the other columns copied and zeros elsewhere; and ``begins``."""
        begins = self.begins()
        out = np.zeros((len(X), int(begins[-1])), dtype=X.dtype)
        rest = np.ones(self.n_in, dtype=bool)
        rest[list(self.columns)] = False
        out[:, begins[:-1][rest]] = X[:, rest]
        return out, begins


@serializable
@dataclass(frozen=True, eq=False)
class Encode(Encoder):
    """Encode columns of categories (ascending, NaN last) as ``one_hot`` indicators or one code, the category's rank.

    A category that training did not see is a missing value if ``unknown`` is ``missing``, a DataError if ``error``.
    ``ignore`` gives indicators of 0 or the code −1, as ``missing`` does if training had no missing value. ``words`` are
    texts of each column's categories; None for a number.
    """

    categories: tuple[Array, ...]
    one_hot: bool
    unknown: str
    labels: tuple[str, ...] = ()
    words: tuple[tuple[str | None, ...], ...] = ()

    @property
    def made(self) -> list[int]:
        return [len(values) if self.one_hot else 1 for values in self.categories]

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        out, begins = self._around(X)
        for number, (column, values) in enumerate(zip(self.columns, self.categories, strict=True)):
            x = X[:, column]
            codes, known = category_ranks(x, values)
            if not known.all():
                if self.unknown == "error":
                    self._refuse(number, float(x[i := int(np.argmin(known))]), f"{where}, row {int(ids[i])}", lookup)
                if lookup is not None:
                    lookup.count(_label(self, number), ~known & ~np.isnan(x))
                if self.unknown == "missing" and np.isnan(values[-1]):
                    codes, known = np.where(known, codes, len(values) - 1), np.ones(len(x), dtype=bool)
            if self.one_hot:
                out[np.flatnonzero(known), begins[column] + codes[known]] = 1.0
            else:
                out[:, begins[column]] = np.where(known, codes, -1)
        return out

    def _refuse(self, number: int, value: float, where: str, lookup: Lookup | None) -> None:
        values, name = self.categories[number], _label(self, number)
        some = self._texts(number)[:12]
        word = (lookup or Lookup()).word(name, value)
        raise DataError(
            f"The value {word} of column {name!r} was not among the categories of the training data.",
            where=where,
            expected="one of " + ", ".join(some) + (", ..." * (len(values) > 12)),
            remedy='correct the value, or fit with unknown="missing"',
        )

    def _texts(self, number: int) -> list[str]:
        values = self.categories[number]
        words = self.words[number] if self.words else (None,) * len(values)
        return [category_text(value, word) for value, word in zip(values, words, strict=True)]

    def _named(self, name: str, number: int) -> list[str]:
        return [f"{name}={text}" for text in self._texts(number)] if self.one_hot else [name]

    def _role(self, role: str, number: int) -> list[str]:
        return ["indicator"] * len(self.categories[number]) if self.one_hot else ["number"]

    @property
    def sound(self) -> bool:
        sizes = [len(values) for values in self.categories]
        words = all(word is None or isinstance(word, str) for words in self.words for word in words)
        named = not self.words or [len(words) for words in self.words] == sizes
        labelled = len(self.labels) in (0, len(self.columns)) and all(isinstance(name, str) for name in self.labels)
        flags = type(self.one_hot) is bool and self.unknown in get_args(Unknown)
        return super().sound and _are_categories(self) and words and named and labelled and flags


def category_ranks(x: Array, values: Array) -> tuple[IntArray, Array]:
    """Return ranks of values among ascending categories (NaN last), and whether each value is a category."""
    codes = np.minimum(np.searchsorted(values, x), len(values) - 1)
    return codes, (values[codes] == x) | (np.isnan(values[codes]) & np.isnan(x))


QUANTILE = " (quantile)"
"""Suffix that makes a column's name the name of its quantiles."""


@serializable
@dataclass(frozen=True, eq=False)
class Curves(Encoder):
    """Map columns by piecewise linear curves, such as to normal quantiles; beyond their ends curves are constant.

    Knots (k,) of a column ascend. If columns are ``kept``, mapped values are appended after all columns.
    """

    knots: tuple[Array, ...]
    heights: tuple[Array, ...]
    kept: bool = False

    @property
    def n_out(self) -> int:
        return self.n_in + (len(self.columns) if self.kept else 0)

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        out = np.concatenate([X, X[:, list(self.columns)]], axis=1) if self.kept else X
        places = range(self.n_in, self.n_out) if self.kept else self.columns
        for place, knots, heights in zip(places, self.knots, self.heights, strict=True):
            out[:, place] = np.interp(out[:, place], knots, heights)
        return out

    def names(self, names: Names) -> Names:
        if names is None or not self.kept:
            return names
        return *names, *(names[column] + QUANTILE for column in self.columns)

    def roles(self, roles: list[str]) -> list[str]:
        return roles + ["number"] * (self.n_out - self.n_in)

    @property
    def sound(self) -> bool:
        pairs = [*zip(self.knots, self.heights, strict=False)]
        ascending = all(len(a) == len(b) > 0 and a.dtype.kind == b.dtype.kind == "f" for a, b in pairs)
        ascending = ascending and all((np.diff(a) > 0).all() and np.isfinite(b).all() for a, b in pairs)
        alike = len(pairs) == len(self.columns) and type(self.kept) is bool
        return super().sound and alike and ascending


BY_VALUE = " (by value)"
"""Suffix that makes a column's name the name of its copy with values as categories."""


@serializable
@dataclass(frozen=True, eq=False)
class ByValue(Encoder):
    """Append copies of columns of numbers after all columns: each value of a copy is a category."""

    @property
    def n_out(self) -> int:
        return self.n_in + len(self.columns)

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        # Rounded to float32, so that 0.1 is the same value in both precisions.
        copies = X[:, list(self.columns)].astype(np.float32)
        return np.concatenate([X, copies.astype(X.dtype)], axis=1)

    def names(self, names: Names) -> Names:
        return None if names is None else (*names, *(names[column] + BY_VALUE for column in self.columns))

    def roles(self, roles: list[str]) -> list[str]:
        return roles + ["value"] * len(self.columns)


@serializable
@dataclass(frozen=True, eq=False)
class Calendar(Encoder):
    """Replace columns of seconds since 1970 by parts of the calendar; periodic parts become a sine and a cosine.

    A missing time is missing in all parts. ``time`` (the seconds) keeps the column's name; ``year``, and the sine and
    cosine of ``month``, ``day`` (of the month), ``yearday``, ``weekday`` and ``hour`` (with minutes and seconds), are
    called ``column.part``, with ``.sin`` and ``.cos``.
    """

    parts: tuple[tuple[str, ...], ...]

    @property
    def made(self) -> list[int]:
        return [sum(DATE_PART_FEATURES[part] for part in parts) for parts in self.parts]

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        out, begins = self._around(X)
        for column, parts in zip(self.columns, self.parts, strict=True):
            for j, values in enumerate(_calendar(X[:, column], parts), start=int(begins[column])):
                out[:, j] = values
        return out

    def _named(self, name: str, number: int) -> list[str]:
        made: list[str] = []
        for part in self.parts[number]:
            one = [name] if part == "time" else [f"{name}.{part}"]
            made += one if DATE_PART_FEATURES[part] == 1 else [f"{name}.{part}.sin", f"{name}.{part}.cos"]
        return made

    def _role(self, role: str, number: int) -> list[str]:
        widths = [DATE_PART_FEATURES[part] for part in self.parts[number]]
        return [tag for width in widths for tag in (["number"] if width == 1 else ["turn", "turn"])]

    @property
    def sound(self) -> bool:
        known = all(parts and set(parts) <= set(DATE_PART_FEATURES) for parts in self.parts)
        return super().sound and len(self.parts) == len(self.columns) and known


def _calendar(x: Array, parts: Sequence[str]) -> list[Array]:
    seconds = np.array(x, dtype=np.float64)
    there = np.abs(seconds) < 1e13  # 300,000 years; and not NaN
    moments = np.where(there, np.floor(np.where(there, seconds, 0.0)), 0.0).astype(np.int64).astype("datetime64[s]")
    days, of_day = moments.astype("datetime64[D]"), np.where(there, seconds, 0.0) % DAY / DAY
    months, years = days.astype("datetime64[M]"), days.astype("datetime64[Y]")
    turns: dict[str, Callable[[], Array]] = {
        "month": lambda: (months - years).astype(np.float64) / 12,
        "day": lambda: (days - months).astype(np.float64) / 31,
        "yearday": lambda: ((days - years).astype(np.float64) + of_day) / 365.2425,
        "weekday": lambda: (days.astype(np.int64) + 3) % 7 / 7.0,  # 1970 began on a Thursday
        "hour": lambda: of_day,
    }
    made: list[Array] = []
    for part in parts:
        if part == "time":
            made.append(seconds)
        elif part == "year":
            made.append(np.where(there, years.astype(np.float64) + 1970, np.nan))
        else:
            angle = 2 * np.pi * turns[part]()
            made += [np.where(there, np.sin(angle), np.nan), np.where(there, np.cos(angle), np.nan)]
    return made


@serializable
@dataclass(frozen=True, eq=False)
class TargetMeans(Encoder):
    """Replace columns of categories by each category's mean target, shrunk towards the mean of all rows.

    A training row gets the means over the other folds, so that its own target does not enter its features; its fold is
    a hash of its id, or ``rows`` has it where rows have a time or a group. Other rows get means over all rows, as all
    do without folds. Categories ascend, NaN last. A column's means have shape (folds + 1, categories + 1, outputs):
    last over all rows, and for a category that training did not see.
    """

    categories: tuple[Array, ...]
    means: tuple[Array, ...]
    folds: int
    labels: tuple[str, ...] = ()
    rows: Folds | None = None

    @property
    def made(self) -> list[int]:
        return [int(means.shape[2]) for means in self.means]

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        out, begins = self._around(X)
        fold = fold_numbers(ids, self.folds, self.rows) if self.folds else np.full(len(X), -1)
        for number, (column, values, means) in enumerate(zip(self.columns, self.categories, self.means, strict=True)):
            x = X[:, column]
            codes, known = category_ranks(x, values)
            # For a copy of numbers, an unseen number is not reported.
            if lookup is not None and not (name := _label(self, number)).endswith(BY_VALUE):
                lookup.count(name, ~known & ~np.isnan(x))
            unknown = len(values) - 1 if np.isnan(values[-1]) else len(values)
            out[:, begins[column] : begins[column + 1]] = means[fold, np.where(known, codes, unknown)]
        return out

    def final(self) -> TargetMeans:
        """Return the transform for rows other than the training rows: means over all rows."""
        return replace(self, means=tuple(means[-1:] for means in self.means), folds=0, rows=None)

    def _named(self, name: str, number: int) -> list[str]:
        width = self.made[number]
        return [f"{name} (mean)"] if width == 1 else [f"{name} (mean {k})" for k in range(width)]

    @property
    def sound(self) -> bool:
        shapes = all(
            m.ndim == 3 and m.dtype.kind == "f" and m.shape[:2] == (self.folds + 1, len(values) + 1) and m.shape[2] > 0
            for m, values in zip(self.means, self.categories, strict=False)
        )
        alike = len(self.columns) == len(self.means) and len(self.labels) in (0, len(self.means))
        whole = type(self.folds) is int and 0 <= self.folds <= 100
        return super().sound and _are_categories(self) and whole and alike and shapes


def fold_numbers(ids: IntArray, folds: int, rows: Folds | None = None) -> IntArray:
    """Return the fold of each row, shape (n,): a function of its id, or as ``rows`` has it."""
    if rows is not None:
        return rows(ids)
    return (row_hash(ids, HashFamily.FOLDS) % np.uint64(folds)).astype(np.int64)


@serializable
@dataclass(frozen=True, eq=False)
class Keep(Encoder):
    """Keep some of the columns, ``columns``, and drop the others."""

    @property
    def n_out(self) -> int:
        return len(self.columns)

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        return np.ascontiguousarray(X[:, list(self.columns)])

    def names(self, names: Names) -> Names:
        return None if names is None else tuple(names[column] for column in self.columns)

    def roles(self, roles: list[str]) -> list[str]:
        return [roles[column] for column in self.columns]

    @property
    def sound(self) -> bool:
        return super().sound and len(self.columns) > 0


ENCODERS: tuple[type[Encoder], ...] = (Encode, Curves, ByValue, Calendar, TargetMeans, Keep)


def columns_of_arrays(facts: dict[str, Any], own: dict[str, Array]) -> dict[str, tuple[Array, ...]]:
    """Return the arrays of an encoder's file by column, and take their sizes out of its other facts."""
    sizes, made = np.asarray(facts.pop("sizes", ()), dtype=np.int64), {}
    for name, array in own.items():
        over = int(name == "means")  # they have one more, of unseen categories
        made[name] = tuple(np.split(array, np.cumsum(sizes + over)[:-1], axis=over))
    return made


def _label(encoder: Encode | TargetMeans, number: int) -> str:
    return encoder.labels[number] if encoder.labels else str(encoder.columns[number])


def _are_categories(encoder: Encode | TargetMeans) -> bool:
    filled = all(values.ndim == 1 and len(values) and values.dtype.kind == "f" for values in encoder.categories)
    return filled and len(encoder.categories) == len(encoder.columns)
