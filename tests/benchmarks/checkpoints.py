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
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

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

    def offer(self, checkpoint: Checkpoint, wait: bool = False, kept: Any = None) -> None:
        """Count."""
        self.after -= 1
        if not self.after:
            raise Left


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--centers", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
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
        print(
            f"a checkpoint costs {1e3 * statistics.median(costs):.0f} ms of a run "
            f"({1e3 * min(costs):.0f} to {1e3 * max(costs):.0f}), {statistics.median(share):.2f}% at one in "
            f"{CHECKPOINT_SECONDS:.0f} s ({min(share):.2f} to {max(share):.2f})"
        )
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
            print(
                f"going on: {loaded:.2f} s to load and verify {size / 1e6:.0f} MB, "
                f"{time.perf_counter() - begun - loaded:.2f} s until the first step"
            )
            assert again.stream.steps > found[0].position[1] > 0


if __name__ == "__main__":
    main()
