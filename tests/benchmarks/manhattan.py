"""Kernels of the L1 distance against the floor of their instructions: ``python tests/benchmarks/manhattan.py``.

A pair of rows and a feature takes a subtraction, an absolute value and an addition: three instructions of the vector
units where a matrix product takes one. So the floor is three times the time of the fastest product of this process,
which runs from the first-level cache. One thread; sides are interleaved, and the shortest time of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

import streamkern as sk
from streamkern.cpu.gemm import inner, pack
from streamkern.kernels import Expansion


def shortest(sides: list[Callable[[], object]], repetitions: int) -> list[float]:
    """Seconds of processor time of each side, after one run that does not count."""
    seconds = [np.inf] * len(sides)
    for repetition in range(repetitions + 1):
        for i, side in enumerate(sides):
            start = time.thread_time()
            side()
            if repetition:
                seconds[i] = min(seconds[i], time.thread_time() - start)
    return seconds


def main() -> None:
    """Print a line for each width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--centers", type=int, default=4000)
    parser.add_argument("--repetitions", type=int, default=15)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    print("rate in billions of pairs and features a second; floor: three instructions at the rate of the product")
    for dtype in (np.float32, np.float64):
        small, right = (rng.normal(size=(n, 256)).astype(dtype) for n in (1024, 32))
        packed = pack(right)
        out = np.empty((1024, 32), dtype)

        def product(small: np.ndarray = small, right: np.ndarray = right, packed=packed, out=out) -> None:
            for _ in range(20):
                if packed is None:
                    np.matmul(small, right.T, out=out)
                else:
                    inner(small, packed, slice(0, 32), out)

        for d in (8, 18, 50, 100, 300):
            X, Z = (rng.normal(size=(n, d)).astype(dtype) for n in (256, args.centers))
            one = Expansion(sk.Laplace(float(d), norm=1), Z)
            two = Expansion(sk.Laplace(float(d) ** 0.5), Z)
            K = np.empty((len(X), len(Z)), dtype)
            sides: list[Callable[[], object]] = [
                product,
                lambda one=one, X=X, K=K: one.block(X, out=K),
                lambda two=two, X=X, K=K: two.block(X, out=K),
            ]
            gemm, taken, other = shortest(sides, args.repetitions)
            work = len(X) * len(Z) * d
            floor = 1e-9 * 20 * 1024 * 32 * 256 / gemm / 3
            rate = 1e-9 * work / taken
            print(
                f"{np.dtype(dtype).name}  d = {d:4}  floor {floor:6.1f}  norm=1 {rate:6.1f}  {100 * rate / floor:4.0f}%"
                f"  norm=2 takes {other / taken:4.2f} of its time"
            )


if __name__ == "__main__":
    with threadpool_limits(1, user_api="blas"):
        main()
