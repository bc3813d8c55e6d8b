"""What a night's new rows cost beside a fit, and how exactly rows are forgotten.

    python tests/benchmarks/updates.py [--rows 1000000] [--centers 500] [--repeats 3] [--threads 1] [--dtype float32]

A fit on all rows, then 1% more rows by ``partial_fit``, interleaved; seconds of the processor and by the clock, and
their ratio. Then 1% of the rows are forgotten, and the weights compared with those of a fit that never saw them. Last,
the same ratio on shapes for 10 million rows (``costs/dry_run.py``): all operations at nominal prices.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from results import add_results, add_run

import streamkern as sk
from streamkern.costs.dry_run import ProblemSize, nominal_work

SHARE = 0.01
KERNELS = {"Laplace": sk.Laplace(6.0), "Gaussian": sk.Gaussian(4.0)}


def rows(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal features, and a smooth target with noise, whose mean is not 0."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d), dtype=np.float32)
    return X, (np.sin(X[:, 0] + X[:, 1]) + X[:, 2] * X[:, 3] + 0.1 * rng.standard_normal(n) + 3.0).astype(np.float64)


def timed(work: object) -> tuple[float, float]:
    """Seconds of the processor, and by the clock."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - cpu, time.perf_counter() - clock


def main() -> None:
    """A line for each kernel, and one for each number of centers on shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--centers", type=int, default=500)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--kernel", choices=KERNELS, help="one of them")
    add_results(parser)
    options = parser.parse_args()
    measured = []
    n, new = options.rows, max(1, round(SHARE * options.rows))
    X, y = rows(n + new, options.features)
    warnings.simplefilter("ignore")
    for name, kernel in KERNELS.items():
        if options.kernel not in (None, name):
            continue

        def model(kernel: sk.Kernel = kernel) -> sk.KernelRegressor:
            solver = sk.Direct(ridge=1e-6, keep_sums=True)
            given = {"preprocess": None, "threads": options.threads, "dtype": options.dtype}
            return sk.KernelRegressor(kernel, centers=sk.Given(X[: options.centers]), solver=solver, **given)

        pairs = []
        for _ in range(options.repeats):
            made = model()
            fit = timed(lambda made=made: made.fit(X[:n], y[:n]))
            pairs.append((fit, timed(lambda made=made: made.partial_fit(X[n:], y[n:]))))
        (fit_cpu, fit_clock), (add_cpu, add_clock) = np.median(np.array(pairs), axis=0)
        print(f"{name}, {n:,} rows, {options.centers} centers, {options.dtype}:")
        print(f"  fit: {fit_cpu:.1f} s of the processor, {fit_clock:.1f} s by the clock")
        print(f"  1% more: {add_cpu:.2f} s ({add_cpu / fit_cpu:.2%}), {add_clock:.2f} s ({add_clock / fit_clock:.2%})")
        gone = slice(n // 2, n // 2 + new)
        never = np.r_[: gone.start, gone.stop : n]
        expected = model().fit(X[never], y[never])
        found = model().fit(X[:n], y[:n]).forget(X[gone], y[gone])
        a, b = found.model_.weights, expected.model_.weights
        off = np.abs(found.predict(X[:2000]) - expected.predict(X[:2000])).max() / y.std()
        print(
            f"  {new:,} rows forgotten: weights differ by {np.linalg.norm(a - b) / np.linalg.norm(b):.1e} of the norm,"
        )
        print(f"  predictions by {off:.1e} standard deviations; sums take {found.model_.sums.nbytes / 2**20:.1f} MiB")
        size = f"{n // 10**6} million" if n % 10**6 == 0 else f"{n:,}"
        line = {"table": "costs", "rows, kernel": f"{size}, {name}" + ", float64" * (options.dtype == "float64")}
        line |= {"fit, CPU s": round(fit_cpu, 1), "update with 1% more rows, CPU s": round(add_cpu, 2)}
        line |= {"CPU time, update / fit, %": round(100 * add_cpu / fit_cpu, 1)}
        line |= {"elapsed time, update / fit, %": round(100 * add_clock / fit_clock, 1)}
        off = np.linalg.norm(a - b) / np.linalg.norm(b)
        measured.append(line | {"1% of the rows forgotten: difference of weights": float(f"{off:.1e}")})
    add_run(options.results, measured)
    million = 1_000_000
    for p in (500, 1000, 2000, 5000, 8000):
        solver = sk.Direct(keep_sums=True)
        work = [
            nominal_work(solver, ProblemSize(k, p, 20, 1, memory=1 << 40))
            for k in (10 * million, round(SHARE * 10 * million))
        ]
        print(f"on shapes, 10 million rows of 20 features, {p:,} centers: {work[1] / work[0]:.2%}")


if __name__ == "__main__":
    main()
