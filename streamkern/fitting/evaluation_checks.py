"""Checks of rows that training will be measured on, made before it begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.encoders import Encode, Lookup, TargetMeans
from streamkern.data.row_compatibility import RowChecker
from streamkern.data.row_order import Assembly, RawRows, Scan, scan_rows
from streamkern.data.statistics import RawScan
from streamkern.data.targets import Encoding
from streamkern.errors import DataError, StreamkernError
from streamkern.execute.base import Executor
from streamkern.fitting.recipe import Recipe
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Target


def check_rows(rows: Dataset, encoding: Encoding, executor: Executor, dtype: np.dtype[Any], what: str) -> int:
    """Return the number of rows that training will be measured on; ``what`` names them in errors.

    One sweep over them, prepared as training rows: whatever evaluation would refuse is refused now, by a DataError.
    """
    plain = rows.plain()
    scan = Scan(Assembly(plain, encoding, dtype=dtype), scan_rows(plain._widest))
    with naming_rows(what):
        sweep(executor, ScanWork(scan, RowChecker(plain.columns)))
    return plain.base_rows


@contextmanager
def naming_rows(what: str) -> Iterator[None]:
    """Say in an error which rows it is about."""
    try:
        yield
    except StreamkernError as error:
        error.where = what if error.where is None else f"{what}: {error.where}"
        raise


def require_fit_rows(recipe: Recipe) -> None:
    """Raise DataError where training, validation or test rows are none, or the latter two have no target."""
    recipe.train._require_rows()
    for name, rows in (("validation", recipe.validation), ("test", recipe.test)):
        if rows is not None:
            with naming_rows(f"the {name} rows"):
                rows._require_rows()
                require_target(rows, "the target")


def require_target(rows: Dataset, where: str) -> Target:
    """Return the description of the target column; raises DataError if the data set has no target."""
    if rows.target is None:
        raise DataError(
            "The data set has no target.",
            where=where,
            expected="the name of the target column",
            remedy='name it: sk.open_dataset(path, target="label"), or give y',
        )
    return rows.target


def _unseen(assembly: Assembly, block: tuple[RawRows, str], state: Any) -> tuple[Any, ...]:
    raw, where = block
    lookup = Lookup(assembly.dataset.source)
    assembly.transformed(raw.X, raw.ids, where, lookup)
    return (lookup.unseen,)


def unseen_categories(dataset: Dataset, executor: Executor) -> dict[str, int]:
    """Count the rows with a category that training did not see, by column."""
    if not any(isinstance(each, Encode | TargetMeans) for each in dataset.transforms) or not dataset.base_rows:
        return {}
    assembly = Assembly(dataset.plain())
    scan = RawScan(Scan(assembly, scan_rows(dataset._widest)))
    (found,) = sweep(executor, ScanWork(scan, partial(_unseen, assembly)))
    return dict(found)
