"""Matrix products for the shapes of kernel blocks and their set-up, at the full rate of the vector units.

A BLAS library packs both factors at every call. Here the centers are packed once for a run, and the panel of kernel
values, which is far larger, is not copied. And a library that does not recognise a processor uses older kernels, while
these are compiled for the processor.

Every element of a product is a chain of fused multiply-adds in the order of the sum, restarted every ``DEPTH`` terms; a
product added to a matrix continues from its elements. So the bits of an element depend only on its row and column, not
on other rows, tiles, threads or the width of vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from streamkern.cpu.alignment import CACHE_LINE, aligned
from streamkern.cpu.compiled import OPTIONS, copy_rows, loop, rows
from streamkern.engine.elementwise import has_dense_rows
from streamkern.engine.packed_triangle import cuts
from streamkern.types import Array

DEPTH = 1024
"""Terms of a chain, for which a packed panel fits the second-level cache."""

_BYTES = CACHE_LINE  # of a vector
LANES = 16  # float32 numbers in one
_SIZE = 4  # bytes of a float32
_INDEX = ir.IntType(64)


def _vectors() -> int:
    """2 with vectors of 16 numbers, 1 with narrower ones, 0 without fused multiply-add."""
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES:
        found = numba.config.CPU_FEATURES or ""
        wide, fused = "+avx512f" in found, "+fma" in found
    else:
        features = llvm.get_host_cpu_features()
        wide, fused = features.get("avx512f", False), features.get("fma", False) or features.get("neon", False)
    return 2 if wide else 1 if fused else 0


VECTORS = _vectors()
_WIDE = VECTORS == 2
WIDTH = 4 * LANES if _WIDE else LANES
"""Columns of a packed panel of float32; of float64 half as many."""


def address(builder: Any, base: Any, offset: Any, size: int, kind: Any) -> Any:
    """Return a pointer to a value of an LLVM type, some numbers of ``size`` bytes behind an address."""
    return builder.inttoptr(builder.add(base, builder.mul(offset, _INDEX(size))), kind.as_pointer())


def repeated(builder: Any, number: Any, count: int) -> Any:
    """Return a vector with a number in each of its lanes."""
    undefined = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    return builder.shuffle_vector(builder.insert_element(undefined, number, ir.IntType(32)(0)), undefined, lanes)


def _fused(builder: Any, fma: Callable[..., Any], left: Any, right: Any, total: Any, third: Any) -> Any:
    return fma(left, right, total)


_STEPS = {4: (6, 2, 1), **dict.fromkeys((2, 1), (8 if _WIDE else 4, 1))}
"""Rows computed together, for a panel of 4, 2 or 1 vectors, then those for the rest; the first fill the registers. Six
rows of four vectors load the fewest numbers for each multiply-add.
"""


def panel(V: int, function: str = "llvm.fma", combine: Callable[..., Any] = _fused, third: bool = False) -> Any:
    """Return an intrinsic for C (n, V vectors) = A B, or +=, a few rows at a time with their sums in registers.

    Its first argument is an array whose dtype is that of the matrices; others are addresses, and strides in numbers.

    ``combine`` (builder, ``function`` of LLVM, left, right, sum, third) emits the sum with a term added. A ``third``
    factor has the shape of C, with address and row stride as last arguments, which are 0 without it.
    """

    def rows_at_once(builder: Any, size: int, M: int, i: Any, args: Any) -> None:
        C, c_row, A, a_row, B, b_term, depth, fresh, _, *more = args
        number: Any = ir.FloatType() if size == _SIZE else ir.DoubleType()
        count = _BYTES // size
        vector = ir.VectorType(number, count)
        name = f"{function}.v{count}f{8 * size}"

        def called(*operands: Any) -> Any:
            kind = ir.FunctionType(vector, [vector] * len(operands))
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)

        def cell(m: int, v: int, base: Any, row: Any) -> Any:
            offset = builder.add(builder.mul(builder.add(i, _INDEX(m)), row), _INDEX(v * count))
            return address(builder, base, offset, size, vector)

        sums = [[cgutils.alloca_once(builder, vector) for _ in range(V)] for _ in range(M)]
        for row in sums:
            for total in row:
                builder.store(ir.Constant(vector, [0.0] * count), total)
        held = [[builder.load(cell(m, v, *more), align=size) if third else None for v in range(V)] for m in range(M)]
        with cgutils.for_range(builder, depth) as step:
            k = step.index
            term = builder.mul(k, b_term)
            places = [address(builder, B, builder.add(term, _INDEX(v * count)), size, vector) for v in range(V)]
            right = [builder.load(place, align=size) for place in places]
            for m, row in enumerate(sums):
                offset = builder.add(k, builder.mul(builder.add(i, _INDEX(m)), a_row))
                left = repeated(builder, builder.load(address(builder, A, offset, size, number), align=size), count)
                for total, values, factor in zip(row, right, held[m], strict=True):
                    builder.store(combine(builder, called, left, values, builder.load(total), factor), total)
        first = builder.icmp_signed("!=", fresh, _INDEX(0))
        for m, row in enumerate(sums):
            for v, total in enumerate(row):
                place = cell(m, v, C, c_row)
                with builder.if_else(first) as (then, otherwise):
                    with then:
                        builder.store(builder.load(total), place, align=size)
                    with otherwise:
                        before = builder.load(place, align=size)
                        builder.store(builder.fadd(before, builder.load(total)), place, align=size)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size, n, start = signature.args[0].dtype.bitwidth // 8, args[9], _INDEX(0)
        for M in _STEPS[V]:
            stop = builder.sub(n, builder.srem(builder.sub(n, start), _INDEX(M)))
            with cgutils.for_range_slice(builder, start, stop, _INDEX(M)) as (i, _):
                rows_at_once(builder, size, M, i, args[1:])
            start = stop
        return context.get_dummy_value()

    @intrinsic
    def kernel(
        typingctx: Any, like: Any, C: Any, c_row: Any, A: Any, a_row: Any, B: Any, b_term: Any, depth: Any, fresh: Any,
        n: Any, X: Any, x_row: Any,
    ) -> Any:  # fmt: skip
        return types.void(like, *[types.int64] * 11), generate

    return kernel


_one, _two, _four = panel(1), panel(2), panel(4)


# A function of its own, which is compiled once for all loops that call it.
@numba.njit(**OPTIONS)
def _rows(
    like: Any, C: Any, c_row: Any, A: Any, a_row: Any, B: Any, b_term: Any, depth: Any, fresh: Any, n: Any, V: Any
) -> None:
    if _WIDE and V == 4:  # panels of narrow vectors have one
        _four(like, C, c_row, A, a_row, B, b_term, depth, fresh, n, 0, 0)
    elif _WIDE and V == 2:
        _two(like, C, c_row, A, a_row, B, b_term, depth, fresh, n, 0, 0)
    else:
        _one(like, C, c_row, A, a_row, B, b_term, depth, fresh, n, 0, 0)


_f32 = types.float32


@loop(
    lambda dtype: types.void(
        rows(dtype, readonly=True), types.Array(dtype, 3, "C", readonly=True), types.int64, rows(dtype), types.boolean
    ),
    _f32,
    types.float64,
)
def inner_loop(X: Any, packed: Any, first: Any, out: Any, add: Any) -> None:
    """Compute ``inner`` from panel ``first`` of ``packed`` on, with as many terms as X has columns."""
    (n, m), d, width, size = out.shape, packed.shape[1], packed.shape[2], out.itemsize
    terms = min(d, X.shape[1])
    left, right, place = X.ctypes.data, packed.ctypes.data, out.ctypes.data
    x_row, out_row = X.strides[0] // size, out.strides[0] // size
    edge = np.empty((n, width), out.dtype)
    for j in range(0, m, width):
        whole = j + width <= m
        if not whole and add:
            copy_rows(out[:, j:], edge)
        target, step = (place + size * j, out_row) if whole else (edge.ctypes.data, width)
        panels = right + size * d * width * (first + j // width)
        vectors = width * size // _BYTES
        if vectors == 4 and 2 * (m - j) <= width:
            vectors = 2  # the rest of the last panel is padding
        for k in range(0, terms, DEPTH):
            depth, fresh = min(DEPTH, terms - k), 0 if k or add else 1
            A, B = left + size * k, panels + size * width * k
            _rows(out, target, step, A, x_row, B, width, depth, fresh, n, vectors)
        if not whole:
            copy_rows(edge[:, : m - j], out[:, j:])


@loop(lambda dtype: types.void(rows(dtype, readonly=True), rows(dtype, readonly=True), rows(dtype)), _f32)
def add_product(A: Any, B: Any, out: Any) -> None:
    """Add A B to ``out``; columns of B and ``out`` are padded to whole vectors."""
    n, m = out.shape
    a_row, b_term, out_row = A.strides[0] // _SIZE, B.strides[0] // _SIZE, out.strides[0] // _SIZE
    left, right, place = A.ctypes.data, B.ctypes.data, out.ctypes.data
    for k in range(0, B.shape[0], DEPTH // 2):
        depth = min(DEPTH // 2, B.shape[0] - k)
        j = 0
        while j < m:
            vectors = 2 if _WIDE and j + 2 * LANES <= m else 1
            target, factor = place + _SIZE * j, right + _SIZE * (k * b_term + j)
            _rows(out, target, out_row, left + _SIZE * k, a_row, factor, b_term, depth, 0, n, vectors)
            j += vectors * LANES


@loop(lambda dtype: types.void(rows(dtype, readonly=True), types.Array(dtype, 3, "C"), dtype), _f32, types.float64)
def pack_rows(Z: Any, packed: Any, sign: Any) -> None:
    """Write Z times a sign in the layout of ``inner_loop``, to the first columns of panels that may have more."""
    width = packed.shape[2]
    for block in range(packed.shape[0]):
        here = min(width, Z.shape[0] - block * width)
        for k in range(Z.shape[1]):
            for l in range(here):  # noqa: E741
                packed[block, k, l] = sign * Z[block * width + l, k]
            for l in range(here, width):  # noqa: E741
                packed[block, k, l] = 0.0


def packed_bytes(p: int, d: int, itemsize: int) -> int:
    """Return bytes of p rows of d numbers after ``pack``."""
    width = _width(itemsize, d)
    return -(-p // width) * width * d * itemsize if width else 0


def _width(itemsize: int, d: int) -> int:
    """Columns of a packed panel; 0 if BLAS multiplies."""
    widest = 1 << 20 if _WIDE else 64  # with narrower vectors, BLAS is as fast for more features
    if not 1 <= d <= widest or not (VECTORS if itemsize == _SIZE else VECTORS == 2 and itemsize == 2 * _SIZE):
        return 0
    return WIDTH * _SIZE // itemsize


def pack(Z: Array) -> Array | None:
    """Return Z (p, d) packed for ``inner``, shape (⌈p/w⌉, d, w) for panels of w rows; None if BLAS multiplies."""
    width = _width(Z.dtype.itemsize, Z.shape[1]) if Z.dtype.kind == "f" and isinstance(Z, np.ndarray) else 0
    if not width:
        return None
    return packed_by(Z, width)


def packed_by(Z: Array, width: int) -> Array:
    """Return Z (p, d) in panels of ``width`` rows, shape (⌈p/width⌉, d, width), padded with zeros."""
    packed = aligned((-(-len(Z) // width), Z.shape[1], width), Z.dtype)
    step = max(len(Z), 1) if has_dense_rows(Z) else 4 * width  # other rows are copied, but never all at once
    for part in cuts(len(Z), step):
        panels = slice(part.start // width, -(-part.stop // width))
        pack_rows(dense(Z[part], Z.dtype), packed[panels], 1.0)
    return packed


def inner(X: Array, packed: Array, cols: slice, out: Array, *, add: bool = False) -> None:
    """Write or add X Z[cols]ᵀ to ``out`` (n, m) with contiguous rows; ``cols`` begins at a panel."""
    inner_loop(dense(X, packed.dtype), packed, cols.start // packed.shape[2], out, add)


class Factor:
    """The packed right factor of products A Bᵀ for B (m, d); unpickling packs it again for the processor."""

    def __init__(self, B: Array) -> None:
        self._shape = B.shape
        self._packed = pack(B)
        self._plain = B if self._packed is None else None

    def product(self, A: Array, out: Array, *, add: bool = False) -> None:
        """Write or add A Bᵀ to ``out`` (n, m) with contiguous rows, for A of shape (n, d)."""
        if self._packed is not None:
            inner(A, self._packed, slice(0, self._shape[0]), out, add=add)
        elif add:
            out += A @ self.B.T
        else:
            np.matmul(A, self.B.T, out=out)

    def times(self, A: Array) -> Array:
        """A Bᵀ, shape (n, m)."""
        out = np.empty((len(A), self._shape[0]), A.dtype)
        self.product(A, out)
        return out

    @property
    def B(self) -> Array:
        """The original matrix."""
        if self._plain is not None:
            return self._plain
        assert self._packed is not None
        return self._packed.transpose(0, 2, 1).reshape(-1, self._shape[1])[: self._shape[0]]

    def __reduce__(self) -> tuple[Any, ...]:
        return Factor, (self.B,)


def dense(X: Array, dtype: Any) -> Array:
    """Return X, or a copy, in ``dtype`` with contiguous rows."""
    if X.dtype == dtype and X.size and has_dense_rows(X) and X.strides[0] % X.itemsize == 0:
        return X
    return np.ascontiguousarray(X, dtype)
