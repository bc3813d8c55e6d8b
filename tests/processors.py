"""What a processor's vectors decide: marks of tests for those that leave products to BLAS."""

from __future__ import annotations

import pytest

from streamkern.cpu import gemm

own_products = pytest.mark.skipif(
    gemm.VECTORS < 2,
    reason="this processor has no vectors of 512 bits: BLAS multiplies float64 and wide rows, in an order of its own",
)
