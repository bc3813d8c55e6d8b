"""Small random problems, which tests of several solvers share."""

from __future__ import annotations

import numpy as np

from streamkern.data.targets import Classes, Continuous, Encoding


def drawn(task: str, weighted: bool, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Encoding]:
    """Rows X (n, 3), targets of two outputs or three classes, weights (n,) or None, and the encoding of the targets."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    w = rng.random(n) + 0.2 if weighted else None
    y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.1 * rng.standard_normal((n, 2))
    if task == "regression":
        return X, y, w, Continuous(y.mean(axis=0), flat=False)
    return X, (y[:, 0] > 0).astype(int) + (y[:, 1] > 1), w, Classes(np.arange(3))
