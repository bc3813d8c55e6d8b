"""Choose the dtype of the arithmetic, and decide before training whether it can represent the kernel on these rows.

- ``dtype_of`` and ``in_float64``: the rule of ``dtype="auto"``.
- ``subtract_offsets``: columns that lie far from 0 have their mean subtracted in float64, before rows are rounded,
  where the basis depends on differences of rows alone.
- ``require_precision``: a kernel whose values would be rounding errors, or all the same, is refused.

The rule of the last. Kernel values are made from inner products, so a squared distance carries an error δ = 2 N ε:
the dtype's epsilon times the squared norms of the two rows, however near they are. N is the median squared norm of the
centers as they are multiplied, centred where the kernel allows it, and D the median squared distance of two of them:
medians, so that a few rows far out do not decide. Let s be the squared distance at which the kernel has made half of
its way from k(x, x) to its value at D: for a radial kernel about bandwidth², unless D is less. The kernel is refused
where ``|k(s + δ) − k(s)| + η |k(x, x)|`` (the distance rounded, and the value resolved) is more than
``MAX_ROUNDING_SHARE`` of ``|k(D) − k(x, x)|`` (the contrast by which it distinguishes rows).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Statistics
from streamkern.data.targets import has_large_offset
from streamkern.defaults import (
    CHECKED_CENTERS,
    CHECKED_PAIRS_PER_CENTER,
    KERNEL_RESOLUTION,
    MAX_LINEAR_ROUNDING_SHARE,
    MAX_ROUNDING_SHARE,
    MIN_KERNEL_VARIATION,
    SCALE_POINTS,
)
from streamkern.engine.elementwise import Loops, coincident
from streamkern.errors import PrecisionError
from streamkern.fitting.recipe import AUTO, Recipe
from streamkern.kernels import FeatureMap, Kernel, Linear, StoredCenters, mean_row
from streamkern.types import Array

R = TypeVar("R", bound=Recipe)


def dtype_of(recipe: Recipe) -> str:
    """The dtype of a recipe; of ``"auto"`` float64 for numbers that the user holds in memory as float64, else float32.

    Rows that are streamed from files, stores or Dask, and tables with texts or dates, are float32.
    """
    if recipe.dtype != AUTO:
        return recipe.dtype
    source = recipe.train.source
    numbers = source.schema is None or source.schema.plain
    return "float64" if source.from_memory and numbers and source.dtype == np.float64 else "float32"


def in_float64(recipe: R, error: PrecisionError) -> tuple[R, dict[str, str]]:
    """The recipe in float64 where ``"auto"`` was float32 and the kernel was refused; and why, as ``arithmetic``.

    Where the dtype is given, or is float64, the error is raised.
    """
    if recipe.dtype != AUTO or dtype_of(recipe) == "float64":
        raise error
    return replace(recipe, dtype="float64"), {"arithmetic": f"float64: {error.what}"}


def subtract_offsets(dataset: Dataset, facts: Statistics, translation_invariant: bool, dtype: np.dtype[Any]) -> Dataset:
    """The dataset relative to the mean of the columns that float32 would round too coarsely; most often as it is.

    Rows are preprocessed and scaled, ``facts`` are from before the scaling; ``translation_invariant`` says that the
    basis depends on differences of rows alone.
    """
    if dtype != np.float32 or not translation_invariant or not dataset._takes_float64:
        return dataset  # float64 has the digits; rows stored in float32 have lost them already
    mean, variance = _scaled(dataset, facts)
    offset = has_large_offset(mean, np.sqrt(variance)) & (variance > 0)
    return dataset._relative_to(np.where(offset, mean, 0.0)) if offset.any() else dataset


class Rounding(NamedTuple):
    """Error of a kernel value as a share of its variation, |k(D) − k(x, x)| / |k(x, x)|; and √δ, in the L1 norm δ."""

    share: float
    distance_error: float
    variation: float


class Sizes(NamedTuple):
    """Typical squared norm N of rows, as they are multiplied, and squared distance D, 0 of one row; or L1 norms."""

    norm: float
    distance: float


def typical_sizes(Z: Array | StoredCenters, translation_invariant: bool, norm: int = 2) -> Sizes:
    """Medians over centers (p, d), in the L2 or L1 norm; with ``translation_invariant``, of centred rows."""
    size = np.square if norm == 2 else np.abs
    if isinstance(Z, np.ndarray):
        looked_at = Z[np.linspace(0, len(Z) - 1, min(len(Z), CHECKED_CENTERS)).astype(np.int64)]
    else:
        _, looked_at = next(iter(Z.tiles()))
    rows = looked_at.astype(np.float64)
    moved = rows - mean_row(Z) if translation_invariant else rows
    pairs = [
        size(rows - np.roll(rows, k, axis=0)).sum(axis=1)
        for k in range(1, min(CHECKED_PAIRS_PER_CENTER, len(rows) - 1) + 1)
    ]
    apart = np.concatenate([np.zeros(0), *pairs])
    apart = apart[apart > 0]
    return Sizes(float(np.median(size(moved).sum(axis=1))), float(np.median(apart)) if len(apart) else 0.0)


def kernel_rounding(kernel: Kernel, size: Sizes, dtype: np.dtype[Any]) -> Rounding:
    """The rule of this module, in numbers."""
    norm, distance = size
    if distance <= 0:
        return Rounding(0.0, 0.0, 1.0)
    norm = max(norm, distance / 2)  # two rows of such a distance have such norms
    delta = 2 * norm * float(np.finfo(dtype).eps)
    squares = kernel.norm == 2
    least = max(delta, 4 * norm * coincident(dtype)) if squares else delta  # float64 backends take less for 0
    error = delta**0.5 if squares else delta

    def values(distances: Array) -> Array:
        """Kernel values at squared distances, of rows with these norms; or at L1 distances."""
        S = np.array(norm - np.asarray(distances) / 2 if squares else distances, dtype=np.float64)[None, :]
        kernel.apply(S, np.full(1, norm), np.full(S.shape[1], norm), Loops())
        return np.asarray(S[0])

    if least >= distance:
        return Rounding(np.inf, error, 1.0)
    with np.errstate(all="ignore"):
        at_zero, at_distance = values(np.array([0.0, distance]))
        variation = abs(at_distance - at_zero)
        grid = np.geomspace(least, distance, SCALE_POINTS)
        own = grid[int(np.argmax(np.abs(values(grid) - at_zero) >= variation / 2))]
        here, there = values(np.array([own, own + delta]))
        moved = variation if own <= least else abs(there - here)
        share = (moved + KERNEL_RESOLUTION[np.dtype(dtype).name] * abs(at_zero)) / variation if variation else np.inf
        relative_variation = variation / abs(at_zero) if at_zero else 1.0
    return Rounding(float(share), error, float(relative_variation))


def require_precision(
    kernel: Kernel,
    features: FeatureMap | None,
    Z: Array | StoredCenters,
    dataset: Dataset,
    facts: Statistics,
    dtype: np.dtype[Any],
) -> None:
    """Raise PrecisionError for rows and a kernel, or features, that the dtype cannot represent, by the module's rule.

    Rows are preprocessed, scaled and ``subtract_offsets``; ``facts`` are from before the scaling.
    """
    if features is not None and not features.needs_centers:
        if features.translation_invariant:
            return  # waves of differences, whose argument float32 holds
        kernel = Linear()  # features that are linear in the rows
        mean, variance = _scaled(dataset, facts)
        spread = float(variance.sum())
        size = Sizes(spread + float(np.square(mean).sum()), 2 * spread)
    else:
        kernel = getattr(features, "kernel", kernel)
        size = typical_sizes(Z, kernel.translation_invariant, kernel.norm)
    if not np.isfinite(size).all():
        return  # rows are refused where they are read
    name, found = str(dtype), kernel_rounding(kernel, size, dtype)
    tolerance = MAX_LINEAR_ROUNDING_SHARE if isinstance(kernel, Linear) else MAX_ROUNDING_SHARE
    if found.share <= tolerance:
        return
    wider = kernel_rounding(kernel, size, np.dtype(np.float64)).share <= tolerance
    norm, apart = (f"{np.sqrt(value) if kernel.norm == 2 else value:.4g}" for value in size)
    standard = 'features of comparable size: scaling="standard", or sk.Standardise()'
    if found.variation < MIN_KERNEL_VARIATION and kernel.translation_invariant:
        said = (
            f"The bandwidth is so large that kernel values of these rows differ by {found.variation:.2g} only: "
            f"the rows are about {apart} apart."
        )
        remedies = ["a smaller bandwidth, such as the median distance of two rows"]
    elif kernel.translation_invariant:
        said = (
            f"In {name}, distances of these rows are uncertain by {found.distance_error:.2g}, which is too much for "
            f"the bandwidth: rows are at a distance of about {norm} from their mean."
        )
        remedies = ["a larger bandwidth", standard]
    else:
        said = (
            f"In {name}, inner products of these rows are mostly rounding errors: rows have norms of about {norm} "
            f"and are about {apart} apart. For this kernel the mean cannot be subtracted."
        )
        remedies = [standard]
    raise PrecisionError(
        said,
        where=f"{type(kernel).__name__}, dtype {name}",
        expected=f"rounding errors of at most {tolerance:.2g} of the kernel's variation between rows; here they are "
        + (f"{found.share:.2g} of it" if found.share < 1 else "all of it"),
        remedy="; or ".join((['dtype="float64"'] if wider and dtype != np.float64 else []) + remedies),
    )


def _scaled(dataset: Dataset, facts: Statistics) -> tuple[Array, Array]:
    return facts.mean * dataset.factor + dataset.shift, facts.variance * np.square(dataset.factor)
