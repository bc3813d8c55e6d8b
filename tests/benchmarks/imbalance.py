"""A rare class: nothing, weights, a threshold, and centers that the rare class is given, on the same rows.

    python -m tests.benchmarks.imbalance

Fashion-MNIST (Debian's package ``dataset-fashion-mnist``) with one class against all others, of which few training rows
are kept; breast cancer with 40 rows of the malignant ones, means over ten halves. Test rows are all there are.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score, roc_auc_score

import streamkern as sk
from tests.benchmarks.results import add_results, add_run
from tests.benchmarks.tables import fashion_parts

CENTERS = 1000


def one_class(rare: int, rows: int) -> tuple[np.ndarray, ...]:
    """Training rows with few of one class, and all test rows."""

    X, y, X_test, y_test = fashion_parts()
    kept = np.sort(np.concatenate([np.flatnonzero(y != rare)[:20_000], np.flatnonzero(y == rare)[:rows]]))
    return X[kept], (y[kept] == rare).astype(int), X_test, (y_test == rare).astype(int)


def cancer(half: int) -> tuple[np.ndarray, ...]:
    """Half of the rows, with 40 malignant ones, and the other half."""
    X, y = load_breast_cancer(return_X_y=True)
    order, y = np.random.default_rng(half).permutation(len(y)), 1 - y
    first, test = np.split(order, [len(y) // 2])
    kept = np.concatenate([first[y[first] == 0], first[y[first] == 1][:40]])
    return X[kept], y[kept], X[test], y[test]


def sides(X: np.ndarray, y: np.ndarray, kernel: sk.Laplace | None, ridge: float) -> Iterator[tuple[str, dict]]:
    """Names, and parameters of the estimator."""
    solver = sk.Direct(ridge)
    plain = {"kernel": kernel, "solver": solver, "centers": min(CENTERS, len(y)), "threads": 2}
    yield "as it is", plain
    yield "class_weight", plain | {"class_weight": "balanced"}
    yield "threshold", plain | {"threshold": "balanced_accuracy"}
    yield "both", plain | {"threshold": "balanced_accuracy", "class_weight": "balanced"}
    if len(y) > CENTERS:
        drawn = np.random.default_rng(0).choice(len(y), CENTERS, replace=False)
        rare = np.flatnonzero(y == 1)[:50]
        given = plain | {"centers": sk.Given(X[np.union1d(drawn[len(rare) :], rare)]), "preprocess": None}
        yield "50 centers of the class", given
        yield "those and class_weight", given | {"class_weight": "balanced"}


def measured(
    rows: tuple[np.ndarray, ...], kernel: sk.Laplace | None, ridge: float
) -> Iterator[tuple[str, list[float]]]:
    """Balanced accuracy, F1, AUC and average precision of each side."""
    X, y, X_test, y_test = rows
    for name, given in sides(X, y, kernel, ridge):
        model = sk.KernelClassifier(**given).fit(X, y)
        score, taken = model.decision_function(X_test), model.predict(X_test)
        yield name, [
            balanced_accuracy_score(y_test, taken), f1_score(y_test, taken), roc_auc_score(y_test, score),
            average_precision_score(y_test, score),
        ]  # fmt: skip


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--halves", type=int, default=10)
    add_results(parser)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'':<66}{'bal. acc.':>10}{'F1':>10}{'AUC':>10}{'avg. prec.':>11}")
    tables = {
        f"Fashion-MNIST, class {rare}, {rows} rows": [(one_class(rare, rows), sk.Laplace(10.0), 1e-5)]
        for rare, rows in ((6, 60), (2, 60), (6, 300))
    }
    tables["breast cancer, 40 malignant rows"] = [(cancer(half), None, 1e-3) for half in range(arguments.halves)]
    names = {"class_weight": 'with `class_weight="balanced"`', "threshold": "with a threshold", "both": "with both"}
    lines = []
    for table, runs in tables.items():
        found: dict[str, list[list[float]]] = {}
        for run in runs:
            for name, numbers in measured(*run):
                found.setdefault(name, []).append(numbers)
        for name, every in found.items():
            mean = np.mean(every, axis=0)
            print(f"{table + ': ' + name:<66}" + "".join(f"{value:>9.4f} " for value in mean), flush=True)
            if name in ("as it is", *names):
                line = {"table": "weights", "": names.get(name, table.removeprefix("Fashion-MNIST, "))}
                scores = ("balanced accuracy", "F1", "AUC", "average precision")
                lines.append(line | {score: round(value, 3) for score, value in zip(scores, mean, strict=True)})
    add_run(arguments.results, lines)


if __name__ == "__main__":
    main()
