"""Stores for zarr: a remote one with repetitions, and one that checks metadata, files and Blosc frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore, WrapperStore

from streamkern.errors import StorageError
from streamkern.formats.blosc import require_frame
from streamkern.formats.zarr_allowed_codecs import ALLOWED_CODECS, forbidden_codec
from streamkern.sources.remote_store import Remote
from streamkern.storage.untrusted_files import MAX_JSON_BYTES, parse_json, require_regular

_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


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
