"""More workers than the driver serves itself: sums go up trees of workers, with equal bits and clear errors."""

import os
import time
from contextlib import contextmanager

import numpy as np
import pytest

from streamkern.errors import DataError, MemoryLimitError
from streamkern.execute import dask_executor as lanes_module
from streamkern.execute.base import Tree
from streamkern.execute.dask_executor import DaskExecutor
from streamkern.execute.tree_allreduce import Route
from streamkern.testing.executor import (
    Failing,
    OrderSensitive,
    expected_step,
    expected_weights,
    small_weights,
)
from tests.execute.test_faults import at_step, placed

LANES = 7


@pytest.fixture(autouse=True)
def one_root(monkeypatch):
    """The driver serves one worker, unless a test says otherwise."""
    monkeypatch.setattr(lanes_module, "MAX_TREE_ROOTS", 1)


@contextmanager
def workers_of(cluster, number):
    """An open executor that has seen all workers."""
    cluster.keep(number)
    with DaskExecutor(cluster.address, 1) as executor:
        start = time.monotonic()
        while len(executor.workers) < number:
            executor.update_workers()
            assert time.monotonic() < start + 200
        yield executor


@pytest.fixture
def four(cluster):
    with workers_of(cluster, 4) as executor:
        yield executor


@pytest.mark.slow
@pytest.mark.parametrize("roots", [1, 2, 3])
def test_sums_are_those_of_one_thread_and_the_driver_hears_from_the_roots_alone(four, roots, monkeypatch):
    monkeypatch.setattr(lanes_module, "MAX_TREE_ROOTS", roots)
    messages = []
    ask = lanes_module.call_actor
    monkeypatch.setattr(
        lanes_module, "call_actor", lambda placed, message: (messages.append(placed.address), ask(placed, message))[1]
    )
    placement = four.place(OrderSensitive(50), LANES)
    for step in range(3):
        result = placement.step((0, step), 1.5, [(0, step + 1)])
        wanted = expected_step(OrderSensitive(50), LANES, (0, step), 1.5)
        np.testing.assert_array_equal(result.parts[0], wanted[0])
        assert len(set(result.parts[1])) == 4
        assert result.parts[2] == LANES
        assert {share.worker for share in result.shares} == set(four.workers)
        assert sum(share.lanes for share in result.shares) == LANES
    assert len(set(messages)) == roots
    assert len(messages) == 3 * roots
    placement.close()


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "projection"), [(0, "exact"), (2, "delayed"), (3, "exact")])
def test_a_worker_killed_in_training_changes_no_bit(cluster, four, victim, projection):
    """The root, one in between, and one that nobody is below."""
    address = sorted(four.workers)[victim]
    pid = four.client.run(os.getpid)[address]
    process = next(worker for worker in cluster.workers if worker.pid == pid)
    weights = small_weights(four, projection, at_step(3, process.kill))
    np.testing.assert_array_equal(weights, expected_weights(projection))
    assert four.losses == 1


@pytest.mark.parametrize("when", ["build", "contribute"])
@pytest.mark.parametrize("lane", [0, LANES - 1])
def test_an_error_of_any_worker_is_raised(four, when, lane):
    placement = four.place(Failing(lane, when), LANES)
    with pytest.raises(DataError, match=r"(?s)A bad row.*lane"):
        placement.step((0, 0), 1.0)
    placement.close()


def test_the_worker_whose_memory_is_full_is_named(four):
    pids = four.client.run(os.getpid)
    placement = four.place(Failing(LANES - 1, "memory"), LANES)
    with pytest.raises(MemoryLimitError) as caught:
        placement.step((0, 0), 1.0)
    address = next(address for address, pid in pids.items() if f"Process {pid} is" in str(caught.value))
    assert str(caught.value.where) == f"worker {address}, lane 6"
    placement.close()


@pytest.mark.slow
def test_the_worker_that_hangs_is_given_up_and_not_its_root(four, tmp_path, monkeypatch):
    marker = tmp_path / "late"
    placement = placed(four, marker)
    patient = four.step_timeout
    monkeypatch.setattr(DaskExecutor, "step_timeout", property(lambda self: patient if self.losses else 5), False)
    pids = four.client.run(os.getpid)
    result = placement.step((0, 1), 1.0)
    np.testing.assert_array_equal(result.parts[0], expected_step(OrderSensitive(), 4, (0, 1), 1.0)[0])
    assert four.losses == 1
    late = next(address for address, pid in pids.items() if str(pid) == marker.read_text())
    assert late not in four.workers
    assert len(four.workers) == 3
    placement.close()


@pytest.mark.parametrize("workers", range(1, 20))
def test_workers_are_a_tree_that_joins_neighbours(workers):
    """Everybody reaches the root, over at most log2 of them, and a parent joins lanes that follow its own."""
    peers = tuple((str(rank), "") for rank in range(workers))
    routes = [Route(rank, peers, 1.0) for rank in range(workers)]
    assert sorted(child for route in routes for child in route.children) == list(range(1, workers))
    for route in routes:
        assert all(routes[child].parent == route.rank for child in route.children)
        assert route.children == sorted(route.children)

    def nodes(rank):
        tree = Tree(workers)
        tree.put(0, rank, (np.float64(rank),))
        for child in routes[rank].children:
            for (level, index), parts in nodes(child).items():
                tree.put(level, index, parts)
        return tree.nodes

    assert Tree(workers, nodes(0)).total() == (sum(range(workers)),)
