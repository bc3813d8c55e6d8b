"""Arrays that begin at lines of the processor's caches."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from streamkern.types import Array

CACHE_LINE = 64
"""Bytes of a line of the processor's caches."""


def aligned(shape: tuple[int, ...], dtype: Any, memory: Array | None = None) -> Array:
    """Return an array, not initialised, that begins at a cache line, so that no vector of a packed panel spans two.

    ``memory``, the base of an earlier array that nobody uses, is used again if it is large enough.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if memory is None or len(memory) < size + CACHE_LINE:
        memory = np.empty(size + CACHE_LINE, np.uint8)
    begin = -memory.ctypes.data % CACHE_LINE
    return cast(Array, memory[begin : begin + size].view(kind).reshape(shape))


def aligned_rows(n: int, m: int, dtype: Any, memory: Array | None = None) -> Array:
    """Return an array (n, m), not initialised, whose rows begin at cache lines; ``memory`` as for ``aligned``.

    Rows are an odd number of lines apart: at a power of two they would compete for the same lines of the caches.
    """
    kind = np.dtype(dtype)
    lines = -(-m * kind.itemsize // CACHE_LINE) | 1
    return aligned((n, lines * CACHE_LINE // kind.itemsize), kind, memory)[:, :m]
