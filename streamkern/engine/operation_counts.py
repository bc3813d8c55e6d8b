"""Operations by kind, counted by the meter and priced by a calibration.

Kinds have different rates: memory limits a product with a few columns, but not one of two large matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Operations:
    """Operations by kind; additions and multiplications count one each. Counts can be added and scaled.

    Attributes:
        values: values of the basis in the arithmetic's dtype, on all threads; ``values64`` in float64.
        panel: products of values with c columns, while the values are in cache.
        gemm: products of large matrices in the arithmetic's dtype.
        gemm64: the same in float64, with Cholesky factors and their inverses by tiles.
        thin: Wᵀ W B for a matrix W in memory and c columns, in the arithmetic's dtype.
        thin64: products of a matrix in memory with c columns, in float64.
        vector64: products of a matrix with one vector, as in a Lanczos iteration.
        serial64: matrix products in float64 on one thread.
        eigen: symmetric eigen-decompositions in float64 on one thread, 4/3 n³ of size n.
        numbers: numbers processed by elementwise arithmetic on the host.
    """

    values: float = 0.0
    values64: float = 0.0
    panel: float = 0.0
    gemm: float = 0.0
    gemm64: float = 0.0
    thin: float = 0.0
    thin64: float = 0.0
    vector64: float = 0.0
    serial64: float = 0.0
    eigen: float = 0.0
    numbers: float = 0.0

    @property
    def counts(self) -> tuple[float, ...]:
        """The counts of all kinds, in order; ``dataclasses.astuple`` would copy each deeply."""
        return tuple(vars(self).values())

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    def __mul__(self, times: float) -> Operations:
        return Operations(*(times * a for a in self.counts))

    __rmul__ = __mul__

    def priced(self, prices: Operations) -> float:
        """Return Σ operations times the price of their kind: seconds, if prices are seconds for an operation."""
        return float(sum(a * b for a, b in zip(self.counts, prices.counts, strict=True)))

    def flops(self, entry: float) -> float:
        """Return the total of floating-point operations, with ``entry`` operations for a value of the basis."""
        prices = {field.name: 1.0 for field in fields(self)} | {"values": entry, "values64": entry}
        return self.priced(Operations(**prices))


def eigh(size: int) -> float:
    """Return operations of a symmetric eigen-decomposition: its reduction to a tridiagonal matrix."""
    return 4.0 / 3.0 * float(size) ** 3
