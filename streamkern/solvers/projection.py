"""Projection onto span K(·, Z): θ with K(Z, Z) θ = h, exactly or nearly.

Abedsoltan et al. 2023, eq. 32. The exact solver factors K(Z, Z) once. The inexact one knows its top q eigenpairs, with
O(p q) memory, and approximates the rest: their Algorithm 2 runs EigenPro 2 on K(Z, Z) θ = h in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg

from streamkern.backends.product import Factor, packed_bytes
from streamkern.kernels import Expansion
from streamkern.precondition.eigensystem import Eigensystem, top_eigensystem
from streamkern.precondition.nystrom import Nystrom, StepSize, measure
from streamkern.rng import generator
from streamkern.solvers.cost import KERNEL_TILE
from streamkern.solvers.dense import Map, gram, gram_matmul, inverse_factor, matmul, mirror, times_lower
from streamkern.types import Array

JITTER = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}
"""ε of K(Z, Z) + ε I, as a share of the largest eigenvalue."""
COLUMNS = 64
"""Columns that an inexact projection is applied to at a time while it is measured."""

_POWER_STEPS, _POWER_COLUMNS = 4, 8
_DIAGONAL = 512  # rows that the preconditioned diagonal is taken over: p² for each


def eigen_floor(dtype: np.dtype[Any]) -> float:
    """Share of σ_1 below which eigenpairs are not preconditioned: there the jitter would outweigh σ_{q+1}."""
    return 10.0 * JITTER[dtype]


EIGEN_FLOOR = 1e-5
"""The same for EigenPro on centers, in either dtype. Without a factor of K(Z, Z), rounding errors of U in float64 count
(σ_1/σ_{q+1})² times; and preconditioned further, rows at the edge of the data have k_P so much above the others that a
sample does not show how large it gets."""


Imap = Callable[..., Iterator[Any]]
"""Runs a function over items wherever the run's blocks are computed: ``Executor.imap``."""


def on_host(parallel: Map) -> Imap:
    """In threads of this process, for what is too small to be sent anywhere, or happens in every step."""
    return lambda fn, items, shared=(): iter(parallel(lambda item: fn(item, *shared), items))


def _below(rows: slice, wide: Expansion) -> Array:
    """k(Z_i, Z_j) for i in ``rows`` and j up to the last of them."""
    return wide.head(rows.stop).block(wide.Z[rows])


def _block(X: Array, expansion: Expansion) -> Array:
    return expansion.block(X)


def _tiles(n: int, size: int) -> list[slice]:
    return [slice(a, min(a + size, n)) for a in range(0, n, size)]


def kernel_matrix(expansion: Expansion, s: int, parallel: Map, imap: Imap | None = None) -> Array:
    """k(Z_s, Z_s) of the first s centers in float64, shape (s, s), symmetric to the bit, with an exact diagonal.

    Args:
        expansion: kernel and centers.
        s: how many of them.
        parallel: runs tiles on the host.
        imap: runs the tiles of kernel values, each of which is computed once; ``parallel`` by default.
    """
    K = np.empty((s, s))
    for rows, below in kernel_rows(expansion, s, imap or on_host(parallel)):
        K[rows, : rows.stop] = below
    return mirror(K, parallel)


def kernel_rows(expansion: Expansion, s: int, imap: Imap) -> Iterator[tuple[slice, Array]]:
    """Tiles of rows of k(Z_s, Z_s), each up to its last row's column, in float64 and with an exact diagonal."""
    Z = expansion.Z[:s].astype(np.float64)
    wide, tiles = Expansion(expansion.kernel, Z, expansion.backend), _tiles(s, KERNEL_TILE)
    for rows, below in zip(tiles, imap(_below, tiles, (wide,)), strict=True):
        np.fill_diagonal(below[:, rows], wide.kernel.diag(Z[rows]))
        yield rows, below


def wide_bytes(s: int, d: int) -> int:
    """Bytes of s centers in float64, as they are and packed, while ``kernel_matrix`` is evaluated."""
    return s * d * 8 + packed_bytes(s, d, 8)


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
        out = gram_matmul(self.W, g, parallel, lower=True)
        if self.nystrom is not None:
            s = len(self.nystrom.eigensystem.vectors)
            out[:s] -= gram_matmul(self._damped, g[:s], parallel)
        return out

    @cached_property
    def _damped(self) -> Array:
        """F with Fᵀ F = Q_s, shape (q, s), in the dtype of W."""
        assert self.nystrom is not None
        F = (self.nystrom.eigensystem.vectors * np.sqrt(self.nystrom.damping)).T
        return np.ascontiguousarray(F, dtype=self.W.dtype)

    def diagonal(self, K: Array, parallel: Map) -> Array:
        """K(x, Z) M K(Z, x) of each row of K = k(X, Z), shape (n, p): shape (n,), float64."""
        values = np.sum(np.square(times_lower(K, self.W, parallel), dtype=np.float64), axis=1)
        if self.nystrom is not None:
            phi = K[:, : len(self.nystrom.eigensystem.vectors)] @ self.nystrom.eigensystem.vectors
            values -= np.square(phi) @ self.nystrom.damping
        return np.asarray(values)


def project_exactly(
    expansion: Expansion, nystrom: Nystrom | None, parallel: Map, imap: Imap | None = None, A: Array | None = None
) -> ExactProjection:
    """Factor K(Z, Z) + ε I, in float64. The jitter ε changes the speed and not the fixed point.

    Args:
        expansion: kernel and centers.
        nystrom: the preconditioner, or None.
        parallel: runs tiles on the host.
        imap: runs tiles of kernel values; ``parallel`` by default.
        A: K(Z, Z) in float64 where it is known; it is used up.

    Raises:
        NumericalError: K(Z, Z) + ε I is not positive definite.
    """
    if A is None:
        A = kernel_matrix(expansion, expansion.p, parallel, imap)
    scale = float(np.mean(np.diag(A)) * len(A))
    if nystrom is not None:
        scale = float(nystrom.eigensystem.values[0]) * len(A) / len(nystrom.eigensystem.vectors)
    A[np.diag_indices(len(A))] += JITTER[expansion.Z.dtype] * scale
    return ExactProjection(inverse_factor(A, expansion.Z.dtype, parallel), nystrom)


@dataclass(frozen=True, eq=False)
class InexactProjection:
    """P = U (σ_{q+1} Σ⁻²) Uᵀ + V c(V K V) V with K = K(Z, Z), its top eigenpairs Σ, U, and V = I − U Uᵀ.

    P stands for K⁻¹ − U (I − σ_{q+1} Σ⁻¹) Σ⁻¹ Uᵀ and is the same on the span of U. On the rest K⁻¹ is replaced by the
    Chebyshev polynomial c that is best on [b/(4k²), b], k − 1 = ``products`` its degree; for k = 1 it is 2/(b + b/4),
    and K is not needed at all.
    Any symmetric positive definite P gives α ← α − η/m P K(Z, X_m) r the same fixed point, K(Z, X) r = 0: an inexact
    projection costs speed and not accuracy. Batch and step are measured with the P in use.

    Args:
        expansion: kernel and centers.
        nystrom: the preconditioner on all centers: U, Σ and σ_{q+1}.
        bound: b, no less than the largest eigenvalue of V K V where products are taken.
        products: products with K(Z, Z) that one projection takes, each p² kernel values.
    """

    expansion: Expansion
    nystrom: Nystrom
    bound: float
    products: int

    def apply(self, g: Array, parallel: Map) -> Array:
        """P g, shape (p, c)."""
        system = self.nystrom.eigensystem
        U, k = system.vectors, self.products + 1
        wide = g.astype(np.float64)
        inside = _transposed(U, wide, parallel)
        r = wide - matmul(U, inside, parallel)
        # Chebyshev semi-iteration for V K V x = r from x = 0 (Golub & Varga 1961), k - 1 products.
        middle, half = self.bound * (1 + 0.25 / k**2) / 2, self.bound * (1 - 0.25 / k**2) / 2
        step = r / middle
        x, ratio = step.copy(), half / middle
        for _ in range(self.products):
            r -= self._outside(kernel_product(self.expansion, step, on_host(parallel)), parallel)
            before, ratio = ratio, 1 / (2 * middle / half - ratio)
            step = ratio * before * step + (2 * ratio / half) * r
            x += step
        x += matmul(U, (system.tail / np.square(system.values))[:, None] * inside, parallel)
        return x.astype(g.dtype)

    def _outside(self, v: Array, parallel: Map) -> Array:
        U = self.nystrom.eigensystem.vectors
        return np.asarray(v - matmul(U, _transposed(U, v, parallel), parallel))

    def kernel(self, K: Array, parallel: Map) -> Array:
        """K(X, Z) P K(Z, X) for K = k(X, Z), shape (n, p): shape (n, n), float64."""
        out = np.empty((len(K), len(K)))
        for a in range(0, len(K), COLUMNS):
            rows = slice(a, a + COLUMNS)
            out[:, rows] = matmul(K, self.apply(K[rows].T, parallel), parallel)
        return (out + out.T) / 2

    def diagonal(self, K: Array, parallel: Map) -> Array:
        """The diagonal of ``kernel(K)``, shape (n,), float64."""
        out = np.empty(len(K))
        for a in range(0, len(K), COLUMNS):
            rows = slice(a, a + COLUMNS)
            out[rows] = np.einsum("ij,ji->i", K[rows], self.apply(K[rows].T, parallel), dtype=np.float64)
        return out


def project_inexactly(
    expansion: Expansion, nystrom: Nystrom, products: int, parallel: Map, imap: Imap | None = None
) -> InexactProjection:
    """An inexact projection that takes a number of products with K(Z, Z).

    Args:
        expansion: kernel and centers.
        nystrom: the preconditioner on all centers.
        products: products with K(Z, Z) in one projection.
        parallel: runs tiles on the host.
        imap: runs tiles of kernel values; ``parallel`` by default.
    """
    projection = InexactProjection(expansion, nystrom, nystrom.eigensystem.tail, products)
    if not products:
        return projection
    v = generator("largest outside", expansion.p).standard_normal((expansion.p, _POWER_COLUMNS))
    v = projection._outside(v, parallel)
    for _ in range(_POWER_STEPS):
        v, _ = np.linalg.qr(v)
        v = projection._outside(kernel_product(expansion, v, imap or on_host(parallel)), parallel)
    # The power method's value is too small; beyond b + b/(4k²) the polynomial would change sign.
    bound = 1.2 * float(np.linalg.norm(v, 2))
    return replace(projection, bound=max(bound, nystrom.eigensystem.tail))


def _product(rows: slice, expansion: Expansion, right: Factor, columns: int, diagonal: Array) -> Array:
    out = np.empty((rows.stop - rows.start, columns))
    for part, K in expansion.panels(expansion.Z[rows]):
        here = np.arange(part.start, part.stop)
        K[here - part.start, rows.start + here] = diagonal[rows][part]
        product = np.empty((len(K), out.shape[1]), K.dtype)
        right.product(K, product)
        out[part] = product
    return out


def kernel_product(expansion: Expansion, V: Array, imap: Imap) -> Array:
    """K(Z, Z) V with an exact diagonal, shape (p, c), float64; values of the kernel in the expansion's dtype."""
    right, tiles = Factor(V.T.astype(expansion.Z.dtype)), _tiles(expansion.p, expansion.row_tile)
    shared = expansion, right, V.shape[1], expansion.kernel.diag(expansion.Z)
    return np.concatenate(list(imap(_product, tiles, shared)))


def center_eigensystem(
    expansion: Expansion, s: int, q: int, floor: float, parallel: Map, imap: Imap | None = None, K: Array | None = None
) -> Eigensystem:
    """Top eigenpairs of K(Z, Z): exact where s >= p, else of the Nyström approximation K V (Vᵀ K V)⁻¹ Vᵀ K.

    V is an orthonormal basis of the extensions K(Z, Z_s) e_i of the top eigenvectors of the first s rows, and K V is
    one product with K(Z, Z) (Frangella, Tropp & Udell 2023, Algorithm 2.1, from a better start than a random one). Its
    eigenvectors are much nearer to the true ones than Ritz vectors in V: what they miss of an eigenvector weighs λ².

    Args:
        expansion: kernel and centers.
        s: centers whose kernel matrix is decomposed.
        q: eigenpairs wanted, below min(s, p).
        floor: see ``top_eigensystem``.
        parallel: runs tiles on the host.
        imap: runs tiles of kernel values; ``parallel`` by default.
        K: K(Z, Z) in float64 where it is known, if s >= p.

    Raises:
        NumericalError: no eigenvalue is positive.
    """
    p = expansion.p
    if s >= p:
        return top_eigensystem(kernel_matrix(expansion, p, parallel, imap) if K is None else K, q, floor)
    more = min(s - 1, q + max(1, q // 10))  # the next ones make the q-th good, and σ_{q+1} known
    # In float32: what comes of it is a basis, and the eigenpairs are taken anew.
    start = top_eigensystem(kernel_matrix(expansion, s, parallel, imap).astype(np.float32), more, floor)
    landmarks = Expansion(expansion.kernel, expansion.Z[:s], expansion.backend)
    right = Factor((start.vectors / start.values).T.astype(expansion.Z.dtype))
    V = np.empty((p, len(start.values)))

    def extend(rows: slice) -> None:
        block = landmarks.block(expansion.Z[rows])
        out = np.empty((len(block), V.shape[1]), block.dtype)
        right.product(block, out)
        V[rows] = out

    parallel(extend, _tiles(p, 256))
    for _ in range(2):  # twice: the first time leaves rounding errors of the condition number
        gram = np.linalg.cholesky(_transposed(V, V, parallel))
        V = matmul(V, np.ascontiguousarray(np.linalg.inv(gram).T), parallel)
    product = kernel_product(expansion, V, imap or on_host(parallel))
    A = _transposed(V, product, parallel)
    values, vectors = scipy.linalg.eigh((A + A.T) / 2, check_finite=False)
    clear = values > floor * values[-1]
    F = matmul(product, vectors[:, clear] / np.sqrt(values[clear]), parallel)
    values, vectors = scipy.linalg.eigh(_transposed(F, F, parallel), check_finite=False)
    values, vectors = values[::-1], vectors[:, ::-1]
    # Where V has no more than these, what follows the last of them is not known, and may be as large.
    rank = min(int(np.count_nonzero(values[:q] > floor * values[0])), max(1, len(values) - 1))
    tail = max(float(values[rank]) if rank < len(values) else 0.0, floor * float(values[0]))
    return Eigensystem(values[:rank].copy(), matmul(F, vectors[:, :rank] / np.sqrt(values[:rank]), parallel), tail)


def _transposed(U: Array, V: Array, parallel: Map) -> Array:
    """Uᵀ V for tall U, by fixed tiles of columns of U."""
    return matmul(U.T, V, parallel, tile=64)


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


class ProjectedKernel:
    """The kernel K(x, Z) M K(Z, x') of the iteration with exact projection, over held-out rows.

    M differs between preconditioners of one eigensystem by a low rank only, so the p² work is done once for all.

    Args:
        expansion: kernel and centers.
        projection: M with the deepest preconditioner that is to be measured.
        X: held-out rows, centred, shape (n, d).
        parallel: runs tiles on the host.
        imap: runs blocks of kernel values; ``parallel`` by default.
    """

    def __init__(
        self, expansion: Expansion, projection: ExactProjection, X: Array, parallel: Map, imap: Imap | None = None
    ) -> None:
        self.n = len(X)
        # Training rows that are centers have the largest diagonal values, and held-out rows are none.
        rows = np.concatenate([X, expansion.Z[-_DIAGONAL:]])
        tiles = _tiles(len(rows), 256)
        blocks = (imap or on_host(parallel))(_block, [rows[part] for part in tiles], (expansion,))
        K = np.concatenate(list(blocks))
        E = np.empty((0, 0)) if projection.nystrom is None else projection.nystrom.eigensystem.vectors
        self.phi = matmul(K[:, : len(E)], E.astype(K.dtype), parallel, tile=256).astype(np.float64)
        A = times_lower(K, projection.W, parallel)
        self.diagonal = np.concatenate(
            parallel(lambda part: np.einsum("ij,ij->i", A[part], A[part], dtype=np.float64), tiles)
        )
        self.gram = gram(A[: self.n], parallel).astype(np.float64)

    def measure(self, nystrom: Nystrom | None) -> StepSize:
        """β and λ with a preconditioner of the first eigenpairs, or with none."""
        q = 0 if nystrom is None else len(nystrom.eigensystem.values)
        phi = self.phi[:, :q]
        damped = phi if nystrom is None else phi * nystrom.damping
        diagonal = self.diagonal - np.einsum("ij,ij->i", damped, phi)
        held, image = damped[: self.n], phi[: self.n]
        size = measure(diagonal[: self.n], lambda v: self.gram @ v - held @ (image.T @ v))
        return StepSize(size.beta, size.top, float(np.max(diagonal)))


def measure_projected(expansion: Expansion, projection: ExactProjection, X: Array, parallel: Map) -> StepSize:
    """β and λ of the iteration with exact projection.

    Args:
        expansion: kernel and centers.
        projection: M.
        X: held-out rows, centred, shape (n, d).
        parallel: runs tiles.
    """
    return ProjectedKernel(expansion, projection, X, parallel).measure(projection.nystrom)


def measure_inexact(expansion: Expansion, projection: InexactProjection, X: Array, parallel: Map) -> StepSize:
    """β and λ of the iteration with inexact projection, whose kernel is K(x, Z) P K(Z, x').

    Args:
        expansion: kernel and centers.
        projection: P.
        X: held-out rows, centred, shape (n, d).
        parallel: runs tiles.
    """
    rows = [slice(a, min(a + 256, len(X))) for a in range(0, len(X), 256)]
    K = projection.kernel(np.concatenate(parallel(lambda part: expansion.block(X[part]), rows)), parallel)
    size = measure(np.diag(K), lambda v: K @ v)
    centers = projection.diagonal(expansion.block(expansion.Z[-_DIAGONAL:]), parallel)
    return StepSize(size.beta, size.top, max(size.peak, float(np.max(centers))))
