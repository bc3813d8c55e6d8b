"""Rules shared by all formats: dtypes of features and targets, choice of names, size of chunks."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from streamkern.errors import DataError, StorageError, UsageError
from streamkern.types import Array, IntArray, Rows, Target

# A read has a fixed cost of 0.3-0.5 ms, so small chunks are read several at a time; above some tens of megabytes page
# faults dominate.
CHUNK_BYTES = 4 << 20

FORMAT = 1
"""Version of the training layout in zarr and parquet."""


COMPRESSIONS = ("fast", "small")


def require_compression(name: str, where: str) -> None:
    """Raise UsageError if the compression is unknown."""
    if name not in COMPRESSIONS:
        raise UsageError(
            f"compression {name!r} is not known", where=where, expected=" or ".join(map(repr, COMPRESSIONS))
        )


def rows_per_chunk(row_bytes: int) -> int:
    """Return how many rows, or stored chunks, of ``row_bytes`` bytes make an efficient chunk, at least one."""
    return max(1, CHUNK_BYTES // max(1, row_bytes))


def merged_reads(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, last + 1) neighbouring pieces of each read, of ``CHUNK_BYTES`` at most or one larger piece."""
    reads: list[tuple[int, int]] = []
    first, total = 0, 0
    for i, size in enumerate(sizes):
        if i > first and total + size > CHUNK_BYTES:
            reads.append((first, i))
            first, total = i, 0
        total += size
    return [*reads, (first, len(sizes))] if sizes else []


def feature_dtype(dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    """Return ``dtype`` in native byte order if it can be a feature: boolean, integer or floating up to 64 bits."""
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise DataError(
            f"features of dtype {dtype} cannot be used",
            where=where,
            expected="bool, integers, or float16/float32/float64",
            remedy="encode it as numbers, or choose the numeric columns with columns=[...] (--columns A,B)",
        )
    return dtype.newbyteorder("=")


def target_of(name: str, dtype: np.dtype[Any], outputs: tuple[int, ...], where: str) -> Target:
    """Return the target's description; strings of any width become ``object``."""
    if dtype.kind in "UTO":
        dtype = np.dtype(object)
    elif dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise DataError(
            f"target {name!r} of dtype {dtype} cannot be used",
            where=where,
            expected="numbers, booleans or strings",
            remedy="convert the target, or name another one",
        )
    if len(outputs) > 1:
        raise DataError(
            f"target {name!r} has {len(outputs) + 1} axes",
            where=where,
            expected="shape (n,) or (n, c)",
            remedy="flatten the target to one row of values a sample",
        )
    return Target(name, dtype.newbyteorder("="), outputs)


def unknown_name_error(kind: str, name: str, names: Iterable[str], where: str) -> DataError:
    """Return the error for an absent column or array; the remedy proposes close matches."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    listed = close + [other for other in names if other not in close]
    shown = ", ".join(listed[:20]) + (f", and {len(listed) - 20} more" if len(listed) > 20 else "")
    return DataError(
        f"{kind} {name!r} is not there",
        where=where,
        expected=f"one of: {shown}" if listed else "a named column; this source has no column names",
        remedy=f"did you mean {close[0]!r}?" if close else "name one that is there",
    )


def first_names(names: Sequence[str]) -> str:
    """Return the first eight names, for a message."""
    return ", ".join(names[:8]) + ", ..." * (len(names) > 8)


def positions(wanted: Sequence[str], names: Sequence[str] | None, where: str) -> IntArray:
    """Return the position of each wanted feature among ``names``, shape (len(wanted),)."""
    if names is None:
        raise UsageError(
            "columns cannot be chosen: these features have no names",
            where=where,
            expected="columns=None",
            remedy="leave columns out, or store names with the data (write_zarr(..., columns=[...]))",
        )
    require_distinct(wanted, where)
    index = {name: i for i, name in enumerate(names)}
    for name in wanted:
        if name not in index:
            raise unknown_name_error("column", name, names, where)
    return np.array([index[name] for name in wanted], dtype=np.int64)


def require_distinct(names: Sequence[str], where: str) -> None:
    """Raise UsageError if the list of names is empty or has a repetition."""
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice or not names:
        raise UsageError(
            f"column {twice[0]!r} is given twice" if twice else "no columns are given",
            where=where,
            expected="each column once, at least one",
            remedy="correct columns=[...]",
        )


def check_chunk(chunk: int, bounds: IntArray) -> tuple[int, int]:
    """Return the first and last + 1 row of ``chunk``."""
    if not 0 <= chunk < len(bounds) - 1:
        raise IndexError(f"chunk {chunk} of a source of {len(bounds) - 1} chunks")
    return int(bounds[chunk]), int(bounds[chunk + 1])


def as_rows(X: Array) -> Array:
    """Return rows flattened to shape (n, prod of the rest), C-contiguous, native byte order; a view if possible."""
    X = np.ascontiguousarray(X, dtype=X.dtype.newbyteorder("="))
    return X.reshape(len(X), math.prod(X.shape[1:]))


def as_target(y: Array, target: Target) -> Array:
    """Return target values in the dtype of ``target``, C-contiguous."""
    return np.ascontiguousarray(y.astype(target.dtype, copy=False))


def existing_output_error(place: str, overwrite: bool, earlier: str) -> StorageError:
    """Return the error for an output path that exists; ``earlier`` describes what ``overwrite`` may replace."""
    return StorageError(
        "this path already exists",
        where=place,
        expected="a new path" + (f", or {earlier}" if overwrite else ""),
        remedy="choose another path, or remove this one"
        + ("" if overwrite else ", or pass overwrite=True (--overwrite)"),
    )


def first_block(blocks: Iterator[Rows], target: str | None, where: str) -> Rows:
    """Return the first block to write; its features will be named X."""
    if target == "X":
        raise UsageError(
            "the target cannot be called 'X'",
            where="target",
            expected="a name other than X",
            remedy="choose another name: X is that of the features",
        )
    first = next(blocks, None)
    if first is None:
        raise DataError(
            "there are no blocks to write",
            where=where,
            expected="at least one block",
            remedy="for an empty data set, give one block without rows",
        )
    return first


def blocks_of(X: Any, y: Any, rows: int | None) -> Iterator[Rows]:
    """Yield blocks (X, y) or (X, y, w) of ``rows`` rows (the last may be shorter) from arrays or an iterator of blocks.

    ``rows=None`` makes chunks of an efficient size. Rows keep their shape.
    """
    pieces = [(X, y)] if hasattr(X, "shape") else X
    held: list[Rows] = []
    count, like = 0, None
    for number, piece in enumerate(pieces):
        whole = Rows(*piece).each(np.asarray)
        X_piece, y_piece, w_piece = whole
        here = (X_piece.dtype, X_piece.shape[1:], None if y_piece is None else (y_piece.dtype.kind, y_piece.shape[1:]))
        like = like or here
        if here != like or any(values is not None and len(values) != len(X_piece) for values in (y_piece, w_piece)):
            raise DataError(
                f"a block has X {X_piece.dtype}{X_piece.shape} and y {None if y_piece is None else y_piece.shape}",
                where=f"block {number}",
                expected=f"X {like[0]} of {like[1]} a row, and {'no y' if like[2] is None else 'one target a row'}",
                remedy="give every block the same dtype and width, and one target a row",
            )
        if rows is None:
            rows = rows_per_chunk(X_piece.dtype.itemsize * math.prod(X_piece.shape[1:]))
        if number and not len(X_piece):
            continue
        for start, stop in pairwise([0, *range(rows - count, len(X_piece), rows), len(X_piece)]):
            held.append(whole.each(itemgetter(slice(start, stop))))
            count += stop - start
            if count == rows:
                yield joined_blocks(held)
                held, count = [], 0
    if held:
        yield joined_blocks(held)


def joined_blocks(held: Sequence[Rows]) -> Rows:
    """Return concatenated blocks."""
    if len(held) == 1:
        return held[0]
    y, w = ([values for values in column if values is not None] for column in list(zip(*held, strict=True))[1:])
    X = np.concatenate([rows.X for rows in held])
    return Rows(X, np.concatenate(y) if y else None, np.concatenate(w) if w else None)
