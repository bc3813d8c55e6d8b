"""Carries out the stages of a run, and keeps their results for the next run of the same pipeline."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from streamkern.defaults import KEPT_RESULTS
from streamkern.engine.device import Device
from streamkern.errors import StorageError
from streamkern.events import EventLog
from streamkern.fitting.stage import Key, Runner, Stage
from streamkern.inspection.shuffle_quality import shuffle_warning
from streamkern.models.kernel_machine import KernelMachine
from streamkern.runs.checkpoints import Checkpoints
from streamkern.runs.pipeline_definition import Pipeline
from streamkern.solvers.base import Iteration
from streamkern.solvers.loop import Progress
from streamkern.storage.serialize import load_value, save_value
from streamkern.storage.value_digest import digest
from streamkern.version import VERSION

T = TypeVar("T")


@dataclass(eq=False)
class CachingRunner(Runner):
    """Carries out the stages of a run in its folder, or takes the results that an earlier run kept.

    Seconds of each stage are added to ``timings``; checkpoints of the training are ``every`` so many seconds. With
    ``reuse`` results and checkpoints of an earlier run may be taken over; it had trained on ``resumed_rows``.
    ``trained`` and ``measured`` are fields of the run's result; ``arithmetic`` says why the dtype is not the default
    one. The ``model`` is there once it is saved.
    """

    pipeline: Pipeline
    folder: Path
    events: EventLog
    budget: int
    every: float
    reuse: bool
    timings: list[dict[str, Any]] = field(default_factory=list)
    trained: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    arithmetic: dict[str, str] = field(default_factory=dict)
    device: Device | None = None
    model: KernelMachine | Any = None
    resumed_rows: int = 0
    _found: Any = None

    def keep(self, name: str, key: Key | None, compute: Callable[[], T]) -> T:
        start, place = time.perf_counter(), self._place(name, key)
        if (found := self._taken(name, place, start)) is not None:
            return cast(T, found)
        self.events.emit("stage", name=name, state="begin")
        result = compute()
        if place is not None:
            save_value(place, name, result)
        self._ended(name, start, False, place)
        return result

    def kept(self, name: str, key: Key) -> Any:
        start = time.perf_counter()
        return self._taken(name, self._place(name, key), start)

    def _taken(self, name: str, place: Path | None, start: float) -> Any:
        found = None if place is None else self._kept(name, place)
        if found is not None:
            self._ended(name, start, True, place)
        return found

    def _place(self, name: str, key: Key | None) -> Path | None:
        """Folder of a result, named by its key and the release of this library; None if it has no key."""
        found = None if key is None else key()
        return None if found is None else self.folder / "stages" / f"{name}-{digest(VERSION, *found)[:16]}"

    def _kept(self, name: str, place: Path) -> Any:
        if not self.reuse or not place.exists():
            return None
        try:
            os.utime(place)
            return load_value(place, name)
        except (OSError, StorageError) as error:
            # A damaged result costs its stage, not the run.
            reason = error.what if isinstance(error, StorageError) else str(error)
            self.events.emit("warning", message=f"the kept result of {name} is computed again: {reason}")
            return None

    def stepped(self, progress: Progress) -> None:
        self.events.emit("step", **vars(progress))

    def choice(self, reason: str, **facts: Any) -> None:
        self.events.emit("choice", reason=reason, **facts)

    def warn(self, message: str) -> None:
        self.events.emit("warning", message=message)

    def prune(self) -> None:
        """Delete all but the results of each stage that were used last, so that a nightly directory does not grow."""
        by_name: dict[str, list[Path]] = {}
        for place in (self.folder / "stages").glob("*"):
            by_name.setdefault(place.name.rpartition("-")[0], []).append(place)
        for places in by_name.values():
            places.sort(key=lambda place: place.stat().st_mtime_ns)
            for place in places[:-KEPT_RESULTS]:
                shutil.rmtree(place, ignore_errors=True)

    def _ended(self, name: str, start: float, cached: bool, place: Path | None = None) -> None:
        seconds = time.perf_counter() - start
        kept = {} if place is None else {"artifact": place.name}
        whole = {} if self.stage is None or self.stage.name in ("", name) else {"of": self.stage.name}
        self.timings.append({"name": name, "seconds": seconds, "cached": cached, **kept, **whole})
        self.events.emit("stage", name=name, state="end", seconds=seconds, cached=cached)

    def result(self, stage: Stage, fit: Any) -> Any:
        if stage.until:
            return self._prepared(stage, fit)
        if stage.checkpoints:
            return self._resumable(stage, fit)
        return super().result(stage, fit)

    def _prepared(self, stage: Stage, fit: Any) -> Any:
        """Keep what only another stage needs with that stage's checkpoints; None once that stage is done."""
        begun, key = time.perf_counter(), stage.key
        assert key is not None
        place = self._place(stage.until, lambda: key(fit))
        assert place is not None
        self._found = self._kept(stage.until, place)
        if self._found is not None:
            self._ended(stage.name, time.perf_counter(), cached=True)
            return None
        if self.reuse:
            self.checkpoints = Checkpoints(self.folder / "checkpoints" / place.name[-16:], self.events, self.every)
        start, prepared = (self.checkpoints and self.checkpoints.latest()) or (None, None)
        solver, problem = fit.recipe.solver, fit.problem
        if prepared is None:
            iteration = self.keep(stage.name, None, lambda: stage.run(fit))
            for _ in range(start.halvings if start else 0):  # the prepared value is lost, the checkpoint is not
                iteration = solver.setup(problem, iteration.with_halved_step())
            if self.checkpoints is not None:
                self.checkpoints.prepared = iteration.prepared
        else:
            iteration = solver.setup(problem, prepared)
            self._ended(stage.name, begun, cached=True)
        self.start = start
        if start is not None:
            pass_, step = start.position
            self.resumed_rows = start.rows
            self.events.emit(
                "resume", pass_=pass_, step=step, rows=start.rows, seconds=time.perf_counter() - begun,
                message=f"resuming at pass {pass_ + 1}, step {step}, {start.rows:,} rows",
            )  # fmt: skip
        return iteration

    def _resumable(self, stage: Stage, fit: Any) -> Any:
        start, key, checkpoints = time.perf_counter(), stage.key, self.checkpoints
        assert key is not None
        if self._found is not None:
            found, self._found = self._found, None
            self._ended(stage.name, start, True, self._place(stage.name, lambda: key(fit)))
            return found
        try:
            with checkpoints or nullcontext():
                result = self.keep(stage.name, lambda: key(fit), lambda: stage.run(fit))
                if checkpoints is not None:
                    checkpoints.clear()
            return result
        finally:
            self.start = self.checkpoints = None

    def training(self, fit: Any) -> None:
        problem, report = fit.problem, fit.iteration.report
        self.events.emit("solver", **report)
        if message := shuffle_warning(problem.train, problem.mix_chunks, problem.lanes, report.get("batch")):
            self.warn(message)

    def trained_anew(self, again: Iteration, message: str) -> None:
        self.warn(message)
        self.events.emit("solver", **again.report)
        if self.checkpoints is not None:
            self.checkpoints.clear()
            self.checkpoints.prepared = again.prepared
