"""Descriptions of columns that cannot be features as stored (text, dates, decimals), in bounded memory."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

DISTINCT = 1000
"""Different values up to which they are counted."""

_SHORT = 60

End = tuple[float, str]
"""A value by which ends are found, and the text: its length for text, 0 for what sorts as it is written."""


@dataclass(frozen=True)
class Described:
    """Rows of a column; adds.

    Args:
        missing: rows without a value.
        counts: rows of each value, long ones as ``key`` makes them; None where there are too many.
        low: shortest text, or lowest of other values; None without values, or where they have no order.
        high: longest text, or highest.
    """

    missing: int
    counts: Counter[str] | None
    low: End | None
    high: End | None

    def __add__(self, other: Described) -> Described:
        counts = None
        if self.counts is not None and other.counts is not None:
            counts = self.counts + other.counts
        return Described(
            self.missing + other.missing,
            counts if counts is None or len(counts) <= DISTINCT else None,
            min((end for end in (self.low, other.low) if end is not None), default=None),
            max((end for end in (self.high, other.high) if end is not None), default=None),
        )


def key(text: str) -> str:
    """A text, or the key of a long one: its beginning, and a digest after a line end."""
    if len(text) <= _SHORT:
        return text
    return f"{text[:_SHORT]}...\n{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def shown(made: str) -> str:
    """A key as people may read it: of a long text its beginning."""
    return made.partition("...\n")[0] + "..." if len(made) > _SHORT else made
