"""EigenPro: preconditioned SGD in the RKHS, projected onto span K(·, Z).

One step on a batch (X_m, y_m) of m rows, r = K(X_m, Z) α − y_m (Abedsoltan et al. 2023, eq. 31-32):

    h = K(Z, X_m) r − K(Z, X_s) Q_s K(X_s, X_m) r,      α ← α − η/m K(Z, Z)⁻¹ h

X_s is the centers, so K(X_s, X_m) r is K(Z, X_m) r, and K(Z, Z)⁻¹ K(Z, X_s) drops out: α ← α − η/m M K(Z, X_m) r with
M = K(Z, Z)⁻¹ − Q_s. Batch and step are measured on other rows, never assumed from it; iterates are averaged.

Three projections: *exact* factors K(Z, Z) once (p² memory); *inexact* puts a matrix in place of M that knows the top of
K(Z, Z) and costs p q numbers; *delayed* (Abedsoltan et al. 2025) keeps batches as temporary centers and projects, more
closely, once they number about p.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from streamkern.data.stream import Block, Key, Stream
from streamkern.errors import UsageError, require_counts
from streamkern.execute.base import Parts, Position, Stack
from streamkern.kernels import Expansion
from streamkern.kernels.device import DeviceExpansion
from streamkern.memory import format_bytes
from streamkern.precondition.nystrom import Nystrom, StepSize
from streamkern.solvers.base import OneByOne, Problem
from streamkern.solvers.cost import KERNEL_TILE, POWER_STEPS, Cost, Size, Work, eigh, triangle
from streamkern.solvers.dense import Map, factoring_bytes, gram_bytes, matmul
from streamkern.solvers.device import DeviceProjection, project_on_device
from streamkern.solvers.gradient import Gradient
from streamkern.solvers.projection import (
    COLUMNS,
    EIGEN_FLOOR,
    ExactProjection,
    InexactProjection,
    ProjectedKernel,
    center_eigensystem,
    kernel_matrix,
    measure_inexact,
    measure_unprojected,
    project_exactly,
    project_inexactly,
    wide_bytes,
)
from streamkern.solvers.score import residual, weigh
from streamkern.solvers.weighting import measured_rows, weighted_size
from streamkern.storage.records import record
from streamkern.types import Array

PROJECTIONS = ("auto", "exact", "inexact", "delayed")

AVERAGING = 5.0
"""η of the polynomial-decay average (Shamir & Zhang 2013, eq. 5): iterate t enters with weight about (t/T)^η."""

_SUBSAMPLE = 2000  # s: more costs s³
_EIGENPAIRS = 500  # q at most, half as many of more centers than s: a step costs 4 p q c for them, the set-up 14 p q²
HELD_OUT = 2000
_DIAGONAL = 512  # rows that the preconditioned diagonal is measured on
_PRODUCTS = {"inexact": 0, "delayed": 1}
_BLOCK_ROWS = 256  # rows of a block below which a matrix product is no longer near its rate
_LARGEST_BLOCK = 1024  # rows beyond which a block gains no rate and costs memory
_MOMENTUM_BATCHES = 8.0  # critical batches m* beyond which momentum makes up for what the step no longer gains
_SETTLED = 10.0  # what is left of the preconditioned directions at the end of a run is exp(-this)
_STEPS_A_PASS = 16  # at least, where the data are few
_STEPS_A_RUN, _STEPS_BEYOND_P = 200, 2000  # that momentum needs to cost no accuracy, up to p rows a step and beyond


@dataclass(frozen=True)
class EigenPro:
    """EigenPro 3, and 4 with ``projection="delayed"``.

    Args:
        epochs: passes over the training rows.
        projection: ``exact``, ``inexact``, ``delayed``, or ``auto``: exact while its p² floats fit, else inexact.
        s: centers whose kernel matrix is decomposed to find them; min(p, 2000) by default.
        q: eigenpairs of the preconditioner; s/4 by default, at most 500, and 250 of more centers than s.
        batch: rows of a step m; by default the measured critical batch, or what keeps the processor busy if larger; up
            to 1,024 a lane where a run has so many rows that enough steps remain (``affordable_batch``).
        step: η of the mean gradient; by default what the measured spectrum allows.
        average: whether the weights are the average of the iterates rather than the last one.
        momentum: γ in [0, 1) of MaSS (Liu & Belkin 2018), which on a preconditioner is AxlePro; by default
            1 − 8 m*/min(m, p), where that is positive: below 8 critical batches it only adds noise. For steps
            that are projected each; delayed projection takes none.
        patience: with a validation set: stop after this many passes without improvement; None runs all.
        projection_products: products with K(Z, Z), of p² kernel values each, that one inexact or delayed projection
            takes; by default 0 for inexact, which then costs no more than exact, and 1 for delayed.

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int = 1
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
        if self.step is not None and not (np.isfinite(self.step) and self.step > 0):
            raise UsageError(f"The step is {self.step}.", where="EigenPro(step=...)", expected="a positive number")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise UsageError(f"The momentum is {self.momentum}.", where="EigenPro(momentum=...)", expected="in [0, 1)")
        if self.momentum and self.projection == "delayed":
            raise UsageError(
                "Delayed projection takes no momentum.",
                where="EigenPro(momentum=...)",
                expected="momentum=0 with projection='delayed'",
                remedy="leave momentum out",
            )

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": "EigenPro", **asdict(self)}

    def sizes(self, p: int) -> tuple[int, int]:
        """(s, q) for p centers; q = 0 where there are too few for a preconditioner."""
        s = min(p, self.s or _SUBSAMPLE)
        q = min(s - 1, self.q or max(1, min(s // 4, _EIGENPAIRS if s == p else _EIGENPAIRS // 2)))
        return s, max(0, q)

    def chosen_projection(self, p: int, memory: int | None) -> str:
        """What ``auto`` stands for: exact while its matrices fit."""
        if self.projection != "auto":
            return self.projection
        fits = memory is None or exact_bytes(p) <= memory
        return "exact" if fits or p < 4 else "inexact"

    def chosen_momentum(self, size: StepSize, batch: int, p: int) -> float:
        """γ for a batch: its noise is then that of a batch of (1 − γ) as many rows, 8 critical ones.

        With p functions the smallest eigenvalue is at most β/p, and the condition number at least p λ/β = p/m*: few
        centers need no momentum, and would swing with it.
        """
        if self.momentum is not None:
            return self.momentum
        return max(0.0, 1.0 - _MOMENTUM_BATCHES * size.critical_batch / min(batch, p))

    def affordable_batch(self, kind: str, rows: int, p: int) -> float:
        """Rows of a step that cost a run no accuracy, with momentum: what leaves it enough steps.

        The larger a batch, the rarer the update on the host and the exchange with workers. Beyond p rows a batch gains
        no directions, only less noise.
        """
        if kind == "delayed" or self.momentum == 0:
            return 0.0
        total = self.epochs * rows
        return min(total / _STEPS_A_RUN, max(p, total / _STEPS_BEYOND_P))

    def products(self, kind: str) -> int:
        """Products with K(Z, Z) in one projection of a kind."""
        return _PRODUCTS[kind] if self.projection_products is None else self.projection_products

    def _eigen_bytes(self, p: int, d: int) -> int:
        """Peak bytes of the eigensystem of p centers."""
        s, q = self.sizes(p)
        found = 3 * s * s * 8 + 2 * s * q * 8 + wide_bytes(s, d)  # the matrix, LAPACK's copy and its work space
        # A basis, its product with K(Z, Z), and what comes of both.
        return max(found, (3 * _more(s, q) + q) * p * 8 if s < p else 0)

    def _beside(self, p: int, d: int, slots: int, memory: int | None) -> bool:
        """Whether K(Z, Z) is evaluated while the eigensystem is: with half of the memory, and threads to do it."""
        needed = matrix_bytes(p, d, slots) + self._eigen_bytes(p, d)
        return slots > 1 and self.sizes(p)[0] < p and (memory is None or 2 * needed <= memory)

    def cost(self, size: Size) -> Cost:
        """Abedsoltan et al. 2023, Table 1, with the constants of this implementation."""
        p, c, b = size.p, size.outputs, size.itemsize
        s, q = self.sizes(p)
        kind = self.chosen_projection(p, size.memory)
        batch = max(self.batch or largest_batch(size.n, size.lanes), size.lanes)
        likely = self.batch or default_batch(self.affordable_batch(kind, size.n, p), size.n, size.lanes)
        held, diagonal = min(HELD_OUT, size.n), min(_DIAGONAL, p)
        beyond = min(HELD_OUT, size.n - p if size.n - p >= 64 else size.n)  # of them, those that are not centers
        eigen, more = self._eigen_bytes(p, size.d), _more(s, q)
        setup = Work(values64=triangle(s), eigen=eigh(s)) if q else Work()
        if s < p:
            gemm64 = 14.0 * p * more * more + 2.0 * p * more * q
            setup += Work(values=p * (s + p), gemm=2.0 * p * (s + p) * more, gemm64=gemm64)
            setup += Work(eigen=2.0 * eigh(more) - eigh(s) / 2)  # that of s rows is in float32
        step = Work(numbers=12.0 * p * c)
        near, beside, reads = p, 0.0, 1.0  # values a row at centers, and at temporary ones, which are built again
        if kind == "exact":
            factor, rows = p * p * b, held + diagonal
            measured = factor + 2 * rows * p * b + rows * 2 * q * 8 + 2 * held * held * 8
            matrix = matrix_bytes(p, size.d, size.slots)
            both = matrix + eigen if self._beside(p, size.d, size.slots, size.memory) else max(matrix, eigen)
            setup_bytes = p * q * 8 + max(both, exact_bytes(p) + factoring_bytes(p, size.slots), measured)
            resident = factor + p * q * (8 + b) + gram_bytes(p, c, b)
            setup += Work(
                values=float(beyond + diagonal) * p,
                values64=0.0 if q and s == p else triangle(p),  # that of the eigensystem is the same
                gemm=1.0 * (beyond + diagonal) * p * p + 1.0 * beyond * beyond * p,
                gemm64=2.0 / 3.0 * p**3 + 2.0 * (beyond + diagonal) * p * q,
                vector64=2.0 * POWER_STEPS * beyond * (beyond + 2 * q),
            )
            step += Work(thin=2.0 * p * p * c + 4.0 * p * q * c)
        else:
            products = self.products(kind)
            measured = held * p * b + 2 * held * held * 8 + p * (7 * COLUMNS * 8 + diagonal * b) + 3 * held * q * 8
            setup_bytes = p * q * 8 + max(eigen, measured)
            resident = p * q * 8
            power = Work(values=4.0 * p * p, gemm=64.0 * p * p) if products else Work()
            vector64 = 2.0 * POWER_STEPS * beyond * (beyond + 2 * q)
            every = max(1, round(p / likely))
            if kind == "delayed":
                resident += (p + batch) * (size.d + 2 * c) * b + size.slots * size.panel
                setup += power + Work(values=beyond * (beyond + p), serial64=2.0 * beyond * p * q, vector64=vector64)
                beside, reads = (every - 1) / 2 * likely, 2.0 - 1.0 / every
                step += Work(thin64=4.0 * p * q * c)
            else:
                tiles = -(-beyond // COLUMNS) + -(-diagonal // COLUMNS)
                setup += power + Work(
                    values=(beyond + diagonal) * p + products * tiles * p * p,
                    gemm=2.0 * products * (beyond + diagonal) * p * p,
                    gemm64=6.0 * (beyond + diagonal) * p * q + 2.0 * beyond * beyond * p,
                    vector64=vector64,
                )
                every = 1
            more_products = Work(values=p * p, panel=2.0 * p * p * c, thin64=4.0 * p * q * c)
            step += (1.0 / every) * (products * more_products + Work(thin64=6.0 * p * q * c))
        row = Work(values=near + beside, panel=4.0 * near * c + 2.0 * beside * c)
        why = {
            "exact": f"p² numbers ({format_bytes(p * p * b)}) fit the memory",
            "inexact": "p² numbers do not fit the memory",
        }
        reasons = (
            f"projection {kind}: {why[kind] if self.projection == 'auto' else 'as asked'}",
            f"preconditioner s = {s:,}, q = {q:,}; batch and step "
            + ("measured at run time" if self.batch is None else f"{self.batch:,} rows"),
        )
        return Cost(
            setup_bytes, resident, setup, row, step, batch, self.epochs, likely, reads, choice=kind, reasons=reasons
        )  # fmt: skip

    def prepare(self, problem: Problem) -> Prepared:
        """Eigensystem, projection, batch and step."""
        if problem.features is not None:
            raise UsageError(
                "EigenPro works on a kernel and centers.",
                where="features",
                expected="features=None",
                remedy="leave features out",
            )
        expansion, parallel, imap = problem.expansion(), problem.executor.host_map, problem.executor.imap
        p, (s, q) = expansion.p, self.sizes(expansion.p)
        kind = self.chosen_projection(p, problem.memory)
        on_host = kind == "exact" and not isinstance(expansion, DeviceExpansion)
        threads = problem.executor.slots if problem.executor.name == "threads" else 1  # others are asked by one thread
        nystrom = matrix = None
        with _Beside() as beside:
            if on_host and (s == p or self._beside(p, expansion.Z.shape[1], threads, problem.memory)):
                matrix = beside.submit(kernel_matrix, expansion, p, parallel, imap)
            if q:
                known = matrix.result() if matrix is not None and s == p else None
                nystrom = Nystrom(center_eigensystem(expansion, s, q, EIGEN_FLOOR, parallel, imap, known))
        if nystrom is None and kind != "exact":
            raise UsageError(
                f"{kind} projection needs a preconditioner, and {p} centers are too few for one.",
                where="EigenPro(projection=...)",
                expected="more centers",
                remedy='use projection="exact"',
            )
        held, w = measured_rows(problem, held_out(problem))
        exact: ExactProjection | None = None
        if on_host:
            exact = project_exactly(expansion, nystrom, parallel, imap, None if matrix is None else matrix.result())
        elif isinstance(expansion, DeviceExpansion) and kind == "exact":
            exact = project_on_device(expansion, nystrom)
        projected = None if exact is None else ProjectedKernel(expansion, exact, held, parallel, imap)
        bound = 0.0
        while True:
            if exact is not None and projected is not None:
                size = projected.measure(nystrom)
            else:
                assert nystrom is not None
                projection = project_inexactly(expansion, nystrom, self.products(kind), parallel, imap)
                bound = projection.bound
                if kind == "inexact":
                    size = measure_inexact(expansion, projection, held, parallel)
                else:
                    size = measure_unprojected(expansion, nystrom, held)
            size = weighted_size(size, w, problem)
            n = len(problem.train)
            batch = self.batch or default_batch(
                max(size.critical_batch, self.affordable_batch(kind, n, p)), n, problem.lanes
            )
            if self.q is not None or nystrom is None or q <= 1:
                break
            # The preconditioned directions shrink by η σ_{q+1}/s a step. Where outlying rows hold the step down, a deep
            # preconditioner leaves them too little of it to settle within the run.
            shrink = (self.step or size.step(batch)) * nystrom.eigensystem.tail / len(nystrom.eigensystem.vectors)
            if shrink * self.epochs * -(-len(problem.train) // batch) >= _SETTLED:
                break
            q //= 2
            nystrom = nystrom.truncated(q)
        return Prepared(kind, s, nystrom, size, batch, None if exact is None else exact.W, bound)

    def setup(self, problem: Problem, prepared: Prepared | None = None) -> ProjectedIteration | DelayedIteration:
        """The iteration on what was prepared."""
        prepared = prepared or self.prepare(problem)
        kind, nystrom, size = prepared.projection, prepared.nystrom, prepared.size
        expansion, parallel = problem.expansion(), problem.executor.host_map
        stream = problem.stream(prepared.batch)
        report = {
            "projection": kind,
            "s": prepared.s,
            "q": 0 if nystrom is None else len(nystrom.eigensystem.values),
            "beta": size.beta,
            "lambda": size.top,
            "peak": size.peak,
            "critical_batch": size.critical_batch,
            "batch": stream.batch_rows,
            "step": self.step or size.step(stream.batch_rows),
            "momentum": 0.0 if kind == "delayed" else self.chosen_momentum(size, stream.batch_rows, expansion.p),
            "spectrum": [] if nystrom is None else [*nystrom.eigensystem.values.tolist(), nystrom.eigensystem.tail],
        }
        outputs = problem.encoding.outputs
        if prepared.W is not None:
            exact = ExactProjection(prepared.W, nystrom)
            if problem.device is not None:
                exact = DeviceProjection(prepared.W, nystrom, device=problem.device)
            return ProjectedIteration(self, stream, expansion, outputs, prepared, parallel, exact, report)
        assert nystrom is not None
        projection = InexactProjection(expansion, nystrom, prepared.bound, self.products(kind))
        if kind == "inexact":
            return ProjectedIteration(self, stream, expansion, outputs, prepared, parallel, projection, report)
        report["project_every"] = every = max(1, round(expansion.p / stream.batch_rows))
        return DelayedIteration(
            self, stream, expansion, outputs, prepared, parallel, nystrom, projection, every, report
        )


@record
@dataclass(frozen=True, eq=False)
class Prepared:
    """What precedes the first step.

    Attributes:
        projection: ``exact``, ``inexact`` or ``delayed``.
        s: centers whose kernel matrix was decomposed.
        nystrom: the preconditioner, or None.
        size: β, λ and the largest diagonal value, as measured.
        batch: rows of a step.
        W: of the exact projection, shape (p, p); None for others.
        bound: of the inexact projection.
    """

    projection: str
    s: int
    nystrom: Nystrom | None
    size: StepSize
    batch: int
    W: Array | None
    bound: float


class _Beside(ThreadPoolExecutor):
    """A thread beside this one. Whoever interrupts does not wait for it: it ends with the executor that it uses."""

    def __init__(self) -> None:
        super().__init__(1, "streamkern-beside")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.shutdown(wait=error is None or isinstance(error, Exception))


def _more(s: int, q: int) -> int:
    """Eigenpairs of s centers that those of more centers are sought from."""
    return min(s - 1, q + max(1, q // 10)) if q else 0


def matrix_bytes(p: int, d: int, slots: int) -> int:
    """Peak bytes while K(Z, Z) is evaluated in float64, with tiles of it in flight."""
    return exact_bytes(p) + 2 * slots * KERNEL_TILE * p * 8 + wide_bytes(p, d)


def exact_bytes(p: int) -> int:
    """Peak bytes of exact projection: K(Z, Z) in float64, and the inverse of its factor in its place."""
    return p * p * 8


def held_out(problem: Problem) -> Array:
    """Ids of rows to measure on: training rows that are not centers, or any where nearly all are."""
    data, p = problem.train, len(problem.centers.Z)
    if problem.centers.ids is None:
        return data.draw(min(HELD_OUT, data.base_rows))
    drawn = data.draw(min(p + HELD_OUT, data.base_rows))
    rest = drawn[~np.isin(drawn, problem.centers.ids)][:HELD_OUT]  # in the draw's order: sorted ids may be sorted data
    return rest if len(rest) >= min(64, max(1, data.base_rows // 4)) else drawn[:HELD_OUT]


def default_batch(critical: float, rows: int, lanes: int) -> int:
    """Rows of a step: the critical batch, at least what keeps every lane at its rate, at most ``largest_batch``."""
    return lanes * max(1, round(min(max(critical, lanes * _BLOCK_ROWS), largest_batch(rows, lanes)) / lanes))


def largest_batch(rows: int, lanes: int) -> int:
    """Most rows of a step that is not set by hand: a share of a pass, and few enough that blocks stay small."""
    return min(lanes * _LARGEST_BLOCK, max(lanes, -(-rows // _STEPS_A_PASS)))


def average(mean: Array, iterate: Array, t: int) -> Array:
    """The polynomial-decay average after its t-th iterate."""
    return np.asarray(mean + (1 + AVERAGING) / (t + AVERAGING) * (iterate - mean))


@record
@dataclass(frozen=True, eq=False)
class ProjectedState:
    """α, its average, the number of steps taken, and where the next gradient is taken; arrays of shape (p, c)."""

    alpha: Array
    mean: Array
    t: int
    ahead: Array


@dataclass(eq=False)
class ProjectedIteration(OneByOne):
    """EigenPro 3 that projects every step: α ← α − η/m M K(Z, X_m) r, where M is preconditioner and projection.

    With momentum γ the gradient g is that at u, and u ← (1 + γ) α − γ α₋ + η₂ g, where α₋ is the α before and
    η₂ = η (1 + γ)/2 (1 − 1/κ̃), κ̃ = 1 + m*/m (Liu & Belkin 2018, MaSS, eq. 6 and 8).
    """

    solver: EigenPro
    stream: Stream
    expansion: Expansion
    outputs: int
    prepared: Prepared
    parallel: Map
    projection: ExactProjection | InexactProjection
    report: dict[str, Any]

    def __post_init__(self) -> None:
        self.contribution = Gradient(self.expansion)
        self.epochs = self.solver.epochs
        ratio = self.prepared.size.critical_batch / self.stream.batch_rows
        self.momentum = self.solver.chosen_momentum(self.prepared.size, self.stream.batch_rows, self.expansion.p)
        self.second = (1.0 + self.momentum) / 2.0 * (ratio / (1.0 + ratio))

    def init(self) -> ProjectedState:
        """α = 0."""
        zero = np.zeros((self.expansion.p, self.outputs), dtype=self.expansion.Z.dtype)
        return ProjectedState(zero, zero.astype(np.float64), 0, zero)

    def broadcast(self, state: ProjectedState) -> Array:
        """Where the gradient is taken: α, or u."""
        return state.ahead

    def update(self, state: ProjectedState, parts: Parts, position: Position) -> ProjectedState:
        """One step."""
        g, _, rows = parts
        rate = (self.solver.step or self.prepared.size.step(rows)) / rows
        move = np.asarray(rate, dtype=g.dtype) * self.projection.apply(g, self.parallel)
        alpha = ahead = state.ahead - move
        if self.momentum:
            turn, second = (np.asarray(number, dtype=g.dtype) for number in (self.momentum, self.second))
            ahead = alpha + turn * (alpha - state.alpha) + second * move
        return ProjectedState(alpha, average(state.mean, alpha, state.t + 1), state.t + 1, ahead)

    def weights(self, state: ProjectedState) -> Array:
        """The average, or the last iterate."""
        return state.mean.astype(state.alpha.dtype) if self.solver.average else state.alpha


@dataclass(eq=False)
class DelayedGradient:
    """As ``Gradient``, with batches since the last projection as temporary centers; contributes W r too.

    Args:
        expansion: kernel and centers.
        stream: rebuilds temporary centers from their keys, so that a state holds integers and not rows.
    """

    expansion: Expansion
    stream: Stream

    def __post_init__(self) -> None:
        self._recent: dict[Key, Expansion] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"expansion": self.expansion, "stream": self.stream}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def warm(self, block: Block) -> None:
        """The first panel against the centers does not depend on the weights."""
        self.expansion.warm(block.X)

    def __call__(self, block: Block, state: tuple[Array, tuple[tuple[Key, Array], ...]]) -> Parts:
        """Sums over the block under (α, temporary centers as (key, coefficients))."""
        alpha, temporary = state
        assert block.y is not None
        recent = [(self._expansion(key), b) for key, b in temporary]
        self._forget({key for key, _ in temporary})
        F = np.zeros((len(block.ids), alpha.shape[1]), dtype=alpha.dtype)
        for expansion, b in recent:
            F += expansion.predict(block.X, b)
        g = np.zeros_like(alpha)
        if isinstance(self.expansion, DeviceExpansion):
            g = self.expansion.pull(
                block.X, alpha, lambda f, rows: self._residual(F[rows], f, block, rows), alpha.shape[1]
            )
        else:
            for rows, K in self.expansion.panels(block.X):
                g += K.T @ self._residual(F[rows], K @ alpha, block, rows)
        loss = weigh(F, block.w)
        return Stack(((block.key, F),)), g, loss, len(block.ids)

    def _residual(self, r: Array, f: Array, block: Block, rows: slice) -> Array:
        """r, which holds f(x) at temporary centers, made the residual in place; returns it weighted."""
        assert block.y is not None
        r += f
        residual(r, block.y[rows])
        return r if block.w is None else np.asarray(r * block.w[rows, None].astype(r.dtype))

    def _expansion(self, key: Key) -> Expansion:
        with self._lock:
            found = self._recent.get(key)
        if found is None:
            found = replace(self.expansion, Z=self.stream.block(key).X)
            with self._lock:
                self._recent[key] = found
        return found

    def _forget(self, keep: set[Key]) -> None:
        with self._lock:
            for key in [key for key in self._recent if key not in keep]:
                del self._recent[key]


@record
@dataclass(frozen=True, eq=False)
class DelayedState:
    """α over the centers, and what waits for the next projection.

    Attributes:
        alpha: shape (p, c), with the corrections of the preconditioner since the last projection.
        base: α as the last projection left it, shape (p, c).
        mean: average of the projected iterates, shape (p, c).
        t: projections so far.
        temporary: (key, coefficients (b, c)) of the blocks since the last projection.
        pending: K(Z, temporary) times their coefficients, shape (p, c).
        steps: steps since.
    """

    alpha: Array
    base: Array
    mean: Array
    t: int
    temporary: tuple[tuple[Key, Array], ...]
    pending: Array
    steps: int


@dataclass(eq=False)
class DelayedIteration(OneByOne):
    """EigenPro 4: batches are temporary centers until they number about p, then the sum of their steps is projected."""

    solver: EigenPro
    stream: Stream
    expansion: Expansion
    outputs: int
    prepared: Prepared
    parallel: Map
    nystrom: Nystrom
    projection: InexactProjection
    every: int
    report: dict[str, Any]

    def __post_init__(self) -> None:
        self.contribution = DelayedGradient(self.expansion, self.stream)
        self.epochs = self.solver.epochs

    def init(self) -> DelayedState:
        """α = 0 and nothing pending."""
        zero = np.zeros((self.expansion.p, self.outputs), dtype=self.expansion.Z.dtype)
        return DelayedState(zero, zero, zero.astype(np.float64), 0, (), zero, 0)

    def broadcast(self, state: DelayedState) -> tuple[Array, tuple[tuple[Key, Array], ...]]:
        """α and the temporary centers."""
        return state.alpha, state.temporary

    def update(self, state: DelayedState, parts: Parts, position: Position) -> DelayedState:
        """One step, and the projection if it is due."""
        pieces, g, _, rows = parts
        rate = np.asarray((self.solver.step or self.prepared.size.step(rows)) / rows, dtype=g.dtype)
        system = self.nystrom.eigensystem
        inside = matmul(system.vectors.T, g.astype(np.float64), self.parallel, tile=64)
        correction = matmul(system.vectors, rate * self.nystrom.damping[:, None] * inside, self.parallel)
        state = replace(
            state,
            alpha=state.alpha + correction.astype(g.dtype),
            temporary=state.temporary + tuple((key, -rate * r) for key, r in pieces),
            pending=state.pending - rate * g,
            steps=state.steps + 1,
        )
        return self.settle(state) if state.steps >= self.every else state

    def settle(self, state: DelayedState) -> DelayedState:
        """Project what is pending onto the span of the centers."""
        if not state.steps:
            return state
        # The projection stands for K⁻¹ and the preconditioner at once: the corrections in alpha are part of it.
        alpha = state.base + self.projection.apply(state.pending, self.parallel)
        mean = average(state.mean, alpha, state.t + 1)
        return DelayedState(alpha, alpha, mean, state.t + 1, (), np.zeros_like(alpha), 0)

    def weights(self, state: DelayedState) -> Array:
        """The average of the projected iterates, or the last."""
        return state.mean.astype(state.alpha.dtype) if self.solver.average else state.alpha
