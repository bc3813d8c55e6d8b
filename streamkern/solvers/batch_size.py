"""Rows of a step, passes where none are given, the step under sample weights, and averages of iterates.

Sample weights of mean 1 scale the residuals: minimise 1/n Σ w_i ‖f(x_i) − y_i‖². A row of weight w is k(·, x) scaled by
√w: all that is said of the kernel of an iteration is then to be said of diag(w)^½ K diag(w)^½. In mean square a step on
a batch of m rows is bound by E[w² k(x, x) k_x ⊗ k_x]/m besides the squared mean E[w k_x ⊗ k_x], so that in place of the
mean diagonal β stands its mean over rows drawn by weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.defaults import (
    AVERAGING,
    HELD_OUT,
    MAX_BLOCK_ROWS,
    MAX_EPOCHS,
    MIN_BLOCK_ROWS,
    MIN_STEP_ROWS,
    MIN_STEPS_PER_PASS,
    PASSED_ROWS,
)
from streamkern.kernels import Basis
from streamkern.precondition.nystrom import StepSize, step_of_features
from streamkern.solvers.base import Iteration, Problem
from streamkern.storage.serialize import serializable
from streamkern.types import Array, IntArray


def passes_of(rows: int, given: int | None = None) -> int:
    """Return the number of passes: ``given``, or enough to see ``PASSED_ROWS``, from 1 to ``MAX_EPOCHS``."""
    return given or min(max(1, PASSED_ROWS // max(1, rows)), MAX_EPOCHS)


def default_batch(critical: float, rows: int, lanes: int, block: int = MAX_BLOCK_ROWS) -> int:
    """Return the rows of a step: the critical batch, but enough to keep lanes busy, and at most a share of a pass."""
    enough = max(critical, lanes * MIN_BLOCK_ROWS, MIN_STEP_ROWS)
    most = min(lanes * block, max(lanes, -(-rows // MIN_STEPS_PER_PASS)))
    return lanes * max(1, round(min(enough, most) / lanes))


def measured_rows(problem: Problem, ids: IntArray) -> tuple[Array, Array | None]:
    """Return rows (k, d) to measure the kernel of an iteration on, and weights (k,) of mean 1 over all rows, or None.

    If rows have weights, as many are drawn again in proportion to them, each ⌊w⌋ or ⌈w⌉ times: the rows' kernel matrix
    then stands for that of the weighted kernel, however it is computed.
    """
    X, w = problem.rows(ids)
    if w is None:
        return X, None
    if not w.any():
        return X, np.ones(len(w))
    places = np.cumsum(w) * (len(w) / w.sum())
    copies = np.diff(np.floor(places + 0.5).astype(np.int64), prepend=0)
    index = np.repeat(np.arange(len(w)), copies)
    return X[index], w[index]


def weighted_size(size: StepSize, w: Array | None, problem: Problem) -> StepSize:
    """Return the step for weighted residuals, from measurements ``size`` on ``measured_rows``, whose weights are ``w``.

    The largest weight bounds the step too: beyond it, one such row would overshoot by itself. The weight of a row and
    its value of the preconditioned diagonal are assumed to be independent.
    """
    if w is None:
        return size
    largest = max(problem.largest_weight, float(w.max()))
    return StepSize(size.beta * float(w.mean()), size.top, size.peak * largest)


def measure_basis(problem: Problem) -> StepSize:
    """Measure β and λ of φ(x)ᵀ φ(x') on rows drawn from the training data."""
    basis, engine = problem.basis(), problem.engine
    held, w = measured_rows(problem, problem.draw(HELD_OUT))
    phi = engine.values(basis, held).astype(np.float64)
    return weighted_size(step_of_features(phi, engine), w, problem)


def average(mean: Array, iterate: Array, t: int) -> Array:
    """Return the polynomial-decay average after its t-th iterate."""
    return mean + share_of(t) * (iterate - mean)


def share_of(t: int) -> float:
    """Return the weight of the t-th iterate in the average after it."""
    return (1 + AVERAGING) / (t + AVERAGING)


@serializable
@dataclass(frozen=True, eq=False)
class AveragedState:
    """Weights, the average of the iterates, and the number of steps; arrays of shape (M, c)."""

    w: Array
    mean: Array
    t: int


class AveragedIteration(Iteration):
    """Steps of the weights of all functions; the average of the iterates is the result if the solver says so."""

    solver: Any
    basis: Basis
    outputs: int

    @property
    def size_of_state(self) -> int:
        """Number M of weights of an output."""
        return self.basis.width

    def init(self) -> AveragedState:
        zero = self.basis.engine.zeros((self.size_of_state, self.outputs), self.basis.dtype)
        return AveragedState(zero, zero.astype(np.float64), 0)

    def broadcast(self, state: AveragedState) -> Array:
        return state.w

    def moved(self, state: AveragedState, w: Array) -> AveragedState:
        """Return the state after a step to the weights w."""
        mean = average(state.mean, w, state.t + 1) if self.solver.average else state.mean
        return AveragedState(w, mean, state.t + 1)

    def weights(self, state: AveragedState) -> Array:
        return state.mean.astype(state.w.dtype) if self.solver.average else state.w
