"""EigenPro 2: kernel regression with every training row a center, α the only state, rows streamed twice.

One step on a batch (X_m, y_m) of m rows (Ma & Belkin 2019; Abedsoltan et al. 2023, Algorithm 3):

    r = K(X_m, X) α − y_m,      α_m ← α_m − η/m r,      α_s ← α_s + η/m Q_s K(X_s, X_m) r

K(X_m, X) α is a sum over tiles of X, which each lane reads in stored order through the cache that its own rows come
through: rows in memory, or in the cache, are read in place; others come from the store as often as there are blocks.
With b rows in a block that is one number read for every 2 b floating-point operations.

The EigenPro of Ma & Belkin 2017 in the RKHS (their Table 2, Z = X, τ = 1) is this iteration with X_s = X: there the
eigensystem is that of K(X, X) itself, by randomised SVD. With fewer rows in X_s the correction costs s and not n
weights a step, and the top eigenfunctions are approximate, which the measured step takes into account.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamkern.data.stream import Block, Stream
from streamkern.engine.base import CENTER_TILE, ROW_TILE
from streamkern.errors import UsageError, require_counts
from streamkern.execute.base import Parts, Position, Stack
from streamkern.kernels import Expansion
from streamkern.kernels.base import tiles
from streamkern.precondition.eigensystem import Eigensystem, top_eigensystem
from streamkern.precondition.nystrom import NystromPreconditioner, StepSize, slower
from streamkern.solvers.averaging import average
from streamkern.solvers.base import HELD_OUT, ChoosesNothing, OneByOne, Problem
from streamkern.solvers.batches import default_batch
from streamkern.solvers.projection import eigen_floor, measure_unprojected
from streamkern.solvers.score import residual, weigh
from streamkern.solvers.weighting import measured_rows, weighted_size
from streamkern.storage.serialize import serializable
from streamkern.sweep import Companions, Contribution
from streamkern.types import Array, IntArray

_SUBSAMPLE = 2000


@dataclass(frozen=True)
class EigenPro2(ChoosesNothing):
    """EigenPro 2. The centers must be all training rows, and the rows not augmented: a weight belongs to a stored row.

    Of the centers only the mean is used, so rows need not fit in memory; weights, n c numbers, and row ids must.

    Args:
        epochs: passes over the training rows; each evaluates the kernel n² times.
        s: rows of the Nyström subsample; min(n, 2000) by default.
        q: eigenpairs of the preconditioner; s/10 by default. 0 is stochastic gradient descent in the RKHS, Pegasos with
            the squared loss, to compare with.
        batch: rows of a step m; by default the measured critical batch, or what keeps the processor busy if larger.
        step: η of the mean gradient; by default what the measured spectrum allows.
        average: whether the weights are the average of the iterates rather than the last one.
        patience: with a validation set: stop after this many passes in which its error fell by less than 1e-4 of it;
            None runs all.

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int = 5
    s: int | None = None
    q: int | None = None
    batch: int | None = None
    step: float | None = None
    average: bool = True
    patience: int | None = None

    def __post_init__(self) -> None:
        require_counts(self, epochs=1, s=1, q=0, batch=1, patience=1)
        if self.step is not None and not (np.isfinite(self.step) and self.step > 0):
            raise UsageError(f"The step is {self.step}.", where="EigenPro2(step=...)", expected="a positive number")

    def sizes(self, n: int) -> tuple[int, int]:
        """(s, q) for n rows."""
        s = 1 if self.q == 0 else min(n, self.s or _SUBSAMPLE)
        return s, min(s - 1, max(1, s // 10) if self.q is None else self.q)

    def prepare(self, problem: Problem) -> PreparedRows:
        """Eigensystem, batch and step.

        Raises:
            UsageError: the problem has features other than kernel values at centers, rows are augmented or repeated,
                the centers are not all of them, or there is a single one.
            NumericalError: the kernel matrix of the subsample has no positive eigenvalue.
        """
        if problem.features is not None:
            raise UsageError(
                "EigenPro2 works on kernel values at the training rows.",
                where="features",
                expected="features=None",
                remedy="leave features out, or use EigenPro1",
            )
        engine = problem.engine
        rows, _ = problem.all_rows()
        s, q = self.sizes(len(rows))
        # Beyond X_s are the rows to measure on; where there are few rows, all of them.
        ids = problem.draw(s + HELD_OUT)
        X, weights = problem.rows(ids)
        subsample = Expansion(problem.kernel, X[:s], engine)
        nystrom = NystromPreconditioner(
            top_eigensystem(engine.kernel_matrix(subsample, s), q, engine, eigen_floor(problem.dtype))
            if q
            else Eigensystem(np.empty(0), np.empty((s, 0)), 0.0)
        )
        held, w = (X[-HELD_OUT:], None) if weights is None else measured_rows(problem, ids[-HELD_OUT:])
        size = weighted_size(measure_unprojected(subsample, nystrom, held, engine), w, problem)
        batch = self.batch or default_batch(size.critical_batch, len(rows), problem.lanes)
        return PreparedRows(subsample.Z, ids[:s], nystrom, size, batch)

    def setup(self, problem: Problem, prepared: PreparedRows | None = None) -> EigenPro2Iteration:
        """The iteration on what was prepared.

        Raises:
            UsageError, NumericalError: see ``prepare``.
        """
        prepared = prepared or self.prepare(problem)
        rows, places = problem.all_rows()
        stream, subsample = problem.stream(prepared.batch), Expansion(problem.kernel, prepared.X, problem.engine)
        return EigenPro2Iteration(
            self, stream, problem.all_tiles(stream, CENTER_TILE), subsample, prepared, problem.encoding.outputs, rows,
            places, np.searchsorted(rows, prepared.ids),
        )  # fmt: skip


@serializable
@dataclass(frozen=True, eq=False)
class PreparedRows:
    """What precedes the first step.

    Attributes:
        X: rows of the subsample X_s, centred, shape (s, d).
        ids: their ids.
        nystrom: the preconditioner on them.
        size: β, λ and the largest diagonal value, as measured.
        batch: rows of a step.
    """

    X: Array
    ids: IntArray
    nystrom: NystromPreconditioner
    size: StepSize
    batch: int


@dataclass(eq=False)
class Residual(Contribution):
    """Contributes (ids, W r), K(X_s, X_m) W r, Σ w‖r‖² and the rows, r = K(X_m, X) α − y.

    Args:
        subsample: kernel and X_s.
        ids: row ids of X_s, all of them among the rows.
    """

    subsample: Expansion
    ids: IntArray

    def __call__(self, block: Block, state: Array, begun: Any = None, companions: Iterable[Block] = ()) -> Parts:
        """Sums over the block under α, shape (n, c), in ascending order of row ids; companions are tiles of X."""
        X, y, ids, subsample = block.X, block.y, block.ids, self.subsample
        assert y is not None
        engine, diagonal = subsample.engine, subsample.engine.diagonal(subsample, X)
        r = engine.zeros((len(X), state.shape[1]), state.dtype)
        K_s = engine.empty((len(self.ids), len(X)), state.dtype)  # K(X_s, X_m), whose rows come by in the tiles
        scratch = engine.empty((min(ROW_TILE, len(X)), CENTER_TILE), state.dtype)
        order = np.argsort(self.ids)
        chosen, parts, first = self.ids[order], list[slice](), 0
        for tile in companions if len(X) else ():
            centers = subsample.at(tile.X)
            places = np.searchsorted(tile.ids, ids)
            own = np.take(tile.ids, places, mode="clip") == ids
            here = slice(*np.searchsorted(chosen, [tile.ids[0], tile.ids[-1] + 1]))
            columns = np.searchsorted(tile.ids, chosen[here])
            for rows in tiles(len(X), ROW_TILE):
                K = centers.block(X[rows], scratch[: rows.stop - rows.start, : len(tile.X)])
                mine = np.flatnonzero(own[rows])
                K[mine, places[rows][mine]] = diagonal[rows][mine]  # exact, where x is a center: cancellation is worst
                r[rows] += K @ state[first : first + len(tile.X)]
                K_s[here, rows] = K[:, columns].T
            parts.append(here)
            first += len(tile.X)
        residual(r, y)
        loss = weigh(r, block.w)
        g = engine.zeros((len(chosen), state.shape[1]), state.dtype)
        for here in parts:
            for rows in tiles(len(X), ROW_TILE):
                g[order[here]] += K_s[here, rows] @ r[rows]
        return Stack(((ids, r),)), g, loss, len(X)


@serializable
@dataclass(frozen=True, eq=False)
class EigenPro2State:
    """α, its average, and the number of steps taken; arrays of shape (n, c)."""

    alpha: Array
    mean: Array
    t: int


@dataclass(eq=False)
class EigenPro2Iteration(OneByOne):
    """Steps of EigenPro 2; weights of a state stand in ascending order of row ids."""

    solver: EigenPro2
    stream: Stream
    companions: Companions | None = field()  # a field without a default, where the base has one
    subsample: Expansion
    prepared: PreparedRows
    outputs: int
    rows: IntArray
    places: IntArray
    chosen: IntArray

    def __post_init__(self) -> None:
        self.epochs = self.solver.epochs
        self.nystrom, self.size = self.prepared.nystrom, self.prepared.size
        self.contribution = Residual(self.subsample, self.prepared.ids)
        eigensystem = self.nystrom.eigensystem
        self.report: dict[str, Any] = {
            "s": self.subsample.p,
            "q": len(eigensystem.values),
            **self.size.report(self.stream.batch_rows, self.solver.step),
            "spectrum": [*eigensystem.values.tolist(), eigensystem.tail],
        }

    def slower(self) -> PreparedRows | None:
        return slower(self.prepared, self.solver.step)

    def init(self) -> EigenPro2State:
        """Weights 0."""
        zero = self.subsample.engine.zeros((len(self.rows), self.outputs), self.subsample.dtype)
        return EigenPro2State(zero, zero.astype(np.float64), 0)

    def broadcast(self, state: EigenPro2State) -> Array:
        """All weights."""
        return state.alpha

    def update(self, state: EigenPro2State, parts: Parts, position: Position) -> EigenPro2State:
        """One step."""
        pieces, g, _, rows = parts
        rate = (self.solver.step or self.size.step(rows)) / rows
        alpha = state.alpha.copy()
        for ids, r in pieces:
            alpha[np.searchsorted(self.rows, ids)] -= np.asarray(rate, dtype=alpha.dtype) * r
        alpha[self.chosen] += (rate * self.nystrom.correction(g)).astype(alpha.dtype)
        mean = average(state.mean, alpha, state.t + 1) if self.solver.average else state.mean
        return EigenPro2State(alpha, mean, state.t + 1)

    def weights(self, state: EigenPro2State) -> Array:
        """The average of the iterates, or the last, in the order of the centers."""
        final = state.mean.astype(state.alpha.dtype) if self.solver.average else state.alpha
        return final[self.places]
