"""The ``--scheduler`` setting: what it opens, and what it says when it cannot."""

import gc
import json
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone
from threadpoolctl import threadpool_info

import streamkern as sk
from streamkern.errors import StorageError, UsageError
from streamkern.execute import ThreadsExecutor, open_executor
from streamkern.execute.dask_executor import DaskExecutor
from streamkern.testing.executor import minus

ROOT = Path(__file__).parents[2]


def blas():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_threads_are_the_default_and_processes_end_with_the_executor():
    with open_executor() as executor:
        assert isinstance(executor, ThreadsExecutor)
    with open_executor("threads", 3) as executor:
        assert executor.slots == 3
    before = blas()
    with open_executor("processes:1", 1) as executor:
        assert isinstance(executor, DaskExecutor)
        assert list(executor.workers.values()) == [1]
        assert set(blas()) == {1}
        assert executor.dashboard.startswith("http")
        assert list(executor.imap(minus, range(3), (1,))) == [-1, 0, 1]
        address = executor.address
    assert blas() == before
    host, port = address.removeprefix("tcp://").split(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port)), timeout=1):
        pass


@pytest.mark.parametrize(
    "scheduler",
    [
        "",
        "thread",
        "threads:2",
        "processes:",
        "processes:0",
        "processes:two",
        "processes:-1",
        "tcp://",
        "head",
        None,
        8,
    ],
)
def test_a_setting_that_means_nothing_says_what_would(scheduler):
    with pytest.raises(UsageError, match=r"(?s)unknown.*processes:N.*tcp://"), open_executor(scheduler):
        pass


def test_a_scheduler_without_workers_is_an_error(cluster):
    executor = DaskExecutor(cluster.address, worker_timeout=0.5)
    with pytest.raises(StorageError, match=r"(?s)no workers for 0.5 seconds.*dask worker tcp://"), executor:
        pass


def test_a_client_that_is_given_stays_open(cluster):
    cluster.keep(1)
    with Client(cluster.address, set_as_default=False) as client:
        with DaskExecutor(client) as executor:
            assert list(executor.imap(minus, [4], (1,))) == [3]
        assert client.submit(minus, 4, 2, workers=list(executor.workers)).result(timeout=200) == 2


@pytest.mark.slow
def test_a_client_is_a_scheduler_and_is_kept_by_clones_and_left_out_of_pickles(cluster, tmp_path):
    cluster.keep(1)
    X = np.random.default_rng(0).standard_normal((60, 3)).astype("float32")
    here = sk.KernelClassifier(centers=10).fit(X, X[:, 0] > 0)
    with Client(cluster.address, set_as_default=False) as client:
        model = clone(sk.KernelClassifier(centers=10, resources=sk.Resources(scheduler=client))).fit(X, X[:, 0] > 0)
        assert model.resources.scheduler is client
        assert model.model_.weights_sha256 == here.model_.weights_sha256
        again = pickle.loads(pickle.dumps(model))
        assert again.resources.scheduler == cluster.address
        assert np.array_equal(again.predict(X), here.predict(X))
        pipeline = sk.Pipeline(sk.from_arrays(X, X[:, 0] > 0), sk.Laplace(2.0), sk.Uniform(10), name="job")
        assert sk.run(pipeline, tmp_path / "run", resources=sk.Resources(scheduler=client))["executor"] == "dask"
        assert client.status == "running"
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["scheduler"] == cluster.address
    with pytest.raises(UsageError, match="unknown"):  # closed
        model.predict(X)


def test_what_the_workers_cannot_import_is_a_clear_error(cluster, monkeypatch, tmp_path):
    cluster.keep(1)
    (tmp_path / "only_here.py").write_text("def f(item):\n    return item\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    with DaskExecutor(cluster.address) as executor:
        with pytest.raises(StorageError, match=r"(?s)ModuleNotFoundError.*only_here.*same versions"):
            list(executor.imap(only_here.f, [1]))
        with pytest.raises(StorageError, match=r"(?s)ModuleNotFoundError.*only_here.*same versions"):
            executor.place(only_here.f, 1).step((0, 0), None)


@pytest.mark.slow
def test_without_distributed_the_extra_is_named():
    program = """
import sys
import threading
sys.modules["distributed"] = None
from streamkern.execute import open_executor
from streamkern.errors import UsageError
try:
    with open_executor("processes:2"):
        pass
except UsageError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "distributed, which is not installed" in found.stdout
    assert "pip install 'streamkern[cluster]'" in found.stdout


@pytest.mark.parametrize(
    ("address", "words"),
    [
        pytest.param("tcp://127.0.0.1:1", r"(?s)No Dask scheduler answered.*127.0.0.1", marks=pytest.mark.slow),
        ("tls://127.0.0.1:1", r"(?s)cannot be used.*tls"),
        ("nothing://127.0.0.1:1", r"(?s)cannot be used.*tls"),
    ],
)
def test_an_address_where_nothing_answers_is_an_error_within_seconds_and_leaves_nothing_behind(address, words):
    # What was left closed when it was collected, and where that was as another client started, both stood still.
    before, start = threading.active_count(), time.monotonic()
    kind = StorageError if address.startswith("tcp") else UsageError
    with pytest.raises(kind, match=words) as caught, open_executor(address):
        pass
    assert time.monotonic() - start < 60
    assert threading.active_count() == before
    assert not [client for client in gc.get_objects() if isinstance(client, Client) and client.status != "closed"]
    assert caught.value.where == address
