"""Columns of Arrow tables as rows: which may be features or targets, and how their values are gathered."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamkern.errors import DataError
from streamkern.storage.base import digest
from streamkern.storage.described import DISTINCT, Described, key
from streamkern.storage.layout import (
    as_rows,
    as_target,
    check_chunk,
    require_distinct,
    rows_per_chunk,
    target_of,
    unknown_name,
)
from streamkern.storage.table_file import TableFile
from streamkern.types import Array, IntArray, Rows, Target


def is_vector(kind: pa.DataType) -> bool:
    """Whether a column of this type holds all features of a row."""
    is_type = pa.types
    listed = is_type.is_fixed_size_list(kind) or is_type.is_list(kind) or is_type.is_large_list(kind)
    return bool(is_type.is_fixed_size_binary(kind) or (listed and is_number(kind.value_type)))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers or booleans."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def apart(names: Sequence[str], types: dict[str, pa.DataType]) -> tuple[list[str], dict[str, str]]:
    """Columns that are features as they stand, and the types of the others."""
    features = [name for name in names if is_number(types[name])]
    if not features:
        lists = [name for name in names if is_vector(types[name]) and not pa.types.is_fixed_size_binary(types[name])]
        features = lists[:1]
    others = {}
    for name in names:
        if name not in features:
            kind = types[name].value_type if pa.types.is_dictionary(types[name]) else types[name]
            others[name] = "string" if is_text(kind) else str(kind)
    return features, others


def described(values: pa.ChunkedArray) -> Described:
    """What a column that is no feature holds."""
    values = plain(values)
    missing, kind = values.null_count, values.type
    numeric = pa.types.is_decimal(kind)
    dated = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind)
    if missing == len(values) or not (is_text(kind) or numeric or dated):
        return Described(missing, Counter(), None, None)
    values = values.drop_null()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        values = values.cast(pa.timestamp(kind.unit))  # of UTC: to write another zone takes a database of them
    texts = values if pa.types.is_large_string(kind) else values.cast(pa.large_string())
    if numeric:
        ranks = values.cast(pa.float64())
    else:
        ranks = pc.multiply(pc.utf8_length(texts), 0 if dated else 1).cast(pa.float64())
    ends = pc.min_max(ranks)
    low, high = ends["min"], ends["max"]
    first = pc.min(texts.filter(pc.equal(ranks, low))).as_py()
    last = pc.max(texts.filter(pc.equal(ranks, high))).as_py()
    found = pc.value_counts(texts)
    counts = None
    if len(found) <= DISTINCT:
        names, rows = found.field("values").to_pylist(), found.field("counts").to_pylist()
        counts = Counter(dict(zip(map(key, names), rows, strict=True)))
    return Described(missing, counts, (low.as_py(), key(first)), (high.as_py(), key(last)))


def number_of(text: str) -> float:
    """The number that stands for a text, wherever it is read: a whole one of 52 bits, which float64 holds."""
    return float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 12)


def _numbers(values: pa.ChunkedArray) -> Array:
    """Numbers that stand for texts; NaN for a null."""
    encoded = plain(values).combine_chunks().dictionary_encode()
    numbers = np.array([*map(number_of, encoded.dictionary.to_pylist()), np.nan])
    return np.asarray(numbers[encoded.indices.fill_null(len(numbers) - 1).to_numpy(zero_copy_only=False)])


def number(kind: pa.DataType, where: str, text: bool = False) -> np.dtype[Any]:
    """The NumPy dtype of a column of numbers or booleans; or of text, which numbers stand for.

    Args:
        kind: the column's type.
        where: the column in words.
        text: whether it may be text.

    Raises:
        DataError: it is something else.
    """
    if text and is_text(kind):
        return np.dtype(np.float64)
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numpy_dtype(kind)
    raise DataError(
        f"a column of {kind} cannot be a feature",
        where=where,
        expected="numbers or booleans",
        remedy="choose columns with columns=[...] (--columns A,B): those of numbers, and text for OneHot or Ordinal to "
        "encode; a target is named with target= (--target)",
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


def target_values(columns: Sequence[pa.ChunkedArray], target: Target) -> Array:
    """Targets of rows, shape (n,) or (n, c), of the target's dtype; objects with None for nulls, if there are any."""
    if any(values.null_count for values in columns):
        made = [np.array(plain(values).to_pylist(), dtype=object) for values in columns]
    else:
        made = [as_target(plain(values).to_numpy(), target) for values in columns]
    return np.stack(made, axis=1) if target.outputs else made[0]


@dataclass(frozen=True)
class Columns:
    """One column a feature."""

    columns: tuple[str, ...]
    dtype: np.dtype[Any]
    text: tuple[str, ...] = ()  # those of the columns that hold text
    loose: bool = False  # whether whole numbers come as float64 where some are missing: to be looked at, not trained on

    @property
    def n_features(self) -> int:
        """Width d of a row."""
        return len(self.columns)

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return max(1, self.n_features) * self.dtype.itemsize

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns to read."""
        return self.columns

    def identity(self) -> list[Any]:
        """For fingerprints."""
        return [self.columns, self.dtype.str]

    def takes_nulls(self, name: str) -> bool:
        """Whether a null of this column can be read as NaN."""
        return name in self.columns and (self.loose or self.dtype.kind == "f")

    def rows(self, column: Callable[[str], pa.ChunkedArray], n: int, fail: Callable[[str, int, str], None]) -> Array:
        """Rows, shape (n, d), from columns by name; ``fail(column, row, what)`` raises."""
        holes = self.loose and any(column(name).null_count for name in self.columns)
        X = np.empty((n, self.n_features), dtype=np.result_type(self.dtype, np.float64) if holes else self.dtype)
        for j, name in enumerate(self.columns):
            values = plain(column(name))
            if is_text(values.type):
                X[:, j] = _numbers(values)
            else:
                X[:, j] = (values.cast(pa.float64()) if values.null_count else values).to_numpy()
        return X


def columns_of(
    names: Sequence[str], types: dict[str, pa.DataType], where: str, text: bool, loose: bool = False
) -> Columns:
    """Columns as features, in this order.

    Args:
        names: the columns.
        types: every column's type.
        where: the table in words.
        text: whether they may be text: where they were named, and not taken because they are there.
        loose: give whole numbers as float64 where some are missing.

    Raises:
        DataError: one cannot be a feature.
    """
    kinds = [number(types[name], f"{where}, column {name!r}", text) for name in names]
    dtype = np.result_type(*kinds) if kinds else np.dtype(np.float64)
    return Columns(tuple(names), dtype, tuple(name for name in names if is_text(types[name])), loose)


@dataclass(frozen=True)
class Vector:
    """One column that holds all features of a row: fixed-size binary, fixed-size list, or list."""

    name: str
    width: int
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None
    pick: tuple[int, ...] | None

    text = ()

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

    def takes_nulls(self, name: str) -> bool:
        """Lists have no place for a row without one."""
        return False

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


@dataclass(frozen=True)
class Layout:
    """Which columns of a table are features, and which make the target."""

    features: Columns | Vector
    targets: tuple[str, ...]
    target: Target | None
    beside: dict[str, str] = field(default_factory=dict)  # types of columns that are neither
    loose: bool = False  # whether labels may be missing: to be looked at, not trained on

    @property
    def stored(self) -> list[str]:
        """The columns to read."""
        return [*self.features.stored, *self.targets]

    def identity(self) -> list[Any]:
        """For fingerprints."""
        return [self.features.identity(), self.targets, self.target]

    def rows(self, table: pa.Table, first: int, where: str, nulls: bool) -> Rows:
        """Rows of a table whose first row has number ``first``; with ``nulls``, one in a float's place is NaN.

        Targets are as ``target_values`` gives them.

        Raises:
            DataError: a value is missing.
        """

        def fail(name: str, row: int, what: str) -> None:
            raise DataError(
                f"column {name!r} {what}",
                where=f"{where}, row {first + row}",
                expected="a value in every row, as many in each row",
                remedy="fill or drop such rows first"
                if name in self.targets
                else f"fill or drop such rows first, leave the column {name!r} out with columns=[...], or ingest "
                'them as NaN: missing="nan", --missing nan',
            )

        def column(name: str) -> pa.ChunkedArray:
            values = table.column(name)
            taken = self.loose if name in self.targets else nulls and self.features.takes_nulls(name)
            if values.null_count and not taken:
                fail(name, pc.index(pc.is_null(values), True).as_py(), "is null")
            return values

        X = self.features.rows(column, table.num_rows, fail)
        if self.target is None:
            return Rows(X, None)
        return Rows(X, target_values([column(name) for name in self.targets], self.target))


def table_layout(
    types: dict[str, pa.DataType],
    target: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    where: str,
    width: Callable[[str], int] = lambda name: 1,
    beside: bool = False,
) -> Layout:
    """Features and target among the columns of a table.

    Args:
        types: every column's type.
        target: the column of targets, or several for c values a row.
        columns: features to use, in this order; all but the targets by default.
        where: the table in words.
        width: values in the rows of a column of lists.
        beside: pass over columns that cannot be features; they are noted. Labels may be missing then.

    Raises:
        DataError: columns that are not there, or cannot be features or target.
        UsageError: a column is named twice.
    """
    targets = [] if target is None else [target] if isinstance(target, str) else list(target)
    for kind, names in (("target", targets), ("column", columns or ())):
        for name in names:
            if name not in types:
                raise unknown_name(kind, name, types, where)
    if columns is not None or targets:
        require_distinct([*(columns or ()), *targets], where)
    chosen = [name for name in types if name not in targets] if columns is None else list(columns)
    if not chosen:
        raise DataError(
            "no columns are left to be features",
            where=where,
            expected="at least one column that is no target",
            remedy="name fewer targets",
        )
    made = arrow_target(targets, types, where)
    others: dict[str, str] = {}
    if beside:
        chosen, others = apart(chosen, types)
    vectors = [name for name in chosen if is_vector(types[name])]
    if not vectors:
        features = columns_of(chosen, types, where, text=columns is not None, loose=beside)
        return Layout(features, tuple(targets), made, others, beside)
    name, kind = vectors[0], types[vectors[0]]
    if len(chosen) > 1 or pa.types.is_fixed_size_binary(kind):
        raise DataError(
            f"column {name!r} of {kind} " + ("stands beside others" if len(chosen) > 1 else "has no dtype and shape"),
            where=where,
            expected="one column of lists of numbers, or columns of numbers",
            remedy=f"pass columns=[{name!r}], and target= for the column of targets",
        )
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else width(name)
    vector = Vector(name, size, number(kind.value_type, f"{where}, column {name!r}"), None, None)
    return Layout(vector, tuple(targets), made, others, beside)


class TableSource(ABC):
    """Rows of tables that are read a chunk at a time, of which a layout says what they are.

    Args:
        layout: which columns are features, and which make the target.
        lengths: rows of each piece; one that has none is no chunk.

    Attributes:
        nulls: whether a null among features of a floating dtype is read as NaN; else it is an error.
    """

    nulls = False

    def __init__(self, layout: Layout, lengths: Sequence[int]) -> None:
        self._layout, self.beside, self.target = layout, layout.beside, layout.target
        self.bounds: IntArray = np.cumsum([0, *(rows for rows in lengths if rows)], dtype=np.int64)
        features = layout.features
        self.dtype, self.n_features, self.columns = features.dtype, features.n_features, features.columns
        self.text: tuple[str, ...] = features.text

    def read(self, chunk: int) -> Rows:
        """Rows of one chunk; see ``Source.read``."""
        a, _ = check_chunk(chunk, self.bounds)
        return self._layout.rows(self._table(chunk, self._layout.stored), a, self.where(chunk), self.nulls)

    def describe(self, chunk: int) -> list[Described]:
        """What the columns beside the features hold in one chunk."""
        table = self._table(chunk, list(self.beside))
        return [described(table.column(name)) for name in self.beside]

    @abstractmethod
    def where(self, chunk: int) -> str:
        """The chunk in words."""

    @abstractmethod
    def _table(self, chunk: int, names: list[str]) -> pa.Table:
        """Columns of one chunk."""


class FrameSource(TableSource):
    """Rows of a table that is made piece by piece: pandas frames, or whatever ``pyarrow.table`` takes.

    Args:
        pieces: functions that make the pieces, one a chunk; picklable if the source is to be.
        lengths: rows of each piece.
        schema: columns and types of every piece; a frame of no rows gives them.
        target: the column of targets, or several.
        columns: features to use, in this order.
        name: what to call it in messages.
        identity: JSON-serialisable, for the fingerprint.
        beside: pass over columns that cannot be features.

    Raises:
        DataError: columns that cannot be features or target.
    """

    def __init__(
        self,
        pieces: Sequence[Callable[[], Any]],
        lengths: Sequence[int],
        schema: Any,
        target: str | Sequence[str] | None,
        columns: Sequence[str] | None,
        name: str,
        identity: Any,
        beside: bool = False,
    ) -> None:
        empty = as_table(schema)
        self._schema = empty.schema
        types = {field.name: field.type for field in empty.schema}
        layout = table_layout(types, target, columns, name, beside=beside)
        self._name, self._identity = name, identity
        self._pieces = [piece for piece, rows in zip(pieces, lengths, strict=True) if rows]
        super().__init__(layout, lengths)

    @property
    def fingerprint(self) -> str:
        """Digest of what the pieces are, and of the choice of columns."""
        return digest("frame", self._identity, self.bounds.tolist(), self._layout.identity())

    def _table(self, chunk: int, names: list[str]) -> pa.Table:
        a, b = check_chunk(chunk, self.bounds)
        table = as_table(self._pieces[chunk]()).select(names)
        try:
            table = table.cast(pa.schema([self._schema.field(name) for name in names]))
        except (pa.ArrowInvalid, ValueError) as error:
            table, reason = None, str(error)
        if table is None or table.num_rows != b - a:
            raise DataError(
                "a piece is not what was declared: " + (reason if table is None else f"{table.num_rows} rows"),
                where=self.where(chunk),
                expected=f"{b - a} rows of the declared types",
                remedy="correct the frame's declared types (its meta), or its divisions",
            )
        return table

    def where(self, chunk: int) -> str:
        """The chunk in words."""
        a, b = check_chunk(chunk, self.bounds)
        return f"{self._name}, chunk {chunk}, rows {a} to {b - 1}"


def as_table(frame: Any) -> pa.Table:
    """A pandas frame, or anything that speaks Arrow, as a table without its index."""
    if isinstance(frame, pa.Table):
        return frame
    if type(frame).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(frame, preserve_index=False)
    return pa.table(frame)


def frame_source(
    frame: Any, target: str | Sequence[str] | None, columns: Sequence[str] | None, beside: bool = False
) -> FrameSource:
    """Rows of a pandas frame, a polars frame or an Arrow table in memory.

    Raises:
        DataError: columns that cannot be features or target.
    """
    table = as_table(frame)
    rows = rows_per_chunk(table.nbytes // max(1, table.num_rows))
    starts = range(0, table.num_rows, rows)
    content = hashlib.blake2b(digest_size=32)
    for batch in table.combine_chunks().to_batches():
        for column in batch.columns:
            for buffer in column.buffers():
                content.update(b"" if buffer is None else buffer)
    pieces = [partial(table.slice, start, rows) for start in starts]
    lengths = [min(rows, table.num_rows - start) for start in starts]
    name = f"{type(frame).__name__} in memory"
    return FrameSource(pieces, lengths, table.slice(0, 0), target, columns, name, content.hexdigest(), beside)


class ArrowSource(TableSource):
    """Rows of an Arrow IPC file (Feather version 2); a chunk is a record batch.

    Args:
        file: the file.
        target: the column of targets, or several.
        columns: features to use, in this order.
        beside: pass over columns that cannot be features.

    Raises:
        StorageError: it is not an Arrow IPC file.
        DataError: columns that cannot be features or target.
    """

    def __init__(
        self,
        file: TableFile,
        target: str | Sequence[str] | None,
        columns: Sequence[str] | None,
        beside: bool = False,
    ) -> None:
        self._file = file
        with file.explaining("an Arrow IPC file (Feather version 2)"), file.open() as stream:
            opened = pa.ipc.open_file(stream)
            types = {field.name: field.type for field in opened.schema}
            batches = range(opened.num_record_batches)
            lengths = [opened.get_batch(i).num_rows for i in batches]

            def width(name: str) -> int:
                first = next((i for i in batches if lengths[i]), None)
                return 1 if first is None else max(1, len(opened.get_batch(first).column(name).slice(0, 1).flatten()))

            layout = table_layout(types, target, columns, file.path, width, beside)
        self._batches = [i for i in batches if lengths[i]]
        super().__init__(layout, lengths)

    @property
    def fingerprint(self) -> str:
        """Digest of the file's name, size and time, and of the choice of columns."""
        return digest("arrow", self._file.identity(), self._layout.identity())

    def _table(self, chunk: int, names: list[str]) -> pa.Table:
        check_chunk(chunk, self.bounds)
        with self._file.explaining("record batches as they were written"), self._file.open() as stream:
            options = pa.ipc.IpcReadOptions(use_threads=False)
            batch = pa.ipc.open_file(stream, options=options).get_batch(self._batches[chunk])
        return pa.Table.from_batches([batch.select(names)])

    def where(self, chunk: int) -> str:
        """The chunk in words."""
        a, b = check_chunk(chunk, self.bounds)
        return f"{self._file.path}, record batch {self._batches[chunk]}, rows {a} to {b - 1}"
