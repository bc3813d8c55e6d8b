"""A warm start: EigenPro from given weights instead of 0."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from streamkern.data.targets import Classes, Continuous, Encoding
from streamkern.errors import UsageError
from streamkern.solvers.base import Iteration, Problem
from streamkern.solvers.eigenpro import EigenPro
from streamkern.solvers.shared_centers import ProjectedState
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
        given = {name: value for name, value in asdict(self).items() if name not in ("start", "encoding")}
        return {"name": "EigenPro", **given, "start": sha256(np.asarray(self.start))}

    def setup(self, problem: Problem, prepared: Any = None) -> Any:
        """As ``EigenPro``; the first state holds the given weights.

        Raises:
            UnlikeChampionError: the classes, or the number of outputs, are not those of the weights.
        """
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
    """An iteration with another first state."""

    def __init__(self, iteration: Iteration, start: Array) -> None:
        self._iteration, self._start = iteration, start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iteration, name)

    def init(self) -> ProjectedState:
        """The given weights."""
        zero = self._iteration.init()
        alpha = self._start.astype(zero.alpha.dtype)
        # As after a training of SHARE times the length: the average continues instead of starting again.
        taken = SHARE * self._iteration.epochs * self._iteration.stream.steps
        return ProjectedState(alpha, alpha.astype(np.float64), taken, alpha)
