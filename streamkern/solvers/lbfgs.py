"""L-BFGS on kernel values at centers, preconditioned: losses that are convex and smooth, one sweep a pass.

minimise 1/n Σ ℓ(f(x_i), y_i) + λ/2 Σ_k α_kᵀ K(Z, Z) α_k,  f = K(X, Z) α.

The Hessian of the loss in an output is K_Zn D K_nZ/n with D = diag ℓ''. Where ℓ'' is about c, Falkon's factors for the
ridge λ/c precondition it whatever the weights are (Marteau-Ferey, Bach and Rudi 2019): α = T⁻¹ A⁻¹ β, and of the matrix
of β few eigenvalues are much above c. L-BFGS (Nocedal and Wright 2006, algorithm 7.5) learns from the gradients of
earlier passes where they are. Newton's method would take a weighted ΦᵀDΦ, p² numbers, of each output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from streamkern.data.row_order import Block
from streamkern.data.targets import Classes, Continuous, Encoding, Quantiles, Rates, Roots
from streamkern.defaults import (
    ARMIJO_SHARE,
    LBFGS_PAIRS,
    MAX_LOSS_DECREASE,
    SHORTER_STEP_SHARES,
)
from streamkern.engine.residuals import weigh
from streamkern.errors import UsageError, require_counts, require_ridge
from streamkern.execute.base import Parts
from streamkern.solvers.base import Failure, Problem, Solver, Sweep, Traits
from streamkern.solvers.contributions import Gradient
from streamkern.solvers.falkon import FactoredIteration, Factors, center_factors
from streamkern.storage.serialize import serializable
from streamkern.types import Array, Parameters

LOSSES = ("logistic", "poisson")
"""Names of losses other than squares; that of quantiles is a ``Pinball``."""


@dataclass(frozen=True)
class Pinball(Parameters):
    """Loss of the quantiles of a target: one output for each level, and none crosses another.

    The loss of a prediction q at level τ is τ (y − q) for a target y above it, and (1 − τ) (q − y) below.

    Args:
        levels: the levels τ, between 0 and 1, in ascending order; a number for one.

    Raises:
        UsageError: a level is not between 0 and 1, or they do not ascend.
    """

    levels: tuple[float, ...] = (0.05, 0.5, 0.95)

    def __post_init__(self) -> None:
        try:
            levels = tuple(float(level) for level in np.atleast_1d(np.asarray(self.levels, dtype=np.float64)))
        except (TypeError, ValueError):
            levels = ()
        inside = all(0 < level < 1 for level in levels)
        if not levels or not inside or any(b <= a for a, b in pairwise(levels)):
            raise UsageError(
                f"levels is {self.levels!r}.",
                where="Pinball(levels=...)",
                expected="numbers between 0 and 1 in ascending order, such as (0.05, 0.5, 0.95)",
            )
        object.__setattr__(self, "levels", levels)


Loss = str | Pinball


def loss_of(recipe: Any) -> Loss | None:
    """Return the loss of a recipe, which its solver may have; None for squares."""
    return recipe.solver.loss if isinstance(recipe.solver, LBFGS) else None


def encoding_to_search(encoding: Encoding, solver: Any) -> Encoding:
    """Return the encoding of targets for a search by squares: of roots of counts, whose errors are alike."""
    poisson = isinstance(solver, LBFGS) and solver.loss == "poisson"
    return Roots.about(encoding) if poisson and isinstance(encoding, Continuous) else encoding


def encoding_for(encoding: Encoding, solver: Any, typical: Callable[[], tuple[float, float]]) -> Encoding:
    """Return the encoding of targets for the loss of a solver.

    ``typical`` gives the median of a value and the size of its errors, in stored units.
    """
    if not isinstance(solver, LBFGS):
        return encoding
    if isinstance(encoding, Classes):
        return replace(encoding, logits=True)
    if isinstance(solver.loss, Pinball):
        return Quantiles.about(encoding, solver.loss.levels, *typical())
    return Rates.about(encoding)


@dataclass(frozen=True)
class LBFGS(Solver):
    """Losses other than squares: logistic, Poisson and pinball, by a preconditioned quasi-Newton method.

    ``KernelClassifier(loss="logistic")`` and ``KernelRegressor(loss="poisson")`` choose it.

    Args:
        loss: ``"logistic"`` for classes: outputs are logits, and softmax gives probabilities. ``"poisson"`` for counts
            and rates: the logarithm of the mean is modelled. ``Pinball(levels)`` for quantiles.
        ridge: λ > 0. A fit that searches for a kernel also chooses λ, if ``ridge`` is the default.
        epochs: largest number of passes; each computes the loss and its gradient.
        tolerance: stop when the next pass is expected to lower the loss by at most this share of the loss.
        patience: as in ``EigenPro``, for the loss on validation rows; of classes, the squared error of probabilities.

    Raises:
        UsageError: a value is out of range.
    """

    loss: Loss = "logistic"
    ridge: float = 1e-6
    epochs: int = 40
    tolerance: float = 1e-4
    patience: int | None = None

    @property
    def traits(self) -> Traits:
        return Traits(ridge=True, least_squares=False, calibrated=self.loss == "logistic")

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Pinball) and self.loss not in LOSSES:
            raise UsageError(
                f"loss is {self.loss!r}.", where="LBFGS(loss=...)", expected='"logistic", "poisson" or sk.Pinball()'
            )
        require_ridge(self)
        if not self.ridge > 0:
            raise UsageError(
                "The ridge is 0: the weights of separable classes, or of rows of zeros, would grow without bound.",
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
        return center_factors(problem, self.ridge / problem.encoding.curvature, "LBFGS")

    def setup(self, problem: Problem, prepared: Factors | None = None) -> LBFGSIteration:
        prepared = prepared or self.prepare(problem)
        return LBFGSIteration(self, problem.stream(problem.lanes), problem.expansion(), prepared, problem)


@dataclass(eq=False)
class LossGradient(Gradient):
    """Contributes φ(X)ᵀ W D, Σ w ℓ, what progress shows and the rows: losses ℓ of outputs φ(X) α, derivatives D.

    Progress shows squared errors of probabilities, Σ w‖D‖², or else the errors of the loss, in stored units.
    """

    encoding: Encoding

    def __call__(self, block: Block, state: Array, prepared: Any = None, extra_blocks: Iterable[Any] = ()) -> Parts:
        y, w, loss, squares = block.y, block.w, 0.0, 0.0
        assert y is not None

        def respond(F: Array, rows: slice) -> Array:
            nonlocal loss, squares
            weights = None if w is None else w[rows]
            losses = self.encoding.derivatives(F, y[rows])
            loss += float(np.sum(losses) if weights is None else weights @ losses)
            squares += weigh(F, weights)
            return F

        pulled = self.basis.engine.pull(self.basis, block.X, state, respond, state.shape[1], prepared)
        shown = squares if isinstance(self.encoding, Classes) else loss * self.encoding.errors_per_loss
        return pulled, loss, shown, block.X.shape[0]


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
    """A pass is the objective and its gradient at one point, for all outputs at once."""

    takes_back = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contribution = LossGradient(self.expansion, self.problem.encoding)

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
        scale = 1.0 / self.problem.encoding.curvature
        if pairs:
            s, t = pairs[-1]
            scale = float(np.sum(s * t)) / float(np.sum(np.square(t)))
        q = scale * q
        for (s, t), share in zip(pairs, reversed(shares), strict=True):
            q = q + (share - float(np.sum(t * q)) / float(np.sum(s * t))) * s
        decrease = 0.5 * float(np.sum(q * state.gradient))
        return replace(state, direction=-q, step=1.0, decrease=decrease)

    def finished(self, state: LBFGSState) -> Failure | bool:
        if self.expansion.engine.decide(not np.isfinite(state.value), bound=False):
            remedy = "compute in float64, or check the scale of the targets and weights"
            return Failure("non-finite", "The loss is not finite at the start.", remedy)
        small = state.decrease <= self.solver.tolerance * state.value
        return self.expansion.engine.decide(small, bound=False)

    def weights(self, state: LBFGSState) -> Array:
        return self._solve(self.T, self._solve(self.A, state.beta)).astype(self.expansion.dtype)

    def _reached(self, state: LBFGSState) -> None:
        left = state.decrease / state.value if state.value > 0 else 0.0
        self.report |= {"iterations": state.iterations, "objective": state.value, "decrement": left}
        self.report.pop("warnings", None)
        if left > MAX_LOSS_DECREASE and self.solver.patience is None:  # else validation rows decide
            self.report["warnings"] = [
                f"LBFGS has not reached its least objective: after {state.iterations} passes of at most "
                f"{self.epochs} the next one may lower it by {left:.1%}. Remedies: more epochs, or a larger ridge."
            ]
