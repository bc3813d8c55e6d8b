"""Parquet datasets as a Source, and the parquet layout that reads fastest."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamkern.errors import DataError, UsageError
from streamkern.storage.arrays import named, require_rows
from streamkern.storage.arrow import (
    Columns,
    Vector,
    apart,
    arrow_target,
    columns_of,
    described,
    is_vector,
    number,
    target_values,
)
from streamkern.storage.base import digest
from streamkern.storage.described import Described
from streamkern.storage.layout import (
    FORMAT,
    as_rows,
    blocks_of,
    check_chunk,
    feature_dtype,
    merged,
    positions,
    require_distinct,
    target_of,
    unknown_name,
)
from streamkern.storage.parquet_files import DataFile, DatasetFiles
from streamkern.storage.remote import Retry
from streamkern.storage.writer import staged
from streamkern.types import IntArray, Rows, Target

_MARK = b"streamkern"
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def open_parquet(
    url: str | os.PathLike[str],
    target: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    *,
    retry: Retry | None = None,
    beside: bool = False,
) -> ParquetSource:
    """Open a parquet file, a directory of them (with hive partitions), or a glob as rows.

    The features are the columns of numbers or booleans, one a feature; or one column that holds a row's features as a
    list, a fixed-size list, or the fixed-size binary that `write_parquet` writes.

    Args:
        url: a local path, or any fsspec URL.
        target: the column of targets, or several for c values a row; a partition key may be one. Strings stay strings.
            Default: what `write_parquet` noted, else none.
        columns: features to use, in this order; partition keys are features only if they are named here.
        storage_options: for fsspec.
        retry: how patient to be with a remote store.
        beside: pass over columns that cannot be features; they can be described, and labels may be missing.

    Raises:
        StorageError: no files, a file without a whole footer, or a store that does not answer.
        DataError: columns that cannot be features or target, or files that differ in their columns.
        UsageError: ``columns`` that cannot be chosen.
    """
    files = DatasetFiles(os.fspath(url), storage_options, retry)
    first = files.files[0]
    marks = _marks(first.schema)
    target = marks.get("target") if target is None else target
    targets = [] if not target else [target] if isinstance(target, str) else list(target)
    partitions = {
        key: _partition_type([file.partitions.get(key, "") for file in files.files]) for key in first.partitions
    }
    types = {**{field.name: field.type for field in first.schema}, **partitions}
    for name in targets:
        if name not in types:
            raise unknown_name("target", name, types, first.path)
    if columns is not None or targets:
        require_distinct([*(columns or ()), *targets], first.path)
    chosen = [name for name in first.schema.names if name not in targets and name not in partitions]
    if "format" in marks and "X" in chosen:
        chosen = ["X"]  # what else the file holds are targets
    wanted = None
    if columns is not None:
        missing = next((name for name in columns if name not in types), None)
        if missing is None:
            chosen = list(columns)
        elif len(chosen) == 1 and is_vector(types[chosen[0]]):
            wanted = columns
        else:
            raise unknown_name("column", missing, [name for name in types if name not in targets], first.path)
    if not chosen:
        raise DataError(
            "no columns are left to be features",
            where=first.path,
            expected="at least one column that is no target",
            remedy="name fewer targets",
        )
    others: dict[str, str] = {}
    if beside and chosen != ["X"]:
        chosen, others = apart(chosen, types)
    vectors = [name for name in chosen if is_vector(types[name])]
    if vectors and len(chosen) > 1:
        raise DataError(
            f"column {vectors[0]!r} holds a row's features, and there are others: {', '.join(chosen)}",
            where=first.path,
            expected="one column of lists or binaries, or columns of numbers",
            remedy=f"pass columns=[{vectors[0]!r}], and target= for the column of targets",
        )
    used = [*chosen, *targets, *others]
    _require_alike(files.files, used if columns is not None else None, used, partitions)
    layout: Columns | Vector
    if vectors:
        layout = _vector(files, vectors[0], types[vectors[0]], marks, wanted)
    else:
        layout = columns_of(chosen, types, first.path, text=columns is not None, loose=beside)
    source = ParquetSource(files, layout, targets, arrow_target(targets, types, first.path), partitions)
    source.noted_weight, source.beside, source.loose = marks.get("weight"), others, beside
    return source


class ParquetSource:
    """Rows of parquet files; made by `open_parquet`. A chunk is a row group, or several small ones of one file.

    Attributes:
        shuffled: whether the rows are recorded to be in a uniformly random order.
        nulls: whether a null among features of a floating dtype is read as NaN; else it is an error.
        noted_weight: the column that the training layout names as sample weights, or None.
        beside: types of columns that are neither features nor targets, where they were asked for.
        loose: whether labels may be missing, and are None then; else that is an error.
    """

    shuffled = False
    noted_weight: str | None = None
    nulls = False
    loose = False

    def __init__(
        self,
        files: DatasetFiles,
        layout: Columns | Vector,
        targets: Sequence[str],
        target: Target | None,
        partitions: dict[str, pa.DataType],
    ) -> None:
        self._files, self._layout, self._targets, self._partitions = files, layout, targets, partitions
        self.target, self.dtype = target, layout.dtype
        self.columns: tuple[str, ...] | None = layout.columns
        self.text: tuple[str, ...] = layout.text
        self.beside: dict[str, str] = {}
        self.n_features: int = layout.n_features
        row_bytes = layout.row_bytes
        self._reads: list[tuple[int, range]] = []
        lengths = [0]
        for i, file in enumerate(files.files):
            for start, stop in merged([rows * row_bytes for rows in file.rows]):
                if rows := sum(file.rows[start:stop]):
                    self._reads.append((i, range(start, stop)))
                    lengths.append(rows)
        self.bounds: IntArray = np.cumsum(lengths, dtype=np.int64)

    @property
    def distant(self) -> bool:
        """Whether a read is a round trip to a store."""
        return self._files.distant

    def chunked_like(self, other: ParquetSource) -> None:
        """Read in the chunks of another source over the same files."""
        self._reads, self.bounds = other._reads, other.bounds

    @cached_property
    def fingerprint(self) -> str:
        """Digest of every file's name, size, time and footer, and of the choice of columns."""
        files = [(file.name, file.size, file.version, file.footer) for file in self._files.files]
        return digest("parquet", files, self._layout.identity(), list(self._targets), self.target)

    def read(self, chunk: int) -> Rows:
        """Rows of one chunk; see ``Source.read``."""
        a, b = check_chunk(chunk, self.bounds)
        i, groups = self._reads[chunk]
        file = self._files.files[i]
        stored = [name for name in (*self._layout.stored, *self._targets) if name not in self._partitions]
        table = self._files.read(file, groups, stored)

        def column(name: str) -> pa.ChunkedArray:
            if name in self._partitions:
                here = None if file.partitions[name] == _HIVE_NULL else file.partitions[name]
                value = pa.scalar(here, pa.string()).cast(self._partitions[name])
                values = pa.chunked_array([pa.repeat(value, b - a)])
            else:
                values = table.column(name)
            taken = self.loose if name in self._targets else self.nulls and self._layout.takes_nulls(name)
            if values.null_count and not taken:
                self._fail(chunk, name, pc.index(pc.is_null(values), True).as_py(), "is null")
            return values

        def fail(name: str, row: int, what: str) -> None:
            self._fail(chunk, name, row, what)

        X = self._layout.rows(column, b - a, fail)
        if self.target is None:
            return Rows(X, None)
        return Rows(X, target_values([column(name) for name in self._targets], self.target))

    def describe(self, chunk: int) -> list[Described]:
        """What the columns beside the features hold in one chunk, a row group at a time."""
        i, groups = self._reads[chunk]
        file, found = self._files.files[i], []
        stored = [name for name in self.beside if name not in self._partitions]
        for group in groups:
            table = self._files.read(file, range(group, group + 1), stored)
            for name in self.beside:
                if name in self._partitions:
                    value = None if file.partitions[name] == _HIVE_NULL else file.partitions[name]
                    column = pa.chunked_array([pa.repeat(pa.scalar(value, pa.string()), file.rows[group])])
                else:
                    column = table.column(name)
                found.append(described(column))
        width = len(self.beside)
        return [reduce(add, found[j::width]) for j in range(width)]

    def where(self, chunk: int) -> str:
        """The chunk in words."""
        a, b = check_chunk(chunk, self.bounds)
        i, groups = self._reads[chunk]
        names = f"row group {groups[0]}" if len(groups) == 1 else f"row groups {groups[0]} to {groups[-1]}"
        return f"{self._files.files[i].path}, {names}, rows {a} to {b - 1}"

    def _fail(self, chunk: int, name: str, row: int, what: str) -> None:
        i, groups = self._reads[chunk]
        file, inside = self._files.files[i], row
        for group in groups:
            if inside < file.rows[group]:
                break
            inside -= file.rows[group]
        raise DataError(
            f"column {name!r} {what}",
            where=f"{file.path}, row group {group}, row {inside} of it (row {self.bounds[chunk] + row} of the dataset)",
            expected="a value in every row, as many in each row",
            remedy="fill or drop such rows before training"
            + ("" if name in self._targets else f", or leave the column {name!r} out with columns=[...]"),
        )


def write_parquet(
    path: str | os.PathLike[str],
    X: Any,
    y: Any = None,
    target: str = "target",
    row_group_rows: int | None = None,
    columns: Sequence[str] | None = None,
    weight: str = "weight",
) -> None:
    """Write rows as one parquet file of the layout that reads fastest: a fixed-size binary column for all features.

    Row groups are about 4 MiB, with a checksum on every page. The file appears under its name when it is whole.

    Args:
        path: a local path; a file that is there is replaced.
        X: features, shape (n, ...); or an iterable of blocks: (X, y), or (X, y, sample weights).
        y: targets, shape (n,), or (n, c), which makes c columns ``target_0``, ...; None with an iterable.
        target: name of the target column.
        row_group_rows: rows a row group.
        columns: names of the flattened features.
        weight: name of the column of sample weights, where blocks have them.

    Raises:
        StorageError: the file cannot be written.
        DataError: rows that cannot be stored.
        UsageError: parameters that contradict each other.
    """
    if target == "X":
        raise UsageError(
            "the target cannot be called 'X'",
            where="target",
            expected="a name other than X",
            remedy="that is the features' name: choose another",
        )
    path = Path(path)
    blocks = blocks_of(X, y, row_group_rows)
    first = next(blocks, None)
    if first is None:
        raise DataError(
            "no blocks at all",
            where=str(path),
            expected="at least one block",
            remedy="give one block of no rows for an empty dataset",
        )
    require_rows(first.X.shape, "X")
    dtype = feature_dtype(first.X.dtype, "X")
    width = math.prod(first.X.shape[1:])
    outputs: list[str] = []
    if first.y is not None:
        trailing = target_of(target, first.y.dtype, first.y.shape[1:], "y").outputs
        outputs = [f"{target}_{j}" for j in range(trailing[0])] if trailing else [target]
    marks = {
        "format": FORMAT,
        "dtype": dtype.str,
        "shape": first.X.shape[1:],
        "target": target if outputs == [target] else outputs or None,
        "columns": named(columns, width),
        **({} if first.w is None else {"weight": weight}),
    }

    def table(block: Rows) -> pa.Table:
        flat = as_rows(block.X).astype(dtype, copy=False)
        stored = [pa.Array.from_buffers(pa.binary(width * dtype.itemsize), len(flat), [None, pa.py_buffer(flat)])]
        if block.y is not None:
            y = block.y.astype(object) if block.y.dtype.kind in "UT" else block.y
            stored += [pa.array(y[:, j]) for j in range(len(outputs))] if y.ndim == 2 else [pa.array(y)]
        if block.w is not None:
            stored.append(pa.array(block.w, pa.float64()))
        return pa.table(stored, names=["X", *outputs, *([] if block.w is None else [weight])])

    head = table(first)
    schema = head.schema.with_metadata({_MARK: json.dumps(marks).encode()})
    with (
        staged(path) as staging,
        pq.ParquetWriter(
            staging,
            schema,
            use_dictionary=False,
            compression="none",
            write_statistics=False,
            write_page_checksum=True,
        ) as writer,
    ):
        while head is not None:
            if head.num_rows:
                writer.write_table(head.cast(schema), row_group_size=head.num_rows)
            block = next(blocks, None)
            head = None if block is None else table(block)


def _marks(schema: pa.Schema) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((schema.metadata or {}).get(_MARK, b"{}")))


def _partition_type(values: Sequence[str]) -> pa.DataType:
    return pa.int64() if all(value.removeprefix("-").isdecimal() for value in values) else pa.string()


def _vector(
    files: DatasetFiles, name: str, kind: pa.DataType, marks: dict[str, Any], wanted: Sequence[str] | None
) -> Vector:
    where = f"{files.files[0].path}, column {name!r}"
    if pa.types.is_fixed_size_binary(kind):
        dtype = feature_dtype(np.dtype(marks.get("dtype", "V1")), where) if "dtype" in marks else None
        width = math.prod(marks.get("shape", [0]))
        if dtype is None or width * dtype.itemsize != kind.byte_width or width == 0:
            raise DataError(
                f"{kind} without a matching dtype and shape",
                where=where,
                expected='schema metadata under the key "streamkern": {"dtype": ..., "shape": [...]}',
                remedy="write the file with write_parquet, or add that metadata",
            )
    else:
        dtype = number(kind.value_type, where)
        width = kind.list_size if pa.types.is_fixed_size_list(kind) else _list_width(files, name)
    names = named(marks.get("columns"), width)
    pick = None if wanted is None else tuple(positions(wanted, names, where).tolist())
    return Vector(name, width, dtype, names if wanted is None else tuple(wanted), pick)


def _list_width(files: DatasetFiles, name: str) -> int:
    """Values in the rows of the first row group that has rows: the footer counts them, so that none is read."""
    for file in files.files:
        for rows, values in files.values_in_lists(file, name):
            if rows:
                return max(1, round(values / rows))
    return 1


def _require_alike(
    files: Sequence[DataFile], used: Sequence[str] | None, needed: Sequence[str], partitions: dict[str, pa.DataType]
) -> None:
    """Raises DataError naming both files if a later one differs from the first in a used column (None: in any)."""
    first = files[0]
    names = first.schema.names if used is None else [name for name in used if name not in partitions]
    like = {name: first.schema.field(name).type for name in names}
    layout = {key: _marks(first.schema).get(key) for key in ("dtype", "shape")}
    for file in files[1:]:
        there = {field.name: field.type for field in file.schema}
        compared = names if used is not None else sorted({*names, *there})
        what = next(
            (
                f"column {name!r} is {there.get(name, 'missing')} and {like.get(name, 'missing')}"
                for name in compared
                if there.get(name) != like.get(name)
            ),
            None,
        )
        if what is None and {key: _marks(file.schema).get(key) for key in layout} != layout:
            what = "the dtype or shape of their rows differs"
        if what is None and set(file.partitions) != set(first.partitions):
            what = "their partition keys differ"
        if what is not None:
            raise DataError(
                f"two files differ: {what}",
                where=f"{file.path} and {first.path}",
                expected="the same columns of the same types in every file",
                remedy="write them again alike, open them apart, or choose common columns with columns=[...]",
            )
