"""Normal equations in one sweep: exact ridge regression while M² numbers fit the memory.

minimise 1/n Σ ‖φ(x_i)ᵀ w − y_i‖² + λ tr wᵀ R w, with R = K(Z, Z) for kernel values at centers (the RKHS norm of f) and
R = I for features:  (ΦᵀΦ/n + λ R) w = Φᵀ y/n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streamkern.calibration.held_out import LeftOut
from streamkern.data.stream import Stream
from streamkern.engine.triangle import cuts, unpacked
from streamkern.errors import NumericalError, UsageError
from streamkern.kernels import Basis, Expansion
from streamkern.memory import format_bytes
from streamkern.solvers.base import ChoosesNothing, Problem, Sweep, WholePasses
from streamkern.solvers.convergence import FAR, relative_residual, report_residual
from streamkern.solvers.normal_equations import Change, Sums, normal_equations
from streamkern.solvers.ridge import SquaredTargets, leave_one_out, solve_every_row
from streamkern.storage.serialize import serializable
from streamkern.types import Array

Half = Callable[[Array], Array]
"""A linear map of rows φ, shape (t, M) to (t, r), whose products are those of G⁻¹, with G = ΦᵀΦ/n + λR."""


@serializable
class Solved(NamedTuple):
    """The solution.

    Attributes:
        weights: shape (M, c).
        left_out: outputs on training rows that are left out one at a time, or None.
        sums: the normal equations, where they are kept.
    """

    weights: Array
    left_out: LeftOut | None = None
    sums: Sums | None = None


@dataclass(frozen=True)
class Direct(ChoosesNothing):
    """Normal equations: one sweep for ΦᵀΦ and Φᵀy in float64, then a Cholesky factorisation.

    If the equations are too ill-conditioned for float64 and the memory budget allows it, a second sweep solves them in
    a basis of orthonormal functions. The report has the relative residual and a condition estimate; the fit warns if
    the residual is too large.

    Args:
        ridge: λ >= 0.
        keep_sums: whether the model keeps ΦᵀΦ and Φᵀy, 4 p² bytes in addition to its own: a sweep over single rows can
            then add or subtract them (``update_model``, ``partial_fit``, ``retrain``).

    Raises:
        UsageError: the ridge is negative, or ``keep_sums`` is not a boolean.
    """

    ridge: float = 1e-9
    keep_sums: bool = False

    epochs = 1
    patience = None

    def __post_init__(self) -> None:
        check_ridge(self.ridge, "Direct")
        if not isinstance(self.keep_sums, bool):
            raise UsageError(
                f"keep_sums is {self.keep_sums!r}.", where="Direct(keep_sums=...)", expected="True or False"
            )

    def to_json(self) -> dict[str, Any]:
        """Name and parameters; without ``keep_sums`` where it is False, so that fingerprints stay the same."""
        return {name: value for name, value in super().to_json().items() if name != "keep_sums" or value}

    def prepare(self, problem: Problem) -> None:
        """None: nothing precedes the sweep."""

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


def _unusable() -> NumericalError:
    return NumericalError(
        "The normal equations are zero or not finite.",
        where="Direct",
        expected="finite features and sample weights, not all 0",
        remedy="check the scale of the features and the bandwidth of the kernel",
    )


@dataclass(eq=False)
class DirectIteration(WholePasses):
    """One pass, no steps; the state is the solution, shape (M, c)."""

    solver: Direct
    stream: Stream
    basis: Basis
    problem: Problem
    given: Sums | None = None
    """Sums to solve for, in place of those of a sweep."""

    epochs = 1
    prepared = None

    def __post_init__(self) -> None:
        self.contribution = normal_equations(self.basis, self.problem, None, self.solver.keep_sums)
        self.report: dict[str, Any] = {"ridge": self.solver.ridge}

    def init(self) -> Solved:
        """Weights 0."""
        return Solved(self.basis.engine.zeros((self.basis.width, self.problem.encoding.outputs), self.basis.dtype))

    def begin(self, state: Solved, pass_: int, sweep: Sweep) -> Solved:
        """Sum the normal equations and solve them; where rounding spoils them, in a better basis.

        Where every row is a center, without them.
        """
        if self.problem.every_row and self.given is None and not self.solver.keep_sums:
            return self._of_every_row(sweep)
        sums = self.given or self._summed(sweep, None, 0.0)
        if sums.change is not None:
            return self._in_better_basis(sums)
        engine = self.problem.engine
        A = self._equations(sums.gram, sums.mass)
        scale = float(np.trace(A)) / self.basis.width
        found = self._factored(A, sums.moment / sums.mass)
        enough = found is not None and self.report["rounding"] <= FAR
        if engine.decide(enough, bound=False, likely=True) and found is not None:
            kept, n = self._kept(sums), sums.mass
            del A, sums
            return self._solved(*found, n, kept)
        if self.problem.better_budget or self.given is not None:
            del A
            found = self._with_jitter(sums, scale) if found is None else found
            return self._solved(*found, sums.mass, self._kept(sums))
        del A, found
        # The first sums are kept: a checkpoint holds them for as long as the pass lasts.
        return self._orthonormalised(sums, scale, sweep)

    def _of_every_row(self, sweep: Sweep) -> Solved:
        """The solution by a factor of the kernel matrix."""
        basis, problem = self.basis, self.problem
        assert isinstance(basis, Expansion)
        sweep(SquaredTargets(problem.encoding.outputs, problem.engine), None)
        wide, left_out, facts = solve_every_row(problem, basis, self.solver.ridge)
        self.report |= facts
        return Solved(wide.astype(basis.dtype), left_out)

    def _summed(self, sweep: Sweep, change: Change | None, scale: float) -> Sums:
        """The sums of all training rows, of φ or of ψ = Vᵀ φ."""
        contribution = self.contribution
        if change is not None:
            contribution = normal_equations(self.basis, self.problem, change, self.solver.keep_sums)
        parts = sweep(contribution, None)
        return Sums.of(parts, self.problem.mean_weight, self.solver.ridge, change, scale)

    def _kept(self, sums: Sums) -> Sums | None:
        return sums if self.solver.keep_sums else None

    def _equations(self, gram: Array, n: float) -> Array:
        """ΦᵀΦ/n + λ R, on its diagonal and below."""
        A = unpacked(gram, self.basis.width, self.problem.engine)
        for rows in cuts(len(A)):
            A[rows, : rows.stop] /= n
        add_ridge(A, self.solver.ridge, self.basis)
        return A

    def _solved(self, w: Array, wide: Array, half: Half, n: float, kept: Sums | None) -> Solved:
        """The solution w, in float64 ``wide``, and its outputs on rows that are left out."""
        if not self.problem.leave_out:
            return Solved(w, None, kept)
        return Solved(w, leave_one_out(self.problem, self.basis, wide, half, n), kept)

    def _with_jitter(self, sums: Sums, scale: float) -> tuple[Array, Array, Half]:
        """Solve with the least diagonal that lets a Cholesky factor exist, where memory allows no second sweep."""
        for power in range(16):
            jitter = scale * float(np.finfo(np.float64).eps) * 10.0**power
            A = self._equations(sums.gram, sums.mass)
            A[np.diag_indices(len(A))] += jitter
            found = self._factored(A, sums.moment / sums.mass, jitter)
            del A
            if found is not None:
                return found
        raise _unusable()

    def _factored(self, A: Array, b: Array, added: float = 0.0) -> tuple[Array, Array, Half] | None:
        """Solve by a Cholesky factor, which overwrites A, in both dtypes; None if A is not positive definite.

        ``added`` is the part of A's diagonal that stands for no ridge.
        """
        engine, eps = self.problem.engine, float(np.finfo(np.float64).eps)
        L = engine.zeros(A.shape)
        for rows in cuts(len(A)):
            L[rows, : rows.stop] = A[rows, : rows.stop]
        try:
            L = engine.cholesky(L)
        except NumericalError:
            return None
        half = engine.triangular_solve(L, b, lower=True)
        wide = engine.triangular_solve(L, half, lower=True, transposed=True)
        w = wide.astype(self.basis.dtype)
        A = engine.mirror(A)
        norm = float(np.max(np.sum(np.abs(A), axis=0)))
        residual = engine.triangular_solve(L, b - engine.product(A, w.astype(np.float64)), lower=True)
        condition = engine.condition(L, norm)
        # A was summed with errors of ε ‖A‖; their effect is largest along its least eigenvalue, ‖A‖/condition.
        rounding = eps * np.sqrt(norm * condition) * relative_residual(wide, half)
        self.report["rounding"] = float(rounding)
        jitter = 0.0
        if added and self.solver.ridge:
            basis = self.basis
            penalties = wide * engine.kernel_product(basis, wide) if isinstance(basis, Expansion) else np.square(wide)
            jitter = added * float(np.sum(np.square(wide)) / np.sum(penalties)) / self.solver.ridge
        self._reached(relative_residual(residual, half), condition, jitter)

        def whitened(phi: Array) -> Array:
            return engine.triangular_solve(L, phi.T.copy(), lower=True).T

        return w, wide, whitened

    def _orthonormalised(self, sums: Sums, scale: float, sweep: Sweep) -> Solved:
        """The solution from a second sweep, over functions ψ = Vᵀ φ that are orthonormal in the norm of the ridge.

        Products of nearly dependent functions lose half of the digits that the functions have. In a basis of
        orthonormal ones the equations have a condition of about 1/λ, and no jitter is needed.
        """
        engine, basis = self.problem.engine, self.basis
        if isinstance(basis, Expansion):
            R = engine.kernel_matrix(basis, basis.p)
        else:
            R = engine.mirror(self._equations(sums.gram, sums.mass))
        eps = float(np.finfo(np.float64).eps)
        change = self._independent(R, eps * len(R) * float(np.max(np.diag(R))))
        del R
        return self._in_better_basis(self._summed(sweep, change, scale))

    def _in_better_basis(self, sums: Sums) -> Solved:
        """The solution for sums over functions ψ = Vᵀ φ."""
        assert sums.change is not None
        engine, basis, ridge, dtype = self.problem.engine, self.basis, self.solver.ridge, self.basis.dtype
        kernel, eps = isinstance(basis, Expansion), float(np.finfo(np.float64).eps)
        (rows, V), n, scale = sums.change, sums.mass, sums.scale
        G = engine.mirror(unpacked(sums.gram, len(rows), engine) / n)
        b = sums.moment / n
        # Weights and values in the model's dtype are uncertain by ε, which acts on predictions as this ridge on w does.
        noise = scale * float(np.finfo(dtype).eps) ** 2
        solved = G.copy()
        if kernel:
            G[np.diag_indices(len(G))] += ridge
            solved[np.diag_indices(len(G))] += ridge
            solved += noise * engine.product_t(V, V)
        else:
            VV = engine.product_t(V, V)
            G += ridge * VV
            solved += (ridge + noise) * VV
        norm = float(np.max(np.sum(np.abs(G), axis=0)))
        kept, U = self._independent(solved, eps * len(G) * float(np.max(np.diag(solved))))
        del solved
        half = engine.product(U.T, b[kept])
        inner = engine.zeros(b.shape)
        inner[kept] = engine.product(U, half)
        wide = engine.zeros((basis.width, b.shape[1]))
        wide[rows] = engine.product(V, inner)
        w = wide.astype(dtype)
        reached = engine.triangular_solve(V, w[rows].astype(np.float64), lower=False)
        residual = engine.product(U.T, (b - engine.product(G, reached))[kept])
        size = float(np.sum(np.square(w.astype(np.float64))))
        penalty = ridge * (float(np.sum(np.square(inner))) if kernel else size)
        jitter = noise * size / penalty if penalty > 0 else 0.0  # without a ridge it has no unit
        self.report["sweeps"] = 2
        condition = norm * float(np.max(np.sum(np.square(U), axis=0)))
        self.report.pop("rounding", None)
        self._reached(relative_residual(residual, half), condition, jitter)
        right = engine.right_factor(V.T.copy())

        def whitened(phi: Array) -> Array:
            return engine.product(right.times(phi[:, rows])[:, kept], U)

        return self._solved(w, wide, whitened, n, self._kept(sums))

    def _independent(self, A: Array, floor: float) -> tuple[Array, Array]:
        """Independent functions and the matrix that makes them orthonormal; see ``Engine.orthonormal``."""
        try:
            return self.problem.engine.orthonormal(A, floor)
        except NumericalError:
            raise _unusable() from None

    def _reached(self, residual: float, condition: float, jitter: float) -> None:
        """Report the residual that was reached, and warn where it is too large. The jitter is in units of the ridge."""
        self.report |= {"condition": condition, "jitter_per_ridge": jitter}
        narrow, rounding = self.basis.dtype == np.float32, self.report.get("rounding", 0.0)
        causes = [f"condition number about {condition:.1g}"]
        if rounding > FAR:
            causes.append(f"rounding of the normal equations may change predictions by {rounding:.2g} of their size")
        if narrow:
            causes.append("weights and kernel values are rounded to float32")
        if jitter > 1:
            causes.append(f"rounding acts as a ridge of {jitter:.2g} times the one given")
        remedies = [*(['dtype="float64"'] if narrow else []), "a larger ridge", "a smaller bandwidth", "fewer centers"]
        if self.given is not None and "sweeps" not in self.report:
            remedies.insert(0, "a fit on all rows, which may sweep a second time")
        elif self.problem.better_budget and "sweeps" not in self.report:
            needed = format_bytes(self.problem.better_budget)
            remedies.insert(0, f"memory={needed!r}, which allows a second sweep that rounding spoils less")
        report_residual(
            self.report, "Direct", residual, causes, remedies, far=max(residual, rounding) > FAR or jitter > 1
        )

    def weights(self, state: Solved) -> Array:
        """The solution."""
        return state.weights

    def left_out(self, state: Solved) -> LeftOut | None:
        """Outputs on training rows, in closed form, where the problem needs them."""
        return state.left_out

    def sums(self, state: Solved) -> Sums | None:
        """The normal equations of the solution, where the solver keeps them."""
        return state.sums
