"""Opening stored rows, zarr or parquet, by a path or URL."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

from streamkern.errors import StorageError, UsageError
from streamkern.formats.parquet import parquet_source
from streamkern.formats.parquet_files import SUFFIXES
from streamkern.formats.zarr import zarr_source
from streamkern.sources.base import Source
from streamkern.sources.column_roles import Request
from streamkern.sources.remote_store import Remote, Retry, is_remote, without_query
from streamkern.storage.atomic_writes import unfinished_folder
from streamkern.storage.untrusted_files import missing_path_error

_ZARR_FILES = ("zarr.json", ".zgroup", ".zarray")


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
    """A part of an interrupted ingest must not be taken for all of the data."""
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
    name = without_query(url).rstrip("/")
    here = None if is_remote(url) else Path(url.removeprefix("file://"))
    is_glob = any(sign in name for sign in "*?[") and not (here is not None and here.exists())
    if name.endswith(SUFFIXES) or is_glob:
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
        if path.is_file() and zipfile.is_zipfile(path):
            raise StorageError(
                "this is a zip archive",
                where=url,
                expected="a directory or store that is not packed",
                remedy=f"unpack it: python -m zipfile -e {path.name} {path.stem.removesuffix('.zarr')}.zarr",
            )
        if not path.exists():
            files = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
            raise missing_path_error(
                url, f"a directory with {', '.join(_ZARR_FILES)} (zarr), or {files} files (parquet)"
            )
    endings = Counter() if here is None or not here.is_dir() else Counter(file.suffix for file in here.iterdir())
    ending = next((ending for ending, _ in endings.most_common() if ending), None)
    pattern = "" if ending is None else f"; for the files of a folder, give a pattern: {url.rstrip('/')}/*{ending}"
    raise StorageError(
        "neither zarr nor parquet is recognised here",
        where=url,
        expected=f"a path that ends in .zarr or {', '.join(SUFFIXES)}, or a directory that holds "
        f"{', '.join(_ZARR_FILES)} or parquet files",
        remedy="say which with format='zarr' or format='parquet'; CSV, JSON, NumPy and HDF5 files become zarr first: "
        f"streamkern ingest FILE NEW.zarr{pattern}",
    )
