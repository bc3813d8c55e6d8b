"""What tune chooses on a subsample, against a grid of complete trainings.

    OMP_NUM_THREADS=1 python tests/benchmarks/tune.py [--data digits fashion_mnist regression] [--centers 1000]
        [--rows 12_000] [--train 60_000] [--kernel laplace] [--json FILE] [--results FILE]

For each data set: ``sk.tune`` on its training rows, a complete run with the choice and one at the median distance, and
a grid: for every bandwidth the normal equations of all training rows, solved for every ridge, as ``Direct`` does. All
are scored on the same test rows. The seconds of the grid are those of as many runs as it has points, each as long as
the one with the choice. The best of the grid is taken by its test score, so it is the better for having been chosen on
the rows that it is scored on.

Fashion-MNIST is Debian's package ``dataset-fashion-mnist``; the regression set of 18 columns is that of
``pipelines/regression.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from results import add_results, add_run

import streamkern as sk
from streamkern.data.row_order import Scan
from streamkern.engine.packed_triangle import unpacked
from streamkern.execute import open_executor
from streamkern.fitting.preparation import prepare
from streamkern.fitting.stage import Runner
from streamkern.kernels import RADIAL_KERNELS
from streamkern.selection.learned_metric import HeldOut
from streamkern.solvers import Problem
from streamkern.solvers.contributions import NormalEquations
from streamkern.sweep import ScanWork, sweep

ROOT = Path(__file__).parent.parent.parent
MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
NAMES = ("1/4", "1/2", "1", "2", "4", "8")
"""Multiples in docs/results."""
TITLES = {"digits": "digits", "fashion_mnist": "Fashion-MNIST", "regression": "regression"}
RIDGES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)


def digits(centers: int, rows: int) -> sk.Pipeline:
    """scikit-learn's digits: three quarters to train on."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    train, test = sk.from_arrays(X / 16, y).split(0.25)
    p = min(centers, train.base_rows)
    return sk.Pipeline(train, centers=sk.Uniform(p), solver=sk.Direct(), test=test, dtype="float32")


def fashion_mnist(centers: int, rows: int) -> sk.Pipeline:
    """Fashion-MNIST, with its own test rows."""
    made = sk.load_pipeline(ROOT / "pipelines/fashion_mnist.py", {"rows": "60000", "noise": "0"})
    train = made.train.plain()
    train = train.sample(rows) if rows < train.base_rows else train
    return replace(made, train=train, centers=sk.Uniform(centers), solver=sk.Direct())


def regression(centers: int, rows: int) -> sk.Pipeline:
    """The 18 columns."""
    made = sk.load_pipeline(ROOT / "pipelines/regression.py", {"rows": "50000"})
    train = made.train.plain()
    train = train.sample(rows) if rows < train.base_rows else train
    return replace(made, train=train, centers=sk.Uniform(centers), solver=sk.Direct())


DATA: dict[str, Callable[[int, int], sk.Pipeline]] = {
    "digits": digits,
    "fashion_mnist": fashion_mnist,
    "regression": regression,
}


def trained(pipeline: sk.Pipeline) -> tuple[float, float]:
    """Test score of a complete training, in points, and its seconds."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        metrics = sk.run(pipeline, folder)["metrics"]["test"]
    return 100 * metrics.get("accuracy", metrics.get("r2", np.nan)), time.perf_counter() - begun


def at_ridges(pipeline: sk.Pipeline) -> list[float]:
    """Test scores, in points, of complete trainings at every ridge."""
    with open_executor("threads") as executor:
        scaled, facts = prepare(pipeline, executor, Runner())
        chosen = pipeline.centers.choose(scaled, executor, np.dtype(np.float32))
        problem = Problem(scaled, facts.encoding, pipeline.kernel, chosen, executor)
        basis = problem.expansion()
        equations = NormalEquations(basis, facts.encoding.outputs)
        packed, moment, _, n = sweep(executor, ScanWork(Scan(problem.assembly(scaled)), equations))
        gram, found = unpacked(packed, basis.width, problem.engine), []
        for ridge in RIDGES:
            A = gram / n
            basis.add_penalty(A, ridge)
            A[np.diag_indices(len(A))] += np.finfo(np.float64).eps * np.trace(gram) / n
            found.append(problem.engine.spd_solve(A, moment / n))
        test = pipeline.test._prepared_like(scaled)
        scores = HeldOut.of(problem, test).errors(problem, np.concatenate(found, axis=1)).score
    return (100 * scores).tolist()


def compare(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One data set."""
    family: Any = replace(RADIAL_KERNELS[args.kernel], bandwidth="median")  # type: ignore[type-var]
    pipeline = replace(DATA[name](args.centers, args.train), kernel=family)
    begun = time.perf_counter()
    found = sk.tune(pipeline, rows=args.rows, seconds=False)
    took = time.perf_counter() - begun
    score, once = trained(found.pipeline)
    auto, _ = trained(pipeline)
    told = {
        "data": name, "trained_rows": pipeline.train.base_rows, "bandwidth": found.kernel.bandwidth,
        "kernel": repr(found.kernel), "ridge": found.solver.ridge, "centers": found.centers.p,
        "median": found.median, "tune_seconds": took, "tuned": score, "at_the_median": auto, "training_seconds": once,
    }  # fmt: skip
    grid = []
    for multiple in MULTIPLES:
        kernel = replace(family, bandwidth=multiple * found.median)
        for ridge, points in zip(RIDGES, at_ridges(replace(pipeline, kernel=kernel)), strict=True):
            grid.append({"multiple": multiple, "ridge": ridge, "points": points})
            print(f"  {name} {multiple:>5} median {ridge:.0e}: {points:.2f}", file=sys.stderr, flush=True)
    best = max(grid, key=lambda each: each["points"])
    return told | {
        "grid_seconds": len(grid) * once, "best": best["points"], "best_at": best, "grid": grid,
        "difference": best["points"] - score,
    }  # fmt: skip


def recorded(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines of docs/results: of the choices, and of bandwidths, each at its best ridge."""
    choices, bandwidths = [], []
    for line in lines:
        title, times = TITLES[line["data"]], round(line["bandwidth"] / line["median"], 2)
        scores = {"tuned": line["tuned"], "median": line["at_the_median"], "grid": line["best"]}
        choice = f"{times} median distance{'' if times == 1 else 's'}, p = {line['centers']:,}"
        choices.append(
            {"table": "choices", "data": f"{title}, {line['trained_rows']:,} rows"}
            | {name: round(score, 2) for name, score in scores.items()}
            | {"tune, s": round(line["tune_seconds"]), "grid, s": round(line["grid_seconds"]), "choice": choice}
        )
        best = [max(at["points"] for at in line["grid"] if at["multiple"] == multiple) for multiple in MULTIPLES]
        bandwidths.append(
            {"table": "bandwidths", "data": title}
            | {name: round(score, 2) for name, score in zip(NAMES, best, strict=True)}
        )
    return choices + bandwidths


def main() -> None:
    """Print a line for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--centers", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=12_000, help="of tune's subsample")
    parser.add_argument("--train", type=int, default=60_000, help="training rows at most")
    parser.add_argument("--kernel", choices=sorted(RADIAL_KERNELS), default="laplace")
    parser.add_argument("--json", type=Path)
    add_results(parser)
    args = parser.parse_args()
    print(f"{'data':<15}{'tuned':>8}{'median':>8}{'grid':>8}{'less':>7}{'tune s':>9}{'grid s':>9}  choice")
    lines = []
    for name in args.data:
        lines.append(line := compare(name, args))
        print(
            f"{name:<15}{line['tuned']:>8.2f}{line['at_the_median']:>8.2f}{line['best']:>8.2f}"
            f"{line['difference']:>7.2f}{line['tune_seconds']:>9.1f}{line['grid_seconds']:>9.1f}  "
            f"{line['kernel']}, ridge {line['ridge']:.1e}, {line['centers']} centers",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(lines, indent=1))
    add_run(args.results, recorded(lines))


if __name__ == "__main__":
    main()
