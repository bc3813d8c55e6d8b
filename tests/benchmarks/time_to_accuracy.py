"""Seconds from a cold start to a test accuracy on Fashion-MNIST, against EigenPro 3 as published, in plain NumPy.

    python tests/benchmarks/time_to_accuracy.py [--centers 5000] [--accuracy 0.863] [--repeats 1]

Each side is a process of its own that imports, reads the images, sets up and trains; evaluation on the test images is
not counted. The baseline is ``streamkern.testing.references.eigenpro3``: inexact projection (Algorithm 2 of Abedsoltan
et al. 2023) with the settings of the released code (s = 5,000, q = 500, two projection epochs), and a second one with
the strongest settings we found for it (``--tuned``), everything in memory. Sides are interleaved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

BASELINES = {
    "published": {},
    "tuned": {"s": 2000, "q": 200, "projection_epochs": 8, "keep_kernel": True},
}


def ours(centers: int, accuracy: float, epochs: int, began: float) -> dict[str, object]:
    """Passes of streamkern's EigenPro until the accuracy is reached."""
    import numpy as np

    import streamkern as sk
    from streamkern.data.targets import Classes
    from streamkern.execute.threads import ThreadsExecutor
    from streamkern.pipeline import load_pipeline
    from streamkern.solvers import Problem, train

    settings = {"rows": "60000", "noise": "0", "centers": str(centers)}
    job = load_pipeline("pipelines/fashion_mnist.py", settings)
    with ThreadsExecutor() as executor:
        chosen = job.centers.choose(job.train, executor, np.dtype(np.float32))
        problem = Problem(
            job.train, Classes(np.arange(10)), job.kernel, chosen, executor, validation=job.test, cache_bytes=256 << 20
        )
        iteration = sk.EigenPro(epochs=epochs).setup(problem)
        ready = time.time() - began
        outcome = train(problem, iteration)
    passes, spent = [], ready
    for entry in outcome.history:
        spent = ready + float(entry["seconds"]) - float(entry["scoring_seconds"])
        passes.append((entry["validation"]["accuracy"], spent))
    return {"setup": ready, "passes": passes}


def baseline(centers: int, epochs: int, began: float, **settings: object) -> dict[str, object]:
    """Passes of plain NumPy EigenPro 3."""
    import gzip
    from functools import partial
    from pathlib import Path

    import numpy as np

    from streamkern.testing.references import eigenpro3, laplace

    folder = Path("/usr/share/datasets/fashion-mnist")

    def read(name: str, header: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)

    X = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 784) / np.float32(255)
    Y = np.eye(10, dtype=np.float32)[read("train-labels-idx1-ubyte.gz", 8)]
    X_test = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784) / np.float32(255)
    y_test = read("t10k-labels-idx1-ubyte.gz", 8)
    Z = X[np.random.default_rng(0).choice(len(X), centers, replace=False)]
    kernel = partial(laplace, bandwidth=20.0)
    ready = time.time() - began
    passes = []

    def on_epoch(epoch: int, alpha: np.ndarray, seconds: float) -> None:
        right = sum(
            int(np.count_nonzero((kernel(X_test[a : a + 1000], Z) @ alpha).argmax(1) == y_test[a : a + 1000]))
            for a in range(0, len(X_test), 1000)
        )
        passes.append((right / len(X_test), ready + seconds))

    eigenpro3(kernel, X, Y, Z, epochs=epochs, on_epoch=on_epoch, **settings)
    return {"setup": ready, "passes": passes}


def main() -> None:
    """Run both sides in fresh processes and print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--centers", type=int, default=5000)
    parser.add_argument("--accuracy", type=float, default=0.863)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--side")
    options = parser.parse_args()
    if options.side:
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + _process_start()
        if options.side == "streamkern":
            print(json.dumps(ours(options.centers, options.accuracy, min(2, options.epochs), began)))
        else:
            print(json.dumps(baseline(options.centers, options.epochs, began, **BASELINES[options.side])))
        return
    sides: dict[str, list[float]] = {name: [] for name in ("streamkern", *BASELINES)}
    for _ in range(options.repeats):
        for side in sides:
            command = [sys.executable, __file__, "--side", side, "--centers", str(options.centers)]
            command += ["--epochs", str(options.epochs)]
            told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            reached = next((spent for accuracy, spent in told["passes"] if accuracy >= options.accuracy), float("inf"))
            sides[side].append(reached)
            passes = "  ".join(f"{accuracy:.2%} at {spent:.1f} s" for accuracy, spent in told["passes"])
            print(f"{side:<11} {reached:6.1f} s to {options.accuracy:.1%}   (ready {told['setup']:.1f} s)   {passes}")
    for name in BASELINES:
        ratios = [b / a for a, b in zip(sides["streamkern"], sides[name], strict=True)]
        print(f"{name} / streamkern: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def _process_start() -> float:
    """When this process began, in seconds since boot."""
    import os
    from pathlib import Path

    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
