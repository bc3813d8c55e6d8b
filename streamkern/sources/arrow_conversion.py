"""Conversion of any table to an Arrow table, and of its columns to float64 by the kinds of a schema.

All inputs are converted here, so that a row has the same bits from a file, a frame or JSON. Missing values (null, NaN,
None, NaT, empty text) become NaN in every kind.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from streamkern.errors import DataError, StreamkernError
from streamkern.sources.arrow import pa, pacsv, pc
from streamkern.sources.category_identity import UNITS, are_codes, codes_of, texts_of
from streamkern.sources.input_types import (
    DAY,
    index_names,
    is_dask_frame,
    is_lazy_frame,
    is_series,
    is_table,
    require_dense,
)
from streamkern.sources.schema import Column
from streamkern.types import Array, IntArray

_TRUTH = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "yes": 1.0, "no": 0.0}
_ELAPSED = re.compile(r"(?:(-?\d+) days?,? ?)?(?:([-+]?)(\d+):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?)?", re.ASCII)
"""A time of the day, or a duration as Python and pandas write it: 12:30, 12:30:00.5, 1 days 02:00:00."""

_HEXADECIMAL = re.compile(r"-?0[xX][0-9a-fA-F]{1,16}")
"""A whole number that text tables have, too."""


@cache
def _markers() -> frozenset[str]:
    """Texts such as NA and NULL that mean a missing value, in text tables as in rows."""
    return frozenset(pacsv.ConvertOptions().null_values)


class UnfitError(ValueError):
    """Error for a value that does not have its column's kind."""

    def __init__(self, row: int, value: Any, expected: str) -> None:
        super().__init__(row, value, expected)
        self.row, self.value, self.expected = row, value, expected


def is_text(kind: pa.DataType) -> bool:
    """Return True if a column of this type holds text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return True if a column of this type holds numbers or booleans."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None if they differ in kind."""
    is_type = pa.types
    if one == other or is_type.is_null(other):
        return one
    if is_type.is_null(one):
        return other
    if is_text(one) and is_text(other):
        return pa.string()
    coded = is_type.is_dictionary(one), is_type.is_dictionary(other)
    if any(coded):
        values = common_type(one.value_type, other.value_type) if all(coded) else None
        return None if values is None else pa.dictionary(pa.int32(), values)
    numbers = [is_type.is_integer(kind) or is_type.is_floating(kind) for kind in (one, other)]
    if all(numbers):
        return pa.from_numpy_dtype(np.result_type(one.to_pandas_dtype(), other.to_pandas_dtype()))
    if all(number or is_type.is_decimal(kind) for number, kind in zip(numbers, (one, other), strict=True)):
        return pa.float64()
    for alike in ((is_type.is_timestamp, is_type.is_date), (is_type.is_duration,), (is_type.is_time,)):
        if all(any(check(kind) for check in alike) for kind in (one, other)):
            return one
    return None


def kind_of_type(kind: pa.DataType) -> tuple[str, bool] | None:
    """Return the default kind of a type, and whether it is text; None if values cannot become numbers."""
    is_type = pa.types
    if is_text(kind):
        return "category", True
    if is_type.is_dictionary(kind):
        return ("category", False) if is_number(kind) else kind_of_type(kind.value_type)
    if is_type.is_boolean(kind):
        return "boolean", False
    if is_type.is_timestamp(kind) or is_type.is_date(kind):
        return "datetime", False
    if is_number(kind) or is_type.is_decimal(kind) or is_type.is_time(kind) or is_type.is_duration(kind):
        return "number", False
    return ("number", False) if is_type.is_null(kind) else None


def kind_of_array(dtype: np.dtype[Any]) -> tuple[str, bool] | None:
    """Return the default kind for an array of this dtype, as ``kind_of_type`` of its Arrow type, which is not made."""
    kinds = {"O": "category", "T": "category", "U": "category", "b": "boolean", "M": "datetime"}
    kind = kinds.get(dtype.kind, "number" if dtype.kind in "iufm" and dtype.itemsize <= 8 else None)
    return None if kind is None else (kind, kind == "category")


def table_of_arrays(arrays: Mapping[str, Array]) -> pa.Table:
    """Return a table of arrays, shape (n,) each, of any byte order, with dates in any unit."""
    columns = {}
    for name, values in arrays.items():
        kind = values.dtype.kind
        native = values.astype(values.dtype.newbyteorder("="), copy=False) if kind in "biufmM" else values
        columns[name] = pa.array(native) if kind in "biuf" else _column(native)
    return pa.table(columns)


def without_dictionary(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values without a dictionary, and texts in a type that Arrow's functions accept."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        parts = [
            without_dictionary(pa.chunked_array([part.dictionary])).combine_chunks().take(part.indices)
            for part in values.chunks
        ]
        view = pa.types.is_string_view(kind.value_type)
        return pa.chunked_array(parts, pa.large_string() if view else kind.value_type)
    return values.cast(pa.large_string()) if pa.types.is_string_view(kind) else values


def converted(values: pa.ChunkedArray, column: Column, words: dict[float, str] | None = None) -> Array:
    """Return a column's values by its kind, (n,) float64, NaN if missing; texts are added to ``words`` by code."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if column.kind == "category":
        return _categories(values, column.text, words)
    if is_text(kind):
        return _from_text(values, column)
    values = without_dictionary(values)
    kind = values.type
    if column.kind == "datetime":
        made = _seconds(values)
    elif pa.types.is_time(kind) or pa.types.is_duration(kind):
        made = _floats(values.cast(pa.int64() if kind.bit_width == 64 else pa.int32())) / UNITS[kind.unit]
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        made = _seconds(values)
        if not column.dated and (there := ~np.isnan(made)).any():
            raise UnfitError(row := int(np.argmax(there)), str(values[row].as_py()), f"a {column.kind}, not a date")
    else:
        made = _floats(values)
    if column.kind == "boolean" and not pa.types.is_boolean(kind):
        wrong = ~(np.isnan(made) | (made == 0) | (made == 1))
        if wrong.any():
            raise UnfitError(row := int(np.argmax(wrong)), values[row].as_py(), "true or false")
    return made


def _floats(values: pa.ChunkedArray) -> Array:
    made = values.cast(pa.float64(), safe=False)
    return np.array(made.to_numpy(), dtype=np.float64)


def _categories(values: pa.ChunkedArray, coded: bool, words: dict[float, str] | None) -> Array:
    """The codes of categories of any type; NaN for a null, NaN, an empty text, and NA among numbers."""
    written = is_text(values.type)
    if not written:
        values = without_dictionary(values)
        if not coded and are_codes(values):
            return _floats(values)
    known, places = _coded(values)
    texts = texts_of(known)
    if written and not coded:
        texts = [None if text in _markers() else text for text in texts]
    numbers = codes_of(texts, coded, words)
    return np.asarray(np.append(numbers, np.nan)[places])


def _coded(texts: pa.ChunkedArray) -> tuple[pa.Array, IntArray]:
    """Distinct values, and the index of each row's value; the index of a null is their number.

    A dictionary is not expanded: a few long texts could take gigabytes if repeated in every row.
    """
    stored = pa.types.is_dictionary(texts.type) and not pa.types.is_string_view(texts.type.value_type)
    coded = texts if stored else without_dictionary(texts).dictionary_encode()
    encoded = coded.unify_dictionaries().combine_chunks()
    codes = np.asarray(encoded.indices.cast(pa.int64()).fill_null(-1))
    if not stored:
        return encoded.dictionary, codes
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(encoded.dictionary)))
    place = np.full(len(encoded.dictionary) + 1, len(used))  # the last index is for nulls
    place[used] = np.arange(len(used))
    return encoded.dictionary.take(pa.array(used)), place[codes]


def _from_text(values: pa.ChunkedArray, column: Column) -> Array:
    stored, codes = _coded(values)
    known = pc.utf8_trim_whitespace(stored.cast(pa.large_string())).to_pylist()
    made = np.full(len(known) + 1, np.nan)
    for j, text in enumerate(known):
        if not text or text in _markers():
            continue
        found = _parsed(text, column.kind)
        if found is None:
            row = int(np.argmax(codes == j))
            expected = {"boolean": "true or false", "datetime": "a date or time such as 2026-03-14 15:09:26"}
            raise UnfitError(row, values[row].as_py(), expected.get(column.kind, "a number"))
        made[j] = found
    return np.asarray(made[codes])


def _parsed(text: str, kind: str) -> float | None:
    if kind == "boolean":
        return _TRUTH.get(text.lower())
    if kind == "datetime":
        for unit in (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC")):
            with suppress(pa.ArrowInvalid, ValueError):
                return float(_seconds(pa.chunked_array([pa.array([text]).cast(unit)]))[0])
        return None
    try:
        return float(text)
    except ValueError:
        if _HEXADECIMAL.fullmatch(text):
            return float(int(text, 16))
        return _elapsed(text) if kind == "number" else None


def _elapsed(text: str) -> float | None:
    found = _ELAPSED.fullmatch(text)
    if found is None:
        return None
    days, sign, hours, minutes, seconds = found.groups()
    clock = 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(seconds or 0)
    return DAY * int(days or 0) + (-clock if sign == "-" else clock)


def _seconds(values: pa.ChunkedArray) -> Array:
    """Seconds since 1970 in UTC, independent of the stored unit."""
    kind = values.type
    year_10_000 = 253_402_300_800
    if pa.types.is_date32(kind):
        values, units = values.cast(pa.int32()), None
    elif pa.types.is_date64(kind):
        values, units = values.cast(pa.int64()), 1000
    elif pa.types.is_timestamp(kind):
        values, units = values.cast(pa.int64()), UNITS[kind.unit]
    else:
        seconds = _floats(values)
        if (late := np.abs(seconds) >= year_10_000).any():  # in milliseconds, as pandas writes JSON
            row = int(np.argmax(late))
            raise UnfitError(row, values[row].as_py(), "a date, or seconds since 1970 up to the year 9999")
        if (digits := _dates_in_digits(seconds)).any():
            row = int(np.argmax(digits))
            raise UnfitError(row, values[row].as_py(), "a date such as 2026-03-14, or seconds since 1970")
        return seconds
    gaps = np.asarray(values.is_null().to_numpy())
    whole = np.asarray(values.fill_null(0).to_numpy()).astype(np.int64)
    made = (whole * DAY).astype(np.float64) if units is None else whole // units + (whole % units) / units
    made[gaps] = np.nan
    return made


def _dates_in_digits(numbers: Array) -> Array:
    """Days in digits, such as 20260314, would as seconds be in August 1970."""
    days = np.where((numbers >= 1900_01_01) & (numbers <= 2100_12_31) & (numbers % 1 == 0), numbers, 0).astype(np.int64)
    month, day = days // 100 % 100, days % 100
    return (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)


def is_mixed(value: Any) -> bool:
    """Return True if rows must be read as a table: text, dates, some booleans, an index, Dask's partitions."""
    if is_table(value):
        in_memory = isinstance(value, Mapping | list | tuple | np.ndarray)
        if in_memory or is_series(value) or is_dask_frame(value) or is_lazy_frame(value):
            return True
        if isinstance(value, pa.Table | pa.RecordBatch):
            return True
        # Columns of a pandas frame without a NumPy dtype, such as nullable numbers, or of objects.
        if any(not isinstance(d, np.dtype) or d.kind in "OMm" for d in getattr(value, "dtypes", ())):
            return True
        if index_names(map(str, getattr(value, "columns", ()))):
            return True
        columns = as_table(value[:0] if type(value).__module__.startswith("pandas") else value).columns
        return any(c.null_count or not is_number(c.type) or pa.types.is_dictionary(c.type) for c in columns)
    array = value if isinstance(value, np.ndarray) else np.empty(0)
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        array = np.empty((1, len(value[0])), dtype=object)
        array[0] = list(value[0])
    if array.dtype.kind == "U":
        return array.ndim == 2
    if array.dtype != object or array.ndim != 2:
        return False
    # scikit-learn has its own error for objects that are neither numbers nor text.
    kinds = {type(v) for v in array.ravel().tolist()}
    return bool(kinds & _WORDS) and not kinds & {dict, list, tuple, set}


_WORDS = {str, np.str_, bool, np.bool_, type(None), datetime.datetime, datetime.date, np.datetime64, decimal.Decimal}


def as_table(value: Any, names: Sequence[str] | None = None) -> pa.Table:
    """Return rows in memory as an Arrow table; columns of arrays and lists are named f0, f1, ... by default.

    ``value`` is a pandas or polars frame, an Arrow table or record batch, a dict of columns, one row or a list of rows
    as dicts, or an array (n, d) of any dtype, or rows as lists.
    """
    require_dense(value)
    if isinstance(value, pa.Table | pa.RecordBatch):
        require_distinct_names(value.schema.names)
        return value if isinstance(value, pa.Table) else pa.Table.from_batches([value])
    try:
        if is_series(value):
            raise ValueError("a Series is one column, or one row; series.to_frame().T makes a table of a row")
        if type(value).__module__.partition(".")[0] == "pandas" and is_table(value):
            require_distinct_names([str(name) for name in value.columns])
            return pa.table({str(name): _named(name, value.iloc[:, j]) for j, name in enumerate(value.columns)})
        if hasattr(value, "__arrow_c_stream__"):
            return pa.table(value)
        return pa.table(_columns(value, names))
    except StreamkernError:
        raise
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
        raise DataError(
            f"These are not rows of a table: {error}.",
            where=f"{type(value).__name__} in memory",
            expected="columns of one length, or rows with as many values each",
            remedy="give a frame, a dict of columns, a list of dicts, or an array of shape (n, d)",
        ) from error


def _columns(value: Any, names: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(value, np.ndarray) and value.dtype.names is not None:
        return {name: _named(name, value[name]) for name in value.dtype.names}
    if isinstance(value, Mapping):
        scalars = [v is None or isinstance(v, str | bytes) or not hasattr(v, "__len__") for v in value.values()]
        if all(scalars):
            value = {name: [v] for name, v in value.items()}
        return {str(name): _named(name, values) for name, values in value.items()}
    if isinstance(value, list | tuple) and value and all(isinstance(row, Mapping) for row in value):
        keys = dict.fromkeys(key for row in value for key in row)
        return {str(key): _named(key, [row.get(key) for row in value]) for key in keys}
    if isinstance(value, list | tuple):
        rows: Any = np.empty((len(value), max(map(len, value), default=len(names or ()))), dtype=object)
        for i, row in enumerate(value):
            if len(row) != rows.shape[1]:
                raise ValueError(f"row {i} has {len(row)} values, and others have {rows.shape[1]}")
            rows[i] = list(row)
        value = rows
    array = np.asarray(value)
    if array.ndim != 2 or (names is not None and len(names) != array.shape[1]):
        wanted = "(n, d)" if names is None else f"(n, {len(names)})"
        raise ValueError(f"the shape is {array.shape} and not {wanted}")
    named = [f"f{j}" for j in range(array.shape[1])] if names is None else names
    return {name: _named(name, array[:, j]) for j, name in enumerate(named)}


def _named(name: Any, values: Any) -> Any:
    try:
        return _column(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {str(name)!r}: {error}") from error


def _column(values: Any) -> Any:
    """Return texts if the values' types differ, but not because one number is large."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "UST":
        values = values.astype(object)
    if type(getattr(values, "dtype", None)).__name__ == "SparseDtype":  # pandas' sparse columns, unknown to Arrow
        values = np.asarray(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        unit, kind = np.datetime_data(values.dtype)[0], values.dtype.kind
        if not (unit in UNITS or (kind == "M" and unit == "D")):  # unknown to Arrow
            values = values.astype(f"{kind}8[s]")
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    dtype = getattr(values, "dtype", None)
    if type(getattr(getattr(dtype, "categories", None), "dtype", dtype)).__name__ == "IntervalDtype":  # a category
        return pa.array([_word(value) for value in values], pa.string())
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        numbers = _large_numbers(values)
        return pa.array([_word(value) for value in values], pa.string()) if numbers is None else numbers


def _large_numbers(values: Any) -> pa.Array | None:
    """Numbers, of which some are whole and beyond 64 bits with a sign; None if a value is no number."""
    given = [None if _is_missing(value) else value for value in values]
    kinds = {type(value) for value in given if value is not None}
    if not kinds or bool in kinds or not all(issubclass(kind, (int, float, np.integer, np.floating)) for kind in kinds):
        return None
    if any(issubclass(kind, np.timedelta64) for kind in kinds):  # which NumPy counts among the integers
        return None
    try:
        if all(issubclass(kind, (int, np.integer)) for kind in kinds):
            return whole_numbers([None if value is None else int(value) for value in given])
        return pa.array([None if value is None else float(value) for value in given], pa.float64())
    except OverflowError as error:
        large = max((abs(value) for value in given if value is not None and value == value), default=0)
        raise ValueError(f"float64 cannot represent {str(large)[:40]}...") from error


def whole_numbers(values: Sequence[int | None]) -> pa.Array:
    """Return whole numbers in the narrowest type that keeps all digits: 64 bits, 38 digits; else as float64."""
    for kind in (pa.int64(), pa.uint64(), pa.decimal128(38, 0)):
        with suppress(OverflowError, pa.ArrowInvalid):
            return pa.array(values, kind)
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _word(value: Any) -> str | None:
    if _is_missing(value) or value != value:
        return None
    if isinstance(value, dict | list | tuple | set | complex | np.complexfloating):
        raise TypeError(f"a value is a {type(value).__name__}")
    if isinstance(value, np.timedelta64):
        return str(value / np.timedelta64(1, "s"))
    if isinstance(value, bool | np.bool_):
        return str(value).lower()  # as Arrow formats a column's values
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def require_distinct_names(names: Sequence[str], where: str = "the table") -> None:
    """Raise DataError if two columns have the same name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"Two columns are called {twice[0]!r}.",
            where=where,
            expected="a name for each column",
            remedy="rename one of them",
        )
