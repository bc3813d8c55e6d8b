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

from streamkern.data.companion_blocks import AllTiles
from streamkern.data.row_order import Block, Stream
from streamkern.defaults import HELD_OUT, SUBSAMPLE
from streamkern.engine.base import CENTER_TILE, ROW_TILE
from streamkern.engine.packed_triangle import cuts
from streamkern.engine.residuals import residual, weigh
from streamkern.errors import require_counts, require_step
from streamkern.execute.base import Parts, Position, Stack, Tree
from streamkern.kernels import Expansion
from streamkern.precondition.center_projection import eigen_floor, measure_unprojected
from streamkern.precondition.eigensystem import Eigensystem, top_eigensystem
from streamkern.precondition.nystrom import NystromPreconditioner, StepSize, with_halved_step
from streamkern.solvers.base import Problem, Solver, Traits
from streamkern.solvers.batch_size import (
    AveragedIteration,
    AveragedState,
    default_batch,
    measured_rows,
    weighted_size,
)
from streamkern.storage.serialize import serializable
from streamkern.sweep import Contribution
from streamkern.types import Array, IntArray


@dataclass(frozen=True)
class EigenPro2(Solver):
    """EigenPro 2: preconditioned SGD in the RKHS, with every training row as a center (Ma & Belkin 2019).

    Rows must not be augmented, because each weight belongs to a stored row. They need not fit in memory, but the n c
    weights for c outputs and the row ids must.

    Args:
        epochs: passes over the training rows; each evaluates the kernel n² times.
        s: number of rows of the Nyström subsample; min(n, 2000) by default.
        q: number of eigenpairs of the preconditioner; s/10 by default. 0 is stochastic gradient descent in the RKHS
            (Pegasos with the squared loss).
        batch: as in ``EigenPro1``.
        step: step size η for the mean gradient of a batch; by default the largest stable step size.
        average: whether the weights are the average of the iterates, instead of the last iterate.
        patience: as in ``EigenPro``.

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

    traits = Traits(on_device=False)

    def __post_init__(self) -> None:
        require_counts(self, epochs=1, s=1, q=0, batch=1, patience=1)
        require_step(self)

    def sizes(self, n: int) -> tuple[int, int]:
        """Return (s, q) for n rows."""
        s = 1 if self.q == 0 else min(n, self.s or SUBSAMPLE)
        return s, min(s - 1, max(1, s // 10) if self.q is None else self.q)

    def prepare(self, problem: Problem) -> PreparedRows:
        """Compute eigensystem, batch and step.

        Raises:
            UsageError: the problem has a feature map, rows are augmented or repeated, or the centers are not exactly
                the training rows.
            NumericalError: the kernel matrix of the subsample has no positive eigenvalue.
        """
        problem.refuse_features(
            "EigenPro2 needs a kernel at the training rows, not features.", "leave features out, or use EigenPro1"
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
        batch = self.batch or default_batch(size.critical_batch, len(rows), problem.lanes, problem.largest_block)
        return PreparedRows(subsample.Z, ids[:s], nystrom, size, batch)

    def setup(self, problem: Problem, prepared: PreparedRows | None = None) -> EigenPro2Iteration:
        prepared = prepared or self.prepare(problem)
        rows, places = problem.all_rows()
        stream, subsample = problem.stream(prepared.batch), Expansion(problem.kernel, prepared.X, problem.engine)
        extra_blocks, outputs = problem.all_tiles(stream, CENTER_TILE), problem.encoding.outputs
        return EigenPro2Iteration(self, stream, extra_blocks, subsample, prepared, outputs, rows, places)


@serializable
@dataclass(frozen=True, eq=False)
class PreparedRows:
    """The values that the first step needs: rows of the subsample, centred, shape (s, d), and what is made of them."""

    X: Array
    ids: IntArray
    nystrom: NystromPreconditioner
    size: StepSize
    batch: int


@dataclass(eq=False)
class Residual(Contribution):
    """Contributes (ids, W r), Eᵀ K(X_s, X_m) W r, Σ w‖r‖² and the rows, r = K(X_m, X) α − y.

    The state is α, shape (n, c), in ascending order of row ids; the extra blocks are tiles of X. Both sums over X add
    tiles in the order of a tree. ``ids`` are those of X_s, ascending, as the rows of E, ``vectors``; ``cuts`` are their
    slices in each tile of X.
    """

    subsample: Expansion
    ids: IntArray
    vectors: Array
    cuts: list[slice]

    def __call__(self, block: Block, state: Array, prepared: Any = None, extra_blocks: Iterable[Block] = ()) -> Parts:
        F, G, values, first = Tree(len(self.cuts)), Tree(len(self.cuts)), list[Array](), 0
        if not len(block.X):  # a lane that has run out
            zeros = self.subsample.engine.zeros
            none = zeros((0, state.shape[1]), state.dtype), zeros((self.vectors.shape[1], state.shape[1]))
            return Stack(((block.ids, none[0]),)), none[1], 0.0, 0
        for leaf, tile in enumerate(extra_blocks):
            alpha = state[first : first + len(tile.X)]
            first += len(tile.X)
            sums, K = self.forward(leaf, tile.ids, self.subsample.at(tile.X), alpha, block)
            F.put(0, leaf, sums)
            values.append(K)
        assert block.y is not None
        (r,) = F.total()
        residual(r, block.y)
        loss = weigh(r, block.w)
        for leaf, K in enumerate(values):
            G.put(0, leaf, self.backward(self.vectors[self.cuts[leaf]], K, r))
        return Stack(((block.ids, r),)), *G.total(), loss, len(block.X)

    def forward(self, leaf: int, ids: IntArray, tile: Expansion, alpha: Array, block: Block) -> tuple[Parts, Array]:
        """Return K(X_m, tile) α, shape (b, c), and K(X_s, X_m), shape (s', b), of the rows of X_s in the tile."""
        X, engine, chosen = block.X, tile.engine, self.ids[self.cuts[leaf]]
        F = engine.empty((len(X), alpha.shape[1]), alpha.dtype)
        K_s = engine.empty((len(chosen), len(X)), alpha.dtype)
        columns = np.searchsorted(ids, chosen)
        diagonal, places = engine.diagonal(tile, X), np.searchsorted(ids, block.ids)
        own = np.take(ids, places, mode="clip") == block.ids
        scratch = engine.empty((min(ROW_TILE, len(X)), tile.p), alpha.dtype)
        for rows in cuts(len(X), ROW_TILE):
            K = tile.block(X[rows], scratch[: rows.stop - rows.start])
            mine = np.flatnonzero(own[rows])
            K[mine, places[rows][mine]] = diagonal[rows][mine]  # exact, where x is a center: cancellation is worst
            F[rows] = K @ alpha
            K_s[:, rows] = K[:, columns].T
        return (F,), K_s

    def backward(self, vectors: Array, K_s: Array, r: Array) -> Parts:
        """Return Eᵀ K(X_s, X_m) r, shape (q, c), of the rows of X_s that are in a tile."""
        g = self.subsample.engine.zeros((len(K_s), r.shape[1]), r.dtype)
        for rows in cuts(len(r), ROW_TILE):
            g += K_s[:, rows] @ r[rows]
        return (vectors.T @ g,)


@dataclass(eq=False)
class EigenPro2Iteration(AveragedIteration):
    """Steps of EigenPro 2, whose basis is that of the subsample; a state is α in ascending order of row ids."""

    solver: EigenPro2
    stream: Stream
    extra_blocks: AllTiles = field()  # a field without a default, where the base has one
    basis: Expansion
    prepared: PreparedRows
    outputs: int
    rows: IntArray
    places: IntArray

    def __post_init__(self) -> None:
        self.epochs = self.solver.epochs
        self.nystrom, self.size = self.prepared.nystrom, self.prepared.size
        order = np.argsort(self.prepared.ids)
        ids, vectors = self.prepared.ids[order], self.nystrom.eigensystem.vectors[order]
        self.contribution: Residual = Residual(self.basis, ids, vectors, self.extra_blocks.cuts(ids))
        self.chosen = np.searchsorted(self.rows, ids)
        eigensystem = self.nystrom.eigensystem
        self.report: dict[str, Any] = {
            "s": self.basis.p,
            "q": len(eigensystem.values),
            **self.size.report(self.stream.batch_rows, self.solver.step),
            "spectrum": [*eigensystem.values.tolist(), eigensystem.tail],
        }

    def with_halved_step(self) -> PreparedRows | None:
        return with_halved_step(self.prepared, self.solver.step)

    @property
    def size_of_state(self) -> int:
        return len(self.rows)

    def update(self, state: AveragedState, parts: Parts, position: Position) -> AveragedState:
        pieces, g, _, rows = parts
        rate, alpha = (self.solver.step or self.size.step(rows)) / rows, state.w.copy()
        for ids, r in pieces:
            alpha[np.searchsorted(self.rows, ids)] -= np.asarray(rate, dtype=alpha.dtype) * r
        damping, E = self.nystrom.damping[:, None], self.contribution.vectors
        for cut in self.contribution.cuts:  # tile by tile: a product's bits depend on its rows
            alpha[self.chosen[cut]] += (rate * (E[cut] @ (damping * g))).astype(alpha.dtype)
        return self.moved(state, alpha)

    def weights(self, state: AveragedState) -> Array:
        return super().weights(state)[self.places]
