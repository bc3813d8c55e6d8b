"""Every executor, held to the suite."""

from __future__ import annotations

import time

import pytest

from streamkern.execute import open_executor
from streamkern.execute.dask import DaskExecutor
from streamkern.testing.executor import ExecutorSuite


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
                executor.look()
            assert sorted(executor.workers.values()) == [1, 2]
        yield executor


class TestExecutors(ExecutorSuite):
    pass
