"""The GPU: CuPy's arrays, streams, memory pool, cuBLAS and cuSOLVER. Nothing else in the library imports CuPy.

Without a GPU the tests run these lines on a stand-in for CuPy, with the loops compiled for the host; ``pytest -m gpu``
runs them on a card.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import cupy
import cupyx
import numpy as np
from cupyx.scipy.linalg import solve_triangular
from numpy.typing import ArrayLike

from streamkern.engine.device import COLUMNS, TURNS, Change
from streamkern.engine.elementwise import wide
from streamkern.engine.reference import not_positive
from streamkern.errors import StorageError
from streamkern.gpu.cuda_source import STORED, Definitions, options, source
from streamkern.gpu.loops import CudaLoops
from streamkern.memory import format_bytes
from streamkern.types import Array, IntArray

_PIECE = 64 << 20
"""Bytes of a copy between host and device: a larger array goes in pieces through two pinned buffers of this size."""

_MEASURED = frozenset({"90"})
"""Compute capabilities of the cards in docs/gpu.md, on which products of split rows are faster, and as accurate."""


class _Loops(CudaLoops):
    def __init__(self) -> None:
        self._kernels: dict[tuple[Any, ...], Callable[..., None]] = {}
        self._counters: Any = None

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return cupy.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return cupy.zeros(shape, dtype)

    def put(self, array: Any) -> Any:
        return cupy.asarray(array)

    def launch(
        self, file: str, definitions: Definitions, kernel: str, grid: tuple[int, int], block: tuple[int, int], args: Any
    ) -> None:
        run = self._kernels.get((file, definitions, kernel))
        if run is None:
            module = cupy.RawModule(code=source(file), options=options(definitions))
            run = self._kernels[file, definitions, kernel] = module.get_function(kernel)
        run(grid, block, tuple(np.uintp(0) if arg is None else arg for arg in args))

    def _arrived(self, blocks: int) -> Any:
        if self._counters is None or len(self._counters) < blocks:
            self._counters = cupy.zeros(blocks, np.uint32)
        return self._counters


class _Number:
    """The sum of arrays of the device, copied to the host without waiting for it."""

    def __init__(self, parts: Sequence[Any], stream: Any) -> None:
        self._parts = [cupyx.empty_pinned(part.shape, part.dtype) for part in parts]
        for part, there in zip(parts, self._parts, strict=True):
            part.get(stream=stream, out=there, blocking=False)
        self._copied = stream.record()

    def __float__(self) -> float:
        self._copied.synchronize()
        return float(sum(float(part.sum()) for part in self._parts))


class _Slot:
    """A pinned buffer, the device's copy of it, and the events between which each of them is in use."""

    def __init__(self, size: int) -> None:
        self.pinned, self.sent = cupyx.empty_pinned((size,), np.uint8), cupy.empty((size,), np.uint8)
        self.copied: Any = None
        self.used: Any = None


class CupyDevice:
    """The first GPU that CUDA shows this process: ``CUDA_VISIBLE_DEVICES`` chooses it, as dask-cuda does for workers.

    One stream computes, and allocates everything, so that no thread waits for freed memory: it is used again in the
    stream's order. Another one copies rows that are on the host, between two events.
    """

    def __init__(self) -> None:
        self.loops = _Loops()
        pool = cupy.get_default_memory_pool()
        free, _ = cupy.cuda.runtime.memGetInfo()
        if not pool.get_limit():  # CUPY_GPU_MEMORY_LIMIT is not set; cuBLAS needs the rest
            pool.set_limit(size=int(0.9 * (free + pool.total_bytes())))
        self.budget = int(pool.get_limit())
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        self.name = str(properties["name"].decode())
        self.measured = f"{properties['major']}{properties['minor']}" in _MEASURED
        self.splits = self.measured and not tf32()
        self._copying = cupy.cuda.Stream(non_blocking=True)
        self._computing = cupy.cuda.Stream(non_blocking=True)
        self._turns = threading.BoundedSemaphore(TURNS)
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return _here, ()

    @property
    def peak_bytes(self) -> int:
        return int(cupy.get_default_memory_pool().total_bytes())

    @contextmanager
    def turn(self) -> Iterator[None]:
        if getattr(self._of_thread, "inside", False):
            yield
            return
        with self._turns, self._stream():
            self._of_thread.inside = True
            try:
                yield
            finally:
                self._of_thread.inside = False

    @contextmanager
    def _stream(self) -> Iterator[None]:
        with self._computing:
            try:
                yield
            except cupy.cuda.memory.OutOfMemoryError as error:
                raise StorageError(
                    f"The GPU has no memory left: {error}",
                    where=self.name,
                    expected=f"{format_bytes(self.budget)} of free GPU memory",
                    remedy="stop other programs on it, use fewer centers or a smaller batch, or --device cpu",
                ) from error

    # ------------------------------------------------------------------------------------------------ copies

    def put(self, array: Any, dtype: Any = None) -> Any:
        with self._stream():
            if isinstance(array, cupy.ndarray):
                return array if dtype is None or array.dtype == dtype else array.astype(dtype)
            array = np.ascontiguousarray(array, dtype=dtype)
            if array.nbytes <= _PIECE:
                return cupy.asarray(array)
            there = cupy.empty(array.shape, array.dtype)
            flat, host, turns = there.reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8), self._pieces()
            for start in range(0, array.nbytes, _PIECE):
                pinned, copied = next(turns)
                part = slice(start, min(array.nbytes, start + _PIECE))
                pinned[: part.stop - part.start] = host[part]
                flat[part].set(pinned[: part.stop - part.start], stream=self._computing)
                copied.record(self._computing)
            return there

    def take(self, array: Any) -> Array:
        with self._stream():
            if array.nbytes <= _PIECE:
                return np.asarray(cupy.asnumpy(array))
            array = cupy.ascontiguousarray(array)
            here: Array = np.empty(array.shape, array.dtype)
            flat, host, turns = array.reshape(-1).view(np.uint8), here.reshape(-1).view(np.uint8), self._pieces()
            waiting: list[tuple[slice, Any, Any]] = []
            for start in range(0, array.nbytes, _PIECE):
                pinned, copied = next(turns)
                for done in waiting[:-1]:
                    _arrive(host, *done)
                waiting = waiting[-1:]
                part = slice(start, min(array.nbytes, start + _PIECE))
                flat[part].get(stream=self._computing, out=pinned[: part.stop - part.start], blocking=False)
                copied.record(self._computing)
                waiting.append((part, pinned, copied))
            for done in waiting:
                _arrive(host, *done)
            return here

    def _pieces(self) -> Iterator[tuple[Any, Any]]:
        """Yield two pinned buffers in turns, each after the copy that it was last used for."""
        held = getattr(self._of_thread, "pieces", None)
        if held is None:
            held = [(cupyx.empty_pinned((_PIECE,), np.uint8), cupy.cuda.Event(disable_timing=True)) for _ in range(2)]
            self._of_thread.pieces = held
        number = 0
        while True:
            pinned, copied = held[number % 2]
            copied.synchronize()
            yield pinned, copied
            number += 1

    def number(self, parts: Sequence[Any]) -> Any:
        return _Number(parts, self._computing)

    # ------------------------------------------------------------------------------------------------- rows

    def rows(
        self,
        raw: Any,
        index: IntArray,
        *,
        scale: ArrayLike,
        offset: ArrayLike,
        ids: IntArray,
        copies: IntArray,
        noise: tuple[int, float] | None = None,
        then: Sequence[Change] = (),
    ) -> Any:
        with self._stream():
            here = isinstance(raw, np.ndarray)
            given = (ids, copies) if here or index is ids else (ids, copies, index)
            numbers = cupy.asarray(np.stack([np.asarray(each, dtype=np.int64) for each in given]))
            at, slot = numbers[0 if index is ids else -1], None
            if here:
                (raw, slot), at = self._sent(raw, index), None
            X = cupy.empty((len(index), raw.shape[1]), np.float32)
            if noise is not None:
                how = {"seed": noise[0], "sigma": noise[1], "row_ids": numbers[0], "copies": numbers[1]}
                self.loops.assemble_noisy(raw, at, X, scale=scale, offset=offset, **how)
            else:
                self.loops.assemble(raw, at, X, scale=scale, offset=offset)
            for change in then:
                X = change(self.loops, X, numbers[0], numbers[1])
            if slot is not None:
                slot.used = self._computing.record()
            return X

    def _sent(self, raw: Array, index: IntArray) -> tuple[Any, _Slot]:
        """Return stored rows on the device, and the slot that holds them until it is used again."""
        stored = raw.view(np.uint8) if raw.dtype == np.bool_ else raw
        sent_as = stored.dtype if stored.dtype.name in STORED else np.dtype("f8" if wide(stored.dtype) else "f4")
        shape, size = (len(index), raw.shape[1]), len(index) * raw.shape[1] * sent_as.itemsize
        slot = self._slot(size)
        pinned = np.asarray(slot.pinned[:size]).view(sent_as).reshape(shape)
        if stored.dtype == sent_as:
            np.take(stored, index, axis=0, out=pinned, mode="clip")
        else:
            pinned[...] = stored[index]
        there = slot.sent[:size]
        if slot.used is not None:
            self._copying.wait_event(slot.used)
        there.set(slot.pinned[:size], stream=self._copying)
        slot.copied = self._copying.record()
        self._computing.wait_event(slot.copied)
        return there.view(sent_as).reshape(shape), slot

    def _slot(self, size: int) -> _Slot:
        """Return a slot of this thread, of two in turns, once its pinned buffer may be written."""
        slots = getattr(self._of_thread, "slots", None)
        if slots is None:
            slots = self._of_thread.slots = [None, None]
        slots.reverse()
        slot: _Slot | None = slots[0]
        if slot is not None and slot.copied is not None:
            slot.copied.synchronize()
        if slot is None or len(slot.sent) < size:
            slot = slots[0] = _Slot(max(1, size))
            self._computing.synchronize()  # the new memory may have been another array's, in the order of this stream
        return slot

    # --------------------------------------------------------------------------------------------- matrices

    def half_product(self, A: Any, B: Any) -> Any:
        """Multiply by cuBLAS, summing in float32; in its column order A Bᵀ is (B Aᵀ)ᵀ."""
        (n, depth), p = A.shape, len(B)
        out, one, zero = cupy.empty((n, p), np.float32), np.ones(1, np.float32), np.zeros(1, np.float32)
        blas = cupy.cuda.cublas
        blas.gemmEx(
            cupy.cuda.device.get_cublas_handle(), blas.CUBLAS_OP_T, blas.CUBLAS_OP_N, p, n, depth, one.ctypes.data,
            B.data.ptr, cupy.cuda.runtime.CUDA_R_16F, depth, A.data.ptr, cupy.cuda.runtime.CUDA_R_16F, depth,
            zero.ctypes.data, out.data.ptr, cupy.cuda.runtime.CUDA_R_32F, p, blas.CUBLAS_COMPUTE_32F,
            blas.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip
        return out

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        with cupyx.errstate(linalg="raise"):
            try:
                L = cupy.linalg.cholesky(A)
            except np.linalg.LinAlgError as error:
                raise not_positive() from error
        p = len(L)
        W = cupy.empty((p, p), dtype)
        for start in range(0, p, COLUMNS):
            stop = min(p, start + COLUMNS)
            unit = cupy.zeros((p, stop - start), np.float64, order="F")
            unit[cupy.arange(start, stop), cupy.arange(stop - start)] = 1.0
            # L in C order is Lᵀ in Fortran order, so passing the transpose of the whole avoids a copy.
            W[:, start:stop] = solve_triangular(L.T, unit, trans="T", lower=False, overwrite_b=True)
        return W

    # -------------------------------------------------------------------------------------------- the card

    def describe(self) -> str:
        free, total = cupy.cuda.runtime.memGetInfo()
        products = (
            "tf32, because CUPY_TF32 is set" if tf32() else "float32, of two halves each" if self.splits else "float32"
        )
        return (
            f"{self.name}, {format_bytes(total)}, of which {format_bytes(free)} are free; a run may use "
            f"{format_bytes(self.budget)}; products in {products}; CuPy {cupy.__version__}"
        )

    def gemm_rate(self, m: int = 8192) -> float:
        """Return floating-point operations a second of a square float32 product of random numbers, the best of five."""
        A = cupy.random.default_rng(0).standard_normal((m, m), dtype=np.float32)
        best = float("inf")
        for _ in range(6):  # the first product loads cuBLAS
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            A @ A
            stop.record()
            stop.synchronize()
            best = min(best, 1e-3 * float(cupy.cuda.get_elapsed_time(start, stop)))
        return 2.0 * m**3 / best


def _arrive(host: Array, part: slice, pinned: Any, copied: Any) -> None:
    copied.synchronize()
    host[part] = pinned[: part.stop - part.start]


def tf32() -> bool:
    """Return True if products of float32 are rounded to tf32, which requires ``CUPY_TF32=1``."""
    return os.environ.get("CUPY_TF32", "0") not in ("", "0")


def open_device() -> CupyDevice | tuple[str, str]:
    """Return the GPU of this process; or the reason why it cannot be used, and the extra that fits its driver."""
    extra = "cuda13"
    try:
        if cupy.cuda.runtime.driverGetVersion() < 13000:
            extra = "cuda12"
        if not cupy.cuda.runtime.getDeviceCount():
            return "there is no device", extra
        found = _here()
        with found.turn():  # a kernel is compiled and runs, or the reason is known now
            norm = found.loops.row_norms(found.put(np.array([[3.0, 4.0]], np.float32)))
            if float(found.take(norm)[0]) != 25.0:
                return "a kernel computes a wrong result", extra
    except Exception as error:  # whatever CUDA, the driver or the compiler raise is a reason
        return f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0].rstrip("."), extra
    return found


@cache
def _here() -> CupyDevice:
    return CupyDevice()
