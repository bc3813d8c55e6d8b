"""Detection of columns with values so far from 0 that float32 keeps too few digits of their differences."""

from __future__ import annotations

import numpy as np

from streamkern.defaults import MAX_OFFSET
from streamkern.types import Array


def has_large_offset(mean: Array, spread: Array, least: float = MAX_OFFSET) -> Array:
    """Return a mask of the columns with an offset: |mean| > ``least`` standard deviations."""
    return np.abs(mean) > least * spread
