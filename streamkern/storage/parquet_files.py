"""The files of a parquet dataset: finding them, their footers, and reads that name what is damaged."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from streamkern.errors import StorageError

SUFFIXES = (".parquet", ".pq", ".parq")
_FOOTERS_KEPT = 64
_VERSIONS = ("ETag", "etag", "generation", "LastModified", "last_modified", "created")  # as S3, GCS and others call it
_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One parquet file as it was when the dataset was opened.

    Attributes:
        path: where the file system finds it.
        name: path relative to the dataset.
        size: in bytes.
        version: what tells this content from a later one: time of the last change in ns, or a remote store's tag.
        rows: rows of each row group.
        schema: its Arrow schema.
        footer: digest of its footer.
        partitions: key=value pairs of its folders.
    """

    path: str
    name: str
    size: int
    version: str
    rows: tuple[int, ...]
    schema: pa.Schema
    footer: str
    partitions: dict[str, str]


class DatasetFiles:
    """Files of one parquet dataset: a file, a directory (with hive partitions) or a glob; local or any fsspec URL.

    Raises:
        StorageError: nothing there, or a file without a whole footer.
    """

    def __init__(self, url: str, storage_options: dict[str, Any] | None) -> None:
        self.url = url
        try:
            self._fs, root = url_to_fs(url, **(storage_options or {}))
            found = _find(self._fs, root)
        except (ImportError, ValueError, OSError) as error:
            raise StorageError(
                f"the files cannot be listed: {error}",
                where=url,
                remedy="check the URL, the credentials, and that the fsspec package for its protocol is installed",
            ) from error
        if not found:
            raise StorageError(
                "there are no parquet files here",
                where=url,
                expected=f"a file, or a directory or glob with files that end in {', '.join(SUFFIXES)}",
                remedy="check the path; relative paths start at " + os.getcwd(),
            )
        self._local = isinstance(self._fs, LocalFileSystem)
        self._footers: dict[str, pq.FileMetaData] = {}
        self._lock = Lock()
        with ThreadPoolExecutor(8) as pool:  # footers of a remote dataset cost a round trip each
            self.files: list[DataFile] = list(pool.map(self._describe, *zip(*found, strict=True)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_footers": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def values_in_lists(self, file: DataFile, column: str) -> list[tuple[int, int]]:
        """(rows, values) of a list column in each row group, from the footer."""
        footer = self._footer(file.path, file.size)[0]
        groups = [footer.row_group(g) for g in range(footer.num_row_groups)]
        if not groups:
            return []
        names = [groups[0].column(j).path_in_schema for j in range(groups[0].num_columns)]
        leaf = next(j for j, name in enumerate(names) if name.split(".")[0] == column or name.startswith(f"{column}."))
        return [(group.num_rows, group.column(leaf).num_values) for group in groups]

    def read(self, file: DataFile, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Columns of neighbouring row groups of one file.

        Raises:
            StorageError: the file is gone, has changed, or a page of it does not decode.
        """
        rows = sum(file.rows[g] for g in groups)
        try:
            table = self._read(file, groups, columns)
        except MemoryError:
            raise
        except StorageError:
            raise
        except Exception as error:  # decoders and remote file systems raise whatever they like
            group, error = self._culprit(file, groups, columns, error)
            raise StorageError(
                f"row group {group} cannot be read: {type(error).__name__}: {error}",
                where=f"{file.path}, row group {group}",
                expected="pages that decode to what the footer says",
                remedy="the file is truncated, corrupt or unreachable: restore it from a copy, or write it again",
            ) from error
        if table.num_rows != rows:
            raise self._changed(file, f"{table.num_rows} rows in row groups {list(groups)} instead of {rows}")
        return table

    def _read(self, file: DataFile, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        footer = self._footer(file.path, file.size)[0]
        if self._local:
            size = os.stat(file.path).st_size
            if size != file.size:
                raise self._changed(file, f"{size} bytes instead of {file.size}")
            opened = pq.ParquetFile(file.path, metadata=footer, page_checksum_verification=True)
            with opened:
                return opened.read_row_groups(list(groups), columns=list(columns), use_threads=False)
        with self._fs.open(file.path, "rb") as stream:
            opened = pq.ParquetFile(stream, metadata=footer, page_checksum_verification=True, pre_buffer=True)
            return opened.read_row_groups(list(groups), columns=list(columns), use_threads=False)

    def _culprit(
        self, file: DataFile, groups: Sequence[int], columns: Sequence[str], error: Exception
    ) -> tuple[int, Exception]:
        """The first row group that fails when read alone."""
        for group in groups if len(groups) > 1 else ():
            try:
                self._read(file, [group], columns)
            except Exception as alone:
                return group, alone
        return groups[0], error

    def _changed(self, file: DataFile, what: str) -> StorageError:
        return StorageError(
            f"the file has changed since the dataset was opened: {what}",
            where=file.path,
            expected="files that stay as they are while they are read",
            remedy="open the dataset again; if this file is truncated, restore it first",
        )

    def _describe(self, path: str, name: str) -> DataFile:
        info = self._fs.info(path)
        size = int(info["size"])
        footer, digest = self._footer(path, size)
        rows = tuple(footer.row_group(g).num_rows for g in range(footer.num_row_groups))
        folders = [part.partition("=") for part in name.split("/")[:-1]]
        partitions = {unquote(key): unquote(value) for key, equals, value in folders if equals}
        version = os.stat(path).st_mtime_ns if self._local else [info.get(key) for key in _VERSIONS]
        return DataFile(path, name, size, str(version), rows, footer.schema.to_arrow_schema(), digest, partitions)

    def _footer(self, path: str, size: int) -> tuple[pq.FileMetaData, str]:
        with self._lock:
            if path in self._footers:
                return self._footers[path], ""
        try:
            with self._fs.open(path, "rb") as stream:
                stream.seek(max(0, size - 8))
                end = stream.read(8)
                length = int.from_bytes(end[:4], "little")
                if end[4:] != _MAGIC or length + 12 > size:
                    raise pa.ArrowInvalid("the file does not end as a parquet file does")
                stream.seek(size - 8 - length)
                tail = stream.read(length + 8)
            footer = pq.read_metadata(pa.BufferReader(tail))
        except Exception as error:  # as above
            raise StorageError(
                f"the file has no readable footer: {error}",
                where=path,
                expected="a whole parquet file",
                remedy="the file is truncated, still being written, or not parquet: restore it, or leave it out",
            ) from error
        with self._lock:
            self._footers[path] = footer
            while len(self._footers) > _FOOTERS_KEPT:
                del self._footers[next(iter(self._footers))]
        return footer, hashlib.sha256(tail).hexdigest()


def _find(fs: Any, root: str) -> list[tuple[str, str]]:
    """(path, name relative to the dataset) of its files, in natural order: part-2 before part-10."""
    if any(sign in root for sign in "*?[") and not fs.exists(root):
        parts = root.split("/")
        base = "/".join(parts[: next(i for i, part in enumerate(parts) if any(sign in part for sign in "*?["))])
        paths = [path for path in fs.glob(root) if fs.isfile(path)]
    elif fs.isdir(root):
        base, paths = root, [path for path in fs.find(root) if path.endswith(SUFFIXES)]
    else:
        base, paths = posixpath.dirname(root), [root] if fs.exists(root) else []
    base = base.rstrip("/") + "/" if base else ""
    named = [(path, path.removeprefix(base)) for path in paths]
    # Engines leave _SUCCESS, _temporary/ and .part.crc beside the data.
    seen = [(path, name) for path, name in named if not any(part[:1] in "._" for part in name.split("/") if part)]
    return sorted(seen, key=lambda pair: [int(t) if t.isdigit() else t for t in re.split(r"([0-9]+)", pair[1])])
