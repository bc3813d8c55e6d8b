"""Columns that a library wrote beside the data: the index of pandas and Dask. They are features only if named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

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
