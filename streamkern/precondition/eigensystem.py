"""The top eigenpairs of a kernel matrix, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamkern.backends.lapack import top_eigenpairs
from streamkern.errors import NumericalError, UsageError
from streamkern.rng import generator
from streamkern.storage.records import record
from streamkern.types import Array

_KRYLOV_FROM = 1500
"""Size from which a Krylov space is cheaper than the reduction of the whole matrix, for a twelfth of its eigenpairs."""

_SHARE = 8  # the matrix is so many times larger than q, at least
_SPACE = 3  # dimension of the Krylov space, in q
_BLOCKS = 30  # of which it is made
_RESIDUAL = 1e-2  # ‖K e − σ e‖/σ that is near enough


@record
@dataclass(frozen=True, eq=False)
class Eigensystem:
    """Top eigenpairs of a symmetric positive semi-definite matrix of size s.

    Attributes:
        values: σ_1 >= ... >= σ_q, shape (q,), float64.
        vectors: E, shape (s, q), float64, orthonormal columns.
        tail: σ_{q+1}, the next eigenvalue.
    """

    values: Array
    vectors: Array
    tail: float


def top_eigensystem(K: Array, q: int, floor: float = 0.0) -> Eigensystem:
    """Top q eigenpairs of K (s, s) and the eigenvalue after them; fewer where the rest are below the floor.

    Where q is far below s they are those of K on a block Krylov space (Golub & Underwood 1977) of three times their
    number, with residuals of at most a hundredth of each eigenvalue; if that fails, the whole matrix is decomposed. On
    any space V the approximate inverse V (Vᵀ K V)⁻¹ Vᵀ is at most K⁻¹, so a preconditioned kernel stays positive.

    Args:
        K: symmetric positive semi-definite, shape (s, s). In float32 it takes half the time, and eigenpairs below
            1e-7 s of the largest are lost.
        q: how many, below s.
        floor: share of σ_1 below which the arithmetic that uses the eigenpairs resolves nothing.

    Raises:
        UsageError: q is not in [1, s).
        NumericalError: the matrix is not finite, or no eigenvalue is positive.
    """
    s = len(K)
    if not 1 <= q < s:
        raise UsageError(f"{q} eigenpairs of a matrix of size {s} were asked for.", where="q", expected=f"1 to {s - 1}")
    K = K if K.dtype == np.float32 else np.asarray(K, dtype=np.float64)
    found = (
        _on_krylov_space(np.asarray(K, dtype=np.float64), q + 1, floor)
        if s >= _KRYLOV_FROM and s >= _SHARE * q
        else None
    )
    if found is None:
        found = top_eigenpairs(np.ascontiguousarray(K), q + 1)
    values, vectors = found
    if len(values) <= q:
        raise NumericalError(
            "The kernel matrix is not finite: distances of rows overflow.",
            where="eigensystem",
            expected="finite kernel values",
            remedy="scale the features: preprocess=(sk.Standardise(),)",
        )
    values, vectors = values[::-1], vectors[:, ::-1]
    values = values.astype(np.float64)
    least = max(floor, np.finfo(K.dtype).eps * s) * float(values[0])
    rank = int(np.count_nonzero(values[:q] > least))
    if not np.isfinite(values).all() or rank == 0:
        raise NumericalError(
            "The kernel matrix has no positive eigenvalue.",
            where="eigensystem",
            expected="a positive definite kernel",
            remedy="check the kernel's parameters against the data",
        )
    # Beyond the rank that the arithmetic resolves there is nothing to precondition.
    return Eigensystem(
        values[:rank].copy(), np.ascontiguousarray(vectors[:, :rank], dtype=np.float64), max(float(values[rank]), least)
    )


def _on_krylov_space(K: Array, k: int, floor: float) -> tuple[Array, Array] | None:
    """Top k Ritz pairs of K, ascending as LAPACK's are; None where a residual above the floor is too large."""
    s = len(K)
    step = max(1, _SPACE * k // _BLOCKS)
    V, KV = (np.empty((s, step * _BLOCKS), order="F") for _ in range(2))
    block = generator("Krylov space", s, k).standard_normal((s, step))
    for start in range(0, V.shape[1], step):
        here = slice(start, start + step)
        for _ in range(2):  # once more after scaling, where little or nothing of the block was new
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
    return (values, vectors) if (residuals[needed] <= _RESIDUAL * values[needed]).all() else None
