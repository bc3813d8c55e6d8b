"""Centers shared out over workers where there are fewer than rows: steps of EigenPro with packed projection.

A worker has some tiles of 2,048 centers, their weights, their rows of U and their panels of the packed factor, which
the driver has made and sends. A step is α ← α − η/m M K(Z, X_m) r with the sums of ``TiledGradient`` and
``ProjectedTiles``, which threads take in the same order; K(tile, X_m) is evaluated once and stays where it is (ADR 26).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.row_order import Block, Stream
from streamkern.execute.base import Parts, Stack, Tile, Tree
from streamkern.kernels import Expansion
from streamkern.precondition.int16_projection import PackedTile, ProjectedTiles
from streamkern.solvers.batch_size import average
from streamkern.solvers.contributions import TiledGradient
from streamkern.storage.serialize import serializable
from streamkern.types import Array


@serializable
@dataclass(frozen=True, eq=False)
class ProjectedState:
    """The state of the iteration, of all centers or of a tile.

    Attributes:
        alpha: α, shape (p, c).
        mean: the average of the iterates, shape (p, c), float64.
        t: number of steps.
        ahead: weights at which the next gradient is evaluated, shape (p, c): with momentum, beyond α.
    """

    alpha: Array
    mean: Array
    t: int
    ahead: Array


class Momentum(NamedTuple):
    """γ and η₂/η of MaSS (Liu & Belkin 2018, eq. 6 and 8): see ``ProjectedIteration``."""

    gamma: float
    second: float

    def moved(self, state: ProjectedState, move: Array) -> ProjectedState:
        """Return the state after a step by η times the preconditioned gradient at ``state.ahead``."""
        alpha = ahead = state.ahead - move
        if self.gamma:
            turn, second = (np.asarray(number, dtype=move.dtype) for number in self)
            ahead = alpha + turn * (alpha - state.alpha) + second * move
        return ProjectedState(alpha, average(state.mean, alpha, state.t + 1), state.t + 1, ahead)


def kept_state(state: ProjectedState, rows: slice) -> Tile:
    """Return the arrays of a state that belong to some of the centers."""
    arrays = {"alpha": state.alpha[rows], "mean": state.mean[rows]}
    return arrays if state.ahead is state.alpha else arrays | {"ahead": state.ahead[rows]}


def state_of(tile: Tile, steps: int) -> ProjectedState:
    """Return the state that ``kept_state`` returned the arrays of."""
    return ProjectedState(tile["alpha"], tile["mean"], steps, tile.get("ahead", tile["alpha"]))


class CenterConstants(NamedTuple):
    """Message to the worker of a tile: its centers, shape (t, d), centred as in the expansion, and parts of M."""

    Z: Array
    tile: PackedTile


class HeldCenters(NamedTuple):
    """A tile on its worker: its number, the kernel at its centers, and its parts of M."""

    leaf: int
    basis: Expansion
    tile: PackedTile


@dataclass(eq=False)
class SharedCenters:
    """Steps with the centers distributed over workers in tiles: see ``SharedWork``.

    Args:
        gradient: the contribution of a block, without centers.
        projection: M by tiles.
        rate: function from the rows of a step to η.
    """

    gradient: TiledGradient
    projection: ProjectedTiles
    stream: Stream
    leaves: int
    rate: Callable[[int], float]
    momentum: Momentum
    outputs: int
    average: bool

    sums, owns = ProjectedTiles.sums, True

    def __post_init__(self) -> None:
        self.lanes = self.stream.lanes

    def among(self, workers: int) -> SharedCenters:
        return replace(self, stream=replace(self.stream, cache_bytes=self.stream.cache_bytes // workers))

    def build(self, *key: int) -> Block:
        return self.stream.block(key)

    def hold(self, leaf: int, constants: CenterConstants) -> HeldCenters:
        empty: Any = self.gradient.basis  # the kernel without centers
        return HeldCenters(leaf, empty.at(constants.Z), constants.tile)

    def start(self, held: HeldCenters, kept: Tile | None, steps: int) -> ProjectedState:
        if kept is not None:
            return state_of(kept, steps)
        zero = held.basis.engine.zeros((held.basis.p, self.outputs), held.basis.dtype)
        return ProjectedState(zero, zero.astype(np.float64), steps, zero)

    def kept(self, part: ProjectedState) -> Tile:
        return kept_state(part, slice(None))

    def weights(self, part: ProjectedState) -> Array:
        return part.mean.astype(part.alpha.dtype) if self.average else part.alpha

    def forward(self, held: HeldCenters, part: ProjectedState, blocks: Sequence[Block]) -> list[tuple[Parts, Array]]:
        values = [self.gradient.values(held.basis, block) for block in blocks]
        return [((self.gradient.outputs(K, part.ahead),), K) for K in values]

    def respond(self, block: Block, *sums: Array) -> tuple[Array, float]:
        return self.gradient.respond(block, *sums)

    def addend(
        self, number: int, held: HeldCenters, values: Any, responses: Sequence[tuple[Array, float]], totals: Any
    ) -> tuple[list[Parts], Array]:
        if not number:
            tree = Tree(len(responses))
            for lane, (K, (r, _)) in enumerate(zip(values, responses, strict=True)):
                tree.put(0, lane, (self.gradient.pulled(K, r),))
            (values,) = tree.total()
        found, values = self.projection.addend(number, held.tile, values, [each for (each,) in totals])
        return [found], values

    def common(self, blocks: Sequence[Block], responses: Sequence[tuple[Array, float]], totals: Any) -> Parts:
        tree = Tree(len(blocks))
        for lane, (block, (_, loss)) in enumerate(zip(blocks, responses, strict=True)):
            tree.put(0, lane, (loss, len(block.X)))
        return tree.total()

    def own(self, held: HeldCenters, values: Array, responses: Sequence[tuple[Array, float]], totals: Any) -> Parts:
        """Return M g of the tile; the step's rate, which depends on its rows, is applied in ``advance``."""
        found = self.projection.result(held.tile, values, [each for (each,) in totals])
        return (Stack(((held.leaf, found.astype(held.basis.dtype)),)),)

    def advance(self, held: HeldCenters, part: ProjectedState, parts: Parts) -> ProjectedState:
        moves, _, rows = parts
        move = next(move for leaf, move in moves if leaf == held.leaf)
        return self.momentum.moved(part, np.asarray(self.rate(rows) / rows, dtype=move.dtype) * move)
