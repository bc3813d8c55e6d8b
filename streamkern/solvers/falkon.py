"""Falkon: conjugate gradients on preconditioned Nyström normal equations, one sweep an iteration.

Rudi, Carratino & Rosasco 2017. With upper Cholesky factors K_ZZ = Tᵀ T and T Tᵀ/p + λ I = Aᵀ A, α = T⁻¹ A⁻¹ β solves
 (K_Zn K_nZ/n + λ K_ZZ) α = K_Zn y/n, and the matrix of β is well conditioned. With sample weights W, of mean 1, K_Zn W
stands for K_Zn, and T W_Z Tᵀ for T Tᵀ, where centers are rows whose weights are known.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.linalg

from streamkern.data.stream import Stream
from streamkern.errors import UsageError, require_counts
from streamkern.kernels import Expansion
from streamkern.solvers.base import Failure, Problem, Sweep, WholePasses
from streamkern.solvers.cost import Cost, Size, Work, triangle
from streamkern.solvers.dense import cholesky
from streamkern.solvers.direct import check_ridge
from streamkern.solvers.gradient import Gradient, NormalProduct
from streamkern.solvers.projection import kernel_matrix
from streamkern.solvers.weighting import center_weights
from streamkern.storage.records import record
from streamkern.types import Array


@dataclass(frozen=True)
class Falkon:
    """Streamed preconditioned conjugate gradients on kernel values at centers.

    Args:
        epochs: passes at most; the first is for the right-hand side, each other is an iteration.
        ridge: λ > 0.
        tolerance: stop when the preconditioned residual is this share of the first.
        patience: with a validation set: stop after this many passes without improvement; None runs all.

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

    def cost(self, size: Size) -> Cost:
        """Two Cholesky factors of p² numbers in float64, and a sweep an iteration."""
        p, c, passes = size.p, size.outputs, self.epochs
        return Cost(
            setup_bytes=4 * p * p * 8,
            resident_bytes=2 * p * p * 8 + 6 * p * c * 8,
            setup=Work(values64=triangle(p), gemm64=2.0 / 3.0 * p**3, serial64=2.0 * p**3),
            row=Work(values=p, panel=(6.0 - 2.0 / passes) * p * c),
            step=Work(thin64=(7.0 - 3.0 / passes) * p * p * c, numbers=12.0 * p * c),
            batch=0,
            passes=passes,
        )

    def prepare(self, problem: Problem) -> Factors:
        """Factor K(Z, Z) twice.

        Raises:
            UsageError: the problem has features other than kernel values at centers.
            NumericalError: K(Z, Z) is not positive definite to working precision.
        """
        expansion = problem.basis()
        if not isinstance(expansion, Expansion):
            raise UsageError(
                "Falkon works on kernel values at centers.",
                where="features",
                expected="features=None",
                remedy="leave features out",
            )
        parallel = problem.executor.host_map
        p = expansion.p
        K = kernel_matrix(expansion, p, parallel, problem.executor.imap)
        scale = float(np.mean(np.diag(K)))
        K[np.diag_indices(p)] += p * scale * np.finfo(expansion.dtype).eps
        T = cholesky(K, parallel).T
        weights = center_weights(problem)
        A = T @ T.T if weights is None else (T * weights) @ T.T
        A /= p
        A[np.diag_indices(p)] += self.ridge
        return Factors(T, cholesky(A, parallel).T)

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
        zero = np.zeros((self.expansion.p, self.problem.encoding.outputs))
        return FalkonState(zero, zero, zero, zero[0], zero[0], -1)

    def begin(self, state: FalkonState, pass_: int, sweep: Sweep) -> FalkonState:
        """The right-hand side, or one iteration."""
        dtype = self.expansion.dtype
        if state.iterations < 0:
            g, _, n = sweep(self.contribution, np.zeros(state.beta.shape, dtype=dtype))
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
        return bool(np.all(state.norm <= self.solver.tolerance**2 * state.first))

    def weights(self, state: FalkonState) -> Array:
        """α = T⁻¹ A⁻¹ β."""
        return self._solve(self.T, self._solve(self.A, state.beta)).astype(self.expansion.dtype)

    def _adjoint(self, h: Array) -> Array:
        """A⁻ᵀ T⁻ᵀ h."""
        return self._solve_t(self.A, self._solve_t(self.T, h))

    @staticmethod
    def _solve(R: Array, h: Array) -> Array:
        return np.asarray(scipy.linalg.solve_triangular(R, h, lower=False, check_finite=False))

    @staticmethod
    def _solve_t(R: Array, h: Array) -> Array:
        return np.asarray(scipy.linalg.solve_triangular(R, h, lower=False, trans="T", check_finite=False))
