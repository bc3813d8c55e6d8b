"""Projection onto span K(·, Z): θ with K(Z, Z) θ = h, exactly or nearly.

Abedsoltan et al. 2023, eq. 32. The exact solver factors K(Z, Z) once. The inexact one knows its top q eigenpairs, with
O(p q) memory, and approximates the rest: their Algorithm 2 runs EigenPro 2 on K(Z, Z) θ = h in every step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar, cast

import numpy as np

from streamkern.defaults import (
    JITTER,
    JITTER_MULTIPLES,
    MEASURED_CENTERS,
    MEASURED_ROWS,
    POWER_COLUMNS,
    POWER_STEPS,
)
from streamkern.engine import Engine
from streamkern.engine.packed_triangle import cuts
from streamkern.errors import NumericalError
from streamkern.kernels import Expansion
from streamkern.precondition.eigensystem import Eigensystem, product_with, top_eigensystem
from streamkern.precondition.nystrom import NystromPreconditioner, StepSize, measure
from streamkern.types import Array

MEASURED_COLUMNS = 64
"""Columns that a projection is applied to at a time while it is measured."""

_W = TypeVar("_W")


def eigen_floor(dtype: np.dtype[Any]) -> float:
    """Share of σ_1 below which eigenpairs are not preconditioned: there the jitter would outweigh σ_{q+1}."""
    return 10.0 * JITTER[dtype.name]


class Projection(ABC):
    """M of an iteration α ← α − η/m M K(Z, X_m) r, with a preconditioner or without."""

    engine: Engine

    @abstractmethod
    def apply(self, g: Array) -> Array:
        """Return M g, shape (p, c)."""

    def diagonal(self, K: Array) -> Array:
        """Return the diagonal of K M Kᵀ, shape (n,), for K = k(x, Z), shape (n, p)."""
        out = self.engine.empty((len(K),))
        for rows in cuts(len(K), MEASURED_COLUMNS):
            out[rows] = np.einsum("ij,ji->i", K[rows], self.apply(K[rows].T), dtype=np.float64)
        return out

    def center_diagonal(self, K: Array, own: Array) -> Array:
        """Return ``diagonal`` of n centers, for K = k(z, Z), shape (n, p), and their k(z, z), shape (n,)."""
        return self.diagonal(K)


@dataclass(frozen=True, eq=False)
class ExactProjection(Projection):
    """M = Wᵀ W − I_s Q_s I_sᵀ with Wᵀ W = (K(Z, Z) + ε I)⁻¹ and W (p, p) lower triangular, in the centers' dtype.

    With X_s the first s centers, one step of EigenPro 3 with exact projection is α ← α − η/m M K(Z, X_m) r, because
    K(Z, Z)⁻¹ K(Z, X_s) selects rows. M is never formed: its rounding errors are those of its largest entries, of order
    1/ε, while ‖W K(Z, x)‖ is at most k(x, x)^½. ``jitter`` is ε as a share of the largest eigenvalue of K(Z, Z).
    """

    W: Array
    nystrom: NystromPreconditioner | None
    engine: Engine
    jitter: float = 0.0

    def apply(self, g: Array) -> Array:
        return self.engine.project(self._placed, g)

    def center_diagonal(self, K: Array, own: Array) -> Array:
        """K WᵀW Kᵀ is K(Z, Z), less at most ε: centers need no product with W."""
        if self.nystrom is None:
            return own
        phi = self.engine.product(K, self.nystrom.eigensystem.vectors.astype(K.dtype)).astype(np.float64)
        return cast(Array, own - np.einsum("ij,ij->i", phi * self.nystrom.damping, phi))

    @cached_property
    def _placed(self) -> Any:
        """W, and F with Fᵀ F = Q_s, shape (q, s), in the dtype of W."""
        F = None
        if self.nystrom is not None:
            F = self.nystrom.eigensystem.vectors * np.sqrt(self.nystrom.damping)
            F = F.T.astype(self.W.dtype, order="C")
        return self.engine.place_projection(self.W, F)


def project_exactly(
    expansion: Expansion,
    nystrom: NystromPreconditioner | None,
    engine: Engine,
    K: Array | None = None,
    scale: float | None = None,
) -> ExactProjection:
    """Factor K(Z, Z) + ε I, where ε changes the speed and not the fixed point; ``scale`` as for ``jittered_factor``.

    K(Z, Z), where it is known, is in float64 or the centers' dtype; it is used up.
    """
    known = [K]  # used up by the first attempt
    del K
    W, jitter = jittered_factor(
        expansion, nystrom, engine, expansion.dtype,
        lambda shift: engine.kernel_factor(expansion, shift, known.pop() if known else None), scale,
    )  # fmt: skip
    return ExactProjection(W, nystrom, engine, jitter)


def jittered_factor(
    expansion: Expansion,
    nystrom: NystromPreconditioner | None,
    engine: Engine,
    dtype: np.dtype[Any],
    factor: Callable[[float], _W],
    scale: float | None = None,
) -> tuple[_W, float]:
    """Return the first factor of K(Z, Z) + ε I that exists, for ε that grow from the jitter of a dtype; and ε over σ_1.

    ``scale`` estimates the largest eigenvalue of K(Z, Z); if None, the preconditioner's, or else the trace is taken.
    """
    p = expansion.p
    if scale is None:
        scale = (
            float(np.mean(engine.diagonal(expansion, expansion.Z.astype(np.float64))) * p)
            if nystrom is None
            else float(nystrom.eigensystem.values[0]) * p / len(nystrom.eigensystem.vectors)
        )
    for more in JITTER_MULTIPLES:
        try:
            return factor(more * JITTER[dtype.name] * scale), more * JITTER[dtype.name]
        except NumericalError:
            if more == JITTER_MULTIPLES[-1]:
                raise
    raise AssertionError


def largest_eigenvalue(K: Array, s: int, engine: Engine) -> float:
    """Estimate the largest eigenvalue of K (p, p) from its first s rows and columns, a uniform sample."""
    head = K[:s, :s]
    return engine.top_eigenvalue(lambda v: engine.product(head, v[:, None].astype(K.dtype))[:, 0], s) * len(K) / s


def jitter_report(jitter: float, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Report the jitter of a factor; with a warning where it is above that of float32."""
    found: dict[str, Any] = {"jitter": jitter}
    if jitter > JITTER["float32"]:
        narrow = ['dtype="float64"'] if dtype == np.float32 else []
        remedies = [*narrow, "a smaller bandwidth", "scaled features", "solver=Direct()"]
        found["warnings"] = [
            f"EigenPro may not reach the exact solution: K(Z, Z) has a factor only with {jitter:.2g} of its largest"
            f" eigenvalue on the diagonal, and functions of smaller eigenvalues are trained slowly. Remedies:"
            f" {', or '.join(remedies)}."
        ]
    return found


@dataclass(frozen=True, eq=False)
class InexactProjection(Projection):
    """P = U (σ_{q+1} Σ⁻²) Uᵀ + V c(V K V) V with K = K(Z, Z), its top eigenpairs Σ, U, and V = I − U Uᵀ.

    P stands for K⁻¹ − U (I − σ_{q+1} Σ⁻¹) Σ⁻¹ Uᵀ and is the same on the span of U. On the rest K⁻¹ is replaced by the
    Chebyshev polynomial c that is best on [b/(4k²), b], k − 1 = ``products`` its degree; for k = 1 it is 2/(b + b/4),
    and K is not needed at all. b, ``bound``, is no less than the largest eigenvalue of V K V where products are taken.

    Any symmetric positive definite P gives α ← α − η/m P K(Z, X_m) r the same fixed point, K(Z, X) r = 0: an inexact
    projection costs speed and not accuracy. Batch and step are measured with the P in use.
    """

    expansion: Expansion
    nystrom: NystromPreconditioner
    bound: float
    products: int
    engine: Engine

    def apply(self, g: Array) -> Array:
        system, engine = self.nystrom.eigensystem, self.engine
        U, k = system.vectors, self.products + 1
        wide = g.astype(np.float64)
        inside = engine.product_t(U, wide)
        r = wide - engine.product(U, inside)
        # Chebyshev semi-iteration for V K V x = r from x = 0 (Golub & Varga 1961), k - 1 products.
        middle, half = self.bound * (1 + 0.25 / k**2) / 2, self.bound * (1 - 0.25 / k**2) / 2
        step = r / middle
        x, ratio = step.copy(), half / middle
        for _ in range(self.products):
            r -= self.outside(engine.kernel_product(self.expansion, step))
            before, ratio = ratio, 1 / (2 * middle / half - ratio)
            step = ratio * before * step + (2 * ratio / half) * r
            x += step
        x += engine.product(U, (system.tail / np.square(system.values))[:, None] * inside)
        return x.astype(g.dtype)

    def outside(self, v: Array) -> Array:
        """Return v less its part in the span of U."""
        U = self.nystrom.eigensystem.vectors
        return v - self.engine.product(U, self.engine.product_t(U, v))


def project_inexactly(
    expansion: Expansion, nystrom: NystromPreconditioner, products: int, engine: Engine
) -> InexactProjection:
    """Return an inexact projection that takes a number of products with K(Z, Z)."""
    projection = InexactProjection(expansion, nystrom, nystrom.eigensystem.tail, products, engine.here())
    if not products:
        return projection
    v = projection.outside(engine.normal((expansion.p, POWER_COLUMNS), "largest outside", expansion.p))
    for _ in range(POWER_STEPS):
        v, _ = np.linalg.qr(v)
        v = projection.outside(engine.kernel_product(expansion, v))
    # The power method's value is too small; beyond b + b/(4k²) the polynomial would change sign.
    bound = 1.2 * float(np.linalg.norm(v, 2))
    return replace(projection, bound=max(bound, nystrom.eigensystem.tail))


def center_eigensystem(
    expansion: Expansion, s: int, q: int, floor: float, engine: Engine, K: Array | None = None
) -> Eigensystem:
    """Return top q < min(s, p) eigenpairs of K(Z, Z), or where s < p of its approximation K V (Vᵀ K V)⁻¹ Vᵀ K.

    V is an orthonormal basis of the extensions K(Z, Z_s) e_i of the top eigenvectors of the first s rows, and K V is
    one product with K(Z, Z) (Frangella, Tropp & Udell 2023, Algorithm 2.1, from a better start than a random one). Its
    eigenvectors are much nearer to the true ones than Ritz vectors in V: what they miss of an eigenvector weighs λ².
    """
    p = expansion.p
    if s >= p:
        return top_eigensystem(engine.kernel_matrix(expansion, p) if K is None else K, q, engine, floor)
    more = min(s - 1, q + max(1, q // 10))  # the next ones make the q-th good, and σ_{q+1} known
    # float32 suffices for a starting basis: the eigenpairs are computed again below. Distances may overflow float32.
    start = top_eigensystem(
        (engine.kernel_matrix(expansion, s) if K is None else K[:s, :s]).astype(np.float32), more, engine, floor
    )
    U = (start.vectors / start.values).astype(expansion.dtype)
    product: Callable[[Array], Array] = partial(engine.kernel_product, expansion)
    if K is None:
        V = engine.values(expansion.head(s), expansion.Z, engine.right_factor(U.T).times).astype(np.float64)
    else:
        V = engine.product(K[:, :s], U).astype(np.float64)
        product = product_with(K, engine)
    for _ in range(2):  # twice: the first time leaves rounding errors of the condition number
        gram = np.linalg.cholesky(engine.product_t(V, V))
        V = engine.product(V, np.linalg.inv(gram).T.copy())
    KV = product(V)
    A = engine.product_t(V, KV)
    values, vectors = engine.eigh((A + A.T) / 2)
    clear = slice(len(values) - engine.count(values > floor * values[-1]), None)
    F = engine.product(KV, vectors[:, clear] / np.sqrt(values[clear]))
    values, vectors = engine.eigh(engine.product_t(F, F))
    values, vectors = values[::-1], vectors[:, ::-1]
    # If V has no further vectors, the next eigenvalue is unknown and may be as large as the last.
    rank = min(engine.count(values[:q] > floor * values[0]), max(1, len(values) - 1))
    tail = max(float(values[rank]) if rank < len(values) else 0.0, floor * float(values[0]))
    return Eigensystem(values[:rank].copy(), engine.product(F, vectors[:, :rank] / np.sqrt(values[:rank])), tail)


def measure_unprojected(expansion: Expansion, nystrom: NystromPreconditioner, X: Array, engine: Engine) -> StepSize:
    """Return β and λ of k_P(x, x') = k(x, x') − Σ_i (1 − σ_{q+1}/σ_i) φ_i(x) φ_i(x')/σ_i, φ_i(x) = K(x, X_s) e_i.

    X_s is the first s centers. The held-out rows X (n, d) are centred.
    """
    E = nystrom.eigensystem.vectors
    K = expansion.at(X).block(X)
    np.fill_diagonal(K, engine.diagonal(expansion, X))
    subsample, phi = expansion.head(len(E)), engine.empty((len(X), E.shape[1]))
    for rows in cuts(len(X), MEASURED_CENTERS):  # a whole K(X, X_s) in float64 would be the most that the set-up holds
        phi[rows] = subsample.block(X[rows]).astype(np.float64) @ E
    damped = phi * nystrom.damping
    diagonal = np.diag(K) - np.einsum("ij,ij->i", damped, phi)
    return measure(diagonal, lambda v: K @ v - damped @ (phi.T @ v), engine)


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Values of the kernel that the spectrum of an iteration is measured on: k(x, Z) of held-out rows, shape (n, p).

    Training rows that are centers have the largest diagonal values, and no held-out row is one: so there are k(z, Z) of
    some centers too, and k(z, z), ``own``.
    """

    held: Array
    centers: Array
    own: Array

    @classmethod
    def of(cls, expansion: Expansion, X: Array) -> MeasuredRows:
        """Evaluate the kernel of held-out rows X (n, d), which are centred."""
        engine, Z = expansion.engine, expansion.Z[-MEASURED_CENTERS:]
        K = engine.kernel_values(expansion, np.concatenate([X, Z]))
        return cls(K[: len(X)], K[len(X) :], engine.diagonal(expansion, Z))

    def measure(self, projection: Projection) -> StepSize:
        """Return β, over the first ``MEASURED_ROWS`` rows, and λ of k(x, Z) M k(Z, x'), with M as it is applied."""
        engine, K = projection.engine, self.held

        def matvec(v: Array) -> Array:
            g = engine.product_t(K, v[:, None].astype(K.dtype))
            return engine.product(K, projection.apply(g))[:, 0].astype(np.float64)

        size = measure(projection.diagonal(K[:MEASURED_ROWS]), matvec, engine, len(K))
        return replace(size, peak=max(size.peak, float(np.max(projection.center_diagonal(self.centers, self.own)))))
