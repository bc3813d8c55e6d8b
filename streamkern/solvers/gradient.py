"""Contributions of the squared loss on a basis: one evaluation of φ(X) gives the residual and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.backends.product import Factor
from streamkern.backends.thin import add_transposed, laid_out, room, times
from streamkern.data.stream import Block
from streamkern.execute.base import Parts
from streamkern.kernels import Basis
from streamkern.kernels.device import DeviceExpansion
from streamkern.solvers.dense import packed_panels, packed_size
from streamkern.solvers.score import residual, weigh
from streamkern.types import Array


@dataclass(eq=False)
class Gradient:
    """Contributes φ(X)ᵀ W r, Σ w‖r‖² and the rows, r = φ(X) α − y, with W the rows' sample weights, or 1.

    Args:
        basis: the functions φ.
    """

    basis: Basis

    def warm(self, block: Block) -> None:
        """The first panel of φ(X) does not depend on the weights."""
        self.basis.warm(block.X)

    def __call__(self, block: Block, state: Array) -> Parts:
        """Sums over the block under weights ``state``, shape (M, c)."""
        if isinstance(self.basis, DeviceExpansion):
            return _on_device(self.basis, block, state)
        right, c = laid_out(state), state.shape[1]
        g = room(state)
        loss = 0.0
        assert block.y is not None
        for rows, phi in self.basis.panels(block.X):
            R = times(phi, right)[:, :c]
            residual(R, block.y[rows])
            loss += weigh(R, None if block.w is None else block.w[rows])
            add_transposed(phi, R, g)
        return np.ascontiguousarray(g), loss, len(block.X)


@dataclass(eq=False)
class NormalProduct:
    """Contributes φ(X)ᵀ W φ(X) v, Σ w‖φ(X) α − y‖² and the rows, for a state (v, α) and sample weights W.

    Args:
        basis: the functions φ.
    """

    basis: Basis

    def __call__(self, block: Block, state: tuple[Array, Array]) -> Parts:
        """Sums over the block; v and α have shape (M, c)."""
        v, alpha = state
        c = v.shape[1]
        if isinstance(self.basis, DeviceExpansion):
            return _on_device(self.basis, block, alpha, v)
        both, product = laid_out(np.concatenate([v, alpha], axis=1)), room(v)
        loss = 0.0
        assert block.y is not None
        for rows, phi in self.basis.panels(block.X):
            F, w = times(phi, both), None if block.w is None else block.w[rows]
            if w is not None:
                F[:, :c] *= w[:, None].astype(F.dtype)
            add_transposed(phi, F[:, :c], product)
            R = F[:, c : 2 * c]
            residual(R, block.y[rows])
            loss += weigh(R, w)
        return np.ascontiguousarray(product), loss, len(block.X)


@dataclass(eq=False)
class NormalEquations:
    """Contributes φ(X)ᵀ W φ(X) and φ(X)ᵀ W y in float64, Σ w‖y‖² and the rows, with sample weights W.

    Of the matrix, tiles on the diagonal and below it, packed: see ``dense.unpacked``. float32 sums of it are not
    positive definite at n = 60,000 and p = 5,000.

    Args:
        basis: the functions φ.
        outputs: number c of outputs.
    """

    basis: Basis
    outputs: int

    def __call__(self, block: Block, state: Any) -> Parts:
        """Sums over the block."""
        M = self.basis.width
        gram, moment = np.zeros(packed_size(M)), np.zeros((M, self.outputs))
        loss = 0.0
        assert block.y is not None
        for rows, phi in self.basis.panels(block.X):
            y = np.zeros((len(phi), self.outputs))
            residual(y, block.y[rows])
            wide = phi.astype(np.float64)
            if block.w is not None:
                root = np.sqrt(block.w[rows, None])
                wide *= root
                y *= root
            columns = wide.T.copy()
            for cols, panel in packed_panels(gram, M):
                Factor(columns[cols]).product(columns[cols.start :], panel, add=True)
            moment -= wide.T @ y
            loss += float(np.sum(np.square(y)))
        return gram, moment, loss, len(block.X)


def _on_device(basis: DeviceExpansion, block: Block, alpha: Array, v: Array | None = None) -> Parts:
    """What ``Gradient`` contributes, or with v ``NormalProduct``: the same arithmetic around other products."""
    y, w, c, loss = block.y, block.w, alpha.shape[1], 0.0
    assert y is not None

    def respond(F: Array, rows: slice) -> Array:
        nonlocal loss
        weights = None if w is None else w[rows]
        R = F[:, -c:]
        residual(R, y[rows])
        loss += weigh(R, weights)
        if v is None or weights is None:
            return F[:, :c]
        return np.asarray(F[:, :c] * weights[:, None].astype(F.dtype))

    both = alpha if v is None else np.concatenate([v, alpha], axis=1)
    return basis.pull(block.X, both, respond, c), loss, block.X.shape[0]
