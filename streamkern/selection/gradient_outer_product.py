"""The directions along which the outputs change most, from a small ridge regression on few rows in memory.

It is a round of ``learned_metric`` for the many nodes of a partition, where reading rows took half of the time.
"""

from __future__ import annotations

import numpy as np

from streamkern.cpu import default_engine
from streamkern.defaults import (
    DIRECTION_CENTERS,
    DIRECTION_MEDIAN_ROWS,
    DIRECTION_RIDGES,
    MAX_FULL_FEATURES,
    METRIC_HELD_OUT_SHARE,
    MIN_METRIC_ROWS,
)
from streamkern.engine.ridge import solve_ridge
from streamkern.errors import DataError, NumericalError
from streamkern.kernels import Expansion, Kernel
from streamkern.rng import generator
from streamkern.selection.median_bandwidth import median_of_rows
from streamkern.types import Array


def gradient_outer_product(X: Array, Y: Array, w: Array | None, kernel: Kernel, seed: int) -> Array | None:
    """Return the average gradient outer product of a model of rows: (d, d), or its diagonal (d,) of very wide rows.

    X is (n, d), Y (n, c), float64, weights (n,) are positive. The seed draws centers, at most a quarter of the rows,
    held-out rows and signs. The model has the ridge that is best on a fifth of the rows. None is returned where the
    rows are too few, or all alike.
    """
    engine, random, d = default_engine(), generator("direction", seed), X.shape[1]
    at = random.permutation(len(X))
    X, Y, w = X[at], Y[at], None if w is None else w[at] / w[at].mean()
    varying = np.flatnonzero(X.max(axis=0) > X.min(axis=0))  # the others have no gradient, and add to no distance
    n, c = Y.shape
    p, fitted = min(DIRECTION_CENTERS, n // 4), n - round(METRIC_HELD_OUT_SHARE * n)
    if n < MIN_METRIC_ROWS or not len(varying):
        return None
    if kernel.translation_invariant:
        X = X[:, varying]
        X = X - X.mean(axis=0, dtype=np.float64).astype(X.dtype)
    else:
        varying = np.arange(d)
    try:
        if kernel.needs_median:
            kernel = kernel.at_median(median_of_rows(X[:DIRECTION_MEDIAN_ROWS], kernel.norm))
        expansion = Expansion(kernel, X[:p], engine)
        K = engine.block(expansion, X)
        train = K[:fitted].astype(np.float64)
        moment = train.T @ (Y[:fitted] if w is None else Y[:fitted] * w[:fitted, None])
        if w is not None:
            train *= np.sqrt(w[:fitted, None])
        gram, own, eps = train.T @ train, K[:p].astype(np.float64), float(np.finfo(X.dtype).eps)
        own[np.diag_indices(p)] += p * eps  # of kernel values
        found = [solve_ridge(engine, gram, moment, fitted * ridge, own) for ridge in DIRECTION_RIDGES]
    except (DataError, NumericalError):  # rows all alike
        return None
    weights = np.concatenate(found, axis=1).astype(X.dtype)
    missed = (K[fitted:] @ weights).astype(np.float64).reshape(n - fitted, len(DIRECTION_RIDGES), c) - Y[
        fitted:, None, :
    ]
    best = int(np.argmin(np.square(missed).sum(axis=(0, 2))))
    W = np.ascontiguousarray(weights[:, best * c : (best + 1) * c])
    # With random signs of the outputs one product does for all of them: see ``GradientOuter``.
    signs = None if c == 1 else 2.0 * random.integers(0, 2, (fitted, c)) - 1.0
    g = engine.gradients(expansion, X[:fitted], W, signs).astype(np.float64)
    if w is not None:
        g *= np.sqrt(w[:fitted, None])
    if not 1 < d <= MAX_FULL_FEATURES:
        diagonal = np.zeros(d)
        diagonal[varying] = np.square(g).mean(axis=0)
        return diagonal
    G = np.zeros((d, d))
    G[np.ix_(varying, varying)] = g.T @ g / fitted
    return G
