"""Stored rows: zarr, parquet, NumPy and Dask arrays as chunks that can be read in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamkern.errors import UsageError
from streamkern.sources.array_source import ArraySource, TargetedSource, WeightedSource
from streamkern.sources.base import Source
from streamkern.sources.column_roles import Request
from streamkern.sources.input_types import is_dask_frame, is_lazy_frame, is_table, require_dense
from streamkern.sources.remote_store import Retry
from streamkern.sources.schema import Schema

__all__ = [
    "ArraySource",
    "Retry",
    "Source",
    "wrap",
]


def wrap(
    X: Any, y: Any = None, weights: Any = None, request: Request | None = None, *, as_table: bool = False
) -> Source:
    """Return rows in memory as a source: NumPy or Dask arrays, or a table, with targets and weights in memory.

    The request chooses columns of a table, or names those of an array; its target and weight are columns, or the names
    of ``y`` and ``weights``. With ``as_table``, an array has its columns' names and is read by its schema.
    """
    require_dense(X)
    asked = request or Request()
    name = asked.target if isinstance(asked.target, str) and asked.target else "target"
    inside = asked if y is None else replace(asked, target=None)
    inside = inside if weights is None else replace(inside, weight=None)
    if as_table or is_table(X) or getattr(getattr(X, "dtype", None), "kind", "") in ("O", "U"):
        rows = _table(X, inside)
        rows = rows if y is None else TargetedSource(rows, y, name)
    else:
        for role, names in ((inside.role, inside.targets), ("weight", [inside.weight] if inside.weight else [])):
            if names:
                raise UsageError(
                    f"a {role} {names[0]!r} is named, and the source is an array",
                    where="ingest",
                    expected="a pair (X, y), or a triple (X, y, weights)",
                    remedy="pass the arrays together: sources=[(X, y)]",
                )
        if type(X).__module__.partition(".")[0] == "dask":
            # Importing dask takes a quarter of a second; a user with a Dask array has imported it already.
            from streamkern.formats.dask_source import DaskArraySource

            rows = DaskArraySource(X, y, asked.columns, name)
        else:
            schema = asked.schema if isinstance(asked.schema, Schema) else None
            rows = ArraySource(X, y, asked.columns, name, schema=schema)
    return rows if weights is None else WeightedSource(rows, weights, asked.weight or "sample_weight")


def _table(X: Any, request: Request) -> Source:
    if is_dask_frame(X):
        from streamkern.formats.dask_source import dask_frame  # only imports dask if needed

        return dask_frame(X, request)
    from streamkern.formats.arrow_tables import frame_source, lazy_source

    return lazy_source(X, request) if is_lazy_frame(X) else frame_source(X, request)
