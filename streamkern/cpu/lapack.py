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

_KINDS = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}


@cache
def _routine(name: str, arguments: int) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(
        get_cython_function_address("scipy.linalg.cython_lapack", name)
    )


def potrf(A: Array) -> Array:
    """Return the lower factor of A (p, p), from its lower triangle, with the bits of SciPy's; or ``LinAlgError``."""
    L, n, info = np.array(A, order="F"), ctypes.c_int(len(A)), ctypes.c_int()
    by: Callable[[Any], Any] = ctypes.byref
    _routine(_KINDS[L.dtype] + "potrf", 5)(b"L", by(n), L.ctypes, by(n), by(info))
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
    _routine(_KINDS[dtype] + "trtrs", 10)(
        b"L" if lower else b"U", b"T" if transposed else b"N", b"N", by(n), by(columns), R.ctypes, by(apart), X.ctypes,
        by(n), by(info),
    )  # fmt: skip
    if info.value:
        raise np.linalg.LinAlgError(f"the diagonal is 0 in row {info.value - 1}")
    return X
