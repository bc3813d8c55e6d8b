"""The engine's protocol: all heavy arithmetic of solvers, on rows and centers and on tall or square matrices.

The implementations are ``host`` (compiled tiles, the default), ``numpy`` (the reference), ``device`` (a GPU, by the
array API) and ``meter`` (shapes only: the cost of a run, before it runs).

Promises of each: the order of sums depends on shapes alone, so that threads do not change bits. Results have the dtype
of the arguments unless a method says otherwise; float64 stays float64. Errors are ``NumericalError`` with a remedy. An
engine is bound to an executor, whose threads run its tiles; an unpickled one is unbound, and runs them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np

from streamkern.engine.device import Device
from streamkern.engine.elementwise import Loops
from streamkern.engine.quantised_factor import PackedFactor
from streamkern.types import Array

R = TypeVar("R")

Map = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""A function that maps over items in threads of this process: ``Executor.host_map``."""

Imap = Callable[..., Iterator[Any]]
"""A function that maps over items in the processes that compute blocks: ``Executor.imap``."""

Respond = Callable[[Array, slice], Array]
"""A function (F, rows) -> r from a tile's outputs F, shape (tile, c), which it may overwrite, to its response r."""

TILE_BYTES = 16 << 20
"""Bytes of the largest panel k(X_tile, Z) of a thread, unless a single row is larger."""

ROW_TILE = 256
CENTER_TILE = 2048
"""Rows and centers of one matrix product: enough for BLAS, and few enough to stay in cache for the next pass."""

TILE = 256
"""Rows of a tile of a matrix: two of float64 fit the second-level cache."""

SUMS, SLAB = 8, 32
"""Number of partial sums in ``gram_product``, and columns it processes at once."""

MANY = 64
"""Number of columns from which packing the right factor of a product is faster."""

COVARIANCE_GROUP = 4
"""Products of a covariance's tiles in memory at once."""

KERNEL_TILE = 128
"""Rows of a kernel matrix in one task; each thread has two tasks at a time."""


class Evaluated(Protocol):
    """Functions of a row, as engines see a ``Basis``."""

    engine: Any

    @property
    def width(self) -> int:
        """Number M of functions."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""

    @property
    def row_tile(self) -> int:
        """Rows of one panel."""

    @property
    def buffers(self) -> list[Array]:
        """Reusable memory for panels."""

    def block(self, X: Array, out: Array | None = None) -> Array:
        """Return φ(X), shape (b, M)."""


class Centered(Evaluated, Protocol):
    """A kernel against centers, as engines see an ``Expansion``."""

    kernel: Any
    Z: Array
    resident: Any

    @property
    def p(self) -> int:
        """Number of centers."""

    def at(self, Z: Array, engine: Engine | None = None) -> Centered:
        """Return the same kernel with other centers, on the same engine or another."""

    def head(self, n: int) -> Centered:
        """Return the expansion of the first n centers, which share their memory."""


class TaskRunner(Protocol):
    """The part of an executor that an engine uses."""

    @property
    def overlaps(self) -> bool:
        """True if two stages of the set-up may run concurrently, on threads that would otherwise wait."""

    @property
    def in_process(self) -> bool:
        """True if this process computes blocks."""

    def host_map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Return ``fn(item)`` for all items, computed in threads of this process."""

    def imap(self, fn: Callable[..., Any], items: Iterable[Any], shared: tuple[Any, ...] = ()) -> Iterator[Any]:
        """``fn(item, *shared)`` in order, wherever blocks are computed."""


class Engine(Protocol):
    """An implementation of the heavy arithmetic."""

    @property
    def name(self) -> str:
        """Name of the engine in reports."""

    @property
    def loops(self) -> Loops:
        """Elementwise loops over its arrays."""

    @property
    def device(self) -> Device | None:
        """The device for the rows of a step; None for the memory of the process."""

    @property
    def keeps_state(self) -> bool:
        """True if the state of a training lies in a device's memory: all blocks are computed there, by this process."""

    @property
    def overlaps(self) -> bool:
        """See ``TaskRunner.overlaps``; also whether K(Z, Z) and its factor are in the memory of the process."""

    def bound(self, executor: TaskRunner) -> Engine:
        """Return the same engine with tiles run by an executor's threads."""

    def here(self) -> Engine:
        """Return the same engine with all tiles in threads of this process, for the work of each step."""

    def meanwhile(self, work: Callable[[], R] | None) -> AbstractContextManager[Callable[[], R | None]]:
        """Evaluate in a background thread while the context runs; yields a function that returns the result.

        Without work, or if no thread would otherwise wait, that function evaluates the work.
        """

    # arrays, and decisions that only data allow

    def empty(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        """An array whose numbers are not set."""

    def zeros(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        """An array of zeros."""

    def normal(self, shape: tuple[int, ...], *key: Any) -> Array:
        """Return standard normals, float64, as a function of the key."""

    def decide(self, condition: Any, bound: bool, likely: bool | None = None) -> bool:
        """Return True if a condition on data holds.

        A plan assumes ``bound`` for memory, and for seconds ``likely``, or ``bound`` without it.
        """

    def count(self, mask: Array) -> int:
        """Return the number of true entries of a mask; a plan assumes all."""

    # rows against centers

    def hold(self, Z: Array) -> Any:
        """Return centers (p, d) in the layout that ``block`` reads."""

    def hold_head(self, resident: Any, Z: Array) -> Any:
        """Return the leading part of a result of ``hold``, for its first centers Z."""

    def held_bytes(self, p: int, d: int, dtype: Any) -> int:
        """Return bytes of the result of ``hold`` for p centers of width d."""

    def tile_bytes(self, c: int) -> int:
        """Return bytes of a thread that predicts c outputs, beyond a panel and the weights."""

    def compiling_bytes(self) -> int:
        """Return bytes for compilation in this process; 0 if compiled code is cached, or nothing is compiled."""

    def diagonal(self, expansion: Centered, X: Array) -> Array:
        """Return k(x, x) of every row of X, shape (n,), in X's dtype."""

    def block(self, expansion: Centered, X: Array, out: Array | None = None) -> Array:
        """Return k(X, Z), shape (b, p), written to ``out`` if given."""

    def panels(self, basis: Evaluated, X: Array, prepared: Any = None) -> Iterator[tuple[slice, Array]]:
        """Yield panels φ(X[rows]), each valid until the next; ``prepared`` is the token of ``begin`` for X."""

    def begin(self, basis: Evaluated, X: Array) -> Any:
        """Evaluate the first panel of X before the weights are known; return a token, or None if that saves nothing."""

    def predict(self, basis: Evaluated, X: Array, W: Array) -> Array:
        """Return φ(X) W, shape (b, c)."""

    def pull(self, basis: Evaluated, X: Array, W: Array, respond: Respond, outputs: int, prepared: Any = None) -> Array:
        """Return φ(X)ᵀ r with r = respond(φ(X) W, rows), shape (M, outputs), from one evaluation of φ.

        W is (M, c); if it is float64, so are the products. ``prepared`` is what ``begin`` returned for X.
        """

    def panel_product(self, W: Array) -> Callable[[Array], Array]:
        """Return a function Φ → Φ W for panels Φ in host memory; W (p, c) is packed once."""

    def sums(self, p: int, c: int, dtype: Any) -> Array:
        """Return zeros of shape (p, c) in the layout of ``add_transposed``."""

    def add_transposed(self, phi: Array, r: Array, sums: Array) -> None:
        """Add Φᵀ r to ``sums``, row by row of Φ, a panel in host memory."""

    def gradients(self, expansion: Centered, X: Array, W: Array, signs: Array | None = None) -> Array:
        """Return gradients ∇ Σ_l s_l f_l(x) of f(x) = Σ_j w_j k(x, z_j) by x, shape (b, d), in the centers' dtype.

        X is (b, d), W (p, c) in the centers' dtype; s, ``signs``, is (b, c), or None for ones. Terms of a center nearer
        than 1e-4 count as 0, because a Laplace kernel has no derivative there.
        """
        ...

    def values(self, basis: Evaluated, X: Array, then: Callable[[Array], Array] | None = None) -> Array:
        """Return φ(X), shape (n, M), by tiles in threads of this process; or the results of ``then`` for the tiles."""

    def covariance(self, basis: Evaluated, X: Array, V: Array) -> Array:
        """Return ΦᵀΦ V for rows X, shape (M, k), in float64, without storing Φ."""

    def kernel_values(self, expansion: Centered, X: Array) -> Array:
        """Return k(X, Z), shape (n, p), by tiles in the processes that compute blocks."""

    def kernel_matrix(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Array:
        """Return k(Z_s, Z_s) of the first s centers, symmetric to the bit, with an exact diagonal."""

    def kernel_rows(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Iterator[tuple[slice, Array]]:
        """Yield tiles of rows of ``kernel_matrix``, each up to its last row's column; values in ``dtype``."""

    def kernel_product(self, expansion: Centered, V: Array) -> Array:
        """Return K(Z, Z) V with an exact diagonal, shape (p, c), float64; kernel values in the centers' dtype."""

    # tall and square matrices

    def right_factor(self, B: Array) -> Any:
        """Return B (m, d) packed as a picklable right factor: ``.times(A)`` is A Bᵀ; ``.product(A, out)`` writes it."""

    def product(self, A: Array, B: Array) -> Array:
        """A B."""

    def row_squares(self, A: Array) -> Array:
        """Return Σ_j A_ij² of each row, shape (n,), in float64."""

    def product_t(self, U: Array, V: Array) -> Array:
        """Uᵀ V of tall U and V."""

    def symmetric_product(self, K: Array, W: Array) -> Array:
        """Return K W for few columns W and symmetric K (p, p), reading only the parts of K in ``kernel_rows``."""

    def times_lower(self, B: Array, W: Array) -> Array:
        """B Wᵀ for lower triangular W (p, p), shape (n, p)."""

    def gram(self, A: Array) -> Array:
        """A Aᵀ, shape (n, n)."""

    def add_gram(self, packed: Array, phi: Array) -> None:
        """Add the lower triangle of ΦᵀΦ to a packed triangle (``packed_size``), float64."""

    def gram_product(self, W: Any, B: Array, *, lower: bool = False) -> Array:
        """Wᵀ W B, shape (n, c), reading W (q, n) from memory once. W may be a result of ``place``."""

    def place(self, W: Any) -> Any:
        """Return a matrix, or a packed factor, in the memory (of a device) from which every step reads it."""

    def place_projection(self, W: Array, F: Array | None) -> Any:
        """Return W (p, p), lower triangular, and F (q, s), s <= p, or None, where every step reads them."""

    def project(self, placed: Any, g: Array) -> Array:
        """Return WᵀW g, less FᵀF g in its first s rows, shape (p, c), for a result of ``place_projection``."""

    def resident(self, array: Array) -> Any:
        """Return an array in the memory where the state of a training is, see ``keeps_state``."""

    def on_host(self, array: Any) -> Array:
        """Return an array of a state in the memory of the process."""

    def moved(self, state: Any, g: Any, rate: float, gamma: float, second: float, share: float) -> tuple[Any, Any, Any]:
        """Return α, the weights of the next gradient and the average after a step.

        ``state`` has the weights at which g, the projected gradient, was taken, α, and the average, float64, (p, c)
        each. ``rate`` is η/m, ``gamma`` γ of ``Momentum``, ``second`` η₂/η, and ``share`` the weight of α in the
        average.
        """

    def kernel_factor(self, expansion: Centered, shift: float, K: Array | None = None) -> Array:
        """Return W lower triangular with WᵀW = (K(Z, Z) + shift I)⁻¹, in the centers' dtype and in host memory.

        K(Z, Z), overwritten if given, is in float64 or the centers' dtype. A host factors it in the latter; if that
        fails, in float64. ``NumericalError`` if it is not positive definite.
        """

    def packed_factor(self, expansion: Centered, shift: float, lead: int) -> PackedFactor:
        """Return the inverse factor of K(Z, Z) + shift I, or of its PITC approximation given a lead, in 16 bits.

        Arithmetic is float32 for any dtype of the centers, except the factors of diagonal tiles in float64. The peak
        memory is ``factor_bytes``. The lead is p, or a number of whole panels. ``NumericalError`` if not positive
        definite.
        """

    def packed_product(self, W: Any, B: Array) -> Array:
        """Return Wᵀ W B in float32, shape (p, c), reading W, or the result of ``place``, from memory once."""

    def times_packed(self, B: Array, W: PackedFactor) -> Array:
        """B Wᵀ in float32, shape (n, p)."""

    def cholesky(self, A: Array) -> Array:
        """Factor A in place by Cholesky, from its lower triangle; ``NumericalError`` if A is not positive definite."""

    def spd_solve(self, A: Array, B: Array) -> Array:
        """Return A⁻¹ B for positive definite A (float64), whose lower triangle is read and overwritten."""

    def condition(self, L: Array, norm: float) -> float:
        """Estimate the condition number, in the 1-norm, of A = L Lᵀ with the 1-norm ``norm``; inf if singular."""

    def orthonormal(self, A: Array, floor: float) -> tuple[Array, Array]:
        """Return independent rows (r,) of a positive semidefinite A, and upper triangular V (r, r), Vᵀ A V = I on them.

        By Cholesky factorisation with pivots: A ≈ A[:, rows] A[rows, rows]⁻¹ A[rows, :]. A (p, p), float64, is
        symmetric to the bit and contiguous, and overwritten. Pivots up to ``floor`` are rounding errors;
        ``NumericalError`` if all are.
        """

    def triangular_solve(self, R: Array, B: Array, *, lower: bool, transposed: bool = False) -> Array:
        """R⁻¹ B or R⁻ᵀ B for triangular R."""

    def mirror(self, A: Array) -> Array:
        """Copy the lower triangle of A to the upper, in place."""

    def top_eigenpairs(self, K: Array, k: int, floor: float) -> tuple[Array, Array]:
        """Return top k eigenpairs of symmetric K (s, s), ascending: values (m,), vectors (s, m); m < k if not finite.

        If k is far below s, they are Ritz pairs on a Krylov space, whose residuals are at most a hundredth of each
        eigenvalue above the share ``floor`` of the largest.
        """

    def eigh(self, A: Array, B: Array | None = None, top: int | None = None) -> tuple[Array, Array]:
        """Return eigenpairs of symmetric A, or of A v = λ B v, ascending; only the largest ``top`` if given."""

    def pivoted_qr(self, A: Array) -> tuple[Array, Array]:
        """Q and R of A Π = Q R for tall A (n, k), with columns pivoted: |R_ii| falls."""

    def top_eigenvalue(self, matvec: Callable[[Array], Array], n: int) -> float:
        """Return the largest eigenvalue of a symmetric matrix of size n, from below, by the Lanczos method."""


class InMemory:
    """What engines share whose arrays lie in the memory of the process."""

    device: Device | None = None
    keeps_state = False
    gram_product: Callable[..., Array]

    def place(self, W: Any) -> Any:
        return W

    def place_projection(self, W: Array, F: Array | None) -> Any:
        return W, F

    def project(self, placed: Any, g: Array) -> Array:
        W, F = placed
        out = self.gram_product(W, g, lower=True)
        if F is not None:
            s = F.shape[1]
            out[:s] -= self.gram_product(F, g[:s])
        return out

    def resident(self, array: Array) -> Any:
        return array

    def moved(self, state: Any, g: Any, rate: float, gamma: float, second: float, share: float) -> tuple[Any, Any, Any]:
        ahead, before, mean = state
        step, turn, jump = (np.asarray(number, dtype=g.dtype) for number in (rate, gamma, second))
        move = step * g
        alpha = there = ahead - move
        if gamma:
            there = alpha + turn * (alpha - before) + jump * move
        return alpha, there, mean + share * (alpha - mean)
