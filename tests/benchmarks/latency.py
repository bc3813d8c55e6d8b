"""Latency of a Predictor: p50 and p99 for one row and for a hundred, asked by one thread and by several.

    OMP_NUM_THREADS=1 python tests/benchmarks/latency.py [--centers 1000 10000] [--features 18 784] [--calls 2000]

The rows come as float64 arrays, and as the lists that JSON gives; Laplace kernel, 10 classes.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import streamkern as sk
from streamkern.data.targets import Classes

OUTPUTS = 10


def latencies(predictor: sk.Predictor, rows: object, calls: int, threads: int) -> np.ndarray:
    """Milliseconds of each call, shape (calls,), with as many calls under way as there are threads."""

    def ask(_: int) -> float:
        start = time.perf_counter()
        predictor(rows)
        return 1e3 * (time.perf_counter() - start)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(ask, range(10 * threads)))
        return np.array(list(pool.map(ask, range(calls))))


def main() -> None:
    """Print p50 and p99 in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--centers", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--features", type=int, nargs="+", default=[18, 784])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{'centers':>8}{'features':>10}{'threads':>9}{'rows':>6}{'as':>7}{'p50 ms':>9}{'p99 ms':>9}")
    for p in options.centers:
        for d in options.features:
            Z = rng.random((p, d), dtype=np.float32)
            weights = rng.standard_normal((p, OUTPUTS)).astype(np.float32)
            predictor = sk.Predictor(sk.KernelMachine(sk.Laplace(3.0), Z, weights, Classes(np.arange(OUTPUTS))))
            for threads in options.threads:
                for n in (1, 100):
                    X = rng.random((n, d))
                    for kind, rows in (("array", X), ("lists", X.tolist())):
                        took = latencies(predictor, rows, options.calls // (1 + n // 25), threads)
                        p50, p99 = np.percentile(took, [50, 99])
                        print(f"{p:8}{d:10}{threads:9}{n:6}{kind:>7}{p50:9.3f}{p99:9.3f}", flush=True)


if __name__ == "__main__":
    main()
