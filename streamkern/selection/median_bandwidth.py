"""``bandwidth="median"``: the median distance of two training rows, found out before the kernel is used.

A typical kernel value is then far from 0 and from 1, whatever the units and the width of the rows, and outliers do not
move it (Garreau, Jitkrittum, Kanagawa 2017, "Large sample analysis of the median heuristic").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly
from streamkern.defaults import MEDIAN_ROWS
from streamkern.errors import DataError
from streamkern.execute.base import Executor
from streamkern.kernels import Kernel, Laplace
from streamkern.kernels.radial import Radial
from streamkern.rng import Draw
from streamkern.sweep import gather

AUTO_KERNEL = Laplace("median")
"""Bandwidths that ``tune`` tries where there is no kernel."""


def median_distance(dataset: Dataset, executor: Executor, dtype: np.dtype[Any], norm: int = 2) -> float:
    """Return the median distance of two of the dataset's rows, scaled and not augmented, over the pairs that differ.

    Of ``MEDIAN_ROWS`` rows at most, rounded to the dtype of the arithmetic, a function of the row ids alone: the same
    bits under any chunking and on any executor. Distances are in float64. ``DataError`` if all rows are the same.
    """
    from scipy.spatial.distance import pdist  # a tenth of a second that only this needs

    data = dataset.plain()
    ids = data.draw(min(MEDIAN_ROWS, data.base_rows), Draw.MEDIAN_DISTANCE)
    X, _ = gather(executor, Assembly(data, dtype=dtype), ids)
    distances = pdist(X.astype(np.float64), "euclidean" if norm == 2 else "cityblock")
    distances = distances[distances > 0]
    if not len(distances):
        raise DataError(
            f"The {len(X):,} rows whose distances were taken are all the same.",
            where='bandwidth="median"',
            expected="rows that differ",
            remedy="give the bandwidth as a number",
        )
    return float(np.median(distances))


def with_bandwidths(kernel: Radial, unit: float, multiples: Sequence[float]) -> list[Radial]:
    """Return a kernel with multiples of a bandwidth, to four digits, as a person would type them."""
    return [replace(kernel, bandwidth=float(f"{multiple * unit:.4g}")) for multiple in multiples]


def setup_bytes(dataset: Dataset, itemsize: int) -> int:
    """Bytes that ``median_distance`` holds at its peak, beyond reading the rows."""
    rows = min(MEDIAN_ROWS, dataset.base_rows)
    return rows * dataset.n_features * (3 * itemsize + 8) + 4 * rows * rows * 8


def median_norms(recipe: Any) -> list[int]:
    """Norms of the kernels (the recipe's, its features' or centers') that depend on the median distance, ascending."""
    kernels = (_kernel(getattr(recipe, name)) for name in _NAMES)
    return sorted({kernel.norm for kernel in kernels if kernel is not None and kernel.needs_median})


def with_median_distances(recipe: Any, distances: Mapping[int, float]) -> Any:
    """The recipe, a frozen dataclass, with median distances, by norm, wherever a kernel depends on them."""
    changes: dict[str, Any] = {}
    for name in _NAMES:
        part, kernel = getattr(recipe, name), _kernel(getattr(recipe, name))
        if kernel is not None and kernel.needs_median:
            settled = kernel.at_median(distances[kernel.norm])
            changes[name] = settled if part is kernel else replace(part, kernel=settled)
    return replace(recipe, **changes) if changes else recipe


_NAMES = ("kernel", "features", "centers")


def _kernel(part: Any) -> Kernel | None:
    kernel = part if isinstance(part, Kernel) else getattr(part, "kernel", None)
    return kernel if isinstance(kernel, Kernel) else None
