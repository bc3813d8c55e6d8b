"""EigenPro in feature space: SGD whose gradient is preconditioned by the top of the features' covariance.

One step on a batch of m rows (Ma & Belkin 2017, Table 1), on any basis φ: kernel values at centers (their RBF network),
random features, Nyström features, or the columns as they are:

    w ← w − η P (1/m Φ_mᵀ (Φ_m w − y_m) + λ w),        P = I − E (I − τ λ_{q+1} Λ⁻¹) Eᵀ

(Λ, E) come from a randomised SVD over a subsample; with a ridge λ they are the eigenpairs of H + λ I, whose top is what
slows the iteration down then. The preconditioner changes the speed and not the fixed point. For the paper's iteration
in the RKHS (Table 2, Z = X) see ``EigenPro2``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streamkern.data.stream import Stream
from streamkern.errors import UsageError, require_counts
from streamkern.execute.base import Parts, Position
from streamkern.kernels import Basis
from streamkern.kernels.base import ROW_TILE, tiles
from streamkern.precondition.eigensystem import Eigensystem
from streamkern.precondition.nystrom import StepSize, measure
from streamkern.precondition.rsvd import OVERSAMPLING, PRODUCTS, RandomizedSVD, randomized_eigensystem, theorem_1
from streamkern.solvers.base import OneByOne, Problem
from streamkern.solvers.cost import POWER_STEPS, Cost, Size, Work, eigh
from streamkern.solvers.dense import TILE, Map, matmul
from streamkern.solvers.direct import check_ridge
from streamkern.solvers.eigenpro import HELD_OUT, average, default_batch, largest_batch
from streamkern.solvers.gradient import Gradient
from streamkern.solvers.weighting import measured_rows, weighted_size
from streamkern.storage.records import record
from streamkern.types import Array

_DRAW = 1  # keeps the subsample apart from the centers, which may be drawn with the same seed
_GROUP = 4  # products of tiles held at a time


@dataclass(frozen=True)
class EigenPro1:
    """EigenPro on the features of the problem.

    Args:
        epochs: passes over the training rows.
        q: eigenpairs of the preconditioner, the paper's k; at most one less than there are features.
        subsample: rows M of the randomised SVD; all where there are fewer.
        batch: rows of a step m; by default the measured critical batch, or what keeps the processor busy if larger.
        step: η of the mean gradient; by default what the preconditioned spectrum allows, measured on rows outside the
            subsample. Theorem 1's is in the report (``theorem_1_step``) and smaller, see ``theorem_1``.
        tau: damping τ in (0, 1]; the paper has 1/4 for random features, where the step came from the subsample.
        ridge: λ of λ/2 ‖w‖².
        average: whether the weights are the average of the iterates rather than the last one.
        seed: of the subsample and the random vectors.
        patience: with a validation set: stop after this many passes without improvement; None runs all.

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int = 1
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
        check_ridge(self.ridge, "EigenPro1")
        require_counts(self, epochs=1, q=1, subsample=2, batch=1, patience=1)
        if self.step is not None and not (np.isfinite(self.step) and self.step > 0):
            raise UsageError(f"The step is {self.step}.", where="EigenPro1(step=...)", expected="a positive number")
        if not 0 < self.tau <= 1:
            raise UsageError(f"tau is {self.tau}.", where="EigenPro1(tau=...)", expected="a number in (0, 1]")

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": "EigenPro1", **asdict(self)}

    def cost(self, size: Size) -> Cost:
        """One evaluation of the basis a row and three more of the subsample; O(M q c) on the host."""
        p, c, b = size.p, size.outputs, size.itemsize
        rows, held, q = min(self.subsample, size.n), min(HELD_OUT, size.n), max(1, min(self.q, p - 1))
        k = min(p, q + 1 + OVERSAMPLING)
        svd = (3 + _GROUP) * p * k * 8 + size.slots * ROW_TILE * p * (8 + b)
        measured = 2 * held * p * b + (p + 3 * held) * q * 8 + size.slots * TILE * p * 8
        setup = Work(
            values=float(PRODUCTS * rows + held) * p,
            gemm64=4.0 * PRODUCTS * rows * p * k + 2.0 * held * p * q,
            serial64=4.0 * PRODUCTS * p * k * k,
            eigen=eigh(k),
            vector64=4.0 * POWER_STEPS * held * p,
        )
        return Cost(
            setup_bytes=max(svd, measured) + 2 * rows * size.d * b,
            resident_bytes=p * q * 8,
            setup=setup,
            row=Work(values=p, panel=4.0 * p * c),
            step=Work(thin64=4.0 * p * q * c, numbers=8.0 * p * c),
            batch=self.batch or largest_batch(size.n, size.lanes),
            passes=self.epochs,
            likely_batch=self.batch or default_batch(0.0, size.n, size.lanes),
        )

    def prepare(self, problem: Problem) -> PreparedFeatures:
        """Randomised SVD, batch and step.

        Raises:
            UsageError: there is one feature only, which leaves nothing to precondition.
            NumericalError: the features are all 0, or not finite.
        """
        data, basis, parallel = problem.train, problem.basis(), problem.executor.host_map
        ids = data.draw(min(data.base_rows, self.subsample + HELD_OUT), self.seed, _DRAW)
        X, w = measured_rows(problem, ids)  # drawn by weight, their covariance is the weighted one
        eigensystem = randomized_eigensystem(
            covariance(basis, X[: self.subsample], parallel),
            basis.width,
            min(self.q, basis.width - 1),
            seed=self.seed,
            floor=10.0 * float(np.finfo(basis.dtype).eps),
        )
        hessian = Eigensystem(eigensystem.values + self.ridge, eigensystem.vectors, eigensystem.tail + self.ridge)
        preconditioner = RandomizedSVD(hessian, self.tau)
        size = measure_features(basis, preconditioner, X[-HELD_OUT:], parallel)
        size = weighted_size(size, None if w is None else w[-HELD_OUT:], problem)
        batch = self.batch or default_batch(size.critical_batch, len(data), problem.lanes)
        return PreparedFeatures(preconditioner, size, batch)

    def setup(self, problem: Problem, prepared: PreparedFeatures | None = None) -> EigenPro1Iteration:
        """The iteration on what was prepared."""
        prepared = prepared or self.prepare(problem)
        stream = problem.stream(prepared.batch)
        return EigenPro1Iteration(self, stream, problem.basis(), problem.encoding.outputs, prepared)


@record
@dataclass(frozen=True, eq=False)
class PreparedFeatures:
    """What precedes the first step.

    Attributes:
        preconditioner: P.
        size: β, λ and the largest diagonal value of the preconditioned features, as measured.
        batch: rows of a step.
    """

    preconditioner: RandomizedSVD
    size: StepSize
    batch: int


def covariance(basis: Basis, X: Array, parallel: Map) -> Callable[[Array], Array]:
    """V -> ΦᵀΦ V/n over rows X, shape (n, d), by tiles and in float64: Φ is never held.

    Args:
        basis: the functions φ.
        X: rows, as the basis wants them.
        parallel: runs tiles.
    """
    rows = list(tiles(len(X), ROW_TILE))

    def product(V: Array) -> Array:
        def part(tile: slice) -> Array:
            phi = basis.block(X[tile]).astype(np.float64)
            return np.asarray(phi.T @ (phi @ V))

        total = np.zeros_like(V)
        for group in tiles(len(rows), _GROUP):
            for term in parallel(part, rows[group]):
                total += term
        return total / len(X)

    return product


def measure_features(basis: Basis, preconditioner: RandomizedSVD, X: Array, parallel: Map) -> StepSize:
    """β and λ of k_P(x, x') = φ(x)ᵀ P φ(x') over rows.

    Args:
        basis: the functions φ.
        preconditioner: P.
        X: held-out rows, as the basis wants them, shape (n, d).
        parallel: runs tiles.
    """
    phi = np.concatenate(parallel(lambda tile: basis.block(X[tile]), tiles(len(X), ROW_TILE)))
    top = matmul(phi, preconditioner.eigensystem.vectors, parallel)
    damping = preconditioner.damping
    diagonal = np.einsum("ij,ij->i", phi, phi, dtype=np.float64) - np.square(top) @ damping

    def matvec(v: Array) -> Array:
        w = matmul(phi.T, v.astype(phi.dtype)[:, None], parallel)
        return np.asarray(matmul(phi, w, parallel)[:, 0] - top @ (damping * (top.T @ v)))

    return measure(diagonal, matvec)


@record
@dataclass(frozen=True, eq=False)
class EigenPro1State:
    """w, its average, and the number of steps taken; arrays of shape (M, c)."""

    w: Array
    mean: Array
    t: int


@dataclass(eq=False)
class EigenPro1Iteration(OneByOne):
    """Steps of preconditioned stochastic gradient descent."""

    solver: EigenPro1
    stream: Stream
    basis: Basis
    outputs: int
    prepared: PreparedFeatures

    def __post_init__(self) -> None:
        self.preconditioner, self.size = self.prepared.preconditioner, self.prepared.size
        self.epochs = self.solver.epochs
        self.contribution = Gradient(self.basis)
        eigensystem, batch = self.preconditioner.eigensystem, self.stream.batch_rows
        self.report: dict[str, Any] = {
            "features": self.basis.width,
            "q": len(eigensystem.values),
            "beta": self.size.beta,
            "lambda": self.size.top,
            "peak": self.size.peak,
            "critical_batch": self.size.critical_batch,
            "batch": batch,
            "step": self.rate(batch),
            "theorem_1_step": 1.0 / theorem_1(self.size.top, self.size.peak, batch, self.basis.width),
            "spectrum": [*eigensystem.values.tolist(), eigensystem.tail],
        }

    def rate(self, rows: int) -> float:
        """η for a batch of ``rows``; the ridge adds λ to the top of P (H + λ I) at most."""
        return self.solver.step or 1.0 / (1.0 / self.size.step(rows) + self.solver.ridge)

    def init(self) -> EigenPro1State:
        """Weights 0."""
        zero = np.zeros((self.basis.width, self.outputs), dtype=self.basis.dtype)
        return EigenPro1State(zero, zero.astype(np.float64), 0)

    def broadcast(self, state: EigenPro1State) -> Array:
        """The weights."""
        return state.w

    def update(self, state: EigenPro1State, parts: Parts, position: Position) -> EigenPro1State:
        """One step."""
        g, _, rows = parts
        g = g / np.asarray(rows, dtype=g.dtype) + np.asarray(self.solver.ridge, dtype=g.dtype) * state.w
        w = state.w - np.asarray(self.rate(rows), dtype=g.dtype) * self.preconditioner.apply(g)
        mean = average(state.mean, w, state.t + 1) if self.solver.average else state.mean
        return EigenPro1State(w, mean, state.t + 1)

    def weights(self, state: EigenPro1State) -> Array:
        """The average of the iterates, or the last."""
        return state.mean.astype(state.w.dtype) if self.solver.average else state.w
