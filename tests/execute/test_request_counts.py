"""What workers ask of a store is counted in the process that leads the run: that of workers that end, too."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from distributed import Client, LocalCluster

import streamkern as sk
from streamkern.execute.base import ProcessCounts, WorkerCounts
from streamkern.execute.dask_executor import DaskExecutor
from streamkern.sources.remote_store import REQUEST_COUNTS, Remote
from streamkern.testing.executor import OrderSensitive, expected_step
from tests.faults import Fault, FaultyServer, one_in

PATIENT = sk.Retry(timeout=20, deadline=120, first_wait=0.01)
REFUSE = one_in(3, Fault(status=503))
KINDS = ("requests", "retries", "rereads")


@dataclass
class Fetching(OrderSensitive):
    """As `OrderSensitive`, with a request to a store for every block."""

    url: str = ""

    def build(self, pass_, lane, step):
        fetch(lane, self.url)
        return super().build(pass_, lane, step)


def fetch(item, url):
    remote = Remote(url, retry=PATIENT)
    remote.read(remote.root, 0, 10)
    if item < 0:
        raise sk.DataError("A bad row.", where=f"item {item}")
    return item


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bytes").write_bytes(bytes(100))
    return tmp_path


def total(executor):
    workers = executor.request_counts.by_worker().values()
    return {kind: sum(each[kind] for each in workers) for kind in KINDS}


def seen(server):
    return {"requests": server.requests, "retries": server.faults, "rereads": 0}


@pytest.mark.slow
def test_every_request_of_steps_and_tasks_is_counted_once(cluster, folder):
    cluster.keep(2)
    for _ in range(2):  # what was counted for one driver is not counted for the next
        with FaultyServer(folder, REFUSE) as server, DaskExecutor(cluster.address, 1) as executor:
            here, url = REQUEST_COUNTS.now(), f"{server.url}/bytes"
            placement = executor.place(Fetching(url=url), 4)
            for step in range(5):
                ahead = [(0, step + 1)]  # the last is read for nothing, and told when the placement is closed
                result = placement.step((0, step), 1.0, ahead)
                np.testing.assert_array_equal(result.parts[0], expected_step(OrderSensitive(), 4, (0, step), 1.0)[0])
                # Between steps, and in the middle of a placement: tasks of the same processes.
                assert list(executor.imap(fetch, range(6), (url,))) == list(range(6))
            with pytest.raises(sk.DataError, match="A bad row"):
                list(executor.imap(fetch, [-1], (url,)))
            placement.close()
            assert server.requests > 5 * (4 + 6)
            assert server.faults > 10
            assert total(executor) == seen(server)
            assert executor.request_counts.by_worker().keys() == executor.workers.keys()
            assert REQUEST_COUNTS.now() == here


def test_what_a_worker_has_told_stays_when_it_ends(cluster, folder):
    cluster.keep(2)
    with FaultyServer(folder, REFUSE) as server, DaskExecutor(cluster.address, 1) as executor:
        placement = executor.place(Fetching(url=f"{server.url}/bytes"), 4)
        placement.step((0, 0), 1.0)
        before = executor.request_counts.by_worker()
        assert len(before) == 2
        cluster.workers[0].kill()
        result = placement.step((0, 1), 1.0)
        assert (result.retries, executor.losses) == (1, 1)
        placement.close()
        (left,) = executor.workers
        after = executor.request_counts.by_worker()
        assert {address: after[address] for address in before if address != left} == {
            address: counts for address, counts in before.items() if address != left
        }
        assert total(executor) == seen(server)


def test_workers_in_this_process_are_not_counted_twice(folder):
    with (
        FaultyServer(folder, REFUSE) as server,
        LocalCluster(2, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50) as local,
        Client(local, set_as_default=False) as client,
        DaskExecutor(client, 1) as executor,
    ):
        before = REQUEST_COUNTS.now()
        list(executor.imap(fetch, range(6), (f"{server.url}/bytes",)))
        assert REQUEST_COUNTS.now()["retries"] - before["retries"] == server.faults > 0
        assert executor.request_counts.by_worker() == {}


def test_answers_in_any_order_and_twice_count_once():
    def counts(n):
        return dict.fromkeys(KINDS, n)

    by_process = WorkerCounts()
    for before, now in ((7, 9), (5, 20), (7, 12), (5, 20)):
        by_process.add(ProcessCounts("process", "tcp://worker", counts(before), counts(now)))
    by_process.add(ProcessCounts("restarted", "tcp://worker", counts(0), counts(4)))
    by_process.add(ProcessCounts("another", "tcp://other", counts(1), counts(1)))
    by_process.add(None)
    assert by_process.by_worker() == {"tcp://worker": counts(15 + 4), "tcp://other": counts(0)}


@pytest.mark.slow
def test_the_events_of_a_run_count_what_the_store_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    X = (rng.standard_normal((400, 6)) + 2.0 * y[:, None]).astype(np.float32)
    sk.write_zarr(tmp_path / "rows.zarr", X, y, chunk_rows=25)
    cluster.keep(2)
    # Where a HEAD is refused, the library that speaks HTTP sends a GET, as part of the same request.
    with FaultyServer(tmp_path, lambda request: REFUSE(request) if request.method == "GET" else None) as server:
        here = REQUEST_COUNTS.now()
        train = sk.open_dataset(f"{server.url}/rows.zarr", retry=PATIENT)
        pipeline = sk.Pipeline(
            train=train, kernel=sk.Laplace(2.0), centers=sk.Uniform(30), solver=sk.EigenPro(epochs=2, batch=40), lanes=2
        )
        sk.run(pipeline, tmp_path / "run", resources=sk.Resources(scheduler=cluster.address))
        refused, asked = server.faults, server.requests
    lines = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    stores = [line["store"] for line in lines]
    for kind in KINDS:
        assert [store[kind] for store in stores] == sorted(store[kind] for store in stores)
    last, workers = stores[-1], stores[-1]["workers"]
    assert len(workers) == 2
    assert all(each["retries"] > 0 for each in workers.values())
    # Not told: what a worker read ahead after its last answer, at most eight chunks of two arrays.
    assert 0 <= refused - (last["retries"] - here["retries"]) <= 2 * 2 * 8
    assert 0 <= asked - (last["requests"] - here["requests"]) <= 2 * 2 * 8 * 2
    assert refused > 2 * 2 * 8
