"""Training from zarr on disk against the same arithmetic from arrays in memory, interleaved.

    python tests/benchmarks/streaming.py [--repeats 5] [--centers 2000] [--dtype uint8]

The rows are the real Fashion-MNIST images: three times over as bytes (141 MB), or once as float32 (188 MB). On the disk
side memory keeps less than half of the chunks, so every pass reads and decodes the store again; the operating system's
page cache is warm. Three passes. The floor: decoding the stored bytes once a pass, on a thread beside the arithmetic.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np

import streamkern as sk
from streamkern.data.targets import Classes
from streamkern.execute.threads import ThreadsExecutor
from streamkern.pipeline import load_pipeline
from streamkern.solvers import Problem, train
from streamkern.storage import ArraySource

CACHE = 64 << 20


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
    rows = int(np.diff(disk.source.bounds).max())
    memory = sk.Dataset(ArraySource(X, y, chunk_rows=rows))
    assert np.array_equal(memory.source.bounds, disk.source.bounds)
    assert X.nbytes > 2 * CACHE
    chosen = sk.Uniform(centers).choose(disk.scale(factor), executor, np.dtype(np.float32))
    return {
        name: Problem(side.scale(factor), Classes(np.arange(10)), sk.Laplace(20.0), chosen, executor, cache_bytes=CACHE)
        for name, side in {"memory": memory, "disk": disk}.items()
    }


def main() -> None:
    """Print rows per second of both sides and the ratio, repeat by repeat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--centers", type=int, default=2000)
    parser.add_argument("--dtype", choices=("uint8", "float32"), default="uint8")
    options = parser.parse_args()
    ratios = []
    with ThreadsExecutor() as executor, tempfile.TemporaryDirectory() as folder:
        sides = problems(options.centers, options.dtype, Path(folder), executor)
        ready = {name: sk.EigenPro(epochs=3, batch=1024).setup(side) for name, side in sides.items()}
        for repeat in range(options.repeats + 1):
            order = ("memory", "disk") if repeat % 2 else ("disk", "memory")
            outcomes = {name: train(sides[name], ready[name]) for name in order}
            rates = {name: outcome.rows / outcome.seconds for name, outcome in outcomes.items()}
            if repeat:  # the first warms the page cache and the compiled loops
                ratios.append(rates["disk"] / rates["memory"])
                print(
                    f"memory {rates['memory']:9,.0f} rows/s   disk {rates['disk']:9,.0f} rows/s   "
                    f"ratio {ratios[-1]:.3f}   waiting on disk {outcomes['disk'].wait:.2%}"
                )
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"disk / memory: median {statistics.median(ratios):.3f} ({spread} over {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
