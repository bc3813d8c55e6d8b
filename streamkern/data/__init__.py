"""Datasets and the order in which their rows stream."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from streamkern.data.dataset import Dataset
from streamkern.storage import open_source

__all__ = ["Dataset", "from_arrays", "open_dataset"]


def open_dataset(
    path: str | os.PathLike[str],
    target: Any = None,
    *,
    columns: Sequence[str] | None = None,
    format: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Dataset:
    """Open stored rows: a zarr group or array, a parquet file, directory or glob; a local path or any fsspec URL.

    Args:
        path: where.
        target: name of the target column; several names for several outputs (parquet).
        columns: features to use, in this order; all but the target by default.
        format: ``zarr`` or ``parquet`` where the path does not tell.
        storage_options: for fsspec URLs.

    Raises:
        StorageError: nothing is there, or it cannot be read.
        DataError: a named column is missing, or columns cannot be features.
    """
    return Dataset(open_source(os.fspath(path), target=target, columns=columns, format=format,
                               storage_options=storage_options))  # fmt: skip


def from_arrays(X: Any, y: Any = None, *, columns: Sequence[str] | None = None) -> Dataset:
    """A dataset over arrays in memory, or Dask arrays.

    Args:
        X: features, shape (n, d) or (n, ...), which is flattened; NumPy or Dask.
        y: targets, shape (n,) or (n, c), or None.
        columns: names of the features.

    Raises:
        DataError: shapes or types that cannot be rows.
    """
    return Dataset(open_source(X, target=y, columns=columns))
