"""Falkon: conjugate gradients on preconditioned Nyström normal equations, one sweep an iteration.

Rudi, Carratino & Rosasco 2017. With upper Cholesky factors K_ZZ = Tᵀ T and T Tᵀ/p + λ I = Aᵀ A, α = T⁻¹ A⁻¹ β solves
 (K_Zn K_nZ/n + λ K_ZZ) α = K_Zn y/n, and the matrix of β is well conditioned. With sample weights W, of mean 1, K_Zn W
stands for K_Zn, and where weights differ Σ w_x b bᵀ/n, b = T⁻ᵀ K_Zx, for T Tᵀ/p: over the centers where they are all
rows, else over them and some rows that are drawn by weight, since centers that are drawn evenly miss the few rows that
have most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.row_order import Stream
from streamkern.defaults import FALKON_PROBES, MAX_LOST_SHARE, MAX_RESIDUAL, MAX_WEIGHT_ROUNDING, ROWS_PER_FUNCTION
from streamkern.engine.packed_triangle import cuts
from streamkern.errors import require_counts, require_ridge
from streamkern.kernels import Expansion
from streamkern.solvers.base import Failure, FullPassIteration, Problem, Solver, Sweep, Traits
from streamkern.solvers.contributions import Gradient, NormalProduct
from streamkern.solvers.solution_residual import report_residual
from streamkern.storage.serialize import serializable
from streamkern.types import Array


def _jitter(scale: float, expansion: Expansion) -> float:
    """The least jitter on the diagonal of K(Z, Z), of mean ``scale``, that makes a Cholesky factor exist."""
    return expansion.p * scale * float(np.finfo(expansion.dtype).eps)


@dataclass(frozen=True)
class Falkon(Solver):
    """Preconditioned conjugate gradients on kernel values k(x, z_j) at centers z_j. Every iteration streams all rows.

    Args:
        epochs: largest number of passes. The first computes the right-hand side. Each later pass is an iteration.
        ridge: λ > 0.
        tolerance: stop when the preconditioned residual is at most this share of the initial residual.
        patience: as in ``EigenPro``.

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int = 20
    ridge: float = 1e-7
    tolerance: float = 1e-7
    patience: int | None = None

    traits = Traits(ridge=True)

    def __post_init__(self) -> None:
        require_ridge(self)
        require_counts(self, epochs=2)

    def prepare(self, problem: Problem) -> Factors:
        """Compute the preconditioner: two Cholesky factors, from the kernel matrix K(Z, Z) of the centers Z.

        Raises:
            UsageError: the problem has a feature map.
            NumericalError: K(Z, Z) is not positive definite to working precision.
        """
        return center_factors(problem, self.ridge, "Falkon")

    def setup(self, problem: Problem, prepared: Factors | None = None) -> FalkonIteration:
        prepared = prepared or self.prepare(problem)
        return FalkonIteration(self, problem.stream(problem.lanes), problem.expansion(), prepared, problem)


@serializable
@dataclass(frozen=True, eq=False)
class Factors:
    """T and A, upper triangular, (p, p), float64; ``products`` are in float64 if float32 would lose directions."""

    T: Array
    A: Array
    products: str


def center_factors(problem: Problem, ridge: float, solver: str) -> Factors:
    """Factor K(Z, Z) = Tᵀ T and T Tᵀ/p + λ I = Aᵀ A."""
    problem.refuse_features(f"{solver} needs a kernel at centers, not features.")
    expansion, engine = problem.expansion(), problem.engine
    p = expansion.p
    K = engine.kernel_matrix(expansion, p)
    scale = float(np.mean(np.diag(K)))
    K[np.diag_indices(p)] += _jitter(scale, expansion)
    T = engine.cholesky(K).T
    weighted, ids = problem.train.weighted, problem.centers.ids
    unequal = weighted and problem.largest_weight > 1.0 + MAX_WEIGHT_ROUNDING
    if unequal and not problem.all_rows_are_centers:
        A = _weighted_gram(problem, expansion, T)
    else:
        weights = problem.rows(ids)[1] if weighted and ids is not None else None
        A = T @ T.T if weights is None else (T * weights) @ T.T
        A /= p
    A[np.diag_indices(p)] += ridge
    R = engine.cholesky(A).T
    # Sums in float32 add about ε √p ‖T⁻¹ A⁻¹ d‖ to the outputs of a direction d, which are about ‖d‖.
    probe = engine.triangular_solve(R, engine.normal((p, FALKON_PROBES), "falkon", p), lower=False)
    size = np.sqrt(np.mean(np.square(engine.triangular_solve(T, probe, lower=False))))
    lost = float(np.finfo(expansion.dtype).eps) * float(np.sqrt(p)) * size > MAX_LOST_SHARE
    wide = engine.decide(lost, bound=True, likely=False)
    return Factors(T, R, "float64" if wide else str(expansion.dtype))


def _weighted_gram(problem: Problem, expansion: Expansion, T: Array) -> Array:
    """Estimate Σ w_x b bᵀ/n, b = T⁻ᵀ K_Zx, from the centers and rows drawn by weight: (p, p), float64."""
    engine, p = expansion.engine, expansion.p
    ids, w = problem.drawn_by_weight(ROWS_PER_FUNCTION * p)
    A = engine.zeros((p, p))
    size = 1024  # rows whose products are in memory at a time
    for rows in cuts(len(ids), size):
        X, _ = problem.rows(ids[rows])
        values = engine.values(expansion, X).astype(np.float64)
        B = engine.triangular_solve(T, values.T.copy(), lower=False, transposed=True)
        A += engine.product(B * w[rows], B.T)
    A /= len(problem.train.plain())
    return A


@serializable
@dataclass(frozen=True, eq=False)
class FalkonState:
    """Conjugate gradients on β; arrays of shape (p, c), float64.

    The residual is the right-hand side − W β; ``norm`` and ``first`` are squared norms of its columns and the
    right-hand side's, (c,). ``iterations`` is -1 before the right-hand side is known.
    """

    beta: Array
    residual: Array
    direction: Array
    norm: Array
    first: Array
    iterations: int


@dataclass(eq=False)
class FactoredIteration(FullPassIteration):
    """Passes of a method that works on β, α = T⁻¹ A⁻¹ β."""

    solver: Any
    stream: Stream
    expansion: Expansion
    prepared: Factors
    problem: Problem

    def __post_init__(self) -> None:
        self.T, self.A = self.prepared.T, self.prepared.A
        self.epochs = self.solver.epochs
        self.dtype = np.dtype(self.prepared.products)
        self.report: dict[str, Any] = {"ridge": self.solver.ridge, "products": self.prepared.products}

    def _solve(self, R: Array, h: Array) -> Array:
        return self.expansion.engine.triangular_solve(R, h, lower=False)

    def _solve_t(self, R: Array, h: Array) -> Array:
        return self.expansion.engine.triangular_solve(R, h, lower=False, transposed=True)


@dataclass(eq=False)
class FalkonIteration(FactoredIteration):
    """A pass is an iteration of conjugate gradients, for every output at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contribution = Gradient(self.expansion)

    def init(self) -> FalkonState:
        zero = self.expansion.engine.zeros((self.expansion.p, self.problem.encoding.outputs))
        return FalkonState(zero, zero, zero, zero[0], zero[0], -1)

    def begin(self, state: FalkonState, pass_: int, sweep: Sweep) -> FalkonState:
        """Compute the right-hand side in the first pass; run one iteration in each later pass."""
        dtype = self.dtype
        if state.iterations < 0:
            g, _, n = sweep(self.contribution, np.zeros_like(state.beta, dtype=dtype))
            rhs = self._adjoint(-g.astype(np.float64) / n)
            norm = np.sum(rhs**2, axis=0)
            return FalkonState(state.beta, rhs, rhs, norm, norm, 0)
        v = self._solve(self.A, state.direction)
        shared = (self._solve(self.T, v).astype(dtype), self._wide(state).astype(dtype))
        product, _, n = sweep(NormalProduct(self.expansion), shared)
        image = self._adjoint(product.astype(np.float64) / n) + self.solver.ridge * self._solve_t(self.A, v)
        curvature = np.sum(state.direction * image, axis=0)
        alive = (curvature > 0) & (state.norm > 0)
        rate = np.where(alive, state.norm / np.where(alive, curvature, 1.0), 0.0)
        residual = state.residual - rate * image
        norm = np.sum(residual**2, axis=0)
        turn = np.where(alive, norm / np.where(state.norm > 0, state.norm, 1.0), 0.0)
        found = FalkonState(
            state.beta + rate * state.direction, residual, residual + turn * state.direction, norm, state.first,
            state.iterations + 1,
        )  # fmt: skip
        self._reached(found)
        return found

    def finished(self, state: FalkonState) -> Failure | bool:
        small = np.all(state.norm <= self.solver.tolerance**2 * state.first)
        return self.expansion.engine.decide(small, bound=False)

    def weights(self, state: FalkonState) -> Array:
        return self._wide(state).astype(self.expansion.dtype)

    def _wide(self, state: FalkonState) -> Array:
        return self._solve(self.T, self._solve(self.A, state.beta))

    def _reached(self, state: FalkonState) -> None:
        engine, expansion = self.expansion.engine, self.expansion
        residual = float(np.sqrt(np.max(state.norm / np.where(state.first > 0, state.first, 1.0))))
        alpha, pivots = self._wide(state), np.diag(self.T)
        scale = float(np.mean(engine.diagonal(expansion, expansion.Z)))
        added = _jitter(scale, expansion) * float(np.sum(np.square(alpha)))
        norm = float(np.sum(np.square(self._solve(self.A, state.beta))))  # αᵀ (K + jitter) α
        jitter = added / max(norm - added, np.finfo(np.float64).tiny) if norm > 0 else 0.0
        self.report |= {
            "iterations": state.iterations,
            "condition": float(np.max(pivots)) ** 2 / float(np.min(pivots)) ** 2,
            "jitter_per_ridge": jitter,
        }
        narrow = ['dtype="float64"'] if expansion.dtype == np.float32 else []
        causes, remedies = [], []
        if residual > MAX_RESIDUAL:
            causes.append(f"after {state.iterations} iterations of at most {self.epochs - 1}")
            remedies.append("more epochs")
        if jitter > 1:
            causes.append(f"rounding to {expansion.dtype} acts as a ridge of {jitter:.2g} times the one given")
            remedies += narrow
        far = residual > MAX_RESIDUAL or jitter > 1
        report_residual(
            self.report, "Falkon", residual, causes, [*remedies, "a larger ridge", "a smaller bandwidth"], far
        )

    def _adjoint(self, h: Array) -> Array:
        return self._solve_t(self.A, self._solve_t(self.T, h))
