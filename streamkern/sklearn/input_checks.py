"""Checks of the arguments and rows that estimators are given."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from streamkern.data import from_arrays
from streamkern.errors import DataError, UsageError
from streamkern.sources.input_types import is_dask_array, is_lazy_frame, is_path, require_dense
from streamkern.types import Array

_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


def given_rows(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Return rows, targets and weights as they are, but a polars LazyFrame with its targets as a Dataset."""
    for name, given in (("X", X), ("y", y), ("sample_weight", sample_weight)):
        require_dense(given, name)
    if is_path(X) and not isinstance(y, str):
        raise UsageError(
            f"X is a path: {X!r}.",
            where="fit(X, y)",
            expected="rows in memory, or a Dataset",
            remedy="model.fit(sk.open_dataset(path, target)), where target names a column of the file",
        )
    y = _without_absent(y, sample_weight)
    if is_lazy_frame(X):
        return from_arrays(X, None if y is None else given_target(y), sample_weight=sample_weight), None, None
    return X, y, sample_weight


def _without_absent(y: Any, sample_weight: Any) -> Any:
    """Rows of weight 0, which are left out, get the target of another row.

    So no value that is missing there is refused, and no label that only they have is a class.
    """
    if is_lazy_frame(y):
        y = y.collect()
    if y is None or sample_weight is None or is_dask_array(y) or not hasattr(y, "__len__"):
        return y
    there = np.asarray(sample_weight) != 0
    if there.shape != (len(y),) or there.all() or not there.any():
        return y
    rows = np.where(there, np.arange(len(there)), np.argmax(there))
    if isinstance(y, list | tuple):
        return [y[row] for row in rows]
    if hasattr(y, "iloc"):
        return y.iloc[rows]
    return y.take(rows) if type(y).__module__.startswith("pyarrow") else y[rows]


def given_target(y: Any) -> Any:
    """Targets as they are, but pandas' nullable integers and booleans as NumPy's: scikit-learn makes floats of them.

    Booleans that are objects, as a column with gaps leaves them, are booleans; decimals are float64. None and names of
    columns raise UsageError; missing and infinite values, dates, times, mixed texts, and whole numbers of more than 64
    bits raise DataError.
    """
    if y is None:
        raise UsageError(
            "There is no target: this estimator requires y to be passed, but the target y is None.",
            where="fit(X, y)",
            expected="a target for every row; or a Dataset, which has its own",
        )
    if isinstance(y, str):
        raise UsageError(
            f"y is the text {y!r}.",
            where="fit(X, y)",
            expected="a target for every row",
            remedy=f"model.fit(table.drop(columns={y!r}), table[{y!r}]); or of a file: "
            f"model.fit(sk.open_dataset(path, {y!r}))",
        )
    dtype: Any = getattr(y, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        if dtype.kind == "f":
            _require_finite(np.asarray(y))
        return y
    array = np.asarray(y, dtype=object)
    values = array.tolist() if array.ndim == 1 else []
    _require_labels(values)
    if values and all(isinstance(value, bool | np.bool_) for value in values):
        return np.array(values, dtype=bool)
    if values and all(isinstance(value, decimal.Decimal) for value in values):
        return np.array(values, dtype=np.float64)
    _require_one_type(values)
    nullable = (
        not isinstance(dtype, np.dtype) and getattr(dtype, "kind", "O") in "biu" and hasattr(dtype, "numpy_dtype")
    )
    return np.asarray(y, dtype=dtype.numpy_dtype) if nullable else y


def _require_finite(y: Array) -> None:
    if not np.isfinite(y).all():
        row, *_ = np.argwhere(~np.isfinite(y))[0].tolist()
        raise DataError(
            f"A target is {'missing' if np.isnan(y[row]).any() else 'infinite'}.",
            where=f"y, row {row}",
            expected="a finite number for every row; Input y contains NaN or infinity",
            remedy="leave out the rows without a target: keep = np.isfinite(y); model.fit(X[keep], y[keep])",
        )


def _require_labels(values: Sequence[Any]) -> None:
    for row, value in enumerate(values):
        nan = isinstance(value, float) and value != value
        if value is None or nan or type(value).__name__ in ("NAType", "NaTType"):
            raise DataError(
                f"A target is missing: {value!r}.",
                where=f"y, row {row}",
                expected="a label or a number for every row",
                remedy="leave out the rows without a target: keep = pd.notna(y); model.fit(X[keep], y[keep])",
            )
    for row, value in enumerate(values):
        if isinstance(value, _TIMES) or type(value).__name__ in ("Period", "Interval"):
            raise DataError(
                f"A target is neither a number nor a text: {value!r}.",
                where=f"y, row {row}",
                expected="a label or a number for every row",
                remedy="give numbers: pd.to_datetime(y).astype('int64'); or labels: [str(value) for value in y]",
            )


def _require_one_type(values: Sequence[Any]) -> None:
    """Refuse whole numbers of more than 64 bits, and texts next to other values."""
    whole = bool(values) and all(isinstance(value, int | np.integer) for value in values)
    if whole and np.asarray(values).dtype.kind not in "biu":
        row = next((i for i, value in enumerate(values) if not -(1 << 63) <= value < 1 << 63), 0)
        raise DataError(
            f"The whole number {values[row]} of the target has too many digits.",
            where=f"y, row {row}",
            expected="whole numbers that 64 bits hold, all with a sign or all without",
            remedy="give labels as texts: [str(value) for value in y]; or values as floats",
        )
    texts = np.array([isinstance(value, str) for value in values])
    if texts.any() and not texts.all():
        row = int(np.argmax(texts != texts[0]))
        raise DataError(
            f"Targets are of two types: {values[0]!r} and {values[row]!r}.",
            where=f"y, rows 0 and {row}",
            expected="targets of one type",
            remedy="make all of them texts: [str(value) for value in y]; or numbers",
        )


def require_no_target(y: Any, sample_weight: Any = None) -> None:
    """Refuse targets or weights with a ``Dataset``, which has its own."""
    if y is not None or sample_weight is not None:
        raise UsageError("A Dataset and y are both given.", where="y", expected="None: the Dataset has its own target")


def has_text_names(X: Any) -> bool:
    """Return True if all columns of a table are named by texts, as scikit-learn's ``feature_names_in_`` requires."""
    return all(isinstance(name, str) for name in getattr(X, "columns", X if isinstance(X, Mapping) else ()))


def with_parameter(part: Any, name: str, value: Any, where: str) -> Any:
    """Return a solver, or another part of an estimator, with another value of one of its parameters."""
    names = (
        [field.name for field in fields(part) if field.init]
        if is_dataclass(part) and not isinstance(part, type)
        else []
    )
    if name not in names:
        kind = type(part).__name__ if names else repr(part)
        raise UsageError(
            f"{kind} has no parameter {name!r}.",
            where=where,
            expected="one of " + ", ".join(names) if names else "an object with parameters, such as solver=sk.Direct()",
            remedy=None if names else "give the estimator the object first, then search its parameters",
        )
    return replace(part, **{name: value})
