"""Prices of storing features: bytes on disk, and decoded bytes a second of a core, by kind of number and compression.

    python tests/benchmarks/storage.py [--rows 20000] [--repeats 15]

Each line is a table of so many rows that ``ingest`` writes as zarr, once by default (``fast``), once with
``compression="small"``, and once so with floats rounded to ten bits. Decoding is ``Source.read`` of every chunk, with
its checksum, from a warm page cache, by the clock of the processor.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from results import add_results, add_run

import streamkern as sk
from streamkern.types import Array

WAYS: dict[str, dict[str, Any]] = {
    "fast": {},
    "small": {"compression": "small"},
    "small, 10 bits": {"compression": "small", "keep_bits": 10},
}


def tables(rows: int) -> dict[str, Array]:
    """Features of several kinds, of 400 bytes a row."""
    rng = np.random.default_rng(0)
    return {
        "normal, float32": rng.normal(size=(rows, 100)).astype(np.float32),
        "normal, float64": rng.normal(size=(rows, 50)),
        "two decimals, float64": np.round(rng.uniform(0, 100, (rows, 50)), 2),
        "0 to 99, float32": rng.integers(0, 100, (rows, 100)).astype(np.float32),
        "0 to 99, float64": rng.integers(0, 100, (rows, 50)).astype(np.float64),
        "indicators, float32": (rng.random((rows, 100)) < 0.05).astype(np.float32),
        "0 to 999, int64": rng.integers(0, 1000, (rows, 50)),
    }


def main() -> None:
    """Print a table in Markdown: size as a part of memory, and GB/s decoded (best of the repeats)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=15)
    add_results(parser)
    options = parser.parse_args()
    measured = []
    print("| features |" + "".join(f" {name} |" for name in WAYS) + "\n|---|" + "---|" * len(WAYS))
    with tempfile.TemporaryDirectory() as folder:
        for kind, X in tables(options.rows).items():
            cells = []
            for number, (_, settings) in enumerate(WAYS.items()):
                if "keep_bits" in settings and X.dtype.kind != "f":
                    cells.append("")
                    continue
                made = sk.ingest(X, Path(folder) / f"{number}.zarr", overwrite=True, **settings)
                source = sk.open_dataset(made.path).source
                seconds = []
                for _ in range(options.repeats):
                    start = time.process_time()
                    for chunk in range(len(source.bounds) - 1):
                        source.read(chunk)
                    seconds.append(time.process_time() - start)
                cells.append(f"{made.stored_bytes / X.nbytes:.2f}, {X.nbytes / min(seconds) / 1e9:.1f} GB/s")
            print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)
            measured.append({"table": "sizes", "features": kind} | dict(zip(WAYS, cells, strict=True)))
    add_run(options.results, measured)


if __name__ == "__main__":
    main()
