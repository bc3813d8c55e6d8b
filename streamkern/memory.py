"""Bytes: parsing and printing them, the budget a run is given, and what the process really holds."""

from __future__ import annotations

import ctypes
import re
import resource
import sys

import psutil

from streamkern.errors import UsageError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_KEPT = 32 << 20


def parse_bytes(text: str | int, where: str = "memory") -> int:
    """Bytes of ``"8GiB"``, ``"500 MB"`` or a plain number; ``where`` is what an error calls it.

    Raises:
        UsageError: not a size.
    """
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
    """Half of the machine's memory: a property of the machine, not of what else runs."""
    return machine_memory() // 2


def machine_memory() -> int:
    """Bytes of memory of the machine, or of the container that this process runs in."""
    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def release() -> None:
    """Hand memory that is free inside the process back to the system: between stages whose arrays differ in size."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it; other C libraries keep less
    if trim is not None:
        trim(0)


def share_heap() -> None:
    """Let all threads of this process allocate from two heaps, before they begin.

    By default glibc gives each thread its own, and each keeps what was freed in it: tens of megabytes more, and a
    different number from run to run.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc
        library.mallopt(_M_ARENA_MAX, 2)


def keep_heap() -> None:
    """Let this process keep what it frees, up to 64 MiB, for what it allocates next.

    Dask's nannies start workers with MALLOC_TRIM_THRESHOLD_, which makes glibc hand every block of rows back to the
    system; each step then pays for fresh pages.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc
        library.mallopt(_M_MMAP_THRESHOLD, _KEPT)
        library.mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT)


def resident() -> int:
    """Resident memory of this process now, in bytes."""
    return int(psutil.Process().memory_info().rss)


def peak_resident() -> int:
    """Largest resident memory of this process since it began, in bytes."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
