"""LAPACK without Python's lock, since during SciPy's calls all other threads of the process wait."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg.cython_lapack  # noqa: F401  has the addresses
from numba.extending import get_cython_function_address

from streamkern.types import Array

_REALS = {np.dtype(np.float32): ("s", ctypes.c_float), np.dtype(np.float64): ("d", ctypes.c_double)}


@cache
def _routine(name: str, arguments: int) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(
        get_cython_function_address("scipy.linalg.cython_lapack", name)
    )


def potrf(A: Array) -> Array:
    """Return the lower factor of A (p, p), from its lower triangle, with the bits of SciPy's; or ``LinAlgError``."""
    L, n, info = np.array(A, order="F"), ctypes.c_int(len(A)), ctypes.c_int()
    by: Callable[[Any], Any] = ctypes.byref
    _routine(_REALS[L.dtype][0] + "potrf", 5)(b"L", by(n), L.ctypes, by(n), by(info))
    if info.value:
        raise np.linalg.LinAlgError(f"the pivot {info.value} is not positive")
    return np.tril(L)


def trtrs(R: Array, B: Array, *, lower: bool, transposed: bool = False) -> Array:
    """Return R⁻¹ B, or R⁻ᵀ B, by columns, equal to ``scipy.linalg.solve_triangular`` to the bit.

    The other triangle of R (p, p) is not read; B is (p, k) or (p,). ``LinAlgError`` if R is singular.
    """
    dtype = np.result_type(R, B)
    R, X = R.astype(dtype, copy=False), np.array(B, dtype=dtype, order="F")
    if not X.size:
        return X
    size = dtype.itemsize
    by_rows = R.strides[1] == size and R.strides[0] % size == 0 and R.strides[0] >= len(R) * size
    if not by_rows and not R.flags.f_contiguous:
        R, by_rows = np.ascontiguousarray(R), True
    if by_rows:  # for LAPACK, in column order, this is Rᵀ
        lower, transposed = not lower, not transposed
    n, columns = ctypes.c_int(len(R)), ctypes.c_int(X.size // len(X))
    apart, info = ctypes.c_int((R.strides[0] if by_rows else R.strides[1]) // size), ctypes.c_int()
    by: Callable[[Any], Any] = ctypes.byref
    _routine(_REALS[dtype][0] + "trtrs", 10)(
        b"L" if lower else b"U", b"T" if transposed else b"N", b"N", by(n), by(columns), R.ctypes, by(apart), X.ctypes,
        by(n), by(info),
    )  # fmt: skip
    if info.value:
        raise np.linalg.LinAlgError(f"the diagonal is 0 in row {info.value - 1}")
    return X


def top_eigenpairs(K: Array, k: int) -> tuple[Array, Array]:
    """Return the top k eigenpairs of a symmetric matrix, ascending, equal to ``scipy.linalg.eigh``'s to the bit.

    K (s, s) is symmetric to the bit and contiguous. Values are (m,), vectors (s, m): m is k, or less if K is not
    finite.
    """
    s, (kind, real) = len(K), _REALS[K.dtype]
    A, values = K.copy(), np.empty(s, K.dtype)
    vectors = np.empty((k, s), K.dtype)  # in LAPACK's column order
    support, found, info = np.empty(2 * k, np.intc), ctypes.c_int(), ctypes.c_int()
    n, first, unused = ctypes.c_int(s), ctypes.c_int(s - k + 1), real(0.0)
    routine = _routine(f"{kind}syevr", 21)

    def call(work: Array, integers: Array, *lengths: ctypes.c_int) -> None:
        by: Callable[[Any], Any] = ctypes.byref
        routine(
            b"V", b"I", b"L", by(n), A.ctypes, by(n), by(unused), by(unused), by(first), by(n), by(unused), by(found),
            values.ctypes, vectors.ctypes, by(n), support.ctypes, work.ctypes, by(lengths[0]), integers.ctypes,
            by(lengths[1]), by(info),
        )  # fmt: skip

    work, integers = np.empty(1, K.dtype), np.empty(1, np.intc)
    call(work, integers, ctypes.c_int(-1), ctypes.c_int(-1))  # query of the workspace lengths
    work, integers = np.empty(int(work[0]), K.dtype), np.empty(int(integers[0]), np.intc)
    call(work, integers, ctypes.c_int(len(work)), ctypes.c_int(len(integers)))
    m = found.value if info.value == 0 else 0
    return values[:m], vectors[:m].T
