"""Writer of the training layout in zarr, piece by piece; a piece (chunk or shard) can be written again."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from streamkern.errors import DataError, UsageError
from streamkern.formats.zarr import marks_of, open_node
from streamkern.sources.array_source import checked_names, require_rows
from streamkern.sources.format_rules import (
    FORMAT,
    blocks_of,
    existing_output_error,
    feature_dtype,
    first_block,
    require_compression,
    rows_per_chunk,
    target_of,
)
from streamkern.sources.remote_store import Remote, is_remote
from streamkern.storage.atomic_writes import write_errors
from streamkern.storage.untrusted_files import given_path
from streamkern.types import Rows, Target


class TrainingZarr:
    """Write a group of the training layout: pieces of ``piece_rows`` rows, in any order, then ``complete``.

    A local directory keeps the files of an earlier attempt. A row has the shape ``shape[1:]``; a piece is a shard of
    about ``shard_bytes``, or a chunk of ``chunk_rows``, by default of about 4 MiB.
    """

    def __init__(
        self,
        place: Path | zarr.Group,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        target: Target | None,
        columns: tuple[str, ...] | None,
        *,
        record: dict[str, Any] | None = None,
        chunk_rows: int | None = None,
        shard_bytes: int | None = None,
        weight: str | None = None,
        compression: str = "fast",
        checksum: bool = True,
    ) -> None:
        n, row_bytes = shape[0], math.prod(shape[1:]) * dtype.itemsize
        rows = max(1, min(chunk_rows or rows_per_chunk(row_bytes), n))
        self.piece_rows = rows if shard_bytes is None else rows * max(1, shard_bytes // (rows * row_bytes))
        self._shard = None if shard_bytes is None else self.piece_rows
        self._rows, self._compression, self._checksum = rows, compression, checksum
        self._marks: dict[str, Any] = {
            "format": FORMAT,
            "target": None if target is None else target.name,
            "columns": None if columns is None else list(columns),
            **({} if weight is None else {"weight": weight}),
            **({} if record is None else {"ingest": record}),
        }
        if isinstance(place, Path):
            place = zarr.open_group(LocalStore(place), mode="a", zarr_format=3)
        self._group = place
        self._group.attrs["streamkern"] = {**self._marks, "complete": False}
        self._arrays: list[zarr.Array[Any] | None] = [self._array("X", shape, dtype), None, None]
        if target is not None:
            self._arrays[1] = self._array(target.name, (n, *target.outputs), target.dtype)
        if weight is not None:
            self._arrays[2] = self._array(weight, (n,), np.dtype(np.float64))

    def write(self, piece: int, rows: Rows) -> None:
        """Write a piece; it may be written again."""
        start = piece * self.piece_rows
        for array, values in zip(self._arrays, rows, strict=True):
            if array is not None and values is not None and len(values):
                array[start : start + len(values)] = values

    def complete(self, **marks: Any) -> None:
        """Mark the group as complete, with further marks such as the origin of its rows."""
        self._group.attrs["streamkern"] = {**self._marks, **marks, "complete": True}

    def _array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> zarr.Array[Any]:
        """Create an array: chunks of some rows, joined in shards.

        Bytes of equal significance are grouped ("shuffle") for whole numbers, whose high bytes are alike. For floats
        this would save a tenth of the space, but floats without repetitions are then decoded, not just copied.
        """
        if name in self._group:
            return writable(self._group, name)
        if self._compression == "small":
            blosc = BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")
        else:
            blosc = BloscCodec(cname="lz4", shuffle="noshuffle" if dtype.kind == "f" else "shuffle")
        return self._group.create_array(
            name,
            shape=shape,
            dtype=str if dtype.kind == "O" else dtype,
            chunks=(self._rows, *shape[1:]),
            shards=None if self._shard is None else (self._shard, *shape[1:]),
            compressors=[blosc, *([Crc32cCodec()] if self._checksum else [])],
            # Chunks of the fill value are stored, too, so that an absent chunk is a lost one.
            config={"write_empty_chunks": True},
        )


def writable(group: zarr.Group, name: str) -> zarr.Array[Any]:
    """Open an array so that chunks of zeros are stored, as in ``TrainingZarr``; metadata do not keep this setting."""
    with zarr.config.set({"array.write_empty_chunks": True}):
        found = group[name]
    assert isinstance(found, zarr.Array)
    return found


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
    """Write rows in the layout for training: zarr v3, with compressed chunks of about 4 MiB and checksums.

    The last operation marks the zarr group, which is the directory of the arrays, as complete. So an interrupted write
    is not mistaken for data.

    Args:
        url: a local path or an fsspec URL.
        X: features, shape (n, ...). Or an iterable of (X, y) blocks; then only one chunk at a time is in memory.
        y: targets, shape (n,) or (n, c); None with an iterable.
        target: name of the target array.
        n_rows: total number of rows of the iterable.
        chunk_rows: number of rows of a chunk.
        columns: names of the flattened features.
        checksum: store a CRC-32C with every chunk, so that a flipped bit is an error.
        compression: ``fast`` decodes fastest. ``small`` takes less space, and several times longer to decode than
            ``fast``.
        overwrite: replace an existing group of this layout.
        storage_options: options for fsspec.

    Raises:
        StorageError: the path exists already, or the store cannot be written.
        DataError: rows cannot be stored, or their number is not ``n_rows``.
        UsageError: parameters contradict one another.
    """
    url = given_path(url)
    require_compression(compression, "write_zarr")
    n = _rows_to_write(X, y, n_rows)
    blocks = blocks_of(X, y, chunk_rows)
    first = first_block(blocks, target, "write_zarr")
    require_rows(first.X.shape, "X")
    names = checked_names(columns, math.prod(first.X.shape[1:]))
    kept = None if first.y is None else target_of(target, first.y.dtype, first.y.shape[1:], "y")
    with write_errors("the data set", url, "free disk space or choose another place, then write again"):
        made = TrainingZarr(
            _create_group(url, storage_options, overwrite), (n, *first.X.shape[1:]), feature_dtype(first.X.dtype, "X"),
            kept, names, chunk_rows=chunk_rows, compression=compression, checksum=checksum,
        )  # fmt: skip
        _write_blocks(made, itertools.chain([first], blocks), n, url)
        made.complete()


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


def _write_blocks(made: TrainingZarr, blocks: Iterable[Rows], n: int, url: str) -> None:
    written = 0
    for piece, block in enumerate(blocks):
        written += len(block.X)
        if written > n:
            break
        made.write(piece, block)
    if written != n:
        raise DataError(
            f"the blocks hold {'at least ' if written > n else ''}{written} rows",
            where=url,
            expected=f"n_rows={n}",
            remedy="correct n_rows and write again with overwrite=True; the blocks written are marked incomplete",
        )


def _create_group(url: str, storage_options: dict[str, Any] | None, overwrite: bool) -> zarr.Group:
    if is_remote(url):
        Remote(url, storage_options)  # the error names the package to install
        store: Store = FsspecStore.from_url(url, storage_options=storage_options)
    else:
        store = LocalStore(Path(url.removeprefix("file://")))
    ours = overwrite and not sync(store.is_empty("")) and "format" in marks_of(open_node(url, storage_options))
    if not ours and not sync(store.is_empty("")):
        raise existing_output_error(url, overwrite, "a group in the training layout")
    return zarr.create_group(store, overwrite=overwrite)
