"""Storage of a registry's models: a local directory, or a remote object store, which has no renames or locks."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from streamkern.errors import BusyError, StorageError, StreamkernError
from streamkern.sources.object_writes import RemoteObjects
from streamkern.sources.remote_store import is_remote
from streamkern.storage.atomic_writes import commit, discard, in_use, locked, part_name, tidy, write_json
from streamkern.storage.untrusted_files import given_path, read_file

MAX_JSON_BYTES = 16 << 20
"""Most bytes of a JSON file."""

CHAMPION = "champion.json"
RECORD = "record.json"

_BUSY_MESSAGE = "Another process holds this registry"
_NAME = re.compile(r"\d{6,9}", re.ASCII)


def open_store(
    where: str | os.PathLike[str], storage_options: dict[str, Any] | None = None
) -> DirectoryStore | ObjectStore:
    """Return the store for a local path or an fsspec URL."""
    url = given_path(where)
    return ObjectStore(url, storage_options) if is_remote(url) else DirectoryStore(Path(url.removeprefix("file://")))


class DirectoryStore:
    """A local directory: complete versions, small files that are replaced atomically, and a log.

    Commits are atomic renames under a file lock, which the OS releases when the process dies.
    """

    def __init__(self, place: Path) -> None:
        self.place, self.where = place, str(place)

    def present(self) -> bool:
        """Return True if the registry exists."""
        return (self.place / "versions").is_dir()

    def make(self) -> None:
        """Create the registry if it is absent."""
        try:
            (self.place / "versions").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"The directory cannot be written: {error.strerror}.",
                where=self.where,
                expected="a directory that can be written",
                remedy="choose another place",
            ) from error

    def numbers(self) -> list[int]:
        """Return the numbers of complete versions, ascending."""
        return sorted(int(each.name) for each in (self.place / "versions").iterdir() if _NAME.fullmatch(each.name))

    def read(self, name: str) -> tuple[bytes, str]:
        """Return a file's content, at most ``MAX_JSON_BYTES`` bytes, and its tag; or raise FileNotFoundError."""
        return read_file(self.place / name, MAX_JSON_BYTES), ""

    def replace(self, name: str, content: dict[str, Any], tag: str | None) -> None:
        """Replace a file if it still has this tag (None: if it does not exist); else raise BusyError."""
        write_json(self.place / name, content)

    def folder(self, number: int, part: str) -> Path:
        """Return a part of a version as a local folder, valid until ``release``."""
        return self._version(number) / part

    def release(self, folder: Path, user: object = None) -> None:
        """Release a folder from ``folder``, now or when ``user`` is garbage collected: a local one is not a copy."""

    def claim(self, least: int) -> tuple[int, Path]:
        """Reserve a free version number, at least ``least``; return it and a local folder to fill."""
        staging = part_name(self._version(least))
        staging.mkdir()
        return least, staging

    def add(self, number: int, staging: Path) -> None:
        """Commit a filled folder as a complete version."""
        commit(staging, self._version(number))

    def in_use(self, number: int) -> bool:
        """Return True if an open model still reads from a version's directory."""
        return in_use(self._version(number) / "model.zarr")

    def remove(self, number: int) -> None:
        """Remove a version; readers find all of it or nothing."""
        discard(self._version(number))

    def tidy(self, decided: int) -> None:
        """Remove incomplete versions of killed processes, up to the version of the last decision."""
        tidy(self.place)
        tidy(self.place / "versions")

    @contextmanager
    def lock(self, run_dir: Path | None) -> Iterator[None]:
        """Lock the registry; raise BusyError if another process has the lock."""
        with locked(self.place, busy=_BUSY_MESSAGE):
            yield

    def log(self, line: bytes) -> None:
        """Append to ``decisions.jsonl``; a full disk does not undo the decision."""
        with suppress(OSError), (self.place / "decisions.jsonl").open("ab+", buffering=0) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = b"\n" + line  # after half a line of a killed process
            file.write(line)

    def lines(self) -> Iterator[bytes]:
        """Yield the log's lines, oldest first."""
        max_log_bytes = 1 << 30
        try:
            yield from read_file(self.place / "decisions.jsonl", max_log_bytes).splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"The log cannot be read: {error.strerror}.",
                where=str(self.place / "decisions.jsonl"),
                expected="a file, or none",
                remedy="move it away: it only records decisions",
            ) from error

    def run_dir(self, name: str) -> Path:
        """Return the run directory for training."""
        return self.place / "run"

    def _version(self, number: int) -> Path:
        return self.place / "versions" / f"{number:06}"


class ObjectStore:
    """As ``DirectoryStore``, in a remote object store, whose only atomic operation is to put one object.

    A version is complete if it has its record, which is sent last and removed first. If the store supports conditional
    requests (S3 does), the champion's object is only replaced if it is still the one that was read: if two machines
    try, the second gets an error. Version numbers are reserved in the same way. Folders are downloaded to be read.
    """

    def __init__(self, url: str, storage_options: dict[str, Any] | None = None) -> None:
        self.objects = RemoteObjects(url, storage_options)
        self.where = self.objects.shown

    def present(self) -> bool:
        return any(name == CHAMPION or name.startswith("versions/") for name in self.objects.all())

    def make(self) -> None:
        """Do nothing: stores have no folders."""

    def numbers(self) -> list[int]:
        return sorted(number for number, names in self._versions().items() if RECORD in names)

    def read(self, name: str) -> tuple[bytes, str]:
        """Return an object and its tag; the tag is read first, so it is never newer."""
        tag = self.objects.tag(name, MAX_JSON_BYTES)
        return self.objects.content(name), tag

    def replace(self, name: str, content: dict[str, Any], tag: str | None) -> None:
        if not self.objects.put_if(name, json.dumps(content, indent=1).encode(), tag):
            raise BusyError(
                "Another process has changed the champion meanwhile.",
                where=f"{self.where.rstrip('/')}/{name}",
                expected="one process at a time",
                remedy="read its decision, then try again",
            )

    def folder(self, number: int, part: str) -> Path:
        """Download a copy."""
        copy = Path(tempfile.mkdtemp(prefix="streamkern-"))
        try:
            self.objects.download(f"versions/{number:06}/{part}", copy / part)
        except BaseException as error:
            shutil.rmtree(copy, ignore_errors=True)
            if not isinstance(error, OSError) or isinstance(error, StorageError | FileNotFoundError):
                raise
            raise StorageError(
                f"Version {number} could not be copied here: {error.strerror}.",
                where=str(copy),
                expected="room for a model",
                remedy="free space, or set TMPDIR",
            ) from error
        return copy / part

    def release(self, folder: Path, user: object = None) -> None:
        if user is None:
            shutil.rmtree(folder.parent, ignore_errors=True)
        else:
            weakref.finalize(user, shutil.rmtree, folder.parent, True)

    def claim(self, least: int) -> tuple[int, Path]:
        """Reserve the first number without objects, by an object that only one process can put."""
        number = max(least, 1 + max(self._versions(), default=0))
        me = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}".encode()
        while not self.objects.put_if(f"versions/{number:06}/claim", me, None):
            number += 1
        return number, Path(tempfile.mkdtemp(prefix="streamkern-"))

    def add(self, number: int, staging: Path) -> None:
        """Send the files of a version, its record last."""
        record = (staging / RECORD).read_bytes()
        (staging / RECORD).unlink()
        name = f"versions/{number:06}"
        self.objects.send(staging, name)
        self.objects.put(f"{name}/{RECORD}", record)
        shutil.rmtree(staging, ignore_errors=True)

    def in_use(self, number: int) -> bool:
        """Return False: open models read from copies."""
        return False

    def remove(self, number: int) -> None:
        """Remove the files of a version, its record first."""
        names = self._versions().get(number, set())
        self.objects.remove(f"versions/{number:06}/{name}" for name in sorted(names, key=lambda name: name != RECORD))

    def tidy(self, decided: int) -> None:
        """Remove versions without a record, up to the last decision's number; later ones may still be uploading."""
        for number, names in self._versions().items():
            if number < decided and RECORD not in names:
                self.remove(number)

    @contextmanager
    def lock(self, run_dir: Path | None) -> Iterator[None]:
        """Lock the run directory against processes of this machine; other machines get an error when they put."""
        if run_dir is None:
            yield
            return
        with locked(run_dir, ".registry.lock", busy=_BUSY_MESSAGE):
            yield

    def log(self, line: bytes) -> None:
        """Write the line as an object, since objects cannot be appended to; a failure does not undo the decision."""
        with suppress(OSError, StreamkernError):
            self.objects.put(f"decisions/{time.time_ns():020}-{secrets.token_hex(4)}.json", line)

    def lines(self) -> Iterator[bytes]:
        for name in self.objects.all():
            if name.startswith("decisions/"):
                yield self.objects.content(name)

    def run_dir(self, name: str) -> Path:
        return Path("runs") / (name or "run")

    def _versions(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for name in self.objects.all():
            first, _, rest = name.partition("/")
            number, _, file = rest.partition("/")
            if first == "versions" and _NAME.fullmatch(number) and file:
                found.setdefault(int(number), set()).add(file)
        return found
