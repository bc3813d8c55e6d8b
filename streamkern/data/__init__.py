"""Datasets and the order in which their rows stream."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.quarantine import Quarantined, corrupt_chunks
from streamkern.data.split import Listed
from streamkern.errors import UsageError
from streamkern.storage import Retry, open_source

__all__ = ["Dataset", "Quarantined", "from_arrays", "open_dataset"]


def open_dataset(
    path: str | os.PathLike[str],
    target: Any = None,
    *,
    columns: Sequence[str] | None = None,
    weight: str | None = None,
    format: str | None = None,
    storage_options: dict[str, Any] | None = None,
    retry: Retry | None = None,
    on_corrupt: str = "error",
) -> Dataset:
    """Open stored rows: a zarr group or array, a parquet file, directory or glob; a local path or any fsspec URL.

    Args:
        path: where.
        target: name of the target column; several names for several outputs (parquet).
        columns: features to use, in this order; all but the target by default.
        weight: name of the column of sample weights >= 0. What ``ingest`` has made knows its own.
        format: ``zarr`` or ``parquet`` where the path does not tell.
        storage_options: for fsspec URLs; secrets are better left to the environment.
        retry: how patient to be with a remote store.
        on_corrupt: ``error``: a corrupt chunk is an error when it is read. ``quarantine``: every chunk is read once
            now; the rows of those that are corrupt are left out, with a warning, and listed in ``quarantine``.

    Raises:
        StorageError: nothing is there, or it cannot be read.
        DataError: a named column is missing, columns cannot be features, or every chunk is corrupt.
        UsageError: ``on_corrupt`` is neither.
    """
    if on_corrupt not in ("error", "quarantine"):
        raise UsageError(
            f"on_corrupt is {on_corrupt!r}.", where="open_dataset(on_corrupt=...)", expected="'error' or 'quarantine'"
        )
    dataset = Dataset(open_source(os.fspath(path), target=target, columns=columns, weight=weight, format=format,
                                  storage_options=storage_options, retry=retry))  # fmt: skip
    if on_corrupt == "quarantine" and (found := corrupt_chunks(dataset.source)):
        dataset = dataset.without(found)
        rows = sum(each.stop - each.start for each in found)
        warnings.warn(
            f"{len(found)} corrupt chunk(s) are left out, {rows} of {dataset.source.bounds[-1]} rows; the first: "
            f"{found[0].where}: {found[0].why}",
            stacklevel=2,
        )
    return dataset


def from_arrays(X: Any, y: Any = None, *, columns: Sequence[str] | None = None, sample_weight: Any = None) -> Dataset:
    """A dataset over arrays in memory, or Dask arrays.

    Args:
        X: features, shape (n, d) or (n, ...), which is flattened; NumPy or Dask.
        y: targets, shape (n,) or (n, c), or None.
        columns: names of the features.
        sample_weight: weights >= 0, shape (n,), held in memory; rows of weight 0 take no part.

    Raises:
        DataError: shapes or types that cannot be rows.
    """
    dataset = Dataset(open_source(X, target=y, columns=columns, weight=sample_weight))
    if sample_weight is not None and not (taken := np.asarray(sample_weight) != 0).all():
        dataset = replace(dataset, rules=(Listed(np.flatnonzero(taken)),))
    return dataset
