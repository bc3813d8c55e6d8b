"""A stand-in for CuPy on NumPy's arrays: the lines of ``gpu/cupy.py`` run, with the loops compiled for the host.

It has the names that those lines use and no others, and counts what a card's time and memory go into: launches of
loops, products, bytes that are copied either way, waits of the host, and bytes that are allocated. A NumPy array is not
taken for an array of the device, nor one for NumPy's.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.linalg

from tests.cuda_host import compiled, run_kernel


class Counts:
    """What has happened on the device since the last ``reset``."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # memory is freed by whatever thread drops the last reference
        self.alive = self.peak = 0
        self.reset()

    def reset(self) -> None:
        """Begin anew, but for the bytes that are allocated."""
        self.launches: list[str] = []
        self.products = self.sent = self.fetched = self.waits = 0
        self.peak = self.alive

    def hold(self, size: int) -> None:
        """Note bytes that are allocated; less than 0, that are freed."""
        with self.lock:
            self.alive += size
            self.peak = max(self.peak, self.alive)


COUNTS = Counts()


class MemoryHook:
    """Hears of bytes that are allocated, in its context."""

    watching: ClassVar[list[MemoryHook]] = []

    def __enter__(self) -> MemoryHook:
        self.watching.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        self.watching.remove(self)

    def malloc_postprocess(self, **event: int) -> None:
        raise NotImplementedError


class _Held:
    def __init__(self, size: int) -> None:
        self.size = size
        COUNTS.hold(size)
        for hook in MemoryHook.watching:
            hook.malloc_postprocess(mem_size=size)

    def __del__(self) -> None:
        COUNTS.hold(-self.size)


def _plain(value: Any) -> Any:
    assert not isinstance(value, np.ndarray) or value.ndim == 0, "an array of the host among the device's"
    return value.a if isinstance(value, ndarray) else value


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of the device."""

    def __init__(self, a: Any, held: Any = None) -> None:
        self.a = a
        self.held = _Held(a.nbytes) if held is None else held

    shape = property(lambda self: self.a.shape)
    dtype = property(lambda self: self.a.dtype)
    ndim = property(lambda self: self.a.ndim)
    itemsize = property(lambda self: self.a.itemsize)
    strides = property(lambda self: self.a.strides)
    nbytes = property(lambda self: self.a.nbytes)
    T = property(lambda self: ndarray(self.a.T, self.held))
    data = property(lambda self: types.SimpleNamespace(ptr=self.a.ctypes.data))

    def __len__(self) -> int:
        return len(self.a)

    def __getitem__(self, key: Any) -> ndarray:
        found = self.a[tuple(map(_plain, key)) if isinstance(key, tuple) else _plain(key)]
        return ndarray(found, self.held) if isinstance(found, np.ndarray) else ndarray(np.asarray(found))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.a[tuple(map(_plain, key)) if isinstance(key, tuple) else _plain(key)] = _plain(value)

    def __int__(self) -> int:
        COUNTS.waits += 1
        return int(self.a)

    def __float__(self) -> float:
        COUNTS.waits += 1
        return float(self.a)

    def __matmul__(self, other: ndarray) -> ndarray:
        COUNTS.products += 1
        return ndarray(self.a @ other.a)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **more: Any) -> Any:
        assert method == "__call__"
        where = {} if out is None else {"out": tuple(map(_plain, out))}
        found = ufunc(*map(_plain, inputs), **where, **more)
        return out[0] if out is not None else ndarray(found)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> ndarray:
        return ndarray(function(*map(_plain, args), **named))

    def reshape(self, *shape: Any) -> ndarray:
        return ndarray(self.a.reshape(*shape), self.held)

    def view(self, dtype: Any) -> ndarray:
        return ndarray(self.a.view(dtype), self.held)

    def astype(self, dtype: Any) -> ndarray:
        return ndarray(self.a.astype(dtype))

    def copy(self) -> ndarray:
        return ndarray(self.a.copy())

    def sum(self, axis: Any = None) -> ndarray:
        return ndarray(np.asarray(self.a.sum(axis=axis)))

    def set(self, array: Any, stream: Any = None) -> None:
        COUNTS.sent += array.nbytes
        self.a[...] = array

    def get(self, stream: Any = None, out: Any = None, blocking: bool = True) -> Any:
        COUNTS.fetched += self.a.nbytes
        COUNTS.waits += blocking
        if out is None:
            return self.a.copy()
        out[...] = self.a
        return out


class Event:
    def __init__(self, disable_timing: bool = False) -> None:
        self.recorded = False

    def record(self, stream: Any = None) -> None:
        self.recorded, self.at = True, time.perf_counter()

    def synchronize(self) -> None:
        COUNTS.waits += self.recorded
        self.recorded = False


class Stream:
    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def record(self) -> Event:
        event = Event()
        event.record()
        return event

    def wait_event(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        COUNTS.waits += 1


class RawModule:
    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        self.code, self.macros = code, tuple(option for option in options if option.startswith("-D"))

    def get_function(self, kernel: str) -> Any:
        library = compiled(self.code, (kernel,), self.macros)

        def call(grid: Any, block: Any, args: Any) -> None:
            COUNTS.launches.append(kernel)
            assert not any(isinstance(arg, np.ndarray) for arg in args), "an array of the host among the arguments"
            run_kernel(
                library, kernel, grid, block, [np.uint64(a.data.ptr) if isinstance(a, ndarray) else a for a in args]
            )

        return call


class Pool:
    def __init__(self) -> None:
        self.limit = 0

    def get_limit(self) -> int:
        return self.limit

    def set_limit(self, size: int) -> None:
        self.limit = size

    def total_bytes(self) -> int:
        return 0

    def used_bytes(self) -> int:
        return COUNTS.alive


class Generator:
    def __init__(self, seed: int) -> None:
        self.host = np.random.default_rng(seed)

    def standard_normal(self, shape: Any, dtype: Any) -> ndarray:
        return ndarray(self.host.standard_normal(shape, dtype))


class OutOfMemoryError(Exception):
    pass


def asarray(array: Any) -> ndarray:
    if isinstance(array, ndarray):
        return array
    COUNTS.sent += np.asarray(array).nbytes
    return ndarray(np.array(array))


def copyto(to: ndarray, array: ndarray) -> None:
    to.a[...] = array.a


def _garbage(shape: Any, dtype: Any) -> Any:
    found = np.empty(shape, dtype)
    found.fill(np.nan if found.dtype.kind == "f" else 77)
    return found


def _from_pointer(pointer: int, shape: tuple[int, int], dtype: Any) -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(pointer), dtype).reshape(shape)


def gemm_ex(
    handle: Any, ta: int, tb: int, m: int, n: int, k: int, one: int, A: int, a_type: int, lda: int, B: int, b_type: int,
    ldb: int, zero: int, C: int, c_type: int, ldc: int, compute: int, algorithm: int,
) -> None:  # fmt: skip
    """As cuBLAS has it, in column order: C = Aᵀ B of 16 bits, in float32."""
    assert (ta, tb, a_type, b_type, c_type, lda, ldb, ldc) == (1, 0, 2, 2, 0, k, k, m)
    COUNTS.products += 1
    left, right = _from_pointer(A, (m, k), np.float16), _from_pointer(B, (n, k), np.float16)
    _from_pointer(C, (n, m), np.float32)[...] = right.astype(np.float32) @ left.astype(np.float32).T


def solve_triangular(a: ndarray, b: ndarray, trans: Any, lower: bool, overwrite_b: bool) -> ndarray:
    return ndarray(scipy.linalg.solve_triangular(a.a, b.a, trans=trans, lower=lower))


def module(capability: tuple[int, int] = (9, 0), free: int = 1 << 30) -> dict[str, types.ModuleType]:
    """Return the modules of the stand-in by name."""
    pool = Pool()
    runtime = types.SimpleNamespace(
        memGetInfo=lambda: (free, 2 * free),
        getDeviceProperties=lambda number: {"name": b"stand-in", "major": capability[0], "minor": capability[1]},
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        getDeviceCount=lambda: 1,
        CUDA_R_16F=2,
        CUDA_R_32F=0,
    )
    blas = types.SimpleNamespace(
        CUBLAS_OP_T=1, CUBLAS_OP_N=0, CUBLAS_COMPUTE_32F=68, CUBLAS_GEMM_DEFAULT=-1, gemmEx=gemm_ex
    )  # fmt: skip
    cupy: Any = types.ModuleType("cupy")
    cupyx: Any = types.ModuleType("cupyx")
    scipy_, linalg = types.ModuleType("cupyx.scipy"), types.ModuleType("cupyx.scipy.linalg")
    vars(linalg)["solve_triangular"] = solve_triangular
    vars(cupy).update(
        __version__="stand-in", ndarray=ndarray, RawModule=RawModule, asarray=asarray, copyto=copyto,
        asnumpy=lambda array: array.get(),
        ascontiguousarray=lambda array: ndarray(np.ascontiguousarray(array.a)),
        empty=lambda shape, dtype: ndarray(_garbage(shape, dtype)),
        zeros=lambda shape, dtype, order="C": ndarray(np.zeros(shape, dtype, order)),
        arange=lambda *bounds: ndarray(np.arange(*bounds)),
        linalg=types.SimpleNamespace(cholesky=lambda A: ndarray(np.linalg.cholesky(A.a))),
        get_default_memory_pool=lambda: pool,
        random=types.SimpleNamespace(default_rng=Generator),
        cuda=types.SimpleNamespace(
            Stream=Stream, Event=Event, MemoryHook=MemoryHook, runtime=runtime, cublas=blas,
            get_elapsed_time=lambda start, stop: 1e3 * (stop.at - start.at),
            memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            device=types.SimpleNamespace(get_cublas_handle=lambda: 0),
        ),
    )  # fmt: skip
    vars(cupyx).update(
        errstate=lambda linalg: contextlib.nullcontext(), empty_pinned=lambda shape, dtype: np.empty(shape, dtype)
    )
    return {"cupy": cupy, "cupyx": cupyx, "cupyx.scipy": scipy_, "cupyx.scipy.linalg": linalg}


@contextlib.contextmanager
def stand_in(splits: bool = True) -> Iterator[Any]:
    """The module ``streamkern.gpu.cupy`` on the stand-in, opened as on a card; ``None`` of it stays."""
    name = "streamkern.gpu.cupy"
    with pytest.MonkeyPatch.context() as patch:
        for each, made in module((9, 0) if splits else (8, 6)).items():
            patch.setitem(sys.modules, each, made)
        patch.delitem(sys.modules, name, raising=False)
        made = importlib.import_module(name)
        try:
            yield made
        finally:
            sys.modules.pop(name, None)
            vars(importlib.import_module("streamkern.gpu")).pop("cupy", None)
