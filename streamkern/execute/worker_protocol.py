"""Messages between the driver and workers, and the code that carries out their work.

Pickled here rather than by Dask, so that arrays arrive aligned and writable, as they are in threads, and so that an
exception of the computation cannot be taken for one of the cluster.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import cloudpickle
from distributed import get_worker
from distributed.protocol import pickle

from streamkern.engine.parallel import one_blas_thread
from streamkern.errors import MemoryLimitError, StorageError
from streamkern.execute.base import PIPELINE_FILE, Allowance, ProcessCounts, process_name
from streamkern.memory import memory_limit, resident_bytes
from streamkern.sources.remote_store import REQUEST_COUNTS

loads: Callable[[bytes], Any] = pickle.loads

MAX_ATTEMPTS = 5
"""Times in a row that work may lose its workers: after that, it is the work that kills them."""


class LostError(Exception):
    """The worker that was to reply is gone."""


def dumps(value: Any) -> bytes:
    """Pickle; by cloudpickle where an object is of a pipeline file, which workers cannot import."""
    payload = bytes(pickle.dumps(value))  # type: ignore[no-untyped-call]
    if PIPELINE_FILE.encode() not in payload:
        return payload
    for module in [module for name, module in list(sys.modules.items()) if name.startswith(PIPELINE_FILE)]:
        cloudpickle.register_pickle_by_value(module)
    return bytes(cloudpickle.dumps(value))


class Shared:
    """An object that tasks or actors of a worker share: unpickled once, pickled again for a worker that copies it."""

    def __init__(self, payload: bytes, allowed: Allowance | None = None) -> None:
        self.before, self.allowed = REQUEST_COUNTS.now(), allowed
        self.held = resident_bytes()
        self.value = loads(payload)
        self._bytes = len(payload)
        one_blas_thread()  # here, after every library in use was imported by unpickling

    def __reduce__(self) -> tuple[Any, ...]:
        return Shared, (dumps(self.value), self.allowed)

    def limit(self) -> AbstractContextManager[None]:
        """Limit the worker to its budget; only a task knows its worker."""
        if self.allowed is None:
            return nullcontext()
        return memory_limit(self.allowed.bytes(self.held, get_worker().state.nthreads))

    def __sizeof__(self) -> int:  # for Dask's estimates of memory and copies
        return self._bytes


def lower_priority(driver: str) -> None:
    """Have this thread run after those of the driver, if it is on this machine: messages and updates are waited for."""
    if driver != platform.node():
        return
    with suppress(OSError, AttributeError):  # on Linux a thread has a niceness of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + 5)


def packed_reply(shared: Shared, compute: Callable[[], Any]) -> bytes:
    """Pickle the exception of ``compute``, too, so that it is not taken for one of the cluster."""
    try:
        with shared.limit():
            return dumps((True, compute(), request_counts_of_worker(shared)))
    except Exception as error:
        return dumps((False, sendable_error(error), request_counts_of_worker(shared)))


def sendable_error(error: Exception) -> Exception:
    """Return an error that can be sent, a memory error with the name of this worker."""
    if isinstance(error, MemoryLimitError) and not str(error.where).startswith("worker "):
        error.where = f"worker {get_worker().address}, {error.where}"
    try:
        dumps(error)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def request_counts_of_worker(shared: Shared) -> ProcessCounts | None:
    """Requests of this worker to stores; None if it has sent none."""
    now = REQUEST_COUNTS.now()
    return ProcessCounts(process_name(), get_worker().address, shared.before, now) if now["requests"] else None


def too_many_losses_error(what: str) -> StorageError:
    """An error of the work: it is taken to be what kills its workers."""
    return StorageError(
        f"{what} lost its workers {MAX_ATTEMPTS} times in a row.",
        where="the cluster",
        expected="workers that stay",
        remedy="see the workers' logs; if they were killed for memory, use fewer threads a worker or lower --memory",
    )
