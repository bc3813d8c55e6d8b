"""Ridge regression of a problem: with every training row as a center, for every ridge, and with rows left out.

Where every training row is a center, one factor of K(X, X) takes the place of the sums of normal equations.

With weights W of the rows, of mean 1, and S = W^½ the normal equations (K W K/n + λ K) w = K W y/n are those of
(S K S + λ n I) b = S y, w = S b: n³/3 operations where the sums alone take n³, and none of the digits are lost that
products of kernel values lose. So the factor may be in the arithmetic's float32, with its residual measured.

Rows of equal features get the mean of their targets: that is the same function, and of the remaining rows no
coefficients are large and cancel. A row that is left out is left out as a center, too, with all that equal it:
f₋ᵢ(x_i) = ȳ_i − b_i / (s_i vᵀA⁻¹v) for A = S K S + λ n I and v = s/‖s‖ on the rows that equal it, 0 elsewhere.

Where fewer rows are centers, rows are left out by their leverages (``engine.ridge``). There, one sweep over the rows
gives the solution for every ridge.

Rows that have a group leave with all of it. With every row as a center, outputs at its rows G then differ from targets
by S_G⁻¹ (A⁻¹)_GG⁻¹ b_G: the one row's formula, with a block. With fewer centers, w solves (ΦᵀCΦ + λ R) w = ΦᵀC y for
the rows' shares C of all weight. Let P = Φ_G H for the inverse HHᵀ of the matrix, Q = E H for the weights E w of the
centers that are rows of G, and N = C_G⁻¹ − PPᵀ. By Woodbury's identity, and a Lagrange multiplier for each of these
weights, which are fixed at 0, outputs at G are

    y + C_G⁻¹ N⁻¹ (r − P Qᵀ S⁻¹ (E w + Q Pᵀ N⁻¹ r)),  r = Φ_G w − y,  S = QQᵀ + Q Pᵀ N⁻¹ P Qᵀ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from streamkern.calibration.out_of_sample import OutOfSample, copies_remain, held_out_count
from streamkern.data.row_order import Block
from streamkern.data.targets import as_values
from streamkern.defaults import (
    FACTOR_JITTER,
    MAX_JITTERS,
    MAX_LEFT_OUT_GROUP,
    MAX_REFINEMENTS,
    MAX_RESIDUAL,
    MIN_PIVOT_ROUNDINGS,
    SOLVED_RESIDUAL,
)
from streamkern.engine import Engine
from streamkern.engine.packed_triangle import cuts, unpacked
from streamkern.engine.reference import not_positive
from streamkern.engine.residuals import residual
from streamkern.engine.ridge import MIN_UNLEVERED, RidgePath, unlevered
from streamkern.errors import NumericalError
from streamkern.execute.base import Parts
from streamkern.kernels import Basis, Expansion, Kernel, Laplace, Sum
from streamkern.rng import Draw, HashFamily
from streamkern.solvers.base import Problem
from streamkern.solvers.contributions import NormalEquations
from streamkern.solvers.solution_residual import relative_residual
from streamkern.types import Array, IntArray

_INVERSE_COLUMNS = 512  # of the inverse that are in memory at a time, or those of a larger group
_TILE_ROWS = 512  # rows whose functions are in memory at a time


def is_factorable(kernel: Kernel | None) -> bool:
    """Return True if rounding leaves the kernel's matrices a Cholesky factor: Laplace, or a kernel to be chosen (None).

    Eigenvalues of smoother kernels fall below the resolution of a factor; their normal equations have a better basis.
    """
    if isinstance(kernel, Sum):  # the addition makes no eigenvalue smaller
        return any(is_factorable(part) for part in kernel.parts)
    return kernel is None or isinstance(kernel, Laplace)


def squared_targets(outputs: int, engine: Engine, block: Block, state: Any) -> Parts:
    """Contribute Σ w‖y‖² and the rows: the loss before the solution, as normal equations contribute it."""
    assert block.y is not None
    y = engine.zeros((len(block.X), outputs))
    residual(y, block.y)
    squares = np.square(y).sum(axis=1)
    return float(np.sum(squares if block.w is None else block.w * squares)), len(block.X)


def solve_every_row(
    problem: Problem, basis: Expansion, ridge: float, rows: tuple[Array, Array, Array | None] | None = None
) -> tuple[Array, OutOfSample | None, dict[str, Any]]:
    """Solve ridge regression with all training rows as centers, read here unless ``rows`` are given.

    Return weights in the order of the centers, shape (n, c), leave-one-out outputs or None, and fields of the report.
    """
    engine, ids = problem.engine, problem.centers.ids
    assert ids is not None
    X, y, w = problem.full_rows(ids) if rows is None else rows
    Y, n = as_values(y, problem.encoding.outputs), len(X)
    means, _, codes = problem.by_features(X, Y, w)
    root = None if w is None else np.sqrt(w)[:, None]
    s = np.ones(n) if root is None else root[:, 0]
    v = s / np.sqrt(np.maximum(np.bincount(codes, np.square(s)), np.finfo(np.float64).tiny))[codes]
    B = means if root is None else means * root
    L, b, facts = _factored(engine, basis, B, ridge * n, root)
    if codes.max() + 1 < n:  # rounding made coefficients of equal rows differ
        b = v[:, None] * np.stack([np.bincount(codes, v * column) for column in b.T], axis=1)[codes]
    out_of_sample = None
    parts = groups_to_leave_out(problem, ids) if problem.held_out_rows else None
    if parts is not None:
        shift = ridge * n + facts.get("jitter", 0.0)
        # Targets less their means are orthogonal to v, where the inverse of A is 1/shift.
        difference = (Y - means) * (1.0 if root is None else root) / shift if shift > 0 else 0.0
        out_of_sample = groups_left_out_of_kernel(problem, ids, (L, b + difference), (y, w), parts)
    elif problem.held_out_rows:
        drawn = problem.draw(held_out_count(n, Y.shape[1], problem.held_out_rows), Draw.HELD_OUT)
        order = np.argsort(ids)
        at = order[np.searchsorted(ids, drawn, sorter=order)]
        if w is not None:  # a row of weight 0 has no equation to leave out
            drawn, at = drawn[w[at] > 0], at[w[at] > 0]
        inverses = _inverses(engine, L, v, codes, at)
        if codes.max() + 1 == n or not copies_remain(codes, Y):
            values, missed = means, b[at] / inverses
        else:
            # One of a group of equal rows: orthogonal to v, the inverse of A is 1/shift within the group.
            values, own, shift = Y, np.square(v[at])[:, None], ridge * n + facts.get("jitter", 0.0)
            difference = (Y - means)[at] * (1.0 if root is None else root[at])
            missed = (shift * b[at] + difference) / (own * shift * inverses + (1.0 - own))
        missed = missed if root is None else missed / root[at]
        out_of_sample = OutOfSample(values[at] - missed, y[at], None if w is None else w[at], "leave-one-out", drawn)
    return b if root is None else b * root, out_of_sample, facts


def _factored(
    engine: Engine, basis: Expansion, B: Array, shift: float, root: Array | None
) -> tuple[Array, Array, dict[str, Any]]:
    """L of A and b = A⁻¹ B, in float64 if need be, and with the least diagonal that gives a factor."""
    wide, eps, facts = np.dtype(np.float64), float(np.finfo(np.float64).eps), dict[str, Any]()
    ways = [(basis.dtype, 0.0), *([] if basis.dtype == wide else [(wide, 0.0)])]
    ways += [(wide, basis.p * eps * 10.0**power) for power in range(MAX_JITTERS)]
    *_, last = ways
    least = shift / 10  # a smaller one would change nothing
    L: Any = None
    times: Any = None
    for way in ways:
        dtype, jitter = way
        if 0 < jitter < least and way != last:
            continue
        try:
            L, times = _factor(engine, basis, shift + jitter, root, dtype)
        except NumericalError:
            if way == last:
                raise
            continue
        b, facts["residual"] = _solved(engine, times, L, B, shift + jitter, root)
        facts |= {"factor": dtype.name, **({"jitter": jitter} if jitter else {})}
        enough = way == last or facts["residual"] <= (SOLVED_RESIDUAL[wide.name] if jitter else MAX_RESIDUAL)
        if engine.decide(enough, bound=bool(dtype == wide), likely=True):
            break
        if dtype == wide:  # the residual falls no faster than the diagonal grows: a tenth of that is not too much
            least = max(least, (shift + jitter) * facts["residual"] / SOLVED_RESIDUAL[wide.name] / 10)
        L, times = None, None  # before the next are made
    return L, b, facts


def _factor(
    engine: Engine, basis: Expansion, shift: float, root: Array | None, dtype: np.dtype[Any]
) -> tuple[Array, Callable[[Array], Array]]:
    """Factor S K S + shift I in ``dtype``; return also the product of K with weights, as predictions compute K.

    In the arithmetic's float32 the factored values are kept for the products. In float64 only a few tiles of K are in
    memory, and products evaluate it again.
    """
    n = basis.p
    A = engine.zeros((n, n), dtype)
    for rows, below in engine.kernel_rows(basis, n, dtype):
        A[rows, : rows.stop] = below
    times: Callable[[Array], Array] = partial(engine.kernel_product, basis)
    if dtype != np.float64:
        K = A.copy()
        times = lambda W: engine.symmetric_product(K, W.astype(dtype))  # noqa: E731
    if root is not None:
        for rows in cuts(n):
            A[rows, : rows.stop] *= (root[rows] * root[: rows.stop].T).astype(dtype)
    diagonal = np.diag_indices(n)
    A[diagonal] += shift
    least = MIN_PIVOT_ROUNDINGS * np.finfo(dtype).eps * A[diagonal]
    L = engine.cholesky(A)
    if dtype != np.float64 and not engine.decide(np.all(np.square(L[diagonal]) > least), bound=True):
        raise not_positive()
    return L, times


def _solved(
    engine: Engine, times: Callable[[Array], Array], L: Array, B: Array, shift: float, root: Array | None
) -> tuple[Array, float]:
    """Solve A b = B in float64, by a factor in the arithmetic's dtype or a wider one; with the relative residual."""

    def inverse(R: Array) -> Array:
        half = engine.triangular_solve(L, R.astype(L.dtype), lower=True)
        return engine.triangular_solve(L, half, lower=True, transposed=True).astype(np.float64)

    b, best = inverse(B), np.inf
    for step in range(MAX_REFINEMENTS + 1):
        values = times(b if root is None else b * root)
        rest = B - (values if root is None else values * root) - shift * b
        reached = relative_residual(rest, B)
        if engine.decide(
            reached <= SOLVED_RESIDUAL[L.dtype.name] or not reached < best / 2 or step == MAX_REFINEMENTS, bound=True
        ):
            break
        best, b = reached, b + inverse(rest)
    return b, reached


def _inverses(engine: Engine, L: Array, v: Array, codes: IntArray, at: IntArray) -> Array:
    """vᵀA⁻¹v of the groups of equal rows that the rows at ``at`` are in, shape (m, 1).

    ``v`` has the unit vectors of all groups in one array of shape (n,), and ``codes`` the number of each row's group.
    """
    groups, place = np.unique(codes[at], return_inverse=True)
    found = engine.zeros((len(groups), 1))
    for part in cuts(len(groups), _INVERSE_COLUMNS):
        column = np.full(len(codes), -1)
        column[groups[part]] = np.arange(part.stop - part.start)
        own = np.flatnonzero(column[codes] >= 0)
        begin = own[0]  # the solution is 0 above: groups are numbered by their first rows
        E = engine.zeros((len(codes) - begin, part.stop - part.start), L.dtype)
        E[own - begin, column[codes[own]]] = v[own]
        found[part, 0] = engine.row_squares(engine.triangular_solve(L[begin:, begin:], E, lower=True).T)
    return found[place]


def ridge_path(problem: Problem) -> RidgePath:
    """Return the equations of a problem's centers for every ridge, by one sweep over the training rows."""
    basis, engine = problem.expansion(), problem.engine
    gram, moment, _, n = problem.sweep(NormalEquations(basis, problem.encoding.outputs))
    K = engine.here().kernel_matrix(basis, basis.p)
    K[np.diag_indices(len(K))] += FACTOR_JITTER * np.finfo(basis.dtype).eps * np.trace(K)
    return RidgePath.of_sums(engine.mirror(unpacked(gram, basis.width, engine)) / n, moment / n, K, engine)


def leave_one_out(
    problem: Problem, basis: Basis, weights: Array, half: Callable[[Array], Array], n: float
) -> OutOfSample | None:
    """Return outputs of ridge regression on training rows, each as if it had been left out.

    Of rows of equal features one is left out, and the others stay, because a new row equals some just as often. Few
    rows that are copies are left out together (``copies_remain``). A row that is a center is removed as a center too,
    unless an equal row stays: otherwise the row's own kernel function would leak its target.

    ``weights`` (M, c) are the solution in float64; ``half`` is linear, with φᵀG⁻¹ψ = half(φ)ᵀhalf(ψ), from rows (t, M)
    to (t, r). ``n`` is the number of rows that G is a mean over, or their total weight. Rows that have
    a group leave with all of it.
    """
    if problem.train.roles is not None and problem.train.roles.group is not None:
        return groups_left_out_of_sums(problem, basis, weights, half, n)
    engine, outputs = problem.engine, weights.shape[1]
    ids = problem.draw(held_out_count(problem.train.base_rows, outputs, problem.held_out_rows), Draw.HELD_OUT)
    X, y, w = problem.full_rows(ids)
    wanted = as_values(y, outputs)
    means, mass, codes = problem.by_features(X, wanted, w)
    if copies_remain(codes, wanted):
        mass = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
        codes = np.where(np.bincount(codes)[codes] == 1, codes, -1)  # no center is left out where an equal row stays
    else:
        wanted = means
    share, center_of, centers = mass / n, centers_of_rows(problem, ids), dict[int, list[int]]()
    for row in np.flatnonzero((center_of >= 0) & (codes >= 0)).tolist():
        centers.setdefault(int(codes[row]), []).append(int(center_of[row]))
    found = engine.zeros((len(X), outputs))
    for rows in cuts(len(X), _TILE_ROWS):
        phi = engine.values(basis, X[rows]).astype(np.float64)
        own, c = half(phi), share[rows]
        rest = unlevered(c * engine.row_squares(own))
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
    return OutOfSample(found, y, w, "leave-one-out", ids)


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
    wanted, found = as_values(y, b.shape[1]), engine.zeros(b.shape)
    ends = np.cumsum([len(group) for group in groups])
    for part in np.split(np.arange(len(groups)), np.flatnonzero(np.diff(ends // _INVERSE_COLUMNS)) + 1):
        columns = np.concatenate([np.empty(0, int), *(groups[g] for g in part)])
        E = engine.zeros((len(L), len(columns)), L.dtype)
        E[columns, np.arange(len(columns))] = 1.0
        solved, done = engine.triangular_solve(L, E, lower=True), 0
        for own in (groups[g] for g in part):
            half = solved[:, done : done + len(own)].astype(np.float64)
            done += len(own)
            missed = _solved_symmetric(engine, engine.product_t(half, half), b[own])
            found[own] = wanted[own] - (missed if w is None else missed / np.sqrt(w[own])[:, None])
    return _out_of_sample(found, y, w, ids, groups, codes)


def groups_left_out_of_sums(
    problem: Problem, basis: Basis, weights: Array, half: Callable[[Array], Array], n: float
) -> OutOfSample | None:
    """Return outputs on the rows of groups that are left out, where fewer rows are centers, or none.

    The arguments are those of ``leave_one_out``. All rows are read: those of a group leave together.
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
        moved = _solved_symmetric(engine, N, r)
        if len(held):
            E = engine.zeros((len(held), phi.shape[1]))
            E[np.arange(len(held)), held] = 1.0
            Q = half(E)
            PQ = engine.product(P, Q.T.copy())
            inner = _solved_symmetric(engine, N, PQ)
            S = engine.product(Q, Q.T.copy()) + engine.product(PQ.T.copy(), inner)
            pull = engine.product(E, weights) + engine.product(PQ.T.copy(), moved)
            moved = moved - engine.product(inner, _solved_symmetric(engine, S, pull))
        found[own] = wanted[own] + moved / share
    return _out_of_sample(found, y, w, ids, groups, codes)


def centers_of_rows(problem: Problem, ids: IntArray) -> IntArray:
    """Return the position of the center that each row is, shape (n,), or -1."""
    centers = problem.centers.ids
    if centers is None or problem.features is not None or not len(centers):
        return np.full(len(ids), -1)
    order = np.argsort(centers)
    at = order[np.minimum(np.searchsorted(centers, ids, sorter=order), len(centers) - 1)]
    return np.where(centers[at] == ids, at, -1)


def _solved_symmetric(engine: Engine, A: Array, B: Array) -> Array:
    """A⁻¹ B of a symmetric matrix that rounding may leave no Cholesky factor."""
    values, vectors = engine.eigh((A + A.T) / 2)
    values = np.maximum(values, MIN_UNLEVERED * max(float(values[-1]), np.finfo(np.float64).tiny))
    return engine.product(vectors, engine.product_t(vectors, B) / values[:, None])


def _out_of_sample(
    outputs: Array, y: Array, w: Array | None, ids: IntArray, groups: list[IntArray], codes: Array
) -> OutOfSample | None:
    if not groups:
        return None
    at = np.concatenate(groups)
    return OutOfSample(outputs[at], y[at], None if w is None else w[at], "leave-group-out", ids[at], codes[at])
