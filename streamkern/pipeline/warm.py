"""A warm start: EigenPro from the champion's weights, at the champion's centers and in its scaling."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from streamkern.centers import Given
from streamkern.data.preprocess import Units
from streamkern.data.targets import Classes, Encoding
from streamkern.errors import UsageError
from streamkern.kernels.radial import MEDIAN
from streamkern.model import KernelMachine
from streamkern.pipeline.pipeline import Pipeline
from streamkern.solvers import EigenPro, Problem
from streamkern.solvers.base import Iteration
from streamkern.solvers.eigenpro import ProjectedState
from streamkern.solvers.fit import steps
from streamkern.storage.artifact import sha256
from streamkern.types import Array

SHARE = 3
"""A warm start takes this part of the cold one's rows."""


class UnlikeChampionError(UsageError):
    """Only reading the rows has shown that the champion's weights do not fit them."""


@dataclass(frozen=True, eq=False)
class WarmEigenPro(EigenPro):
    """EigenPro that projects every step, from given weights instead of 0.

    Args:
        start: weights, shape (p, c).
        encoding: of the targets that they were fitted to.
    """

    start: Array | None = None
    encoding: Encoding | None = None

    def to_json(self) -> dict[str, Any]:
        """Name and parameters, with a digest of the weights."""
        given = {name: value for name, value in asdict(self).items() if name not in ("start", "encoding")}
        return {"name": "EigenPro", **given, "start": sha256(np.asarray(self.start))}

    def setup(self, problem: Problem, prepared: Any = None) -> Any:
        """As ``EigenPro``; the first state holds the given weights.

        Raises:
            UnlikeChampionError: the classes, or the number of outputs, are not those of the weights.
        """
        assert self.start is not None
        if problem.engine.decide(False, bound=True):  # a plan: weights of any value take what zeros take
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
                remedy="begin anew: --cold",
            )
        return _Warm(cast(Iteration, super().setup(problem, prepared)), self.start)


class _Warm:
    """An iteration with another first state."""

    def __init__(self, iteration: Iteration, start: Array) -> None:
        self._iteration, self._start = iteration, start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iteration, name)

    def init(self) -> ProjectedState:
        """The given weights."""
        zero = self._iteration.init()
        alpha = self._start.astype(zero.alpha.dtype)
        # As after a training that was SHARE times as long: the average goes on rather than begins.
        taken = SHARE * self._iteration.epochs * self._iteration.stream.steps
        return ProjectedState(alpha, alpha.astype(np.float64), taken, alpha)


def warm(pipeline: Pipeline, champion: KernelMachine) -> tuple[Pipeline, str | None]:
    """The pipeline that goes on from the champion; or as it is, and why it must begin anew.

    Args:
        pipeline: the definition.
        champion: the model in use.
    """
    reason = _obstacle(pipeline, champion)
    if reason is not None:
        return pipeline, reason
    solver, train = cast(EigenPro, pipeline.solver), pipeline.train
    given = {name: value for name, value in vars(solver).items()}
    if solver.epochs >= SHARE:
        given["epochs"] = solver.epochs // SHARE
    else:
        train, given["epochs"] = train.augment(rows=max(1, solver.epochs * len(train) // SHARE)), 1
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
    if any(not isinstance(step, Units) for step in steps(pipeline)):
        return "the scaling is learnt from the rows, and the champion's centers are in its own"
    if champion.encoding.kind != pipeline.task:
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
    if pipeline.kernel is not None and not _comes_to(pipeline.kernel.to_json(), champion.kernel.to_json()):
        return "the kernel differs from the champion's"
    if champion.Z.dtype != np.dtype(pipeline.dtype):
        return "the dtype differs from the champion's"
    return None


def _comes_to(asked: Any, found: Any) -> bool:
    """Whether a described kernel is what was asked for: the champion's own median distance is one, and goes on."""
    if asked == MEDIAN:
        return isinstance(found, float)
    if isinstance(asked, dict) and isinstance(found, dict):
        return asked.keys() == found.keys() and all(_comes_to(asked[name], found[name]) for name in asked)
    if isinstance(asked, list | tuple) and isinstance(found, list | tuple):
        return len(asked) == len(found) and all(map(_comes_to, asked, found))
    return bool(asked == found)
