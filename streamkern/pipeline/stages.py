"""The stages of a run, and what each leaves behind for the next run of the same pipeline."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from streamkern.centers import CenterSet
from streamkern.data.dataset import Dataset
from streamkern.data.preprocess import Learning
from streamkern.data.quality import shuffle_warning
from streamkern.data.statistics import Statistics
from streamkern.data.targets import encoding_from_json, encoding_to_json
from streamkern.data.transforms import Transform, dump, load
from streamkern.errors import StorageError
from streamkern.events import EventLog
from streamkern.execute.base import Executor
from streamkern.kernels import Kernel
from streamkern.model import KernelMachine
from streamkern.pipeline.checkpoints import INTERVAL, Checkpoints
from streamkern.pipeline.examples import examples
from streamkern.pipeline.pipeline import Pipeline
from streamkern.solvers import Outcome, Problem, bandwidth, train
from streamkern.solvers.diagnostics import diagnose
from streamkern.solvers.fit import choose_centers, learn, require_success, statistics, steps
from streamkern.solvers.footprint import Footprint
from streamkern.solvers.metric import Metric, learn_metric
from streamkern.storage.artifact import load_artifact, save_artifact
from streamkern.storage.base import digest
from streamkern.storage.records import pack, unpack
from streamkern.types import Array
from streamkern.user_code import described

T = TypeVar("T")

version = cache(metadata.version)
"""Version of what is installed, which takes milliseconds to look up."""

TRAIN_SAMPLE = 10_000
"""Training rows, at most, that the metrics of the training set are taken over."""


KEPT = 3
"""Results of each stage that a run directory keeps."""


@dataclass(eq=False)
class Stages:
    """Runs stages in order, or takes what an earlier run left.

    Args:
        pipeline: the definition.
        executor: where blocks run.
        events: told of beginnings and ends.
        folder: where results are kept; None keeps nothing.
        timings: seconds of each stage, added to as they end.
        every: seconds between checkpoints of the training.
        reuse: whether results and checkpoints of an earlier run may be taken over.

    Attributes:
        resumed_rows: rows that an earlier run had trained on, and this one did not have to.
        median: the median distance of two rows, where a bandwidth asked for it.
    """

    pipeline: Pipeline
    executor: Executor
    events: EventLog
    folder: Path | None = None
    timings: list[dict[str, Any]] = field(default_factory=list)
    every: float = INTERVAL
    reuse: bool = True
    resumed_rows: int = 0
    median: float | None = None

    def run(
        self,
        name: str,
        key: str,
        compute: Callable[[], T],
        dump: Callable[[T], tuple[dict[str, Array], dict[str, Any]]] | None = None,
        load: Callable[[dict[str, Array], dict[str, Any]], T] | None = None,
    ) -> T:
        """The stage's result: what the same key has left, else computed, and kept if it can be dumped."""
        start = time.perf_counter()
        found = None if load is None else self._kept(name, key, load)
        if found is not None:
            self._ended(name, start, cached=True, key=key)
            return found
        self.events.emit("stage", name=name, state="begin")
        result = compute()
        kept = self.folder is not None and dump is not None
        if kept:
            assert dump is not None
            save_artifact(self._place(name, key), name, *dump(result))
        self._ended(name, start, cached=False, key=key if kept else None)
        return result

    def _kept(self, name: str, key: str, load: Callable[[dict[str, Array], dict[str, Any]], T]) -> T | None:
        """What an earlier run left for this stage under this key, or None."""
        if not self.reuse or self.folder is None or not self._place(name, key).exists():
            return None
        try:
            os.utime(self._place(name, key))
            return load(*load_artifact(self._place(name, key), name))
        except (OSError, KeyError, TypeError, ValueError) as error:
            # A damaged result costs its stage, not the run.
            reason = error.what if isinstance(error, StorageError) else f"it lacks {error}"
            self.events.emit("warning", message=f"the kept result of {name} is computed again: {reason}")
            return None

    def _place(self, name: str, key: str) -> Path:
        assert self.folder is not None
        return self.folder / _artifact(name, key)

    def prune(self) -> None:
        """Delete all but the results of each stage that were used last, so that a nightly directory does not grow."""
        if self.folder is None or not self.folder.exists():
            return
        by_name: dict[str, list[Path]] = {}
        for place in self.folder.iterdir():
            by_name.setdefault(place.name.rpartition("-")[0], []).append(place)
        for places in by_name.values():
            places.sort(key=lambda place: place.stat().st_mtime_ns)
            for place in places[:-KEPT]:
                shutil.rmtree(place, ignore_errors=True)

    def _ended(self, name: str, start: float, cached: bool, key: str | None = None) -> None:
        seconds = time.perf_counter() - start
        kept = {} if key is None else {"artifact": _artifact(name, key)}
        self.timings.append({"name": name, "seconds": seconds, "cached": cached, **kept})
        self.events.emit("stage", name=name, state="end", seconds=seconds, cached=cached)

    def learn(self, dataset: Dataset, step: Learning) -> Transform:
        """What a step of preprocessing comes to."""
        return self.run(
            f"preprocess-{step.to_json()['name'].lower()}",
            _key(_stored_rows(dataset), described(step)),
            lambda: learn(dataset, step, self.executor),
            _dump_transform,
            lambda arrays, facts: load(facts["transforms"], arrays)[0],
        )

    def statistics(self, dataset: Dataset) -> Statistics:
        """Ranges, moments and labels of the training rows."""
        task = self.pipeline.task
        return self.run(
            "statistics",
            _key(_stored_rows(dataset), task),
            lambda: statistics(dataset, self.executor, task),
            _dump_statistics,
            _load_statistics,
        )

    def metric(self, problem: Problem, kernel: Kernel) -> Metric:
        """The metric of training rows."""
        agop = self.pipeline.metric
        assert agop is not None
        key = _key(
            _stored_rows(problem.train), described(agop), described(kernel), encoding_to_json(problem.encoding),
            [self.pipeline.dtype, platform.machine()],
        )  # fmt: skip

        def dump_metric(found: Metric) -> tuple[dict[str, Array], dict[str, Any]]:
            tree, arrays = pack(found)
            return arrays, {"metric": tree}

        found = self.run(
            "metric",
            key,
            lambda: learn_metric(agop, kernel, problem),
            dump_metric,
            lambda arrays, facts: cast(Metric, unpack(facts["metric"], arrays)),
        )
        self.events.emit("choice", reason=found.reason(), metric=found.kind)
        return found

    def settled(self, dataset: Dataset) -> Pipeline:
        """The pipeline with a number for each bandwidth that is the median distance of two rows."""
        found: dict[int, float] = {}
        for norm in bandwidth.norms(self.pipeline):
            self.median = found[norm] = self._median(dataset, norm)
            in_norm = "" if norm == 2 else f" in the L{norm} norm"
            self.events.emit(
                "choice",
                reason=f"bandwidth {found[norm]:.6g}: the median distance of two rows{in_norm}",
                median=found[norm],
            )
        self.pipeline = bandwidth.at_median(self.pipeline, found)
        return self.pipeline

    def _median(self, dataset: Dataset, norm: int) -> float:
        dtype = np.dtype(self.pipeline.dtype)
        return self.run(
            "bandwidth",
            _key(_stored_rows(dataset), self.pipeline.dtype, *([] if norm == 2 else [norm])),
            lambda: bandwidth.median_distance(dataset, self.executor, dtype, norm),
            lambda distance: ({}, {"median": distance}),
            lambda _, facts: float(facts["median"]),
        )

    def centers(self, dataset: Dataset) -> CenterSet:
        """The centers; those that stay where the rows are stored are not kept again."""
        chosen, key = self.pipeline.centers, self._centers_key(dataset)

        def choose() -> CenterSet:
            return choose_centers(self.pipeline, dataset, self.executor)

        if chosen is not None and chosen.stored:
            return self.run("centers", key, choose)
        return self.run("centers", key, choose, _dump_centers, _load_centers)

    def fit(self, problem: Problem, projected: Footprint) -> tuple[Outcome, dict[str, Any]]:
        """Eigensystem and training: the outcome, and what the solver found out about its problem."""
        key = self._train_key(problem, projected)
        start = time.perf_counter()
        found = self._kept("train", key, _load_outcome)
        if found is not None:
            self._ended("eigensystem", time.perf_counter(), cached=True)  # nobody asks for it
            self._ended("train", start, cached=True, key=key)
            return found
        if self.folder is None or not self.reuse:
            return self._fit(problem, key, None)
        with Checkpoints(self.folder.parent / "checkpoints" / key[:16], self.events, self.every) as checkpoints:
            result = self._fit(problem, key, checkpoints)
            checkpoints.clear()
        return result

    def _fit(self, problem: Problem, key: str, checkpoints: Checkpoints | None) -> tuple[Outcome, dict[str, Any]]:
        solver = self.pipeline.solver
        begun = time.perf_counter()
        start, prepared = (checkpoints and checkpoints.latest()) or (None, None)
        if prepared is None:
            iteration = self.run("eigensystem", key, lambda: solver.setup(problem))
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

        def compute() -> tuple[Outcome, dict[str, Any]]:
            self.events.emit("solver", **iteration.report)
            batch = iteration.report.get("batch")
            if message := shuffle_warning(problem.train, problem.mix_chunks, problem.lanes, batch):
                self.events.emit("warning", message=message)
            outcome = train(
                problem,
                iteration,
                patience=solver.patience,
                on_step=lambda progress: self.events.emit("step", **vars(progress)),
                start=start,
                keeper=checkpoints,
            )
            if outcome.failure is not None and checkpoints is not None:
                checkpoints.clear()  # going on from there would end there again
            require_success(outcome)
            return outcome, iteration.report

        return self.run("train", key, compute, _dump_outcome)

    def evaluate(self, model: KernelMachine, train_set: Dataset) -> dict[str, Any]:
        """Metrics of the model on a sample of the training rows, and on the test rows.

        Kept beside them for reports: confusion counts or a sample of predictions, and a few rows as training saw them.
        """
        test = self.pipeline.test
        if test is not None and steps(self.pipeline):
            test = test.prepared_like(train_set)

        def compute() -> tuple[dict[str, Array], dict[str, Any]]:
            plain = train_set.plain()
            few = plain if plain.base_rows <= TRAIN_SAMPLE else plain.sample(TRAIN_SAMPLE)
            scored = {"train": model.score_in_detail(few, self.executor)}
            if test is not None:
                scored["test"] = model.score_in_detail(test, self.executor)
            shown = examples(train_set, model.encoding, self.executor)
            arrays = {f"examples_{name}": array for name, array in shown.items()}
            for part, found in scored.items():
                details = {"confusion": found.confusion, "actual": found.actual, "predicted": found.predicted}
                arrays |= {f"{part}_{name}": array for name, array in details.items() if array is not None}
            metrics = {part: found.metrics for part, found in scored.items()}
            return arrays, {"metrics": metrics, "encoding": encoding_to_json(model.encoding)}

        key = _key(
            model.weights_sha256,
            described(model.kernel),
            self._centers_key(train_set),
            train_set.fingerprint,
            None if test is None else test.fingerprint,
        )
        found = self.run("evaluate", key, compute, lambda kept: kept, lambda arrays, facts: (arrays, facts))
        return cast(dict[str, Any], found[1]["metrics"])

    def diagnose(self, problem: Problem, model: KernelMachine) -> dict[str, Any]:
        """Where the weights stand against least squares, and the spectrum."""
        key = _key(
            model.weights_sha256, described(model.kernel), self._centers_key(problem.train), problem.train.fingerprint
        )
        return self.run(
            "diagnostics",
            key,
            lambda: diagnose(problem, model.weights),
            lambda found: ({}, found),
            lambda _, found: found,
        )

    def _centers_key(self, dataset: Dataset) -> str:
        return _key(
            _stored_rows(dataset),
            described(self.pipeline.centers),
            self.pipeline.dtype,
        )

    def _train_key(self, problem: Problem, projected: Footprint) -> str:
        pipe = self.pipeline
        return _key(
            problem.train.fingerprint,
            None if problem.validation is None else problem.validation.fingerprint,
            encoding_to_json(problem.encoding),
            self._centers_key(problem.train),
            described(problem.kernel),
            described(pipe.features),
            described(pipe.solver),
            [pipe.seed, pipe.lanes, pipe.dtype, projected.bill.choice, problem.mix_chunks],
            platform.machine(),
        )


def _key(*parts: Any) -> str:
    """Digest of what a result depends on: the parts, and the release of this library."""
    return digest(version("streamkern"), *parts)


def _artifact(name: str, key: str) -> str:
    """The folder's name of a stage's result."""
    return f"{name}-{key[:16]}"


def _stored_rows(dataset: Dataset) -> str:
    """Digest of the stored rows that take part and their scaling, whatever varies them in training."""
    return replace(dataset.plain(), seed=0).fingerprint


def _dump_transform(made: Transform) -> tuple[dict[str, Array], dict[str, Any]]:
    described, arrays = dump((made,))
    return arrays, {"transforms": described}


def _dump_statistics(facts: Statistics) -> tuple[dict[str, Array], dict[str, Any]]:
    arrays = {"low": facts.low, "high": facts.high, "mean": facts.mean, "variance": facts.variance}
    labels = [[label, count] for label, count in facts.labels.items()]
    found = {"n": facts.n, "labels": labels, "encoding": encoding_to_json(facts.encoding)}
    return arrays, {**found, "weights": [facts.mean_weight, facts.largest_weight]}


def _load_statistics(arrays: dict[str, Array], data: dict[str, Any]) -> Statistics:
    labels = {label: count for label, count in data["labels"]}
    encoding = encoding_from_json(data["encoding"])
    low, high, mean, variance = (arrays[name] for name in ("low", "high", "mean", "variance"))
    return Statistics(data["n"], low, high, mean, variance, labels, encoding, *data["weights"])


def _dump_centers(centers: CenterSet) -> tuple[dict[str, Array], dict[str, Any]]:
    assert isinstance(centers.Z, np.ndarray)
    return {"Z": centers.Z} | ({} if centers.ids is None else {"ids": centers.ids}), {}


def _load_centers(arrays: dict[str, Array], facts: dict[str, Any]) -> CenterSet:
    return CenterSet(arrays["Z"], arrays.get("ids"))


def _dump_outcome(result: tuple[Outcome, dict[str, Any]]) -> tuple[dict[str, Array], dict[str, Any]]:
    outcome, report = result
    facts = {name: getattr(outcome, name) for name in ("passes", "rows", "seconds", "wait", "history")}
    return {"weights": outcome.weights}, {"outcome": facts, "report": report}


def _load_outcome(arrays: dict[str, Array], data: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
    return Outcome(arrays["weights"], **data["outcome"]), data["report"]
