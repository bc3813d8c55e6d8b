"""The loops over a block as Numba-CUDA kernels: gather, scale, noise, norms, profiles, and the fused narrow product.

``numba.cuda`` may be the bundled target, the numba-cuda package, or the simulator, in which "device arrays" are NumPy
arrays and all kernels are tested. For float32 rows all arithmetic is float32. Combined with a literal or an integer,
float32 would become float64 on a card, so constants are arguments of the rows' type, and words of counters are 64-bit
and masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, float64
from numpy.typing import ArrayLike

from streamkern.backends.base import (
    ANGULAR_KINDS,
    RADIAL_KINDS,
    Profile,
    check_manhattan,
    check_row_ids,
    coincident,
    magnitudes,
    radial_formula,
    wide,
)
from streamkern.backends.device import NARROW, NARROW_OUTPUTS
from streamkern.errors import UsageError
from streamkern.rng import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL, seed_words
from streamkern.types import Array, IntArray

_TILE = 32  # rows of the other side in shared memory
_BLOCKS = 1024  # thread blocks that keep any card busy; the longer side is cut into about this many

u32, u64, i64, f32, f64 = np.uint32, np.uint64, np.int64, np.float32, np.float64

_M0, _M1 = map(u64, PHILOX_MULTIPLIERS)
_W0, _W1 = map(u64, PHILOX_WEYL)
_LOW, _WORD = u64(0xFFFFFFFF), u64(32)
_NINE, _EIGHTH_TURN, _QUARTER, _THREE, _ONE, _ZERO = u64(9), u64(1 << 29), u64(30), u64(3), u64(1), u64(0)
_ANGLE_UNIT = f32(2 * math.pi / 2**32)
_UNIFORM_UNIT = f32(2.0**-23)
_HALF, _MINUS_TWO = f32(0.5), f32(-2)


# ------------------------------------------------------------------------------------------------------------- noise


@cuda.jit(device=True)
def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Apply Philox4x32-10 to one counter; words are 64-bit numbers with zero upper halves."""
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = ((p1 >> _WORD) ^ c1 ^ k0) & _LOW, p1 & _LOW, ((p0 >> _WORD) ^ c3 ^ k1) & _LOW, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@cuda.jit(device=True)
def _box_muller(x: Any, y: Any) -> Any:
    """Return two normals from two words, as defined by ``rng.normal_rows``."""
    radius = math.sqrt(_MINUS_TWO * math.log((f32(x >> _NINE) + _HALF) * _UNIFORM_UNIT))
    # The angle is a number of quarter turns plus at most an eighth of a turn, exact in float32.
    quarter = ((y + _EIGHTH_TURN) & _LOW) >> _QUARTER
    r = f32(i64(y) - (i64(quarter) << i64(30))) * _ANGLE_UNIT
    if y >= (_LOW - _EIGHTH_TURN + _ONE):  # the last eighth belongs to the next turn
        r = f32(i64(y) - i64(1 << 32)) * _ANGLE_UNIT
    sine, cosine = math.sin(r), math.cos(r)
    if quarter == _ZERO:
        return radius * cosine, radius * sine
    if quarter == _ONE:
        return -radius * sine, radius * cosine
    if quarter == _THREE:
        return radius * sine, -radius * cosine
    return -radius * cosine, -radius * sine


@cache
def _assembler(number: Any) -> Any:
    """Return a kernel with a thread for four columns of a row, which share a counter, scaled in ``number``."""

    @cuda.jit
    def assemble(
        raw: Any, index: Any, out: Any, scale: Any, offset: Any, ids: Any, copies: Any, k0: Any, k1: Any, sigma: Any,
        noisy: Any,
    ) -> None:  # fmt: skip
        first, start = cuda.grid(2)
        across, down = cuda.gridsize(2)
        n, d = out.shape
        for i in range(start, n, down):
            row = index[i]
            for block in range(first, (d + 3) // 4, across):
                column = 4 * block
                for j in range(column, min(column + 4, d)):
                    out[i, j] = f32(number(raw[row, j]) * scale[j] + offset[j])
                if noisy:
                    id_ = u64(ids[i])
                    c0, c1, c2, c3 = _philox(u64(block), id_ & _LOW, id_ >> _WORD, u64(copies[i]) & _LOW, k0, k1)
                    a, b = _box_muller(c0, c1)
                    out[i, column] += sigma * a
                    if column + 1 < d:
                        out[i, column + 1] += sigma * b
                    if column + 2 < d:
                        a, b = _box_muller(c2, c3)
                        out[i, column + 2] += sigma * a
                        if column + 3 < d:
                            out[i, column + 3] += sigma * b

    return assemble


# ------------------------------------------------------------------------------------------------------ norms, check


@cache
def _row_norms(threads: int) -> Any:
    """Return a kernel with a block for each row, which sums in float64 in an order that depends on the width alone."""

    @cuda.jit
    def row_norms(X: Any, out: Any) -> None:
        sums = cuda.shared.array(threads, float64)
        thread, d = cuda.threadIdx.x, X.shape[1]
        for i in range(cuda.blockIdx.x, X.shape[0], cuda.gridDim.x):
            total = 0.0
            for j in range(thread, d, threads):
                x = np.float64(X[i, j])
                total += x * x
            sums[thread] = total
            cuda.syncthreads()
            step = threads // 2
            while step > 0:
                if thread < step:
                    sums[thread] += sums[thread + step]
                cuda.syncthreads()
                step //= 2
            if thread == 0:
                out[i] = sums[0]
            cuda.syncthreads()

    return row_norms


@cuda.jit
def _first_bad_row(X: Any, first: Any) -> None:
    """Write the first row with a NaN or an infinity to ``first``, which is initially the number of rows."""
    first_column, start = cuda.grid(2)
    across, down = cuda.gridsize(2)
    for i in range(start, X.shape[0], down):
        for j in range(first_column, X.shape[1], across):
            if math.isnan(X[i, j]) or math.isinf(X[i, j]):
                cuda.atomic.min(first, 0, i)


# ------------------------------------------------------------------------------------------- profiles, angles, waves

sideD_DISTANCES = -1
_GAUSSIAN, _CAUCHY, _EXPONENTIAL_POWER = (RADIAL_KINDS.index(k) for k in ("gaussian", "cauchy", "exponential_power"))


@cuda.jit(device=True)
def _profile(s: Any, kind: Any, a: Any, b: Any, c: Any, zero: Any, one: Any, tiny: Any) -> Any:
    """Return a radial kernel of a squared distance, see ``radial_coefficients``; 0 if it would be subnormal."""
    if kind == sideD_DISTANCES:
        return s
    if kind == _GAUSSIAN:
        value = math.exp(-(a * s))
    elif kind == _CAUCHY:
        value = one / (one + a * s)
    elif kind == _EXPONENTIAL_POWER:
        value = math.exp(-math.pow(a * s, b))
    else:
        t = math.sqrt(a * s)
        value = (one + t * (b + t * c)) * math.exp(-t)
    return zero if value < tiny else value


@cuda.jit
def _radial(
    S: Any, x_norms: Any, z_norms: Any, kind: Any, ready: Any, floor: Any, a: Any, b: Any, c: Any, zero: Any, one: Any,
    tiny: Any,
) -> None:  # fmt: skip
    first, start = cuda.grid(2)
    across, down = cuda.gridsize(2)
    for i in range(start, S.shape[0], down):
        for j in range(first, S.shape[1], across):
            s = S[i, j]
            if not ready:
                size = x_norms[i] + z_norms[j]
                squared = size - (s + s)
                s = zero if squared < floor * size else squared  # with this order of the comparison, a NaN stays a NaN
            S[i, j] = _profile(s, kind, a, b, c, zero, one, tiny)


@cache
def _manhattan(number: Any, side: int) -> Any:
    """Return a kernel with a thread for each pair, in square blocks that share ``side`` rows, centers and features."""

    @cuda.jit
    def manhattan(X: Any, Z: Any, out: Any, zero: Any) -> None:
        of_x = cuda.shared.array((side, side + 1), number)
        of_z = cuda.shared.array((side, side + 1), number)
        across, down = cuda.threadIdx.x, cuda.threadIdx.y
        n, d = X.shape
        for row in range(cuda.blockIdx.y * side, n, cuda.gridDim.y * side):
            for column in range(cuda.blockIdx.x * side, Z.shape[0], cuda.gridDim.x * side):
                total = zero
                for start in range(0, d, side):
                    k = start + across
                    of_x[down, across] = X[row + down, k] if row + down < n and k < d else zero
                    of_z[down, across] = Z[column + down, k] if column + down < Z.shape[0] and k < d else zero
                    cuda.syncthreads()
                    for k in range(side):
                        total += abs(of_x[down, k] - of_z[across, k])
                    cuda.syncthreads()
                if row + down < n and column + across < Z.shape[0]:
                    out[row + down, column + across] = total

    return manhattan


_ARCCOS_0, _ARCCOS_1, _ARCCOS_2, _NTK = range(len(ANGULAR_KINDS))


@cuda.jit
def _angular(
    S: Any, x_norms: Any, z_norms: Any, x_size: Any, z_size: Any, kind: Any, depth: Any, zero: Any, one: Any, pi: Any
) -> None:
    first, start = cuda.grid(2)
    across, down = cuda.gridsize(2)
    for i in range(start, S.shape[0], down):
        for j in range(first, S.shape[1], across):
            u = zero
            if x_norms[i] > zero and z_norms[j] > zero:
                u = S[i, j] / math.sqrt(x_norms[i]) / math.sqrt(z_norms[j])
            u = min(max(u, -one), one)
            tangent = u
            for _ in range(depth):
                rest = one - math.acos(u) / pi
                sine = math.sqrt((one - u) * (one + u)) / pi
                if kind == _ARCCOS_0:
                    u = rest
                elif kind == _ARCCOS_2:
                    u = u * sine + rest * (one + (u * u + u * u)) / (one + one + one)
                else:
                    u = sine + u * rest
                    tangent = u + tangent * rest
                u = min(max(u, -one), one)
            S[i, j] = (tangent if kind == _NTK else u) * x_size[i] * z_size[j]


@cuda.jit
def _cosines(S: Any, phases: Any, scale: Any, half: Any, turn: Any) -> None:
    first, start = cuda.grid(2)
    across, down = cuda.gridsize(2)
    for i in range(start, S.shape[0], down):
        for j in range(first, S.shape[1], across):
            turns = S[i, j] + phases[j]
            S[i, j] = scale * math.cos(turn * (turns - math.floor(turns + half)))


# ------------------------------------------------------------------------------------------- the fused narrow product


@cuda.jit
def _signed_sums(P: Any, X: Any, Z: Any, out: Any, zero: Any) -> None:
    first, start = cuda.grid(2)
    across, down = cuda.gridsize(2)
    for i in range(start, out.shape[0], down):
        for k in range(first, out.shape[1], across):
            x, total = X[i, k], zero
            for j in range(Z.shape[0]):
                difference = x - Z[j, k]
                if difference > zero:
                    total += P[i, j]
                elif difference < zero:
                    total -= P[i, j]
            out[i, k] = total


@cache
def _narrow(d: int, outputs: int, kind: int, threads: int, absolute: bool = False) -> Any:
    """Return a kernel for out[split] = k(A, B[split]) W[split]: a thread for each row of A, B in shared memory.

    Distances are sums of squared, or ``absolute``, differences, without cancellation. Kernel values are not stored.
    """

    @cuda.jit
    def product(
        A: Any, B: Any, W: Any, out: Any, share: Any, a: Any, b: Any, c: Any, zero: Any, one: Any, tiny: Any
    ) -> None:
        rows = cuda.shared.array((_TILE, d), float32)
        weights = cuda.shared.array((_TILE, outputs), float32)
        mine = cuda.local.array(d, float32)
        sums = cuda.local.array(outputs, float32)
        thread, split = cuda.threadIdx.x, cuda.blockIdx.y
        i = cuda.blockIdx.x * threads + thread
        inside = i < A.shape[0]
        for k in range(d):
            mine[k] = A[i, k] if inside else zero
        for o in range(outputs):
            sums[o] = zero
        stop = min(B.shape[0], (split + 1) * share)
        for start in range(split * share, stop, _TILE):
            held = min(_TILE, stop - start)
            cuda.syncthreads()
            for e in range(thread, held * d, threads):
                rows[e // d, e % d] = B[start + e // d, e % d]
            for e in range(thread, held * outputs, threads):
                weights[e // outputs, e % outputs] = W[start + e // outputs, e % outputs]
            cuda.syncthreads()
            for j in range(held):
                squared = zero
                for k in range(d):
                    difference = mine[k] - rows[j, k]
                    squared += abs(difference) if absolute else difference * difference
                value = _profile(squared, kind, a, b, c, zero, one, tiny)
                for o in range(outputs):
                    sums[o] += value * weights[j, o]
        if inside:
            for o in range(outputs):
                out[split, i, o] = sums[o]

    return product


# ------------------------------------------------------------------------------------------------------- the backend


class CudaBackend:
    """The loops of ``Backend`` on arrays of a device, and ``narrow``. In the simulator these are NumPy arrays.

    A subclass defines how arrays are created, copied and passed to Numba, and the stream of the kernels.
    """

    name = "cuda"
    threads = 128
    """Threads of a block whose threads cooperate: a power of two."""
    side = 16
    """Threads along each axis of a block for L1 distances."""
    tile = (32, 4)
    """Columns and rows of a block whose threads are independent."""
    grid = (65535, 65535)
    """Most blocks along each axis."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a new array of the device."""
        return np.empty(shape, dtype)

    def put(self, array: Array) -> Any:
        """Copy an array of the host to the device; return an array of the device unchanged."""
        return np.asarray(array)

    def _seen(self, array: Any) -> Any:
        """Return an array of the device in the form that Numba accepts."""
        return array

    def _stream(self) -> Any:
        return 0

    def _launch(self, kernel: Any, grid: Any, threads: Any, *args: Any) -> None:
        seen = [self._seen(a) if getattr(a, "ndim", 0) else a for a in args]
        kernel[grid, threads, self._stream()](*seen)

    def _over(self, kernel: Any, shape: tuple[int, ...], *args: Any) -> None:
        """Run a kernel over the columns (x) and rows (y) of a matrix."""
        if shape[0] and shape[1]:
            (x, y), (across, down) = self.tile, self.grid
            self._launch(kernel, (min(across, -(-shape[1] // x)), min(down, -(-shape[0] // y))), self.tile, *args)

    def assemble(self, raw: Any, index: IntArray, out: Any, *, scale: ArrayLike, offset: ArrayLike) -> None:
        n = len(index)
        nothing: Any = np.zeros(n, np.int64)
        self._assemble(raw, index, out, scale, offset, nothing, nothing, 0, 0.0, False)

    def add_noise(self, out: Any, row_ids: IntArray, *, copies: int | IntArray, seed: int, sigma: float) -> None:
        here = np.arange(len(out))
        self.assemble_noisy(
            out, here, out, scale=1, offset=-0.0, row_ids=row_ids, copies=copies, seed=seed, sigma=sigma
        )

    def assemble_noisy(
        self,
        raw: Any,
        index: IntArray,
        out: Any,
        *,
        scale: ArrayLike,
        offset: ArrayLike,
        row_ids: IntArray,
        copies: int | IntArray,
        seed: int,
        sigma: float,
    ) -> None:
        check_row_ids(row_ids, len(out))
        of_row: Any = np.broadcast_to(np.asarray(copies, dtype=np.int64), (len(out),))
        self._assemble(raw, index, out, scale, offset, np.asarray(row_ids), of_row, seed, sigma, True)

    def _assemble(
        self, raw: Any, index: Any, out: Any, scale: Any, offset: Any, ids: Any, copies: Any, seed: int, sigma: float,
        noisy: bool,
    ) -> None:  # fmt: skip
        n, d = out.shape
        if raw.ndim != 2 or raw.shape[1] != d or len(index) != n:
            raise UsageError(
                f"Cannot gather {len(index)} rows of an array of shape {raw.shape} into one of shape {out.shape}.",
                where="out",
                expected=f"an output of shape ({len(index)}, {raw.shape[-1]})",
            )
        number = f64 if wide(raw.dtype) else f32
        spread = [self.put(np.ascontiguousarray(np.broadcast_to(np.asarray(v, number), (d,)))) for v in (scale, offset)]
        rows = [self.put(np.ascontiguousarray(v, dtype=np.int64)) for v in (index, ids, copies)]
        low, high = (u64(word) for word in seed_words(seed))
        self._over(
            _assembler(number), (n, -(-d // 4)), raw, rows[0], out, *spread, rows[1], rows[2], low, high, f32(sigma),
            noisy,
        )  # fmt: skip

    def finite_rows(self, X: Any) -> int:
        first = self.put(np.full(1, len(X), np.int64))
        self._over(_first_bad_row, X.shape, X, first)
        row = int(first[0])
        return -1 if row == len(X) else row

    def row_norms(self, X: Any) -> Any:
        if X.dtype not in (np.float32, np.float64):
            raise UsageError(f"Row norms of {X.dtype} values.", where="X", expected="float32 or float64")
        out = self.empty((len(X),), X.dtype)
        if len(X):
            self._launch(_row_norms(self.threads), min(len(X), self.grid[0]), self.threads, X, out)
        return out

    def manhattan(self, X: Any, Z: Any, out: Any) -> None:
        check_manhattan(X, Z, out)
        if out.shape[0] and out.shape[1]:
            number = float32 if X.dtype == np.float32 else float64
            grid = tuple(
                min(most, -(-size // self.side)) for most, size in zip(self.grid, out.shape[::-1], strict=True)
            )
            self._launch(_manhattan(number, self.side), grid, (self.side, self.side), X, Z, out, X.dtype.type(0))

    def signed_sums(self, P: Any, X: Any, Z: Any, out: Any) -> None:
        check_manhattan(X, Z, P)
        self._over(_signed_sums, out.shape, P, X, Z, out, X.dtype.type(0))

    def radial(self, S: Any, x_norms: Any, z_norms: Any, kind: str | Profile, params: Mapping[str, float]) -> None:
        _require_fit(S, x_norms, z_norms)
        code, coefficients, ready = sideD_DISTANCES, (0.0, 0.0, 0.0), False
        if isinstance(kind, str):
            formula, coefficients, ready = radial_formula(kind, params)
            code = RADIAL_KINDS.index(formula)
        floor = S.dtype.type(coincident(S.dtype))
        self._over(_radial, S.shape, S, x_norms, z_norms, code, ready, floor, *_numbers(S, *coefficients))
        if not isinstance(kind, str):
            S[...] = kind(S)

    def angular(self, S: Any, x_norms: Any, z_norms: Any, kind: str, depth: int) -> None:
        if kind not in ANGULAR_KINDS or depth < 1:
            raise UsageError(
                f"Unknown angular kernel {kind!r} of depth {depth}.",
                where="kind, depth",
                expected=f"one of {', '.join(ANGULAR_KINDS)}, of depth 1 or more",
            )
        _require_fit(S, x_norms, z_norms)
        sizes = [magnitudes(kind, depth, norms) for norms in (x_norms, z_norms)]
        one = S.dtype.type
        self._over(
            _angular, S.shape, S, x_norms, z_norms, *sizes, ANGULAR_KINDS.index(kind), depth, one(0), one(1),
            one(math.pi),
        )  # fmt: skip

    def cosines(self, S: Any, phases: Any, scale: float) -> None:
        if S.ndim != 2 or phases.shape != S.shape[1:]:
            raise UsageError(
                f"Phases of shape {phases.shape} do not fit a tile of shape {S.shape}.",
                where="phases",
                expected="shape (S.shape[1],)",
            )
        one = S.dtype.type
        self._over(_cosines, S.shape, S, phases, one(scale), one(0.5), one(2 * math.pi))

    def narrow(self, A: Any, B: Any, W: Any, kind: str, params: Mapping[str, float]) -> Any:
        """Return k(A, B) W for narrow rows, without storing kernel values.

        Args:
            A: shape (m, d), float32, d <= ``NARROW``.
            B: shape (n, d).
            W: shape (n, c), c <= ``NARROW_OUTPUTS``.
            kind: one of ``RADIAL_KINDS``.
            params: as in ``radial``.

        Returns:
            shape (m, c). Sums over n are split in a way that depends on m and n alone.
        """
        (m, d), (n, c) = A.shape, W.shape
        assert d <= NARROW and c <= NARROW_OUTPUTS  # noqa: PT018
        across = -(-m // self.threads)
        share = -(-max(1, n) // max(1, min(_BLOCKS // max(1, across), -(-n // _TILE))))
        share = -(-share // _TILE) * _TILE
        splits = max(1, -(-n // share))
        out = self.empty((splits, m, c), np.float32)
        formula, coefficients, absolute = radial_formula(kind, params)
        numbers = _numbers(A, *coefficients)
        if m:
            kernel = _narrow(d, c, RADIAL_KINDS.index(formula), self.threads, absolute)
            self._launch(kernel, (across, splits), self.threads, A, B, W, out, share, *numbers)
        return out.sum(axis=0)


def as_numba(array: Any) -> Any:
    """Return a device array in the form that Numba accepts, without waiting for the stream that computes it."""
    return cuda.as_cuda_array(array, sync=False)


def numba_stream(pointer: int) -> Any:
    """Return Numba's handle of another library's stream."""
    return cuda.external_stream(pointer)


def target() -> str:
    """Return the name of the kernels' compiler: the numba-cuda package if installed, else Numba's own target."""
    return "numba-cuda" if "numba_cuda" in str(cuda.__file__) else "Numba's bundled CUDA target"


def _numbers(S: Any, a: float, b: float, c: float) -> tuple[Any, ...]:
    """Return the coefficients, zero, one and the smallest normal number, in the type of S."""
    number: Callable[[float], Any] = S.dtype.type
    return number(a), number(b), number(c), number(0), number(1), np.finfo(S.dtype).tiny


def _require_fit(S: Any, x_norms: Any, z_norms: Any) -> None:
    if S.ndim != 2 or (len(x_norms), len(z_norms)) != S.shape:
        raise UsageError(
            f"Norms of {len(x_norms)} and {len(z_norms)} rows do not fit a tile of shape {S.shape}.",
            where="x_norms, z_norms",
            expected="S of shape (len(x_norms), len(z_norms))",
        )
