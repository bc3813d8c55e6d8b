"""The top of the spectrum of streamed data by block Lanczos, and the preconditioner sketched from it.

With C = ΦᵀΦ/n over all rows, one sweep gives C V for a block V of k columns. Musco & Musco 2015 ("Randomized block
Krylov methods", Algorithm 2; Algorithm 2 of Gonen, Orabona & Shalev-Shwartz 2016) take the best rank-k approximation
within the span of V, C V, ..., C^{q−1} V for a random V. About log M/√ε blocks give every eigenvalue to ε λ_{k+1},
for any gaps between eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streamkern.data.row_order import Block
from streamkern.defaults import MIN_RESOLVED_EIGENVALUE
from streamkern.engine import Engine
from streamkern.errors import NumericalError, UsageError
from streamkern.execute.base import Parts
from streamkern.kernels import Basis
from streamkern.storage.serialize import serializable
from streamkern.sweep import Contribute
from streamkern.types import Array


def _covariance_product(basis: Basis, block: Block, state: Array) -> Parts:
    """Contribute φ(X)ᵀ W φ(X) V in float64, with sample weights W and V = ``state``, (M, k), and the rows."""
    product = basis.engine.zeros(state.shape)
    for rows, phi in basis.engine.panels(basis, block.X):
        F = phi @ state
        if block.w is not None:
            F *= block.w[rows, None].astype(F.dtype)
        product += phi.T @ F
    return product, block.X.shape[0]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Top eigenpairs of C = ΦᵀΦ/n: squared singular values σ² (k,), and right singular vectors u (M, k), of Φ/√n.

    Residuals ‖C u_i − σ_i² u_i‖, shape (k,), bound the distance from σ_i² to an eigenvalue of C.
    """

    values: Array
    vectors: Array
    residuals: Array
    sweeps: int


def block_lanczos(
    sweep: Callable[[Contribute, Any], Parts],
    basis: Basis,
    k: int,
    engine: Engine,
    *,
    epsilon: float = 0.5,
    seed: int = 0,
) -> Spectrum:
    """Return the top k eigenpairs of C = ΦᵀΦ/n, or as many as its rank, in at most ⌈log M/√ε⌉ sweeps over all rows.

    It stops earlier once every residual is below ε σ_k². Products with Φ are computed in the basis's dtype; sums and
    the linear algebra of the Krylov space, which takes 2 M k numbers for each sweep, in float64. ``sweep`` sums a
    contribution over all rows.
    """
    M = basis.width
    k = min(k, M)
    block = np.linalg.qr(engine.normal((M, k), "block lanczos", seed))[0]
    Q, W = engine.empty((M, 0)), engine.empty((M, 0))
    limit = max(2, int(np.ceil(np.log(M) / np.sqrt(epsilon))))
    sweeps = 0
    while sweeps < limit:
        sweeps += 1
        # The sweep multiplies with the rounded block, so the rounded block must span the space.
        rounded = block.astype(basis.dtype)
        product, n = sweep(partial(_covariance_product, basis), rounded)
        product /= n
        if engine.decide(~(np.isfinite(product).all() & product.any()), bound=False):
            raise NumericalError(
                "The covariance of the features is not finite, or 0.",
                where="block Lanczos",
                expected="finite features, not all 0",
                remedy="check the data's scale and the feature map",
            )
        pairs = ((Q, rounded.astype(np.float64)), (W, product))
        Q, W = (np.concatenate(pair, axis=1) for pair in pairs)
        del pairs
        # The Ritz pairs, Qᵀ C Q y = θ Qᵀ Q y: rounded blocks are not quite orthonormal.
        S = Q.T @ W
        values, Y = engine.eigh(0.5 * (S + S.T), Q.T @ Q, top=k)
        values, Y = values[::-1], Y[:, ::-1]
        del S
        vectors = Q @ Y
        residuals = np.linalg.norm(W @ Y - vectors * values, axis=0)
        block = _new_directions(product, Q, engine)
        resolved = MIN_RESOLVED_EIGENVALUE * np.finfo(basis.dtype).eps * values[0]
        if not block.shape[1] or engine.decide(
            (residuals <= np.maximum(epsilon * values[-1], resolved)).all(), bound=False
        ):
            break
    rank = engine.count(values > resolved)
    return Spectrum(values[:rank], vectors[:, :rank], residuals[:rank], sweeps)


def _new_directions(B: Array, Q: Array, engine: Engine) -> Array:
    """Orthonormal columns that span B beyond the span of Q; none if only rounding errors remain."""
    scale = np.linalg.norm(B, axis=0)
    rest = B / np.where(scale > 0, scale, 1.0)
    for _ in range(2):  # twice, because once leaves the error of cancellation
        rest = rest - Q @ (Q.T @ rest)
    basis, R = engine.pivoted_qr(rest)
    strong = np.abs(np.diag(R)) > 1e3 * np.finfo(np.float64).eps
    room = len(Q) - Q.shape[1]
    new = basis[:, : min(engine.count(strong), room)]
    # Pivoted columns of a nearly dependent block are not orthogonal to Q any more.
    return np.linalg.qr(new - Q @ (Q.T @ new))[0]


@serializable
@dataclass(frozen=True, eq=False)
class LowRank:
    """P = Σ_i s_i u_i u_iᵀ + s (I − Σ_i u_i u_iᵀ) with orthonormal u, shape (M, k), all s > 0, and s = ``rest``."""

    vectors: Array
    scales: Array
    rest: float

    @property
    def least(self) -> float:
        """The smallest eigenvalue."""
        return min(self.rest, float(np.min(self.scales))) if len(self.scales) else self.rest

    def inverse(self, g: Array) -> Array:
        """Return P⁻¹ g, shape (M, c)."""
        U = self.vectors
        found: Array = g / self.rest - U @ ((1.0 / self.rest - 1.0 / self.scales)[:, None] * (U.T @ g))
        return found

    def inverse_root(self, phi: Array) -> Array:
        """Return rows P^{−1/2} φ for rows φ, shape (b, M)."""
        gain = 1.0 / np.sqrt(self.rest) - 1.0 / np.sqrt(self.scales)
        rows: Array = phi / np.sqrt(self.rest) - ((phi @ self.vectors) * gain) @ self.vectors.T
        return rows

    def norms(self, phi: Array) -> Array:
        """Return ‖P^{−1/2} φ‖² for rows φ, shape (b,), float64."""
        total = np.einsum("ij,ij->i", phi, phi, dtype=np.float64) / self.rest
        inside = np.square(phi @ self.vectors.astype(phi.dtype), dtype=np.float64)
        norms: Array = total - inside @ (1.0 / self.rest - 1.0 / self.scales)
        return norms


def sketched_preconditioner(spectrum: Spectrum, ridge: float) -> LowRank:
    """Return P with P^{−1/2} = Σ u_i u_iᵀ/√(σ_i² + λ) + (I − Σ u_i u_iᵀ)/√(σ_k² + λ) (Gonen et al. 2016, eq. 8)."""
    scales = spectrum.values + ridge
    return LowRank(spectrum.vectors, scales, float(scales[-1]))


def identity_preconditioner(M: int) -> LowRank:
    """Return P = I of size M."""
    return LowRank(np.empty((M, 0)), np.empty(0), 1.0)


def speedup_ratio(eigenvalues: Array, k: int, ridge: float = 0.0) -> float:
    """Return the ratio of average condition numbers without and with the exact sketched preconditioner.

    Σ_i (λ_i + λ) / (k (λ_k + λ) + Σ_{i>k} (λ_i + λ)) over all eigenvalues (d,) of C, in any order. The paper's ratio
    (Gonen et al. 2016, eq. 3) has the ridge λ = 0.
    """
    spectrum = np.sort(np.asarray(eigenvalues, dtype=np.float64))[::-1] + ridge
    if not 1 <= k <= len(spectrum):
        raise UsageError(f"k is {k}.", where="speedup_ratio(k=...)", expected=f"1 to {len(spectrum)}")
    return float(spectrum.sum() / (k * spectrum[k - 1] + spectrum[k:].sum()))
