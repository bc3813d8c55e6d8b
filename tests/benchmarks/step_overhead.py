"""What a step costs on worker processes beyond its arithmetic, and how two workers train against one.

    python tests/benchmarks/step_overhead.py [--steps 300] [--rounds 5]

Overhead: the same four lanes of work that only returns the weights (p = 10,000, c = 10), on one thread of this process
and on two worker processes, taking turns; the difference is what the cluster adds. Speed: EigenPro's gradient at
p = 5,000, d = 784, c = 10 on one and on two worker processes and on one and two threads of this process, taking turns:
what two threads gain is what the machine had to give.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data import from_arrays
from streamkern.data.row_order import Assembly, Stream
from streamkern.data.targets import Classes
from streamkern.execute import open_executor
from streamkern.execute.base import Parts, Placement
from streamkern.kernels import Expansion, Laplace
from streamkern.solvers.contributions import Gradient
from streamkern.sweep import StepWork

LANES = 4


@dataclass
class Idle:
    """Work without arithmetic: contributes a copy of the weights."""

    def build(self, *key: int) -> None:
        """Nothing to read."""

    def begin(self, block: None) -> None:
        """Nothing to begin with."""

    def contribute(self, block: None, state: Any, begun: None = None) -> Parts:
        """The weights, a loss and a number of rows."""
        return state.copy(), 0.0, 1


def gradient_work(p: int, d: int, outputs: int, block_rows: int) -> StepWork:
    """EigenPro's gradient on random rows."""
    rng = np.random.default_rng(0)
    X = rng.random((16 * LANES * block_rows, d), dtype=np.float32)
    data = from_arrays(X, rng.integers(0, outputs, len(X)))
    stream = Stream(Assembly(data, Classes(np.arange(outputs))), LANES, block_rows)
    return StepWork(stream, Gradient(Expansion(Laplace(20.0), X[:p] - X[:p].mean(axis=0))))


def clock(placement: Placement, state: Any, steps: int, of_a_pass: int) -> list[float]:
    """Seconds of each step, with two steps read ahead."""
    seconds = []
    for number in range(steps):
        position, *ahead = (divmod(number + i, of_a_pass) for i in range(3))
        start = time.perf_counter()
        placement.step(position, state, ahead)
        seconds.append(time.perf_counter() - start)
    return seconds


SIDES = {
    "one thread": ("threads", 1),
    "two threads": ("threads", 2),
    "one worker": ("processes:1", 1),
    "two workers": ("processes:2", 1),
}


def compare(works: Callable[[], Any], names: list[str], state: Any, steps: int, rounds: int) -> dict[str, list[float]]:
    """Median seconds a step of each side, round by round; the first round warms up and does not count."""
    medians: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        placed = {}
        for name in names:
            executor = stack.enter_context(open_executor(*SIDES[name]))
            placed[name] = executor.place(works(), LANES)
            stack.callback(placed[name].close)
        for number in range(rounds + 1):
            for name in names if number % 2 else names[::-1]:
                seconds = clock(placed[name], state, steps, 16)
                if number:
                    medians[name].append(statistics.median(seconds))
    return medians


def main() -> None:
    """Print both sides of both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    weights = np.random.default_rng(0).normal(size=(10_000, 10)).astype(np.float32)
    here, there = "one thread", "two workers"
    found = compare(Idle, [here, there], weights, options.steps, options.rounds)
    print(f"p = 10,000, c = 10, {LANES} lanes, no arithmetic, milliseconds a step, {options.rounds} rounds")
    show(found)
    extra = [b - a for a, b in zip(found[here], found[there], strict=True)]
    print(f"  overhead     median {1e3 * statistics.median(extra):7.2f}   best {1e3 * min(extra):7.2f}")

    found = compare(lambda: gradient_work(5000, 784, 10, 512), list(SIDES), weights[:5000], 12, options.rounds)
    print(f"p = 5,000, d = 784, {LANES} lanes of 512 rows, milliseconds a step")
    show(found)
    for fast, slow in (("two workers", "one worker"), ("two threads", "one thread"), ("one worker", "one thread")):
        ratios = [a / b for a, b in zip(found[slow], found[fast], strict=True)]
        print(f"  {fast} / {slow}: speed x {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def show(found: dict[str, list[float]]) -> None:
    """Print one line a side."""
    for name, values in found.items():
        print(f"  {name:12} median {1e3 * statistics.median(values):7.2f}   best {1e3 * min(values):7.2f}")


if __name__ == "__main__":
    main()
