"""The stages of a run, and what each leaves behind for the next run of the same pipeline."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from streamkern.centers import CenterSet
from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Statistics
from streamkern.data.targets import encoding_from_json, encoding_to_json
from streamkern.errors import StorageError
from streamkern.events import EventLog
from streamkern.execute.base import Executor
from streamkern.model import KernelMachine
from streamkern.pipeline.pipeline import Pipeline
from streamkern.solvers import Outcome, Problem, Progress, train
from streamkern.solvers.fit import require_success, standardise, statistics
from streamkern.solvers.footprint import Footprint
from streamkern.storage.artifact import load_artifact, save_artifact
from streamkern.storage.base import digest
from streamkern.types import Array

T = TypeVar("T")

TRAIN_SAMPLE = 10_000
"""Training rows, at most, that the metrics of the training set are taken over."""


@dataclass(eq=False)
class Stages:
    """Runs stages in order, or takes what an earlier run left.

    Args:
        pipeline: the definition.
        executor: where blocks run.
        events: told of beginnings and ends.
        folder: where results are kept; None keeps nothing.
    """

    pipeline: Pipeline
    executor: Executor
    events: EventLog
    folder: Path | None = None
    timings: list[dict[str, Any]] = field(default_factory=list)

    def run(
        self,
        name: str,
        key: str,
        compute: Callable[[], T],
        dump: Callable[[T], tuple[dict[str, Array], dict[str, Any]]] | None = None,
        load: Callable[[dict[str, Array], dict[str, Any]], T] | None = None,
    ) -> T:
        """The stage's result: loaded where the same key has one, else computed, and kept where it can be dumped."""
        start = time.perf_counter()
        self.events.emit("stage", name=name, state="begin")
        place = None if self.folder is None or dump is None else self.folder / f"{name}-{key[:16]}"
        result: T | None = None
        cached = False
        if place is not None and load is not None and place.exists():
            try:
                result, cached = load(*load_artifact(place, name)), True
            except StorageError as error:
                # A damaged result costs its stage, not the run.
                self.events.emit("warning", message=f"the kept result of {name} is computed again: {error.what}")
        if result is None:
            result = compute()
            if place is not None and dump is not None:
                save_artifact(place, name, *dump(result))
        seconds = time.perf_counter() - start
        self.timings.append({"name": name, "seconds": seconds, "cached": cached})
        self.events.emit("stage", name=name, state="end", seconds=seconds, cached=cached)
        return result

    def statistics(self, dataset: Dataset) -> Statistics:
        """Ranges, moments and labels of the training rows."""
        task = self.pipeline.task
        return self.run(
            "statistics",
            digest(dataset.plain().fingerprint, task),
            lambda: statistics(dataset, self.executor, task),
            _dump_statistics,
            _load_statistics,
        )

    def prepared(self, facts: Statistics) -> tuple[Dataset, Dataset | None, Dataset | None]:
        """Training, validation and test rows, standardised if the pipeline says so."""
        given = (self.pipeline.train, self.pipeline.validation, self.pipeline.test)
        if not self.pipeline.standardise:
            return given
        scaled = standardise(self.pipeline.train, facts)
        validation, test = (
            None if dataset is None else replace(dataset, factor=scaled.factor, shift=scaled.shift)
            for dataset in given[1:]
        )
        return scaled, validation, test

    def centers(self, dataset: Dataset) -> CenterSet:
        """The centers."""
        dtype = np.dtype(self.pipeline.dtype)
        return self.run(
            "centers",
            self._centers_key(dataset),
            lambda: self.pipeline.centers.choose(dataset, self.executor, dtype),
            lambda c: ({"Z": c.Z} | ({} if c.ids is None else {"ids": c.ids}), {}),
            lambda arrays, _: CenterSet(arrays["Z"], arrays.get("ids")),
        )

    def fit(self, problem: Problem, fits: Footprint) -> tuple[Outcome, dict[str, Any]]:
        """Eigensystem and training: the outcome, and what the solver found out about its problem."""
        key = self._train_key(problem, fits)
        kept = self.folder is not None and (self.folder / f"train-{key[:16]}").exists()
        solver = self.pipeline.solver
        iteration = None if kept else self.run("eigensystem", key, lambda: solver.setup(problem))
        if iteration is None:
            self.timings.append({"name": "eigensystem", "seconds": 0.0, "cached": True})

        def compute() -> tuple[Outcome, dict[str, Any]]:
            ready = solver.setup(problem) if iteration is None else iteration

            def on_step(progress: Progress) -> None:
                self.events.emit("step", **vars(progress))

            self.events.emit("solver", **ready.report)
            outcome = train(problem, ready, patience=solver.patience, on_step=on_step)
            require_success(outcome)
            return outcome, ready.report

        return self.run("train", key, compute, _dump_outcome, _load_outcome)

    def evaluate(self, model: KernelMachine, key: str, train_set: Dataset, test: Dataset | None) -> dict[str, Any]:
        """Metrics of the model on a sample of the training rows, and on the test rows."""

        def compute() -> dict[str, Any]:
            plain = train_set.plain()
            few = plain if plain.base_rows <= TRAIN_SAMPLE else plain.sample(TRAIN_SAMPLE)
            metrics = {"train": model.score(few, executor=self.executor)}
            if test is not None:
                metrics["test"] = model.score(test, executor=self.executor)
            return metrics

        tests = None if test is None else test.fingerprint
        return self.run("evaluate", digest(key, tests), compute, lambda m: ({}, m), lambda _, m: m)

    def _centers_key(self, dataset: Dataset) -> str:
        return digest(dataset.plain().fingerprint, self.pipeline.centers.to_json(), self.pipeline.dtype)

    def _train_key(self, problem: Problem, fits: Footprint) -> str:
        pipe = self.pipeline
        kind = pipe.solver.chosen_projection(len(problem.centers.Z), problem.dtype.itemsize, fits.solver_bytes)
        return digest(
            problem.train.fingerprint,
            None if problem.validation is None else problem.validation.fingerprint,
            encoding_to_json(problem.encoding),
            self._centers_key(problem.train),
            pipe.kernel.to_json(),
            pipe.solver.to_json(),
            [pipe.seed, pipe.lanes, pipe.dtype, kind, problem.run_rows],
            platform.machine(),
        )


def _dump_statistics(facts: Statistics) -> tuple[dict[str, Array], dict[str, Any]]:
    arrays = {"low": facts.low, "high": facts.high, "mean": facts.mean, "variance": facts.variance}
    labels = [[label, count] for label, count in facts.labels.items()]
    return arrays, {"n": facts.n, "labels": labels, "encoding": encoding_to_json(facts.encoding)}


def _load_statistics(arrays: dict[str, Array], data: dict[str, Any]) -> Statistics:
    labels = {label: count for label, count in data["labels"]}
    encoding = encoding_from_json(data["encoding"])
    return Statistics(
        data["n"], arrays["low"], arrays["high"], arrays["mean"], arrays["variance"], labels, encoding
    )


def _dump_outcome(result: tuple[Outcome, dict[str, Any]]) -> tuple[dict[str, Array], dict[str, Any]]:
    outcome, report = result
    facts = {name: getattr(outcome, name) for name in ("passes", "rows", "seconds", "wait", "history")}
    return {"weights": outcome.weights}, {"outcome": facts, "report": report}


def _load_outcome(arrays: dict[str, Array], data: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
    return Outcome(arrays["weights"], **data["outcome"]), data["report"]
