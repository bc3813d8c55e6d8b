"""What a processor decides: marks of tests where products are left to BLAS, and compiled functions of a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from streamkern.cpu import gemm

own_products = pytest.mark.skipif(
    gemm.VECTORS < 2,
    reason="this processor has no vectors of 512 bits: BLAS multiplies float64 and wide rows, in an order of its own",
)


def elementwise(function: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of a number, as compiled loops call it, of each number of an array."""

    @numba.njit
    def applied(x: np.ndarray) -> np.ndarray:
        out = np.empty_like(x)
        for i in range(len(x)):
            out[i] = function(x[i])
        return out

    return applied  # type: ignore[no-any-return]
