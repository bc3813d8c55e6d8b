"""The engine: all heavy arithmetic of solvers, in NumPy and SciPy; other engines are tested against it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import scipy.linalg

from streamkern.defaults import LANCZOS_PATIENCE, LANCZOS_STEPS, LANCZOS_TOLERANCE
from streamkern.engine.base import (
    CENTER_TILE,
    COVARIANCE_GROUP,
    KERNEL_TILE,
    ROW_TILE,
    Basis,
    Centered,
    Imap,
    Map,
    R,
    Respond,
    TaskRunner,
)
from streamkern.engine.device import Device
from streamkern.engine.elementwise import Loops
from streamkern.engine.packed_triangle import cuts, packed_panels
from streamkern.engine.quantised_factor import PANEL, PackedFactor, panel_product, quantised
from streamkern.errors import NumericalError
from streamkern.rng import generator
from streamkern.types import Array

GRADIENT_TILE = (256, 1024)
"""Rows and centers of a tile of slopes, which stays in the caches."""


def one_by_one(fn: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Run tiles one after another, for an engine without an executor."""
    return [fn(item) for item in items]


class Engine:
    """The heavy arithmetic, in plain NumPy: the reference. Faster engines are subclasses.

    Promises of each: the order of sums depends on shapes alone, so that threads do not change bits. Results have the
    dtype of the arguments unless a method says otherwise; float64 stays float64. Errors are ``NumericalError`` with a
    remedy. An engine is bound to an executor, whose threads run its tiles; an unpickled one is unbound, and runs them
    one by one. ``imap`` runs tiles where blocks are computed, if elsewhere.

    Attributes:
        name: of the engine, in reports.
        loops: elementwise loops over its arrays.
        device: the device for the rows of a step; None for the memory of the process.
        keeps_state: whether the state of a training lies in a device's memory: all blocks are computed there, by this
            process.
        overlaps: see ``TaskRunner.overlaps``; also whether K(Z, Z) and its factor are in the memory of the process.
    """

    name = "numpy"
    device: Device | None = None
    keeps_state = False

    def __init__(self, parallel: Map = one_by_one, imap: Imap | None = None, overlaps: bool = False) -> None:
        self.parallel = parallel
        self._imap = imap
        self.overlaps = overlaps
        self.loops: Loops = Loops()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def bound(self, executor: TaskRunner) -> Engine:
        """Return the same engine with tiles run by an executor's threads."""
        return type(self)(executor.host_map, executor.imap, executor.overlaps)

    def here(self) -> Engine:
        """Return the same engine with all tiles in threads of this process, for the work of each step."""
        return type(self)(self.parallel)

    def imap(self, fn: Callable[..., Any], items: Iterable[Any], shared: tuple[Any, ...] = ()) -> Iterator[Any]:
        if self._imap is not None:
            return self._imap(fn, items, shared)
        return iter(self.parallel(lambda item: fn(item, *shared), items))

    @contextmanager
    def meanwhile(self, work: Callable[[], R] | None) -> Iterator[Callable[[], R | None]]:
        """Evaluate in a background thread while the context runs; yields a function that returns the result.

        Without work, or if no thread would otherwise wait, that function evaluates the work.
        """
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
        """An array whose numbers are not set."""
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        """An array of zeros."""
        return np.zeros(shape, dtype)

    def normal(self, shape: tuple[int, ...], *key: Any) -> Array:
        """Return standard normals, float64, as a function of the key."""
        return generator(*key).standard_normal(shape)

    def decide(self, condition: Any, bound: bool, likely: bool | None = None) -> bool:
        """Return True if a condition on data holds.

        A plan assumes ``bound`` for memory, and for seconds ``likely``, or ``bound`` without it.
        """
        return bool(condition)

    def count(self, mask: Array) -> int:
        """Return the number of true entries of a mask; a plan assumes all."""
        return int(np.count_nonzero(mask))

    # ------------------------------------------------------------------------------ rows against centers

    def hold(self, Z: Array) -> Any:
        """Return centers (p, d) in the layout that ``block`` reads."""
        return self.loops.row_norms(Z)

    def hold_head(self, resident: Any, Z: Array) -> Any:
        """Return the leading part of a result of ``hold``, for its first centers Z."""
        return resident[: len(Z)]

    def tile_bytes(self, c: int) -> int:
        """Return bytes of a thread that predicts c outputs, beyond a panel and the weights."""
        return 0

    def compiling_bytes(self) -> int:
        """Return bytes for compilation in this process; 0 if compiled code is cached, or nothing is compiled."""
        return 0

    def held_bytes(self, p: int, d: int, dtype: Any) -> int:
        """Return bytes of the result of ``hold`` for p centers of width d."""
        return int(p * np.dtype(dtype).itemsize)

    def diagonal(self, expansion: Centered, X: Array) -> Array:
        """Return k(x, x) of every row of X, shape (n,), in X's dtype."""
        return cast(Array, expansion.kernel.diag(X))

    def block(self, expansion: Centered, X: Array, out: Array | None = None) -> Array:
        """Return k(X, Z), shape (b, p), written to ``out`` if given."""
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

    def panels(self, basis: Basis, X: Array, prepared: Any = None) -> Iterator[tuple[slice, Array]]:
        """Yield panels φ(X[rows]), each valid until the next; ``prepared`` is the token of ``begin`` for X."""
        for rows in cuts(len(X), basis.row_tile):
            yield rows, basis.block(X[rows])

    def begin(self, basis: Basis, X: Array) -> Any:
        """Evaluate the first panel of X before the weights are known; return a token, or None if that saves nothing."""
        return None

    def predict(self, basis: Basis, X: Array, W: Array) -> Array:
        """Return φ(X) W, shape (b, c)."""
        out, times = np.empty((len(X), W.shape[1]), dtype=basis.dtype), self.multiplier(W)
        for rows, phi in self.panels(basis, X):
            out[rows] = times(phi)
        return out

    def multiplier(self, W: Array) -> Callable[[Array], Array]:
        """Return a function that multiplies rows with W, which is packed once."""
        return lambda phi: phi @ W

    def panel_product(self, W: Array) -> Callable[[Array], Array]:
        """Return a function Φ → Φ W for panels Φ in host memory; W (p, c) is packed once."""
        return self.multiplier(W)

    def sums(self, p: int, c: int, dtype: Any) -> Array:
        """Return zeros of shape (p, c) in the layout of ``add_transposed``."""
        return np.zeros((p, c), dtype)

    def add_transposed(self, phi: Array, r: Array, sums: Array) -> None:
        """Add Φᵀ r to ``sums``, row by row of Φ, a panel in host memory."""
        sums += phi.T @ r

    def pull(self, basis: Basis, X: Array, W: Array, respond: Respond, outputs: int, prepared: Any = None) -> Array:
        """Return φ(X)ᵀ r with r = respond(φ(X) W, rows), shape (M, outputs), from one evaluation of φ.

        W is (M, c); if it is float64, so are the products. ``prepared`` is what ``begin`` returned for X.
        """
        g = np.zeros((basis.width, outputs), dtype=W.dtype)
        for rows, phi in self.panels(basis, X, prepared):
            g += phi.T @ respond(phi @ W, rows)
        return g

    def gradients(self, expansion: Centered, X: Array, W: Array, signs: Array | None = None) -> Array:
        """Return gradients ∇ Σ_l s_l f_l(x) of f(x) = Σ_j w_j k(x, z_j) by x, shape (b, d), in the centers' dtype.

        X is (b, d), W (p, c) in the centers' dtype; s, ``signs``, is (b, c), or None for ones. Terms of a center nearer
        than 1e-4 count as 0, because a Laplace kernel has no derivative there.
        """
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

    def values(self, basis: Basis, X: Array, then: Callable[[Array], Array] | None = None) -> Array:
        """Return φ(X), shape (n, M), by tiles in threads of this process; or the results of ``then`` for the tiles."""

        def part(rows: slice) -> Array:
            phi = basis.block(X[rows])
            return phi if then is None else then(phi)

        return np.concatenate(self.parallel(part, cuts(len(X), ROW_TILE)))

    def covariance(self, basis: Basis, X: Array, V: Array) -> Array:
        """Return ΦᵀΦ V for rows X, shape (M, k), in float64, without storing Φ."""

        def part(rows: slice) -> Array:
            phi = basis.block(X[rows]).astype(np.float64)
            return np.asarray(phi.T @ (phi @ V))

        total, rows = np.zeros_like(V), cuts(len(X), ROW_TILE)
        for group in cuts(len(rows), COVARIANCE_GROUP):
            for term in self.parallel(part, rows[group]):
                total += term
        return total

    def kernel_values(self, expansion: Centered, X: Array) -> Array:
        """Return k(X, Z), shape (n, p), by tiles in the processes that compute blocks."""
        tiles = cuts(len(X), ROW_TILE)
        return np.concatenate(list(self.imap(_block, [X[part] for part in tiles], (expansion,))))

    def kernel_matrix(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Array:
        """Return k(Z_s, Z_s) of the first s centers, symmetric to the bit, with an exact diagonal."""
        K = np.empty((s, s), dtype)
        for rows, below in self.kernel_rows(expansion, s, dtype):
            K[rows, : rows.stop] = below
        return self.mirror(K)

    def kernel_rows(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Iterator[tuple[slice, Array]]:
        """Yield tiles of rows of ``kernel_matrix``, each up to its last row's column; values in ``dtype``."""
        same, tiles = expansion.dtype == dtype, cuts(s, KERNEL_TILE)
        held = expansion if same else expansion.at(expansion.Z[:s].astype(dtype))
        for rows, below in zip(tiles, self.imap(_below, tiles, (held,)), strict=True):
            np.fill_diagonal(below[:, rows], held.kernel.diag(held.Z[rows]))
            yield rows, below

    def kernel_product(self, expansion: Centered, V: Array) -> Array:
        """Return K(Z, Z) V with an exact diagonal, shape (p, c), float64; kernel values in the centers' dtype."""
        right = self.right_factor(V.T.astype(expansion.dtype))
        shared = expansion, right, V.shape[1], expansion.kernel.diag(expansion.Z)
        return np.concatenate(list(self.imap(_product, cuts(expansion.p, expansion.row_tile), shared)))

    # ------------------------------------------------------------------------------ matrices

    def right_factor(self, B: Array) -> Any:
        """Return B (m, d) packed as a picklable right factor: ``.times(A)`` is A Bᵀ; ``.product(A, out)`` writes it."""
        return _Plain(B)

    def product(self, A: Array, B: Array) -> Array:
        """A B."""
        return np.asarray(A @ B)

    def row_squares(self, A: Array) -> Array:
        """Return Σ_j A_ij² of each row, shape (n,), in float64."""
        tiles = self.parallel(lambda rows: np.einsum("ij,ij->i", A[rows], A[rows], dtype=np.float64), cuts(len(A)))
        return np.concatenate(tiles)

    def product_t(self, U: Array, V: Array) -> Array:
        """Uᵀ V of tall U and V."""
        return np.asarray(U.T @ V)

    def symmetric_product(self, K: Array, W: Array) -> Array:
        """Return K W for few columns W and symmetric K (p, p), reading only the parts of K in ``kernel_rows``."""
        lower = np.tril(K)  # without the entries above the diagonal, which may be uninitialised
        return np.asarray(lower @ W + np.tril(lower, -1).T @ W)

    def gram(self, A: Array) -> Array:
        """A Aᵀ, shape (n, n)."""
        return np.asarray(A @ A.T)

    def add_gram(self, packed: Array, phi: Array) -> None:
        """Add the lower triangle of ΦᵀΦ to a packed triangle (``packed_size``), float64."""
        for cols, panel in packed_panels(packed, phi.shape[1]):
            panel += phi[:, cols.start :].T @ phi[:, cols]

    def gram_product(self, W: Array, B: Array, *, lower: bool = False) -> Array:
        """Return Wᵀ W B, shape (n, c), reading W (q, n) from memory once; W is lower triangular if ``lower``."""
        return np.asarray(W.T @ (W @ B))

    def place(self, W: Any) -> Any:
        """Return a packed factor in the memory (of a device) from which every step reads it."""
        return W

    def place_projection(self, W: Array, F: Array | None) -> Any:
        """Return W (p, p), lower triangular, and F (q, s), s <= p, or None, where every step reads them."""
        return W, F

    def project(self, placed: Any, g: Array) -> Array:
        """Return WᵀW g, less FᵀF g in its first s rows, shape (p, c), for a result of ``place_projection``."""
        W, F = placed
        out = self.gram_product(W, g, lower=True)
        if F is not None:
            s = F.shape[1]
            out[:s] -= self.gram_product(F, g[:s])
        return out

    def resident(self, array: Array) -> Any:
        """Return an array in the memory where the state of a training is, see ``keeps_state``."""
        return array

    def moved(self, state: Any, g: Any, rate: float, gamma: float, second: float, share: float) -> tuple[Any, Any, Any]:
        """Return α, the weights of the next gradient and the average after a step.

        ``state`` has the weights at which g, the projected gradient, was taken, α, and the average, float64, (p, c)
        each. ``rate`` is η/m, ``gamma`` γ of the momentum, ``second`` η₂/η, and ``share`` the weight of α in the
        average.
        """
        ahead, before, mean = state
        step, turn, jump = (np.asarray(number, dtype=g.dtype) for number in (rate, gamma, second))
        move = step * g
        alpha = there = ahead - move
        if gamma:
            there = alpha + turn * (alpha - before) + jump * move
        return alpha, there, mean + share * (alpha - mean)

    def on_host(self, array: Any) -> Array:
        """Return an array of a state in the memory of the process."""
        return np.asarray(array)

    def kernel_factor(self, expansion: Centered, shift: float, K: Array | None = None) -> Array:
        """Return W lower triangular with WᵀW = (K(Z, Z) + shift I)⁻¹, in the centers' dtype and in host memory.

        K(Z, Z), overwritten if given, is in float64 or the centers' dtype. A host factors it in the latter; if that
        fails, in float64. ``NumericalError`` if it is not positive definite.
        """
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
        """Return lower triangular W = L⁻¹ for A = L Lᵀ, so that A⁻¹ = Wᵀ W: (p, p), in ``dtype``; overwrites A."""
        L = self.cholesky(A)
        return np.asarray(scipy.linalg.solve_triangular(L, np.eye(len(L)), lower=True)).astype(dtype)

    def packed_factor(self, expansion: Centered, shift: float, lead: int) -> PackedFactor:
        """Return the inverse factor of K(Z, Z) + shift I, or of its PITC approximation given a lead, in 16 bits.

        Arithmetic is float32 for any dtype of the centers, except the factors of diagonal tiles in float64. The peak
        memory is ``factor_bytes``. The lead is p, or a number of whole panels. ``NumericalError`` if not positive
        definite.
        """
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
        """Return Wᵀ W B in float32, shape (p, c), reading W, or the result of ``place``, from memory once."""
        out = np.zeros(B.shape, np.float32)
        for rows, lead, numbers, scales in W.panels():
            panel_product(rows, lead, numbers, scales, B.astype(np.float32), out)
        return out

    def cholesky(self, A: Array) -> Array:
        """Factor A in place by Cholesky, from its lower triangle; ``NumericalError`` if A is not positive definite."""
        try:
            A[...] = np.linalg.cholesky(A)
        except np.linalg.LinAlgError as error:
            raise not_positive() from error
        return A

    def spd_solve(self, A: Array, B: Array) -> Array:
        """Return A⁻¹ B for positive definite A (float64), whose lower triangle is read and overwritten."""
        L = self.cholesky(A)
        return self.triangular_solve(L, self.triangular_solve(L, B, lower=True), lower=True, transposed=True)

    def condition(self, L: Array, norm: float) -> float:
        """Estimate the condition number, in the 1-norm, of A = L Lᵀ with the 1-norm ``norm``; inf if singular."""
        inverse, _ = scipy.linalg.lapack.dpocon(L.T, norm, uplo="U")  # L by rows is Lᵀ by columns
        return 1.0 / float(inverse) if inverse > 0 else float("inf")

    def orthonormal(self, A: Array, floor: float) -> tuple[Array, Array]:
        """Return independent rows (r,) of a positive semidefinite A, and upper triangular V (r, r), Vᵀ A V = I on them.

        By Cholesky factorisation with pivots: A ≈ A[:, rows] A[rows, rows]⁻¹ A[rows, :]. A (p, p), float64, is
        symmetric to the bit and contiguous, and overwritten. Pivots up to ``floor`` are rounding errors;
        ``NumericalError`` if all are.
        """
        L, pivots, rank, _ = scipy.linalg.lapack.dpstrf(A.T, tol=floor, lower=1, overwrite_a=1)
        if rank < 1 or not np.isfinite(L[0, 0]) or L[0, 0] <= 0:
            raise not_positive()
        inverse, _ = scipy.linalg.lapack.dtrtri(L[:rank, :rank], lower=1)
        return pivots[:rank] - 1, np.tril(inverse).T

    def triangular_solve(self, R: Array, B: Array, *, lower: bool, transposed: bool = False) -> Array:
        """R⁻¹ B or R⁻ᵀ B for triangular R."""
        trans: Any = "T" if transposed else "N"
        return np.asarray(scipy.linalg.solve_triangular(R, B, lower=lower, trans=trans, check_finite=False))

    def mirror(self, A: Array) -> Array:
        """Copy the lower triangle of A to the upper, in place."""
        A[...] = np.tril(A) + np.tril(A, -1).T
        return A

    def eigh(self, A: Array, B: Array | None = None, top: int | None = None) -> tuple[Array, Array]:
        """Return eigenpairs of symmetric A, or of A v = λ B v, ascending; only the largest ``top`` if given."""
        subset = None if top is None else (max(0, len(A) - top), len(A) - 1)
        values, vectors = scipy.linalg.eigh(A, B, subset_by_index=subset, check_finite=False)
        return values, vectors

    def pivoted_qr(self, A: Array) -> tuple[Array, Array]:
        """Q and R of A Π = Q R for tall A (n, k), with columns pivoted: |R_ii| falls."""
        Q, R, _ = scipy.linalg.qr(A, mode="economic", pivoting=True, check_finite=False)
        return Q, R

    def top_eigenvalue(self, matvec: Callable[[Array], Array], n: int) -> float:
        """Return the largest eigenvalue of a symmetric matrix of size n, from below, by the Lanczos method."""
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
