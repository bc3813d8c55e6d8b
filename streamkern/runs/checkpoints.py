"""Checkpoints of a training: written in the background, complete or not at all, the last few kept."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamkern.defaults import CHECKPOINT_SECONDS, KEPT_CHECKPOINTS, KEPT_TRAININGS, MAX_CHECKPOINT_WAIT_SHARE
from streamkern.errors import ModelFormatError, StreamkernError
from streamkern.events import EventLog
from streamkern.solvers import Checkpoint
from streamkern.storage.serialize import load_value, save_value

_KIND, _PREPARED = "Checkpoint", "Prepared"


class Checkpoints:
    """Keeps checkpoints of one training in a directory, whose siblings are those of other trainings.

    A step passes its state to a thread that writes it, and continues, because states are frozen. The prepared value of
    the solver is written once, with the first checkpoint, so that a short training writes nothing.

    Two checkpoints are so many ``seconds`` apart; longer in a sweep whose sums take long to write.
    """

    def __init__(self, folder: Path, events: EventLog, seconds: float = CHECKPOINT_SECONDS) -> None:
        self.folder, self.events, self.seconds = folder, events, seconds
        self.written = 0
        self.prepared: Any = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="streamkern-checkpoint")
        self._writing: Future[None] | None = None
        self._due = time.monotonic() + seconds
        self._last = ""

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.shutdown(wait=True)

    def latest(self) -> tuple[Checkpoint, Any] | None:
        """Return the last checkpoint that can be read and the solver's prepared value; None if not kept."""
        for place in reversed(self._places()):
            found = self._load(place, _KIND)
            if isinstance(found, Checkpoint):
                self._last = place.name
                return found, self._load(self.folder / "prepared", _PREPARED)
        return None

    def _load(self, place: Path, kind: str) -> Any:
        if not os.path.lexists(place):  # a broken link is reported
            return None
        try:
            return load_value(place, kind)
        except (StreamkernError, OSError) as error:
            reason = error.what if isinstance(error, ModelFormatError) else str(error)
            self.events.emit("warning", message=f"{place.name} of an earlier run is left out: {reason}")
            return None

    def _places(self) -> list[Path]:
        """Directories of checkpoints, oldest first."""
        return sorted(self.folder.glob("[0-9]*"))

    def offer(self, checkpoint: Checkpoint, wait: bool = False, kept: Callable[[Any], Any] | None = None) -> None:
        """Hand over a checkpoint that is due, unless one is still being written; ``wait`` until this one is."""
        if time.monotonic() >= self._due and (self._writing is None or self._writing.done()):
            self._due = time.monotonic() + self.seconds
            if kept is not None:
                checkpoint = replace(checkpoint, state=kept(checkpoint.state))
            self._writing = self._writer.submit(self._write, checkpoint)
            if wait:
                started = time.monotonic()
                self._writing.result()
                ended = time.monotonic()
                self._due = max(self._due, ended + (ended - started) / MAX_CHECKPOINT_WAIT_SHARE)

    def interrupted(self, checkpoint: Checkpoint) -> None:
        self._writer.submit(self._write, checkpoint).result()

    def _write(self, checkpoint: Checkpoint) -> None:
        (pass_, step), begun = checkpoint.position, int(checkpoint.begun)
        step += sum(partial.done for partial in checkpoint.swept)
        name = f"{pass_:06}-{begun}-{step:09}"
        if name == self._last:
            return
        started = time.perf_counter()
        try:
            if self.prepared is not None:
                save_value(self.folder / "prepared", _PREPARED, self.prepared)
                self.prepared = None
            save_value(self.folder / name, _KIND, checkpoint)
        except (StreamkernError, OSError) as error:
            # Training goes on: the next one may find room, and the one before is intact.
            reason = error.what if isinstance(error, StreamkernError) else str(error)
            self.events.emit("warning", message=f"no checkpoint was written: {reason}")
            return
        self._last = name
        self.written += 1
        took = time.perf_counter() - started
        self.events.emit("checkpoint", pass_=pass_, step=step, rows=checkpoint.rows, seconds=took)
        self._prune()

    def _prune(self) -> None:
        for place in self._places()[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(place, ignore_errors=True)
        others = sorted(self.folder.parent.iterdir(), key=lambda place: place.stat().st_mtime_ns)
        for place in [place for place in others if place != self.folder][: -KEPT_TRAININGS + 1]:
            shutil.rmtree(place, ignore_errors=True)

    def clear(self) -> None:
        """Delete them: the training is done, or begins anew."""
        self._writer.submit(shutil.rmtree, self.folder, True).result()
        self._last = ""
