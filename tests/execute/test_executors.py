"""Every executor, held to the suite."""

import threading
import time

import pytest

from streamkern.execute import open_executor
from streamkern.execute.dask_executor import DaskExecutor
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.testing.executor import ExecutorSuite, OrderSensitive


@pytest.fixture(
    scope="module", params=[("threads", 1), ("threads", 2), ("processes:1", 2), ("processes", 2), ("tcp", 1)], ids=str
)
def executor(request):
    scheduler, threads = request.param
    if scheduler == "tcp":
        cluster = request.getfixturevalue("cluster")
        cluster.add(1)
        cluster.add(2)
        scheduler = cluster.address
    with open_executor(scheduler, threads) as executor:
        if scheduler.startswith("tcp"):
            assert isinstance(executor, DaskExecutor)
            while len(executor.workers) < 2:
                time.sleep(0.05)
                executor.update_workers()
            assert sorted(executor.workers.values()) == [1, 2]
        yield executor


class TestExecutors(ExecutorSuite):
    pass


def _threads_within(item: int) -> tuple[set[int], int]:
    """The threads that tasks of an executor of one thread run in, and the one that opened it, within a task."""
    with ThreadsExecutor(1) as inner:
        found = {*inner.imap(lambda _: threading.get_ident(), range(3))}
        found |= set(inner.host_map(lambda _: threading.get_ident(), range(3)))
    return found, threading.get_ident()


def test_an_executor_of_one_thread_within_a_task_uses_the_task_s():
    with ThreadsExecutor(2) as outer:
        for found, here in outer.imap(_threads_within, range(4)):
            assert found == {here}
        # Its own executor is known again after the inner one is closed: the task evaluates by itself.
        both = outer.imap(lambda item: (_threads_within(item), list(outer.imap(abs, [-1, -2]))), range(2))
        assert [after for _, after in both] == [[1, 2]] * 2


def _steps_within(lanes: int) -> tuple[list[bytes], set[str]]:
    """Sums of two steps of some lanes within a task, and the threads that were started for them."""
    before = {thread.name for thread in threading.enumerate()}
    with ThreadsExecutor(1) as inner:
        placement = inner.place(OrderSensitive(), lanes)
        found = [placement.step((0, step), 0.3, [(0, step + 1)]) for step in range(2)]
        started = {thread.name for thread in threading.enumerate()} - before
        placement.close()
    assert all(result.parts[2] == lanes for result in found)
    return [result.parts[0].tobytes() for result in found], started


def test_lanes_in_the_one_thread_of_a_task_have_the_same_sums_and_start_no_thread():
    with ThreadsExecutor(2) as outer:
        for lanes in (1, 3, 4):
            placement = outer.place(OrderSensitive(), lanes)
            expected = [placement.step((0, step), 0.3).parts[0].tobytes() for step in range(2)]
            placement.close()
            ((sums, started),) = outer.imap(_steps_within, [lanes])
            assert sums == expected
            assert not started
