"""Inverse factors of kernel matrices in 16 bits, complete or with the columns of a lead only.

Row by row W_ij = scale_i × number_ij with integers of 16 bits, so that WᵀW B = Qᵀ (scale² (Q B)) for the integers Q.
Rounding W leaves WᵀW positive.

In a factor with a lead of fewer than p centers, rows beyond the lead have only the columns of the lead and of their own
panel: WᵀW is then the inverse of the PITC approximation of the kernel matrix (Quiñonero-Candela & Rasmussen 2005,
section 6), in which panels beyond the lead are independent given the lead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.engine.packed_triangle import cuts
from streamkern.storage.serialize import serializable
from streamkern.types import Array

PANEL = 512
"""Rows of a panel."""


@serializable
@dataclass(frozen=True, eq=False)
class PackedFactor:
    """W lower triangular, in panels of rows; or some of the panels, see ``part``.

    Args:
        p: length of a vector to multiply with: the rows; for a part the lead and the part's rows beyond it.
        lead: rows with all columns up to their panel's; later rows have the columns of the lead, and of their panel.
        scales: scale of each row, float32, (p,) for a complete factor.
        numbers: integers of each panel [a, b): shape (b − a, min(a, lead) + b − a), padded with zeros to whole vectors.
        start: number of the first row.
    """

    p: int
    lead: int
    scales: Array
    numbers: tuple[Array, ...]
    start: int = 0

    @property
    def nbytes(self) -> int:
        return int(self.scales.nbytes + sum(panel.nbytes for panel in self.numbers))

    def panels(self) -> Iterator[tuple[slice, int, Array, Array]]:
        """Yield each panel's position in a vector, its number of lead columns, its integers, and their scales."""
        skipped, a = max(0, self.start - self.lead), self.start
        for panel in self.numbers:
            b = a + len(panel)
            shift = skipped if a >= self.lead else 0
            yield slice(a - shift, b - shift), min(a, self.lead), panel, self.scales[a - self.start : b - self.start]
            a = b

    def part(self, rows: slice) -> PackedFactor:
        """Return some panels, sharing memory; WᵀW multiplies vectors of the lead's rows, then the others."""
        first, last = rows.start // PANEL, -(-rows.stop // PANEL)
        beyond = max(0, rows.stop - max(rows.start, self.lead))
        numbers = self.numbers[first:last]
        return PackedFactor(self.lead + beyond, self.lead, self.scales[rows], numbers, rows.start)


def quantised(W: Array) -> tuple[Array, Array]:
    """Integers and scales of rows W (t, w), float32; columns are padded to whole vectors."""
    largest = np.maximum(W.max(axis=1), -W.min(axis=1))
    scales = (np.where(largest > 0, largest, 1.0) / 32767.0).astype(np.float32)
    numbers, whole = np.zeros((len(W), padded(W.shape[1])), np.int16), W / scales[:, None]
    numbers[:, : W.shape[1]] = np.rint(whole, out=whole)
    return numbers, scales


def padded(n: int) -> int:
    """Return n rounded up to whole vectors."""
    lanes = 16  # numbers of a vector in the compiled product; columns are padded to a multiple
    return -(-n // lanes) * lanes


def factor_bytes(p: int, lead: int) -> int:
    """Return peak bytes of the set-up of a factor: the lead in 32 bits, and all other rows in 16."""
    lead = min(p, lead)
    inside: int = sum((rows.stop - rows.start) * rows.stop * 4 for rows in cuts(lead, PANEL))
    return inside + (p - lead) * (lead + PANEL) * 2


def fitting_lead(p: int, memory: int | None) -> int:
    """Return the largest lead whose factor can be set up in ``memory`` bytes: whole panels, or p."""
    if memory is None or factor_bytes(p, p) <= memory:
        return p
    leads = range(0, p + 1, PANEL)
    return leads[max(0, bisect_right(leads, memory, key=lambda lead: factor_bytes(p, lead)) - 1)]


def panel_product(rows: slice, lead: int, numbers: Array, scales: Array, B: Any, sums: Any) -> None:
    """Add WᵀW B of a panel, an item of ``panels``, to ``sums``, in NumPy; both are (p, c), floating point."""
    A, own = numbers.astype(B.dtype), rows.stop - rows.start
    both = A[:, :lead], A[:, lead : lead + own]
    T = both[0] @ B[:lead] + both[1] @ B[rows]
    T *= np.square(scales, dtype=B.dtype)[:, None]
    sums[:lead] += both[0].T @ T
    sums[rows] += both[1].T @ T
