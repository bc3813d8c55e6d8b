"""A directory that is written by one process at a time, and whose JSON files are replaced whole."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from streamkern.errors import BusyError, StorageError
from streamkern.storage.files import read_json_file

_GLANCE = 0.2  # seconds; whoever asks how a run stands shares its lock for a moment


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Hold the directory. The lock goes with the process, so that a dead run never leaves one behind.

    Args:
        folder: the directory.
        name: of the lock file in it.

    Raises:
        BusyError: another process holds it.
        StorageError: it cannot be written.
    """
    try:
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_GLANCE)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(handle, 20).decode() or "unknown"
            raise BusyError(
                f"Another run holds this directory (process {owner}).",
                where=str(folder),
                expected="one run at a time in a directory",
                remedy="wait for it, or give another --run-dir",
            ) from error
        # Only a courtesy to whoever finds the directory busy; a full disk is told of where it matters.
        with suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make the directory, and those above it, if it is not there.

    Raises:
        StorageError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def read_json(path: Path) -> dict[str, Any] | None:
    """What a file says; None where it is missing or no JSON object."""
    try:
        found = read_json_file(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: Path, data: dict[str, Any], quietly: bool = False) -> None:
    """Write by one rename, so that a reader sees the old file or the new one.

    Args:
        path: the file.
        data: what it is to say; what JSON does not know is written as text.
        quietly: leave a failure untold.

    Raises:
        StorageError: it cannot be written; what was there is unchanged.
    """
    staging = path.with_name(f".{path.name}.tmp")
    try:
        with staging.open("w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, default=str)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, path)
    except OSError as error:
        with suppress(OSError):
            staging.unlink()
        if not quietly:
            raise StorageError(
                f"{path.name} could not be written: {error.strerror}.",
                where=str(path),
                expected="a disk with room",
                remedy="free space; earlier results are unchanged",
            ) from error


def _unwritable(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"The directory cannot be written: {error.strerror}.",
        where=str(folder),
        expected="a directory that can be written",
        remedy="give another --run-dir",
    )
