"""Stores for zarr: a remote one with repetitions, and one that checks metadata, files and Blosc frames."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore, WrapperStore

from streamkern.errors import StorageError
from streamkern.sources.remote_store import Remote
from streamkern.storage.untrusted_files import MAX_JSON_BYTES, parse_json, require_regular

_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")

BLOSC_HEADER = 16
"""Bytes before the data of a Blosc frame."""


class RemoteStore(Store):
    """A remote zarr hierarchy, read-only."""

    supports_writes = False
    supports_deletes = False

    def __init__(self, remote: Remote) -> None:
        super().__init__(read_only=True)
        self.remote = remote

    @property
    def supports_listing(self) -> bool:
        return self.remote.lists

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and other.remote is self.remote

    def __str__(self) -> str:
        return self.remote.shown

    def __repr__(self) -> str:
        return f"RemoteStore({self.remote.shown!r})"

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        start = stop = None
        if isinstance(byte_range, RangeByteRequest):
            start, stop = byte_range.start, byte_range.end
        elif isinstance(byte_range, OffsetByteRequest):
            start = byte_range.offset
        elif isinstance(byte_range, SuffixByteRequest):
            start = -byte_range.suffix
        try:
            found = await self.remote.elsewhere(self.remote.get(self._path(key), start, stop))
        except FileNotFoundError:
            return None
        return prototype.buffer.from_bytes(found)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return True if a read finds the key, since some file systems' HEAD requests report any failure as absence."""
        return await self.get(key, default_buffer_prototype()) is not None

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for path in await asyncio.to_thread(self.remote.find, self.remote.root):
            if (key := path.removeprefix(self.remote.root).lstrip("/")).startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self.remote.listed, self._path(prefix)):
            yield name

    async def set(self, key: str, value: Buffer) -> None:
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        raise NotImplementedError

    def _path(self, key: str) -> str:
        return f"{self.remote.root.rstrip('/')}/{key}".rstrip("/")


class CheckedStore(WrapperStore[Store]):
    """A store of untrusted rows: metadata are checked before zarr parses them, and files before they are read.

    All reads of zarr use ``get``, so that zarr only creates codecs that are allowed, whether metadata are the array's
    or consolidated in a group. Chunks are Blosc's ``frames`` of so many decoded bytes (0 if unknown); None for others.
    """

    def __init__(self, store: Store, frames: int | None = None) -> None:
        super().__init__(store)
        self._frames = frames

    def _with_store(self, store: Store) -> CheckedStore:
        return CheckedStore(store, self._frames)

    def __str__(self) -> str:
        return str(self._store)

    @property
    def inner(self) -> Store:
        """The wrapped store."""
        return self._store

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return a key's bytes, or None; StorageError for an irregular file, or a codec that is not allowed."""
        metadata = key.rsplit("/", 1)[-1] in _METADATA
        if isinstance(self._store, LocalStore):
            require_regular(self._store.root / key, MAX_JSON_BYTES if metadata else None)
        found = await super().get(key, prototype, byte_range)
        if found is not None and metadata:
            self._require_known(key, found.to_bytes())
        elif found is not None and byte_range is None and self._frames is not None:
            require_frame(found[:16].to_bytes(), len(found), self._frames)
        return found

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    # It returns an AsyncGenerator, whose annotation in the base class varies between releases.
    async def _get_many(self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]) -> Any:
        for request in requests:
            yield request[0], await self.get(*request)

    def _require_known(self, key: str, data: bytes) -> None:
        where = f"{self._store}, {key}"
        try:
            reason = forbidden_codec(parse_json(data, where))
        except ValueError:
            return  # zarr reports invalid JSON
        if reason is not None:
            raise StorageError(
                f"the array is not read: {reason}",
                where=where,
                expected=f"codecs among {', '.join(sorted(ALLOWED_CODECS))}, and no Python objects but text",
                remedy="write the array again with one of these; decoding pickle executes code of its author",
            )


def require_frame(header: bytes, stored: int, decoded: int) -> None:
    """Raise ValueError unless a Blosc frame is ``stored`` bytes long and ``decoded`` ones in memory, if not 0.

    The decoder trusts the lengths in a frame's header: given a truncated frame, it reads past the end of the buffer and
    returns garbage as rows.
    """
    size, length = (int.from_bytes(header[at : at + 4], "little") for at in (4, 12))
    if length != stored or stored < BLOSC_HEADER:
        raise ValueError(f"{stored} bytes of a Blosc frame of {length}")
    if decoded and size != decoded:
        raise ValueError(f"a Blosc frame of {size} bytes, decoded, for a chunk of {decoded}")


# Some of zarr's codecs execute code from the decoded data (``pickle``), and plug-ins may add others. Those of texts are
# the only ones here that create Python objects; those of the layout are of version 3, from arrays to bytes.
BYTE_CODECS = {"adler32", "blosc", "bz2", "crc32", "crc32c", "fletcher32", "gzip", "lz4", "lzma", "zlib", "zstd"}
NUMBER_CODECS = {"astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle", "transpose"}
TEXT_CODECS = {"vlen-bytes", "vlen-utf8"}
LAYOUT_CODECS = {"bytes", "endian", "sharding_indexed"}
ALLOWED_CODECS = BYTE_CODECS | NUMBER_CODECS | TEXT_CODECS | LAYOUT_CODECS

_NUMBER = re.compile(r"[<>|=]?[biufc][0-9]{1,2}|bool|(?:int|uint|float|complex)[0-9]{1,3}")
_PLAIN = re.compile(r"[<>|=]?[biufcSUV][0-9]{1,9}|[<>|=]?[mM]8(?:\[[0-9]*[A-Za-z]{1,2}\])?")
_DTYPES = ("dtype", "astype", "encode_dtype", "decode_dtype")


def forbidden_codec(document: Any) -> str | None:
    """Return why the arrays of a parsed zarr.json, .zarray or .zmetadata must not be read, or None."""
    if not isinstance(document, dict):
        return None
    reason = _of_version_2(document)
    if reason is None and document.get("storage_transformers"):
        reason = f"it has storage transformers: {_shown(document['storage_transformers'])}"
    reason = reason or _of_chain(document.get("codecs"))
    # Version 2 lists all documents under "metadata"; version 3 has that inside "consolidated_metadata".
    for inside in (document, document.get("consolidated_metadata")):
        members = inside.get("metadata") if isinstance(inside, dict) else None
        for name, member in members.items() if isinstance(members, dict) and reason is None else ():
            if not name.endswith(".zattrs") and (reason := forbidden_codec(member)) is not None:
                reason = f"{name}: {reason}"
                break
    return reason


def _of_version_2(document: dict[str, Any]) -> str | None:
    dtype, compressor, filters = (document.get(name) for name in ("dtype", "compressor", "filters"))
    reason = _of_chain(filters, "filters", "id", BYTE_CODECS | NUMBER_CODECS | TEXT_CODECS)
    if reason is None and compressor is not None:
        reason = _of_codec(compressor, "id", BYTE_CODECS)
    if reason is not None:
        return reason
    if dtype in ("|O", "O"):
        names = [_name(codec, "id") for codec in filters or ()]
        if not names or names[0] not in TEXT_CODECS or TEXT_CODECS & set(names[1:]):
            return f"its dtype is {dtype!r}, Python objects, without vlen-utf8 as the first filter, and the only one"
    elif dtype is not None and not _is_plain(dtype):
        return f"its dtype {_shown(dtype)} is not a dtype of numbers, dates or text"
    return None


def _is_plain(dtype: Any) -> bool:
    """True if a version 2 dtype, or each of its fields, has a fixed width and no Python objects."""
    if isinstance(dtype, str):
        return _PLAIN.fullmatch(dtype) is not None
    fields = dtype if isinstance(dtype, list) else [None]
    return all(isinstance(field, list) and len(field) > 1 and _is_plain(field[1]) for field in fields)


def _of_chain(codecs: Any, what: str = "codecs", key: str = "name", known: set[str] = ALLOWED_CODECS) -> str | None:
    if codecs is None:
        return None
    if not isinstance(codecs, list):
        return f"its {what} are {_shown(codecs)}, not a list"
    for codec in codecs:
        reason = _of_codec(codec, key, known)
        if reason is None and _name(codec, key) == "sharding_indexed":
            inner = _configuration(codec)
            reason = _of_chain(inner.get("codecs")) or _of_chain(inner.get("index_codecs"))
        if reason is not None:
            return reason
    return None


def _of_codec(codec: Any, key: str, known: set[str]) -> str | None:
    name = _name(codec, key)
    if name not in known:
        return f"its codec {_shown(codec if name is None else name)} is not one of those that are read"
    for field, value in _configuration(codec).items():
        if field in _DTYPES and not (isinstance(value, str) and _NUMBER.fullmatch(value)):
            return f"its codec {name!r} has the {field} {_shown(value)}"
    return None


def _name(codec: Any, key: str) -> str | None:
    """Version 2 names a codec by the key ``id``, version 3 by ``name`` or the bare text."""
    if isinstance(codec, dict):
        codec = codec.get(key)
    elif key == "id":
        return None
    return codec.removeprefix("numcodecs.") if isinstance(codec, str) else None


def _configuration(codec: Any) -> dict[str, Any]:
    if not isinstance(codec, dict):
        return {}
    inside = codec.get("configuration")
    return {**codec, **inside} if isinstance(inside, dict) else codec


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
