"""Inverse factors of kernel matrices in 16 bits: whole ones, and ones that keep the columns of a lead only.

Row by row W_ij = scale_i × number_ij with integers of 16 bits, so that WᵀW B = Qᵀ (scale² (Q B)) for the integers Q.
Rounding W leaves WᵀW positive.

Of a factor with a lead of fewer centers than there are, rows beyond the lead have the columns of the lead and those of
their own panel: WᵀW is then the inverse of the PITC approximation of the kernel matrix (Quiñonero-Candela & Rasmussen
2005, section 6), in which panels beyond the lead are independent given the lead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.storage.serialize import serializable
from streamkern.types import Array

PANEL = 512
"""Rows of a panel."""

_LANES = 16  # of the compiled product: columns of a panel come in whole vectors
_LARGEST = 32767.0


@serializable
@dataclass(frozen=True, eq=False)
class PackedFactor:
    """W lower triangular, by panels of rows; or some of these, ``part``.

    Args:
        p: numbers of a vector that it is multiplied with: its rows, or those of the lead and the part's own beyond it.
        lead: rows whose panels have every column up to their own; later ones have those of the lead, and their own.
        scales: of each row, float32: shape (p,) of a whole factor.
        numbers: of each panel [a, b): shape (b − a, min(a, lead) + b − a), with columns of zeros up to whole vectors.
        start: its first row.
    """

    p: int
    lead: int
    scales: Array
    numbers: tuple[Array, ...]
    start: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return int(self.scales.nbytes + sum(panel.nbytes for panel in self.numbers))

    def panels(self) -> Iterator[tuple[slice, int, Array, Array]]:
        """Of each panel its place in a vector, how many columns are the lead's, its integers, and their scales."""
        skipped, a = max(0, self.start - self.lead), self.start
        for panel in self.numbers:
            b = a + len(panel)
            shift = skipped if a >= self.lead else 0
            yield slice(a - shift, b - shift), min(a, self.lead), panel, self.scales[a - self.start : b - self.start]
            a = b

    def part(self, rows: slice) -> PackedFactor:
        """Whole panels of a whole factor, which share its memory.

        Their WᵀW is taken of vectors that have the lead's rows first, then those of ``rows`` that are beyond it.
        """
        first, last = rows.start // PANEL, -(-rows.stop // PANEL)
        beyond = max(0, rows.stop - max(rows.start, self.lead))
        numbers = self.numbers[first:last]
        return PackedFactor(self.lead + beyond, self.lead, self.scales[rows], numbers, rows.start)


def panel_rows(p: int) -> list[slice]:
    """Rows of the panels of p rows."""
    return [slice(a, min(a + PANEL, p)) for a in range(0, p, PANEL)]


def quantised(W: Array) -> tuple[Array, Array]:
    """Integers and scales of rows W (t, w), float32; columns are padded to whole vectors."""
    largest = np.maximum(W.max(axis=1), -W.min(axis=1))
    scales = (np.where(largest > 0, largest, 1.0) / _LARGEST).astype(np.float32)
    numbers, whole = np.zeros((len(W), padded(W.shape[1])), np.int16), W / scales[:, None]
    numbers[:, : W.shape[1]] = np.rint(whole, out=whole)
    return numbers, scales


def padded(n: int) -> int:
    """Columns in whole vectors."""
    return -(-n // _LANES) * _LANES


def factor_bytes(p: int, lead: int) -> int:
    """Bytes of the set-up of a factor at its peak: the lead in 32 bits, and all other rows in 16."""
    lead = min(p, lead)
    inside: int = sum((rows.stop - rows.start) * rows.stop * 4 for rows in panel_rows(lead))
    return inside + (p - lead) * (lead + PANEL) * 2


def fitting_lead(p: int, memory: int | None) -> int:
    """The largest lead whose factor can be set up in so many bytes: whole panels, or p."""
    if memory is None or factor_bytes(p, p) <= memory:
        return p
    low, high = 0, p // PANEL
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if factor_bytes(p, middle * PANEL) <= memory else (low, middle - 1)
    return low * PANEL


def panel_product(rows: slice, lead: int, numbers: Array, scales: Array, B: Any, sums: Any) -> None:
    """Add WᵀW B of a panel's rows, as ``panels`` has them, to ``sums``, in NumPy: both (p, c), in floating point."""
    A, own = numbers.astype(B.dtype), rows.stop - rows.start
    both = A[:, :lead], A[:, lead : lead + own]
    T = both[0] @ B[:lead] + both[1] @ B[rows]
    T *= np.square(scales, dtype=B.dtype)[:, None]
    sums[:lead] += both[0].T @ T
    sums[rows] += both[1].T @ T
