"""Prediction from zarr to parquet by the command line, against the kernel engine alone on blocks in memory.

    python tests/benchmarks/predict.py [--rows 1_000_000 10_000_000] [--centers 4000] [--features 18] [--repeats 3]

The rows are uniform (seeded), float32, 10 outputs. The engine's rate is ``Expansion.predict`` on resident blocks of as
many rows as a task of the command has, one a thread, in a process of its own with the same threads. The two take turns.
The command's rate runs from its first read to its last rename; what it takes to start is printed as ``begin``. Beside
the ratio of rates stands that of CPU seconds a row, less those of a command on one row: it is the steadier on a busy
machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from results import add_results, add_run, spread

import streamkern as sk
from streamkern.data.targets import Classes
from streamkern.execute import ThreadsExecutor
from streamkern.memory import format_bytes
from streamkern.models.partitioned_machine import load_model

BLOCK = 1 << 16
OUTPUTS = 10


def make(folder: Path, rows: list[int], features: int, centers: int) -> None:
    """The model and the data sets."""
    rng = np.random.default_rng(0)
    Z = rng.random((centers, features), dtype=np.float32)
    weights = rng.standard_normal((centers, OUTPUTS)).astype(np.float32)
    sk.KernelMachine(sk.Laplace(3.0), Z, weights, Classes(np.arange(OUTPUTS))).save(folder / "model.zarr")

    def blocks(n: int) -> object:
        for start in range(0, n, BLOCK):
            yield rng.random((min(BLOCK, n - start), features), dtype=np.float32), None

    for n in (1, *rows):
        sk.write_zarr(str(folder / f"{n}.zarr"), blocks(n), n_rows=n)


def engine(model: str, features: int, threads: int, rows: int) -> None:
    """Print rows per second of the engine; run in a process of its own."""
    machine = load_model(model)
    basis, rng = machine._basis(), np.random.default_rng(1)
    block = min(BLOCK, (8 << 20) // ((features + OUTPUTS) * 4))
    blocks = [rng.random((block, features), dtype=np.float32) for _ in range(threads)]
    count = max(2 * threads, rows // block)
    with ThreadsExecutor(threads) as executor:

        def work(i: int) -> None:
            basis.predict(blocks[i % threads], machine.weights)

        list(executor.imap(work, range(threads)))
        start, cpu = time.perf_counter(), time.process_time()
        list(executor.imap(work, range(count)))
        print(count * block / (time.perf_counter() - start), (time.process_time() - cpu) / (count * block))


def command(folder: Path, n: int, threads: int, memory: str) -> tuple[dict[str, Any], float, float]:
    """What the command says, its seconds, and its CPU seconds."""
    words = [sys.executable, "-m", "streamkern", "predict", str(folder / "model.zarr"), str(folder / f"{n}.zarr"),
             str(folder / "out.parquet"), "--json", "--memory", memory, "--threads", str(threads)]  # fmt: skip
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    (folder / "out.parquet").unlink()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout.splitlines()[-1]), took, cpu


def main() -> None:
    """Print rates, their ratio, and the memory at the peak for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--centers", type=int, default=4000)
    parser.add_argument("--features", type=int, default=18)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    add_results(parser)
    options = parser.parse_args()
    if options.engine:
        engine(options.engine, options.features, options.threads, options.rows[0])
        return
    measured = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, options.rows, options.features, options.centers)
        for n in options.rows:
            ratios, cpu_ratios = [], []
            for _ in range(options.repeats):
                size = ["--rows", str(n), "--features", str(options.features), "--threads", str(options.threads)]
                words = [sys.executable, __file__, "--engine", str(folder / "model.zarr"), *size]
                out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                alone, cpu_alone = map(float, out.split())
                made, took, cpu = command(folder, n, options.threads, options.memory)
                idle = command(folder, 1, options.threads, options.memory)[2]
                ratios.append(made["rows_per_second"] / alone)
                cpu_ratios.append(n * cpu_alone / (cpu - idle))
                print(
                    f"{n:11,} rows   engine {alone:9,.0f} rows/s   predict {made['rows_per_second']:9,.0f} rows/s   "
                    f"ratio {ratios[-1]:.3f}, of CPU {cpu_ratios[-1]:.3f}   "
                    f"begin {took - n / made['rows_per_second']:.1f} s   "
                    f"peak {format_bytes(made['peak_memory_bytes'])}, "
                    f"{format_bytes(made['projected_memory_bytes'])} projected",
                    flush=True,
                )
            medians = statistics.median(ratios), statistics.median(cpu_ratios)
            found = {"rows_per_second": round(made["rows_per_second"]), "peak_mib": made["peak_memory_bytes"] >> 20}
            shares = {"ratio": spread(ratios), "cpu_ratio": medians[1]}
            measured.append({"centers": options.centers, "rows": n} | found | shares)
            print(f"{n:11,} rows   median ratio {medians[0]:.3f}, of CPU {medians[1]:.3f}")
    add_run(options.results, measured)


if __name__ == "__main__":
    main()
