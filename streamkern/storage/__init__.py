"""Rows at rest: zarr, parquet, NumPy and Dask arrays as chunks that can be read in any order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from streamkern.errors import StorageError, UsageError
from streamkern.storage.arrays import ArraySource
from streamkern.storage.base import Source
from streamkern.storage.parquet import ParquetSource, open_parquet, write_parquet
from streamkern.storage.parquet_files import SUFFIXES
from streamkern.storage.record import ingest_record
from streamkern.storage.remote import Remote, Retry, bare, is_remote, redacted
from streamkern.storage.weighted import open_weighted, with_weights
from streamkern.storage.writer import unfinished_folder
from streamkern.storage.zarr import ZarrSource, open_zarr, write_zarr

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
    beside: bool = False,
) -> Source:
    """Open rows wherever they are.

    Args:
        data: a path or URL of a zarr group or array, or of a parquet file, directory or glob; or a NumPy or Dask array.
        target: name of the target (several for parquet); for an array, the array of targets.
        columns: features to use, in this order; for an array, the names of its features.
        weight: the column of sample weights; for an array, an array of them, shape (n,). Default: what the training
            layout names, else none.
        format: "zarr" or "parquet" where the path does not tell.
        storage_options: for fsspec URLs.
        retry: how patient to be with a remote store.
        beside: pass over columns of parquet that cannot be features; they can be described.

    Raises:
        StorageError: nothing there, nothing that is known, or a store that does not answer.
        DataError: what is there cannot be rows.
        UsageError: parameters that contradict each other.
    """
    if not isinstance(data, str | os.PathLike):
        if type(data).__module__.partition(".")[0] == "dask":
            # A quarter of a second to import, which only those who have such an array already paid.
            from streamkern.storage.dask import DaskArraySource

            rows: Source = DaskArraySource(data, target, columns)
        else:
            rows = ArraySource(data, target, columns)
        return rows if weight is None else with_weights(rows, weight)
    url = os.fspath(data)
    _require_finished(url)
    format = _format_of(url, storage_options, retry) if format is None else format
    if format not in ("zarr", "parquet"):
        raise UsageError(
            f"format {format!r} is not known", where=redacted(url), expected="'zarr' or 'parquet'", remedy="correct it"
        )
    open_it: Any = open_zarr if format == "zarr" else partial(open_parquet, beside=beside)

    def opened(columns: Sequence[str] | None, target: Any = target) -> ZarrSource | ParquetSource:
        source: ZarrSource | ParquetSource = open_it(url, target, columns, storage_options, retry=retry)
        record = ingest_record(url) or {}
        source.shuffled = source.shuffled or record.get("shuffle") == "global"
        source.text = source.text or tuple(record.get("text", ()))
        return source

    if weight is None:
        source = opened(columns)
        if source.noted_weight is None:
            return source
        weight = source.noted_weight
    return open_weighted(opened, lambda name: opened([name], ""), columns, weight)


def _require_finished(url: str) -> None:
    """Raises StorageError where an ingest was interrupted: what it has written so far is not the data."""
    place = Path(os.path.abspath(url.removeprefix("file://")))
    inside = next((p for p in (place, *place.parents) if p.name.startswith(".") and p.name.endswith(".ingest")), None)
    folder = inside or unfinished_folder(place)
    if "://" not in url.removeprefix("file://") and (inside or (folder.exists() and not place.exists())):
        raise StorageError(
            "the ingest to this place has not been completed",
            where=str(folder),
            expected="a whole data set",
            remedy="repeat the ingest command: it goes on where it stopped; or wait, if it is running",
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
            raise StorageError(
                "there is nothing at this path",
                where=url,
                expected=f"a directory with {', '.join(_ZARR_FILES)} (zarr), or {', '.join('*' + s for s in SUFFIXES)} "
                "files (parquet)",
                remedy=f"check the path; relative paths start at {os.getcwd()}",
            )
    raise StorageError(
        "neither zarr nor parquet is recognised here",
        where=redacted(url),
        expected=f"a path that ends in .zarr or {', '.join(SUFFIXES)}, or a directory that holds "
        f"{', '.join(_ZARR_FILES)} or parquet files",
        remedy="say which with format='zarr' or format='parquet'; CSV, JSON, NumPy and HDF5 files become zarr first: "
        "streamkern ingest FILE NEW.zarr",
    )
