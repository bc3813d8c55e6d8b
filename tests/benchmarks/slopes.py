"""What a gradient over a block costs against rows, centers, features, outputs and threads: slopes on a log-log plot.

    python -m tests.benchmarks.slopes [--only n p d c threads] [--rounds 5] [--clock wall]

One number changes at a time, from 2,048 rows, p = 4,000, d = 100, c = 10 on one thread; sizes take turns. A slope is
that of the least-squares line through logarithms of medians, beside it that of the last two sizes. Cost is proportional
to n and p from the start (slope 1). It is a + b d and a + b c: flat where the exponentials are most of it, towards 1 in
wide data. Threads: seconds for as many blocks as there are threads, by the clock: slope 0 where each is a core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_limits

import streamkern as sk
from streamkern.data.row_order import Block
from streamkern.kernels import Expansion
from streamkern.resources import default_threads
from streamkern.solvers.contributions import Gradient
from tests.benchmarks.results import add_results, add_run
from tests.benchmarks.workers import watched

BASE = {"n": 2048, "p": 4000, "d": 100, "c": 10, "threads": 1}
SIZES = {
    "n": [256, 512, 1024, 2048, 4096, 8192],
    "p": [500, 1000, 2000, 4000, 8000, 16_000],
    "d": [4, 16, 64, 256, 1024, 3072],
    "c": [1, 2, 5, 10, 32, 100],
}


class Case:
    """The gradient of one shape, on a number of threads."""

    def __init__(self, n: int, p: int, d: int, c: int, threads: int) -> None:
        rng = np.random.default_rng(0)
        X, Z = (rng.standard_normal((size, d), dtype=np.float32) for size in (n, p))
        self.block = Block(X, rng.standard_normal((n, c)), np.arange(n), (0,))
        self.gradient, self.weights = Gradient(Expansion(sk.Laplace(float(np.sqrt(2 * d))), Z)), np.ones((p, c), "f")
        self.threads = threads

    def run(self, pool: ThreadPoolExecutor) -> None:
        """As many gradients as threads, at the same time."""
        list(pool.map(lambda _: self.gradient(self.block, self.weights), range(self.threads)))


def slope(sizes: list[int], seconds: list[float]) -> float:
    """Of the line through their logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def measure(name: str, sizes: list[int], rounds: int, clock: str) -> list[float]:
    """Median seconds at each size, the sizes taking turns."""
    read = time.perf_counter if clock == "wall" or name == "threads" else time.process_time
    cases = [Case(**{**BASE, name: size}) for size in sizes]
    found: list[list[float]] = [[] for _ in sizes]
    with ThreadPoolExecutor(max(case.threads for case in cases)) as pool, threadpool_limits(1, user_api="blas"):
        for turn in range(rounds + 1):
            for i, case in enumerate(cases):
                start = read()
                case.run(pool)
                if turn:
                    found[i].append(read() - start)
    return [statistics.median(times) for times in found]


def main() -> None:
    """Print seconds and slopes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*SIZES, "threads"], default=[*SIZES, "threads"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu", help="threads are timed by the wall clock")
    add_results(parser)
    options = parser.parse_args()
    measured = []
    cores = default_threads()
    sizes = SIZES | {"threads": sorted({1, *(2**k for k in range(1, cores.bit_length())), cores})}
    for name in options.only:
        fixed = ", ".join(f"{key} = {value:,}" for key, value in BASE.items() if key != name)
        with watched(f"{name}: {fixed}"):
            seconds = measure(name, sizes[name], options.rounds, options.clock)
            print("  " + "  ".join(f"{size:,}: {1e3 * t:.1f} ms" for size, t in zip(sizes[name], seconds, strict=True)))
            if len(seconds) > 1:
                last = slope(sizes[name][-2:], seconds[-2:])
                print(f"  slope {slope(sizes[name], seconds):.2f}, at the end {last:.2f}")
                measured.append({"size": name, "all": slope(sizes[name], seconds), "last": last})
    add_run(options.results, measured)


if __name__ == "__main__":
    main()
