"""What the leaves of a partition share, and how the stages of a leaf are carried out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from streamkern.centers import Uniform
from streamkern.data import from_arrays
from streamkern.data.dataset import Dataset
from streamkern.data.targets import Encoding
from streamkern.defaults import MAX_LEAF_SEARCH_WORK_RATIO, MIN_LEAF_METRIC_ROWS
from streamkern.fitting.recipe import Recipe
from streamkern.fitting.stage import Runner
from streamkern.kernels import Kernel
from streamkern.models.cut_tree import leaf_centers, max_full_kernel_rows
from streamkern.partition.joint_calibration import held_out_rows_of_leaf
from streamkern.selection.kernel_search import with_ridge
from streamkern.solvers.base import Solver

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LeafSettings:
    """What all leaves share.

    Attributes:
        recipe: of a leaf, without rows. One thread computes it, in one lane.
        held_out_rows: rows that each leaf leaves out for the whole model's probabilities or intervals, at most.
        ridge: λ that was chosen for all leaves, and the rows that it was found on; or None.
        full_kernel_limit: rows of a leaf up to which all of them are centers, where none are given.
    """

    recipe: Recipe
    held_out_rows: int = 0
    encoding: Encoding | None = None
    full_kernel_limit: int = 0
    ridge: tuple[float, int] | None = None

    @classmethod
    def of(cls, recipe: Recipe) -> LeafSettings:
        """Take kernel, centers, solver and metric, without rows; these have the weights of classes."""
        leaf = Recipe(
            from_arrays(np.empty((0, 1))), recipe.kernel, recipe.centers, recipe.solver, task=recipe.task,
            preprocess=(), scaling=None, seed=recipe.seed, lanes=1, dtype=recipe.dtype, metric=recipe.metric,
            partition=None,
        )  # fmt: skip
        # Leaves that a sample of the rows cuts may have a tenth more.
        return cls(leaf, full_kernel_limit=11 * max_full_kernel_rows(recipe.train.base_rows) // 10)

    def with_calibration(self, whole: Recipe, leaves: int, encoding: Encoding, wanted: bool) -> LeafSettings:
        """Leave rows out of each leaf, where the whole is to have probabilities or intervals."""
        calibrated = whole.validation is not None and whole.task == "classification"
        rows = 0 if calibrated or not wanted else held_out_rows_of_leaf(whole.task, leaves, encoding.outputs)
        return replace(self, held_out_rows=rows, encoding=encoding)

    def chosen(self, kernel: Kernel, ridge: float, rows: int) -> LeafSettings:
        """Return settings with a kernel and a ridge that were chosen for all leaves, on so many rows."""
        return replace(self, recipe=replace(self.recipe, kernel=kernel), ridge=(ridge, rows))

    def with_ridge(self, solver: Solver, n: int) -> Solver:
        """Return a solver for n rows with the chosen ridge, where its own is left open: noise asks for λ n."""
        if self.ridge is None:
            return solver
        ridge, rows = self.ridge
        return with_ridge(solver, ridge * min(1.0, rows / n))

    def on(self, train: Dataset) -> Recipe:
        """Return the recipe on a leaf's rows; where there are fewer of them than centers, each is a center."""
        n, recipe = train.base_rows, self.recipe
        centers = recipe.centers or leaf_centers(n, self.full_kernel_limit, recipe.seed)
        if isinstance(centers, Uniform):
            centers = replace(centers, p=min(centers.p, n))
        metric = recipe.metric if n >= MIN_LEAF_METRIC_ROWS else None
        return replace(recipe, train=train, centers=centers, metric=metric)


class LeafRunner(Runner):
    """Carries out the stages of a leaf, keeping its solver's warnings: rows were looked at with all others."""

    search_share = MAX_LEAF_SEARCH_WORK_RATIO
    calibrates_classes = False  # one calibration of probabilities is made of all leaves' rows

    def __init__(self, held_out_rows: int = 0) -> None:
        super().__init__()
        self.held_out_rows = held_out_rows
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)

    def training(self, fit: Any) -> None:
        self.messages.clear()
