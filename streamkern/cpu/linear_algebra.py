"""Dense linear algebra by tiles in threads, with the same bits for any number of threads.

A threaded LAPACK splits its sums by the number of threads. Here tiles are fixed, and each is one single-threaded call.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np

from streamkern.cpu import lapack
from streamkern.cpu.cholesky import cholesky_factor, is_factored_here
from streamkern.cpu.gemm import Factor
from streamkern.cpu.gemv import add_transposed, laid_out, room, times
from streamkern.engine.base import MANY, SLAB, SUMS, TILE, Map
from streamkern.engine.elementwise import has_dense_rows
from streamkern.engine.packed_triangle import cuts
from streamkern.engine.reference import Engine, not_positive, one_by_one
from streamkern.types import Array


class TiledAlgebra(Engine):
    """The matrix methods of an engine, by tiles."""

    def product(self, A: Array, B: Array, tile: int = TILE) -> Array:
        return self._product(A, B, tile)

    def product_t(self, U: Array, V: Array) -> Array:
        return self._product(U.T, V, 64)

    def _product(self, A: Array, B: Array, tile: int) -> Array:
        out = np.empty((len(A), B.shape[1]), dtype=np.result_type(A, B))
        if A.dtype == B.dtype and B.shape[1] >= MANY:
            right = Factor(B.T)
            size = tile if has_dense_rows(A) else tile // 4  # other rows are copied, for which no memory is projected
            self.parallel(lambda part: right.product(A[part], out[part]), cuts(len(A), size))
        else:
            self.parallel(lambda part: np.matmul(A[part], B, out=out[part]), cuts(len(A), tile))
        return out

    def gram(self, A: Array, tile: int = TILE) -> Array:
        out = np.empty((len(A), len(A)), dtype=A.dtype)

        def part(rows: slice) -> None:
            below = out[rows.start :, rows]
            Factor(A[rows]).product(A[rows.start :], below)
            out[rows, rows.start :] = below.T

        self.parallel(part, cuts(len(A), tile))
        return out

    def gram_product(self, W: Array, B: Array, *, lower: bool = False) -> Array:
        """Use a tile of W twice while it is in cache.

        Each task has one of a fixed number of partial sums; slabs of B's columns bound their memory. If W is lower
        triangular, tiles above its diagonal are skipped.
        """
        tiles = cuts(len(W), 128)
        out = np.empty(B.shape, dtype=np.result_type(W, B))
        for a in range(0, B.shape[1], SLAB):
            columns = slice(a, min(a + SLAB, B.shape[1]))
            right = laid_out(B[:, columns].astype(out.dtype))

            def total(rows: list[slice], right: Array = right) -> Array:
                sums = room(len(right), right.shape[1], right.dtype)
                for part in rows:
                    stop = part.stop if lower else W.shape[1]
                    A = W[part, :stop]
                    add_transposed(A, times(A, right[:stop]), sums[:stop])
                return sums

            first, *rest = self.parallel(total, [tiles[i::SUMS] for i in range(min(SUMS, len(tiles)))]) or [0.0 * right]
            for sums in rest:
                first += sums
            out[:, columns] = first
        return out

    def mirror(self, A: Array) -> Array:
        """Copy by tiles, because writing columns is slow."""
        tiles = cuts(len(A))
        above = np.triu(np.ones((min(TILE, len(A)),) * 2, dtype=bool), 1)

        def part(i: int) -> None:
            rows = tiles[i]
            for cols in tiles[:i]:
                A[cols, rows] = A[rows, cols].T
            own = A[rows, rows]
            np.copyto(own, own.T.copy(), where=above[: len(own), : len(own)])

        self.parallel(part, range(len(tiles)))
        return A

    def cholesky(self, A: Array) -> Array:
        return cholesky(A, self.parallel)

    def triangular_solve(self, R: Array, B: Array, *, lower: bool, transposed: bool = False) -> Array:
        """Solve a tile of columns in each task; R's other triangle is not read."""
        solve = partial(lapack.trtrs, lower=lower, transposed=transposed)
        if B.ndim == 1 or B.shape[1] <= TILE:
            return solve(R, B)
        R, out = R.astype(np.result_type(R, B), copy=False), np.empty(B.shape, np.result_type(R, B), order="F")

        def part(columns: slice) -> None:
            out[:, columns] = solve(R, B[:, columns])

        self.parallel(part, cuts(B.shape[1]))
        return out

    def inverse_factor(self, A: Array, dtype: Any, tile: int = TILE) -> Array:
        """Compute in A's memory: A is contiguous and owns it, and ``dtype`` is not wider than A's."""
        cholesky(A, self.parallel, tile)
        _invert_lower(A, cuts(len(A), tile), self.parallel)
        if A.dtype == dtype:
            for i, row in enumerate(A):
                row[i + 1 :] = 0
            return A
        p, rows = len(A), A.ravel().view(dtype)
        for i in range(p):  # row by row to the front, which never overwrites a row still to be read
            row = A[i, : i + 1].astype(dtype)
            rows[i * p : i * p + i + 1] = row
            rows[i * p + i + 1 : (i + 1) * p] = 0
        del rows
        A.resize(-(-p * p * dtype.itemsize // 8), refcheck=False)  # release the rest of the memory
        return cast(Array, A.view(dtype)[: p * p].reshape(p, p))


def cholesky(A: Array, parallel: Map, tile: int = TILE) -> Array:
    """Return the lower factor of A in place, from its lower triangle, with zeros above; or ``NumericalError``."""
    few = 1024  # rows of which a factor is one task: threads would wait for one another
    if is_factored_here(A):
        if not cholesky_factor(A, parallel if len(A) > few else one_by_one):
            raise not_positive()
        return A
    return tiled_cholesky(A, parallel, tile)


def tiled_cholesky(A: Array, parallel: Map, tile: int = TILE) -> Array:
    """``cholesky`` with LAPACK's factors of the tiles on the diagonal, where BLAS's products are as fast."""
    tiles = cuts(len(A), tile)
    for k, K in enumerate(tiles):
        left = Factor(-A[K, : K.start]) if k else None

        def update(rows: slice, K: slice = K, left: Factor | None = left) -> None:
            if left is not None:
                left.product(A[rows, : K.start], A[rows, K], add=True)

        update(K)
        A[K, K] = lower_factor(A[K, K])
        A[K, K.stop :] = 0.0
        if K.stop == len(A):
            break
        right = Factor(inverse_lower(A[K, K]))

        def panel(rows: slice, K: slice = K, update: Any = update, right: Factor = right) -> None:
            update(rows)
            right.product(A[rows, K].copy(), A[rows, K])

        parallel(panel, tiles[k + 1 :])
    return A


def lower_factor(S: Array) -> Array:
    """Return LAPACK's lower factor of S, in one thread; or ``NumericalError``."""
    try:
        return lapack.potrf(S)
    except np.linalg.LinAlgError as error:
        raise not_positive() from error


def inverse_lower(L: Array) -> Array:
    """Return the inverse of a lower factor, in one thread."""
    return lapack.trtrs(L, np.eye(len(L), dtype=L.dtype), lower=True)


def _invert_lower(A: Array, tiles: list[slice], parallel: Map) -> None:
    """Invert the lower factor, one block column in each task: L W[:, j] = I[:, j]. Tiles above are overwritten."""
    W = A  # the strict upper tiles hold Wᵀ until the factor is no longer needed

    def column(j: int) -> None:
        J = tiles[j]
        done = [Factor(inverses[j].T)]
        for i in range(j + 1, len(tiles)):
            I = tiles[i]  # noqa: E741
            total = np.zeros((I.stop - I.start, J.stop - J.start), A.dtype)
            for k, right in enumerate(done, start=j):
                right.product(A[I, tiles[k]], total, add=True)
            rights[i].product(-total.T, W[J, I])
            done.append(Factor(W[J, I]))

    inverses = parallel(lambda K: inverse_lower(A[K, K]), tiles)
    rights = parallel(Factor, inverses)
    parallel(column, range(len(tiles)))
    for K, inverse in zip(tiles, inverses, strict=True):
        A[K, K] = inverse
    below = [(rows, cols) for i, rows in enumerate(tiles) for cols in tiles[:i]]
    parallel(lambda pair: np.copyto(A[pair], A[pair[::-1]].T), below)
