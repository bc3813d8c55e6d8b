"""Measure and report the relative residual of a solver's system, and warn where it is large.

Residuals are relative, and in the norm of the preconditioned system, in which they are errors of predictions: that of
K w = b itself says little, because functions that differ hardly at all let w be far off where the residual is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamkern.types import Array

FAR = 0.05
"""Relative residual above which a better solve is tried, and a fit counts as inaccurate."""

_UNREACHED = "has not reached the exact solution"


def relative_residual(residual: Array, whole: Array) -> float:
    """Return the largest ‖r_j‖/‖b_j‖ over outputs j; 0 for an output whose b_j is 0.

    Args:
        residual: r, shape (M, c), float64.
        whole: b, shape (M, c), float64.
    """
    found, size = (np.sum(np.square(x), axis=0) for x in (residual, whole))
    return float(np.sqrt(np.max(np.where(size > 0, found / np.where(size > 0, size, 1.0), 0.0))))


def report_residual(
    report: dict[str, Any], solver: str, residual: float, causes: Sequence[str], remedies: Sequence[str], far: bool
) -> None:
    """Add a residual to a report, and a warning if it is too large.

    Args:
        report: of the iteration; gets ``residual``, and ``warnings`` if there is one.
        solver: its name.
        residual: relative.
        causes: why it is large, if known.
        remedies: in words.
        far: whether the residual is too large.
    """
    report["residual"] = residual
    # A residual that was reported before is replaced; other warnings stay.
    said = [message for message in report.pop("warnings", ()) if _UNREACHED not in message]
    if far:
        said.append(
            f"{solver} {_UNREACHED}, relative residual {residual:.2g}: {'; '.join(causes)}. "
            f"Remedies: {', or '.join(remedies)}."
        )
    if said:
        report["warnings"] = said
