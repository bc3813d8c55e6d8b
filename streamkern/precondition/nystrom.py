"""The preconditioners of EigenPro, and the choice of batch and step.

P_s = I − Σ_i (1 − σ_{q+1}/σ_i) ψ_i ⊗ ψ_i over the top q eigenfunctions of a subsample X_s (Abedsoltan et al. 2023,
eq. 29). On K(·, X_m) r it acts as K(·, X_m) r − K(·, X_s) Q_s K(X_s, X_m) r, with

    Q_s = E (I − σ_{q+1} Σ⁻¹) Σ⁻¹ Eᵀ                                                             (eq. 30)

In feature space, with the top q eigenpairs (λ_i, e_i) of the covariance H_M = ΦᵀΦ/M of M rows (Ma & Belkin 2017, eq. 17
and Table 1), P = I − Σ_i (1 − τ λ_{q+1}/λ_i) e_i e_iᵀ. Eigenvalues of the covariance, a mean over rows, estimate those
of all n rows without the √(n/M) of Table 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from streamkern.cpu import default_engine
from streamkern.defaults import MAX_HALVINGS
from streamkern.engine import Engine
from streamkern.errors import NumericalError
from streamkern.precondition.eigensystem import Eigensystem
from streamkern.storage.serialize import serializable
from streamkern.types import Array

S = TypeVar("S")


@serializable
@dataclass(frozen=True, eq=False)
class NystromPreconditioner:
    """The preconditioner on a subsample of s rows, from the top q eigenpairs of K(X_s, X_s)."""

    eigensystem: Eigensystem

    @property
    def damping(self) -> Array:
        """Diagonal of Q_s in the eigenbasis, (1 − σ_{q+1}/σ_i)/σ_i: shape (q,)."""
        values = self.eigensystem.values
        return (1.0 - self.eigensystem.tail / values) / values

    def truncated(self, q: int) -> NystromPreconditioner:
        """Return the preconditioner of the first q eigenpairs; the same object if it has no more."""
        values = self.eigensystem.values
        if q >= len(values):
            return self
        return NystromPreconditioner(
            Eigensystem(values[:q], np.ascontiguousarray(self.eigensystem.vectors[:, :q]), float(values[q]))
        )

    def correction(self, g: Array) -> Array:
        """Return Q_s g, shape (s, c), for g = K(X_s, X_m) r."""
        E = self.eigensystem.vectors
        return cast(Array, E @ (self.damping[:, None] * (E.T @ g)))


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


@serializable
@dataclass(frozen=True)
class StepSize:
    """Step sizes for the preconditioned kernel k_P, measured on n rows outside the subsample.

    β and the ``peak`` are mean and maximum of k_P(x, x); λ, ``top``, is the top eigenvalue of its matrix, divided by n.
    The step is halved ``halvings`` times, because training diverged.
    """

    beta: float
    top: float
    peak: float
    halvings: int = 0

    @property
    def critical_batch(self) -> float:
        """m* = β/λ, the batch up to which the step grows about linearly with the batch."""
        return self.beta / self.top

    def step(self, m: int) -> float:
        """Return η = m/(β + (m − 1) λ), for the mean gradient of a batch of m rows; at most m/max k_P(x, x).

        A step changes the residual of a row x of the batch by η/m k_P(x, x) times the residual: above the second bound,
        rows far from all others overshoot, and above twice the bound they diverge.
        """
        return m / max(self.beta + (m - 1) * self.top, self.peak) / (1 << self.halvings)

    def report(self, batch: int, step: float | None) -> dict[str, Any]:
        """Return β, λ, the peak, batch and step, for the report of a fit; ``step`` is the user's, or None."""
        found = {
            "beta": self.beta, "lambda": self.top, "peak": self.peak, "critical_batch": self.critical_batch,
            "batch": batch, "step": step or self.step(batch),
        }  # fmt: skip
        return found | {"halvings": self.halvings} if self.halvings else found


def with_halved_step(prepared: S, step: float | None) -> S | None:
    """Return a solver's prepared value with half the step; None for a user's step, or after too many halvings."""
    given: Any = prepared
    size: StepSize = given.size
    if step is not None or size.halvings >= MAX_HALVINGS:
        return None
    return cast("S", replace(given, size=replace(size, halvings=size.halvings + 1)))


def measure(
    diagonal: Array, matvec: Callable[[Array], Array], engine: Engine | None = None, n: int | None = None
) -> StepSize:
    """Return β and λ of a preconditioned kernel over n held-out rows.

    ``diagonal`` is k_P(x_i, x_i) of all of them, or of some, and ``matvec`` maps v (n,) to K_P v. ``NumericalError`` if
    the kernel is not positive.
    """
    n = n or len(diagonal)
    top = (engine or default_engine()).top_eigenvalue(matvec, n)
    beta = float(np.mean(diagonal, dtype=np.float64))
    size = StepSize(beta, top / n, float(np.max(diagonal)))
    if not (np.isfinite(size.beta) and size.beta > 0 and np.isfinite(size.top) and size.top > 0):
        raise NumericalError(
            f"The preconditioned kernel is not positive: mean diagonal {size.beta:.3g}, top eigenvalue {size.top:.3g}.",
            where="eigensystem",
            expected="both positive",
            remedy="lower q, or compute in float64",
        )
    # The largest Ritz value approaches the largest eigenvalue from below.
    return StepSize(size.beta, min(1.05 * size.top, size.beta), size.peak)


def step_of_features(phi: Array, engine: Engine) -> StepSize:
    """Return β and λ of the kernel φ(x)ᵀ φ(x') over the rows of ``phi``, shape (n, M), float64."""

    def matvec(v: Array) -> Array:
        return engine.product(phi, engine.product(phi.T, v[:, None]))[:, 0]

    return measure(np.einsum("ij,ij->i", phi, phi), matvec, engine)


def theorem_1(tail: float, kappa: float, m: int, size: int, delta: float = 0.1) -> float:
    """Return a bound on ‖P H_m‖ for a batch of m rows, with probability 1 − δ (Ma & Belkin 2017, Theorem 1, eq. 18).

        λ_{q+1} + 2 (λ_{q+1} + κ)/(3m) ln(2d/δ) + √(2 λ_{q+1} κ/m ln(2d/δ))

    A step of at most its inverse contracts in every such batch. The step of ``StepSize`` only contracts in mean square:
    its inverse is λ + (β − λ)/m, without the logarithm, and with the mean β of k_P(x, x) in place of the bound κ.

    ``tail`` is λ_{q+1}, the largest eigenvalue of P H; ``kappa`` is κ, an upper bound on φ(x)ᵀ P φ(x); ``size`` is d.
    """
    log = np.log(2.0 * size / delta)
    return float(tail + 2.0 * (tail + kappa) / (3.0 * m) * log + np.sqrt(2.0 * tail * kappa / m * log))
