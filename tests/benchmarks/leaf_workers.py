"""Fit the leaves of a partition on one and on two worker processes of one thread, and predict many workers.

    python -m tests.benchmarks.leaf_workers [--rows 4000000] [--leaf-rows 40000] [--centers 500] [--rounds 2]

Rows of ``pipelines/hundred_million.py`` on disk. Prints the seconds of the leaves alone, in turns; the seconds of one
leaf, and those that the driver takes to keep its result, as the runs report them; and the predictions of the
discrete-event model (``tests/simulate.py``) from these two: for this machine, and for a billion rows in leaves of
250,000.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import streamkern as sk
from streamkern.runs import load_pipeline
from tests.benchmarks.results import add_results, add_run
from tests.benchmarks.workers import watched
from tests.simulate import LeafCosts, simulate_leaves

PIPELINE = Path(__file__).parents[2] / "pipelines" / "hundred_million.py"

BILLION, LEAF_ROWS, DOUBLED = 10**9, 250_000, 1.23
"""Rows, rows of a leaf, and the factor by which borders multiply the rows, as measured with 100,000,000 rows."""

ASSUMED = {"straggle": 0.1, "mtbf": 30 * 86400.0}
"""Spread of the leaves' seconds, 10%, and the time between failures of a worker, a month."""


class Found(NamedTuple):
    """Seconds of all leaves of a run, of one leaf, and of the driver for a leaf; number of leaves, and of rows."""

    all: float
    leaf: float
    keep: float
    leaves: int
    rows: int


def run(pipeline: Any, workers: int) -> Found:
    """Train on worker processes of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        result = sk.run(
            pipeline, folder, memory="2GiB", resources=sk.Resources(scheduler=f"processes:{workers}"), threads=workers
        )
        partition = result["solver_report"]["partition"]
        events = [json.loads(line) for line in (Path(folder) / "events.jsonl").read_text().splitlines()]
    leaves = partition["by_leaf"]
    kept = [each["seconds"] for each in events if each["event"] == "stage" and each["name"].startswith("leaf-")
            and each["state"] == "end"]  # fmt: skip
    steps = [each["seconds"] for each in events if each["event"] == "step"]
    return Found(
        max(steps), statistics.mean(each["seconds"] for each in leaves), statistics.mean(kept), len(leaves),
        partition["rows_trained"],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--leaf-rows", type=int, default=40_000)
    parser.add_argument("--centers", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    add_results(parser)
    args = parser.parse_args()
    settings = {name: str(vars(args)[name]) for name in ("rows", "leaf_rows", "centers")}
    pipeline = load_pipeline(PIPELINE, settings)
    found: dict[int, list[Found]] = {1: [], 2: []}
    with watched(
        f"{args.rows:,} rows in leaves of {args.leaf_rows:,}, {args.centers} centers each, {args.rounds} rounds"
    ):
        for _ in range(args.rounds):
            for workers in found:
                found[workers].append(run(pipeline, workers))
    one, two = (Found(*map(statistics.median, zip(*each, strict=True))) for each in found.values())
    costs = LeafCosts(one.leaf, one.keep)
    print(f"  a leaf {one.leaf:.3f} s, and {1e3 * one.keep:.1f} ms of the driver; {one.leaves:.0f} leaves")
    measured: dict[str, Any] = {"kind": "measured", "rows": args.rows, "leaves": int(one.leaves)}
    measured |= {"leaf_seconds": round(one.leaf, 2), "driver_ms": round(1e3 * one.keep)}
    measured["ratio"] = round(one.all / two.all, 2)
    for workers, each in ((1, one), (2, two)):
        predicted = simulate_leaves(costs, int(one.leaves), workers)
        print(f"  {workers} worker(s): {each.all:.1f} s ({one.all / each.all:.2f} times), predicted {predicted:.1f} s")
        name, prediction = {1: ("one_worker", "one_predicted"), 2: ("two_workers", "two_predicted")}[workers]
        measured |= {name: round(each.all, 1), prediction: round(predicted, 1)}
    leaves = 1 << round(float(BILLION / LEAF_ROWS - 1)).bit_length()
    rows = BILLION * DOUBLED / leaves
    costs = replace(costs, leaf=one.leaf / (one.rows / one.leaves) * rows, **ASSUMED)
    print(f"A billion rows in {leaves:,} leaves of {rows:,.0f}, {costs.leaf:.2f} s each; assumed: {ASSUMED}")
    lines = [measured]
    for workers in (1, 16, 100, 1000):
        seconds = simulate_leaves(costs, leaves, workers)
        share = leaves * costs.leaf / workers / seconds
        print(f"  {workers:5,} workers: {seconds:8,.0f} s, {share:.0%} of the ideal")
        lines.append({"kind": "simulated", "workers": workers, "seconds": round(seconds), "share": round(share, 2)})
    add_run(args.results, lines)


if __name__ == "__main__":
    main()
