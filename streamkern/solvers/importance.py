"""Sampling by importance: rows drawn with replacement, each with a chance in proportion to its weight in the problem.

The gradient of a row that is drawn c times as often counts 1/c as much: the mean is the same, and what bounds the step
is the mean of the weights ‖P^{−1/2} φ_i‖² in place of the largest (Gonen, Orabona & Shalev-Shwartz 2016, Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.stream import Block
from streamkern.engine.squared import residual, weigh
from streamkern.errors import UsageError
from streamkern.execute.base import Parts, Stack
from streamkern.kernels import Basis
from streamkern.precondition.lanczos import LowRank
from streamkern.solvers.base import Problem
from streamkern.sweep import Contribution
from streamkern.types import Array


@dataclass(eq=False)
class WeightedProduct(Contribution):
    """Contributes Σ_i a_i φ_i φ_iᵀ v, Σ‖φ(X) w − y‖², and the rows, for a state (v, w); a_i times sample weights.

    Args:
        basis: the functions φ.
        weights: a_i of the stored rows, shape (source rows,).
    """

    basis: Basis
    weights: Array

    def __call__(
        self, block: Block, state: tuple[Array, Array], begun: Any = None, companions: Iterable[Any] = ()
    ) -> Parts:
        """Sums over the block; v and w have shape (M, c)."""
        v, w = state
        product, loss = np.zeros_like(v), 0.0
        weights = self.weights[block.ids, None].astype(v.dtype)
        if block.w is not None:
            weights *= block.w[:, None].astype(v.dtype)
        assert block.y is not None
        for rows, phi in self.basis.panels(block.X):
            product += phi.T @ (weights[rows] * (phi @ v))
            F = phi @ w
            residual(F, block.y[rows])
            loss += weigh(F, None if block.w is None else block.w[rows])
        return product, loss, block.X.shape[0]


@dataclass(eq=False)
class RowNorms:
    """Contributes ids and w_i ‖P^{−1/2} φ_i‖² of rows, one behind another, with sample weights w_i.

    Args:
        basis: the functions φ.
        P: the preconditioner.
    """

    basis: Basis
    P: LowRank

    def __call__(self, block: Block, state: None) -> Parts:
        """The norms of a block."""
        norms = [self.P.norms(phi) for _, phi in self.basis.panels(block.X)]
        if not norms:
            return (Stack(),)
        found = np.concatenate(norms)
        return (Stack(((block.ids, found if block.w is None else block.w * found),)),)


def preconditioned_norms(problem: Problem, basis: Basis, P: LowRank) -> Array:
    """‖P^{−1/2} φ_i‖² of the stored rows, shape (source rows,), in one sweep; 0 for a row that takes no part.

    Raises:
        UsageError: some rows have more copies than others.
    """
    data = problem.train.plain()
    if problem.train.last_round:
        raise UsageError(
            f"Importance sampling needs equal copies of each row: {len(problem.train):,} rows are not a multiple of "
            f"{data.base_rows:,}.",
            where='sampling="importance"',
            expected="the same number of copies of each row",
            remedy="give augment(copies=...) in place of rows",
        )
    norms = problem.engine.zeros((int(data.source.bounds[-1]),))
    (pieces,) = problem.sweep(RowNorms(basis, P), data=data)
    for ids, values in pieces:
        norms[ids] = values
    return norms


def weights(norms: Array) -> Array:
    """Weights that turn the mean over draws into that over rows: mean/norm, and 0 for a row that is never drawn."""
    drawn = norms > 0
    mean = norms[drawn].sum() / max(1, np.count_nonzero(drawn))
    inverse: Array = np.divide(mean, norms, out=np.zeros_like(norms), where=drawn)
    return inverse
