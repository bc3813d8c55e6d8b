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
    """W lower triangular, by panels of rows.

    Args:
        p: rows.
        lead: rows whose panels have every column up to their own; later ones have those of the lead, and their own.
        scales: of each row, shape (p,), float32.
        numbers: of each panel [a, b): shape (b − a, min(a, lead) + b − a), with columns of zeros up to whole vectors.
    """

    p: int
    lead: int
    scales: Array
    numbers: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return int(self.scales.nbytes + sum(panel.nbytes for panel in self.numbers))

    def panels(self) -> Iterator[tuple[slice, int, Array]]:
        """Rows of each panel, how many of its columns are those of the lead, and its integers."""
        for rows, panel in zip(panel_rows(self.p), self.numbers, strict=True):
            yield rows, min(rows.start, self.lead), panel


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
    """Add WᵀW B of a panel's rows to ``sums``, in NumPy: B (p, c) and sums in floating point."""
    A, own = numbers.astype(B.dtype), rows.stop - rows.start
    both = A[:, :lead], A[:, lead : lead + own]
    T = both[0] @ B[:lead] + both[1] @ B[rows]
    T *= np.square(scales[rows], dtype=B.dtype)[:, None]
    sums[:lead] += both[0].T @ T
    sums[rows] += both[1].T @ T
