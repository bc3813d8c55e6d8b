"""Zarr groups and arrays (v3 and v2) as a Source."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr
from zarr.storage import LocalStore

from streamkern.errors import DataError, StorageError
from streamkern.formats.checked_zarr_array import StoredArray, is_coordinate, packing_of_array
from streamkern.formats.named_arrays import FEATURE_NAMES, NamedArrays, Unpacked, may_be_read, read_of, roles_of
from streamkern.formats.zarr_checked_stores import CheckedStore, RemoteStore
from streamkern.redaction import redacted
from streamkern.sources.column_roles import Request, Roles
from streamkern.sources.format_rules import FORMAT, check_chunk, rows_per_chunk
from streamkern.sources.ingest_record import recorded_facets, recorded_roles
from streamkern.sources.remote_store import Remote, Retry, is_remote, reread
from streamkern.storage.untrusted_files import missing_path_error, storage_errors
from streamkern.storage.value_digest import digest
from streamkern.types import IntArray

T = TypeVar("T")

_MOST_READS = 1 << 24

_explaining = partial(
    storage_errors,
    expected="zarr.json (version 3), or .zgroup or .zarray (version 2), whole",
    what="no zarr array or group can be opened",
    remedy="give the path of the group or array itself; if it is this one, its metadata is damaged",
)


def zarr_source(url: str, request: Request, storage_options: dict[str, Any] | None, retry: Retry | None) -> ZarrSource:
    """Open a zarr array (features only) or a group, whose target and weight are by default those of its layout.

    An absent chunk is an error, because a lost chunk looks the same as one of the fill value alone. An array, or its
    group, with the attribute ``streamkern: {"sparse": true}`` is read with the fill value in absent chunks.
    """
    if not is_remote(url):
        url = os.path.abspath(url.removeprefix("file://"))  # workers may have another working directory
    node = open_node(url, storage_options, retry)
    with _explaining(redacted(url)):
        return _source(node, redacted(url), request)


def _source(node: zarr.Array[Any] | zarr.Group, url: str, request: Request) -> ZarrSource:
    marks = marks_of(node)
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
        request = request.noted(marks | recorded_roles(marks.get("ingest")))
        arrays = _metadata(url, partial(_arrays, node, request))

    def stored(name: str) -> StoredArray:
        array = arrays[name]
        if isinstance(node, zarr.Group) and node.metadata.consolidated_metadata is not None:
            _metadata(url, partial(_require_own_metadata, array, where(name)))
        declared = bool(marks.get("sparse")) or bool(marks_of(array).get("sparse"))
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
    facets = recorded_facets(marks.get("ingest") or {}, roles.columns)
    return ZarrSource({name: stored(name) for name in read_of(roles)}, roles, request, **facets)


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


def _arrays(group: zarr.Group, request: Request) -> dict[str, zarr.Array[Any]]:
    """If the store cannot list, only arrays that the request names can be found."""
    assert isinstance(group.store, CheckedStore)
    store = group.store.inner
    if not isinstance(store, RemoteStore) or store.remote.lists or group.metadata.consolidated_metadata is not None:
        return dict(group.arrays())
    names = [*(request.columns or ()), *FEATURE_NAMES, *request.targets, *([request.weight] if request.weight else [])]
    nodes = {name: group.get(name) for name in dict.fromkeys(names)}
    found = {name: node for name, node in nodes.items() if isinstance(node, zarr.Array)}
    if not found.keys() - {*request.targets, request.weight}:
        store.remote.require_listing(store.remote.root)
    return found


def open_node(
    url: str, storage_options: dict[str, Any] | None, retry: Retry | None = None
) -> zarr.Array[Any] | zarr.Group:
    """Open an array or a group, or raise StorageError."""
    path = Path(url.removeprefix("file://"))
    if is_remote(url):
        store = CheckedStore(RemoteStore(Remote(url, storage_options, retry)))
    elif path.exists():
        store = CheckedStore(LocalStore(path, read_only=True))
    else:
        raise missing_path_error(url, "a zarr group or array")
    return _metadata(url, lambda: zarr.open(store, mode="r"))


def _metadata(url: str, read: Callable[[], T]) -> T:
    with _explaining(url):
        return reread(read)


def marks_of(node: zarr.Array[Any] | zarr.Group) -> dict[str, Any]:
    """Return what this library recorded with an array or group."""
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
    step = rows * rows_per_chunk(rows * row_bytes)  # rows of stored chunks that are read together
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
