"""The top eigenpairs of a kernel matrix, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamkern.cpu import default_engine
from streamkern.engine import Engine
from streamkern.errors import NumericalError, UsageError
from streamkern.storage.serialize import serializable
from streamkern.types import Array


@serializable
@dataclass(frozen=True, eq=False)
class Eigensystem:
    """Top eigenpairs of a symmetric positive semi-definite matrix of size s, in float64.

    σ_1 >= ... >= σ_q are ``values`` (q,), orthonormal columns ``vectors`` (s, q), and σ_{q+1} is the ``tail``.
    """

    values: Array
    vectors: Array
    tail: float


def top_eigensystem(K: Array, q: int, engine: Engine | None = None, floor: float = 0.0) -> Eigensystem:
    """Return the top q < s eigenpairs of K (s, s) and the next eigenvalue; fewer if the rest are below the floor.

    If q is far below s, they are Ritz pairs on a block Krylov space (Golub & Underwood 1977) of three times their
    number, with residuals of at most a hundredth of each eigenvalue; if that fails, the whole matrix is decomposed. On
    any space V the approximate inverse V (Vᵀ K V)⁻¹ Vᵀ is at most K⁻¹, so a preconditioned kernel stays positive.

    K in float32 takes half the time, but loses eigenpairs below 1e-7 s of the largest. ``floor`` is the share of σ_1
    below which eigenvalues are rounding errors in the arithmetic that uses them. ``NumericalError`` if none is
    positive.
    """
    s, engine = len(K), engine or default_engine()
    if not 1 <= q < s:
        raise UsageError(f"{q} eigenpairs of a matrix of size {s} were requested.", where="q", expected=f"1 to {s - 1}")
    K = K if K.dtype == np.float32 else K.astype(np.float64, copy=False)
    values, vectors = engine.top_eigenpairs(K, q + 1, floor)
    if len(values) <= q:  # LAPACK did not find all
        raise NumericalError(
            "The kernel matrix is not finite: distances of rows overflow.",
            where="eigensystem",
            expected="finite kernel values",
            remedy="scale the features: preprocess=(sk.Standardise(),)",
        )
    values, vectors = values[::-1], vectors[:, ::-1]
    values = values.astype(np.float64)
    least = max(floor, np.finfo(K.dtype).eps * s) * float(values[0])
    rank = engine.count(values[:q] > least)
    if engine.decide(~np.isfinite(values).all(), bound=False) or rank == 0:
        raise NumericalError(
            "The kernel matrix has no positive eigenvalue.",
            where="eigensystem",
            expected="a positive definite kernel",
            remedy="check the kernel's parameters against the data",
        )
    # Beyond the numerical rank there is nothing to precondition.
    kept = vectors[:, :rank].astype(np.float64, order="C")
    return Eigensystem(values[:rank].copy(), kept, max(float(values[rank]), least))
