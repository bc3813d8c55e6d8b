"""Zarr groups and arrays (v3 and v2) as a Source, and a writer of the training layout."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from streamkern.errors import DataError, StorageError, UsageError
from streamkern.formats.checked_zarr_array import StoredArray, is_coordinate, packing_of_array
from streamkern.formats.named_arrays import FEATURE_NAMES, NamedArrays, Unpacked, may_be_read, read_of, roles_of
from streamkern.formats.zarr_checked_stores import CheckedStore, RemoteStore
from streamkern.redaction import redacted
from streamkern.sources.array_source import checked_names, require_rows
from streamkern.sources.column_roles import Request, Roles
from streamkern.sources.format_rules import (
    FORMAT,
    blocks_of,
    check_chunk,
    existing_output_error,
    feature_dtype,
    first_block,
    pieces_per_read,
    require_compression,
    rows_per_chunk,
    target_of,
)
from streamkern.sources.ingest_record import recorded_schema
from streamkern.sources.remote_store import Remote, Retry, is_remote, reread
from streamkern.storage.untrusted_files import given_path, missing_path_error, storage_errors
from streamkern.storage.value_digest import digest
from streamkern.types import IntArray, Rows

T = TypeVar("T")

_MOST_READS = 1 << 24

_explaining = partial(
    storage_errors,
    expected="zarr.json (version 3), or .zgroup or .zarray (version 2), whole",
    what="no zarr array or group can be opened",
    remedy="give the path of the group or array itself; if it is this one, its metadata is damaged",
)


def zarr_source(url: str, request: Request, storage_options: dict[str, Any] | None, retry: Retry | None) -> ZarrSource:
    """Open a zarr array (features only) or group as rows.

    In a group the features are one array of two or more axes (``X``, ``features``, ``data`` or ``images`` if there are
    several; rows are flattened), else all one-dimensional arrays, sorted by name, as the columns of a table, which may
    be text, dates and times. NaN, NaT and an empty text are missing values.

    The target is an array of shape (n,) or (n, c), or several of shape (n,). Columns are names of one-dimensional
    arrays, or of columns that the training layout lists, or the name of the one features array. Target and weight,
    shape (n,), are by default those of the training layout.

    An absent chunk is an error, because a lost chunk looks the same as one of the fill value alone. An array, or its
    group, with the attribute ``streamkern: {"sparse": true}`` is read with the fill value in absent chunks.
    """
    if not is_remote(url):
        url = os.path.abspath(url.removeprefix("file://"))  # workers may have another working directory
    node = _open_node(url, storage_options, retry)
    with _explaining(redacted(url)):
        return _source(node, redacted(url), request)


def _source(node: zarr.Array[Any] | zarr.Group, url: str, request: Request) -> ZarrSource:
    marks = _marks(node)
    if isinstance(node, zarr.Array):
        if request.targets and np.dtype(node.dtype).names is None:
            raise DataError(
                f"there is no {request.role} {request.targets[0]!r}: this is one array",
                where=url,
                expected="a group with an array for the features and one for the target",
                remedy="open the group that holds both, or leave target out",
            )
        arrays = {node.basename or "X": node}
    else:
        _require_complete(marks, url)
        request = request.noted(marks)
        arrays = _metadata(url, partial(_arrays, node, request))

    def stored(name: str) -> StoredArray:
        array = arrays[name]
        if isinstance(node, zarr.Group) and node.metadata.consolidated_metadata is not None:
            _metadata(url, partial(_require_own_metadata, array, where(name)))
        declared = bool(marks.get("sparse")) or bool(_marks(array).get("sparse"))
        return StoredArray(array, url, declared, packings[name])

    def where(name: str) -> str:
        return f"{url}, array {arrays[name].path}" if arrays[name].path else url

    packings = {
        name: packing_of_array(array, where(name)) if may_be_read(name, arrays, request) else None
        for name, array in arrays.items()
    }
    declared_as = {
        name: Unpacked(array.shape, np.dtype(array.dtype) if (packing := packings[name]) is None else packing.dtype)
        for name, array in arrays.items()
    }
    index = [name for name, array in arrays.items() if is_coordinate(array) and declared_as[name].dtype.kind != "M"]
    missing = [name for name, packing in packings.items() if packing is not None and packing.missing]
    roles = roles_of(declared_as, request, url, where, marks.get("columns"), index=index, missing=missing)
    record = marks.get("ingest") or {}
    return ZarrSource(
        {name: stored(name) for name in read_of(roles)}, roles, request, shuffled=record.get("shuffle") == "global",
        schema=recorded_schema(record, roles.columns), words=record.get("words"),
    )  # fmt: skip


def _require_own_metadata(array: zarr.Array[Any], where: str) -> None:
    """An array's own metadata may say something else than the consolidated ones of its group."""
    own = zarr.open_array(array.store, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)
    if (own.shape, own.dtype, own.chunks, own.shards) != (array.shape, array.dtype, array.chunks, array.shards):
        raise StorageError(
            f"the array has shape {own.shape}, chunks of shape {own.chunks} and type {own.dtype}; in the consolidated "
            f"metadata of its group it has {array.shape}, {array.chunks} and {array.dtype}",
            where=where,
            expected="the same metadata in both places",
            remedy="consolidate them again, by zarr.consolidate_metadata(path); or restore them from a copy",
        )


class ZarrSource(NamedArrays):
    """Rows of zarr arrays; a chunk is one stored (or a shard's inner) chunk of the features, or several small ones."""

    def __init__(self, arrays: dict[str, StoredArray], roles: Roles, request: Request, **facets: Any) -> None:
        self._stored = arrays
        features = [arrays[name].array for name in roles.features]
        bounds = _read_bounds(max(features, key=lambda array: array.chunks[0]), roles.row_bytes)
        remote = arrays[roles.features[0]].remote
        super().__init__(arrays, roles, request, tuple(arrays.values()), bounds, remote=remote, **facets)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the arrays' metadata, and of size and time of every chunk file of a local store."""
        return digest(
            "zarr",
            [stored.identity for stored in self._stored.values()],
            self._roles.pick,
            self.columns,
            self.target,
            *self._roles.kinds,
        )

    def pieces(self) -> list[tuple[str, int]]:
        arrays, n = list(self._stored.values()), int(self.bounds[-1])
        step = max(1, self._stored[self._roles.features[0]].outer[0])
        about = [*(each.described for each in arrays), self._roles.pick]
        found = []
        for a in range(0, n, step):
            files = [each.files(a, min(a + step, n)) for each in arrays]
            if None in files:
                return super().pieces()
            found.append((digest("zarr", about, self.columns, self.target, files), min(step, n - a)))
        return found

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        stored = self._stored[self._roles.features[0]]
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
    compression: str = "fast",
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> None:
    """Write rows in the training layout: zarr v3, compressed chunks of about 4 MiB with checksums.

    The group is marked complete last, so that an interrupted write is not mistaken for data.

    Args:
        url: a local path or an fsspec URL.
        X: features, shape (n, ...); or an iterable of (X, y) blocks, with one chunk at a time in memory.
        y: targets, shape (n,) or (n, c); None with an iterable.
        target: name of the target array.
        n_rows: total rows of the iterable.
        chunk_rows: rows of a chunk.
        columns: names of the flattened features.
        checksum: store a CRC-32C with every chunk, so that a flipped byte is an error.
        compression: ``fast`` decodes fastest; ``small`` takes less space, and several times longer to decode.
        overwrite: replace an existing group of this layout.
        storage_options: for fsspec.

    Raises:
        StorageError: the path exists already, or the store cannot be written.
        DataError: rows cannot be stored, or their number is not ``n_rows``.
        UsageError: parameters that contradict each other.
    """
    url = given_path(url)
    require_compression(compression, "write_zarr")
    n = _rows_to_write(X, y, n_rows)
    blocks = blocks_of(X, y, chunk_rows)
    first = first_block(blocks, target, "write_zarr")
    require_rows(first.X.shape, "X")
    width = math.prod(first.X.shape[1:])
    marks: dict[str, Any] = {
        "format": FORMAT,
        "target": None if first.y is None else target,
        "columns": checked_names(columns, width),
        "complete": False,
    }
    rows = chunk_rows or rows_per_chunk(width * first.X.dtype.itemsize)
    with _writing(url):
        group = _create_group(url, storage_options, overwrite)
        group.attrs["streamkern"] = marks
        layout = partial(create, group, rows=max(1, min(rows, n)), checksum=checksum, compression=compression)
        _write_blocks(itertools.chain([first], blocks), _created(layout, first, n, target), n, url)
        group.attrs["streamkern"] = {**marks, "complete": True}


def _rows_to_write(X: Any, y: Any, n_rows: int | None) -> int:
    if hasattr(X, "shape"):
        return len(X)
    if n_rows is None or y is not None:
        raise UsageError(
            "X is an iterable of blocks" + ("" if y is None else ", and y is also given"),
            where="write_zarr",
            expected="(X, y) blocks, and n_rows, their total number of rows",
            remedy="pass n_rows=, with the targets inside the blocks",
        )
    return n_rows


@contextmanager
def _writing(url: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"cannot be written: {error}",
            where=url,
            expected="a disk with space, and permission to write",
            remedy="free disk space or choose another place, then write again",
        ) from error


def _created(layout: Callable[..., zarr.Array[Any]], first: Rows, n: int, target: str) -> list[zarr.Array[Any]]:
    arrays = [layout("X", (n, *first.X.shape[1:]), feature_dtype(first.X.dtype, "X"))]
    if first.y is not None:
        kind = target_of(target, first.y.dtype, first.y.shape[1:], "y").dtype
        arrays.append(layout(target, (n, *first.y.shape[1:]), kind))
    return arrays


def _write_blocks(blocks: Iterable[Rows], arrays: Sequence[zarr.Array[Any]], n: int, url: str) -> None:
    written = 0
    for block in blocks:
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
            remedy="correct n_rows and write again with overwrite=True; the blocks written are marked incomplete",
        )


def _readable(url: str, storage_options: dict[str, Any] | None, retry: Retry | None) -> Store:
    if is_remote(url):
        return CheckedStore(RemoteStore(Remote(url, storage_options, retry)))
    path = Path(url.removeprefix("file://"))
    if not path.exists():
        raise missing_path_error(url, "a zarr group or array")
    return CheckedStore(LocalStore(path, read_only=True))


def _writable(url: str, storage_options: dict[str, Any] | None) -> Store:
    if not is_remote(url):
        return LocalStore(Path(url.removeprefix("file://")))
    Remote(url, storage_options)  # the error names the package to install
    return FsspecStore.from_url(url, storage_options=storage_options)


def _arrays(group: zarr.Group, request: Request) -> dict[str, zarr.Array[Any]]:
    """If the store cannot list, only arrays that the request names can be found."""
    store = group.store.inner if isinstance(group.store, CheckedStore) else group.store
    if not isinstance(store, RemoteStore) or store.remote.lists or group.metadata.consolidated_metadata is not None:
        return dict(group.arrays())
    names = [*(request.columns or ()), *FEATURE_NAMES, *request.targets, *([request.weight] if request.weight else [])]
    nodes = {name: group.get(name) for name in dict.fromkeys(names)}
    found = {name: node for name, node in nodes.items() if isinstance(node, zarr.Array)}
    if not found.keys() - {*request.targets, request.weight}:
        store.remote.require_listing(store.remote.root)
    return found


def _open_node(
    url: str, storage_options: dict[str, Any] | None, retry: Retry | None = None
) -> zarr.Array[Any] | zarr.Group:
    store = _readable(url, storage_options, retry)
    return _metadata(url, lambda: zarr.open(store, mode="r"))


def _metadata(url: str, read: Callable[[], T]) -> T:
    with _explaining(url):
        return reread(read)


def _marks(node: zarr.Array[Any] | zarr.Group) -> dict[str, Any]:
    marks = node.attrs.asdict().get("streamkern", {})
    return marks if isinstance(marks, dict) else {}


def _require_complete(marks: dict[str, Any], url: str) -> None:
    if "format" not in marks:
        return
    if "kind" in marks:
        kind = (
            "model"
            if marks["kind"] in ("KernelMachine", "PartitionedMachine")
            else f"result of a stage ({marks['kind']})"
        )
        raise StorageError(
            f"this is a saved {kind}, not rows",
            where=url,
            expected="a data set",
            remedy="load a model with sk.load_model, or predict rows with it: streamkern predict MODEL DATA OUTPUT",
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
            remedy="its writing was interrupted, or is still running: write it again (overwrite=True)",
        )


def _read_bounds(array: zarr.Array[Any], row_bytes: int) -> IntArray:
    """The rows at which reads begin: stored chunks, small ones joined, never across the end of a shard."""
    n, rows = array.shape[0], array.chunks[0]
    shard = array.shards[0] if array.shards else max(n, 1)
    step = rows * pieces_per_read(rows * row_bytes)  # rows of stored chunks that are read together
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
            raise existing_output_error(url, overwrite, "a group in the training layout")
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
    compression: str = "fast",
) -> zarr.Array[Any]:
    """Create an array of the training layout: chunks of ``rows`` rows, joined in shards of ``shard``.

    Bytes of equal significance are grouped ("shuffle") for whole numbers, whose high bytes are alike. For floats this
    would save a tenth of the space, but floats without repetitions are then decoded, not just copied.
    """
    if compression == "small":
        blosc = BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")
    else:
        blosc = BloscCodec(cname="lz4", shuffle="noshuffle" if dtype.kind == "f" else "shuffle")
    return group.create_array(
        name,
        shape=shape,
        dtype=str if dtype.kind == "O" else dtype,
        chunks=(rows, *shape[1:]),
        shards=None if shard is None else (shard, *shape[1:]),
        compressors=[blosc, *([Crc32cCodec()] if checksum else [])],
        # Chunks of the fill value are stored, too, so that an absent chunk is a lost one.
        config={"write_empty_chunks": True},
    )


def writable(group: zarr.Group, name: str) -> zarr.Array[Any]:
    """Open an array so that chunks of zeros are stored, as in ``create``; metadata do not keep this setting."""
    with zarr.config.set({"array.write_empty_chunks": True}):
        found = group[name]
    assert isinstance(found, zarr.Array)
    return found
