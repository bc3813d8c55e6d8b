"""From a dataset to weights, as stages: the one sequence that estimators, pipelines and tuning go through."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from streamkern.calibration.out_of_sample import MAX_HELD_OUT_ROWS
from streamkern.calibration.probabilities import softmax_of_logits
from streamkern.calibration.serialization import Calibration
from streamkern.centers import CenterSet
from streamkern.costs.footprint import Footprint, load_libraries
from streamkern.data.class_weights import (
    WeightTotals,
    described_weights,
    weighted_by_class,
    weighted_like,
)
from streamkern.data.dataset import Dataset
from streamkern.data.row_compatibility import require_same_scaling, require_training_columns
from streamkern.data.row_order import Assembly, RawRows, Scan, scan_rows
from streamkern.data.statistics import (
    Extremes,
    Moments,
    RawScan,
    Statistics,
    TransformedScan,
    require_range,
    summarise,
)
from streamkern.data.targets import Classes, Encoding, encoding_to_json
from streamkern.data.transforms import Transform
from streamkern.engine.device import Device
from streamkern.errors import DataError, NumericalError, UsageError, warn
from streamkern.execute.base import Executor
from streamkern.fitting.calibrate import (
    fit_calibration,
    out_of_sample_source,
    require_threshold_rows,
    require_two_classes,
    with_decision_rule,
)
from streamkern.fitting.device_placement import lanes_on, require_room, room_for_solver
from streamkern.fitting.evaluation_checks import check_rows, naming_rows, require_measurable, require_target
from streamkern.fitting.memory_projection import (
    all_rows_are_centers,
    basis_width,
    likely_outputs,
    planned_rows,
    preprocessing_steps,
    project_memory,
)
from streamkern.fitting.precision_checks import require_precision, subtract_offsets
from streamkern.fitting.recipe import Recipe
from streamkern.gpu import engine_on
from streamkern.memory import release_free_memory
from streamkern.preprocessing.automatic_steps import Auto, AutoScale, JoinQuantiles, data_warnings, preprocessing_notes
from streamkern.preprocessing.category_steps import require_encoded
from streamkern.preprocessing.feature_origins import Features, features_of
from streamkern.preprocessing.steps import (
    STANDARD,
    Learning,
    Scaling,
    Step,
    scale,
)
from streamkern.selection import median_bandwidth
from streamkern.selection.kernel_search import (
    KernelChoice,
    Search,
    choose_kernel,
    default_kernel,
    ridge_under_weights,
)
from streamkern.selection.learned_metric import Metric, learn_metric, require_metric
from streamkern.solvers.base import Problem, Solver
from streamkern.solvers.logistic import encoding_for
from streamkern.solvers.loop import Outcome, Progress, train_stably
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array
from streamkern.user_code_digest import described

R = TypeVar("R", bound="Recipe")
T = TypeVar("T")

Key = Callable[[], tuple[Any, ...]]
"""All that a stage's result depends on: called only where results are kept, since it may read all rows in memory."""

TASKS = ("classification", "regression")


def statistics(dataset: Dataset, executor: Executor, task: str) -> Statistics:
    """One sweep over the rows, transformed but not scaled: ranges, moments, labels; refuses rows that cannot be used.

    Raises:
        DataError: the dataset is empty or has no target, a value is not finite, every feature is constant, or there is
            one class only; the message names chunk and row.
    """
    dataset._require_rows()
    target = require_target(dataset, "the training rows")
    plain = dataset.plain()
    scan = TransformedScan(Scan(Assembly(plain), scan_rows(dataset._widest)))
    first, _ = next(raw for raw in map(scan.block, ((i,) for i in range(len(scan)))) if len(raw[0].ids))
    pivot = np.asarray(first.X[0], dtype=np.float64)
    pivot = np.where(np.isfinite(pivot), pivot, 0.0)
    target_pivot: Array | None = None
    assert first.y is not None
    several = task == "classification" and first.y.ndim > 1
    if task == "regression" or several:
        if first.y.dtype.kind not in "fiub":
            raise DataError(
                f"The target {target.name!r} has type {first.y.dtype}.",
                where="the target",
                expected="0 or 1 in each of several columns" if several else "numbers for regression",
                remedy="name one target column" if several else "use a classifier for labels, or convert the column",
            )
        values = np.asarray(first.y[0], dtype=np.float64).reshape(-1)
        target_pivot = np.where(np.isfinite(values), values, 0.0)
    moments = Moments(pivot, target_pivot, plain.columns, target.name if several else None)
    sums = sweep(executor, ScanWork(scan, moments))
    return summarise(sums, moments, flat=not target.outputs, has_target=True, known=plain.labels)


def fit_step(dataset: Dataset, step: Learning, executor: Executor) -> tuple[Transform, ...]:
    """The transforms that a step of preprocessing comes to: one sweep over the rows, or none.

    UsageError is raised where the step does not fit the rows, as without its column; DataError where the rows forbid
    it.
    """
    dataset._require_rows()
    plain = dataset.plain()._settled()
    contribution = step.contribution(plain)
    if contribution is None:
        return _several(step.fitted(plain, None))
    scan = TransformedScan(Scan(Assembly(plain), scan_rows(plain._widest), only=step.only(plain)))
    return _several(step.fitted(plain, sweep(executor, ScanWork(scan, contribution))))


def _several(made: Transform | tuple[Transform, ...]) -> tuple[Transform, ...]:
    return made if isinstance(made, tuple) else (made,)


def statistics_stage(rows: Dataset, recipe: Recipe, executor: Executor, stages: Stages) -> Statistics:
    """Statistics of rows as a stage."""
    key = lambda: (rows_key(rows), recipe.task)  # noqa: E731
    return stages.keep("statistics", key, lambda: statistics(rows, executor, recipe.task))


def prepare(recipe: Recipe, executor: Executor, stages: Stages) -> tuple[Dataset, Statistics]:
    """The training rows after preprocessing, and their statistics before the scaling that is left at the end.

    Scaling needs statistics only, which are taken once after the last step that learns anything else. Weights of
    classes count from here on: preprocessing is that of the rows as they are.
    """

    def learnt(rows: Dataset, step: Learning) -> tuple[Transform, ...]:
        name = f"preprocess-{step.to_json()['name'].lower()}"
        return stages.keep(name, lambda: (rows_key(rows), described(step)), lambda: fit_step(rows, step, executor))

    data, facts = recipe.train, None
    if not isinstance(recipe.preprocess, str):
        require_encoded(data, recipe.preprocess or ())
    waiting: list[Step | AutoScale] = list(preprocessing_steps(recipe))
    while waiting:
        step = waiting.pop(0)
        if isinstance(step, AutoScale):
            step = step.settled(data)
        if isinstance(step, Scaling):
            facts = facts or statistics_stage(data, recipe, executor, stages)
            data = scale(data, step, facts)
        else:
            plain = data.plain()
            for transform in learnt(data, step):
                plain = plain.transform(transform)
            data, facts = data._prepared_like(plain), None
            if isinstance(step, Auto | JoinQuantiles) and recipe.scaling != STANDARD:
                waiting[:0] = step.rest(data)
        release_free_memory()
    facts = facts or statistics_stage(data, recipe, executor, stages)

    def totals(rows: Dataset) -> WeightTotals:
        key = lambda: (rows_key(rows),)  # noqa: E731
        return stages.keep("label-weights", key, lambda: _weight_totals(rows, executor))

    return weighted_by_class(data, facts, recipe.class_weight, totals)


def _weight_totals(dataset: Dataset, executor: Executor) -> WeightTotals:
    """Sum and largest of the rows' weights: one sweep."""
    work = ScanWork(RawScan(Scan(Assembly(dataset.plain()), scan_rows(dataset._widest))), _weights_of_rows)
    mass, ends = sweep(executor, work)
    return WeightTotals(float(mass), float(ends.high))


def _weights_of_rows(block: tuple[RawRows, str], state: Any) -> tuple[float, Extremes]:
    w = block[0].w
    assert w is not None
    return float(w.sum()), Extremes(np.inf, float(w.max(initial=0.0)))


def with_median_bandwidth(recipe: R, dataset: Dataset, executor: Executor, stages: Stages) -> tuple[R, float | None]:
    """The recipe with a number for each bandwidth that is the median distance of two rows; and that distance."""
    found: dict[int, float] = {}
    for norm in median_bandwidth.median_norms(recipe):
        key = partial(_median_key, recipe, dataset, norm)
        measure = partial(median_bandwidth.median_distance, dataset, executor, np.dtype(recipe.dtype), norm)
        found[norm] = stages.keep("bandwidth", key, measure)
        in_norm = "" if norm == 2 else f" in the L{norm} norm"
        reason = f"bandwidth {found[norm]:.6g}: the median distance of two rows{in_norm}"
        stages.choice(reason, median=found[norm])
    return (median_bandwidth.with_median_distances(recipe, found), found[max(found)]) if found else (recipe, None)


def _median_key(recipe: Recipe, dataset: Dataset, norm: int) -> tuple[Any, ...]:
    return rows_key(dataset), recipe.dtype, *([] if norm == 2 else [norm])


def require_success(outcome: Outcome) -> None:
    """Raise NumericalError where an outcome is a failure."""
    if outcome.failure is not None:
        raise NumericalError(
            outcome.failure.message,
            where=outcome.failure.kind,
            expected="an iteration that stays finite and comes closer",
            remedy=outcome.failure.remedy,
        )


class Stages:
    """The execution of a fit's stages: here each is computed, and nothing is kept."""

    held_out_rows = MAX_HELD_OUT_ROWS
    """Rows, at most, that probabilities or intervals are learned from; 0 for none."""

    search_share: float | None = None
    """Work of choosing a kernel, at most, as a part of that of the fit; None for the default."""

    def __init__(self, on_step: Callable[[Progress], None] = lambda progress: None) -> None:
        self.on_step = on_step

    def keep(self, name: str, key: Key | None, compute: Callable[[], T]) -> T:
        """Return the result of a stage; its key covers all that it depends on, and is None if it is not to be kept."""
        return compute()

    def kept(self, name: str, key: Key) -> Any:
        """Return the result of a stage that an earlier run has kept, or None; nothing is computed."""
        return None

    def stepped(self, progress: Progress) -> None:
        """Report how far training is."""
        self.on_step(progress)

    def choice(self, reason: str, **facts: Any) -> None:
        """Report a choice that the rows have made."""

    def warn(self, message: str) -> None:
        """Report rows that are probably not as the user means them."""
        warn(message)

    def train(self, problem: Problem, solver: Solver, key: Key) -> tuple[Outcome, dict[str, Any]]:
        """Eigensystem and training: the outcome, and the solver's report on its problem."""
        iteration = solver.setup(problem)
        outcome, iteration = train_stably(
            problem, solver, iteration, lambda _, message: self.warn(message), on_step=self.on_step
        )
        require_success(outcome)
        for message in iteration.report.get("warnings", ()):
            self.warn(message)
        return outcome, iteration.report


class Fitted(NamedTuple):
    """Result of a fit.

    Attributes:
        problem: the problem as it was solved: scaled rows, encoding, kernel, centers.
        median: the median distance of two rows, if a bandwidth depends on it.
        metric: learned on the features, or None.
        columns: the features that the metric is of, or None.
        choice: the kernel that was chosen where none was given, or None.
        calibration: calibration of probabilities or intervals, or None.
    """

    problem: Problem
    outcome: Outcome
    report: dict[str, Any]
    footprint: Footprint
    median: float | None = None
    metric: Metric | None = None
    columns: Features | None = None
    choice: KernelChoice | None = None
    calibration: Calibration | None = None

    @property
    def encoding(self) -> Encoding:
        """The encoding from targets to numbers and from outputs to predictions, with a chosen threshold."""
        return with_decision_rule(self.problem.encoding, self.calibration)


def fit(
    recipe: Recipe,
    executor: Executor,
    budget: int,
    stages: Stages | None = None,
    on_plan: Callable[[Footprint], None] = lambda projected: None,
    device: Device | None = None,
    ready: tuple[Dataset, Statistics] | None = None,
    known_projection: Footprint | None = None,
    baseline: int | None = None,
) -> Fitted:
    """From a recipe to weights: the one sequence of stages that estimators and runs go through.

    ``on_plan`` is called with the projected memory before the first row is read. ``ready`` is the result of
    ``prepare``, if it was called. ``known_projection`` is the projected memory, where it is known of a fit of as many
    rows or more, whose kernel is given. ``baseline`` has the bytes that the projection starts from, by default those
    that the process holds now.

    Raises:
        PlanRefusedError: it would not fit the budget.
        PrecisionError: the dtype cannot represent the kernel on these rows.
        UsageError: the solver has a patience and there are no validation rows.
        DataError: rows that cannot be used, or fewer than centers.
        NumericalError: training diverged or stagnated.
    """
    stages = stages or Stages()
    data = recipe.train
    data._require_rows()
    baseline = load_libraries() if baseline is None else baseline
    measured = {"validation": recipe.validation, "test": recipe.test}
    for name, rows in measured.items():
        require_measurable(rows, name)
    if recipe.validation is None and recipe.solver.patience is not None:
        raise UsageError(
            "The solver has patience=, which needs validation rows.",
            where="patience",
            expected="validation rows",
            remedy="give validation rows, or leave patience out",
        )

    lanes = lanes_on(device, executor.processes, recipe.lanes)

    source = out_of_sample_source(recipe.solver, data, recipe.validation) if stages.held_out_rows else None
    if recipe.threshold is not None:
        require_threshold_rows(source)
    require_metric(recipe)

    def allow(projected: Footprint) -> None:
        executor.allowed = projected.allowance()
        on_plan(projected)

    guess = planned_rows(recipe)
    projected, search, project = project_memory(
        recipe,
        budget,
        baseline,
        stages.held_out_rows,
        slots=executor.slots,
        overlaps=executor.overlaps,
        processes=executor.processes,
        share=stages.search_share,
        lanes=lanes,
        known_projection=known_projection,
    )
    allow(projected)
    itemsize = np.dtype(recipe.dtype).itemsize
    require_room(device, projected, basis_width(recipe, guess), guess.n_features, itemsize)
    scaled, facts = ready or prepare(recipe, executor, stages)
    done = preprocessing_notes(scaled, preprocessing_steps(recipe), facts)
    if weights := described_weights(scaled):
        stages.choice(f"weights of classes: {weights}", class_weight=weights)
    for message in data_warnings(scaled, preprocessing_steps(recipe), facts):
        stages.warn(message)
    learned, columns, chosen = None, features_of(scaled), None
    if search is not None:
        chosen = chosen_kernel(recipe, search, scaled, facts, stages, executor, device)
        recipe, learned = _with_chosen_kernel(recipe, chosen, search), chosen.metric
    elif recipe.metric is not None:
        learned = _learned_metric(recipe, scaled, facts, stages, executor, device)
    if search is None and weights:
        recipe = cast(Any, replace(cast(Any, recipe), solver=ridge_under_weights(recipe.solver, scaled.base_rows)))
    if learned is not None:
        scaled = learned.applied(scaled)
        # A scale of features is part of how statistics are read; a turn makes other features.
        facts = statistics_stage(scaled, recipe, executor, stages) if learned.kind == "full" else facts
        release_free_memory()
    basis = recipe.features or recipe.kernel
    scaled = subtract_offsets(scaled, facts, basis is None or basis.translation_invariant, np.dtype(recipe.dtype))
    assert facts.encoding is not None
    facts = replace(facts, encoding=encoding_for(facts.encoding, recipe.solver))
    assert facts.encoding is not None
    if recipe.threshold is not None:
        require_two_classes(facts.encoding)
    require_range(scaled, facts, np.dtype(recipe.dtype), centred=basis is None or basis.translation_invariant)
    release_free_memory()
    turned = learned is not None and learned.kind == "full"
    if facts.encoding.outputs > likely_outputs(guess) or scaled.n_features != guess.n_features or turned:
        projected = project(scaled, max(facts.encoding.outputs, likely_outputs(guess)))
        allow(projected)
    for name, rows in measured.items():
        if rows is not None:
            check_rows_like_training(rows, name, recipe, scaled, facts.encoding, executor, stages)
    validation = recipe.validation
    if validation is not None:
        validation = weighted_like(validation._prepared_like(scaled)._final(), scaled)
    recipe, median = with_median_bandwidth(recipe, scaled, executor, stages)
    kernel = recipe.kernel or default_kernel(facts, scaled)
    stored = recipe.centers is not None and recipe.centers.stored  # where the rows are: they are not kept twice
    centers = stages.keep(
        "centers",
        None if stored else lambda: centers_key(recipe, scaled),
        lambda: choose_centers(recipe, scaled, executor),
    )
    require_precision(kernel, recipe.features, centers.Z, scaled, facts, centers.Z.dtype)
    release_free_memory()
    needed = require_room(device, projected, basis_width(recipe, scaled), scaled.n_features, centers.Z.dtype.itemsize)
    rest = 0 if device is None or executor.processes else device.budget - needed
    problem = Problem(
        scaled, facts.encoding, kernel, centers, executor,
        dtype=centers.Z.dtype, seed=recipe.seed, lanes=lanes,
        memory=room_for_solver(device, projected, basis_width(recipe, scaled), scaled.n_features,
            centers.Z.dtype.itemsize),
        better_budget=projected.better_budget,
        cache_bytes=projected.cache_bytes,
        validation=validation,
        features=recipe.features,
        mean_weight=facts.mean_weight,
        largest_weight=facts.largest_weight,
        engine=engine_on(device),
        device_rest=rest,
        held_out_rows=stages.held_out_rows if source == "leave-one-out" else 0,
        share=projected.share and device is None,
        evaluates_here=projected.evaluates_here and device is None,
        all_rows_are_centers=all_rows_are_centers(recipe, scaled),
    )  # fmt: skip

    def key() -> tuple[Any, ...]:
        choice = projected.cost_estimate.choice + (", no better solve" if problem.better_budget else "")
        return (
            scaled.fingerprint,
            None if validation is None else validation.fingerprint,
            encoding_to_json(problem.encoding),
            centers_key(recipe, scaled),
            described(kernel),
            described(recipe.features),
            described(recipe.solver),
            [recipe.seed, lanes, recipe.dtype, choice, problem.mix_chunks],
            platform.machine(),
        )

    outcome, report = stages.train(problem, recipe.solver, key)
    if done:
        report = report | {"preprocess": done}
    release_free_memory()
    calibration = None
    if source is not None:
        calibration = stages.keep(
            "calibrate",
            lambda: (*key(), *([] if recipe.threshold is None else [recipe.threshold])),
            lambda: fit_calibration(problem, outcome, stages.warn, recipe.threshold),
        )
    elif isinstance(problem.encoding, Classes) and problem.encoding.logits:
        calibration = softmax_of_logits(problem.encoding.outputs)
    return Fitted(problem, outcome, report, projected.after(report), median, learned, columns, chosen, calibration)


def rows_key(dataset: Dataset) -> str:
    """Digest of the stored rows that take part and their scaling, whatever varies them in training."""
    return replace(dataset.plain(), seed=0).fingerprint


def centers_key(recipe: Recipe, dataset: Dataset) -> tuple[Any, ...]:
    """Key of the centers: all that they depend on."""
    return rows_key(dataset), described(recipe.centers), recipe.dtype


def check_rows_like_training(
    rows: Dataset, name: str, recipe: Recipe, train: Dataset, encoding: Encoding, executor: Executor, stages: Stages
) -> None:
    """Check validation or test rows, as training prepares them, before training."""
    what = f"the {name} rows"
    with naming_rows(what):
        require_training_columns(
            rows, train.source.n_features, train.source.columns, train.transforms, train.source.schema
        )
        prepared = rows._prepared_like(train)._final()
        if name == "test" and not preprocessing_steps(recipe) and recipe.metric is None:
            require_same_scaling(rows, prepared)
    dtype = np.dtype(recipe.dtype)
    stages.keep(
        f"check-{name}",
        lambda: (rows_key(prepared), encoding_to_json(encoding), dtype.str),
        lambda: check_rows(prepared, encoding, executor, dtype, what),
    )


def chosen_kernel(
    recipe: Recipe, search: Search, scaled: Dataset, facts: Statistics, stages: Stages, executor: Executor,
    device: Device | None = None,
) -> KernelChoice:  # fmt: skip
    """The kernel that training rows choose, as a stage."""
    problem = _sample_problem(recipe, scaled, facts, executor, device)
    chosen = stages.keep(
        "kernel",
        lambda: (
            rows_key(problem.train), asdict(search), encoding_to_json(problem.encoding), recipe.dtype,
            platform.machine(),
        ),
        lambda: choose_kernel(search, problem.kernel, problem),
    )  # fmt: skip
    stages.choice(chosen.reason(), kernel=chosen.described)
    return chosen


def _with_chosen_kernel(recipe: R, chosen: KernelChoice, search: Search) -> R:
    """A recipe with the kernel that was chosen, its ridge, and the metric that was tried."""
    given: Any = recipe  # a frozen dataclass
    solver = chosen.solver(recipe.solver, recipe.train.base_rows)
    return cast(R, replace(given, kernel=chosen.kernel, solver=solver, metric=search.agop))


def _sample_problem(
    recipe: Recipe, scaled: Dataset, facts: Statistics, executor: Executor, device: Device | None
) -> Problem:
    """The problem that a sample is drawn from, with the kernel to begin with and no centers yet."""
    dtype, kernel = np.dtype(recipe.dtype), recipe.kernel or default_kernel(facts, scaled)
    assert facts.encoding is not None
    nothing = CenterSet(np.empty((0, scaled.n_features), dtype=dtype), None)
    rows = subtract_offsets(scaled, facts, kernel.translation_invariant, dtype)
    return Problem(
        rows, facts.encoding, kernel, nothing, executor, dtype, recipe.seed, recipe.lanes, engine=engine_on(device)
    )


def _learned_metric(
    recipe: Recipe, scaled: Dataset, facts: Statistics, stages: Stages, executor: Executor, device: Device | None
) -> Metric:
    """The metric that training rows teach, as a stage."""
    problem, agop = _sample_problem(recipe, scaled, facts, executor, device), recipe.metric
    assert agop is not None
    learned = stages.keep(
        "metric",
        lambda: (
            rows_key(problem.train), described(agop), described(problem.kernel), encoding_to_json(problem.encoding),
            recipe.dtype, platform.machine(),
        ),
        lambda: learn_metric(agop, problem.kernel, problem),
    )  # fmt: skip
    stages.choice(learned.reason(), metric=learned.kind)
    return learned


def choose_centers(recipe: Recipe, dataset: Dataset, executor: Executor) -> CenterSet:
    """The centers of a recipe; none of them where its features do without."""
    dtype = np.dtype(recipe.dtype)
    if recipe.centers is None:
        return CenterSet(np.empty((0, dataset.n_features), dtype=dtype), None)
    return recipe.centers.choose(dataset, executor, dtype)
