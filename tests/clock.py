"""Bounds on the processor's time that a busy machine does not break."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def processor_seconds(call: Callable[[], object]) -> float:
    """Return the seconds of the processor, all threads together, that a call takes."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def require_quick(call: Callable[[], object], bound: float) -> None:
    """Fail if a call takes more than ``bound`` seconds of the processor in each of three runs.

    One run alone can take twenty times as long as the next where the machine is busy: pages of memory are given, and
    threads of earlier tests end, in the time of the process.
    """
    seconds: list[float] = []
    while len(seconds) < 3:
        seconds.append(processor_seconds(call))
        if seconds[-1] < bound:
            return
    raise AssertionError(f"{min(seconds):.2f} s of the processor, at best, for at most {bound} s")
