"""Reading of run directories, also while a run is writing to them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from streamkern.errors import StorageError, UsageError
from streamkern.redaction import redacted
from streamkern.storage.atomic_writes import lock_owner, read_json
from streamkern.storage.serialize import load_value
from streamkern.storage.untrusted_files import given_path, require_regular
from streamkern.types import Array

STATUSES = ("done", "refused", "diverged", "interrupted", "failed")
"""Final states of a run in ``result.json``."""


@dataclass(eq=False)
class RunDirectory:
    """The content of a run directory at one moment; the manifest is empty if its file is missing.

    ``events``, oldest first, are those since the last start, with ``time`` and ``event``; ``steps`` include those of an
    interrupted run that was resumed. ``result`` is None until the run has ended; then ``earlier`` is the last complete
    result, if another. ``owner`` is the running process, 0 if unknown; None if no run is running.
    """

    folder: Path
    manifest: dict[str, Any]
    events: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    result: dict[str, Any] | None
    earlier: dict[str, Any] | None
    owner: int | None

    @property
    def name(self) -> str:
        return str(self.manifest.get("name") or self.folder.resolve().name)

    @property
    def solver(self) -> dict[str, Any]:
        """Name and parameters of the solver; empty if the run chose it."""
        found = self.manifest.get("solver")
        return found if isinstance(found, dict) else {}

    @property
    def state(self) -> str:
        """``running``, ``dead`` (the process ended without a result), or the final state."""
        if self.owner is not None:
            return "running"
        if self.result is None:
            return "dead"
        status = self.result.get("status")
        return status if status in STATUSES else "failed"

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Metrics by part of the rows, ``train`` or ``test``; empty until the run has ended."""
        return (self.result or {}).get("metrics") or {}

    @property
    def encoding(self) -> dict[str, Any]:
        """The encoding of the targets, as JSON; empty until the evaluation has ended."""
        return self.evaluation[1].get("encoding") or {}

    @property
    def class_labels(self) -> list[str]:
        """The classes' labels as text; empty for values."""
        return [str(value) for value in self.encoding.get("values", [])]

    @property
    def label_names(self) -> list[str]:
        """Names of the labels, of several a row; empty for other targets."""
        return list(self.encoding.get("names", []))

    def of(self, kind: str, state: str | None = None) -> list[dict[str, Any]]:
        """Return the events of one kind."""
        return [e for e in self.events if e["event"] == kind and (state is None or e.get("state") == state)]

    @property
    def unfinished(self) -> dict[str, Any] | None:
        """The begin event of the stage that is running; None between stages."""
        stages = self.of("stage")
        return stages[-1] if stages and stages[-1].get("state") == "begin" else None

    @cached_property
    def evaluation(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return arrays and facts saved by the evaluation; both are empty until it has ended."""
        for stage in (self.result or {}).get("stages", []):
            if stage.get("name") == "evaluate" and "artifact" in stage:
                with suppress(StorageError, OSError):
                    facts = load_value(self.folder / "stages" / stage["artifact"], "evaluate")
                    return facts.pop("arrays"), facts
        return {}, {}


def read_run(folder: str | os.PathLike[str]) -> RunDirectory:
    """Read a run directory."""
    place = Path(given_path(folder))
    # Read the lock before the files: a run that ends in between then looks running, never dead.
    owner = lock_owner(place / ".lock")
    # Redact again, since an earlier release may have redacted less.
    manifest, result = redacted(read_json(place / "manifest.json")), redacted(read_json(place / "result.json"))
    if manifest is None and result is None and owner is None:
        raise UsageError(
            "There is no run here.",
            where=str(place),
            expected="a directory with manifest.json, as streamkern run makes it",
            remedy="check the path; runs are kept in runs/NAME unless --run-dir says otherwise",
        )
    # A refused run leaves an earlier complete result, and the page shows that run.
    done = result is not None and result.get("status") == "done" and result.get("run") == (manifest or {}).get("run")
    events, steps = _last_run(_events(place / "events.jsonl"), skip_refused=done and owner is None)
    earlier = None if result is None else result.get("last_done")
    if result is not None and result.get("run") != (manifest or {}).get("run"):
        earlier = result if result.get("status") == "done" else earlier  # this run has no result yet
        result = None
    return RunDirectory(place, manifest or {}, events, steps, result, earlier, owner)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Skip incomplete lines, such as the last line of a killed run."""
    require_regular(path)
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and isinstance(event.get("time"), int | float) and "event" in event:
                yield redacted(event)


def _last_run(
    events: Iterator[dict[str, Any]], skip_refused: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events since the last start of a run, and all steps up to its present state."""
    finished: tuple[list[dict[str, Any]], list[dict[str, Any]]] = [], []
    last: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    before: list[dict[str, Any]] = []  # steps of the last run with any
    for event in events:
        match event["event"], event.get("state"):
            case "run", "begin":
                last, steps, before = [], [], steps or before
            case "resume", _:
                steps = [step for step in before if step["rows"] <= event["rows"]]
            case "step", _:
                steps.append(event)
        last.append(event)
        if event["event"] == "run" and event.get("state") == "done":
            finished = last, steps
        elif event["event"] == "run" and event.get("state") == "refused" and skip_refused:
            last, steps = finished
    return last, steps
