"""Contributions of the squared loss on a basis: one evaluation of φ(X) gives the residual and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.backends.product import add_transposed, padded, times
from streamkern.data.stream import Block
from streamkern.execute.base import Parts
from streamkern.kernels import Basis
from streamkern.solvers.score import residual
from streamkern.types import Array


@dataclass(eq=False)
class Gradient:
    """Contributes φ(X)ᵀ r, Σ‖r‖² and the rows, r = φ(X) w − y.

    Args:
        basis: the functions φ.
    """

    basis: Basis

    def warm(self, block: Block) -> None:
        """The first panel of φ(X) does not depend on the weights."""
        self.basis.warm(block.X)

    def __call__(self, block: Block, state: Array) -> Parts:
        """Sums over the block under weights ``state``, shape (M, c)."""
        right, c = padded(state), state.shape[1]
        g = np.zeros(right.shape, dtype=state.dtype)
        loss = 0.0
        assert block.y is not None
        for rows, phi in self.basis.panels(block.X):
            R = times(phi, right)
            F = R[:, :c]
            residual(F, block.y[rows])
            loss += float(np.sum(np.square(F, dtype=np.float64)))
            add_transposed(phi, R, g)
        return np.ascontiguousarray(g[:, :c]), loss, len(block.X)


@dataclass(eq=False)
class NormalProduct:
    """Contributes φ(X)ᵀ φ(X) v, Σ‖φ(X) w − y‖² and the rows, for a state (v, w).

    Args:
        basis: the functions φ.
    """

    basis: Basis

    def __call__(self, block: Block, state: tuple[Array, Array]) -> Parts:
        """Sums over the block; v and w have shape (M, c)."""
        v, w = state
        c = v.shape[1]
        left, right = padded(v), padded(w)
        wide, both = left.shape[1], np.concatenate([left, right], axis=1)
        product = np.zeros_like(left)
        loss = 0.0
        assert block.y is not None
        for rows, phi in self.basis.panels(block.X):
            F = times(phi, both)
            add_transposed(phi, F[:, :wide], product)
            R = F[:, wide : wide + c]
            residual(R, block.y[rows])
            loss += float(np.sum(np.square(R, dtype=np.float64)))
        return np.ascontiguousarray(product[:, :c]), loss, len(block.X)


@dataclass(eq=False)
class NormalEquations:
    """Contributes φ(X)ᵀ φ(X) and φ(X)ᵀ y in float64, Σ‖y‖² and the rows.

    float32 sums of this matrix are not positive definite at n = 60,000 and p = 5,000.

    Args:
        basis: the functions φ.
        outputs: number c of outputs.
    """

    basis: Basis
    outputs: int

    def __call__(self, block: Block, state: Any) -> Parts:
        """Sums over the block."""
        M = self.basis.width
        gram, moment = np.zeros((M, M)), np.zeros((M, self.outputs))
        loss = 0.0
        assert block.y is not None
        for rows, phi in self.basis.panels(block.X):
            y = np.zeros((len(phi), self.outputs))
            residual(y, block.y[rows])
            wide = phi.astype(np.float64)
            gram += wide.T @ wide
            moment -= wide.T @ y
            loss += float(np.sum(np.square(y)))
        return gram, moment, loss, len(block.X)
