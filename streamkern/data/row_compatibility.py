"""Checks that validation, test and prediction rows have the training rows' columns, kinds and scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Block
from streamkern.data.subsample import read_rows
from streamkern.data.transforms import Transform, require_numbers
from streamkern.errors import DataError, StreamkernError, UsageError
from streamkern.sources.base import column_mismatch_error
from streamkern.sources.schema import Schema
from streamkern.types import Array


def require_width(width: int, n_features: int) -> None:
    """Raise DataError if rows have another width than the training rows."""
    if width != n_features:
        raise DataError(
            f"X has {width} features, but KernelMachine is expecting {n_features} features as input",
            where="X",
            expected=f"{n_features} features",
            remedy="give the columns the model was trained on, in their order",
        )


def require_training_columns(
    rows: Dataset,
    n_features: int,
    columns: Sequence[str] | None,
    transforms: Sequence[Transform],
    schema: Schema | None = None,
) -> None:
    """Check that stored rows, read by ``schema``, have the training rows' width, names and kinds."""
    source = rows.source
    require_width(source.n_features, n_features)
    if columns is not None and source.columns is not None and tuple(source.columns) != tuple(columns):
        where = source.where(0) if len(source.bounds) > 1 else "the source"
        raise column_mismatch_error(source.columns, columns, where)
    if schema is None:
        require_numbers(source, transforms)


def require_names(X: Any, columns: Sequence[str] | None, n_features: int) -> None:
    """Refuse dicts as rows of a model that was trained on rows without names: their keys have no order to go by."""
    if columns is None and isinstance(X, Mapping | list | tuple):
        raise DataError(
            "The rows are dicts, and the columns of training had no names.",
            where="X",
            expected=f"rows of {n_features} numbers, in the order of training",
            remedy="give lists of numbers: [[0.1, 0.2], ...]; or train on a table, whose columns have names",
        )


def require_same_scaling(rows: Dataset, prepared: Dataset) -> None:
    """Check that a dataset with a scaling of its own has the training rows' scaling."""
    if rows._settled().transforms and prepared.fingerprint != rows._final()._relative_to(prepared.origin).fingerprint:
        raise UsageError(
            "The data set is scaled in another way than the training data.",
            where="dataset",
            expected="stored rows: the model scales them itself",
            remedy="pass the data set without .scale(...)",
        )


@dataclass(eq=False)
class RowChecker:
    """Counts rows, and refuses rows that are not finite; labels and categories are already encoded."""

    columns: Sequence[str] | None

    def __call__(self, block: Block, state: Any) -> tuple[int]:
        bad = ~np.isfinite(block.X).all(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise nonfinite_row_error(block.X[row], f"row {int(block.ids[row])}", self.columns)
        return (len(block.X),)


def nonfinite_row_error(x: Array, where: str, columns: Sequence[str] | None) -> DataError:
    """Return the error for a row (d,) with NaN or infinity; ``columns`` are the names of its features, or None."""
    column = int(np.argmin(np.isfinite(x)))
    gap = bool(np.isnan(x[column]))
    return DataError(
        f"A feature is {'NaN' if gap else 'infinity'}.",
        where=f"{where}, feature {column if columns is None else repr(columns[column])}",
        expected="finite numbers; Input X contains NaN or infinity",
        remedy="the training rows had no missing value, so the model has nothing to fill one with: fill or leave out "
        'such rows, or train with preprocess=(sk.Impute("mean"),), which fills them'
        if gap
        else "correct the value, or leave out the row",
    )


def unusable_row_error(dataset: Dataset, x: Array, row: int, stored: Array | None = None) -> StreamkernError:
    """Return the error for features (d,) without a finite output; it names a stored value if that is the cause."""
    source = dataset.source
    if stored is None:
        stored = read_rows(source, np.array([row])).X[0]
    chunk = int(np.searchsorted(source.bounds, row, side="right")) - 1
    where = f"the rows, row {row}"
    if len(source.bounds) > 1:
        where = source.where_row(chunk, row - int(source.bounds[chunk]))
    values = np.nan_to_num(np.abs(stored.astype(np.float64)), nan=0.0, posinf=np.inf)
    if source.schema is not None:  # codes of texts are large numbers
        values[list(source.schema.positions("category"))] = 0.0
    j = int(np.argmax(values))
    if np.isinf(values[j]):
        return nonfinite_row_error(np.where(np.isinf(stored), stored, 0.0), where, source.columns)
    if np.isnan(x).any():
        return nonfinite_row_error(x, where, dataset.columns)
    return DataError(
        f"A feature is too large: {stored[j]!s}.",
        where=f"{where}, feature {j if source.columns is None else repr(source.columns[j])}",
        expected=f"numbers whose features and kernel values {x.dtype} can represent",
        remedy="correct the value, or leave out the row"
        + ('; or train in float64: dtype="float64"' if x.dtype == np.float32 else ""),
    )
