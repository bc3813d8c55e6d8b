"""Text tables as a Source: one pass finds where records begin, what types columns have, and how narrow they can be."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pacsv

from streamkern.errors import DataError
from streamkern.storage.arrow import TableSource, fields_of
from streamkern.storage.base import digest
from streamkern.storage.choose import Request, choose
from streamkern.storage.layout import check_chunk
from streamkern.storage.table_file import TableFile

BLOCK_BYTES = 4 << 20
"""Bytes of text in a chunk."""

_DELIMITERS = ",\t;|"
_NARROW = ("u1", "i1", "u2", "i2", "u4", "i4", "i8")


class CsvSource(TableSource):
    """Rows of a text table; a chunk is about 4 MiB of whole records.

    Opening reads the text once: it has no metadata. Whole numbers come in the narrowest dtype that holds every feature,
    decimals, and columns some of whose values are missing, as float64.

    Args:
        file: the file; ``.gz`` is read decompressed.
        request: the columns to use.
        header: whether the first record names the columns; else they are called f0, f1, ...

    Raises:
        StorageError: it does not parse.
        DataError: columns that cannot be features or target.
    """

    def __init__(self, file: TableFile, request: Request, header: bool = True) -> None:
        self._file = file
        with file.explaining("a text table with one record a line"):
            self._names, self._delimiter, start = self._head(header)
            spans: list[tuple[int, int]] = []
            lengths: list[int] = []
            types: dict[str, pa.DataType] = dict.fromkeys(self._names, pa.null())
            low = dict.fromkeys(self._names, 0)
            high = dict.fromkeys(self._names, 0)
            missing: set[str] = set()
            wanted = request.named
            if wanted is not None and not set(wanted) <= set(self._names):
                wanted = None  # which is missing is for the chooser to say
            for begin, text in self._blocks(start):
                table = self._parse(text, {}, wanted)
                if not table.num_rows:
                    continue
                spans.append((begin, len(text)))
                lengths.append(table.num_rows)
                for field, values in zip(table.schema, table.columns, strict=True):
                    types[field.name] = _wider(types[field.name], field.type)
                    if values.null_count:
                        missing.add(field.name)
                    if pa.types.is_integer(field.type):
                        ends = pc.min_max(values)
                        low[field.name] = min(low[field.name], ends["min"].as_py() or 0)
                        high[field.name] = max(high[field.name], ends["max"].as_py() or 0)
        for name in set(self._names) - set(request.targets):
            if pa.types.is_null(types[name]):
                types[name] = pa.float64()  # without any value, it is one of numbers as much as of anything else
        if not spans:
            raise DataError(
                "the file has no row",
                where=file.path,
                expected="a record after the names of the columns",
                remedy="check the file, or leave it out",
            )
        types = {name: kind for name, kind in types.items() if wanted is None or name in wanted}
        roles = choose(fields_of(types, file.path), request, file.path)
        names = roles.features
        if missing & set(names):
            roles = replace(roles, dtype=np.dtype(np.float64))
        elif roles.dtype.kind == "i":
            fits = [
                np.dtype(code)
                for code in _NARROW
                if all(np.iinfo(code).min <= low[name] and high[name] <= np.iinfo(code).max for name in names)
            ]
            roles = replace(roles, dtype=fits[0])
        super().__init__(roles, request, lengths)
        self._spans = spans
        self._types = {name: types[name] for name in (*roles.stored, *dict(roles.non_features))}

    @property
    def fingerprint(self) -> str:
        """Digest of the file's name, size and time, and of the choice of columns."""
        return digest("csv", self._file.identity(), self._names, self._roles.identity())

    def _given(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Values with empty texts as nulls."""
        if not pa.types.is_string(values.type):
            return values
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)

    def _table(self, chunk: int, names: Sequence[str]) -> pa.Table:
        check_chunk(chunk, self.bounds)
        with self._file.explaining("the text that was there when it was opened"):
            types = {name: self._types[name] for name in names}
            # Without a column to read, all are: one tells how many rows there are.
            return self._parse(self._file.read(*self._spans[chunk]), types, list(names) or self._names[:1])

    def where(self, chunk: int) -> str:
        """The chunk in words."""
        a, b = check_chunk(chunk, self.bounds)
        return f"{self._file.path}, from byte {self._spans[chunk][0]}, rows {a} to {b - 1}"

    def _head(self, header: bool) -> tuple[list[str], str, int]:
        """Names of the columns, the delimiter, and where the first record of data begins."""
        begin, text = next(self._blocks(0), (0, b""))
        mark = 3 if text.startswith(b"\xef\xbb\xbf") else 0
        end = _record_end(text, first=True)
        line = text[mark:end].decode()
        delimiter = max(_DELIMITERS, key=line.count)
        fields = next(csv.reader(line.splitlines(), delimiter=delimiter), [])
        names = fields if header else [f"f{j}" for j in range(len(fields))]
        if not names or len(set(names)) < len(names):
            twice = next((name for name in names if names.count(name) > 1), None)
            raise DataError(
                f"the first record names {twice!r} twice" if names else "the file is empty",
                where=self._file.path,
                expected="distinct names in the first line",
                remedy="if the file has no line of names, say so: --no-header, header=False",
            )
        return names, delimiter, begin + (end if header else mark)

    def _blocks(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(offset, text) of whole records, about ``BLOCK_BYTES`` at a time."""
        with self._file.open() as stream:
            stream.seek(start)
            rest = b""
            while more := stream.read(BLOCK_BYTES):
                text = rest + more if rest else more
                end = _record_end(text)
                if end:
                    yield start, text[:end]
                    start += end
                rest = text[end:]
            if rest:
                yield start, rest

    def _parse(self, text: bytes, types: dict[str, pa.DataType], columns: list[str] | None) -> pa.Table:
        return pacsv.read_csv(
            pa.py_buffer(text),
            pacsv.ReadOptions(use_threads=False, column_names=self._names, block_size=max(1, len(text))),
            pacsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            pacsv.ConvertOptions(column_types=types, include_columns=columns or [], strings_can_be_null=False),
        )


def _record_end(text: bytes, first: bool = False) -> int:
    """One past the last (or the first) line end of a text that is outside quotes; 0, or all of a first, without one.

    A quote inside quotes is doubled, so an even number of them stands before the end of a record.
    """
    if b'"' not in text:
        found = text.find(b"\n") if first else text.rfind(b"\n")
    else:
        values = np.frombuffer(text, dtype=np.uint8)
        lines = np.flatnonzero(values == ord("\n"))
        ends = lines[np.searchsorted(np.flatnonzero(values == ord('"')), lines) % 2 == 0]
        found = int(ends[0 if first else -1]) if len(ends) else -1
    return len(text) if first and found < 0 else found + 1


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """A type that holds values of both; text holds all."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    numeric = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (one, other)]
    return pa.float64() if all(numeric) else pa.string()
