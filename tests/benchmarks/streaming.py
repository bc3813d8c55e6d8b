"""Training from zarr on disk against the same arithmetic from arrays in memory, interleaved.

    python tests/benchmarks/streaming.py [--repeats 5] [--centers 2000] [--epochs 1]

The floor: decoding the stored bytes once a pass, on a thread beside the arithmetic. No chunk stays in memory on the disk
side, so every pass reads the store again.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np

import streamkern as sk
from streamkern.data.targets import Classes
from streamkern.execute.threads import ThreadsExecutor
from streamkern.pipeline import load_pipeline
from streamkern.solvers import Problem, train


def problems(centers: int, executor: ThreadsExecutor) -> dict[str, Problem]:
    """The same rows in memory and on disk, with the same centers and the same order."""
    data = load_pipeline("pipelines/fashion_mnist.py", {"rows": "60000", "noise": "0"}).train
    chunks = [data.source.read(i) for i in range(len(data.source.bounds) - 1)]
    X, y = np.concatenate([c.X for c in chunks]), np.concatenate([c.y for c in chunks])
    sides = {"memory": sk.from_arrays(X, y).scale(1 / 255), "disk": data}
    chosen = sk.Uniform(centers).choose(data, executor, np.dtype(np.float32))
    return {
        name: Problem(side, Classes(np.arange(10)), sk.Laplace(20.0), chosen, executor, cache_bytes=0)
        for name, side in sides.items()
    }


def main() -> None:
    """Print rows per second of both sides and the ratio, repeat by repeat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--centers", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    ratios = []
    with ThreadsExecutor() as executor:
        sides = problems(options.centers, executor)
        ready = {name: sk.EigenPro(epochs=options.epochs, batch=1024).setup(side) for name, side in sides.items()}
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
