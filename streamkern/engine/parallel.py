"""Threads of one call: fixed parts of its rows, and BLAS with one thread while they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
from threadpoolctl import ThreadpoolController

from streamkern.errors import UsageError

VALUE = 30
"""Multiply-adds that the function of a distance costs."""

_PART = 1 << 24  # multiply-adds of a part, about, where that is more than its fewest rows
_LEAST, _MOST = 128, 256  # rows of a part: fewer would read the centers from memory more often


def default_threads() -> int:
    """Cores that this process may use."""
    process = psutil.Process()
    affinity = getattr(process, "cpu_affinity", None)
    return len(affinity()) if affinity else psutil.cpu_count() or 1


def thread_count(threads: int | None) -> int:
    """Return ``threads``, or the cores of the process for None.

    Raises:
        UsageError: it is not a whole number, at least 1.
    """
    if threads is None:
        return default_threads()
    if not (hasattr(threads, "__index__") and threads >= 1):
        raise UsageError(f"threads is {threads!r}.", where="threads", expected="a whole number, at least 1")
    return int(threads)


_found: tuple[int, ThreadpoolController] | None = None  # the libraries of that many modules


def one_blas_thread() -> Any:
    """Give BLAS one thread, until ``restore_original_limits()`` of the returned object is called.

    Its libraries are looked for again where modules have been imported since: that takes milliseconds, as a small
    prediction does.
    """
    global _found
    found, modules = _found, len(sys.modules)
    if found is None or found[0] != modules:
        _found = found = modules, ThreadpoolController()
    return found[1].limit(limits=1, user_api="blas")


def row_parts(n: int, p: int, d: int) -> list[slice]:
    """Cut n rows of d features for k(X, Z) with p centers. Shapes alone decide the cut, so threads change no bits."""
    rows = max(_LEAST, min(_MOST, _PART // max(1, p * (d + VALUE)) // 16 * 16))
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def run_parts(task: Callable[[slice], Any], parts: list[slice], threads: int | None) -> None:
    """Call ``task`` with each part, in as many threads; None for the cores of the process.

    Raises:
        UsageError: see ``thread_count``.
    """
    threads = min(thread_count(threads), len(parts))
    if len(parts) < 2:  # too little for a thread: BLAS may do as it likes
        for part in parts:
            task(part)
        return
    limits = one_blas_thread()
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="streamkern") as pool:
            for _ in pool.map(task, parts):
                pass
    finally:
        limits.restore_original_limits()
