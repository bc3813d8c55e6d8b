"""Overhead of EigenPro over stochastic gradient descent, an epoch (Ma & Belkin 2017, section 6, "Overhead").

    python pipelines/papers/eigenpro_overhead.py --basis fourier --q 160

trains an epoch of each in turns, on the same rows of Fashion-MNIST, basis and batch, and prints the ratio of the times
of each pair: median and range. Setup, which happens once, is not part of an epoch and is printed by itself.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from streamkern.centers import CenterSet
from streamkern.execute import open_executor
from streamkern.fitting.precision_checks import dtype_of
from streamkern.fitting.preparation import statistics
from streamkern.runs import load_pipeline
from streamkern.solvers import Problem, train


def compare(
    basis: str = "fourier",
    rows: int = 10_000,
    features: int = 5000,
    q: int = 160,
    subsample: int = 4800,
    batch: int = 256,
    pairs: int = 5,
) -> dict[str, object]:
    """Seconds of epochs, SGD and EigenPro in turns; parameters as in eigenpro.py.

    Returns:
        ``sgd`` and ``eigenpro``: seconds of each epoch; ``setup``: seconds before EigenPro's first.
    """
    settings = {"basis": basis, "rows": rows, "features": features, "q": q, "subsample": subsample, "batch": batch}
    iterations = {}
    with open_executor() as executor:
        for method in ("sgd", "eigenpro"):
            texts = {key: str(value) for key, value in settings.items()}
            job = load_pipeline(__file__.replace("_overhead", ""), texts | {"method": method, "epochs": "1"})
            encoding = statistics(job.train, executor, job.task).encoding
            dtype = np.dtype(dtype_of(job))
            centers = CenterSet(np.empty((0, job.train.n_features), dtype), None)
            if job.centers is not None:
                centers = job.centers.choose(job.train, executor, dtype)
            assert job.kernel is not None
            problem = Problem(
                job.train, encoding, job.kernel, centers, executor,
                dtype=dtype, lanes=job.lanes, seed=job.seed, features=job.features,
            )  # fmt: skip
            start = time.perf_counter()
            iterations[method] = job.solver.setup(problem)
            setup = time.perf_counter() - start
        seconds: dict[str, list[float]] = {method: [] for method in iterations}
        for turn in range(pairs + 1):
            for method, iteration in iterations.items():
                outcome = train(problem, iteration)
                if turn:  # the first compiles and fills caches
                    seconds[method].append(outcome.seconds)
    return {**seconds, "setup": setup}


def main(arguments: list[str] | None = None) -> None:
    """Print the ratio of the epochs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--basis", choices=("kernel", "fourier"), default="fourier")
    for name, default in (("rows", 10_000), ("features", 5000), ("subsample", 4800), ("batch", 256), ("pairs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--q", type=int, nargs="+", default=[160])
    options = vars(parser.parse_args(arguments))
    for q in options.pop("q"):
        found = compare(**options, q=q)
        ratios = np.divide(found["eigenpro"], found["sgd"])
        print(
            f"{options['basis']}, k = {q}: EigenPro takes {np.median(ratios):.3f} ({ratios.min():.3f} to "
            f"{ratios.max():.3f}, {len(ratios)} pairs) of SGD's {np.median(found['sgd']):.2f} s an epoch; "
            f"setup {found['setup']:.1f} s"
        )


if __name__ == "__main__":
    main()
