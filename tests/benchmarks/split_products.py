"""Products of float32 by six products of bfloat16 on a processor's tiles (AMX), against the engine's: rate and error.

    python -m tests.benchmarks.split_products [--d 784] [--rows 128] [--centers 2048] [--rounds 15]

A float32 number is the exact sum of three of bfloat16, x = x1 + x2 + x3, each the rest rounded to eight bits: x2 is at
most 2⁻⁸ and x3 at most 2⁻¹⁷ of x. Of the nine products, x2 y3, x3 y2 and x3 y3 together are at most about 2⁻²⁴ of x y,
as one rounding of float32; the other six are summed in float32. Without x1 y3, x2 y2 and x3 y1 as well, three products
would leave errors of up to 2⁻¹⁵, which is not float32's accuracy. The tiles multiply sixteen times as fast as vectors
of float32, so six products may take three eighths of the time.

A block of 32 x 32 sums stays in four tiles, so each tile that is loaded is used twice. Both sides read packed centers
and rows, and write a block of products; packing is not timed. Sides take turns.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from streamkern.cpu import gemm
from streamkern.cpu.alignment import aligned, aligned_rows

SIDE = 32
"""Rows and columns of a block of sums, and terms of a step."""

TILE = 1024  # bytes: sixteen rows of 64 bytes
STEP = 6 * TILE  # bytes of a step of 32 rows: two tiles for each of three parts
ORDER = ((2, 0), (1, 0), (1, 1), (0, 2), (0, 1), (0, 0))  # parts of rows and centers, the smallest products first
_SYSCALL, _REQUEST, _TILES = 158, 0x1023, 18  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)

_I8, _I64 = ir.IntType(8), ir.IntType(64)
_ANYWHERE = _I8.as_pointer()


@intrinsic
def _block(typingctx: Any, A: Any, B: Any, C: Any, row: Any, steps: Any) -> Any:
    """Write 32 x 32 sums to address C, whose rows are ``row`` bytes apart, from packed rows A and centers B."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        A, B, C, row, steps = args

        def call(name: str, *operands: Any) -> None:
            kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), operands)

        def load(tile: int, base: Any, offset: int) -> None:
            address = builder.inttoptr(builder.add(base, _I64(offset)), _ANYWHERE)
            call("tileloadd64", _I8(tile), address, _I64(64))

        for tile in range(4):
            call("tilezero", _I8(tile))
        with cgutils.for_range(builder, steps) as step:
            begin = builder.mul(step.index, _I64(STEP))
            here = [builder.add(base, begin) for base in (A, B)]
            held = [-1, -1]
            for parts in ORDER:
                for side, part in enumerate(parts):
                    if held[side] != part:
                        for half in range(2):
                            load(4 + 2 * side + half, here[side], (2 * part + half) * TILE)
                        held[side] = part
                for tile in range(4):
                    call("tdpbf16ps", _I8(tile), _I8(4 + tile // 2), _I8(6 + tile % 2))
        for tile in range(4):
            place = builder.add(C, builder.add(builder.mul(row, _I64(16 * (tile // 2))), _I64(64 * (tile % 2))))
            call("tilestored64", _I8(tile), builder.inttoptr(place, _ANYWHERE), row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def _configure(typingctx: Any, address: Any) -> Any:
    """Set the shapes of the tiles; release them if the address is 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with builder.if_else(builder.icmp_signed("==", args[0], _I64(0))) as (release, load):
            with release:
                kind = ir.FunctionType(ir.VoidType(), [])
                builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.tilerelease"), [])
            with load:
                kind = ir.FunctionType(ir.VoidType(), [_ANYWHERE])
                function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.ldtilecfg")
                builder.call(function, [builder.inttoptr(args[0], _ANYWHERE)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@numba.njit(nogil=True)
def products(A: Any, B: Any, C: Any, shapes: Any) -> None:
    """Write products of packed rows (n/32, steps, STEP) and centers (m/32, steps, STEP) to C (n, m)."""
    _configure(shapes.ctypes.data)
    steps = A.shape[1]
    for j in range(B.shape[0]):
        for i in range(A.shape[0]):
            place = C.ctypes.data + SIDE * (i * C.strides[0] + 4 * j)
            _block(A.ctypes.data + i * steps * STEP, B.ctypes.data + j * steps * STEP, place, C.strides[0], steps)
    _configure(0)


def shapes_of_tiles() -> np.ndarray:
    """The 64 bytes that ``ldtilecfg`` reads: eight tiles of sixteen rows of 64 bytes."""
    shapes = np.zeros(64, np.uint8)
    shapes[0] = 1
    shapes[16:32:2] = 64
    shapes[48:56] = 16
    return shapes


def parts(X: np.ndarray) -> list[np.ndarray]:
    """Three matrices of bfloat16, as their bits, whose sum is X (n, d), padded to whole steps."""
    rest = np.zeros((len(X), -(-X.shape[1] // SIDE) * SIDE), np.float32)
    rest[:, : X.shape[1]] = X
    found = []
    for _ in range(3):
        bits = rest.view(np.uint32)
        rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) & np.uint32(0xFFFF0000)
        found.append((rounded >> 16).astype(np.uint16))
        rest = rest - rounded.view(np.float32)
    assert not rest.any()
    return found


def packed(X: np.ndarray, right: bool) -> np.ndarray:
    """Rows (n, d) in blocks of 32 and steps of 32 terms, for the left or right factor: bytes (n/32, steps, STEP)."""
    split = np.stack(parts(X))
    n, k = split.shape[1:]
    if right:  # pairs of terms, column after column
        tiles = split.reshape(3, n // SIDE, 2, 16, k // SIDE, 16, 2).transpose(1, 4, 0, 2, 5, 3, 6)
    else:
        tiles = split.reshape(3, n // SIDE, 2, 16, k // SIDE, SIDE).transpose(1, 4, 0, 2, 3, 5)
    out = aligned((n // SIDE, k // SIDE, STEP), np.uint8)
    out.view(np.uint16).reshape(tiles.shape)[...] = tiles
    return out


def available() -> bool:
    """Return True if the processor has tiles of bfloat16 and the kernel lets this process use them."""
    if not llvm.get_host_cpu_features().get("amx-bf16", False):
        return False
    return ctypes.CDLL(None).syscall(_SYSCALL, _REQUEST, _TILES) == 0


def errors(found: np.ndarray, X: np.ndarray, Z: np.ndarray) -> tuple[float, float]:
    """Largest error over Σ |x z|, and the root of the mean square of both."""
    exact, size = X.astype(np.float64) @ Z.T, np.abs(X).astype(np.float64) @ np.abs(Z).T
    error = np.abs(found - exact)
    return float((error / size).max()), float(np.sqrt(np.square(error).mean() / np.square(size).mean()))


def main() -> None:
    """Print errors, then rates on one and on two threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=784)
    parser.add_argument("--rows", type=int, default=128, help="a multiple of 32")
    parser.add_argument("--centers", type=int, default=2048, help="a multiple of 32")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.rows % SIDE or options.centers % SIDE:
        parser.error(f"--rows and --centers are multiples of {SIDE}")
    if not available():
        sys.exit("This processor has no tiles of bfloat16, or the kernel does not let them be used.")
    rng = np.random.default_rng(0)
    X, Z = (rng.standard_normal((n, options.d), dtype=np.float32) for n in (options.rows, options.centers))
    A, B, shapes, centers = packed(X, False), packed(Z, True), shapes_of_tiles(), gemm.pack(Z)
    assert centers is not None
    outs = [aligned_rows(len(X), len(Z), np.float32) for _ in range(2)]
    sides: dict[str, Callable[[np.ndarray], Any]] = {
        "engine": lambda C: gemm.inner(X, centers, slice(0, len(Z)), C),
        "six bfloat16": lambda C: products(A, B, C, shapes),
    }
    for name, run in sides.items():
        run(outs[0])
        worst, usual = errors(outs[0], X, Z)
        print(f"{name:14} error at most {worst:.2e} of the sum of |x z|, {usual:.2e} in the mean square")
    with ThreadPoolExecutor(2) as pool:
        for threads in (1, 2):
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for turn in range(options.rounds):
                for name in list(sides) if turn % 2 else list(sides)[::-1]:
                    begun = time.perf_counter()
                    list(pool.map(sides[name], outs[:threads]))
                    seconds[name].append(time.perf_counter() - begun)
            ratios = [a / b for a, b in zip(seconds["engine"], seconds["six bfloat16"], strict=True)]
            rates = ", ".join(
                f"{name} {2e-9 * threads * X.size * len(Z) / min(times):.0f}" for name, times in seconds.items()
            )
            print(
                f"{threads} threads, GFLOP/s of float32 at best: {rates}; time of the engine over that of six products:"
                f" {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
