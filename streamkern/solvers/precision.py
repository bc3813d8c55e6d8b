"""Whether the arithmetic's dtype can represent a problem: decided from statistics of the rows, before training.

Two things are decided here and nowhere else:

- ``relative``: columns that lie far from 0 have their mean subtracted in float64, before rows are rounded, where the
  basis depends on differences of rows alone.
- ``require_precision``: a kernel whose values would be rounding errors, or all the same, is refused.

The rule of the second. Kernel values are made from inner products, so a squared distance carries an error δ of about
the dtype's epsilon times the squared norms of the two rows, however near they are. With v = Σ_j var(x_j), two rows lie
about 2v apart, and their squared norms are v each where rows are centred, v + ‖mean‖² where they may not be. Let s be
the squared distance at which the kernel has made half of its way from k(x, x) to its value at 2v: for a radial kernel
about bandwidth², unless 2v is less. The kernel is refused where ``|k(s + δ) − k(s)| + η |k(x, x)|`` (the distance
rounded, and the value resolved) is more than ``TOLERANCE`` of ``|k(2v) − k(x, x)|`` (what it tells rows apart by).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamkern.backends import NumpyBackend
from streamkern.backends.base import coincident, wide
from streamkern.data.dataset import Dataset
from streamkern.data.precision import far
from streamkern.data.statistics import Statistics
from streamkern.errors import PrecisionError
from streamkern.kernels import FeatureMap, Kernel, Linear
from streamkern.types import Array

TOLERANCE = 1 / 256
"""Of a kernel's variation over the rows, that may be rounding: where accuracy begins to go, see ADR 15."""

RESOLVED = {np.dtype(np.float32): float(np.finfo(np.float32).eps), np.dtype(np.float64): 1e-11}
"""η: what of a kernel value is resolved. In float64 less than its digits: solvers shift spectra by 1e-12 and more."""

_POINTS = 400  # of distances among which the kernel's own scale is looked for, evenly in their logarithm


def relative(dataset: Dataset, facts: Statistics, translation_invariant: bool, dtype: np.dtype[Any]) -> Dataset:
    """The dataset relative to the mean of the columns that float32 would round too coarsely; most often as it is.

    Args:
        dataset: training rows, preprocessed and scaled.
        facts: their statistics before the scaling.
        translation_invariant: whether the basis depends on differences of rows alone.
        dtype: of the streaming arithmetic.
    """
    if dtype != np.float32 or not translation_invariant or not wide(dataset.source.dtype):
        return dataset  # float64 has the digits; rows stored in float32 have lost them already
    mean, variance = _scaled(dataset, facts)
    offset = far(mean, np.sqrt(variance)) & (variance > 0)
    return dataset.relative_to(np.where(offset, mean, 0.0)) if offset.any() else dataset


class Rounding(NamedTuple):
    """How a kernel and its rounding errors compare.

    Attributes:
        share: error of a kernel value, as a share of the kernel's variation over the rows.
        norms: root mean squared norm of a row as it is multiplied.
        spread: root mean squared distance of two rows.
        distance_error: root of δ.
        variation: |k(2v) − k(x, x)| / |k(x, x)|.
    """

    share: float
    norms: float
    spread: float
    distance_error: float
    variation: float


def rounding(kernel: Kernel, mean: Array, variance: Array, dtype: np.dtype[Any]) -> Rounding:
    """The rule of this module, in numbers.

    Args:
        kernel: the kernel; a bandwidth is a number by now.
        mean: of each scaled feature, relative to what is subtracted before rounding, shape (d,).
        variance: of each scaled feature, shape (d,).
        dtype: float32 or float64.
    """
    v = float(variance.sum())
    norms = v if kernel.translation_invariant else v + float(np.square(mean).sum())
    eps = float(np.finfo(dtype).eps)
    # Distances that the backends take for 0 in float64 are lost too.
    delta = 2 * norms * max(eps, 2 * coincident(dtype))

    def values(squared: Array) -> Array:
        """Kernel values at squared distances, of rows with these norms."""
        S = np.array(norms - np.asarray(squared) / 2, dtype=np.float64)[None, :]
        kernel.apply(S, np.full(1, norms), np.full(S.shape[1], norms), NumpyBackend())
        return np.asarray(S[0])

    def found(share: float, variation: float) -> Rounding:
        return Rounding(share, norms**0.5, (2 * v) ** 0.5, delta**0.5, variation)

    if v <= 0:
        return found(0.0, 1.0)  # a single row
    if delta >= 2 * v:
        return found(np.inf, 1.0)
    with np.errstate(all="ignore"):
        at_zero, at_spread = values(np.array([0.0, 2 * v]))
        variation = abs(at_spread - at_zero)
        grid = np.geomspace(delta, 2 * v, _POINTS)
        own = grid[int(np.argmax(np.abs(values(grid) - at_zero) >= variation / 2))]
        here, there = values(np.array([own, own + delta]))
        moved = variation if own <= delta else abs(there - here)
        share = (moved + RESOLVED[np.dtype(dtype)] * abs(at_zero)) / variation if variation else np.inf
        relative_variation = variation / abs(at_zero) if at_zero else 1.0
    return found(float(share), float(relative_variation))


def require_precision(
    kernel: Kernel, features: FeatureMap | None, dataset: Dataset, facts: Statistics, dtype: np.dtype[Any]
) -> None:
    """Refuse what the dtype cannot represent, by the rule of this module.

    Args:
        kernel: of the model; where there are features, they decide.
        features: the feature map, or None.
        dataset: training rows, preprocessed, scaled and ``relative``.
        facts: their statistics before the scaling.
        dtype: of the streaming arithmetic.

    Raises:
        PrecisionError: kernel values would be rounding errors, or the same for all rows.
    """
    if features is not None:
        # Features without a kernel are linear in the rows, or waves of their differences, whose argument float32 holds.
        own = getattr(features, "kernel", None) if features.needs_centers else None
        if own is None and features.translation_invariant:
            return
        kernel = own or Linear()
    mean, variance = _scaled(dataset, facts)
    if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
        return  # beyond float64: rows are refused where they are read
    name, mean = str(dtype), mean - dataset.origin
    found = rounding(kernel, mean, variance, dtype)
    if found.share <= TOLERANCE:
        return
    wider = rounding(kernel, mean, variance, np.dtype(np.float64)).share <= TOLERANCE
    flat = found.variation < 1e-3 and kernel.translation_invariant
    if flat:
        said = (
            f"The bandwidth is so large that kernel values of the rows differ by {found.variation:.1e} only, which "
            f"{name} does not resolve: the rows are about {found.spread:.4g} apart."
        )
        remedies = ["a smaller bandwidth, such as the median distance of two rows"]
    elif kernel.translation_invariant:
        said = (
            f"In {name}, distances of these rows are uncertain by {found.distance_error:.2g}, which is more than the "
            f"bandwidth resolves: rows have a norm of about {found.norms:.4g} around their mean."
        )
        remedies = ["a larger bandwidth", 'features in comparable units: scaling="standard", or sk.Standardise()']
    else:
        said = (
            f"In {name}, inner products of these rows are mostly rounding: rows have a norm of about {found.norms:.4g} "
            f"and lie {found.spread:.4g} apart, and this kernel does not allow to subtract their mean."
        )
        remedies = ['features that are centred: scaling="standard", or sk.Standardise()']
    raise PrecisionError(
        said,
        where=f"kernel {type(kernel).__name__}, dtype {name}",
        expected=f"rounding errors below {TOLERANCE:.2g} of what the kernel tells the rows apart by; "
        f"they are {min(found.share, 1e9):.2g} of it",
        remedy="; or ".join((['dtype="float64"'] if wider and dtype != np.float64 else []) + remedies),
    )


def _scaled(dataset: Dataset, facts: Statistics) -> tuple[Array, Array]:
    """Mean and variance of each feature after the dataset's factor and shift, shape (d,) each."""
    return facts.mean * dataset.factor + dataset.shift, facts.variance * np.square(dataset.factor)
