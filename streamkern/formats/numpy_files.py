"""Arrays in NumPy's own format, in ``.npy`` files and in archives of them. Nothing in them is executed."""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import replace
from threading import Lock
from typing import IO, Any

import numpy as np

from streamkern.errors import StorageError
from streamkern.formats.fsspec_file import TableFile
from streamkern.formats.named_arrays import NamedArrays, StoredRows, require_unstructured, roles_of
from streamkern.sources.column_roles import Request
from streamkern.types import Array


class NumpyArray(StoredRows):
    """One array in NumPy's format, a file or a member of an archive, read about 4 MiB at a time; objects are refused.

    A compressed stream can only be read forwards; reading earlier rows starts from the beginning.
    """

    def __init__(self, file: TableFile, member: str | None = None) -> None:
        self._file, self._member = file, member
        self.where = file.path if member is None else f"{file.path}, {member}"
        self._stream: IO[bytes] | None = None
        self._archive: IO[bytes] | None = None
        self._lock = Lock()
        header_bytes = 1 << 16  # more than NumPy's own limit for the text of a header
        with file.explaining("an array in NumPy's format"):
            stream = io.BytesIO(self._read(0, header_bytes))
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, self._fortran, self.dtype = read(stream)
            self._offset = stream.tell()
        if self.dtype.hasobject:
            raise StorageError(
                "the array holds Python objects, which are read by executing code",
                where=self.where,
                expected="numbers, booleans or text of a fixed width",
                remedy="save it again with a dtype other than object, such as array.astype(str)",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None, "_archive": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def read(self, a: int, b: int) -> Array:
        row = math.prod(self.shape[1:])
        with self._file.explaining("as many values as the array's header says"), self._lock:
            if not self._fortran:
                return self._values(a * row, (b - a) * row).reshape(b - a, *self.shape[1:])
            # Column-major: a range of rows is one contiguous run in each column.
            columns = [self._values(j * self.shape[0] + a, b - a) for j in range(row)]
            return np.stack(columns, axis=1).reshape(b - a, *self.shape[1:], order="F")

    def holding(self, rows: int, text: int, kept: bool) -> tuple[int, int]:
        """Return the bytes to assemble the columns of a column-major array."""
        size = rows * math.prod(self.shape[1:]) * self.dtype.itemsize
        return size if self._fortran else size // 4, 0

    def _values(self, start: int, count: int) -> Array:
        size = self.dtype.itemsize
        data = self._read(self._offset + start * size, count * size)
        if len(data) != count * size:
            raise ValueError(f"{len(data)} bytes where {count * size} should be")
        return np.frombuffer(data, dtype=self.dtype)

    def _read(self, start: int, size: int) -> bytes:
        if self._member is None:
            return self._file.read(start, size)
        if self._stream is None:
            self._archive = self._file.open()
            # The member is open as long as this object lives.
            self._stream = zipfile.ZipFile(self._archive).open(self._member)  # noqa: SIM115
        self._stream.seek(start)
        return self._stream.read(size)

    def __del__(self) -> None:
        for stream in (getattr(self, "_stream", None), getattr(self, "_archive", None)):
            if stream is not None:
                stream.close()


def open_npy(file: TableFile, request: Request, storage_options: dict[str, Any] | None) -> NamedArrays:
    """Open one array of features; target and weight are other ``.npy`` files."""
    arrays, files = {"X": NumpyArray(file)}, [file]
    require_unstructured(arrays, lambda name: file.path)

    def other(path: str, name: str) -> str:
        added = TableFile(path, storage_options)
        stem = added.name.removesuffix(".npy")
        name = name if stem in arrays else stem
        arrays[name] = NumpyArray(added)
        files.append(added)
        return name

    targets = [other(path, "target") for path in request.targets]
    weight = other(request.weight, "weight") if request.weight else None
    request = replace(request, target=targets, weight=weight)
    roles = roles_of(arrays, request, file.path, lambda name: arrays[name].where, nameable=True)
    return NamedArrays(arrays, roles, request, files)
