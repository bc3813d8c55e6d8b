"""Outputs of ridge regression on training rows, each as if all rows of its group had been left out, in closed form.

With every row as a center, A b = S y for A = S K S + λ n I as in ``solvers.ridge``. Without the rows G of a group, and
without them as centers, outputs at G differ from targets by S_G⁻¹ (A⁻¹)_GG⁻¹ b_G: the one row's formula, with a block.

With fewer centers, w solves (ΦᵀCΦ + λ R) w = ΦᵀC y for the rows' shares C of all weight. Let P = Φ_G H for the inverse
HHᵀ of the matrix, Q = E H for the weights E w of the centers that are rows of G, and N = C_G⁻¹ − PPᵀ. By Woodbury's
identity, and a Lagrange multiplier for each of these weights, which are fixed at 0, outputs at G are

    y + C_G⁻¹ N⁻¹ (r − P Qᵀ S⁻¹ (E w + Q Pᵀ N⁻¹ r)),  r = Φ_G w − y,  S = QQᵀ + Q Pᵀ N⁻¹ P Qᵀ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamkern.calibration.out_of_sample import OutOfSample, held_out_count
from streamkern.data.targets import as_values
from streamkern.defaults import MAX_LEFT_OUT_GROUP
from streamkern.engine import Engine
from streamkern.engine.ridge import MIN_UNLEVERED
from streamkern.kernels import Basis
from streamkern.rng import HashFamily
from streamkern.solvers.base import Problem
from streamkern.types import Array, IntArray

_INVERSE_COLUMNS = 512  # of the inverse that are in memory at a time, or those of a larger group


def groups_to_leave_out(problem: Problem, ids: IntArray) -> tuple[list[IntArray], Array] | None:
    """Positions of the rows of each group that is left out, and a number of each row's group; None without groups.

    Groups are taken in the order of a hash, while their rows are as many as a calibration is fitted to; larger ones
    than ``MAX_LEFT_OUT_GROUP`` are not.
    """
    roles = problem.train.roles
    if roles is None or roles.group is None:
        return None
    hashes = roles.of_rows(ids).hashes(HashFamily.FOLDS)
    _, codes, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    few = sizes <= min(MAX_LEFT_OUT_GROUP, len(ids) - 1)
    most = held_out_count(len(ids), problem.encoding.outputs, problem.held_out_rows)
    taken = few & (np.cumsum(sizes * few) <= most)
    order, ends = np.argsort(codes, kind="stable"), np.cumsum(sizes)
    return [order[ends[g] - sizes[g] : ends[g]] for g in np.flatnonzero(taken).tolist()], codes


def groups_left_out_of_kernel(
    problem: Problem, ids: IntArray, solution: tuple[Array, Array], rows: tuple[Array, Array | None], parts: Any
) -> OutOfSample | None:
    """Return outputs on the rows of groups that are left out, where every row is a center.

    ``solution`` is L of A, shape (n, n), and b (n, c) for targets ``rows``, which are (n, ...), with weights (n,) or
    None; ``ids`` (n,) are the rows', and ``parts`` what ``groups_to_leave_out`` returned.
    """
    (L, b), (y, w), (groups, codes), engine = solution, rows, parts, problem.engine
    wanted, found, at = as_values(y, b.shape[1]), engine.zeros(b.shape), np.concatenate([*groups, np.empty(0, int)])
    ends = np.cumsum([len(group) for group in groups])
    for part in np.split(np.arange(len(groups)), np.flatnonzero(np.diff(ends // _INVERSE_COLUMNS)) + 1):
        columns = np.concatenate([np.empty(0, int), *(groups[g] for g in part)])
        E = engine.zeros((len(L), len(columns)), L.dtype)
        E[columns, np.arange(len(columns))] = 1.0
        solved, done = engine.triangular_solve(L, E, lower=True), 0
        for own in (groups[g] for g in part):
            half = solved[:, done : done + len(own)].astype(np.float64)
            done += len(own)
            missed = _solved(engine, engine.product_t(half, half), b[own])
            found[own] = wanted[own] - (missed if w is None else missed / np.sqrt(w[own])[:, None])
    return _out_of_sample(found, y, w, ids, at, codes)


def groups_left_out_of_sums(
    problem: Problem, basis: Basis, weights: Array, half: Callable[[Array], Array], n: float
) -> OutOfSample | None:
    """Return outputs on the rows of groups that are left out, where fewer rows are centers, or none.

    The arguments are those of ``solvers.ridge.leave_one_out``. All rows are read: those of a group leave together.
    """
    engine, ids = problem.engine, np.sort(problem.draw(problem.train.base_rows))
    X, y, w = problem.full_rows(ids)
    parts = groups_to_leave_out(problem, ids)
    assert parts is not None
    groups, codes = parts
    wanted, mass = as_values(y, weights.shape[1]), np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
    center_of = centers_of_rows(problem, ids)
    found = engine.zeros(wanted.shape)
    for own in groups:
        phi = engine.values(basis, X[own]).astype(np.float64)
        P, r, share = half(phi), engine.product(phi, weights) - wanted[own], (mass[own] / n)[:, None]
        N = np.diag(1.0 / share[:, 0]) - engine.product(P, P.T.copy())
        held = center_of[own][center_of[own] >= 0]
        moved = _solved(engine, N, r)
        if len(held):
            E = engine.zeros((len(held), phi.shape[1]))
            E[np.arange(len(held)), held] = 1.0
            Q = half(E)
            PQ = engine.product(P, Q.T.copy())
            inner = _solved(engine, N, PQ)
            S = engine.product(Q, Q.T.copy()) + engine.product(PQ.T.copy(), inner)
            pull = engine.product(E, weights) + engine.product(PQ.T.copy(), moved)
            moved = moved - engine.product(inner, _solved(engine, S, pull))
        found[own] = wanted[own] + moved / share
    return _out_of_sample(found, y, w, ids, np.concatenate([*groups, np.empty(0, int)]), codes)


def centers_of_rows(problem: Problem, ids: IntArray) -> IntArray:
    """Return the position of the center that each row is, shape (n,), or -1."""
    centers = problem.centers.ids
    if centers is None or problem.features is not None or not len(centers):
        return np.full(len(ids), -1)
    order = np.argsort(centers)
    at = order[np.minimum(np.searchsorted(centers, ids, sorter=order), len(centers) - 1)]
    return np.where(centers[at] == ids, at, -1)


def _solved(engine: Engine, A: Array, B: Array) -> Array:
    """A⁻¹ B of a symmetric matrix that rounding may leave no Cholesky factor."""
    values, vectors = engine.eigh((A + A.T) / 2)
    values = np.maximum(values, MIN_UNLEVERED * max(float(values[-1]), np.finfo(np.float64).tiny))
    return engine.product(vectors, engine.product_t(vectors, B) / values[:, None])


def _out_of_sample(
    outputs: Array, y: Array, w: Array | None, ids: IntArray, at: IntArray, codes: Array
) -> OutOfSample | None:
    if not len(at):
        return None
    weights = None if w is None else w[at]
    return OutOfSample(outputs[at], y[at], weights, "leave-group-out", ids[at], codes[at])
