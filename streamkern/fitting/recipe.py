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
from streamkern.solvers.lbfgs import Loss

AUTO = "auto"


@dataclass(frozen=True, eq=False)
class Recipe:
    """The parameters of a fit, as ``Pipeline`` describes them; what is ``"auto"`` is decided before the fit.

    Here a kernel of None is the one that ``choose_kernel`` chooses; centers are None for features that need none, or
    for the default; and ``diagnose`` compares the weights with the least-squares solution at the end.
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
    loss: Loss | None = None
