"""Centers shared out over worker processes: bits, memory of each process, and what a step takes of the processors.

    python -m tests.benchmarks.sharing [--rows 40000] [--features 784] [--steps 5] [--rounds 4] [--workers 1 2 4]
    python -m tests.benchmarks.sharing --centers 8192 [--lead 4096] [--rows 20000] ...

EigenPro 2 on rows of noise in zarr, every row a center; or EigenPro with packed projection at fewer centers, by a
factor with a lead of so many, or a whole one. For each number of workers, a digest of the weights after the
steps, the most that a worker held beyond what it held before, and a step's seconds of the processor of the busiest
worker (and of its threads that compute; the others read rows and pass messages), of the driver's and of the clock. In
turns with them one plain process that goes over all tiles of the same step, and two plain processes at a time that go
over half of them each: what two workers could gain at best.

Of EigenPro 2, then what the discrete-event model (``tests/simulate.py``) makes of constants measured apart: a tile's
arithmetic in the plain process, and messages of workers that compute nothing. It never sees the times that it predicts;
and it is asked about many workers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

import streamkern as sk
from streamkern.data.targets import Continuous
from streamkern.engine.base import CENTER_TILE
from streamkern.engine.quantised_factor import PANEL, factor_bytes
from streamkern.execute.base import SharedState
from streamkern.execute.dask_executor import local_processes_executor
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.memory import keep_heap, release_free_memory
from streamkern.solvers import Problem
from tests.simulate import SharedCosts, simulate_shared

C, LANES = 10, 4

NETWORK = {"bandwidth": 1.25e9, "latency": 1e-4}
"""Assumed of a cluster: 10 Gbit/s and 0.1 ms."""

GPU = 10e12
"""Assumed: operations a second of a device, kernel values included."""


class Use(NamedTuple):
    """What a process has taken: seconds of its processor, of threads for tiles; most bytes resident, bytes resident."""

    seconds: float
    tiles: float
    peak: int
    held: int


def use() -> Use:
    """Of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, held = (int(status[name].split()[0]) << 10 for name in ("VmHWM", "VmRSS"))
    computing = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("streamkern_")]
    taken = sum(int(Path(f"/proc/self/task/{number}/schedstat").read_text().split()[0]) for number in computing)
    return Use(time.process_time(), taken / 1e9, peak, held)


def begin() -> Use:
    """Let the peak start anew, from what is held."""
    release_free_memory()
    Path("/proc/self/clear_refs").write_text("5")
    return use()


def write(path: Path, n: int, d: int) -> None:
    """Rows of noise."""
    rng = np.random.default_rng(0)
    blocks = ((X, X[:, :C]) for X in (rng.standard_normal((1000, d), dtype=np.float32) for _ in range(n // 1000)))
    sk.write_zarr(path, blocks, n_rows=n)


def problem(path: Path, executor: Any, p: int = 0, lead: int = 0) -> Problem:
    """Every row a center, or p of them, and the memory of a factor with a lead; no chunk stays in memory."""
    data, dtype = sk.open_dataset(path, target="target"), np.dtype(np.float32)
    centers = (sk.Uniform(p) if p else sk.AllRows()).choose(data, executor, dtype)
    kernel = sk.Laplace(float(np.sqrt(data.n_features)))
    return Problem(
        data, Continuous(np.zeros(C)), kernel, centers, executor, dtype=dtype, cache_bytes=16 << 20,
        memory=factor_bytes(p, lead),
    )  # fmt: skip


class Side:
    """A number of workers, whose rounds of steps are taken in turn with those of others.

    Attributes:
        found: of each round, a step's seconds: of the busiest worker's processor, of the driver's, of the clock, and of
            that worker's threads that compute.
    """

    def __init__(self, executor: Any, given: Problem, prepared: Any, solver: Any) -> None:
        self.executor, self.iteration = executor, solver.setup(given, prepared)
        self.before = executor.client.run(begin)
        self.state = SharedState()
        self.placement = executor.share(self.iteration.shared_work, self.iteration.constants)
        self.found: list[tuple[float, float, float, float]] = []

    def steps(self, first: int, count: int) -> None:
        """A round of steps. Those that workers run ahead are of the round, too."""
        before, driver, clock = self.executor.client.run(use), time.process_time(), time.perf_counter()
        pass_ = first // count  # a round is the beginning of a pass of its own
        for step in range(count):
            ahead = [(pass_, later) for later in range(step + 1, min(step + 3, count))]
            result = self.placement.step((pass_, step), self.state, ahead)
            self.state = self.placement.after((pass_, step), self.state, result.parts)
        clock, driver = time.perf_counter() - clock, time.process_time() - driver
        after = self.executor.client.run(use)
        busiest, tiles = max(
            (after[name].seconds - before[name].seconds, after[name].tiles - before[name].tiles) for name in after
        )
        self.found.append((busiest / count, driver / count, clock / count, tiles / count))

    def close(self) -> tuple[str, float]:
        """Digest of the weights, and the most MiB that a worker held beyond what it held before."""
        after = self.executor.client.run(use)
        weights = np.concatenate(self.placement.weights(self.state))
        self.placement.close()
        held = max(after[name].peak - self.before[name].held for name in after) / 2**20
        return sha256(weights).hexdigest()[:12], held


def plain(path: Path, prepared: Any, batch: int, part: int, parts: int, pipe: Any) -> None:
    """Go over a part of the tiles for one batch, whenever asked.

    Report seconds of the processor, of the clock, and of the processor for reading the rows and after the outputs.
    """
    keep_heap()
    with ThreadsExecutor(1) as executor, threadpool_limits(1, user_api="blas"):
        given = problem(path, executor)
        iteration = sk.EigenPro2(epochs=1, batch=batch).setup(given, prepared)
        work = iteration.shared_work
        mine = range(work.leaves * part // parts, work.leaves * (part + 1) // parts)
        held = [work.hold(leaf, iteration.constants(leaf)) for leaf in mine]
        own = [work.start(tile, None, 0) for tile in held]
        blocks = [work.build(0, lane, 0) for lane in range(work.lanes)]
        step = 0
        while pipe.recv():
            start, clock, after = time.process_time(), time.perf_counter(), 0.0
            for tile, some in zip(held, own, strict=True):
                found = work.forward(tile, some, blocks)
                begun = time.process_time()
                responses = [work.respond(block, *sums) for block, (sums, _) in zip(blocks, found, strict=True)]
                work.addend(0, tile, [values for _, values in found], responses, [])
                after += time.process_time() - begun
            whole, clock, step = time.process_time() - start, time.perf_counter() - clock, step + 1
            start = time.process_time()
            for lane in range(work.lanes):
                work.build(0, lane, step)
            pipe.send((whole, clock, time.process_time() - start, after))


class Plain:
    """Plain processes that share the tiles among themselves, whose rounds are taken in turn with those of workers.

    Attributes:
        found: of each round, what ``plain`` reports, of the slowest process.
    """

    def __init__(self, path: Path, prepared: Any, batch: int, parts: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for part in range(parts):
            here, there = context.Pipe()
            self.processes.append(context.Process(target=plain, args=(path, prepared, batch, part, parts, there)))
            self.processes[-1].start()
            self.pipes.append(here)
        self.found: list[Any] = []

    def steps(self, first: int, count: int) -> None:
        """A round of steps."""
        taken = []
        for _ in range(count):
            for pipe in self.pipes:
                pipe.send(True)
            taken.append(np.max([pipe.recv() for pipe in self.pipes], axis=0))
        self.found.append(np.mean(taken, axis=0))

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(False)
            process.join()


@dataclass(frozen=True)
class Still:
    """The messages of a step, without its arithmetic: see ``SharedWork``.

    Args:
        row_bytes: of all rows of a step.
    """

    row_bytes: int
    leaves: int = 2
    lanes: int = 4
    sums: int = 1
    owns: bool = False

    def among(self, workers: int) -> Still:
        return self

    def build(self, pass_: int, lane: int, step: int) -> Any:
        return np.zeros(self.row_bytes // self.lanes, np.uint8)

    def hold(self, leaf: int, constants: Any) -> Any:
        return None

    def start(self, held: Any, kept: Any, steps: int) -> Any:
        return None

    def kept(self, part: Any) -> Any:
        return {"nothing": np.zeros(1)}

    def weights(self, part: Any) -> Any:
        return np.zeros((1, C))

    def forward(self, held: Any, part: Any, blocks: Any) -> Any:
        return [((np.zeros(1000 * C // self.lanes, np.float32),), None) for _ in blocks]

    def respond(self, block: Any, *sums: Any) -> Any:
        return sums[0]

    def addend(self, number: int, held: Any, values: Any, responses: Any, totals: Any) -> Any:
        return [(np.zeros((200, C)),) for _ in responses], None

    def common(self, blocks: Any, responses: Any, totals: Any) -> Any:
        return *totals[0][0], 1

    def own(self, held: Any, values: Any, responses: Any, totals: Any) -> Any:
        return ()

    def advance(self, held: Any, part: Any, parts: Any) -> Any:
        return part


def messages(row_bytes: int, steps: int = 60) -> tuple[float, float]:
    """Seconds of a worker's processor, and of the driver's, for a step of two workers that compute nothing."""
    with local_processes_executor(2) as executor:
        placement = executor.share(Still(row_bytes), lambda leaf: None)
        before = driver = {}
        for step in range(steps + 10):
            if step == 10:
                before, driver = executor.client.run(use), time.process_time()
            placement.step((0, step), SharedState(), [(0, step + 1), (0, step + 2)])
        driver, after = time.process_time() - driver, executor.client.run(use)
        placement.close()
    return float(np.mean([after[name].seconds - before[name].seconds for name in after])) / steps, driver / steps


def constants(whole: Any, tiles: int, batch: int, d: int, q: int) -> SharedCosts:
    """Of a step, from what the plain process takes for all tiles, and from messages."""
    rows = batch * d * 4
    (little, driver), (much, _) = messages(4000), messages(rows)
    # A worker of two sends three messages and takes three; of the rows it sends a half and takes the other.
    costs = SharedCosts(
        forward=(whole[0] - whole[3]) / tiles, backward=whole[3] / tiles, build=whole[2], update=driver,
        handle=little / 6, copy=max(0.0, much - little) / rows, rows=rows, outputs=4.0 * batch * C,
        inner=8.0 * LANES * q * C,
    )  # fmt: skip
    print(
        f"constants, ms of a processor: a tile {1e3 * costs.forward:.2f} and {1e3 * costs.backward:.2f}, "
        f"rows of a step {1e3 * costs.build:.1f}, a message {1e3 * costs.handle:.2f} and "
        f"{1e9 * costs.copy:.2f} a MB at either end, the driver {1e3 * driver:.1f}"
    )
    return costs


def far(here: SharedCosts, batch: int, d: int) -> None:
    """What a step of a million centers would take on a cluster, one core or one GPU a worker."""
    p, rate = 10**6, 2.0 * batch * CENTER_TILE * d / here.forward
    print(
        f"p = {p:,}, d = 512; assumed: {NETWORK}, shares that differ by 5%, GPUs; "
        f"a core {rate / 1e9:.0f} GFLOP/s as here"
    )
    for name, faster in (("core", 1.0), (f"GPU of {GPU / 1e12:.0f} TFLOP/s", GPU / rate)):
        for m in (1000, 8000):
            for workers in (64, 1000):
                scale = m / batch
                costs = replace(
                    here, forward=here.forward * scale * 512 / d / faster, backward=here.backward * scale / faster,
                    build=here.build * scale * 512 / d, rows=4.0 * m * 512, outputs=4.0 * m * C, straggle=0.05,
                    **NETWORK,
                )  # fmt: skip
                tiles = -(-p // CENTER_TILE)
                found = simulate_shared(costs, workers, tiles)
                ideal = tiles * (costs.forward + costs.backward) / workers
                print(
                    f"  a {name} a worker, {m:,} rows a step, {workers:,} workers: {found.clock:.3f} s a step "
                    f"({ideal / found.clock:.0%} of the arithmetic's share), {found.messages:,.0f} messages, the root "
                    f"sends {found.sent / 1e6:.1f} MB; {1e6 / m * found.clock / 3600:.2f} hours for 1,000,000 rows, "
                    f"{1e8 / m * found.clock / 3600:,.0f} for 100,000,000; centers and weights "
                    f"{4 * p * (512 + C) / workers / 2**20:,.0f} MiB a worker"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--centers", type=int, default=0)
    parser.add_argument("--lead", type=int, default=0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path, small = Path(folder) / "rows.zarr", Path(folder) / "few.zarr"
        write(path, args.rows, args.features)
        write(small, 10_000, args.features)
        p, least = args.centers, min(args.centers, 4 * CENTER_TILE)
        lead, less = args.lead or p, min(args.lead, 2 * PANEL) or least
        solver: Any = sk.EigenPro2(epochs=1, batch=args.batch)
        if p:
            solver = sk.EigenPro(epochs=1, projection="packed", batch=args.batch, momentum=0.0)
        with ThreadsExecutor() as executor:
            few = solver.prepare(problem(small, executor, least, less))
            prepared = solver.prepare(problem(path, executor, p, lead))
        sides = []
        for workers in args.workers:
            executor = stack.enter_context(local_processes_executor(workers))
            warm = Side(executor, problem(small, executor, least, less), few, solver)  # which loads code
            warm.steps(0, 1)
            warm.close()
            sides.append(Side(executor, problem(path, executor, p, lead), prepared, solver))
        both = [] if p else [Plain(path, prepared, args.batch, parts) for parts in (1, 2)]
        for number in range(args.rounds + 1):  # the first reads tiles, and is not counted
            for side in (*sides, *both):
                side.steps(args.steps * number, args.steps)
        print(
            f"p = {p or args.rows:,}, lead {lead:,}, n = {args.rows:,}, d = {args.features}, c = {C}, "
            f"batches of {args.batch:,}; {os.cpu_count()} cores, "
            f"load {psutil.getloadavg()[0]:.1f}; a step, medians of {args.rounds} rounds of {args.steps}, in turns"
        )
        one = np.median(sides[0].found[1:], axis=0)
        for workers, side in zip(args.workers, sides, strict=True):
            busy, driver, clock, computing = np.median(side.found[1:], axis=0)
            digest, held = side.close()
            print(
                f"{workers} worker(s): weights {digest}; {held:.0f} MiB; processor {busy:.3f} s ({one[0] / busy:.2f} "
                f"times), of which tiles {computing:.3f} s; driver {driver:.3f} s; clock {clock:.3f} s "
                f"({one[2] / clock:.2f} times)"
            )
        if p:
            return
        (whole, clock, *_), (half, clocks, *_) = (np.median(side.found[1:], axis=0) for side in both)
        print(
            f"plain processes: one {whole:.3f} s of its processor, clock {clock:.3f} s; two, half each, {half:.3f} s "
            f"({whole / half:.2f} times), clock {clocks:.3f} s ({clock / clocks:.2f} times)"
        )
        for side in both:
            side.close()
        tiles, q = sides[0].iteration.shared_work.leaves, sides[0].iteration.report["q"]
        costs = constants(np.median(both[0].found[1:], axis=0), tiles, args.batch, args.features, q)
        for workers, side in zip(args.workers, sides, strict=True):
            busy = np.median(side.found[1:], axis=0)[0]
            found = simulate_shared(costs, workers, tiles, os.cpu_count())
            print(
                f"{workers} worker(s), predicted: processor {found.busiest:.3f} s ({found.busiest / busy - 1:+.0%}), "
                f"clock of an idle machine {found.clock:.3f} s"
            )
        far(costs, args.batch, args.features)


if __name__ == "__main__":
    main()
