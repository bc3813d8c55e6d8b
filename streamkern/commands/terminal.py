"""Terminal output of the commands, without secrets."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from streamkern.redaction import redacted


def say(text: str, stream: TextIO | None = None) -> None:
    """Write to stdout, or another stream; ignore a closed pipe (``| head``)."""
    stream = sys.stdout if stream is None else stream
    try:
        stream.write(redacted(text))
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # the interpreter flushes once more at its end


def complain(text: str) -> None:
    """Write lines to stderr."""
    say(text.rstrip("\n") + "\n", sys.stderr)
