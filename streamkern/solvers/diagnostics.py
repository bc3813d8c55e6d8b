"""What a spectrum and a direction tell about a solution path."""

from __future__ import annotations

import numpy as np

from streamkern.errors import UsageError
from streamkern.types import Array


def rayleigh_quotient(K: Array, b: Array) -> float:
    """‖K b‖²/‖b‖² of b = α − α̂ (Luo, Huo & Mei 2022, Figure 1): large where b lies along large eigenvalues of K.

    At a given training loss ‖K b‖² the error of the estimate, bᵀ K b, is the smaller the larger the quotient is.

    Args:
        K: kernel matrix of the training rows, shape (n, n).
        b: difference of coefficients from those that interpolate, shape (n,) or (n, c).

    Raises:
        UsageError: b is zero, where there is no direction.
    """
    squared = float(np.sum(np.square(b, dtype=np.float64)))
    if squared == 0.0:
        raise UsageError("The difference is zero and has no direction.", where="rayleigh_quotient(b)")
    return float(np.sum(np.square(K @ b, dtype=np.float64))) / squared


def relative_rayleigh_quotient(K: Array, b: Array) -> float:
    """The Rayleigh quotient over its largest value σ_1², in [0, 1] (ibid., appendix H.2).

    Raises:
        UsageError: b is zero.
    """
    return rayleigh_quotient(K, b) / float(np.linalg.norm(K, 2)) ** 2


def effective_dimension(eigenvalues: Array, ridge: float) -> float:
    """N(λ) = Σ σ_i/(σ_i + λ) of a covariance (Carratino et al. 2018, assumption 5): how many directions λ leaves free.

    Args:
        eigenvalues: of the covariance, or of K/n, shape (k,); non-negative.
        ridge: λ > 0, in the same units.

    Raises:
        UsageError: the ridge is not positive.
    """
    if not ridge > 0:
        raise UsageError(f"The ridge is {ridge}.", where="effective_dimension(ridge)", expected="above 0")
    values = np.asarray(eigenvalues, dtype=np.float64)
    return float(np.sum(values / (values + ridge)))
