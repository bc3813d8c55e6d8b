"""Training from zarr on disk against the same arithmetic from arrays in memory, interleaved.

    python tests/benchmarks/streaming.py [--repeats 5] [--centers 2000] [--dtype uint8]

The rows are the real Fashion-MNIST images: three times over as bytes (141 MB), or once as float32 (188 MB). On the disk
side memory keeps less than half of the chunks, so every pass reads and decodes the store again; the operating system's
page cache is warm. Three passes. The floor: decoding the stored bytes once a pass, on a thread beside the arithmetic.
"disk, by zarr" is the same store with every chunk decoded by zarr's own pipeline. First, what a decoded byte costs
either way, by the clock of the processor.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
from results import add_results, add_run, spread

import streamkern as sk
from streamkern.data.targets import Classes
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.formats import ArraySource, Source
from streamkern.formats.checked_zarr_array import WholeChunks
from streamkern.runs import load_pipeline
from streamkern.solvers import Problem, train

CACHE = 64 << 20
ZARR = "disk, by zarr"


def problems(centers: int, dtype: str, folder: Path, executor: ThreadsExecutor) -> dict[str, Problem]:
    """The same rows in the same order, in memory and on disk, with the same centers."""
    data = load_pipeline("pipelines/fashion_mnist.py", {"rows": "60000", "noise": "0"}).train
    chunks = [data.source.read(i) for i in range(len(data.source.bounds) - 1)]
    X, y = np.concatenate([c.X for c in chunks]), np.concatenate([c.y for c in chunks])
    if dtype == "uint8":
        X, y, factor = np.tile(X, (3, 1)), np.tile(y, 3), 1 / 255
    else:
        X, factor = X.astype(np.float32) / np.float32(255), 1.0
    sk.write_zarr(str(folder / "rows.zarr"), X, y, target="label")
    disk = sk.open_dataset(folder / "rows.zarr", target="label")
    with patch.object(WholeChunks, "of", return_value=None):
        by_zarr = sk.open_dataset(folder / "rows.zarr", target="label")
    prices({"disk": disk.source, ZARR: by_zarr.source})
    rows = int(np.diff(disk.source.bounds).max())
    memory = sk.Dataset(ArraySource(X, y, chunk_rows=rows))
    assert np.array_equal(memory.source.bounds, disk.source.bounds)
    assert X.nbytes > 2 * CACHE
    chosen = sk.Uniform(centers).choose(disk.scale(factor), executor, np.dtype(np.float32))
    return {
        name: Problem(side.scale(factor), Classes(np.arange(10)), sk.Laplace(20.0), chosen, executor, cache_bytes=CACHE)
        for name, side in {"memory": memory, "disk": disk, ZARR: by_zarr}.items()
    }


def prices(sources: dict[str, Source]) -> None:
    """Print GB/s of decoded features of each source: medians of five readings in turns, and the range."""
    found: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(5):
        for name, source in sources.items():
            start, decoded = time.process_time(), 0
            for chunk in range(len(source.bounds) - 1):
                decoded += source.read(chunk).X.nbytes
            found[name].append(decoded / (time.process_time() - start) / 1e9)
    for name, rates in found.items():
        print(f"decoding, {name:14} {statistics.median(rates):5.2f} GB/s ({min(rates):.2f} to {max(rates):.2f})")


def main() -> None:
    """Print rows per second of all sides and the ratios, repeat by repeat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--centers", type=int, default=2000)
    parser.add_argument("--dtype", choices=("uint8", "float32"), default="uint8")
    parser.add_argument("--least", type=float, default=0.95, help="exit with status 1 below this ratio, for bytes")
    add_results(parser)
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {"disk": [], ZARR: []}
    waits: dict[str, list[float]] = {name: [] for name in ratios}
    with ThreadsExecutor() as executor, tempfile.TemporaryDirectory() as folder:
        sides = problems(options.centers, options.dtype, Path(folder), executor)
        ready = {name: sk.EigenPro(epochs=3, batch=1024).setup(side) for name, side in sides.items()}
        for repeat in range(options.repeats + 1):
            names = list(sides)
            order = names if repeat % 2 else names[::-1]
            outcomes = {name: train(sides[name], ready[name]) for name in order}
            rates = {name: outcome.rows / outcome.seconds for name, outcome in outcomes.items()}
            if repeat:  # the first warms the page cache and the compiled loops
                told = [f"memory {rates['memory']:9,.0f} rows/s"]
                for name, each in ratios.items():
                    each.append(rates[name] / rates["memory"])
                    waits[name].append(outcomes[name].wait)
                    told.append(f"{name} {each[-1]:.3f} of it, waiting {outcomes[name].wait:.2%}")
                print("   ".join(told), flush=True)
    for name, each in ratios.items():
        ends = f"{min(each):.3f} to {max(each):.3f}"
        print(f"{name} / memory: median {statistics.median(each):.3f} ({ends} over {len(each)} pairs)")
    rows = {"dtype": options.dtype, "centers": options.centers, "pairs": options.repeats}
    measured = [
        rows | {"side": name, "ratio": spread(each), "waiting": statistics.median(waits[name])}
        for name, each in ratios.items()
    ]
    add_run(options.results, measured)
    if options.dtype == "uint8" and statistics.median(ratios["disk"]) < options.least:
        sys.exit(f"training from disk is below {options.least} of the speed from memory")


if __name__ == "__main__":
    main()
