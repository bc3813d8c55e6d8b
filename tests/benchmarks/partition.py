"""Leaves beside one model at the same price of a prediction, and boosted trees.

    python tests/benchmarks/partition.py [--table NAME ...] [--covtype FILE] [--centers P] [--rows R] [--metric]
        [--kernel NAME] [--questions]

``FILE`` is covtype.csv of scikit-multiflow's source distribution. Other tables are generated. A fifth of the rows is
for testing. Each line: rows, leaves, error (1 - accuracy, or 1 - R²), seconds of the fit by the clock and of the
processor (all threads), processor microseconds of a predicted row, and the most memory that the process has held so
far. On a machine that others use, compare the processor's seconds. ``--questions`` asks a
``Predictor`` of each model for 1 and for 100 rows, in turns: the first tenth and the median of the microseconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from results import add_results, add_run

import streamkern as sk
from streamkern.memory import peak_resident_bytes

Table = tuple[np.ndarray, np.ndarray, bool]
"""Features, targets, and whether they are classes."""


def regions(n: int) -> Table:
    """Each of four regions has a function of its own, of two features of six."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    region = (X[:, :2] > 0) @ (1 << np.arange(2))
    W = rng.normal(size=(4, 4))
    f = np.sin(np.einsum("ij,ij->i", X[:, 2:], W[region]))
    return X, f + 0.1 * rng.normal(size=n), False


def smooth(n: int) -> Table:
    """One function everywhere: leaves have nothing to find but more centers."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 8)).astype(np.float32)
    return X, np.sin(X[:, 0] * X[:, 1]) + np.cos(2 * X[:, 2]) + 0.1 * rng.normal(size=n), False


def scales(n: int) -> Table:
    """Classes whose border is coarse on one side and fine on the other."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, size=(n, 6)).astype(np.float32)
    speed = np.where(X[:, 0] > 0, 12.0, 2.0)
    return X, (np.sin(speed * X[:, 1]) + np.sin(speed * X[:, 2]) > 0).astype(np.int64), True


TABLES: dict[str, Callable[[int], Table]] = {"regions": regions, "smooth": smooth, "scales": scales}


def covtype(path: str) -> Table:
    """Forest cover types from a CSV file whose last column is the class."""
    frame = pd.read_csv(path)
    return frame.iloc[:, :-1].to_numpy(np.float32), frame.iloc[:, -1].to_numpy(), True


def trees(classes: bool) -> Any:
    """LightGBM with what covtype takes for 96%: with a lighter ``min_child_weight`` its losses grow again."""
    import lightgbm

    options: dict[str, Any] = {
        "n_estimators": 80, "num_leaves": 255, "learning_rate": 0.2, "min_child_weight": 5.0, "reg_lambda": 1.0,
        "verbose": -1,
    }  # fmt: skip
    return (lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor)(**options)


def asked(models: list[Any], X: np.ndarray, rows: int) -> str:
    """Microseconds of a question of so many rows to each model, in turns: the first tenth and the median."""
    predictors, took = [sk.Predictor(model.model_) for model in models], []
    for i in range(330):
        question, marks = X[(i * rows) % (len(X) - rows) :][:rows], [time.perf_counter()]
        for predictor in predictors:
            predictor(question)
            marks.append(time.perf_counter())
        took.append(np.diff(marks))
    low, middle = np.quantile(1e6 * np.array(took[30:]), [0.1, 0.5], axis=0)
    times = ", ".join(f"{a:,.0f} and {b:,.0f}" for a, b in zip(low, middle, strict=True))
    return f"{rows} row(s): {times} us; {low[-1] / low[0]:.1f} and {middle[-1] / middle[0]:.1f} times"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="append", choices=[*TABLES, "covtype"])
    parser.add_argument("--covtype", help="covtype.csv")
    parser.add_argument("--n", type=int, default=200_000)
    parser.add_argument("--centers", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--kernel", default="laplace", help='"auto" for a choice, in every leaf')
    parser.add_argument("--questions", action="store_true", help="time single questions, too")
    parser.add_argument("--metric", action="store_true", help="each model learns a metric")
    parser.add_argument("--trees", action="store_true", help="LightGBM too, where it is installed")
    add_results(parser)
    given = parser.parse_args()
    measured = []
    print("table     model           rows  leaves    error   fit, s   cpu, s  row, us      peak")
    for name in given.table or list(TABLES):
        X, y, classes = covtype(given.covtype) if name == "covtype" else TABLES[name](given.n)
        held = np.random.default_rng(0).permutation(len(X))
        test, train = np.sort(held[: len(X) // 5]), np.sort(held[len(X) // 5 :])
        kind: Any = sk.KernelClassifier if classes else sk.KernelRegressor
        options: dict[str, Any] = {
            "kernel": sk.Laplace("median") if given.kernel == "laplace" else given.kernel,
            "centers": given.centers,
            "metric": sk.AGOP() if given.metric else None,
        }
        models = [
            ("one", kind(**options)),
            ("leaves", kind(**options, partition=sk.Partition(rows=given.rows))),
            *([("LightGBM", trees(classes))] if given.trees and find_spec("lightgbm") else []),
        ]
        found: dict[str, Any] = {"table": name, "rows": len(train), "centers": given.centers}
        for title, model in models:
            start, cpu = time.perf_counter(), time.process_time()
            model.fit(X[train], y[train])
            seconds, fitted = time.perf_counter() - start, time.process_time()
            error = 1 - model.score(X[test], y[test])
            row = 1e6 * (time.process_time() - fitted) / len(test)
            result = getattr(model, "result_", None)
            leaves = 1 if result is None else result.report.get("partition", {}).get("leaves", 1)
            found |= {f"error_{title}": error, f"processor_{title}": fitted - cpu, f"row_us_{title}": row}
            found["leaves"] = max(leaves, found.get("leaves", 1))
            print(
                f"{name:<9} {title:<10} {len(train):>9,} {leaves:>7} {error:>8.4f} {seconds:>8.1f} "
                f"{fitted - cpu:>8.1f} {row:>8.1f} {peak_resident_bytes() / 2**20:>5.0f} MiB",
                flush=True,
            )
        measured.append(found)
        if given.questions:
            for rows in (1, 100):
                print(asked([model for title, model in models if title != "LightGBM"], X[test], rows), flush=True)
    add_run(given.results, measured)


if __name__ == "__main__":
    main()
