"""Public calls of a kernel with one thread and with every core, against three lines of NumPy, in turns in one process.

    python tests/benchmarks/calls.py [--rows 4096] [--centers 10000] [--rounds 5]

Seconds by the clock, so the machine should be quiet; NumPy's BLAS has every core. The last lines are products of
float64 with the weights, the engine's against those of BLAS, by the clock of the processor and in one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from results import add_results, add_run
from threadpoolctl import threadpool_limits

import streamkern as sk
from streamkern.cpu.gemv import prepared, times

SIGMA = 10.0


def plain(X: np.ndarray, Z: np.ndarray, W: np.ndarray) -> np.ndarray:
    """K(X, Z) W of the Laplace kernel."""
    D = (X * X).sum(axis=1)[:, None] + (Z * Z).sum(axis=1) - 2 * (X @ Z.T)
    return np.exp(-np.sqrt(np.maximum(D, 0)) / SIGMA) @ W


def in_turns(sides: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each side; the first round, which compiles, is left out."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, call in sides.items():
            start = clock()
            call()
            if number:
                found[name].append(clock() - start)
    return found


def main() -> None:
    """Print milliseconds and ratios, medians of pairs with their range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--centers", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    add_results(parser)
    options = parser.parse_args()
    rng, kernel = np.random.default_rng(0), sk.Laplace(SIGMA)
    n, p = options.rows, options.centers
    ratios: dict[str, dict[str, float]] = {}
    for d in (18, 784):
        X, Z, W = (rng.random(shape, dtype=np.float32) for shape in ((n, d), (p, d), (p, 10)))
        found = in_turns(
            {
                "NumPy": lambda X=X, Z=Z, W=W: plain(X, Z, W),
                "matvec, 1 thread": lambda X=X, Z=Z, W=W: kernel.matvec(X, Z, W, threads=1),
                "matvec": lambda X=X, Z=Z, W=W: kernel.matvec(X, Z, W),
                "k(X, Z), 1 thread": lambda X=X, Z=Z: kernel(X, Z, threads=1),
                "k(X, Z)": lambda X=X, Z=Z: kernel(X, Z),
            },
            options.rounds,
            time.perf_counter,
        )
        report(f"d = {d}", found, "NumPy")
        for call, name in (("kernel.matvec", "matvec"), ("kernel(X, Z)", "k(X, Z)")):
            pairs = zip(found[f"{name}, 1 thread"], found[name], strict=True)
            ratios.setdefault(call, {})[f"d{d}"] = round(statistics.median(one / two for one, two in pairs), 2)
    add_run(options.results, [{"call": call} | found for call, found in ratios.items()])
    for c in (1, 2, 10, 40):
        phi, W = rng.random((200, p)), rng.random((p, c))
        right = prepared(W)
        with threadpool_limits(1, user_api="blas"):
            sides = {"BLAS": lambda a=phi, b=W: a @ b, "engine": lambda a=phi, b=right: times(a, b)}
            report(f"float64, {c} outputs", in_turns(sides, 4 * options.rounds, time.process_time), "BLAS")


def report(title: str, found: dict[str, list[float]], other: str) -> None:
    """One line a side."""
    for name, seconds in found.items():
        ratios = [b / a for a, b in zip(seconds, found[other], strict=True)]
        print(
            f"{title:22} {name:18} {1e3 * statistics.median(seconds):8.2f} ms   {other} / it "
            f"{statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
