"""The start of a process: Ctrl-C while the command is still importing; imports late, and without collecting garbage."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the garbage collector while modules, or compiled loops, are loaded.

    What they make stays as long as the process, and walking through it again and again is a quarter of their time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:  # of several threads here, the first has found it so
            gc.enable()


class LateModule:
    """Stands for a module that is imported when one of its names is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        with paused_collector():
            found = getattr(import_module(self._module), name)
        setattr(self, name, found)  # the second use is a look-up
        return found


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"stopped by SIGINT\n")
    os._exit(128 + number)


def _is_command() -> bool:
    words = sys.orig_argv
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":
        return words[words.index("-m") + 1 :][:1] == ["streamkern"]
    return name in words and os.path.basename(name) == "streamkern"


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)  # until ``main`` has its own
