"""Workers that die, stall, come late or never: equal weights, or one clear error."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkern as sk
from streamkern.errors import StorageError
from streamkern.execute import dask_executor as lanes_module
from streamkern.execute.base import ranges_of_lanes
from streamkern.execute.dask_executor import DaskExecutor
from streamkern.report import read_run, status, status_text
from streamkern.report.page import write_report
from streamkern.testing.executor import (
    PROJECTIONS,
    Dawdling,
    OrderSensitive,
    expected_step,
    expected_weights,
    nap,
    small_weights,
)


@pytest.fixture
def two(cluster):
    """An open executor over two workers of one thread."""
    cluster.keep(2)
    with DaskExecutor(cluster.address, 1) as executor:
        assert len(executor.workers) == 2
        yield executor


def at_step(number, act):
    """A callback of training that acts once, after a step."""

    def on_step(progress):
        if (progress.pass_, progress.step) == (0, number):
            act()

    return on_step


@pytest.mark.slow
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_worker_killed_in_training_changes_no_bit(cluster, two, projection):
    weights = small_weights(two, projection, at_step(3, cluster.workers[0].kill))
    np.testing.assert_array_equal(weights, expected_weights(projection))
    assert two.losses == 1
    assert len(two.workers) == 1


@pytest.mark.slow
def test_a_killed_worker_is_named_by_result_status_and_report(cluster, tmp_path):
    cluster.keep(2)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 4))
    killed = []

    def kill(kind, fields):
        if kind == "step" and not killed:
            killed.append(cluster.workers[0].kill())

    pipeline = sk.Pipeline(
        sk.from_arrays(X, X[:, 0]), sk.Laplace(2.0), sk.Uniform(50), sk.EigenPro(epochs=3, batch=50), task="regression"
    )
    result = sk.run(
        pipeline, tmp_path / "run", resources=sk.Resources(scheduler=cluster.address), threads=1, listeners=(kill,)
    )
    lost = [each for each in result["workers"] if each["lost"] is not None]
    assert (len(result["workers"]), len(lost)) == (2, 1)
    assert lost[0]["came"] < lost[0]["lost"] < time.time()
    record = read_run(tmp_path / "run")
    found = status(record)
    assert [each["share"] for each in found["workers"]] == [0.5, 0.5]
    for text in (status_text(found), write_report([record]).read_text()):
        assert lost[0]["worker"] in text
        assert "50% of all, lost" in text
        assert "was lost at" in text


@pytest.mark.slow
def test_a_worker_stopped_in_training_is_given_up_and_changes_no_bit(cluster, two):
    def stop():
        two.stall_timeout = 5  # a worker that lives is heard every second
        cluster.workers[0].send_signal(signal.SIGSTOP)

    weights = small_weights(two, "exact", at_step(3, stop))
    np.testing.assert_array_equal(weights, expected_weights("exact"))
    assert two.losses == 1


@pytest.mark.slow
@pytest.mark.parametrize("another", [True, False])
def test_all_workers_killed_and_another_changes_no_bit_and_none_is_a_clear_error(cluster, two, another):
    def disaster():
        for worker in cluster.workers:
            worker.kill()
        if another:
            cluster.add()

    if another:
        np.testing.assert_array_equal(small_weights(two, "delayed", at_step(3, disaster)), expected_weights("delayed"))
        assert two.losses == 2
        assert len(two.workers) == 1
        return
    two.worker_timeout = 2
    with pytest.raises(StorageError, match=r"(?s)no workers for 2 seconds.*dask worker tcp://"):
        small_weights(two, "exact", at_step(3, disaster))


def placed(executor, marker):
    """Lanes that are placed and have made the first step; of the next, one comes late by far more than a test may."""
    marker.touch()
    placement = executor.place(Dawdling(seconds=1000, once=str(marker)), 4)
    placement.step((0, 0), 1.0)
    marker.unlink()
    return placement


def test_a_worker_killed_within_a_step_changes_no_bit(two, tmp_path):
    marker = tmp_path / "late"
    placement = placed(two, marker)

    def kill_the_late_one():
        while not marker.exists() or not (process := marker.read_text()):
            time.sleep(0.02)
        os.kill(int(process), signal.SIGKILL)

    killer = threading.Thread(target=kill_the_late_one)
    killer.start()
    result = placement.step((0, 1), 1.0)
    np.testing.assert_array_equal(result.parts[0], expected_step(OrderSensitive(), 4, (0, 1), 1.0)[0])
    assert two.losses == 1
    assert result.losses == 1
    assert result.retries in (1, 2)  # two where the scheduler still names the worker as the step is first repeated
    assert {share.lanes for share in result.shares} == {4}
    placement.close()
    killer.join()


@pytest.mark.slow
def test_a_step_that_hangs_is_tried_elsewhere(two, tmp_path, monkeypatch):
    placement = placed(two, tmp_path / "late")
    # Of the step that hangs alone: until it is given up, its other lanes have five seconds for a few additions.
    patient = two.step_timeout
    monkeypatch.setattr(DaskExecutor, "step_timeout", property(lambda self: patient if self.losses else 5), False)
    result = placement.step((0, 1), 1.0)
    np.testing.assert_array_equal(result.parts[0], expected_step(OrderSensitive(), 4, (0, 1), 1.0)[0])
    assert two.losses == 1
    placement.close()


@pytest.mark.slow
def test_a_step_that_kills_its_workers_is_given_up(cluster, two):
    stop = threading.Event()

    def replace_the_dead():
        while not stop.wait(0.1):
            if cluster.workers[-1].poll() is not None:
                cluster.add()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(replace_the_dead)
        try:
            placement = two.place(Dawdling(seconds=-1), 1)
            with pytest.raises(StorageError, match=r"(?s)Pass 1, step 1 lost its workers 5 times in a row.*memory"):
                placement.step((0, 0), 1.0)
            placement.close()
        finally:
            stop.set()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["one stops", "all are killed and one comes"])
def test_a_sweep_outlives_its_workers(cluster, two, fault):
    results = []
    for result in two.imap(nap, range(12), (0.1,)):
        results.append(result)
        if result == 3 and fault == "one stops":
            two.stall_timeout = 5  # a worker that lives is heard every second
            cluster.workers[0].send_signal(signal.SIGSTOP)
        elif result == 3:
            for worker in cluster.workers:
                worker.kill()
            cluster.add()
    assert results == list(range(12))
    assert two.losses == 1 or fault != "one stops"


def test_lanes_move_to_a_worker_that_joins(cluster, monkeypatch):
    monkeypatch.setattr(lanes_module, "WORKER_UPDATE_SECONDS", 0.0)
    cluster.keep(1)
    with DaskExecutor(cluster.address, 1) as executor:
        placement = executor.place(OrderSensitive(), 4)
        assert len(set(placement.step((0, 0), 1.0).parts[1])) == 1
        cluster.add()
        while len(executor.workers) < 2:
            time.sleep(0.05)
            executor.update_workers()
        result = placement.step((0, 1), 1.0)
        assert len(set(result.parts[1])) == 2
        np.testing.assert_array_equal(result.parts[0], expected_step(OrderSensitive(), 4, (0, 1), 1.0)[0])
        assert executor.losses == 0
        placement.close()


def test_the_work_is_sent_once_a_placement(two, tmp_path, monkeypatch):
    sent = []
    broadcast = two.broadcast
    monkeypatch.setattr(two, "broadcast", lambda payload: (sent.append(len(payload)), broadcast(payload))[1])
    work = OrderSensitive(size=10)
    work.ballast = bytes(4_000_000)
    messages = []
    ask = lanes_module.call_actor
    monkeypatch.setattr(lanes_module, "call_actor", lambda placed, m: (messages.append(len(m)), ask(placed, m))[1])
    placement = two.place(work, 4)
    for step in range(20):
        placement.step((0, step), 1.0)
    placement.close()
    assert len(sent) == 1
    assert sent[0] > 4_000_000
    assert len(messages) == 40
    assert max(messages) < 1000


def test_actors_go_with_their_placement(two):
    def count(dask_worker):
        return len(dask_worker.state.actors)

    placement = two.place(OrderSensitive(), 4)
    placement.step((0, 0), 1.0)
    assert set(two.client.run(count).values()) == {1}
    placement.close()
    placement.close()
    while any(two.client.run(count).values()):
        time.sleep(0.05)


threads_of_workers = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 64), min_size=1)


@given(lanes=st.integers(1, 100), threads=threads_of_workers)
def test_every_lane_is_placed_once_and_in_order(lanes, threads):
    parts = ranges_of_lanes(lanes, threads)
    assert [lane for mine in parts.values() for lane in mine] == list(range(lanes))
    assert all(parts.values())
    total = sum(threads[address] for address in parts)
    if len(threads) <= lanes and len(parts) == len(threads):
        assert all(abs(len(mine) - lanes * threads[address] / total) <= 1 for address, mine in parts.items())


def test_more_workers_than_lanes_leave_the_smallest_idle():
    assert ranges_of_lanes(2, {"a": 1, "b": 4, "c": 4}) == {"b": range(0, 1), "c": range(1, 2)}


@pytest.mark.slow
def test_a_dead_scheduler_is_a_clear_error(cluster, two):  # the last here: nothing brings it back
    placement = two.place(OrderSensitive(), 4)
    placement.step((0, 0), 1.0)
    cluster.scheduler.kill()
    two.stall_timeout = 1
    with pytest.raises(StorageError, match=r"(?s)scheduler is gone.*resume"):
        [placement.step((0, step), 1.0) for step in range(1, 100_000)]
    placement.close()
    with pytest.raises(StorageError, match="scheduler is gone"):
        list(two.imap(nap, range(3), (0.0,)))
