"""Outputs on rows that a model was not fitted to: validation rows, or training rows left out one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streamkern.cpu import host_loops
from streamkern.defaults import MAX_HELD_OUT_ROWS, MAX_HELD_OUT_VALUES, MIN_HELD_OUT_ROWS
from streamkern.errors import UsageError
from streamkern.storage.serialize import serializable_as
from streamkern.types import Array, IntArray

LEFT_OUT = ("leave-one-out", "leave-group-out")
"""Sources of outputs on training rows that are left out in closed form."""


def held_out_count(rows: int, outputs: int, most: int = MAX_HELD_OUT_ROWS) -> int:
    """Return how many of so many rows to leave out, at most ``most``."""
    return max(1, min(MAX_HELD_OUT_ROWS, most, MAX_HELD_OUT_VALUES // max(1, outputs), rows))


def require_coverage(coverage: float) -> None:
    """Raise UsageError unless the coverage of intervals is between 0 and 1."""
    real = isinstance(coverage, int | float | np.floating) and not isinstance(coverage, bool)
    if not (real and 0 < coverage < 1):
        raise UsageError(
            f"The coverage is {coverage!r}.", where="coverage", expected="a share between 0 and 1, such as 0.9"
        )


@serializable_as("LeftOut")
@dataclass(frozen=True, eq=False)
class OutOfSample:
    """Outputs (m, c) on rows, as a solver fits them, and encoded targets: class codes (m,), or values (m, c).

    The source is ``leave-one-out``, ``leave-group-out`` or ``validation``; ids are among the training or the validation
    rows. ``groups`` (m,) are equal for the rows of a group, or None if rows have no groups.
    """

    outputs: Array
    y: Array
    w: Array | None
    source: str
    ids: IntArray
    groups: IntArray | None = None


def copies_remain(codes: IntArray, values: Array) -> bool:
    """Return True if one of equal rows is left out, and not all; ``codes`` (n,) number groups of equal features."""
    first = np.unique(codes, return_index=True)[1]
    return len(codes) >= MIN_HELD_OUT_ROWS or len(first) == len(codes) or bool((values != values[first][codes]).any())


def equal_rows(X: Array) -> tuple[IntArray, IntArray]:
    """Return each row's group of equal rows (n,), in the order of first rows; and the first row of each."""
    seed = 0x616C6B65  # of the direction along which rows are compared first
    # Equal rows have equal sums along any direction, so a row with a unique sum equals no other.
    along: Array = np.random.default_rng(seed).uniform(0.5, 1.5, (X.shape[1],))
    projected = host_loops().project(X, along)
    sums, codes, counts = np.unique(projected, return_inverse=True, return_counts=True)
    if len(sums) == len(X):
        return np.arange(len(X)), np.arange(len(X))
    shared, seen = np.flatnonzero(counts[codes] > 1), dict[bytes, int]()
    found = [seen.setdefault(digest, len(seen)) for digest in row_digests(X[shared])]
    codes[shared] = len(sums) + np.array(found, dtype=np.int64)
    _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[codes], first[order]


def row_digests(X: Array) -> Iterator[bytes]:
    """Return a digest of each row: equal for equal rows, and for no others."""
    return (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in np.ascontiguousarray(X))
