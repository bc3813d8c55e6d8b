"""Where blocks run: threads of this process, or any Dask cluster."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

from streamkern.errors import UsageError
from streamkern.execute.base import Executor
from streamkern.execute.threads import ThreadsExecutor

__all__ = ["Executor", "ThreadsExecutor", "open_executor"]


def open_executor(scheduler: str = "threads", threads: int | None = None) -> AbstractContextManager[Any]:
    """An executor, to be used in a ``with`` block.

    Args:
        scheduler: ``threads``, ``processes``, ``processes:N``, or the address of a Dask scheduler (``tcp://...``).
        threads: threads of this process: all blocks for ``threads``, host-side tiles for the others.

    Raises:
        UsageError: an unknown scheduler, or ``distributed`` is not installed.
        StorageError: nothing answers at the address.
    """
    if scheduler == "threads":
        return ThreadsExecutor(threads)
    if re.fullmatch(r"processes(:[1-9][0-9]*)?|[a-z]+://.+", scheduler) is None:
        raise UsageError(
            f"The scheduler {scheduler!r} is unknown.",
            where="--scheduler",
            expected="threads, processes, processes:N or an address such as tcp://head:8786",
        )
    try:
        # The base installation has no distributed.
        from streamkern.execute.dask import open_dask
    except ImportError as error:
        raise UsageError(
            "Dask's distributed is not installed.",
            where=f"--scheduler {scheduler}",
            remedy="pip install 'streamkern[cluster]'",
        ) from error
    return open_dask(scheduler, threads)
