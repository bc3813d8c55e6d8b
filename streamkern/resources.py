"""What a call may use: memory, threads, a scheduler, a device, and workers of a cluster."""

from __future__ import annotations

import psutil

from streamkern.errors import UsageError


def default_threads() -> int:
    """Return the number of cores that this process may use."""
    process = psutil.Process()
    affinity = getattr(process, "cpu_affinity", None)
    return len(affinity()) if affinity else psutil.cpu_count() or 1


def thread_count(threads: int | None) -> int:
    """Return ``threads``, or the cores of the process for None.

    Raises:
        UsageError: ``threads`` is not a whole number, at least 1.
    """
    if threads is None:
        return default_threads()
    if not (hasattr(threads, "__index__") and threads >= 1):
        raise UsageError(f"threads is {threads!r}.", where="threads", expected="a whole number, at least 1")
    return int(threads)
