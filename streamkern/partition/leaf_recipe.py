"""The recipe of every leaf of a partition, and how its stages are carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from streamkern.centers import Centers, Uniform
from streamkern.costs.footprint import Footprint
from streamkern.data import from_arrays
from streamkern.data.dataset import Dataset
from streamkern.data.targets import Classes, Encoding, Indicators
from streamkern.fitting.fit import Key, Stages
from streamkern.fitting.recipe import Recipe
from streamkern.kernels import FeatureMap, Kernel
from streamkern.models.cut_tree import MAX_LEAF_SEARCH_WORK_RATIO, Partition, leaf_centers, max_full_kernel_rows
from streamkern.partition.joint_calibration import held_out_rows_of_leaf
from streamkern.selection.kernel_search import KernelChoice, with_ridge
from streamkern.selection.learned_metric import AGOP
from streamkern.selection.median_bandwidth import needs_median
from streamkern.solvers.base import Problem, Solver
from streamkern.solvers.loop import Outcome
from streamkern.solvers.ridge import is_factorable

T = TypeVar("T")

MIN_METRIC_ROWS = 100
"""Rows of a leaf below which no metric is learned."""


class PartitionRecipe(Recipe, Protocol):
    """A recipe that may say how rows are cut."""

    @property
    def partition(self) -> Partition | None:
        """The cut of rows into leaves; None for one model of all rows."""


@dataclass(frozen=True, eq=False)
class LeafRecipe:
    """Parameters of every leaf: a ``fitting.recipe.Recipe`` once it has rows. One thread computes it, in one lane."""

    train: Dataset
    kernel: Kernel | None
    centers: Centers | None
    solver: Solver | Any
    task: str
    metric: AGOP | None
    seed: int
    lanes: int
    dtype: str
    validation: Dataset | None = None
    test: Dataset | None = None
    features: FeatureMap | None = None
    preprocess: tuple[Any, ...] = ()
    scaling: str | None = None
    threshold: None = None
    class_weight: None = None  # leaves are given it in the weights of their rows
    held_out_rows: int = 0
    encoding: Encoding | None = None
    ridge: tuple[float, int] | None = None
    """λ of a solver whose ridge is left open, and the rows that it was found on."""
    full_kernel_limit: int = 0
    """Rows of a leaf up to which all of them are centers, where none are given."""
    projected: Footprint | None = None
    """Projected memory of the largest leaf, where all take the same way: none is then projected by itself."""
    given: bool = False
    """Whether every row of a leaf is a center and nothing is chosen in it, so that ``fit_encoded`` does."""

    @classmethod
    def of(cls, recipe: Recipe) -> LeafRecipe:
        """The same kernel, centers, solver and metric, without rows."""
        nothing = from_arrays(np.empty((0, 1)))
        return cls(
            nothing, recipe.kernel, recipe.centers, recipe.solver, recipe.task, recipe.metric, recipe.seed,
            1, recipe.dtype, ridge=recipe.ridge if isinstance(recipe, LeafRecipe) else None,
            full_kernel_limit=max_full_kernel_rows(max(1, recipe.train.base_rows)),
        )  # fmt: skip

    def like(self, solver: Solver, projected: Footprint) -> LeafRecipe:
        """The recipe of leaves that go the way of the largest, whose solver and projection these are."""
        if self.kernel is None:
            return replace(self, solver=solver)
        open_ = needs_median(self) or self.metric is not None or not is_factorable(self.kernel)
        return replace(self, solver=solver, projected=projected, given=not open_)

    def with_calibration(self, whole: Recipe, leaves: int, encoding: Encoding, wanted: bool) -> LeafRecipe:
        """The recipe, with rows that each leaf leaves out where probabilities or intervals of the whole are wanted."""
        calibrated = whole.validation is not None and self.task == "classification"
        rows = 0 if calibrated or not wanted else held_out_rows_of_leaf(self.task, leaves, encoding.outputs)
        return replace(self, held_out_rows=rows, encoding=encoding)

    def chosen(self, choice: KernelChoice | None) -> LeafRecipe:
        """The recipe with the kernel that was chosen, and its ridge."""
        if choice is None:
            return self
        return replace(self, kernel=choice.kernel, ridge=(choice.ridge, choice.rows))

    def with_ridge(self, solver: Solver, n: int) -> Solver:
        """A solver for n rows with the ridge that was chosen, where its own is left open: noise asks for λ n."""
        if self.ridge is None:
            return solver
        ridge, rows = self.ridge
        return with_ridge(solver, ridge * min(1.0, rows / n))

    def on(self, train: Dataset) -> LeafRecipe:
        """The recipe on a leaf's rows; where there are fewer of them than centers, each is a center."""
        n = train.base_rows
        centers = self.centers or leaf_centers(n, self.full_kernel_limit, self.seed)
        if isinstance(centers, Uniform):
            centers = replace(centers, p=min(centers.p, n))
        return replace(self, train=train, centers=centers, metric=self.metric if n >= MIN_METRIC_ROWS else None)


class LeafStages(Stages):
    """Stages of a leaf: warnings are kept, and the solver's alone: its rows were looked at with all others.

    Args:
        held_out_rows: rows that are left out for the whole model's probabilities or intervals, at most.
    """

    search_share = MAX_LEAF_SEARCH_WORK_RATIO

    def __init__(self, held_out_rows: int = 0) -> None:
        super().__init__()
        self.held_out_rows = held_out_rows
        self.messages: list[str] = []

    def keep(self, name: str, key: Key | None, compute: Callable[[], T]) -> T:
        kept: Any = None  # one calibration of probabilities is made of all leaves' rows
        return kept if name == "calibrate" and self.classes else compute()

    def warn(self, message: str) -> None:
        self.messages.append(message)

    def train(self, problem: Problem, solver: Solver, key: Any) -> tuple[Outcome, dict[str, Any]]:
        self.messages.clear()
        self.classes = isinstance(problem.encoding, Classes | Indicators)
        return super().train(problem, solver, key)
