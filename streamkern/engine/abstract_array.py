"""Arrays with shape and dtype but no values: NumPy code runs on them, and a meter counts its work and memory.

A view shares its array's memory, released with the last reference: allocated bytes equal those of code with values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from streamkern.engine.base import MANY
from streamkern.engine.operation_counts import Operations, eigh


class CostMeter:
    """Counts of operations by kind, and of allocated bytes: ``alive`` now, and ``peak`` since the last restart.

    ``scale`` multiplies counted operations; ``parallel`` says whether they run in threads, one block in each.
    """

    def __init__(self) -> None:
        self.counts: dict[str, float] = defaultdict(float)
        self.alive = self.peak = 0
        self.scale = 1.0
        self.parallel = False

    def count(self, kind: str, number: float) -> None:
        self.counts[kind] += self.scale * number

    def hold(self, size: int) -> None:
        """Record allocated bytes; negative for released bytes."""
        self.alive += size
        self.peak = max(self.peak, self.alive)

    @contextmanager
    def scaled(self, times: float) -> Iterator[None]:
        """Count the operations inside ``times`` times, one after another."""
        before, self.scale = self.scale, self.scale * times
        try:
            yield
        finally:
            self.scale = before

    @contextmanager
    def scratch(self, size: int) -> Iterator[None]:
        """Count bytes as allocated within the context."""
        self.hold(size)
        try:
            yield
        finally:
            self.hold(-size)

    def taken(self) -> tuple[Operations, float]:
        """Return operations, and rows assembled, since the last call."""
        rows = self.counts.pop("rows", 0.0)
        found, self.counts = Operations(**self.counts), defaultdict(float)
        return found, rows

    def array(self, shape: tuple[int, ...], dtype: Any, kind: str = "") -> Any:
        """Return a new array."""
        dtype = np.dtype(dtype)
        return AbstractArray(self, shape, dtype, _Memory(self, math.prod(shape) * dtype.itemsize), kind)


class _Memory:
    __slots__ = ("meter", "size")

    def __init__(self, meter: CostMeter, size: int) -> None:
        self.meter, self.size = meter, size
        meter.hold(size)

    def resize(self, size: int) -> None:
        self.meter.hold(size - self.size)
        self.size = size

    def __del__(self) -> None:
        self.meter.hold(-self.size)


class AbstractArray(NDArrayOperatorsMixin):
    """An array without values, whose use is an error; the ``kind`` ``panel`` has its own rate of products."""

    __slots__ = ("dtype", "kind", "memory", "meter", "shape")

    def __init__(
        self, meter: CostMeter, shape: tuple[int, ...], dtype: np.dtype[Any], memory: _Memory, kind: str
    ) -> None:
        self.meter, self.shape, self.dtype, self.memory, self.kind = meter, tuple(shape), dtype, memory, kind

    # ------------------------------------------------------------------------------ attributes of an array

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def T(self) -> AbstractArray:
        """The transpose, a view."""
        return self._view(self.shape[::-1])

    def __len__(self) -> int:
        return self.shape[0]

    def __float__(self) -> float:
        """A nominal number; what affects a plan is declared through ``Engine.decide``."""
        return 1.0

    def __bool__(self) -> bool:
        raise TypeError("an array of shapes only has no truth: decide by Engine.decide, with a bound")

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise TypeError("an array of shapes only has no numbers: create it by an engine's method")

    def __repr__(self) -> str:
        return f"AbstractArray({self.shape}, {self.dtype})"

    # ------------------------------------------------------------------------------ views, copies, reductions

    def _view(self, shape: tuple[int, ...], kind: str | None = None) -> AbstractArray:
        return AbstractArray(self.meter, shape, self.dtype, self.memory, self.kind if kind is None else kind)

    def _new(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        return self.meter.array(shape, self.dtype if dtype is None else dtype)

    def __getitem__(self, key: Any) -> Any:
        key, copies = _plain_key(key)
        shape = np.broadcast_to(np.False_, self.shape)[key].shape
        if copies:
            self.meter.count("numbers", math.prod(shape))
            return self._new(shape)
        return self._view(shape)

    def __setitem__(self, key: Any, value: Any) -> None:
        key, _ = _plain_key(key)
        self.meter.count("numbers", np.broadcast_to(np.False_, self.shape)[key].size)

    def copy(self) -> Any:
        """Return a new array."""
        self.meter.count("numbers", self.size)
        return self._new(self.shape)

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> Any:
        """Return a new array in another dtype; the array itself if no copy is needed."""
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        self.meter.count("numbers", self.size)
        return self._new(self.shape, dtype)

    def reshape(self, *shape: Any) -> Any:
        """Return a view of another shape."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return self._view(np.broadcast_to(np.False_, self.shape).reshape(wanted).shape)

    def tolist(self) -> list[Any]:
        """Return an empty list."""
        return []

    def _reduced(self, axis: Any = None, dtype: Any = None, keepdims: bool = False, **_: Any) -> Any:
        self.meter.count("numbers", self.size)
        axes = range(self.ndim) if axis is None else [axis % self.ndim] if isinstance(axis, int) else axis
        return self._new(tuple(n for i, n in enumerate(self.shape) if i not in axes), dtype)

    def sum(self, axis: Any = None, dtype: Any = None, **more: Any) -> Any:
        """Return a reduction over some axes or all."""
        return self._reduced(axis, dtype, **more)

    mean = min = max = sum

    def all(self, axis: Any = None) -> Any:
        return self._reduced(axis, bool)

    any = all

    # ------------------------------------------------------------------------------ NumPy's functions

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **named: Any) -> Any:
        if ufunc is np.matmul:
            return matmul(self.meter, *inputs)
        if method == "reduce":
            return inputs[0]._reduced(**{"axis": 0, **named})
        shape = np.broadcast_shapes(*map(_shape, inputs))
        self.meter.count("numbers", math.prod(shape))
        if out is not None:
            return out[0]
        dtype = named.get("dtype") or ufunc.resolve_dtypes((*map(_operand, inputs), *[None] * ufunc.nout))[-1]
        return self._new(shape, dtype)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        if function not in _FUNCTIONS:
            raise TypeError(f"numpy.{function.__name__} on shapes only: give it a rule in engine/abstract_array.py")
        return _FUNCTIONS[function](self.meter, *args, **named)


def _shape(value: Any) -> tuple[int, ...]:
    return value.shape if isinstance(value, AbstractArray) else np.shape(value)


def _operand(value: Any) -> Any:
    if type(value) in (bool, int, float):
        return type(value)
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype


def _plain_key(key: Any) -> tuple[Any, bool]:
    """An index without arrays of shapes, and whether indexing copies; a mask selects everything."""
    keys, copies = key if isinstance(key, tuple) else (key,), False
    found: list[Any] = []
    for each in keys:
        if isinstance(each, AbstractArray) and each.dtype == bool:
            found.append(np.ones(each.shape, dtype=bool))
        elif isinstance(each, AbstractArray):
            found.append(np.zeros(each.shape, dtype=np.intp))
        else:
            found.append(each)
        copies = copies or isinstance(found[-1], np.ndarray | list)
    return tuple(found), copies


def matmul(meter: CostMeter, A: Any, B: Any) -> Any:
    """Return A B with the costs of plain NumPy."""
    left, right = (X.shape for X in (A, B))
    shape = (*left[:-1], *right[1:]) if len(right) > 1 else left[:-1]
    columns = right[1] if len(right) > 1 else 1
    count_product(meter, A, B, 2.0 * math.prod(shape) * left[-1], columns, meter.parallel)
    dtype = np.result_type(A.dtype, B.dtype)
    with meter.scratch(sum(math.prod(X.shape) * dtype.itemsize for X in (A, B) if X.dtype != dtype)):  # converted
        return meter.array(shape, dtype)


def count_product(meter: CostMeter, A: Any, B: Any, operations: float, columns: int, parallel: bool) -> None:
    """Count the operations of a product by shape, dtype, and where it is computed."""
    if "panel" in (getattr(A, "kind", ""), getattr(B, "kind", "")):
        kind = "panel"
    elif columns == 1 and not parallel:
        kind = "vector64"
    elif np.result_type(A.dtype, B.dtype) == np.float32:
        kind = "thin" if columns < MANY else "gemm"
    elif parallel:
        kind = "gemm64"
    else:
        kind = "thin64" if columns < MANY else "serial64"
    meter.count(kind, operations)


# ---------------------------------------------------------------------------------- rules of functions


def _concatenate(meter: CostMeter, arrays: Any, axis: int = 0) -> Any:
    arrays = list(arrays)
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    meter.count("numbers", math.prod(shape))
    return meter.array(tuple(shape), np.result_type(*(x.dtype for x in arrays)))


def _einsum(meter: CostMeter, subscripts: str, *arrays: Any, dtype: Any = None) -> Any:
    left, result = subscripts.split("->")
    sizes = {
        letter: n
        for part, x in zip(left.split(","), arrays, strict=True)
        for letter, n in zip(part, x.shape, strict=True)
    }
    meter.count("numbers", math.prod(sizes.values()))
    return meter.array(tuple(sizes[letter] for letter in result), dtype or np.result_type(*(x.dtype for x in arrays)))


def _qr(meter: CostMeter, array: Any) -> Any:
    n, k = array.shape
    meter.count("serial64", 4.0 * n * k * k)
    with meter.scratch(array.nbytes):
        return meter.array((n, min(n, k)), array.dtype), meter.array((min(n, k), k), array.dtype)


def _cubic(thirds: float) -> Callable[..., Any]:
    """The rule of a matrix that is made of another of its size, by so many times n³/3 operations."""

    def rule(meter: CostMeter, array: Any) -> Any:
        meter.count("serial64", thirds * float(len(array)) ** 3 / 3)
        return meter.array(array.shape, array.dtype)

    return rule


def _norm(meter: CostMeter, array: Any, ord: Any = None, axis: Any = None) -> Any:
    if ord == 2 and axis is None and array.ndim == 2:
        meter.count("serial64", 8.0 * array.size * min(array.shape))
    return array._reduced(axis)


def _where(meter: CostMeter, condition: Any, x: Any, y: Any) -> Any:
    parts = [p for p in (condition, x, y) if hasattr(p, "shape")]
    shape = np.broadcast_shapes(*(p.shape for p in parts))
    meter.count("numbers", math.prod(shape))
    values = [p.dtype for p in (x, y) if hasattr(p, "dtype")]
    return meter.array(shape, np.result_type(*values) if values else np.float64)


def _eigh(meter: CostMeter, array: Any) -> Any:
    n = len(array)
    meter.count("eigen", eigh(n))
    with meter.scratch(2 * n * n * 8):
        return meter.array((n,), np.float64), meter.array((n, n), np.float64)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.concatenate: _concatenate,
    np.einsum: _einsum,
    np.where: _where,
    np.linalg.qr: _qr,
    np.linalg.cholesky: _cubic(1.0),
    np.linalg.inv: _cubic(6.0),
    np.linalg.eigh: _eigh,
    np.linalg.norm: _norm,
    np.fill_diagonal: lambda meter, array, value: meter.count("numbers", min(array.shape)),
    np.diag: lambda meter, array: array._view((min(array.shape),), ""),
    np.trace: lambda meter, array: array._view((), ""),
    np.searchsorted: lambda meter, array, values, side="left": meter.array(_shape(values), np.int64),
    np.count_nonzero: lambda meter, array, axis=None: array.size if axis is None else array._reduced(axis, np.int64),
    np.average: lambda meter, array, axis=None, weights=None: array._reduced(axis, np.float64),
    **dict.fromkeys(
        (np.zeros_like, np.empty_like), lambda meter, array, dtype=None: meter.array(array.shape, dtype or array.dtype)
    ),
    **dict.fromkeys(
        (np.mean, np.sum, np.max, np.min, np.all, np.any),
        lambda meter, array, axis=None, dtype=None, **_: array._reduced(axis, dtype),
    ),
}
