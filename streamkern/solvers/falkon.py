"""Falkon: conjugate gradients on preconditioned Nyström normal equations, one sweep an iteration.

Rudi, Carratino & Rosasco 2017. With upper Cholesky factors K_ZZ = Tᵀ T and T Tᵀ/p + λ I = Aᵀ A, α = T⁻¹ A⁻¹ β solves
 (K_Zn K_nZ/n + λ K_ZZ) α = K_Zn y/n, and the matrix of β is well conditioned. With sample weights W, of mean 1, K_Zn W
stands for K_Zn, and T W_Z Tᵀ for T Tᵀ, where centers are rows whose weights are known.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streamkern.data.stream import Stream
from streamkern.errors import UsageError, require_counts
from streamkern.kernels import Expansion
from streamkern.solvers.base import ChoosesNothing, Failure, Problem, Sweep, WholePasses
from streamkern.solvers.direct import check_ridge
from streamkern.solvers.gradient import Gradient, NormalProduct
from streamkern.solvers.weighting import center_weights
from streamkern.storage.serialize import record
from streamkern.types import Array


@dataclass(frozen=True)
class Falkon(ChoosesNothing):
    """Streamed preconditioned conjugate gradients on kernel values at centers.

    Args:
        epochs: passes at most; the first is for the right-hand side, each other is an iteration.
        ridge: λ > 0.
        tolerance: stop when the preconditioned residual is this share of the first.
        patience: with a validation set: stop after this many passes in which its error fell by less than 1e-4 of it;
            None runs all.

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int = 20
    ridge: float = 1e-7
    tolerance: float = 1e-7
    patience: int | None = None

    def __post_init__(self) -> None:
        check_ridge(self.ridge, "Falkon")
        require_counts(self, epochs=2)

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": "Falkon", **asdict(self)}

    def prepare(self, problem: Problem) -> Factors:
        """Factor K(Z, Z) twice.

        Raises:
            UsageError: the problem has features other than kernel values at centers.
            NumericalError: K(Z, Z) is not positive definite to working precision.
        """
        if problem.features is not None:
            raise UsageError(
                "Falkon works on kernel values at centers.",
                where="features",
                expected="features=None",
                remedy="leave features out",
            )
        expansion, engine = problem.expansion(), problem.engine
        p = expansion.p
        K = engine.kernel_matrix(expansion, p)
        scale = float(np.mean(np.diag(K)))
        K[np.diag_indices(p)] += p * scale * np.finfo(expansion.dtype).eps
        T = engine.cholesky(K).T
        weights = center_weights(problem)
        A = T @ T.T if weights is None else (T * weights) @ T.T
        A /= p
        A[np.diag_indices(p)] += self.ridge
        return Factors(T, engine.cholesky(A).T)

    def setup(self, problem: Problem, prepared: Factors | None = None) -> FalkonIteration:
        """The iteration on what was prepared.

        Raises:
            UsageError, NumericalError: see ``prepare``.
        """
        prepared = prepared or self.prepare(problem)
        return FalkonIteration(self, problem.stream(problem.lanes), problem.expansion(), prepared, problem)


@record
@dataclass(frozen=True, eq=False)
class Factors:
    """What precedes the first pass: T and A, upper triangular, shape (p, p), float64."""

    T: Array
    A: Array


@record
@dataclass(frozen=True, eq=False)
class FalkonState:
    """Conjugate gradients on β; arrays of shape (p, c), float64; norms a column, shape (c,).

    Attributes:
        beta: the iterate.
        residual: rhs − W β.
        direction: the search direction.
        norm: squared norms of the residual's columns.
        first: those of the right-hand side.
        iterations: taken so far; -1 before the right-hand side is known.
    """

    beta: Array
    residual: Array
    direction: Array
    norm: Array
    first: Array
    iterations: int


@dataclass(eq=False)
class FalkonIteration(WholePasses):
    """A pass is an iteration of conjugate gradients, for every output at once."""

    solver: Falkon
    stream: Stream
    expansion: Expansion
    prepared: Factors
    problem: Problem

    def __post_init__(self) -> None:
        self.T, self.A = self.prepared.T, self.prepared.A
        self.epochs = self.solver.epochs
        self.contribution = Gradient(self.expansion)
        self.report: dict[str, Any] = {"ridge": self.solver.ridge}

    def init(self) -> FalkonState:
        """β = 0."""
        zero = self.expansion.engine.zeros((self.expansion.p, self.problem.encoding.outputs))
        return FalkonState(zero, zero, zero, zero[0], zero[0], -1)

    def begin(self, state: FalkonState, pass_: int, sweep: Sweep) -> FalkonState:
        """The right-hand side, or one iteration."""
        dtype = self.expansion.dtype
        if state.iterations < 0:
            g, _, n = sweep(self.contribution, np.zeros_like(state.beta, dtype=dtype))
            rhs = self._adjoint(-g.astype(np.float64) / n)
            norm = np.sum(rhs**2, axis=0)
            return FalkonState(state.beta, rhs, rhs, norm, norm, 0)
        v = self._solve(self.A, state.direction)
        shared = (self._solve(self.T, v).astype(dtype), self.weights(state))
        product, _, n = sweep(NormalProduct(self.expansion), shared)
        image = self._adjoint(product.astype(np.float64) / n) + self.solver.ridge * self._solve_t(self.A, v)
        curvature = np.sum(state.direction * image, axis=0)
        alive = (curvature > 0) & (state.norm > 0)
        rate = np.where(alive, state.norm / np.where(alive, curvature, 1.0), 0.0)
        residual = state.residual - rate * image
        norm = np.sum(residual**2, axis=0)
        turn = np.where(alive, norm / np.where(state.norm > 0, state.norm, 1.0), 0.0)
        return FalkonState(
            state.beta + rate * state.direction, residual, residual + turn * state.direction, norm, state.first,
            state.iterations + 1,
        )  # fmt: skip

    def finished(self, state: FalkonState) -> Failure | bool:
        """Whether every output's residual is small."""
        small = np.all(state.norm <= self.solver.tolerance**2 * state.first)
        return self.expansion.engine.decide(small, bound=False)

    def weights(self, state: FalkonState) -> Array:
        """α = T⁻¹ A⁻¹ β."""
        return self._solve(self.T, self._solve(self.A, state.beta)).astype(self.expansion.dtype)

    def _adjoint(self, h: Array) -> Array:
        """A⁻ᵀ T⁻ᵀ h."""
        return self._solve_t(self.A, self._solve_t(self.T, h))

    def _solve(self, R: Array, h: Array) -> Array:
        return self.expansion.engine.triangular_solve(R, h, lower=False)

    def _solve_t(self, R: Array, h: Array) -> Array:
        return self.expansion.engine.triangular_solve(R, h, lower=False, transposed=True)
