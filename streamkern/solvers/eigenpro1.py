"""EigenPro in feature space: SGD whose gradient is preconditioned by the top of the features' covariance.

One step on a batch of m rows (Ma & Belkin 2017, Table 1), on any basis φ: kernel values at centers (their RBF network),
random features, Nyström features, or the columns as they are:

    w ← w − η P (1/m Φ_mᵀ (Φ_m w − y_m) + λ w),        P = I − E (I − τ λ_{q+1} Λ⁻¹) Eᵀ

(Λ, E) come from a randomised SVD over a subsample; with a ridge λ they are the eigenpairs of H + λ I, whose top is what
slows the iteration down then. The preconditioner changes the speed and not the fixed point. For the paper's iteration
in the RKHS (Table 2, Z = X) see ``EigenPro2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.row_order import Stream
from streamkern.defaults import HELD_OUT
from streamkern.engine import Engine
from streamkern.errors import UsageError, require_counts, require_ridge, require_step
from streamkern.execute.base import Parts, Position
from streamkern.kernels import Basis
from streamkern.precondition.eigensystem import Eigensystem, randomized_eigensystem
from streamkern.precondition.nystrom import RandomizedSVD, StepSize, measure, theorem_1, with_halved_step
from streamkern.solvers.base import Problem, Solver
from streamkern.solvers.batch_size import (
    AveragedIteration,
    AveragedState,
    default_batch,
    measured_rows,
    passes_of,
    weighted_size,
)
from streamkern.solvers.contributions import Gradient
from streamkern.storage.serialize import serializable
from streamkern.types import Array


@dataclass(frozen=True)
class EigenPro1(Solver):
    """Preconditioned SGD on features: those of a feature map, or the kernel values k(x, z_j) at centers z_j.

    This is the algorithm EigenPro of Ma & Belkin 2017 in feature space.

    Args:
        epochs: number of passes over the n training rows; by default 500,000 / n, at least 1 and at most 20.
        q: number of eigenpairs of the preconditioner, at most the number of features − 1; k in the paper.
        subsample: number M of rows of the randomised SVD; all rows if there are fewer.
        batch: number m of rows of a step. The default is the *critical batch*, up to which the largest stable step size
            grows about in proportion to m. A batch has more rows if cores would otherwise be idle.
        step: step size η for the mean gradient of a batch; by default the largest stable step size, measured on
            rows outside the subsample. Theorem 1 of the paper gives a smaller step, which the fit reports as
            ``theorem_1_step``.
        tau: τ in (0, 1]. The preconditioner lowers the top q eigenvalues of the covariance of the features to
            τ λ_{q+1}. For random features, the paper has τ = 1/4, and measures the step on the subsample.
        ridge: λ of the penalty λ/2 ‖w‖².
        average: whether the weights are the average of the iterates, instead of the last iterate.
        seed: seed of the subsample and the random vectors.
        patience: as in ``EigenPro``.

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int | None = None
    q: int = 160
    subsample: int = 4800
    batch: int | None = None
    step: float | None = None
    tau: float = 1.0
    ridge: float = 0.0
    average: bool = True
    seed: int = 0
    patience: int | None = None

    def __post_init__(self) -> None:
        require_ridge(self)
        require_counts(self, epochs=1, q=1, subsample=2, batch=1, patience=1)
        require_step(self)
        if not 0 < self.tau <= 1:
            raise UsageError(f"tau is {self.tau}.", where="EigenPro1(tau=...)", expected="a number in (0, 1]")

    def prepare(self, problem: Problem) -> PreparedFeatures:
        """Compute the randomised SVD, batch and step.

        Raises:
            UsageError: there is one feature only, which leaves nothing to precondition.
            NumericalError: the features are all 0, or not finite.
        """
        basis, engine = problem.basis(), problem.engine
        other = 1  # keeps the subsample apart from the centers, which may be drawn with the same seed
        ids = problem.draw(self.subsample + HELD_OUT, self.seed, other)
        X, w = measured_rows(problem, ids)  # drawn by weight, their covariance is the weighted one
        sketched = X[: self.subsample]
        eigensystem = randomized_eigensystem(
            lambda V: engine.covariance(basis, sketched, V) / len(sketched),
            basis.width,
            min(self.q, basis.width - 1),
            engine,
            seed=self.seed,
            floor=10.0 * float(np.finfo(basis.dtype).eps),
            name="covariance of the features",
        )
        hessian = Eigensystem(eigensystem.values + self.ridge, eigensystem.vectors, eigensystem.tail + self.ridge)
        preconditioner = RandomizedSVD(hessian, self.tau)
        size = measure_features(basis, preconditioner, X[-HELD_OUT:], engine)
        size = weighted_size(size, None if w is None else w[-HELD_OUT:], problem)
        batch = self.batch or default_batch(
            size.critical_batch, len(problem.train), problem.lanes, problem.largest_block
        )
        return PreparedFeatures(preconditioner, size, batch)

    def setup(self, problem: Problem, prepared: PreparedFeatures | None = None) -> EigenPro1Iteration:
        prepared = prepared or self.prepare(problem)
        stream = problem.stream(prepared.batch)
        return EigenPro1Iteration(self, stream, problem.basis(), problem.encoding.outputs, prepared)


@serializable
@dataclass(frozen=True, eq=False)
class PreparedFeatures:
    """What the first step needs; ``size`` has β, λ and the peak of the preconditioned features."""

    preconditioner: RandomizedSVD
    size: StepSize
    batch: int


def measure_features(basis: Basis, preconditioner: RandomizedSVD, X: Array, engine: Engine) -> StepSize:
    """Measure β and λ of k_P(x, x') = φ(x)ᵀ P φ(x') on held-out rows X, shape (n, d)."""
    damping = preconditioner.damping
    phi = engine.values(basis, X)
    top = engine.product(phi, preconditioner.eigensystem.vectors)
    diagonal = np.einsum("ij,ij->i", phi, phi, dtype=np.float64) - np.square(top) @ damping

    def matvec(v: Array) -> Array:
        w = engine.product(phi.T, v.astype(phi.dtype)[:, None])
        image: Array = engine.product(phi, w)[:, 0] - top @ (damping * (top.T @ v))
        return image

    return measure(diagonal, matvec, engine)


@dataclass(eq=False)
class EigenPro1Iteration(AveragedIteration):
    """Steps of preconditioned stochastic gradient descent."""

    solver: EigenPro1
    stream: Stream
    basis: Basis
    outputs: int
    prepared: PreparedFeatures

    def __post_init__(self) -> None:
        self.preconditioner, self.size = self.prepared.preconditioner, self.prepared.size
        self.epochs = passes_of(self.stream.rows, self.solver.epochs)
        self.contribution = Gradient(self.basis)
        eigensystem, batch = self.preconditioner.eigensystem, self.stream.batch_rows
        self.report: dict[str, Any] = {
            "features": self.basis.width,
            "q": len(eigensystem.values),
            **self.size.report(batch, self.rate(batch)),
            "theorem_1_step": 1.0 / theorem_1(self.size.top, self.size.peak, batch, self.basis.width),
            "spectrum": [*eigensystem.values.tolist(), eigensystem.tail],
        }

    def rate(self, rows: int) -> float:
        """Return η for a batch of ``rows``; the ridge adds at most λ to the top of P (H + λ I)."""
        return self.solver.step or 1.0 / (1.0 / self.size.step(rows) + self.solver.ridge)

    def with_halved_step(self) -> PreparedFeatures | None:
        return with_halved_step(self.prepared, self.solver.step)

    def update(self, state: AveragedState, parts: Parts, position: Position) -> AveragedState:
        g, _, rows = parts
        g = g / np.asarray(rows, dtype=g.dtype) + np.asarray(self.solver.ridge, dtype=g.dtype) * state.w
        return self.moved(state, state.w - np.asarray(self.rate(rows), dtype=g.dtype) * self.preconditioner.apply(g))
