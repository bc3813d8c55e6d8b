"""EigenPro 4 (Abedsoltan et al. 2025): batches are temporary centers until they number about p, then are projected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamkern.data.stream import Block, Key, Stream
from streamkern.engine.squared_loss import residual, weigh
from streamkern.execute.base import Parts, Position, Stack
from streamkern.kernels import Expansion
from streamkern.precondition.nystrom import slower
from streamkern.precondition.projection import InexactProjection
from streamkern.solvers.base import OneByOne
from streamkern.solvers.minibatches import average, passes_of
from streamkern.storage.serialize import serializable
from streamkern.sweep import Companions, Contribution
from streamkern.types import Array

Temporary = tuple[tuple[Key, Array], ...]
"""(key, coefficients (b, c)) of the blocks since the last projection, which are centers until the next."""


def temporary_keys(state: tuple[Array, Temporary]) -> list[Key]:
    """Keys of the temporary centers of a broadcast state."""
    return [key for key, _ in state[1]]


@dataclass(eq=False)
class DelayedGradient(Contribution):
    """Contributes (key, W r), φ(X)ᵀ W r, Σ w‖r‖² and the rows, r = φ(X) α + K(X, temporary) b − y.

    Args:
        expansion: kernel and centers.
    """

    expansion: Expansion

    def begin(self, block: Block) -> Any:
        return self.expansion.engine.begin(self.expansion, block.X)

    def __call__(
        self, block: Block, state: tuple[Array, Temporary], begun: Any = None, companions: Iterable[Block] = ()
    ) -> Parts:
        """Sums over the block under (α, temporary centers), whose blocks are the companions."""
        alpha, temporary = state
        y, w, expansion, loss = block.y, block.w, self.expansion, 0.0
        assert y is not None
        F = expansion.engine.zeros((block.X.shape[0], alpha.shape[1]), alpha.dtype)
        for other, (_, b) in zip(companions, temporary, strict=True):
            F += expansion.at(other.X).predict(block.X, b)

        def respond(f: Array, rows: slice) -> Array:
            nonlocal loss
            r = F[rows]
            r += f
            residual(r, y[rows])
            loss += weigh(r, None if w is None else w[rows])
            return r

        g = expansion.engine.pull(expansion, block.X, alpha, respond, alpha.shape[1], begun)
        return Stack(((block.key, F),)), g, loss, block.X.shape[0]


@serializable
@dataclass(frozen=True, eq=False)
class DelayedState:
    """α over the centers, and the sums that wait for the next projection.

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
    temporary: Temporary
    pending: Array
    steps: int


@dataclass(eq=False)
class DelayedIteration(OneByOne):
    """Steps of EigenPro 4.

    Args:
        solver: its parameters: passes, step, and whether the weights are the average of the projected iterates.
        stream: the order of the rows.
        expansion: kernel and centers.
        outputs: number c of outputs.
        prepared: the solver's prepared value.
        companions: the temporary centers of a broadcast state.
        projection: of the pending sums.
        cycle: steps from one projection to the next.
        report: findings of the setup.
    """

    solver: Any
    stream: Stream
    expansion: Expansion
    outputs: int
    prepared: Any
    companions: Companions | None = field()  # a field without a default, where the base has one
    projection: InexactProjection
    cycle: int = field()
    report: dict[str, Any]

    def __post_init__(self) -> None:
        self.contribution = DelayedGradient(self.expansion)
        self.nystrom = self.projection.nystrom
        self.epochs = passes_of(self.stream.rows, self.solver.epochs)
        self.rate = self.solver.rate(self.prepared.size)

    def slower(self) -> Any:
        return slower(self.prepared, self.solver.step)

    def init(self) -> DelayedState:
        """α = 0 and nothing pending."""
        zero = self.expansion.engine.zeros((self.expansion.p, self.outputs), self.expansion.dtype)
        return DelayedState(zero, zero, zero.astype(np.float64), 0, (), zero, 0)

    def broadcast(self, state: DelayedState) -> tuple[Array, Temporary]:
        """α and the temporary centers."""
        return state.alpha, state.temporary

    def update(self, state: DelayedState, parts: Parts, position: Position) -> DelayedState:
        """One step, and the projection if it is due."""
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
        """The average of the projected iterates, or the last."""
        return state.mean.astype(state.alpha.dtype) if self.solver.average else state.alpha
