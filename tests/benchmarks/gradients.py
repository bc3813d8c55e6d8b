"""Gradients of a model against its predictions: ``python tests/benchmarks/gradients.py``.

One thread, the same rows, sides interleaved; the shortest processor time of each counts. A metric is learned at a few
such passes over the rows of its sample.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

import streamkern as sk
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
    """Print a line for each kernel and width."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--centers", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--outputs", type=int, default=7)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    for d in (10, 30, 100, 300):
        X, Z = (rng.normal(size=(n, d)).astype(np.float32) for n in (args.rows, args.centers))
        W = rng.normal(size=(args.centers, args.outputs)).astype(np.float32)
        signs = np.where(rng.random((args.rows, args.outputs)) < 0.5, -1.0, 1.0)
        for kernel in (sk.Laplace(d**0.5), sk.Laplace(float(d), norm=1)):
            f = Expansion(kernel, Z)
            predict, gradients = shortest(
                [lambda f=f, X=X, W=W: f.predict(X, W), lambda f=f, X=X, W=W, s=signs: f.engine.gradients(f, X, W, s)],
                args.repetitions,
            )
            print(f"d = {d:4}  norm = {kernel.norm}  gradients take {gradients / predict:5.2f} predictions")


if __name__ == "__main__":
    with threadpool_limits(1, user_api="blas"):
        main()
