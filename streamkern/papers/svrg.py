"""Sketched preconditioned SVRG (Gonen, Orabona & Shalev-Shwartz 2016): ridge regression by variance-reduced batches.

minimise L(w) = 1/(2n) Σ_i ‖φ(x_i)ᵀ w − y_i‖² + λ/2 ‖w‖²  (eq. 1), half of what ``Direct(ridge=λ)`` minimises on
features: both have the same solution for the same λ.

A pass takes the full gradient at a snapshot w̃, one sweep, and then steps of a batch B (their Algorithm 1):

    w ← w − η P⁻¹ (1/|B| Σ_{i in B} φ_i φ_iᵀ (w − w̃) + λ (w − w̃) + ∇L(w̃))

The loss is quadratic, so that the gradient at w less that at w̃ is a product with w − w̃ and nothing cancels. In the
variable P^{1/2} w the same step is P^{−1/2} on every row, as the paper writes it: the rows are never transformed. The
paper samples the M ridge terms λ/2 ⟨w, b_j⟩², b_j = P^{−1/2} e_j, as if they were rows, because their sum costs as much
as several rows; compared with a batch it costs nothing, so that all of them take part in every step, without variance.

There is no accelerated variant. On the paper's matrices, at a tenth of their size, Nesterov's momentum within a pass
gave no more than a longer step does, and diverged where rows are of very unequal weight; Katyusha's, with the
preconditioner, was ahead from about ten epochs on at λ = 1e-8, and behind in all else.

By importance, rows are drawn with replacement, each with a chance in proportion to its weight in the problem. The
gradient of a row that is drawn c times as often counts 1/c as much: the mean is the same, and what bounds the step is
the mean of the weights ‖P^{−1/2} φ_i‖² in place of the largest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streamkern.data.row_order import Block, Stream
from streamkern.defaults import HELD_OUT, MAX_RESIDUAL, MIN_SVRG_STEPS
from streamkern.engine.residuals import residual, weigh
from streamkern.errors import UsageError, require_counts, require_ridge, require_step
from streamkern.execute.base import Parts, Position, Stack
from streamkern.kernels import Basis
from streamkern.papers.lanczos import LowRank, block_lanczos, identity_preconditioner, sketched_preconditioner
from streamkern.precondition.nystrom import StepSize, step_of_features
from streamkern.solvers.base import Iteration, Problem, Solver, Sweep
from streamkern.solvers.batch_size import measured_rows, weighted_size
from streamkern.solvers.contributions import Gradient, NormalProduct
from streamkern.solvers.solution_residual import relative_residual, report_residual
from streamkern.storage.serialize import serializable
from streamkern.sweep import Contribution
from streamkern.types import Array

PRECONDITIONERS = ("lanczos", None)
SAMPLINGS = ("uniform", "importance")


@dataclass(eq=False)
class WeightedProduct(Contribution):
    """Contributes Σ_i a_i φ_i φ_iᵀ v, Σ‖φ(X) w − y‖² and the rows, for a state (v, w); a is by stored row."""

    basis: Basis
    weights: Array

    def __call__(
        self, block: Block, state: tuple[Array, Array], prepared: Any = None, extra_blocks: Iterable[Any] = ()
    ) -> Parts:
        v, w = state
        product, loss = np.zeros_like(v), 0.0
        weights = self.weights[block.ids, None].astype(v.dtype)
        if block.w is not None:
            weights *= block.w[:, None].astype(v.dtype)
        assert block.y is not None
        for rows, phi in self.basis.engine.panels(self.basis, block.X):
            product += phi.T @ (weights[rows] * (phi @ v))
            F = phi @ w
            residual(F, block.y[rows])
            loss += weigh(F, None if block.w is None else block.w[rows])
        return product, loss, block.X.shape[0]


def _row_norms(basis: Basis, P: LowRank, block: Block, state: None) -> Parts:
    """Contribute ids and w_i ‖P^{−1/2} φ_i‖² of rows, concatenated, with sample weights w_i."""
    norms = [P.norms(phi) for _, phi in basis.engine.panels(basis, block.X)]
    if not norms:
        return (Stack(),)
    found = np.concatenate(norms)
    return (Stack(((block.ids, found if block.w is None else block.w * found),)),)


def preconditioned_norms(problem: Problem, basis: Basis, P: LowRank) -> Array:
    """Return ‖P^{−1/2} φ_i‖² of the stored rows, by one sweep; 0 for a row that takes no part."""
    data = problem.train.plain()
    if problem.train._last_round:
        raise UsageError(
            f"Importance sampling needs equal copies of each row: {len(problem.train):,} rows are not a multiple of "
            f"{data.base_rows:,}.",
            where='sampling="importance"',
            expected="the same number of copies of each row",
            remedy="give augment(copies=...) in place of rows",
        )
    norms = problem.engine.zeros((int(data.source.bounds[-1]),))
    (pieces,) = problem.sweep(partial(_row_norms, basis, P), data=data)
    for ids, values in pieces:
        norms[ids] = values
    return norms


def importance_weights(norms: Array) -> Array:
    """Return weights that turn the mean over draws into that over rows: mean/norm, and 0 for a row never drawn."""
    drawn = norms > 0
    mean = norms[drawn].sum() / max(1, np.count_nonzero(drawn))
    inverse: Array = np.divide(mean, norms, out=np.zeros_like(norms), where=drawn)
    return inverse


@dataclass(frozen=True)
class SVRG(Solver):
    """Stochastic variance-reduced gradients, preconditioned by block Lanczos or not (Gonen et al. 2016).

    The report of the fit has ``residual``: ‖P^{−1/2} ∇L‖, relative to its value at w = 0, for the preconditioner P and
    the loss L. ∇L is computed as the mean gradient of the steps in the second half of the last pass. If the residual
    is too large, the fit warns.

    Args:
        epochs: number of outer loops. Each evaluates every row twice: for the full gradient and in a step.
        ridge: λ of the penalty λ/2 ‖w‖².
        k: rank of the preconditioner.
        batch: number of rows of a step; by default β/λ_1. β is the mean of β_i = ‖P^{−1/2} φ_i‖² over rows i with
            features φ_i. λ_1 is the largest eigenvalue of the mean of P^{−1/2} φ_i φ_iᵀ P^{−1/2}. Both are measured on
            a sample of the rows. A smaller batch does not reduce the number of passes.
        step: step size η. By default, the largest stable step for the batch, from the same measurements.
        preconditioner: ``lanczos`` (eq. 8 of Gonen et al.), or None for plain SVRG.
        sampling: with ``uniform``, a pass goes over every row once. With ``importance``, rows of a batch are drawn with
            replacement, in proportion to β_i (Algorithm 1 of Gonen et al.). Each gradient is divided by the probability
            of its row. The step is then limited by the mean of the β_i, and not by the largest β_i. ``importance``
            takes far fewer epochs than ``uniform`` if row norms are very unequal. It needs one more pass and 24 bytes
            for each stored row. It reads rows in random order, so the stored rows should fit in memory.
        patience: as in ``EigenPro``.

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int = 10
    ridge: float = 1e-8
    k: int = 30
    batch: int | None = None
    step: float | None = None
    preconditioner: str | None = "lanczos"
    sampling: str = "uniform"
    patience: int | None = None

    def __post_init__(self) -> None:
        require_ridge(self)
        require_counts(self, epochs=1, k=1, batch=1, patience=1)
        require_step(self)
        for name, known in (("preconditioner", PRECONDITIONERS), ("sampling", SAMPLINGS)):
            if getattr(self, name) not in known:
                raise UsageError(
                    f"The {name} is {getattr(self, name)!r}.",
                    where=f"SVRG({name}=...)",
                    expected=" or ".join(map(repr, known)),
                )

    def prepare(self, problem: Problem) -> PreparedSketch:
        """Compute the preconditioner in a few passes over the rows, and measure the largest step that it allows.

        Raises:
            NumericalError: the features' covariance is 0 or not finite.
            UsageError: rows are sampled by importance, and some have more augmented copies than others.
        """
        basis = problem.basis()
        report: dict[str, Any] = {}
        P = identity_preconditioner(basis.width)
        if self.preconditioner is not None:
            spectrum = block_lanczos(problem.sweep, basis, self.k, problem.engine, seed=problem.seed)
            P = sketched_preconditioner(spectrum, self.ridge)
            report = {"sweeps": spectrum.sweeps, "eigenvalues": spectrum.values.tolist()}
        norms = preconditioned_norms(problem, basis, P) if self.sampling == "importance" else None
        return PreparedSketch(P, _measure(problem, basis, P, self.ridge, self.sampling), norms, report)

    def setup(self, problem: Problem, prepared: PreparedSketch | None = None) -> SVRGIteration:
        prepared = prepared or self.prepare(problem)
        most = max(problem.lanes, len(problem.train) // MIN_SVRG_STEPS)
        batch = self.batch or int(np.clip(round(prepared.size.critical_batch), problem.lanes, most))
        stream = problem.stream(batch, chances=prepared.norms)
        return SVRGIteration(self, stream, problem.basis(), problem.encoding.outputs, prepared)


@serializable
@dataclass(frozen=True, eq=False)
class PreparedSketch:
    """What the first step needs: P, β, λ_1 and the largest β_i; β_i of all stored rows, if they are sampled by it."""

    P: LowRank
    size: StepSize
    norms: Array | None
    report: dict[str, Any]


def _measure(problem: Problem, basis: Basis, P: LowRank, ridge: float, sampling: str) -> StepSize:
    """β, λ_1 and the largest β_i of P^{−1/2} (C + λ I) P^{−1/2} on rows drawn from the training data."""
    engine = problem.engine
    held, w = measured_rows(problem, problem.draw(HELD_OUT))
    phi = engine.values(basis, held, lambda values: P.inverse_root(values.astype(np.float64)))

    size = step_of_features(phi, engine)
    if sampling == "uniform":  # by importance, rows of large weight come more often and not with longer steps
        size = weighted_size(size, w, problem)
    # The ridge is in every step whole; it adds at most this to any curvature.
    extra = ridge / P.least
    return StepSize(size.beta + extra, size.top + extra, size.peak + extra)


@serializable
@dataclass(frozen=True, eq=False)
class SVRGState:
    """A running pass from w̃, the ``snapshot``, which is exact in the arithmetic's dtype; arrays (M, c), float64.

    ``gradient`` is ∇L(w̃), ``first`` P^{−1/2} ∇L(0), and ``residual`` the largest norm of a column of P^{−1/2} ∇L(w̃),
    relative to that of ``first``. ``mean`` and ``slope`` average the last half of the pass, ``averaged`` iterates and
    their gradients: ∇L is linear, so this is ∇L(mean) without another sweep.
    """

    snapshot: Array
    gradient: Array
    first: Array
    residual: float
    w: Array
    mean: Array
    slope: Array
    averaged: int


@dataclass(eq=False)
class SVRGIteration(Iteration):
    """Outer loops of SVRG: the mean of the last half of a pass is the next snapshot."""

    solver: SVRG
    stream: Stream
    basis: Basis
    outputs: int
    prepared: PreparedSketch

    sweeps = 1

    def __post_init__(self) -> None:
        self.epochs = self.solver.epochs
        self.P, self.size = self.prepared.P, self.prepared.size
        self.gradient = Gradient(self.basis)
        norms = self.prepared.norms
        self.contribution = (
            NormalProduct(self.basis) if norms is None else WeightedProduct(self.basis, importance_weights(norms))
        )
        # Divided by its chance, every row that is drawn weighs as much as the mean row does.
        self.noise = self.size if norms is None else StepSize(self.size.beta, self.size.top, self.size.beta)
        self.report: dict[str, Any] = {
            **self.prepared.report,
            **self.size.report(self.stream.batch_rows, self.rate(self.stream.batch_rows)),
            "features": self.basis.width,
        }

    def rate(self, rows: int) -> float:
        return self.solver.step or self.noise.step(rows)

    def init(self) -> SVRGState:
        zero = self.basis.engine.zeros((self.basis.width, self.outputs))
        return SVRGState(zero, zero, zero, 1.0, zero, zero, zero, 0)

    def begin(self, state: SVRGState, pass_: int, sweep: Sweep) -> SVRGState:
        shared = self.weights(state)
        g, _, n = sweep(self.gradient, shared)
        snapshot = shared.astype(np.float64)
        gradient = g.astype(np.float64) / n + self.solver.ridge * snapshot
        reached = self.P.inverse_root(gradient.T).T
        first = state.first if pass_ else reached
        residual = relative_residual(reached, first)
        zero = np.zeros_like(snapshot)
        return SVRGState(snapshot, gradient, first, residual, snapshot, zero, zero, 0)

    def settle(self, state: SVRGState) -> SVRGState:
        residual = state.residual
        if state.averaged:
            residual = relative_residual(self.P.inverse_root(state.slope.T).T, state.first)
        remedies = ["more epochs", "a larger ridge", "a larger k"] + ["step=None"] * (self.solver.step is not None)
        report_residual(self.report, "SVRG", residual, ["after the last pass"], remedies, far=residual > MAX_RESIDUAL)
        return state

    def broadcast(self, state: SVRGState) -> tuple[Array, Array]:
        dtype = self.basis.dtype
        return (state.w - state.snapshot).astype(dtype), state.w.astype(dtype)

    def update(self, state: SVRGState, parts: Parts, position: Position) -> SVRGState:
        product, _, rows = parts
        g = product.astype(np.float64) / rows + self.solver.ridge * (state.w - state.snapshot) + state.gradient
        w = state.w - self.rate(rows) * self.P.inverse(g)
        if position[1] < self.stream.steps // 2:
            return replace(state, w=w, averaged=0)
        averaged = state.averaged + 1
        mean, slope = state.mean + (w - state.mean) / averaged, state.slope + (g - state.slope) / averaged
        return replace(state, w=w, mean=mean, slope=slope, averaged=averaged)

    def weights(self, state: SVRGState) -> Array:
        """Return the mean of the last half of a pass, or the iterate before there is one."""
        return (state.mean if state.averaged else state.w).astype(self.basis.dtype)
