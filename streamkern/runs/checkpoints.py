"""Checkpoints of a training: written in the background, complete or not at all, the last few kept.

Where centers are shared out over workers, a checkpoint names a set of shares that the workers have written, and has the
steps since then. Sets that no checkpoint names any more are removed with the checkpoints.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamkern.defaults import CHECKPOINT_SECONDS
from streamkern.errors import ModelFormatError, StreamkernError
from streamkern.events import EventLog
from streamkern.execute.base import ShareDirectory, SharedState
from streamkern.execute.sharded_centers_checkpoint import require_whole
from streamkern.solvers import Checkpoint
from streamkern.storage.serialize import Bundle, bundle_arrays, load_value, save_value, unbundle_arrays

MAX_WAIT_SHARE = 0.02
"""Of the time of a sweep over all rows, at most this goes into waiting for them to be written."""

KEPT_CHECKPOINTS = 2
"""Checkpoints of a training that are kept."""

KEPT_TRAININGS = 3
"""Unfinished trainings of a run directory whose checkpoints are kept."""

_KIND, _PREPARED = "Checkpoint", "Prepared"


class Checkpoints:
    """Keeps checkpoints of one training in a directory, whose siblings are those of other trainings.

    A step passes its state to a thread that writes it, and continues, because states are frozen. The prepared value of
    the solver is written once, with the first checkpoint, so that a short training writes nothing.

    Two checkpoints are so many ``seconds`` apart, or ``steps``, among which parts of a sweep over all rows count;
    longer in a sweep whose sums take long to write.
    """

    def __init__(
        self, folder: Path, events: EventLog, seconds: float = CHECKPOINT_SECONDS, steps: int | None = None
    ) -> None:
        self.folder, self.events, self.seconds, self.steps = folder, events, seconds, steps
        self.written = 0
        self.prepared: Any = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="streamkern-checkpoint")
        self._writing: Future[None] | None = None
        self._due = time.monotonic() + seconds
        self._taken = 0
        self._last = ""
        self._sets: dict[str, str] = {}

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.shutdown(wait=True)

    @property
    def shares(self) -> ShareDirectory:
        """Where workers keep their shares of a state."""
        return ShareDirectory(self.folder, self.seconds, lambda message: self.events.emit("warning", message=message))

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
            found = load_value(place, kind)
            if isinstance(found, Checkpoint) and isinstance(found.state, Bundle):
                found = replace(found, state=unbundle_arrays(found.state))
            if isinstance(found, Checkpoint) and isinstance(found.state, SharedState) and found.state.base is not None:
                require_whole(self.folder, found.state.base)
            return found
        except (StreamkernError, OSError) as error:
            reason = error.what if isinstance(error, ModelFormatError) else str(error)
            self.events.emit("warning", message=f"{place.name} of an earlier run is left out: {reason}")
            return None

    def _places(self) -> list[Path]:
        """Directories of checkpoints, oldest first."""
        return sorted(self.folder.glob("[0-9]*"))

    def offer(self, checkpoint: Checkpoint, wait: bool = False, kept: Callable[[Any], Any] | None = None) -> None:
        """Hand over a checkpoint that is due, unless one is still being written; ``wait`` until this one is."""
        self._taken += 1
        due = time.monotonic() >= self._due or (self.steps is not None and self._taken >= self.steps)
        if due and (self._writing is None or self._writing.done()):
            self._due, self._taken = time.monotonic() + self.seconds, 0
            if kept is not None:
                checkpoint = replace(checkpoint, state=kept(checkpoint.state))
            self._writing = self._writer.submit(self._write, checkpoint)
            if wait:
                started = time.monotonic()
                self._writing.result()
                ended = time.monotonic()
                self._due = max(self._due, ended + (ended - started) / MAX_WAIT_SHARE)

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
            shared = isinstance(checkpoint.state, SharedState)
            kept = replace(checkpoint, state=bundle_arrays(checkpoint.state)) if shared else checkpoint
            save_value(self.folder / name, _KIND, kept)
            self._sets[name] = _set_name(checkpoint.state)
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
        places, shared = self._places(), list(self.folder.glob("shares-*"))
        sets = {place: self._set_of(place) if shared else "" for place in places}
        kept = places[-KEPT_CHECKPOINTS:]
        # Where these need the same shares, one that does not is kept as well: a file that is damaged costs no more.
        if len({sets[place] for place in kept}) == 1:
            kept = [place for place in places[:-KEPT_CHECKPOINTS] if sets[place] != sets[kept[0]]][-1:] + kept
        for place in places:
            if place not in kept:
                shutil.rmtree(place, ignore_errors=True)
        oldest = min((sets[place] for place in kept if sets[place]), default="")
        for place in shared:
            if place.name < oldest:
                shutil.rmtree(place, ignore_errors=True)
        others = sorted(self.folder.parent.iterdir(), key=lambda place: place.stat().st_mtime_ns)
        for place in [place for place in others if place != self.folder][: -KEPT_TRAININGS + 1]:
            shutil.rmtree(place, ignore_errors=True)

    def _set_of(self, place: Path) -> str:
        """Name of the set of shares that a checkpoint needs; empty if none, or where that cannot be read."""
        if place.name not in self._sets:
            found: Any = None
            with suppress(StreamkernError, OSError):
                found = load_value(place, _KIND).state
                found = unbundle_arrays(found) if isinstance(found, Bundle) else found
            self._sets[place.name] = _set_name(found)
        return self._sets[place.name]

    def clear(self) -> None:
        """Delete them: the training is done, or begins anew."""
        self._writer.submit(shutil.rmtree, self.folder, True).result()
        self._last = ""


def _set_name(state: Any) -> str:
    return state.base.name if isinstance(state, SharedState) and state.base is not None else ""
