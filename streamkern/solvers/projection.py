"""Projection onto span K(·, Z): θ with K(Z, Z) θ = h, exactly or by EigenPro 2.

Abedsoltan et al. 2023, eq. 32. The exact solver factors K(Z, Z) once. The inexact one runs epochs of EigenPro 2 (their
Algorithm 3) on the interpolation problem, with O(p) memory: K(Z, Z) is evaluated again, panel by panel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.execute.base import Tree
from streamkern.kernels import Expansion
from streamkern.precondition.eigensystem import top_eigensystem
from streamkern.precondition.nystrom import Nystrom, StepSize, measure
from streamkern.solvers.dense import Map, inverse_factor, lower_matmul, lower_transposed_matmul, matmul
from streamkern.types import Array

JITTER = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}
"""ε of K(Z, Z) + ε I, as a share of the largest eigenvalue."""
_HELD_OUT = 1000
_DIAGONAL = 512  # rows that the preconditioned diagonal is taken over: p² for each


def eigen_floor(dtype: np.dtype[Any]) -> float:
    """Share of σ_1 below which eigenpairs are not preconditioned: there the jitter would outweigh σ_{q+1}."""
    return 10.0 * JITTER[dtype]


def kernel_matrix(expansion: Expansion, s: int, parallel: Map) -> Array:
    """k(Z_s, Z_s) of the first s centers in float64, shape (s, s), symmetric to the bit, with an exact diagonal."""
    Z = expansion.Z[:s].astype(np.float64)
    wide = Expansion(expansion.kernel, Z, expansion.backend)
    K = np.empty((s, s))
    tiles = [slice(a, min(a + 512, s)) for a in range(0, s, 512)]

    def lower(rows: slice) -> None:
        below = Expansion(wide.kernel, Z[: rows.stop], wide.backend)
        below.block(Z[rows], out=K[rows, : rows.stop])

    parallel(lower, tiles)

    def mirror(rows: slice) -> None:
        for i in range(rows.start, rows.stop):
            K[:i, i] = K[i, :i]

    parallel(mirror, tiles)
    np.fill_diagonal(K, wide.kernel.diag(Z))
    return K


@dataclass(frozen=True, eq=False)
class ExactProjection:
    """M = Wᵀ W − I_s Q_s I_sᵀ with Wᵀ W = (K(Z, Z) + ε I)⁻¹ and W lower triangular.

    With X_s the first s centers, one step of EigenPro 3 with exact projection is α ← α − η/m M K(Z, X_m) r, because
    K(Z, Z)⁻¹ K(Z, X_s) selects rows. M is never formed: its rounding errors are those of its largest entries, of order
    1/ε, while ‖W K(Z, x)‖ is at most k(x, x)^½.

    Args:
        W: shape (p, p), in the expansion's dtype.
        nystrom: the preconditioner on X_s, or None.
    """

    W: Array
    nystrom: Nystrom | None

    def apply(self, g: Array, parallel: Map) -> Array:
        """M g, shape (p, c)."""
        out = lower_transposed_matmul(self.W, lower_matmul(self.W, g, parallel), parallel)
        if self.nystrom is not None:
            s = len(self.nystrom.eigensystem.vectors)
            out[:s] -= self.nystrom.correction(g[:s]).astype(out.dtype)
        return out

    def diagonal(self, K: Array, parallel: Map) -> Array:
        """K(x, Z) M K(Z, x) of each row of K = k(X, Z), shape (n, p): shape (n,), float64."""
        values = np.sum(np.square(lower_matmul(self.W, K.T, parallel), dtype=np.float64), axis=0)
        if self.nystrom is not None:
            phi = K[:, : len(self.nystrom.eigensystem.vectors)] @ self.nystrom.eigensystem.vectors
            values -= np.square(phi) @ self.nystrom.damping
        return np.asarray(values)


def project_exactly(expansion: Expansion, nystrom: Nystrom | None, parallel: Map) -> ExactProjection:
    """Factor K(Z, Z) + ε I, in float64. The jitter ε changes the speed and not the fixed point.

    Raises:
        NumericalError: K(Z, Z) + ε I is not positive definite.
    """
    A = kernel_matrix(expansion, expansion.p, parallel)
    scale = float(np.mean(np.diag(A)) * len(A))
    if nystrom is not None:
        scale = float(nystrom.eigensystem.values[0]) * len(A) / len(nystrom.eigensystem.vectors)
    A[np.diag_indices(len(A))] += JITTER[expansion.Z.dtype] * scale
    return ExactProjection(inverse_factor(A, expansion.Z.dtype, parallel), nystrom)


@dataclass(eq=False)
class InexactProjection:
    """EigenPro 2 on K(Z, Z) θ = h, from θ = 0.

    Args:
        expansion: kernel and centers; X_s is the first s of them.
        nystrom: the preconditioner on X_s.
        step_size: batch and step, measured on centers outside X_s.
        parallel: runs panels of a batch.
        epochs: most passes over the centers.
        tolerance: stop when ‖K θ − h‖ ≤ tolerance · ‖h‖, both seen along a pass.
    """

    expansion: Expansion
    nystrom: Nystrom
    step_size: StepSize
    parallel: Map
    epochs: int = 1
    tolerance: float = 1e-2

    def solve(self, h: Array) -> Array:
        """θ, shape (p, c)."""
        p, s = self.expansion.p, len(self.nystrom.eigensystem.vectors)
        theta = np.zeros_like(h)
        # A batch below the critical one loses nothing; panels set what is worth a call.
        batch = int(np.clip(self.step_size.critical_batch, min(p, 2 * self.expansion.row_tile), p))
        target = float(np.sum(np.square(h, dtype=np.float64)))
        for _ in range(self.epochs):
            seen = 0.0
            for start in range(0, p, batch):
                stop = min(start + batch, p)
                r, g = self._residual(theta, h, start, stop, s)
                seen += float(np.sum(np.square(r, dtype=np.float64)))
                rate = self.step_size.step(stop - start) / (stop - start)
                theta[start:stop] -= rate * r
                theta[:s] += (rate * self.nystrom.correction(g)).astype(theta.dtype)
            if seen <= self.tolerance**2 * target:
                break
        return theta

    def _residual(self, theta: Array, h: Array, start: int, stop: int, s: int) -> tuple[Array, Array]:
        """Residual r = K(Z_m, Z) θ − h_m and K(X_s, Z_m) r for rows [start, stop)."""
        tiles = [slice(a, min(a + self.expansion.row_tile, stop)) for a in range(start, stop, self.expansion.row_tile)]
        r = np.empty((stop - start, h.shape[1]), dtype=h.dtype)

        def panel(rows: slice) -> Array:
            (_, K) = next(self.expansion.panels(self.expansion.Z[rows]))
            part = r[rows.start - start : rows.stop - start]
            np.matmul(K, theta, out=part)
            part -= h[rows]
            return np.asarray(K[:, :s].T @ part)

        tree = Tree(len(tiles))
        for index, g in enumerate(self.parallel(panel, tiles)):
            tree.put(0, index, (g,))
        (total,) = tree.total()
        return r, total


def project_inexactly(
    expansion: Expansion, s: int, q: int, parallel: Map, epochs: int, tolerance: float
) -> InexactProjection:
    """Set up EigenPro 2 on the centers: a preconditioner of its own, measured on centers outside its subsample.

    Args:
        expansion: kernel and centers.
        s: rows of the subsample.
        q: eigenpairs.
        parallel: runs panels.
        epochs: most passes over the centers for one projection.
        tolerance: relative residual at which a projection stops early.
    """
    nystrom = Nystrom(top_eigensystem(kernel_matrix(expansion, s, parallel), q, eigen_floor(expansion.Z.dtype)))
    held = expansion.Z[s : s + _HELD_OUT] if expansion.p - s >= _HELD_OUT // 4 else expansion.Z[-_HELD_OUT:]
    return InexactProjection(
        expansion, nystrom, measure_unprojected(expansion, nystrom, held), parallel, epochs, tolerance
    )


def measure_unprojected(expansion: Expansion, nystrom: Nystrom, X: Array) -> StepSize:
    """β and λ of k_P(x, x') = k(x, x') − Σ_i (1 − σ_{q+1}/σ_i) φ_i(x) φ_i(x')/σ_i, φ_i(x) = K(x, X_s) e_i.

    Args:
        expansion: kernel and centers, of which X_s is the first s.
        nystrom: the preconditioner.
        X: held-out rows, centred, shape (n, d).
    """
    E = nystrom.eigensystem.vectors
    K = Expansion(expansion.kernel, X, expansion.backend).block(X)
    np.fill_diagonal(K, expansion.kernel.diag(X))
    phi = Expansion(expansion.kernel, expansion.Z[: len(E)], expansion.backend).block(X).astype(np.float64) @ E
    damped = phi * nystrom.damping
    diagonal = np.diag(K) - np.einsum("ij,ij->i", damped, phi)
    return measure(diagonal, lambda v: K @ v - damped @ (phi.T @ v))


def measure_projected(expansion: Expansion, projection: ExactProjection, X: Array, parallel: Map) -> StepSize:
    """β and λ of the iteration with exact projection, whose kernel is K(x, Z) M K(Z, x').

    Args:
        expansion: kernel and centers.
        projection: M.
        X: held-out rows, centred, shape (n, d).
        parallel: runs tiles.
    """
    rows = [slice(a, min(a + 256, len(X))) for a in range(0, len(X), 256)]
    K = np.concatenate(parallel(lambda part: expansion.block(X[part]), rows))
    diagonal = projection.diagonal(K[:_DIAGONAL], parallel)

    def matvec(v: Array) -> Array:
        g = matmul(K.T, v.astype(K.dtype)[:, None], parallel)
        return matmul(K, projection.apply(g, parallel), parallel)[:, 0].astype(np.float64)

    size = measure(np.resize(diagonal, len(X)), matvec)
    # Training rows that are centers have the largest values, and held-out rows are none.
    centers = projection.diagonal(expansion.block(expansion.Z[-_DIAGONAL:]), parallel)
    return StepSize(float(np.mean(diagonal)), size.top, max(size.peak, float(np.max(centers))))
