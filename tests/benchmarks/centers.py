"""Ways of choosing centers on Fashion-MNIST: seconds to choose, and test accuracy after a fit, over several seeds.

    python tests/benchmarks/centers.py [--centers 100 1000] [--epochs 5] [--seeds 3]

Table 2 of Abedsoltan et al. 2023 has 76.24% for random centers and 78.66% for k-means at p = 100, 84.59% and 85.55% at
p = 1,000.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import streamkern as sk
from streamkern.centers import Centers, KMeans, RPCholesky, Uniform
from streamkern.data.targets import Classes
from streamkern.execute import Executor, open_executor
from streamkern.runs import load_pipeline
from streamkern.solvers import Problem, train


def fit(executor: Executor, job: sk.Pipeline, centers: Centers, epochs: int, seed: int) -> tuple[float, float, float]:
    """Seconds to choose, seconds to fit, and the accuracy after the last pass."""
    start = time.perf_counter()
    chosen = centers.choose(job.train, executor, np.dtype(np.float32))
    ready = time.perf_counter()
    problem = Problem(
        job.train, Classes(np.arange(10)), job.kernel, chosen, executor, seed=seed, validation=job.test
    )  # fmt: skip
    outcome = train(problem, sk.EigenPro(epochs=epochs).setup(problem))
    assert outcome.failure is None
    return ready - start, time.perf_counter() - ready, outcome.history[-1]["validation"]["accuracy"]


def main() -> None:
    """Print one line a number of centers and a way of choosing them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--centers", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    job = load_pipeline("pipelines/fashion_mnist.py", {"rows": "60000", "noise": "0"})
    with open_executor() as executor:
        for p in options.centers:
            for make in (Uniform, KMeans, lambda p, seed: RPCholesky(p, job.kernel, seed=seed)):
                runs = [fit(executor, job, make(p, seed=seed), options.epochs, seed) for seed in range(options.seeds)]
                chosen, fitted = np.median([run[:2] for run in runs], axis=0)
                accuracy = "  ".join(f"{run[2]:.2%}" for run in runs)
                name = type(make(p, seed=0)).__name__
                print(f"p = {p:>6,}  {name:<10}  chosen in {chosen:5.1f} s  fitted in {fitted:5.1f} s  {accuracy}")


if __name__ == "__main__":
    main()
