"""Rows of a step, passes where none are given, and averages of iterates.

A step has as many rows as the measured spectrum allows, and at least so many as keep the processor busy.
"""

from __future__ import annotations

from streamkern.types import Array

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


AVERAGING = 5.0
"""η of the polynomial-decay average (Shamir & Zhang 2013, eq. 5): iterate t enters with weight about (t/T)^η."""


def average(mean: Array, iterate: Array, t: int) -> Array:
    """The polynomial-decay average after its t-th iterate."""
    return mean + share_of(t) * (iterate - mean)


def share_of(t: int) -> float:
    """Weight of the t-th iterate in the average after it."""
    return (1 + AVERAGING) / (t + AVERAGING)
