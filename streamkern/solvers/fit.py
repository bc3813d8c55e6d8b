"""From a dataset to weights, as stages: what estimators and pipelines both do, in one place."""

from __future__ import annotations

import numpy as np

from streamkern.backends import get_backend
from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Moments, RawScan, Statistics, summarise
from streamkern.data.stream import Assembly, Scan
from streamkern.errors import DataError, NumericalError
from streamkern.execute.base import Executor
from streamkern.solvers.base import Outcome
from streamkern.sweep import Work, sweep
from streamkern.types import Array

TASKS = ("classification", "regression")


def statistics(dataset: Dataset, executor: Executor, task: str, block_rows: int = 4096) -> Statistics:
    """One sweep over the stored rows: ranges, moments, labels; refuses rows that cannot be used.

    Args:
        dataset: training rows; augmentations do not matter.
        executor: where chunks are read.
        task: ``classification`` or ``regression``.
        block_rows: most rows of a block.

    Raises:
        DataError: the dataset is empty or has no target, a value is not finite, every feature is constant, or there is
            one class only; the message names chunk and row.
    """
    dataset.require_rows()
    target = dataset.target
    if target is None:
        raise DataError(
            "The data set has no target.",
            expected="the name of the target column",
            remedy='name it: sk.open_dataset(path, target="label"), or give y',
        )
    plain = dataset.plain()
    scan = RawScan(Scan(Assembly(plain), block_rows))
    first, _ = next(raw for raw in map(scan.block, ((i,) for i in range(len(scan)))) if len(raw[0].ids))
    pivot = np.asarray(first.X[0], dtype=np.float64)
    pivot = np.where(np.isfinite(pivot), pivot, 0.0)
    target_pivot: Array | None = None
    if task == "regression":
        assert first.y is not None
        if first.y.dtype.kind not in "fiub":
            raise DataError(
                f"The target {target.name!r} has type {first.y.dtype}.",
                expected="numbers for regression",
                remedy="use a classifier for labels, or convert the column",
            )
        values = np.asarray(first.y[0], dtype=np.float64).reshape(-1)
        target_pivot = np.where(np.isfinite(values), values, 0.0)
    elif first.y is not None and first.y.ndim > 1:
        raise DataError(
            f"The target {target.name!r} has {first.y.shape[1]} values a row.",
            expected="one label a row for classification",
            remedy="use a regressor for several outputs",
        )
    moments = Moments(pivot, target_pivot, get_backend().finite_rows)
    sums = sweep(executor, Work(scan, moments))
    return summarise(sums, moments, flat=not target.outputs, has_target=True)


def standardise(dataset: Dataset, facts: Statistics) -> Dataset:
    """The dataset with every feature at mean 0 and variance 1; a constant feature is only shifted."""
    spread = np.sqrt(facts.variance)
    factor = np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 1.0)
    return dataset.scale(factor, -facts.mean * factor)


def require_success(outcome: Outcome) -> None:
    """Turn a failure into an error.

    Raises:
        NumericalError: the outcome is a failure.
    """
    if outcome.failure is not None:
        raise NumericalError(outcome.failure.message, where=outcome.failure.kind, remedy=outcome.failure.remedy)
