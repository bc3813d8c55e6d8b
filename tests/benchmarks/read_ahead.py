"""What reading ahead hides of a store's latency: rows a second with it and without, interleaved, over HTTP on loopback.

    python -m tests.benchmarks.read_ahead [--latency 0.05] [--chunks 48] [--repeats 3]

Every answer is held back by the latency. A sweep goes over all rows in stored order; a pass takes every window of a
stream of two lanes. Nothing is computed with the rows, so that what is measured is the reading alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

import streamkern as sk
from streamkern.data.chunk_cache import CachedReader
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan, Stream
from tests.faults import Fault, FaultyServer

ROWS = 5000  # of a chunk: 1 MB


def sweep(data: Dataset) -> None:
    """All rows in stored order."""
    scan = Scan(Assembly(data), ROWS)
    for index in range(len(scan)):
        scan.block((index,))


def stream(data: Dataset) -> None:
    """A pass."""
    blocks = Stream(Assembly(data), lanes=2, block_rows=256, mix_chunks=8)
    for step in range(blocks.steps):
        for lane in range(2):
            blocks.block((0, lane, step))


def main() -> None:
    """Print rows a second, medians of the repeats, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--chunks", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    n = ROWS * options.chunks
    X = np.random.default_rng(0).integers(0, 256, (n, 200)).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder, FaultyServer(Path(folder)) as server:
        sk.write_zarr(f"{folder}/rows.zarr", X, np.arange(n), chunk_rows=ROWS)
        with patch("streamkern.sources.format_rules.CHUNK_BYTES", 1):  # a chunk is a read
            data = sk.open_dataset(f"{server.url}/rows.zarr", "target")
        server.plan = lambda request: Fault(delay=options.latency)
        print(f"{options.chunks} chunks of {ROWS * 200 / 1e6:.1f} MB, {options.latency * 1e3:.0f} ms a request")
        for name, read in (("sweep", sweep), ("stream", stream)):
            rates: dict[str, list[float]] = {"one after another": [], "read ahead": []}
            for _ in range(options.repeats):
                for way, found in rates.items():
                    ahead = CachedReader.ahead if way == "read ahead" else lambda self, indices: None
                    with patch.object(CachedReader, "ahead", ahead):
                        began = time.perf_counter()
                        read(data)
                        found.append(n / (time.perf_counter() - began))
            slow, fast = (statistics.median(found) for found in rates.values())
            print(f"{name:<8}{slow:>12,.0f} rows/s one after another{fast:>12,.0f} read ahead{fast / slow:>8.2f} times")


if __name__ == "__main__":
    main()
