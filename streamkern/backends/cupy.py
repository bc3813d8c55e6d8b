"""The GPU: CuPy's arrays, streams, memory pool, cuBLAS and cuSOLVER. Nothing else in the library imports CuPy.

These lines run only where there is a GPU, so they are few: everything that can be tested without a GPU is elsewhere:
the kernels in ``cuda.py``, and the engine methods that use them in ``engine/on_device.py``. ``pytest -m gpu`` covers
this file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy
import cupyx
import numpy as np
from cupyx.scipy.linalg import solve_triangular
from numpy.typing import ArrayLike

from streamkern.backends.base import wide
from streamkern.backends.cuda import CudaBackend, as_numba, numba_stream, target
from streamkern.backends.device import COLUMNS, TURNS
from streamkern.errors import NumericalError, StorageError
from streamkern.memory import format_bytes
from streamkern.types import Array, IntArray

_SHARE = 0.9
"""Share of the card's memory for the pool, unless CUPY_GPU_MEMORY_LIMIT is set. Context and cuBLAS need the rest."""


class _Loops(CudaBackend):
    """The kernels on CuPy's arrays, in its current stream."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return cupy.empty(shape, dtype)

    def put(self, array: Any) -> Any:
        return cupy.asarray(array)

    def _seen(self, array: Any) -> Any:
        return as_numba(array)  # both use one stream; synchronising would delay every launch

    def _stream(self) -> Any:
        return numba_stream(cupy.cuda.get_current_stream().ptr)


class CupyDevice:
    """The first GPU that CUDA shows this process: ``CUDA_VISIBLE_DEVICES`` chooses it, as dask-cuda does for workers.

    One stream copies, one computes. A block is complete before it is returned, and its memory, which belongs to the
    copying stream, is released only after the gradient computed from it has been copied back, so neither stream needs
    events to wait for the other.
    """

    loops = _Loops()

    def __init__(self) -> None:
        pool = cupy.get_default_memory_pool()
        if not pool.get_limit():
            pool.set_limit(fraction=_SHARE)
        self.budget = int(pool.get_limit())
        self.name = str(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
        self._copying = cupy.cuda.Stream(non_blocking=True)
        self._computing = cupy.cuda.Stream(non_blocking=True)
        self._turns = threading.BoundedSemaphore(TURNS)
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return _here, ()

    @contextmanager
    def turn(self) -> Iterator[None]:
        if getattr(self._of_thread, "inside", False):
            yield
            return
        with self._turns, self._computing:
            self._of_thread.inside = True
            try:
                yield
            except cupy.cuda.memory.OutOfMemoryError as error:
                raise self._full(error) from error
            finally:
                self._of_thread.inside = False

    def put(self, array: Any, dtype: Any = None) -> Any:
        return cupy.asarray(array if dtype is None else np.ascontiguousarray(array, dtype=dtype))

    def take(self, array: Any) -> Array:
        return np.asarray(cupy.asnumpy(array))

    def rows(
        self,
        raw: Array,
        index: IntArray,
        *,
        scale: ArrayLike,
        offset: ArrayLike,
        ids: IntArray,
        copies: IntArray,
        noises: Sequence[tuple[int, float]],
    ) -> Any:
        stored = raw.view(np.uint8) if raw.dtype == np.bool_ else raw
        floating = np.float64 if wide(stored.dtype) else np.float32
        sent_as = np.uint8 if stored.dtype == np.uint8 else floating
        pinned = self._pinned((len(index), raw.shape[1]), sent_as)
        if stored.dtype == sent_as:
            np.take(stored, index, axis=0, out=pinned, mode="clip")
        else:
            pinned[...] = stored[index]
        here = np.arange(len(index))
        with self._copied() as done:
            sent = cupy.empty(pinned.shape, sent_as)
            sent.set(pinned, stream=self._copying)
            X = cupy.empty(pinned.shape, np.float32)
            if noises:
                (seed, sigma), *more = noises
                self.loops.assemble_noisy(
                    sent, here, X, scale=scale, offset=offset, row_ids=ids, copies=copies, seed=seed, sigma=sigma
                )
                for seed, sigma in more:
                    self.loops.add_noise(X, ids, copies=copies, seed=seed, sigma=sigma)
            else:
                self.loops.assemble(sent, here, X, scale=scale, offset=offset)
            done()
        return X

    def upload(self, array: Array) -> Any:
        pinned = self._pinned(array.shape, array.dtype)
        pinned[...] = array
        with self._copied() as done:
            sent = cupy.empty(array.shape, array.dtype)
            sent.set(pinned, stream=self._copying)
            done()
        return sent

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """Factor by cuSOLVER's Cholesky, and invert by cuBLAS's substitution a few columns at a time."""
        with cupyx.errstate(linalg="raise"):
            try:
                L = cupy.linalg.cholesky(A)
            except np.linalg.LinAlgError as error:
                raise NumericalError(
                    f"K(Z, Z) of {len(A)} centers is not positive definite.",
                    where=self.name,
                    expected="a positive definite kernel matrix",
                    remedy="check that the kernel is positive definite, or take fewer centers",
                ) from error
        p = len(L)
        W = cupy.empty((p, p), dtype)
        for start in range(0, p, COLUMNS):
            stop = min(p, start + COLUMNS)
            unit = cupy.zeros((p, stop - start), np.float64, order="F")
            unit[cupy.arange(start, stop), cupy.arange(stop - start)] = 1.0
            # L in C order is Lᵀ in Fortran order, so passing the transpose avoids a copy.
            W[:, start:stop] = solve_triangular(L.T, unit, trans="T", lower=False, overwrite_b=True)
        return W

    def describe(self) -> str:
        """Return name, memory and precision, for ``doctor``."""
        free, total = cupy.cuda.runtime.memGetInfo()
        products = "tf32, because CUPY_TF32 is set" if tf32() else "float32"
        return (
            f"{self.name}, {format_bytes(total)}, of which {format_bytes(free)} are free; a run may use "
            f"{format_bytes(self.budget)}; products in {products}; CuPy {cupy.__version__}, {target()}"
        )

    def gemm_rate(self, m: int = 8192) -> float:
        """Return floating-point operations a second of a square float32 product, the best of five."""
        A = cupy.ones((m, m), np.float32)
        best = float("inf")
        for _ in range(6):  # the first product loads cuBLAS
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            A @ A
            stop.record()
            stop.synchronize()
            best = min(best, 1e-3 * float(cupy.cuda.get_elapsed_time(start, stop)))
        return 2.0 * m**3 / best

    @contextmanager
    def _copied(self) -> Iterator[Any]:
        with self._copying:
            try:
                yield self._copying.synchronize
            except cupy.cuda.memory.OutOfMemoryError as error:
                raise self._full(error) from error

    def _pinned(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the pinned buffer of this thread, after its previous copy to the card has ended."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        held = getattr(self._of_thread, "pinned", None)
        if held is None or held.nbytes < size:
            held = self._of_thread.pinned = cupyx.empty_pinned((max(1, size),), np.uint8)
        return np.asarray(held[:size].view(dtype).reshape(shape))

    def _full(self, error: BaseException) -> StorageError:
        return StorageError(
            f"The GPU has no memory left: {error}",
            where=self.name,
            expected=f"{format_bytes(self.budget)} of free GPU memory",
            remedy="stop other programs on it, use fewer centers or a smaller batch, or --device cpu",
        )


def tf32() -> bool:
    """Return True if products of float32 are rounded to tf32, which requires ``CUPY_TF32=1``."""
    return os.environ.get("CUPY_TF32", "0") not in ("", "0")


def open_device() -> CupyDevice | str:
    """Return the GPU of this process, or the reason why it cannot be used."""
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)
    return _here() if count else "there is no device"


@cache
def _here() -> CupyDevice:
    return CupyDevice()
