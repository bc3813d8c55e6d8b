"""Bounded reading of untrusted files and JSON: regular files of limited size, JSON of limited size and depth."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.errors import MemoryLimitError, StorageError, StreamkernError
from streamkern.types import Array

MAX_JSON_BYTES = 64 << 20
"""Most bytes of a JSON document."""

MAX_BRACKETS = 400_000
"""Most lists and objects of a JSON document. Each costs Python a microsecond and some sixty bytes."""

MAX_JSON_VALUES, MAX_JSON_NAMES = 1_500_000, 300_000
"""Commas and colons of a JSON document that is read: each value costs a tenth of a microsecond and more to parse and
to compare with its checksum, and a name ten times that."""

MAX_JSON_DEPTH = 200
"""Deepest nesting of lists and objects in a JSON document."""


def read_file(path: str | os.PathLike[str], most: int, *, links: bool = True) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes, or of a symbolic link to one if ``links``."""
    # The first check avoids opening devices, which can have effects; the second is of the opened file.
    _require_regular(path, os.stat(path, follow_symlinks=links))
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        _require_regular(path, found, most)
        return file.read(found.st_size)  # Python allocates the requested bytes, so never request the limit


def given_path(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text. A leading ``~`` is the user's home, unless a file has that name."""
    url = os.fspath(path)
    return os.path.expanduser(url) if url.startswith("~") and not os.path.lexists(url) else url


GLOB_CHARACTERS = "*?["
"""Signs of a pattern."""


def split_pattern(path: str, exists: Callable[[str], bool]) -> tuple[str, str]:
    """Return the folder in which a pattern begins, and the whole pattern with that folder's signs as they are.

    A folder that exists under a name with signs is that folder.
    """
    folders = path.split("/")
    literal = 0
    while literal + 1 < len(folders):
        if any(sign in folders[literal] for sign in GLOB_CHARACTERS) and not exists("/".join(folders[: literal + 1])):
            break
        literal += 1
    return "/".join(folders[:literal]), "/".join([*map(glob.escape, folders[:literal]), *folders[literal:]])


def file_stamp(path: str | os.PathLike[str]) -> list[int]:
    """Return size and time of the last change in ns of a regular file; a copy, or a new name, keeps both.

    Every data file is stamped before it is opened: to open a FIFO would wait for its writer.
    """
    found = os.stat(path)
    _require_regular(path, found)
    return [found.st_size, found.st_mtime_ns]


def file_tail(path: str | os.PathLike[str], size: int) -> str:
    """Return the last bytes of a file, in hexadecimal."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read().hex()


def natural_sort_key(path: str) -> list[Any]:
    """Return a key that sorts part-2 before part-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", path)]


def missing_path_error(where: str, expected: str) -> StorageError:
    """Return the error for a local path that does not exist."""
    return StorageError(
        "there is nothing at this path",
        where=where,
        expected=expected,
        remedy=f"check the path; relative paths start at {os.getcwd()}",
    )


@contextlib.contextmanager
def storage_errors(
    where: str,
    expected: str,
    what: str = "the file cannot be read",
    remedy: str = "the file is truncated, corrupt, unreachable or of another format: check it, or restore it",
) -> Iterator[None]:
    """Convert any error of a library that reads a stranger's bytes to a StorageError with its place.

    Decoders and remote file systems raise errors of any class, and so does code that uses metadata that they return.
    """
    try:
        yield
    except StreamkernError:
        raise
    except MemoryError as error:
        raise MemoryLimitError(
            f"{what}: the system refused to allocate memory: {str(error) or 'an allocation failed'}",
            where=where,
            expected=f"{expected}, that takes no more memory than there is",
            remedy="if the file is small, the sizes that it states are damaged: restore it; otherwise give more memory",
        ) from error
    except Exception as error:
        raise StorageError(
            f"{what}: {type(error).__name__}: {error}", where=where, expected=expected, remedy=remedy
        ) from error


def changed_error(where: str, what: str = "") -> StorageError:
    """Return the error for data that were replaced while in use; ``what`` is the difference, if known."""
    return StorageError(
        f"the data have changed since they were opened{': ' * bool(what)}{what}",
        where=where,
        expected="data that do not change while they are used",
        remedy="run it again: it starts from the beginning with the current data; if a file is truncated, restore it "
        "first",
    )


def not_visible_error(path: str) -> StorageError:
    """Return the error for data that were opened elsewhere and are not there for this process."""
    return StorageError(
        f"process {os.getpid()} on {socket.gethostname()} does not see the data",
        where=path,
        expected=f"a path that every worker sees; the working directory of this one is {os.getcwd()}",
        remedy="put the data where every machine has them under the same path, or in a store; if they were removed, "
        "restore them",
    )


def require_regular(path: str | os.PathLike[str], most: int | None = None) -> int:
    """Return the bytes of a regular file, at most ``most``; 0 for a directory, or if the path is absent."""
    try:
        found = os.stat(path)
    except OSError:
        return 0  # reading the file reports the error
    if stat.S_ISDIR(found.st_mode):
        return 0
    _require_regular(path, found, most)
    return found.st_size


def _require_regular(path: str | os.PathLike[str], found: os.stat_result, most: int | None = None) -> None:
    regular = stat.S_ISREG(found.st_mode)
    if regular and (most is None or found.st_size <= most):
        return
    kinds = {stat.S_IFDIR: "directory", stat.S_IFIFO: "FIFO", stat.S_IFLNK: "symbolic link", stat.S_IFSOCK: "socket"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "device")
    raise StorageError(
        f"the file has {found.st_size:,} bytes" if regular else f"this is a {kind}, not a file",
        where=os.fspath(path),
        expected=f"at most {most:,} bytes" if regular else "a regular file",
        remedy="restore it from a copy",
    )


def read_json_file(path: Path) -> Any:
    """Return the content of a JSON file; ``read_file`` and ``parse_json`` state which files are refused."""
    return parse_json(read_file(path, MAX_JSON_BYTES), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """Return the value of a JSON text, or raise ValueError; StorageError if it is too large or deeply nested."""
    require_modest_json(data, where)
    return json.loads(data)


def require_modest_json(data: bytes, where: str) -> None:
    """Raise StorageError if a JSON text is too large, has too many lists and objects, or nests them too deeply."""
    brackets = _outside(data, b"[]{}") if len(data) <= MAX_JSON_BYTES else np.empty(0, np.uint8)
    first = brackets[: 2 * MAX_BRACKETS]
    opening = (first == ord("[")) | (first == ord("{"))
    deep = int(np.cumsum(np.where(opening, 1, -1), dtype=np.int32).max(initial=0))
    values, names = data.count(b","), data.count(b":")
    if values > MAX_JSON_VALUES or names > MAX_JSON_NAMES:  # without those in texts, such as addresses
        signs = _outside(data, b",:")
        values, names = (int(np.count_nonzero(signs == ord(sign))) for sign in ",:")
    many = len(brackets) > 2 * MAX_BRACKETS or values > MAX_JSON_VALUES or names > MAX_JSON_NAMES
    if len(data) > MAX_JSON_BYTES or many or deep > MAX_JSON_DEPTH:
        raise StorageError(
            f"the JSON has {len(data):,} bytes, {len(brackets) // 2:,} lists and objects, {deep:,} inside one another, "
            f"{values:,} commas and {names:,} colons",
            where=where,
            expected=f"at most {MAX_JSON_BYTES:,} bytes, {MAX_BRACKETS:,} lists and objects, {MAX_JSON_DEPTH} deep, "
            f"{MAX_JSON_VALUES:,} commas and {MAX_JSON_NAMES:,} colons",
            remedy="restore it from a copy; streamkern writes nothing of that kind",
        )


def _outside(data: bytes, signs: bytes) -> Array:
    """Return signs outside strings, in order, without creating a Python object for each string."""
    if b"\\" in data:
        # Pairs are removed from the left, so that an odd run leaves the backslash before a quotation mark.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    codes = np.frombuffer(data.translate(None, bytes(set(range(256)) - {*signs, ord('"')})), dtype=np.uint8)
    quote = codes == ord('"')
    outside: Array = codes[~(np.logical_xor.accumulate(quote) | quote)]
    return outside
