"""What checkpoints cost while a run goes on, and what going on with it costs.

    python tests/benchmarks/checkpoints.py [--centers 10000] [--repeats 3]

Trains on Fashion-MNIST with a checkpoint every two seconds and without any, interleaved, and gives the difference for
one checkpoint, as a share of the default interval. Then leaves a training in the middle and goes on with it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from results import add_results, add_run, spread

import streamkern as sk
from streamkern.data.targets import Classes
from streamkern.defaults import CHECKPOINT_SECONDS
from streamkern.events import EventLog
from streamkern.execute import ThreadsExecutor
from streamkern.runs import load_pipeline
from streamkern.runs.checkpoints import Checkpoints
from streamkern.solvers import Checkpoint, Problem, train

OFTEN = 2.0
FASHION = Path(__file__).parents[2] / "pipelines/fashion_mnist.py"


class Left(Exception):
    """Training ends here."""


class Leave(Checkpoints):
    """Leaves a training after some steps, as a signal would."""

    after = 20

    def offer(self, checkpoint: Checkpoint, wait: bool = False, kept: Callable[[Any], Any] | None = None) -> None:
        """Count, and keep the last one."""
        self.after -= 1
        if not self.after:
            super().offer(checkpoint, True, kept)
            raise Left


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--centers", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    add_results(parser)
    args = parser.parse_args()
    pipeline = load_pipeline(FASHION, {"rows": "60_000", "noise": "0", "centers": str(args.centers)})
    with ThreadsExecutor() as executor, EventLog() as events, tempfile.TemporaryDirectory() as folder:
        assert pipeline.kernel is not None
        assert pipeline.centers is not None
        centers = pipeline.centers.choose(pipeline.train, executor, np.dtype(np.float32))
        problem = Problem(pipeline.train, Classes(np.arange(10)), pipeline.kernel, centers, executor)
        begun = time.perf_counter()
        iteration = sk.EigenPro().setup(problem)
        prepared = time.perf_counter() - begun
        costs, without = [], []
        for repeat in range(args.repeats):
            begun = time.perf_counter()
            train(problem, iteration)
            without.append(time.perf_counter() - begun)
            # What was prepared is written once in a run, and is no part of the cost of one checkpoint.
            with Checkpoints(Path(folder) / f"{repeat}", events, OFTEN) as keeper:
                begun = time.perf_counter()
                train(problem, iteration, keeper=keeper)
                costs.append((time.perf_counter() - begun - without[-1]) / max(1, keeper.written))
        print(f"p = {args.centers:,}: setup {prepared:.1f} s, a pass {statistics.median(without):.1f} s")
        share = [100 * cost / CHECKPOINT_SECONDS for cost in costs]
        part = f"{statistics.median(share):.2f}% ({min(share):.2f} to {max(share):.2f})"
        ms = [round(1e3 * cost) for cost in costs]
        print(f"a checkpoint costs {statistics.median(ms):.0f} ms of a run ({min(ms)} to {max(ms)}), ", end="")
        print(f"{part} at one in {CHECKPOINT_SECONDS:.0f} s")
        measured: list[tuple[str, Any, str]] = [("writing a checkpoint", spread(ms), part)]
        with Leave(Path(folder) / "left", events) as keeper:
            keeper.prepared = iteration.prepared
            begun = time.perf_counter()
            with suppress(Left):
                train(problem, iteration, keeper=keeper)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        begun = time.perf_counter()
        with Checkpoints(Path(folder) / "left", events) as keeper:
            found = keeper.latest()
            assert found is not None
            loaded = time.perf_counter() - begun
            again = sk.EigenPro().setup(problem, found[1])
            first = time.perf_counter() - begun - loaded
            print(
                f"going on: {loaded:.2f} s to load and verify {size / 1e6:.0f} MB, {first:.2f} s until the first step"
            )
            measured.append(("loading and verifying it to resume", round(1e3 * loaded), ""))
            measured.append(("the first step then", round(1e3 * first), ""))
            assert again.stream.steps > found[0].position[1] > 0
    names = ("", "ms", f"share of the run, one in {CHECKPOINT_SECONDS:.0f} s")
    add_run(args.results, [{"table": "cost"} | dict(zip(names, each, strict=True)) for each in measured])


if __name__ == "__main__":
    main()
