"""A step's constants measured here, the model's prediction for 1 to 8 workers against the real thing, and for 1,000.

    python -m tests.benchmarks.scaling [--steps 8] [--rounds 3] [--workers 1 2 4 8]

The constants are CPU times, which other processes disturb less than clocks: of a lane's block, alone and beside one on
the other core; of the update on the host; of the driver and of a worker in steps without arithmetic, on one worker and
on two. The model (``tests/simulate.py``) never sees the times that it is to predict.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import psutil

import streamkern as sk
from streamkern.cpu import default_engine
from streamkern.data import from_arrays
from streamkern.data.row_order import SCAN_ROWS, Assembly, Stream
from streamkern.data.targets import Classes
from streamkern.engine.base import ROW_TILE, TILE_BYTES
from streamkern.execute import open_executor
from streamkern.execute.dask_executor import MAX_TREE_ROOTS
from streamkern.kernels import Expansion
from streamkern.precondition.center_projection import ExactProjection
from streamkern.resources import default_threads
from streamkern.solvers.contributions import Gradient
from streamkern.sweep import StepWork, task_level
from tests.benchmarks.results import add_results, add_run
from tests.benchmarks.step_overhead import Idle
from tests.benchmarks.workers import lane_seconds, watched
from tests.simulate import Costs, Machines, ideal, simulate

P, D, OUTPUTS, LANES, ROWS = 5000, 784, 10, 8, 256
STEPS_A_PASS = 6

NETWORK = {"bandwidth": 1.25e9, "latency": 1e-4}
"""Assumed of a cluster: 10 Gbit/s and 0.1 ms."""

ADDING = 5e9
"""Assumed: bytes a second of sums that one core adds up."""

TROUBLE = {"straggle": 0.1, "mtbf": 30 * 86400.0, "recover": 20.0}
"""Assumed: lanes that differ by 10%, a failure of each worker a month, and 20 s until its step is repeated."""

WAYS = ("star", "tree")
"""Sums go to the driver from every worker, or in trees."""


def spent(processes: list[psutil.Process]) -> float:
    """CPU seconds of processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def messages(workers: int, steps: int, state: Any) -> tuple[float, float, float]:
    """A step without arithmetic: its seconds, CPU seconds of the driver, CPU seconds of a worker."""
    with open_executor(f"processes:{workers}", 1) as executor:
        placement = executor.place(Idle(), LANES)
        for step in range(30):
            placement.step((0, step), state, [(0, step + 1)])
        here = psutil.Process()
        there = [child for child in here.children(recursive=True) if child.cpu_times().user > 0.1]
        before, driver = spent(there), time.process_time()
        times = []
        for step in range(steps):
            begin = time.perf_counter()
            placement.step((0, 30 + step), state, [(0, 31 + step)])
            times.append(time.perf_counter() - begin)
        driver, after = time.process_time() - driver, spent(there)
        placement.close()
    return statistics.median(times), driver / steps, (after - before) / steps / workers


def calibrate(rounds: int) -> Costs:
    """The constants of a step, measured, and printed."""
    state = np.random.default_rng(0).normal(size=(P, OUTPUTS)).astype(np.float32)
    lane, contention = lane_seconds(P, D, ROWS, rounds)
    W = np.tril(np.random.default_rng(1).random((P, P), dtype=np.float32))
    projection, times = ExactProjection(W, None, default_engine()), []
    work = rows_and_work()
    with open_executor("processes:1", 1) as executor, ThreadPoolExecutor(1) as aside:
        placement, bound = executor.place(work, LANES), replace(projection, engine=default_engine().bound(executor))
        placement.step((0, 0), state)
        for step in range(1, 2 * rounds + 1):  # while a worker computes, as it does ahead
            computing = aside.submit(placement.step, (0, step), state)
            while not computing.done():
                start = time.process_time()
                bound.apply(state)
                times.append(time.process_time() - start)
        placement.close()
    update = statistics.median(times)
    for lane_number in range(LANES):
        work.build(0, lane_number, 0)
    start = time.process_time()
    for lane_number in range(LANES):
        work.build(0, lane_number, 1)
    build = (time.process_time() - start) / LANES
    one, two = messages(1, 200, state), messages(2, 200, state)
    message = max(0.0, two[1] - one[1]) / 2
    fixed = max(0.0, one[1] - 2 * message)
    answer = one[2]
    latency = max(0.0, one[0] - one[1] - one[2]) / 2
    costs = Costs(
        lane=lane, warm=lane * ahead(P), build=build, update=update, message=message, answer=answer, fixed=fixed,
        latency=latency, size=4.0 * P * OUTPUTS, contention=contention,
    )  # fmt: skip
    print(f"  a lane of {ROWS} rows {1e3 * lane:8.2f} ms; {contention:.3f} times that while the other core computes")
    print(f"  reading its rows   {1e3 * build:8.2f} ms")
    print(f"  update on the host {1e3 * update:8.2f} ms of one core, while a worker computes")
    print(f"  driver, a step     {1e3 * fixed:8.2f} ms, and {1e3 * message:.2f} a message of {costs.size / 1e6:.1f} MB")
    print(f"  worker, a step     {1e3 * answer:8.2f} ms")
    print(f"  on the way         {1e3 * latency:8.2f} ms a message")
    return costs


def constants(costs: Costs) -> list[dict[str, Any]]:
    """Return lines of docs/results."""
    seconds = {
        f"a lane of {ROWS} rows": costs.lane,
        "reading and assembling its rows": costs.build,
        "the update on the host, while a worker computes": costs.update,
        f"the driver, a message of {costs.size / 1e6:.1f} MB": costs.message,
        "a worker, a step": costs.answer,
    }
    return [{"kind": "constant", "what": what, "ms": round(1e3 * each, 2)} for what, each in seconds.items()]


def rows_and_work() -> StepWork:
    """What a step does with rows in memory."""
    rng = np.random.default_rng(0)
    X = rng.random((STEPS_A_PASS * LANES * ROWS, D), dtype=np.float32)
    stream = Stream(
        Assembly(from_arrays(X, rng.integers(0, OUTPUTS, len(X))), Classes(np.arange(OUTPUTS))), LANES, ROWS
    )
    return StepWork(stream, Gradient(Expansion(sk.Laplace(20.0), X[:P] - X[:P].mean(axis=0))))


def measured(workers: list[int], steps: int, rounds: int) -> dict[int, float]:
    """Seconds of whole steps on each number of workers, taking turns; one cluster at a time: idle workers cost too."""
    rng, work = np.random.default_rng(1), rows_and_work()
    projection = ExactProjection(np.tril(rng.random((P, P), dtype=np.float32)), None, default_engine())
    state = np.zeros((P, OUTPUTS), dtype=np.float32)
    found: dict[int, list[float]] = {number: [] for number in workers}
    for turn in range(rounds):
        for number in workers if turn % 2 else workers[::-1]:
            with open_executor(f"processes:{number}", default_threads()) as executor:
                placement = executor.place(work, LANES)
                bound = replace(projection, engine=default_engine().bound(executor))
                for step in range(steps + 3):
                    position, *ahead = (divmod(turn * steps + step + i, STEPS_A_PASS) for i in range(3))
                    start = time.perf_counter()
                    result = placement.step(position, state, ahead)
                    bound.apply(result.parts[0])
                    if step >= 3:
                        found[number].append(time.perf_counter() - start)
                placement.close()
    return {number: statistics.median(times) for number, times in found.items()}


def ahead(p: int) -> float:
    """Share of a lane that one panel holds, which a worker may begin before its state comes."""
    return min(1.0, min(ROW_TILE, TILE_BYTES // (4 * p)) / ROWS)


def far(here: Costs) -> list[dict[str, Any]]:
    """What a cluster would do with a billion rows: one core a worker, batches that grow with the workers."""
    lines = []
    print(f"  assumed: {NETWORK}, {TROUBLE}, sums at {ADDING / 1e9:g} GB/s, 16 cores for the update")
    print(
        "  p        workers  rows a step   ms a step: star  in trees     of ideal: star  tree"
        "   hours for 1e9 rows: star  tree"
    )
    for p in (5000, 50_000):
        scale = p / P
        costs = replace(
            here, lane=here.lane * scale, warm=here.lane * scale * ahead(p), update=here.update * scale**2,
            size=here.size * scale, message=here.message * scale, answer=here.answer * scale,
            add=here.size * scale / ADDING, contention=1.0,
            **NETWORK, **TROUBLE,
        )  # fmt: skip
        for workers in (1, 16, 100, 1000):
            layout = Machines(workers, workers, host_cores=16)
            times = [simulate(costs, replace(layout, roots=roots), 10).mean for roots in (None, MAX_TREE_ROOTS)]
            shares = [ideal(costs, layout) / seconds for seconds in times]
            hours = [1e9 / (workers * ROWS) * seconds / 3600 for seconds in times]
            print(
                f"  {p:<8,} {workers:7,} {workers * ROWS:12,} {1e3 * times[0]:17,.0f} {1e3 * times[1]:11,.0f}"
                f" {shares[0]:16.0%} {shares[1]:5.0%} {hours[0]:26.1f} {hours[1]:5.1f}"
            )
            line: dict[str, Any] = {"kind": "simulated", "centers": p, "workers": workers, "batch": workers * ROWS}
            for name, values, digits in (("ms", [1e3 * each for each in times], None), ("share", shares, 2),
                                         ("hours", hours, 1)):  # fmt: skip
                line |= {f"{way}_{name}": round(each, digits) for way, each in zip(WAYS, values, strict=True)}
            lines.append(line)
    return lines


def sweeps(rows: int) -> None:
    """Tasks of a sweep over all rows."""
    blocks = -(-rows // SCAN_ROWS)
    print(f"A sweep over {rows:,} rows: {blocks:,} blocks, {-(-blocks >> task_level(blocks))} tasks")


def main() -> None:
    """Print constants, predictions and what follows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    add_results(parser)
    options = parser.parse_args()
    with watched(f"Constants, p = {P:,}, d = {D}, c = {OUTPUTS}, {LANES} lanes of {ROWS} rows"):
        costs = calibrate(options.rounds)
    lines = constants(costs)
    cores = default_threads()
    with watched(f"Predicted and measured, milliseconds a step, {cores} cores, {options.rounds} rounds"):
        times = measured(options.workers, options.steps, options.rounds)
        for number, seconds in times.items():
            layout = Machines(number, LANES, cores=cores, host_cores=cores)
            predicted = simulate(costs, layout).mean
            print(
                f"  {number} workers: predicted {1e3 * predicted:7.1f}, measured {1e3 * seconds:7.1f}:"
                f" {predicted / seconds - 1:+.1%}"
            )
            found = {"predicted_ms": round(1e3 * predicted, 1), "measured_ms": round(1e3 * seconds, 1)}
            lines.append({"kind": "predicted", "workers": number} | found)
    print("A cluster of one-core workers, from these constants")
    lines += far(costs)
    sweeps(10**9)
    add_run(options.results, lines)


if __name__ == "__main__":
    main()
