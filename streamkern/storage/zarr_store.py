"""Stores that zarr reads from: a remote one that is patient, and one that knows what a whole Blosc frame is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import WrapperStore

from streamkern.storage.remote import Remote


class RemoteStore(Store):
    """A zarr hierarchy in a remote place, to read.

    Args:
        remote: the place.
    """

    supports_writes = False
    supports_deletes = False

    def __init__(self, remote: Remote) -> None:
        super().__init__(read_only=True)
        self.remote = remote

    @property
    def supports_listing(self) -> bool:
        """Whether the store can say what it holds."""
        return self.remote.lists

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and other.remote is self.remote

    def __str__(self) -> str:
        return self.remote.shown

    def __repr__(self) -> str:
        return f"RemoteStore({self.remote.shown!r})"

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Bytes of a key, or None where there is none."""
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
        """Parts of several keys."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """Whether there is the key. It is read: a HEAD request of some file systems turns every failure into a no."""
        return await self.get(key, default_buffer_prototype()) is not None

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys that begin so."""
        for path in await self.remote.elsewhere(self.remote.below(self.remote.root)):
            if (key := path.removeprefix(self.remote.root).lstrip("/")).startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names directly below a prefix."""
        for name in await self.remote.elsewhere(self.remote.names(self._path(prefix))):
            yield name

    async def set(self, key: str, value: Buffer) -> None:
        """Not for this store."""
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        """Not for this store."""
        raise NotImplementedError

    def _path(self, key: str) -> str:
        return f"{self.remote.root.rstrip('/')}/{key}".rstrip("/")


class WholeBlosc(WrapperStore[Store]):
    """A store whose chunks are Blosc frames, checked for their length.

    The decoder trusts the length that stands in a frame: of a truncated one it reads past the end of the buffer, and
    gives whatever it finds there as rows.
    """

    @property
    def inner(self) -> Store:
        """The store around which this one is."""
        return self._store

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Bytes of a key, or None where there is none."""
        found = await super().get(key, prototype, byte_range)
        if found is None or byte_range is not None or key.rsplit("/", 1)[-1].startswith((".z", "zarr.json")):
            return found
        declared = int.from_bytes(found[12:16].to_bytes(), "little") if len(found) >= 16 else 16
        if declared != len(found):
            raise ValueError(f"{len(found)} bytes of a Blosc frame of {declared}")
        return found
