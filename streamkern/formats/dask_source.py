"""Dask arrays and frames as a Source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import dask.array as da
import numpy as np

from streamkern.errors import DataError, UsageError
from streamkern.formats.arrow_tables import FrameSource
from streamkern.sources.array_source import ArraySource
from streamkern.sources.column_roles import Request
from streamkern.sources.format_rules import as_rows, as_target, check_chunk
from streamkern.storage.untrusted_files import storage_errors
from streamkern.storage.value_digest import digest
from streamkern.types import Array, Rows


class DaskArraySource(ArraySource):
    """Rows of a Dask array (n, ...), flattened, in its own chunks along the first axis; targets (n,) or (n, c).

    A read computes one row block in the calling thread, since the caller already works in parallel.
    """

    def __init__(
        self, X: da.Array, y: Any = None, columns: Sequence[str] | None = None, target_name: str = "target"
    ) -> None:
        require_known(X, "X")
        if y is not None:
            y = y if isinstance(y, da.Array) else da.from_array(np.asarray(y), chunks=-1)  # type: ignore[no-untyped-call]
            require_known(y, "y")
        self._declare(X, y, columns, target_name)
        self._X, self._y = X, None if y is None else y.rechunk({0: X.chunks[0]})
        # Dask allows blocks of no rows; a chunk has at least one.
        self._blocks = [i for i, rows in enumerate(X.chunks[0]) if rows]
        self.bounds = np.cumsum([0, *(rows for rows in X.chunks[0] if rows)], dtype=np.int64)

    @cached_property
    def fingerprint(self) -> str:
        y_name = None if self._y is None else self._y.name
        return digest("dask", self._X.name, y_name, self.bounds.tolist(), self.dtype.str, self.columns, self.target)

    def read(self, chunk: int) -> Rows:
        a, b = check_chunk(chunk, self.bounds)
        X = as_rows(self._compute(self._X, chunk))
        if X.shape != (b - a, self.n_features) or X.dtype != self.dtype:
            raise DataError(
                f"the block computed is {X.dtype}{X.shape}",
                where=self.where(chunk),
                expected=f"{self.dtype}{(b - a, self.n_features)}, as the Dask array declares",
                remedy="correct dtype=, chunks= or meta= where the array is made (map_blocks, from_delayed)",
            )
        if self._y is None or self.target is None:
            return Rows(X, None)
        y = as_target(self._compute(self._y, chunk), self.target)
        if y.shape != (b - a, *self.target.outputs):
            raise DataError(
                f"the target block computed has shape {y.shape}",
                where=self.where(chunk),
                expected=f"{(b - a, *self.target.outputs)}, as the Dask array declares",
                remedy="correct chunks= where the target is made (map_blocks, from_delayed)",
            )
        return Rows(X, y)

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        return f"Dask array {self._X.name}, block {self._blocks[chunk]}, rows {a} to {b - 1}"

    def _compute(self, array: da.Array, chunk: int) -> Array:
        with storage_errors(
            self.where(chunk),
            "a graph that computes without a cluster's futures",
            "computing a block failed",
            "compute this block by hand to see the traceback; do not pass arrays persisted on a cluster",
        ):
            return np.asarray(array.blocks[self._blocks[chunk]].compute(scheduler="synchronous"))


def require_known(array: da.Array, name: str) -> None:
    """Raise UsageError if an array's chunk sizes are unknown."""
    if any(math.isnan(size) for size in array.shape):
        raise UsageError(
            f"the Dask array {name} does not know its chunk sizes",
            where=name,
            expected="known sizes: the position of a row must be known before it is read",
            remedy=f"call {name}.compute_chunk_sizes() first",
        )


def dask_frame(frame: Any, request: Request) -> FrameSource:
    """Open a Dask frame with one partition as a chunk. All partitions are computed once to count rows and gaps."""
    with storage_errors(
        "Dask frame",
        "a frame whose partitions can be computed",
        "computing the frame failed",
        "compute a partition by hand to see the traceback",
    ):
        counted = [_counted(_compute_partition(frame, i)) for i in range(frame.npartitions)]
        # A column of objects without values has no recognisable type.
        example = frame._meta_nonempty[:1]
    largest = max((size for _, _, size in counted), default=0)
    pieces = [partial(_compute_partition, frame, i) for i in range(frame.npartitions)]
    name = f"Dask frame {frame._name}"
    missing = {str(name): any(gaps[j] for _, gaps, _ in counted) for j, name in enumerate(frame.columns)}
    return FrameSource(pieces, [rows for rows, _, _ in counted], example, request, name, frame._name, missing, largest)


def _counted(part: Any) -> tuple[int, list[bool], int]:
    return len(part), part.isna().any().tolist(), int(part.memory_usage(deep=True).sum())


def _compute_partition(frame: Any, i: int) -> Any:
    return frame.partitions[i].compute(scheduler="synchronous")
