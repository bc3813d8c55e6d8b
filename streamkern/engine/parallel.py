"""Threads for one call: fixed parts of its rows, with BLAS limited to one thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from threadpoolctl import ThreadpoolController

from streamkern.resources import thread_count

VALUE = 30
"""Cost of a radial function, in multiply-adds."""

_PART = 1 << 24  # approximate multiply-adds of a part, if that is more than the minimum of rows


_found: tuple[int, ThreadpoolController] | None = None  # (number of modules, BLAS libraries) of the last search


def one_blas_thread() -> Any:
    """Limit BLAS to one thread, until ``restore_original_limits()`` of the returned object is called.

    BLAS libraries are searched only after new imports: a search takes as long as a small prediction.
    """
    global _found
    found, modules = _found, len(sys.modules)
    if found is None or found[0] != modules:
        _found = found = modules, ThreadpoolController()
    return found[1].limit(limits=1, user_api="blas")


def row_parts(n: int, p: int, d: int) -> list[slice]:
    """Cut n rows of d features for k(X, Z) with p centers. Parts depend on shapes alone, so threads change no bits."""
    least, most = 128, 256  # rows of a part; fewer would read the centers from memory more often
    rows = max(least, min(most, _PART // max(1, p * (d + VALUE)) // 16 * 16))
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def run_parts(task: Callable[[slice], Any], parts: list[slice], threads: int | None) -> None:
    """Call ``task`` with each part in ``threads`` threads; None for the cores of the process."""
    threads = min(thread_count(threads), len(parts))
    if len(parts) < 2:  # too little work for threads; BLAS may use its own
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
