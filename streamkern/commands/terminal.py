"""Terminal output of the commands, without secrets."""

from __future__ import annotations

import os
import sys

from streamkern.redaction import redacted


def say(text: str) -> None:
    """Write to stdout; ignore a closed pipe (``| head``)."""
    try:
        sys.stdout.write(redacted(text))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end


def complain(text: str) -> None:
    """Write to stderr; as `say`."""
    try:
        sys.stderr.write(redacted(text).rstrip("\n") + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
