"""Normal equations in one sweep: exact ridge regression while M² numbers fit the memory.

minimise 1/n Σ ‖φ(x_i)ᵀ w − y_i‖² + λ tr wᵀ R w, with R = K(Z, Z) for kernel values at centers (the RKHS norm of f) and
R = I for features:  (ΦᵀΦ/n + λ R) w = Φᵀ y/n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.stream import Stream
from streamkern.engine.triangle import cuts, unpacked
from streamkern.errors import NumericalError, UsageError
from streamkern.kernels import Basis, Expansion
from streamkern.solvers.base import ChoosesNothing, Problem, Sweep, WholePasses
from streamkern.solvers.gradient import NormalEquations
from streamkern.types import Array


@dataclass(frozen=True)
class Direct(ChoosesNothing):
    """One sweep for ΦᵀΦ and Φᵀy in float64, then a Cholesky factorisation.

    Args:
        ridge: λ >= 0.

    Raises:
        UsageError: the ridge is negative.
    """

    ridge: float = 1e-9

    epochs = 1
    patience = None

    def __post_init__(self) -> None:
        check_ridge(self.ridge, "Direct")

    def prepare(self, problem: Problem) -> None:
        """Nothing precedes the sweep."""

    def setup(self, problem: Problem, prepared: Any = None) -> DirectIteration:
        """One sweep, and the solution."""
        return DirectIteration(self, problem.stream(problem.lanes), problem.basis(), problem)


def check_ridge(ridge: float, solver: str) -> None:
    """Refuse a ridge that is not a number >= 0.

    Raises:
        UsageError: it is not.
    """
    real = isinstance(ridge, int | float | np.integer | np.floating) and not isinstance(ridge, bool)
    if not (real and np.isfinite(ridge) and ridge >= 0):
        raise UsageError(f"The ridge is {ridge!r}.", where=f"{solver}(ridge=...)", expected="a finite number >= 0")


def add_ridge(A: Array, ridge: float, basis: Basis) -> None:
    """Add λ R on A's diagonal and below it: R = K(Z, Z) for kernel values at centers, else the identity.

    Args:
        A: shape (M, M), float64; above the diagonal's tiles nothing is looked at.
        ridge: λ.
        basis: the functions.
    """
    if isinstance(basis, Expansion):
        for rows, below in basis.engine.kernel_rows(basis, basis.p):  # of K(Z, Z) a few tiles are held
            A[rows, : rows.stop] += ridge * below
    else:
        A[np.diag_indices(len(A))] += ridge


@dataclass(eq=False)
class DirectIteration(WholePasses):
    """One pass, no steps; the state is the solution, shape (M, c)."""

    solver: Direct
    stream: Stream
    basis: Basis
    problem: Problem

    epochs = 1
    prepared = None

    def __post_init__(self) -> None:
        self.contribution = NormalEquations(self.basis, self.problem.encoding.outputs)
        self.report: dict[str, Any] = {"ridge": self.solver.ridge}

    def init(self) -> Array:
        """Weights 0."""
        return self.basis.engine.zeros((self.basis.width, self.problem.encoding.outputs), self.basis.dtype)

    def begin(self, state: Array, pass_: int, sweep: Sweep) -> Array:
        gram, moment, _, n = sweep(self.contribution, None)
        engine = self.problem.engine
        A = unpacked(gram, self.basis.width, engine)
        for rows in cuts(len(A)):
            A[rows, : rows.stop] /= n
        add_ridge(A, self.solver.ridge, self.basis)
        # Rounding leaves eigenvalues of about -ε trace(A); each try stands ten thousand times further from them.
        floor = float(np.finfo(np.float64).eps * np.trace(A))
        for jitter in (0.0, floor, 1e4 * floor):
            B = engine.zeros(A.shape)
            for rows in cuts(len(A)):
                B[rows, : rows.stop] = A[rows, : rows.stop]
            B[np.diag_indices(len(B))] += jitter
            try:
                w = engine.spd_solve(B, moment / n)
            except NumericalError:
                continue
            self.report["jitter"] = jitter
            return w.astype(self.basis.dtype)
        raise NumericalError(
            "The normal equations are singular to working precision.",
            where="Direct",
            expected="independent centers or features",
            remedy="raise the ridge, or use fewer or better separated centers",
        )

    def weights(self, state: Array) -> Array:
        """The solution."""
        return state
