"""The reference engine: NumPy and SciPy, without a compiler. Other engines are tested against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.linalg

from streamkern.engine.base import (
    CENTER_TILE,
    KERNEL_TILE,
    LANCZOS_PATIENCE,
    LANCZOS_STEPS,
    LANCZOS_TOLERANCE,
    ROW_TILE,
    Centered,
    Engine,
    Evaluated,
    Imap,
    InMemory,
    Map,
    R,
    Respond,
    TaskRunner,
)
from streamkern.engine.elementwise import Loops
from streamkern.engine.krylov_eigenpairs import is_cheaper, krylov_eigenpairs
from streamkern.engine.packed_triangle import cuts, packed_panels
from streamkern.engine.quantised_factor import PANEL, PackedFactor, panel_product, quantised
from streamkern.errors import NumericalError
from streamkern.rng import generator
from streamkern.types import Array

GRADIENT_TILE = (256, 1024)
"""Rows and centers of a tile of slopes, which stays in the caches."""

_GROUP = 4  # products of a covariance's tiles in memory at once


def one_by_one(fn: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Run tiles one after another, for an engine without an executor."""
    return [fn(item) for item in items]


class NumpyEngine(InMemory):
    """Plain NumPy, slow, short and obviously right; ``imap`` runs tiles where blocks are computed, if elsewhere."""

    name = "numpy"

    def __init__(self, parallel: Map = one_by_one, imap: Imap | None = None, overlaps: bool = False) -> None:
        self.parallel = parallel
        self._imap = imap
        self.overlaps = overlaps
        self.loops: Loops = Loops()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def bound(self, executor: TaskRunner) -> Engine:
        return type(self)(executor.host_map, executor.imap, executor.overlaps)

    def here(self) -> Engine:
        return type(self)(self.parallel)

    def imap(self, fn: Callable[..., Any], items: Iterable[Any], shared: tuple[Any, ...] = ()) -> Iterator[Any]:
        if self._imap is not None:
            return self._imap(fn, items, shared)
        return iter(self.parallel(lambda item: fn(item, *shared), items))

    @contextmanager
    def meanwhile(self, work: Callable[[], R] | None) -> Iterator[Callable[[], R | None]]:
        if work is None or not self.overlaps:
            yield work or (lambda: None)
            return
        pool = ThreadPoolExecutor(1, "streamkern-meanwhile")
        try:
            future = pool.submit(work)
            yield future.result
        except Exception:
            pool.shutdown()
            raise
        except BaseException:
            pool.shutdown(wait=False)  # on Ctrl-C the thread is not joined; it ends with its executor
            raise
        pool.shutdown()

    # ------------------------------------------------------------------------------ arrays and decisions

    def empty(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        return np.zeros(shape, dtype)

    def normal(self, shape: tuple[int, ...], *key: Any) -> Array:
        return generator(*key).standard_normal(shape)

    def decide(self, condition: Any, bound: bool, likely: bool | None = None) -> bool:
        return bool(condition)

    def count(self, mask: Array) -> int:
        return int(np.count_nonzero(mask))

    # ------------------------------------------------------------------------------ rows against centers

    def hold(self, Z: Array) -> Any:
        return self.loops.row_norms(Z)

    def hold_head(self, resident: Any, Z: Array) -> Any:
        return resident[: len(Z)]

    def tile_bytes(self, c: int) -> int:
        return 0

    def compiling_bytes(self) -> int:
        return 0

    def held_bytes(self, p: int, d: int, dtype: Any) -> int:
        return int(p * np.dtype(dtype).itemsize)

    def diagonal(self, expansion: Centered, X: Array) -> Array:
        found: Array = expansion.kernel.diag(X)
        return found

    def block(self, expansion: Centered, X: Array, out: Array | None = None) -> Array:
        K = np.empty((len(X), expansion.p), dtype=expansion.dtype) if out is None else out
        x_norms, z_norms = self.loops.row_norms(X), expansion.resident
        for rows in cuts(len(X), ROW_TILE):
            for cols in cuts(expansion.p, CENTER_TILE):
                S = K[rows, cols]
                if expansion.kernel.norm == 1:
                    self.loops.manhattan(X[rows], expansion.Z[cols], S)
                else:
                    np.matmul(X[rows], expansion.Z[cols].T, out=S)
                expansion.kernel.apply(S, x_norms[rows], z_norms[cols], self.loops)
        return K

    def panels(self, basis: Evaluated, X: Array, prepared: Any = None) -> Iterator[tuple[slice, Array]]:
        for rows in cuts(len(X), basis.row_tile):
            yield rows, basis.block(X[rows])

    def begin(self, basis: Evaluated, X: Array) -> Any:
        return None

    def predict(self, basis: Evaluated, X: Array, W: Array) -> Array:
        out, times = np.empty((len(X), W.shape[1]), dtype=basis.dtype), self.multiplier(W)
        for rows, phi in self.panels(basis, X):
            out[rows] = times(phi)
        return out

    def multiplier(self, W: Array) -> Callable[[Array], Array]:
        """Return a function that multiplies rows with W, which is packed once."""
        return lambda phi: phi @ W

    def panel_product(self, W: Array) -> Callable[[Array], Array]:
        return self.multiplier(W)

    def sums(self, p: int, c: int, dtype: Any) -> Array:
        return np.zeros((p, c), dtype)

    def add_transposed(self, phi: Array, r: Array, sums: Array) -> None:
        sums += phi.T @ r

    def pull(self, basis: Evaluated, X: Array, W: Array, respond: Respond, outputs: int, prepared: Any = None) -> Array:
        g = np.zeros((basis.width, outputs), dtype=W.dtype)
        for rows, phi in self.panels(basis, X, prepared):
            g += phi.T @ respond(phi @ W, rows)
        return g

    def gradients(self, expansion: Centered, X: Array, W: Array, signs: Array | None = None) -> Array:
        kernel, loops, dtype = expansion.kernel, self.loops, expansion.dtype
        x_norms, z_norms = loops.row_norms(X), loops.row_norms(expansion.Z)
        X, out = np.ascontiguousarray(X), np.zeros(X.shape, dtype=dtype)
        most, across = GRADIENT_TILE
        # Two buffers that stay in the caches, because page faults would cost more than the elementwise pass.
        buffers = np.empty((2, min(most, len(X)), min(across, expansion.p)), dtype=dtype)
        for cols in cuts(expansion.p, across):
            Z = expansion.Z[cols]
            if signs is None:
                buffers[1, :, : len(Z)] = W[cols].sum(axis=1)
            else:
                weights = self.right_factor(W[cols])
            if kernel.norm == 1:
                distances, signed_sums = self.manhattan(Z)
            else:
                centers, times = self.right_factor(Z), self.multiplier(Z)
            for rows in cuts(len(X), most):
                x = X[rows]
                S, V = buffers[:, : len(x), : len(Z)]
                if signs is not None:
                    weights.product(signs[rows].astype(W.dtype), V)
                if kernel.norm == 1:
                    distances(x, S)
                    P, _ = self.slopes(kernel, S, V, x_norms[rows], z_norms[cols])
                    found = signed_sums(P, x)
                else:
                    centers.product(x, S)
                    P, Q = self.slopes(kernel, S, V, x_norms[rows], z_norms[cols])
                    total = P.sum(axis=1) if Q is None else -Q.sum(axis=1)  # None stands for −P
                    found = times(P) - total[:, None] * x
                out[rows] += found
        return out

    def manhattan(self, Z: Array) -> tuple[Callable[[Array, Array], None], Callable[[Array, Array], Array]]:
        """Return a function that writes L1 distances of rows to centers, and one for ``Loops.signed_sums``."""

        def signed_sums(P: Array, X: Array) -> Array:
            out = np.empty_like(X)
            self.loops.signed_sums(P, X, Z, out)
            return out

        return lambda X, S: self.loops.manhattan(X, Z, S), signed_sums

    def slopes(self, kernel: Any, S: Array, V: Array, x_norms: Array, z_norms: Array) -> tuple[Array, Array | None]:
        """Return P V and Q V for a tile S of inner products or L1 distances, which is overwritten; Q is None for −P."""
        P, Q = kernel.slopes(S, x_norms, z_norms, self.loops)
        return P * V, V * (0.0 if Q is None else Q)

    def values(self, basis: Evaluated, X: Array, then: Callable[[Array], Array] | None = None) -> Array:

        def part(rows: slice) -> Array:
            phi = basis.block(X[rows])
            return phi if then is None else then(phi)

        return np.concatenate(self.parallel(part, cuts(len(X), ROW_TILE)))

    def covariance(self, basis: Evaluated, X: Array, V: Array) -> Array:

        def part(rows: slice) -> Array:
            phi = basis.block(X[rows]).astype(np.float64)
            return np.asarray(phi.T @ (phi @ V))

        total, rows = np.zeros_like(V), cuts(len(X), ROW_TILE)
        for group in cuts(len(rows), _GROUP):
            for term in self.parallel(part, rows[group]):
                total += term
        return total

    def kernel_values(self, expansion: Centered, X: Array) -> Array:
        tiles = cuts(len(X), ROW_TILE)
        return np.concatenate(list(self.imap(_block, [X[part] for part in tiles], (expansion,))))

    def kernel_matrix(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Array:
        K = np.empty((s, s), dtype)
        for rows, below in self.kernel_rows(expansion, s, dtype):
            K[rows, : rows.stop] = below
        return self.mirror(K)

    def kernel_rows(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Iterator[tuple[slice, Array]]:
        same, tiles = expansion.dtype == dtype, cuts(s, KERNEL_TILE)
        held = expansion if same else expansion.at(expansion.Z[:s].astype(dtype))
        for rows, below in zip(tiles, self.imap(_below, tiles, (held,)), strict=True):
            np.fill_diagonal(below[:, rows], held.kernel.diag(held.Z[rows]))
            yield rows, below

    def kernel_product(self, expansion: Centered, V: Array) -> Array:
        right = self.right_factor(V.T.astype(expansion.dtype))
        shared = expansion, right, V.shape[1], expansion.kernel.diag(expansion.Z)
        return np.concatenate(list(self.imap(_product, cuts(expansion.p, expansion.row_tile), shared)))

    # ------------------------------------------------------------------------------ matrices

    def right_factor(self, B: Array) -> Any:
        return _Plain(B)

    def product(self, A: Array, B: Array) -> Array:
        return np.asarray(A @ B)

    def row_squares(self, A: Array) -> Array:
        tiles = self.parallel(lambda rows: np.einsum("ij,ij->i", A[rows], A[rows], dtype=np.float64), cuts(len(A)))
        return np.concatenate(tiles)

    def product_t(self, U: Array, V: Array) -> Array:
        return np.asarray(U.T @ V)

    def symmetric_product(self, K: Array, W: Array) -> Array:
        lower = np.tril(K)  # without the entries above the diagonal, which may be uninitialised
        return np.asarray(lower @ W + np.tril(lower, -1).T @ W)

    def times_lower(self, B: Array, W: Array) -> Array:
        return np.asarray(B @ W.T)

    def gram(self, A: Array) -> Array:
        return np.asarray(A @ A.T)

    def add_gram(self, packed: Array, phi: Array) -> None:
        for cols, panel in packed_panels(packed, phi.shape[1]):
            panel += phi[:, cols.start :].T @ phi[:, cols]

    def gram_product(self, W: Any, B: Array, *, lower: bool = False) -> Array:
        return np.asarray(W.T @ (W @ B))

    def on_host(self, array: Any) -> Array:
        return np.asarray(array)

    def kernel_factor(self, expansion: Centered, shift: float, K: Array | None = None) -> Array:
        A = self.kernel_matrix(expansion, expansion.p, expansion.dtype) if K is None else K
        A[np.diag_indices(len(A))] += shift
        try:
            return self.inverse_factor(A, expansion.dtype)
        except NumericalError:
            if A.dtype == np.float64:
                raise
        del A, K
        return self.kernel_factor(expansion, shift, self.kernel_matrix(expansion, expansion.p))

    def inverse_factor(self, A: Array, dtype: Any) -> Array:
        L = self.cholesky(A)
        return np.asarray(scipy.linalg.solve_triangular(L, np.eye(len(L)), lower=True)).astype(dtype)

    def packed_factor(self, expansion: Centered, shift: float, lead: int) -> PackedFactor:
        p, A = expansion.p, self.kernel_matrix(expansion, expansion.p)
        A[np.diag_indices(p)] += shift
        W, found = np.zeros((p, p)), []
        for rows in cuts(p, PANEL):
            before = slice(0, min(rows.start, lead))
            V = A[rows, before] @ W[before, before].T
            own = scipy.linalg.inv(self.cholesky(A[rows, rows] - V @ V.T))
            W[rows, rows], W[rows, before] = own, -own @ V @ W[before, before]
            found.append(quantised(np.concatenate([W[rows, before], own], axis=1).astype(np.float32)))
        return PackedFactor(p, lead, np.concatenate([scales for _, scales in found]), tuple(each for each, _ in found))

    def packed_product(self, W: Any, B: Array) -> Array:
        out = np.zeros(B.shape, np.float32)
        for rows, lead, numbers, scales in W.panels():
            panel_product(rows, lead, numbers, scales, B.astype(np.float32), out)
        return out

    def times_packed(self, B: Array, W: PackedFactor) -> Array:
        out = np.empty((len(B), W.p), np.float32)
        for rows, lead, numbers, scales in W.panels():
            A = scales[:, None] * numbers[:, : lead + rows.stop - rows.start].astype(np.float32)
            out[:, rows] = (
                B[:, :lead].astype(np.float32) @ A[:, :lead].T + B[:, rows].astype(np.float32) @ A[:, lead:].T
            )
        return out

    def cholesky(self, A: Array) -> Array:
        try:
            A[...] = np.linalg.cholesky(A)
        except np.linalg.LinAlgError as error:
            raise not_positive() from error
        return A

    def spd_solve(self, A: Array, B: Array) -> Array:
        L = self.cholesky(np.tril(A) + np.tril(A, -1).T)
        return self.triangular_solve(L, self.triangular_solve(L, B, lower=True), lower=True, transposed=True)

    def condition(self, L: Array, norm: float) -> float:
        inverse, _ = scipy.linalg.lapack.dpocon(L.T, norm, uplo="U")  # L by rows is Lᵀ by columns
        return 1.0 / float(inverse) if inverse > 0 else float("inf")

    def orthonormal(self, A: Array, floor: float) -> tuple[Array, Array]:
        L, pivots, rank, _ = scipy.linalg.lapack.dpstrf(A.T, tol=floor, lower=1, overwrite_a=1)
        if rank < 1 or not np.isfinite(L[0, 0]) or L[0, 0] <= 0:
            raise not_positive()
        inverse, _ = scipy.linalg.lapack.dtrtri(L[:rank, :rank], lower=1)
        return pivots[:rank] - 1, np.tril(inverse).T

    def triangular_solve(self, R: Array, B: Array, *, lower: bool, transposed: bool = False) -> Array:
        trans: Any = "T" if transposed else "N"
        return np.asarray(scipy.linalg.solve_triangular(R, B, lower=lower, trans=trans, check_finite=False))

    def mirror(self, A: Array) -> Array:
        A[...] = np.tril(A) + np.tril(A, -1).T
        return A

    def top_eigenpairs(self, K: Array, k: int, floor: float) -> tuple[Array, Array]:
        found = krylov_eigenpairs(K.astype(np.float64, copy=False), k, floor) if is_cheaper(len(K), k) else None
        return self.whole_eigenpairs(K, k) if found is None else found

    def whole_eigenpairs(self, K: Array, k: int) -> tuple[Array, Array]:
        """Return top k eigenpairs from a reduction of the whole matrix; none if it is not finite."""
        if not np.isfinite(K).all():
            return np.empty(0), np.empty((len(K), 0))
        return self.eigh(K, top=k)

    def eigh(self, A: Array, B: Array | None = None, top: int | None = None) -> tuple[Array, Array]:
        subset = None if top is None else (max(0, len(A) - top), len(A) - 1)
        values, vectors = scipy.linalg.eigh(A, B, subset_by_index=subset, check_finite=False)
        return values, vectors

    def pivoted_qr(self, A: Array) -> tuple[Array, Array]:
        Q, R, _ = scipy.linalg.qr(A, mode="economic", pivoting=True, check_finite=False)
        return Q, R

    def top_eigenvalue(self, matvec: Callable[[Array], Array], n: int) -> float:
        v = self.normal((n,), "largest eigenvalue", n)
        v /= np.linalg.norm(v)
        last, offset = np.zeros(n), 0.0
        diagonal: list[float] = []
        offsets: list[float] = []
        tops = [0.0] * LANCZOS_PATIENCE
        # Without orthogonalising again: rounding repeats eigenvalues that have been found, and moves none of them.
        for _ in range(min(n, LANCZOS_STEPS)):
            u = np.asarray(matvec(v), dtype=np.float64) - offset * last
            if not np.isfinite(u).all():
                return float("nan")
            diagonal.append(float(v @ u))
            u -= diagonal[-1] * v
            tops.append(float(scipy.linalg.eigvalsh_tridiagonal(diagonal, offsets)[-1]))
            offset = float(np.linalg.norm(u))
            least = LANCZOS_TOLERANCE * abs(tops[-1])
            # One step alone may gain little where the largest eigenvalue is not yet told from the next.
            if tops[-1] - tops[-1 - LANCZOS_PATIENCE] <= least or offset <= least:
                break
            offsets.append(offset)
            last, v = v, u / offset
        return tops[-1]


def not_positive() -> NumericalError:
    """Return the error for a matrix without a Cholesky factor."""
    return NumericalError(
        "The kernel matrix of the centers is not positive definite to working precision.",
        where="K(Z, Z)",
        expected="a positive definite kernel and distinct centers",
        remedy="remove repeated centers, raise the jitter, or compute in float64",
    )


class _Plain:
    def __init__(self, B: Array) -> None:
        self.B = B

    def product(self, A: Array, out: Array) -> None:
        np.matmul(A, self.B.T, out=out)

    def times(self, A: Array) -> Array:
        return np.asarray(A @ self.B.T)


def _block(X: Array, expansion: Centered) -> Array:
    return expansion.block(X)


def _below(rows: slice, wide: Centered) -> Array:
    return wide.head(rows.stop).block(wide.Z[rows])


def _product(rows: slice, expansion: Centered, right: Any, columns: int, diagonal: Array) -> Array:
    out = np.empty((rows.stop - rows.start, columns))
    for part, K in expansion.engine.panels(expansion, expansion.Z[rows]):
        here = np.arange(part.start, part.stop)
        K[here - part.start, rows.start + here] = diagonal[rows][part]
        out[part] = right.times(K)
    return out
