"""Columns of values so far from 0 that float32 would keep too few digits of their differences."""

from __future__ import annotations

import numpy as np

from streamkern.types import Array

FAR = 1024.0
"""Standard deviations from 0 beyond which a mean is an offset: float32 would round at 1/16,000 of one or more."""


def far(mean: Array, spread: Array, least: float = FAR) -> Array:
    """Mask of the columns that have an offset: |mean| > ``least`` standard deviations.

    Args:
        mean: shape (k,).
        spread: standard deviations, shape (k,).
        least: how many of them an offset is beyond.

    Returns:
        Shape (k,), bool.
    """
    return np.abs(mean) > least * spread
