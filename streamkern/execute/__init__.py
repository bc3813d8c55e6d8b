"""Executors of blocks: threads of this process, or the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamkern.errors import UsageError
from streamkern.execute.base import Executor
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.memory import memory_limit
from streamkern.resources import Resources, Scheduler

__all__ = ["Executor", "ThreadsExecutor", "open_executor", "open_resources"]


@contextmanager
def open_executor(scheduler: Scheduler = "threads", threads: int | None = None) -> Iterator[Executor]:
    """Open an executor, which computes blocks of rows, as a context manager. On exit, it closes what it started.

    Args:
        scheduler: as in ``Resources``.
        threads: threads of this process, or number of worker processes of ``processes``; by default, the number of
            cores.

    Raises:
        UsageError: the setting is invalid, or needs a package that is not installed.
        StorageError: no scheduler answers at the address, or it has no workers.
    """
    given = Resources(threads=threads, scheduler=scheduler)
    if given.scheduler == "threads":
        with ThreadsExecutor(threads) as executor:
            yield executor
        return
    try:
        # The door of an optional dependency: the base installation has no distributed.
        from streamkern.execute import dask_executor as cluster
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The scheduler {scheduler!r} needs {error.name}, which is not installed.",
            where="scheduler",
            expected="the extra `cluster`",
            remedy="pip install 'streamkern[cluster]'",
        ) from error
    if isinstance(scheduler, str) and "://" not in scheduler:
        number = int(scheduler.partition(":")[2] or given.slots)  # of processes:N
        with cluster.local_processes_executor(number, threads) as local:
            yield local
    else:
        with cluster.DaskExecutor(scheduler, threads) as remote:
            yield remote


@contextmanager
def open_resources(resources: Resources) -> Iterator[Executor]:
    """Hold this process to the memory of resources, and open their executor."""
    with memory_limit(resources.budget), open_executor(resources.scheduler, resources.threads) as executor:
        yield executor
