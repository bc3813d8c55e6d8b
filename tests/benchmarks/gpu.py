"""A block on the GPU against the card's own float32 product, and the fused narrow product against the wide way.

    python tests/benchmarks/gpu.py

Each line is the best of ten interleaved runs. Inner products alone are counted, so that a ratio of 1 is the ceiling.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import streamkern as sk
from streamkern.backends import get_device
from streamkern.backends.device import NARROW, NARROW_OUTPUTS
from streamkern.engine.device import DeviceEngine
from streamkern.errors import UsageError
from streamkern.kernels import Expansion

ROWS, CENTERS, ROUNDS = 4096, 10_000, 10


def main() -> int:
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
    return 0


class Wide(sk.Laplace):
    """A kernel whose profile the fused loops are not told: the way of wide rows at any width."""

    profile = None  # type: ignore[assignment]

    def apply(self, S: Any, x_norms: Any, z_norms: Any, backend: Any) -> None:
        """As ever."""
        sk.Laplace(self.bandwidth).apply(S, x_norms, z_norms, backend)


if __name__ == "__main__":
    sys.exit(main())
