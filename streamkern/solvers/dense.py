"""Dense linear algebra by tiles, in threads: the same bits for any number of threads.

A threaded LAPACK splits its sums by the number of threads. Here the tiles are fixed and each is one single-threaded
call, so threads decide only when a tile is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy.linalg

from streamkern.errors import NumericalError
from streamkern.types import Array

TILE = 512

Map = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""Runs a function over items in threads: ``Executor.host_map``."""


def spd_inverse(A: Array, parallel: Map, tile: int = TILE) -> Array:
    """Inverse of a symmetric positive definite matrix, in place: A = L Lᵀ, then A⁻¹ = L⁻ᵀ L⁻¹.

    p³ multiply-adds in all, as LAPACK's potrf and potri.

    Args:
        A: shape (p, p); overwritten with the inverse.
        parallel: runs tiles.
        tile: rows of a tile.

    Raises:
        NumericalError: a pivot is not positive.
    """
    cuts = [slice(a, min(a + tile, len(A))) for a in range(0, len(A), tile)]
    _cholesky(A, cuts, parallel)
    _invert_lower(A, cuts, parallel)
    _gram_of_lower(A, cuts, parallel)
    return A


def _cholesky(A: Array, cuts: list[slice], parallel: Map) -> None:
    """Lower factor into the lower tiles of A; the upper tiles are left alone."""
    for k, K in enumerate(cuts):
        try:
            A[K, K] = scipy.linalg.cholesky(A[K, K], lower=True, check_finite=False)
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                "The kernel matrix of the centers is not positive definite to working precision.",
                remedy="remove repeated centers, raise the jitter, or compute in float64",
            ) from error
        diagonal, below = A[K, K], cuts[k + 1 :]

        def panel(rows: slice, K: slice = K, diagonal: Array = diagonal) -> None:
            A[rows, K] = scipy.linalg.solve_triangular(diagonal, A[rows, K].T, lower=True, check_finite=False).T

        parallel(panel, below)

        def update(pair: tuple[slice, slice], K: slice = K) -> None:
            rows, cols = pair
            A[rows, cols] -= A[rows, K] @ A[cols, K].T

        parallel(update, [(rows, cols) for i, rows in enumerate(below) for cols in below[: i + 1]])


def _invert_lower(A: Array, cuts: list[slice], parallel: Map) -> None:
    """Inverse of the lower factor, one block column a task: W[:, j] solves L W[:, j] = I[:, j]."""
    W = A  # the strict upper tiles hold Wᵀ until the factor is no longer needed
    inverses = parallel(
        lambda K: scipy.linalg.solve_triangular(A[K, K], np.eye(K.stop - K.start), lower=True, check_finite=False), cuts
    )

    def column(j: int) -> None:
        J = cuts[j]
        for i in range(j + 1, len(cuts)):
            I = cuts[i]  # noqa: E741
            total = A[I, J] @ inverses[j]
            for k in range(j + 1, i):
                total += A[I, cuts[k]] @ W[J, cuts[k]].T
            W[J, I] = (-inverses[i] @ total).T

    parallel(column, range(len(cuts)))
    for K, inverse in zip(cuts, inverses, strict=True):
        A[K, K] = inverse
    parallel(lambda pair: np.copyto(A[pair[0], pair[1]], A[pair[1], pair[0]].T), _strict_lower(cuts))


def _gram_of_lower(A: Array, cuts: list[slice], parallel: Map) -> None:
    """Wᵀ W of the lower factor W in A's lower tiles: upper tiles first, then mirrored."""
    diagonals = [np.tril(A[K, K]) for K in cuts]

    def tile(pair: tuple[int, int]) -> Array:
        i, j = pair  # i <= j: rows k >= j contribute
        left = diagonals[j] if i == j else A[cuts[j], cuts[i]]
        total = left.T @ diagonals[j]
        for k in range(j + 1, len(cuts)):
            total += A[cuts[k], cuts[i]].T @ A[cuts[k], cuts[j]]
        return np.asarray(total)

    # Row by row from the top: row i of tiles reads only lower tiles of columns i and j, which later rows still need,
    # so results wait in the upper tiles, which nothing reads.
    pairs = [(i, j) for i in range(len(cuts)) for j in range(i, len(cuts))]
    on_diagonal: dict[int, Array] = {}

    def place(pair: tuple[int, int]) -> None:
        i, j = pair
        if i == j:
            on_diagonal[i] = tile(pair)
        else:
            A[cuts[i], cuts[j]] = tile(pair)

    parallel(place, pairs)
    for i, K in enumerate(cuts):
        A[K, K] = on_diagonal[i]
    parallel(lambda pair: np.copyto(A[pair[0], pair[1]], A[pair[1], pair[0]].T), _strict_lower(cuts))


def _strict_lower(cuts: list[slice]) -> list[tuple[slice, slice]]:
    return [(rows, cols) for i, rows in enumerate(cuts) for cols in cuts[:i]]


def matmul(A: Array, B: Array, parallel: Map, tile: int = TILE) -> Array:
    """A B by fixed tiles of rows of A."""
    out = np.empty((len(A), B.shape[1]), dtype=np.result_type(A, B))
    rows = [slice(a, min(a + tile, len(A))) for a in range(0, len(A), tile)]
    parallel(lambda part: np.matmul(A[part], B, out=out[part]), rows)
    return out
