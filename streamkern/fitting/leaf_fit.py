"""A fit to encoded rows in memory, each of them a center, where kernel and ridge are known: one of many leaves.

``fitting.fit.fit`` reads rows from wherever they are, checks them, and chooses what is open. Here the rows are in
memory and were checked with all others, so that what is left is the solve itself, which both share
(``solvers.ridge``), and its answers. Centers are the rows in their order, where ``fit`` draws them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from streamkern.centers import CenterSet
from streamkern.costs.footprint import Footprint
from streamkern.data import from_arrays
from streamkern.data.targets import Classes, Continuous, Encoding, Indicators, as_values
from streamkern.errors import NumericalError
from streamkern.execute.base import Executor
from streamkern.fitting.calibrate import fit_calibration
from streamkern.fitting.fitted import Fitted
from streamkern.fitting.precision_checks import require_resolved, typical_sizes
from streamkern.kernels import Kernel
from streamkern.memory import check_memory
from streamkern.solvers.base import Problem
from streamkern.solvers.loop import Outcome
from streamkern.solvers.ridge import solve_every_row
from streamkern.types import Array

_CHECKED_ROWS = 100  # rows, about, whose distances are compared with their rounding errors: of many leaves


def fit_encoded(
    rows: tuple[Array, Array, Array | None],
    kernel: Kernel,
    ridge: float,
    whole: Encoding,
    executor: Executor,
    projected: Footprint,
    seed: int = 0,
    held_out_rows: int = 0,
    warn: Callable[[str], None] = lambda message: None,
) -> Fitted:
    """The result of ``fitting.fit.fit`` by ``Direct``, without a look at rows that were looked at.

    Rows are encoded features (n, d), float32 or float64; targets as ``whole``, the encoding of all rows, encodes them,
    of two classes at least where they are classes; and positive weights (n,), or None. A bandwidth is a number, the
    executor has one thread, and answers are learned from ``held_out_rows`` rows at most, 0 for none.

    Raises:
        PrecisionError: the dtype cannot represent the kernel on these rows.
        NumericalError: the kernel matrix has no factor, or the weights are not finite.
    """
    check_memory()
    started = time.perf_counter()
    X, targets, w = rows
    n = len(X)
    looked_at = typical_sizes(X[:: -(-n // _CHECKED_ROWS)], kernel.translation_invariant, kernel.norm)
    require_resolved(kernel, looked_at, X.dtype)
    encoding, y = _encoded(targets, w, whole)
    mean_weight = 1.0 if w is None else float(w.sum()) / n
    scaled = None if w is None else w / mean_weight
    problem = Problem(
        from_arrays(X, targets, sample_weight=w), encoding, kernel, CenterSet(X, np.arange(n)), executor, X.dtype, seed,
        1, mean_weight=mean_weight, largest_weight=1.0 if scaled is None else float(scaled.max()),
        held_out_rows=held_out_rows,
        all_rows_are_centers=True,
    )  # fmt: skip
    basis = problem.expansion()
    weights, found, facts = solve_every_row(problem, basis, ridge, (basis.Z, y, scaled))
    values = as_values(y, encoding.outputs)
    squares = np.square(values).sum(axis=1)
    loss = float(squares.sum() if scaled is None else scaled @ squares) / (n * encoding.outputs)
    if not np.isfinite(weights).all():
        raise NumericalError(
            "The weights are not finite.",
            where="non-finite",
            expected="an iteration that stays finite and comes closer",
            remedy="compute in float64, or check the data's scale",
        )
    seconds = time.perf_counter() - started
    history: list[dict[str, Any]] = [{"pass": 1, "loss": loss, "rows": n, "seconds": seconds}]
    outcome = Outcome(weights.astype(X.dtype), 1, n, seconds, 0.0, history, out_of_sample=found)
    calibration = None
    if held_out_rows and not isinstance(encoding, Classes | Indicators):  # those of classes are learned for all leaves
        calibration = fit_calibration(problem, outcome, warn)
    return Fitted(
        problem, outcome, {"ridge": ridge, **facts}, projected.after({"ridge": ridge}), calibration=calibration
    )


def _encoded(targets: Array, w: Array | None, whole: Encoding) -> tuple[Encoding, Array]:
    """The encoding of some rows' targets, and these by it."""
    if isinstance(whole, Classes):
        values, codes = np.unique(targets, return_inverse=True)
        return Classes(values), codes
    if isinstance(whole, Indicators):
        return whole, targets
    mean = np.average(targets, axis=0, weights=w)
    spread = np.sqrt(np.average(np.square(targets - mean), axis=0, weights=w))
    own = Continuous.of(mean, spread, flat=False)
    return own, own.encode(targets, np.arange(len(targets)), "a leaf")
