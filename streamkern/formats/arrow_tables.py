"""Rows from columns of Arrow tables: which columns may be features or targets, and how values are read."""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import copy
from dataclasses import replace
from functools import cached_property, partial, reduce
from operator import add
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from streamkern.errors import DataError
from streamkern.formats.fsspec_file import TableFile
from streamkern.memory import check_memory
from streamkern.sources.arrow import pa, pc
from streamkern.sources.arrow_conversion import (
    UnfitError,
    as_table,
    converted,
    is_number,
    is_text,
    kind_of_type,
    require_distinct_names,
    without_dictionary,
)
from streamkern.sources.base import (
    MAX_DISTINCT_TEXTS,
    TEXT_BYTES,
    TEXT_SAMPLE,
    ColumnDescription,
    Reading,
    Source,
    text_bytes,
    text_key,
)
from streamkern.sources.column_roles import Field, Request, Roles, choose_columns
from streamkern.sources.format_rules import as_rows, as_target, check_chunk, rows_per_chunk
from streamkern.sources.input_types import is_table, recorded_index
from streamkern.sources.schema import Schema, number_of
from streamkern.storage.untrusted_files import storage_errors
from streamkern.storage.value_digest import array_content, digest
from streamkern.types import Array, Rows, Target

LIBRARIES = 40 << 20
"""Arrow's decoders and heap after the first read of a process: 39 MiB measured."""


def fields_of(
    types: Mapping[str, pa.DataType],
    where: str,
    notes: Mapping[str, Any] | None = None,
    missing: Mapping[str, bool | None] | None = None,
    index: Collection[str] = (),
) -> dict[str, Field]:
    """Return a table's columns for ``choose_columns``; ``notes`` are dtype and shape of rows stored as binaries."""
    return {
        name: replace(
            _field(kind, f"{where}, column {name!r}", notes or {}),
            missing=pa.types.is_null(kind) or (missing or {}).get(name),
            index=name in index,
            empty=pa.types.is_null(kind),
        )
        for name, kind in types.items()
    }


def _field(kind: pa.DataType, where: str, notes: Mapping[str, Any]) -> Field:
    inferred = kind_of_type(kind)
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if inferred is not None and is_number(kind):
        return Field(where, str(kind), np.dtype(kind.to_pandas_dtype()), inferred=inferred)
    if inferred is not None:
        made = np.dtype(object if is_text(kind) else np.float64)
        return Field(where, str(kind), made, inferred=inferred, encoded=True, decimal=pa.types.is_decimal(kind))
    if pa.types.is_fixed_size_binary(kind):
        length, dtype = math.prod(notes.get("shape", [0])), np.dtype(notes["dtype"]) if "dtype" in notes else None
        fits = dtype is not None and length * dtype.itemsize == kind.byte_width > 0
        return Field(where, str(kind), dtype if fits else None, None, length)
    fixed = pa.types.is_fixed_size_list(kind)
    if (fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)) and is_number(kind.value_type):
        length = kind.list_size if fixed else 0
        return Field(where, str(kind), np.dtype(kind.value_type.to_pandas_dtype()), None, length)
    return Field(where, str(kind), None)


def describe_column(values: pa.ChunkedArray) -> ColumnDescription:
    """Describe the values of a column that cannot be a feature: number missing, kind, and most frequent values."""
    coded = pa.types.is_dictionary(values.type) and is_text(values.type)  # each distinct text is examined once
    values = values.unify_dictionaries() if coded else without_dictionary(values)
    missing, kind = values.null_count, values.type
    numeric = pa.types.is_decimal(kind)
    dated = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind)
    if missing == len(values) or not (is_text(kind) or numeric or dated):
        return ColumnDescription(missing, Counter(), None, None)
    values = values.drop_null()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        values = values.cast(pa.timestamp(kind.unit))  # as UTC, because other zones need a time zone database
    found = pc.value_counts(values if coded or not is_text(kind) else values.cast(pa.large_string()))
    values, rows = found.field("values"), found.field("counts")
    texts = values.cast(pa.large_string())
    if numeric:
        ranks = values.cast(pa.float64())
    else:
        ranks = pc.multiply(pc.utf8_length(texts), 0 if dated else 1).cast(pa.float64())
    ends = pc.min_max(ranks)
    low, high = ends["min"], ends["max"]
    first = pc.min(texts.filter(pc.equal(ranks, low))).as_py()
    last = pc.max(texts.filter(pc.equal(ranks, high))).as_py()
    counts = None
    if len(found) <= MAX_DISTINCT_TEXTS:
        counts = Counter(dict(zip(map(text_key, texts.to_pylist()), rows.to_pylist(), strict=True)))
    return ColumnDescription(missing, counts, (low.as_py(), text_key(first)), (high.as_py(), text_key(last)))


def _placed(whole: Array | None, part: Array | None, start: int, n: int) -> Array | None:
    """Return an array of n rows with those of ``part`` from row ``start`` on, in a dtype that holds all."""
    if part is None:
        return None
    if whole is None:
        whole = np.empty((n, *part.shape[1:]), part.dtype)
    elif whole.dtype != part.dtype:
        whole = whole.astype(np.result_type(whole, part))
    whole[start : start + len(part)] = part
    return whole


def target_values(columns: Sequence[pa.ChunkedArray], target: Target, texts: dict[Any, Any] | None = None) -> Array:
    """Return targets (n,) or (n, c); labels of a dictionary share the ``texts`` of earlier tables, nulls are None."""
    texts = {} if texts is None else texts
    if target.dtype == object and all(is_text(values.type) and _is_coded(values) for values in columns):
        parts = [np.empty(0, dtype=object)]
        for part in columns[0].chunks:
            known = np.array(
                [*(texts.setdefault(text, text) for text in part.dictionary.to_pylist()), None], dtype=object
            )
            parts.append(known[part.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)])
        return np.concatenate(parts)
    if any(values.null_count for values in columns):
        made = [np.array(without_dictionary(values).to_pylist(), dtype=object) for values in columns]
    else:
        made = [as_target(_plain(without_dictionary(values)).to_numpy(), target) for values in columns]
    return np.stack(made, axis=1) if target.outputs else made[0]


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(pa.float64()) if pa.types.is_decimal(values.type) else values


def _is_coded(values: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_dictionary(values.type))


class TableSource(Source):
    """Base class of sources of tables, read one chunk at a time; a piece without rows is not a chunk.

    ``schema``, the roles' by default, and ``words``, texts by name, are of features that were columns of a table before
    they were stored as numbers.
    """

    _places: Sequence[Any] = ()
    """All files and arrays that are read; each has an ``identity``, found without reading it."""

    def __init__(
        self,
        roles: Roles,
        request: Request,
        lengths: Sequence[int],
        *,
        shuffled: bool = False,
        remote: bool = False,
        schema: Schema | None = None,
        words: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._roles, self.shuffled, self.remote = roles, shuffled, remote
        self.bounds = np.cumsum([0, *(rows for rows in lengths if rows)], dtype=np.int64)
        self.n_features = roles.width if roles.pick is None else len(roles.pick)
        self.dtype, self.columns = roles.dtype, roles.columns
        self.target, self.weight, self.non_features = roles.target, roles.weight, roles.non_features
        self.left_out, self.time, self.group = roles.left_out, roles.time, roles.group
        self.schema = roles.schema if schema is None else schema
        nan = not roles.wide and (request.lenient or roles.dtype.kind == "f")
        # Labels and text features have few distinct texts and are read as dictionaries; ids are all different.
        self._names_rows = request.role != "target"
        self._kinds_fixed = isinstance(request.schema, Schema)  # by a model
        self._conformed = False  # to the rows of training, or the table before
        self._nullable = {*(roles.features if nan else ()), *(roles.targets if request.lenient else ())}
        self._words: dict[int, dict[float, str]] = {j: {} for j in range(len(roles.features))}
        for j, column in enumerate(() if schema is None else schema.columns):
            if column.text:
                self._words[j] = {number_of(text): text for text in map(str, (words or {}).get(column.name, ()))}

    def require_unchanged(self) -> None:
        for each in self._places:
            each.require_unchanged()

    def words(self, column: int) -> Mapping[float, str]:
        return self._words.get(column, {})

    def conformed(self, schema: Schema | None) -> Source:
        mine = self.schema
        if (
            self._roles.wide
            or schema is None
            or mine is None
            or mine.names != schema.names
            or mine.kinds == schema.kinds
        ):
            return super().conformed(schema)
        made = copy(self)
        made.__dict__.pop("fingerprint", None)
        made._read_by(schema)
        made._conformed = True
        return made

    def _read_by(self, schema: Schema) -> None:
        columns = zip(schema.columns, (() if self.schema is None else self.schema.columns), strict=True)
        self.schema = Schema(tuple(replace(wanted, missing=mine.missing) for wanted, mine in columns))
        self.dtype = self.dtype if self.dtype.kind == "f" and schema.plain else np.dtype(np.float64)
        self._roles = replace(self._roles, schema=self.schema, dtype=self.dtype)
        self._nullable |= set(self._roles.features)
        self._words = {j: {} for j in range(len(self._roles.features))}

    def read(self, chunk: int) -> Rows:
        check_chunk(chunk, self.bounds)
        with self._explaining(chunk):
            return self._read(chunk)

    def _explaining(self, chunk: int) -> AbstractContextManager[None]:
        """Errors of damaged values become a StorageError; those of the user's own functions stay as they are."""
        if not self._places:
            return nullcontext()
        return storage_errors(
            self.where(chunk), "values of the types that the columns declare", "the rows cannot be read"
        )

    def _read(self, chunk: int) -> Rows:
        n, start = int(self.bounds[chunk + 1] - self.bounds[chunk]), 0
        texts: dict[Any, Any] = {}
        whole: list[Array | None] = [None, None, None]
        for table in self._pieces(chunk, self._roles.stored):
            part = self._converted(chunk, table, start, texts)
            if table.num_rows == n:
                return part
            whole = [_placed(into, values, start, n) for into, values in zip(whole, part, strict=True)]
            start += table.num_rows
            del table, part
            check_memory()
        X, y, w = whole
        assert X is not None
        return Rows(X, y, w)

    def _converted(self, chunk: int, table: pa.Table, start: int, texts: dict[Any, Any]) -> Rows:
        """Rows of a table of a chunk, whose first row is row ``start`` of it; ``texts``: labels so far."""
        roles = self._roles
        w = None if roles.weight is None else self._weights_in(table, chunk, start)
        there = np.ones(table.num_rows, dtype=bool) if w is None else w != 0  # rows of weight 0 are dropped later
        for name in roles.stored:
            values = table.column(name)
            # An id that is also a feature has a value in every row.
            if values.null_count and (name not in self._nullable or (self._names_rows and name in roles.targets)):
                gaps = np.asarray(values.is_null().to_numpy()) & there
                if gaps.any():
                    self._fail(chunk, name, start + int(np.argmax(gaps)), "is null")
                if there.any():
                    filled = values.take(np.where(there, np.arange(len(there)), np.argmax(there)))
                    table = table.set_column(table.column_names.index(name), name, filled)
        if roles.wide:
            X = self._wide(chunk, table.column(roles.features[0]), start)
        else:
            X = self._narrow(chunk, table, start)
        y = None
        if self.target is not None:
            targets = [table.column(name) for name in roles.targets]
            for name, values in zip(roles.targets, targets, strict=True):
                self._require_exact(chunk, name, values, start)
            if self.target.dtype == object and not self._names_rows:
                targets = [values if _is_coded(values) else values.dictionary_encode() for values in targets]
            y = target_values(targets, self.target, texts)
        return Rows(X, y, w)

    def weights(self, chunk: int) -> Array:
        assert self.weight is not None
        return self._weights_in(self._table(chunk, [self.weight]), chunk)

    def _weights_in(self, table: pa.Table, chunk: int, start: int = 0) -> Array:
        assert self.weight is not None
        return self._weights(without_dictionary(table.column(self.weight)).to_numpy(), chunk, start)

    def describe(self, chunk: int) -> Sequence[ColumnDescription]:
        names, found = [name for name, _ in self.non_features], []
        with self._explaining(chunk):
            for table in self._pieces(chunk, names) if names else ():
                found.append([describe_column(self._given(table.column(name))) for name in names])
        return [reduce(add, parts) for parts in zip(*found, strict=True)]

    def reading(self) -> Reading:
        decoded, text = self._decoded()
        row = self._row_bytes(text)
        # Text features are converted through Python objects, one for each distinct text.
        return Reading(row, decoded + (decoded if self.text else 0), libraries=LIBRARIES)

    def _decoded(self) -> tuple[int, int]:
        """Bytes of a chunk's decoding, in addition to its rows; and bytes of a target's text as an object."""
        text = TEXT_BYTES
        if self.target is not None and self.target.dtype == object and len(self.bounds) > 1:
            first = self._table(0, self._roles.targets).slice(0, TEXT_SAMPLE)
            text = text_bytes(without_dictionary(first.column(0)).to_pylist())
        return 2 * self._most_rows() * self._row_bytes(text), text

    @abstractmethod
    def _table(self, chunk: int, names: Sequence[str]) -> pa.Table:
        """Return columns of one chunk."""

    def _pieces(self, chunk: int, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield several tables if that saves memory."""
        yield self._table(chunk, names)

    def _given(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Values of a non-feature, with nulls for what the format treats as missing."""
        return values

    def _narrow(self, chunk: int, table: pa.Table, start: int = 0) -> Array:
        """Features stored in a column each, shape (n, d); the first row is row ``start`` of the chunk."""
        assert self.schema is not None
        columns = [table.column(name) for name in self._roles.features]
        nulls = self.dtype.kind != "f" and any(values.null_count for values in columns)
        X = np.empty((table.num_rows, len(columns)), dtype=np.float64 if nulls else self.dtype)
        for j, (values, column) in enumerate(zip(columns, self.schema.columns, strict=True)):
            flags = column.kind != "boolean" or pa.types.is_boolean(values.type)
            if self.schema.plain and flags and is_number(values.type) and not pa.types.is_dictionary(values.type):
                X[:, j] = (values.cast(pa.float64(), safe=False) if values.null_count else values).to_numpy()
                continue
            try:
                X[:, j] = converted(values, column, self._words[j] if column.kind == "category" else None)
            except UnfitError as error:
                remedy = "correct the value or leave it empty"
                if self._kinds_fixed:
                    remedy += f": the column is a {column.kind} in the rows of training"
                else:
                    remedy += f'; or read the column as another kind: schema={{{column.name!r}: "category"}}'
                if self._conformed:
                    remedy += f"; it is a {column.kind} in the rows of training, or in a table before this one"
                if column.kind == "datetime":
                    remedy += f"; dates of another order: pandas.to_datetime(table[{column.name!r}], dayfirst=True)"
                    remedy += ", or format='%Y%m%d' of digits"
                raise DataError(
                    f"The value {error.value!r} of column {column.name!r} is not {error.expected}.",
                    where=self.where_row(chunk, start + error.row),
                    expected=error.expected,
                    remedy=remedy,
                ) from error
        return X

    def _wide(self, chunk: int, column: pa.ChunkedArray, start: int = 0) -> Array:
        """Features from one column of lists or binaries, shape (n, d); the first is row ``start``."""
        width, parts = self._roles.width, [np.empty((0, self._roles.width), self.dtype)]
        for part in column.chunks:
            if pa.types.is_fixed_size_binary(part.type):
                offset = part.offset * part.type.byte_width
                values = np.frombuffer(part.buffers()[1], self.dtype, count=len(part) * width, offset=offset)
            else:
                values = self._listed(chunk, part, start)
            parts.append(as_rows(values.reshape(len(part), width)))
            start += len(part)
        X = parts[1] if len(parts) == 2 else np.concatenate(parts)
        return X if self._roles.pick is None else np.ascontiguousarray(X[:, self._roles.pick])

    def _listed(self, chunk: int, part: pa.Array, start: int) -> Array:
        name, width = self._roles.features[0], self._roles.width
        if not pa.types.is_fixed_size_list(part.type):
            lengths = np.diff(part.offsets.to_numpy())
            ragged = np.flatnonzero(lengths != width)
            if len(ragged):
                row = int(ragged[0])
                self._fail(chunk, name, start + row, f"has {lengths[row]} values where other rows have {width}")
        values = part.flatten()
        if values.null_count:
            row = start + pc.index(pc.is_null(values), True).as_py() // width
            self._fail(chunk, name, row, "holds a null in its list")
        return np.asarray(values.to_numpy(zero_copy_only=False))

    def _require_exact(self, chunk: int, name: str, values: pa.ChunkedArray, start: int) -> None:
        """Whole numbers of a target, such as labels, may have more digits than float64 holds."""
        if pa.types.is_decimal(values.type) and values.type.scale <= 0:
            large = np.abs(_plain(values).to_numpy()) > float(1 << 53)
            if large.any():
                row = int(np.argmax(large))
                raise DataError(
                    f"column {name!r} is {values[row].as_py()}, which float64 cannot represent",
                    where=self.where_row(chunk, start + row),
                    expected="numbers up to 2⁵³, or whole numbers of 64 bits",
                    remedy="store labels and ids of more digits as texts",
                )

    def _fail(self, chunk: int, name: str, row: int, what: str) -> NoReturn:
        remedy = "fill or drop such rows first"
        if self._names_rows and name in self._roles.targets:
            remedy = "fill or drop such rows first, or leave the id out"
        elif name in self._roles.features:
            remedy = f'declare the column: schema={{{name!r}: "number"}}; or leave it out: exclude=[{name!r}]'
        elif name in self._roles.targets:
            remedy = f"leave out the rows without a target: table = table[table[{name!r}].notna()]"
        raise DataError(
            f"column {name!r} {what}",
            where=self.where_row(chunk, row),
            expected="a value in every row, as many in each row",
            remedy=remedy,
        )


class FrameSource(TableSource):
    """Rows of a table made piece by piece, from pandas frames or any input of ``pyarrow.table``.

    Each piece, a function, is a chunk; functions are picklable if the source is to be. Without an ``identity`` for the
    fingerprint, it is computed from the rows as they are read. ``piece_bytes`` is the size of the largest piece with
    all of its columns, if pieces are computed; 0 in memory.
    """

    def __init__(
        self,
        pieces: Sequence[Callable[[], Any]],
        lengths: Sequence[int],
        schema: Any,
        request: Request,
        name: str,
        identity: Any,
        missing: Mapping[str, bool | None] | None = None,
        piece_bytes: int = 0,
    ) -> None:
        given = as_table(schema).schema
        types = {field.name: field.type for field in given}
        decoded = {name: without_dictionary(pa.chunked_array([], kind)).type for name, kind in types.items()}
        self._schema = pa.schema(list(decoded.items()))
        self._name, self._identity, self._piece_bytes = name, identity, piece_bytes
        self._made = [piece for piece, rows in zip(pieces, lengths, strict=True) if rows]
        fields = fields_of(types, name, missing=missing, index=recorded_index(given.metadata))
        super().__init__(choose_columns(fields, request, name), request, lengths)
        self.from_memory = identity is None

    @cached_property
    def fingerprint(self) -> str:
        if self._identity is not None:
            return digest("frame", self._identity, self.bounds.tolist(), self._roles.identity())
        found = hashlib.blake2b(digest_size=32)
        for chunk in range(len(self.bounds) - 1):
            for values in self.read(chunk):
                if values is not None:
                    found.update(array_content(values))
        return digest("table", int(self.bounds[-1]), self._roles.identity(), found.hexdigest())

    def _table(self, chunk: int, names: Sequence[str]) -> pa.Table:
        a, b = check_chunk(chunk, self.bounds)
        table = as_table(self._made[chunk]()).select(names)
        table = pa.table({name: without_dictionary(table.column(name)) for name in names})
        try:
            table = table.cast(pa.schema([self._schema.field(name) for name in names]))
        except (pa.ArrowInvalid, ValueError) as error:
            table, reason = None, str(error)
        if table is None or table.num_rows != b - a:
            raise DataError(
                "a piece differs from its declaration: " + (reason if table is None else f"{table.num_rows} rows"),
                where=self.where(chunk),
                expected=f"{b - a} rows of the declared types",
                remedy="correct the frame's declared types (its meta), or its divisions",
            )
        return table

    def _decoded(self) -> tuple[int, int]:
        """Count, besides, a computed piece with unused columns: as read, as a frame, as a table, and cast."""
        decoded, text = super()._decoded()
        return max(decoded, 4 * self._piece_bytes), text

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        return f"{self._name}, chunk {chunk}, rows {a} to {b - 1}"


def frame_source(frame: Any, request: Request) -> FrameSource:
    """Open a table in memory; an array's columns are called f0, f1, ... unless they are named."""
    table = as_table(frame, None if is_table(frame) else request.columns)
    rows = rows_per_chunk(table.nbytes // max(1, table.num_rows))
    starts = range(0, table.num_rows, rows)
    missing = {name: _has_gaps(without_dictionary(table.column(name))) for name in table.column_names}
    pieces = [partial(table.slice, start, rows) for start in starts]
    lengths = [min(rows, table.num_rows - start) for start in starts]
    name = f"{type(frame).__name__} in memory"
    return FrameSource(pieces, lengths, table.slice(0, 0), request, name, None, missing)


def _has_gaps(values: pa.ChunkedArray) -> bool:
    if values.null_count:
        return True
    if pa.types.is_floating(values.type):
        return bool(pc.any(pc.is_nan(values)).as_py())
    return is_text(values.type) and bool(pc.any(pc.equal(values, "")).as_py())


def _mapped(file: TableFile) -> Any:
    """A local file is memory-mapped, so that unused columns are never read."""
    return pa.memory_map(file.unchanged()) if file.local and file.size else file.open()


class ArrowSource(TableSource):
    """Rows of an Arrow IPC file (Feather version 2); a chunk is a record batch."""

    def __init__(self, file: TableFile, request: Request) -> None:
        self._file, self._places = file, (file,)
        with file.explaining("an Arrow IPC file (Feather version 2)"), _mapped(file) as stream:
            opened = pa.ipc.open_file(stream)
            require_distinct_names(opened.schema.names, file.path)
            types = {field.name: field.type for field in opened.schema}
            batches = range(opened.num_record_batches)
            lengths, self._largest, missing = [], 0, dict.fromkeys(types, False)
            for i in batches:
                check_memory()
                batch = opened.get_batch(i)
                lengths.append(batch.num_rows)
                self._largest = max(self._largest, batch.nbytes)
                for name, values in zip(types, batch.columns, strict=True):
                    missing[name] = missing[name] or values.null_count > 0

            def width(name: str) -> int:
                first = next((i for i in batches if lengths[i]), None)
                return 1 if first is None else max(1, len(opened.get_batch(first).column(name).slice(0, 1).flatten()))

            fields = fields_of(types, file.path, missing=missing, index=recorded_index(opened.schema.metadata))
            roles = choose_columns(fields, request, file.path, width=width)
        self._batches = [i for i in batches if lengths[i]]
        super().__init__(roles, request, lengths, remote=file.remote)

    @property
    def fingerprint(self) -> str:
        return digest("arrow", self._file.identity, self._roles.identity())

    def _table(self, chunk: int, names: Sequence[str]) -> pa.Table:
        check_chunk(chunk, self.bounds)
        with self._file.explaining("record batches as they were written"), _mapped(self._file) as stream:
            options = pa.ipc.IpcReadOptions(use_threads=False)
            batch = pa.ipc.open_file(stream, options=options).get_batch(self._batches[chunk]).select(names)
            batch.validate(full=True)  # Arrow believes offsets and texts as they are stored
        return pa.Table.from_batches([batch])

    def _decoded(self) -> tuple[int, int]:
        """A local, uncompressed batch stays in the file's mapped pages."""
        decoded, text = super()._decoded()
        return decoded + 2 * self._largest, text

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        return f"{self._file.path}, record batch {self._batches[chunk]}, rows {a} to {b - 1}"


def lazy_source(frame: Any, request: Request) -> ArrowSource:
    """Open a polars LazyFrame: the query runs once, in batches, into a temporary file below TMPDIR, read in chunks."""
    folder = tempfile.mkdtemp(prefix="streamkern-")
    path = Path(folder) / "LazyFrame.arrow"
    failed = (
        "LazyFrame",
        "a query that polars can compute, and room for its rows in the temporary directory",
        "computing the LazyFrame failed",
        "collect it by hand to see the traceback; or set TMPDIR to a disk with room",
    )
    with ExitStack() as unfinished, storage_errors(*failed):
        unfinished.callback(shutil.rmtree, folder, ignore_errors=True)
        rows = rows_per_chunk(8 * len(frame.collect_schema()))  # of 8 bytes a value
        frame.sink_ipc(path, compression="uncompressed", record_batch_size=rows)
        file = TableFile(str(path))
        source = ArrowSource(file, request)
        unfinished.pop_all()
    weakref.finalize(file, shutil.rmtree, folder, ignore_errors=True)
    return source
