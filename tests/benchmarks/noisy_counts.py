"""The default regressor on counts that are nearly all noise: its error on new rows is to fall with the training rows.

    python tests/benchmarks/noisy_counts.py                    # 10,000 to 1,000,000 rows
    python tests/benchmarks/noisy_counts.py 10000 30000 80000

10 normal columns, and counts of mean .05 exp(.5 x0 - .3 x1 x2 [x3 > 0]), of whose variance the mean explains two parts
in a hundred. A line for each number of rows: R² on 200,000 others, the seconds, the report; first, that of the mean
itself. Status 1 if one R² is below that of fewer rows, or below 0.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import streamkern as sk
from streamkern.types import Array

ROWS = (10_000, 30_000, 80_000, 300_000, 1_000_000)
SHOWN = ("ridge", "best_pass", "iterations", "residual")


def counts(n: int, seed: int) -> tuple[Array, Array, Array]:
    """Rows, counts, and their means."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10))
    rate = 0.05 * np.exp(0.5 * X[:, 0] - 0.3 * X[:, 1] * X[:, 2] * (X[:, 3] > 0))
    return X, rng.poisson(rate).astype(float), rate


def main() -> int:
    """Fit, print, compare."""
    X_test, y_test, rate = counts(200_000, 1)

    def r2(found: Array) -> float:
        return float(1 - np.mean((y_test - found) ** 2) / np.var(y_test))

    print(f"the mean itself: R2 {r2(rate):.4f}", flush=True)
    scores = []
    for n in map(int, sys.argv[1:] or ROWS):
        X, y, _ = counts(n, 0)
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = sk.KernelRegressor().fit(X, y)
        seconds = time.perf_counter() - start
        scores.append(r2(model.predict(X_test)))
        report = {name: model.result_.report[name] for name in SHOWN if name in model.result_.report}
        said = [str(warning.message) for warning in told]
        print(f"{n:>9,} rows: R2 {scores[-1]:.4f} in {seconds:.0f} s, {report} {said}", flush=True)
    return int(scores != sorted(scores) or scores[0] < 0)


if __name__ == "__main__":
    sys.exit(main())
