"""The preconditioner of EigenPro in feature space, from a randomised SVD of the covariance of the features.

With the top q eigenpairs (λ_i, e_i) of the covariance H_M = ΦᵀΦ/M of M rows (Ma & Belkin 2017, eq. 17 and Table 1)

    P = I − Σ_i (1 − τ λ_{q+1}/λ_i) e_i e_iᵀ

Eigenvalues of the covariance, a mean over rows, estimate those of all n rows without the √(n/M) of Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamkern.precondition.eigensystem import Eigensystem
from streamkern.storage.serialize import serializable
from streamkern.types import Array


@serializable
@dataclass(frozen=True, eq=False)
class RandomizedSVD:
    """P = I − E (I − τ λ_{q+1} Λ⁻¹) Eᵀ, from the top q eigenpairs of the covariance of M features, E of shape (M, q).

    The damping τ in (0, 1] makes top directions slower than others, to compensate for errors of the eigenvectors.
    """

    eigensystem: Eigensystem
    tau: float = 1.0

    @property
    def damping(self) -> Array:
        """Share of each top direction that P removes, 1 − τ λ_{q+1}/λ_i: shape (q,)."""
        return 1.0 - self.tau * self.eigensystem.tail / self.eigensystem.values

    def apply(self, g: Array) -> Array:
        """Return P g, shape (M, c), in g's dtype."""
        E = self.eigensystem.vectors
        moved: Array = g - E @ (self.damping[:, None] * (E.T @ g))
        return moved.astype(g.dtype, copy=False)


def theorem_1(tail: float, kappa: float, m: int, size: int, delta: float = 0.1) -> float:
    """Return a bound on ‖P H_m‖ for a batch of m rows, with probability 1 − δ (Ma & Belkin 2017, Theorem 1, eq. 18).

        λ_{q+1} + 2 (λ_{q+1} + κ)/(3m) ln(2d/δ) + √(2 λ_{q+1} κ/m ln(2d/δ))

    A step of at most its inverse contracts in every such batch. The step of ``StepSize`` only contracts in mean square:
    its inverse is λ + (β − λ)/m, without the logarithm, and with the mean β of k_P(x, x) in place of the bound κ.

    ``tail`` is λ_{q+1}, the largest eigenvalue of P H; ``kappa`` is κ, an upper bound on φ(x)ᵀ P φ(x); ``size`` is d.
    """
    log = np.log(2.0 * size / delta)
    return float(tail + 2.0 * (tail + kappa) / (3.0 * m) * log + np.sqrt(2.0 * tail * kappa / m * log))
