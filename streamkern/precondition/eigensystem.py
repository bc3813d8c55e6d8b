"""The top eigenpairs of a kernel matrix, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from streamkern.errors import NumericalError, UsageError
from streamkern.storage.records import record
from streamkern.types import Array


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

    Args:
        K: symmetric positive semi-definite, shape (s, s).
        q: how many, below s.
        floor: share of σ_1 below which the arithmetic that uses the eigenpairs resolves nothing.

    Raises:
        UsageError: q is not in [1, s).
        NumericalError: the matrix is not finite, or no eigenvalue is positive.
    """
    s = len(K)
    if not 1 <= q < s:
        raise UsageError(f"{q} eigenpairs of a matrix of size {s} were asked for.", where="q", expected=f"1 to {s - 1}")
    values, vectors = scipy.linalg.eigh(
        np.asarray(K, dtype=np.float64), subset_by_index=(s - q - 1, s - 1), check_finite=False
    )
    if len(values) <= q:
        raise NumericalError(
            "The kernel matrix is not finite: distances of rows overflow.",
            where="eigensystem",
            expected="finite kernel values",
            remedy="scale the features: preprocess=(sk.Standardise(),)",
        )
    values, vectors = values[::-1], vectors[:, ::-1]
    least = max(floor, np.finfo(np.float64).eps * s) * float(values[0])
    rank = int(np.count_nonzero(values[:q] > least))
    if not np.isfinite(values).all() or rank == 0:
        raise NumericalError(
            "The kernel matrix has no positive eigenvalue.",
            where="eigensystem",
            expected="a positive definite kernel",
            remedy="check the kernel's parameters against the data",
        )
    # Beyond the rank that the arithmetic resolves there is nothing to precondition.
    return Eigensystem(values[:rank].copy(), np.ascontiguousarray(vectors[:, :rank]), max(float(values[rank]), least))
