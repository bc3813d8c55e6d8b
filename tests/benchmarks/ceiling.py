"""A kernel block against its own floor, against plain NumPy and against PyTorch, one interleaved run a case.

    python -m tests.benchmarks.ceiling [--d 18 100 784 3072] [--c 1 10 100] [--threads 1 2] [--rounds 5] [--rows 4096]

The block is f(X) = exp(−‖x − z‖/σ) W for 4,096 rows against p = 10,000 centers, float32; with ``--gradient`` also what
training does with it, k(X, Z)ᵀ (f(X) − Y). Rows are dealt to the threads, and each computes its own with BLAS on one
thread, as a run does. Sides take turns and each round is a pair:

- gemm: the fastest of the machine's matrix products of this block alone, X Zᵀ by BLAS in whole rows of Z and in tiles,
  and by the engine. "Of the GEMM rate" is this over the block.
- elementwise: exp(−‖x − z‖/σ) from inner products in cache, alone.
- floor: gemm and elementwise and the product with W at the rate of the gemm, one after the other.
- numpy: the formula as one writes it, tiled by 256 rows.
- exp(-cdist) @ w, tiled: PyTorch, where it is installed; "tiled" is the best of several tile sizes and of two ways to
  get distances (cdist, or a product with the norms folded in and everything in place).

The first line says which kernels BLAS runs, and the end of a case how many cores other processes kept busy: where that
is not near 0, take ``--clock cpu --threads 1``, which times by the clock of the processor: others disturb by caches
and memory only. A case is one (d, c, threads): ``--d 18 --c 10`` takes seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

import streamkern as sk
from streamkern.cpu import gemm
from streamkern.data.row_order import Block
from streamkern.engine.base import CENTER_TILE, ROW_TILE
from streamkern.engine.packed_triangle import cuts
from streamkern.kernels import Expansion
from streamkern.resources import default_threads
from streamkern.solvers.contributions import Gradient
from tests.benchmarks.results import add_results, add_run
from tests.benchmarks.results import spread as summary
from tests.benchmarks.workers import watched

try:
    import torch
except ModuleNotFoundError:
    torch = None

SIGMA = 20.0
TILES = ((256, 2048), (512, 1024), (1024, 2048), (1024, 512), (128, 10_000), (4096, 256))

Side = Callable[[], Any]
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def sides(
    rows: int, p: int, d: int, c: int, threads: int, pool: ThreadPoolExecutor, gradient: bool, clock: Clock
) -> dict[str, Side]:
    """Everything that is timed, by name: each call does the whole block once."""
    rng = np.random.default_rng(0)
    scale = np.float32(SIGMA / np.sqrt(2 * d))  # distances near σ
    X, Z = (scale * rng.standard_normal((n, d), dtype=np.float32) for n in (rows, p))
    W = rng.standard_normal((p, c), dtype=np.float32) / np.float32(p)
    y = rng.integers(0, max(2, c), rows)
    Y = np.eye(max(2, c), dtype=np.float32)[y][:, :c]
    expansion = Expansion(sk.Laplace(SIGMA), Z)
    shares = [slice(k * rows // threads, (k + 1) * rows // threads) for k in range(threads)]
    out = np.empty((rows, c), np.float32)
    panels = [np.empty((ROW_TILE, p), np.float32) for _ in shares]
    loops, packed = expansion.engine.loops, gemm.pack(Z)
    x_norms, z_norms = loops.row_norms(X), loops.row_norms(Z)

    def split(work: Callable[[int, slice], Any]) -> Side:
        return lambda: list(pool.map(work, range(threads), shares))

    def in_tiles(k: int, part: slice, visit: Callable[[np.ndarray, slice, slice], None], m: int, n: int) -> None:
        flat = panels[k].reshape(-1)
        for a in cuts(part.stop - part.start, m):
            here = slice(part.start + a.start, part.start + a.stop)
            for cols in cuts(p, n):
                shape = (here.stop - here.start, cols.stop - cols.start)
                visit(flat[: shape[0] * shape[1]].reshape(shape), here, cols)

    def block(k: int, part: slice) -> None:
        out[part] = expansion.predict(X[part], W)

    def blas(m: int, n: int) -> Side:
        def visit(S: np.ndarray, here: slice, cols: slice) -> None:
            np.matmul(X[here], Z[cols].T, out=S)

        return split(lambda k, part: in_tiles(k, part, visit, m, n))

    def own(k: int, part: slice) -> None:
        def visit(S: np.ndarray, here: slice, cols: slice) -> None:
            gemm.inner(X[here], packed, cols, S)

        in_tiles(k, part, visit, ROW_TILE, CENTER_TILE)

    def elementwise(k: int, part: slice) -> None:
        def visit(S: np.ndarray, here: slice, cols: slice) -> None:
            expansion.kernel.apply(S, x_norms[here], z_norms[cols], loops)

        in_tiles(k, part, visit, ROW_TILE, CENTER_TILE)

    def plain(k: int, part: slice) -> None:
        for a in cuts(part.stop - part.start, ROW_TILE):
            here = slice(part.start + a.start, part.start + a.stop)
            squared = x_norms[here, None] + z_norms - 2 * (X[here] @ Z.T)
            out[here] = np.exp(-np.sqrt(np.maximum(squared, 0)) / np.float32(SIGMA)) @ W

    found = {
        "block": split(block),
        "gemm, BLAS": blas(ROW_TILE, p),
        "gemm, BLAS tiled": blas(512 if p >= 1024 else ROW_TILE, min(p, 1024)),
        "elementwise": split(elementwise),
        "numpy": split(plain),
    }
    if packed is not None:
        found["gemm, engine"] = split(own)
    if gradient:
        step = Gradient(expansion)
        ids = np.arange(rows)
        blocks = [Block(X[part], Y[part].astype(np.float64), ids[part], (k,)) for k, part in enumerate(shares)]
        found["gradient"] = split(lambda k, part: step(blocks[k], W))
    if torch is not None:
        found |= pytorch(X, Z, W, threads, clock)
    return found


def pytorch(X: np.ndarray, Z: np.ndarray, W: np.ndarray, threads: int, clock: Clock) -> dict[str, Side]:
    """The one-liner, and the fastest tiled formulation on this machine at these shapes, by trying all of them once."""
    torch.set_num_threads(threads)
    x, z, w = (torch.from_numpy(A) for A in (X, Z, W))
    xx, zz = x.square().sum(1, keepdim=True), z.square().sum(1)

    def whole() -> Any:
        return torch.exp(-torch.cdist(x, z) / SIGMA) @ w

    def tiled(m: int, n: int, direct: bool) -> Side:
        def run() -> Any:
            out = torch.zeros(len(x), w.shape[1])
            for a in range(0, len(x), m):
                total = out[a : a + m]
                for b in range(0, len(z), n):
                    if direct:
                        K = torch.cdist(x[a : a + m], z[b : b + n])
                    else:
                        K = torch.addmm(zz[b : b + n], x[a : a + m], z[b : b + n].T, alpha=-2)
                        K.add_(xx[a : a + m]).clamp_(min=0).sqrt_()
                    total.addmm_(K.mul_(-1 / SIGMA).exp_(), w[b : b + n])
            return out

        return run

    ways = {(m, n, direct): tiled(m, n, direct) for m, n in TILES for direct in (False, True)}
    seconds = {}
    with torch.inference_mode():
        for way, run in ways.items():
            run()
            seconds[way] = min(timed(run, clock) for _ in range(2))
    best = min(seconds, key=lambda way: seconds[way])
    m, n, direct = best
    print(f"  [PyTorch {torch.__version__}, best tiled: {m} x {n}, {'cdist' if direct else 'norms folded in'}]")

    def inferring(run: Side) -> Side:
        def call() -> Any:
            with torch.inference_mode():
                return run()

        return call

    return {"torch, exp(-cdist) @ w": inferring(whole), "torch, tiled": inferring(ways[best])}


def timed(run: Side, clock: Clock) -> float:
    """Seconds of a call."""
    start = clock()
    run()
    return clock() - start


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):5.2f} ({min(values):.2f} to {max(values):.2f})"


def case(
    rows: int, p: int, d: int, c: int, counts: list[int], rounds: int, gradient: bool, clock: Clock
) -> list[dict[str, Any]]:
    """Time one shape on each number of threads, and print it."""
    blocks: dict[int, list[float]] = {}
    measured = []
    for threads in counts:
        title = f"b = {rows:,}, p = {p:,}, d = {d}, c = {c}, {threads} thread{'s' * (threads > 1)}"
        with watched(title), ThreadPoolExecutor(threads) as pool, threadpool_limits(1, user_api="blas"):
            named = sides(rows, p, d, c, threads, pool, gradient, clock)
            for run in named.values():
                run()
            seconds: dict[str, list[float]] = {name: [] for name in named}
            for turn in range(rounds):
                for name in list(named) if turn % 2 else list(named)[::-1]:
                    seconds[name].append(timed(named[name], clock))
            ratios = report(seconds, rows * p, d, c)
            shape = {"rows": rows, "centers": p, "d": d, "c": c, "threads": threads}
            measured.append(shape | {"block_ms": 1e3 * min(seconds["block"])} | ratios)
            blocks[threads] = seconds["block"]
    first, last = counts[0], counts[-1]
    if first == 1 and last > 1:
        print(f"{last} threads against one, best of {rounds}: x {min(blocks[1]) / min(blocks[last]):.2f}\n")
    return measured


RATIOS = {
    "of the floor": "floor_ratio",
    "numpy / block": "numpy_ratio",
    "torch, tiled / block": "torch_tiled_ratio",
    "torch, exp(-cdist) @ w / block": "torch_plain_ratio",
}
"""Names of printed ratios in results, beside ``gemm_ratio``."""


def report(seconds: dict[str, list[float]], values: int, d: int, c: int) -> dict[str, Any]:
    """A line a side, and the ratios by round."""
    products = [name for name in seconds if name.startswith("gemm")]
    gemm = min(products, key=lambda name: statistics.median(seconds[name]))
    for name, times in seconds.items():
        rate = f"{2e-9 * values * d / min(times):6.0f} GFLOP/s" if name in products else ""
        print(
            f"  {name:24} best {1e3 * min(times):8.1f} ms, median {1e3 * statistics.median(times):8.1f} ms,"
            f" {1e9 * min(times) / values:6.3f} ns a value  {rate}"
        )
    block = seconds["block"]
    floor = [
        g * (1 + c / d) + e for g, e in zip(seconds[gemm], seconds["elementwise"], strict=True)
    ]  # the product with W at the rate of the gemm
    ratios = {
        f"of the GEMM rate ({gemm.removeprefix('gemm, ')})": [a / b for a, b in zip(seconds[gemm], block, strict=True)],
        "of the GEMM rate (BLAS)": [
            min(pair) / b for *pair, b in zip(seconds["gemm, BLAS"], seconds["gemm, BLAS tiled"], block, strict=True)
        ],
        "of the floor": [a / b for a, b in zip(floor, block, strict=True)],
    }
    for other in ("numpy", "torch, exp(-cdist) @ w", "torch, tiled"):
        if other in seconds:
            ratios[f"{other} / block"] = [a / b for a, b in zip(seconds[other], block, strict=True)]
    if "gradient" in seconds:
        ratios["gradient / block"] = [a / b for a, b in zip(seconds["gradient"], block, strict=True)]
    print(f"  floor: {1e3 * min(floor):.1f} ms")
    for name, found in ratios.items():
        print(f"  {name:36} {spread(found)}")
    named = {RATIOS[name]: summary(found) for name, found in ratios.items() if name in RATIOS}
    return {"gemm_ratio": summary(next(iter(ratios.values())))} | named


def main() -> None:
    """Print every case asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, nargs="+", default=[18, 100, 784, 3072])
    parser.add_argument("--c", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--centers", type=int, default=10_000)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, default_threads()}))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gradient", action="store_true", help="time what training does with the block, too")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    add_results(parser)
    options = parser.parse_args()
    measured = []
    kernels = {
        f"{found['internal_api']} {found['version']} {found.get('architecture', '')}".strip()
        for found in threadpool_info()
        if found["user_api"] == "blas"
    }
    torch_says = "not installed" if torch is None else torch.__version__
    print(f"BLAS: {', '.join(sorted(kernels))}; vectors of the engine: {gemm.VECTORS}; PyTorch: {torch_says}\n")
    for d in options.d:
        for c in options.c:
            measured += case(
                options.rows, options.centers, d, c, sorted(options.threads), options.rounds, options.gradient,
                CLOCKS[options.clock],
            )  # fmt: skip
    add_run(options.results, measured)


if __name__ == "__main__":
    main()
