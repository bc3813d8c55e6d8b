"""Ctrl-C while the command is still importing: one line and the exit status of an interruption, and no traceback."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"stopped by SIGINT\n")
    os._exit(128 + number)


def _is_command() -> bool:
    """Whether this process is ``streamkern`` or ``python -m streamkern``, rather than one that imports the library."""
    words = sys.orig_argv
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":
        return words[words.index("-m") + 1 :][:1] == ["streamkern"]
    return name in words and os.path.basename(name) == "streamkern"


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)  # until ``main`` has its own
