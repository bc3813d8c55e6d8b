"""A partition on shapes: before the first row is read, and again when the leaves are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from streamkern.costs.dry_run import nominal_work
from streamkern.costs.fit_shape import FitShape
from streamkern.costs.footprint import Footprint, footprint, projection
from streamkern.data.dataset import Dataset
from streamkern.defaults import LIBRARY_BYTES, MAX_SEARCH_SHARE, THREAD_BYTES
from streamkern.errors import PlanRefusedError
from streamkern.fitting.memory_projection import likely_outputs, planned_rows, preprocessing_steps, shape_of
from streamkern.fitting.preparation import STATISTICS
from streamkern.fitting.recipe import Recipe
from streamkern.fitting.solver_choice import resolve_solver
from streamkern.fitting.stage import Stage
from streamkern.fitting.stages import EVALUATE, stages_of_model
from streamkern.memory import format_bytes
from streamkern.partition.champion_cuts import champion_of
from streamkern.partition.grow_tree import sample_rows
from streamkern.partition.joint_calibration import held_out_rows_of_leaf
from streamkern.partition.leaf_rows import RUN_BYTES
from streamkern.partition.probed_weights import probed_leaves
from streamkern.preprocessing.steps import learning_bytes
from streamkern.selection.kernel_search import Search, needs_kernel_search, search_for
from streamkern.solvers.direct import Direct
from streamkern.sources.base import Source
from streamkern.types import Rows, Target


class ShapedRows(Source):
    """Rows in memory that have a number, a width and a target, and no values: for projections."""

    def __init__(self, n: int, d: int, dtype: np.dtype[Any], target: Target) -> None:
        self.bounds = np.array([0, n], dtype=np.int64)
        self.n_features, self.dtype, self.target, self.in_memory = d, dtype, target, True

    @property
    def fingerprint(self) -> str:
        return f"{self.n_features} features of no rows"

    def read(self, chunk: int) -> Rows:
        raise IndexError("rows that are projected cannot be read")

    def where(self, chunk: int) -> str:
        return "a leaf"


@dataclass(frozen=True, eq=False)
class PartitionShape(FitShape):
    """The shape of a partition: of all rows, which are gone over, and of the fit of its largest leaf.

    Attributes:
        on: the recipe of a leaf, on its rows.
        leaves: how many.
        leaf_rows: rows of the largest.
        here: whether leaves are computed in this process.
    """

    on: Callable[[Dataset], Recipe] | Any = None
    leaves: int = 1
    leaf_rows: int = 0
    here: bool = True

    @classmethod
    def before_rows(cls, recipe: Recipe, *, on: Callable[[Dataset], Recipe], **how: Any) -> PartitionShape:
        """The shape that is expected before rows are read; ``how`` are further fields."""
        rows = planned_rows(recipe)
        leaves, n = recipe.partition.expected(rows.base_rows)
        return cls(
            rows, 1, likely_outputs(rows), Direct(), lanes=recipe.lanes, itemsize=np.dtype(recipe.dtype).itemsize,
            learning_bytes=learning_bytes(recipe.train, preprocessing_steps(recipe)), recipe=recipe, on=on,
            leaves=leaves, leaf_rows=n, **how,
        )  # fmt: skip

    def footprint(self, stages: Sequence[Stage]) -> Footprint:
        """The memory of its stages; PlanRefusedError has the remedy."""
        reading = FitShape(*(getattr(self, each.name) for each in fields(FitShape)))
        footprint(reading, (STATISTICS, EVALUATE))  # whose refusal says what would help reading
        fits = projection(self, stages)
        if fits.peak > self.budget:
            enough, p = format_bytes(1.02 * fits.peak), self.largest[0].p
            raise PlanRefusedError(
                f"The run needs {format_bytes(fits.peak)} and may use {format_bytes(self.budget)}; the {fits.largest} "
                "stage is the largest.",
                where=f"memory={format_bytes(self.budget)}, {self.leaves:,} leaves of up to {self.leaf_rows:,} rows, "
                f"centers={p:,}",
                expected=f"a budget of at least {enough}",
                remedy=f"raise memory to {enough}; or use fewer centers; or smaller leaves, Partition(rows=...)",
            )
        return fits

    @property
    def trees(self) -> int:
        """Trees, in a leaf of each of which a row is trained."""
        return int(self.recipe.partition.n_trees)

    @property
    def row(self) -> int:
        """Bytes of an encoded row with its target."""
        return self.dataset.n_features * self.itemsize + 8 * self.outputs

    @cached_property
    def models(self) -> int:
        """Bytes of the models of all leaves."""
        p = self.on(self._rows_of_leaf).centers.count(self.dataset)
        return int(self.leaves * p * (self.dataset.n_features + self.outputs) * self.itemsize)

    @property
    def _taken(self) -> int:
        copies = 3  # while they are brought together from memory: in pieces, joined, in order
        return copies * self.leaf_rows * self.row

    @property
    def _rows_of_leaf(self) -> Dataset:
        rows, shown = self.dataset, Target("target", np.dtype(np.int64))
        if self.recipe.task == "regression":
            shown = Target("target", np.dtype(np.float64), (1 if rows.target is None else rows.target.width,))
        return Dataset(ShapedRows(self.leaf_rows, rows.n_features, np.dtype(self.recipe.dtype), shown))

    def _fit_of_leaf(self, held: int, leaves: int) -> tuple[FitShape, Footprint]:
        """The shape of the fit of the largest leaf in one thread, and its memory; PlanRefusedError has the remedy.

        With a number of ``leaves``, rows are left out for the probabilities or intervals of them all.
        """
        rows, outputs = self._rows_of_leaf, likely_outputs(self.dataset)
        leaf, _ = resolve_solver(self.on(rows), self.budget, threads=1)
        held_out_rows = held_out_rows_of_leaf(leaf.task, leaves, outputs) if leaves else 0
        listed, baseline = (*stages_of_model(leaf), EVALUATE), self.baseline + held
        made = shape_of(
            leaf, rows, outputs, held_out_rows, budget=self.budget, baseline=baseline, slots=1, overlaps=False
        )
        return made, footprint(made, listed)

    @cached_property
    def largest(self) -> tuple[FitShape, Footprint]:
        """The shape of the fit of the largest leaf, and its memory."""
        return self._fit_of_leaf(self.models + self._taken, self.leaves)

    @cached_property
    def leaf(self) -> FitShape:
        """The shape of its fit with as many outputs and threads as here: for its work."""
        made = replace(self.largest[0], outputs=self.outputs, slots=self.slots)
        return made if self.shared_search is None else replace(made, search=None)  # which has learned its metric

    @cached_property
    def each(self) -> int:
        """Bytes of a leaf while it is fitted; those of libraries and threads are held in any case."""
        one = self.largest[1]
        return one.peak - self.baseline - self.models - LIBRARY_BYTES - THREAD_BYTES

    @cached_property
    def runs(self) -> int:
        """Bytes of a sweep that brings rows into the order of their leaves, run by run."""
        # Times the rows of a run are: in blocks, joined; by leaf of each tree, and those at a border again.
        copies = 2 + 2 * self.trees
        return self.sweeping + self.slots * copies * min(RUN_BYTES, self.dataset.base_rows * self.row)

    @property
    def probed(self) -> int:
        """Leaves of a tree in which weights of features are learned before all are fitted."""
        # A row alone may be left out only where rows have no time and no group.
        recipe = self.recipe
        closed = self.trees == 1 or recipe.train.roles is not None or champion_of(recipe.partition) is not None
        return 0 if closed or self.shared_search is None else probed_leaves(self.leaves // self.trees)

    @property
    def probed_rows(self) -> int:
        """Bytes of the rows of these leaves, twice, while they are joined or sent."""
        return 2 * self.probed * self.leaf_rows * self.row

    @property
    def sample_rows(self) -> int:
        """Rows of the sample that trees are grown from."""
        return sample_rows(self.recipe.partition, self.dataset.base_rows, self.dataset.n_features * self.itemsize)

    @property
    def probing(self) -> int:
        """Bytes that are held while they are fitted: their rows, and the sample that trees are grown from."""
        return self.sweeping + self.probed_rows + self.sample_rows * self.dataset.n_features * self.itemsize

    @property
    def probed_at_once(self) -> int:
        """Of these leaves, those that are fitted at a time, as memory allows."""
        room = self.budget - self.held - self.probing
        return int(np.clip(room // self.each, 1, self.slots)) if self.here else self.slots

    @cached_property
    def in_order(self) -> int:
        """Bytes of the ids of rows in memory, in the order of their leaves."""
        return 24 * self.trees * self.dataset.base_rows if self.dataset.source.in_memory else 0

    @cached_property
    def at_once(self) -> int:
        """Leaves that are fitted at a time, as memory allows."""
        room = self.budget - self.held - self.models - self.in_order
        return int(np.clip(room // self.each, 1, self.slots)) if self.here else self.slots

    @cached_property
    def worker_parts(self) -> dict[str, int]:
        """Bytes of a worker process, which fits leaves."""
        return {"scatter": max(self.in_order or self.runs, self.probed_rows), "thread": self.each}

    @cached_property
    def extra(self) -> int:
        """Leaves are projected with all that they may need."""
        return 0

    @cached_property
    def leaves_work(self) -> float:
        """Operations of all leaves at nominal prices, with the search for their kernel."""
        one = self._fitted_leaf
        return (1 + MAX_SEARCH_SHARE) * self.leaves * nominal_work(one.solver, one.size)

    @cached_property
    def _fitted_leaf(self) -> FitShape:
        """The largest leaf with nothing beside it."""
        return self._fit_of_leaf(0, 0)[0]

    @cached_property
    def shared_search(self) -> Search | None:
        """The trials on a sample of all rows, which choose a kernel for all leaves if it is open; or None."""
        one = self._fitted_leaf
        if not needs_kernel_search(one.recipe):
            return None
        rows, seed = self.dataset.base_rows, self.recipe.seed % (1 << 31)
        given = {"kernel": self.recipe.kernel, "metric": self.recipe.metric}
        search = search_for(one.cost_estimate, rows, self.budget, seed, self.leaves, **given)
        return search and replace(search, apart=self.recipe.train.roles is not None)
