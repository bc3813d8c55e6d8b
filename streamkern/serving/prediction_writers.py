"""Stored predictions: parts, each written atomically next to the output, which appears by one rename."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.ipc
import pyarrow.parquet as pq
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.storage import LocalStore

from streamkern.formats.training_zarr import writable
from streamkern.sources.base import TEXT_BYTES
from streamkern.storage.atomic_writes import Workspace, staged_part
from streamkern.storage.untrusted_files import read_json_file
from streamkern.types import Array

SUFFIXES = {"parquet": (".parquet", ".pq", ".parq"), "csv": (".csv",), "zarr": (".zarr",)}
"""File endings of each format."""

_MARK = "streamkern.predictions"

_NAMES = re.compile(r"prediction(_.*)?|(score|probability)_.*|(lower|upper)(_\d+)?", re.DOTALL)
"""Names of the columns of predictions."""

_IS_PREDICTION = re.compile(r"prediction(_.*)?", re.DOTALL)


@dataclass(frozen=True)
class OutputColumn:
    """A column of predictions; dtype ``object`` means text, of ``text_bytes`` in memory.

    ``name`` is that of the zarr array, or of the parquet column; a row of several values has the parquet columns
    ``fields``. An id, copied from the data, may have any name, such as ``scores``. ``coverage`` is that of an interval.
    """

    name: str
    dtype: np.dtype[Any]
    fields: tuple[str, ...] = ()
    text_bytes: int = TEXT_BYTES
    is_id: bool = False
    coverage: float = 0.9

    @property
    def row_bytes(self) -> int:
        return max(1, len(self.fields)) * (self.text_bytes if self.dtype == object else self.dtype.itemsize)


def record_at(place: Path) -> dict[str, Any] | None:
    """Return the record stored with predictions; None if predictions are absent or incomplete.

    A CSV file has no record: if it has an id column and columns of predictions, the fingerprint is empty.
    """
    found: Any = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error):
        if place.suffix in SUFFIXES["csv"] and place.is_file():
            with open(place, encoding="utf-8", newline="") as stream:
                names = next(csv.reader(stream), [])
            if names and all(map(_NAMES.fullmatch, names[1:])) and any(map(_IS_PREDICTION.fullmatch, names[:2])):
                found = {"fingerprint": ""}
        elif place.is_dir():
            found = read_json_file(place / "zarr.json")["attributes"][_MARK]
        elif place.is_file():
            found = json.loads(pq.read_schema(place).metadata[_MARK.encode()])
    return found if isinstance(found, dict) and "fingerprint" in found else None


class Predictions(ABC):
    """Base class of writers of predictions: lock with ``writing``, add parts with ``write``, finish with ``commit``."""

    def __init__(
        self, place: Path, columns: Sequence[OutputColumn], n: int, part_rows: int, record: dict[str, Any]
    ) -> None:
        self.place, self.columns, self.n, self.part_rows, self.record = place, columns, n, part_rows, record
        self.work = Workspace(place, "predict", "room for the predictions")
        self.data = self.work.data

    def __len__(self) -> int:
        """Return the number of parts, at least one, which may be empty."""
        return max(1, -(-self.n // self.part_rows))

    @property
    def noted_bytes(self) -> int:
        """Bytes of the format's metadata that stay in memory until all parts are written."""
        return 0

    def rows(self, part: int) -> tuple[int, int]:
        """Return the first and last + 1 row of a part."""
        return part * self.part_rows, min(self.n, (part + 1) * self.part_rows)

    def missing(self) -> list[int]:
        """Return the parts that are not written."""
        return [part for part in range(len(self)) if not all(file.exists() for file in self._files(part))]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the workspace, with the parts of an earlier attempt at the same predictions; see ``Workspace.held``."""
        with self.work.held():
            self.work.begin({"fingerprint": self.record["fingerprint"], "part_rows": self.part_rows}, self._prepare)
            try:
                yield
            finally:
                self._end()

    def commit(self) -> None:
        """Commit the finished predictions, replacing an earlier file or group."""
        self.work.commit(self._joined())

    def _end(self) -> None:  # noqa: B027
        """Close open files, whether or not all rows were written."""

    def _prepare(self) -> None:  # noqa: B027
        """Create the group for the parts."""

    @abstractmethod
    def _files(self, part: int) -> list[Path]:
        """Return the files that exist if a part is complete."""

    @abstractmethod
    def write(self, part: int, values: Sequence[Array]) -> None:
        """Write a part: an array a column, shape (rows,) or (rows, fields)."""

    @abstractmethod
    def _joined(self) -> Path:
        """The finished file or directory with all parts."""


class FilePredictions(Predictions):
    """Predictions in one file. Each part is also stored as an Arrow file, to resume from after an interruption.

    The file is encoded while parts are written, so that little remains to do after the last.
    """

    _whole: Any = None
    _encoded = 0

    @abstractmethod
    def _opened(self) -> Any:
        """Open the writer of the file, with the methods ``write_table(table, rows)`` and ``close``."""

    def _end(self) -> None:
        if self._whole is not None:
            with contextlib.suppress(OSError):  # on a full disk the footer fails, too; the unfinished file is discarded
                self._whole.close()
        self._whole, self._encoded = None, 0

    def _files(self, part: int) -> list[Path]:
        a, b = self.rows(part)
        return [self.data / f"rows-{a:015}-{b:015}.arrow"]

    @property
    def _file(self) -> Path:
        return self.work.folder / "whole"

    @property
    def _schema(self) -> pa.Schema:
        fields = []
        for column in self.columns:
            kind = pa.string() if column.dtype == object else pa.from_numpy_dtype(column.dtype)
            fields += [pa.field(name, kind) for name in (column.fields or (column.name,))]
        return pa.schema(fields, metadata={_MARK: json.dumps(self.record)})

    def write(self, part: int, values: Sequence[Array]) -> None:
        arrays = []
        for column, array in zip(self.columns, values, strict=True):
            singles = [array[:, j] for j in range(len(column.fields))] if column.fields else [array]
            arrays += [pa.array(np.ascontiguousarray(single)) for single in singles]
        schema = self._schema
        table = pa.table([a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema)
        (path,) = self._files(part)
        with (
            staged_part(path) as unfinished,
            open(unfinished, "wb") as stream,
            pa.ipc.new_file(stream, schema) as writer,
        ):
            writer.write_table(table)
        self._encode(part)

    def _encode(self, last: int) -> None:
        """Append the parts up to the last to the file."""
        if self._whole is None:
            self._whole = self._opened()
        # Arrow's file object and no threads: a thread that releases a Python object at exit aborts the process.
        options = pa.ipc.IpcReadOptions(use_threads=False)
        while self._encoded <= last:
            part = str(self._files(self._encoded)[0])
            with pa.OSFile(part) as stream, pa.ipc.open_file(stream, options=options) as reader:
                table = reader.read_all()
            if table.num_rows:
                self._whole.write_table(table, table.num_rows)
            self._encoded += 1

    def _joined(self) -> Path:
        self._encode(len(self) - 1)
        self._whole.close()
        self._whole = None
        return self._file


class ParquetPredictions(FilePredictions):
    """Predictions in a parquet file, a row group for each part: plain columns, compressed, with page checksums."""

    @property
    def noted_bytes(self) -> int:
        # Bytes of a column of a row group in a footer: 850 measured while parts are written, and again for the footer
        note = 1800
        return note * len(self) * len(self._schema)

    def _opened(self) -> Any:
        return pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            write_page_checksum=True,
            # There are few labels: a dictionary takes half as long as compression.
            use_dictionary=[
                field.name
                for field in self._schema
                if field.type == pa.string() or (field.name == "prediction" and pa.types.is_integer(field.type))
            ],
        )


class CsvPredictions(FilePredictions):
    """Predictions in a UTF-8 CSV file with a header; numbers are the shortest that read back the same."""

    def _opened(self) -> Any:
        return _CsvWriter(self._file, self._schema)


class _CsvWriter:
    """Write text with quotes if needed; empty text always, to distinguish it from a missing value."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        with open(path, "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerow(schema.names)
        self._stream = pa.OSFile(str(path), "ab")
        options = pacsv.WriteOptions(include_header=False, quoting_style="needed")
        self._rows = pacsv.CSVWriter(self._stream, schema, write_options=options)

    def write_table(self, table: pa.Table, rows: int) -> None:
        self._rows.write_table(table, rows)

    def close(self) -> None:
        with self._stream:
            self._rows.close()


class ZarrPredictions(Predictions):
    """Predictions in a zarr group, with an array for each column and a chunk with a checksum for each part."""

    def _prepare(self) -> None:
        group = zarr.create_group(LocalStore(self.data))
        for column in self.columns:
            shape = (self.n, len(column.fields)) if column.fields else (self.n,)
            array = group.create_array(
                column.name,
                shape=shape,
                dtype=str if column.dtype == object else column.dtype,
                chunks=(max(1, min(self.n, self.part_rows)), *shape[1:]),
                compressors=[BloscCodec(cname="zstd", clevel=1, shuffle="shuffle"), Crc32cCodec()],
                # Chunks of zeros are stored, too, because an absent chunk means an unfinished part.
                config={"write_empty_chunks": True},
            )
            if column.fields:
                array.attrs["fields"] = list(column.fields)

    def _files(self, part: int) -> list[Path]:
        if not self.n:
            return []
        return [self.data / column.name / "c" / str(part) / ("0" if column.fields else "") for column in self.columns]

    def write(self, part: int, values: Sequence[Array]) -> None:
        a, b = self.rows(part)
        group = zarr.open_group(LocalStore(self.data), mode="r+")
        for column, array in zip(self.columns, values, strict=True):
            writable(group, column.name)[a:b] = array

    def _joined(self) -> Path:
        zarr.open_group(LocalStore(self.data), mode="r+").attrs[_MARK] = self.record
        return self.data


FORMATS: dict[str, type[Predictions]] = {"parquet": ParquetPredictions, "csv": CsvPredictions, "zarr": ZarrPredictions}
