"""The door to stored rows: paths, globs and URLs of tables of any format, and tables in memory, opened and joined."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from streamkern.errors import StorageError, UsageError
from streamkern.formats import parquet_files, wrap
from streamkern.formats.arrow_tables import ArrowSource
from streamkern.formats.csv import CsvSource, NoRowsError
from streamkern.formats.fsspec_file import COMPRESSED, TableFile
from streamkern.formats.joined_tables import join
from streamkern.formats.numpy_files import open_npy
from streamkern.formats.parquet import parquet_source
from streamkern.formats.zarr import zarr_source
from streamkern.sources.base import Source
from streamkern.sources.column_roles import Request
from streamkern.sources.input_types import is_table
from streamkern.sources.read_options import ReadOptions, given_options
from streamkern.sources.remote_store import Remote, Retry, is_remote, without_query
from streamkern.storage.atomic_writes import unfinished_folder
from streamkern.storage.untrusted_files import (
    GLOB_CHARACTERS,
    given_path,
    missing_path_error,
    natural_sort_key,
    split_pattern,
)

SUFFIXES = {
    "csv": (".csv", ".tsv", ".txt"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "npy": (".npy",),
    "npz": (".npz",),
    "hdf5": (".h5", ".hdf5", ".hdf"),
}
"""File endings of each kind; one of ``COMPRESSED`` may follow. Other endings mean parquet or zarr.

``ingest`` alone reads npz and hdf5.
"""

Readers = Mapping[str, Callable[[TableFile, Request], Source]]
"""Functions that open a file, by its kind in ``SUFFIXES``."""

_ZARR_FILES = ("zarr.json", ".zgroup", ".zarray")


def open_tables(
    sources: Any,
    target: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    weight: str | None = None,
    id: str | None = None,
    header: bool = True,
    lenient: bool = False,
    schema: Any = None,
    exclude: Sequence[str] = (),
    format: str | None = None,
    retry: Retry | None = None,
    memory: int | None = None,
    storage_options: dict[str, Any] | None = None,
    read_options: Any = None,
    readers: Readers | None = None,
    time: str | None = None,
    group: str | None = None,
) -> Source:
    """Open tables and join their rows in the given order; arguments are those of ``open_dataset``, and some more.

    Sources are one or a list of: paths, globs, fsspec URLs, and lists of them; arrays, pairs (X, y) or triples
    (X, y, weights) of them; tables in memory. ``id`` is a column of row ids, read in place of a target. A ``lenient``
    call is for inspection, see ``Request``. The process's ``memory`` in bytes bounds the part of a text table read at
    once. ``readers`` open files that are read in no other way, by their kind.
    """
    if not (target is None or isinstance(target, str)):
        target = target[0] if len(target) == 1 else tuple(target)
    request = Request(target, columns, weight, lenient=lenient, schema=schema, exclude=tuple(exclude), time=time,
                      group=group)  # fmt: skip
    if id is not None:
        request = replace(request, target=id, role="id column")
    options = given_options(read_options)
    read = partial(
        _open, header=header, storage_options=storage_options, memory=memory, format=format, retry=retry,
        options=options, readers=readers or {},
    )  # fmt: skip
    opened = _opened(_expanded(sources, storage_options), request, read)
    if not opened:
        raise UsageError("no sources are given", where="the data", expected="at least one path, array or frame")
    if options is not None and not any(isinstance(source, CsvSource) for source in opened):
        raise UsageError(
            "read_options are given, and no source is a text table",
            where="read_options",
            expected=f"a file that ends in {', '.join(SUFFIXES['csv'])}, also compressed ({', '.join(COMPRESSED)})",
            remedy="leave read_options out, or give the file such an ending",
        )
    return join(opened)


def _opened(places: Iterable[Any], request: Request, read: Callable[[Any, Request], Source]) -> list[Source]:
    """Text tables without rows are skipped, as tables of other formats are."""
    opened: list[Source] = []
    empty: NoRowsError | None = None
    for place in places:
        try:
            source = read(place, request)
        except NoRowsError as error:
            empty = error
            continue
        if not opened and request.columns is None and source.columns is not None:
            # The next table may have the columns in another order.
            request = replace(request, columns=(*source.columns, *dict(source.non_features)))
        opened.append(source)
    if not opened and empty is not None:
        raise empty
    return opened


def format_of_path(path: str) -> str | None:
    """Return the kind of table from a file's ending; None for parquet and zarr, recognised by content."""
    name = without_query(path).rstrip("/").lower()
    packed = next((ending for ending in COMPRESSED if name.endswith(ending)), "")
    name = name.removesuffix(packed)
    return next((kind for kind, suffixes in SUFFIXES.items() if name.endswith(suffixes)), None)


def _open(
    place: Any, request: Request, header: bool, storage_options: dict[str, Any] | None, memory: int | None,
    format: str | None, retry: Retry | None, options: ReadOptions | None, readers: Readers,
) -> Source:  # fmt: skip
    if isinstance(place, Source):
        return place
    if not isinstance(place, str):
        X, y, weights = (*place, None)[:3] if isinstance(place, tuple) else (place, None, None)
        return wrap(X, y, weights, request)
    kind = None if format else format_of_path(place)
    if kind is None:
        _require_finished(place)
        format = _format_of(place, storage_options, retry) if format is None else format
        if format not in ("zarr", "parquet"):
            raise UsageError(
                f"format {format!r} is not known", where=place, expected="'zarr' or 'parquet'", remedy="correct it"
            )
        stored = zarr_source if format == "zarr" else parquet_source
        return stored(place, request, storage_options, retry)
    file = TableFile(place, storage_options)
    with file.explaining(f"a file of the kind that its name says, {kind}"):
        if kind == "csv":
            return CsvSource(file, request, header, memory, options)
        if kind == "arrow":
            return ArrowSource(file, request)
        if kind == "npy":
            return open_npy(file, request, storage_options)
        if kind in readers:
            return readers[kind](file, request)
    raise UsageError(
        f"{file.name} is of a kind that is read by ingest alone",
        where=file.path,
        expected="zarr, parquet, a text table, Arrow or .npy",
        remedy=f"write its rows once in the layout of training: streamkern ingest {place} NEW.zarr, or "
        'sk.ingest(path, "NEW.zarr"); then use these',
    )


def _expanded(sources: Any, storage_options: dict[str, Any] | None) -> list[Any]:
    """Globs (except of parquet) are replaced by their files in natural order."""
    places: list[Any] = []
    for source in _flat(sources):
        if isinstance(source, str | os.PathLike):
            source = given_path(source)
        globbed = isinstance(source, str) and any(sign in source for sign in GLOB_CHARACTERS)
        if globbed and (format_of_path(source) is not None or not is_remote(source)):
            fs, pattern = url_to_fs(source, **(storage_options or {}))
            if not fs.exists(pattern):
                found = sorted(fs.glob(split_pattern(pattern, fs.exists)[1]), key=natural_sort_key)
                if format_of_path(source) is None and not any(map(format_of_path, found)):  # of parquet
                    places.append(source)
                    continue
                if not found:
                    raise StorageError(
                        "no file matches",
                        where=source,
                        expected="at least one file",
                        remedy="check the pattern; a relative one starts at the working directory",
                    )
                places += [fs.unstrip_protocol(path) for path in found]
                continue
        places.append(source)
    return places


def _flat(sources: Any) -> list[Any]:
    """A list of paths and tables, or a tuple of paths, is replaced by what it holds."""
    flat: list[Any] = []
    for source in sources if isinstance(sources, list) else [sources]:
        several = isinstance(source, list | tuple) and all(
            isinstance(each, str | os.PathLike) or (isinstance(source, list) and is_table(each)) for each in source
        )
        flat += source if several and not is_table(source) else [source]
    return flat


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
    is_glob = any(sign in name for sign in GLOB_CHARACTERS) and not (here is not None and here.exists())
    if name.endswith(parquet_files.SUFFIXES) or is_glob:
        return "parquet"
    if name.endswith(".zarr"):
        return "zarr"
    inside: list[str] = []
    if here is None:
        remote = Remote(url, storage_options, retry)
        inside = remote.listed(remote.root) if remote.lists else []
    elif here.is_dir():
        inside = os.listdir(here)
    if any(marker in inside for marker in _ZARR_FILES):
        return "zarr"
    if here is None:
        parquet = any(found.endswith(parquet_files.SUFFIXES) or "=" in found for found in inside)
    else:
        parquet = here.is_dir() and any(found.suffix in parquet_files.SUFFIXES for found in here.rglob("*"))
    if parquet:
        return "parquet"
    if here is not None and here.is_file() and zipfile.is_zipfile(here):
        raise StorageError(
            "this is a zip archive",
            where=url,
            expected="a directory or store that is not packed",
            remedy=f"unpack it: python -m zipfile -e {here.name} {here.stem.removesuffix('.zarr')}.zarr",
        )
    if here is not None and not here.exists():
        files = ", ".join(f"*{suffix}" for suffix in parquet_files.SUFFIXES)
        raise missing_path_error(url, f"a directory with {', '.join(_ZARR_FILES)} (zarr), or {files} files (parquet)")
    endings = Counter(Path(name).suffix for name in inside) if here is not None else Counter()
    ending = next((ending for ending, _ in endings.most_common() if ending), None)
    pattern = "" if ending is None else f"; for the files of a folder, give a pattern: {url.rstrip('/')}/*{ending}"
    raise StorageError(
        "neither zarr nor parquet is recognised here",
        where=url,
        expected=f"a path that ends in .zarr or {', '.join(parquet_files.SUFFIXES)}, or a directory that holds "
        f"{', '.join(_ZARR_FILES)} or parquet files",
        remedy="say which with format='zarr' or format='parquet'; CSV, JSON, NumPy and HDF5 files become zarr first: "
        f"streamkern ingest FILE NEW.zarr{pattern}",
    )
