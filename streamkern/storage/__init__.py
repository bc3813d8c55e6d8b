"""Stored rows: zarr, parquet, NumPy and Dask arrays as chunks that can be read in any order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamkern.errors import StorageError, UsageError
from streamkern.storage.arrays import ArraySource
from streamkern.storage.arrow import frame_source
from streamkern.storage.base import Source
from streamkern.storage.choose import Request
from streamkern.storage.convert import is_dask_frame, is_table
from streamkern.storage.files import nothing_here
from streamkern.storage.parquet import ParquetSource, open_parquet, parquet_source, write_parquet
from streamkern.storage.parquet_files import SUFFIXES
from streamkern.storage.remote import Remote, Retry, bare, is_remote
from streamkern.storage.schema import Schema
from streamkern.storage.weighted import TargetedSource, WeightedSource
from streamkern.storage.writer import unfinished_folder
from streamkern.storage.zarr import ZarrSource, open_zarr, write_zarr, zarr_source

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

_ZARR_FILES = ("zarr.json", ".zgroup", ".zarray")


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

    Args:
        data: a path or URL of a zarr group or array, or of a parquet file, directory or glob; a NumPy or Dask array; or
            a table in memory: a frame, an Arrow table, a dict of columns, a list of dicts, an array of objects.
        target: name of the target, or several; for an array, the array of targets.
        columns: features to use, in this order; for an array, the names of its features.
        weight: the column of sample weights; for an array, an array of weights, shape (n,). Default: the weights of the
            training layout, else none.
        format: "zarr" or "parquet" if the path does not show it.
        storage_options: for fsspec URLs.
        retry: timeouts and repetitions of requests to a remote store.

    Raises:
        StorageError: the path does not exist, its format is unknown, or the store does not answer.
        DataError: the files cannot be read as rows.
        UsageError: parameters that contradict each other.
    """
    if isinstance(data, str | os.PathLike):
        return stored_source(os.fspath(data), Request(target, columns, weight), format, storage_options, retry)
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
    if is_table(X) or getattr(getattr(X, "dtype", None), "kind", "") in ("O", "U"):
        rows: Source = table_source(X, y, columns, schema, exclude, name)
    elif type(X).__module__.partition(".")[0] == "dask":
        # Importing dask takes a quarter of a second; a user with a Dask array has imported it already.
        from streamkern.storage.dask import DaskArraySource

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
        from streamkern.storage.dask import dask_frame  # only imports dask if needed

        rows: Source = dask_frame(X, request)
    else:
        rows = frame_source(X, request)
    return rows if y is None else TargetedSource(rows, y, name)


def stored_source(
    url: str,
    request: Request,
    format: str | None = None,
    storage_options: dict[str, Any] | None = None,
    retry: Retry | None = None,
) -> Source:
    """Open a zarr or parquet data set for a request; see `open_source`."""
    _require_finished(url)
    format = _format_of(url, storage_options, retry) if format is None else format
    if format not in ("zarr", "parquet"):
        raise UsageError(
            f"format {format!r} is not known", where=url, expected="'zarr' or 'parquet'", remedy="correct it"
        )
    if format == "zarr":
        return zarr_source(url, request, storage_options, retry)
    return parquet_source(url, request, storage_options, retry)


def _require_finished(url: str) -> None:
    """Raise StorageError if an ingest was interrupted, so that a part of the data is not taken for all."""
    place = Path(os.path.abspath(url.removeprefix("file://")))
    inside = next((p for p in (place, *place.parents) if p.name.startswith(".") and p.name.endswith(".ingest")), None)
    folder = inside or unfinished_folder(place)
    if "://" not in url.removeprefix("file://") and (inside or (folder.exists() and not place.exists())):
        raise StorageError(
            "the ingest to this place has not been completed",
            where=str(folder),
            expected="a whole data set",
            remedy="repeat the ingest command: it resumes where it stopped; or wait, if it is running",
        )


def _format_of(url: str, storage_options: dict[str, Any] | None, retry: Retry | None) -> str:
    name = bare(url).rstrip("/")
    if name.endswith(SUFFIXES) or any(sign in name for sign in "*?["):
        return "parquet"
    if name.endswith(".zarr"):
        return "zarr"
    if is_remote(url):
        remote = Remote(url, storage_options, retry)
        inside = remote.listed(remote.root) if remote.lists else []
        if any(marker in inside for marker in _ZARR_FILES):
            return "zarr"
        if any(found.endswith(SUFFIXES) or "=" in found for found in inside):
            return "parquet"
    else:
        path = Path(url.removeprefix("file://"))
        if any((path / marker).exists() for marker in _ZARR_FILES):
            return "zarr"
        if path.is_dir() and any(found.suffix in SUFFIXES for found in path.rglob("*")):
            return "parquet"
        if not path.exists():
            files = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
            raise nothing_here(url, f"a directory with {', '.join(_ZARR_FILES)} (zarr), or {files} files (parquet)")
    raise StorageError(
        "neither zarr nor parquet is recognised here",
        where=url,
        expected=f"a path that ends in .zarr or {', '.join(SUFFIXES)}, or a directory that holds "
        f"{', '.join(_ZARR_FILES)} or parquet files",
        remedy="say which with format='zarr' or format='parquet'; CSV, JSON, NumPy and HDF5 files become zarr first: "
        "streamkern ingest FILE NEW.zarr",
    )
