"""Zarr groups and arrays (v3 and v2) as a Source, and the training layout that is written for it."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from streamkern.errors import DataError, StorageError, UsageError
from streamkern.storage.arrays import named, require_rows
from streamkern.storage.base import digest
from streamkern.storage.layout import (
    FORMAT,
    as_rows,
    as_target,
    blocks_of,
    check_chunk,
    feature_dtype,
    pieces_per_read,
    positions,
    require_distinct,
    rows_per_chunk,
    target_of,
    unknown_name,
)
from streamkern.storage.remote import Remote, Retry, is_remote, redacted, reread
from streamkern.storage.zarr_array import StoredArray
from streamkern.storage.zarr_store import CheckedStore, RemoteStore
from streamkern.types import IntArray, Rows, Target

T = TypeVar("T")

FEATURE_NAMES = ("X", "features", "data", "images")
"""Names by which the features are recognised among several arrays, in order of preference."""

_MOST_READS = 1 << 24


def open_zarr(
    url: str | os.PathLike[str],
    target: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    *,
    sparse: bool = False,
    retry: Retry | None = None,
) -> ZarrSource:
    """Open a zarr array (features only) or group as rows.

    In a group the features are one array of two or more axes (``X``, ``features``, ``data`` or ``images`` if there are
    several; rows are flattened), else all one-dimensional arrays of numbers, one column a feature, sorted by name.

    Args:
        url: a local path, or any fsspec URL (``s3://``, ``gs://``, ``memory://``, ...).
        target: the array of targets, shape (n,) or (n, c); "" for none. Default: what the training layout names.
        columns: features to use, in this order: names of one-dimensional arrays, or of columns that the training layout
            lists; or the name of the one features array.
        storage_options: for fsspec.
        retry: how patient to be with a remote store.
        sparse: a chunk that is not stored means the fill value. By default it is an error, because a lost chunk looks
            the same; an array can declare itself sparse with the attribute ``streamkern: {"sparse": true}``.

    Raises:
        StorageError: nothing there, not zarr, a training layout whose writing was not completed, or a store that does
            not answer.
        DataError: arrays that cannot be features or target.
        UsageError: ``columns`` that cannot be chosen.
    """
    url = os.fspath(url)
    node = _open_node(url, storage_options, retry)
    url = redacted(url)
    if isinstance(node, zarr.Array):
        if target is not None:
            raise DataError(
                f"there is no target {target!r}: this is one array",
                where=url,
                expected="a group with an array for the features and one for the target",
                remedy="open the group that holds both, or leave target out",
            )
        arrays, marks, chosen = {node.basename or "X": node}, _marks(node), [node.basename or "X"]
    else:
        marks = _marks(node)
        _require_complete(marks, url)
        target = marks.get("target") if target is None else target or None
        arrays = _metadata(url, partial(_arrays, node, target, [*(columns or ()), *FEATURE_NAMES]))
        if target is not None and target not in arrays:
            raise unknown_name("target", target, arrays, url)
        chosen = _choose_features(arrays, target, columns, url)
    pick, names = _choose_columns(arrays, chosen, marks.get("columns"), columns, url)

    def stored(name: str) -> StoredArray:
        array = arrays[name]
        declared = sparse or bool(marks.get("sparse")) or bool(_marks(array).get("sparse"))
        return StoredArray(array, url, declared)

    source = ZarrSource([stored(name) for name in chosen], names, pick, None if target is None else stored(target))
    source.noted_weight = marks.get("weight")
    ingested = marks.get("ingest") or {}
    source.shuffled, source.text = ingested.get("shuffle") == "global", tuple(ingested.get("text", ()))
    return source


class ZarrSource:
    """Rows of zarr arrays; made by `open_zarr`.

    A chunk is a stored chunk of the features along the first axis (inside a shard: an inner chunk), or several
    neighbours where they are small.

    Attributes:
        shuffled: whether the rows are recorded to be in a uniformly random order.
        noted_weight: the array that the training layout names as sample weights, or None.
        text: names of features that were text, and are numbers that stand for it.
    """

    shuffled = False
    noted_weight: str | None = None
    text: tuple[str, ...] = ()

    def __init__(
        self,
        features: Sequence[StoredArray],
        columns: tuple[str, ...] | None,
        pick: IntArray | None,
        target: StoredArray | None,
    ) -> None:
        first = features[0].array
        n = first.shape[0]
        self._features, self._pick, self._stored_target = features, pick, target
        self.dtype: np.dtype[Any] = np.result_type(*(feature_dtype(f.dtype, f.where) for f in features))
        width = len(features) if first.ndim == 1 else math.prod(first.shape[1:])
        if width == 0:
            raise DataError(
                "the rows have no features",
                where=features[0].where,
                expected="at least one feature",
                remedy="store rows of shape (n, d)",
            )
        self.n_features = width if pick is None else len(pick)
        self.columns = columns
        self.target: Target | None = None
        if target is not None:
            self.target = target_of(target.array.basename, target.dtype, target.array.shape[1:], target.where)
            if target.array.shape[0] != n:
                raise DataError(
                    f"{n} rows of features and {target.array.shape[0]} of target",
                    where=f"{features[0].where}; {target.where}",
                    expected="one target a row",
                    remedy="write the two again together",
                )
        self.bounds: IntArray = _read_bounds(
            max((f.array for f in features), key=lambda a: a.chunks[0]), width * self.dtype.itemsize
        )

    @property
    def distant(self) -> bool:
        """Whether a read is a round trip to a store."""
        return self._features[0].distant

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the arrays' metadata, and of size and time of every chunk file where the store is local."""
        used = [*self._features, *([self._stored_target] if self._stored_target else [])]
        pick = None if self._pick is None else self._pick.tolist()
        return digest("zarr", [stored.identity() for stored in used], pick, self.columns, self.target)

    def read(self, chunk: int) -> Rows:
        """Rows of one chunk; see ``Source.read``."""
        a, b = check_chunk(chunk, self.bounds)
        if self._features[0].array.ndim == 1:
            X = np.empty((b - a, self.n_features), dtype=self.dtype)
            for j, stored in enumerate(self._features):
                # A single narrow array, such as weights, may lie in chunks of many reads.
                X[:, j] = stored.read_kept(a, b) if self.n_features == 1 else stored.read(a, b)
        else:
            X = as_rows(self._features[0].read(a, b))
            if self._pick is not None:
                X = np.ascontiguousarray(X[:, self._pick])
        if self._stored_target is None or self.target is None:
            return Rows(X, None)
        return Rows(X, as_target(self._stored_target.read_kept(a, b), self.target))

    def where(self, chunk: int) -> str:
        """The chunk in words."""
        a, b = check_chunk(chunk, self.bounds)
        stored = self._features[0]
        first, last = (stored.key_of_row(row) for row in (a, b - 1))
        keys = first if first == last else f"{first} to {last}"
        return f"{stored.where}, chunk {chunk} ({keys}), rows {a} to {b - 1}"


def write_zarr(
    url: str | os.PathLike[str],
    X: Any,
    y: Any = None,
    *,
    target: str = "target",
    n_rows: int | None = None,
    chunk_rows: int | None = None,
    columns: Sequence[str] | None = None,
    checksum: bool = True,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> None:
    """Write rows in the training layout: zarr v3, chunks of about 4 MiB, lz4 with shuffle, then a checksum.

    The group is marked complete last, so that a writing that was interrupted is not mistaken for data.

    Args:
        url: a local path or an fsspec URL.
        X: features, shape (n, ...); or an iterable of (X, y) blocks, of which one chunk at a time is held in memory.
        y: targets, shape (n,) or (n, c); None with an iterable.
        target: name of the target array.
        n_rows: how many rows the iterable gives.
        chunk_rows: rows a chunk.
        columns: names of the flattened features.
        checksum: store a CRC-32C with every chunk, so that a flipped byte is an error.
        overwrite: replace a group of this layout that is there.
        storage_options: for fsspec.

    Raises:
        StorageError: something is there already, or the store cannot be written.
        DataError: rows that cannot be stored, or not ``n_rows`` of them.
        UsageError: parameters that contradict each other.
    """
    url = os.fspath(url)
    if not hasattr(X, "shape") and (n_rows is None or y is not None):
        raise UsageError(
            "X is an iterable of blocks" + ("" if y is None else ", and y is given besides"),
            where="write_zarr",
            expected="(X, y) blocks, and n_rows: how many rows they hold together",
            remedy="pass n_rows=, with the targets inside the blocks",
        )
    if target == "X":
        raise UsageError(
            "the target cannot be called 'X'",
            where="target",
            expected="a name other than X",
            remedy="that is the features' name: choose another",
        )
    blocks = blocks_of(X, y, chunk_rows)
    first = next(blocks, None)
    if first is None:
        raise DataError(
            "no blocks at all",
            where="write_zarr",
            expected="at least one block",
            remedy="give one block of no rows for an empty dataset",
        )
    require_rows(first.X.shape, "X")
    n = len(X) if hasattr(X, "shape") else cast(int, n_rows)
    width = math.prod(first.X.shape[1:])
    names = named(columns, width)
    marks: dict[str, Any] = {
        "format": FORMAT,
        "target": None if first.y is None else target,
        "columns": names,
        "complete": False,
    }
    rows = chunk_rows or rows_per_chunk(width * first.X.dtype.itemsize)
    try:
        group = _create_group(url, storage_options, overwrite)
        group.attrs["streamkern"] = marks
        rows, dtype = max(1, min(rows, n)), feature_dtype(first.X.dtype, "X")
        arrays = [create(group, "X", (n, *first.X.shape[1:]), dtype, rows, checksum=checksum)]
        if first.y is not None:
            kind = target_of(target, first.y.dtype, first.y.shape[1:], "y").dtype
            arrays.append(create(group, target, (n, *first.y.shape[1:]), kind, rows, checksum=checksum))
        written = 0
        for block in itertools.chain([first], blocks):
            start, written = written, written + len(block.X)
            if written > n:
                break
            if written > start:
                for array, values in zip(arrays, block, strict=False):
                    array[start:written] = np.asarray(values)
        if written != n:
            raise DataError(
                f"the blocks hold {'at least ' if written > n else ''}{written} rows",
                where=url,
                expected=f"n_rows={n}",
                remedy="correct n_rows and write again with overwrite=True; what was written is marked incomplete",
            )
        group.attrs["streamkern"] = {**marks, "complete": True}
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"cannot be written: {redacted(str(error))}",
            where=redacted(url),
            expected="a disk with room, and the right to write",
            remedy="free disk space or choose another place, then write again",
        ) from error


def _readable(url: str, storage_options: dict[str, Any] | None, retry: Retry | None) -> Store:
    if is_remote(url):
        return CheckedStore(RemoteStore(Remote(url, storage_options, retry)))
    path = Path(url.removeprefix("file://"))
    if not path.exists():
        raise StorageError(
            "there is nothing at this path",
            where=url,
            expected="a zarr group or array",
            remedy=f"check the path; relative paths start at {os.getcwd()}",
        )
    return CheckedStore(LocalStore(path, read_only=True))


def _writable(url: str, storage_options: dict[str, Any] | None) -> Store:
    if not is_remote(url):
        return LocalStore(Path(url.removeprefix("file://")))
    Remote(url, storage_options)  # says what is to be installed
    return FsspecStore.from_url(url, storage_options=storage_options)


def _arrays(group: zarr.Group, target: str | None, features: Sequence[str]) -> dict[str, zarr.Array[Any]]:
    """The arrays of a group, by name; where the store cannot list them, those of these names that are there."""
    store = group.store.inner if isinstance(group.store, CheckedStore) else group.store
    if not isinstance(store, RemoteStore) or store.remote.lists or group.metadata.consolidated_metadata is not None:
        return dict(group.arrays())
    nodes = {name: group.get(name) for name in (*features, *([target] if target else []))}
    found = {name: node for name, node in nodes.items() if isinstance(node, zarr.Array)}
    if not found.keys() - {target}:
        store.remote.require_listing(store.remote.root)
    return found


def _open_node(
    url: str, storage_options: dict[str, Any] | None, retry: Retry | None = None
) -> zarr.Array[Any] | zarr.Group:
    store = _readable(url, storage_options, retry)
    return _metadata(url, lambda: zarr.open(store, mode="r"))


def _metadata(url: str, read: Callable[[], T]) -> T:
    try:
        return reread(read)
    except StorageError:
        raise
    except Exception as error:  # damaged metadata raises whatever it likes
        raise StorageError(
            f"no zarr array or group can be opened: {type(error).__name__}: {redacted(str(error))}",
            where=redacted(url),
            expected="zarr.json (version 3), or .zgroup or .zarray (version 2), whole",
            remedy="give the path of the group or array itself; if it is this one, its metadata is damaged",
        ) from error


def _marks(node: zarr.Array[Any] | zarr.Group) -> dict[str, Any]:
    marks = node.attrs.asdict().get("streamkern", {})
    return marks if isinstance(marks, dict) else {}


def _require_complete(marks: dict[str, Any], url: str) -> None:
    if "format" not in marks:
        return
    if "kind" in marks:
        kind = "model" if marks["kind"] == "KernelMachine" else f"result of a stage ({marks['kind']})"
        raise StorageError(
            f"this is a saved {kind}, not rows",
            where=url,
            expected="a data set",
            remedy="load a model with sk.load_model, or predict rows with it: streamkern predict MODEL DATA TARGET",
        )
    if marks["format"] != FORMAT:
        raise StorageError(
            f"the training layout has format {marks['format']}",
            where=url,
            expected=str(FORMAT),
            remedy="update streamkern",
        )
    if marks.get("complete") is not True:
        raise StorageError(
            "this group is half-written: the mark that completes it is missing",
            where=url,
            expected='attribute streamkern: {"complete": true}',
            remedy="its writing was interrupted or goes on still: write it again (overwrite=True)",
        )


def _choose_features(
    arrays: dict[str, zarr.Array[Any]], target: str | None, columns: Sequence[str] | None, url: str
) -> list[str]:
    """Names of the arrays that make the features: one of two or more axes, or several of one axis and one length."""
    others = {name: array for name, array in arrays.items() if name != target}
    if columns is not None:
        require_distinct(columns, url)
        dims = [others[name].ndim if name in others else 0 for name in columns]
        if all(ndim == 1 for ndim in dims) or (len(dims) == 1 and dims[0] > 1):
            return _of_one_length(list(columns), others, url)
    wide = [name for name, array in others.items() if array.ndim > 1]
    known = [name for name in FEATURE_NAMES if name in wide]
    if known or len(wide) == 1:
        return known[:1] or wide
    if wide:
        raise DataError(
            f"which array holds the features? Those of two or more axes: {', '.join(sorted(wide))}",
            where=url,
            expected=f"one, or one called {', '.join(FEATURE_NAMES)}",
            remedy=f"choose one: columns=[{sorted(wide)[0]!r}]",
        )
    for name in columns or ():
        if name not in others:
            raise unknown_name("column", name, sorted(others), url)
    narrow = sorted(name for name, array in others.items() if array.ndim == 1)
    if not narrow:
        raise DataError(
            "no array can be the features",
            where=url,
            expected="an array of shape (n, ...), or arrays of shape (n,), besides the target",
            remedy="open the group that holds the arrays" + (f" (here are: {', '.join(arrays)})" if arrays else ""),
        )
    return _of_one_length(narrow, others, url)


def _of_one_length(names: list[str], arrays: dict[str, zarr.Array[Any]], url: str) -> list[str]:
    lengths = {name: arrays[name].shape[0] for name in names}
    other = next((name for name in names if lengths[name] != lengths[names[0]]), None)
    if other is not None:
        raise DataError(
            f"columns {names[0]!r} and {other!r} have {lengths[names[0]]} and {lengths[other]} rows",
            where=url,
            expected="columns of one length",
            remedy="choose those that belong together: columns=[...]",
        )
    return names


def _choose_columns(
    arrays: dict[str, zarr.Array[Any]],
    chosen: list[str],
    listed: Sequence[str] | None,
    columns: Sequence[str] | None,
    url: str,
) -> tuple[IntArray | None, tuple[str, ...] | None]:
    """Positions of the wanted features inside the one features array (None: all), and the features' names."""
    shape = arrays[chosen[0]].shape
    if len(shape) == 1:
        return None, tuple(chosen)
    names = named(listed, math.prod(shape[1:]))
    if columns is None or list(columns) == chosen:
        return None, names
    return positions(columns, names, url), tuple(columns)


def _read_bounds(array: zarr.Array[Any], row_bytes: int) -> IntArray:
    """Rows where reads begin: stored chunks, small ones together, never across the end of a shard."""
    n, rows = array.shape[0], array.chunks[0]
    shard = array.shards[0] if array.shards else max(n, 1)
    step = rows * pieces_per_read(rows * row_bytes)  # stored chunks of one length, read together
    reads = -(-n // shard) * -(-shard // step)
    if reads > _MOST_READS:
        raise StorageError(
            f"the array {array.path!r} says that it has {n:,} rows in chunks of {rows:,}",
            where=str(array.store),
            expected=f"at most {_MOST_READS:,} reads, of a few MiB or a chunk each",
            remedy="if there are so many rows, write them in larger chunks; if not, its metadata are damaged",
        )
    starts = [np.arange(begin, min(begin + shard, n), step, dtype=np.int64) for begin in range(0, n, shard)]
    return np.concatenate([*starts, [n]], dtype=np.int64)


def _create_group(url: str, storage_options: dict[str, Any] | None, overwrite: bool) -> zarr.Group:
    store = _writable(url, storage_options)
    if not sync(store.is_empty("")):
        ours = False
        if overwrite:
            node = _open_node(url, storage_options)
            ours = "format" in _marks(node)
        if not ours:
            raise StorageError(
                "there is something at this place already",
                where=redacted(url),
                expected="nothing" + (", or a group in the training layout to overwrite" if overwrite else ""),
                remedy="choose another place, or remove it" + ("" if overwrite else ", or pass overwrite=True"),
            )
    return zarr.create_group(store, overwrite=overwrite)


def create(
    group: zarr.Group,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    rows: int,
    *,
    shard: int | None = None,
    checksum: bool = True,
) -> zarr.Array[Any]:
    """An array of the training layout: chunks of ``rows`` rows, joined in shards of ``shard``."""
    return group.create_array(
        name,
        shape=shape,
        dtype=str if dtype.kind == "O" else dtype,
        chunks=(rows, *shape[1:]),
        shards=None if shard is None else (shard, *shape[1:]),
        compressors=[BloscCodec(cname="lz4", shuffle="shuffle"), *([Crc32cCodec()] if checksum else [])],
        # A chunk that is not there is a lost chunk, whatever its values would be.
        config={"write_empty_chunks": True},
    )
