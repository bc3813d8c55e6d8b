"""Ridge regression in closed form, in float64: for every ridge at once, and with rows left out without a second fit.

The equations of a ridge λ are (G + λ R) w = m, with G = ΦᵀΦ/n, m = Φᵀy/n and a penalty R, which is K(Z, Z) for kernel
values at centers Z. With R = L Lᵀ and w = L⁻ᵀ v they are (A + λ I) v = b for A = L⁻¹ G L⁻ᵀ and b = L⁻¹ m. One
eigendecomposition of A gives every λ. L is lower triangular, so the leading blocks of L, A and b are those of the first
p functions alone: a factorisation of all holds that of any number of them.

The error of a row that is left out is the row's error divided by 1 − hᵢ, with its leverage hᵢ = φᵢᵀ(G + λR)⁻¹φᵢ/n
(Allen 1974; Golub, Heath and Wahba 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from streamkern.engine.reference import Engine
from streamkern.errors import NumericalError
from streamkern.types import Array

MIN_UNLEVERED = 1e-6
"""Least 1 − h of a row: below, rounding decides."""


def unlevered(leverage: Array) -> Array:
    """Return 1 − h for leverages h: the error of a row is divided by it where the row is left out."""
    return np.maximum(1.0 - leverage, MIN_UNLEVERED)


def solve_ridge(engine: Engine, gram: Array, moment: Array, ridge: float, penalty: Array | None = None) -> Array:
    """Return (G + λ R)⁻¹ m by a Cholesky factor, shape (p, c); R is the identity by default.

    ``gram`` and ``penalty`` are (p, p) and ``moment`` (p, c), all float64. ``NumericalError`` is raised if the matrix
    is not positive definite.
    """
    if penalty is not None:
        return engine.spd_solve(gram + ridge * penalty, moment)
    A = gram.copy()
    A[np.diag_indices(len(A))] += ridge
    return engine.spd_solve(A, moment)


@dataclass(frozen=True, eq=False)
class RidgePath:
    """The whitened equations of P functions, in float64: L and A are (P, P), b is (P, c)."""

    factor: Array
    gram: Array
    moment: Array
    engine: Engine

    @classmethod
    def of_sums(cls, gram: Array, moment: Array, penalty: Array, engine: Engine) -> RidgePath:
        """Whiten G (P, P) and m (P, c) by the factor of the penalty (P, P), which is overwritten."""
        L = engine.cholesky(penalty)
        half = engine.triangular_solve(L, gram, lower=True)
        A = engine.triangular_solve(L, half.T, lower=True)
        return cls(L, (A + A.T) / 2, engine.triangular_solve(L, moment, lower=True), engine)

    @cached_property
    def eigenpairs(self) -> tuple[Array, Array]:
        """Eigenvalues (P,), not below 0, and eigenvectors (P, P) of A."""
        values, vectors = self.engine.eigh(self.gram)
        return np.maximum(values, 0.0), vectors

    def weights(self, ridges: Sequence[float]) -> Array:
        """Return weights for each ridge, side by side: (P, len(ridges) c), float64."""
        values, vectors = self.eigenpairs
        inside = vectors.T @ self.moment
        spread = values[:, None, None] + np.asarray(ridges, dtype=np.float64)[:, None]
        V = vectors @ (inside[:, None, :] / spread).reshape(len(values), -1)
        return self.engine.triangular_solve(self.factor, V, lower=True, transposed=True)

    def head(self, p: int) -> RidgePath:
        """Return the path of the first p functions."""
        return RidgePath(self.factor[:p, :p], self.gram[:p, :p], self.moment[:p], self.engine)

    def solved(self, ridges: Sequence[float]) -> Array:
        """Return ``weights`` by a factorisation for each ridge: less work than one decomposition.

        Where λ is below the rounding of A, as for smooth kernels in float32, by the decomposition after all.
        """
        try:
            found = [solve_ridge(self.engine, self.gram, self.moment, ridge) for ridge in ridges]
        except NumericalError:
            return self.weights(ridges)
        return self.engine.triangular_solve(self.factor, np.concatenate(found, axis=1), lower=True, transposed=True)


class LeftOutPath(NamedTuple):
    """Weights (p, k c) for k ridges, and targets less the outputs of rows that are left out, (n, k, c)."""

    weights: Array
    missed: Array


def left_out_path(engine: Engine, phi: Array, Y: Array, penalty: Array, ridges: Sequence[float]) -> LeftOutPath:
    """Solve ridge regression of Y (n, c) on functions ``phi`` (n, p) for every ridge, with each row left out.

    The penalty (p, p) is overwritten. ``NumericalError`` is raised if it is not positive definite.
    """
    n, c = Y.shape
    L = engine.cholesky(penalty)
    white = engine.triangular_solve(L, phi.T.copy(), lower=True).T.copy()  # rows φᵀL⁻ᵀ
    path = RidgePath(L, engine.gram(white.T.copy()) / n, engine.product(white.T.copy(), Y) / n, engine)
    values, vectors = path.eigenpairs
    turned = engine.product(white, vectors)
    shrunk = 1.0 / (values[:, None] + np.asarray(ridges, dtype=np.float64))
    inside = engine.product_t(vectors, path.moment)
    fitted = engine.product(turned, (shrunk[:, :, None] * inside[:, None, :]).reshape(len(values), -1))
    rest = unlevered(engine.product(np.square(turned) / n, shrunk))
    missed = (Y[:, None, :] - fitted.reshape(n, len(ridges), c)) / rest[:, :, None]
    return LeftOutPath(path.weights(ridges), missed)


def left_out_kernel_path(
    engine: Engine, K: Array, Y: Array, root: Array, n: float, ridges: Sequence[float]
) -> LeftOutPath:
    """Solve ridge regression on rows that are all centers, for every ridge, with each row and its center left out.

    With S² the rows' weights and B = S K S + λ n I, the output of a row that is left out differs from its target by
    bᵢ / (sᵢ (B⁻¹)ᵢᵢ), b = B⁻¹ S y. K (m, m), float64, is overwritten; Y has shape (m, c); ``root``, shape (m, 1), are
    square roots of the rows' positive weights, whose sum is n.
    """
    m, c = Y.shape
    K *= root
    K *= root.T
    values, vectors = engine.eigh(K)
    shrunk = 1.0 / (np.maximum(values, 0.0)[:, None] + n * np.asarray(ridges, dtype=np.float64))
    inside = engine.product_t(vectors, Y * root)
    b = engine.product(vectors, (shrunk[:, :, None] * inside[:, None, :]).reshape(m, len(ridges) * c))
    diagonal = engine.product(np.square(vectors), shrunk)
    missed = b.reshape(m, len(ridges), c) / (root * diagonal)[:, :, None]
    return LeftOutPath(b * root, missed)
