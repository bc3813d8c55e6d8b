"""What a recipe comes to before its rows are read: its steps, its width, and the memory of its fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamkern.centers import Given, Uniform
from streamkern.costs.fit_shape import CalibrationSource, FitShape
from streamkern.data.class_weights import planned_weights
from streamkern.data.dataset import Dataset
from streamkern.defaults import ASSUMED_OUTPUTS
from streamkern.errors import UsageError
from streamkern.fitting.calibrate import out_of_sample_source
from streamkern.fitting.recipe import Recipe
from streamkern.kernels import is_open
from streamkern.preprocessing.automatic_steps import automatic
from streamkern.preprocessing.category_steps import TargetEncode
from streamkern.preprocessing.steps import AUTOMATIC, STANDARD, Standardise, Step, learning_bytes, with_expected_width
from streamkern.selection import median_bandwidth
from streamkern.selection.kernel_search import search_for
from streamkern.solvers.base import traits_of
from streamkern.solvers.ridge import is_factorable


def likely_outputs(dataset: Dataset) -> int:
    """Outputs assumed before the labels are known: as many as a row has targets, at least ``ASSUMED_OUTPUTS``."""
    return max(ASSUMED_OUTPUTS, 1 if dataset.target is None else dataset.target.width)


def preprocessing_steps(recipe: Recipe) -> tuple[Step, ...]:
    """The preprocessing of a recipe; of an automatic one as the schema says, and the rows may add to it."""
    chosen = recipe.preprocess
    if isinstance(chosen, str):
        features = recipe.features is None and (recipe.centers is None or not isinstance(recipe.centers, Given))
        adaptive = features and (is_open(recipe.kernel) or bool(median_bandwidth.median_norms(recipe)))
        never = recipe.scaling != AUTOMATIC
        kept = traits_of(recipe.solver).keeps_sums  # a row that is forgotten leaves no trace
        chosen = automatic(recipe.train, recipe.task, adaptive, never, means=not kept)
    steps = tuple(replace(step, task=recipe.task) if isinstance(step, TargetEncode) else step for step in chosen or ())
    return (*steps, *((Standardise(),) if recipe.scaling == STANDARD else ()))


def planned_rows(recipe: Recipe) -> Dataset:
    """The training rows as wide as preprocessing is expected to make them: for projections, not for reading."""
    return with_expected_width(planned_weights(recipe.train, recipe.class_weight), preprocessing_steps(recipe))


def with_search(shape: FitShape) -> FitShape:
    """The shape with the trials for a recipe whose kernel is open; without where ``default_kernel`` is taken."""
    recipe: Recipe = shape.recipe
    given: dict[str, Any] = {"kernel": recipe.kernel, "metric": recipe.metric}
    rows, seed = recipe.train.base_rows, recipe.seed % (1 << 31)
    search = search_for(shape.cost_estimate, rows, shape.budget, seed, **given)
    apart = recipe.train.roles is not None
    return shape if search is None else replace(shape, search=replace(search, apart=apart))


def basis_width(recipe: Recipe, dataset: Dataset | None = None) -> int:
    """Number of basis functions (centers or features) of a recipe on these rows, by default ``planned_rows``."""
    dataset = planned_rows(recipe) if dataset is None else dataset
    p = 0 if recipe.centers is None else recipe.centers.count(dataset)
    if recipe.features is None or recipe.features.needs_centers:
        if recipe.centers is None:
            raise UsageError(
                "A model with a kernel has no centers.",
                where="centers",
                expected="centers for the kernel",
                remedy="give centers, such as sk.Uniform(1000)",
            )
        if recipe.features is None:
            return p
    return recipe.features.width(dataset.n_features, p)


def all_rows_are_centers(recipe: Recipe, dataset: Dataset, anywhere: bool = False) -> bool:
    """Return True if every row, as it is stored, is a center drawn, of a kernel whose matrices have a factor.

    With ``anywhere``, of any kernel, and where the centers stay where the rows are stored.
    """
    centers = recipe.centers
    if recipe.features is not None or dataset.augmentations or len(dataset) != dataset.base_rows:
        return False
    if anywhere and centers is not None and centers.stored:
        return True
    drawn = isinstance(centers, Uniform) and basis_width(recipe, dataset) == len(dataset)
    return drawn and (anywhere or is_factorable(recipe.kernel))


def shape_of(recipe: Recipe, rows: Dataset, outputs: int, held_out_rows: int, **how: Any) -> FitShape:
    """The shape of a recipe's fit to rows of a width; answers are made from ``held_out_rows`` at most.

    ``how`` are further fields of the shape: the budget, what is held before, and the executor.
    """
    source = out_of_sample_source(recipe.solver, recipe.train, recipe.validation) if held_out_rows else None
    itemsize = np.dtype(recipe.dtype).itemsize
    chosen = 0 if recipe.centers is None else recipe.centers.setup_bytes(rows, itemsize, how["slots"])
    median = median_bandwidth.setup_bytes(rows, itemsize) if median_bandwidth.median_norms(recipe) else 0
    fields: dict[str, Any] = {
        "lanes": recipe.lanes, "itemsize": itemsize, "validate": recipe.validation is not None,
        "centers_bytes": max(chosen, median),
        "stored_centers": recipe.centers is not None and recipe.centers.stored, "features": recipe.features,
        "learning_bytes": learning_bytes(recipe.train, preprocessing_steps(recipe)), "search": recipe.metric,
        "calibration": None if source is None else CalibrationSource(source, recipe.task, held_out_rows),
        "all_rows_are_centers": all_rows_are_centers(recipe, rows), "recipe": recipe,
    }  # fmt: skip
    return FitShape(rows, basis_width(recipe, rows), outputs, recipe.solver, **(fields | how))
