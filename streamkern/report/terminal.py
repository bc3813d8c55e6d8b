"""What a run is doing, on a terminal: the listener of ``streamkern run``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TextIO

from streamkern.memory import format_bytes
from streamkern.report.status import duration

REFRESH = 1 / 8
"""Seconds between two drawings of the live line."""

LINE_EVERY = 10.0
"""Seconds between two step lines where the stream is not a terminal."""


class Display:
    """Tells what a run is doing: one live line on a terminal, plain lines elsewhere.

    Args:
        stream: where to; a closed one is no reason to end a run.
        live: whether to draw over one line; if the stream is a terminal, by default.
        clock: seconds.
    """

    def __init__(self, stream: TextIO, live: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream: TextIO | None = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb" if live is None else live
        self._clock = clock
        self._drawn = False
        self._next = clock()

    def __call__(self, kind: str, fields: dict[str, Any]) -> None:
        """Listen to an event."""
        match kind, fields.get("state"):
            case "run", "begin":
                self._line(f"{fields['name']} in {fields['run_dir']}")
            case "stage", "begin":
                self._next = self._clock() + (0.0 if self._live else LINE_EVERY)
                self._passing(f"{fields['name']} ...")
            case "stage", "end":
                how = "taken over from an earlier run" if fields["cached"] else duration(fields["seconds"])
                self._line(f"{fields['name']}: {how}")
            case "memory", _:
                self._line(f"memory: {format_bytes(fields['projected'])} of {format_bytes(fields['budget'])} projected")
            case "solver", _:
                self._line(_solver(fields))
            case "cluster", _:
                self._line(f"cluster: {fields['slots']} threads, {fields['dashboard']}")
            case "resume", _:
                self._line(fields["message"])
            case "choice", _:
                self._line(fields["reason"])
            case "warning", _:
                self._line(f"warning: {fields['message']}")
            case "step", _:
                ends = fields["rows"] == fields["total_rows"]
                if self._clock() >= self._next or (ends and not self._live):
                    self._next = self._clock() + (REFRESH if self._live else LINE_EVERY)
                    self._passing(*_step(fields))

    def rows(self, what: str, rows: int, total: int) -> None:
        """Listen to what goes over all rows."""
        if self._clock() >= self._next:
            self._next = self._clock() + (REFRESH if self._live else LINE_EVERY)
            self._passing(f"{what}: {rows / max(1, total):4.0%}  {rows:,} of {total:,} rows")

    def trial(self, trial: Any) -> None:
        """Listen to a tuning."""
        self._passing(f"{trial.kernel}: squared error {trial.mse:.4g} at ridge {trial.ridge:.0e}")

    def close(self) -> None:
        """Leave the terminal with a clean line."""
        self._write("\r\x1b[2K" if self._drawn else "")
        self._drawn = False

    def _passing(self, *parts: str) -> None:
        """A line that the next one replaces; what does not fit the terminal is left out from the end."""
        if not self._live:
            self._line("train: " + ", ".join(parts) if len(parts) > 1 else parts[0])
            return
        width = _columns(self._stream) - 1
        text = parts[0]
        for part in parts[1:]:
            if len(text) + 2 + len(part) <= width:
                text += "  " + part
        self._write(f"\r\x1b[2K{text[:width]}")
        self._drawn = True

    def _line(self, text: str) -> None:
        self._write(("\r\x1b[2K" if self._drawn else "") + text + "\n")
        self._drawn = False

    def _write(self, text: str) -> None:
        if self._stream is None or not text:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


def _solver(fields: dict[str, Any]) -> str:
    """What the setup of a solver found out, in words; not every solver has a projection, or a batch."""
    words = [f"projection {fields['projection']}"] if "projection" in fields else []
    if "batch" in fields:
        words.append(f"batch {fields['batch']:,} rows (critical: {fields['critical_batch']:,.0f})")
    words += [f"{name} {fields[name]:.4g}" for name in ("step", "ridge") if name in fields]
    return ", ".join(words)


def _step(fields: dict[str, Any]) -> tuple[str, ...]:
    """A step in words, what matters most first."""
    rows, total, seconds = fields["rows"], fields["total_rows"], max(1e-9, fields["seconds"])
    return (
        f"{rows / total:4.0%}",
        f"{rows:,} of {total:,} rows",
        f"{rows / seconds:,.0f} rows/s",
        f"loss {fields['loss']:.4g}",
        f"ETA {duration((total - rows) * seconds / max(1, rows))}",
        f"{fields['wait']:.0%} waiting for data",
        f"pass {fields['pass_'] + 1}",
    )


def _columns(stream: TextIO | None) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream is not None else 80
    except (OSError, ValueError):
        return 80
