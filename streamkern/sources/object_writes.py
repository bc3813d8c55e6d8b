"""Writing to a remote object store, which has no renames: only the put of one object is atomic."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.asyn import sync

from streamkern.errors import StorageError
from streamkern.sources.remote_store import Remote, status_of

CONCURRENT_REQUESTS = 8
"""Objects in memory at once during upload or download."""


class RemoteObjects(Remote):
    """Read and write the objects below a URL; paths are relative to it."""

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None) -> None:
        super().__init__(url, storage_options)
        self.require_listing(self.root)

    def all(self) -> list[str]:
        """Return names of all objects, relative to the URL."""
        return sorted(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Return bytes of all objects, by name."""
        try:
            found = self.find(self.root)
        except FileNotFoundError:
            return {}
        start = len(self.root.rstrip("/")) + 1
        return {path[start:]: int(info.get("size") or 0) for path, info in found.items()}

    def tag(self, name: str, limit: int) -> str:
        """Return an identifier of an object's content of ``limit`` bytes at most; FileNotFoundError without one."""
        info = self.info(self._at(name))
        if (info.get("size") or 0) > limit:
            raise StorageError(
                f"This object has {info['size']:,} bytes.",
                where=self.name(self._at(name)),
                expected=f"at most {limit:,} bytes",
                remedy="restore it from a copy",
            )
        return str(info.get("ETag") or "")

    def content(self, name: str) -> bytes:
        """Return all bytes of an object, or raise FileNotFoundError."""
        return sync(self.fs.loop, self.get, self._at(name))  # type: ignore[no-any-return]

    def put(self, name: str, data: bytes) -> None:
        """Write an object atomically."""
        sync(self.fs.loop, self._put, name, data)

    async def _put(self, name: str, data: bytes) -> None:
        path = self._at(name)
        await self._attempt(path, partial(self.fs._pipe_file, path, data))

    def put_if(self, name: str, data: bytes, tag: str | None) -> bool:
        """Write an object if it still has this tag (None: if it does not exist), and return True.

        S3 and most compatible stores check the condition. Other stores have no such request, and always write.
        """
        if "s3" not in self.fs.protocol:
            self.put(name, data)
            return True
        path = self._at(name)
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}

        async def request() -> bool:
            try:
                await self.fs._pipe_file(path, data, **condition)
            except Exception as error:  # file systems may raise anything
                status = status_of(error)
                if status in (404, 409, 412):
                    return False
                if status != 501:
                    raise
                await self.fs._pipe_file(path, data)  # the store has no conditional requests
            return True

        if sync(self.fs.loop, self._attempt, path, request):
            return True
        with suppress(FileNotFoundError):
            return self.content(name) == data  # an earlier attempt succeeded, but its response was lost
        return False

    def send(self, folder: Path, name: str) -> None:
        """Upload all files of a local folder below a name."""
        files = sorted(Path(at) / file for at, _, files in os.walk(folder) for file in files)

        async def one(file: Path) -> None:
            await self._put(f"{name}/{file.relative_to(folder).as_posix()}", file.read_bytes())

        self._each(one, files, CONCURRENT_REQUESTS)

    def download(self, name: str, folder: Path) -> None:
        """Download all objects below a name; FileNotFoundError without objects, StorageError if one leads out."""
        start = len(self._at(name)) + 1
        paths = sorted(self.find(self._at(name)))
        if not paths:
            raise FileNotFoundError(self.name(self._at(name)))
        for path in paths:
            parts = path[start:].split("/")
            if "\\" in path[start:] or any(part in ("", ".", "..") for part in parts):
                raise StorageError(
                    "The name of this object is not a file name.",
                    where=self.name(path),
                    expected="names that stay below their folder",
                    remedy="remove the object from the store",
                )

        async def one(path: str) -> None:
            target = folder / PurePosixPath(path[start:])
            data = await self.get(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

        self._each(one, paths, CONCURRENT_REQUESTS)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects in order; absent objects are ignored."""
        for name in names:
            with suppress(FileNotFoundError):
                self._call(self._at(name), self.fs._rm_file)

    def _at(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"
