"""Projection by an inverse factor in 16 bits: exact where the factor is whole, and nearly so where it keeps a lead.

With W of ``engine.packed``, U, Σ the top q eigenpairs of K(Z, Z) and Π = I − U Uᵀ,

    M = Π WᵀW Π + U σ_{q+1} Σ⁻² Uᵀ

is positive whatever the rounding of W, which K(Z, Z)⁻¹ − Q_s is not. With W exact the two are one and the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streamkern.engine import Engine
from streamkern.engine.packed import PANEL, PackedFactor, fitting_lead
from streamkern.kernels import Expansion
from streamkern.kernels.base import tiles
from streamkern.precondition.nystrom import NystromPreconditioner, StepSize, measure
from streamkern.solvers.projection import DIAGONAL, factored
from streamkern.types import Array

_LEAST = 2 * PANEL  # rows of a lead for any budget: about the memory of the eigenpairs


@dataclass(frozen=True, eq=False)
class PackedProjection:
    """M = Π WᵀW Π + U σ_{q+1} Σ⁻² Uᵀ.

    Args:
        W: the packed inverse factor.
        nystrom: the preconditioner on all centers: U, Σ and σ_{q+1}.
        engine: takes the products.
        jitter: ε, as a share of the largest eigenvalue of K(Z, Z).
    """

    W: PackedFactor
    nystrom: NystromPreconditioner
    engine: Engine
    jitter: float = 0.0

    def apply(self, g: Array) -> Array:
        """M g, shape (p, c): products with U in float64, as the projected part of g is small."""
        system, engine = self.nystrom.eigensystem, self.engine
        U, wide = system.vectors, g.astype(np.float64)
        inside = engine.product_t(U, wide)
        r = wide - engine.product(U, inside)
        x = engine.packed_product(self._placed, r.astype(np.float32)).astype(np.float64)
        x += engine.product(U, (system.tail / np.square(system.values))[:, None] * inside - engine.product_t(U, x))
        return x.astype(g.dtype)

    @cached_property
    def _placed(self) -> Any:
        return self.engine.place(self.W)


def packed_lead(p: int, memory: int | None) -> int:
    """Centers of the lead that a factor of p centers has in so much memory; p for a whole factor."""
    return p if p <= _LEAST else max(_LEAST, fitting_lead(p, memory))


def project_packed(expansion: Expansion, nystrom: NystromPreconditioner, lead: int, engine: Engine) -> PackedProjection:
    """Factor K(Z, Z) + ε I, ε that of float32 whatever the dtype.

    Args:
        expansion: kernel and centers.
        nystrom: the preconditioner on all centers.
        lead: see ``packed_lead``.
        engine: evaluates and factors.

    Raises:
        NumericalError: K(Z, Z) + ε I is not positive definite.
    """
    W, jitter = factored(
        expansion, nystrom, engine, np.dtype(np.float32), lambda shift: engine.packed_factor(expansion, shift, lead)
    )
    return PackedProjection(W, nystrom, engine, jitter)


class PackedKernel:
    """The kernel K(x, Z) M K(Z, x') of the iteration with a packed factor, over held-out rows.

    It is B Bᵀ − Φ Cᵀ − C Φᵀ + Φ (TᵀT + σ_{q+1} Σ⁻²) Φᵀ with B = K(X, Z) Wᵀ, Φ = K(X, Z) U, T = W U and C = B T: so
    the work of order p² is done once for all preconditioners of one eigensystem.

    Args:
        expansion: kernel and centers.
        projection: M with the deepest preconditioner that is to be measured.
        X: held-out rows, centred, shape (n, d).
    """

    def __init__(self, expansion: Expansion, projection: PackedProjection, X: Array) -> None:
        self.n, engine = len(X), projection.engine
        self.engine, U = engine, projection.nystrom.eigensystem.vectors
        rows = np.concatenate([X, expansion.Z[-DIAGONAL:]])
        self.phi, B = engine.empty((len(rows), U.shape[1])), engine.empty((len(rows), expansion.p), np.float32)
        narrow = U.astype(expansion.dtype)
        for part in tiles(len(rows), DIAGONAL):  # a whole K(X, Z) would be the most that the set-up holds
            K = engine.kernel_values(expansion, rows[part])
            self.phi[part] = engine.product(K, narrow)
            B[part] = engine.times_packed(K, projection.W)
        del K, narrow
        T = engine.times_packed(U.T, projection.W).T
        self.inner = engine.product_t(T, T).astype(np.float64)
        self.cross = engine.product(B, T).astype(np.float64)
        self.diagonal = engine.row_squares(B)
        self.gram = engine.gram(B[: self.n]).astype(np.float64)

    def measure(self, nystrom: NystromPreconditioner | None) -> StepSize:
        """β and λ with a preconditioner of the first eigenpairs."""
        assert nystrom is not None
        system = nystrom.eigensystem
        q = len(system.values)
        phi, cross, inner = self.phi[:, :q], self.cross[:, :q], self.inner[:q, :q].copy()
        np.fill_diagonal(inner, np.diag(inner) + system.tail / np.square(system.values))
        # Φ (S Φᵀ − Cᵀ) − C Φᵀ
        mixed = phi @ inner - cross
        diagonal = self.diagonal + np.einsum("ij,ij->i", phi, mixed) - np.einsum("ij,ij->i", cross, phi)
        held, image, back = phi[: self.n], mixed[: self.n], cross[: self.n]
        size = measure(
            diagonal[: self.n],
            lambda v: self.gram @ v + held @ (image.T @ v) - back @ (held.T @ v),
            self.engine,
        )
        return StepSize(size.beta, size.top, float(np.max(diagonal)))
