"""Memory of a partition: before the first row is read, and again when the leaves are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streamkern.costs.footprint import CalibrationSource, Footprint, footprint, load_libraries
from streamkern.data.dataset import Dataset
from streamkern.errors import PlanRefusedError
from streamkern.fitting.calibrate import out_of_sample_source
from streamkern.fitting.memory_projection import (
    all_rows_are_centers,
    basis_width,
    centers_bytes,
    kernel_search_of,
    likely_outputs,
    planned_rows,
    preprocessing_steps,
)
from streamkern.fitting.recipe import Recipe
from streamkern.fitting.solver_choice import resolve_solver
from streamkern.memory import format_bytes
from streamkern.models.cut_tree import MAX_LEAF_SEARCH_WORK_RATIO, MAX_SHARED_SEARCH_WORK_RATIO, Partition
from streamkern.partition.grow_tree import GrownTree, sample_rows
from streamkern.partition.joint_calibration import held_out_rows_of_leaf, joint_calibration_bytes
from streamkern.partition.leaf_rows import BLOCK_BYTES, RUN_BYTES
from streamkern.preprocessing.steps import learning_bytes
from streamkern.selection.kernel_search import Search, needs_kernel_search, search_for
from streamkern.solvers.direct import Direct
from streamkern.sources.base import Source
from streamkern.types import Rows, Target

ENCODED_BUDGET_DIVISOR = 16
"""Encoded rows are kept for all leaves if they take up to this part of the budget; else each leaf encodes its own."""

_READ_COPIES = (
    3  # times a leaf's rows are held while they are brought together from memory: in pieces, joined, in order
)
_WRITE_COPIES = 4  # times the rows of a run are: in blocks, joined, by leaf, and those at a border again
_ROUTE_COPIES = 2  # times the rows of a block are that is routed to leaves


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


def encoded_bytes(data: Dataset, itemsize: int, budget: int) -> int:
    """Bytes of all encoded rows, where they are kept in memory while leaves are trained; or 0."""
    size = data.base_rows * (data.n_features * itemsize + 8 * likely_outputs(data))
    return size if data.source.in_memory and size <= budget // ENCODED_BUDGET_DIVISOR else 0


class PartitionMemory:
    """Projects the memory of a partition.

    Args:
        on: the recipe of a leaf, on rows.
        trial: bytes of the trial that precedes all, which decides between one model and leaves; 0 for none.
        baseline: bytes resident before; by default those of this process.
    """

    def __init__(
        self,
        recipe: Recipe,
        partition: Partition,
        on: Callable[[Dataset], Any],
        budget: int,
        slots: int,
        here: bool,
        trial: int = 0,
        baseline: int | None = None,
    ) -> None:
        self.recipe, self.partition, self.on = recipe, partition, on
        self.budget, self.slots, self.here = budget, slots, here
        self.trial, self.baseline = trial, load_libraries() if baseline is None else baseline

    def first(self) -> tuple[Footprint, int]:
        """Return memory and leaves at a time, before rows are read; PlanRefusedError has the remedy."""
        rows = planned_rows(self.recipe)
        return self._project(rows, *self.partition.expected(rows.base_rows))

    def then(self, data: Dataset, grown: GrownTree) -> tuple[Footprint, int]:
        """When the rows of every leaf are known; as ``first``."""
        return self._project(data, len(grown.counts), int(grown.counts.max()))

    def leaf(self, data: Dataset, n: int, baseline: int, leaves: int = 0) -> tuple[Footprint, Any]:
        """The projection of one leaf of n rows in one thread, and its recipe with its solver.

        With a number of ``leaves``, rows are left out for the probabilities or intervals of them all.
        """
        itemsize, outputs = np.dtype(self.recipe.dtype).itemsize, likely_outputs(data)
        shapes = self.shapes(data, n)
        leaf, _ = resolve_solver(self.on(shapes), self.budget, threads=1)
        source = out_of_sample_source(leaf.solver, shapes, None) if leaves else None
        calibration = None
        if source is not None:
            calibration = CalibrationSource(source, leaf.task, held_out_rows_of_leaf(leaf.task, leaves, outputs))
        project = partial(
            footprint, shapes, basis_width(leaf, shapes), outputs, leaf.solver, budget=self.budget, baseline=baseline,
            slots=1, lanes=leaf.lanes, itemsize=itemsize, centers_bytes=centers_bytes(leaf, 1, shapes), overlaps=False,
            calibration=calibration, all_rows_are_centers=all_rows_are_centers(leaf, shapes),
        )  # fmt: skip
        fits = project(learning=leaf.metric)
        search = kernel_search_of(leaf, fits, MAX_LEAF_SEARCH_WORK_RATIO)
        return (fits if search is None else project(learning=search)), leaf

    def search(self, data: Dataset) -> Search | None:
        """The trials on a sample of all rows where the kernel of the leaves is left open; or None."""
        leaves, n = self.partition.expected(data.base_rows)
        one, leaf = self.leaf(data, n, self.baseline)
        if not needs_kernel_search(leaf):
            return None
        columns, seed = data.source.n_features, self.recipe.seed % (1 << 31)
        return search_for(
            one.cost_estimate, data.base_rows, columns, self.budget, seed, MAX_SHARED_SEARCH_WORK_RATIO * leaves
        )

    def shapes(self, data: Dataset, n: int) -> Dataset:
        """N rows of a leaf, of shapes."""
        target, shown = data.target, Target("target", np.dtype(np.int64))
        if self.recipe.task == "regression":
            shown = Target("target", np.dtype(np.float64), (1 if target is None else target.width,))
        return Dataset(ShapedRows(n, data.n_features, np.dtype(self.recipe.dtype), shown))

    def _project(self, data: Dataset, leaves: int, n: int) -> tuple[Footprint, int]:
        recipe, itemsize, d = self.recipe, np.dtype(self.recipe.dtype).itemsize, data.n_features
        outputs = likely_outputs(data)
        row = d * itemsize + 8 * outputs
        reading = footprint(
            data, 1, outputs, Direct(), budget=self.budget, baseline=self.baseline, slots=self.slots,
            lanes=recipe.lanes, itemsize=itemsize,
            learning_bytes=learning_bytes(recipe.train, preprocessing_steps(recipe)),
        )  # fmt: skip
        p = self.on(self.shapes(data, n)).centers.count(data)
        models = leaves * p * (d + outputs) * itemsize
        taken = _READ_COPIES * n * row
        one, leaf = self.leaf(data, n, self.baseline + models + taken, leaves)
        each = max(one.stages.values()) + taken + one.baseline - self.baseline - models - taken
        scan = reading.stages["statistics"]
        kept = 2 * encoded_bytes(data, itemsize, self.budget)
        ids = 24 * data.base_rows + kept if recipe.train.source.in_memory else 0
        runs = scan + self.slots * _WRITE_COPIES * min(RUN_BYTES, data.base_rows * row)
        scatter = ids or runs
        sample = 3 * sample_rows(self.partition, data.base_rows, d * itemsize) * row
        room = self.budget - reading.baseline - models - ids
        at_once = int(np.clip(room // each, 1, self.slots)) if self.here else self.slots
        search = self.search(data) if self.trial else None
        chosen = 0 if search is None else search.cost_estimate(one.cost_estimate.size, data.base_rows).memory
        stages = {
            "statistics": scan,
            **({"kernel": scan + chosen} if chosen else {}),
            **({"one-or-leaves": self.trial} if self.trial else {}),
            "levels": scan + sample + self.slots * _ROUTE_COPIES * BLOCK_BYTES,
            "fingerprints": runs,
            "scatter": scatter,
            "leaves": models + ids + (at_once * each if self.here else 0),
            "calibrate": models + joint_calibration_bytes(leaf.task, leaves, outputs, row),
            "evaluate": reading.stages["evaluate"] + 3 * models,
        }
        fits = replace(reading, stages=stages, worker={"scatter": scatter, "thread": each})
        if fits.peak > self.budget:
            largest = max(stages, key=lambda name: stages[name])
            enough = format_bytes(1.02 * fits.peak)
            raise PlanRefusedError(
                f"The run needs {format_bytes(fits.peak)} and may use {format_bytes(self.budget)}; the {largest} stage "
                "is the largest.",
                where=f"memory={format_bytes(self.budget)}, {leaves:,} leaves of up to {n:,} rows, centers={p:,}",
                expected=f"a budget of at least {enough}",
                remedy=f"raise memory to {enough}; or use fewer centers; or smaller leaves, Partition(rows=...)",
            )
        return fits, at_once
