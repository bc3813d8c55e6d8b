"""Events of a run as they happen: one JSON object a line, and listeners."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamkern.redaction import redacted

Listener = Callable[[str, dict[str, Any]], None]
"""Called with the kind of an event and its fields."""


EARLY_STEP_SHARE = 0.05
"""A step goes to the file a second after the last one, or after this share of the time since the first."""


class EventLog:
    """Append events to a file, if there is a path, and call listeners: steps at once, and in the file once a second.

    Early steps go there more often, as ``EARLY_STEP_SHARE`` says: a loss falls fast at first, and a short run has a
    curve too. A line has the field ``timeline`` of all steps since the one before it, added up, so that lines sum to
    the run. ``facts`` is called for fields that every line gets, such as the memory held; it may be exchanged.
    """

    def __init__(
        self, path: Path | None = None, listeners: tuple[Listener, ...] = (), facts: Callable[[], dict[str, Any]] = dict
    ) -> None:
        self._file = None if path is None else path.open("a", encoding="utf-8")
        self._listeners = listeners
        self._lock = threading.RLock()  # events of checkpoints come from the thread that writes them
        self.facts = facts
        self._first_step, self._last_step = math.inf, -math.inf
        self._step: dict[str, Any] | None = None  # seen, and not written yet
        if path is not None and _is_torn(path):
            self._write_text("\n")  # a killed process left half a line

    def emit(self, kind: str, **fields: Any) -> None:
        """Record an event, without secrets."""
        fields = redacted(fields)
        with self._lock:
            for listener in self._listeners:
                listener(kind, fields)
            if self._file is not None:
                self._record(kind, fields)

    def _record(self, kind: str, fields: dict[str, Any]) -> None:
        line = {"time": time.time(), "event": kind, **fields}
        if kind == "step":
            now = time.monotonic()
            if "timeline" in line and self._step is not None:
                line["timeline"] = merge_sums(self._step.get("timeline", {}), line["timeline"])
            self._step = line
            self._first_step = min(self._first_step, now)
            due = min(1.0, EARLY_STEP_SHARE * (now - self._first_step))
            if now - self._last_step < due and fields.get("rows") != fields.get("total_rows"):
                return
            self._last_step = now
        self._flush()
        if kind != "step":
            self._write(line)

    def _flush(self) -> None:
        line, self._step = self._step, None
        if line is not None:
            self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps({**line, **redacted(self.facts())}, default=lambda value: redacted(str(value)))
        self._write_text(text + "\n")

    def _write_text(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            # Losing the log must not cost the run; where the disk is full, the next result says so as an error.
            self._close()
            self.emit("warning", message=f"events cannot be written any more: {error.strerror}")

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # the buffer is written again
                self._file.close()
            self._file = None

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *error: object) -> None:
        self._flush()
        self._close()


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


def merge_sums(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Add up the numbers of two nested mappings, name by name; a name of one stays as it is."""
    total = dict(a)
    for name, value in b.items():
        before = total.get(name)
        if before is None:
            total[name] = value
        else:
            total[name] = merge_sums(before, value) if isinstance(value, dict) else before + value
    return total
