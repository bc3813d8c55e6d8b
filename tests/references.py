"""Plain in-memory NumPy implementations of the published algorithms, as published.

They serve twice: as the truth the streamed solvers are tested against (in float64, on small problems) and as the
baseline they are timed against (in float32, at full size). For the second use they are written as a competent NumPy
user would write them: one GEMM a kernel block, element-wise work in place, tile by tile and on every core, no kernel
entry computed twice where the algorithm has it at hand. What they do not do is improve on the algorithm: batch size
and step come from the Nyström subsample, as in the papers.

References:
    Ma & Belkin, "Kernel machines that adapt to GPUs for effective large batch training", 2019 (EigenPro 2).
    Abedsoltan, Belkin & Pandit, "Toward large kernel models", 2023 (EigenPro 3): "the paper" below.

Nothing here imports the rest of the package, so that no fault is shared with what is tested.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

Array: TypeAlias = NDArray[Any]
IntArray: TypeAlias = NDArray[np.int64]
KernelFunction: TypeAlias = Callable[[Array, Array], Array]
EpochCallback: TypeAlias = Callable[[int, Array, float], None]
Projection: TypeAlias = Callable[[Array], Array]

_TILE_ENTRIES = 2**18  # 1 MiB of float32: the element-wise passes over a tile stay in the second-level cache
_MAX_RANK = 1000  # the released EigenPro 2 and 3 look at no more eigenpairs than this when they choose q


def laplace(X: Array, Z: Array, bandwidth: float) -> Array:
    """Laplace kernel ``exp(-||x - z|| / bandwidth)`` of rows (m, d) and centers (p, d) of one dtype: shape (m, p).

    float64 input goes through exact coordinate differences: slow, and the yardstick for tests. Any other dtype goes
    through one GEMM in that dtype: the baseline for timings. ``laplace(Z, Z, ...)`` of one array has a unit diagonal.
    """

    def finish(D: Array) -> None:
        np.sqrt(D, out=D)
        D *= -1.0 / bandwidth
        np.exp(D, out=D)

    return _radial(X, Z, finish)


def gaussian(X: Array, Z: Array, bandwidth: float) -> Array:
    """Gaussian kernel ``exp(-||x - z||^2 / (2 bandwidth^2))``; arguments and dtypes as :func:`laplace`."""

    def finish(D: Array) -> None:
        D *= -0.5 / bandwidth**2
        np.exp(D, out=D)

    return _radial(X, Z, finish)


def _radial(X: Array, Z: Array, finish: Callable[[Array], None]) -> Array:
    """Squared distances, then ``finish`` in place."""
    if X.dtype == np.float64:
        K: Array = cdist(X, Z, "sqeuclidean")
        finish(K)
        return K
    x_norms = np.einsum("ij,ij->i", X, X)[:, None]
    z_norms = np.einsum("ij,ij->i", Z, Z)
    K = X @ (-2 * Z).T

    def tile(start: int) -> None:
        D = K[start : start + rows]
        D += x_norms[start : start + rows]
        D += z_norms
        np.maximum(D, 0, out=D)  # cancellation leaves some squared distances slightly negative
        finish(D)

    rows = max(1, _TILE_ENTRIES // max(1, len(Z)))
    starts = range(0, len(K), rows)
    if len(starts) < 8:
        for start in starts:
            tile(start)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # NumPy releases the GIL inside each pass
            list(pool.map(tile, starts))
    if X is Z:
        np.fill_diagonal(K, 1)  # and others slightly positive
    return K


def nystrom_top_eigensystem(K_ss: Array, q: int) -> tuple[Array, Array, float]:
    """Top-q eigensystem of a kernel matrix (s, s) (the paper, Definition 1), in float64; ValueError unless 0 <= q < s.

    Returns ``(sigma, E, tail)``: the q largest eigenvalues in descending order, shape (q,); their eigenvectors as unit
    columns, shape (s, q); and the next eigenvalue. None is divided by s.
    """
    s = len(K_ss)
    if not 0 <= q < s:
        raise ValueError(f"q must be in [0, {s}) for a subsample of {s} rows, got {q}")
    values, vectors = scipy.linalg.eigh(
        np.asarray(K_ss, dtype=np.float64), subset_by_index=(s - q - 1, s - 1), check_finite=False
    )
    return values[:0:-1].copy(), vectors[:, :0:-1].copy(), float(values[0])


def kernel_least_squares(K_nz: Array, K_zz: Array, y: Array, ridge: float) -> Array:
    """Minimiser of ``||K_nz a - y||^2 + ridge n a^T K_zz a``, in float64.

    With the Cholesky factor ``K_zz = L L^T`` and ``b = L^T a`` it is ordinary ridge regression on the features
    ``K_nz L^-T``, solved by QR without squaring the condition number. ``ridge = 0`` is the paper's eq. 15, and needs
    n >= p. Targets are (n,) or (n, c), and weights (p,) or (p, c). LinAlgError if ``K_zz`` is not positive definite.
    """
    n, p = K_nz.shape
    y = np.asarray(y, dtype=np.float64)
    L = np.linalg.cholesky(np.asarray(K_zz, dtype=np.float64))
    features = scipy.linalg.solve_triangular(L, np.asarray(K_nz, dtype=np.float64).T, lower=True).T
    if ridge > 0:
        features = np.vstack([features, np.sqrt(ridge * n) * np.eye(p)])
        y = np.concatenate([y, np.zeros((p, *y.shape[1:]))])
    b = scipy.linalg.lstsq(features, y, lapack_driver="gelsy")[0]
    a: Array = scipy.linalg.solve_triangular(L, b, lower=True, trans="T")
    return a


def eigenpro2(
    kernel: KernelFunction,
    X: Array,
    y: Array,
    *,
    s: int = 2000,
    q: int | None = None,
    epochs: int = 10,
    batch: int | None = None,
    keep_kernel: bool = False,
    seed: int = 0,
    on_epoch: EpochCallback | None = None,
) -> Array:
    """EigenPro 2: solves ``K(X, X) a = y`` in batches (the paper, Algorithm 3); returns weights, shape (n, c).

    Arithmetic is in the dtype of the rows, the eigensystem in float64.

    Args:
        s: rows of the Nyström subsample, drawn from ``X``; at most n are taken.
        q: preconditioner level. None takes the released rule: as many eigenpairs as keep the critical batch within
            the subsample, at most 1,000.
        batch: rows a step; None takes the critical batch.
        keep_kernel: hold ``K(X, X)`` in memory, n^2 entries, instead of computing its rows in every epoch.
        on_epoch: called as ``on_epoch(epoch, a, seconds)`` after each pass: passes done, weights (not a copy), and
            seconds since the call began, set-up included and time spent in the callback not.
    """
    clock = _Clock(on_epoch)
    solver = _EigenPro2(kernel, X, s, q, batch, keep_kernel, np.random.default_rng(seed))
    a = np.zeros((len(X), y.shape[1]), dtype=X.dtype)
    targets = np.asarray(y, dtype=X.dtype)
    for epoch in range(1, epochs + 1):
        solver.sweep(a, targets)
        clock.report(epoch, a)
    return a


def eigenpro3(
    kernel: KernelFunction,
    X: Array,
    y: Array,
    Z: Array,
    *,
    s: int = 5000,
    q: int = 500,
    epochs: int = 5,
    batch: int | None = None,
    projection_epochs: int = 2,
    projection_s: int = 2000,
    projection_q: int | None = None,
    keep_kernel: bool = False,
    X_s: Array | None = None,
    seed: int = 0,
    on_epoch: EpochCallback | None = None,
    looks: int = 1,
) -> Array:
    """EigenPro 3 (the paper, Algorithm 2): preconditioned SGD, each step projected inexactly by EigenPro 2.

    The defaults are those of the released code: s = 5,000 and q = 500 for the data (Appendix D.4: q about s / 10), a
    subsample of 2,000 centers and two epochs for the projection, started from zero at every step. Two of its details
    are left out because Algorithm 3 has neither: eigenvalues of the projection's preconditioner to the power 0.95,
    and an early end of the projection at an absolute error of 1e-6.

    Where p^2 numbers fit in memory ``keep_kernel=True`` is faster at the same result, and more epochs of projection
    are then nearly free: a benchmark against this function should say which of these settings it used.

    Args that :func:`eigenpro2` has not, or that differ:
        projection_epochs: T, epochs of EigenPro 2 on ``K(Z, Z) theta = h`` in each step.
        projection_s: subsample of the projection's own preconditioner, drawn from ``Z``.
        projection_q: its level; None as in :func:`eigenpro2`.
        keep_kernel: hold ``K(Z, Z)``, p^2 entries. False is the paper's O(p) memory.
        X_s: rows of the data preconditioner, shape (s, d), in place of a random subsample of ``X``.
        looks: times an epoch that ``on_epoch`` is called, evenly spread; the last at its end.
    """
    clock = _Clock(on_epoch)
    rng = np.random.default_rng(seed)
    projector = _EigenPro2(kernel, Z, projection_s, projection_q, None, keep_kernel, rng)

    def project(h: Array) -> Array:
        theta = np.zeros_like(h)
        for _ in range(projection_epochs):
            projector.sweep(theta, h)
        return theta

    return _projected_sgd(kernel, X, y, Z, project, s, q, X_s, batch, epochs, rng, clock, looks)


def eigenpro3_exact(
    kernel: KernelFunction,
    X: Array,
    y: Array,
    Z: Array,
    *,
    s: int = 5000,
    q: int = 500,
    epochs: int = 5,
    batch: int | None = None,
    X_s: Array | None = None,
    seed: int = 0,
    on_epoch: EpochCallback | None = None,
) -> Array:
    """EigenPro 3 with exact projection (the paper, Algorithm 1) and the Nyström preconditioner of eq. 29-31.

    ``K(Z, Z)`` is factored once, in float64: O(p^2) memory. Arguments as :func:`eigenpro3`; ``batch=len(X)`` gives the
    full gradients of Algorithm 1, and then the iteration has a fixed point. As in Lemma 6 it is a *weighted* least
    squares solution, ``K(Z, X) g = K(Z, X_s) Q_s K(X_s, X) g`` with ``g = K(X, Z) a - y``. It is the plain one
    (:func:`kernel_least_squares` with ``ridge = 0``) where the rows of ``X_s`` are centers: then the preconditioner
    maps the span of the centers to itself, so it commutes with the projection and drops out of the equation.
    """
    clock = _Clock(on_epoch)
    factor = scipy.linalg.cho_factor(np.asarray(kernel(Z, Z), dtype=np.float64), lower=True, check_finite=False)

    def project(h: Array) -> Array:
        return np.asarray(scipy.linalg.cho_solve(factor, h, check_finite=False), dtype=h.dtype)

    rng = np.random.default_rng(seed)
    return _projected_sgd(kernel, X, y, Z, project, s, q, X_s, batch, epochs, rng, clock)


def _projected_sgd(
    kernel: KernelFunction,
    X: Array,
    y: Array,
    Z: Array,
    project: Projection,
    s: int,
    q: int,
    X_s: Array | None,
    batch: int | None,
    epochs: int,
    rng: np.random.Generator,
    clock: _Clock,
    looks: int = 1,
) -> Array:
    """Algorithm 2, lines 1-9; ``project(h)`` stands for line 8."""
    n = len(X)
    if X_s is None:
        X_s = X[_subsample(rng, n, s)]
    preconditioner = _Nystrom.of(kernel(X_s, X_s), q)
    m, step = _batch_and_step(preconditioner, n, batch)
    F = preconditioner.F.astype(X.dtype)
    C = kernel(Z, X_s) @ F  # line 3 up to its right factor: C F^T is the paper's C
    a = np.zeros((len(Z), y.shape[1]), dtype=X.dtype)
    starts = range(0, n, m)
    looked = {starts[len(starts) * (k + 1) // looks - 1] for k in range(looks)}
    for epoch in range(1, epochs + 1):
        order = rng.permutation(n)
        for start in starts:
            rows = order[start : start + m]
            X_m = X[rows]
            K_mz = kernel(X_m, Z)
            g = K_mz @ a
            g -= y[rows]
            h = K_mz.T @ g
            h -= C @ (F.T @ (kernel(X_s, X_m) @ g))
            a -= step * project(h)
            if start in looked:
                clock.report(epoch, a)
    return a


@dataclass(frozen=True)
class _Nystrom:
    """``Q_s = F F^T`` (the paper, eq. 30) with what sets batch and step: ``beta = max k(x, x)`` and ``tail``."""

    F: Array  # (s, q) float64
    beta: float
    tail: float  # lambda_{q+1} = sigma_{q+1} / s

    @classmethod
    def of(cls, K_ss: Array, q: int | None) -> _Nystrom:
        s = len(K_ss)
        beta = float(K_ss.diagonal().max())
        rank = min(_MAX_RANK, s - 1) if q is None else q
        sigma, E, tail = nystrom_top_eigensystem(K_ss, rank)
        if q is None:
            # Released rule: the critical batch beta / lambda_{q+1} may not exceed the subsample it was estimated from.
            within = max(0, int(np.count_nonzero(sigma >= beta)) - 1)
            sigma, E, tail = sigma[:within], E[:, :within], float(sigma[within])
        return cls(E * np.sqrt((1 - tail / sigma) / sigma), beta, tail / s)


def _batch_and_step(preconditioner: _Nystrom, n: int, batch: int | None) -> tuple[int, float]:
    """Rows a step, and the factor of the *summed* gradient (the paper's eta / m; Algorithm 3, EigenPro2_setup).

    The paper prints ``eta = beta / (2m)`` for m below the critical batch. Its code has ``m / (2 beta)``, which is
    continuous with the other case at the critical batch and is meant here.
    """
    beta, tail = preconditioner.beta, preconditioner.tail
    critical = beta / tail
    m = min(n, max(1, int(critical))) if batch is None else min(n, batch)
    if m < critical:
        return m, 1 / (2 * beta)
    return m, 0.99 / (beta + (m - 1) * tail)


class _EigenPro2:
    """Algorithm 3 with its set-up done once, for many right-hand sides."""

    def __init__(
        self,
        kernel: KernelFunction,
        X: Array,
        s: int,
        q: int | None,
        batch: int | None,
        keep_kernel: bool,
        rng: np.random.Generator,
    ) -> None:
        self._kernel, self._X, self._rng = kernel, X, rng
        self._kept = kernel(X, X) if keep_kernel else None
        self._sub = _subsample(rng, len(X), s)
        X_s = X[self._sub]
        preconditioner = _Nystrom.of(kernel(X_s, X_s), q)
        self._F = preconditioner.F.astype(X.dtype)
        self._batch, self._step = _batch_and_step(preconditioner, len(X), batch)

    def sweep(self, a: Array, y: Array) -> None:
        """One epoch on ``K(X, X) a = y``, in place on ``a``."""
        order = self._rng.permutation(len(a))
        for start in range(0, len(a), self._batch):
            rows = order[start : start + self._batch]
            K_m = self._kernel(self._X[rows], self._X) if self._kept is None else self._kept[rows]
            g = K_m @ a
            g -= y[rows]
            # X_s is part of X, so K(X_s, X_m) g is s of the entries of K(X, X_m) g: no kernel block of its own.
            correction = self._F @ (self._F.T @ (K_m.T @ g)[self._sub])
            a[rows] -= self._step * g
            a[self._sub] += self._step * correction


class _Clock:
    """Seconds of training, without those spent in the callback."""

    def __init__(self, on_epoch: EpochCallback | None) -> None:
        self._on_epoch = on_epoch
        self._begin = time.perf_counter()

    def report(self, epoch: int, a: Array) -> None:
        if self._on_epoch is not None:
            now = time.perf_counter()
            self._on_epoch(epoch, a, now - self._begin)
            self._begin += time.perf_counter() - now


def _subsample(rng: np.random.Generator, n: int, s: int) -> IntArray:
    return rng.choice(n, size=min(s, n), replace=False)
