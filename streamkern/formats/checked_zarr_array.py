"""A zarr array with checked reads: the error for a missing, truncated or corrupt chunk names the chunk."""

from __future__ import annotations

import itertools
import math
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import getitem
from threading import Lock
from typing import Any, cast

import numpy as np
import zarr
from numcodecs import blosc
from numcodecs.checksum32 import CRC32C
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

from streamkern.errors import CorruptChunkError, StorageError
from streamkern.formats.cf_conventions import Packing, packing_of
from streamkern.formats.named_arrays import StoredRows
from streamkern.formats.zarr_checked_stores import BLOSC_HEADER, CheckedStore, RemoteStore, require_frame
from streamkern.memory import check_memory
from streamkern.sources.remote_store import reread
from streamkern.storage.untrusted_files import changed_error, file_stamp, file_tail, not_visible_error, require_regular
from streamkern.storage.value_digest import digest
from streamkern.types import Array

CHUNK_CACHE_BYTES = 32 << 20
"""Decoded bytes that are cached if stored chunks are longer than a read (such as labels in one large chunk)."""

_SLACK, _LONGER = 1 << 20, 8
"""Bytes of a file beyond its chunk, such as the index of a shard; and how much longer than decoded it may be stored."""

_CHECKSUM = 4  # bytes at the end of a chunk, where its checksum is

_MOST_ACROSS = 1 << 20  # stored chunks of a row: with more, nothing that visits each of them comes to an end

_WHOLE_CODECS = (["bytes", "blosc"], ["bytes", "blosc", "crc32c"])


@dataclass(frozen=True)
class WholeChunks:
    """Chunks of whole rows in `write_zarr`'s layout, decoded without the copies of zarr's pipeline.

    Each is one Blosc frame of little-endian numbers, followed by a CRC-32C if ``checksum``.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    checksum: bool

    @classmethod
    def of(cls, array: zarr.Array[Any]) -> WholeChunks | None:
        """Return the decoder of an array's chunks; None for other layouts, which zarr decodes."""
        metadata = array.metadata.to_dict()
        codecs: list[Any] = list(cast("Iterable[Any]", metadata.get("codecs") or ()))
        dtype, names = np.dtype(array.dtype), [codec["name"] for codec in codecs]
        if names not in _WHOLE_CODECS or dtype.kind not in "biuf" or dtype.newbyteorder("<") != dtype:
            return None
        order = codecs[0].get("configuration", {}).get("endian", "little")
        if order != "little" or array.shards is not None or array.chunks[1:] != array.shape[1:]:
            return None
        return cls(array.chunks, dtype, len(names) == 3)

    def decoded(self, stored: Any) -> Array:
        """Return a stored chunk's rows; ValueError if its sizes do not fit, RuntimeError if it does not decode."""
        frame = memoryview(CRC32C(location="end").decode(stored) if self.checksum else stored)
        size = math.prod(self.shape) * self.dtype.itemsize
        require_frame(bytes(frame[:BLOSC_HEADER]), len(frame), size)
        copied = 2  # the flag, in byte 2, of uncompressed data
        if frame[2] & copied and len(frame) == size + BLOSC_HEADER:  # incompressible: used without a copy
            rows = np.frombuffer(frame, self.dtype, offset=BLOSC_HEADER).reshape(self.shape)
            return rows if rows.flags.aligned else rows.copy()
        rows = np.empty(self.shape, self.dtype)
        blosc.decompress(frame, rows)
        return rows


class StoredArray(StoredRows):
    """A zarr array whose reads return the written values, or raise an error that names the damaged chunk."""

    def __init__(self, array: zarr.Array[Any], url: str, sparse: bool, packing: Packing | None = None) -> None:
        assert isinstance(array.store, CheckedStore)
        self._store = array.store.inner
        if (frames := _frame_bytes(array)) is not None:
            store, version = CheckedStore(self._store, frames), array.metadata.zarr_format
            array = zarr.open_array(store, path=array.path, mode="r", zarr_format=version)
        self.array, self.shape, self.sparse = array, array.shape, sparse
        self.where = f"{url}, array {array.path}" if array.path else url
        if not all((*array.chunks, *self.outer)):
            raise StorageError(
                f"the array has chunks of shape {array.chunks}",
                where=self.where,
                expected="at least one row and one value in a chunk",
                remedy="its metadata are damaged: restore them from a copy",
            )
        across = math.prod(self._across)
        if across > _MOST_ACROSS:
            raise StorageError(
                f"a row of the array is stored in {across:,} chunks",
                where=self.where,
                expected=f"at most {_MOST_ACROSS:,}",
                remedy="if its shape is damaged, restore its metadata from a copy; else store more columns in a chunk",
            )
        self.dtype = np.dtype(array.dtype) if packing is None else packing.dtype
        self._packing = packing
        self._fill = array.metadata.fill_value
        self._whole = WholeChunks.of(array)
        self._kept: OrderedDict[int, Array] = OrderedDict()
        self._lock, self._decoding = Lock(), Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict(), "_lock": None, "_decoding": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock(), _decoding=Lock())

    @property
    def described(self) -> list[Any]:
        """What its values depend on besides the stored chunks: path, dtype, width, and how numbers are unpacked."""
        unpacked = [] if self._packing is None else [self._packing.to_json()]
        return [self.array.path, str(self.dtype), self.shape[1:], *unpacked]

    @property
    def remote(self) -> bool:
        """True if a read is a request to a remote store."""
        return isinstance(self._store, RemoteStore)

    def read_kept(self, a: int, b: int) -> Array:
        rows = self.array.chunks[0]
        if b - a >= rows:
            return self.read(a, b)
        parts = []
        for stored in range(a // rows, -(-b // rows)):
            start = stored * rows
            parts.append(self._keep(stored)[max(a, start) - start : b - start])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def holding(self, rows: int, text: int, kept: bool) -> tuple[int, int]:
        """Return bytes of a read's stored chunks, stored and decoded; and cached ones, of chunks longer than a read."""
        chunk = self.array.chunks[0]
        row = math.prod(self.array.shape[1:]) * (text if self.dtype.kind in "OT" else self.dtype.itemsize)
        if kept and rows < chunk:
            block = min(chunk, self.array.shape[0]) * row
            return 0, min(self.array.shape[0] * row, max(CHUNK_CACHE_BYTES, block)) + 2 * block
        if self._whole is not None and not self.remote and rows == min(chunk, self.array.shape[0]):
            return chunk * row, 0  # only the frame, which is decoded into the rows
        again = chunk * row if self.array.shards is not None else 0  # a chunk of the fill value is read twice
        return 2 * min(-(-rows // chunk) * chunk, max(chunk, self.array.shape[0])) * row + again, 0

    def key_of_row(self, row: int) -> str:
        """Return the key of the first stored chunk (or shard) with the row."""
        return self._key((row // self.outer[0], *(0 for _ in self.array.shape[1:])))

    @cached_property
    def identity(self) -> str:
        """Digest of the array's metadata and stored chunks at the first call."""
        return digest(self._found())

    def require_unchanged(self) -> None:
        if "identity" in self.__dict__ and digest(self._found()) != self.identity:
            raise changed_error(self.where)
        _ = self.identity

    def _found(self) -> list[Any]:
        metadata = {name: value for name, value in self.array.metadata.to_dict().items() if name != "attributes"}
        files: list[Any] = []
        if isinstance(self._store, RemoteStore):
            remote = self._store.remote
            counts = [-(-size // step) for size, step in zip(self.shape, self.outer, strict=True)]
            keys = map(self.array.metadata.encode_chunk_key, itertools.product(*map(range, counts)))
            files = remote.versions(keys, f"{remote.root.rstrip('/')}/{self.array.path}".rstrip("/"))
        elif isinstance(self._store, LocalStore):
            root = os.path.join(self._store.root, self.array.path)
            for folder, folders, names in os.walk(root):
                folders.sort()
                for name in sorted(names):
                    if name not in ("zarr.json", ".zarray", ".zattrs"):
                        path = os.path.join(folder, name)
                        files.append((os.path.relpath(path, root), *file_stamp(path)))
        return [self.array.path, metadata, files, *([] if self._packing is None else [self._packing.to_json()])]

    def files(self, a: int, b: int) -> list[Any] | None:
        """Return name, size, time and last bytes, a checksum by ``write_zarr``, of a to b's chunks; None if remote."""
        if not isinstance(self._store, LocalStore):
            return None
        rows = self.outer[0]
        found: list[Any] = []
        for coords in itertools.product(range(a // rows, -(-b // rows)), *map(range, self._across)):
            key = self._key(coords)
            try:
                path = os.path.join(self._store.root, key)
                size, written = file_stamp(path)
                found.append((key, size, written, file_tail(path, _CHECKSUM)))
            except FileNotFoundError:  # an absent chunk has the fill value
                found.append((key, None, str(self._fill)))
        return found

    @property
    def outer(self) -> tuple[int, ...]:
        """Shape of a stored chunk, or shard."""
        return self.array.shards or self.array.chunks

    @property
    def _across(self) -> list[int]:
        """Stored chunks (or shards) of a row, along each axis but the first."""
        return [-(-size // step) for size, step in zip(self.shape[1:], self.outer[1:], strict=True)]

    def _key(self, coords: tuple[int, ...]) -> str:
        key = self.array.metadata.encode_chunk_key(coords)
        return f"{self.array.path}/{key}" if self.array.path else key

    def _keep(self, stored: int) -> Array:
        with self._lock:
            if stored in self._kept:
                self._kept.move_to_end(stored)
                return self._kept[stored]
        rows = self.array.chunks[0]
        row_bytes = math.prod(self.array.shape[1:]) * self.dtype.itemsize
        with self._decoding:  # one thread only, since the chunk is large and others may need it, too
            with self._lock:
                if stored in self._kept:
                    return self._kept[stored]
            check_memory(min(rows, self.array.shape[0] - stored * rows) * row_bytes, f"{self.where}, chunk {stored}")
            block = self.read(stored * rows, min((stored + 1) * rows, self.array.shape[0]))
            block.flags.writeable = False
            with self._lock:
                self._kept[stored] = block
                while len(self._kept) > max(1, CHUNK_CACHE_BYTES // (rows * row_bytes)):
                    self._kept.popitem(last=False)
        return block

    def read(self, a: int, b: int) -> Array:
        """Return rows a to b. A chunk that does not decode is read again, in case the transfer failed."""
        try:
            block = reread(lambda: self._decoded(a, b))
        except (MemoryError, StorageError):
            raise
        except PermissionError as error:
            raise StorageError(
                f"there is no permission to read the chunk: {error}",
                where=f"{self.where}, rows {a} to {b - 1}",
                expected="permission to read it",
                remedy="check the permissions of the files",
            ) from error
        except Exception as error:  # codecs may raise anything
            raise self._explained(a, b, error) from error
        if not self.sparse:
            self._require_stored(a, b, block)
        return block if self._packing is None else self._packing.values(block)

    def _require_sizes(self, a: int, b: int) -> None:
        """Check sizes of local files before they are read, because zarr reads files as a whole."""
        if not isinstance(self._store, LocalStore):
            return
        decoded = math.prod(self.outer) * self.dtype.itemsize
        most = None if self.dtype.kind in "OT" else _SLACK + _LONGER * decoded
        for key in dict.fromkeys(self._key(self._outer_of(coords)) for coords, _ in self._stored_chunks(a, b)):
            size = require_regular(self._store.root / key, most)
            if size > _SLACK:
                check_memory(size, f"{self.where}, chunk {key}")

    def _decoded(self, a: int, b: int) -> Array:
        """Do without zarr's pipeline if rows a to b are one stored chunk of a known layout."""
        self._require_sizes(a, b)
        index, begin = divmod(a, self.array.chunks[0])
        if self._whole is not None and not begin and b == min(a + self.array.chunks[0], self.array.shape[0]):
            key = self._key((index, *(0 for _ in self.array.shape[1:])))
            stored = self._bytes(key)
            if stored is not None:
                return self._whole.decoded(stored)[: b - a]
        return np.asarray(self.array[a:b])

    def _bytes(self, key: str) -> Any:
        """Files are read in this thread: zarr would use two others in turn, which wait for busy cores."""
        if type(self._store) is LocalStore:
            path = self._store.root / key
            try:
                return path.read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None
        found = sync(self.array.store.get(key, default_buffer_prototype()))
        return None if found is None else found.as_numpy_array()

    def _stored_chunks(self, a: int, b: int) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Coordinates of the (inner) chunks of rows a to b, and the region of each, cut to these rows."""
        shape, chunks = self.array.shape, self.array.chunks
        grid = [range(a // chunks[0], -(-b // chunks[0]))]
        grid += [range(-(-size // step)) for size, step in zip(shape[1:], chunks[1:], strict=True)]
        for coords in itertools.product(*grid):
            region = [
                slice(c * step, min((c + 1) * step, size)) for c, step, size in zip(coords, chunks, shape, strict=True)
            ]
            region[0] = slice(max(a, region[0].start), min(b, region[0].stop))
            yield coords, tuple(region)

    def _require_stored(self, a: int, b: int, block: Array) -> None:
        """Check that chunks of only the fill value are stored, since absent ones look the same."""
        if type(self._store) is LocalStore and not self._store.root.exists():
            raise not_visible_error(str(self._store.root))
        for coords, region in self._stored_chunks(a, b):
            part = block[slice(region[0].start - a, region[0].stop - a), *region[1:]]
            if not _is_all(part, self._fill):
                continue
            key = self._key(self._outer_of(coords))
            try:
                if self.array.shards is None:
                    present = sync(self.array.store.exists(key))
                else:
                    otherwise: Any = reread(partial(getitem, self._filled_otherwise, region))
                    present = _is_all(otherwise, self._fill)
            except StorageError:
                raise
            except Exception as error:
                raise self._explained(a, b, error) from error
            if not present:
                raise CorruptChunkError(
                    f"chunk {key} is not stored",
                    where=f"{self.where}, rows {region[0].start} to {region[0].stop - 1}",
                    expected="every chunk of the array: one that is missing would read as rows of its fill value",
                    remedy="restore the chunk or write the array again; if its writer leaves out chunks that hold only "
                    "the fill value (zarr's default), give the array the attribute streamkern: "
                    '{"sparse": true}',
                )

    def _outer_of(self, coords: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(c * step // outer for c, step, outer in zip(coords, self.array.chunks, self.outer, strict=True))

    @cached_property
    def _filled_otherwise(self) -> zarr.Array[Any]:
        """The array with another fill value, in which absent chunks, also those of a shard, differ from stored ones."""
        other: Any = "absent"
        if self.array.dtype.kind not in "OTU":
            one, zero = np.array([1, 0]).astype(self.array.dtype)
            other = zero if self._fill == one else one
        metadata = replace(self.array.metadata, fill_value=other)
        return zarr.Array(zarr.AsyncArray(metadata, self.array.store_path))

    def _explained(self, a: int, b: int, error: Exception) -> CorruptChunkError:
        """The error of a failed read names the first stored chunk that fails when read alone."""
        culprit, rows = self.key_of_row(a), (a, b - 1)
        for coords, region in self._stored_chunks(a, b):
            try:
                self.array[region]
            except StorageError:
                raise
            except Exception as alone:
                culprit, rows, error = self._key(self._outer_of(coords)), (region[0].start, region[0].stop - 1), alone
                break
        return CorruptChunkError(
            f"chunk {culprit} cannot be read: {type(error).__name__}: {error}",
            where=f"{self.where}, rows {rows[0]} to {rows[1]}",
            expected="a chunk that decodes as the array's metadata says",
            remedy="the chunk is truncated or corrupt: restore it from a copy, or write it again; or leave its rows "
            'out with open_dataset(..., on_corrupt="quarantine")',
        )


def packing_of_array(array: zarr.Array[Any], where: str) -> Packing | None:
    """Return how the numbers of an array are unpacked, by its attributes; None if they are values as stored."""
    attributes = array.attrs.asdict()
    # xarray stores the number of missing values as the fill value of version 2, and names the axes beside it.
    by_xarray = array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes
    fill = array.metadata.fill_value if by_xarray else None
    return packing_of(attributes, np.dtype(array.dtype), array.shape, where, fill)


def is_coordinate(array: zarr.Array[Any]) -> bool:
    """Return True for the whole numbers that count the rows: an array named as its only axis, as xarray writes it."""
    axes: Any = getattr(array.metadata, "dimension_names", None) or array.attrs.asdict().get("_ARRAY_DIMENSIONS")
    return list(axes or ()) == [array.basename] and np.dtype(array.dtype).kind in "iu"


def _frame_bytes(array: zarr.Array[Any]) -> int | None:
    """The decoded bytes of stored chunks that are Blosc frames, without a checksum around them.

    0 if another codec is applied first, None for other chunks.
    """
    metadata = array.metadata.to_dict()
    codecs: list[Any] = list(cast("Iterable[Any]", metadata.get("codecs") or ()))
    last: Any = (codecs or [metadata.get("compressor")])[-1] or {}
    if array.shards is not None or last.get("name", last.get("id")) not in ("blosc", "numcodecs.blosc"):
        return None
    dtype = np.dtype(array.dtype)
    if metadata.get("filters") or len(codecs) > 2 or dtype.kind in "OT":
        return 0
    return math.prod(array.chunks) * dtype.itemsize


def _is_all(part: Array, fill: Any) -> bool:
    """Compare the first row first, since it mostly decides."""
    fill = part.dtype.type() if fill is None else fill
    return all((some != some if fill != fill else some == fill).all() for some in (part[:1], part))
