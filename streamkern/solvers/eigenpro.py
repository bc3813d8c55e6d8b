"""EigenPro: preconditioned SGD in the RKHS, projected onto span K(·, Z).

One step on a batch (X_m, y_m) of m rows, r = K(X_m, Z) α − y_m (Abedsoltan et al. 2023, eq. 31-32):

    h = K(Z, X_m) r − K(Z, X_s) Q_s K(X_s, X_m) r,      α ← α − η/m K(Z, Z)⁻¹ h

X_s is the centers, so K(X_s, X_m) r is K(Z, X_m) r, and K(Z, Z)⁻¹ K(Z, X_s) drops out: α ← α − η/m M K(Z, X_m) r with
M = K(Z, Z)⁻¹ − Q_s. Batch and step are measured on other rows, never assumed from it; iterates are averaged.

Four projections: *exact* factors K(Z, Z) once (p² memory); *packed* keeps that factor in 16 bits, and of no more
columns than the memory allows; *inexact* puts a matrix in place of M that knows the top of K(Z, Z) and costs p q
numbers; *delayed* (Abedsoltan et al. 2025) keeps batches as temporary centers and projects, more closely, once they
number about p.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from streamkern.candidates import Candidate, first_affordable
from streamkern.data.row_order import Block, Key, Stream
from streamkern.defaults import (
    DELAYED_PRODUCTS,
    EIGEN_FLOOR,
    MAX_EIGENPAIRS,
    MIN_LEAD_SHARE,
    MOMENTUM_BATCHES,
    SETTLED_EXPONENT,
    STEPS_PER_RUN,
    STEPS_PER_RUN_BEYOND_P,
    SUBSAMPLE,
)
from streamkern.engine.quantised_factor import PackedFactor, factor_bytes
from streamkern.engine.residuals import residual, weigh
from streamkern.errors import UsageError, require_counts, require_step
from streamkern.execute.base import Parts, Position, Stack
from streamkern.kernels import Expansion
from streamkern.memory import format_bytes
from streamkern.precondition.center_projection import (
    ExactProjection,
    InexactProjection,
    MeasuredRows,
    Projection,
    center_eigensystem,
    jitter_report,
    largest_eigenvalue,
    measure_unprojected,
    project_exactly,
    project_inexactly,
)
from streamkern.precondition.int16_projection import PackedProjection, packed_lead, project_packed
from streamkern.precondition.nystrom import NystromPreconditioner, StepSize, with_halved_step
from streamkern.solvers.base import Iteration, Problem, Solver
from streamkern.solvers.batch_size import average, default_batch, measured_rows, passes_of, share_of, weighted_size
from streamkern.solvers.contributions import Gradient, TiledGradient
from streamkern.storage.serialize import serializable
from streamkern.sweep import ExtraBlocks
from streamkern.types import Array

PROJECTIONS = ("auto", "exact", "packed", "inexact", "delayed")

Temporary = tuple[tuple[Key, Array], ...]
"""(key, coefficients (b, c)) of the blocks since the last projection, which are centers until the next."""


@dataclass(frozen=True)
class EigenPro(Solver):
    """Preconditioned SGD, projected on the span of the kernel functions of the centers.

    The model is f(x) = Σ_j α_j k(x, z_j), with p centers z_j and weights α_j. The centers are the rows of Z. The
    literature calls this algorithm EigenPro 3, and EigenPro 4 with ``projection="delayed"``.

    Args:
        epochs: number of passes over the n training rows; by default 500,000 / n, from 1 to 20.
        projection: method to project each step on the p centers Z. ``exact`` factors their kernel matrix K(Z, Z), and
            stores p² floats. ``packed`` stores half of the columns of this factor, or fewer if memory is short, as
            16-bit integers. ``inexact`` uses only the top eigenpairs of K(Z, Z). ``delayed`` keeps the rows of the
            steps as temporary centers, and projects after about p rows. ``auto`` chooses exact if it fits in memory.
            Otherwise it chooses packed if a quarter of the columns fit. Otherwise it chooses delayed, or inexact if you
            give a momentum.
        s: number of centers whose kernel matrix gives the eigenpairs of the preconditioner; min(p, 2000) by default.
        q: number of eigenpairs of the preconditioner. The default is s/4, at most 500. If p > s, it is at most 250.
        batch: number m of rows of a step. Up to a number m* of rows, the *critical batch*, the largest stable step size
            is about proportional to m. For more rows, it hardly grows. m* is measured on your rows. The default is m*,
            or more if cores would otherwise be idle and the run still has enough steps. But it is at most a sixteenth
            of a pass. On the CPU, it is also at most 1,024 rows times ``lanes``. ``lanes`` is a parameter of estimators
            and pipelines: the number of parts that the rows of a step are divided into.
        step: step size η for the mean gradient of a batch; by default the largest stable step size.
        average: True returns the average of the weights after each step, False the weights after the last step.
        momentum: momentum γ in [0, 1) of MaSS, an accelerated SGD (Liu & Belkin 2018). By default
            max(0, 1 − 8 m*/min(m, p)). So batches below 8 m* rows have no momentum: it would only add noise.
            Not available with delayed projection.
        patience: stop after this many passes in which the error on validation rows fell by less than 0.01%. None runs
            all passes.
        projection_products: number of corrections in one inexact or delayed projection. Each makes the projection more
            exact, and computes p² kernel values. By default 0 for inexact, 1 for delayed, and 2 if ``auto`` chooses
            delayed.

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int | None = None
    projection: str = "auto"
    s: int | None = None
    q: int | None = None
    batch: int | None = None
    step: float | None = None
    average: bool = True
    momentum: float | None = None
    patience: int | None = None
    projection_products: int | None = None

    def __post_init__(self) -> None:
        if self.projection not in PROJECTIONS:
            raise UsageError(
                f"The projection is {self.projection!r}.",
                where="EigenPro(projection=...)",
                expected="one of " + ", ".join(PROJECTIONS),
            )
        require_counts(self, epochs=1, s=1, q=1, batch=1, patience=1, projection_products=0)
        require_step(self)
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise UsageError(f"The momentum is {self.momentum}.", where="EigenPro(momentum=...)", expected="in [0, 1)")
        if self.momentum and self.projection == "delayed":
            raise UsageError(
                "Delayed projection takes no momentum.",
                where="EigenPro(momentum=...)",
                expected="momentum=0 with projection='delayed'",
                remedy="leave momentum out",
            )

    def sizes(self, p: int) -> tuple[int, int]:
        """Return (s, q) for p centers; q = 0 if there are too few for a preconditioner."""
        s = min(p, self.s or SUBSAMPLE)
        q = min(s - 1, self.q or max(1, min(s // 4, MAX_EIGENPAIRS if s == p else MAX_EIGENPAIRS // 2)))
        return s, max(0, q)

    def chosen_projection(self, p: int, memory: int | None) -> str:
        """Return the projection that ``auto`` chooses: the most exact one whose matrices fit."""
        if self.projection != "auto":
            return self.projection
        return first_affordable(self._projections(p, inf if memory is None or p < 4 else memory))

    def _projections(self, p: int, memory: float) -> Iterator[Candidate[str]]:
        yield Candidate("exact", exact_bytes(p), memory_limit=memory)
        lead = packed_lead(p, int(memory))
        if lead >= MIN_LEAD_SHARE * p:
            yield Candidate("packed", factor_bytes(p, lead), memory_limit=memory)
        yield Candidate("inexact" if self.momentum else "delayed")

    def chosen_momentum(self, size: StepSize, batch: int, p: int) -> float:
        """Return the momentum γ for batches of ``batch`` rows and p centers.

        Momentum γ makes batches of m rows as noisy as batches of (1 − γ) m rows without momentum. The default chooses γ
        so that (1 − γ) m is 8 m*, where m* is the critical batch. Models with few centers get less momentum, because
        their weights would oscillate.
        """
        if self.momentum is not None:
            return self.momentum
        return max(0.0, 1.0 - MOMENTUM_BATCHES * size.critical_batch / min(batch, p))

    def affordable_batch(self, kind: str, rows: int, p: int) -> float:
        """Return the largest batch, for training with momentum, that leaves enough steps for convergence.

        Larger batches need fewer updates, and workers exchange fewer messages.
        """
        if kind == "delayed" or self.momentum == 0:
            return 0.0
        total = passes_of(rows, self.epochs) * rows
        return min(total / STEPS_PER_RUN, max(p, total / STEPS_PER_RUN_BEYOND_P))

    def products(self, kind: str) -> int:
        """Return the number of products with K(Z, Z) in one ``inexact`` or ``delayed`` projection."""
        if self.projection_products is not None:
            return self.projection_products
        usual = {"inexact": 0, "delayed": 1}
        return DELAYED_PRODUCTS if kind == "delayed" and self.projection == "auto" else usual[kind]

    def choices(self, p: int, memory: int | None) -> tuple[str, tuple[str, ...]]:
        kind, (s, q) = self.chosen_projection(p, memory), self.sizes(p)
        why, word = "as requested", kind
        if self.projection == "auto":
            fit = "fits" if kind == "exact" else "does not fit"
            why = f"K(Z, Z) in float64 ({format_bytes(exact_bytes(p))}) {fit} the memory of the solver"
        if kind == "packed":
            lead = packed_lead(p, memory)
            word = f"packed {lead}"  # which the weights depend on
            why += f"; the factor in 16 bits has {lead:,} of {p:,} columns ({format_bytes(factor_bytes(p, lead))})"
        elif kind == "exact" and s < p and _room_for_two(p, memory):
            word = "exact, K(Z, Z) held"  # without room for it, weights differ by rounding
        elif self.projection == "auto" and kind != "exact":
            why += ", nor does a factor in 16 bits with a quarter of its columns"
        batch = "measured at run time" if self.batch is None else f"{self.batch:,} rows"
        return word, (
            f"projection {kind}: {why}", f"preconditioner s = {s:,}, q = {q:,}; batch and step {batch}",
        )  # fmt: skip

    def smaller(self, p: int, memory: int | None) -> list[tuple[EigenPro, str]]:
        kind = self.chosen_projection(p, memory)
        if kind not in ("exact", "packed"):
            return []
        others = ("packed", "inexact", "delayed")[0 if kind == "exact" else 1 :]
        return [(replace(self, projection=name), f'use projection="{name}"') for name in others]

    def prepare(self, problem: Problem) -> Prepared:
        """Compute the eigenpairs, the projection, the batch size and the step size."""
        problem.refuse_features("EigenPro needs a kernel and centers, not features.")
        expansion, engine = problem.expansion(), problem.engine
        p, (s, q) = expansion.p, self.sizes(expansion.p)
        kind = self.chosen_projection(p, problem.memory)
        nystrom = K = None
        roomy = kind == "exact" and q > 0 and s < p and engine.device is None and _room_for_two(p, problem.memory)
        if roomy or (kind == "exact" and q and s == p):  # evaluated once, for the eigensystem and the factor
            K = engine.kernel_matrix(expansion, p, expansion.dtype if roomy else np.float64)

        def factor() -> ExactProjection:
            assert K is not None
            scale = largest_eigenvalue(K, s, engine)
            return project_exactly(expansion, None, engine, K.copy() if engine.overlaps else K, scale)

        # LAPACK decomposes K(Z_s, Z_s) on one thread, so the other threads factor K(Z, Z) at the same time.
        with engine.meanwhile(factor if roomy else None) as factored:
            if q:
                nystrom = NystromPreconditioner(center_eigensystem(expansion, s, q, EIGEN_FLOOR, engine, K))
            held, w = measured_rows(problem, problem.held_out())
        if nystrom is None and kind != "exact":
            raise UsageError(
                f"{kind} projection needs a preconditioner, and {p} centers are too few for one.",
                where="EigenPro(projection=...)",
                expected="more centers",
                remedy='use projection="exact"',
            )
        n = len(problem.train)
        made: Any = None
        if kind == "exact":
            made, K = factored() if roomy else project_exactly(expansion, nystrom, engine, K), None
        elif kind == "packed" and nystrom is not None:
            made = project_packed(expansion, nystrom, packed_lead(p, problem.memory), engine)
        measured = None if kind == "delayed" else MeasuredRows.of(expansion, held)
        while True:
            projection: Any
            if made is not None:
                projection = replace(made, nystrom=nystrom)
            else:
                assert nystrom is not None  # only the exact projection does without
                projection = project_inexactly(expansion, nystrom, self.products(kind), engine)
            if measured is not None:
                size = measured.measure(projection)
            else:
                size = measure_unprojected(expansion, projection.nystrom, held, engine)
            size = weighted_size(size, w, problem)
            batch = self.batch or default_batch(
                max(size.critical_batch, self.affordable_batch(kind, n, p)), n, problem.lanes, problem.largest_block
            )
            if self.q is not None or nystrom is None or q <= 1:
                break
            # The preconditioned directions shrink by η σ_{q+1}/s a step. Where outlying rows hold the step down, a deep
            # preconditioner leaves them too little of it to settle within the run.
            shrink = (self.step or size.step(batch)) * nystrom.eigensystem.tail / len(nystrom.eigensystem.vectors)
            if engine.decide(shrink * passes_of(n, self.epochs) * -(-n // batch) >= SETTLED_EXPONENT, bound=True):
                break
            q //= 2
            nystrom = nystrom.truncated(q)
        if made is not None:
            return Prepared(kind, s, nystrom, size, batch, made.W, 0.0, made.jitter)
        return Prepared(kind, s, nystrom, size, batch, None, projection.bound, 0.0)

    def setup(self, problem: Problem, prepared: Prepared | None = None) -> ProjectedIteration | DelayedIteration:
        prepared = prepared or self.prepare(problem)
        kind, nystrom, size = prepared.projection, prepared.nystrom, prepared.size
        expansion, engine = problem.expansion(), problem.engine
        stream = problem.stream(prepared.batch)
        report = {
            "projection": kind,
            "s": prepared.s,
            "q": 0 if nystrom is None else len(nystrom.eigensystem.values),
            **size.report(stream.batch_rows, self.step),
            "momentum": 0.0 if kind == "delayed" else self.chosen_momentum(size, stream.batch_rows, expansion.p),
            "spectrum": [] if nystrom is None else [*nystrom.eigensystem.values.tolist(), nystrom.eigensystem.tail],
        }
        if prepared.W is not None:
            report |= jitter_report(prepared.jitter, expansion.dtype if kind == "exact" else np.dtype(np.float32))
        given = self, stream, expansion, problem.encoding.outputs, prepared
        if prepared.W is not None and not isinstance(prepared.W, PackedFactor):
            return ProjectedIteration(*given, ExactProjection(prepared.W, nystrom, engine), report)
        assert nystrom is not None
        if prepared.W is not None:
            report["lead"] = prepared.W.lead
            return ProjectedIteration(*given, PackedProjection(prepared.W, nystrom, engine), report)
        projection = InexactProjection(expansion, nystrom, prepared.bound, self.products(kind), engine.here())
        if kind == "inexact":
            return ProjectedIteration(*given, projection, report)
        report["project_every"] = every = max(1, round(expansion.p / stream.batch_rows))
        return DelayedIteration(*given, problem.recent_blocks(stream, temporary_keys), projection, every, report)


@serializable
@dataclass(frozen=True, eq=False)
class Prepared:
    """The values that the first step needs; ``s`` is the number of centers whose kernel matrix was decomposed.

    ``W`` is the inverse factor of the exact projection, shape (p, p), or packed, and ``jitter`` that of K(Z, Z), as a
    share of its largest eigenvalue. ``bound`` is that of ``InexactProjection``.
    """

    projection: str
    s: int
    nystrom: NystromPreconditioner | None
    size: StepSize
    batch: int
    W: Array | PackedFactor | None
    bound: float
    jitter: float


def _room_for_two(p: int, memory: int | None) -> bool:
    """Return True if K(Z, Z) may stay in memory while a copy is factored."""
    return memory is None or 3 * exact_bytes(p) <= memory


def exact_bytes(p: int) -> int:
    """Return the bytes of K(Z, Z) in float64; exact projection overwrites it with the inverse of its factor."""
    return p * p * 8


@serializable
@dataclass(frozen=True, eq=False)
class ProjectedState:
    """α, the average of the iterates in float64, the number of steps, and u, where the next gradient is evaluated.

    Arrays have shape (p, c). With momentum u is beyond α.
    """

    alpha: Array
    mean: Array
    t: int
    ahead: Array


@dataclass(eq=False)
class EigenProIteration(Iteration):
    """What both kinds of steps share."""

    solver: EigenPro
    stream: Stream
    expansion: Expansion
    outputs: int
    prepared: Prepared

    def __post_init__(self) -> None:
        self.epochs = passes_of(self.stream.rows, self.solver.epochs)

    def rate(self, rows: int) -> float:
        """Step size η for a batch of ``rows``."""
        return self.solver.step or self.prepared.size.step(rows)

    def with_halved_step(self) -> Prepared | None:
        return with_halved_step(self.prepared, self.solver.step)


@dataclass(eq=False)
class ProjectedIteration(EigenProIteration):
    """EigenPro 3 that projects every step: α ← α − η/m M K(Z, X_m) r, where M is preconditioner and projection.

    With momentum γ the gradient g is that at u, and u ← (1 + γ) α − γ α₋ + η₂ g, where α₋ is the α before and
    η₂ = η (1 + γ)/2 (1 − 1/κ̃), κ̃ = 1 + m*/m (Liu & Belkin 2018, MaSS, eq. 6 and 8).
    """

    projection: Projection
    report: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contribution = Gradient(self.expansion)
        if isinstance(self.projection, PackedProjection) and self.projection.engine.device is None:
            self.contribution = TiledGradient(self.expansion, self.projection.rows)
        ratio = self.prepared.size.critical_batch / self.stream.batch_rows
        gamma = self.solver.chosen_momentum(self.prepared.size, self.stream.batch_rows, self.expansion.p)
        self.momentum = gamma, (1.0 + gamma) / 2.0 * (ratio / (1.0 + ratio))  # γ and η₂/η

    def init(self) -> ProjectedState:
        engine = self.expansion.engine
        zero = engine.zeros((self.expansion.p, self.outputs), self.expansion.dtype)
        mean, zero = engine.resident(zero.astype(np.float64)), engine.resident(zero)
        return ProjectedState(zero, mean, 0, zero)

    def broadcast(self, state: ProjectedState) -> Array:
        """Return the weights at which the gradient is evaluated: α, or u."""
        ahead: Array = self.expansion.engine.resident(state.ahead)
        return ahead

    def update(self, state: ProjectedState, parts: Parts, position: Position) -> ProjectedState:
        (g, _, rows), engine = parts, self.expansion.engine
        if not isinstance(self.projection, ExactProjection):
            g = engine.resident(self.projection.apply(engine.on_host(g)))
        else:
            g = self.projection.apply(g)
        arrays = tuple(engine.resident(array) for array in (state.ahead, state.alpha, state.mean))
        t = state.t + 1
        alpha, ahead, mean = engine.moved(arrays, g, self.rate(rows) / rows, *self.momentum, share_of(t))
        return ProjectedState(alpha, mean, t, ahead)

    def kept(self, state: ProjectedState) -> ProjectedState:
        alpha, mean, ahead = map(self.expansion.engine.on_host, (state.alpha, state.mean, state.ahead))
        return replace(state, alpha=alpha, mean=mean, ahead=ahead)

    def weights(self, state: ProjectedState) -> Array:
        found = state.mean if self.solver.average else state.alpha
        weights: Array = self.expansion.engine.on_host(found).astype(self.expansion.dtype)
        return weights


def temporary_keys(state: tuple[Array, Temporary]) -> list[Key]:
    """Return the keys of the temporary centers of a broadcast state."""
    return [key for key, _ in state[1]]


@dataclass(eq=False)
class DelayedGradient(Gradient):
    """Contributes (key, W r), φ(X)ᵀ W r, Σ w‖r‖² and the rows, r = φ(X) α + K(X, temporary) b − y.

    The state is α with the temporary centers, whose blocks are the extra ones.
    """

    basis: Expansion

    def __call__(self, block: Block, state: Any, prepared: Any = None, extra_blocks: Iterable[Block] = ()) -> Parts:
        alpha, temporary = state
        y, w, expansion, loss = block.y, block.w, self.basis, 0.0
        assert y is not None
        F = expansion.engine.zeros((block.X.shape[0], alpha.shape[1]), alpha.dtype)
        for other, (_, b) in zip(extra_blocks, temporary, strict=True):
            F += expansion.at(other.X).predict(block.X, b)

        def respond(f: Array, rows: slice) -> Array:
            nonlocal loss
            r = F[rows]
            r += f
            residual(r, y[rows])
            loss += weigh(r, None if w is None else w[rows])
            return r

        g = expansion.engine.pull(expansion, block.X, alpha, respond, alpha.shape[1], prepared)
        return Stack(((block.key, F),)), g, loss, block.X.shape[0]


@serializable
@dataclass(frozen=True, eq=False)
class DelayedState:
    """α over the centers, and the sums that wait for the next projection; arrays have shape (p, c).

    ``alpha`` has the corrections of the preconditioner since the last projection, and ``base`` is α as that left it.
    ``mean`` averages the ``t`` projected iterates. ``pending`` is K(Z, temporary) times the coefficients of the
    ``steps`` since.
    """

    alpha: Array
    base: Array
    mean: Array
    t: int
    temporary: Temporary
    pending: Array
    steps: int


@dataclass(eq=False)
class DelayedIteration(EigenProIteration):
    """Steps of EigenPro 4: batches are temporary centers until they number about p, then are projected."""

    extra_blocks: ExtraBlocks | None = field()  # a field without a default, where the base has one
    projection: InexactProjection
    cycle: int = field()
    report: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contribution = DelayedGradient(self.expansion)
        self.nystrom = self.projection.nystrom

    def init(self) -> DelayedState:
        zero = self.expansion.engine.zeros((self.expansion.p, self.outputs), self.expansion.dtype)
        return DelayedState(zero, zero, zero.astype(np.float64), 0, (), zero, 0)

    def broadcast(self, state: DelayedState) -> tuple[Array, Temporary]:
        return state.alpha, state.temporary

    def update(self, state: DelayedState, parts: Parts, position: Position) -> DelayedState:
        pieces, g, _, rows = parts
        rate = np.asarray(self.rate(rows) / rows, dtype=g.dtype)
        system, engine = self.nystrom.eigensystem, self.projection.engine
        inside = engine.product_t(system.vectors, g.astype(np.float64))
        correction = engine.product(system.vectors, rate * self.nystrom.damping[:, None] * inside)
        state = replace(
            state,
            alpha=state.alpha + correction.astype(g.dtype),
            temporary=state.temporary + tuple((key, -rate * r) for key, r in pieces),
            pending=state.pending - rate * g,
            steps=state.steps + 1,
        )
        return self.settle(state) if state.steps >= self.cycle else state

    def settle(self, state: DelayedState) -> DelayedState:
        if not state.steps:
            return state
        # The projection includes K⁻¹ and the preconditioner: the corrections in alpha are part of it.
        alpha = state.base + self.projection.apply(state.pending)
        mean = average(state.mean, alpha, state.t + 1)
        return DelayedState(alpha, alpha, mean, state.t + 1, (), np.zeros_like(alpha), 0)

    def weights(self, state: DelayedState) -> Array:
        return state.mean.astype(state.alpha.dtype) if self.solver.average else state.alpha
