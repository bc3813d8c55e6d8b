"""From a dataset to weights, as stages: what estimators and pipelines both do, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamkern.backends import get_backend
from streamkern.backends.device import Device
from streamkern.centers import Centers, CenterSet, Given
from streamkern.data.dataset import Dataset
from streamkern.data.preprocess import (
    Learning,
    Scaling,
    Standardise,
    Step,
    expected,
    learning_bytes,
    require_encoded,
    scale,
)
from streamkern.data.statistics import Moments, Statistics, TransformedScan, require_range, summarise
from streamkern.data.stream import Assembly, Scan
from streamkern.data.transforms import Transform
from streamkern.engine import engine_on
from streamkern.errors import DataError, NumericalError, UsageError
from streamkern.execute.base import Executor
from streamkern.kernels import FeatureMap, Kernel, Laplace
from streamkern.memory import release, resident
from streamkern.solvers import bandwidth
from streamkern.solvers.base import Problem, Solver
from streamkern.solvers.footprint import Footprint, footprint, scan_rows
from streamkern.solvers.loop import Outcome, Progress, train
from streamkern.solvers.metric import AGOP, Metric, learn_metric
from streamkern.solvers.placement import require_room, room_for_solver
from streamkern.solvers.precision import relative, require_precision
from streamkern.sweep import Work, sweep
from streamkern.types import Array

TASKS = ("classification", "regression")

OUTPUTS_GUESS = 16
"""Outputs assumed before the labels are known; they weigh little beside the centers."""


def statistics(dataset: Dataset, executor: Executor, task: str) -> Statistics:
    """One sweep over the rows, transformed but not scaled: ranges, moments, labels; refuses rows that cannot be used.

    Args:
        dataset: training rows; augmentations do not matter.
        executor: where chunks are read.
        task: ``classification`` or ``regression``.

    Raises:
        DataError: the dataset is empty or has no target, a value is not finite, every feature is constant, or there is
            one class only; the message names chunk and row.
    """
    dataset.require_rows()
    target = dataset.target
    if target is None:
        raise DataError(
            "The data set has no target.",
            where="the training rows",
            expected="the name of the target column",
            remedy='name it: sk.open_dataset(path, target="label"), or give y',
        )
    plain = dataset.plain()
    scan = TransformedScan(Scan(Assembly(plain), scan_rows(dataset.widest)))
    first, _ = next(raw for raw in map(scan.block, ((i,) for i in range(len(scan)))) if len(raw[0].ids))
    pivot = np.asarray(first.X[0], dtype=np.float64)
    pivot = np.where(np.isfinite(pivot), pivot, 0.0)
    target_pivot: Array | None = None
    if task == "regression":
        assert first.y is not None
        if first.y.dtype.kind not in "fiub":
            raise DataError(
                f"The target {target.name!r} has type {first.y.dtype}.",
                where="the target",
                expected="numbers for regression",
                remedy="use a classifier for labels, or convert the column",
            )
        values = np.asarray(first.y[0], dtype=np.float64).reshape(-1)
        target_pivot = np.where(np.isfinite(values), values, 0.0)
    elif first.y is not None and first.y.ndim > 1:
        raise DataError(
            f"The target {target.name!r} has {first.y.shape[1]} values a row.",
            where="the target",
            expected="one label a row for classification",
            remedy="use a regressor for several outputs",
        )
    moments = Moments(pivot, target_pivot, get_backend().finite_rows)
    sums = sweep(executor, Work(scan, moments))
    return summarise(sums, moments, flat=not target.outputs, has_target=True)


def learn(dataset: Dataset, step: Learning, executor: Executor) -> Transform:
    """The transform that a step of preprocessing comes to: one sweep over the rows, or none.

    Args:
        dataset: training rows; augmentations do not matter.
        step: the step.
        executor: where chunks are read.

    Raises:
        UsageError: the step does not fit the rows, such as a column that is not there.
        DataError: the rows do not allow it.
    """
    dataset.require_rows()
    plain = dataset.plain().settled()
    contribution = step.contribution(plain)
    if contribution is None:
        return step.fitted(plain, None)
    scan = TransformedScan(Scan(Assembly(plain), scan_rows(plain.widest), only=step.only(plain)))
    return step.fitted(plain, sweep(executor, Work(scan, contribution)))


def prepare(recipe: Recipe, stages: Stages) -> tuple[Dataset, Statistics]:
    """The training rows after preprocessing, and their statistics before the scaling that is left at the end.

    Scaling needs statistics only, which are taken once after the last step that learns anything else.
    """
    data, facts = recipe.train, None
    require_encoded(data, steps(recipe))
    for step in steps(recipe):
        if isinstance(step, Scaling):
            facts = facts or stages.statistics(data)
            data = scale(data, step, facts)
        else:
            data, facts = data.prepared_like(data.plain().transform(stages.learn(data, step))), None
        release()
    return data, facts or stages.statistics(data)


def steps(recipe: Recipe) -> tuple[Step, ...]:
    """The preprocessing of a recipe."""
    return (*recipe.preprocess, *((Standardise(),) if recipe.standardise else ()))


def planned(recipe: Recipe) -> Dataset:
    """The training rows as wide as preprocessing is expected to make them: for projections, not for reading."""
    return expected(recipe.train, steps(recipe))


def require_success(outcome: Outcome) -> None:
    """Turn a failure into an error.

    Raises:
        NumericalError: the outcome is a failure.
    """
    if outcome.failure is not None:
        raise NumericalError(
            outcome.failure.message,
            where=outcome.failure.kind,
            expected="an iteration that stays finite and comes closer",
            remedy=outcome.failure.remedy,
        )


class Recipe(Protocol):
    """What a fit is told. A ``Pipeline`` is one, and an estimator makes one."""

    @property
    def train(self) -> Dataset:
        """Training rows with a target."""
        ...

    @property
    def validation(self) -> Dataset | None:
        """Rows to stop early on, or None."""
        ...

    @property
    def kernel(self) -> Kernel | None:
        """The kernel; None for ``default_kernel``."""
        ...

    @property
    def centers(self) -> Centers | None:
        """Where centers come from; None for features that need none."""
        ...

    @property
    def features(self) -> FeatureMap | None:
        """The feature map; None for kernel values at centers."""
        ...

    @property
    def solver(self) -> Solver:
        """How weights are found."""
        ...

    @property
    def task(self) -> str:
        """``classification`` or ``regression``."""
        ...

    @property
    def preprocess(self) -> tuple[Step, ...]:
        """Steps of preprocessing, in order."""
        ...

    @property
    def metric(self) -> AGOP | None:
        """What is learned about the features before the kernel; None for nothing."""
        ...

    @property
    def standardise(self) -> bool:
        """Whether every feature is then scaled to mean 0 and variance 1 over the training rows."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the order of rows."""
        ...

    @property
    def lanes(self) -> int:
        """Blocks of a step."""
        ...

    @property
    def dtype(self) -> str:
        """``float32`` or ``float64``."""
        ...


class Stages(Protocol):
    """How each stage of a fit is carried out: at once, or taken from an earlier run."""

    def learn(self, dataset: Dataset, step: Learning) -> Transform:
        """What a step of preprocessing comes to."""
        ...

    def statistics(self, dataset: Dataset) -> Statistics:
        """Ranges, moments and labels of the training rows."""
        ...

    def metric(self, problem: Problem, kernel: Kernel) -> Metric:
        """The metric of training rows; a problem that has no centers yet."""
        ...

    def settled(self, dataset: Dataset) -> Recipe:
        """The recipe with a number for each bandwidth that is a median; the stages that follow go by it."""
        ...

    def centers(self, dataset: Dataset) -> CenterSet:
        """The centers, in scaled units."""
        ...

    def fit(self, problem: Problem, projected: Footprint) -> tuple[Outcome, dict[str, Any]]:
        """Eigensystem and training: the outcome, and what the solver found out about its problem."""
        ...


@dataclass(eq=False)
class AtOnce:
    """Carries every stage out, and keeps nothing.

    Args:
        recipe: what to fit.
        executor: where blocks run.
        on_step: told after every step.
    """

    recipe: Recipe
    executor: Executor
    on_step: Callable[[Progress], None] = lambda progress: None

    def learn(self, dataset: Dataset, step: Learning) -> Transform:
        """What a step of preprocessing comes to."""
        return learn(dataset, step, self.executor)

    def statistics(self, dataset: Dataset) -> Statistics:
        """Ranges, moments and labels of the training rows."""
        return statistics(dataset, self.executor, self.recipe.task)

    def metric(self, problem: Problem, kernel: Kernel) -> Metric:
        """The metric of training rows."""
        assert self.recipe.metric is not None
        return learn_metric(self.recipe.metric, kernel, problem)

    def settled(self, dataset: Dataset) -> Recipe:
        """The recipe with a number for each bandwidth that is a median."""
        if bandwidth.asks_median(self.recipe):
            dtype = np.dtype(self.recipe.dtype)
            found = {
                norm: bandwidth.median_distance(dataset, self.executor, dtype, norm)
                for norm in bandwidth.norms(self.recipe)
            }
            self.recipe = bandwidth.at_median(self.recipe, found)
        return self.recipe

    def centers(self, dataset: Dataset) -> CenterSet:
        """The centers, in scaled units."""
        return choose_centers(self.recipe, dataset, self.executor)

    def fit(self, problem: Problem, projected: Footprint) -> tuple[Outcome, dict[str, Any]]:
        """Eigensystem and training."""
        solver = self.recipe.solver
        iteration = solver.setup(problem)
        outcome = train(problem, iteration, patience=solver.patience, on_step=self.on_step)
        require_success(outcome)
        return outcome, iteration.report


class Fitted(NamedTuple):
    """What a fit leaves.

    Attributes:
        problem: the problem as it was solved: scaled rows, encoding, kernel, centers.
        outcome: weights, and how training ended.
        report: what the solver found out about its problem.
        footprint: projected memory.
        metric: what was learned about the features, or None.
        columns: names of the features that the metric is of, or None.
    """

    problem: Problem
    outcome: Outcome
    report: dict[str, Any]
    footprint: Footprint
    metric: Metric | None = None
    columns: tuple[str, ...] | None = None


def fit(
    recipe: Recipe,
    executor: Executor,
    budget: int,
    stages: Stages | None = None,
    on_plan: Callable[[Footprint], None] = lambda projected: None,
    device: Device | None = None,
) -> Fitted:
    """From a recipe to weights: the one sequence of stages that estimators and runs go through.

    Args:
        recipe: what to fit.
        executor: where blocks run.
        budget: bytes this process may hold.
        stages: how each stage is carried out; at once by default.
        on_plan: told the projected memory before the first row is read.
        device: where blocks are computed, as ``device_for`` returns it; None for the CPU.

    Raises:
        PlanRefusedError: it would not fit the budget.
        PrecisionError: the dtype cannot represent the kernel on these rows.
        UsageError: the solver has a patience and there are no validation rows.
        DataError: rows that cannot be used, or fewer than centers.
        NumericalError: training diverged or stagnated.
    """
    stages = stages or AtOnce(recipe, executor)
    data, baseline = recipe.train, resident()
    data.require_rows()
    if recipe.validation is not None:
        recipe.validation.require_rows()
    elif recipe.solver.patience is not None:
        raise UsageError(
            "The solver has a patience, and there are no validation rows to lose it on.",
            where="patience",
            expected="validation rows",
            remedy="give validation rows, or leave patience out",
        )

    def project(rows: Dataset, outputs: int) -> Footprint:
        return footprint(
            rows, width(recipe, rows), outputs, recipe.solver, budget=budget, baseline=baseline, slots=executor.slots,
            lanes=recipe.lanes, itemsize=np.dtype(recipe.dtype).itemsize, validate=recipe.validation is not None,
            centers_bytes=centers_bytes(recipe, executor.slots, rows),
            stored_centers=recipe.centers is not None and recipe.centers.stored,
            learning_bytes=learning_bytes(data, steps(recipe)), features=recipe.features, overlaps=executor.overlaps,
            agop=recipe.metric,
        )  # fmt: skip

    require_metric(recipe)
    guess = planned(recipe)
    projected = project(guess, OUTPUTS_GUESS)
    on_plan(projected)
    itemsize = np.dtype(recipe.dtype).itemsize
    require_room(device, recipe.solver, projected, width(recipe, guess), guess.n_features, itemsize)
    scaled, facts = prepare(recipe, stages)
    learned, columns = None, scaled.columns
    if recipe.metric is not None:
        scaled, facts, learned = _through_metric(recipe, scaled, facts, stages, executor, device)
        release()
    basis = recipe.features or recipe.kernel
    scaled = relative(scaled, facts, basis is None or basis.translation_invariant, np.dtype(recipe.dtype))
    assert facts.encoding is not None
    basis = recipe.features or recipe.kernel
    require_range(scaled, facts, np.dtype(recipe.dtype), centred=basis is None or basis.translation_invariant)
    release()
    turned = learned is not None and learned.kind == "full"
    if facts.encoding.outputs > OUTPUTS_GUESS or scaled.n_features != guess.n_features or turned:
        projected = project(scaled, max(facts.encoding.outputs, OUTPUTS_GUESS))
        on_plan(projected)
    validation = None if recipe.validation is None else recipe.validation.prepared_like(scaled)
    recipe = stages.settled(scaled)
    kernel = recipe.kernel or default_kernel(facts, scaled)
    centers = stages.centers(scaled)
    require_precision(kernel, recipe.features, centers.Z, scaled, facts, centers.Z.dtype)
    release()
    problem = Problem(
        scaled,
        facts.encoding,
        kernel,
        centers,
        executor,
        dtype=centers.Z.dtype,
        seed=recipe.seed,
        lanes=recipe.lanes,
        memory=room_for_solver(device, projected, width(recipe, scaled), scaled.n_features, centers.Z.dtype.itemsize),
        cache_bytes=projected.cache_bytes,
        validation=validation,
        features=recipe.features,
        mean_weight=facts.mean_weight,
        largest_weight=facts.largest_weight,
        engine=engine_on(device),
    )
    outcome, report = stages.fit(problem, projected)
    release()
    return Fitted(problem, outcome, report, projected, learned, columns)


def require_metric(recipe: Recipe) -> None:
    """Refuse a metric where rows or centers do not allow one.

    Raises:
        UsageError: rows are augmented, the model is linear in features, or the centers are given.
    """
    if recipe.metric is None:
        return
    for wrong, what, remedy in (
        (recipe.train.augmentations, "augmented rows", "leave the augmentations out"),
        (recipe.features is not None, f"a model on features, {recipe.features!r}", "use kernel values at centers"),
        (isinstance(recipe.centers, Given), "given centers", "draw centers, such as sk.Uniform(1000)"),
    ):
        if wrong:
            raise UsageError(
                f"There is a metric to learn, and {what}.",
                where="metric=AGOP(...)",
                expected="a kernel at centers that are drawn from rows without augmentations",
                remedy=f"{remedy}; or leave the metric out",
            )


def _through_metric(
    recipe: Recipe, scaled: Dataset, facts: Statistics, stages: Stages, executor: Executor, device: Device | None
) -> tuple[Dataset, Statistics, Metric]:
    """Training rows through the metric that they teach, and their statistics."""
    dtype, kernel = np.dtype(recipe.dtype), recipe.kernel or default_kernel(facts, scaled)
    assert facts.encoding is not None
    nothing = CenterSet(np.empty((0, scaled.n_features), dtype=dtype), None)
    rows = relative(scaled, facts, kernel.translation_invariant, dtype)
    problem = Problem(
        rows, facts.encoding, kernel, nothing, executor, dtype, recipe.seed, recipe.lanes, engine=engine_on(device)
    )
    learned = stages.metric(problem, kernel)
    scaled = learned.applied(scaled)
    # A scale of features is part of how statistics are read; a turn makes other features.
    return scaled, stages.statistics(scaled) if learned.kind == "full" else facts, learned


def width(recipe: Recipe, dataset: Dataset | None = None) -> int:
    """Functions of the basis that a recipe asks for on these rows, by default ``planned``: centers, or features.

    Raises:
        UsageError: there are neither centers nor features that do without them.
    """
    dataset = planned(recipe) if dataset is None else dataset
    p = 0 if recipe.centers is None else recipe.centers.count(dataset)
    if recipe.features is None or recipe.features.needs_centers:
        if recipe.centers is None:
            raise UsageError(
                "There are no centers.",
                where="centers",
                expected="centers, for a kernel",
                remedy="give centers, such as sk.Uniform(1000)",
            )
        if recipe.features is None:
            return p
    return recipe.features.width(dataset.n_features, p)


def centers_bytes(recipe: Recipe, slots: int, dataset: Dataset | None = None) -> int:
    """What choosing centers among these rows, by default ``planned``, holds at its peak, beyond reading rows.

    Or taking the distances that a bandwidth is the median of, which goes before.
    """
    dataset, itemsize = planned(recipe) if dataset is None else dataset, np.dtype(recipe.dtype).itemsize
    chosen = 0 if recipe.centers is None else recipe.centers.setup_bytes(dataset, itemsize, slots)
    return max(chosen, bandwidth.setup_bytes(dataset, itemsize) if bandwidth.asks_median(recipe) else 0)


def choose_centers(recipe: Recipe, dataset: Dataset, executor: Executor) -> CenterSet:
    """The centers of a recipe; none of them where its features do without."""
    dtype = np.dtype(recipe.dtype)
    if recipe.centers is None:
        return CenterSet(np.empty((0, dataset.n_features), dtype=dtype), None)
    return recipe.centers.choose(dataset, executor, dtype)


def default_kernel(facts: Statistics, dataset: Dataset) -> Laplace:
    """Laplace with the root mean square distance of two rows as bandwidth: σ² = 2 Σ_j var(x_j), in scaled units.

    So a typical kernel value is near 1/e, whatever the width of the rows and their units.
    """
    spread = 2.0 * float(np.sum(facts.variance * np.square(dataset.factor)))
    return Laplace(float(np.sqrt(spread)) if spread > 0 else 1.0)
