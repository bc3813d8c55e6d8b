"""Stored rows: zarr, parquet, NumPy and Dask arrays as chunks that can be read in any order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamkern.sources.array_source import ArraySource
from streamkern.sources.base import Source
from streamkern.sources.column_roles import Request
from streamkern.sources.input_types import is_dask_frame, is_lazy_frame, is_table, require_dense
from streamkern.sources.remote_store import Retry
from streamkern.sources.schema import Schema
from streamkern.sources.weighted_source import TargetedSource, WeightedSource
from streamkern.startup import paused_collector
from streamkern.storage.untrusted_files import given_path

if TYPE_CHECKING:
    from streamkern.formats.parquet import ParquetSource, open_parquet, write_parquet
    from streamkern.formats.zarr import ZarrSource, open_zarr, write_zarr

__all__ = [
    "ArraySource",
    "ParquetSource",
    "Retry",
    "Source",
    "ZarrSource",
    "open_parquet",
    "open_source",
    "open_zarr",
    "write_parquet",
    "write_zarr",
]

_LATE = {
    "parquet": ("ParquetSource", "open_parquet", "write_parquet"),
    "zarr": ("ZarrSource", "open_zarr", "write_zarr"),
}


def __getattr__(name: str) -> Any:
    """Import a format at its first use, since importing Arrow and zarr takes a quarter of a second."""
    for module, names in _LATE.items():
        if name in names:
            with paused_collector():
                found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def open_source(
    data: Any,
    *,
    target: Any = None,
    columns: Sequence[str] | None = None,
    weight: Any = None,
    format: str | None = None,
    storage_options: dict[str, Any] | None = None,
    retry: Retry | None = None,
) -> Source:
    """Open stored rows, or rows in memory, as a source.

    ``data`` is a path or URL of a zarr group or array, or of a parquet file, directory or glob; a NumPy or Dask array;
    or a table in memory: a frame, an Arrow table, a dict of columns, a list of dicts, an array of objects. For an
    array, ``target`` is the array of targets, ``columns`` name its features, and ``weight`` has shape (n,). Weights are
    by default those of the training layout.
    """
    if isinstance(data, str | os.PathLike):
        with paused_collector():  # imports zarr and Arrow
            from streamkern.formats.open_stored import stored_source

        return stored_source(given_path(data), Request(target, columns, weight), format, storage_options, retry)
    return array_source(data, target, columns, weight)


def array_source(
    X: Any,
    y: Any = None,
    columns: Sequence[str] | None = None,
    weights: Any = None,
    *,
    name: str = "target",
    weight_name: str | None = None,
    schema: Any = None,
    exclude: Sequence[str] = (),
) -> Source:
    """Open NumPy or Dask arrays, or a table in memory; the weights are in memory. See `open_source`."""
    require_dense(X)
    if is_table(X) or getattr(getattr(X, "dtype", None), "kind", "") in ("O", "U"):
        rows: Source = table_source(X, y, columns, schema, exclude, name)
    elif type(X).__module__.partition(".")[0] == "dask":
        # Importing dask takes a quarter of a second; a user with a Dask array has imported it already.
        from streamkern.formats.dask_source import DaskArraySource

        rows = DaskArraySource(X, y, columns, name)
    else:
        rows = ArraySource(X, y, columns, name, schema=schema if isinstance(schema, Schema) else None)
    return rows if weights is None else WeightedSource(rows, weights, weight_name or "sample_weight")


def table_source(
    X: Any,
    y: Any = None,
    columns: Sequence[str] | None = None,
    schema: Any = None,
    exclude: Sequence[str] = (),
    name: str = "target",
) -> Source:
    """Open a table in memory, and its targets; ``columns`` are the columns to use, or names for an array's columns."""
    request = Request(columns=columns, schema=schema, exclude=tuple(exclude))
    if is_dask_frame(X):
        from streamkern.formats.dask_source import dask_frame  # only imports dask if needed

        rows: Source = dask_frame(X, request)
    elif is_lazy_frame(X):
        from streamkern.formats.polars_lazy_frame import lazy_source  # imports Arrow

        rows = lazy_source(X, request)
    else:
        from streamkern.formats.arrow_tables import frame_source

        rows = frame_source(X, request)
    return rows if y is None else TargetedSource(rows, y, name)
