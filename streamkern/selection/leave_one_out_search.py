"""Models of few rows, compared by the errors of rows that are left out one at a time, in closed form.

A third of few rows held out says too little, and leaves too few to fit. With every row a center and A = S K S + λ n I,
S² the rows' weights, the output of a row that is left out differs from its target by b_i / (s_i (A⁻¹)_ii),
b = A⁻¹ S y (see ``solvers.ridge``). Rows that equal it stay: else a table of few distinct rows would be judged by
rows whose like was never seen (ADR 20). One eigen-decomposition of S K S gives that for every ridge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from streamkern.costs.dry_run import ProblemSize, ShapeProblem
from streamkern.cpu import default_engine
from streamkern.data.targets import Classes, as_values
from streamkern.engine import Engine
from streamkern.engine.abstract_array import CostMeter
from streamkern.engine.cost_meter import MeterEngine
from streamkern.engine.operation_counts import Operations
from streamkern.evaluation.paired_errors import Errors
from streamkern.kernels import Kernel
from streamkern.selection.learned_metric import AGOP, GradientOuter, Round, Rounds, UncountedSums
from streamkern.solvers.base import Problem
from streamkern.types import Array

LOO_BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Bandwidths that are compared, in mean distances of two rows: few rows are far from one another."""

RIDGES = (1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Ridges of a model: where targets are noise, a large one."""


class RidgeSolutions(NamedTuple):
    """Weights (n, k c) for k ridges, and targets less the outputs of rows that are left out, (n, k, c)."""

    weights: Array
    missed: Array


def leave_one_out_path(
    engine: Engine, K: Array, Y: Array, root: Array, n: float, ridges: Sequence[float]
) -> RidgeSolutions:
    """Solve ridge regression on rows that are all centers, for every ridge; K (m, m), float64, is overwritten.

    Y has shape (m, c); ``root``, shape (m, 1), are square roots of the rows' positive weights, whose sum is n.
    """
    m, c = Y.shape
    K *= root
    K *= root.T
    values, vectors = engine.eigh(K)
    shrunk = 1.0 / (np.maximum(values, 0.0)[:, None] + n * np.asarray(ridges, dtype=np.float64))
    inside = engine.product_t(vectors, Y * root)
    b = engine.product(vectors, (shrunk[:, :, None] * inside[:, None, :]).reshape(m, len(ridges) * c))
    diagonal = engine.product(np.square(vectors), shrunk)
    missed = b.reshape(m, len(ridges), c) / (root * diagonal)[:, :, None]
    return RidgeSolutions(b * root, missed)


@lru_cache(maxsize=256)
def fit_work(rows: int, size: ProblemSize) -> tuple[Operations, Operations, int]:
    """Return operations of a round with its errors and of its gradients, and bytes at the peak, on shapes."""
    size = replace(size, n=rows, p=rows, features=None, stored=False, blocks=None)
    meter = CostMeter()
    engine = MeterEngine(meter, default_engine(), size.slots, False)
    problem: Any = ShapeProblem.of(size, engine, UncountedSums())
    K = engine.kernel_matrix(problem.expansion(), rows)
    leave_one_out_path(engine, K, engine.zeros((rows, size.outputs)), engine.zeros((rows, 1)), float(rows), RIDGES)
    fitted, _ = meter.taken()
    kept = engine.zeros((rows, size.outputs), size.dtype)
    problem.sweep(GradientOuter(problem.expansion(), size.outputs, False, 0), kept)
    gradients, _ = meter.taken()
    return fitted, gradients, meter.peak


@dataclass(eq=False)
class LeaveOneOutRounds(Rounds):
    """Rounds of few rows, fitted to all and compared on each without it; ``span`` is the mean L1 distance."""

    span: float = 0.0

    @classmethod
    def all_rows(cls, agop: AGOP, kernel: Kernel, problem: Problem) -> LeaveOneOutRounds:
        """Take all training rows, with every one as a center."""
        base, encoding, X, w = cls.sample(agop, problem)
        mass = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
        wide = X.astype(np.float64)
        wide -= np.average(wide, axis=0, weights=mass)
        variance = np.average(np.square(wide), axis=0, weights=mass)
        return cls(
            agop, kernel, base, base, problem, encoding, problem.dtype, len(X),
            variance, None, RIDGES, span=_mean_distance(wide, mass),
        )  # fmt: skip

    def fit(self, kind: str, number: int, M: Array, factor: Array, near: float | None = None) -> Round:
        problem = self.problem_through(kind, number, M, factor)
        engine, c, ids = problem.engine.here(), self.encoding.outputs, problem.centers.ids
        assert ids is not None
        X, y, w = problem.full_rows(ids)
        mass = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
        rows = np.flatnonzero(mass > 0)  # a row of weight 0 has no equation to leave out
        targets, mass = as_values(y, c)[rows], mass[rows]
        K = engine.kernel_matrix(problem.expansion(), len(X))[np.ix_(rows, rows)]
        path = leave_one_out_path(engine, K, targets, np.sqrt(mass)[:, None], mass.sum(), self.ridges)
        squares = np.square(path.missed).mean(axis=2)
        mse = mass @ squares / mass.sum()
        best = int(np.argmin(mse))
        outputs = targets - path.missed[:, best]
        if isinstance(self.encoding, Classes):
            score = float(np.average(outputs.argmax(axis=1) == targets.argmax(axis=1), weights=mass))
        else:
            apart = targets - np.average(targets, axis=0, weights=mass)
            spread = np.maximum(mass @ np.square(apart), np.finfo(np.float64).tiny)
            score = float(np.mean(1 - mass @ np.square(path.missed[:, best]) / spread))
        weights = np.zeros((len(X), c), dtype=self.dtype)
        weights[rows] = path.weights[:, best * c : (best + 1) * c]
        return Round(
            kind, number, M, factor, problem, weights, float(mse[best]), score, self.ridges[best], len(rows),
            Errors(squares[:, best], mass),
        )  # fmt: skip


def _mean_distance(X: Array, mass: Array) -> float:
    """Of two rows, each drawn by its weight, in the L1 norm: Σ_j ∫ 2 F_j (1 − F_j)."""
    order = np.argsort(X, axis=0, kind="stable")
    below = np.cumsum(mass[order], axis=0)[:-1] / mass.sum()
    return float(np.sum(2 * below * (1 - below) * np.diff(np.take_along_axis(X, order, axis=0), axis=0)))
