"""Writer of the training layout in zarr, piece by piece; a piece (chunk or shard) can be written again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import LocalStore

from streamkern.formats.zarr import create, writable
from streamkern.sources.format_rules import FORMAT, rows_per_chunk
from streamkern.types import Rows, Target


class TrainingZarr:
    """Write a group of the training layout: pieces of ``piece_rows`` rows, in any order, then ``complete``.

    Files of an earlier attempt in the local directory are kept. ``shard_bytes`` is approximate; None for no shards.
    """

    def __init__(
        self,
        place: Path,
        n: int,
        n_features: int,
        dtype: np.dtype[Any],
        target: Target | None,
        columns: tuple[str, ...] | None,
        record: dict[str, Any],
        shard_bytes: int | None = None,
        weight: str | None = None,
        compression: str = "fast",
    ) -> None:
        row_bytes = n_features * dtype.itemsize
        rows = max(1, min(rows_per_chunk(row_bytes), n))
        self.piece_rows = rows if shard_bytes is None else rows * max(1, shard_bytes // (rows * row_bytes))
        self._shard = None if shard_bytes is None else self.piece_rows
        self._rows, self._compression = rows, compression
        self._marks: dict[str, Any] = {
            "format": FORMAT,
            "target": None if target is None else target.name,
            "columns": None if columns is None else list(columns),
            **({} if weight is None else {"weight": weight}),
            "ingest": record,
        }
        self._group = zarr.open_group(LocalStore(place), mode="a", zarr_format=3)
        self._group.attrs["streamkern"] = {**self._marks, "complete": False}
        self._arrays: list[zarr.Array[Any] | None] = [self._array("X", (n, n_features), dtype), None, None]
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

    def complete(self, record: dict[str, Any]) -> None:
        """Mark the group as complete, with the origin of its rows."""
        self._group.attrs["streamkern"] = {**self._marks, "ingest": record, "complete": True}

    def _array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> zarr.Array[Any]:
        if name in self._group:
            return writable(self._group, name)
        return create(self._group, name, shape, dtype, self._rows, shard=self._shard, compression=self._compression)
