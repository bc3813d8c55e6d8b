"""Named arrays as a Source: one array of features, or one a feature, and one of targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from streamkern.errors import DataError
from streamkern.storage.arrays import named, require_as_long, require_rows
from streamkern.storage.base import digest
from streamkern.storage.layout import (
    as_rows,
    as_target,
    check_chunk,
    feature_dtype,
    require_distinct,
    rows_per_chunk,
    target_of,
    unknown_name,
)
from streamkern.storage.zarr import FEATURE_NAMES
from streamkern.types import Array, IntArray, Rows, Target


class StoredRows(Protocol):
    """An array at rest that is read by rows; picklable, and safe to use from many threads."""

    @property
    def where(self) -> str:
        """File and name."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, ...)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """As stored; strings of a variable width are ``object``."""
        ...

    def rows(self, a: int, b: int) -> Array:
        """Rows a to b in their own shape.

        Raises:
            StorageError: they cannot be read.
        """
        ...


class NamedArrays:
    """Rows of arrays of one file.

    The features are one array of two or more axes (``X``, ``features``, ``data`` or ``images`` if there are several),
    else all one-dimensional arrays of one length, one column a feature, sorted by name.

    Args:
        arrays: by name.
        target: the name of the targets.
        columns: names of one-dimensional arrays, or of the one array of features, or else of its flattened columns.
        path: the file.
        identity: of the file, for the fingerprint.

    Raises:
        DataError: arrays that cannot be features or target.
        UsageError: ``columns`` that cannot be chosen.
    """

    def __init__(
        self,
        arrays: Mapping[str, StoredRows],
        target: str | None,
        columns: Sequence[str] | None,
        path: str,
        identity: list[Any],
    ) -> None:
        if target is not None and target not in arrays:
            raise unknown_name("target", target, arrays, path)
        chosen = _features({name: a.shape for name, a in arrays.items() if name != target}, columns, path)
        self._X, self._identity = [arrays[name] for name in chosen], [identity, chosen]
        first = self._X[0]
        if len(first.shape) > 1:
            require_rows(first.shape, first.where)
        n = first.shape[0]
        self.dtype: np.dtype[Any] = np.result_type(*(feature_dtype(a.dtype, a.where) for a in self._X))
        self.n_features = math.prod(first.shape[1:]) if len(first.shape) > 1 else len(chosen)
        names = None if columns is not None and list(columns) == chosen else columns
        self.columns = named(names, self.n_features) if len(first.shape) > 1 else tuple(chosen)
        self._y = None if target is None else arrays[target]
        self.target: Target | None = None
        if self._y is not None and target is not None:
            require_as_long(n, self._y.shape, self._y.where)
            self.target = target_of(target, self._y.dtype, self._y.shape[1:], self._y.where)
        rows = rows_per_chunk(self.n_features * self.dtype.itemsize)
        self.bounds: IntArray = np.append(np.arange(0, n, rows, dtype=np.int64), np.int64(n))

    @property
    def fingerprint(self) -> str:
        """Digest of the file's name, size and time, and of the choice of arrays."""
        return digest("arrays", self._identity, self.columns, self.target)

    def read(self, chunk: int) -> Rows:
        """Rows of one chunk; see ``Source.read``."""
        a, b = check_chunk(chunk, self.bounds)
        if len(self._X[0].shape) > 1:
            X = as_rows(self._X[0].rows(a, b))
        else:
            X = np.stack([stored.rows(a, b) for stored in self._X], axis=1).astype(self.dtype, copy=False)
        if self._y is None or self.target is None:
            return Rows(X, None)
        return Rows(X, as_target(self._y.rows(a, b), self.target))

    def where(self, chunk: int) -> str:
        """The chunk in words."""
        a, b = check_chunk(chunk, self.bounds)
        return f"{self._X[0].where}, chunk {chunk}, rows {a} to {b - 1}"


def _features(shapes: dict[str, tuple[int, ...]], columns: Sequence[str] | None, path: str) -> list[str]:
    if columns is not None and set(columns) <= set(shapes):
        require_distinct(columns, path)
        if all(len(shapes[name]) == 1 for name in columns) or len(columns) == 1:
            return _of_one_length(list(columns), shapes, path)
    wide = [name for name, shape in shapes.items() if len(shape) > 1]
    known = [name for name in FEATURE_NAMES if name in wide]
    if known or len(wide) == 1:
        return known[:1] or wide
    for name in columns or ():
        if name not in shapes:
            raise unknown_name("column", name, sorted(shapes), path)
    narrow = sorted(name for name, shape in shapes.items() if len(shape) == 1)
    if wide or not narrow:
        raise DataError(
            "which array holds the features? " + (", ".join(sorted(wide)) or "there is none"),
            where=path,
            expected=f"one of shape (n, d), or one called {', '.join(FEATURE_NAMES)}, or arrays of shape (n,)",
            remedy=f"choose one: columns=[{sorted(wide)[0]!r}]" if wide else "check the file",
        )
    return _of_one_length(narrow, shapes, path)


def _of_one_length(names: list[str], shapes: dict[str, tuple[int, ...]], path: str) -> list[str]:
    other = next((name for name in names if shapes[name][:1] != shapes[names[0]][:1] or not shapes[name]), None)
    if other is not None:
        raise DataError(
            f"arrays {names[0]!r} and {other!r} have shapes {shapes[names[0]]} and {shapes[other]}",
            where=path,
            expected="one length",
            remedy="choose those that belong together: columns=[...]",
        )
    return names
