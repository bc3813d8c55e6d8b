"""Columns of Arrow tables as rows: which may be features or targets, and how their values are gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamkern.errors import DataError
from streamkern.storage.layout import as_rows, target_of
from streamkern.types import Array, Target


def is_vector(kind: pa.DataType) -> bool:
    """Whether a column of this type holds all features of a row."""
    is_type = pa.types
    return bool(
        is_type.is_fixed_size_binary(kind)
        or is_type.is_fixed_size_list(kind)
        or is_type.is_list(kind)
        or is_type.is_large_list(kind)
    )


def number(kind: pa.DataType, where: str) -> np.dtype[Any]:
    """The NumPy dtype of a column of numbers or booleans.

    Raises:
        DataError: it is something else.
    """
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numpy_dtype(kind)
    raise DataError(
        f"a column of {kind} cannot be a feature",
        where=where,
        expected="numbers or booleans",
        remedy="encode it as numbers, or choose the numeric columns with columns=[...]; a target is named with target=",
    )


def _numpy_dtype(kind: pa.DataType) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values without their dictionary."""
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def arrow_target(names: Sequence[str], types: dict[str, pa.DataType], where: str) -> Target | None:
    """The target that these columns make; several are numbers, and one may be strings.

    Raises:
        DataError: a column that cannot be a target.
    """
    if not names:
        return None
    dtypes = []
    for name in names:
        kind = types[name]
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        numeric = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not numeric and (not text or len(names) > 1):
            raise DataError(
                f"target {name!r} is a column of {kind}",
                where=where,
                expected="numbers, booleans or strings" if len(names) == 1 else "numbers in each of several targets",
                remedy="convert the target, or name another one",
            )
        dtypes.append(np.dtype(object) if text else _numpy_dtype(kind))
    return target_of(",".join(names), np.result_type(*dtypes), (len(names),) if len(names) > 1 else (), where)


@dataclass(frozen=True)
class Columns:
    """One column a feature."""

    columns: tuple[str, ...]
    dtype: np.dtype[Any]

    @property
    def n_features(self) -> int:
        """Width d of a row."""
        return len(self.columns)

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return self.n_features * self.dtype.itemsize

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns to read."""
        return self.columns

    def identity(self) -> list[Any]:
        """For fingerprints."""
        return [self.columns, self.dtype.str]

    def rows(self, column: Callable[[str], pa.ChunkedArray], n: int, fail: Callable[[str, int, str], None]) -> Array:
        """Rows, shape (n, d), from columns by name; ``fail(column, row, what)`` raises."""
        X = np.empty((n, self.n_features), dtype=self.dtype)
        for j, name in enumerate(self.columns):
            X[:, j] = plain(column(name)).to_numpy()
        return X


@dataclass(frozen=True)
class Vector:
    """One column that holds all features of a row: fixed-size binary, fixed-size list, or list."""

    name: str
    width: int
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None
    pick: tuple[int, ...] | None

    @property
    def n_features(self) -> int:
        """Width d of a row."""
        return self.width if self.pick is None else len(self.pick)

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return self.width * self.dtype.itemsize

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns to read."""
        return (self.name,)

    def identity(self) -> list[Any]:
        """For fingerprints."""
        return [self.name, self.width, self.dtype.str, self.columns, self.pick]

    def rows(self, column: Callable[[str], pa.ChunkedArray], n: int, fail: Callable[[str, int, str], None]) -> Array:
        """Rows, shape (n, d), from columns by name; ``fail(column, row, what)`` raises."""
        parts, start = [], 0
        for part in column(self.name).chunks:
            parts.append(self._part(part, start, fail))
            start += len(part)
        X = parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, self.width), self.dtype), *parts])
        return X if self.pick is None else np.ascontiguousarray(X[:, self.pick])

    def _part(self, part: pa.Array, start: int, fail: Callable[[str, int, str], None]) -> Array:
        if pa.types.is_fixed_size_binary(part.type):
            offset = part.offset * part.type.byte_width
            flat = np.frombuffer(part.buffers()[1], self.dtype, count=len(part) * self.width, offset=offset)
            return flat.reshape(len(part), self.width)
        if not pa.types.is_fixed_size_list(part.type):
            lengths = np.diff(part.offsets.to_numpy())
            ragged = np.flatnonzero(lengths != self.width)
            if len(ragged):
                row = int(ragged[0])
                fail(self.name, start + row, f"has {lengths[row]} values where other rows have {self.width}")
        values = part.flatten()
        if values.null_count:
            fail(
                self.name, start + pc.index(pc.is_null(values), True).as_py() // self.width, "holds a null in its list"
            )
        return as_rows(values.to_numpy(zero_copy_only=False).reshape(len(part), self.width))
