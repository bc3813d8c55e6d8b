"""Detection of columns with values so far from 0 that float32 keeps too few digits of their differences."""

from __future__ import annotations

import numpy as np

from streamkern.types import Array

MAX_OFFSET = 1024.0
"""Standard deviations from 0 beyond which a mean is an offset: float32 rounds at 1/16,000 of one or more."""


def has_large_offset(mean: Array, spread: Array, least: float = MAX_OFFSET) -> Array:
    """Return a mask of the columns with an offset: |mean| > ``least`` standard deviations."""
    return np.abs(mean) > least * spread
