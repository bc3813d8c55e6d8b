"""The files of a parquet dataset: finding them, their footers, and reads whose errors name the damaged file."""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
from fsspec.implementations.local import LocalFileSystem

from streamkern.errors import CorruptChunkError, StorageError
from streamkern.formats.parquet_footer import DICTIONARY, NULLS, PAGES, SIZE, VALUES, Chunks, page_bytes, read_chunks
from streamkern.redaction import redacted
from streamkern.sources.arrow import pa, pq
from streamkern.sources.remote_store import Remote, Retry, is_remote, object_version, reread, without_query
from streamkern.storage.untrusted_files import (
    GLOB_CHARACTERS,
    changed_error,
    file_stamp,
    natural_sort_key,
    not_visible_error,
    split_pattern,
    storage_errors,
)

SUFFIXES = (".parquet", ".pq", ".parq")
_MAGIC = b"PAR1"
_BUFFER = 1 << 16  # bytes of a column that are read at a time, where its pages follow one another


@dataclass(frozen=True, slots=True)
class DataFile:
    """The state of a parquet file when the dataset was opened; sizes are in bytes."""

    path: str  # for messages, with secrets hidden
    address: str  # for the file system
    name: str  # relative to the dataset
    size: int
    version: str  # of the content: time of the last change in ns, or a remote store's tag
    rows: tuple[int, ...]  # of each row group
    schema: pa.Schema
    widest: dict[str, int]  # largest uncompressed bytes of each column in a row group
    footer: str  # its digest
    partitions: dict[str, str]  # key=value pairs of the file's folders

    @property
    def identity(self) -> list[Any]:
        """Identifier of the content from metadata; copies with the same time share it."""
        return [self.name, self.size, self.version, self.footer]


class _Footer(NamedTuple):
    metadata: pq.FileMetaData
    paths: list[str]
    chunks: Chunks


class DatasetFiles:
    """Files of one parquet dataset: a file, a directory (with hive partitions) or a glob; local or an fsspec URL."""

    def __init__(self, url: str, storage_options: dict[str, Any] | None, retry: Retry | None = None) -> None:
        self._fs: Remote | LocalFileSystem
        if is_remote(url):
            self._fs = Remote(url, storage_options, retry)
            root = self._fs.root
        else:
            self._fs = LocalFileSystem()
            root = self._fs._strip_protocol(url)
        self._root = root
        with storage_errors(
            redacted(url), "a directory or glob that can be listed", "the files cannot be listed", "check the path"
        ):
            found = _find(self._fs, root)
        if not found:
            raise StorageError(
                "there are no parquet files here",
                where=url,
                expected=f"a file, or a directory or glob with files that end in {', '.join(SUFFIXES)}",
                remedy="check the URL" if is_remote(url) else f"check the path; relative paths start at {os.getcwd()}",
            )
        self._footers: dict[str, _Footer] = {}
        self._lock = Lock()
        with ThreadPoolExecutor(8) as pool:  # reading each remote footer waits for the network
            self.files: list[DataFile] = list(pool.map(self._describe, *zip(*found, strict=True)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_footers": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    @property
    def remote(self) -> bool:
        return isinstance(self._fs, Remote)

    @property
    def identity(self) -> list[Any]:
        """Identifiers of all files."""
        return [file.identity for file in self.files]

    def require_unchanged(self) -> None:
        infos: dict[str, dict[str, Any]] = {}
        if self.remote:
            infos = {address: info for address, _, info in _find(self._fs, self._root)}
        for file in self.files:
            try:
                found = self._version(file.address, infos.get(file.address, {}))
                same = found == (file.size, file.version)
            except FileNotFoundError:
                same = False
            if not same:
                raise changed_error(file.path)

    def _version(self, address: str, info: dict[str, Any]) -> tuple[int | None, str]:
        if not isinstance(self._fs, Remote):
            size, written = file_stamp(address)
            return size, str(written)
        info = info if info.get("size") else self._fs.info(address)
        return info["size"], object_version(info)

    def missing(self) -> dict[str, bool | None]:
        """Return whether each column has missing values, from the footers' statistics; None if a footer lacks them."""
        found: dict[str, bool | None] = {}
        for file in self.files:
            footer = self._footer(file)
            if not footer.chunks.rows:
                continue
            counts = footer.chunks.numbers[:, :, NULLS]
            gap, stated = np.any(counts > 0, axis=0), np.all(counts >= 0, axis=0)
            for name, gaps, known in zip(footer.paths, gap.tolist(), stated.tolist(), strict=True):
                before = found.get(name, False)
                found[name] = True if before or gaps else None if before is None or not known else False
        return found

    def list_width(self, column: str) -> int:
        """Return the values in a row of a list column, from the footer of the first row group with rows."""
        for file in self.files:
            footer = self._footer(file)
            leaf = next(
                j
                for j, name in enumerate(footer.paths)
                if name.split(".")[0] == column or name.startswith(f"{column}.")
            )
            for rows, values in zip(footer.chunks.rows, footer.chunks.numbers[:, leaf, VALUES].tolist(), strict=True):
                if rows:
                    return max(1, round(int(values) / rows))
        return 1

    def read(
        self, file: DataFile, groups: Sequence[int], columns: Sequence[str], words: Sequence[str] = ()
    ) -> pa.Table:
        """Return columns of neighbouring row groups of one file. A page that does not decode is read again.

        ``words`` are columns of text to read as dictionaries, as stored, to save memory for long texts in many rows.
        Errors are CorruptChunkError for such a page, and StorageError for a file that is gone, unreadable or changed.
        """
        with self._explaining(file, groups, columns):
            table = reread(lambda: self._read(file, groups, columns, words))
        self._require_rows(file, groups, table.num_rows)
        return table

    def batches(
        self, file: DataFile, groups: Sequence[int], columns: Sequence[str], words: Sequence[str], rows: int
    ) -> Iterator[pa.Table]:
        """Yield columns of row groups in tables of at most ``rows`` rows; arguments and errors of ``read``."""
        found: list[Iterator[pa.RecordBatch]] = []  # empty after a failed read: the next one begins anew
        done = count = 0
        with ExitStack() as stack:

            def following() -> pa.RecordBatch | None:
                if not found:
                    # All columns are open at a time; of a local file, each holds one page rather than all.
                    opened = stack.enter_context(self._opened(file, self.remote, words, 0 if self.remote else _BUFFER))
                    made = opened.iter_batches(rows, list(groups), list(columns), use_threads=False)
                    found.append(islice(made, done, None))
                try:
                    return next(found[0], None)
                except Exception:
                    found.clear()
                    raise

            while True:
                with self._explaining(file, groups, columns):
                    batch = reread(following)
                if batch is None:
                    break
                done, count = done + 1, count + batch.num_rows
                yield pa.Table.from_batches([batch])
        self._require_rows(file, groups, count)

    def _require_rows(self, file: DataFile, groups: Sequence[int], found: int) -> None:
        rows = sum(file.rows[g] for g in groups)
        if found != rows:
            raise changed_error(file.path, f"{found} rows in row groups {list(groups)} instead of {rows}")

    @contextmanager
    def _explaining(self, file: DataFile, groups: Sequence[int], columns: Sequence[str]) -> Iterator[None]:
        try:
            yield
        except (MemoryError, StorageError):
            raise
        except (FileNotFoundError, PermissionError) as error:
            if not isinstance(self._fs, Remote) and not os.path.exists(file.address):
                raise not_visible_error(file.path) from error
            raise StorageError(
                f"row group {groups[0]} cannot be read: {type(error).__name__}: {error}",
                where=f"{file.path}, row group {groups[0]}",
                expected="a row group that the file has",
                remedy="restore the file, or open the dataset again",
            ) from error
        except Exception as error:  # decoders may raise anything
            group, error = self._culprit(file, groups, columns, error)
            raise CorruptChunkError(
                f"row group {group} cannot be read: {type(error).__name__}: {error}",
                where=f"{file.path}, row group {group}",
                expected="pages that decode as the footer says",
                remedy="the file is truncated or corrupt: restore it from a copy, or write it again; or leave the rows "
                'out with open_dataset(..., on_corrupt="quarantine")',
            ) from error

    def _read(
        self, file: DataFile, groups: Sequence[int], columns: Sequence[str], words: Sequence[str] = ()
    ) -> pa.Table:
        with self._opened(file, self.remote, words) as opened:
            return opened.read_row_groups(list(groups), columns=list(columns), use_threads=False)

    def pages(self, file: DataFile, columns: Sequence[str]) -> int:
        """Return bytes of pages that ``batches`` holds: of each column one, with its dictionary, stored and decoded.

        Files do not state the size of their pages: it is that of the first ones. From a store, all pages are fetched.
        """
        if self.remote or not any(file.rows):
            return sum(file.widest.get(name, 0) for name in columns)
        footer, held = self._footer(file), 0
        group = footer.chunks.numbers[max(range(len(file.rows)), key=lambda g: file.rows[g])]
        usual = 1 << 20  # bytes of values at which writers end a page by default
        header = 32  # bytes of a page's header that state its size
        with open(file.address, "rb") as stream:
            for name, numbers in zip(footer.paths, group.tolist(), strict=True):
                if name not in columns and name.split(".")[0] not in columns:
                    continue
                for at in (numbers[DICTIONARY], numbers[PAGES]):
                    if at >= 0:
                        stream.seek(at)
                        page = max(page_bytes(stream.read(header)), 2 * usual)  # pages after a dictionary are larger
                        held += min(page, 2 * numbers[SIZE])
                held += _BUFFER
        return held

    def _opened(self, file: DataFile, pre_buffer: bool, words: Sequence[str], buffer_size: int = 0) -> pq.ParquetFile:
        footer = self._footer(file)
        if not isinstance(self._fs, Remote):
            size = os.stat(file.address).st_size
            if size != file.size:
                raise changed_error(file.path, f"{size} bytes instead of {file.size}")
        stream = self._fs.open(file.address, file.size) if isinstance(self._fs, Remote) else file.address
        return pq.ParquetFile(
            stream, metadata=footer.metadata, page_checksum_verification=True, pre_buffer=pre_buffer,
            read_dictionary=list(words), buffer_size=buffer_size,
        )  # fmt: skip

    def _culprit(
        self, file: DataFile, groups: Sequence[int], columns: Sequence[str], error: Exception
    ) -> tuple[int, Exception]:
        for group in groups if len(groups) > 1 else ():
            try:
                self._read(file, [group], columns)
            except Exception as alone:
                return group, alone
        return groups[0], error

    def _describe(self, address: str, name: str, info: dict[str, Any]) -> DataFile:
        path = self._fs.name(address) if isinstance(self._fs, Remote) else address
        found, tag = self._version(address, info)
        if found is None:
            raise StorageError(
                "the server does not say how large this file is",
                where=path,
                expected="a Content-Length",
                remedy="serve it with another server, or copy the file here first",
            )
        size = int(found)
        footer, digest = self._read_footer(address, path, size)
        folders = [part.partition("=") for part in name.split("/")[:-1]]
        partitions = {unquote(key): unquote(value) for key, equals, value in folders if equals}
        with storage_errors(path, "a whole parquet file", "the footer of the file cannot be used"):
            schema = footer.metadata.schema.to_arrow_schema()
            widest = _widest(footer, schema)
        return DataFile(path, address, name, size, tag, footer.chunks.rows, schema, widest, digest, partitions)

    def _footer(self, file: DataFile) -> _Footer:
        with self._lock:
            if file.address in self._footers:
                return self._footers[file.address]
        return self._read_footer(file.address, file.path, file.size, file.footer)[0]

    def _read_footer(self, address: str, path: str, size: int, expected: str | None = None) -> tuple[_Footer, str]:
        def read() -> tuple[_Footer, str]:
            with self._fs.open(address, size) if isinstance(self._fs, Remote) else open(address, "rb") as stream:
                stream.seek(max(0, size - 8))
                end = stream.read(8)
                length = int.from_bytes(end[:4], "little")
                if end[4:] != _MAGIC or length + 12 > size:
                    raise pa.ArrowInvalid("the file does not end as a parquet file does")
                stream.seek(size - 8 - length)
                tail = stream.read(length + 8)
            digest = hashlib.sha256(tail).hexdigest()
            if expected not in (None, digest):
                raise changed_error(path, "the footer differs")
            metadata = pq.read_metadata(pa.BufferReader(tail))
            paths = [metadata.schema.column(j).path for j in range(len(metadata.schema))]
            return _Footer(metadata, paths, read_chunks(tail[:-8], len(paths))), digest

        try:
            footer, digest = reread(read)
        except StorageError:
            raise
        except Exception as error:  # decoders may raise anything
            if not isinstance(self._fs, Remote) and not os.path.exists(address):
                raise not_visible_error(path) from error
            raise StorageError(
                f"the file has no readable footer: {error}",
                where=path,
                expected="a whole parquet file",
                remedy="the file is truncated, still being written, or not parquet: restore it, or leave it out",
            ) from error
        most = 64  # footers kept
        with self._lock:
            self._footers[address] = footer
            while len(self._footers) > most:
                del self._footers[next(iter(self._footers))]
        return footer, digest


def _widest(footer: _Footer, schema: pa.Schema) -> dict[str, int]:
    groups = footer.chunks.numbers[:, :, SIZE].T
    sizes = {name: np.zeros(len(footer.chunks.rows)) for name in schema.names}
    for name, stored in zip(footer.paths, groups, strict=True):
        sizes[name if name in sizes else name.split(".")[0]] += stored
    return {name: int(size.max(initial=0)) for name, size in sizes.items()}


def _find(fs: Remote | LocalFileSystem, root: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(address, name relative to the dataset, info) of files, in natural order: part-2 before part-10."""
    found: dict[str, dict[str, Any]] = {}
    named_hidden = False
    lists = not isinstance(fs, Remote) or fs.lists
    try:
        at_root = fs.info(root)
    except FileNotFoundError:
        at_root = {}
    if not at_root and any(sign in without_query(root) for sign in GLOB_CHARACTERS):
        exists = fs.exists if isinstance(fs, LocalFileSystem) else lambda folder: False  # which would be a request
        base, pattern = split_pattern(root, exists)
        matches = fs.glob(pattern, detail=True)
        found = {path: info for path, info in matches.items() if info["type"] != "directory"}
        named_hidden = root.rpartition("/")[2][:1] in ("_", ".")
    elif at_root.get("type") == "directory" or (not lists and without_query(root).endswith("/")):
        base = root
        found = {path: info for path, info in fs.find(root, detail=True).items() if path.endswith(SUFFIXES)}
    else:
        return [(root, posixpath.basename(without_query(root)), at_root)] if at_root else []
    base = base.rstrip("/") + "/" if base else ""
    named = [(path, without_query(path).removeprefix(base), info) for path, info in found.items()]
    # Spark and others leave _SUCCESS, _temporary/ and .part.crc next to the data; a pattern may ask for such names.
    kept = [each for each in named if not _is_hidden(posixpath.dirname(each[1]) if named_hidden else each[1])]
    return sorted(kept, key=lambda each: natural_sort_key(each[1]))


def _is_hidden(name: str) -> bool:
    return any(part[:1] in "._" for part in name.split("/") if part)
