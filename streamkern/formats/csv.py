"""Text tables as a Source: one pass finds where records begin, and types and widths of columns."""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from streamkern.errors import DataError, PlanRefusedError
from streamkern.formats.arrow_tables import TableSource, fields_of
from streamkern.formats.csv_records import first_record_end, record_blocks
from streamkern.formats.fsspec_file import TableFile
from streamkern.memory import check_memory, default_budget, format_bytes
from streamkern.sources.arrow import pa, pacsv, pc
from streamkern.sources.arrow_conversion import common_type
from streamkern.sources.base import TEXT_BYTES
from streamkern.sources.column_roles import Request, choose_columns
from streamkern.sources.format_rules import check_chunk
from streamkern.sources.read_options import ReadOptions
from streamkern.sources.schema import Schema, declared
from streamkern.storage.value_digest import digest

BLOCK_BYTES = 4 << 20
"""Bytes of text in a chunk."""

COLUMN_BYTES = 10_000
"""Bytes of Arrow's parser for each column, for any number of rows; 9,500 measured for 10⁶ columns."""

_BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
"""Byte order marks that tell an encoding other than UTF-8."""

_COPIES = 8  # copies of a block in memory: the longest record, its text, and its columns
_DELIMITERS, _LINE = ",\t;|", b"\n"
_NARROW = ("u1", "i1", "u2", "i2", "u4", "i4", "i8")


class NoRowsError(DataError):
    """Error for a text table with a header but no rows, so that columns have no types."""


class CsvSource(TableSource):
    """Rows of a text table; a chunk is about 4 MiB of whole records.

    Opening reads the text once, since it has no metadata, and each read parses its chunk again: a copy in the training
    layout would lie on the disk of the process that opens the file, where the workers of a cluster do not see it.
    The process's ``memory`` in bytes, by default half of the machine's, bounds the text read at once.
    """

    def __init__(
        self,
        file: TableFile,
        request: Request,
        header: bool = True,
        memory: int | None = None,
        options: ReadOptions | None = None,
    ) -> None:
        self._file, self._places, self._options = file, (file,), options or ReadOptions()
        budget = default_budget() if memory is None else memory
        self._block_bytes = min(BLOCK_BYTES, max(1 << 16, budget // 64))
        with file.explaining("a text table with one record a line"):
            self._decode()
            self._names, self._delimiter, start, first_line = self._head(header)
            if COLUMN_BYTES * len(self._names) + _COPIES * self._block_bytes > budget:
                raise PlanRefusedError(
                    f"To read {len(self._names):,} columns of text takes about "
                    f"{format_bytes(COLUMN_BYTES * len(self._names) + _COPIES * self._block_bytes)}.",
                    where=file.path,
                    expected=f"at most the memory allowed, {format_bytes(budget)}",
                    remedy="give more memory, or store the rows as parquet with one column of lists, zarr or npy",
                )
            wanted = self._wanted(request)
            scan = self._first_pass(request, wanted, start, first_line)
        types = scan.types
        empty = {name for name in set(self._names) - set(request.targets) if pa.types.is_null(types[name])}
        types |= dict.fromkeys(empty, pa.float64())  # a column without values counts as numbers
        types = {name: kind for name, kind in types.items() if wanted is None or name in wanted}
        fields = fields_of(types, file.path, missing={name: name in scan.missing for name in types})
        fields |= {name: replace(fields[name], empty=True) for name in empty & {*fields}}
        # The first pass did not parse excluded columns.
        request = replace(
            request, exclude=[name for name in request.exclude if name not in set(self._names) - {*types}]
        )
        roles = choose_columns(fields, request, file.path)
        if roles.dtype.kind == "i":
            roles = replace(roles, dtype=scan.narrowest(roles.features))
        super().__init__(roles, request, scan.lengths)
        self._spans = scan.spans
        self._types = {name: types[name] for name in (*roles.stored, *dict(roles.non_features))}

    def _wanted(self, request: Request) -> list[str] | None:
        """The columns to parse in the first pass; None for all, also if some that are named are missing."""
        wanted, there = request.named, set(self._names)
        if wanted is None and request.exclude and set(request.exclude) <= there:
            wanted = [name for name in self._names if name not in request.exclude]
        return None if wanted is None or not set(wanted) <= there else wanted  # choose_columns reports missing names

    def _first_pass(self, request: Request, wanted: list[str] | None, start: int, line: int) -> _Scan:
        scan = _Scan(self._names, request.targets)
        # Categories are read as they are written: with leading zeros, and all digits.
        kinds = declared(request.schema).items()
        as_text = {n: pa.string() for n, c in kinds if c.kind == "category" and n in self._names}
        with self._file.open() as stream:
            blocks = record_blocks(stream, start, line, self._delimiter.encode(), self._block_bytes, self._file.path)
            for begin, first, text in blocks:
                check_memory()
                table = self._parse(text, as_text, wanted, first)
                if not table.num_rows:
                    continue
                for column, values in zip(table.schema, table.columns, strict=True):
                    if pa.types.is_binary(column.type):
                        self._require_utf8(text, first)
                    scan.add(column.name, values, partial(self._parse, text, {column.name: pa.string()}, [column.name]))
                scan.spans.append((begin, len(text)))
                scan.lengths.append(table.num_rows)
        if request.role != "target":  # ids are copied, digit by digit
            scan.types |= dict.fromkeys(set(scan.lossy) & set(request.targets), pa.string())
        for name, (row, written) in scan.lossy.items():
            if pa.types.is_floating(scan.types[name]):
                raise DataError(
                    f"column {name!r}, row {row}: float64 cannot represent {shortened(written)}",
                    where=self._file.path,
                    expected="numbers up to 1.8e308; and labels and ids up to 2⁵³",
                    remedy="correct the value or leave it empty; put a letter before an id of many digits",
                )
        if not scan.spans:
            raise NoRowsError(
                "the file has no row",
                where=self._file.path,
                expected="a record after the names of the columns",
                remedy="check the file, or leave it out",
            )
        return scan

    @property
    def fingerprint(self) -> str:
        options = [] if self._options == ReadOptions() else [astuple(self._options)]
        return digest("csv", self._file.identity, self._names, self._roles.identity(), *options)

    def _read_by(self, schema: Schema) -> None:
        super()._read_by(schema)
        self._types |= {column.name: pa.string() for column in schema.columns if column.kind == "category"}

    def _given(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if not pa.types.is_string(values.type):
            return values
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)

    def _table(self, chunk: int, names: Sequence[str]) -> pa.Table:
        check_chunk(chunk, self.bounds)
        with self._file.explaining("the same text as when the file was opened"):
            types = {name: self._types[name] for name in names}
            # Arrow reads all columns if given none: one is enough for the number of rows.
            table = self._parse(self._file.read(*self._spans[chunk]), types, list(names) or self._names[:1])
        for name in set(self._roles.targets) & set(names):  # an empty field of the target is a missing label
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, self._given(table.column(at)))
        return table

    def _decoded(self) -> tuple[int, int]:
        """Bytes of the text, the parser's copy with ends of fields, and the columns in use."""
        rows = max(1, self._most_rows())
        size = max((size for _, size in self._spans), default=0)
        texts = size if self.target is not None and self.target.dtype == object else 0
        fields = 4 * rows * len(self._names)
        described = 4 * size if self.non_features else 0
        return 2 * size + fields + 8 * rows * len(self._roles.stored) + described, TEXT_BYTES + texts // rows

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        return f"{self._file.path}, from byte {self._spans[chunk][0]}, rows {a} to {b - 1}"

    def _head(self, header: bool) -> tuple[list[str], str, int, int]:
        """The names of the columns, the delimiter, and the byte and line where the first row begins."""
        any_of = (self._options.delimiter or _DELIMITERS.replace(self._options.decimal, "")).encode()
        with self._file.open() as stream:
            begin, skipped = _begin(stream.read(self._block_bytes), self._options.skip, any_of)
        with self._file.open() as stream:
            found = record_blocks(stream, begin, 1 + skipped, any_of, self._block_bytes, self._file.path)
            _, _, text = next(found, (0, 1, b""))
        record = text[: first_record_end(text, any_of, self._file.path)]
        end = begin + len(record)
        self._require_utf8(record, 1 + skipped)
        line = record.decode()
        delimiter = max(any_of.decode(), key=partial(_width, line))
        fields = _fields(line, delimiter)
        names = fields if header else [f"f{j}" for j in range(len(fields))]
        for j in range(1, next((j for j, name in enumerate(names) if name), 0)):
            names[j] = f"Unnamed: {j}"  # the levels of an index: pandas gives them this name, too
        if not names or len(set(names)) < len(names):
            twice = next((name for name, times in Counter(names).items() if times > 1), None)
            raise DataError(
                f"the first record names {twice!r} twice" if names else "the file is empty",
                where=self._file.path,
                expected="distinct names in the first line",
                remedy="if the file has no line of names, say so: --no-header, header=False",
            )
        first = 1 + skipped
        return names, delimiter, end if header else begin, first + line.count("\n") if header else first

    def _decode(self) -> None:
        """Find the file's encoding and ends of lines, so that it is read as UTF-8 with line feeds."""
        with self._file.open() as stream:
            mark = stream.read(2)
        encoding = self._options.encoding or _BOMS.get(mark, "")
        if codecs.lookup(encoding or "utf-8").name in ("utf-8", "ascii"):
            encoding = ""
        self._file.read_as_text(encoding)
        with self._file.open() as stream:
            start = stream.read(self._block_bytes)
        self._file.read_as_text(encoding, carriage_returns=b"\r" in start and _LINE not in start)

    def _require_utf8(self, text: bytes, line: int) -> None:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            at = error.start
            around = text[max(0, at - 20) : at + 20].decode("latin-1")
            raise DataError(
                f"the bytes {text[at : at + 4]!r} are not UTF-8; as latin-1 they are in {shortened(around)}",
                where=f"{self._file.path}, line {line + text.count(_LINE, 0, at)}",
                expected="text in UTF-8, or in UTF-16 with a byte order mark",
                remedy='say how the file is encoded: read_options=sk.read_options(encoding="latin-1")',
            ) from error

    def _parse(
        self, text: bytes, types: dict[str, pa.DataType], columns: list[str] | None, line: int | None = None
    ) -> pa.Table:
        """An error for a wrong number of fields names the line, if ``line`` is given."""

        def parsed(refuse: Callable[[Any], str] | None) -> pa.Table:
            return pacsv.read_csv(
                pa.py_buffer(text),
                pacsv.ReadOptions(use_threads=False, column_names=self._names, block_size=max(1, len(text))),
                pacsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=refuse),
                pacsv.ConvertOptions(
                    column_types=types,
                    include_columns=columns or [],
                    strings_can_be_null=False,
                    decimal_point=self._options.decimal,
                    null_values=[*pacsv.ConvertOptions().null_values, *self._options.missing],
                ),
            )

        try:
            return self._without_markers(parsed(None))
        except pa.ArrowInvalid as error:
            self._require_utf8(text, line or 1)  # else Arrow could not hand over the row below
            if line is None:
                raise
            ragged: list[Any] = []

            def refuse(row: Any) -> str:
                ragged.append(row)
                return "error"

            with suppress(pa.ArrowInvalid):
                parsed(refuse)
            if not ragged:
                raise
            row = ragged[0]
            found = re.search(rb"(?m)^" + re.escape(row.text.encode()) + rb"(?=[\r\n]|\Z)", text)
            at = 0 if found is None else found.start()
            raise DataError(
                f"a record has {row.actual_columns} fields instead of {row.expected_columns}: {shortened(row.text)}",
                where=f"{self._file.path}, line {line + text.count(_LINE, 0, at)}",
                expected=f"{row.expected_columns} fields, with {self._delimiter!r} between them",
                remedy="correct the line: a field with the delimiter must be quoted; or, where lines before the names "
                "or another delimiter are the cause, say so: read_options=sk.read_options(delimiter=..., skip=...)",
            ) from error

    def _without_markers(self, table: pa.Table) -> pa.Table:
        """Put nulls for texts that the user says are missing, and for numbers that equal one of them."""
        if not self._options.missing:
            return table
        texts, numbers = pa.array(self._options.missing, pa.string()), list[float]()
        for text in self._options.missing:
            with suppress(ValueError):
                numbers.append(float(text))
        for at, column in enumerate(table.columns):
            if pa.types.is_string(column.type) or pa.types.is_float64(column.type):
                among = texts if pa.types.is_string(column.type) else pa.array(numbers, pa.float64())
                kept = pc.if_else(pc.is_in(column, among), pa.scalar(None, column.type), column)
                table = table.set_column(at, table.schema.names[at], kept)
        return table


@dataclass
class _Scan:
    """What the first pass finds: places and rows of the blocks, and types, ends and gaps of the columns.

    ``lossy`` has the first row of each column with a number out of float64's range, or with a whole one of a target, an
    identifier, that float64 would round; and its text.
    """

    names: Sequence[str]
    targets: Sequence[str]
    spans: list[tuple[int, int]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    lossy: dict[str, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.types: dict[str, pa.DataType] = dict.fromkeys(self.names, pa.null())
        self.low, self.high = dict.fromkeys(self.names, 0), dict.fromkeys(self.names, 0)

    def add(self, name: str, values: pa.ChunkedArray, as_written: Callable[[], pa.Table]) -> None:
        """Add the values of a column in the next block; ``as_written()`` has their texts."""
        kind = values.type
        self.types[name] = _wider(self.types[name], kind)
        if values.null_count or (pa.types.is_string(kind) and pc.any(pc.equal(values, "")).as_py()):
            self.missing.add(name)
        if pa.types.is_integer(kind):
            ends = pc.min_max(values)
            self.low[name] = min(self.low[name], ends["min"].as_py() or 0)
            self.high[name] = max(self.high[name], ends["max"].as_py() or 0)
        if name not in self.lossy and (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            numbers = np.abs(np.asarray(values.cast(pa.float64(), safe=False).to_numpy()))
            large = np.flatnonzero(np.isinf(numbers) | ((numbers >= _WHOLE) if name in self.targets else False))
            texts = as_written().column(0).take(pa.array(large)).to_pylist() if len(large) else []
            found = ((int(row), text) for row, text in zip(large, texts, strict=True) if _is_lossy(text.strip()))
            if (first := next(found, None)) is not None:
                self.lossy[name] = sum(self.lengths) + first[0], first[1]

    def narrowest(self, names: Sequence[str]) -> np.dtype[Any]:
        low, high = min(self.low[name] for name in names), max(self.high[name] for name in names)
        return next(np.dtype(code) for code in _NARROW if np.iinfo(code).min <= low and high <= np.iinfo(code).max)


_WHOLE = float(1 << 53)


def _is_lossy(text: str) -> bool:
    if re.fullmatch(r"[+-]?\d+", text):
        return math.isinf(number := float(text)) or int(number) != int(text)
    return re.fullmatch(r"[+-]?(inf|infinity)", text, re.IGNORECASE) is None and math.isinf(float(text))


def _fields(line: str, delimiter: str) -> list[str]:
    """A name may hold delimiters and line breaks in quotes."""
    return next(csv.reader(io.StringIO(line, newline=""), delimiter=delimiter), [])


def _width(line: str, delimiter: str) -> int:
    """Fields of one record; 0 if a field is longer than Python's parser takes."""
    try:
        return len(_fields(line, delimiter))
    except csv.Error:
        return 0


def _begin(text: bytes, skip: int, delimiters: bytes) -> tuple[int, int]:
    """The byte and the number of lines before the first record: blank lines, comments, and ``skip`` lines.

    A line such as ``#chrom,start`` names columns: no blank follows the sign, and the next line has as many fields.
    """
    at, lines = 3 if text.startswith(b"\xef\xbb\xbf") else 0, 0

    def end_of(start: int) -> int:
        return text.find(_LINE, start) + 1 or len(text)

    def width(start: int) -> int:
        line = text[start : end_of(start)]
        return max(line.count(bytes([each])) for each in delimiters)

    while at < len(text):
        end = end_of(at)
        line = text[at:end].strip(b" \r\n")
        named = line[:1] == b"#" and line[1:2].strip() and 0 < width(at) == width(end)
        if lines >= skip and line and (line[:1] != b"#" or named):
            break
        at, lines = end, lines + 1
    return at, lines


def shortened(text: Any) -> str:
    """Shorten a text for a message."""
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Any two types have text as a last resort."""
    if one != other and all(pa.types.is_timestamp(kind) or pa.types.is_date(kind) for kind in (one, other)):
        zones = {kind.tz for kind in (one, other) if pa.types.is_timestamp(kind)}
        return pa.timestamp("ns", zones.pop()) if len(zones) == 1 else pa.string()
    return common_type(one, other) or pa.string()
