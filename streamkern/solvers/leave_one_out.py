"""Outputs of a fit on rows that it did not see: training rows left out one at a time, or validation rows.

For ridge regression with G = ΦᵀWΦ/n + λR the first need no second fit: f₋ᵢ(xᵢ) − yᵢ = (f(xᵢ) − yᵢ)/(1 − hᵢ) with
hᵢ = wᵢ φᵢᵀG⁻¹φᵢ/n (Allen 1974; Golub, Heath and Wahba 1979).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamkern.calibration.held_out import DRAW, LeftOut, equals_stay, rows_left_out
from streamkern.data.dataset import Dataset
from streamkern.data.stream import Block, Scan
from streamkern.data.targets import as_values
from streamkern.engine.packed_triangle import cuts
from streamkern.execute.base import Parts, Stack
from streamkern.execute.threads import evaluator
from streamkern.kernels import Basis
from streamkern.solvers.base import Problem
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array, IntArray

_TILE = 512  # rows whose functions are in memory at a time
_SURE = 1e-6  # least 1 − h: below, rounding decides


def leave_one_out(problem: Problem, basis: Basis, weights: Array, half: Callable[[Array], Array], n: float) -> LeftOut:
    """Outputs of ridge regression on training rows, each as if it had been left out.

    Of rows of equal features one is left out, and the others stay: a row to come equals some as often. Few rows that
    are copies are left out together (``equals_stay``). A row that is a center is left out as one too, unless an equal
    one stays: a function that is largest at this very row no other row has.

    Args:
        problem: whose training rows are drawn from.
        basis: the functions φ.
        weights: the solution in float64, shape (M, c).
        half: a linear map of rows φ, shape (t, M) to (t, r), with φᵀG⁻¹ψ = half(φ)ᵀhalf(ψ).
        n: rows that G is a mean over, or the weight of them all.
    """
    engine, outputs = problem.engine, weights.shape[1]
    ids = problem.draw(rows_left_out(problem.train.base_rows, outputs, problem.leave_out), DRAW)
    X, y, w = problem.full_rows(ids)
    wanted = as_values(y, outputs)
    means, mass, codes = problem.by_features(X, wanted, w)
    if equals_stay(codes, wanted):
        mass = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
        codes = np.where(np.bincount(codes)[codes] == 1, codes, -1)  # no center is left out where an equal row stays
    else:
        wanted = means
    share, centers = mass / n, _centers(problem, ids, codes)
    found = engine.zeros((len(X), outputs))
    for rows in cuts(len(X), _TILE):
        phi = engine.values(basis, X[rows]).astype(np.float64)
        own, c = half(phi), share[rows]
        rest = np.maximum(1.0 - c * engine.row_squares(own), _SURE)
        missed = engine.product(phi, weights) - wanted[rows]
        tile = wanted[rows] + missed / rest[:, None]
        pairs = [(i, place) for i, code in enumerate(codes[rows].tolist()) for place in centers.get(code, ())]
        if pairs:
            # The weight of the row's center is fixed at 0, too: a Lagrange multiplier on top of Sherman and Morrison.
            at = engine.zeros(phi.shape)
            here = np.array(pairs)
            at[here[:, 0], here[:, 1]] = 1.0
            of_center = half(at)
            pull = (own * of_center).sum(axis=1) / rest
            size = engine.row_squares(of_center) + c * np.square(pull) * rest + np.finfo(np.float64).tiny
            move = engine.product(at, weights) + (c * pull)[:, None] * missed
            tile = tile - (pull / size)[:, None] * move
        found[rows] = tile
    return LeftOut(found, y, w, "leave-one-out", ids)


def _centers(problem: Problem, ids: IntArray, codes: IntArray) -> dict[int, list[int]]:
    """Places of the centers that the rows of each group are, but for the group -1."""
    centers = problem.centers.ids
    found: dict[int, list[int]] = {}
    if centers is None or problem.features is not None or not len(centers):
        return found
    order = np.argsort(centers)
    at = order[np.minimum(np.searchsorted(centers, ids, sorter=order), len(centers) - 1)]
    for row in np.flatnonzero((centers[at] == ids) & (codes >= 0)).tolist():
        found.setdefault(int(codes[row]), []).append(int(at[row]))
    return found


@dataclass(eq=False)
class _Outputs:
    """Contributes outputs, targets and sample weights of rows.

    Args:
        basis: the functions the model is linear in.
    """

    basis: Basis

    def __call__(self, block: Block, state: Array) -> Parts:
        """The sums of a block, under weights ``state``, shape (M, c)."""
        if not len(block.ids):
            return (Stack(),)
        return (Stack(((self.basis.predict(block.X, state).astype(np.float64), block.y, block.ids, block.w),)),)


def on_validation(problem: Problem, weights: Array, basis: Basis | None = None) -> LeftOut:
    """Outputs on a sample of the validation rows: one sweep.

    Args:
        problem: which has validation rows.
        weights: shape (p, c).
        basis: the functions of the model; by default those of the problem.
    """
    held: Dataset | None = problem.validation
    assert held is not None
    held = held.plain()
    held = held.sample(rows_left_out(held.base_rows, problem.encoding.outputs))
    work = ScanWork(Scan(problem.assembly(held), 1024), _Outputs(basis or problem.predictor()))
    with evaluator(problem.executor, problem.evaluates_here) as executor:
        (pieces,) = sweep(executor, work, weights)
    F, y, ids = (np.concatenate([piece[k] for piece in pieces]) for k in (0, 1, 2))
    w = None if pieces[0][3] is None else np.concatenate([piece[3] for piece in pieces])
    return LeftOut(F, y, w, "validation", ids)
