"""Seconds that a plan predicts against those that the run takes, on the shipped pipelines.

    python tests/benchmarks/plans.py [--quick]
    python tests/benchmarks/plans.py --speed    # seconds that a plan itself takes, of tables of eight sizes

Plan and run are commands, each a process of its own, as users start them: ``streamkern plan`` (once before, so that its
calibration is there) and ``streamkern run``. Seconds are those of the stages, by the clock.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from results import add_results, add_run, machine

import streamkern as sk
from streamkern.costs.machine_speed import Prices
from streamkern.engine.operation_counts import Operations

RUNS = (
    ("pipelines/digits.py", {}),
    ("pipelines/digits.py", {"centers": "500", "rows": "1_000_000"}),
    ("pipelines/fashion_mnist.py", {"rows": "60_000", "noise": "0", "centers": "1000", "epochs": "5"}),
    ("pipelines/fashion_mnist.py", {"rows": "200_000", "centers": "1000"}),
    ("pipelines/fashion_mnist.py", {"rows": "60_000", "noise": "0", "centers": "5000", "epochs": "2"}),
    ("pipelines/fashion_mnist.py", {"rows": "200_000", "centers": "5000"}),
    ("pipelines/regression.py", {"epochs": "20"}),
    ("pipelines/hundred_million.py", {"rows": "400_000", "leaf_rows": "4000"}),
    ("tests/benchmarks/table_pipeline.py", {"rows": "8_000"}),
    ("tests/benchmarks/table_pipeline.py", {"rows": "30_000"}),
)

TITLES = {
    "pipelines/digits.py": "digits",
    "pipelines/fashion_mnist.py": "Fashion-MNIST",
    "pipelines/regression.py": "regression",
}


def measure(path: str, settings: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plan, then run: the plan and the result."""

    def streamkern(*words: str) -> str:
        values = [f"{name}={value}" for name, value in settings.items()]
        command = [
            sys.executable,
            "-m",
            "streamkern",
            *words[:1],
            path,
            *(["--set", *values] if values else []),
            *words[1:],
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    streamkern("plan")
    planned = json.loads(streamkern("plan", "--json"))
    with tempfile.TemporaryDirectory() as folder:
        streamkern("run", "--run-dir", folder, "--quiet")
        return planned, json.loads((Path(folder) / "result.json").read_text())


TABLES = (
    (464_809, 54, 7), (20_000, 10, 0), (48_842, 14, 2), (9357, 12, 0), (72_000, 40, 0), (160_000, 10, 0),
    (300_000, 16, 0), (20_640, 8, 0),
)  # fmt: skip
"""Rows, columns and classes (0: values) of tables whose plans are timed."""


def speed() -> None:
    """Seconds of the plan of each table, with prices given; the first plan of a process is not among them."""
    prices = Prices(Operations(*11 * [1e-10]), 1e-3, 1e-7, 1e-7, 1e-9)
    rng, took = np.random.default_rng(0), list[float]()
    for n, d, classes in ((1000, 3, 0), *TABLES):
        X = rng.normal(size=(n, d)).astype(np.float32)
        y = rng.integers(0, classes, n) if classes else rng.normal(size=n)
        task = "classification" if classes else "regression"
        pipeline = sk.Pipeline(sk.from_arrays(X, y), task=task)
        began = time.perf_counter()
        sk.plan(pipeline, memory="2GiB", prices=prices)
        took.append(time.perf_counter() - began)
        if n > 1000:
            print(f"{n:>9,} rows, {d} columns{took[-1]:>8.2f} s", flush=True)
    print(f"together {sum(took[1:]):.2f} s")


def main() -> None:
    """Stages of each run, then the whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first and the third only")
    parser.add_argument("--speed", action="store_true", help="seconds that a plan itself takes")
    add_results(parser)
    options = parser.parse_args()
    if options.speed:
        return speed()
    ratios: dict[str, list[float]] = {}
    print(f"{'stage':<14}{'predicted':>12}{'measured':>12}{'ratio':>8}")
    for index in (0, 2) if options.quick else range(len(RUNS)):
        path, settings = RUNS[index]
        planned, result = measure(path, settings)
        print(path, *(f"{name}={value}" for name, value in settings.items()))
        took: dict[str, float] = {}
        for stage in result["stages"]:
            name = stage.get("of", stage["name"])
            took[name] = took.get(name, 0.0) + stage["seconds"]
        rows = [(stage["name"], stage["seconds"], took.get(stage["name"], 0.0)) for stage in planned["stages"]]
        rows.append(("total", planned["seconds"], sum(took.values())))
        for name, predicted, measured in rows:
            ratio = predicted / measured if measured else float("nan")
            print(f"  {name:<12}{predicted:>10.2f} s{measured:>10.2f} s{ratio:>8.2f}")
        ratios.setdefault(TITLES.get(path, path), []).append(round(ratio, 2))
        projected, peak = planned["projected_memory_bytes"], result["peak_memory_bytes"]
        print(f"  memory      {projected >> 20:>8} MiB{peak >> 20:>8} MiB", flush=True)
    place = machine(Path("/proc/cpuinfo").read_text()).partition("(")[2].partition(")")[0]
    add_run(options.results, [{"table": "totals", "processor": place} | ratios])


if __name__ == "__main__":
    main()
