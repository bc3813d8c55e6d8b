"""Training rows after preprocessing: each step that learns is a stage, and so are the statistics that scale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, cast

import numpy as np

from streamkern.costs.fit_shape import FitShape
from streamkern.costs.stage_work import StageWork
from streamkern.data.class_weights import WeightTotals, weighted_by_class
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, RawRows, Scan, scan_rows
from streamkern.data.statistics import Extremes, Moments, RawScan, Statistics, summarise
from streamkern.data.targets import Encoding
from streamkern.data.transforms import Transform
from streamkern.errors import DataError
from streamkern.execute.base import Executor
from streamkern.fitting.evaluation_checks import require_target
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.fitting.recipe import Recipe
from streamkern.fitting.stage import Runner, Stage, step
from streamkern.memory import release_free_memory
from streamkern.preprocessing.automatic_steps import AutoScale
from streamkern.preprocessing.category_steps import require_encoded
from streamkern.preprocessing.steps import STANDARD, Learning, Scaling, Step, scale
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array
from streamkern.user_code_digest import described


def statistics(dataset: Dataset, executor: Executor, task: str) -> Statistics:
    """Ranges, moments and labels of the rows, transformed but not scaled; refuses rows that cannot be used."""
    dataset._require_rows()
    target = require_target(dataset, "the training rows")
    plain = dataset.plain()
    scan = RawScan(Scan(Assembly(plain), scan_rows(dataset._widest)), transformed=True)
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
    """The transforms that a step of preprocessing comes to: one sweep over the rows, or none."""
    dataset._require_rows()
    plain = dataset.plain()._settled()
    contribution, sums = step.contribution(plain), None
    if contribution is not None:
        scan = RawScan(Scan(Assembly(plain), scan_rows(plain._widest), only=step.only(plain)), transformed=True)
        sums = sweep(executor, ScanWork(scan, contribution))
    made = step.fitted(plain, sums)
    return made if isinstance(made, tuple) else (made,)


def _weight_totals(dataset: Dataset, executor: Executor) -> WeightTotals:
    work = ScanWork(RawScan(Scan(Assembly(dataset.plain()), scan_rows(dataset._widest))), _weights_of_rows)
    mass, ends = sweep(executor, work)
    return WeightTotals(float(mass), float(ends.high))


def _weights_of_rows(block: tuple[RawRows, str], state: Any) -> tuple[float, Extremes]:
    w = block[0].w
    assert w is not None
    return float(w.sum()), Extremes(np.inf, float(w.max(initial=0.0)))


def rows_key(dataset: Dataset) -> str:
    """Digest of the stored rows that take part and their scaling, whatever varies them in training."""
    return replace(dataset.plain(), seed=0).fingerprint


@dataclass(eq=False)
class TrainingRows:
    """Training rows while they are prepared; ``facts`` are from before the scaling that is left at the end."""

    recipe: Recipe
    executor: Executor
    runner: Runner
    data: Dataset = field(init=False)
    facts: Statistics | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.data = self.recipe.train

    @property
    def known(self) -> Statistics:
        """The statistics, once their stage has run."""
        assert self.facts is not None
        return self.facts

    @property
    def encoding(self) -> Encoding:
        """The encoding of targets, once the statistics are known."""
        assert self.known.encoding is not None
        return self.known.encoding

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the arithmetic."""
        return np.dtype(self.recipe.dtype)


def preparation(recipe: Recipe) -> tuple[Stage, ...]:
    """Stages from the rows as they are stored to those of training, and their statistics.

    Scaling needs statistics only, which are taken once after the last step that learns anything else. Weights of
    classes count from here on: preprocessing is that of the rows as they are.
    """
    steps = chain.from_iterable(map(_preprocessing, preprocessing_steps(recipe)))
    return (step(_require_encoded), *steps, STATISTICS, step(_weigh_classes))


def prepare(recipe: Recipe, executor: Executor, runner: Runner) -> tuple[Dataset, Statistics]:
    """The training rows after preprocessing, and their statistics before the scaling that is left at the end."""
    rows = TrainingRows(recipe, executor, runner)
    runner.carry_out(preparation(recipe), rows)
    return rows.data, rows.known


def scan_work(shape: FitShape) -> StageWork:
    """A sweep over all rows that takes their moments."""
    return StageWork(
        shape.stored_rows, read=shape.stored_bytes, scanned=shape.stored_rows, columns=shape.dataset.n_features, loads=1
    )


STATISTICS = Stage(
    "statistics",
    lambda rows: statistics(rows.data, rows.executor, rows.recipe.task),
    "facts",
    key=lambda rows: (rows_key(rows.data), rows.recipe.task),
    when=lambda rows: rows.facts is None,
    memory=lambda shape: shape.sweeping,
    work=scan_work,
)


def _require_encoded(rows: TrainingRows) -> None:
    if not isinstance(rows.recipe.preprocess, str):
        require_encoded(rows.data, rows.recipe.preprocess or ())


def _preprocessing(given: Step | AutoScale) -> tuple[Stage, ...]:
    """The stages of a step: its own; or, where it scales, the statistics, unless they are known."""

    def scaled(rows: TrainingRows) -> None:
        scaling = given.settled(rows.data) if isinstance(given, AutoScale) else given
        rows.data = scale(rows.data, cast(Scaling, scaling), rows.known)
        release_free_memory()

    if isinstance(given, AutoScale | Scaling):
        return STATISTICS, step(scaled)

    def take(rows: TrainingRows, learnt: tuple[Transform, ...]) -> tuple[Stage, ...]:
        plain = rows.data.plain()
        for transform in learnt:
            plain = plain.transform(transform)
        rows.data, rows.facts = rows.data._prepared_like(plain), None
        release_free_memory()
        rest = given.rest(rows.data)
        if rows.recipe.scaling == STANDARD:  # which follows as a step of its own
            rest = tuple(each for each in rest if not isinstance(each, AutoScale | Scaling))
        return tuple(chain.from_iterable(map(_preprocessing, rest)))

    return (
        Stage(
            f"preprocess-{given.to_json()['name'].lower()}",
            lambda rows: fit_step(rows.data, given, rows.executor),
            take=take,
            key=lambda rows: (rows_key(rows.data), described(given)),
            memory=lambda shape: shape.sweeping,
            work=scan_work,
        ),
    )


def _weigh_classes(rows: TrainingRows) -> None:
    def totals(weighted: Dataset) -> WeightTotals:
        key = lambda: (rows_key(weighted),)  # noqa: E731
        return rows.runner.keep("label-weights", key, lambda: _weight_totals(weighted, rows.executor))

    rows.data, rows.facts = weighted_by_class(rows.data, rows.known, rows.recipe.class_weight, totals)
