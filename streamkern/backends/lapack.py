"""LAPACK without Python's lock: while SciPy's own calls of it work, every other thread of the process waits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg.cython_lapack  # noqa: F401  where the addresses are
from numba.extending import get_cython_function_address

from streamkern.types import Array

_REALS = {np.dtype(np.float32): ("ssyevr", ctypes.c_float), np.dtype(np.float64): ("dsyevr", ctypes.c_double)}


def top_eigenpairs(K: Array, k: int) -> tuple[Array, Array]:
    """Top k eigenpairs of a symmetric matrix, ascending: what ``scipy.linalg.eigh`` gives for that subset, bit for bit.

    Args:
        K: shape (s, s), symmetric to the bit, float32 or float64, contiguous.
        k: how many, 1 to s.

    Returns:
        Values (m,) and vectors (s, m): m is k, or less where K is not finite.
    """
    s, (name, real) = len(K), _REALS[K.dtype]
    A, values = K.copy(), np.empty(s, K.dtype)
    vectors = np.empty((k, s), K.dtype)  # columns as LAPACK has them
    support, found, info = np.empty(2 * k, np.intc), ctypes.c_int(), ctypes.c_int()
    n, first, unused = ctypes.c_int(s), ctypes.c_int(s - k + 1), real(0.0)
    routine: Callable[..., None] = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 21)(
        get_cython_function_address("scipy.linalg.cython_lapack", name)
    )

    def call(work: Array, integers: Array, *lengths: ctypes.c_int) -> None:
        by: Callable[[Any], Any] = ctypes.byref
        routine(
            b"V", b"I", b"L", by(n), A.ctypes, by(n), by(unused), by(unused), by(first), by(n), by(unused), by(found),
            values.ctypes, vectors.ctypes, by(n), support.ctypes, work.ctypes, by(lengths[0]), integers.ctypes,
            by(lengths[1]), by(info),
        )  # fmt: skip

    work, integers = np.empty(1, K.dtype), np.empty(1, np.intc)
    call(work, integers, ctypes.c_int(-1), ctypes.c_int(-1))  # queries the lengths
    work, integers = np.empty(int(work[0]), K.dtype), np.empty(int(integers[0]), np.intc)
    call(work, integers, ctypes.c_int(len(work)), ctypes.c_int(len(integers)))
    m = found.value if info.value == 0 else 0
    return values[:m], vectors[:m].T
