"""Conformance tests of executors: subclass `ExecutorSuite` to hold a new one to it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from streamkern.centers import Uniform
from streamkern.data import from_arrays
from streamkern.data.row_order import Assembly, Block, Scan
from streamkern.data.targets import Classes
from streamkern.errors import DataError, MemoryLimitError
from streamkern.execute.base import Executor, Parts, Position, Stack, Tree
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.kernels import Laplace
from streamkern.solvers import EigenPro, Problem, train
from streamkern.solvers.loop import Progress
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array


@dataclass
class OrderSensitive:
    """Work whose sum has other bits in any other order: (float32 values, key and process, number)."""

    size: int = 1000

    def build(self, pass_: int, lane: int, step: int) -> Array:
        rng = np.random.default_rng([pass_, lane, step])
        return (rng.normal(size=self.size) * 10.0 ** rng.integers(-4, 4, self.size)).astype(np.float32)

    def begin(self, block: Array) -> None:
        """Nothing comes before the state."""

    def contribute(self, block: Array, state: Any, prepared: Any = None) -> Parts:
        return block * np.float32(state), Stack((os.getpid(),)), 1


@dataclass
class Dawdling(OrderSensitive):
    """As `OrderSensitive`, but every lane is ``seconds`` late; below 0, the process ends instead.

    ``once`` is a file that does not exist: only the lane that makes it, with the number of its process, is late.
    """

    seconds: float = 0.0
    once: str | None = None

    def contribute(self, block: Array, state: Any, prepared: Any = None) -> Parts:
        if self.seconds < 0:
            os._exit(1)
        try:
            if self.once is not None:
                with open(self.once, "x", encoding="ascii") as file:
                    file.write(str(os.getpid()))
            time.sleep(self.seconds)
        except FileExistsError:
            pass
        return super().contribute(block, state)


@dataclass
class Failing:
    """Work that fails in a lane while it builds, while it computes, or because memory is full; then it says where."""

    lane: int
    when: str

    def build(self, pass_: int, lane: int, step: int) -> int:
        if self.when == "memory" and lane == self.lane:
            raise MemoryLimitError(f"Process {os.getpid()} is full.", where=f"lane {lane}")
        if self.when == "build" and lane == self.lane:
            raise DataError("A bad row.", where=f"lane {lane}")
        return lane

    def begin(self, block: int) -> None:
        """Nothing comes before the state."""

    def contribute(self, block: int, state: Any, prepared: Any = None) -> Parts:
        if self.when == "contribute" and block == self.lane:
            raise DataError("A bad row.", where=f"lane {block}")
        return (block,)


def expected_step(work: OrderSensitive, lanes: int, position: Position, state: float) -> Parts:
    """The sum of a step, lane after lane in one thread."""
    tree = Tree(lanes)
    for lane in range(lanes):
        tree.put(0, lane, work.contribute(work.build(position[0], lane, position[1]), state))
    return tree.total()


def minus(item: int, other: int) -> int:
    """``item`` less ``other``."""
    return item - other


def nap(item: int, seconds: float) -> int:
    """``item``, after a while."""
    time.sleep(seconds)
    return item


def reject(item: int, bad: int) -> int:
    """``item``, unless it is ``bad``."""
    if item == bad:
        raise DataError("A bad row.", where=f"item {item}", remedy="leave it out")
    return item


def doubled(item: Array, factor: Array) -> Array:
    """Writes to its argument, as code that owns it may."""
    item *= factor
    return item


def blas_threads(item: int) -> list[int]:
    """Threads of every BLAS in this process."""
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def rounding_sums(block: Block, state: Any) -> Parts:
    """Sums of a block's rows, in float32, and their number."""
    return block.X.sum(axis=0), len(block.X)


PROJECTIONS = ("exact", "delayed")


def small_classification(executor: Executor) -> Problem:
    """3,000 rows of 20 features in 5 classes around points, and 200 centers."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 5, 3000)
    X = (rng.normal(size=(5, 20))[codes] + rng.normal(size=(3000, 20))).astype(np.float32)
    data = from_arrays(X, codes)
    centers = Uniform(200).choose(data, executor, np.dtype(np.float32))
    return Problem(data, Classes(np.arange(5)), Laplace(5.0), centers, executor)


def small_weights(executor: Executor, projection: str, on_step: Any = lambda progress: None) -> Array:
    """Weights of `small_classification` after two passes."""
    problem = small_classification(executor)
    outcome = train(problem, EigenPro(epochs=2, projection=projection).setup(problem), on_step=on_step)
    assert outcome.failure is None
    return outcome.weights


@cache
def expected_weights(projection: str) -> Array:
    """The weights that one thread of this process trains."""
    with ThreadsExecutor(1) as executor:
        return small_weights(executor, projection)


class ExecutorSuite:
    """Conformance tests of an Executor.

    A subclass gives the fixture ``executor``, open, with at most eight slots.
    """

    def test_results_come_in_the_order_of_the_items(self, executor: Executor) -> None:
        """In any order of completion."""
        assert list(executor.imap(minus, range(50), (7,))) == [i - 7 for i in range(50)]

    def test_no_items_give_no_results(self, executor: Executor) -> None:
        """Neither an error nor a task."""
        assert list(executor.imap(minus, [], (7,))) == []

    def test_a_bounded_number_of_tasks_is_in_flight(self, executor: Executor) -> None:
        """Items are taken as results are, about two ahead for each slot, so that a sweep holds few of them."""
        taken = 0

        def items() -> Iterator[int]:
            nonlocal taken
            for i in range(60):
                taken += 1
                yield i

        most = 0
        for done, _ in enumerate(executor.imap(minus, items(), (0,))):
            most = max(most, taken - done)
        assert executor.slots <= most <= 2 * executor.slots
        assert taken == 60

    def test_what_a_task_raises_is_raised_here(self, executor: Executor) -> None:
        """As it was, in its turn, and the executor goes on."""
        results = executor.imap(reject, range(20), (5,))
        assert [next(results) for _ in range(5)] == list(range(5))
        with pytest.raises(DataError, match=r"(?s)A bad row.*item 5.*leave it out"):
            next(results)
        assert list(executor.imap(minus, [3], (1,))) == [2]

    def test_a_sweep_can_be_left_early(self, executor: Executor) -> None:
        """Blocks in flight are dropped."""
        results = executor.imap(minus, range(1000), (0,))
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]
        assert list(executor.imap(minus, range(3), (0,))) == [0, 1, 2]

    def test_arrays_arrive_as_they_were(self, executor: Executor) -> None:
        """Aligned and writable, in either order of memory, small or large."""
        for shape in ((3, 2), (301, 401)):
            rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            for item in (rows, rows.T):
                (result,) = executor.imap(doubled, [item.copy(order="K")], (np.float32(2),))
                np.testing.assert_array_equal(result, item * 2)
                assert result.flags.aligned
                assert result.flags.writeable
                assert result.flags.c_contiguous == item.flags.c_contiguous

    def test_a_task_has_one_thread_of_blas(self, executor: Executor) -> None:
        """Parallelism is across blocks, and a sum split by threads would depend on their number."""
        for threads in executor.imap(blas_threads, range(4)):
            assert threads
            assert set(threads) == {1}

    def test_the_host_maps_in_this_process(self, executor: Executor) -> None:
        """In order, over objects that cannot be pickled."""
        lock = threading.Lock()

        def square(x: int) -> tuple[int, int]:
            with lock:
                return x * x, os.getpid()

        assert executor.host_map(square, range(10)) == [(i * i, os.getpid()) for i in range(10)]

    def test_a_sweep_adds_up_in_the_order_of_one_thread(self, executor: Executor) -> None:
        """Bit by bit."""
        X = np.random.default_rng(1).normal(size=(5000, 6)).astype(np.float32) * np.float32(1e3)
        work = ScanWork(Scan(Assembly(from_arrays(X)), block_rows=16), rounding_sums)
        with ThreadsExecutor(1) as one:
            expected, _ = sweep(one, work)
        total, rows = sweep(executor, work)
        assert rows == 5000
        np.testing.assert_array_equal(total, expected)

    @pytest.mark.parametrize("lanes", [1, 3, 4, 7])
    def test_a_step_adds_up_in_the_order_of_the_tree(self, executor: Executor, lanes: int) -> None:
        """The sum equals that of one thread bit by bit, for any number of lanes; with and without reading ahead."""
        work = OrderSensitive()
        placement = executor.place(work, lanes)
        try:
            for step in (0, 1, 2, 5, 1):
                result = placement.step((0, step), step + 0.3, [(0, step + 1), (1, 0)])
                expected = expected_step(work, lanes, (0, step), step + 0.3)
                np.testing.assert_array_equal(result.parts[0], expected[0])
                assert result.parts[2] == lanes
                assert result.wait >= 0
                assert result.compute > 0
        finally:
            placement.close()

    @pytest.mark.parametrize("when", ["build", "contribute"])
    def test_what_a_lane_raises_is_raised_here(self, executor: Executor, when: str) -> None:
        """As it was, at the step where it happened, and the executor goes on."""
        placement = executor.place(Failing(2, when), 4)
        try:
            with pytest.raises(DataError, match=r"(?s)A bad row.*lane 2"):
                placement.step((0, 0), None)
        finally:
            placement.close()
        placement = executor.place(Failing(9, when), 4)
        assert placement.step((0, 0), None).parts == (6,)
        placement.close()

    @pytest.mark.parametrize("projection", PROJECTIONS)
    def test_weights_are_those_of_one_thread(self, executor: Executor, projection: str) -> None:
        """Bit by bit, and each step says how long it waited and computed."""
        seen: list[Progress] = []
        np.testing.assert_array_equal(small_weights(executor, projection, seen.append), expected_weights(projection))
        assert [progress.step for progress in seen] == [*range(1, 1 + seen[0].steps)] * 2
        assert all(0 <= progress.wait <= 1 for progress in seen)
