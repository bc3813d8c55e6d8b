"""How far a fit is from the solution of its problem, and the warning where it is far.

Solvers of a linear system know its residual. It is relative, and in the norm of the preconditioned system, in which it
is an error of predictions: that of K w = b itself says little, because functions that differ hardly at all let w be far
off where the residual is small.

Of other methods it is measured. At the least squares solution the errors of the training rows are orthogonal to the
functions of the basis. Before it, some of these functions still predict the errors. They are fitted to the errors of
some training rows, and the part that they predict of the errors of others is what the fit has left to learn: the square
root of the squared error that it would take away, relative to that of predicting 0. Functions that fit noise predict
nothing of other rows' errors, so a fit that was stopped early because of noise counts as done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamkern.defaults import (
    HELD_OUT,
    MAX_RESIDUAL,
    MAX_RESIDUAL_FUNCTIONS,
    MIN_RESIDUAL_ROWS,
    RESIDUAL_STANDARD_ERRORS,
    RIDGES,
)
from streamkern.engine.residuals import residual
from streamkern.engine.ridge import solve_ridge
from streamkern.errors import NumericalError
from streamkern.evaluation.paired_errors import Errors
from streamkern.rng import Draw
from streamkern.solvers.base import Problem
from streamkern.types import Array

_UNREACHED = "has not reached the exact solution"


def relative_residual(residual: Array, whole: Array) -> float:
    """Return the largest ‖r_j‖/‖b_j‖ over outputs j, of (M, c) each; 0 for an output whose b_j is 0."""
    found, size = (np.sum(np.square(x), axis=0) for x in (residual, whole))
    return float(np.sqrt(np.max(np.where(size > 0, found / np.where(size > 0, size, 1.0), 0.0))))


def report_residual(
    report: dict[str, Any], solver: str, residual: float, causes: Sequence[str], remedies: Sequence[str], far: bool
) -> None:
    """Add a residual to a report and, if it is ``far``, a warning with causes and remedies, in words."""
    report["residual"] = residual
    # A residual that was reported before is replaced; other warnings stay.
    said = [message for message in report.pop("warnings", ()) if _UNREACHED not in message]
    if far:
        said.append(
            f"{solver} {_UNREACHED}, relative residual {residual:.2g}: {'; '.join(causes)}. "
            f"Remedies: {', or '.join(remedies)}."
        )
    if said:
        report["warnings"] = said


def report_unlearned(
    problem: Problem, report: dict[str, Any], solver: str, weights: Array, passes: str, worse: bool
) -> None:
    """Measure what is left to learn, and add it to the report of a fit as ``residual``, with a warning if it is much.

    The report is unchanged if the method measures its residual itself. If later passes were ``worse`` on validation
    rows, more are no remedy, and nothing is warned.
    """
    if measured_by_itself(report):
        return
    left = unlearned(problem, weights)
    if left is not None:
        exact = "Direct() or Falkon(), which solve" if problem.features is None else "Direct(), which solves"
        remedies = ["more epochs", f"{exact} the equations"]
        report_residual(report, solver, left, [f"after {passes}"], remedies, left > MAX_RESIDUAL and not worse)


def measured_by_itself(report: dict[str, Any]) -> bool:
    """Return True if a method's report has its own measure of convergence: a residual, or the expected decrease."""
    return "residual" in report or "decrement" in report


def unlearned(problem: Problem, weights: Array) -> float | None:
    """Return the part of the outputs that the basis still predicts of the errors of training rows, in [0, 1].

    It is the root of the squared error that a fit to the errors would remove, relative to that of predicting 0; 0 if it
    is within two standard errors of 0. None if the rows are too few, or the centers stay in their files. A plan runs
    this on shapes too, so that its memory is projected.
    """
    basis = problem.predictor()
    if not basis.centers_in_memory:  # whose rows are too wide for memory
        return None
    X, y, w = problem.full_rows(problem.draw(HELD_OUT, Draw.RESIDUAL))
    w = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
    n, engine = len(X) // 2, problem.engine.here()
    if len(X) < MIN_RESIDUAL_ROWS or not (w[:n].sum() and w[n:].sum()):
        return None
    R = basis.predict(X, weights).astype(np.float64)
    zero = np.zeros_like(R)
    residual(R, y)
    residual(zero, y)
    spaced = np.linspace(0, basis.width - 1, min(MAX_RESIDUAL_FUNCTIONS, basis.width)).astype(np.int64)
    A = basis.values_of(spaced, X[:n], engine)
    A *= np.sqrt(w[:n, None])
    right = engine.product(A.T, R[:n] * np.sqrt(w[:n, None]))
    gram = engine.product_t(A, A)
    del A
    scale = float(np.mean(np.diag(gram)))
    finite = np.isfinite(gram).all() & np.isfinite(R).all()
    if not engine.decide(finite, bound=True) or not scale > 0:
        return None
    phi = basis.values_of(spaced, X[n:], engine)
    del basis, X
    chosen, other = slice(n, None, 2), slice(n + 1, None, 2)
    best, least = np.zeros_like(R[n:]), Errors(np.square(R[chosen]).mean(axis=1), w[chosen]).mean
    for ridge in RIDGES[1:]:  # in units of the mean squared length of φ(x)
        try:
            found = engine.product(phi, solve_ridge(engine, gram, right, ridge * scale))
        except NumericalError:
            continue
        error = Errors(np.square(R[chosen] - found[::2]).mean(axis=1), w[chosen]).mean
        if error < least:
            best, least = found, error
    gained = R[other] - best[1::2]
    before, after, whole = (Errors(np.square(E).mean(axis=1), w[other]) for E in (R[other], gained, zero[other]))
    gain = before.mean - after.mean
    if not after.surely_less(before, RESIDUAL_STANDARD_ERRORS) or not whole.mean > 0:
        return 0.0
    return float(min(1.0, np.sqrt(gain / whole.mean)))
