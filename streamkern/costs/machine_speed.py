"""Seconds of each kind of operation on this machine: measured once, in a few seconds, and kept.

Each kind is timed as a run does it, with its threads. Operations that depend on the pipeline (a value of its kernel at
its width, the assembly of a row) are timed at its shapes, so a plan of a new shape takes part of a second more.
"""

from __future__ import annotations

import os
import platform
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits

from streamkern import cpu
from streamkern.centers import CenterSet
from streamkern.cpu import default_engine
from streamkern.data import from_arrays
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Block, RawRows
from streamkern.data.statistics import Moments
from streamkern.data.targets import Classes
from streamkern.defaults import MEASUREMENT_SECONDS, SPEED_CENTERS, SPEED_ROWS
from streamkern.engine.operation_counts import Operations, eigh
from streamkern.errors import StorageError, StreamkernError
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.kernels import Basis, Expansion, FeatureMap, Kernel, Laplace
from streamkern.solvers import EigenPro, Problem, train
from streamkern.solvers.contributions import Gradient
from streamkern.sources.base import Source
from streamkern.storage.atomic_writes import read_json, write_json
from streamkern.storage.value_digest import digest
from streamkern.types import Array
from streamkern.version import version_of


@dataclass(frozen=True)
class Shapes:
    """The shapes that prices depend on; without a kernel those of a Laplace kernel."""

    kernel: Kernel | None
    features: FeatureMap | None
    centers: int
    d: int
    outputs: int
    dtype: np.dtype[Any]
    lanes: int


@dataclass(frozen=True)
class Prices:
    """Seconds of this machine, all its threads at work: of an operation of each kind, and of a step beyond them.

    Of one thread, seconds of the assembly of a row, and of reading and decoding a stored byte. ``moments`` are of a
    row's part in the statistics.
    """

    work: Operations
    step: float
    row: float
    moments: float
    byte: float


class SpeedMeasurements:
    """Measurements by name, in the user's cache directory; in memory where that cannot be written."""

    def __init__(self, slots: int, folder: Path | None = None) -> None:
        self.slots = slots
        if folder is None:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamkern"
        self.path = folder / f"calibration-{digest(_machine(), slots)[:16]}.json"
        found = read_json(self.path) or {}  # missing, or damaged: measured again
        self.seconds = {
            name: float(value)
            for name, value in found.items()
            if isinstance(value, int | float) and np.isfinite(value) and value > 0
        }

    def measured(self, name: str, measure: Callable[[], float]) -> float:
        """Seconds measured earlier under a name, or by ``measure`` now."""
        if name not in self.seconds:
            with threadpool_limits(1, user_api="blas"):
                self.seconds[name] = measure()
            with suppress(StorageError):
                write_json(self.path, self.seconds)
        return self.seconds[name]

    def prices(self, shapes: Shapes, dataset: Dataset) -> Prices:
        """Prices at the shapes of a pipeline; rows are assembled as those of a dataset."""
        c, dtype = shapes.outputs, shapes.dtype
        wide, narrow = np.dtype(np.float64), dtype.name
        shape = digest(
            None if shapes.kernel is None else shapes.kernel.to_json(),
            None if shapes.features is None else shapes.features.to_json(),
            min(shapes.centers, SPEED_CENTERS),
            shapes.d,
            dtype.name,
        )[:16]
        value = self.measured(f"value {shape}", lambda: self._value(shapes))
        work = Operations(
            values=value,
            values64=self.measured(f"value64 {shape}", lambda: self._value64(shapes)),
            panel=self.measured(f"panel {shape} {c}", lambda: self._panel(shapes, value)),
            gemm=self.measured(f"gemm {narrow}", lambda: self._product(512, 512, 512, dtype, _by_factor)),
            gemm64=self.measured("gemm float64", lambda: self._product(512, 512, 512, wide, _by_factor)),
            thin=self.measured(f"gram {narrow} {c}", lambda: self._gram(dtype, c)),
            thin64=self.measured(f"thin float64 {c}", lambda: self._product(512, 8192, c, wide, threads=1)),
            vector64=self.measured("vector float64", lambda: self._product(512, 8192, 1, wide, threads=1)),
            serial64=self.measured("serial float64", lambda: self._product(512, 512, 512, wide, threads=1)),
            eigen=self.measured("top eigenpairs", _eigen),
            numbers=self.measured("numbers", _numbers),
        )
        augmentations = [a.to_json() for a in dataset.augmentations]
        row = digest(shapes.d, dataset.source.dtype.name, dtype.name, augmentations)[:16]
        return Prices(
            work,
            self.measured(f"step of training {shapes.lanes}", lambda: self._step(shapes.lanes)),
            self.measured(f"row {row}", lambda: _row(dataset, dtype)),
            self.measured(f"moments {row}", lambda: self._moments(dataset)),
            self.measured(f"byte {digest(dataset.source.fingerprint)[:16]}", lambda: _byte(dataset.source)),
        )

    def _timed(self, make: Callable[[], Callable[[], Any]], threads: int | None = None) -> float:
        """Seconds of a call with ``threads`` of them at a time, over their number."""
        number = threads or self.slots
        with ThreadPoolExecutor(number) as pool:
            calls = list(pool.map(lambda _: make(), range(number)))
            found = list(pool.map(_repeated, calls))
        return float(np.mean(found)) / number

    def _value(self, shapes: Shapes) -> float:
        basis = _basis(shapes)
        X = _rows(basis.row_tile, shapes.d, shapes.dtype)

        def make() -> Callable[[], Any]:
            out = np.empty((len(X), basis.width), dtype=basis.dtype)
            return lambda: basis.block(X, out=out)

        return self._timed(make) / (len(X) * basis.width)

    def _value64(self, shapes: Shapes) -> float:
        d, wide = shapes.d, np.dtype(np.float64)
        basis = Expansion(shapes.kernel or Laplace(1.0), _rows(2 * SPEED_ROWS, d, wide))
        X = _rows(SPEED_ROWS, d, wide)
        return self._timed(lambda: lambda: basis.block(X)) / (len(X) * basis.width)

    def _panel(self, shapes: Shapes, value: float) -> float:
        """Seconds of a gradient beyond its kernel values: two products, residuals and the loss."""
        basis, c = _basis(shapes), shapes.outputs
        gradient, ids = Gradient(basis), np.arange(SPEED_ROWS, dtype=np.int64)
        block = Block(_rows(SPEED_ROWS, shapes.d, shapes.dtype), ids % c, ids, (0,))
        W = np.zeros((basis.width, c), dtype=shapes.dtype)
        entry = self._timed(lambda: lambda: gradient(block, W)) / (SPEED_ROWS * basis.width)
        return max(entry - value, 0.1 * value) / (4.0 * c)

    def _product(
        self, rows: int, inner: int, columns: int, dtype: Any, multiply: Any = np.matmul, threads: int | None = None
    ) -> float:
        """Seconds of an operation of a product (rows, inner) by (inner, columns)."""

        def make() -> Callable[[], Any]:
            A, B = np.ones((rows, inner), dtype=dtype), np.ones((inner, columns), dtype=dtype)
            return lambda: multiply(A, B)

        return self._timed(make, threads) / (2.0 * rows * inner * columns)

    def _gram(self, dtype: np.dtype[Any], c: int) -> float:
        """Of matrices of 32 MB together, which no cache near a core holds, and c columns: two products."""
        inner = max(4 << 20, (32 << 20) // self.slots) // (512 * dtype.itemsize)
        return self._product(512, inner, c, dtype, default_engine().gram_product) / 2

    def _step(self, lanes: int) -> float:
        X = _rows(256 * lanes, 16, np.dtype(np.float32))
        codes, passes = np.arange(len(X)) % 10, 10
        with ThreadsExecutor(self.slots) as executor:
            centers = CenterSet(X[:256], None)
            problem = Problem(
                from_arrays(X, codes), Classes(np.arange(10)), Laplace(1.0), centers, executor, lanes=lanes
            )
            iteration = EigenPro(epochs=passes, batch=16 * lanes).setup(problem)
            steps = passes * iteration.stream.steps
            return _repeated(lambda: train(problem, iteration), time.process_time) / steps

    def _moments(self, dataset: Dataset) -> float:
        raw = _stored_rows(dataset)
        moments = Moments(np.zeros(dataset.source.n_features), None)
        return self._timed(lambda: lambda: moments((raw, ""), None)) / len(raw.X)


def _machine() -> list[Any]:
    """What measurements belong to: processor, cores, the loops here, libraries, and the threads of BLAS."""
    model = platform.processor()
    with suppress(OSError, StopIteration):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = next(line for line in text.splitlines() if line.startswith("model name"))
    names = ("streamkern", "numpy", "scipy", "numba")
    loops = sorted(Path(cpu.__file__).parent.glob("*.py"))  # in a clone they change between versions
    return [
        *(zlib.crc32(file.read_bytes()) for file in loops),
        platform.node(), platform.machine(), model, os.cpu_count(), os.environ.get("OPENBLAS_CORETYPE"),
        *(version_of(name) for name in names),
    ]  # fmt: skip


def timings(call: Callable[[], Any], clock: Callable[[], float]) -> list[float]:
    """Return processor seconds of a call, several times, after one that compiles: other processes' work is left out."""
    call()
    found: list[float] = []
    end = clock() + MEASUREMENT_SECONDS
    while clock() < end or len(found) < 3:
        start = clock()
        call()
        found.append(clock() - start)
    return found


def _repeated(call: Callable[[], Any], clock: Callable[[], float] = time.thread_time) -> float:
    reported_quantile = 0.4  # quantile of the repetitions that counts
    return float(np.quantile(timings(call, clock), reported_quantile))


def _by_factor(A: Array, B: Array) -> Any:
    return default_engine().right_factor(B).times(A)


def _basis(shapes: Shapes) -> Basis:
    Z = _rows(min(shapes.centers, SPEED_CENTERS), shapes.d, shapes.dtype)
    if shapes.features is None:
        return Expansion(shapes.kernel or Laplace(1.0), Z)
    return shapes.features.basis(shapes.d, shapes.dtype, Z if shapes.features.needs_centers else None)


def _rows(n: int, d: int, dtype: np.dtype[Any]) -> Array:
    return np.random.default_rng(0).standard_normal((n, d), dtype=dtype.type)


def _stored_rows(dataset: Dataset) -> RawRows:
    n, source = SPEED_ROWS, dataset.source
    X = np.random.default_rng(0).integers(0, 2 if source.dtype.kind == "b" else 100, (n, dataset.source.n_features))
    ids = np.arange(n, dtype=np.int64)
    return RawRows(X.astype(source.dtype), np.arange(n) % 10, ids, np.zeros(n, dtype=np.int64))


def _row(dataset: Dataset, dtype: np.dtype[Any]) -> float:
    raw, assembly = _stored_rows(dataset), Assembly(dataset, dtype=dtype)
    order = np.random.default_rng(0).permutation(len(raw.ids))
    return _repeated(lambda: assembly.build(raw, order, (0,), "")) / len(order)


def _eigen() -> float:
    size = 1024
    X = _rows(size, 32, np.dtype(np.float64))
    K = np.exp(-0.05 * np.square(X[:, None, :4] - X[None, :, :4]).sum(axis=2))
    return _repeated(lambda: scipy.linalg.eigh(K, subset_by_index=(3 * size // 4, size - 1))) / eigh(size)


def _numbers() -> float:
    mean, new = np.zeros((10_000, 10)), np.ones((10_000, 10))
    return _repeated(lambda: mean + 0.5 * (new - mean)) / (3.0 * mean.size)


def _byte(source: Source) -> float:
    """Seconds of reading the first chunk again, from memory; 0 where it cannot be read, as a run will say."""
    with suppress(StreamkernError, OSError):
        return _repeated(lambda: source.read(0), time.perf_counter) / max(1, source.read(0).X.nbytes)
    return 0.0


def gemm_rate() -> float:
    """Return float32 operations a second of one thread's matrix products."""
    A, B = (np.ones((512, 512), dtype=np.float32) for _ in range(2))
    with threadpool_limits(1, user_api="blas"):
        return 2.0 * 512**3 / _repeated(lambda: A @ B)
