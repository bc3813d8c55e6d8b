"""A block on the GPU against the card's own float32 product, and the fused narrow product against the wide way.

    python tests/benchmarks/gpu.py                     # blocks, L1 distances and the sweep of a learned metric
    python tests/benchmarks/gpu.py --session 30        # all that a new card should run, within 30 minutes

Each line is the best of ten interleaved runs. Inner products alone are counted, so that a ratio of 1 is the ceiling; L1
distances and gradients are counted as terms |x - z|, three operations each, and as two products.

A session runs the tests of the GPU first, then these lines, then whole runs from small to large, each as a process of
its own that may take what is left of the time; it goes on after one that fails and ends with a line for each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

import streamkern as sk
from streamkern.backends import get_device
from streamkern.backends.device import NARROW, NARROW_OUTPUTS
from streamkern.engine.device import DeviceEngine
from streamkern.errors import UsageError
from streamkern.kernels import Expansion

ROWS, CENTERS, ROUNDS = 4096, 10_000, 10

RUN = [sys.executable, "-m", "streamkern", "run", "pipelines/fashion_mnist.py", "--device", "cuda", "--quiet", "--set"]
SESSION: tuple[tuple[str, ...], ...] = (
    (sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-q"),
    (sys.executable, "tests/benchmarks/gpu.py"),
    (*RUN, "rows=60000", "noise=0", "centers=5000"),
    (*RUN, "rows=60000", "noise=0", "centers=60000"),
    (*RUN, "rows=120000000", "centers=10000"),
)


def session(commands: Sequence[Sequence[str]], minutes: float) -> int:
    """Run commands in turn within a time: how many did not end well."""
    end, lines = time.monotonic() + 60 * minutes, []
    for command in commands:
        start = time.monotonic()
        shown = " ".join(["python" if word == sys.executable else word for word in command])
        print(f"\n$ {shown}", flush=True)
        status = "out of time"
        if start < end:
            with suppress(subprocess.TimeoutExpired):
                status = f"status {subprocess.run(command, timeout=end - start).returncode}"
        lines.append(f"{status:12} {time.monotonic() - start:7.1f} s  {shown}")
    print("\n" + "\n".join(lines), flush=True)
    return sum(not line.startswith("status 0") for line in lines)


def further(device: Any, rows: int, centers: int, rounds: int) -> None:
    """Print what L1 distances of a block and the gradients of a learned metric's sweep take."""
    print(f"{'d':>5}{'':3}{'what':24}{'best ms':>12}{'1e9 a second':>16}")
    rng = np.random.default_rng(0)
    engine = DeviceEngine(device)
    for d in (18, 64, 784):
        X, Z, W = (rng.normal(size=size).astype(np.float32) for size in ((rows, d), (centers, d), (centers, 10)))
        signs = rng.choice([-1.0, 1.0], (rows, 10)).astype(np.float32)
        near, far = Expansion(sk.Laplace(float(np.sqrt(2 * d))), Z, engine), Expansion(sk.Laplace(d, norm=1), Z, engine)
        calls = {
            "L1 block, terms": (partial(far.pull, X, W, lambda F, part: F, 10), 1),
            "gradients, operations": (partial(engine.gradients, near, X, W, signs), 4),
            "L1 gradients, terms": (partial(engine.gradients, far, X, W, signs), 2),
        }
        for name, (call, each) in calls.items():
            best = np.inf
            for _ in range(rounds + 1):  # the first compiles
                start = time.perf_counter()
                call()
                best = min(best, time.perf_counter() - start)
            print(
                f"{d:>5}{'':3}{name:24}{1e3 * best:>12.2f}{each * rows * centers * d / best / 1e9:>16.1f}", flush=True
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--session", type=float, metavar="MINUTES")
    minutes = parser.parse_args().session
    if minutes is not None:
        return min(1, session(SESSION, minutes))
    try:
        device = get_device("cuda")
    except UsageError as error:
        print(error)
        return 1
    assert device is not None
    rate = device.gemm_rate()
    print(f"{device.describe()}\nfloat32 product, 8192 x 8192 x 8192: {rate / 1e12:.2f} TFLOP/s")
    print(f"{'d':>5}{'c':>5}{'block ms':>12}{'fused ms':>12}{'TFLOP/s':>10}{'of product':>12}")
    rng = np.random.default_rng(0)
    for d in (18, 64, 100, 784, 3072):
        for c in (1, 10, 100):
            X, Z, W = (rng.normal(size=size).astype(np.float32) for size in ((ROWS, d), (CENTERS, d), (CENTERS, c)))
            there = Expansion(sk.Laplace(float(np.sqrt(2 * d))), Z, DeviceEngine(device))
            rows = device.upload(X)
            ways = {"wide": Expansion(Wide(**vars(there.kernel)), Z, there.engine)}
            if d <= NARROW and c <= NARROW_OUTPUTS:
                ways["fused"] = there
            best = dict.fromkeys(ways, np.inf)
            for _ in range(ROUNDS + 1):  # the first compiles
                for name, way in ways.items():
                    start = time.perf_counter()
                    way.pull(rows, W, lambda F, part: F, c)
                    best[name] = min(best[name], time.perf_counter() - start)
            done = 2.0 * ROWS * CENTERS * d / min(best.values())
            fused = f"{1e3 * best['fused']:>12.2f}" if "fused" in best else f"{'-':>12}"
            print(f"{d:>5}{c:>5}{1e3 * best['wide']:>12.2f}{fused}{done / 1e12:>10.2f}{done / rate:>12.2f}")
    further(device, ROWS, CENTERS, ROUNDS)
    return 0


class Wide(sk.Laplace):
    """A kernel whose profile the fused loops are not told: the way of wide rows at any width."""

    profile = None  # type: ignore[assignment]

    def apply(self, S: Any, x_norms: Any, z_norms: Any, backend: Any) -> None:
        """As ever."""
        sk.Laplace(self.bandwidth).apply(S, x_norms, z_norms, backend)


if __name__ == "__main__":
    sys.exit(main())
