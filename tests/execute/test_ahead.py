"""Blocks read ahead, each once and none in vain; what is begun before the state is known gives the same bits."""

import os
import platform
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from streamkern.defaults import BYTES_AHEAD
from streamkern.errors import DataError
from streamkern.execute import open_executor
from streamkern.execute.base import Stack
from streamkern.execute.threads_executor import LanePool, Prefetch
from streamkern.execute.worker_protocol import lower_priority
from streamkern.kernels import Expansion, Laplace
from streamkern.solvers.base import row_bytes, steps_ahead
from streamkern.testing.executor import OrderSensitive, expected_step


@dataclass
class Counting(OrderSensitive):
    """Says which blocks were begun before their state came."""

    begun: set[bytes] = field(default_factory=set)

    def begin(self, block):
        self.begun.add(block.tobytes())

    def contribute(self, block, state, prepared=None):
        return (*super().contribute(block, state, prepared), Stack((block.tobytes() in self.begun,)))


@dataclass
class Marking(Counting):
    """Leaves a file for each block that was begun."""

    folder: str = ""

    def begin(self, block):
        super().begin(block)
        Path(self.folder, uuid4().hex).touch()


@dataclass
class Fragile(Counting):
    """Cannot begin a block, or cannot read one."""

    when: str = "begin"

    def build(self, pass_, lane, step):
        if self.when == "build" and step == 1:
            raise DataError("A bad row.", where=f"step {step}")
        return super().build(pass_, lane, step)

    def begin(self, block):
        raise DataError("A bad row.", where="begin")


class Calls(Expansion):
    """Counts the panels it evaluates."""

    calls = 0

    def block(self, X, out=None):
        self.calls += 1
        return super().block(X, out)


def test_a_panel_begun_ahead_is_the_panel_and_is_not_evaluated_again():
    rng = np.random.default_rng(0)
    Z, X, other = (rng.normal(size=(n, 7)).astype(np.float32) for n in (50, 600, 300))
    plain, calls = Expansion(Laplace(2.0), Z), Calls(Laplace(2.0), Z)
    expected = [panel.copy() for _, panel in plain.engine.panels(plain, X)]
    token, unused = calls.engine.begin(calls, X), calls.engine.begin(calls, other)
    assert calls.calls == 2
    with ThreadPoolExecutor(1) as pool:  # by another thread
        panels = lambda: [(rows, panel.copy()) for rows, panel in calls.engine.panels(calls, X, token)]  # noqa: E731
        found = pool.submit(panels).result()
    assert [rows.stop for rows, _ in found] == [256, 512, 600]
    for (_, panel), values in zip(found, expected, strict=True):
        np.testing.assert_array_equal(panel, values)
    assert calls.calls == 4
    assert len(list(calls.engine.panels(calls, other, unused))) == 2
    assert calls.calls == 5  # the first panel had been begun
    assert len(list(calls.engine.panels(calls, X[:10]))) == 1  # what is not begun is evaluated
    assert calls.calls == 6


@pytest.mark.parametrize("scheduler", ["processes:1", "processes:2"])
def test_workers_begin_two_blocks_of_the_next_step_each(scheduler, tmp_path):
    lanes, first = 4, [0, 1, 2, 3] if scheduler == "processes:2" else [0, 1]
    with open_executor(scheduler, 1) as executor:
        placement = executor.place(Marking(folder=str(tmp_path)), lanes)
        for step, ahead in ((0, [(0, 1)]), (1, []), (2, [(0, 3)]), (3, [])):
            result = placement.step((0, step), 1.5, ahead)
            np.testing.assert_array_equal(result.parts[0], expected_step(OrderSensitive(), lanes, (0, step), 1.5)[0])
            assert [i for i, begun in enumerate(result.parts[3]) if begun] == (first if step % 2 else [])
            while len(list(tmp_path.iterdir())) < len(first) * (step // 2 + 1):  # what has not begun in time is not
                time.sleep(0.01)
        placement.close()


def test_what_has_not_begun_when_the_step_comes_is_left_to_it():
    begun, gate = threading.Event(), threading.Event()

    class Gated(Counting):
        def begin(self, block):
            begun.set()
            gate.wait()
            super().begin(block)

    with ThreadPoolExecutor(1) as threads:
        pool = LanePool(Gated(), range(4), 4, threads)
        pool.step((0, 0), 1.5, [(0, 1)])
        pool.begin_ahead((0, 1), 2)
        begun.wait()
        with ThreadPoolExecutor(1) as driver:
            step = driver.submit(pool.step, (0, 1), 1.5)
            while pool._ahead is not None:
                time.sleep(0.001)
            gate.set()
            result = step.result()
        np.testing.assert_array_equal(result.parts[0], expected_step(OrderSensitive(), 4, (0, 1), 1.5)[0])
        assert result.parts[3] == (True, False, False, False)
        pool.close()


def test_threads_with_no_lane_left_begin_the_next_step():
    gate, others = threading.Event(), threading.Semaphore(0)

    class Slow(Counting):
        def build(self, pass_, lane, step):
            return np.append(super().build(pass_, lane, step), np.float32(lane))

        def begin(self, block):
            super().begin(block)
            others.release()

        def contribute(self, block, state, prepared=None):
            if block[-1] == 0:
                assert gate.wait(200)
            wait(list(pool.prefetch._ready.values()))
            return super().contribute(block, state, prepared)

    with ThreadPoolExecutor(2) as threads, ThreadPoolExecutor(1) as driver:
        pool = LanePool(Slow(), range(4), 4, threads, begin=3)
        first = driver.submit(pool.step, (0, 0), 1.5, [(0, 1)])  # one thread is held up in lane 0
        begun = [others.acquire(timeout=200) for _ in range(3)]
        over = first.done()
        gate.set()
        assert all(begun)
        assert not over
        assert first.result().parts[3] == (False,) * 4
        assert pool.step((0, 1), 1.5).parts[3] == (True, True, True, False)
        assert pool.step((0, 2), 1.5).parts[3] == (False,) * 4  # nothing was announced
        pool.close()


@pytest.mark.parametrize("when", ["begin", "build"])
def test_what_cannot_be_begun_is_told_when_its_step_comes(when):
    with ThreadPoolExecutor(2) as threads:
        pool = LanePool(Fragile(when=when), range(3), 3, threads)
        pool.step((0, 0), 1.0, [(0, 1)])
        pool.begin_ahead((0, 1), 2)
        if when == "build":
            with pytest.raises(DataError, match="step 1"):
                pool.step((0, 1), 1.0)
        else:
            result = pool.step((0, 1), 1.0)
            np.testing.assert_array_equal(result.parts[0], expected_step(OrderSensitive(), 3, (0, 1), 1.0)[0])
        pool.begin_ahead((7, 7), 2)  # never announced
        pool.close()


@pytest.mark.slow
def test_a_step_says_where_its_time_went():
    for scheduler, workers in (("threads", 1), ("processes:2", 2)):
        with open_executor(scheduler, 1) as executor:
            placement = executor.place(OrderSensitive(size=100_000), 5)
            for step in range(3):
                result = placement.step((0, step), 1.0)
            placement.close()
            assert sum(share.lanes for share in result.shares) == 5
            assert len({share.worker for share in result.shares}) == workers
            assert all(share.compute > 0 for share in result.shares)
            assert result.reduce > 0
            assert (result.retries, result.losses) == (0, 0)
            line = result.timeline()
            assert line["compute"] == sum(share["compute"] for share in line["workers"].values()) > 0
            assert line["wait"] == sum(share["wait"] for share in line["workers"].values())
            assert line["steps"] == 1


@pytest.mark.parametrize(("batch", "d", "steps"), [(1024, 784, 2), (4096, 18, 10), (1024, 18, 32), (8, 2, 32)])
def test_narrow_rows_are_read_further_ahead_within_a_bound(batch: int, d: int, steps: int):
    width = row_bytes(d, 4)
    assert steps_ahead(batch, width) == steps
    assert steps <= 2 or steps * batch * width <= BYTES_AHEAD


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux a thread has a niceness of its own")
def test_lanes_give_way_to_a_driver_on_their_machine_and_to_no_other():
    def niceness(driver):
        with ThreadPoolExecutor(1, initializer=lower_priority, initargs=(driver,)) as pool:
            return pool.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result()

    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness("elsewhere") == here
    assert niceness(platform.node()) == min(19, here + 5)


# ------------------------------------------------------------------------------------------- blocks read ahead


class Builds:
    """Blocks that are their keys; building waits until it is let go."""

    def __init__(self):
        self.started = []
        self.go = threading.Event()
        self.busy = threading.Event()

    def __call__(self, *key):
        self.started.append(key)
        self.busy.set()
        assert self.go.wait(10)
        if key[0] < 0:
            raise DataError("A bad row.", where=f"block {key}")
        return key


@pytest.fixture
def builds():
    return Builds()


@pytest.fixture
def prefetch(builds):
    prefetch = Prefetch(builds)
    yield prefetch
    builds.go.set()
    prefetch.close()


def test_blocks_are_built_in_the_order_announced_and_handed_out_once(builds, prefetch):
    builds.go.set()
    keys = [(i, 0) for i in range(5)]
    prefetch.announce(keys)
    prefetch.announce(keys)
    assert [prefetch.take(key)[0] for key in reversed(keys)] == keys[::-1]
    assert builds.started == keys
    with pytest.raises(KeyError):
        prefetch.take(keys[0])
    prefetch.announce(keys[:1])
    assert prefetch.take(keys[0])[0] == keys[0]
    assert builds.started == [*keys, keys[0]]


def test_what_is_no_longer_announced_is_not_built(builds, prefetch):
    prefetch.announce([(1,), (2,), (3,)])
    assert builds.busy.wait(10)
    prefetch.announce([(3,), (4,)])
    builds.go.set()
    assert prefetch.take((4,))[0] == (4,)
    assert builds.started == [(1,), (3,), (4,)]
    with pytest.raises(KeyError):
        prefetch.take((2,))


def test_an_error_comes_with_its_block_and_with_no_other(builds, prefetch):
    builds.go.set()
    prefetch.announce([(-1,), (2,)])
    assert prefetch.take((2,))[0] == (2,)
    with pytest.raises(DataError, match=r"block \(-1,\)"):
        prefetch.take((-1,))


def test_waiting_is_measured(builds, prefetch):
    prefetch.announce([(1,)])
    timer = threading.Timer(0.2, builds.go.set)
    timer.start()
    assert prefetch.take((1,))[1] > 0.1
    timer.join()


def test_closing_builds_nothing_more(builds):
    prefetch = Prefetch(builds)
    prefetch.announce([(1,), (2,), (3,)])
    assert builds.busy.wait(10)
    last = prefetch._ready[3,]
    last.add_done_callback(lambda _: builds.go.set())  # once it is cancelled
    prefetch.close()
    assert last.cancelled()
    assert builds.started == [(1,)]
