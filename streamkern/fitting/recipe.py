"""The parameters of a fit: one value, of a pipeline, an estimator, a leaf or a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamkern.centers import Centers
from streamkern.data.class_weights import ClassWeight
from streamkern.data.dataset import Dataset
from streamkern.kernels import FeatureMap, Kernel
from streamkern.preprocessing.steps import AUTOMATIC, Step
from streamkern.selection.learned_metric import AGOP
from streamkern.solvers.base import Solver

AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Recipe:
    """The parameters of a fit, as ``Pipeline`` describes them; what is ``"auto"`` is decided before the fit.

    Attributes:
        train: training rows with a target.
        kernel: the kernel; None for the one that ``choose_kernel`` chooses.
        centers: the choice of centers; None for features that need none, or for the default.
        solver: the method that finds the weights.
        features: the feature map; None for kernel values at centers.
        test: rows that the trained model is scored on, or None.
        validation: rows to stop early on, or None.
        task: ``classification`` or ``regression``.
        preprocess: steps of preprocessing, in order; ``auto``; or None.
        scaling: ``standard`` if every feature has mean 0 and variance 1 after the last step; ``auto``; or None.
        seed: of the order of rows.
        lanes: blocks of a step.
        dtype: ``float32`` or ``float64``.
        diagnose: whether the weights are compared with the least-squares solution at the end.
        metric: the metric to learn on the features before the kernel, or None.
        partition: the cut of the rows into leaves; None for one model of all rows.
        class_weight: ``"balanced"``, weights of rows by their label, or None.
        threshold: the metric that a threshold between two classes is chosen for, or None.
    """

    train: Dataset
    kernel: Kernel | Any = None
    centers: Centers | Any = None
    solver: Solver | Any = AUTO
    features: FeatureMap | None = None
    test: Dataset | None = None
    validation: Dataset | Any = None
    task: str = "classification"
    preprocess: tuple[Step, ...] | Any = AUTOMATIC
    scaling: str | None = AUTO
    seed: int = 0
    lanes: int = 4
    dtype: str = AUTO
    diagnose: bool = False
    metric: AGOP | None = None
    partition: Any = AUTO
    class_weight: ClassWeight = None
    threshold: str | None = None
