"""Small random problems, which tests of several solvers share."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamkern.centers import CenterSet
from streamkern.data import from_arrays
from streamkern.data.targets import Classes, Continuous, Encoding
from streamkern.defaults import MAX_HELD_OUT_ROWS
from streamkern.execute.base import Executor
from streamkern.kernels import Kernel
from streamkern.solvers import Problem


def drawn(task: str, weighted: bool, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Encoding]:
    """Rows X (n, 3), targets of two outputs or three classes, weights (n,) or None, and the encoding of the targets."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    w = rng.random(n) + 0.2 if weighted else None
    y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.1 * rng.standard_normal((n, 2))
    if task == "regression":
        return X, y, w, Continuous(y.mean(axis=0), flat=False)
    return X, (y[:, 0] > 0).astype(int) + (y[:, 1] > 1), w, Classes(np.arange(3))


def posed(
    executor: Executor, X: np.ndarray, y: np.ndarray, w: np.ndarray | None = None, *, kernel: Kernel,
    centers: CenterSet | np.ndarray, encoding: Encoding | None = None, dtype: Any = np.float64, group: Any = None,
    **changes: Any,
) -> Problem:  # fmt: skip
    """These rows with the rows at ``centers`` as centers, whose outputs on rows left out are requested."""
    if not isinstance(centers, CenterSet):
        centers = CenterSet(X[centers], centers)
    return Problem(
        from_arrays(X, y, sample_weight=w, group=group), encoding or Continuous(np.zeros(y.shape[1]), flat=False),
        kernel, centers, executor, np.dtype(dtype), mean_weight=1.0 if w is None else float(w.mean()),
        **({"held_out_rows": MAX_HELD_OUT_ROWS} | changes),
    )  # fmt: skip
