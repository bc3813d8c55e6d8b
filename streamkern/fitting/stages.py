"""The stages of a fit of one model, in order: the one list that runs, plans, projections and reports read."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from streamkern.calibration.out_of_sample import LEFT_OUT, held_out_count
from streamkern.calibration.probabilities import softmax_of_logits
from streamkern.calibration.serialization import Calibration
from streamkern.centers import CenterSet
from streamkern.costs.dry_run import ProblemSize
from streamkern.costs.fit_shape import FitShape
from streamkern.costs.footprint import Footprint
from streamkern.costs.stage_work import StageWork
from streamkern.data.class_weights import described_weights, weighted_like
from streamkern.data.dataset import Dataset
from streamkern.data.row_compatibility import require_same_scaling, require_training_columns
from streamkern.data.row_order import Assembly
from streamkern.data.statistics import require_range
from streamkern.data.targets import Classes, Continuous, Indicators, encoding_to_json
from streamkern.defaults import (
    BANDWIDTHS,
    CHECKED_CENTERS,
    HELD_OUT,
    MAX_TRAIN_SCORE_ROWS,
    MEDIAN_ROWS,
    MIN_ERROR_SHARE,
    MIN_ROWS_TO_HOLD_OUT,
    NEAR_BANDWIDTHS,
    NORMAL_QUARTILES,
)
from streamkern.engine.device import Device
from streamkern.engine.operation_counts import Operations
from streamkern.errors import NumericalError, PrecisionError
from streamkern.evaluation.metrics import ranking_work
from streamkern.fitting.calibrate import fit_calibration, out_of_sample_source, require_two_classes
from streamkern.fitting.device_placement import require_room, room_for_solver
from streamkern.fitting.evaluation_checks import check_rows, naming_rows
from streamkern.fitting.fitted import Fitted
from streamkern.fitting.memory_projection import all_rows_are_centers, basis_width, likely_outputs, preprocessing_steps
from streamkern.fitting.precision_checks import require_precision, subtract_offsets
from streamkern.fitting.preparation import STATISTICS, TrainingRows, preparation, rows_key
from streamkern.fitting.recipe import Recipe
from streamkern.fitting.stage import Stage, step
from streamkern.gpu import engine_on
from streamkern.kernels import Kernel, is_open
from streamkern.memory import release_free_memory
from streamkern.preprocessing.automatic_steps import data_warnings, preprocessing_notes
from streamkern.preprocessing.feature_origins import Features, features_of
from streamkern.rng import Draw
from streamkern.selection import median_bandwidth
from streamkern.selection.kernel_search import KernelChoice, Search, choose_kernel, default_kernel, with_ridge
from streamkern.selection.learned_metric import AGOP, Metric, learn_metric
from streamkern.solvers.base import Iteration, Problem
from streamkern.solvers.lbfgs import encoding_for, encoding_to_search
from streamkern.solvers.loop import Outcome, train_stably
from streamkern.sweep import gather
from streamkern.user_code_digest import described


@dataclass(eq=False)
class Fit(TrainingRows):
    """A fit of one model: what its stages take, and what they have found so far; ``recipe`` has what was chosen.

    ``project`` projects the memory of the fit again, for rows of another width and another number of outputs.
    """

    shape: FitShape
    project: Callable[[Dataset, int], Footprint]
    allow: Callable[[Footprint], None]
    lanes: int
    projected: Footprint
    device: Device | None = None
    notes: list[str] = field(default_factory=list)
    columns: Features | None = None
    choice: KernelChoice | None = None
    metric: Metric | None = None
    distances: dict[int, float] = field(default_factory=dict)
    validation: Dataset | None = None
    kernel: Kernel = field(init=False)
    centers: CenterSet = field(init=False)
    problem: Problem = field(init=False)
    iteration: Iteration | None = None
    outcome: Outcome = field(init=False)
    report: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None

    @property
    def search(self) -> Search | None:
        """The trials for a kernel that is left open, or None."""
        found = self.shape.search
        return found if isinstance(found, Search) else None

    @property
    def source(self) -> str | None:
        """Source of the outputs that probabilities or intervals are made from, or None."""
        if not self.runner.held_out_rows:
            return None
        return out_of_sample_source(self.recipe.solver, self.recipe.train, self.recipe.validation)

    @cached_property
    def fitted(self) -> Fitted:
        """The result, once the stages have run."""
        median = self.distances[max(self.distances)] if self.distances else None
        return Fitted(
            self.problem, self.outcome, self.report, self.projected.after(self.report), median, self.metric,
            self.columns, self.choice, self.calibration,
        )  # fmt: skip


def stages_of_model(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages of a fit of one model, in order."""
    return (*preparation(recipe), *MODEL_STAGES)


# ------------------------------------------------------------------------------------------------ kernel and metric


def note_rows(fit: Any) -> None:
    """Note what preprocessing has come to, and the features; warn of rows that are probably not as they are meant."""
    steps = preprocessing_steps(fit.recipe)
    fit.notes, fit.columns = preprocessing_notes(fit.data, steps, fit.known), features_of(fit.data)
    for message in data_warnings(fit.data, steps, fit.known):
        fit.runner.warn(message)


def _look_at_rows(fit: Fit) -> None:
    if weights := described_weights(fit.data):
        fit.runner.choice(f"weights of classes: {weights}", class_weight=weights)
    note_rows(fit)


def _sample_problem(fit: Fit) -> Problem:
    kernel = default_kernel(fit.known, fit.data, fit.recipe.kernel)
    recipe, engine, dtype = fit.recipe, engine_on(fit.device), _compared_dtype(fit, kernel)
    nothing = CenterSet(np.empty((0, fit.data.n_features), dtype=dtype), None)
    rows = subtract_offsets(fit.data, fit.known, kernel.translation_invariant, dtype)
    encoding = encoding_to_search(fit.encoding, recipe.solver)
    return Problem(rows, encoding, kernel, nothing, fit.executor, dtype, recipe.seed, recipe.lanes, engine=engine)


def _compared_dtype(fit: Fit, kernel: Any) -> np.dtype[Any]:
    """The fit's, or float32 where it tells rows apart with the least bandwidth: it compares kernels in half the time.

    Few rows take no time, and may want the least ridges.
    """
    dtype, data = np.dtype(np.float32), fit.data.plain()
    if fit.dtype == dtype or not is_open(fit.recipe.kernel) or data.base_rows < MIN_ROWS_TO_HOLD_OUT:
        return fit.dtype
    data = subtract_offsets(data, fit.known, kernel.translation_invariant, dtype)
    ids = data.draw(min(CHECKED_CENTERS, data.base_rows), Draw.METRIC, fit.recipe.seed)
    Z, _ = gather(fit.executor, Assembly(data, dtype=dtype), np.sort(ids))
    kernel = replace(kernel, bandwidth=BANDWIDTHS[0] * NEAR_BANDWIDTHS[0] * kernel.bandwidth)
    try:
        require_precision(kernel, None, Z, data, fit.known, dtype)
    except PrecisionError:
        return fit.dtype
    return dtype


def _sample_key(fit: Fit, what: Any) -> tuple[Any, ...]:
    problem = _sample_problem(fit)
    rows, kernel, encoding = rows_key(problem.train), described(problem.kernel), encoding_to_json(problem.encoding)
    return rows, what, kernel, encoding, fit.recipe.dtype, platform.machine()


def _take_kernel(fit: Fit, chosen: KernelChoice) -> None:
    assert fit.search is not None
    fit.runner.choice(chosen.reason(), kernel=chosen.described)
    solver = chosen.solver(fit.recipe.solver, fit.recipe.train.base_rows)
    fit.recipe = replace(fit.recipe, kernel=chosen.kernel, solver=solver, metric=fit.recipe.metric or fit.search.agop)
    _apply(fit, chosen.metric)


def _learn_metric(fit: Fit) -> Metric:
    assert fit.recipe.metric is not None
    problem = _sample_problem(fit)
    return learn_metric(fit.recipe.metric, problem.kernel, problem)


def _take_metric(fit: Fit, learned: Metric) -> None:
    fit.runner.choice(learned.reason(), metric=learned.kind)
    _apply(fit, learned)


def _apply(fit: Fit, metric: Metric) -> None:
    """See the rows through a metric. A scale of features is part of how statistics are read; a turn makes others."""
    fit.metric, fit.data = metric, metric.applied(fit.data)
    if metric.kind == "full":
        fit.facts = None
    release_free_memory()


def search_work(shape: FitShape, search: Any, size: ProblemSize) -> StageWork:
    """The most that a search for a kernel or a metric may take, for a problem of a size."""
    costs = search.cost_estimate(size, shape.dataset.base_rows)
    return StageWork(costs.sample, costs.rounds, shape.stored_bytes, costs.work, assembled=costs.rows)


def _metric_reason(shape: FitShape) -> tuple[str, ...]:
    agop = shape.recipe.metric
    sample, p = agop.sizes(shape.dataset.base_rows)
    kinds = " and ".join(agop.kinds(shape.dataset.n_features))
    return (f"metric: {kinds}, at most {agop.rounds} round(s) each on {sample:,} rows and {p:,} centers",)


KERNEL = Stage(
    "kernel", lambda fit: choose_kernel(fit.search, _sample_problem(fit)), "choice", _take_kernel,
    why=lambda shape: (shape.search.text(),),
    key=lambda fit: _sample_key(fit, asdict(fit.search)),
    when=lambda fit: isinstance(fit.search, Search),
    memory=lambda shape: shape.searching,
    work=lambda shape: search_work(shape, shape.search, shape.size),
)  # fmt: skip

METRIC = Stage(
    "metric", _learn_metric, "metric", _take_metric,
    why=_metric_reason,
    key=lambda fit: _sample_key(fit, described(fit.recipe.metric)),
    when=lambda fit: isinstance((fit if isinstance(fit, FitShape) else fit.shape).search, AGOP),
    memory=lambda shape: shape.searching,
    work=lambda shape: search_work(shape, shape.recipe.metric, shape.size),
)  # fmt: skip


def _weigh_ridge(fit: Fit) -> None:
    if fit.choice is None and described_weights(fit.data):
        # Without a ridge weights of classes would not count.
        fit.recipe = replace(fit.recipe, solver=with_ridge(fit.recipe.solver, 1 / fit.data.base_rows))


# ----------------------------------------------------------------------------------------- rows as the solver sees them


def _center_rows(fit: Fit) -> None:
    recipe, guess = fit.recipe, fit.shape.dataset
    encoding = encoding_for(fit.encoding, recipe.solver, partial(_typical, fit))
    basis = recipe.features or recipe.kernel
    invariant = basis is None or basis.translation_invariant
    fit.data = subtract_offsets(fit.data, fit.known, invariant, fit.dtype)
    fit.facts = replace(fit.known, encoding=encoding)
    if recipe.threshold is not None:
        require_two_classes(fit.encoding)
    require_range(fit.data, fit.known, fit.dtype, centred=invariant)
    release_free_memory()
    turned = fit.metric is not None and fit.metric.kind == "full"
    if fit.encoding.outputs > likely_outputs(guess) or fit.data.n_features != guess.n_features or turned:
        fit.projected = fit.project(fit.data, max(fit.encoding.outputs, likely_outputs(guess)))
        fit.allow(fit.projected)


def _typical(fit: Fit) -> tuple[float, float]:
    """Median of a value, and the size of its errors: that of the search, unless a few far values make it up."""
    problem = _sample_problem(fit)
    assert isinstance(problem.encoding, Continuous)
    _, y, w = problem.full_rows(problem.draw(MEDIAN_ROWS, Draw.QUANTILES))
    values, weight = y[:, 0], np.ones(len(y)) if w is None else w
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weight[order]) / weight.sum()
    low, median, high = (float(values[order][np.searchsorted(share, level)]) for level in (0.25, 0.5, 0.75))
    error = float(values.std()) if fit.choice is None else max(fit.choice.best**0.5, MIN_ERROR_SHARE * (high - low))
    robust = (high - low) / NORMAL_QUARTILES
    unit = float(np.ravel(problem.encoding.unit)[0])
    return median * unit + float(problem.encoding.mean[0]), min(error, robust or error) * unit


def _like_training(fit: Any, name: str) -> Dataset:
    """Validation or test rows as training prepares them; DataError where their columns are others."""
    rows: Dataset = getattr(fit.recipe, name)
    train = fit.data
    with naming_rows(f"the {name} rows"):
        require_training_columns(
            rows, train.source.n_features, train.source.columns, train.transforms, train.source.schema
        )
        prepared = rows._prepared_like(train)._final()
        as_given = fit.recipe.metric is None and fit.choice is None
        if name == "test" and not preprocessing_steps(fit.recipe) and as_given:
            require_same_scaling(rows, prepared)
    return prepared


def _check(name: str) -> Stage:
    def work(shape: FitShape) -> StageWork:
        n = len(getattr(shape.recipe, name))
        return StageWork(n, read=n * shape.stored_row, assembled=n)

    return Stage(
        f"check-{name}",
        lambda fit: check_rows(_like_training(fit, name), fit.encoding, fit.executor, fit.dtype, f"the {name} rows"),
        key=lambda fit: (rows_key(_like_training(fit, name)), encoding_to_json(fit.encoding), fit.dtype.str),
        when=lambda fit: fit.recipe is not None and getattr(fit.recipe, name) is not None,
        memory=lambda shape: shape.sweeping,
        work=work,
    )


CHECKS = (_check("validation"), _check("test"))


def _centers_memory(shape: FitShape) -> int:
    return shape.gather + shape.ids + 2 * shape.takes.centers + shape.centers_bytes


def _median_work(shape: FitShape) -> StageWork:
    looked = min(MEDIAN_ROWS, shape.dataset.base_rows)
    pairs = Operations(numbers=0.5 * shape.size.d * looked**2)
    return StageWork(looked, 1, shape.stored_bytes, pairs, assembled=looked)


def _bandwidth(norm: int) -> Stage:
    def take(fit: Fit, median: float) -> None:
        fit.distances[norm] = median
        in_norm = "" if norm == 2 else f" in the L{norm} norm"
        fit.runner.choice(f"bandwidth {median:.6g}: the median distance of two rows{in_norm}", median=median)

    return Stage(
        "bandwidth",
        lambda fit: median_bandwidth.median_distance(fit.data, fit.executor, fit.dtype, norm),
        take=take,
        key=lambda fit: (rows_key(fit.data), fit.recipe.dtype, *([] if norm == 2 else [norm])),
        when=lambda fit: fit.recipe is not None and norm in median_bandwidth.median_norms(fit.recipe),
        memory=_centers_memory,
        work=_median_work,
        why=lambda shape: (f"bandwidth: the median distance of {MEDIAN_ROWS:,} rows, once they are read",),
    )


def _settle_kernel(fit: Fit) -> None:
    recipe = fit.recipe
    if recipe.validation is not None:
        fit.validation = weighted_like(recipe.validation._prepared_like(fit.data)._final(), fit.data)
    if fit.distances:
        fit.recipe = recipe = median_bandwidth.with_median_distances(recipe, fit.distances)
    fit.kernel = default_kernel(fit.known, fit.data, recipe.kernel)


# --------------------------------------------------------------------------------------- centers, eigensystem, training


def centers_key(recipe: Recipe, dataset: Dataset) -> tuple[Any, ...]:
    """Key of the centers: all that they depend on."""
    return rows_key(dataset), described(recipe.centers), recipe.dtype


def _choose_centers(fit: Fit) -> CenterSet:
    if fit.recipe.centers is None:  # its features do without
        return CenterSet(np.empty((0, fit.data.n_features), dtype=fit.dtype), None)
    return fit.recipe.centers.choose(fit.data, fit.executor, fit.dtype)


def _kept_centers(fit: Fit) -> tuple[Any, ...] | None:
    stored = fit.recipe.centers is not None and fit.recipe.centers.stored  # where the rows are: they are not kept twice
    return None if stored else centers_key(fit.recipe, fit.data)


def _take_centers(fit: Fit, centers: CenterSet) -> None:
    require_precision(fit.kernel, fit.recipe.features, centers.Z, fit.data, fit.known, centers.Z.dtype)
    release_free_memory()


def _choosing_work(shape: FitShape) -> StageWork:
    recipe = shape.recipe
    operations = Operations() if recipe is None or recipe.centers is None else recipe.centers.operations(recipe.train)
    return StageWork(shape.stored_rows, 1, shape.stored_bytes, operations, assembled=shape.size.p)


CENTERS = Stage(
    "centers", _choose_centers, "centers", _take_centers,
    key=_kept_centers,
    memory=_centers_memory,
    work=_choosing_work,
)  # fmt: skip


def _pose(fit: Fit) -> None:
    recipe, projected, facts = fit.recipe, fit.projected, fit.known
    dtype, sizes = fit.centers.Z.dtype, (basis_width(recipe, fit.data), fit.data.n_features)
    needed = require_room(fit.device, projected, *sizes, dtype.itemsize)
    fit.problem = Problem(
        fit.data, fit.encoding, fit.kernel, fit.centers, fit.executor,
        dtype=dtype, seed=recipe.seed, lanes=fit.lanes,
        memory=room_for_solver(fit.device, projected, *sizes, dtype.itemsize),
        better_budget=projected.better_budget, cache_bytes=projected.cache_bytes,
        validation=fit.validation, features=recipe.features,
        mean_weight=facts.mean_weight, largest_weight=facts.largest_weight,
        engine=engine_on(fit.device),
        device_rest=0 if fit.device is None or not fit.executor.in_process else fit.device.budget - needed,
        held_out_rows=fit.runner.held_out_rows if fit.source in LEFT_OUT else 0,
        all_rows_are_centers=all_rows_are_centers(recipe, fit.data),
    )  # fmt: skip


def training_key(fit: Fit) -> tuple[Any, ...]:
    """All that weights depend on."""
    recipe, problem = fit.recipe, fit.problem
    choice = fit.projected.cost_estimate.choice + (", no better solve" if problem.better_budget else "")
    return (
        fit.data.fingerprint,
        None if fit.validation is None else fit.validation.fingerprint,
        encoding_to_json(problem.encoding),
        centers_key(recipe, fit.data),
        described(fit.kernel),
        described(recipe.features),
        described(recipe.solver),
        [recipe.seed, fit.lanes, recipe.dtype, choice, problem.mix_chunks],
        platform.machine(),
    )


def _setup_work(shape: FitShape) -> StageWork:
    takes, n = shape.cost_estimate.work_estimate, shape.size.n
    sweeps = int(takes.setup_rows // n) if takes.setup_rows >= n else 0  # over all rows
    return StageWork(
        sweeps * n or min(HELD_OUT, n), 1 + sweeps, shape.stored_bytes * (1 + sweeps), takes.setup,
        assembled=sweeps * n,
    )  # fmt: skip


EIGENSYSTEM = Stage(
    "eigensystem",
    lambda fit: fit.recipe.solver.setup(fit.problem),
    "iteration",
    key=training_key,
    until="train",
    memory=lambda shape: shape.gather + shape.takes.setup,
    work=_setup_work,
    why=lambda shape: shape.cost_estimate.reasons,
)


def _train(fit: Fit) -> tuple[Outcome, dict[str, Any]]:
    runner = fit.runner
    assert fit.iteration is not None
    runner.training(fit)
    outcome, last = train_stably(
        fit.problem, fit.recipe.solver, fit.iteration, runner.trained_anew, on_step=runner.stepped,
        start=runner.start, keeper=runner.checkpoints,
    )  # fmt: skip
    if outcome.failure is not None and runner.checkpoints is not None:
        runner.checkpoints.clear()  # a resumed run would fail at the same step
    require_success(outcome)
    for message in last.report.get("warnings", ()):
        runner.warn(message)
    return outcome, last.report


def require_success(outcome: Outcome) -> None:
    """Raise NumericalError if an outcome is a failure."""
    if outcome.failure is not None:
        raise NumericalError(
            outcome.failure.message,
            where=outcome.failure.kind,
            expected="an iteration that stays finite and approaches the solution",
            remedy=outcome.failure.remedy,
        )


def _take_training(fit: Fit, found: tuple[Outcome, dict[str, Any]]) -> None:
    fit.iteration = None
    fit.outcome, fit.report = found[0], found[1] | fit.report
    if fit.notes:
        fit.report = fit.report | {"preprocess": fit.notes}
    release_free_memory()
    if fit.source is None and isinstance(fit.encoding, Classes) and fit.encoding.logits:
        fit.calibration = softmax_of_logits(fit.encoding.outputs)


def predicting(shape: FitShape, rows: int) -> Operations:
    """Operations of predictions of so many rows."""
    return float(rows) * Operations(values=shape.size.p, panel=2.0 * shape.size.p * shape.size.outputs)


def training_work(shape: FitShape) -> StageWork:
    """The passes, with predictions of the validation rows after each."""
    takes, size = shape.cost_estimate.work_estimate, shape.size
    read = shape.stored_bytes if shape.cache >= shape.stored_bytes else int(takes.rows * shape.stored_row)
    held_out = None if shape.recipe is None else shape.recipe.validation
    validated = 0 if held_out is None else takes.passes * len(held_out)
    return StageWork(
        takes.passes * size.n, takes.passes, read, takes.training + predicting(shape, validated),
        assembled=takes.rows + validated, ahead=takes.steps > 0, steps=takes.steps,
    )  # fmt: skip


TRAIN = Stage(
    "train", _train, take=_take_training,
    key=training_key,
    checkpoints=True,
    memory=lambda shape: shape.training,
    work=training_work,
)  # fmt: skip


# ------------------------------------------------------------------------------------------- calibration and evaluation


def _calibrates(fit: Any) -> bool:
    if isinstance(fit, FitShape):
        return fit.calibration is not None
    one = fit.runner.calibrates_classes or not isinstance(fit.encoding, Classes | Indicators)
    return fit.source is not None and one


def _calibration_work(shape: FitShape) -> StageWork:
    recipe, outputs = shape.recipe, shape.size.outputs
    validation = None if recipe is None else recipe.validation
    held = 0 if validation is None else held_out_count(validation.base_rows, outputs)
    fitted = held or held_out_count(shape.dataset.base_rows, outputs)
    work = predicting(shape, held) + Operations(numbers=20.0 * fitted * (3 * outputs + 2) ** 2)
    return StageWork(fitted, 1, held * shape.stored_row, work, assembled=held)


CALIBRATE = Stage(
    "calibrate",
    lambda fit: fit_calibration(fit.problem, fit.outcome, fit.runner.warn, fit.recipe.threshold, fit.runner.encoding),
    "calibration",
    key=lambda fit: (*training_key(fit), *([] if fit.recipe.threshold is None else [fit.recipe.threshold])),
    when=_calibrates,
    memory=lambda shape: shape.calibrating,
    work=_calibration_work,
)


def evaluation_memory(shape: FitShape) -> int:
    """Metrics of a model on rows, block by block."""
    return shape.takes.centers + 2 * shape.weights + shape.evaluation + shape.scored


def evaluation_work(shape: FitShape) -> StageWork:
    """Predictions of a sample of the training rows, and of the test rows, with their ranks."""
    test = None if shape.recipe is None else shape.recipe.test
    tested = 0 if test is None else len(test)
    scored = min(shape.size.n, MAX_TRAIN_SCORE_ROWS) + tested
    work = predicting(shape, scored)
    if shape.recipe is not None and shape.recipe.task == "classification":
        work += ranking_work(scored, shape.size.outputs)
    # The training rows among them lie in every chunk.
    return StageWork(scored, 1, shape.stored_bytes + tested * shape.stored_row, work, assembled=scored)


EVALUATE = Stage(
    "evaluate",
    lambda fit: None,
    when=lambda fit: isinstance(fit, FitShape),
    memory=evaluation_memory,
    work=evaluation_work,
)
"""Metrics on training and test rows, which a run computes. Without a run, memory is left for predictions to come."""

MODEL_STAGES = (
    step(_look_at_rows), KERNEL, METRIC, step(_weigh_ridge), STATISTICS, step(_center_rows), *CHECKS,
    _bandwidth(1), _bandwidth(2), step(_settle_kernel), CENTERS, step(_pose), EIGENSYSTEM, TRAIN, CALIBRATE,
)  # fmt: skip
"""From prepared rows to a model and its calibration."""

SOLVING = (STATISTICS, CENTERS, EIGENSYSTEM, TRAIN, CALIBRATE, EVALUATE)
"""What a fit of prepared rows with a given kernel takes: for projections without a recipe."""
