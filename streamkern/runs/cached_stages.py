"""The stages of a run, and the results that each keeps for the next run of the same pipeline."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from streamkern.calibration.serialization import calibration_digests
from streamkern.data.class_weights import without_class_weights
from streamkern.data.dataset import Dataset
from streamkern.data.encoders import unseen_notes
from streamkern.data.targets import encoding_to_json
from streamkern.defaults import CHECKPOINT_SECONDS
from streamkern.errors import StorageError
from streamkern.events import EventLog
from streamkern.execute.base import Executor
from streamkern.fitting.evaluation_checks import unseen_categories
from streamkern.fitting.fit import Key, Stages, centers_key, require_success
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.inspection.shuffle_quality import shuffle_warning
from streamkern.models.kernel_machine import KernelMachine
from streamkern.runs.checkpoints import Checkpoints
from streamkern.runs.pipeline_definition import Pipeline
from streamkern.runs.solution_spectrum import diagnose
from streamkern.runs.training_examples import examples
from streamkern.solvers import Outcome, Problem, Solver
from streamkern.solvers.base import Iteration
from streamkern.solvers.loop import Progress, train_stably
from streamkern.storage.serialize import load_value, save_value
from streamkern.storage.value_digest import digest
from streamkern.user_code_digest import described
from streamkern.version import VERSION

T = TypeVar("T")

MAX_TRAIN_SCORE_ROWS = 10_000
"""Training rows, at most, that the metrics of the training set are taken over."""


KEPT_RESULTS = 3
"""Results of each stage that a run directory keeps."""


@dataclass(eq=False)
class KeptStages(Stages):
    """Runs stages in order, or takes the results that an earlier run kept.

    Args:
        timings: seconds of each stage, added to as they end.
        every: seconds between checkpoints of the training.
        reuse: whether results and checkpoints of an earlier run may be taken over.

    Attributes:
        resumed_rows: rows that an earlier run had trained on, and this one did not have to.
    """

    events: EventLog
    folder: Path
    timings: list[dict[str, Any]] = field(default_factory=list)
    every: float = CHECKPOINT_SECONDS
    reuse: bool = True
    resumed_rows: int = 0

    def keep(self, name: str, key: Key | None, compute: Callable[[], T]) -> T:
        """Return the kept result of the same key, or else compute and keep it."""
        start = time.perf_counter()
        place = None if key is None else self._place(name, key)
        found = None if place is None else self._kept(name, place)
        if found is not None:
            self._ended(name, start, True, place)
            return cast(T, found)
        self.events.emit("stage", name=name, state="begin")
        result = compute()
        if place is not None:
            save_value(place, name, result)
        self._ended(name, start, False, place)
        return result

    def _place(self, name: str, key: Key) -> Path:
        """Folder for the result of a stage, named by its key and the release of this library."""
        return self.folder / f"{name}-{digest(VERSION, *key())[:16]}"

    def _kept(self, name: str, place: Path) -> Any:
        """Result of this stage from an earlier run, or None."""
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

    def kept(self, name: str, key: Key) -> Any:
        start = time.perf_counter()
        place = self._place(name, key)
        found = self._kept(name, place)
        if found is not None:
            self._ended(name, start, True, place)
        return found

    def stepped(self, progress: Progress) -> None:
        self.events.emit("step", **vars(progress))

    def choice(self, reason: str, **facts: Any) -> None:
        self.events.emit("choice", reason=reason, **facts)

    def warn(self, message: str) -> None:
        self.events.emit("warning", message=message)

    def prune(self) -> None:
        """Delete all but the results of each stage that were used last, so that a nightly directory does not grow."""
        if not self.folder.exists():
            return
        by_name: dict[str, list[Path]] = {}
        for place in self.folder.iterdir():
            by_name.setdefault(place.name.rpartition("-")[0], []).append(place)
        for places in by_name.values():
            places.sort(key=lambda place: place.stat().st_mtime_ns)
            for place in places[:-KEPT_RESULTS]:
                shutil.rmtree(place, ignore_errors=True)

    def _ended(self, name: str, start: float, cached: bool, place: Path | None = None) -> None:
        seconds = time.perf_counter() - start
        kept = {} if place is None else {"artifact": place.name}
        self.timings.append({"name": name, "seconds": seconds, "cached": cached, **kept})
        self.events.emit("stage", name=name, state="end", seconds=seconds, cached=cached)

    def train(self, problem: Problem, solver: Solver, key: Key) -> tuple[Outcome, dict[str, Any]]:
        start = time.perf_counter()
        place = self._place("train", key)
        found = self._kept("train", place)
        if found is not None:
            self._ended("eigensystem", time.perf_counter(), cached=True)  # no later stage needs it
            self._ended("train", start, True, place)
            return cast(tuple[Outcome, dict[str, Any]], found)
        if not self.reuse:
            return self._train(problem, solver, key, None)
        with Checkpoints(self.folder.parent / "checkpoints" / place.name[-16:], self.events, self.every) as checkpoints:
            result = self._train(problem, solver, key, checkpoints)
            checkpoints.clear()
        return result

    def _train(
        self, problem: Problem, solver: Solver, key: Key, checkpoints: Checkpoints | None
    ) -> tuple[Outcome, dict[str, Any]]:
        begun = time.perf_counter()
        start, prepared = (checkpoints and checkpoints.latest()) or (None, None)
        if prepared is None:
            iteration = self.keep("eigensystem", None, lambda: solver.setup(problem))
            for _ in range(start.halvings if start else 0):  # the prepared value is lost, the checkpoint is not
                iteration = solver.setup(problem, iteration.with_halved_step())
        else:
            iteration = solver.setup(problem, prepared)
            self._ended("eigensystem", begun, cached=True)
        if checkpoints is not None and prepared is None:
            checkpoints.prepared = iteration.prepared
        if start is not None:
            pass_, step = start.position
            self.resumed_rows = start.rows
            self.events.emit(
                "resume", pass_=pass_, step=step, rows=start.rows, seconds=time.perf_counter() - begun,
                message=f"going on from pass {pass_ + 1}, step {step}, {start.rows:,} rows",
            )  # fmt: skip

        def anew(again: Iteration, message: str) -> None:
            self.events.emit("warning", message=message)
            self.events.emit("solver", **again.report)
            if checkpoints is not None:
                checkpoints.clear()
                checkpoints.prepared = again.prepared

        def compute() -> tuple[Outcome, dict[str, Any]]:
            self.events.emit("solver", **iteration.report)
            batch = iteration.report.get("batch")
            if message := shuffle_warning(problem.train, problem.mix_chunks, problem.lanes, batch):
                self.events.emit("warning", message=message)
            outcome, last = train_stably(
                problem, solver, iteration, anew, on_step=self.stepped, start=start, keeper=checkpoints
            )
            if outcome.failure is not None and checkpoints is not None:
                checkpoints.clear()  # a resumed run would fail at the same step
            require_success(outcome)
            for message in last.report.get("warnings", ()):
                self.events.emit("warning", message=message)
            return outcome, last.report

        return self.keep("train", key, compute)


def evaluate_stage(
    pipeline: Pipeline, stages: Stages, model: KernelMachine, train_set: Dataset, executor: Executor
) -> dict[str, Any]:
    """Metrics of the model on a sample of the training rows, and on the test rows.

    Kept with them for reports: confusion counts or a sample of predictions, and a few rows as training saw them.
    """
    test = pipeline.test
    if test is not None and (preprocessing_steps(pipeline) or pipeline.metric is not None or pipeline.kernel is None):
        test = test._prepared_like(train_set)._final()

    def compute() -> dict[str, Any]:
        plain = without_class_weights(train_set.plain())
        few = plain if plain.base_rows <= MAX_TRAIN_SCORE_ROWS else plain.sample(MAX_TRAIN_SCORE_ROWS)
        scored = {"train": model._score_in_detail(few, executor)}
        if test is not None:
            scored["test"] = model._score_in_detail(test, executor)
        shown = examples(train_set, model.encoding, executor)
        arrays = {f"examples_{name}": array for name, array in shown.items()}
        for part, found in scored.items():
            arrays |= {f"{part}_{name}": array for name, array in found.details.items()}
        metrics = {part: found.metrics for part, found in scored.items()}
        unseen = {} if test is None else unseen_categories(test, executor)
        return {
            "arrays": arrays, "metrics": metrics, "encoding": encoding_to_json(model.encoding), "unseen": unseen,
        }  # fmt: skip

    test_rows = None if test is None else test.fingerprint
    key = lambda: (*_model_key(pipeline, model, train_set), train_set.fingerprint, test_rows)  # noqa: E731
    found = stages.keep("evaluate", key, compute)
    for note in unseen_notes(found["unseen"], 0 if test is None else test.base_rows, "test rows"):
        stages.warn(note)
    return {"metrics": found["metrics"], "unseen_categories": found["unseen"]}


def diagnosis_stage(pipeline: Pipeline, stages: Stages, problem: Problem, model: KernelMachine) -> dict[str, Any]:
    """Compare the weights with the least-squares solution, and describe the spectrum."""
    key = lambda: (*_model_key(pipeline, model, problem.train), problem.train.fingerprint)  # noqa: E731
    return stages.keep("diagnostics", key, lambda: diagnose(problem, model.weights))


def _model_key(pipeline: Pipeline, model: KernelMachine, dataset: Dataset) -> tuple[Any, ...]:
    calibration = [] if model.calibration is None else calibration_digests(model.calibration)
    return model.weights_sha256, described(model.kernel), centers_key(pipeline, dataset), *calibration
