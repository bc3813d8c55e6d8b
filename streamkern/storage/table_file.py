"""One file of a table, local or at any fsspec URL: opening it, and errors that name it."""

from __future__ import annotations

import contextlib
import gzip
import posixpath
from collections.abc import Iterator
from threading import Lock
from typing import Any, BinaryIO, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from streamkern.errors import StorageError, StreamkernError


class TableFile:
    """A file as it was when it was opened first.

    Args:
        url: a local path or an fsspec URL; what ends in ``.gz`` is read decompressed.
        storage_options: for fsspec.

    Raises:
        StorageError: nothing there.
    """

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None) -> None:
        self.url = url
        try:
            self._fs, self.path = url_to_fs(url, **(storage_options or {}))
            info = self._fs.info(self.path)
        except (ImportError, ValueError, OSError) as error:
            raise StorageError(
                f"the file cannot be found: {error}", where=url, remedy="check the path or URL, and the credentials"
            ) from error
        self.size = int(info["size"])
        self._version = str([info.get(key) for key in ("mtime", "ETag", "etag", "generation", "LastModified")])
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
        return str(posixpath.basename(self.path)).removesuffix(".gz")

    @property
    def local(self) -> bool:
        """Whether the path is of the local file system, and its bytes stand there as they are."""
        return isinstance(self._fs, LocalFileSystem) and not self.path.endswith(".gz")

    def identity(self) -> list[Any]:
        """What tells this content from another without reading it."""
        return [posixpath.basename(self.path), self.size, self._version]

    def open(self) -> BinaryIO:
        """The file's bytes, decompressed.

        Raises:
            StorageError: its size is not what it was.
        """
        if self.local:
            stream = cast(BinaryIO, open(self.path, "rb"))  # noqa: SIM115 (the caller's)
            size = stream.seek(0, 2)
            stream.seek(0)
            if size != self.size:
                stream.close()
                raise StorageError(
                    f"the file has changed since it was opened: {size} bytes instead of {self.size}",
                    where=self.path,
                    expected="files that stay as they are while they are read",
                    remedy="open it again; if it is truncated, restore it first",
                )
            return stream
        stream = self._fs.open(self.path, "rb")
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if self.path.endswith(".gz") else stream

    def read(self, start: int, size: int) -> bytes:
        """Bytes from ``start`` on. A stream that cannot seek is read on from where it was, or from its beginning."""
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
        """Errors of decoders as one StorageError that names the file."""
        try:
            yield
        except (StreamkernError, MemoryError):
            raise
        except Exception as error:  # decoders and remote file systems raise whatever they like
            raise StorageError(
                f"the file cannot be read: {type(error).__name__}: {error}",
                where=self.path,
                expected=expected,
                remedy="the file is truncated, corrupt, unreachable or of another format: check it, or restore it",
            ) from error
