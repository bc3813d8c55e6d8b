"""Remote stores: requests have timeouts and are repeated until a deadline; messages contain no secrets.

fsspec finds credentials in the environment, the machine's role, or ``storage_options``.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fsspec.asyn import sync
from fsspec.core import url_to_fs
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.utils import glob_translate

from streamkern.errors import StorageError, UsageError, require_types
from streamkern.redaction import keep_option_secrets, keep_url_secrets, redacted

T = TypeVar("T")

_VERSIONS = ("ETag", "etag", "generation", "Last-Modified", "LastModified", "last_modified", "created")

_MAX_READS = 3  # reads of a chunk that does not decode, before it counts as corrupt
_jitter = random.Random()  # only affects waiting times, not data


@dataclass(frozen=True)
class Retry:
    """Timeouts and repetitions of requests to a remote store.

    Args:
        timeout: seconds that one request may take.
        deadline: seconds that a request and its repetitions may take together.
        first_wait: seconds before the first repetition. The wait doubles for each further repetition. It is shortened
            at random by up to half, so that workers do not repeat requests at the same time.
        longest_wait: upper bound of a wait in seconds.

    Raises:
        UsageError: a value is not positive.
    """

    timeout: float = 60.0
    deadline: float = 300.0
    first_wait: float = 0.2
    longest_wait: float = 20.0

    def __post_init__(self) -> None:
        require_types(self)
        for name, value in vars(self).items():
            if not value > 0:
                raise UsageError(f"{name} is {value}.", where=f"Retry({name}=...)", expected="a positive number")

    def wait(self, attempt: int) -> float:
        """Return the seconds to wait after a failed attempt; the first attempt has number 0."""
        return float(min(self.longest_wait, self.first_wait * 2.0**attempt) * _jitter.uniform(0.5, 1.0))


class RequestCounts:
    """Thread-safe counts of this process's requests, repetitions included; rereads are of bytes that did not decode."""

    def __init__(self) -> None:
        self._counts = {"requests": 0, "retries": 0, "rereads": 0}
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def now(self) -> dict[str, int]:
        """Return the counts so far."""
        with self._lock:
            return dict(self._counts)


REQUEST_COUNTS = RequestCounts()
"""Counts of this process since it started; subtract two ``now()`` for the work in between."""


def is_remote(url: str) -> bool:
    """Return True if the URL is not of a local file."""
    return "://" in url and not url.startswith("file://")


def without_query(url: str) -> str:
    """Return an http(s) URL without its query, which may be a signature; in other URLs ``?`` is part of a glob."""
    return re.split(r"[?#]", url, maxsplit=1)[0] if url.lower().startswith(("http://", "https://")) else url


def object_version(info: dict[str, Any]) -> str:
    """Return an identifier of an object's content: its tag, or its time if the store has no tags."""
    return next((str(info[key]) for key in _VERSIONS if info.get(key)), "")


def reread(read: Callable[[], T]) -> T:
    """Call ``read``, and repeat it if the bytes do not decode, in case the network damaged them; then raise."""
    for _ in range(_MAX_READS - 1):
        try:
            return read()
        except (MemoryError, StorageError, FileNotFoundError, PermissionError):
            raise
        except Exception:  # decoders may raise anything
            REQUEST_COUNTS.add("rereads")
    return read()


class Remote:
    """Read objects at a URL, with timeouts and repetitions. Thread-safe, picklable."""

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None, retry: Retry | None = None) -> None:
        self.retry = retry or Retry()
        options = dict(storage_options or {})
        self._given = (url, options)
        self._hide()
        self.shown = redacted(url)
        scheme = url.partition("://")[0].lower()
        if scheme in ("s3", "s3a", "gs", "gcs"):
            # No cached listings, which would give an old fingerprint; and no shared instance, since it is changed
            # below.
            options = {"use_listings_cache": False, "skip_instance_cache": True, **options}
        if scheme in ("s3", "s3a"):
            options.setdefault("config_kwargs", {"retries": {"total_max_attempts": 1}})
        self.lists = scheme not in ("http", "https")
        try:
            fs, self.root = url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise StorageError(
                f"no file system for this URL: {error}",
                where=self.shown,
                expected="a URL whose file system is installed",
                remedy=f"install the fsspec package that it names: {_EXTRAS.get(scheme, 'see the documentation')}",
            ) from None
        self.fs: Any = fs if fs.async_impl else AsyncFileSystemWrapper(fs, asynchronous=False)
        self._once()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._hide()
        self._once()

    def _hide(self) -> None:
        """No output of this process may show the secrets of the URL and the options."""
        url, options = self._given
        keep_url_secrets(url)
        keep_option_secrets(options)

    def _once(self) -> None:
        """Repetitions by S3's file system are not counted and ignore the deadline."""
        if "s3" in self.fs.protocol:
            self.fs.retries = 1

    def name(self, path: str) -> str:
        """Return the object's URL with secrets hidden."""
        return redacted(str(self.fs.unstrip_protocol(path)))

    def info(self, path: str) -> dict[str, Any]:
        """Return the store's metadata of an object, or raise FileNotFoundError."""
        found: dict[str, Any] = self._call(path, self.fs._info)
        return found

    def find(self, path: str, detail: bool = True) -> dict[str, dict[str, Any]]:
        """Return all objects below a path, with the store's metadata, as fsspec's file systems do with ``detail``."""
        self.require_listing(path)
        found: dict[str, dict[str, Any]] = self._call(path, self.fs._find, detail=True)
        return found

    def glob(self, pattern: str, detail: bool = True) -> dict[str, dict[str, Any]]:
        """Return all objects that match a pattern, as ``find``."""
        # One listing: the file systems' globs make several requests, and treat a failure as absence.
        folder = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]
        matches = re.compile(glob_translate(pattern)).match
        return {path: info for path, info in self.find(folder).items() if matches(path)}

    def listed(self, path: str) -> list[str]:
        """Return the names of the files and folders directly below a path, without their folders."""
        self.require_listing(path)
        try:
            found: list[str] = self._call(path, self.fs._ls, detail=False)
        except FileNotFoundError:
            return []
        return [name.rstrip("/").rpartition("/")[2] for name in found]

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of an object."""
        return sync(self.fs.loop, self.get, path, start, stop)  # type: ignore[no-any-return]

    def open(self, path: str, size: int) -> RemoteFile:
        """Return an object of ``size`` bytes as a readable file."""
        return RemoteFile(self, path, size)

    def versions(self, names: Iterable[str], folder: str) -> list[Any]:
        """Return (name, size, version) of the objects below a folder, or of ``names`` if the store cannot list."""
        if self.lists:
            found = self.find(folder)
            return sorted(
                [path.removeprefix(folder), info.get("size"), object_version(info)] for path, info in found.items()
            )

        async def one(name: str) -> list[Any]:
            try:
                info = await self._attempt(path := f"{folder}/{name}", partial(self.fs._info, path))
            except FileNotFoundError:
                return [name, None, None]
            return [name, info.get("size"), object_version(info)]

        at_once = 32  # requests, each about one object
        return self._each(one, names, at_once)

    def _each(self, request: Callable[[Any], Awaitable[T]], items: Iterable[Any], at_once: int) -> list[T]:
        async def all_of() -> list[T]:
            gate = asyncio.Semaphore(at_once)

            async def gated(item: Any) -> T:
                async with gate:
                    return await request(item)

            return list(await asyncio.gather(*map(gated, items)))

        return sync(self.fs.loop, all_of)  # type: ignore[no-any-return]

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Return bytes of an object: all, [start, stop), from start on, or the last -start; for the store's loop."""

        async def part() -> bytes:
            found: bytes = await self.fs._cat_file(path, start=start, end=stop)
            if start is None or (stop is None and start >= 0):
                return found
            wanted = -start if stop is None else stop - start
            if len(found) > wanted:
                raise StorageError(
                    "the server sends whole files where a part was requested",
                    where=self.name(path),
                    expected="a server that answers range requests",
                    remedy="serve the file with nginx, Apache or an object store, or copy it to this machine first",
                )
            if len(found) < wanted and stop is not None:
                raise EOFError(f"{len(found)} bytes of {wanted}")
            return found

        return await self._attempt(path, part)

    async def elsewhere(self, coroutine: Any) -> Any:
        """Await, from another event loop, a coroutine of the file system's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.fs.loop))

    def _call(self, path: str, request: Callable[..., Awaitable[T]], **how: Any) -> T:
        return sync(self.fs.loop, self._attempt, path, partial(request, path, **how))  # type: ignore[no-any-return]

    async def _attempt(self, path: str, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request with growing waits until it succeeds, cannot succeed, or the deadline is near."""
        began, attempt = time.monotonic(), 0
        while True:
            left = self.retry.deadline - (time.monotonic() - began)
            try:
                REQUEST_COUNTS.add("requests")
                return await asyncio.wait_for(request(), min(self.retry.timeout, left))
            except (StorageError, MemoryError):
                raise
            except Exception as error:  # file systems may raise anything
                cause = _cause(error)
            if isinstance(cause, FileNotFoundError):
                raise FileNotFoundError(self.name(path)) from None
            if _is_permanent(cause):
                raise self._refused(path, cause) from None
            wait = self.retry.wait(attempt)
            attempt += 1
            if time.monotonic() - began + wait >= self.retry.deadline:
                raise self._gone(path, cause, attempt, time.monotonic() - began) from None
            REQUEST_COUNTS.add("retries")
            await asyncio.sleep(wait)

    def _place(self, path: str) -> str:
        endpoint = getattr(self.fs, "endpoint_url", None)
        return self.name(path) + (f" at {redacted(endpoint)}" if endpoint else "")

    def _said(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return f"no answer within {self.retry.timeout:g} s"
        return f"{type(error).__name__}: {error}"

    def _gone(self, path: str, error: BaseException, attempts: int, seconds: float) -> StorageError:
        return StorageError(
            f"the store did not return this object: {self._said(error)} (attempt {attempts}, after {seconds:.1f} s)",
            where=self._place(path),
            expected=f"an answer within {self.retry.timeout:g} s a request, {self.retry.deadline:g} s in all",
            remedy="check the network and the store and run again, which resumes where it stopped; for a slow store "
            "pass retry=Retry(timeout=..., deadline=...)",
        )

    def _refused(self, path: str, error: BaseException) -> StorageError:
        return StorageError(
            f"the store refuses the request: {self._said(error)}",
            where=self._place(path),
            expected="permission to read it",
            remedy="check the URL and the credentials: they are taken from the environment, as fsspec does, or from "
            "storage_options",
        )

    def require_listing(self, path: str) -> None:
        """Raise StorageError if the store cannot list its objects."""
        if not self.lists:
            raise StorageError(
                "http has no listing: the objects below this URL cannot be found",
                where=self.name(path),
                expected="the URL of one file, or of a zarr group whose arrays are named",
                remedy="give the URL of a parquet file; for zarr name target= and columns=; or use a store that lists",
            )


class RemoteFile(io.RawIOBase):
    """An object as a seekable file; each read is one request."""

    def __init__(self, remote: Remote, path: str, size: int) -> None:
        super().__init__()
        self._remote, self._path, self._size, self._at = remote, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence])
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if stop <= self._at:
            return b""
        found = self._remote.read(self._path, self._at, stop)
        self._at = stop
        return found

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


_EXTRAS = {
    "s3": "pip install 'streamkern[s3]'",
    "gs": "pip install 'streamkern[gcs]'",
    "gcs": "pip install 'streamkern[gcs]'",
    "http": "pip install 'streamkern[http]'",
    "https": "pip install 'streamkern[http]'",
}

_PERMANENT_ERRORS = (
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
    TypeError,
    ValueError,
    AttributeError,
)


def _cause(error: Exception) -> BaseException:
    """HTTP's file system raises "not found" for any failure, with the true error as its cause."""
    behind = error.__cause__
    failed = isinstance(behind, TimeoutError) or type(behind).__module__.partition(".")[0] == "aiohttp"
    if behind is not None and isinstance(error, FileNotFoundError) and failed:
        return error if getattr(behind, "status", None) in (404, 410) else behind
    return error


def _is_permanent(error: BaseException) -> bool:
    if isinstance(error, _PERMANENT_ERRORS) or "Credentials" in type(error).__name__:
        return True
    status = status_of(error)
    temporary_statuses = (408, 425, 429)  # 4xx for which another attempt may succeed
    return status is not None and 400 <= status < 500 and status not in temporary_statuses


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status with which a store answered, None if it did not."""
    answers = [getattr(each, "response", None) for each in (error, error.__cause__)]
    codes = [answer.get("ResponseMetadata", {}).get("HTTPStatusCode") for answer in answers if isinstance(answer, dict)]
    status = next(iter(codes), getattr(error, "status", None))
    return status if isinstance(status, int) else None
