"""The result of a fit."""

from __future__ import annotations

from typing import Any, NamedTuple

from streamkern.calibration.serialization import Calibration
from streamkern.costs.footprint import Footprint
from streamkern.data.targets import Encoding
from streamkern.fitting.calibrate import with_decision_rule
from streamkern.preprocessing.feature_origins import Features
from streamkern.selection.kernel_search import KernelChoice
from streamkern.selection.learned_metric import Metric
from streamkern.solvers.base import Problem
from streamkern.solvers.loop import Outcome


class Fitted(NamedTuple):
    """Result of a fit: the problem as it was solved, and its outcome; of a partition, the model.

    Attributes:
        median: the median distance of two rows, if a bandwidth depends on it.
        columns: the features that the metric is of, or None.
        choice: the kernel that was chosen where none was given, or None.
    """

    problem: Problem
    outcome: Outcome
    report: dict[str, Any]
    footprint: Footprint
    median: float | None = None
    metric: Metric | None = None
    columns: Features | None = None
    choice: KernelChoice | None = None
    calibration: Calibration | None = None
    model: Any = None

    @property
    def encoding(self) -> Encoding:
        """The encoding from targets to numbers and from outputs to predictions, with a chosen threshold."""
        return with_decision_rule(self.problem.encoding, self.calibration)
