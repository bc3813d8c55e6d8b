"""The top eigenpairs of a positive semi-definite matrix that is given by its products, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamkern.cpu import default_engine
from streamkern.defaults import MIN_RANDOMISED_ROWS, OVERSAMPLING, SVD_PRODUCTS
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


def randomized_eigensystem(
    product: Callable[[Array], Array],
    size: int,
    q: int,
    engine: Engine | None = None,
    *,
    seed: int = 0,
    floor: float = 0.0,
    name: str = "kernel matrix",
) -> Eigensystem:
    """Return the top q < size eigenpairs of H, given by its products, and the next; fewer if others are below a floor.

    Subspace iteration from normal random vectors (Halko, Martinsson & Tropp 2011, algorithm 4.4), then Rayleigh and
    Ritz: exact if q + 21 vectors span the space, else Ritz values are at most the eigenvalues. On any space V the
    approximate inverse V (Vᵀ H V)⁻¹ Vᵀ is at most H⁻¹, so a preconditioned kernel stays positive. Takes 3 arrays of
    (size, q + 21) float64.

    H, which errors call ``name``, is symmetric positive semi-definite, and ``product`` maps V to H V in float64. Below
    ``floor``, a share of σ_1, eigenvalues are rounding errors. ``NumericalError`` if no eigenvalue is positive.
    """
    if not 1 <= q < size:
        raise UsageError(
            f"{q} eigenpairs of a matrix of size {size} were requested.", where="q", expected=f"1 to {size - 1}"
        )
    k, engine = min(size, q + 1 + OVERSAMPLING), engine or default_engine()
    Y = engine.normal((size, k), "randomised svd", seed)
    for _ in range(SVD_PRODUCTS):
        Q, _ = np.linalg.qr(Y)
        Y = product(Q)
        _require_finite(Y, engine, name)
    B = Q.T @ Y
    values, vectors = engine.eigh((B + B.T) / 2)
    return _top(values, Q @ vectors[:, -q - 1 :], q, engine, floor, name)


def top_eigensystem(K: Array, q: int, engine: Engine | None = None, floor: float = 0.0) -> Eigensystem:
    """Return the top q < s eigenpairs of K (s, s), exactly for a small one, else as ``randomized_eigensystem`` does.

    K in float32 loses eigenpairs below 1e-7 s of the largest.
    """
    engine, floor = engine or default_engine(), max(floor, float(np.finfo(K.dtype).eps) * len(K))
    if len(K) >= MIN_RANDOMISED_ROWS or not 1 <= q < len(K):
        return randomized_eigensystem(product_with(K, engine), len(K), q, engine, floor=floor)
    _require_finite(K, engine, "kernel matrix")
    values, vectors = engine.eigh(K.astype(np.float64, copy=False), top=q + 1)
    return _top(values, vectors, q, engine, floor, "kernel matrix")


def _require_finite(values: Array, engine: Engine, name: str) -> None:
    if engine.decide(~np.isfinite(values).all(), bound=False):
        raise NumericalError(
            f"The {name} is not finite.",
            where="eigensystem",
            expected="finite values",
            remedy="scale the features: preprocess=(sk.Standardise(),)",
        )


def _top(values: Array, vectors: Array, q: int, engine: Engine, floor: float, name: str) -> Eigensystem:
    """Return the pairs above the floor, given ascending values and the vectors (s, q + 1) of the last of them."""
    values, vectors = values[::-1], vectors[:, ::-1]
    least = max(floor, np.finfo(np.float64).eps * len(vectors)) * float(values[0])
    rank = engine.count(values[:q] > least)
    if rank == 0:
        raise NumericalError(
            f"The {name} has no positive eigenvalue.",
            where="eigensystem",
            expected="a positive definite kernel, or features that are not all 0",
            remedy="check the parameters of the kernel or of the feature map against the data",
        )
    # Beyond the numerical rank there is nothing to precondition.
    return Eigensystem(values[:rank].copy(), vectors[:, :rank].copy(), max(float(values[rank]), least))


def product_with(K: Array, engine: Engine) -> Callable[[Array], Array]:
    """Return the function that maps V to K V, computed in the dtype of K, as float64."""
    return lambda V: engine.product(K, V.astype(K.dtype, copy=False)).astype(np.float64, copy=False)
