"""The verbs of all heavy arithmetic: rows against centers, and tall or square matrices. Solvers call nothing else.

Implementations stand side by side: ``host`` (compiled tiles, the default), ``numpy`` (the reference, which needs no
compiler), ``device`` (a GPU, by the array API) and ``meter`` (shapes only: the cost of a run, before it runs).

Promises of every implementation. Sums are taken in an order that depends on shapes alone, never on threads, so that
bits do not depend on them. Results have the dtype of what goes in unless a verb says otherwise. Matrices in float64
stay in float64. Errors are ``NumericalError`` with a remedy. An engine is bound to an executor, whose threads run its
tiles; pickled, it is unbound, and runs them one after another where it is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from streamkern.backends.base import Backend
from streamkern.backends.device import Device
from streamkern.engine.packed import PackedFactor
from streamkern.types import Array

Map = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]
"""Runs a function over items in threads of this process: ``Executor.host_map``."""

Imap = Callable[..., Iterator[Any]]
"""Runs a function over items wherever the run's blocks are computed: ``Executor.imap``."""

Respond = Callable[[Array, slice], Array]
"""(F, rows) -> r: the response of a tile of rows to its outputs F, shape (tile, c), which it may overwrite."""

TILE_BYTES = 16 << 20
"""Largest panel k(X_tile, Z) held at once by one thread, in bytes, unless a single row is larger."""

ROW_TILE = 256
CENTER_TILE = 2048
"""Rows and centers of one matrix product: enough for BLAS, and few enough that the pass after it finds it in cache."""

TILE = 256
"""Rows of a tile of a matrix: two of float64 fit the second-level cache."""

SUMS, SLAB = 8, 32
"""Sums that ``gram_product`` deals its tiles to, and columns that it takes at a time."""

MANY = 64
"""Columns from which packing the right factor of a product pays."""

NEAR = 1e-4
"""Distance up to which a derivative counts as 0: that of a Laplace kernel does not exist at r = 0."""

KERNEL_TILE = 128
"""Rows of a kernel matrix that are one task, of which a thread has two in flight."""

POWER_STEPS, POWER_TOLERANCE = 60, 1e-3
"""A power iteration ends after so many steps, or when the eigenvalue changes by less than this share of it."""


class Evaluated(Protocol):
    """Functions of a row, as engines see a ``Basis``."""

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
        """Room for panels, kept from one use to the next."""

    def block(self, X: Array, out: Array | None = None) -> Array:
        """φ(X), shape (b, M)."""

    def panels(self, X: Array, begun: Any = None) -> Iterator[tuple[slice, Array]]:
        """Panels φ(X[rows]) in turn."""


class Centered(Evaluated, Protocol):
    """A kernel against centers, as engines see an ``Expansion``."""

    kernel: Any
    Z: Array
    resident: Any

    @property
    def p(self) -> int:
        """Number of centers."""

    def at(self, Z: Array, engine: Engine | None = None) -> Centered:
        """The same kernel against other centers, on the same engine or on another."""

    def head(self, n: int) -> Centered:
        """The first n centers, which share their numbers with these."""


class TaskRunner(Protocol):
    """The part of an executor that an engine uses."""

    @property
    def overlaps(self) -> bool:
        """True if two stages of the set-up may be evaluated at a time, by threads that would wait otherwise."""

    def host_map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """``fn(item)`` in threads of this process."""

    def imap(self, fn: Callable[..., Any], items: Iterable[Any], shared: tuple[Any, ...] = ()) -> Iterator[Any]:
        """``fn(item, *shared)`` in order, wherever blocks are computed."""


class Engine(Protocol):
    """One implementation of the verbs."""

    @property
    def name(self) -> str:
        """Name of the engine in reports."""

    @property
    def loops(self) -> Backend:
        """Elementwise loops over its arrays."""

    @property
    def device(self) -> Device | None:
        """The device for the rows of a step; None for the memory of the process."""

    @property
    def overlaps(self) -> bool:
        """See ``TaskRunner.overlaps``; also whether K(Z, Z) and its factor are in the memory of the process."""

    def bound(self, executor: TaskRunner) -> Engine:
        """The same, with tiles run by an executor's threads."""

    def here(self) -> Engine:
        """The same engine with every tile in threads of this process, for the work of each step."""

    def meanwhile(self, work: Callable[[], Array] | None) -> AbstractContextManager[Callable[[], Array | None]]:
        """Evaluate in a background thread while the context runs; yields a function that returns the result.

        Without work, or where no thread would wait otherwise, nothing is begun: the function evaluates it.
        """

    # arrays, and decisions that only data allow

    def empty(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        """An array whose numbers are not set."""

    def zeros(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        """An array of zeros."""

    def normal(self, shape: tuple[int, ...], *key: Any) -> Array:
        """Standard normals, float64, a function of the key."""

    def decide(self, condition: Any, bound: bool, likely: bool | None = None) -> bool:
        """Return True if a condition on data holds; a plan assumes ``bound``, which needs the most.

        Args:
            condition: of the data.
            bound: the value for projections of memory, and of seconds too.
            likely: the value for predictions of seconds, if another.
        """

    def count(self, mask: Array) -> int:
        """Number of true entries of a mask; a plan assumes all."""

    # rows against centers

    def hold(self, Z: Array) -> Any:
        """Centers (p, d) as ``block`` reads them."""

    def hold_head(self, resident: Any, Z: Array) -> Any:
        """The first of those that ``hold`` returned, which are Z."""

    def held_bytes(self, p: int, d: int, dtype: Any) -> int:
        """Bytes of the result of ``hold`` for p centers of width d."""

    def compiling_bytes(self) -> int:
        """Bytes that compiling takes in this process; 0 where an earlier one's code is kept, or nothing compiles."""

    def diagonal(self, expansion: Centered, X: Array) -> Array:
        """k(x, x) of every row of X, shape (n,), in its dtype."""

    def block(self, expansion: Centered, X: Array, out: Array | None = None) -> Array:
        """k(X, Z), shape (b, p), written to ``out`` where given."""

    def panels(self, basis: Evaluated, X: Array, begun: Any = None) -> Iterator[tuple[slice, Array]]:
        """Panels φ(X[rows]) in turn, each valid until the next; ``begun`` is the token of ``begin`` for X."""

    def begin(self, basis: Evaluated, X: Array) -> Any:
        """Evaluate the first panel of X before the weights are known. None where nothing is gained by it."""

    def predict(self, basis: Evaluated, X: Array, W: Array) -> Array:
        """φ(X) W, shape (b, c)."""

    def pull(self, basis: Evaluated, X: Array, W: Array, respond: Respond, outputs: int, begun: Any = None) -> Array:
        """φ(X)ᵀ r with r = respond(φ(X) W), shape (M, outputs): φ(X) is evaluated once, by panels.

        With W in float64, products are taken in float64, whatever the dtype of the values.
        """

    def panel_product(self, W: Array) -> Callable[[Array], Array]:
        """Φ → Φ W for panels Φ in memory of the process and W (p, c), which is laid out for it once."""

    def sums(self, p: int, c: int, dtype: Any) -> Array:
        """Zeros of shape (p, c), or of rows of it, as ``add_transposed`` adds to them."""

    def add_transposed(self, phi: Array, r: Array, sums: Array) -> None:
        """Add Φᵀ r to ``sums``, row after row of Φ, a panel in memory of the process."""

    def gradients(self, expansion: Centered, X: Array, W: Array, signs: Array | None = None) -> Array:
        """Gradients ∇ Σ_l s_l f_l(x) of f(x) = Σ_j w_j k(x, z_j) by x, at each row of X.

        Terms of a center nearer than 1e-4 count as 0: a Laplace kernel has no derivative there.

        Args:
            expansion: kernel and centers.
            X: rows, shape (b, d).
            W: weights, shape (p, c), in the dtype of the centers.
            signs: s of each row and output, shape (b, c); None for ones.

        Returns:
            shape (b, d), in the dtype of the centers.
        """
        ...

    def values(self, basis: Evaluated, X: Array, then: Callable[[Array], Array] | None = None) -> Array:
        """φ(X), shape (n, M), by tiles in threads of this process; or the result of ``then`` for each tile."""

    def covariance(self, basis: Evaluated, X: Array, V: Array) -> Array:
        """ΦᵀΦ V of rows X, shape (M, k), in float64; Φ is never held."""

    def kernel_values(self, expansion: Centered, X: Array) -> Array:
        """k(X, Z), shape (n, p), by tiles wherever blocks are computed."""

    def kernel_matrix(self, expansion: Centered, s: int) -> Array:
        """k(Z_s, Z_s) of the first s centers in float64, symmetric to the bit, with an exact diagonal."""

    def kernel_rows(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Iterator[tuple[slice, Array]]:
        """Tiles of rows of ``kernel_matrix``, each up to its last row's column; values computed in ``dtype``."""

    def kernel_product(self, expansion: Centered, V: Array) -> Array:
        """K(Z, Z) V with an exact diagonal, shape (p, c), float64; kernel values in the dtype of the centers."""

    # tall and square matrices

    def right_factor(self, B: Array) -> Any:
        """B (m, d) as a right factor, packed: ``.times(A)`` is A Bᵀ, ``.product(A, out)`` puts it. Picklable."""

    def product(self, A: Array, B: Array) -> Array:
        """A B."""

    def row_squares(self, A: Array) -> Array:
        """Σ_j A_ij² of each row, shape (n,), in float64."""

    def product_t(self, U: Array, V: Array) -> Array:
        """Uᵀ V of tall U and V."""

    def symmetric_product(self, K: Array, W: Array) -> Array:
        """K W for symmetric K (p, p), of which only the rows of ``kernel_rows`` are looked at, and few columns of W."""

    def times_lower(self, B: Array, W: Array) -> Array:
        """B Wᵀ for lower triangular W (p, p), shape (n, p)."""

    def gram(self, A: Array) -> Array:
        """A Aᵀ, shape (n, n)."""

    def add_gram(self, packed: Array, phi: Array) -> None:
        """Add ΦᵀΦ, on its diagonal and below, to a packed triangle (``triangle.packed_size``): float64."""

    def gram_product(self, W: Any, B: Array, *, lower: bool = False) -> Array:
        """Wᵀ W B, shape (n, c), reading W (q, n) from memory once. W may be a result of ``place``."""

    def place(self, W: Any) -> Any:
        """A matrix, or a packed factor, as it is read in every step: on a device, there."""

    def kernel_factor(self, expansion: Centered, shift: float, K: Array | None = None) -> Array:
        """W lower triangular with WᵀW = (K(Z, Z) + shift I)⁻¹, in the centers' dtype and in memory of the process.

        Args:
            expansion: kernel and centers.
            shift: added to the diagonal.
            K: K(Z, Z) in float64 where it is known; it is used up.

        Raises:
            NumericalError: K(Z, Z) + shift I is not positive definite.
        """

    def packed_factor(self, expansion: Centered, shift: float, lead: int) -> PackedFactor:
        """The inverse factor of K(Z, Z) + shift I in 16 bits, or that of its PITC approximation given a lead.

        Kernel values and all arithmetic are in float32, whatever the dtype of the centers, and panels' own factors in
        float64. At its peak it holds ``factor_bytes``.

        Args:
            expansion: kernel and centers.
            shift: added to the diagonal.
            lead: p, or a number of whole panels.

        Raises:
            NumericalError: K(Z, Z) + shift I is not positive definite.
        """

    def packed_product(self, W: Any, B: Array) -> Array:
        """Wᵀ W B in float32, shape (p, c), reading W, or the result of ``place``, from memory once."""

    def times_packed(self, B: Array, W: PackedFactor) -> Array:
        """B Wᵀ in float32, shape (n, p)."""

    def cholesky(self, A: Array) -> Array:
        """Lower factor of A, of which the lower triangle is read, in place and in its dtype.

        Raises:
            NumericalError: A is not positive definite.
        """

    def spd_solve(self, A: Array, B: Array) -> Array:
        """A⁻¹ B for symmetric positive definite A (float64), of which the lower triangle is read and overwritten.

        Raises:
            NumericalError: A is not positive definite.
        """

    def condition(self, L: Array, norm: float) -> float:
        """Estimate of the condition number, in the 1-norm, of A = L Lᵀ whose 1-norm is ``norm``; inf if singular."""

    def orthonormal(self, A: Array, floor: float) -> tuple[Array, Array]:
        """Rows of a positive semidefinite A that are independent, and V with Vᵀ A V = I on them.

        By Cholesky factorisation with pivots: A ≈ A[:, rows] A[rows, rows]⁻¹ A[rows, :].

        Args:
            A: shape (p, p), float64, symmetric to the bit and contiguous; it is used up.
            floor: pivots up to this are taken for rounding errors.

        Returns:
            The rows, shape (r,), and V, upper triangular, shape (r, r).

        Raises:
            NumericalError: no pivot is larger than the floor.
        """

    def triangular_solve(self, R: Array, B: Array, *, lower: bool, transposed: bool = False) -> Array:
        """R⁻¹ B or R⁻ᵀ B for triangular R."""

    def mirror(self, A: Array) -> Array:
        """A with its lower triangle above the diagonal too, in place."""

    def top_eigenpairs(self, K: Array, k: int, floor: float) -> tuple[Array, Array]:
        """Top k eigenpairs of symmetric K (s, s), ascending: values (m,) and vectors (s, m), m < k if not finite.

        Where k is far below s they are Ritz pairs on a Krylov space, with residuals of at most a hundredth of each
        eigenvalue above the share ``floor`` of the largest.
        """

    def eigh(self, A: Array, B: Array | None = None, top: int | None = None) -> tuple[Array, Array]:
        """Eigenpairs of symmetric A, ascending, or of A v = λ B v; of the largest ``top`` where given."""

    def pivoted_qr(self, A: Array) -> tuple[Array, Array]:
        """Q and R of A Π = Q R for tall A (n, k), with columns pivoted: |R_ii| falls."""

    def top_eigenvalue(self, matvec: Callable[[Array], Array], n: int) -> float:
        """Largest eigenvalue of a matrix of size n by the power method; a plan assumes a declared one."""
