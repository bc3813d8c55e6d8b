"""Kinds of values in memory and of texts, told without the imports of Arrow and Dask."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from streamkern.defaults import MIN_PATTERN_SHARE
from streamkern.errors import DataError

DAY = 86_400
"""Seconds of a day."""

_LIKE = {
    "numbers": re.compile(r"[-+]?[$€£¥]? ?(\d+|\d{1,3}([,.']\d{3})+)([.,]\d+)?( ?[%$€£¥])?"),
    "dates": re.compile(
        r"(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([-/. ])(\d{1,2}|[A-Za-z]{3,9})\2\d{4}|\d{1,2}/\d{1,2}/\d\d"
        r"|[A-Za-z]{3,9}\.? \d{1,2},? \d{4})([T ,].*)?"
    ),
}
"""Patterns of texts that spell numbers, with signs and separators, or dates, in any order."""

_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")
_NAMELESS = re.compile(r"|Unnamed: \d+(\.\d+)?(_level_\d+)?|_duplicated_\d+")
"""Names of the first columns of ``to_csv``, as CSV files have them and as pandas and polars read them, also twice."""


def index_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that are an index by their name: those of pandas and Dask, and nameless first columns."""
    names = list(names)
    first = list(takewhile(_NAMELESS.fullmatch, names))
    return (*first, *(name for name in names[len(first) :] if _INDEX.fullmatch(name)))


def recorded_index(metadata: Mapping[bytes, bytes] | None) -> frozenset[str]:
    """Return the columns that are an index by the ``pandas`` metadata of an Arrow schema; none if it is damaged."""
    try:
        recorded: Any = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return frozenset(name for name in recorded if isinstance(name, str))
    except (KeyError, TypeError, ValueError):
        return frozenset()


def looks_like(texts: Iterable[str]) -> str | None:
    """Return the kind that most of these texts spell, ``numbers`` or ``dates``; None for words, or digits alone."""
    given = [text.strip() for text in texts]
    if not given or all(text.isdigit() for text in given):
        return None
    shares = {kind: sum(map(bool, map(form.fullmatch, given))) / len(given) for kind, form in _LIKE.items()}
    return next((kind for kind, share in shares.items() if share >= MIN_PATTERN_SHARE), None)


def is_table(value: Any) -> bool:
    """Return True if a value in memory is a table with named columns: a frame, an Arrow table, JSON."""
    if isinstance(value, Mapping):
        return not hasattr(value, "shape")  # SciPy's sparse matrices are mappings, too, but have a shape
    if (
        hasattr(value, "__arrow_c_stream__")
        or _is_instance(value, "pyarrow.lib", "RecordBatch")
        or is_dask_frame(value)
        or is_lazy_frame(value)
        or (_is_instance(value, "numpy", "ndarray") and value.dtype.names is not None and value.ndim == 1)
        or (type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "columns"))
    ):
        return True
    return isinstance(value, list | tuple) and bool(len(value)) and all(isinstance(row, Mapping) for row in value)


def has_text(rows: Any) -> bool:
    """Return True if an array or list of rows holds text."""
    if isinstance(rows, list | tuple):
        return any(isinstance(row, list | tuple) and any(isinstance(value, str) for value in row) for row in rows)
    kind = rows.dtype.kind if _is_instance(rows, "numpy", "ndarray") else ""
    return kind == "U" or (kind == "O" and any(isinstance(value, str) for value in rows.ravel().tolist()))


def is_dask_array(value: Any) -> bool:
    """Return True for a Dask array."""
    return _is_instance(value, "dask.array.core", "Array")


def is_dask_frame(value: Any) -> bool:
    """Return True for a Dask DataFrame."""
    return type(value).__module__.startswith("dask.dataframe") and hasattr(value, "npartitions")


def is_lazy_frame(value: Any) -> bool:
    """Return True for a polars LazyFrame."""
    return _is_instance(value, "polars.lazyframe.frame", "LazyFrame")


def require_dense(X: Any, name: str = "X") -> None:
    """Raise DataError for a sparse matrix or array of SciPy: a kernel needs whole rows."""
    if type(X).__module__.startswith("scipy.sparse"):
        fewer = "; or fewer columns: sklearn.decomposition.TruncatedSVD(100).fit_transform(X)" if name == "X" else ""
        raise DataError(
            f"{name} is sparse: a {type(X).__name__} of SciPy, of shape {X.shape}.",
            where=name,
            expected="dense rows: sparse input is not supported",
            remedy=f"{name}.toarray(), if that fits in memory{fewer}",
        )


def is_path(value: Any) -> bool:
    """Return True for a path or URL, and for a list or tuple of them, which is a data set."""
    several = isinstance(value, list | tuple) and len(value) > 0
    return all(isinstance(each, str | os.PathLike) for each in (value if several else [value]))


def is_series(value: Any) -> bool:
    """Return True for a Series of pandas or polars, which has a table's interface but is one column."""
    return hasattr(value, "dtype") and not hasattr(value, "columns") and hasattr(value, "__arrow_c_stream__")


def _is_instance(value: Any, module: str, name: str) -> bool:
    """The module is not imported for the check."""
    return any((kind.__module__, kind.__name__) == (module, name) for kind in type(value).__mro__)
