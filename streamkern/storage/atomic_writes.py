"""Atomic writes of files and directories: after any crash the old or the new content is complete.

Everything that the package replaces on a local disk is written here, in five steps: hold a lock; stage the new content
under another name in the same directory; sync it to the disk; commit it by one rename or exchange; and, after a killed
process, resume: remove unfinished files, and continue from trusted ones. Locks are ``flock``, which the kernel releases
when their process ends in any way (ADR 15).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from streamkern.errors import BusyError, StorageError
from streamkern.redaction import redacted
from streamkern.storage.untrusted_files import given_path, read_json_file

_SHORT_WAIT_SECONDS = 0.2  # seconds, because a status request briefly shares a run's lock
_POLL_SECONDS = 0.02
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
# Files of a killed writer.
_LEFTOVER = re.compile(r"\.(?P<target>.+)\.(?:[0-9a-f]{8}|part)\.(?P<kind>tmp|old)|\..+\.writing")
_PLAN = "plan.json"


# ------------------------------------------------------------------------------------------------------------- hold


@contextlib.contextmanager
def locked(folder: Path, name: str = ".lock", *, busy: str = "Another run holds this directory") -> Iterator[None]:
    """Lock a directory, creating it; ``busy`` begins the BusyError if another process, or thread, has the lock."""
    path = folder / name
    try:
        handle = _acquire(path, _SHORT_WAIT_SECONDS, parents=True)
    except BlockingIOError as error:
        raise BusyError(
            f"{busy} (process {lock_owner(path) or 'unknown'}).",
            where=str(folder),
            expected="one process at a time",
            remedy="wait for it, or end it; the lock of a process that has died is released",
        ) from error
    except OSError as error:
        raise StorageError(
            f"The directory cannot be written: {_reason(error)}.",
            where=str(folder),
            expected="a directory that can be written",
            remedy="choose another directory (--run-dir, for a run)",
        ) from error
    try:
        yield
    finally:
        os.close(handle)


def keep_in_use(folder: Path, owner: object) -> None:
    """Mark a directory as in use while an object lives, see ``in_use``; nothing where the file system has no locks."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(owner, os.close, handle).atexit = False
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> Iterator[int]:
    handle = os.open(path, flags)
    try:
        yield handle
    finally:
        os.close(handle)


def in_use(folder: Path) -> bool:
    """Return True if an object of some process, this one too, still reads from a directory."""
    with contextlib.suppress(OSError), _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def lock_owner(path: Path) -> int | None:
    """Return the id of the process with a lock, 0 if the id cannot be read, None if the file is not locked."""
    with contextlib.suppress(OSError), _opened(path) as handle:
        try:
            # A shared lock, so that two readers do not mistake each other for an owner.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = os.read(handle, 20)
            return int(text) if text.isdigit() else 0
    return None


def _acquire(path: Path, patience: float, parents: bool = False) -> int:
    """Create the file if absent; raise BlockingIOError if it is still locked after ``patience``."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if parents:
                path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except (FileExistsError, FileNotFoundError):
            # The previous owner may remove the directory between two of these calls; then create it again.
            in_the_way = path.parent.exists() and not path.parent.is_dir()
            if not parents or in_the_way or time.monotonic() >= deadline:
                raise
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_SECONDS)
            continue
        # The previous owner may have removed the file during the wait; then the lock is on a file without a name.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                with contextlib.suppress(OSError):  # full disk: the id is only for messages
                    os.ftruncate(handle, 0)
                    os.write(handle, str(os.getpid()).encode())
                return handle
        os.close(handle)


@contextlib.contextmanager
def write_lock(target: Path) -> Iterator[bool]:
    """Wait for the lock to write a target; yield False if the file system has no locks."""
    path, handle = target.with_name(f".{target.name}.writing"), None
    try:
        handle = _acquire(path, math.inf)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield handle is not None
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        if handle is not None:
            os.close(handle)


# ------------------------------------------------------------------------------------------------- stage, sync, commit


@contextlib.contextmanager
def staged(
    target: str | os.PathLike[str], *, folder: bool = False, parents: bool = False, sync: bool = True
) -> Iterator[Path]:
    """Yield a new file or directory to fill, which replaces the target if the block ends without an error.

    Unfinished files of an earlier, killed writer of the same target are removed first. The caller checks that existing
    content may be replaced. Without ``parents``, missing directories are an error. Without ``sync`` the content
    survives the process but not a crash of the machine, and must not be trusted when ``boot_id`` has changed.
    """
    target = Path(given_path(target))
    target = target if target.name else target.absolute()
    staging = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    remedy = "free space or choose another place; the previous content is unchanged"
    with write_errors(target.name, str(target), remedy):
        if parents:
            target.parent.mkdir(parents=True, exist_ok=True)
        with write_lock(target) as alone:
            if alone:
                tidy(target.parent, target.name)
            try:
                if folder:
                    staging.mkdir()
                elif target.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                yield staging
                commit(staging, target, sync)
            finally:
                _remove(staging)


@contextlib.contextmanager
def write_errors(name: str, where: str, remedy: str) -> Iterator[None]:
    """Convert an OSError to a StorageError: what is called ``name`` cannot be written."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        expected = "a disk with space, and permission to write"
        what = f"{name} cannot be written: {_reason(error)}."
        raise StorageError(what, where=where, expected=expected, remedy=remedy) from error


def write_text(path: Path, text: str, *, parents: bool = False) -> None:
    """Replace a text file. Raises StorageError as ``staged`` does."""
    with staged(path, parents=parents) as staging:
        staging.write_text(text, encoding="utf-8")


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Replace a JSON file; secrets are hidden, in URLs and under names such as ``token``; other values become text."""
    write_text(path, json.dumps(redacted(data), indent=1, default=lambda value: redacted(str(value))), parents=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is no file or no JSON object in it."""
    with contextlib.suppress(OSError, ValueError):
        found = read_json_file(path)
        return found if isinstance(found, dict) else None
    return None


@contextlib.contextmanager
def staged_part(path: Path) -> Iterator[Path]:
    """Yield a file to fill, a part in a locked ``Workspace``, whose ``commit`` syncs it."""
    unfinished = part_name(path)
    yield unfinished
    os.replace(unfinished, path)


def part_name(path: Path) -> Path:
    """Return the temporary name of a file or directory."""
    return path.with_name(f".{path.name}.part.tmp")


def commit(staging: Path, target: Path, sync: bool = True) -> None:
    """Sync a finished file or directory to the disk and replace the target by it; after an OSError it is unchanged.

    The caller has the lock. An existing target is exchanged in one step if the system supports it; otherwise (NFS) a
    directory that is not empty takes two renames, between which ``target_or_previous`` finds the old one.
    """
    for path, _, names in os.walk(staging) if sync else ():
        for name in names:
            _sync(os.path.join(path, name))
        _sync(path)
    if sync and not staging.is_dir():
        _sync(staging)
    old = staging
    if not os.path.lexists(target) or not (staging.is_dir() or target.is_dir()):
        os.replace(staging, target)
    elif not _exchange(staging, target):
        old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
        os.rename(target, old)
        try:
            os.rename(staging, target)
        except OSError:
            os.rename(old, target)
            raise
    with contextlib.suppress(OSError):  # the new one is in place; some file systems do not sync directories
        if sync:
            _sync(target.parent)
    _remove(old)


def discard(target: Path) -> None:
    """Remove a directory atomically."""
    staging = part_name(target)
    os.rename(target, staging)
    _remove(staging)


def _exchange(a: Path, b: Path) -> bool:
    """Return False if the system or the file system cannot exchange two names in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(b))


def _sync(path: str | os.PathLike[str]) -> None:
    with _opened(path) as handle:
        os.fsync(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for _ in range(20):  # threads of zarr may still write a chunk after an error in another
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                return
            time.sleep(_POLL_SECONDS)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _reason(error: OSError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        # pyarrow's errors have no errno.
        if getattr(cause, "errno", None) in _DISK_FULL_ERRORS or "No space left" in str(cause):
            return f"the disk is full ({getattr(cause, 'strerror', None) or os.strerror(errno.ENOSPC)})"
        cause = cause.__cause__ or cause.__context__
    return error.strerror or str(error)


# ------------------------------------------------------------------------------------------------------------ resume


def tidy(folder: Path, name: str = "") -> None:
    """Undo unfinished writes of dead processes in a directory, or only of the target ``name``. The caller has the lock.

    Half-written content is removed; the content it should have replaced is restored if its name is free.
    """
    with contextlib.suppress(OSError):
        for left in sorted(os.listdir(folder)):
            found = _LEFTOVER.fullmatch(left)
            if found is None or (name and found["target"] != name):
                continue
            if found["kind"] == "old" and not os.path.lexists(folder / found["target"]):
                os.rename(folder / left, folder / found["target"])
            else:
                _remove(folder / left)


def target_or_previous(target: Path) -> Path | None:
    """Return the target; or the previous one, if a process was killed between two renames; or None."""
    if target.exists() or not target.parent.is_dir():
        return target if target.exists() else None
    for name in sorted(os.listdir(target.parent)):
        found = _LEFTOVER.fullmatch(name)
        if found is not None and found["kind"] == "old" and found["target"] == target.name:
            return target.with_name(name)
    return None


def unfinished_folder(place: Path, kind: str = "ingest") -> Path:
    """Return the working directory of an ingest or a prediction whose target is incomplete."""
    return place.with_name(f".{place.name}.{kind}")


class Workspace:
    """A directory next to a target, in which one or several successive processes write its parts to ``data``.

    ``plan.json`` describes the work. Work for another plan is removed. So is work from before the machine's last start,
    because parts are synced only by ``commit`` and may not have reached the disk. ``room`` describes the space needed,
    for the error when the disk is full.
    """

    def __init__(self, place: Path, kind: str, room: str) -> None:
        self.place, self.kind, self.room = place, kind, room
        self.folder = unfinished_folder(place, kind)
        self.data = self.folder / "data"
        self._plan: dict[str, Any] = {}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the directory. Parts are kept for the next process unless ``begin`` was never called."""
        with locked(self.folder, "lock", busy=f"Another process is {self.kind}ing to this place"):
            try:
                yield
            except OSError as error:
                reason = _reason(error)
                if isinstance(error, StorageError) and "disk is full" not in reason:
                    raise  # an error in the rows, or a temporary failure
                raise StorageError(
                    f"{self.place.name} cannot be written: {reason}.",
                    where=str(self.folder),
                    expected=self.room,
                    remedy="free space and repeat: it resumes where it stopped; or remove this directory to give up",
                ) from error
            finally:
                if not (self.folder / _PLAN).exists():
                    shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, plan: dict[str, Any], prepare: Callable[[], object] = lambda: None) -> int:
        """Keep the parts of an earlier attempt at the same plan, or start empty; return the number of recorded parts.

        ``plan`` is JSON-serialisable, and ``prepare`` fills the new ``data`` with the files that parts need.
        """
        found = read_json(self.folder / _PLAN) or {}
        done = found.pop("done", 0)
        if found and found == self._marked(plan):
            for pattern in (".*.tmp", "*.partial"):  # zarr's name of an unfinished chunk
                for left in list(self.folder.rglob(pattern)):
                    _remove(left)
        else:
            (self.folder / _PLAN).unlink(missing_ok=True)
            for left in self.folder.iterdir():
                if left.name != "lock":
                    _remove(left)
            self.data.mkdir()
            prepare()
            done = 0
        self._plan = self._marked(plan)
        self.note(done)
        return int(done)

    def note(self, done: int) -> None:
        """Record the number of finished parts."""
        with staged_part(self.folder / _PLAN) as unfinished:
            unfinished.write_text(json.dumps({**self._plan, "done": done}), encoding="utf-8")

    def commit(self, made: Path | None = None) -> None:
        """Replace the target by a finished file or directory, ``data`` by default; remove the rest."""
        commit(self.data if made is None else made, self.place)
        self.discard()

    def discard(self) -> None:
        """Remove the directory; the plan first, so that no process resumes from the rest."""
        if os.path.lexists(self.place):  # replaced content, left if a process was killed after two renames
            tidy(self.place.parent, self.place.name)
        (self.folder / _PLAN).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self) -> None:
        """Remove the files that a process left if it was killed after its commit."""
        if self.folder.exists():
            with self.held():
                self.discard()

    def _marked(self, plan: dict[str, Any]) -> dict[str, Any]:
        """With boot and directory, because after an exchange ``data`` has the previous content."""
        inode = self.data.stat().st_ino if self.data.exists() else None
        return {**plan, "boot": boot_id(), "data": inode}


def boot_id() -> str:
    """Return the identifier of the machine's last start; "" if unknown."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
