"""Cholesky factors by the engine against LAPACK's and against the engine's own matrix product, in one interleaved run.

    python -m tests.benchmarks.factor [--rows 1000 2000 5000 10000] [--threads 2] [--rounds 5]

The matrix is that of a Laplace kernel, with a ridge. "LAPACK" is ``scipy.linalg.cholesky`` with as many threads of
BLAS, "tiles" the engine's for processors without vectors of 16 numbers. The rate of the product is that of A Bᵀ of
4,096 rows each and 1,024 numbers, in the same threads; the error is the largest of L Lᵀ − A, in units of rounding of
the diagonal.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_limits

import streamkern as sk
from streamkern.cpu.gemm import Factor
from streamkern.cpu.linear_algebra import cholesky, tiled_cholesky
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.resources import default_threads
from tests.benchmarks.results import add_results, add_run
from tests.benchmarks.workers import watched


def product_rate(dtype: np.dtype, run: Callable[..., list]) -> float:
    """Operations in a second of the engine's product."""
    A = np.random.default_rng(0).normal(size=(4096, 1024)).astype(dtype)
    out, right = np.empty((4096, 4096), dtype), Factor(A)
    parts = [slice(a, a + 256) for a in range(0, 4096, 256)]
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        run(lambda part: right.product(A[part], out[part]), parts)
        seconds.append(time.perf_counter() - begun)
    return 2 * 4096 * 4096 * 1024 / min(seconds)


def main() -> None:
    """Print a line for each size and dtype."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 2000, 5000, 10_000])
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=5)
    add_results(parser)
    given = parser.parse_args()
    measured = []
    title = f"{given.threads} threads; milliseconds at best, and ratios as medians of rounds"
    with ThreadsExecutor(given.threads) as executor, watched(title):
        run = executor.host_map
        for n in given.rows:
            X = np.random.default_rng(n).normal(size=(n, 10))
            K = sk.Laplace(4.0)(X, X) + 1e-4 * n * np.eye(n)
            for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
                rate = product_rate(dtype, run)
                own = K.astype(dtype)
                sides = {
                    "engine": lambda A: cholesky(A, run),
                    "tiles": lambda A: tiled_cholesky(A, run),
                    "LAPACK": lambda A: scipy.linalg.cholesky(A, lower=True, check_finite=False),
                }
                seconds: dict[str, list[float]] = {name: [] for name in sides}
                for _ in range(given.rounds):
                    for name, side in sides.items():
                        A = own.copy()
                        # LAPACK has all threads of BLAS, the engine's tasks one each.
                        with threadpool_limits(given.threads if name == "LAPACK" else 1, "blas"):
                            begun = time.perf_counter()
                            L = side(A)
                            seconds[name].append(time.perf_counter() - begun)
                        if name == "engine":
                            wide = L.astype(np.float64)
                            error = np.abs(wide @ wide.T - own).max() / np.finfo(dtype).eps / own[0, 0]
                best = min(seconds["engine"])
                ratios = {
                    name: statistics.median(b / a for a, b in zip(seconds["engine"], seconds[name], strict=True))
                    for name in ("tiles", "LAPACK")
                }
                print(
                    f"n = {n:6,} {dtype.name}: {best * 1e3:7.1f} ms, {n**3 / 3 / best / 1e9:4.0f} GFLOP/s, "
                    f"{n**3 / 3 / best / rate:.2f} of the product's rate; tiles {ratios['tiles']:.2f} and "
                    f"LAPACK {ratios['LAPACK']:.2f} times as long; error {error:.1f}",
                    flush=True,
                )
                rates = {"gflops": n**3 / 3 / best / 1e9, "product_ratio": n**3 / 3 / best / rate}
                others = {f"{name.lower()}_ratio": ratio for name, ratio in ratios.items()}
                measured.append({"n": n, "dtype": dtype.name, "ms": 1e3 * best} | rates | others)
    add_run(given.results, measured)


if __name__ == "__main__":
    main()
