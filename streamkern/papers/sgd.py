"""Plain stochastic and full gradient descent on any basis: the methods the papers build on and compare with.

    w ← w − γ_t (1/b Σ_i φ(x_i)(φ(x_i)ᵀ w − y_i) + λ w)

With random features this is the algorithm of Carratino, Rudi & Rosasco 2018 (eq. 3); with γ_t = 1/(λ t) that of Pegasos
(Shalev-Shwartz et al. 2011) for the squared loss; with two stages of steps that of Luo, Huo & Mei 2022; and with all
rows in every step gradient descent (Richardson's iteration), which on Nyström features and stopped early is NYTRO
(Camoriano et al. 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.row_order import Stream
from streamkern.errors import UsageError, require_counts, require_ridge, require_step
from streamkern.execute.base import Parts, Position
from streamkern.kernels import Basis
from streamkern.precondition.nystrom import StepSize
from streamkern.solvers.base import FullPassIteration, Problem, Solver, Sweep
from streamkern.solvers.batch_size import AveragedIteration, AveragedState, measure_basis
from streamkern.solvers.contributions import Gradient
from streamkern.types import Array

SCHEDULES = ("constant", "power", "pegasos")


@dataclass(frozen=True)
class SGD(Solver):
    """Minibatch stochastic gradient descent.

    Args:
        epochs: passes over the training rows.
        batch: number b of rows of a step; by default √n for n training rows, as in case 3 of Corollary 1 in Carratino
            et al. 2018.
        step: step size γ for the mean gradient of a batch. By default, the largest stable step, computed from
            eigenvalues that are measured on a sample of the rows.
        schedule: step size in step t: ``constant``: γ; ``power``: γ t^{−θ}; ``pegasos``: 1/(λ t), or the largest stable
            step if that is smaller. ``pegasos`` needs a ridge.
        theta: θ in [0, 1) of ``power``.
        stages: successive (passes, step) pairs instead of ``step`` (Luo et al. 2022). Further passes keep the last
            step.
        ridge: λ of the penalty λ/2 ‖w‖².
        average: whether the weights are an average of all iterates, in which later ones weigh more (Shamir & Zhang
            2013).
        replacement: whether rows are drawn with replacement, as in the analysis of Carratino et al. A pass then has as
            many draws as rows. If not all rows fit in memory, they are drawn from a window of several chunks.
        patience: as in ``EigenPro``.

    Raises:
        UsageError: a value is out of range, or values contradict one another.
    """

    epochs: int = 1
    batch: int | None = None
    step: float | None = None
    schedule: str = "constant"
    theta: float = 0.5
    stages: tuple[tuple[int, float], ...] = ()
    ridge: float = 0.0
    average: bool = False
    replacement: bool = False
    patience: int | None = None

    def __post_init__(self) -> None:
        require_ridge(self)
        require_counts(self, epochs=1, batch=1, patience=1)
        if self.schedule not in SCHEDULES:
            raise UsageError(
                f"The schedule is {self.schedule!r}.", where="SGD(schedule=...)", expected=" or ".join(SCHEDULES)
            )
        if self.schedule == "pegasos" and not self.ridge:
            raise UsageError("The schedule is pegasos and there is no ridge.", where="SGD(ridge=...)", expected="λ > 0")
        if not 0 <= self.theta < 1:
            raise UsageError(f"theta is {self.theta}.", where="SGD(theta=...)", expected="a number in [0, 1)")
        steps = [self.step, *(step for _, step in self.stages)]
        if any(step is not None and not (np.isfinite(step) and step > 0) for step in steps):
            raise UsageError(
                f"A step is among {steps}.", where="SGD(step=..., stages=...)", expected="positive numbers"
            )
        if self.stages and (self.step is not None or self.schedule != "constant"):
            raise UsageError("Both stages and a step or schedule are given.", where="SGD", expected="one of them")

    def prepare(self, problem: Problem) -> StepSize:
        return measure_basis(problem)

    def setup(self, problem: Problem, prepared: StepSize | None = None) -> SGDIteration:
        rows = len(problem.train)
        batch = self.batch or max(problem.lanes, round(float(np.sqrt(rows))))
        stream = problem.stream(batch, self.replacement)
        size = prepared or self.prepare(problem)
        return SGDIteration(self, stream, problem.basis(), problem.encoding.outputs, size)

    def rate(self, size: StepSize, rows: int, t: int, pass_: int) -> float:
        """Return the size of step t = 1, 2, ..., counted over all passes, for a batch of ``rows`` rows."""
        if self.schedule == "pegasos":
            return min(1.0 / (self.ridge * t), size.step(rows))
        for passes, step in self.stages:
            if pass_ < passes:
                return step
            pass_ -= passes
        step = self.stages[-1][1] if self.stages else self.step or size.step(rows)
        return float(step * t**-self.theta) if self.schedule == "power" else step


def corollary_1(regime: int, n: int) -> SGD:
    """Return the solver for a regime of Corollary 1 of Carratino et al. 2018, with 1/4 for the constants hidden in "≃".

    Args:
        regime: number of the regime, for batch b and step γ. 1: b = 1, γ = 1/n, √n passes; 2: b = 1, γ = 1/√n, one
            pass; 3: b = √n, constant γ, one pass; 4: b = n, constant γ, √n passes.
        n: number of training rows.

    Raises:
        UsageError: there is no such regime.
    """
    root = max(1, round(float(np.sqrt(n))))
    regimes = {
        1: SGD(batch=1, step=0.25 / n, epochs=root, replacement=True),
        2: SGD(batch=1, step=0.25 / root, epochs=1, replacement=True),
        3: SGD(batch=root, step=0.25, epochs=1, replacement=True),
        4: SGD(batch=n, step=0.25, epochs=root),
    }
    if regime not in regimes:
        raise UsageError(f"The regime is {regime}.", where="corollary_1(regime)", expected="1, 2, 3 or 4")
    return regimes[regime]


def default_features(n: int) -> int:
    """Return M = √n log n features, enough for the rate of kernel ridge regression (Carratino et al., eq. 12)."""
    return max(1, round(float(np.sqrt(n) * np.log(max(2, n)))))


@dataclass(eq=False)
class SGDIteration(AveragedIteration):
    """Steps of stochastic gradient descent."""

    solver: SGD
    stream: Stream
    basis: Basis
    outputs: int
    prepared: StepSize

    def __post_init__(self) -> None:
        self.epochs = self.solver.epochs
        self.contribution, batch = Gradient(self.basis), self.stream.batch_rows
        self.report: dict[str, Any] = {
            **self.prepared.report(batch, self.solver.rate(self.prepared, batch, 1, 0)),
            "features": self.basis.width,
        }

    def update(self, state: AveragedState, parts: Parts, position: Position) -> AveragedState:
        g, _, rows = parts
        rate = np.asarray(self.solver.rate(self.prepared, rows, state.t + 1, position[0]), dtype=g.dtype)
        g = g / np.asarray(rows, dtype=g.dtype) + np.asarray(self.solver.ridge, dtype=g.dtype) * state.w
        return self.moved(state, state.w - rate * g)


@dataclass(frozen=True)
class GradientDescent(Solver):
    """Gradient descent (Richardson's iteration): every step is a pass over all rows.

    Args:
        epochs: number of steps.
        step: step size for the mean gradient; by default 1/L, for the largest eigenvalue L of the Hessian, measured on
            a sample of the rows.
        ridge: λ of the penalty λ/2 ‖w‖².
        patience: as in ``EigenPro``. Early stopping regularises, as in NYTRO (Camoriano et al. 2016).

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int = 100
    step: float | None = None
    ridge: float = 0.0
    patience: int | None = None

    def __post_init__(self) -> None:
        require_ridge(self)
        require_counts(self, epochs=1, patience=1)
        require_step(self)

    def prepare(self, problem: Problem) -> float:
        return self.step or 1.0 / (measure_basis(problem).top + self.ridge)

    def setup(self, problem: Problem, prepared: float | None = None) -> DescentIteration:
        step = prepared or self.prepare(problem)
        return DescentIteration(self, problem.stream(problem.lanes), problem.basis(), problem.encoding.outputs, step)


@dataclass(eq=False)
class DescentIteration(FullPassIteration):
    """A pass is a step; the state is w, shape (M, c)."""

    solver: GradientDescent
    stream: Stream
    basis: Basis
    outputs: int
    prepared: float

    def __post_init__(self) -> None:
        self.epochs = self.solver.epochs
        self.contribution = Gradient(self.basis)
        self.report: dict[str, Any] = {"step": self.prepared, "features": self.basis.width}

    def init(self) -> Array:
        zero: Array = self.basis.engine.zeros((self.basis.width, self.outputs), self.basis.dtype)
        return zero

    def begin(self, state: Array, pass_: int, sweep: Sweep) -> Array:
        g, _, n = sweep(self.contribution, state)
        moved = state - self.prepared * (g.astype(np.float64) / n + self.solver.ridge * state)
        weights: Array = moved.astype(state.dtype, copy=False)
        return weights

    def weights(self, state: Array) -> Array:
        return state
