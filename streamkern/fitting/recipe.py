"""The parameters of a fit, of a pipeline or an estimator."""

from __future__ import annotations

from typing import Protocol

from streamkern.centers import Centers
from streamkern.data.class_weights import ClassWeight
from streamkern.data.dataset import Dataset
from streamkern.kernels import FeatureMap, Kernel
from streamkern.preprocessing.steps import Step
from streamkern.selection.learned_metric import AGOP
from streamkern.solvers.base import Solver


class Recipe(Protocol):
    """The parameters of a fit. A ``Pipeline`` is one, and an estimator makes one."""

    @property
    def train(self) -> Dataset:
        """Training rows with a target."""

    @property
    def validation(self) -> Dataset | None:
        """Rows to stop early on, or None."""

    @property
    def test(self) -> Dataset | None:
        """Rows that the trained model is scored on, or None."""

    @property
    def kernel(self) -> Kernel | None:
        """The kernel; None for the one that ``choose_kernel`` chooses."""

    @property
    def centers(self) -> Centers | None:
        """The choice of centers; None for features that need none."""

    @property
    def features(self) -> FeatureMap | None:
        """The feature map; None for kernel values at centers."""

    @property
    def solver(self) -> Solver:
        """The method that finds the weights."""

    @property
    def task(self) -> str:
        """``classification`` or ``regression``."""

    @property
    def preprocess(self) -> tuple[Step, ...] | str | None:
        """Steps of preprocessing, in order; ``auto``; or None."""

    @property
    def metric(self) -> AGOP | None:
        """The metric to learn on the features before the kernel; None for none."""

    @property
    def scaling(self) -> str | None:
        """``standard`` if every feature has mean 0 and variance 1 after the last step; ``auto``; or None."""

    @property
    def seed(self) -> int:
        """Seed of the order of rows."""

    @property
    def lanes(self) -> int:
        """Blocks of a step."""

    @property
    def dtype(self) -> str:
        """``float32`` or ``float64``, or ``auto`` until it is decided."""

    @property
    def class_weight(self) -> ClassWeight:
        """``"balanced"``, weights of rows by their label, or None."""

    @property
    def threshold(self) -> str | None:
        """The metric that a threshold between two classes is chosen for, or None."""
