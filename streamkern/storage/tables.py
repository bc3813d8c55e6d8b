"""Tables of any supported kind as one Source: parquet, zarr, CSV, Arrow, npy, npz, HDF5, arrays and frames; joined."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from fsspec.core import url_to_fs

from streamkern.errors import DataError, StorageError, UsageError
from streamkern.storage import open_source
from streamkern.storage.arrow import ArrowSource, frame_source
from streamkern.storage.base import Source, digest
from streamkern.storage.csv import CsvSource
from streamkern.storage.hdf5 import open_hdf5
from streamkern.storage.layout import check_chunk
from streamkern.storage.numpy_files import open_npy, open_npz
from streamkern.storage.remote import bare
from streamkern.storage.table_file import TableFile
from streamkern.storage.weighted import open_weighted, weight_of, with_weights
from streamkern.types import IntArray, Rows, Target

SUFFIXES = {
    "csv": (".csv", ".tsv", ".txt"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "npy": (".npy",),
    "npz": (".npz",),
    "hdf5": (".h5", ".hdf5", ".hdf"),
}
"""How files of each kind end; ``.gz`` may follow. What ends otherwise is parquet or zarr."""


def open_tables(
    sources: Sequence[Any],
    target: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    header: bool = True,
    storage_options: dict[str, Any] | None = None,
    nulls: bool = False,
    weight: str | None = None,
    beside: bool = False,
    memory: int | None = None,
) -> Source:
    """Open tables and join their rows, in the order given.

    Args:
        sources: paths, globs and fsspec URLs; NumPy or Dask arrays, pairs (X, y) or triples (X, y, weights) of them,
            pandas, polars or Dask frames, Arrow tables.
        target: the column of targets, or several for c values a row.
        columns: features to use, in this order.
        header: whether the first line of a text table names its columns.
        storage_options: for fsspec.
        nulls: read a null among features of a floating dtype as NaN; else it is an error.
        weight: the column of sample weights; another ``.npy`` file for one.
        beside: pass over columns that cannot be features, such as text; ``beside`` of the source names them with their
            types, and ``describe(chunk)`` tells what they hold. Labels may be missing, and are None then.
        memory: bytes that the process may hold, which bound what is read of a text table at a time.

    Raises:
        StorageError: nothing there, or nothing that is known.
        DataError: what is there cannot be rows, or differs from one table to the next.
        UsageError: parameters that contradict each other.
    """
    target = target[0] if target is not None and not isinstance(target, str) and len(target) == 1 else target
    opened: list[Source] = []
    for place in _expanded(sources, storage_options):
        source = _open_weighted(place, target, columns, header, storage_options, weight, beside, memory)
        if nulls and hasattr(source, "nulls"):
            source.nulls = True
        if columns is None and source.columns is not None and not opened:
            columns = (*source.columns, *getattr(source, "beside", ()))  # the next may have them in another order
        if opened:
            _require_alike(opened[0], source)
        opened.append(source)
    if not opened:
        raise UsageError("no sources are given", where="ingest", expected="at least one path, array or frame")
    return opened[0] if len(opened) == 1 else JoinedSource(opened)


class JoinedSource:
    """The rows of several sources, one after another.

    Args:
        parts: alike in width, columns and target.
    """

    def __init__(self, parts: Sequence[Source]) -> None:
        first = parts[0]
        self._parts = parts
        self.n_features, self.columns = first.n_features, first.columns
        self.weight = weight_of(first)
        self.text: tuple[str, ...] = getattr(first, "text", ())
        self.beside: dict[str, str] = getattr(first, "beside", {})
        self.dtype: np.dtype[Any] = np.result_type(*(part.dtype for part in parts))
        self.target: Target | None = None
        if first.target is not None:
            dtypes = [part.target.dtype for part in parts if part.target is not None]
            self.target = Target(first.target.name, np.result_type(*dtypes), first.target.outputs)
        chunks = [len(part.bounds) - 1 for part in parts]
        rows = [int(part.bounds[-1]) for part in parts]
        self._first_chunk = np.cumsum([0, *chunks])
        starts = np.cumsum([0, *rows])
        pieces = [part.bounds[:-1] + start for part, start in zip(parts, starts, strict=False)]
        self.bounds: IntArray = np.concatenate([*pieces, starts[-1:]]).astype(np.int64)

    @property
    def fingerprint(self) -> str:
        """Digest of the parts' fingerprints."""
        return digest("joined", [part.fingerprint for part in self._parts])

    def read(self, chunk: int) -> Rows:
        """Rows of one chunk; see ``Source.read``."""
        part, inside = self._find(chunk)
        X, y, w = part.read(inside)
        X = X.astype(np.result_type(X.dtype, self.dtype), copy=False)
        if y is not None and self.target is not None and y.dtype != object:  # objects: text, or some are missing
            y = y.astype(self.target.dtype, copy=False)
        return Rows(X, y, w)

    def describe(self, chunk: int) -> Any:
        """What the columns beside the features hold in one chunk."""
        part, inside = self._find(chunk)
        return part.describe(inside)  # type: ignore[attr-defined]

    def where(self, chunk: int) -> str:
        """The chunk in words."""
        a, b = check_chunk(chunk, self.bounds)
        part, inside = self._find(chunk)
        own = part.where(inside)
        return own if part is self._parts[0] else f"{own} (rows {a} to {b - 1} of all)"

    def _find(self, chunk: int) -> tuple[Source, int]:
        check_chunk(chunk, self.bounds)
        part = int(np.searchsorted(self._first_chunk, chunk, side="right")) - 1
        return self._parts[part], chunk - int(self._first_chunk[part])


def kind_of(path: str) -> str | None:
    """Which kind of table a file's name says; None for parquet and zarr, which ``open_source`` knows."""
    name = bare(path).rstrip("/").lower().removesuffix(".gz")
    return next((kind for kind, suffixes in SUFFIXES.items() if name.endswith(suffixes)), None)


def _open_weighted(
    place: Any,
    target: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    header: bool,
    storage_options: dict[str, Any] | None,
    weight: str | None,
    beside: bool,
    memory: int | None,
) -> Source:
    """A table with its weights, if it has any."""
    if isinstance(place, tuple) and len(place) == 3:
        rows = _open(place[:2], target, columns, header, storage_options, beside)
        return with_weights(rows, place[2], weight or "sample_weight")
    kind = kind_of(place) if isinstance(place, str) else None
    if weight is None or isinstance(place, tuple):
        return _open(place, target, columns, header, storage_options, beside, memory)
    if isinstance(place, str) and kind is None:
        return open_source(place, target=target, columns=columns, weight=weight, storage_options=storage_options)

    def column(name: str) -> Source:
        if kind == "npy":
            return _open(name, None, None, header, storage_options)
        return _open(place, None, [name], header, storage_options, memory=memory)

    return open_weighted(
        lambda columns: _open(place, target, columns, header, storage_options, memory=memory), column, columns, weight
    )


def _open(
    place: Any,
    target: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    header: bool,
    storage_options: dict[str, Any] | None,
    beside: bool = False,
    memory: int | None = None,
) -> Source:
    if not isinstance(place, str):
        return _open_object(place, target, columns, beside)
    kind = kind_of(place)
    if kind is None:
        return open_source(place, target=target, columns=columns, storage_options=storage_options, beside=beside)
    file = TableFile(place, storage_options)
    if kind == "csv":
        return CsvSource(file, target, columns, header, beside, memory)
    if kind == "arrow":
        return ArrowSource(file, target, columns, beside)
    if not (target is None or isinstance(target, str)):
        raise UsageError(
            f"{len(target)} targets are named",
            where=place,
            expected="one array of shape (n,) or (n, c)",
            remedy="store the targets side by side in one array",
        )
    if kind == "npy":
        return open_npy(file, target, columns, storage_options)
    return open_npz(file, target, columns) if kind == "npz" else open_hdf5(file, target, columns)


def _open_object(value: Any, target: str | Sequence[str] | None, columns: Sequence[str] | None, beside: bool) -> Source:
    if isinstance(value, Source):
        return value
    if isinstance(value, tuple):
        X, y = value
        name = target if isinstance(target, str) else "target"
        return _named_target(open_source(X, target=y, columns=columns), name)
    if type(value).__module__.startswith("dask.dataframe"):
        from streamkern.storage.dask import dask_frame

        return dask_frame(value, target, columns, beside)
    if hasattr(value, "__arrow_c_stream__") or type(value).__module__.startswith("pandas"):
        return frame_source(value, target, columns, beside)
    if target is not None:
        raise UsageError(
            f"a target {target!r} is named, and the source is an array",
            where="ingest",
            expected="a pair: (X, y)",
            remedy="pass the targets with the features, sources=[(X, y)]",
        )
    return open_source(value, columns=columns)


def _named_target(source: Any, name: str) -> Source:
    source.target = None if source.target is None else Target(name, source.target.dtype, source.target.outputs)
    opened: Source = source
    return opened


def _expanded(sources: Sequence[Any], storage_options: dict[str, Any] | None) -> list[Any]:
    """Every source, globs of other files than parquet as the files they match, in natural order."""
    places: list[Any] = []
    for source in sources:
        if isinstance(source, os.PathLike):
            source = os.fspath(source)
        if isinstance(source, str) and kind_of(source) is not None and any(sign in source for sign in "*?["):
            fs, pattern = url_to_fs(source, **(storage_options or {}))
            if not fs.exists(pattern):
                found = sorted(fs.glob(pattern), key=_natural)
                if not found:
                    raise StorageError(
                        "no file matches",
                        where=source,
                        expected="at least one file",
                        remedy="check the pattern; see where it starts from",
                    )
                places += [fs.unstrip_protocol(path) for path in found]
                continue
        places.append(source)
    return places


def _natural(path: str) -> list[Any]:
    """A key that puts part-2 before part-10."""
    words: list[Any] = [""]
    for sign in path:
        if sign.isdecimal() != isinstance(words[-1], int):
            words.append(0 if sign.isdecimal() else "")
        words[-1] = words[-1] * 10 + int(sign) if sign.isdecimal() else words[-1] + sign
    return words


def _require_alike(first: Source, other: Source) -> None:
    """Raises DataError naming both unless the two can be joined."""
    what = None
    if other.n_features != first.n_features or other.columns != first.columns:
        what = f"{other.n_features} features ({_names(other)}) and {first.n_features} ({_names(first)})"
    elif list(getattr(other, "beside", ())) != list(getattr(first, "beside", ())):
        what = f"columns {', '.join(getattr(other, 'beside', ()))} and {', '.join(getattr(first, 'beside', ()))}"
    elif (other.target is None) != (first.target is None):
        what = "one has a target and the other has none"
    elif (weight_of(other) is None) != (weight_of(first) is None):
        what = "one has weights and the other has none"
    elif other.target is not None and first.target is not None:
        one, two = other.target, first.target
        if one.outputs != two.outputs or (one.dtype == object) != (two.dtype == object):
            what = f"targets of {one.dtype}{one.outputs} and {two.dtype}{two.outputs}"
    if what is not None:
        places = [s.where(0) if len(s.bounds) > 1 else "a table of no rows" for s in (other, first)]
        raise DataError(
            f"two tables differ: {what}",
            where=" and ".join(places),
            expected="the same columns in every table",
            remedy="choose common columns with columns=[...], or ingest them apart",
        )


def _names(source: Source) -> str:
    return "unnamed" if source.columns is None else ", ".join(source.columns[:4]) + ", ..." * (source.n_features > 4)
