"""Tables of any kind joined as one Source: parquet, zarr, CSV, Arrow, npy, npz, HDF5, arrays and frames."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from fsspec.core import url_to_fs

from streamkern.errors import DataError, StorageError, UsageError
from streamkern.formats import array_source
from streamkern.formats.arrow_tables import ArrowSource, frame_source
from streamkern.formats.csv import CsvSource, NoRowsError
from streamkern.formats.fsspec_file import COMPRESSED, TableFile
from streamkern.formats.hdf5 import open_hdf5
from streamkern.formats.numpy_files import open_npy, open_npz
from streamkern.formats.open_stored import stored_source
from streamkern.formats.polars_lazy_frame import lazy_source
from streamkern.sources.base import DerivedSource, Reading, Source
from streamkern.sources.column_roles import Request
from streamkern.sources.format_rules import check_chunk
from streamkern.sources.input_types import is_lazy_frame, is_table, require_dense
from streamkern.sources.read_options import ReadOptions, given_options
from streamkern.sources.remote_store import Retry, is_remote, without_query
from streamkern.sources.schema import Schema, join_schemas, joint_kinds
from streamkern.sources.unusable_columns import ColumnDescription
from streamkern.storage.untrusted_files import GLOB_CHARACTERS, given_path, natural_sort_key, split_pattern
from streamkern.storage.value_digest import digest
from streamkern.types import Array, IntArray, Rows, Target

SUFFIXES = {
    "csv": (".csv", ".tsv", ".txt"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "npy": (".npy",),
    "npz": (".npz",),
    "hdf5": (".h5", ".hdf5", ".hdf"),
}
"""File endings of each kind; one of ``COMPRESSED`` may follow. Other endings mean parquet or zarr."""


def open_tables(
    sources: Sequence[Any],
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
) -> Source:
    """Open tables and join their rows in the given order; arguments are those of ``open_dataset``, and some more.

    Sources are paths, globs and fsspec URLs, and lists of them; NumPy or Dask arrays, pairs (X, y) or triples (X, y,
    weights) of them, pandas, polars or Dask frames, Arrow tables, dicts of columns, lists of dicts. The weight of a
    ``.npy`` file is another ``.npy`` file. ``id`` is a column of row ids, read in place of a target. A ``lenient`` call
    skips columns other than plain numbers, such as text: ``non_features`` of the source names them, and ``describe``
    describes their values; null labels are read as None. The process's ``memory`` in bytes bounds the part of a text
    table read at once.
    """
    if not (target is None or isinstance(target, str)):
        target = target[0] if len(target) == 1 else tuple(target)
    request = Request(target, columns, weight, lenient=lenient, schema=schema, exclude=tuple(exclude))
    if id is not None:
        request = replace(request, target=id, role="id column")
    options = given_options(read_options)
    read = partial(
        _open, header=header, storage_options=storage_options, memory=memory, format=format, retry=retry,
        options=options,
    )  # fmt: skip
    opened = _opened(_expanded(sources, storage_options), request, read)
    opened = _alike(opened)
    if not opened:
        raise UsageError("no sources are given", where="the data", expected="at least one path, array or frame")
    if options is not None and not any(isinstance(source, CsvSource) for source in opened):
        raise UsageError(
            "read_options are given, and no source is a text table",
            where="read_options",
            expected=f"a file that ends in {', '.join(SUFFIXES['csv'])}, also compressed ({', '.join(COMPRESSED)})",
            remedy="leave read_options out, or give the file such an ending",
        )
    return opened[0] if len(opened) == 1 else JoinedSource(opened)


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


def _alike(sources: list[Source]) -> list[Source]:
    """Columns get the kinds that all of the sources can have; sources that differ are refused."""
    schemas = [source.schema for source in sources if source.schema is not None]
    if len(schemas) == len(sources) and len({schema.names for schema in schemas}) == 1:
        kinds = joint_kinds(schemas)
        sources = [source.conformed(kinds) for source in sources]
    for source in sources[1:]:
        _require_alike(sources[0], source)
    return sources


class JoinedSource(DerivedSource):
    """The concatenated rows of several sources, which do not count as shuffled, even if all sources are."""

    def __init__(self, parts: Sequence[Source]) -> None:
        first = parts[0]
        super().__init__(first)
        self._parts = parts
        self.shuffled, self.remote = False, any(part.remote for part in parts)
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self.in_memory = all(part.in_memory and part.dtype == self.dtype for part in parts)
        self.from_memory = all(part.from_memory for part in parts)
        schemas = [part.schema for part in parts if part.schema is not None]
        self.schema = join_schemas(schemas) if len(schemas) == len(parts) else None
        if first.target is not None:
            dtypes = [part.target.dtype for part in parts if part.target is not None]
            self.target = Target(first.target.name, np.result_type(*dtypes), first.target.outputs)
        chunks = [len(part.bounds) - 1 for part in parts]
        rows = [int(part.bounds[-1]) for part in parts]
        self._first_chunk = np.cumsum([0, *chunks])
        starts = np.cumsum([0, *rows])
        pieces = [part.bounds[:-1] + start for part, start in zip(parts, starts, strict=False)]
        self.bounds = np.concatenate([*pieces, starts[-1:]]).astype(np.int64)

    @property
    def fingerprint(self) -> str:
        return digest("joined", [part.fingerprint for part in self._parts])

    def pieces(self) -> list[tuple[str, int]]:
        return [piece for part in self._parts for piece in part.pieces()]

    def require_unchanged(self) -> None:
        for part in self._parts:
            part.require_unchanged()

    def reading(self) -> Reading:
        found = [part.reading() for part in self._parts]
        wider = 0 if self.in_memory else self._most_rows() * self._row_bytes()  # a part with a narrower dtype is copied
        return Reading(
            max(self._row_bytes(), *(each.row for each in found)),
            wider + max(each.decoding for each in found),
            sum(each.once for each in found),
            max(each.libraries for each in found),
        )

    def read(self, chunk: int) -> Rows:
        part, inside = self._find(chunk)
        X, y, w = part.read(inside)
        X = X.astype(np.result_type(X.dtype, self.dtype), copy=False)
        if y is not None and self.target is not None and y.dtype != object:  # objects: text, or labels with nulls
            y = y.astype(self.target.dtype, copy=False)
        return Rows(X, y, w)

    def weights(self, chunk: int) -> Array:
        part, inside = self._find(chunk)
        return part.weights(inside)

    def words(self, column: int) -> Mapping[float, str]:
        return {number: text for part in self._parts for number, text in part.words(column).items()}

    def conformed(self, schema: Schema | None) -> Source:
        parts = [part.conformed(schema) for part in self._parts]
        return self if all(a is b for a, b in zip(parts, self._parts, strict=True)) else JoinedSource(parts)

    def describe(self, chunk: int, rows: IntArray | None = None) -> Sequence[ColumnDescription]:
        part, inside = self._find(chunk)
        return part.describe(inside, rows)

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        part, inside = self._find(chunk)
        own = part.where(inside)
        return own if part is self._parts[0] else f"{own} (rows {a} to {b - 1} of all)"

    def where_row(self, chunk: int, row: int) -> str:
        part, inside = self._find(chunk)
        return part.where_row(inside, row)

    def _find(self, chunk: int) -> tuple[Source, int]:
        check_chunk(chunk, self.bounds)
        part = int(np.searchsorted(self._first_chunk, chunk, side="right")) - 1
        return self._parts[part], chunk - int(self._first_chunk[part])


def format_of_path(path: str) -> str | None:
    """Return the kind of table from a file's ending; None for parquet and zarr, which ``open_source`` recognises."""
    name = without_query(path).rstrip("/").lower()
    packed = next((ending for ending in COMPRESSED if name.endswith(ending)), "")
    name = name.removesuffix(packed)
    return next((kind for kind, suffixes in SUFFIXES.items() if name.endswith(suffixes)), None)


def _open(
    place: Any, request: Request, header: bool, storage_options: dict[str, Any] | None, memory: int | None,
    format: str | None, retry: Retry | None, options: ReadOptions | None,
) -> Source:  # fmt: skip
    if not isinstance(place, str):
        return _open_object(place, request)
    kind = None if format else format_of_path(place)
    if kind is None:
        return stored_source(place, request, format, storage_options, retry)
    file = TableFile(place, storage_options)
    with file.explaining(f"a file of the kind that its name says, {kind}"):
        if kind == "csv":
            return CsvSource(file, request, header, memory, options)
        if kind == "arrow":
            return ArrowSource(file, request)
        if kind == "npy":
            return open_npy(file, request, storage_options)
        return open_npz(file, request) if kind == "npz" else open_hdf5(file, request)


def _open_object(value: Any, request: Request) -> Source:
    require_dense(value)
    if isinstance(value, Source):
        return value
    if isinstance(value, tuple):
        name = request.target if isinstance(request.target, str) else "target"
        X, y, weights = (*value, None)[:3]
        return array_source(X, y, request.columns, weights, name=name, weight_name=request.weight)
    if type(value).__module__.startswith("dask.dataframe"):
        from streamkern.formats.dask_source import dask_frame

        return dask_frame(value, request)
    if is_lazy_frame(value):
        return lazy_source(value, request)
    if is_table(value) or getattr(getattr(value, "dtype", None), "kind", "") in ("O", "U"):
        return frame_source(value, request)
    for role, names in ((request.role, request.targets), ("weight", [request.weight] if request.weight else [])):
        if names:
            raise UsageError(
                f"a {role} {names[0]!r} is named, and the source is an array",
                where="ingest",
                expected="a pair (X, y), or a triple (X, y, weights)",
                remedy="pass the arrays together: sources=[(X, y)]",
            )
    return array_source(value, columns=request.columns)


def _expanded(sources: Sequence[Any], storage_options: dict[str, Any] | None) -> list[Any]:
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


def _flat(sources: Sequence[Any]) -> list[Any]:
    """A list of paths and tables, or a tuple of paths, is replaced by what it holds."""
    flat: list[Any] = []
    for source in sources:
        several = isinstance(source, list | tuple) and all(
            isinstance(each, str | os.PathLike) or (isinstance(source, list) and is_table(each)) for each in source
        )
        flat += source if several and not is_table(source) else [source]
    return flat


def _require_alike(first: Source, other: Source) -> None:
    what = None
    texts = sorted({*first.text} ^ {*other.text})
    if other.n_features != first.n_features or other.columns != first.columns:
        what = f"{other.n_features} features ({_names(other)}) and {first.n_features} ({_names(first)})"
    elif texts:
        kinds = "text and numbers" if texts[0] in other.text else "numbers and text"
        what = f"column {texts[0]!r} holds {kinds}"
    elif dict(other.non_features).keys() != dict(first.non_features).keys():
        what = f"columns {', '.join(dict(other.non_features))} and {', '.join(dict(first.non_features))}"
    elif (other.target is None) != (first.target is None):
        what = "one has a target and the other has none"
    elif (other.weight is None) != (first.weight is None):
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
            remedy="choose common columns with columns=[...], or ingest them separately",
        )


def _names(source: Source) -> str:
    return "unnamed" if source.columns is None else ", ".join(source.columns[:4]) + ", ..." * (source.n_features > 4)
