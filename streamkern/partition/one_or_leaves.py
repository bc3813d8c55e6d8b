"""One model of all rows, or one in every leaf: by what each would take, before a row is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamkern.candidates import Candidate, first_affordable
from streamkern.costs.footprint import Footprint
from streamkern.defaults import MAX_L1_FEATURES, MAX_LEAVES_WORK, MIN_FULL_KERNEL_ROWS, PATIENCE, USUAL_THREADS
from streamkern.errors import PlanRefusedError
from streamkern.execute.base import Executor
from streamkern.fitting.calibrate import with_held_out
from streamkern.fitting.fit import fit
from streamkern.fitting.fitted import Fitted
from streamkern.fitting.precision_checks import dtype_of
from streamkern.fitting.recipe import AUTO, Recipe
from streamkern.fitting.solver_choice import resolve_solver
from streamkern.fitting.stage import Runner, Stage
from streamkern.fitting.stages import EVALUATE, stages_of_model
from streamkern.kernels import is_open
from streamkern.models.cut_tree import Partition, max_full_kernel_rows
from streamkern.partition.champion_cuts import champion_of
from streamkern.partition.fit_partition import (
    EVALUATE_LEAVES,
    fit_leaves,
    partition_error,
    require_partition,
    stages_of_leaves,
)
from streamkern.partition.leaf_tasks import LeafSettings
from streamkern.partition.partition_shape import PartitionShape
from streamkern.selection.kernel_search import max_rows_as_centers
from streamkern.solvers.base import traits_of
from streamkern.solvers.ridge import is_factorable


def default_partition(recipe: Any, budget: int, device: str = AUTO) -> Partition | None:
    """The partition for ``partition="auto"``: as many leaves as keep every row a center; None for one model.

    Of rows that are all centers of one model; and for a kernel beyond the name Laplace, centers, a solver or features
    that are given, for augmentations, a diagnosis, rows wider than ``MAX_L1_FEATURES``, and on a card. Decided by the
    rows' number and width and by the budget alone, as ``solver="auto"`` is: leaves may take half of the budget, and
    ``MAX_LEAVES_WORK``.
    """
    train = recipe.train
    if recipe.centers is not None or recipe.features is not None or recipe.solver != AUTO or train.augmentations:
        return None
    if not (is_open(recipe.kernel) and is_factorable(recipe.kernel)):
        return None
    if device == "cuda" or recipe.diagnose or train.n_features > MAX_L1_FEATURES or len(train) != train.base_rows:
        return None
    most = max_rows_as_centers(train.base_rows, train.n_features, budget)
    return None if train.base_rows <= most else first_affordable(_partitions(recipe, most, budget))


def _partitions(recipe: Any, most: int, budget: int) -> Iterator[Candidate[Partition | None]]:
    """Leaves of at most so many rows, the largest first; then one model, some of whose rows are centers."""
    rows = min(most, max_full_kernel_rows(recipe.train.base_rows))
    while rows >= MIN_FULL_KERNEL_ROWS:
        leaves = replace(recipe, partition=Partition(rows=rows).settled(recipe.train.base_rows, None))
        shape = PartitionShape.before_rows(
            leaves, on=LeafSettings.of(leaves).on, budget=budget, slots=USUAL_THREADS, baseline=budget // 2
        )
        try:
            held: float = shape.footprint((*stages_of_leaves(leaves), EVALUATE_LEAVES)).peak
            solved = traits_of(shape.largest[0].solver).one_pass  # else there is no room for a leaf's matrix
        except PlanRefusedError:
            solved = False
        if solved:
            yield Candidate(leaves.partition, held, shape.leaves_work, budget, MAX_LEAVES_WORK)
        rows //= 2
    yield Candidate(None)


def decided(recipe: Any, budget: int, device: str = AUTO) -> Any:
    """The recipe with ``dtype="auto"`` and ``partition="auto"`` decided, before a row is read."""
    recipe = replace(recipe, dtype=dtype_of(recipe))
    if recipe.partition == AUTO:
        recipe = replace(recipe, partition=default_partition(recipe, budget, device))
    return recipe


def resolve_with_held_out(recipe: Any, budget: int, device: str = AUTO) -> tuple[Any, str]:
    """As ``decided`` and ``resolve_solver``, with rows held out where the chosen solver needs some.

    With a partition, each leaf chooses its solver by itself.
    """
    recipe, fitted_at_once = with_rows_per_leaf(decided(recipe, budget, device))
    roles = recipe.train.roles
    if recipe.partition is not None:
        return with_held_out(recipe) if roles is not None else (recipe, "")
    made, why = resolve_solver(recipe, budget)
    # Where each row of a given ``Direct`` would be left out in closed form, rows with a time or a group cannot be.
    if recipe.solver == AUTO or (
        roles is not None and traits_of(made.solver).one_pass and not traits_of(made.solver).keeps_sums
    ):
        made, held = with_held_out(made)
        if held and not traits_of(made.solver).one_pass:
            made = replace(made, solver=replace(made.solver, patience=PATIENCE))
        why = "; ".join(filter(None, (why, held)))
    return made, "; ".join(filter(None, (fitted_at_once, why)))


def with_rows_per_leaf(recipe: Any) -> tuple[Any, str]:
    """A recipe of leaves with the number of rows that each has at most; without leaves where one has all rows, and why.

    Leaves that are counted, or cut by a column or by a champion, stay.
    """
    if recipe.partition is None:
        return recipe, ""
    require_partition(recipe)
    recipe.train._require_rows()
    n = recipe.train.base_rows
    p = None if recipe.centers is None else min(recipe.centers.count(recipe.train), n)
    partition = recipe.partition.settled(n, p)
    open_ = champion_of(partition) is None and partition.leaves == "auto" and partition.by is None
    if open_ and n <= partition.most:
        return replace(recipe, partition=None), f"one model, since {n:,} rows are no more than a leaf may have"
    return replace(recipe, partition=partition), ""


def evaluation_of(recipe: Recipe) -> tuple[Stage, ...]:
    """The stage that measures the model of a recipe."""
    return (EVALUATE if recipe.partition is None else EVALUATE_LEAVES,)


def stages_of_fit(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages of a fit, in order: of one model, or of a partition."""
    return stages_of_model(recipe) if recipe.partition is None else stages_of_leaves(recipe)


def fit_one_or_leaves(
    recipe: Recipe,
    executor: Executor,
    budget: int,
    runner: Runner | None = None,
    on_plan: Callable[[Footprint], None] = lambda projected: None,
    device: Any = None,
    folder: Path | None = None,
    after: Callable[[Recipe], tuple[Stage, ...]] = evaluation_of,
) -> Fitted:
    """One model of all rows, or one in every leaf, as the recipe says: arguments and errors of ``fitting.fit.fit``.

    ``folder`` is where rows that are not in memory are scattered to leaves: a directory that every worker sees, by
    default a temporary one. ``after`` gives the stages that follow a fit of a recipe.
    """
    if recipe.partition is None:
        return fit(recipe, executor, budget, runner, on_plan, device, after=after(recipe))
    if device is not None:
        raise partition_error("a device", 'leaves are computed on the CPU: sk.Resources(device="cpu")')
    return fit_leaves(recipe, executor, budget, runner or Runner(), on_plan, folder, after(recipe))
