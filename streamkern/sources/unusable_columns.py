"""Descriptions of columns that cannot be features as stored (text, dates, decimals), in bounded memory."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

MAX_DISTINCT_TEXTS = 1000
"""Most distinct values that are counted."""

_SHORT = 60

ExtremeValue = tuple[float, str]
"""Sort key and text of a value; the key is the length of a text, or 0 if the text itself sorts correctly."""


@dataclass(frozen=True)
class ColumnDescription:
    """Description of a column's rows; adds.

    ``counts`` are rows of each value, with long values shortened by ``text_key``; None if there are too many. ``low``
    is the shortest text, or lowest other value, ``high`` the longest or highest; None without values or an order.
    """

    missing: int
    counts: Counter[str] | None
    low: ExtremeValue | None
    high: ExtremeValue | None

    def __add__(self, other: ColumnDescription) -> ColumnDescription:
        counts = None
        if self.counts is not None and other.counts is not None:
            counts = self.counts + other.counts
        return ColumnDescription(
            self.missing + other.missing,
            counts if counts is None or len(counts) <= MAX_DISTINCT_TEXTS else None,
            min((end for end in (self.low, other.low) if end is not None), default=None),
            max((end for end in (self.high, other.high) if end is not None), default=None),
        )


def text_key(text: str) -> str:
    """Return a text, or for a long text its beginning, a line end, and a digest."""
    if len(text) <= _SHORT:
        return text
    return f"{text[:_SHORT]}...\n{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def shown_text(made: str) -> str:
    """Return a key's text for display; of a long text the beginning."""
    return made.partition("...\n")[0] + "..." if len(made) > _SHORT else made
