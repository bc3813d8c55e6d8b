"""Weights of the features in distances, learned in some leaves before all leaves are fitted.

The search for a kernel sees a sample of all rows, whose neighbours are farther apart than those of a leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from streamkern.data.row_order import Assembly
from streamkern.defaults import (
    MAX_PROBED_LEAVES,
    MIN_HELD_OUT_ROWS_OF_LEAF,
    MIN_PROBED_LEAVES,
    PROBED_PART,
    PROBED_ROUNDS,
    PROBED_STEP,
    PROBED_TREES,
)
from streamkern.evaluation.paired_errors import Errors
from streamkern.execute.base import Executor
from streamkern.models.cut_tree import CutTree
from streamkern.partition.leaf_rows import RowsOfSomeLeaves
from streamkern.partition.leaf_tasks import LeafSettings, fitted_leaves, gradient_rows
from streamkern.rng import generator
from streamkern.types import Array

_FACTS = ("mass", "gradient", "variance", "left_out_error")
"""What is kept of a leaf that was fitted: its model is not."""


def probed_leaves(leaves: int) -> int:
    """Return the number of a tree's leaves in which weights are learned; 0 of few leaves, whose rows the search saw."""
    return min(leaves // PROBED_PART, MAX_PROBED_LEAVES) if leaves >= PROBED_PART * MIN_PROBED_LEAVES else 0


@dataclass(eq=False)
class Probe:
    """What weights are learned with: ``grow`` cuts a tree in units of given weights, None for ones."""

    settings: LeafSettings
    assembly: Assembly
    grow: Callable[[Array | None], CutTree]
    executor: Executor
    at_once: int
    budget: int

    def weights(self) -> Array:
        """Return weights (d,), empty if none are better than ones.

        The rows are cut again with the weights that leaves have learned, as long as leaves of the new tree learn more:
        then they extend least along the features that matter most.
        """
        weights: Array | None = None
        for _ in range(PROBED_TREES):
            found = self._learned(self.grow(weights), weights)
            if found is None:
                break
            weights = found
        return np.ones(0) if weights is None else weights

    def _learned(self, tree: CutTree, before: Array | None) -> Array | None:
        """Weights of the last round before the error on rows left out of some leaves rises; None if it hardly falls.

        The fall from the first round to the last has to be sure, not that of each: one step may be too short for that.
        """
        drawn = generator("probed leaves", self.settings.recipe.seed).permutation(tree.leaves)
        some = sorted(drawn[: probed_leaves(tree.leaves)].tolist())
        rows = RowsOfSomeLeaves.of(self.assembly, tree, some, self.executor)
        settings = replace(
            self.settings, held_out_rows=MIN_HELD_OUT_ROWS_OF_LEAF, gradient_rows=gradient_rows(max(1, len(some)))
        )
        reached: list[Errors] = []
        best = weights = before
        for _ in range(PROBED_ROUNDS + 1):
            settings = replace(settings, weights=weights)
            shared = (rows, settings, tree, self.budget)
            fitted = fitted_leaves(list(rows.leaves), shared, self.executor, self.at_once)
            found = [{name: each[name] for name in _FACTS} for each in fitted if each.get("gradient") is not None]
            if not found:
                break
            errors = Errors(*np.array([[each["left_out_error"], each["mass"]] for each in found]).T)
            if not errors.mean < (reached[-1].mean if reached else np.inf):  # or it is no number
                break
            reached.append(errors)
            best, weights = weights, settings.learned_weights(found, PROBED_STEP)
        return best if len(reached) > 1 and reached[-1].beats(reached[0]) else None
