"""Top eigenpairs of a symmetric matrix on a block Krylov space (Golub & Underwood 1977)."""

from __future__ import annotations

import numpy as np

from streamkern.defaults import KRYLOV_BLOCKS, KRYLOV_RATIO, KRYLOV_RESIDUAL, MIN_KRYLOV_RATIO, MIN_KRYLOV_ROWS
from streamkern.rng import generator
from streamkern.types import Array


def is_cheaper(s: int, k: int) -> bool:
    """Return True if a Krylov space costs less than the reduction of the whole matrix (s, s), for its top k pairs."""
    return s >= MIN_KRYLOV_ROWS and s >= MIN_KRYLOV_RATIO * (k - 1)


def space(k: int) -> tuple[int, int]:
    """Return the columns of a block, and of the whole space, for k pairs."""
    step = max(1, KRYLOV_RATIO * k // KRYLOV_BLOCKS)
    return step, step * KRYLOV_BLOCKS


def krylov_eigenpairs(K: Array, k: int, floor: float) -> tuple[Array, Array] | None:
    """Return top k Ritz pairs of K (float64), ascending; None if a residual above the floor is too large."""
    s = len(K)
    step, size = space(k)
    V, KV = (np.empty((s, size), order="F") for _ in range(2))
    block = generator("Krylov space", s, k).standard_normal((s, step))
    for start in range(0, size, step):
        here = slice(start, start + step)
        for _ in range(2):  # again after scaling, in case little of the block was new
            block -= V[:, :start] @ (V[:, :start].T @ block)
            if not np.isfinite(block).all():
                return None
            block = np.linalg.qr(block)[0]
        V[:, here] = block
        block = KV[:, here] = K @ block
        block = block.copy()
    T = V.T @ KV
    values, U = np.linalg.eigh((T + T.T) / 2)
    values, U = values[-k:], np.ascontiguousarray(U[:, -k:])
    vectors = V @ U
    residuals = np.linalg.norm(KV @ U - vectors * values, axis=0)
    needed = values > max(floor, np.finfo(np.float64).eps * s) * values[-1]
    return (values, vectors) if (residuals[needed] <= KRYLOV_RESIDUAL * values[needed]).all() else None
