"""A table's file, local or at any fsspec URL, with errors that name it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, BinaryIO, cast

from streamkern.errors import DataError, StorageError
from streamkern.redaction import redacted
from streamkern.sources.arrow import pa
from streamkern.sources.remote_store import Remote, is_remote, object_version
from streamkern.storage.untrusted_files import (
    changed_error,
    file_stamp,
    missing_path_error,
    not_visible_error,
    storage_errors,
)

_READ_AHEAD = 1 << 20
"""Smallest number of bytes of a request for a remote file."""


COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Endings of compressed files, which are read decompressed."""

_OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class _Forwards(io.RawIOBase):
    """A stream of Arrow's, in which one can only go forwards."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream, self._at = stream, 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(None if size < 0 else size)
        self._at += len(data)
        return data

    def seek(self, at: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or at < self._at:
            raise io.UnsupportedOperation("a stream that is decompressed or converted goes forwards only")
        while self._at < at and self.read(min(_READ_AHEAD, at - self._at)):
            pass
        return self._at

    def close(self) -> None:
        self._stream.close()
        super().close()


class TableFile:
    """A local or remote file in the state of its first opening, decompressed by its ending (``COMPRESSED``)."""

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None) -> None:
        self.path = redacted(url) if is_remote(url) else os.path.abspath(url.removeprefix("file://"))
        self._remote = Remote(url, storage_options) if is_remote(url) else None
        self.remote = self._remote is not None
        place = self.path if self._remote is None else str(self._remote.root).partition("?")[0]
        self._packed = next((ending for ending in COMPRESSED if place.lower().endswith(ending)), "")
        self._base = posixpath.basename(place)
        self.name = self._base.removesuffix(self._packed)  # without an ending of ``COMPRESSED``
        try:
            self._stamp = self._found()
        except FileNotFoundError as error:
            raise missing_path_error(self.path, "a file") from error
        except (KeyError, TypeError) as error:
            raise StorageError(
                "the store does not say how large the file is",
                where=self.path,
                expected="a store that reports the size of an object",
                remedy="copy the file here first",
            ) from error
        self.size = int(self._stamp[0])
        self._encoding, self._carriage_returns = "", False
        self._last: tuple[BinaryIO, int] | None = None
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def __del__(self) -> None:
        last = getattr(self, "_last", None)
        if last is not None:
            last[0].close()

    @property
    def local(self) -> bool:
        """True if the file is in the local file system, and its bytes are those of the table."""
        return self._remote is None and not (self._packed or self._encoding or self._carriage_returns)

    @property
    def identity(self) -> list[Any]:
        """Identifier of the content, from metadata."""
        return [self._base, *self._stamp]

    def require_unchanged(self) -> None:
        with suppress(FileNotFoundError):
            if self._found() == self._stamp:
                return
        raise changed_error(self.path)

    def _found(self) -> list[Any]:
        if self._remote is None:
            return file_stamp(self.path)
        info = self._remote.info(self._remote.root)
        return [int(info["size"]), object_version(info)]

    def read_as_text(self, encoding: str = "", carriage_returns: bool = False) -> None:
        """Convert what is read from now on to UTF-8 with line feeds, also of lone ``carriage_returns``."""
        self._encoding, self._carriage_returns = encoding, carriage_returns

    def open(self) -> BinaryIO:
        """Open the file's decompressed bytes; StorageError if its size has changed."""
        if not (self._encoding or self._carriage_returns or self._packed == ".zst"):
            return cast(BinaryIO, self._decompressed())
        stream = self._decompressed()
        stream = stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, "r")
        if self._encoding:
            stream = pa.transcoding_input_stream(stream, self._encoding, "utf-8")
        if self._carriage_returns:
            stream = pa.TransformInputStream(stream, lambda text: bytes(text).replace(b"\r", b"\n"))
        return cast(BinaryIO, _Forwards(stream))

    def _decompressed(self) -> Any:
        """Return a file of Python's or, without seek, of Arrow's."""
        if self._remote is None:
            stored: Any = self.unchanged()
        else:
            stored = io.BufferedReader(self._remote.open(self._remote.root, self.size), _READ_AHEAD)
        if self._packed == ".zst":
            return pa.input_stream(stored, compression="zstd")
        if self._packed:
            return _OPENERS[self._packed](stored)
        return open(stored, "rb") if self._remote is None else stored

    def unchanged(self) -> str:
        """Return the path of a local file after checking its size."""
        if not os.path.exists(self.path):
            raise not_visible_error(self.path)
        size = os.stat(self.path).st_size
        if size != self.size:
            raise changed_error(self.path, f"{size} bytes instead of {self.size}")
        return self.path

    def read(self, start: int, size: int) -> bytes:
        """Return ``size`` bytes from ``start`` on. A stream without seek is read forwards, or again from its start."""
        if self.local:
            with self.open() as stream:
                stream.seek(start)
                return stream.read(size)
        with self._lock:
            stream, at = self._last or (self.open(), 0)
            if at > start:
                stream.close()
                stream = self.open()
            stream.seek(start)
            data = stream.read(size)
            self._last = (stream, start + len(data))
            return data

    @contextmanager
    def explaining(self, expected: str) -> Iterator[None]:
        """Convert errors of decoders to a StorageError that names the file, or a DataError that names the encoding."""
        with storage_errors(self.path, expected):
            try:
                yield
            except UnicodeError as error:
                if not self._encoding:
                    raise
                raise DataError(
                    f"the file is not in the encoding {self._encoding!r}: {error}",
                    where=self.path,
                    expected=f"text in {self._encoding}",
                    remedy="say how the file is encoded: read_options=sk.read_options(encoding=...); "
                    "without it, UTF-8, or UTF-16 with a byte order mark",
                ) from error
