"""Rows of a step: the largest that the measured spectrum allows and the smallest that keeps the processor busy.

And passes, where none are given.
"""

from __future__ import annotations

MAX_EPOCHS = 20
PASSED_ROWS = 500_000
"""Passes by default: enough to see this many rows, from 1 to MAX_EPOCHS."""

_BLOCK_ROWS = 256  # rows of a block below which a matrix product is no longer near its rate
_STEP_ROWS = 1024  # rows of a step below which few lanes spend more on steps than on their rows
LARGEST_BLOCK = 1024
"""Rows beyond which a block gains no rate on a processor, and costs memory."""

_STEPS_A_PASS = 16  # at least, where the data are few


def passes_of(rows: int, given: int | None = None) -> int:
    """Passes over so many rows: those that are given, or enough to see ``PASSED_ROWS``, from 1 to ``MAX_EPOCHS``."""
    return given or min(max(1, PASSED_ROWS // max(1, rows)), MAX_EPOCHS)


def default_batch(critical: float, rows: int, lanes: int, block: int = LARGEST_BLOCK) -> int:
    """Rows of a step: the critical batch, at least enough to keep every lane at its rate, at most ``largest_batch``."""
    enough = max(critical, lanes * _BLOCK_ROWS, _STEP_ROWS)
    return lanes * max(1, round(min(enough, largest_batch(rows, lanes, block)) / lanes))


def largest_batch(rows: int, lanes: int, block: int = LARGEST_BLOCK) -> int:
    """Most rows of a step that is not set by hand: a share of a pass, and few enough that blocks stay small."""
    return min(lanes * block, max(lanes, -(-rows // _STEPS_A_PASS)))
