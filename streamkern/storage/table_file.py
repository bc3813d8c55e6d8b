"""A table's file, local or at any fsspec URL, with errors that name it."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import posixpath
from collections.abc import Iterator
from threading import Lock
from typing import Any, BinaryIO, cast

from streamkern.errors import StorageError, StreamkernError
from streamkern.redaction import redacted
from streamkern.storage.files import changed, not_seen, stamp
from streamkern.storage.remote import Remote, RemoteFile, is_remote, version

_READ_AHEAD = 1 << 20
"""Smallest number of bytes of a request for a remote file."""


class _Readable(RemoteFile):
    """A remote file with ``readinto``."""

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class TableFile:
    """A file in the state of its first opening.

    Args:
        url: a local path or an fsspec URL; a file that ends in ``.gz`` is decompressed.
        storage_options: for fsspec.

    Attributes:
        path: path of the file, with secrets hidden.
        size: size in bytes.

    Raises:
        StorageError: there is no such file.
    """

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None) -> None:
        self.path = redacted(url) if is_remote(url) else os.path.abspath(url.removeprefix("file://"))
        self._remote = Remote(url, storage_options) if is_remote(url) else None
        try:
            self._stamp = self._found()
        except FileNotFoundError as error:
            raise StorageError(
                "there is no such file",
                where=self.path,
                expected="a file",
                remedy=f"check the path; relative paths start at {os.getcwd()}",
            ) from error
        except (KeyError, TypeError) as error:
            raise StorageError(
                "the store does not say how large the file is",
                where=self.path,
                expected="a store that reports the size of an object",
                remedy="copy the file here first",
            ) from error
        self.size = int(self._stamp[0])
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
    def name(self) -> str:
        """Last part of the path, without ``.gz``."""
        return posixpath.basename(self._place).removesuffix(".gz")

    @property
    def _place(self) -> str:
        return self.path if self._remote is None else str(self._remote.root).partition("?")[0]

    @property
    def remote(self) -> bool:
        """True if the file is in a store."""
        return self._remote is not None

    @property
    def local(self) -> bool:
        """True if the file is in the local file system and not compressed."""
        return self._remote is None and not self._place.endswith(".gz")

    @property
    def identity(self) -> list[Any]:
        """Identifier of the content, from metadata."""
        return [posixpath.basename(self._place), *self._stamp]

    def require_unchanged(self) -> None:
        try:
            same = self._found() == self._stamp
        except FileNotFoundError:
            same = False
        if not same:
            raise changed(self.path)

    def _found(self) -> list[Any]:
        """Return size and time of the file, or its version in the store."""
        if self._remote is None:
            return stamp(self.path)
        info = self._remote.info(self._remote.root)
        return [int(info["size"]), version(info)]

    def open(self) -> BinaryIO:
        """Open the file's decompressed bytes.

        Raises:
            StorageError: the file's size has changed.
        """
        zipped = self._place.endswith(".gz")
        if self._remote is not None:
            remote: Any = io.BufferedReader(_Readable(self._remote, self._remote.root, self.size), _READ_AHEAD)
            return cast(BinaryIO, gzip.GzipFile(fileobj=remote)) if zipped else cast(BinaryIO, remote)
        path = self.unchanged()
        return cast(BinaryIO, gzip.open(path) if zipped else open(path, "rb"))

    def unchanged(self) -> str:
        """Return the path of a local file after checking its size.

        Raises:
            StorageError: the file's size has changed.
        """
        if not os.path.exists(self.path):
            raise not_seen(self.path)
        size = os.stat(self.path).st_size
        if size != self.size:
            raise StorageError(
                f"the file has changed since it was opened: {size} bytes instead of {self.size}",
                where=self.path,
                expected="files that do not change while they are read",
                remedy="open it again; if it is truncated, restore it first",
            )
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

    @contextlib.contextmanager
    def explaining(self, expected: str) -> Iterator[None]:
        """Convert errors of decoders to a StorageError that names the file."""
        try:
            yield
        except (StreamkernError, MemoryError):
            raise
        except Exception as error:  # decoders and remote file systems may raise anything
            raise StorageError(
                f"the file cannot be read: {type(error).__name__}: {error}",
                where=self.path,
                expected=expected,
                remedy="the file is truncated, corrupt, unreachable or of another format: check it, or restore it",
            ) from error
