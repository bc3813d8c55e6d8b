"""Rates of the CPU loops, each beside the plain way of doing the same: ``python tests/benchmarks/loops.py``.

Both sides run in this process, alternating, on one core; the best of the repetitions counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from results import add_results, add_run

from streamkern.cpu.elementwise import CompiledLoops
from streamkern.engine.elementwise import RADIAL_KINDS, Loops

FAST, REFERENCE = CompiledLoops(), Loops()
IMPORT = "import time; import numba; t = time.perf_counter(); import streamkern.cpu; print(time.perf_counter() - t)"
EVERY_LOOP = f"""
import time; t = time.perf_counter()
import numpy as np
from streamkern.cpu.elementwise import CompiledLoops
b = CompiledLoops()
x = np.ones((2, 2), np.float32)
one = np.ones(2, np.int64)
b.assemble(x, one, x.copy(), scale=1, offset=0)
b.add_noise(x, one, copies=0, seed=0, sigma=1.0)
for dtype in (np.float32, np.float64):
    b.finite_rows(x.astype(dtype))
    b.row_norms(x.astype(dtype))
    b.radial(x.astype(dtype), one, one, {RADIAL_KINDS[0]!r}, {{"bandwidth": 1.0}})
print(time.perf_counter() - t)
"""


def best(*sides: Callable[[], object], repetitions: int) -> list[float]:
    """The shortest time of each side, in seconds, after one run that does not count."""
    seconds = [np.inf] * len(sides)
    for repetition in range(repetitions + 1):
        for i, side in enumerate(sides):
            start = time.perf_counter()
            side()
            if repetition:
                seconds[i] = min(seconds[i], time.perf_counter() - start)
    return seconds


def report(what: str, fast: float, plain: float, rate: str = "") -> dict[str, Any]:
    """One line: both times in milliseconds and their ratio."""
    print(f"{what:44} {fast * 1e3:9.3f} ms   plain {plain * 1e3:9.3f} ms   {plain / fast:6.1f}x   {rate}")
    return {
        "what": what,
        "ms": round(fast * 1e3, 3),
        "plain_ms": round(plain * 1e3, 3),
        "ratio": round(plain / fast, 1),
    }


def rows(n: int, d: int) -> list[dict[str, Any]]:
    """Assembling, noise, norms and the finite check of n rows."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (60_000, d), dtype=np.uint8)
    index = rng.integers(0, len(raw), n)
    out = np.empty((n, d), np.float32)
    generator = np.random.Generator(np.random.SFC64(0))

    def noisy() -> None:
        FAST.assemble_noisy(
            raw, index, out, scale=1 / 255, offset=0, row_ids=index, copies=index % 7, seed=1, sigma=0.1
        )

    def plain_noisy() -> None:
        REFERENCE.assemble(raw, index, out, scale=1 / 255, offset=0)
        out[...] += np.float32(0.1) * generator.standard_normal(out.shape, dtype=np.float32)

    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "assemble_noisy (plain: NumPy's SFC64 normals)": (noisy, plain_noisy),
        "assemble": tuple(lambda b=b: b.assemble(raw, index, out, scale=1 / 255, offset=0) for b in (FAST, REFERENCE)),
        "finite_rows": tuple(lambda b=b: b.finite_rows(out) for b in (FAST, REFERENCE)),
        "row_norms": tuple(lambda b=b: b.row_norms(out) for b in (FAST, REFERENCE)),
    }
    lines = []
    for what, (fast, plain) in pairs.items():
        a, b = best(fast, plain, repetitions=10)
        lines.append(report(f"{what}, {n} x {d}", a, b, f"{out.size / a / 1e9:6.2f} G elements/s"))
    return lines


def radial(b: int, p: int, dtype: type) -> list[dict[str, Any]]:
    """Every radial kind on one tile, the time to restore the tile taken off."""
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((b, 30)).astype(dtype), rng.standard_normal((p, 30)).astype(dtype)
    x_norms, z_norms, inner = FAST.row_norms(X), FAST.row_norms(Z), X @ Z.T
    S = np.empty_like(inner)
    params = {"bandwidth": 10.0, "exponent": 0.7}

    def on(backend: Loops, kind: str) -> None:
        np.copyto(S, inner)
        backend.radial(S, x_norms, z_norms, kind, params)

    lines = []
    for kind in RADIAL_KINDS:
        fast, plain, copy = best(
            lambda kind=kind: on(FAST, kind),
            lambda kind=kind: on(REFERENCE, kind),
            lambda: np.copyto(S, inner),
            repetitions=30,
        )
        rate = f"{S.size / (fast - copy) / 1e9:6.2f} G elements/s"
        lines.append(report(f"{kind}, {b} x {p}, {np.dtype(dtype).name}", fast - copy, plain - copy, rate))
    return lines


def process(program: str, **environment: str) -> float:
    """Seconds that a program prints, in a fresh process."""
    out = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )
    return float(out.stdout)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_results(parser)
    options = parser.parse_args()
    lines = [*rows(4096, 784), *rows(160_000, 20)]
    for b, dtype in ((256, np.float32), (1024, np.float32), (256, np.float64)):
        lines += radial(b, 1024, dtype)
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = (process(EVERY_LOOP, NUMBA_CACHE_DIR=cache) for _ in range(2))
        print(f"import and first call of every loop: cold {cold:.2f} s, warm {warm:.2f} s")
        print(f"import over numba's own, warm: {process(IMPORT, NUMBA_CACHE_DIR=cache):.3f} s")
    add_run(options.results, lines)


if __name__ == "__main__":
    main()
