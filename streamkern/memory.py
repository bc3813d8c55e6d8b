"""Bytes: parsing and printing them, the budget of a run, and the memory of the process."""

from __future__ import annotations

import ctypes
import mmap
import re
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from streamkern.errors import MemoryLimitError, UsageError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_PAGE = resource.getpagesize()
_CHECK_SECONDS = 0.02  # between two looks at this process: a look lets other threads take Python's lock
_thread = threading.local()  # .keeps: whether freed memory stays in the process


def parse_bytes(text: str | int, where: str = "memory") -> int:
    """Return the bytes of ``"8GiB"``, ``"500 MB"`` or a number; ``where`` names the parameter in errors."""
    if hasattr(text, "__index__"):
        size = float(text)
    else:
        match = isinstance(text, str) and re.fullmatch(
            r"\s*([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][0-9]+)?)\s*([A-Za-z]*)\s*", text
        )
        unit = _UNITS.get(match[2].upper()) if match else None
        if not match or unit is None:
            raise UsageError(f"{text!r} is not a size.", where=where, expected='bytes, or a size such as "8GiB"')
        size = float(match[1].replace("_", "")) * unit
    if size < 1:
        raise UsageError(f"{text!r} is not a positive size.", where=where, expected='a size such as "8GiB"')
    return int(size)


def format_bytes(size: float) -> str:
    """A size for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the loop returns")


def default_budget() -> int:
    """Half of the machine's memory: a property of the machine, whatever else runs on it."""
    return machine_memory() // 2


def machine_memory() -> int:
    """Bytes of memory of the machine, or of the container that this process runs in."""
    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError), open(path) as file:
            text = file.read().strip()
            total = min(total, int(text)) if text.isdigit() else total
    return total


def release_free_memory() -> None:
    """Hand memory that the process does not need back to the system: between stages whose arrays differ in size."""
    if not getattr(_thread, "keeps", False):
        _trim()


@contextmanager
def keep_free_memory() -> Iterator[None]:
    """Let ``release_free_memory`` do nothing in this thread: each of many similar fits takes the memory of the last.

    Looking through the heap takes 4 ms, and the pages are requested again: a fifth of the time of 512 leaves.
    """
    before, _thread.keeps = getattr(_thread, "keeps", False), True
    try:
        yield
    finally:
        _thread.keeps = before


def _trim() -> None:
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:  # which has a separate heap
        arrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it; other C libraries keep less
    if trim is not None:
        trim(0)
    if "llvmlite" in sys.modules:
        _unmap_code("libllvmlite.so")


def _unmap_code(library: str) -> None:
    """Unmap the code of a library, whose pages stay in the system's cache and are mapped again when they are called.

    The constructors of LLVM, called once, map 50 MiB, which Dask and schedulers count as memory of each process.
    """
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # only Linux has it
        for line in maps:
            span, access, *_ = line.split(maxsplit=2)
            if "x" in access and line.rstrip().endswith(library):
                first, last = (int(end, 16) for end in span.split("-"))
                ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def share_heap() -> None:
    """Let all threads of this process allocate from two heaps, before they begin.

    By default glibc gives each thread its own, which keeps freed memory: tens of megabytes more, different in each run.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc
        library.mallopt(-8, 2)  # M_ARENA_MAX of glibc's malloc.h


def keep_heap() -> None:
    """Let this process keep freed memory, up to 64 MiB, for later allocations.

    Dask's nannies set MALLOC_TRIM_THRESHOLD_, so that glibc hands every block of rows back, and each step pays for
    pages.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc
        kept_bytes = 32 << 20
        library.mallopt(-3, kept_bytes)  # M_MMAP_THRESHOLD of malloc.h
        library.mallopt(-1, 2 * kept_bytes)  # M_TRIM_THRESHOLD


def resident_bytes() -> int:
    """Resident memory of this process now, in bytes."""
    return _pages()[0]


def _pages() -> tuple[int, int]:
    """Resident bytes of this process, and those among them that are pages of files, which the system may drop."""
    try:
        with open("/proc/self/statm", "rb") as file:  # a tenth of the time of psutil
            pages = file.read().split()
        return int(pages[1]) * _PAGE, int(pages[2]) * _PAGE
    except OSError:
        return int(psutil.Process().memory_info().rss), 0


class _Limit:
    def __init__(self, budget: int) -> None:
        self.budget, self.mapped, self._looked = budget, _pages()[1], 0.0

    def due(self) -> bool:
        """Return True if the last look is some time ago."""
        now = time.monotonic()
        due = now - self._looked > _CHECK_SECONDS
        if due:
            self._looked = now
        return due

    def over(self, coming: int) -> int:
        """Return bytes above the budget with ``coming`` more; files' pages that were mapped since do not count."""
        held, mapped = _pages()
        return held - max(0, mapped - self.mapped) + coming - self.budget


_limits: list[_Limit] = []
_changing = threading.Lock()


@contextmanager
def memory_limit(budget: int) -> Iterator[None]:
    """Hold this process to a budget: while the block runs, ``check_memory`` raises where it is exceeded.

    A budget is the whole process's, with its memory before. Of several in force in threads, the largest counts.
    """
    limit = _Limit(budget)
    with _changing:
        _limits.append(limit)
    try:
        yield
    except MemoryLimitError:
        raise
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        raise MemoryLimitError(
            f"The system refused to allocate memory: {str(error) or 'an allocation failed'}.",
            where=f"this process holds {format_bytes(resident_bytes())}; its budget is {format_bytes(budget)}",
            expected="as much memory as the budget",
            remedy="end other programs, or raise the limit that is set for this process (ulimit -v); or give a smaller "
            "memory=, so that less is planned for",
        ) from error
    finally:
        with _changing:
            _limits.remove(limit)


def check_memory(coming: int = 0, where: str | None = None) -> None:
    """Raise MemoryLimitError where this process holds more than its budget, or will with ``coming`` more bytes.

    Called between blocks of rows, so that the files of a run are complete. Without bytes that are coming, it looks
    after 20 ms again.
    """
    limit = max(list(_limits), key=lambda limit: limit.budget, default=None)
    if limit is None or not (coming or limit.due()) or limit.over(coming) <= 0:
        return
    _trim()  # freed, and still kept for this process
    if limit.over(coming) <= 0:
        return
    more = f", and {format_bytes(coming)} more are needed" if coming else ""
    raise MemoryLimitError(
        f"The process holds {format_bytes(resident_bytes())}{more}: its budget is {format_bytes(limit.budget)}.",
        where=where or "between two blocks of rows",
        expected="at most the projected memory; rows, texts or chunks may be larger than the first ones, or other code "
        "in this process holds memory",
        remedy="give more memory (memory=, --memory); the same command then continues from the kept results",
    )


def peak_resident_bytes() -> int:
    """Largest resident memory of this process since it began, in bytes."""
    with suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
