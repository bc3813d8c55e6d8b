"""Contributions of the squared loss on a basis: one evaluation of φ(X) gives the residual and its gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.row_order import Block
from streamkern.engine.base import ROW_TILE
from streamkern.engine.packed_triangle import cuts, packed_size
from streamkern.engine.residuals import SquaredLoss, residual, weigh
from streamkern.execute.base import Parts, Tree
from streamkern.kernels import Basis
from streamkern.sweep import Contribution
from streamkern.types import Array


@dataclass(eq=False)
class Gradient(Contribution):
    """Contributes φ(X)ᵀ W r, Σ w‖r‖² and the rows, r = φ(X) α − y, with W the rows' sample weights, or 1."""

    basis: Basis

    def begin(self, block: Block) -> Any:
        return self.basis.engine.begin(self.basis, block.X)

    def __call__(self, block: Block, state: Array, prepared: Any = None, extra_blocks: Iterable[Any] = ()) -> Parts:
        assert block.y is not None
        respond = SquaredLoss(block.y, block.w)
        g = self.basis.engine.pull(self.basis, block.X, state, respond, state.shape[1], prepared)
        return g, respond.loss, block.X.shape[0]


@dataclass(eq=False)
class TiledGradient(Gradient):
    """``Gradient`` of kernel values at centers, whose outputs are added tile by tile of centers, in a tree's order."""

    tiles: list[slice]

    def __call__(self, block: Block, state: Array, prepared: Any = None, extra_blocks: Iterable[Any] = ()) -> Parts:
        engine, loss, c, tiles = self.basis.engine, 0.0, state.shape[1], self.tiles
        assert block.y is not None
        times, g = [engine.panel_product(state[tile]) for tile in tiles], engine.sums(len(state), c, state.dtype)
        for rows, K in self.basis.engine.panels(self.basis, block.X, prepared):
            tree = Tree(len(tiles))
            for leaf, tile in enumerate(tiles):
                tree.put(0, leaf, (times[leaf](K[:, tile]),))
            (r,) = tree.total()
            residual(r, block.y[rows])
            loss += weigh(r, None if block.w is None else block.w[rows])
            for tile in tiles:
                engine.add_transposed(K[:, tile], r, g[tile])
        return g.copy(), loss, block.X.shape[0]


@dataclass(eq=False)
class NormalProduct(Gradient):
    """Contributes φ(X)ᵀ W φ(X) v, Σ w‖φ(X) α − y‖² and the rows, for a state (v, α), both of shape (M, c)."""

    def __call__(self, block: Block, state: Any, prepared: Any = None, extra_blocks: Iterable[Any] = ()) -> Parts:
        v, alpha = state
        y, w, c, loss = block.y, block.w, v.shape[1], 0.0
        assert y is not None

        def respond(F: Array, rows: slice) -> Array:
            nonlocal loss
            weights, product, R = None if w is None else w[rows], F[:, :c], F[:, c:]
            if weights is not None:
                product *= weights[:, None].astype(F.dtype)
            residual(R, y[rows])
            loss += weigh(R, weights)
            return product

        both = np.concatenate([v, alpha], axis=1)
        return self.basis.engine.pull(self.basis, block.X, both, respond, c, prepared), loss, block.X.shape[0]


@dataclass(eq=False)
class NormalEquations(Contribution):
    """Contributes φ(X)ᵀ W φ(X) and φ(X)ᵀ W y in float64, Σ w‖y‖² and the rows, with sample weights W.

    The matrix is packed: see ``engine.packed_triangle``. In float32 the sums would not be positive definite at n =
    60,000 and p = 5,000.

    A ``change`` (rows, right) has the functions ψ = V φ[rows] in place of φ, with V as ``right_factor`` gives it. With
    ``totals`` φ(X)ᵀ W 1, shape (M, 1), yᵀ W 1, shape (c, 1), and Σ w follow the first two.
    """

    basis: Basis
    outputs: int
    change: tuple[Array, Any] | None = None
    totals: bool = False

    def __call__(self, block: Block, state: Any, prepared: Any = None, extra_blocks: Iterable[Any] = ()) -> Parts:
        engine, M = self.basis.engine, self.basis.width if self.change is None else len(self.change[0])
        gram, moment = engine.zeros((packed_size(M),)), engine.zeros((M, self.outputs))
        totals = (engine.zeros((M, 1)), engine.zeros((self.outputs, 1))) if self.totals else None
        loss = 0.0
        assert block.y is not None
        for panel, phi in self.basis.engine.panels(self.basis, block.X):
            # Changed functions take two more matrices of such rows: few at a time.
            for part in cuts(len(phi), len(phi) if self.change is None else ROW_TILE):
                rows = slice(panel.start + part.start, panel.start + part.stop)
                y = engine.zeros((part.stop - part.start, self.outputs))
                residual(y, block.y[rows])
                wide = phi[part].astype(np.float64)
                if self.change is not None:
                    independent, right = self.change
                    wide = right.times(wide[:, independent])
                root = None if block.w is None else np.sqrt(block.w[rows, None])
                if root is not None:
                    wide *= root
                    y *= root
                engine.add_gram(gram, wide)
                moment -= wide.T @ y
                if totals is not None:
                    one = np.ones((len(wide), 1)) if root is None else root
                    for total, values in zip(totals, (wide, -y), strict=True):
                        total += values.T @ one
                loss += float(np.sum(np.square(y)))
        n = block.X.shape[0]
        if totals is None:
            return gram, moment, loss, n
        return gram, moment, *totals, float(n if block.w is None else block.w.sum()), loss, n
