"""Executors of blocks: threads of this process, or the workers of a Dask cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from streamkern.errors import UsageError
from streamkern.execute.base import Executor
from streamkern.execute.threads import ThreadsExecutor
from streamkern.resources import thread_count

if TYPE_CHECKING:
    from distributed import Client

Scheduler: TypeAlias = "str | Client"
"""Where blocks run: ``threads``, ``processes``, ``processes:N``, the address of a Dask scheduler, or a client."""

__all__ = ["Executor", "Scheduler", "ThreadsExecutor", "open_executor", "scheduler_name"]


@contextmanager
def open_executor(scheduler: Scheduler = "threads", threads: int | None = None) -> Iterator[Executor]:
    """Open the executor that a ``--scheduler`` setting names, and close whatever it started.

    Args:
        scheduler: ``threads``, ``processes`` or ``processes:N`` (worker processes of one thread each on this machine),
            the address of a Dask scheduler, or a ``distributed.Client``, which stays open.
        threads: threads of this process, and how many worker processes ``processes`` starts; its cores by default.

    Raises:
        UsageError: the setting is invalid, or needs a package that is not installed.
        StorageError: no scheduler answers at the address, or it has no workers.
    """
    thread_count(threads)
    if scheduler == "threads":
        with ThreadsExecutor(threads) as executor:
            yield executor
        return
    processes = re.fullmatch(r"processes(?::([1-9][0-9]*))?", scheduler) if isinstance(scheduler, str) else None
    if not processes and not re.match(r"[a-z]+://.", scheduler if isinstance(scheduler, str) else _address(scheduler)):
        raise UsageError(
            f"The scheduler {scheduler!r} is unknown.",
            where="scheduler",
            expected="threads, processes, processes:N, an address such as tcp://head:8786, or a distributed.Client",
        )
    try:
        # The door of an optional dependency: the base installation has no distributed.
        from streamkern.execute import dask as cluster
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The scheduler {scheduler!r} needs {error.name}, which is not installed.",
            where="scheduler",
            expected="the extra `cluster`",
            remedy="pip install 'streamkern[cluster]'",
        ) from error
    if processes:
        with cluster.local(int(processes[1]) if processes[1] else threads, threads) as local:
            yield local
    else:
        with cluster.DaskExecutor(scheduler, threads) as remote:
            yield remote


def scheduler_name(scheduler: Scheduler) -> str:
    """Return a ``scheduler`` setting as text, which another process can be started with: a client's is its address."""
    return scheduler if isinstance(scheduler, str) else _address(scheduler)


def _address(client: Client) -> str:
    """The address of a client's scheduler; an empty text where it is no client, or is not connected."""
    return str(getattr(getattr(client, "scheduler", None), "address", ""))
