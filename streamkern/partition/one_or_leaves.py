"""The choice of ``Partition(leaves="auto")`` between one model and leaves, on a sample, before any other stage.

Held-out rows of the sample decide, by the mean of the differences of squared errors and its standard error, between
one model and leaves of as many rows as those of all rows have, all of them centers. On all rows the one model has more
centers than it can have here, unless it has all rows. So where leaves are better by less than a tenth, it is trained
again with twice as many.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from streamkern.centers import Uniform
from streamkern.costs.dry_run import WORK_PER_SECOND, nominal_work
from streamkern.costs.fit_shape import FitShape
from streamkern.costs.footprint import Footprint, load_libraries
from streamkern.costs.stage_work import StageWork
from streamkern.data import from_arrays
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly
from streamkern.data.row_selection import HASH_SPAN
from streamkern.data.statistics import Statistics
from streamkern.data.targets import Classes, encoding_to_json
from streamkern.engine.residuals import residual
from streamkern.errors import PlanRefusedError, StreamkernError
from streamkern.evaluation.paired_errors import Errors
from streamkern.execute.base import Executor
from streamkern.fitting.calibrate import with_held_out
from streamkern.fitting.fit import fit, project_memory
from streamkern.fitting.fitted import Fitted
from streamkern.fitting.memory_projection import likely_outputs, planned_rows
from streamkern.fitting.precision_checks import dtype_of
from streamkern.fitting.preparation import preparation, rows_key
from streamkern.fitting.recipe import AUTO, Recipe
from streamkern.fitting.solver_choice import PATIENCE, resolve_solver, with_all_rows_as_centers
from streamkern.fitting.stage import Runner, Stage
from streamkern.fitting.stages import EVALUATE, KERNEL, search_work, stages_of_model
from streamkern.models.cut_tree import MAX_LEAF_SEARCH_WORK_RATIO, Partition
from streamkern.models.kernel_machine import KernelMachine
from streamkern.models.partitioned_machine import PartitionedMachine
from streamkern.partition.champion_cuts import champion_of
from streamkern.partition.fit_partition import (
    EVALUATE_LEAVES,
    LEAF_STAGES,
    PartitionFit,
    fit_partition,
    partition_error,
    require_partition,
    stages_of_leaves,
    started,
)
from streamkern.partition.leaf_settings import LeafRunner, LeafSettings
from streamkern.partition.partition_shape import PartitionShape, leaf_shape, shaped_rows
from streamkern.rng import row_hash
from streamkern.selection.kernel_search import MAX_L1_FEATURES, KernelChoice
from streamkern.sweep import gather_weighted
from streamkern.types import Array
from streamkern.user_code_digest import described

TRIAL_ROWS = 40_000
"""Rows of the sample, a fifth of them held out."""

TRIAL_CENTERS = 1000
"""Centers of the one model."""

SECOND_CENTERS = 2 * TRIAL_CENTERS
"""Centers of the one model that is trained again: for a sixteenth of its rows, as of many rows."""

MAX_CLEAR_ERROR_RATIO = 0.9
"""Part of the first one model's squared error below which leaves are better without a second."""

MAX_SECOND_ERROR_RATIO = 0.97
"""Part of the second one model's squared error below which leaves are better: with all rows one model has more centers
still, and chooses its kernel on more rows than leaves do."""

MIN_TRIAL_LEAVES = 4
"""Leaves of the sample, at least."""

OWN_KERNEL_STANDARD_ERRORS = 2.0
"""Standard errors by which kernels of their own have to be better: they are tried in two leaves, of few rows."""

TRIAL_THREADS = 4
"""Threads that a trial's memory is projected for, at most."""

HELD_OUT_SHARE = 0.2

MIN_TABLE_ROWS = 30_000
"""Rows from which leaves are tried by default: of fewer the trial is much of the cost of a fit."""

MAX_LEAVES_WORK = 1200 * WORK_PER_SECOND
"""Work of leaves by default, at most: twenty minutes on two slow cores."""

_DRAW = 0x6F6E65  # name of the draw of the sample

M = TypeVar("M", bound=KernelMachine)


def default_partition(recipe: Any, budget: int, device: str = AUTO) -> Partition | None:
    """The partition for ``partition="auto"``: leaves, or the trial's one model, for large tables with all choices open.

    A kernel, a metric, centers, a solver or features rule leaves out, and so do augmentations, a diagnosis, rows wider
    than ``MAX_L1_FEATURES``, and a fit on a card. Decided by the rows' number and width and by the budget alone, as
    ``solver="auto"`` is: leaves have to take at most half of it, and ``MAX_LEAVES_WORK`` operations at nominal prices.
    """
    train, partition = recipe.train, Partition()
    given = (recipe.kernel, recipe.metric, recipe.centers, recipe.features)
    if any(each is not None for each in given) or recipe.solver != AUTO or train.augmentations:
        return None
    if device == "cuda" or recipe.diagnose:
        return None
    if len(train) != train.base_rows or train.base_rows < MIN_TABLE_ROWS or train.n_features > MAX_L1_FEATURES:
        return None
    recipe = with_rows_per_leaf(replace(recipe, partition=partition))
    partition = recipe.partition
    settings, half = LeafSettings.of(recipe), budget // 2
    shape = PartitionShape.before_rows(recipe, on=settings.on, budget=budget, slots=TRIAL_THREADS, baseline=half)
    try:
        tried, trial = trial_footprint(recipe, partition, budget, TRIAL_THREADS, half)
        shape = replace(shape, tried=tried, trial=trial)
        shape.footprint((*stages_of_fit(recipe), EVALUATE_LEAVES))
    except PlanRefusedError:
        return None
    one, _ = leaf_shape(recipe, settings.on, shape.dataset, shape.leaf_rows, budget=budget, baseline=0)
    work = (1 + MAX_LEAF_SEARCH_WORK_RATIO) * shape.leaves * nominal_work(one.solver, one.size)
    return partition if work <= MAX_LEAVES_WORK else None


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
    recipe = decided(recipe, budget, device)
    if recipe.partition is not None:
        return with_rows_per_leaf(recipe), ""
    made, why = resolve_solver(recipe, budget)
    if recipe.solver != AUTO:
        return made, why
    made, held = with_held_out(made)
    if held:
        made = replace(made, solver=replace(made.solver, patience=PATIENCE))
    return made, f"{why}; {held}" if held else why


def with_rows_per_leaf(recipe: Any) -> Any:
    """A recipe of leaves with the number of rows that each has at most."""
    recipe.train._require_rows()
    n = recipe.train.base_rows
    p = None if recipe.centers is None else min(recipe.centers.count(recipe.train), n)
    return replace(recipe, partition=recipe.partition.settled(n, p))


def evaluation_of(recipe: Recipe) -> tuple[Stage, ...]:
    """The stage that measures the model of a recipe."""
    return (EVALUATE if recipe.partition is None else EVALUATE_LEAVES,)


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
    partition = recipe.partition
    if partition is None:
        return fit(recipe, executor, budget, runner, on_plan, device, after=after(recipe))
    if device is not None:
        raise partition_error("a device", 'leaves are computed on the CPU: sk.Resources(device="cpu")')
    runner = runner or Runner()
    require_partition(recipe)
    recipe.train._require_rows()
    # What fits now is not refused later, for what the stages in between have left behind.
    before = load_libraries()
    if fits_one_leaf(partition, recipe.train.base_rows):
        reason = f"one model, since {recipe.train.base_rows:,} rows are no more than a leaf may have"
        runner.choice(f"partition: {reason}", partition=False)
        return _one_model(recipe, executor, budget, runner, on_plan, before, after, reason, 0, None)
    trial = trial_stages(recipe)
    leaves = (*(LEAF_STAGES if trial else stages_of_leaves(recipe)), *after(recipe))
    shape = shape_before_rows(
        recipe, budget, executor.slots, before, executor.in_process, runner.held_out_rows,
        overlaps=executor.overlaps, share=runner.search_share,
    )  # fmt: skip
    made = started(recipe, executor, runner, shape, (*trial, *leaves), allow=on_plan, folder=folder)
    runner.carry_out(trial, made)
    if made.one:
        ready = made.data, made.known
        return _one_model(
            recipe, executor, budget, runner, on_plan, before, after, made.reason, made.shape.trial, ready
        )
    with made.held:
        runner.carry_out(leaves, made)
    return made.fitted


def _one_model(
    recipe: Recipe,
    executor: Executor,
    budget: int,
    runner: Runner,
    on_plan: Callable[[Footprint], None],
    baseline: int,
    after: Callable[[Recipe], tuple[Stage, ...]],
    reason: str,
    held: int = 0,
    ready: tuple[Dataset, Statistics] | None = None,
) -> Fitted:
    """One model in place of leaves, after a trial that held so many bytes; ``ready`` are its prepared rows."""
    whole, _ = resolve_with_held_out(without_partition(recipe), budget)
    ready = ready if whole.train is recipe.train else None  # without the rows that are held out for answers
    tried = replace(ONE_OR_LEAVES, when=lambda fit: isinstance(fit, FitShape), memory=lambda _: held)
    report = {"partition": {"leaves": 1, "reason": reason}}
    return fit(
        whole, executor, budget, runner, on_plan, ready=ready, baseline=baseline, report=report,
        after=(*after(whole), *([tried] if held else [])),
    )  # fmt: skip


def shape_before_rows(
    recipe: Recipe,
    budget: int,
    slots: int,
    baseline: int,
    here: bool = True,
    held_out_rows: int = Runner.held_out_rows,
    **how: Any,
) -> PartitionShape:
    """The shape of a partition before a row is read, with its trial, and with the one model that this may choose.

    ``how`` is the executor, as ``project_memory`` takes it.

    Raises:
        PlanRefusedError: the trial, or the one model, would not fit.
    """
    shape = PartitionShape.before_rows(
        recipe, on=LeafSettings.of(recipe).on, budget=budget, slots=slots, here=here, baseline=baseline
    )
    if not may_use_single_model(recipe.partition):
        return shape
    tried, trial = trial_footprint(recipe, recipe.partition, budget, slots, baseline)
    whole = resolve_with_held_out(without_partition(recipe), budget)[0]
    project_memory(whole, budget, baseline, held_out_rows, slots=slots, **how)
    return replace(shape, tried=tried, trial=trial)


# --------------------------------------------------------------------------------------------------- the trial, a stage


def trial_stages(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages of the trial; none where leaves are asked for."""
    if not may_use_single_model(recipe.partition):
        return ()
    return (*preparation(recipe), KERNEL_OF_LEAVES, ONE_OR_LEAVES)


def stages_of_fit(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages of a fit, in order: of one model; or of a partition, with all that its trial may ask for."""
    if recipe.partition is None:
        return stages_of_model(recipe)
    trial = trial_stages(recipe)
    return (*trial, *(LEAF_STAGES if trial else stages_of_leaves(recipe)))


def _take_kernel(fit: PartitionFit, chosen: KernelChoice) -> None:
    fit.runner.choice(chosen.reason(), kernel=chosen.described)


def _run_trial(fit: PartitionFit) -> dict[str, Errors]:
    budget, baseline = fit.shape.budget, fit.shape.baseline
    return run_trial(fit.recipe, fit.partition, fit.data, fit.encoding, fit.executor, budget, fit.choice, baseline)


def _take_trial(fit: PartitionFit, found: dict[str, Errors]) -> None:
    leaves, reason, shared = leaves_are_better(found, fit.partition, fit.recipe.train.base_rows, fit.choice is not None)
    fit.one, fit.reason, fit.choice = not leaves, reason, fit.choice if shared else None
    fit.runner.choice(f"partition: {reason}", partition=leaves)
    fit.executor.allowed = fit.projected.allowance()  # the fits of the trial had their own


def _shared_search_memory(shape: PartitionShape) -> int:
    assert shape.shared_search is not None
    return shape.sweeping + shape.shared_search.cost_estimate(shape.largest[0].size, shape.dataset.base_rows).memory


def _shared_search_work(shape: PartitionShape) -> StageWork:
    assert shape.shared_search is not None
    return search_work(shape, shape.shared_search, replace(shape.leaf.size, n=len(shape.dataset), held_out_rows=0))


def _trial_work(shape: PartitionShape) -> StageWork:
    """One model and leaves; with a search, two more leaves choose kernels of their own."""
    assert shape.tried is not None
    one, leaf = shape.tried.cost_estimate.work_estimate, shape.leaf.cost_estimate.work_estimate
    fitted = leaves_of_sample(shape.recipe.partition, shape.dataset.base_rows)
    own = 0.0 if shape.shared_search is None else 2 * (1 + MAX_LEAF_SEARCH_WORK_RATIO)
    work = one.setup + one.training + (fitted + own) * (leaf.setup + leaf.training)
    rows = 2 * shape.tried.cost_estimate.size.n
    return StageWork(rows, 1, shape.stored_bytes, work, scanned=shape.stored_rows)


KERNEL_OF_LEAVES = replace(
    KERNEL,
    take=_take_kernel,
    when=lambda fit: (fit.shared_search if isinstance(fit, PartitionShape) else fit.search) is not None,
    memory=_shared_search_memory,
    work=_shared_search_work,
    why=lambda shape: (f"{shape.shared_search.text()}; for all leaves, unless their own are better",),
)

ONE_OR_LEAVES = Stage(
    "one-or-leaves", _run_trial, take=_take_trial,
    key=lambda fit: (
        rows_key(fit.data), encoding_to_json(fit.encoding), described(fit.recipe.kernel), described(fit.partition),
        described(fit.recipe.centers), fit.recipe.seed, fit.recipe.dtype, platform.machine(), "errors of rows, twice",
    ),
    memory=lambda shape: shape.trial,
    work=_trial_work,
    why=lambda shape: ("one model instead, where leaves are no better on held-out rows of a sample",),
)  # fmt: skip


def may_use_single_model(partition: Partition) -> bool:
    """True if one model may be trained in place of leaves."""
    return champion_of(partition) is None and partition.leaves == "auto" and partition.by is None


def without_partition(recipe: Any) -> Any:
    """The recipe of one model."""
    return replace(recipe, partition=None)


def fits_one_leaf(partition: Partition, n: int) -> bool:
    """Return True if n rows fit one leaf."""
    return may_use_single_model(partition) and n <= partition.most


def trial_centers(recipe: Recipe, budget: int) -> tuple[int, int]:
    """Centers of the trial's one model, and of the one that is trained again: all rows, where all will be centers."""
    n, whole = recipe.train.base_rows, without_partition(recipe)
    every = whole.centers is None and with_all_rows_as_centers(whole, budget) is not None
    return (n, n) if every else (TRIAL_CENTERS, SECOND_CENTERS)


def trial_recipe(settings: LeafSettings, most: int) -> Callable[[Dataset], Recipe]:
    """The recipe of a trial with at most so many centers, as ``LeafSettings.on`` makes that of a leaf."""

    def on(train: Dataset) -> Recipe:
        recipe = settings.on(train)
        p = most if recipe.centers is None else min(most, recipe.centers.count(train))
        return replace(recipe, metric=None, solver=AUTO, centers=Uniform(min(p, train.base_rows), recipe.seed))

    return on


def trial_footprint(
    recipe: Recipe, partition: Partition, budget: int, slots: int, baseline: int
) -> tuple[Footprint, int]:
    """The projection of one model on the sample, in one thread; and the bytes of a trial in all threads.

    Raises:
        PlanRefusedError: the trial would not fit beside ``baseline`` bytes.
    """
    rows, settings = planned_rows(recipe), LeafSettings.of(recipe)
    looked, held = min(TRIAL_ROWS, rows.base_rows), baseline + sample_bytes(recipe)

    def project(most: int) -> Footprint:
        on = trial_recipe(settings, most)
        return leaf_shape(recipe, on, rows, looked, budget=budget, baseline=held)[1]

    def trial_bytes(fits: Footprint, at_once: int = 1) -> int:
        return at_once * max(fits.stages.values())

    first, second = trial_centers(recipe, budget)
    fits, again = project(first), project(second)
    # Leaves as ``run_trial`` cuts them, one at a time; as many are fitted at once as the budget allows.
    shapes = shaped_rows(recipe, rows, looked)
    many = _in_leaves_of_sample(settings, shapes, leaves_of_sample(partition, rows.base_rows), partition)
    shape = PartitionShape.before_rows(many, on=LeafSettings.of(many).on, budget=budget, slots=1, baseline=held)
    cut = shape.footprint((*stages_of_leaves(many), EVALUATE_LEAVES))
    most = max(trial_bytes(fits, min(slots, TRIAL_THREADS)), trial_bytes(again), trial_bytes(cut))
    return fits, sample_bytes(recipe) + most


def sample_bytes(recipe: Recipe) -> int:
    """Bytes of the sample: gathered in blocks, joined, and as the rows of a model."""
    rows = planned_rows(recipe)
    row = rows.n_features * np.dtype(recipe.dtype).itemsize + 8 * likely_outputs(rows)
    return 3 * min(TRIAL_ROWS, rows.base_rows) * row


def _in_leaves_of_sample(settings: LeafSettings, train: Dataset, leaves: int, partition: Partition) -> Recipe:
    """The recipe of the trial's leaves on rows of the sample."""
    cut = Partition(leaves=leaves, overlap=partition.overlap)
    return replace(settings.recipe, train=train, metric=None, solver=AUTO, partition=cut)


def leaves_are_better(found: dict[str, Errors], partition: Partition, n: int, searched: bool) -> tuple[bool, str, bool]:
    """Whether leaves are better by the errors of a trial; why; and whether a kernel that was found is that of all."""
    own = found["leaves"]
    shared = "shared" in found and not own.beats(found["shared"].on_rows_of(own), OWN_KERNEL_STANDARD_ERRORS)
    least = found["shared"] if shared else own
    one = found["one"].on_rows_of(least)
    better, close = least.beats(one), ""
    if better and (shared or not searched) and "one again" in found:
        one = found["one again"]
        better = least.mean < MAX_SECOND_ERROR_RATIO * one.mean
        if not better and least.mean < one.mean:
            close = f": less than {1 - MAX_SECOND_ERROR_RATIO:.0%} better"
    tried, sample = f"{leaves_of_sample(partition, n)} leaves", "a sample"
    if shared:
        tried = f"{tried} of one kernel"
    elif searched:
        tried, sample = "two leaves of kernels of their own", "a part of a sample"
    reason = (
        f"{'leaves' if better else 'one model'}, squared error {least.mean:.4g} in {tried} and {one.mean:.4g} in one "
        f"model on held-out rows of {sample}, {least.doubt(one):.2g} the standard error of the difference{close}"
    )
    return better, reason, shared


def leaves_of_sample(partition: Partition, n: int) -> int:
    """Leaves of the sample of n rows, with no more rows each than those of all rows."""
    return max(MIN_TRIAL_LEAVES, partition.expected(round((1 - HELD_OUT_SHARE) * min(TRIAL_ROWS, n)))[0])


def run_trial(
    recipe: Recipe, partition: Partition, data: Dataset, encoding: Any, executor: Executor, budget: int,
    choice: KernelChoice | None, baseline: int,
) -> dict[str, Errors]:  # fmt: skip
    """Return the squared errors of one model and of leaves on held-out rows of a sample.

    ``choice`` is the kernel of a sample of all rows, where it was left open; ``baseline`` the bytes that the projection
    of the trial started from.

    Returns:
        Errors of ``one`` model; of ``leaves`` that each choose a kernel; and, if there is a choice, of leaves that all
        have it, ``shared``, as then the one model has, too. With a choice, ``leaves`` are trained and measured only
        where two of the others are, because their searches take long; all other rows have weight 0. ``one again`` is
        there where leaves without searches of their own are better, but not clearly.
    """
    ids = np.sort(data.draw(min(TRIAL_ROWS, data.base_rows), _DRAW, recipe.seed))
    out = row_hash(ids, _DRAW, recipe.seed, 1) < np.uint64(round(HELD_OUT_SHARE * HASH_SPAN))
    settings, (first, second) = LeafSettings.of(recipe), trial_centers(recipe, budget)
    given, held = settings.chosen(choice), baseline + sample_bytes(recipe)

    def one(centers: int, train: Dataset) -> KernelMachine:
        """One model of the rows."""
        whole, _ = resolve_solver(trial_recipe(given, centers)(train), budget, ridge=given.ridge is not None)
        whole = replace(whole, solver=given.with_ridge(whole.solver, train.base_rows))
        return KernelMachine.of(fit(whole, executor, budget, LeafRunner(), baseline=held))

    def cut(settings: LeafSettings, leaves: int, train: Dataset) -> PartitionedMachine:
        """A model of the rows in leaves."""
        many = _in_leaves_of_sample(settings, train, leaves, partition)
        return fit_partition(many, executor, budget, LeafRunner(), held, settings.ridge)

    def fitted(model_of: Callable[[Dataset], M], X: Array, y: Array, w: Array | None, some: Array) -> tuple[Errors, M]:
        """Train a model on ``some`` of the rows; return its errors on held-out rows, and the model."""
        known = np.isin(y, y[~out & some]) if y.ndim == 1 else some
        own = out & some & known  # a class that is only held out tells nothing
        fit_to = some & ~own
        train = from_arrays(X[fit_to], y[fit_to], sample_weight=None if w is None else w[fit_to])
        model = model_of(train)
        F, truth = model.decision_function(X[own], executor=executor).astype(np.float64), y[own]
        if isinstance(model.encoding, Classes):
            F, truth = model.encoding.comparable(F), np.searchsorted(model.encoding.values, truth)
        residual(F, truth)
        squares, weights = np.zeros(len(X)), np.zeros(len(X))
        squares[own] = np.square(F).mean(axis=1)
        weights[own] = 1.0 if w is None else w[own]
        return Errors(squares[out], weights[out]), model

    def sample(rows: Dataset) -> tuple[Array, Array, Array | None]:
        X, y, w = gather_weighted(executor, Assembly(rows.plain(), encoding, 0.0, np.dtype(recipe.dtype)), ids)
        assert y is not None
        return X, y, w

    every, found = np.ones(len(ids), dtype=bool), dict[str, Errors]()
    leaves = leaves_of_sample(partition, data.base_rows)
    try:
        rows = sample(data if choice is None else choice.metric.applied(data))
        found["one"], _ = fitted(partial(one, first), *rows, every)
        least, model = fitted(partial(cut, given, leaves), *rows, every)
        if (
            first < data.base_rows
            and least.beats(found["one"])
            and least.mean > MAX_CLEAR_ERROR_RATIO * found["one"].mean
        ):
            found["one again"], _ = fitted(partial(one, second), *rows, every)
        if choice is None:
            return found | {"leaves": least}
        part = model.tree.on_the_left(rows[0], leaves.bit_length() - 2)  # of so many cuts are two leaves
        if len(np.unique(rows[1][part & ~out], axis=0)) < 2 or not (part & out).any():  # nothing to choose a kernel by
            return found | {"leaves": least, "shared": least}
        found["leaves"], _ = fitted(partial(cut, settings, 2), *sample(data), part)
        return found | {"shared": least}
    except StreamkernError as error:
        error.where = f"the sample that decides between one model and leaves, {error.where}"
        raise
