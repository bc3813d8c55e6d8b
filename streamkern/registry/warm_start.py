"""Warm start of a pipeline from a champion with suitable weights, centers and scaling."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from streamkern.centers import Given
from streamkern.data.targets import Classes, Continuous, Encoding
from streamkern.defaults import WARM_START_DIVISOR
from streamkern.errors import UnlikeChampionError
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.fitting.recipe import AUTO
from streamkern.kernels.radial import MEDIAN, OPEN
from streamkern.models.cut_tree import Partition
from streamkern.models.kernel_machine import KernelMachine
from streamkern.models.partitioned_machine import PartitionedMachine
from streamkern.partition.champion_cuts import from_champion, settings_digest
from streamkern.partition.one_or_leaves import with_rows_per_leaf
from streamkern.preprocessing.automatic_steps import JoinQuantiles
from streamkern.preprocessing.category_steps import TargetEncode
from streamkern.preprocessing.steps import Units
from streamkern.runs.pipeline_definition import Pipeline
from streamkern.solvers import EigenPro, Iteration, Problem
from streamkern.solvers.batch_size import passes_of
from streamkern.solvers.eigenpro import ProjectedState
from streamkern.storage.artifact import sha256
from streamkern.types import Array


@dataclass(frozen=True, eq=False)
class WarmEigenPro(EigenPro):
    """EigenPro that projects every step, from weights ``start`` (p, c) of targets encoded by ``encoding``."""

    start: Array | None = None
    encoding: Encoding | None = None

    def to_json(self) -> dict[str, Any]:
        given = {name: value for name, value in asdict(self).items() if name not in ("start", "encoding")}
        return {"name": "EigenPro", **given, "start": sha256(np.asarray(self.start))}

    def setup(self, problem: Problem, prepared: Any = None) -> Any:
        """As ``EigenPro``, from the given weights; UnlikeChampionError if their classes or outputs are others."""
        assert self.start is not None
        if problem.engine.decide(False, bound=True):  # a plan: weights of any value cost the same as zeros
            return super().setup(problem, prepared)
        given = problem.encoding
        if isinstance(given, Classes) and isinstance(self.encoding, Classes):
            fits = np.array_equal(given.values, self.encoding.values)
        else:
            fits = given.outputs == self.start.shape[1]
        if not fits:
            raise UnlikeChampionError(
                "The classes are not those of the champion.",
                where="the target",
                expected="the champion's classes",
                remedy="train from the start: --cold",
            )
        start = self.start
        if isinstance(given, Continuous) and isinstance(self.encoding, Continuous):
            start = start * (self.encoding.unit / np.asarray(given.unit))  # powers of two: exact
        return _Warm(cast(Iteration, super().setup(problem, prepared)), start)


class _Warm:
    def __init__(self, iteration: Iteration, start: Array) -> None:
        self._iteration, self._start = iteration, start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iteration, name)

    def init(self) -> ProjectedState:
        zero = self._iteration.init()
        alpha = self._start.astype(zero.alpha.dtype)
        # As after a training of WARM_START_DIVISOR times the length: the average continues instead of starting again.
        taken = WARM_START_DIVISOR * self._iteration.epochs * self._iteration.stream.steps
        return ProjectedState(alpha, alpha.astype(np.float64), taken, alpha)


def with_warm_start(pipeline: Pipeline, champion: KernelMachine) -> tuple[Pipeline, str | None]:
    """Return the pipeline with a warm start from the champion; or unchanged, with the reason for a cold start.

    A pipeline with ``dtype="auto"`` goes on in the champion's dtype; one with ``partition="auto"``, as one model.
    """
    if pipeline.dtype == AUTO:
        begun, reason = with_warm_start(replace(pipeline, dtype=champion.Z.dtype.name), champion)
        return (begun, None) if reason is None else (pipeline, reason)
    if pipeline.partition not in (None, AUTO):
        return _warm_leaves(pipeline, pipeline.partition, champion)
    reason = _obstacle(pipeline, champion)
    if reason is not None:
        return pipeline, reason
    solver, train = cast(EigenPro, pipeline.solver), pipeline.train
    given = {name: value for name, value in vars(solver).items()}
    passes = passes_of(len(train), solver.epochs)
    if passes >= WARM_START_DIVISOR:
        given["epochs"] = passes // WARM_START_DIVISOR
    else:
        train, given["epochs"] = train.augment(rows=max(1, passes * len(train) // WARM_START_DIVISOR)), 1
    return replace(
        pipeline,
        train=train,
        kernel=champion.kernel,
        centers=Given(champion.Z + np.asarray(champion.origin) if np.any(champion.origin) else np.asarray(champion.Z)),
        solver=WarmEigenPro(**given, start=champion.weights, encoding=champion.encoding),
    ), None


def _obstacle(pipeline: Pipeline, champion: KernelMachine) -> str | None:
    if type(pipeline.solver) is not EigenPro or pipeline.solver.projection == "delayed":
        return "only EigenPro that projects every step takes a start"
    if any(not isinstance(step, Units | JoinQuantiles) for step in preprocessing_steps(pipeline)):
        return "the scaling is learnt from the rows, and the champion's centers are in its own"
    if pipeline.metric is not None:
        return "the metric is learnt from the rows, and the champion's centers are in its own"
    if champion.encoding.kind != pipeline.task or not champion.encoding.least_squares:
        return "the champion predicts something else"
    train = pipeline.train
    if (
        champion.transforms
        or train.transforms
        or not np.array_equal(train.factor, champion.factor)
        or not np.array_equal(train.shift, champion.shift)
    ):
        return "the scaling differs from the champion's"
    if train.source.columns != champion.columns or train.n_features != champion.n_features:
        return "the columns differ from the champion's"
    if pipeline.features is not None or not isinstance(champion.Z, np.ndarray) or champion.features is not None:
        return "the model is not one of kernel values at centers in memory"
    if pipeline.centers is None or pipeline.centers.count(train) != len(champion.Z):
        return "the number of centers differs from the champion's"
    if pipeline.kernel is not None and not _is_requested_kernel(pipeline.kernel.to_json(), champion.kernel.to_json()):
        return "the kernel differs from the champion's"
    if champion.Z.dtype != np.dtype(pipeline.dtype):
        return "the dtype differs from the champion's"
    return None


def _warm_leaves(pipeline: Pipeline, partition: Partition, champion: KernelMachine) -> tuple[Pipeline, str | None]:
    """Return the pipeline with the champion's preprocessing and cuts, to train only leaves whose rows changed."""
    if not isinstance(champion, PartitionedMachine):
        return pipeline, "the champion is one model, without leaves"
    if any(isinstance(step, TargetEncode) for step in preprocessing_steps(pipeline)):
        return pipeline, "categories are encoded by means of the targets, which are those of all rows"
    if pipeline.class_weight is not None or pipeline.threshold is not None:
        return pipeline, "weights of classes and the threshold are those of all rows"
    wanted, _ = with_rows_per_leaf(pipeline)
    if wanted.partition is None:
        return pipeline, "the champion has leaves, and one model has all rows"
    if champion.metadata.get("partition", {}).get("request") != settings_digest(wanted, wanted.partition):
        return pipeline, "preprocessing, kernel, metric or partition differ from the champion's"
    if pipeline.train.source.columns != champion.columns:
        return pipeline, "the columns differ from the champion's"
    return replace(pipeline, partition=from_champion(partition, champion)), None


def _is_requested_kernel(wanted: Any, found: Any) -> bool:
    """Return True if a described kernel is the requested one; what the champion's rows chose counts as requested."""
    if wanted in (MEDIAN, OPEN):
        return isinstance(found, float)
    if isinstance(wanted, dict) and isinstance(found, dict):
        if wanted.get("bandwidth") == OPEN:
            wanted, found = ({name: part[name] for name in part if name != "norm"} for part in (wanted, found))
        return wanted.keys() == found.keys() and all(_is_requested_kernel(wanted[name], found[name]) for name in wanted)
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        return len(wanted) == len(found) and all(map(_is_requested_kernel, wanted, found))
    return bool(wanted == found)
