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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.companion_blocks import AllTiles
from streamkern.data.row_order import Block, Stream
from streamkern.engine.base import CENTER_TILE, ROW_TILE
from streamkern.engine.residuals import residual, weigh
from streamkern.errors import UsageError, require_counts
from streamkern.execute.base import KeptShares, Parts, Position, Stack, Tile, Tree
from streamkern.kernels import Expansion
from streamkern.kernels.base import tiles
from streamkern.precondition.center_projection import eigen_floor, measure_unprojected
from streamkern.precondition.eigensystem import Eigensystem, top_eigensystem
from streamkern.precondition.nystrom import SUBSAMPLE, NystromPreconditioner, StepSize, with_halved_step
from streamkern.solvers.base import HELD_OUT, MinibatchIteration, NoChoices, Problem, Traits
from streamkern.solvers.batch_size import average, default_batch, measured_rows, weighted_size
from streamkern.storage.serialize import serializable
from streamkern.sweep import Contribution
from streamkern.types import Array, IntArray


@dataclass(frozen=True)
class EigenPro2(NoChoices):
    """EigenPro 2. The centers must be all training rows, and the rows not augmented: a weight belongs to a stored row.

    Of the centers only the mean is used, so rows need not fit in memory; weights, n c numbers, and row ids must.

    Args:
        epochs: passes over the training rows; each evaluates the kernel n² times.
        s: rows of the Nyström subsample; min(n, 2000) by default.
        q: eigenpairs of the preconditioner; s/10 by default. 0 is stochastic gradient descent in the RKHS, Pegasos with
            the squared loss, to compare with.
        batch: rows of a step m; by default the measured critical batch, or enough to keep the processor busy if larger.
        step: η of the mean gradient; by default the one that the measured spectrum allows.
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

    traits = Traits(on_device=False)

    def __post_init__(self) -> None:
        require_counts(self, epochs=1, s=1, q=0, batch=1, patience=1)
        if self.step is not None and not (np.isfinite(self.step) and self.step > 0):
            raise UsageError(f"The step is {self.step}.", where="EigenPro2(step=...)", expected="a positive number")

    def sizes(self, n: int) -> tuple[int, int]:
        """Return (s, q) for n rows."""
        s = 1 if self.q == 0 else min(n, self.s or SUBSAMPLE)
        return s, min(s - 1, max(1, s // 10) if self.q is None else self.q)

    def prepare(self, problem: Problem) -> PreparedRows:
        """Compute eigensystem, batch and step.

        Raises:
            UsageError: the problem has features other than kernel values at centers, rows are augmented or repeated,
                the centers are not all of them, or there is a single one.
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
    """The values that the first step needs.

    Attributes:
        X: rows of the subsample X_s, centred, shape (s, d).
        ids: ids of these rows.
        nystrom: the preconditioner on them.
        size: measured β, λ and the largest diagonal value.
    """

    X: Array
    ids: IntArray
    nystrom: NystromPreconditioner
    size: StepSize
    batch: int


@dataclass(eq=False)
class Residual(Contribution):
    """Contributes (ids, W r), Eᵀ K(X_s, X_m) W r, Σ w‖r‖² and the rows, r = K(X_m, X) α − y.

    The state is α, shape (n, c), in ascending order of row ids; the extra blocks are tiles of X. Both sums over X add
    tiles in the order of a tree, so that bits do not depend on where a tile is.

    Args:
        subsample: kernel and X_s.
        ids: row ids of X_s, ascending.
        vectors: E, the eigenvectors, with rows in the order of the ids.
        cuts: slices of the ids that are in each tile of X.
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
        r, loss = self.respond(block, *F.total())
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
        for rows in tiles(len(X), ROW_TILE):
            K = tile.block(X[rows], scratch[: rows.stop - rows.start])
            mine = np.flatnonzero(own[rows])
            K[mine, places[rows][mine]] = diagonal[rows][mine]  # exact, where x is a center: cancellation is worst
            F[rows] = K @ alpha
            K_s[:, rows] = K[:, columns].T
        return (F,), K_s

    def respond(self, block: Block, F: Array) -> tuple[Array, float]:
        """Overwrite F, the outputs summed over all tiles, with W r; return it and the loss."""
        assert block.y is not None
        residual(F, block.y)
        return F, weigh(F, block.w)

    def backward(self, vectors: Array, K_s: Array, r: Array) -> Parts:
        """Return Eᵀ K(X_s, X_m) r, shape (q, c), of the rows of X_s that are in a tile."""
        g = self.subsample.engine.zeros((len(K_s), r.shape[1]), r.dtype)
        for rows in tiles(len(r), ROW_TILE):
            g += K_s[:, rows] @ r[rows]
        return (vectors.T @ g,)


@serializable
@dataclass(frozen=True, eq=False)
class EigenPro2State:
    """α, its average, and the number of steps; arrays of shape (n, c), or of a tile's rows."""

    alpha: Array
    mean: Array
    t: int


@dataclass(eq=False)
class EigenPro2Iteration(MinibatchIteration):
    """Steps of EigenPro 2; weights of a state are in ascending order of row ids."""

    solver: EigenPro2
    stream: Stream
    extra_blocks: AllTiles = field()  # a field without a default, where the base has one
    subsample: Expansion
    prepared: PreparedRows
    outputs: int
    rows: IntArray
    places: IntArray

    def __post_init__(self) -> None:
        self.epochs = self.solver.epochs
        self.nystrom, self.size = self.prepared.nystrom, self.prepared.size
        order = np.argsort(self.prepared.ids)
        ids, vectors = self.prepared.ids[order], self.nystrom.eigensystem.vectors[order]
        self.contribution = Residual(self.subsample, ids, vectors, self.extra_blocks.cuts(ids))
        self.chosen = np.searchsorted(self.rows, ids)
        eigensystem = self.nystrom.eigensystem
        self.report: dict[str, Any] = {
            "s": self.subsample.p,
            "q": len(eigensystem.values),
            **self.size.report(self.stream.batch_rows, self.solver.step),
            "spectrum": [*eigensystem.values.tolist(), eigensystem.tail],
        }

    def with_halved_step(self) -> PreparedRows | None:
        return with_halved_step(self.prepared, self.solver.step)

    def init(self) -> EigenPro2State:
        zero = self.subsample.engine.zeros((len(self.rows), self.outputs), self.subsample.dtype)
        return EigenPro2State(zero, zero.astype(np.float64), 0)

    def broadcast(self, state: EigenPro2State) -> Array:
        return state.alpha

    def update(self, state: EigenPro2State, parts: Parts, position: Position) -> EigenPro2State:
        pieces, g, _, rows = parts
        rate, alpha, E = step_rate(self.solver.step, self.size, rows), state.alpha.copy(), self.contribution.vectors
        for ids, r in pieces:
            alpha[np.searchsorted(self.rows, ids)] -= np.asarray(rate, dtype=alpha.dtype) * r
        for cut in self.contribution.cuts:  # as each would be by itself: a product's bits depend on its rows
            alpha[self.chosen[cut]] += corrected(E[cut], self.nystrom.damping, g, rate).astype(alpha.dtype)
        mean = average(state.mean, alpha, state.t + 1) if self.solver.average else state.mean
        return EigenPro2State(alpha, mean, state.t + 1)

    @property
    def shared_work(self) -> SharedRows:
        """The same steps if each worker holds some tiles of X, with their weights and rows of E."""
        residual = replace(self.contribution, subsample=self.subsample.head(0), vectors=self.contribution.vectors[:0])
        return SharedRows(
            residual, self.nystrom.damping, self.stream, self.extra_blocks, self.solver.step, self.size,
            self.outputs, self.solver.average,
        )  # fmt: skip

    def constants(self, leaf: int) -> TileConstants:
        own, cut = self.owned[leaf], self.contribution.cuts[leaf]
        return TileConstants(self.chosen[cut] - own.start, self.contribution.vectors[cut])

    def tiles(self, state: EigenPro2State) -> KeptShares:
        kept = tuple({"alpha": state.alpha[own], "mean": state.mean[own]} for own in self.owned)
        return KeptShares("", state.t, (), kept)

    def joined(self, steps: int, tiles: Sequence[Tile]) -> EigenPro2State:
        alpha, mean = (np.concatenate([tile[name] for tile in tiles]) for name in ("alpha", "mean"))
        return EigenPro2State(alpha, mean, steps)

    def in_order(self, tiles: Sequence[Array]) -> Array:
        return np.concatenate(tiles)[self.places]

    @cached_property
    def owned(self) -> list[slice]:
        """Slices of the weights that belong to each tile of X."""
        return self.extra_blocks.cuts(self.rows)

    def weights(self, state: EigenPro2State) -> Array:
        final = state.mean.astype(state.alpha.dtype) if self.solver.average else state.alpha
        return final[self.places]


def step_rate(step: float | None, size: StepSize, rows: int) -> float:
    """Return η/m for a batch of so many rows, with the given η or the measured one."""
    return (step or size.step(rows)) / rows


def corrected(E: Array, damping: Array, g: Array, rate: float) -> Array:
    """Return η/m times rows of Q_s K(X_s, X_m) r, shape (s', c), for the same rows of E and g = Eᵀ K(X_s, X_m) r."""
    found: Array = rate * (E @ (damping[:, None] * g))
    return found


class TileConstants(NamedTuple):
    """Values of a tile of X besides its weights: positions of its rows that are in X_s, and their rows of E."""

    chosen: IntArray
    vectors: Array


class HeldRows(NamedTuple):
    """A tile of X on its worker."""

    block: Block
    constants: TileConstants


@dataclass(eq=False)
class SharedRows:
    """EigenPro 2 with tiles of X distributed over workers: see ``SharedWork``.

    Args:
        residual: the contribution of a block, with the ids of X_s but without its rows and without E.
        damping: the diagonal of Q_s in the eigenbasis.
        step: η, or None for the one that ``size`` allows.
    """

    residual: Residual
    damping: Array
    stream: Stream
    tiles: AllTiles
    step: float | None
    size: StepSize
    outputs: int
    average: bool

    sums, owns = 1, False

    def __post_init__(self) -> None:
        self.leaves, self.lanes = len(self.residual.cuts), self.stream.lanes

    def among(self, workers: int) -> SharedRows:
        stream = replace(self.stream, cache_bytes=self.stream.cache_bytes // workers)
        return replace(self, stream=stream, tiles=AllTiles(stream, self.tiles.rows))

    def build(self, *key: int) -> Block:
        return self.stream.block(key)

    def hold(self, leaf: int, constants: TileConstants) -> HeldRows:
        return HeldRows(self.tiles.tile(leaf), constants)

    def start(self, held: HeldRows, kept: Tile | None, steps: int) -> EigenPro2State:
        subsample = self.residual.subsample
        zero = subsample.engine.zeros((len(held.block.X), self.outputs), subsample.dtype)
        if kept is None:
            return EigenPro2State(zero, zero.astype(np.float64), steps)
        return EigenPro2State(kept["alpha"].copy(), kept["mean"], steps)

    def kept(self, part: EigenPro2State) -> Tile:
        return {"alpha": part.alpha, "mean": part.mean}

    def weights(self, part: EigenPro2State) -> Array:
        return part.mean.astype(part.alpha.dtype) if self.average else part.alpha

    def forward(self, held: HeldRows, part: EigenPro2State, blocks: Sequence[Block]) -> list[tuple[Parts, Array]]:
        tile, leaf, ids = self.residual.subsample.at(held.block.X), held.block.key[0], held.block.ids
        return [self.residual.forward(leaf, ids, tile, part.alpha, block) for block in blocks]

    def respond(self, block: Block, *sums: Array) -> tuple[Array, float]:
        return self.residual.respond(block, *sums)

    def addend(
        self, number: int, held: HeldRows, values: Any, responses: Sequence[tuple[Array, float]], totals: Sequence[Any]
    ) -> tuple[list[Parts], None]:
        E = held.constants.vectors
        pairs = zip(values, responses, strict=True)
        return [self.residual.backward(E, K_s, r) for K_s, (r, _) in pairs], None

    def common(self, blocks: Sequence[Block], responses: Sequence[tuple[Array, float]], totals: Sequence[Any]) -> Parts:
        tree = Tree(len(blocks))
        for lane, (block, (r, loss), sums) in enumerate(zip(blocks, responses, totals[0], strict=True)):
            tree.put(0, lane, (Stack(((block.ids, r),)), *sums, loss, len(block.X)))
        return tree.total()

    def own(self, held: HeldRows, values: None, responses: Sequence[Any], totals: Sequence[Any]) -> Parts:
        return ()

    def advance(self, held: HeldRows, part: EigenPro2State, parts: Parts) -> EigenPro2State:
        pieces, g, _, rows = parts
        alpha, rate, tile = part.alpha, step_rate(self.step, self.size, rows), held.block.ids
        for ids, r in pieces:
            places = np.searchsorted(tile, ids)
            own = np.take(tile, places, mode="clip") == ids
            alpha[places[own]] -= np.asarray(rate, dtype=alpha.dtype) * r[own]
        chosen, vectors = held.constants
        alpha[chosen] += corrected(vectors, self.damping, g, rate).astype(alpha.dtype)
        mean = average(part.mean, alpha, part.t + 1) if self.average else part.mean
        return EigenPro2State(alpha, mean, part.t + 1)
