"""A fit: its stages, carried out in order, from a recipe to weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamkern.centers import Given
from streamkern.costs.fit_shape import FitShape
from streamkern.costs.footprint import Footprint, footprint, load_libraries
from streamkern.data.dataset import Dataset
from streamkern.engine.device import Device
from streamkern.errors import UsageError
from streamkern.execute.base import Executor
from streamkern.fitting.calibrate import out_of_sample_source, require_threshold_rows
from streamkern.fitting.device_placement import require_room
from streamkern.fitting.evaluation_checks import require_fit_rows
from streamkern.fitting.fitted import Fitted
from streamkern.fitting.memory_projection import likely_outputs, planned_rows, shape_of, with_search
from streamkern.fitting.recipe import Recipe
from streamkern.fitting.stage import Runner, Stage
from streamkern.fitting.stages import EVALUATE, Fit, stages_of_model
from streamkern.selection.kernel_search import needs_kernel_search

TASKS = ("classification", "regression")


def fit(
    recipe: Recipe,
    executor: Executor,
    budget: int,
    runner: Runner | None = None,
    on_plan: Callable[[Footprint], None] = lambda projected: None,
    device: Device | None = None,
    baseline: int | None = None,
    after: tuple[Stage, ...] = (EVALUATE,),
) -> Fitted:
    """From a recipe to weights: the stages that estimators, runs and leaves go through.

    ``on_plan`` is called with the projected memory before the first row is read. ``baseline`` has the bytes that the
    projection starts from, by default those that the process holds now. ``after`` are stages of the caller that follow.
    """
    runner = runner or Runner()
    baseline = load_libraries() if baseline is None else baseline
    _require_startable(recipe, runner)
    lanes = 1 if device is not None and executor.in_process else recipe.lanes  # blocks of a step
    how = {"budget": budget, "baseline": baseline, "slots": executor.slots, "overlaps": executor.overlaps}
    shape, listed = planned_shape(recipe, runner.held_out_rows, runner.searches, after, lanes=lanes, **how)

    def project(rows: Dataset, outputs: int) -> Footprint:
        """Project again, once the width of the rows and the number of outputs are known."""
        made = shape_of(recipe, rows, outputs, runner.held_out_rows, search=shape.search, lanes=lanes, **how)
        return footprint(made, listed)

    def allow(projected: Footprint) -> None:
        executor.allowed = projected.allowance()
        on_plan(projected)

    projected = footprint(shape, listed)
    allow(projected)
    require_room(device, projected, shape.p, shape.dataset.n_features, shape.itemsize)
    made = Fit(recipe, executor, runner, shape, project, allow, lanes, projected, device)
    runner.carry_out((*stages_of_model(recipe), *after), made)
    return made.fitted


def _require_startable(recipe: Recipe, runner: Runner) -> None:
    """Refuse, before a row is read, what would be refused in the middle of a fit."""
    require_fit_rows(recipe)
    if recipe.validation is None and recipe.solver.patience is not None:
        raise UsageError(
            "The solver has patience=, which needs validation rows.",
            where="patience",
            expected="validation rows",
            remedy="give validation rows, or leave patience out",
        )
    if recipe.threshold is not None:
        answered = runner.held_out_rows > 0
        source = out_of_sample_source(recipe.solver, recipe.train, recipe.validation) if answered else None
        require_threshold_rows(source)
    if recipe.metric is None:
        return
    for wrong, what, remedy in (
        (recipe.train.augmentations, "augmented rows", "leave the augmentations out"),
        (recipe.features is not None, f"a model on features, {recipe.features!r}", "use kernel values at centers"),
        (isinstance(recipe.centers, Given), "given centers", "draw centers, such as sk.Uniform(1000)"),
    ):
        if wrong:
            raise UsageError(
                f"A metric cannot be learned with {what}.",
                where="metric=AGOP(...)",
                expected="a kernel at centers that are drawn from rows without augmentations",
                remedy=f"{remedy}; or leave the metric out",
            )


def planned_shape(
    recipe: Recipe,
    held_out_rows: int,
    searches: bool = True,
    after: tuple[Stage, ...] = (EVALUATE,),
    **how: Any,
) -> tuple[FitShape, tuple[Stage, ...]]:
    """The shape of a fit before its rows are read, with the search that is part of it; and its stages."""
    guess, listed = planned_rows(recipe), (*stages_of_model(recipe), *after)
    shape = shape_of(recipe, guess, likely_outputs(guess), held_out_rows, **how)
    if not searches or not needs_kernel_search(recipe):
        return shape, listed
    footprint(shape, listed)  # has the remedy where not even a fit without the search would fit
    return with_search(shape), listed
