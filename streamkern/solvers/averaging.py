"""Averages of iterates."""

from __future__ import annotations

from streamkern.types import Array

AVERAGING = 5.0
"""η of the polynomial-decay average (Shamir & Zhang 2013, eq. 5): iterate t enters with weight about (t/T)^η."""


def average(mean: Array, iterate: Array, t: int) -> Array:
    """The polynomial-decay average after its t-th iterate."""
    return mean + share_of(t) * (iterate - mean)


def share_of(t: int) -> float:
    """Weight of the t-th iterate in the average after it."""
    return (1 + AVERAGING) / (t + AVERAGING)
