"""Compiled loops of the CPU backend, vectorised by LLVM, and the functions they call.

Three rules hold for every loop here. No fast-math: operations, also fused multiply-adds, have the order of the source,
so bits do not depend on the vector width. No branch, conversion or library call without a vector form in an innermost
loop: exponential, logarithm, sine and cosine are polynomials, with the exponent's bits set directly. No compilation at
import: a loop is compiled, or read from Numba's cache, at its first call with a dtype.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, overload

from streamkern.cpu.compiled import OPTIONS, loop, rows, vector
from streamkern.cpu.gemm import VECTORS, inner_loop
from streamkern.engine.elementwise import ANGULAR_KINDS, RADIAL_KINDS, coincident
from streamkern.rng import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL

f32, u32, u64, i32 = np.float32, np.uint32, np.uint64, np.int32

# ------------------------------------------------------------------------------------------------------- intrinsics


def _bitcast(given: Any, made: Any, kind: Any) -> Any:
    @intrinsic
    def cast(typingctx: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], kind)

        return made(given), generate

    return cast


bits_of = _bitcast(types.float32, types.uint32, ir.IntType(32))
"""Function of a float32: its bits as uint32."""

of_bits = _bitcast(types.uint32, types.float32, ir.FloatType())
"""Function of bits: the float32 that has them."""

_bits64 = _bitcast(types.float64, types.uint64, ir.IntType(64))
_from_bits64 = _bitcast(types.uint64, types.float64, ir.DoubleType())


@intrinsic
def dense_row(typingctx: Any, row: Any) -> Any:
    """Tell the compiler that one row of a row-strided array is contiguous, which the caller has checked."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return row.copy(layout="C")(row), generate


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a b + c, rounded once if the processor has an instruction for it, else twice."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args) if VECTORS else builder.fadd(builder.fmul(args[0], args[1]), args[2])

    return a(a, a, a), generate


@intrinsic
def widest(typingctx: Any) -> Any:
    """Make the loops of a function use the widest vectors; on some processors LLVM prefers half the width."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # llvmlite has no attributes with values
        return context.get_dummy_value()

    return types.void(), generate


def _by_precision(single: Any, double: Any) -> Any:
    """Return the function, for compiled code, that is ``single`` of float32 numbers and ``double`` of float64."""

    def function(*numbers: Any) -> Any: ...

    @overload(function, strict=False)
    def choose(*numbers: Any) -> Any:
        chosen = single if numbers[0] == types.float32 else double
        return lambda *numbers: chosen(*numbers)

    return function


# ----------------------------------------------------------------------------------------- float32 functions on bits

# Minimax fits (Lawson's iteration on the extrema of Chebyshev polynomials), each in the variable and on the interval
# that its function reduces to. The error given is that of the polynomial in exact arithmetic, relative to the result.
_EXP = (f32(0.5000000095), f32(0.1666651884), f32(0.0416662058), f32(0.008368889459), f32(0.001395049127))  # 3.1e-9
_EXP2 = (
    *(f32(0.6931471825), f32(0.2402264774), f32(0.05550359935)),
    *(f32(0.009618505836), f32(0.001339080627), f32(0.0001532646274)),
)  # 3.0e-9
_LOG = (
    *(f32(0.3333331673), f32(-0.2500081041), f32(0.2000228631), f32(-0.1662455392)),
    *(f32(0.1418119102), f32(-0.1312875524), f32(0.1288165437), f32(-0.07859618716)),
)  # 5.9e-9
_SIN = (f32(-0.1666665494), f32(0.008332178143), f32(-0.0001951729857))  # 3.6e-9
_COS = (f32(0.04166664687), f32(-0.001388736751), f32(2.443845117e-05))  # 9.5e-11
_ASIN = (f32(0.1666675248), f32(0.07495297638), f32(0.04547037664), f32(0.024179511), f32(0.04216631518))  # 5.9e-9

_LOG2_E = f32(1 / math.log(2))
_LN2_HIGH = f32(355 / 512)  # nine bits: a product with a whole number below 2**15 is exact
_LN2_LOW = f32(math.log(2) - 355 / 512)
SHIFTER = f32(1.5 * 2**23)  # adding it leaves the nearest whole number in the low bits
_SHIFTER_BITS = u32(SHIFTER.view(u32))
_TINY = np.finfo(f32).tiny
_INFINITY = f32(np.inf)
_SQRT_HALF_BITS = u32(f32(math.sqrt(0.5)).view(u32))
HALF_PI = f32(math.pi / 2)


@numba.njit(**OPTIONS)
def _reduced(x: Any, log2_e: Any, high: Any, low: Any, shifter: Any) -> Any:
    """Return n plus the shifter, and ``r = x - n ln 2``, for the whole number n nearest to ``x / ln 2``."""
    shifted = fma(x, log2_e, shifter)
    n = shifted - shifter
    return shifted, fma(-n, low, fma(-n, high, x))


@numba.njit(**OPTIONS)
def exp32(x: Any) -> Any:
    """Return the exponential of a float32 ``x <= 0``: 1 at 0, 0 if it would be subnormal, NaN for NaN."""
    shifted, r = _reduced(x, _LOG2_E, _LN2_HIGH, _LN2_LOW, SHIFTER)
    r2 = r * r
    q = fma(r2, fma(r2, _EXP[4], fma(r, _EXP[3], _EXP[2])), fma(r, _EXP[1], _EXP[0]))
    power = of_bits(u32((bits_of(shifted) - _SHIFTER_BITS + u32(127)) << u32(23)))  # 2**n
    y = (f32(1) + fma(r2, q, r)) * power
    return f32(0) if x < f32(-87.33654) else y  # the logarithm of the smallest normal number


@numba.njit(**OPTIONS)
def halvings32(t: Any) -> Any:
    """Return 2**-t of a float32 ``t >= 0``: 1 at 0, 0 if it would be subnormal, NaN for NaN.

    It needs fewer instructions than ``exp32``, because t less the nearest whole number is exact.
    """
    shifted = SHIFTER - t
    r = -(t + (shifted - SHIFTER))
    q = fma(r, fma(r, fma(r, fma(r, fma(r, _EXP2[5], _EXP2[4]), _EXP2[3]), _EXP2[2]), _EXP2[1]), _EXP2[0])
    power = of_bits(u32((bits_of(shifted) - _SHIFTER_BITS + u32(127)) << u32(23)))  # 2**n
    y = fma(r, q, f32(1)) * power
    return f32(0) if t > f32(126) else y  # 2**-126 is the smallest normal number


_SERIES = tuple(1 / math.factorial(k) for k in range(2, 14))  # of exp, to 4e-18 for |r| <= ln 2 / 2
_LOG2_E_64 = 1 / math.log(2)
_LN2_HIGH_64 = float.fromhex("0x1.62e42fep-1")  # 28 bits: a product with a whole number below 2**24 is exact
_LN2_LOW_64 = float.fromhex("0x1.f473de6af278fp-30")  # ln 2 minus the first part
_SHIFTER_64 = 1.5 * 2**52
_SHIFTER_BITS_64 = u64(np.float64(_SHIFTER_64).view(u64))


@numba.njit(**OPTIONS)
def exp64(x: Any) -> Any:
    """Return the exponential of a float64 ``x <= 0``: 1 at 0, 0 if it would be subnormal, NaN for NaN."""
    shifted, r = _reduced(x, _LOG2_E_64, _LN2_HIGH_64, _LN2_LOW_64, _SHIFTER_64)
    r2 = r * r
    r4 = r2 * r2
    low = fma(r2, fma(r, _SERIES[3], _SERIES[2]), fma(r, _SERIES[1], _SERIES[0]))
    middle = fma(r2, fma(r, _SERIES[7], _SERIES[6]), fma(r, _SERIES[5], _SERIES[4]))
    high = fma(r2, fma(r, _SERIES[11], _SERIES[10]), fma(r, _SERIES[9], _SERIES[8]))
    q = fma(r4, fma(r4, high, middle), low)
    power = _from_bits64(u64((_bits64(shifted) - _SHIFTER_BITS_64 + u64(1023)) << u64(52)))  # 2**n
    y = (1.0 + fma(r2, q, r)) * power
    return 0.0 if x < -708.39641 else y


@numba.njit(**OPTIONS)
def log32(x: Any) -> Any:
    """Return the logarithm of a positive normal float32."""
    shifted = u32(bits_of(x) - _SQRT_HALF_BITS)
    e = f32(i32(i32(shifted) >> i32(23)))
    f = of_bits(u32((shifted & u32(0x7FFFFF)) + _SQRT_HALF_BITS)) - f32(1)  # x = 2**e (1 + f), √½ <= 1 + f < √2
    f2 = f * f
    low = (_LOG[0] + f * _LOG[1]) + f2 * (_LOG[2] + f * _LOG[3])
    high = (_LOG[4] + f * _LOG[5]) + f2 * (_LOG[6] + f * _LOG[7])
    q = low + (f2 * f2) * high
    return e * _LN2_HIGH + (f + (f * (f2 * q) - f32(0.5) * f2 + e * _LN2_LOW))


@numba.njit(**OPTIONS)
def power32(x: Any, y: Any) -> Any:
    """Return x**y of a float32 ``x >= 0`` with 0 < y <= 1; a subnormal x counts as 0."""
    power = exp32(y * log32(x))  # computed for every x, so that the choice is a vector blend, not a branch
    return power if (x >= _TINY) & (x < _INFINITY) else x


@numba.njit(**OPTIONS)
def acos32(x: Any) -> Any:
    """Return the arc cosine of a float32 in [-1, 1]."""
    size = abs(x)
    outer = size > f32(0.5)
    z = (f32(0.5) - f32(0.5) * size) if outer else size * size  # acos x = 2 asin √((1 − x)/2) near 1
    s = math.sqrt(z)
    z2 = z * z
    asin = s + (s * z) * ((_ASIN[0] + z * _ASIN[1]) + z2 * ((_ASIN[2] + z * _ASIN[3]) + z2 * _ASIN[4]))
    inner = HALF_PI - (asin if x > f32(0) else -asin)
    return ((asin + asin) if x > f32(0) else f32(math.pi) - (asin + asin)) if outer else inner


@numba.njit(**OPTIONS)
def sine_cosine32(r: Any) -> Any:
    """Return sine and cosine of a float32 angle of at most an eighth of a turn."""
    z = r * r
    sine = r + r * (z * (_SIN[0] + z * (_SIN[1] + z * _SIN[2])))
    cosine = f32(1) - f32(0.5) * z + (z * z) * (_COS[0] + z * (_COS[1] + z * _COS[2]))
    return sine, cosine


# ------------------------------------------------------------------------------------------------------------- noise

_M0, _M1 = map(u64, PHILOX_MULTIPLIERS)
_W0, _W1 = map(u32, PHILOX_WEYL)
_ANGLE_UNIT = f32(2 * math.pi / 2**32)
_UNIFORM_UNIT = f32(2.0**-23)


@numba.njit(**OPTIONS)
def _count(words: Any, ids: Any, copies: Any, start: int, stop: int, blocks: Any) -> None:
    """Write the counters of rows start to stop: (column block, row id low, row id high, copy)."""
    w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
    t = u64(0)  # an unsigned index needs no test for negative values
    for i in range(start, stop):
        low, high, copy = u32(ids[i]), u32(ids[i] >> 32), u32(copies[i])
        for j in range(u64(blocks)):
            w0[t + j], w1[t + j], w2[t + j], w3[t + j] = u32(j), low, high, copy
        t += u64(blocks)


@numba.njit(**OPTIONS)
def _philox(words: Any, m: int, k0: Any, k1: Any) -> None:
    """Apply Philox4x32-10 to the first m counters of ``words`` (4, batch), in place."""
    widest()
    # In 64-bit lanes, with one multiplication for each instruction. Only its operand is masked to 32 bits; the rest at
    # the end.
    w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
    for t in range(m):
        c0, c1, c2, c3 = u64(w0[t]), u64(w1[t]), u64(w2[t]), u64(w3[t])
        a, b = k0, k1
        for _ in range(PHILOX_ROUNDS):
            p0 = (c0 & u64(0xFFFFFFFF)) * _M0
            p1 = (c2 & u64(0xFFFFFFFF)) * _M1
            c0, c1, c2, c3 = (p1 >> u64(32)) ^ c1 ^ u64(a), p1, (p0 >> u64(32)) ^ c3 ^ u64(b), p0
            a, b = u32(a + _W0), u32(b + _W1)
        w0[t], w1[t], w2[t], w3[t] = u32(c0), u32(c1), u32(c2), u32(c3)


@numba.njit(**OPTIONS)
def _box_muller(x: Any, y: Any) -> Any:
    radius = math.sqrt(f32(-2) * log32((f32(i32(x >> u32(9))) + f32(0.5)) * _UNIFORM_UNIT))
    quarter = u32(u32(y + u32(0x20000000)) >> u32(30))  # quarter turns of the angle; an eighth at most remains
    r = f32(i32(u32(y - u32(quarter << u32(30))))) * _ANGLE_UNIT
    sine, cosine = sine_cosine32(r)
    odd = (quarter & u32(1)) != u32(0)
    along = sine if odd else cosine
    across = cosine if odd else sine
    along = of_bits(u32(bits_of(along) ^ (u32(u32(quarter + u32(1)) << u32(30)) & u32(0x80000000))))
    across = of_bits(u32(bits_of(across) ^ (u32(quarter << u32(30)) & u32(0x80000000))))
    return radius * along, radius * across


@numba.njit(**OPTIONS)
def _normals(words: Any, m: int, noise: Any) -> None:
    widest()
    w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
    for t in range(m):
        noise[4 * t], noise[4 * t + 1] = _box_muller(w0[t], w1[t])
        noise[4 * t + 2], noise[4 * t + 3] = _box_muller(w2[t], w3[t])


def _gathering(dtype: Any, number: Any = types.float32, *more: Any) -> Any:
    """Stored rows, the index of some, room for these in float32, scale and offset."""
    index = vector(types.int64)
    return types.void(rows(dtype, readonly=True), index, rows(types.float32), vector(number), vector(number), *more)


_NOISE = (vector(types.int64), vector(types.int64), types.uint32, types.uint32, types.float32)


@loop(lambda dtype: _gathering(dtype, types.float32, *_NOISE), types.uint8, types.float32)
def assemble_noisy(
    raw: Any, index: Any, out: Any, scale: Any, offset: Any, ids: Any, copies: Any, k0: Any, k1: Any, sigma: Any
) -> None:
    """Copy rows of ``raw`` by index, scale them and add noise."""
    n, d = out.shape
    blocks = (d + 3) // 4
    batch = 512  # counters in a batch: the buffers, 16 KiB, stay in the first-level cache
    # Several narrow rows, or a part of a wide row, share a batch of counters, so that vectors are full at any width.
    step = max(1, batch // max(1, blocks))
    words = np.empty((4, step * blocks), u32)
    noise = np.empty(4 * step * blocks, f32)
    for start in range(0, n, step):
        stop = min(n, start + step)
        _count(words, ids, copies, start, stop, blocks)
        counters = (stop - start) * blocks
        _philox(words, counters, k0, k1)
        _normals(words, counters, noise)
        for i in range(start, stop):
            row, source = dense_row(out[i]), dense_row(raw[index[i]])
            shift = u64(4 * blocks * (i - start))
            for j in range(u64(d)):
                row[j] = (f32(source[j]) * scale[j] + offset[j]) + sigma * noise[shift + j]


# ---------------------------------------------------------------------------------------------- gather, check, norms


@loop(_gathering, types.uint8, types.float32)
def assemble(raw: Any, index: Any, out: Any, scale: Any, offset: Any) -> None:
    """Copy rows of ``raw`` by index and scale them."""
    widest()
    n, d = out.shape
    for i in range(n):
        row, source = dense_row(out[i]), dense_row(raw[index[i]])
        for j in range(d):
            row[j] = f32(source[j]) * scale[j] + offset[j]


@loop(lambda dtype: _gathering(dtype, dtype), types.float64)
def assemble_wide(raw: Any, index: Any, out: Any, scale: Any, offset: Any) -> None:
    """Copy rows of ``raw`` by index, scaling them before rounding."""
    widest()
    n, d = out.shape
    for i in range(n):
        row, source = dense_row(out[i]), dense_row(raw[index[i]])
        for j in range(d):
            row[j] = f32(source[j] * scale[j] + offset[j])


@loop(lambda dtype: types.int64(rows(dtype, readonly=True), dtype), types.uint32, types.uint64)
def first_row_with_exponent(bits: Any, exponent: Any) -> Any:
    """Return the first row with an element whose exponent bits are all set: a NaN or an infinity."""
    n, d = bits.shape
    for i in range(n):
        row = dense_row(bits[i])
        found = 0
        for j in range(d):
            found |= (row[j] & exponent) == exponent
        if found:
            return i
    return -1


@loop(lambda dtype: types.void(rows(dtype, readonly=True), types.Array(dtype, 1, "C")), types.float32, types.float64)
def row_norms(X: Any, out: Any) -> None:
    """Compute squared norms of rows, summed in float64."""
    n, d = X.shape
    count = 64  # partial sums of a row, enough to hide the latency of additions
    lanes = np.empty(count, np.float64)
    used, whole = u64(min(count, d)), u64(d // count * count)
    for i in range(n):
        row = dense_row(X[i])
        for j in range(used):
            lanes[j] = 0.0
        for start in range(u64(0), whole, u64(count)):
            for j in range(u64(count)):
                x = np.float64(row[start + j])
                lanes[j] += x * x
        for j in range(u64(d) - whole):
            x = np.float64(row[whole + j])
            lanes[j] += x * x
        total = 0.0
        for j in range(used):
            total += lanes[j]
        out[i] = total


# ------------------------------------------------------------------------------------------------------ radial tiles

SQUARED_DISTANCES = -1
_LAPLACE, _GAUSSIAN, _CAUCHY, _EXPONENTIAL_POWER = (
    RADIAL_KINDS.index(k) for k in ("laplace", "gaussian", "cauchy", "exponential_power")
)


_exp = _by_precision(exp32, exp64)
_decay = _by_precision(halvings32, numba.njit(**OPTIONS)(lambda t: exp64(-t)))  # see ``radial_numbers``
_power = _by_precision(power32, numba.njit(**OPTIONS)(lambda x, y: x**y))


def radial_numbers(kind: int, coefficients: tuple[float, float, float], dtype: Any) -> Any:
    """Return the numbers of ``radial``: a, b, c, the squared distance that counts as 0, and a for ``_decay``."""
    a, b, c = coefficients
    base = 1.0
    if dtype == np.float32 and kind in (_LAPLACE, _GAUSSIAN):
        base = 1 / math.log(2) ** (2 if kind == _LAPLACE else 1)
    return np.array((a, b, c, coincident(dtype), a * base), dtype)


@loop(
    lambda dtype: types.void(rows(dtype), vector(dtype), vector(dtype), types.int64, vector(dtype), types.boolean),
    types.float32,
    types.float64,
)
def radial(S: Any, x_norms: Any, z_norms: Any, kind: Any, coefficients: Any, ready: Any) -> None:
    """Turn inner products, or distances if ``ready``, into values of a radial kernel, in place."""
    widest()
    zero, one = S.dtype.type(0), S.dtype.type(1)
    a, b, c, floor, decay = coefficients[0], coefficients[1], coefficients[2], coefficients[3], coefficients[4]
    for i in range(S.shape[0]):
        row = dense_row(S[i])
        # Two passes over a row that is in the first-level cache cost less than a compiled loop for every kind.
        if not ready:
            x_norm = x_norms[i]
            for j in range(S.shape[1]):
                size = x_norm + z_norms[j]
                squared = size - (row[j] + row[j])
                row[j] = zero if squared < floor * size else squared  # in this order a NaN stays a NaN
        if kind == SQUARED_DISTANCES:
            continue
        if kind == _GAUSSIAN:
            for j in range(S.shape[1]):
                row[j] = _decay(decay * row[j])
        elif kind == _CAUCHY:
            for j in range(S.shape[1]):
                row[j] = one / (one + a * row[j])
        elif kind == _EXPONENTIAL_POWER:
            for j in range(S.shape[1]):
                row[j] = _exp(-_power(a * row[j], b))
        elif kind == _LAPLACE:
            for j in range(S.shape[1]):
                row[j] = _decay(math.sqrt(decay * row[j]))
        else:
            for j in range(S.shape[1]):
                t = math.sqrt(a * row[j])
                row[j] = fma(t, fma(t, c, b), one) * _exp(-t)


_inner, _radial = inner_loop.inside, radial.inside


@loop(
    lambda dtype: types.void(
        rows(dtype, readonly=True), types.Array(dtype, 3, "C", readonly=True), rows(dtype),
        vector(dtype), vector(dtype), types.int64, vector(dtype),
    ),
    types.float32,
    types.float64,
)  # fmt: skip
def radial_products(X: Any, packed: Any, out: Any, x_norms: Any, z_norms: Any, kind: Any, coefficients: Any) -> None:
    """Compute a radial kernel for rows and packed centers: tile by tile, inner products and then ``radial``."""
    widest()
    n, p = out.shape
    # Of narrow rows a smaller tile keeps its values in the second-level cache.
    many, columns = (64, 512) if X.shape[1] <= 256 else (256, 2048)
    for i in range(0, n, many):
        for j in range(0, p, columns):
            tile = out[i : i + many, j : j + columns]
            _inner(X[i : i + many], packed, j // packed.shape[2], tile, False)
            _radial(tile, x_norms[i : i + many], z_norms[j : j + columns], kind, coefficients, False)


# ----------------------------------------------------------------------------------------------- angles and features

_ARCCOS_0, _ARCCOS_1, _ARCCOS_2, _NTK = range(len(ANGULAR_KINDS))


@numba.njit(**OPTIONS)
def _cosine32(turns: Any) -> Any:
    quarters = turns * f32(4)
    shifted = quarters + SHIFTER
    sine, cosine = sine_cosine32((quarters - (shifted - SHIFTER)) * HALF_PI)  # the difference is exact
    quarter = bits_of(shifted)
    value = sine if (quarter & u32(1)) != u32(0) else cosine
    return of_bits(u32(bits_of(value) ^ (u32(u32(quarter + u32(1)) << u32(30)) & u32(0x80000000))))


@numba.njit(**OPTIONS)
def _cosine64(turns: Any) -> Any:
    return math.cos(2 * math.pi * (turns - np.rint(turns)))


_acos = _by_precision(acos32, numba.njit(**OPTIONS)(lambda x: math.acos(x)))
_cosine = _by_precision(_cosine32, _cosine64)


@loop(
    lambda dtype: types.void(rows(dtype), *[vector(dtype)] * 4, types.int64, types.int64), types.float32, types.float64
)
def angular(S: Any, x_inverse: Any, z_inverse: Any, x_magnitude: Any, z_magnitude: Any, kind: Any, depth: Any) -> None:
    """Turn inner products into values of an angular kernel, in place."""
    widest()
    one, two = S.dtype.type(1), S.dtype.type(2)
    per_pi, third = S.dtype.type(1 / math.pi), S.dtype.type(1 / 3)
    tangent = np.empty(S.shape[1], S.dtype)
    for i in range(S.shape[0]):
        row, inverse, magnitude = dense_row(S[i]), x_inverse[i], x_magnitude[i]
        for j in range(S.shape[1]):
            u = (row[j] * inverse) * z_inverse[j]
            u = one if u > one else u
            row[j] = tangent[j] = -one if u < -one else u
        # One pass for each layer over a row in the first-level cache; each pass is one vector loop.
        for _ in range(depth):
            if kind == _ARCCOS_0:
                for j in range(S.shape[1]):
                    row[j] = one - _acos(row[j]) * per_pi
            elif kind == _ARCCOS_2:
                for j in range(S.shape[1]):
                    u = row[j]
                    sine, rest = math.sqrt((one - u) * (one + u)) * per_pi, one - _acos(u) * per_pi
                    u = u * sine + rest * ((one + two * (u * u)) * third)
                    row[j] = one if u > one else u
            else:
                for j in range(S.shape[1]):
                    u = row[j]
                    sine, rest = math.sqrt((one - u) * (one + u)) * per_pi, one - _acos(u) * per_pi
                    u = sine + u * rest
                    tangent[j] = u + tangent[j] * rest
                    row[j] = one if u > one else u
        if kind == _NTK:
            for j in range(S.shape[1]):
                row[j] = (tangent[j] * magnitude) * z_magnitude[j]
        else:
            for j in range(S.shape[1]):
                row[j] = (row[j] * magnitude) * z_magnitude[j]


@loop(lambda dtype: types.void(rows(dtype), vector(dtype), dtype), types.float32, types.float64)
def cosines(S: Any, phases: Any, scale: Any) -> None:
    """Compute cosines of angles in turns, in place."""
    widest()
    for i in range(S.shape[0]):
        row = dense_row(S[i])
        for j in range(S.shape[1]):
            row[j] = scale * _cosine(row[j] + phases[j])
