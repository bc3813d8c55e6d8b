"""Datasets, and the order in which their rows are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_roles import roles_of_columns, roles_of_values
from streamkern.data.row_selection import Quarantined, RowBitmap
from streamkern.errors import CorruptChunkError, DataError, UsageError, warn
from streamkern.formats import Retry, wrap
from streamkern.sources.base import Source
from streamkern.sources.column_roles import Request
from streamkern.sources.input_types import require_dense
from streamkern.sources.read_options import ReadOptions, read_options
from streamkern.startup import paused_collector
from streamkern.types import IntArray

__all__ = ["Dataset", "Quarantined", "from_arrays", "open_dataset", "read_options"]


def open_dataset(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: Any = None,
    *,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    schema: Any = None,
    weight: str | None = None,
    time: str | None = None,
    group: str | None = None,
    format: str | None = None,
    storage_options: dict[str, Any] | None = None,
    retry: Retry | None = None,
    on_corrupt: str = "error",
    read_options: ReadOptions | Mapping[str, Any] | None = None,
) -> Dataset:
    """Open stored rows: zarr, parquet (a file, directory or glob), CSV, Arrow or npy, in local files or at fsspec URLs.

    Columns of a table are numbers, booleans, categories (text), dates or times; each may have missing values.
    ``streamkern inspect`` prints the kind of each column. A CSV file larger than memory is parsed again in each pass
    over the rows, so convert it first with ``ingest``. HDF5 files and npz archives must also be converted first.

    Args:
        path: path, glob or URL of the data; or a list of paths or tables, to concatenate their rows.
        target: name of the target column, or for parquet files a list of names.
        columns: names of the features, in order. By default, all columns except the target.
        exclude: columns to leave out, such as an id.
        schema: kinds of columns by name, in place of the detected kinds, such as ``{"zip": "category"}``. A kind is
            ``number``, ``category``, ``boolean`` or ``datetime``.
        weight: name of the column of sample weights >= 0. Rows of weight 0 are left out. Omit it for data
            written by ``ingest``, which store this name.
        time: name of the column with the time of each row, as dates or numbers. Every split puts the later rows into
            the test part. The column is a feature only if ``columns`` names it. Omit it for data written by ``ingest``,
            which store this name.
        group: name of a column. Rows with equal values, such as the rows of a patient or a shop, form a group, and no
            split divides a group. The column is a feature only if ``columns`` names it.
        format: ``zarr`` or ``parquet``, if the name of the path does not show the format.
        storage_options: options for fsspec URLs, without secrets; put secrets into environment variables.
        retry: timeouts and repetitions of requests to a remote store.
        on_corrupt: ``error`` or ``quarantine``. A chunk is a stored block of rows. With ``error``, reading a corrupt
            chunk raises an error. With ``quarantine``, the call reads every chunk once. It excludes the rows of corrupt
            chunks, warns, and lists these rows in ``quarantine`` of the dataset.
        read_options: format of text files, such as ``sk.read_options(delimiter=";", decimal=",")``.

    Returns:
        A ``Dataset`` of n rows, none of which is read yet. Its ``split``, ``sample``, ``where`` and ``augment`` return
        new data sets without copying rows.

    Raises:
        StorageError: nothing is there, or it cannot be read.
        DataError: a named column is missing, columns cannot be features, or every chunk is corrupt.
        UsageError: ``on_corrupt`` is neither ``error`` nor ``quarantine``.
    """
    if on_corrupt not in ("error", "quarantine"):
        raise UsageError(
            f"on_corrupt is {on_corrupt!r}.", where="open_dataset(on_corrupt=...)", expected="'error' or 'quarantine'"
        )
    for role, name in (("time", time), ("group", group)):
        if not isinstance(name, str | None):
            raise UsageError(
                f"{role} is {name!r}.", where=f"open_dataset({role}=...)", expected="the name of a column, or None"
            )
    with paused_collector():  # imports zarr and Arrow
        from streamkern.formats.open_tables import open_tables

    options: dict[str, Any] = {
        "format": format, "storage_options": storage_options, "retry": retry, "read_options": read_options,
    }  # fmt: skip
    source = open_tables([path], target, columns, weight=weight, schema=schema, exclude=exclude, time=time,
                         group=group, **options)  # fmt: skip

    def reopened(columns: list[str], schema: Any) -> Source:
        return open_tables([path], "", columns, weight="", schema=schema, time="", group="", **options)

    dataset = Dataset(source, roles=roles_of_columns(source, schema, reopened))
    columns_read = [source, *([] if dataset.roles is None else [dataset.roles.source])]
    if on_corrupt == "quarantine" and (found := _joined_ranges(_corrupt_chunks(each) for each in columns_read)):
        dataset = dataset.without(found)
        rows = sum(each.stop - each.start for each in found)
        warn(
            f"{len(found)} corrupt chunk(s) are left out, {rows} of {dataset.source.bounds[-1]} rows; the first: "
            f"{found[0].where}: {found[0].why}"
        )
    return drop_zero_weight_rows(dataset)


def from_arrays(
    X: Any,
    y: Any = None,
    *,
    columns: Sequence[str] | None = None,
    sample_weight: Any = None,
    schema: Any = None,
    exclude: Sequence[str] = (),
    time: Any = None,
    group: Any = None,
) -> Dataset:
    """Open arrays in memory, Dask arrays, or a table in memory as a dataset.

    Args:
        X: features. A NumPy or Dask array, shape (n, d), or (n, ...), which is flattened. Or a table: a pandas or
            polars frame, an Arrow table, a dict of columns, a list of dicts, or an array of objects.
        y: targets, shape (n,) or (n, c), or None.
        columns: names of the features of an array; or the columns of a table to use.
        schema: kinds of columns of a table, as in ``open_dataset``.
        exclude: columns of a table to leave out.
        sample_weight: weights >= 0, shape (n,), in memory; rows of weight 0 are dropped.
        time: as in ``open_dataset``: the name of a column of a table, or values, shape (n,).
        group: as in ``open_dataset``: the name of a column of a table, or values of any kind, shape (n,).

    Raises:
        DataError: shapes or types cannot be used as rows.
    """
    for name, given in (("y", y), ("sample_weight", sample_weight)):
        require_dense(given, name)
    given = {role: values for role, values in (("time", time), ("group", group)) if values is not None}
    names: dict[str, Any] = {role: values for role, values in given.items() if isinstance(values, str)}
    request = Request(columns=columns, schema=schema, exclude=tuple(exclude), **names)
    source = wrap(X, y, sample_weight, request)
    if names and (len(names) < len(given) or (source.time, source.group) == (None, None)):
        raise UsageError(
            "A column of time or group is named, and the other is given as values, or the rows have no columns.",
            where="from_arrays(time=..., group=...)",
            expected="names of columns of a table; or values, shape (n,)",
            remedy="name both columns, or give both as values",
        )

    def reopened(columns: list[str], schema: Any) -> Source:
        return wrap(X, request=Request(columns=columns, schema=schema))

    if names or not given:
        roles = roles_of_columns(source, schema, reopened)
    else:
        roles = roles_of_values(given, int(source.bounds[-1]))
    return drop_zero_weight_rows(Dataset(source, roles=roles))


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


def _corrupt_chunks(source: Source) -> tuple[Quarantined, ...]:
    """Read every chunk once and return the corrupt ones, in ascending order of rows."""
    threads = 4  # threads, one chunk each: reading waits for the disk or network more than for the processor
    with ThreadPoolExecutor(threads, thread_name_prefix="streamkern-verify") as pool:
        found = pool.map(_read, repeat(source), range(len(source.bounds) - 1))
        return tuple(each for each in found if each is not None)


def _joined_ranges(found: Iterable[Sequence[Quarantined]]) -> tuple[Quarantined, ...]:
    """Return the corrupt chunks of several sources of the same rows, ascending; those that overlap are one."""
    joined: list[Quarantined] = []
    for each in sorted(chain.from_iterable(found)):
        if joined and each.start < joined[-1].stop:
            joined[-1] = joined[-1]._replace(stop=max(each.stop, joined[-1].stop))
        else:
            joined.append(each)
    return tuple(joined)


def _read(source: Source, chunk: int) -> Quarantined | None:
    try:
        source.read(chunk)
    except CorruptChunkError as error:
        start, stop = source.bounds[chunk : chunk + 2].tolist()
        return Quarantined(start, stop, source.where(chunk), error.what)
    return None
