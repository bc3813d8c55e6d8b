"""What a call may use: memory, threads, a scheduler, a device, and the workers of a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import psutil

from streamkern.errors import UsageError, require_counts
from streamkern.memory import default_budget, parse_bytes

Scheduler: TypeAlias = str | Any
"""``threads``, ``processes``, ``processes:N``, the address of a Dask scheduler, or a ``distributed.Client``."""

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, repr=False)
class Resources:
    """The memory, threads, scheduler, device and workers that a call may use.

    Every call with ``resources=`` also has ``memory=`` and ``threads=``. Only training uses the device; only ``plan``
    uses the last two fields. Threads, scheduler and workers do not change the weights.

    Args:
        memory: memory limit of the process in bytes, or a size such as ``"8GiB"``. None: half of the machine's memory.
        threads: threads of this process. None: its number of cores.
        scheduler: where blocks of rows are computed. ``"threads"``: threads of this process. ``"processes"`` or
            ``"processes:N"``: worker processes on this machine, with one thread each. You can also give the address of
            a Dask scheduler, or a ``distributed.Client``, which stays open. When pickled, a client becomes its address.
        device: where training computes blocks: ``"cpu"``, ``"cuda"`` or ``"auto"``. ``"auto"`` uses a GPU of a kind
            that this library was measured on, if there is enough work. Otherwise it uses the CPU.
        worker_memory: memory limit of each worker in bytes, or a size. None: ``plan`` does not check it.
        worker_threads: threads of a worker.

    Raises:
        UsageError: a value is out of range, or a size cannot be parsed.
    """

    memory: str | int | None = None
    threads: int | None = None
    scheduler: Scheduler = "threads"
    device: str = "auto"
    worker_memory: str | int | None = None
    worker_threads: int = 1

    def __post_init__(self) -> None:
        require_counts(self, threads=1, worker_threads=1)
        for name in ("memory", "worker_memory"):
            if getattr(self, name) is not None:
                parse_bytes(getattr(self, name), name)
        text = scheduler_name(self.scheduler)
        if not re.fullmatch(r"threads|processes(:[1-9][0-9]*)?|[a-z]+://.+", text, re.DOTALL):
            raise UsageError(
                f"The scheduler {self.scheduler!r} is unknown.",
                where="scheduler",
                expected="threads, processes, processes:N, an address such as tcp://head:8786, or a distributed.Client",
            )
        require_device(self.device)

    @property
    def budget(self) -> int:
        """``memory`` in bytes."""
        return default_budget() if self.memory is None else parse_bytes(self.memory)

    @property
    def slots(self) -> int:
        """``threads`` as a number."""
        return thread_count(self.threads)

    def __repr__(self) -> str:
        values = self.__getstate__()
        given = [f"{f.name}={values[f.name]!r}" for f in fields(self) if values[f.name] != f.default]
        return f"Resources({', '.join(given)})"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"scheduler": scheduler_name(self.scheduler)}  # a client cannot be pickled

    def __deepcopy__(self, memo: object) -> Resources:
        return self  # a client cannot be copied; scikit-learn's clone copies parameters


def given_resources(resources: Resources | None, memory: str | int | None, threads: int | None) -> Resources:
    """Return the resources of a call from its ``resources=``, ``memory=`` and ``threads=``."""
    if not isinstance(resources, Resources | None):
        raise UsageError(
            f"resources is {resources!r}.", where="resources", expected='sk.Resources(memory="8GiB", ...), or None'
        )
    resources, typed = resources or Resources(), Resources(memory, threads)
    for name, number in (("memory", "budget"), ("threads", "slots")):
        here, there = getattr(typed, name), getattr(resources, name)
        if None not in (here, there) and getattr(typed, number) != getattr(resources, number):
            raise UsageError(
                f"{name} is {here!r}, and {there!r} in resources.",
                where=f"{name}=..., resources=...",
                expected=f"{name} in one of them",
            )
    return replace(
        resources,
        memory=resources.memory if memory is None else memory,
        threads=resources.threads if threads is None else threads,
    )


def require_device(name: str) -> None:
    """Raise UsageError where there is no such device."""
    if name not in DEVICES:
        raise UsageError(f"Unknown device {name!r}.", where="device", expected="auto, cpu or cuda")


def scheduler_name(scheduler: Scheduler) -> str:
    """Return a ``scheduler`` setting as text, which another process can be started with: a client's is its address."""
    if isinstance(scheduler, str):
        return scheduler
    return str(getattr(getattr(scheduler, "scheduler", None), "address", ""))  # "" of what is no connected client


def default_threads() -> int:
    """Return the number of cores that this process may use."""
    process = psutil.Process()
    affinity = getattr(process, "cpu_affinity", None)
    return len(affinity()) if affinity else psutil.cpu_count() or 1


def thread_count(threads: int | None) -> int:
    """Return ``threads``, or the cores of the process for None."""
    if threads is None:
        return default_threads()
    if not (hasattr(threads, "__index__") and threads >= 1):
        raise UsageError(f"threads is {threads!r}.", where="threads", expected="a whole number, at least 1")
    return int(threads)
