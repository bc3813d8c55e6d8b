"""Probabilities and intervals beside LightGBM, all with defaults: ``python -m tests.benchmarks.answers [name
...]``.

Classes: log loss, expected calibration error (15 bins), what that is by chance on as many rows where probabilities are
true, AUC, accuracy on test rows by the largest probability and by the largest output, and processor seconds of fit and
prediction. Values: the share of test rows inside their 90% intervals, in all and in every fifth of the predicted scale
(least and most), and their mean width. LightGBM runs where it is installed; its intervals are those of its quantile
loss at 5% and 95%, and its fifths those of their width.

``--data NAME=FILE:TARGET`` adds a table from a CSV or parquet file, such as ``--data adult=adult.csv:income``;
``--packages FOLDER`` adds the real tables of ``tables.py``. ``--centers 0`` is all defaults, ``--logistic`` adds
those with the logistic loss, with ``--centers N`` on as many centers; ``--auto`` leaves all but their number to the
library. ``--models`` leaves some of the models out, ``--seed`` takes another split. ``fashion`` has the test images
that Fashion-MNIST comes with, on which models are right less often than on images drawn from all 70,000, as ``fashion
drawn`` does and tables do. ``--results`` adds classes, and with all defaults intervals, in the tables of
docs/how-to/probabilities-and-intervals.md, none of which has a learned metric.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

import streamkern as sk
from streamkern.calibration.intervals import relative_scales
from tests.benchmarks.results import add_results, add_run
from tests.benchmarks.tables import FASHION, TABLES, fashion, fashion_parts


def _friedman(seed: int) -> tuple[Any, Any]:
    """Friedman's function, with noise whose size depends on a feature."""
    X, y = datasets.make_friedman1(20_000, n_features=8, noise=0.0, random_state=seed)
    return X, y + (0.3 + 3 * X[:, 5]) * np.random.default_rng(seed).standard_normal(len(y))


def _many_classes() -> tuple[Any, Any]:
    """A thousand classes of nine rows each, a third of which are for testing."""
    rng, y = np.random.default_rng(0), np.repeat(np.arange(1000), 9)
    return rng.standard_normal((1000, 20))[y] + 0.6 * rng.standard_normal((len(y), 20)), y


CLASSES = {
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "many classes": _many_classes,
}
VALUES = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "friedman": lambda: _friedman(0),
    "linnerud-like": lambda: datasets.make_regression(4000, 10, noise=20.0, random_state=0),
}


THREADS = int(os.environ.get("ANSWERS_THREADS", "2"))
"""Threads of every model: on a machine with other work LightGBM's threads wait for each other."""

MODELS = ("streamkern", "with AGOP", "logistic", "LightGBM")

LOSSES = {
    "streamkern": "streamkern, least squares",
    "logistic": 'streamkern, `loss="logistic"`',
    "LightGBM": "LightGBM",
}
TITLES = {
    "fashion": "Fashion-MNIST",
    "fashion drawn": "Fashion-MNIST split at random",
    "casp": "CASP",
    "diamonds": "diamonds, log price",
    "flights": "flights, minutes late",
}
"""Models and sets in docs/results."""


def split(X: Any, y: Any, seed: int, share: float = 0.3) -> tuple[Any, ...]:
    """Train and test rows."""
    order = np.random.default_rng(seed).permutation(len(y))
    cut = int(share * len(y))
    rows = (order[cut:], order[:cut])
    take = (lambda each, i: each.iloc[i]) if isinstance(X, pd.DataFrame) else (lambda each, i: each[i])
    y = np.asarray(y)
    return take(X, rows[0]), y[rows[0]], take(X, rows[1]), y[rows[1]]


def fewer(parts: tuple[Any, ...], rows: int) -> tuple[Any, ...]:
    """At most so many of the rows to fit."""
    return parts[0][:rows], parts[1][:rows], *parts[2:]


def ece(P: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error of the largest probability."""
    cell = np.minimum((P.max(axis=1) * bins).astype(int), bins - 1)
    gap = np.bincount(cell, P.max(axis=1), bins) - np.bincount(cell, right, bins)
    return float(np.abs(gap).sum() / len(P))


def by_chance(P: np.ndarray, draws: int = 20) -> float:
    """Mean calibration error of these probabilities on rows whose labels are drawn by them."""
    rng, upto = np.random.default_rng(0), P.cumsum(axis=1)
    labels = ((rng.random((len(P), 1)) > upto).sum(axis=1) for _ in range(draws))
    return float(np.mean([ece(P, P.argmax(axis=1) == y) for y in labels]))


def trees(kind: str, X: Any, **options: Any) -> Any:
    """LightGBM with defaults; text columns as its categories."""
    import lightgbm

    model = getattr(lightgbm, kind)(verbose=-1, n_jobs=THREADS, **options)
    return model, (_coded(X) if isinstance(X, pd.DataFrame) else X)


def _coded(X: pd.DataFrame) -> pd.DataFrame:
    text = X.select_dtypes(exclude="number").columns
    return X.astype({name: "category" for name in text})


def given(centers: int, rows: int, ridge: float, auto: bool) -> dict[str, Any]:
    """Options of a model: none of all defaults, else so many centers and, unless the solver is left open, a ridge."""
    how: dict[str, Any] = {"centers": min(centers, rows)} if centers else {}
    return how | ({"solver": sk.Direct(ridge=ridge)} if centers and not auto else {})


def classes(
    name: str,
    parts: tuple[Any, ...],
    centers: int,
    more: dict[str, dict[str, Any]],
    models: Sequence[str],
    auto: bool = False,
) -> dict[str, dict[str, float]]:
    """One line for each of the models: the defaults, those with ``more`` options by name, LightGBM."""
    X, y, X_test, y_test = parts
    labels, found = np.unique(y), dict[str, dict[str, float]]()

    def line(who: str, P: np.ndarray, seconds: float, by_output: str = "") -> None:
        right = labels[P.argmax(axis=1)] == y_test
        every = len(np.unique(y_test)) == len(labels)  # or the area of a class is not defined
        auc = roc_auc_score(y_test, P[:, 1] if len(labels) == 2 else P, multi_class="ovr") if every else np.nan
        found[who] = {
            "log loss": log_loss(y_test, P, labels=labels), "calibration error": ece(P, right),
            "by chance": by_chance(P), "accuracy": right.mean(), "seconds": seconds,
        }  # fmt: skip
        loss, error, chance, accuracy, _ = found[who].values()
        print(
            f"{name:<16}{who:<12}{loss:>10.4f}{error:>9.4f}{chance:>9.4f}"
            f"{auc:>9.4f}{accuracy:>10.4f}{by_output:>10}{seconds:>9.1f}",
            flush=True,
        )

    for who, options in {"streamkern": {}, **more}.items():
        if who not in models:
            continue
        start = time.process_time()
        how = given(centers, len(y), 1e-6, auto)
        model = sk.KernelClassifier(threads=THREADS, **{**how, **options}).fit(X, y)
        P, took = model.predict_proba(X_test), time.process_time() - start
        largest = model.model_.decision_function(X_test).argmax(axis=1)
        line(who, P, took, f"{accuracy_score(y_test, labels[largest]):.4f}")
    if "LightGBM" in models and find_spec("lightgbm"):
        start = time.process_time()
        model, rows = trees("LGBMClassifier", X)
        model.fit(rows, y)
        line("LightGBM", model.predict_proba(trees("LGBMClassifier", X_test)[1]), time.process_time() - start)
    return found


def recorded(
    name: str, rows: int, test_rows: int, centers: int, logistic: bool, found: dict[str, dict[str, float]]
) -> list[dict[str, Any]]:
    """Return lines of docs/results: of each model with the logistic loss, else one with LightGBM's beside."""
    title = TITLES.get(name, name)

    def of(who: str, what: str, digits: int, scale: float = 1.0) -> float | None:
        return round(scale * found[who][what], digits) if who in found else None

    if logistic:
        return [
            {
                "table": "logistic", "data": title, "model": loss, "log loss": of(who, "log loss", 4),
                "calibration error": of(who, "calibration error", 3), "accuracy, %": of(who, "accuracy", 1, 100),
                "CPU s": of(who, "seconds", 1),
            }
            for who, loss in LOSSES.items() if who in found
        ]  # fmt: skip
    if not {"streamkern", "LightGBM"} & found.keys():
        return []
    if centers:
        return [
            {
                "table": "small-models", "data": f"{title}, {test_rows:,} test rows",
                "log loss, streamkern": of("streamkern", "log loss", 3),
                "log loss, LightGBM": of("LightGBM", "log loss", 3),
                "calibration error, streamkern": of("streamkern", "calibration error", 3),
                "calibration error, LightGBM": of("LightGBM", "calibration error", 3),
            }
        ]  # fmt: skip
    return [
        {
            "table": "defaults", "data": f"{title}, {rows:,} rows to fit, {test_rows:,} to test",
            "log loss, streamkern": of("streamkern", "log loss", 4),
            "log loss, LightGBM": of("LightGBM", "log loss", 4),
            "calibration error, streamkern": of("streamkern", "calibration error", 4),
            "calibration error, by chance": of("streamkern", "by chance", 4),
            "calibration error, LightGBM": of("LightGBM", "calibration error", 4),
            "accuracy, streamkern, %": of("streamkern", "accuracy", 1, 100),
            "accuracy, LightGBM, %": of("LightGBM", "accuracy", 1, 100),
        }
    ]  # fmt: skip


def values(name: str, parts: list[tuple[Any, ...]], centers: int, models: Sequence[str]) -> dict[str, Any]:
    """One line for each model: means over splits. Returns a line of docs/results."""
    record: dict[str, Any] = {"table": "intervals", "data": TITLES.get(name, name)}
    ours = ("coverage, %", "smallest coverage of a fifth, %", "largest coverage of a fifth, %", "mean width")
    theirs = ("coverage, LightGBM, %", "mean width, LightGBM")
    record |= dict.fromkeys((*ours, *theirs))
    lines: dict[str, list[list[float]]] = {}
    for X, y, X_test, y_test in parts:
        start = time.process_time()
        model = sk.KernelRegressor(threads=THREADS, **given(centers, len(y), 1e-3, False)).fit(X, y)
        found = model.predict_interval(X_test, coverage=0.9)
        took = time.process_time() - start
        inside, width = (found[:, 0] <= y_test) & (y_test <= found[:, 1]), np.diff(found, axis=1)[:, 0]
        scales = relative_scales(model.model_.decision_function(X_test, scales=True)[:, 1])
        fifths = [inside[part].mean() for part in np.array_split(np.argsort(scales, kind="stable"), 5)]
        lines.setdefault("streamkern", []).append([inside.mean(), min(fifths), max(fifths), width.mean(), took])
        if "LightGBM" in models and find_spec("lightgbm"):
            start = time.process_time()
            ends = []
            for share in (0.05, 0.95):
                peer, rows = trees("LGBMRegressor", X, objective="quantile", alpha=share)
                ends.append(peer.fit(rows, y).predict(X_test))
            took = time.process_time() - start
            inside, width = (ends[0] <= y_test) & (y_test <= ends[1]), ends[1] - ends[0]
            fifths = [inside[part].mean() for part in np.array_split(np.argsort(width, kind="stable"), 5)]
            lines.setdefault("LightGBM", []).append([inside.mean(), min(fifths), max(fifths), width.mean(), took])
    for who, found in lines.items():
        inside, least, most, width, took = np.mean(found, axis=0)
        print(f"{name:<16}{who:<12}{inside:>10.3f}{least:>9.3f}{most:>9.3f}{width:>10.4g}{took:>9.1f}", flush=True)
        share, low, high = (round(float(100 * each), 1) for each in (inside, least, most))
        if who == "LightGBM":
            record |= zip(theirs, (share, f"{width:.3g}"), strict=True)
        else:
            record |= zip(ours, (share, low, high, f"{width:.3g}"), strict=True)
    return record


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of the sets; all by default")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=FILE:TARGET")
    parser.add_argument("--centers", type=int, default=1000, help="0: all defaults, of the solver too")
    parser.add_argument("--auto", action="store_true", help="with --centers: leave the solver of classes open")
    parser.add_argument("--packages", help="folder of unpacked packages: the real tables of tables.py, all but fars")
    parser.add_argument("--rows", type=int, default=60_000, help="most rows of a table from a file")
    parser.add_argument("--splits", type=int, default=5, help="splits that intervals are measured on")
    parser.add_argument("--seed", type=int, default=0, help="of the split of classes")
    parser.add_argument("--metric", action="store_true", help="with the learned metric, too")
    parser.add_argument("--logistic", action="store_true", help="with the logistic loss, too")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, help="all by default")
    add_results(parser)
    args = parser.parse_args()
    measured: list[dict[str, Any]] = []

    def ask(name: str, parts: tuple[Any, ...], more: dict[str, dict[str, Any]]) -> None:
        found = classes(name, parts, args.centers, more, args.models, args.auto)
        measured.extend(recorded(name, len(parts[1]), len(parts[3]), args.centers, args.logistic, found))

    def ask_values(name: str, parts: list[tuple[Any, ...]]) -> None:
        line = values(name, parts, args.centers, args.models)
        measured.extend([] if args.centers else [line])

    more: dict[str, dict[str, Any]] = {"with AGOP": {"metric": sk.AGOP()}} if args.metric else {}
    if args.logistic:
        more["logistic"] = {"solver": sk.LBFGS()}
    wanted = lambda name: not args.names or name in args.names  # noqa: E731
    titles = {"log loss": 10, "ECE": 9, "chance": 9, "AUC": 9, "accuracy": 10, "outputs": 10, "seconds": 9}
    print(f"{'set':<16}{'model':<12}" + "".join(title.rjust(width) for title, width in titles.items()))
    for name, load in CLASSES.items():
        if wanted(name):
            ask(name, split(*load(), args.seed), more)
    if FASHION.is_dir() and wanted("fashion"):
        one = {name: how for name, how in more.items() if name == "logistic"}
        ask("fashion", fewer(fashion_parts(), args.rows), one)
    if FASHION.is_dir() and wanted("fashion drawn"):
        drawn = fewer(split(*fashion()[:2], args.seed), args.rows)
        ask("fashion drawn", drawn, {})
    for table in args.data:
        name, _, rest = table.partition("=")
        file, _, target = rest.rpartition(":")
        frame = pd.read_parquet(file) if file.endswith(".parquet") else pd.read_csv(file, skipinitialspace=True)
        frame = frame.sample(min(len(frame), args.rows), random_state=0)
        ask(name, split(frame.drop(columns=target), frame[target], args.seed), more)
    tables = [name for name in TABLES if args.packages and name != "fars" and wanted(name)]  # LightGBM fails on fars
    os.environ["TABLES_PACKAGES"] = args.packages or ""
    loaded = {name: (_coded(X), y, is_classes) for name in tables for X, y, is_classes in [TABLES[name]()]}
    for name, (X, y, is_classes) in loaded.items():
        if is_classes:
            ask(name, fewer(split(X, y, args.seed), args.rows), more)
    print(f"\n{'set':<16}{'model':<12}{'inside':>10}{'least':>9}{'most':>9}{'width':>10}{'seconds':>9}")
    for name, load in VALUES.items():
        if wanted(name):
            ask_values(name, [split(*load(), seed) for seed in range(args.splits)])
    for name, (X, y, is_classes) in loaded.items():
        if not is_classes:
            ask_values(name, [fewer(split(X, y, seed), args.rows) for seed in range(args.splits)])
    if measured:
        add_run(args.results, measured)


if __name__ == "__main__":
    main()
