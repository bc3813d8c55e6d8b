"""Measure how far an iterative fit is from its solution, where its method knows no residual.

At the least squares solution the errors of the training rows are orthogonal to the functions of the basis. Before it,
some of these functions still predict the errors. They are fitted to the errors of some training rows, and the part that
they predict of the errors of others is what the fit has left to learn: the square root of the squared error that it
would take away, relative to that of predicting 0. Functions that fit noise predict nothing of other rows' errors, so a
fit that was stopped early because of noise counts as done.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamkern.data.targets import Classes
from streamkern.engine.squared import residual
from streamkern.errors import NumericalError
from streamkern.kernels import Basis, Expansion
from streamkern.solvers.base import HELD_OUT, Problem
from streamkern.solvers.residual import FAR, report_residual
from streamkern.solvers.row_errors import Errors
from streamkern.types import Array

LEAST_ROWS = 32
"""Rows below which nothing is measured: a quarter of them says nothing."""

_DRAW = 0x6C656674  # name of the draw of the rows
_DOUBTS = 2.0
_RIDGES = tuple(10.0**power for power in range(-8, 1))  # in units of the mean squared length of φ(x)


def report_unlearned(
    problem: Problem, report: dict[str, Any], solver: str, weights: Array, passes: str, worse: bool
) -> None:
    """Add what is left to learn to the report of a fit as ``residual``, with a warning if it is much.

    Args:
        problem: as it was solved.
        report: of the iteration; one that has a residual is left as it is.
        solver: name of the method.
        weights: the solution, shape (M, c).
        passes: the number of passes, in words.
        worse: whether later passes were worse on validation rows: more are no remedy, and there is no warning.
    """
    if "residual" in report or (isinstance(problem.encoding, Classes) and problem.encoding.logits):
        return
    left = unlearned(problem, weights)
    if left is not None:
        remedies = ["more epochs", "Direct() or Falkon(), which solve the equations"]
        report_residual(report, solver, left, [f"after {passes}"], remedies, left > FAR and not worse)


def unlearned(problem: Problem, weights: Array) -> float | None:
    """Return the part of the outputs that the basis still predicts of the errors of training rows, in [0, 1].

    Args:
        problem: as it was solved.
        weights: the solution, shape (M, c).

    Returns:
        The root of the squared error that a fit to the errors would take away, relative to that of predicting 0; 0
        where this is within two standard errors of 0. None where the rows are too few.
    """
    X, y, w = problem.full_rows(problem.draw(HELD_OUT, _DRAW))
    w = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
    n = len(X) // 2
    if len(X) < LEAST_ROWS or not (w[:n].sum() and w[n:].sum()):
        return None
    R = problem.predictor().predict(X, weights).astype(np.float64)
    zero = np.zeros_like(R)
    residual(R, y)
    residual(zero, y)
    engine = problem.engine.here()
    phi = engine.values(_some_functions(problem, X[:n]), X).astype(np.float64)
    root = np.sqrt(w[:n, None])
    A = phi[:n] * root
    gram = engine.product(A, A.T)
    scale = float(np.mean(np.diag(gram)))
    if not (np.isfinite(gram).all() and np.isfinite(R).all() and scale > 0):
        return None
    chosen, other = slice(n, None, 2), slice(n + 1, None, 2)
    best, least = np.zeros_like(R), Errors(np.square(R[chosen]).mean(axis=1), w[chosen]).mean
    for ridge in _RIDGES:
        K = gram.copy()
        K[np.diag_indices(n)] += ridge * scale
        try:
            L = engine.cholesky(K)
        except NumericalError:
            continue
        half = engine.triangular_solve(L, root * R[:n], lower=True)
        found = engine.product(phi, engine.product(A.T, engine.triangular_solve(L, half, lower=True, transposed=True)))
        error = Errors(np.square(R[chosen] - found[chosen]).mean(axis=1), w[chosen]).mean
        if error < least:
            best, least = found, error
    before, after, whole = (Errors(np.square(E[other]).mean(axis=1), w[other]) for E in (R, R - best, zero))
    gain = before.mean - after.mean
    if not gain > _DOUBTS * before.doubt(after) or not whole.mean > 0:
        return 0.0
    return float(min(1.0, np.sqrt(gain / whole.mean)))


def _some_functions(problem: Problem, rows: Array) -> Basis:
    """Return the problem's features, or the kernel at as many of its centers as there are rows, at most.

    Centers that stay in their files are all rows: these rows are some of them.
    """
    if problem.features is not None:
        return problem.basis()
    Z = problem.centers.Z
    if isinstance(Z, np.ndarray):
        rows = np.asarray(Z[: len(rows)], dtype=problem.dtype) - problem.center
    return Expansion(problem.kernel, rows, problem.engine)
