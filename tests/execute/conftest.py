"""A Dask cluster of separate processes that talk over TCP, to be started, starved, stopped and killed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest
from distributed import Client

ROOT = Path(__file__).parents[2]


class Cluster:
    """``dask scheduler`` and ``dask worker`` on this machine, at ports of their choosing.

    Args:
        forked: starts a program whose imports are done.
        folder: where it runs and logs.
        protocol: ``tcp`` or ``tls``.
        environment: further variables of its processes: what is read by imports, so that they are new processes.
    """

    def __init__(self, forked, folder, protocol="tcp", environment=MappingProxyType({})):
        self.forked = forked
        self.folder = folder
        self.environment = environment
        self.file = folder / "scheduler.json"
        self.log = (folder / "log2").open("ab")
        self.workers: list[Any] = []
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(self.file),
            "--idle-timeout", "10 minutes", "--protocol", protocol,
        )  # fmt: skip

    def _start(self, *arguments: str) -> Any:
        if not self.environment:
            return self.forked("dask", arguments, self.folder / "log", cwd=str(self.folder))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, **self.environment},
            stdout=self.log,
            stderr=self.log,
        )

    @property
    def address(self) -> str:
        """Address of the scheduler, once it has one."""
        start = time.monotonic()
        while True:
            try:
                return json.loads(self.file.read_text())["address"]
            except (FileNotFoundError, ValueError):
                assert time.monotonic() < start + 200, (self.folder / "log2").read_text()
                time.sleep(0.05)

    def add(self, threads: int = 1, memory: str | None = None) -> Any:
        """Start a worker: without a nanny, so that what is killed stays dead; with one where its memory is limited."""
        guard = ["--no-nanny", "--memory-limit", "0"] if memory is None else ["--nanny", "--memory-limit", memory]
        worker = self._start(
            "worker", "--scheduler-file", str(self.file), "--nthreads", str(threads), "--no-dashboard",
            "--host", "127.0.0.1", "--death-timeout", "60", *guard,
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def keep(self, number: int) -> None:
        """Have exactly this many workers of one thread: new ones for those that died, were stopped or given up."""
        with Client(self.address, set_as_default=False, timeout=200) as client:
            for worker in self.workers:
                if worker.poll() is None and psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED:
                    worker.kill()
                    worker.wait()
            known = set(client.run(os.getpid, on_error="ignore").values())
            kept = [worker for worker in self.workers if worker.pid in known][:number]
            for worker in set(self.workers) - set(kept):
                worker.kill()
                worker.wait()
            self.workers = kept
            while len(self.workers) < number:
                self.add()
            while set(client.run(os.getpid, on_error="ignore").values()) != {worker.pid for worker in self.workers}:
                assert all(worker.poll() is None for worker in self.workers), (self.folder / "log2").read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        """Leave no process, however it fares."""
        for process in (*self.workers, self.scheduler):
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.kill()
            process.wait()
            for child in children:  # of a nanny
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        self.log.close()


@pytest.fixture(scope="module")
def new_cluster(forked, tmp_path_factory):
    """Starts clusters without workers, which end with the module."""
    clusters = []

    def start(*arguments: Any) -> Cluster:
        clusters.append(Cluster(forked, tmp_path_factory.mktemp("cluster"), *arguments))
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.kill()


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster without workers."""
    return new_cluster()
