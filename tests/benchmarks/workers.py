"""Training on worker processes: against one another, against threads of one process, and against what the machine has.

    python -m tests.benchmarks.workers [--steps 6] [--rounds 5] [--centers 5000]

Ceiling: the arithmetic of one lane, and the matrix product in it alone, in one plain process and in two at the same
time: what two workers could gain at best. Training: EigenPro on Fashion-MNIST (d = 784) as it chooses its batch, whole
steps with the update on the host, on threads of this process and on worker processes, taking turns; where the time of a
step goes. Overhead: a step without arithmetic at p = 10,000, c = 10. Every section says how many cores other processes
kept busy meanwhile: ratios of a section where that is not near 0 mean little.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

import streamkern as sk
from streamkern.cpu import default_engine
from streamkern.data.row_order import Block
from streamkern.data.targets import Classes
from streamkern.engine.base import CENTER_TILE, ROW_TILE
from streamkern.engine.packed_triangle import cuts
from streamkern.execute import open_executor
from streamkern.kernels import Expansion
from streamkern.runs import load_pipeline
from streamkern.solvers import Problem
from streamkern.solvers.contributions import Gradient
from streamkern.sweep import StepWork
from tests.benchmarks.results import add_results, add_run, spread
from tests.benchmarks.step_overhead import Idle, compare

LANES = 4

SIDES = {
    "one thread": ("threads", 1),
    "two threads": ("threads", 2),
    "one worker": ("processes:1", 1),
    "two workers": ("processes:2", 2),
}
"""Scheduler, and threads of this process, on which the host updates: as many as there are workers."""


@contextmanager
def watched(title: str) -> Iterator[None]:
    """Print a title, and how many cores other processes kept busy."""

    def busy() -> tuple[float, float]:
        times = psutil.cpu_times()
        mine = psutil.Process()
        own = 0.0
        for process in (mine, *mine.children(recursive=True)):
            spent = process.cpu_times()
            own += spent.user + spent.system + spent.children_user + spent.children_system  # those that have ended too
        return sum(times) - times.idle - times.iowait - getattr(times, "guest", 0.0), own

    print(title)
    start, (all_before, own_before) = time.perf_counter(), busy()
    yield
    seconds, (all_after, own_after) = time.perf_counter() - start, busy()
    others = (all_after - all_before - own_after + own_before) / seconds
    print(f"  [other processes kept {max(0.0, others):.2f} cores busy]\n", flush=True)


class Spent(NamedTuple):
    """Seconds by the clock, and of the CPU."""

    wall: float
    cpu: float


def arithmetic(pipe: Connection, p: int, d: int, rows: int) -> None:
    """A plain process: seconds and CPU seconds of a number of blocks, or of the matrix products in them."""
    threadpool_limits(1, user_api="blas")
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(p, d)).astype(np.float32)
    block = Block(rng.normal(size=(rows, d)).astype(np.float32), rng.integers(0, 10, rows), np.arange(rows), (0,))
    gradient, weights = Gradient(Expansion(sk.Laplace(20.0), Z)), np.zeros((p, 10), np.float32)
    S = np.empty((ROW_TILE, CENTER_TILE), np.float32)

    def product() -> None:
        for a in cuts(rows, ROW_TILE):
            for b in cuts(p, CENTER_TILE):
                np.matmul(block.X[a], Z[b].T, out=S[: a.stop - a.start, : b.stop - b.start])

    work = {"matrix product": product, "lane": lambda: gradient(block, weights)}
    for run in work.values():
        run()
    while (order := pipe.recv()) is not None:
        name, times = order
        start, spent = time.perf_counter(), time.process_time()
        for _ in range(times):
            work[name]()
        pipe.send(Spent(time.perf_counter() - start, time.process_time() - spent))


@contextmanager
def two_processes(p: int, d: int, rows: int) -> Iterator[Callable[[str, int], tuple[Spent, list[Spent]]]]:
    """Two plain processes: what so many blocks take in one alone, and in each of both at the same time."""
    context = multiprocessing.get_context("spawn")
    ends = []
    for _ in range(2):
        here, there = context.Pipe()
        context.Process(target=arithmetic, args=(there, p, d, rows), daemon=True).start()
        ends.append(here)

    def measure(name: str, times: int) -> tuple[Spent, list[Spent]]:
        ends[0].send((name, times))
        alone = ends[0].recv()
        for end in ends:
            end.send((name, times))
        return alone, [end.recv() for end in ends]

    yield measure
    for end in ends:
        end.send(None)


def lane_seconds(p: int, d: int, rows: int, rounds: int) -> tuple[float, float]:
    """CPU seconds of a lane alone, and how many times that while the other core computes one too."""
    with two_processes(p, d, rows) as measure:
        found = [measure("lane", 8) for _ in range(rounds + 1)][1:]
    alone = statistics.median(one.cpu / 8 for one, _ in found)
    together = statistics.median(statistics.mean(side.cpu for side in both) / 8 for _, both in found)
    return alone, max(1.0, together / alone)


def ceiling(p: int, d: int, rows: int, rounds: int) -> list[float]:
    """How many times the arithmetic of one process two at the same time get done; of lanes, for each round."""
    gain: list[float] = []
    with (
        watched(f"Two plain processes against one, {rows} rows against p = {p:,}, {rounds} rounds"),
        two_processes(p, d, rows) as measure,
    ):
        for name in ("matrix product", "lane"):
            found = [measure(name, 8) for _ in range(rounds + 1)][1:]
            gain = [2 * one.wall / max(side.wall for side in both) for one, both in found]
            inflation = [sum(side.cpu for side in both) / (2 * one.cpu) for one, both in found]
            alone = statistics.median(one.cpu / 8 for one, _ in found)
            print(
                f"  {name:15} {1e3 * alone:7.1f} ms alone; two together x {statistics.median(gain):.2f}"
                f" ({min(gain):.2f} to {max(gain):.2f}), each takes"
                f" {statistics.median(inflation):.3f} times the CPU time"
            )
    return gain


RATIOS = {
    "two_threads": ("two threads", "one thread"),
    "two_workers": ("two workers", "one worker"),
    "one_worker": ("one worker", "one thread"),
}
"""Sides that are compared, and the names of their ratios in docs/results."""


def training(centers: int, steps: int, rounds: int) -> dict[str, list[float]]:
    """Whole steps of EigenPro on each side, taking turns; ratios for each round."""
    job = load_pipeline("pipelines/fashion_mnist.py", {"rows": "60000", "noise": "0", "centers": str(centers)})
    with open_executor("threads") as executor:
        chosen = job.centers.choose(job.train, executor, np.dtype(np.float32))
        problem = Problem(job.train, Classes(np.arange(10)), job.kernel, chosen, executor, cache_bytes=256 << 20)
        iteration: Any = sk.EigenPro(epochs=100).setup(problem)
    batch = iteration.stream.batch_rows
    names = list(SIDES)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    spent: dict[str, list[list[float]]] = {name: [] for name in names}
    sizes = f"p = {centers:,}, d = 784, {LANES} lanes, batches of {batch:,} rows"
    title = f"Training, {sizes}, {rounds} rounds of {steps} steps"
    with ExitStack() as stack:
        sides = {}
        for name in names:
            executor = stack.enter_context(open_executor(*SIDES[name]))
            placement = executor.place(
                StepWork(iteration.stream, iteration.contribution, iteration.extra_blocks), LANES
            )
            stack.callback(placement.close)
            projection = replace(iteration.projection, engine=default_engine().bound(executor))
            sides[name] = [replace(iteration, projection=projection), placement, iteration.init(), 0]
        final: dict[str, Any] = {}
        with watched(title):
            for turn in range(rounds + 1):
                for name in names if turn % 2 else names[::-1]:
                    own, placement, state, number = sides[name]
                    times = []
                    for _ in range(steps):
                        position, *ahead = (divmod(number + i, iteration.stream.steps) for i in range(3))
                        start = time.perf_counter()
                        result = placement.step(position, own.broadcast(state), ahead)
                        stepped = time.perf_counter()
                        state = own.update(state, result.parts, position)
                        end = time.perf_counter()
                        times.append(end - start)
                        if turn:
                            workers = len(result.shares) if "worker" in name else SIDES[name][1]
                            spent[name].append(
                                [result.compute / workers, result.wait / workers, result.reduce, end - stepped]
                            )
                        number += 1
                    sides[name][2:] = [state, number]
                    if turn:
                        seconds[name].append(statistics.median(times))
            final = {name: own.weights(state) for name, (own, _, state, _) in sides.items()}
            print("  milliseconds a step        whole    best | a slot computes, waits | sums and wire | host update")
            for name in names:
                parts = [1e3 * statistics.median(column) for column in zip(*spent[name], strict=True)]
                whole = [1e3 * statistics.median(seconds[name]), 1e3 * min(seconds[name])]
                print(
                    f"  {name:22} {whole[0]:9.1f} {whole[1]:7.1f} | {parts[0]:14.1f} {parts[1]:7.1f} | "
                    f"{parts[2]:13.1f} | {parts[3]:11.1f}"
                )
            same = all((weights == final[names[0]]).all() for weights in final.values())
            print(f"  weights after {(rounds + 1) * steps} steps on all sides: {'equal' if same else 'NOT EQUAL'}")
            found = {}
            for key, (fast, slow) in RATIOS.items():
                found[key] = ratios = [a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)]
                print(f"  {fast} / {slow}: x {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    assert same
    return found


def main() -> None:
    """Print the three sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--centers", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    add_results(parser)
    options = parser.parse_args()
    ratios = {"two_processes": ceiling(options.centers, 784, 512, options.rounds)}
    ratios |= training(options.centers, options.steps, options.rounds)
    with watched(f"A step without arithmetic, p = 10,000, c = 10, {LANES} lanes, two workers, {options.rounds} rounds"):
        weights = np.random.default_rng(0).normal(size=(10_000, 10)).astype(np.float32)
        found = compare(Idle, ["one thread", "two workers"], weights, 100, options.rounds)
        extra = [1e3 * (b - a) for a, b in zip(found["one thread"], found["two workers"], strict=True)]
        print(f"  beyond one thread: median {statistics.median(extra):.2f} ms ({min(extra):.2f} to {max(extra):.2f})")
    line = {"step_ms": spread([round(each, 1) for each in extra])}
    add_run(
        options.results, [line | {name: spread([round(each, 2) for each in found]) for name, found in ratios.items()}]
    )


if __name__ == "__main__":
    main()
