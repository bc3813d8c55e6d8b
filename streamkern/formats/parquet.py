"""Parquet datasets as a Source, and a writer of the layout that reads fastest."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from streamkern.errors import DataError, StorageError
from streamkern.formats.arrow_tables import LIBRARIES, TableSource, fields_of
from streamkern.formats.parquet_files import DataFile, DatasetFiles
from streamkern.redaction import redacted
from streamkern.sources.array_source import checked_names, require_rows
from streamkern.sources.arrow import pa, pq
from streamkern.sources.arrow_conversion import common_type, is_number, is_text, require_distinct_names, whole_numbers
from streamkern.sources.base import TEXT_BYTES, TEXT_SAMPLE, Reading, text_bytes
from streamkern.sources.column_roles import Request, Roles, choose_columns
from streamkern.sources.format_rules import (
    CHUNK_BYTES,
    FORMAT,
    as_rows,
    blocks_of,
    check_chunk,
    feature_dtype,
    first_block,
    merged_reads,
    rows_per_chunk,
    target_of,
)
from streamkern.sources.ingest_record import ingest_record, recorded_facets, recorded_roles
from streamkern.sources.input_types import index_names, recorded_index
from streamkern.sources.remote_store import Retry
from streamkern.storage.atomic_writes import staged
from streamkern.storage.untrusted_files import given_path, storage_errors
from streamkern.storage.value_digest import digest
from streamkern.types import Rows

_DESCRIBED = 5  # copies of values that ``describe`` makes
_WIDE = 2.0  # bytes for each letter without a sample
_OBJECT = 96  # bytes of a text as an object, without its letters
_MARK = b"streamkern"
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def parquet_source(
    url: str, request: Request, storage_options: dict[str, Any] | None, retry: Retry | None
) -> ParquetSource:
    """Open a parquet file, a directory of them (with hive partitions, features only if they are named), or a glob.

    Target and weight are by default those that `write_parquet` recorded, else none.
    """
    files = DatasetFiles(url, storage_options, retry)
    with storage_errors(redacted(url), "parquet files", "the metadata of the files cannot be used"):
        return _source(files, url, request)


def _source(files: DatasetFiles, url: str, request: Request) -> ParquetSource:
    first = files.files[0]
    require_distinct_names(first.schema.names, first.path)
    notes = _marks(first.schema)
    record = ingest_record(url) or {}
    request = request.noted({**notes, **recorded_roles(record)})
    partitions = {
        key: _partition_type([file.partitions.get(key, "") for file in files.files]) for key in first.partitions
    }
    types, missing = {**_common_types(files.files), **partitions}, files.missing()
    # A file without any value has Arrow's type of nulls.
    missing |= {field.name: True for file in files.files for field in file.schema if pa.types.is_null(field.type)}
    for key in partitions:
        missing[key] = any(_is_absent(file.partitions.get(key, ""), partitions[key]) for file in files.files)
    fields = fields_of(types, first.path, notes, missing, recorded_index(first.schema.metadata))
    layout = "format" in notes and "X" in fields  # files of write_parquet, whose other columns are targets or weights
    for name, field in fields.items():
        fields[name] = replace(field, by_name_only=name in partitions or (layout and name != "X"))
    roles = choose_columns(fields, request, first.path, names=notes.get("columns"), width=files.list_width)
    used = [*roles.stored, *dict(roles.non_features)]
    _require_alike(files.files, None if request.columns is None and not request.exclude else used, partitions, types)
    return ParquetSource(files, roles, request, partitions, types, **recorded_facets(record, roles.columns))


class ParquetSource(TableSource):
    """Rows of parquet files; made by `parquet_source`. A chunk is one row group, or several small ones of a file."""

    def __init__(
        self,
        files: DatasetFiles,
        roles: Roles,
        request: Request,
        partitions: dict[str, pa.DataType],
        types: dict[str, pa.DataType],
        **facets: Any,
    ) -> None:
        self._files, self._partitions, self._types, self._places = files, partitions, types, (files,)
        self._reads: list[tuple[DataFile, range]] = []
        for file in files.files:
            # Row groups are joined up to a size that counts features, long texts and wide targets.
            most = max(file.rows, default=0)
            values = 0 if roles.target is None else roles.target.width * roles.target.dtype.itemsize
            besides = max(sum(file.widest.get(name, 0) for name in roles.targets), most * values) - most * TEXT_BYTES
            for start, stop in merged_reads([rows * roles.row_bytes + max(0, besides) for rows in file.rows]):
                if sum(file.rows[start:stop]):
                    self._reads.append((file, range(start, stop)))
        lengths = [sum(file.rows[groups.start : groups.stop]) for file, groups in self._reads]
        super().__init__(roles, request, lengths, remote=files.remote, **facets)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of every file's name, size, time and footer, and of the choice of columns."""
        return digest("parquet", self._files.identity, *self._roles.identity())

    def pieces(self) -> list[tuple[str, int]]:
        roles = self._roles.identity()
        return [(digest("parquet", file.identity, *roles), sum(file.rows)) for file in self._files.files]

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        file, groups = self._reads[chunk]
        names = f"row group {groups[0]}" if len(groups) == 1 else f"row groups {groups[0]} to {groups[-1]}"
        return f"{file.path}, {names}, rows {a} to {b - 1}"

    def where_row(self, chunk: int, row: int) -> str:
        """Return the row's location: its number in the file's row group and in the data set."""
        file, groups = self._reads[chunk]
        ends = np.cumsum(file.rows[groups.start : groups.stop])
        inside = int(np.searchsorted(ends, row, side="right"))
        group, start = groups[inside], int(ends[inside]) - file.rows[groups[inside]]
        of_all = int(self.bounds[chunk]) + row
        return f"{file.path}, row group {group}, row {row - start} of it (row {of_all} of the dataset)"

    def reading(self) -> Reading:
        """As the base class, with row groups that are decoded some rows at a time.

        Pages are held as they are stored, and a table of rows as Arrow decodes them; texts of features as objects, too.
        Columns that are only described are read apart: their values, and their distinct values as texts.
        """
        roles, table, text = self._roles, self._table_rows, self._text_bytes
        decoded = table * max(roles.row_bytes, self._row_bytes(0))
        # Stored as a dictionary, a text takes its bytes once, and as an id once in each row.
        decoded += table * text if self._names_rows and text > TEXT_BYTES else 0
        columns = () if roles.wide or self.schema is None else self.schema.columns
        if words := [name for name, column in zip(roles.features, columns, strict=False) if column.text]:
            decoded += self._pages(words) + table * roles.row_bytes
        described = _DESCRIBED * self._pages(list(dict(self.non_features)))
        return Reading(self._row_bytes(text), max(self._pages(roles.stored) + decoded, described), libraries=LIBRARIES)

    def _pages(self, names: Sequence[str]) -> int:
        """Bytes of the pages of columns that are held at a time, and at least those of a table's values."""
        files = [file for file in self._files.files if any(file.rows)]
        if not names or not files:
            return 0
        if self._table_rows < self._most_rows():
            return CHUNK_BYTES + max(self._files.pages(file, names) for file in files)
        groups = max(len(groups) for _, groups in self._reads)
        return groups * max(sum(file.widest.get(name, 0) for name in names) for file in files)

    @cached_property
    def _text_bytes(self) -> int:
        """Bytes of a text of the target as an object: from the footers, and an id from the first ones as well."""
        if self.target is None or self.target.dtype != object:
            return TEXT_BYTES
        name, files = self._roles.targets[0], [file for file in self._files.files if any(file.rows)]
        text, texts = TEXT_BYTES, list[str]()
        if files and name not in self._partitions and not self._files.remote:
            with suppress(pa.ArrowException, OSError, StorageError):  # reading reports the error, with its location
                tables = self._files.batches(files[0], range(len(files[0].rows)), [name], [], TEXT_SAMPLE)
                texts = [each for each in next(tables).column(0).to_pylist() if isinstance(each, str) and each]
        # A stored byte takes 1 in memory for ASCII letters, up to 5 for others: Python stores these in two or four
        # bytes, and caches their UTF-8 encoding as well.
        wide = [1 + max(1, sys.getsizeof(text) - 76) / len(text.encode()) for text in texts if not text.isascii()]
        per_letter = max(wide, default=1.0 if texts else _WIDE)
        for file in files:
            largest = max(file.widest.get(name, 0) for name in self._roles.targets)
            text = max(text, _OBJECT + math.ceil(per_letter * largest / max(file.rows)))
        return max(text, text_bytes(texts)) if self._names_rows else text

    @cached_property
    def _table_rows(self) -> int:
        """Rows that take ``CHUNK_BYTES`` as they are stored, or in memory."""
        row, read = max(self._roles.row_bytes, self._row_bytes(0)), {*self._roles.stored, *dict(self.non_features)}
        for file in self._files.files:
            row = max(row, sum(file.widest.get(name, 0) for name in read) // max(1, *file.rows, 1))
        return min(max(1, self._most_rows()), rows_per_chunk(row + (self._text_bytes if self._names_rows else 0)))

    def _table(self, chunk: int, names: Sequence[str]) -> pa.Table:
        file, groups = self._reads[chunk]
        stored, words = self._stored(file, names)
        rows = sum(file.rows[groups.start : groups.stop])
        return self._with_keys(self._files.read(file, groups, stored, words), file, names, rows)

    def _pieces(self, chunk: int, names: Sequence[str]) -> Iterator[pa.Table]:
        file, groups = self._reads[chunk]
        stored, words = self._stored(file, names)
        if self._table_rows >= self.bounds[chunk + 1] - self.bounds[chunk] or not stored:
            yield self._table(chunk, names)
            return
        for table in self._files.batches(file, groups, stored, words, self._table_rows):
            yield self._with_keys(table, file, names, table.num_rows)

    def _stored(self, file: DataFile, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the columns to read from a file, and those of them to read as dictionaries of texts."""
        stored = [name for name in names if name not in self._partitions]
        words = [name for name in stored if is_text(file.schema.field(name).type)]
        if self._names_rows:
            words = [name for name in words if name not in self._roles.targets]
        return stored, words

    def _with_keys(self, table: pa.Table, file: DataFile, names: Sequence[str], rows: int) -> pa.Table:
        """Numbers of the target get the type of all files, and partition keys become columns."""
        for name in self._roles.targets:  # features are converted anyway
            if name not in table.column_names:
                continue
            if is_number(table.schema.field(name).type) and is_number(self._types[name]):
                values = table.column(name).cast(self._types[name], safe=False)
                table = table.set_column(table.schema.get_field_index(name), name, values)
        for name in self._partitions.keys() & set(names):
            key, kind = file.partitions[name], self._partitions[name]
            value = pa.scalar(None if _is_absent(key, kind) else key, pa.string()).cast(kind)
            table = table.append_column(name, pa.repeat(value, rows))
        return table


def write_parquet(
    path: str | os.PathLike[str],
    X: Any,
    y: Any = None,
    target: str = "target",
    row_group_rows: int | None = None,
    columns: Sequence[str] | None = None,
    weight: str = "weight",
) -> None:
    """Write rows as one parquet file with all features in a fixed-size binary column, the fastest layout to read.

    Row groups are about 4 MiB, with a checksum on every page. The file appears under its name when it is complete.

    Args:
        path: a local path; an existing file is replaced.
        X: features, shape (n, ...). Or an iterable of blocks: (X, y) or (X, y, sample weights).
        y: targets, shape (n,) or (n, c); None with an iterable. With shape (n, c), the columns of targets are
            ``target_0``, ``target_1`` and so on.
        target: name of the target column.
        row_group_rows: number of rows of a row group.
        columns: names of the flattened features.
        weight: name of the column of sample weights, if blocks have weights.

    Raises:
        StorageError: the file cannot be written.
        DataError: rows cannot be stored.
        UsageError: parameters contradict one another.
    """
    path = Path(given_path(path))
    blocks = blocks_of(X, y, row_group_rows)
    first = first_block(blocks, target, str(path))
    require_rows(first.X.shape, "X")
    dtype = feature_dtype(first.X.dtype, "X")
    width = math.prod(first.X.shape[1:])
    outputs: list[str] = []
    if first.y is not None:
        trailing = target_of(target, first.y.dtype, first.y.shape[1:], "y").outputs
        outputs = [f"{target}_{j}" for j in range(trailing[0])] if trailing else [target]
    weights = [] if first.w is None else [weight]
    marks = {
        "format": FORMAT,
        "dtype": dtype.str,
        "shape": first.X.shape[1:],
        "target": target if outputs == [target] else outputs or None,
        "columns": checked_names(columns, width),
        **({"weight": weight} if weights else {}),
    }
    table = partial(_packed_table, dtype, ["X", *outputs, *weights])
    head = table(first)
    schema = head.schema.with_metadata({_MARK: json.dumps(marks).encode()})
    with (
        staged(path) as staging,
        pq.ParquetWriter(
            staging, schema, use_dictionary=False, compression="none", write_statistics=False, write_page_checksum=True
        ) as writer,
    ):
        while head is not None:
            if head.num_rows:
                writer.write_table(head.cast(schema), row_group_size=head.num_rows)
            block = next(blocks, None)
            head = None if block is None else table(block)


def _packed_table(dtype: np.dtype[Any], names: Sequence[str], block: Rows) -> pa.Table:
    flat = as_rows(block.X).astype(dtype, copy=False)
    width = flat.shape[1] * dtype.itemsize
    stored = [pa.Array.from_buffers(pa.binary(width), len(flat), [None, pa.py_buffer(flat)])]
    if block.y is not None:
        y = block.y.astype(object) if block.y.dtype.kind in "UT" else block.y
        stored += [pa.array(y[:, j]) for j in range(y.shape[1])] if y.ndim == 2 else [pa.array(y)]
    if block.w is not None:
        stored.append(pa.array(block.w, pa.float64()))
    return pa.table(stored, names=names)


def _marks(schema: pa.Schema) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((schema.metadata or {}).get(_MARK, b"{}")))


def _partition_type(values: Sequence[str]) -> pa.DataType:
    numbers = [value for value in values if not _is_absent(value, pa.float64())]
    if not all(map(str.isascii, numbers)):  # other scripts have digits that Arrow does not read
        return pa.string()
    if numbers and all(value.removeprefix("-").isdecimal() for value in numbers):
        return whole_numbers([int(value) for value in numbers]).type
    if numbers and all(re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value) for value in numbers):
        return pa.float64()
    return pa.string()


def _is_absent(key: str, kind: pa.DataType) -> bool:
    """Among numbers, writers name the folder of missing values ``nan``, too."""
    return key == _HIVE_NULL or (not pa.types.is_string(kind) and key.lower() == "nan")


def _index(file: DataFile) -> frozenset[str]:
    return recorded_index(file.schema.metadata) | {*index_names(file.schema.names)}


def _common_types(files: Sequence[DataFile]) -> dict[str, pa.DataType]:
    first = files[0].schema
    types = {field.name: field.type for field in first}
    for schema in (file.schema for file in files[1:] if not file.schema.equals(first)):
        for field in schema:
            if field.name in types:
                types[field.name] = common_type(types[field.name], field.type) or types[field.name]
    return types


def _require_alike(
    files: Sequence[DataFile],
    used: Sequence[str] | None,
    partitions: dict[str, pa.DataType],
    types: dict[str, pa.DataType],
) -> None:
    """Columns of kindred types, which ``types`` joins, do not differ; None as ``used`` compares all."""
    first = files[0]
    names = first.schema.names if used is None else [name for name in used if name not in partitions]
    like = {name: first.schema.field(name).type for name in names}
    layout = {key: _marks(first.schema).get(key) for key in ("dtype", "shape")}
    for file in files[1:]:
        there = {field.name: field.type for field in file.schema}
        compared = names if used is not None else sorted({*names, *there} - _index(first) - _index(file))
        what = next(
            (
                f"column {name!r} is {there.get(name, 'missing')} and {like.get(name, 'missing')}"
                for name in compared
                if name not in there or name not in like or common_type(types[name], there[name]) is None
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
                remedy="write them again alike, open them separately, or choose common columns with columns=[...]",
            )
