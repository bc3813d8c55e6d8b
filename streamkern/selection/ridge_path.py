"""Ridge regression for every ridge and every number of centers, from one sum over the rows and one factorisation.

minimise 1/n Σ ‖f(x_i) − y_i‖² + λ ‖f‖²,  f(x) = Σ_j w_j k(x, z_j). With K(Z, Z) = L Lᵀ and w = L⁻ᵀ v it is
(A + λ I) v = b, A = L⁻¹ K_ZX K_XZ L⁻ᵀ/n and b = L⁻¹ K_ZX y/n. One eigen-decomposition of A gives every λ. L is lower
triangular, so the leading blocks of L, A and b are those of the first p centers alone: a factorisation of all centers
holds that of any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Block, Scan
from streamkern.data.targets import Classes
from streamkern.engine import Engine
from streamkern.engine.packed_triangle import unpacked
from streamkern.errors import NumericalError
from streamkern.execute.base import Parts
from streamkern.kernels import Basis
from streamkern.kernels.feature_maps import FACTOR_JITTER
from streamkern.solvers.base import Problem
from streamkern.solvers.contributions import NormalEquations
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array


@dataclass(frozen=True, eq=False)
class RidgePath:
    """The whitened normal equations of P centers, in float64: L and A are (P, P), b is (P, c)."""

    factor: Array
    gram: Array
    moment: Array
    engine: Engine

    @classmethod
    def of(cls, problem: Problem) -> RidgePath:
        """Sweep once over the training rows of a problem, and factor once."""
        basis, engine = problem.expansion(), problem.engine
        equations = NormalEquations(basis, problem.encoding.outputs)
        gram, moment, _, n = problem.sweep(equations)
        K = engine.here().kernel_matrix(basis, basis.p)
        K[np.diag_indices(len(K))] += FACTOR_JITTER * np.finfo(basis.dtype).eps * np.trace(K)
        L = engine.cholesky(K)
        half = engine.triangular_solve(L, engine.mirror(unpacked(gram, basis.width, engine)) / n, lower=True)
        A = engine.triangular_solve(L, half.T, lower=True)
        return cls(L, (A + A.T) / 2, engine.triangular_solve(L, moment / n, lower=True), engine)

    def weights(self, p: int, ridges: Sequence[float]) -> Array:
        """Return weights of the first p centers for each ridge, side by side: (p, len(ridges) c), float64."""
        values, vectors = self.engine.eigh(self.gram[:p, :p])
        inside = vectors.T @ self.moment[:p]
        spread = np.maximum(values, 0.0)[:, None, None] + np.asarray(ridges, dtype=np.float64)[:, None]
        V = vectors @ (inside[:, None, :] / spread).reshape(p, -1)
        return self.engine.triangular_solve(self.factor[:p, :p], V, lower=True, transposed=True)

    def solved(self, ridges: Sequence[float]) -> Array:
        """Return ``weights`` of all centers, by a factorisation for each ridge: less work than one decomposition.

        Where λ is below the rounding of A, as for smooth kernels in float32, by the decomposition after all.
        """
        found, engine = [], self.engine
        for ridge in ridges:
            A = self.gram.copy()
            A[np.diag_indices(len(A))] += ridge
            try:
                L = engine.cholesky(A)
            except NumericalError:
                return self.weights(len(self.gram), ridges)
            half = engine.triangular_solve(L, self.moment, lower=True)
            found.append(engine.triangular_solve(L, half, lower=True, transposed=True))
        return engine.triangular_solve(self.factor, np.concatenate(found, axis=1), lower=True, transposed=True)


@dataclass(eq=False)
class PathError:
    """Contributes Σ(f(x) − y)² and the rows whose largest output is right, under several weights; Σy, Σy² and the rows.

    Each sum counts a row by its sample weight. Σy and Σy² are 0 for class codes.
    """

    basis: Basis
    outputs: int
    classify: bool

    def __call__(self, block: Block, state: Array) -> Parts:
        """Sum over the block, (k, c) and (k,), under k weights side by side, shape (M, k c)."""
        k, c = state.shape[1] // self.outputs, self.outputs
        error, correct = np.zeros((k, c)), np.zeros(k)
        assert block.y is not None
        w: Any = 1.0 if block.w is None else block.w.astype(np.float64)[:, None]
        for rows, phi in self.basis.engine.panels(self.basis, block.X):
            F, y = (phi @ state).reshape(len(phi), k, c), block.y[rows]
            own = w if block.w is None else w[rows]
            if self.classify:
                correct += np.sum(own * (F.argmax(axis=2) == y[:, None]), axis=0)
                F[np.arange(len(y)), :, y] -= 1
            else:
                F -= y[:, None, :]
            squares = np.square(F, dtype=np.float64)
            error += np.sum(squares if block.w is None else own[:, None] * squares, axis=0)
        values = np.zeros((1, c)) if self.classify else block.y
        mass = float(len(block.X) if block.w is None else w.sum())
        return error, correct, (w * values).sum(axis=0), (w * np.square(values)).sum(axis=0), mass


def path_scores(problem: Problem, held: Dataset, weights: Array) -> tuple[Array, Array]:
    """Return weighted mean squared error, and accuracy or R², of weights (p, k c) on held-out rows: (k,) each."""
    basis, encoding = problem.expansion(), problem.encoding
    classify = isinstance(encoding, Classes)
    work = ScanWork(Scan(problem.assembly(held), 1024), PathError(basis, encoding.outputs, classify))
    error, correct, total, squares, n = sweep(problem.executor, work, weights.astype(basis.dtype))
    n = n or 1.0  # if all weights are 0, the errors are 0 too
    mse = np.mean(error, axis=1) / n
    if classify:
        return mse, correct / n
    spread = np.maximum(squares - total**2 / n, np.finfo(np.float64).tiny)
    return mse, np.mean(1 - error / spread, axis=1)
