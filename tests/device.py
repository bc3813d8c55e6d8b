"""Devices without a GPU: the kernels in Numba's simulator, and arrays of the array API's strictest implementation.

What runs on a GPU is the same code with CuPy's arrays: ``engine/on_device.py`` and
``data/device.py`` on any device, ``backends/cuda.py`` on a GPU and in the simulator.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from streamkern.backends import NumpyBackend
from streamkern.backends.base import radial_formula
from streamkern.backends.cuda import CudaBackend
from streamkern.backends.device import COLUMNS, TURNS, DeviceLoops
from streamkern.errors import NumericalError
from streamkern.types import Array, IntArray


class SimulatedLoops(CudaBackend):
    """The CUDA kernels, a few threads at a time: NUMBA_ENABLE_CUDASIM=1 must be set before Numba is imported."""

    threads = 2
    side = 2
    tile = (2, 2)
    grid = (2, 2)
    _alone: ClassVar[threading.Lock] = threading.Lock()  # the simulator keeps the thread's place in a global

    def _launch(self, kernel: Any, grid: Any, threads: Any, *args: Any) -> None:
        # It takes no strided or read-only array; one that comes twice, as input and output, stays one.
        arrays = {id(a): a for a in args if isinstance(a, np.ndarray) and a.ndim}
        whole = {key: a.copy() for key, a in arrays.items()}
        with self._alone:
            super()._launch(kernel, grid, threads, *(whole.get(id(a), a) for a in args))
        for key, array in arrays.items():
            if array.flags.writeable:
                array[...] = whole[key]


class PlainLoops(NumpyBackend):
    """The reference, with the fused product by its definition."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of the host."""
        return np.empty(shape, dtype)

    def narrow(self, A: Any, B: Any, W: Any, kind: str, params: Mapping[str, float]) -> Any:
        """k(A, B) W of differences."""
        formula, (a, b, c), absolute = radial_formula(kind, params)
        differences = A[:, None, :].astype(np.float64) - B
        s = a * (np.abs(differences) if absolute else np.square(differences)).sum(axis=2)
        match formula:
            case "gaussian":
                K = np.exp(-s)
            case "cauchy":
                K = 1 / (1 + s)
            case "exponential_power":
                K = np.exp(-(s**b))
            case _:
                K = (1 + np.sqrt(s) * (b + np.sqrt(s) * c)) * np.exp(-np.sqrt(s))
        return (K @ W).astype(np.float32)


class HostDevice:
    """A device whose arrays are NumPy's, in this process.

    Args:
        loops: over its arrays; ``PlainLoops`` or ``SimulatedLoops``.
        budget: bytes it says it has.
    """

    name = "host"

    def __init__(self, loops: DeviceLoops | None = None, budget: int = 1 << 30) -> None:
        self.loops: DeviceLoops = loops or PlainLoops()
        self.budget = budget

    def describe(self) -> str:
        """Its name."""
        return self.name

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Nothing is waited for."""
        yield

    def put(self, array: Any, dtype: Any = None) -> Any:
        """A copy of what is not the device's."""
        return np.array(array, dtype=dtype, order="C")

    def take(self, array: Any) -> Array:
        """A copy."""
        return np.array(array)

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
        """Rows by the device's own loops."""
        X = np.empty((len(index), raw.shape[1]), np.float32)
        self.loops.assemble(self.put(raw), index, X, scale=scale, offset=offset)
        for seed, sigma in noises:
            self.loops.add_noise(X, ids, copies=copies, seed=seed, sigma=sigma)
        return X

    def upload(self, array: Array) -> Any:
        """A copy."""
        return self.put(array)

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """By LAPACK.

        Raises:
            NumericalError: A is not positive definite.
        """
        try:
            L = scipy.linalg.cholesky(A, lower=True)
        except np.linalg.LinAlgError as error:
            raise NumericalError(str(error), where=self.name, expected="a positive definite matrix") from error
        return scipy.linalg.solve_triangular(L, np.eye(len(L)), lower=True).astype(dtype)


class StrictDevice(HostDevice):
    """Arrays of array-api-strict on a device of its own: a NumPy array is not taken for one, nor one for NumPy's."""

    name = "strict"

    def __init__(self) -> None:
        super().__init__()
        import array_api_strict  # of the extra `test`

        self.xp: Any = array_api_strict
        self.place = array_api_strict.Device("device1")
        self.loops = _StrictLoops(self)

    def put(self, array: Any, dtype: Any = None) -> Any:
        """To the device, by name only."""
        if isinstance(array, self.xp._array_object.Array):
            assert array.device == self.place
            return array
        return self.xp.asarray(np.array(array, dtype=dtype, order="C"), device=self.place)

    def take(self, array: Any) -> Array:
        """From the device, by name only."""
        assert array.device == self.place
        return np.array(np.from_dlpack(array.to_device(self.xp.Device("CPU_DEVICE"))))

    def rows(self, raw: Array, index: IntArray, **how: Any) -> Any:
        """Made on the host and sent."""
        host = HostDevice()
        return self.put(host.rows(raw, index, **how))

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """On the host and sent."""
        return self.put(super().inverse_factor(self.take(A), dtype))


class _StrictLoops(PlainLoops):
    """Elementwise loops: through the host, for what is tested is what surrounds them."""

    def __init__(self, device: StrictDevice) -> None:
        self.device = device

    def row_norms(self, X: Any) -> Any:
        return self.device.put(super().row_norms(self.device.take(X)))

    def radial(self, S: Any, x_norms: Any, z_norms: Any, kind: Any, params: Mapping[str, float]) -> None:
        K = self.device.take(S)
        super().radial(K, self.device.take(x_norms), self.device.take(z_norms), kind, params)
        S[...] = self.device.put(K)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.device.put(np.empty(shape, dtype))

    def signed_sums(self, P: Any, X: Any, Z: Any, out: Any) -> None:
        take, found = self.device.take, self.device.take(out)
        super().signed_sums(take(P), take(X), take(Z), found)
        out[...] = self.device.put(found)

    def manhattan(self, X: Any, Z: Any, out: Any) -> None:
        found = self.device.take(out)
        super().manhattan(self.device.take(X), self.device.take(Z), found)
        out[...] = self.device.put(found)

    def narrow(self, A: Any, B: Any, W: Any, kind: str, params: Mapping[str, float]) -> Any:
        take = self.device.take
        return self.device.put(super().narrow(take(A), take(B), take(W), kind, params))


class _Held:
    """Bytes that lie on a counting device, until nothing refers to them."""

    def __init__(self, device: CountingDevice, size: int) -> None:
        self.device, self.size = device, size
        device.hold(size)

    def __del__(self) -> None:
        self.device.hold(-self.size)


class _Counted:
    """An array of a counting device: what ``engine/on_device.py`` does with one, and what it lies in."""

    def __init__(self, device: CountingDevice, array: Array, held: _Held | None = None) -> None:
        self.device, self.array = device, array
        self.held = held or _Held(device, array.nbytes)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def T(self) -> _Counted:
        return _Counted(self.device, self.array.T, self.held)

    def __getitem__(self, key: Any) -> _Counted:
        return _Counted(self.device, self.array[key], self.held)

    def __setitem__(self, key: Any, value: _Counted) -> None:
        self.array[key] = value.array

    def __matmul__(self, other: _Counted) -> _Counted:
        return _Counted(self.device, self.array @ other.array)

    def __add__(self, other: _Counted) -> _Counted:
        return _Counted(self.device, self.array + other.array)

    def __mul__(self, other: _Counted) -> _Counted:
        return _Counted(self.device, self.array * other.array)

    def astype(self, dtype: Any) -> _Counted:
        return _Counted(self.device, self.array.astype(dtype))


class CountingDevice(HostDevice):
    """A device that knows the bytes that lie on it, and the most that did; two threads have a turn at a time."""

    name = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.loops: Any = _CountedLoops(self)
        self.alive = self.peak = 0
        self._lock, self._turns, self._of_thread = threading.RLock(), threading.Semaphore(TURNS), threading.local()

    def hold(self, size: int) -> None:
        """Note bytes that are allocated; less than 0, that are freed."""
        with self._lock:  # of one thread, too: memory is freed wherever the last reference goes
            self.alive += size
            self.peak = max(self.peak, self.alive)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """As on a GPU: a thread has one turn, however deep."""
        if getattr(self._of_thread, "inside", False):
            yield
            return
        with self._turns:
            self._of_thread.inside = True
            try:
                yield
            finally:
                self._of_thread.inside = False

    def put(self, array: Any, dtype: Any = None) -> Any:
        """A copy of what is not the device's."""
        return array if isinstance(array, _Counted) else _Counted(self, super().put(array, dtype))

    def take(self, array: Any) -> Array:
        """A copy."""
        return np.array(array.array)

    def rows(self, raw: Array, index: IntArray, **how: Any) -> Any:
        """Made on the host and sent."""
        return self.put(HostDevice().rows(raw, index, **how))

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """What CuPy's holds: a factor as large as A, the inverse, and columns on their way through the substitution."""
        factor = _Held(self, A.array.nbytes + 3 * 8 * len(A.array) * min(len(A.array), COLUMNS))
        found = self.put(super().inverse_factor(A.array, dtype))
        del factor
        return found


class _CountedLoops(PlainLoops):
    """Elementwise loops over the arrays within."""

    def __init__(self, device: CountingDevice) -> None:
        self.device = device

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return _Counted(self.device, np.empty(shape, dtype))

    def row_norms(self, X: Any) -> Any:
        return _Counted(self.device, super().row_norms(X.array))

    def radial(self, S: Any, x_norms: Any, z_norms: Any, kind: Any, params: Mapping[str, float]) -> None:
        super().radial(S.array, x_norms.array, z_norms.array, kind, params)

    def narrow(self, A: Any, B: Any, W: Any, kind: str, params: Mapping[str, float]) -> Any:
        arrays = (each.array.astype(np.float64) for each in (A, B, W))
        X, Z, V = arrays
        norms = (np.square(each).sum(axis=1) for each in (X, Z))
        K = X @ Z.T
        super().radial(K, *norms, kind, params)
        return _Counted(self.device, (K @ V).astype(np.float32))
