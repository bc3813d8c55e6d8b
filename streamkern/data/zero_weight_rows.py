"""Rows of weight 0 are absent: they are dropped once, where a data set is opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_selection import RowBitmap
from streamkern.errors import DataError
from streamkern.types import IntArray


def drop_zero_weight_rows(dataset: Dataset) -> Dataset:
    """Return a data set without its rows of weight 0; reads the weights, and keeps a bit a row if there are some."""
    source = dataset.source
    if source.weight is None:
        return dataset
    starts, positive = source.bounds[:-1], 0

    def marked() -> Iterator[tuple[IntArray, Any]]:
        nonlocal positive
        for chunk, rows in enumerate(np.diff(source.bounds).tolist()):
            # Corrupt chunks that are left out may not be read.
            taken = source.weights(chunk) > 0 if dataset.counts[chunk] else np.ones(rows, dtype=bool)
            positive += int(taken.sum())
            yield starts[chunk] + np.arange(rows, dtype=np.int64), taken

    n = int(source.bounds[-1])
    bitmap = RowBitmap.of(n, marked())
    if positive == n:
        return dataset
    if not positive:
        raise DataError(
            "Every sample weight is 0.",
            where=f"{source.where(0)}, weight {source.weight!r}",
            expected="at least one row of positive weight",
            remedy="check the column of weights",
        )
    return replace(dataset, rules=(bitmap, *dataset.rules))
