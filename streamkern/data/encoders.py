"""Fitted transforms of single columns: categories, heavy tails, dates. Each replaces a column where it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamkern.errors import DataError
from streamkern.rng import row_hash
from streamkern.storage.base import Source
from streamkern.storage.convert import DAY
from streamkern.storage.serialize import serializable
from streamkern.types import Array, IntArray

Names = tuple[str, ...] | None
"""Names of features, or None where they have none."""

UNKNOWN = ("missing", "error", "ignore")
"""Treatments of a category that training did not see."""

_FOLDS = 0x666F6C64  # name of the draw of folds
_TIMES = {"time": 1, "year": 1, "month": 2, "day": 2, "yearday": 2, "weekday": 2, "hour": 2}
"""Parts of a date, and how many features each makes."""


@dataclass(eq=False)
class Lookup:
    """Look-ups of encoders while they encode rows: the text of a number, and a count of unknown categories.

    Args:
        source: the stored rows.

    Attributes:
        unseen: rows with a category that training did not see, by column.
    """

    source: Source | None = None
    unseen: Counter[str] = field(default_factory=Counter)

    def word(self, name: str, number: float) -> str:
        """Return the text of an encoded value, as the user wrote it if known."""
        if self.source is not None and name in (self.source.columns or ()):
            found = self.source.words((self.source.columns or ()).index(name)).get(float(number))
            if found is not None:
                return repr(found)
        return category_text(number)


def category_text(number: float, word: str | None = None) -> str:
    """A category for people: its text, or the number, so that it is not mistaken for another."""
    if word is not None:
        return word
    if np.isnan(number):
        return "missing"
    return f"{number:g}" if float(f"{number:g}") == number else repr(float(number))


@serializable
@dataclass(frozen=True, eq=False)
class Encode:
    """Columns of categories as indicators, or as codes, in the place where they stood; other columns stay.

    Args:
        n_in: columns of a row that comes in.
        columns: positions of the columns of categories, ascending.
        categories: the values of each of them, ascending; NaN, a missing value, last.
        one_hot: whether a column becomes an indicator for each category, or one code: the category's rank.
        unknown: of a category that training did not see: ``missing`` to take it for a missing value, ``error``, or
            ``ignore``. Where training had no missing value, and for ``ignore``: indicators of 0, or the code −1.
        labels: names of the columns, for messages; none where they have none.
        words: texts of the categories of each column; None for a number.
    """

    n_in: int
    columns: tuple[int, ...]
    categories: tuple[Array, ...]
    one_hot: bool
    unknown: str
    labels: tuple[str, ...] = ()
    words: tuple[tuple[str | None, ...], ...] = ()

    @property
    def n_out(self) -> int:
        """Columns that stay, and indicators or codes."""
        return self.n_in + (sum(len(values) - 1 for values in self.categories) if self.one_hot else 0)

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        """Encode the columns."""
        begins = self.begins()
        out = np.zeros((len(X), int(begins[-1])), dtype=X.dtype)
        rest = np.ones(self.n_in, dtype=bool)
        rest[list(self.columns)] = False
        out[:, begins[:-1][rest]] = X[:, rest]
        for number, (column, values) in enumerate(zip(self.columns, self.categories, strict=True)):
            x = X[:, column]
            codes, known = located(x, values)
            name = self._label(number)
            if not known.all():
                if self.unknown == "error":
                    self._refuse(number, float(x[i := int(np.argmin(known))]), f"{where}, row {int(ids[i])}", lookup)
                if lookup is not None and (unseen := int((~known & ~np.isnan(x)).sum())):
                    lookup.unseen[name] += unseen
                if self.unknown == "missing" and np.isnan(values[-1]):
                    codes, known = np.where(known, codes, len(values) - 1), np.ones(len(x), dtype=bool)
            if self.one_hot:
                out[np.flatnonzero(known), begins[column] + codes[known]] = 1.0
            else:
                out[:, begins[column]] = np.where(known, codes, -1)
        return out

    def _label(self, number: int) -> str:
        return self.labels[number] if self.labels else str(self.columns[number])

    def _refuse(self, number: int, value: float, where: str, lookup: Lookup | None) -> None:
        values, name = self.categories[number], self._label(number)
        words = self.words[number] if self.words else (None,) * len(values)
        some = [category_text(v, word) for v, word in zip(values[:12], words, strict=False)]
        word = (lookup or Lookup()).word(name, value)
        raise DataError(
            f"The value {word} of column {name!r} was not among the categories of the training data.",
            where=where,
            expected="one of " + ", ".join(some) + (", ..." * (len(values) > 12)),
            remedy='correct the value, or fit with unknown="missing"',
        )

    def names(self, names: Names) -> Names:
        """``column=value`` for an indicator."""
        if names is None:
            return None
        made: list[str] = []
        at = {column: number for number, column in enumerate(self.columns)}
        for column, name in enumerate(names):
            if self.one_hot and column in at:
                values = self.categories[at[column]]
                words = self.words[at[column]] if self.words else (None,) * len(values)
                made += [f"{name}={category_text(value, word)}" for value, word in zip(values, words, strict=True)]
            else:
                made.append(name)
        return tuple(made)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The columns, and the categories of all of them end to end."""
        facts = {"n_in": self.n_in, "columns": list(self.columns), "one_hot": self.one_hot, "unknown": self.unknown}
        sizes = [len(values) for values in self.categories]
        texts = {"labels": list(self.labels), "words": [list(words) for words in self.words]} if self.labels else {}
        return {"name": "Encode", **facts, "sizes": sizes, **texts}, {"categories": np.concatenate(self.categories)}

    def begins(self) -> IntArray:
        """Index of each input column's first output column, and the number of outputs: shape (n_in + 1,)."""
        widths = np.ones(self.n_in, dtype=np.int64)
        if self.one_hot:
            widths[list(self.columns)] = [len(values) for values in self.categories]
        return np.concatenate([[0], np.cumsum(widths)])

    @property
    def sound(self) -> bool:
        """True if the encoder can be applied to rows."""
        filled = all(values.ndim == 1 and len(values) and values.dtype.kind == "f" for values in self.categories)
        sizes = [len(values) for values in self.categories]
        words = all(word is None or isinstance(word, str) for words in self.words for word in words)
        named = not self.words or [len(words) for words in self.words] == sizes
        labelled = len(self.labels) in (0, len(self.columns)) and all(isinstance(name, str) for name in self.labels)
        alike = len(self.columns) == len(self.categories)
        flags = type(self.one_hot) is bool and self.unknown in UNKNOWN
        return _inside(self.columns, self.n_in) and filled and words and named and labelled and alike and flags


def located(x: Array, values: Array) -> tuple[IntArray, Array]:
    """Ranks of values among ascending categories, of which NaN is the last, and whether each is one of them."""
    codes = np.minimum(np.searchsorted(values, x), len(values) - 1)
    return codes, (values[codes] == x) | (np.isnan(values[codes]) & np.isnan(x))


QUANTILE = " (quantile)"
"""Suffix of the name of a number in that of its quantiles."""


@serializable
@dataclass(frozen=True, eq=False)
class Curves:
    """Columns along piecewise linear curves, such as to normal quantiles; beyond their ends the curves are level.

    Args:
        n_in: columns of a row that comes in.
        columns: positions, ascending.
        knots: ascending values of each column, shape (k,).
        heights: the value of the curve at each knot.
        kept: whether the columns stay as they are, and their curves are appended after all columns.
    """

    n_in: int
    columns: tuple[int, ...]
    knots: tuple[Array, ...]
    heights: tuple[Array, ...]
    kept: bool = False

    @property
    def n_out(self) -> int:
        """The same width; or that and the columns once more."""
        return self.n_in + (len(self.columns) if self.kept else 0)

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Interpolate, in place unless the columns are kept; a missing value stays."""
        out = np.concatenate([X, X[:, list(self.columns)]], axis=1) if self.kept else X
        places = range(self.n_in, self.n_out) if self.kept else self.columns
        for place, knots, heights in zip(places, self.knots, self.heights, strict=True):
            out[:, place] = np.interp(out[:, place], knots, heights)
        return out

    def names(self, names: Names) -> Names:
        """The same names, and ``column (quantile)`` for the appended columns."""
        if names is None or not self.kept:
            return names
        return *names, *(names[column] + QUANTILE for column in self.columns)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The columns, and all knots end to end."""
        sizes = [len(knots) for knots in self.knots]
        facts = {"name": "Curves", "n_in": self.n_in, "columns": list(self.columns), "sizes": sizes}
        facts |= {"kept": True} if self.kept else {}
        return facts, {"knots": np.concatenate(self.knots), "heights": np.concatenate(self.heights)}

    @property
    def sound(self) -> bool:
        """True if the encoder can be applied to rows."""
        pairs = [*zip(self.knots, self.heights, strict=False)]
        ascending = all(len(a) == len(b) > 0 and a.dtype.kind == b.dtype.kind == "f" for a, b in pairs)
        ascending = ascending and all((np.diff(a) > 0).all() and np.isfinite(b).all() for a, b in pairs)
        alike = len(pairs) == len(self.columns) and type(self.kept) is bool
        return _inside(self.columns, self.n_in) and alike and ascending


BY_VALUE = " (by value)"
"""Suffix of the name of a number in that of its copy, of which each value is a category."""


@serializable
@dataclass(frozen=True, eq=False)
class ByValue:
    """Columns of numbers once more, after all columns: each value of a copy is a category.

    Args:
        n_in: columns of a row that comes in.
        columns: positions, ascending.
    """

    n_in: int
    columns: tuple[int, ...]

    @property
    def n_out(self) -> int:
        """The columns, and the copies."""
        return self.n_in + len(self.columns)

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Copy, as float32 has the numbers: 0.1 is the same value in either precision."""
        copies = X[:, list(self.columns)].astype(np.float32)
        return np.concatenate([X, copies.astype(X.dtype)], axis=1)

    def names(self, names: Names) -> Names:
        """The same names, and ``column (by value)`` for the appended columns."""
        return None if names is None else (*names, *(names[column] + BY_VALUE for column in self.columns))

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The columns."""
        return {"name": "ByValue", "n_in": self.n_in, "columns": list(self.columns)}, {}

    @property
    def sound(self) -> bool:
        """True if the encoder can be applied to rows."""
        return _inside(self.columns, self.n_in)


@serializable
@dataclass(frozen=True, eq=False)
class Calendar:
    """Columns of seconds since 1970 as parts of the calendar; periodic parts become a sine and a cosine.

    Args:
        n_in: columns of a row that comes in.
        columns: positions, ascending.
        parts: what is made of each: ``time`` (the seconds), ``year``; ``month``, ``day`` (of the month), ``yearday``,
            ``weekday``, ``hour`` (with minutes and seconds), which make two features each.
    """

    n_in: int
    columns: tuple[int, ...]
    parts: tuple[tuple[str, ...], ...]

    @property
    def n_out(self) -> int:
        """Columns that stay, and parts."""
        return self.n_in + sum(sum(_TIMES[part] for part in parts) - 1 for parts in self.parts)

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Split times into parts. A missing time is missing in all."""
        of, made = dict(zip(self.columns, self.parts, strict=True)), []
        for column in range(self.n_in):
            made += _calendar(X[:, column], of[column]) if column in of else [X[:, column]]
        out = np.empty((len(X), len(made)), dtype=X.dtype)
        for j, values in enumerate(made):
            out[:, j] = values
        return out

    def names(self, names: Names) -> Names:
        """``column.part``, with ``.sin`` and ``.cos`` where there are two; the time has the column's name."""
        if names is None:
            return None
        of, made = dict(zip(self.columns, self.parts, strict=True)), []
        for column, name in enumerate(names):
            for part in of.get(column, ("time",)):
                one = [name] if part == "time" else [f"{name}.{part}"]
                made += one if _TIMES[part] == 1 else [f"{name}.{part}.sin", f"{name}.{part}.cos"]
        return tuple(made)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The columns and parts."""
        parts = [list(each) for each in self.parts]
        return {"name": "Calendar", "n_in": self.n_in, "columns": list(self.columns), "parts": parts}, {}

    @property
    def sound(self) -> bool:
        """True if the encoder can be applied to rows."""
        known = all(parts and set(parts) <= set(_TIMES) for parts in self.parts)
        return _inside(self.columns, self.n_in) and len(self.parts) == len(self.columns) and known


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
class TargetMeans:
    """Columns of categories as the mean target of each category, drawn towards the mean of all rows.

    A training row takes the means of the other folds, so that its own target is not among its features; which fold a
    row is in is a hash of its id. Other rows take the means of all: see ``final``.

    Args:
        n_in: columns of a row that comes in.
        columns: positions, ascending.
        categories: values of each column, ascending, NaN last.
        means: of each column, shape (folds + 1, categories + 1, outputs): the last fold is of all rows, and the last
            category is one that training did not see.
        folds: folds of training rows; 0 to take the means of all.
        labels: names of the columns; none where they have none.
    """

    n_in: int
    columns: tuple[int, ...]
    categories: tuple[Array, ...]
    means: tuple[Array, ...]
    folds: int
    labels: tuple[str, ...] = ()

    @property
    def n_out(self) -> int:
        """Columns that stay, and as many as there are outputs for each of the others."""
        return int(self.n_in + sum(means.shape[2] - 1 for means in self.means))

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        """Encode the columns."""
        widths = np.ones(self.n_in, dtype=np.int64)
        widths[list(self.columns)] = [means.shape[2] for means in self.means]
        begins = np.concatenate([[0], np.cumsum(widths)])
        out = np.empty((len(X), int(begins[-1])), dtype=X.dtype)
        rest = np.ones(self.n_in, dtype=bool)
        rest[list(self.columns)] = False
        out[:, begins[:-1][rest]] = X[:, rest]
        fold = folds_of(ids, self.folds) if self.folds else np.full(len(X), -1)
        for number, (column, values, means) in enumerate(zip(self.columns, self.categories, self.means, strict=True)):
            x = X[:, column]
            codes, known = located(x, values)
            name = self.labels[number] if self.labels else str(column)
            # Another number is nothing to tell.
            if lookup is not None and not name.endswith(BY_VALUE) and (unseen := int((~known & ~np.isnan(x)).sum())):
                lookup.unseen[name] += unseen
            unknown = len(values) - 1 if np.isnan(values[-1]) else len(values)
            out[:, begins[column] : begins[column + 1]] = means[fold, np.where(known, codes, unknown)]
        return out

    def final(self) -> TargetMeans:
        """For rows that are not those of training: the means of all."""
        return replace(self, means=tuple(means[-1:] for means in self.means), folds=0)

    def names(self, names: Names) -> Names:
        """``column (mean)``, with the output's number where there are several."""
        if names is None:
            return None
        of, made = dict(zip(self.columns, self.means, strict=True)), []
        for column, name in enumerate(names):
            width = of[column].shape[2] if column in of else 0
            made += [f"{name} (mean)"] if width == 1 else [f"{name} (mean {k})" for k in range(width)] or [name]
        return tuple(made)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The columns, categories and means end to end."""
        sizes = [len(values) for values in self.categories]
        facts = {"n_in": self.n_in, "columns": list(self.columns), "folds": self.folds, "sizes": sizes}
        made = {"categories": np.concatenate(self.categories), "means": np.concatenate(self.means, axis=1)}
        return {"name": "TargetMeans", **facts, "labels": list(self.labels)}, made

    @property
    def sound(self) -> bool:
        """True if the encoder can be applied to rows."""
        filled = all(values.ndim == 1 and len(values) and values.dtype.kind == "f" for values in self.categories)
        shapes = all(
            m.ndim == 3 and m.dtype.kind == "f" and m.shape[:2] == (self.folds + 1, len(values) + 1) and m.shape[2] > 0
            for m, values in zip(self.means, self.categories, strict=False)
        )
        alike = len(self.columns) == len(self.categories) == len(self.means) and len(self.labels) in (
            0,
            len(self.means),
        )
        whole = type(self.folds) is int and 0 <= self.folds <= 100
        return _inside(self.columns, self.n_in) and whole and filled and alike and shapes


def folds_of(ids: IntArray, folds: int) -> IntArray:
    """The fold of each row, from its id alone: shape (n,)."""
    return (row_hash(ids, _FOLDS) % np.uint64(folds)).astype(np.int64)


@serializable
@dataclass(frozen=True, eq=False)
class Keep:
    """Some of the columns.

    Args:
        n_in: columns of a row that comes in.
        columns: positions of those that stay, ascending.
    """

    n_in: int
    columns: tuple[int, ...]

    @property
    def n_out(self) -> int:
        """Number of columns that stay."""
        return len(self.columns)

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Select the columns."""
        return np.ascontiguousarray(X[:, list(self.columns)])

    def names(self, names: Names) -> Names:
        """Names of the columns that stay."""
        return None if names is None else tuple(names[column] for column in self.columns)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The columns."""
        return {"name": "Keep", "n_in": self.n_in, "columns": list(self.columns)}, {}

    @property
    def sound(self) -> bool:
        """True if the encoder can be applied to rows."""
        return _inside(self.columns, self.n_in) and len(self.columns) > 0


Encoder = Encode | Curves | ByValue | Calendar | TargetMeans | Keep


def load_encoder(kind: str, facts: dict[str, Any], own: dict[str, Array]) -> Encoder | None:
    """Rebuild an encoder from its saved description, or return None if ``kind`` is unknown.

    Raises:
        KeyError: an array or a parameter is missing.
    """
    n_in, columns = facts.get("n_in"), tuple(facts.get("columns", ()))
    if kind not in _KNOWN:
        return None
    if type(n_in) is not int:
        raise ValueError("the number of columns is missing")
    ends = np.cumsum(facts.get("sizes", ()))[:-1].astype(np.int64)
    labels = tuple(facts.get("labels", ()))
    if kind == "Encode":
        words = tuple(map(tuple, facts.get("words", ())))
        values = tuple(np.split(own["categories"], ends))
        return Encode(n_in, columns, values, facts["one_hot"], facts["unknown"], labels, words)
    if kind == "Curves":
        knots, heights = (tuple(np.split(own[name], ends)) for name in ("knots", "heights"))
        return Curves(n_in, columns, knots, heights, facts.get("kept", False))
    if kind == "ByValue":
        return ByValue(n_in, columns)
    if kind == "Calendar":
        return Calendar(n_in, columns, tuple(map(tuple, facts["parts"])))
    if kind == "TargetMeans":
        values = tuple(np.split(own["categories"], ends))
        means = tuple(np.split(own["means"], np.cumsum(np.asarray(facts["sizes"]) + 1)[:-1], axis=1))
        return TargetMeans(n_in, columns, values, means, facts["folds"], labels)
    return Keep(n_in, columns)


_KNOWN = ("Encode", "Curves", "ByValue", "Calendar", "TargetMeans", "Keep")


def _inside(columns: Sequence[Any], n_in: int) -> bool:
    """Return True if these are positions of columns, each once and ascending."""
    positions = all(type(column) is int and 0 <= column < n_in for column in columns)
    return positions and list(columns) == sorted(set(columns))
