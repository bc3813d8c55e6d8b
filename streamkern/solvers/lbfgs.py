"""Multinomial logistic regression on kernel values at centers: preconditioned L-BFGS, one sweep a pass.

minimise 1/n Σ −log softmax(f(x_i))_{y_i} + λ/2 Σ_k α_kᵀ K(Z, Z) α_k,  f = K(X, Z) α.

The Hessian of the loss in each class is K_Zn D K_nZ/n with D = diag p(1 − p) ≤ 1/4 (Böhning 1992), so that Falkon's
factors for the ridge 4λ precondition it whatever the weights are (Marteau-Ferey, Bach and Rudi 2019): α = T⁻¹ A⁻¹ β,
and of the matrix of β no eigenvalue is much above 1/4. L-BFGS (Nocedal and Wright 2006, algorithm 7.5) learns from the
gradients of earlier passes where it is below. Newton's method would take a weighted ΦᵀDΦ, p² numbers, of each class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkern.data.row_order import Block
from streamkern.data.targets import Classes, Encoding
from streamkern.defaults import (
    ARMIJO_SHARE,
    LBFGS_PAIRS,
    LOGISTIC_CURVATURE,
    MAX_LOGISTIC_DECREASE,
    SHORTER_STEP_SHARES,
)
from streamkern.engine.residuals import residual, weigh
from streamkern.errors import UsageError, require_counts, require_ridge
from streamkern.execute.base import Parts
from streamkern.solvers.base import Failure, Problem, Solver, Sweep, Traits
from streamkern.solvers.contributions import Gradient
from streamkern.solvers.falkon import FactoredIteration, Factors, center_factors
from streamkern.storage.serialize import serializable
from streamkern.types import Array


def encoding_for(encoding: Encoding, solver: Any) -> Encoding:
    """Return the encoding of targets, with outputs as logits for ``LBFGS``."""
    if not isinstance(solver, LBFGS):
        return encoding
    if not isinstance(encoding, Classes):
        raise UsageError(
            f"LBFGS needs classes, and the targets are {encoding.outputs} column(s) of values or labels.",
            where="solver=LBFGS()",
            expected="a classifier with one label a row",
            remedy="use sk.Direct()",
        )
    return replace(encoding, logits=True)


@dataclass(frozen=True)
class LBFGS(Solver):
    """Logistic loss instead of least squares, for classes: outputs are logits, and softmax gives probabilities.

    Args:
        ridge: λ > 0. A fit that searches for a kernel also chooses λ, if ``ridge`` is the default.
        epochs: largest number of passes; each computes the loss and its gradient.
        tolerance: stop when the next pass is expected to lower the loss by at most this share of the loss.
        patience: as in ``EigenPro``, for the squared error of probabilities.

    Raises:
        UsageError: a value is out of range.
    """

    ridge: float = 1e-6
    epochs: int = 40
    tolerance: float = 1e-4
    patience: int | None = None

    traits = Traits(ridge=True, least_squares=False)

    def __post_init__(self) -> None:
        require_ridge(self)
        if not self.ridge > 0:
            raise UsageError(
                "The ridge is 0: the weights of separable classes would grow without bound.",
                where="LBFGS(ridge=...)",
                expected="a number > 0",
            )
        require_counts(self, epochs=2)

    def prepare(self, problem: Problem) -> Factors:
        """Compute the preconditioner: two Cholesky factors, from the kernel matrix K(Z, Z) of the centers Z.

        Raises:
            UsageError: the problem has a feature map.
            NumericalError: K(Z, Z) is not positive definite to working precision.
        """
        return center_factors(problem, self.ridge / LOGISTIC_CURVATURE, "LBFGS")

    def setup(self, problem: Problem, prepared: Factors | None = None) -> LBFGSIteration:
        prepared = prepared or self.prepare(problem)
        return LBFGSIteration(self, problem.stream(problem.lanes), problem.expansion(), prepared, problem)


@dataclass(eq=False)
class LossGradient(Gradient):
    """Contributes φ(X)ᵀ W (P − Y), −Σ w log p_y, Σ w‖P − Y‖² and the rows, P = softmax(φ(X) α), Y one-hot codes."""

    def __call__(self, block: Block, state: Array, prepared: Any = None, extra_blocks: Iterable[Any] = ()) -> Parts:
        y, w, loss, squares = block.y, block.w, 0.0, 0.0
        assert y is not None

        def respond(F: Array, rows: slice) -> Array:
            nonlocal loss, squares
            weights, codes = None if w is None else w[rows], y[rows]
            F -= F.max(axis=1)[:, None]
            of_class = (F[np.arange(len(F)), codes] if codes.ndim == 1 else F[:, 0]).astype(np.float64)  # or a plan's
            np.exp(F, out=F)
            total = F.sum(axis=1)
            missed = np.log(total.astype(np.float64)) - of_class
            loss += float(np.sum(missed) if weights is None else weights @ missed)
            F /= total[:, None]
            residual(F, codes)
            squares += weigh(F, weights)
            return F

        pulled = self.basis.engine.pull(self.basis, block.X, state, respond, state.shape[1], prepared)
        return pulled, loss, squares, block.X.shape[0]


@serializable
@dataclass(frozen=True, eq=False)
class LBFGSState:
    """L-BFGS on β; arrays of shape (p, K), float64.

    ``value`` and ``gradient`` are the objective's at the best iterate ``beta``; the next pass evaluates it at ``step``
    of the ``direction``, and is expected to lower it by ``decrease``. ``steps`` and ``turns`` are differences of
    iterates and gradients, the latest last, (10, p, K), of which the last ``pairs`` are used.
    """

    beta: Array
    value: float
    gradient: Array
    direction: Array
    step: float
    steps: Array
    turns: Array
    pairs: int
    iterations: int
    decrease: float


@dataclass(eq=False)
class LBFGSIteration(FactoredIteration):
    """A pass is the objective and its gradient at one point, for all classes at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contribution = LossGradient(self.expansion)

    def init(self) -> LBFGSState:
        shape = self.expansion.p, self.problem.encoding.outputs
        zero, none = self.expansion.engine.zeros(shape), self.expansion.engine.zeros((LBFGS_PAIRS, *shape))
        return LBFGSState(zero, 0.0, zero, zero, 0.0, none, none, 0, 0, 0.0)

    def begin(self, state: LBFGSState, pass_: int, sweep: Sweep) -> LBFGSState:
        """Evaluate the objective once: take a step that lowers it, or shorten a step that does not."""
        engine, trial = self.expansion.engine, state.beta + state.step * state.direction
        v = self._solve(self.A, trial)
        g, loss, _, n = sweep(self.contribution, self._solve(self.T, v).astype(self.dtype))
        ridge = self.solver.ridge
        value = float(loss) / n + 0.5 * ridge * float(np.sum(np.square(v)))
        gradient = self._solve_t(self.A, self._solve_t(self.T, g.astype(np.float64) / n) + ridge * v)
        if not state.iterations:
            found = self._turned(replace(state, value=value, gradient=gradient))
        else:
            slope = float(np.sum(state.gradient * state.direction))
            fell = value <= state.value + ARMIJO_SHARE * state.step * slope
            if engine.decide(fell, bound=True, likely=True):
                step, turn = trial - state.beta, gradient - state.gradient
                found = replace(state, beta=trial, value=value, gradient=gradient)
                convex = float(np.sum(step * turn)) > np.finfo(np.float64).eps * float(np.sum(np.square(turn)))
                if engine.decide(convex, bound=True, likely=True):
                    steps = np.concatenate([state.steps[1:], step[None]])
                    turns = np.concatenate([state.turns[1:], turn[None]])
                    found = replace(found, steps=steps, turns=turns, pairs=min(LBFGS_PAIRS, state.pairs + 1))
                found = self._turned(found)
            else:
                # The least of the parabola through the known values.
                least = -slope * state.step**2 / (2 * (value - state.value - slope * state.step))
                low, high = (share * state.step for share in SHORTER_STEP_SHARES)
                found = replace(state, step=float(np.clip(least, low, high)) if np.isfinite(least) else low)
        found = replace(found, iterations=state.iterations + 1)
        self._reached(found)
        return found

    def _turned(self, state: LBFGSState) -> LBFGSState:
        """A new direction, −H g, by the two loops of L-BFGS."""
        q = state.gradient
        pairs = [(state.steps[i], state.turns[i]) for i in range(LBFGS_PAIRS - state.pairs, LBFGS_PAIRS)]
        shares = []
        for s, t in reversed(pairs):
            share = float(np.sum(s * q)) / float(np.sum(s * t))
            shares.append(share)
            q = q - share * t
        scale = 1.0 / LOGISTIC_CURVATURE
        if pairs:
            s, t = pairs[-1]
            scale = float(np.sum(s * t)) / float(np.sum(np.square(t)))
        q = scale * q
        for (s, t), share in zip(pairs, reversed(shares), strict=True):
            q = q + (share - float(np.sum(t * q)) / float(np.sum(s * t))) * s
        decrease = 0.5 * float(np.sum(q * state.gradient))
        return replace(state, direction=-q, step=1.0, decrease=decrease)

    def finished(self, state: LBFGSState) -> Failure | bool:
        small = state.decrease <= self.solver.tolerance * state.value
        return self.expansion.engine.decide(small, bound=False)

    def weights(self, state: LBFGSState) -> Array:
        return self._solve(self.T, self._solve(self.A, state.beta)).astype(self.expansion.dtype)

    def _reached(self, state: LBFGSState) -> None:
        left = state.decrease / state.value if state.value > 0 else 0.0
        self.report |= {"iterations": state.iterations, "objective": state.value, "decrement": left}
        self.report.pop("warnings", None)
        if left > MAX_LOGISTIC_DECREASE:
            self.report["warnings"] = [
                f"LBFGS has not reached its least objective: after {state.iterations} passes of at most "
                f"{self.epochs} the next one may lower it by {left:.1%}. Remedies: more epochs, or a larger ridge."
            ]
