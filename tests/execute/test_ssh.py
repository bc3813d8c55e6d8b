"""``SSHCluster``: a scheduler and workers that Dask starts over SSH, here on this machine."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import SSHCluster

from streamkern.execute import open_executor
from streamkern.testing.executor import expected_weights, small_weights

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
pytestmark = pytest.mark.skipif(SSHD is None, reason="sshd, to log in to this machine with, is missing")


@pytest.fixture
def server(tmp_path):
    """An SSH server on a port of its own, and a key that it takes: (port, key)."""
    assert SSHD is not None
    for name in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "HostKey": tmp_path / "host", "AuthorizedKeysFile": tmp_path / "own.pub", "PidFile": "none", "UsePAM": "no",
        "StrictModes": "no", "ListenAddress": "127.0.0.1", "Port": port,
    }  # fmt: skip
    Path("/run/sshd").mkdir(exist_ok=True)
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", "/dev/null", *words], stderr=log)
        start = time.monotonic()
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < start + 200, (tmp_path / "log").read_text()
                time.sleep(0.05)
        yield port, tmp_path / "own"
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_weights_on_a_cluster_started_over_ssh_are_those_of_one_thread(server):
    pytest.importorskip("asyncssh", reason="asyncssh, which SSHCluster logs in with, is missing")
    port, key = server
    login = {"port": port, "username": getpass.getuser(), "client_keys": [str(key)], "known_hosts": None}
    # A login does not bring what was exported here, and other BLAS kernels round otherwise.
    same = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_") or name == "PYTHONPATH"}
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": same}),
        SSHCluster(
            ["127.0.0.1"] * 3,
            connect_options=login,
            worker_options={"nthreads": 1, "memory_limit": "0"},
            scheduler_options={"port": 0, "dashboard": False},
            remote_python=sys.executable,
        ) as cluster,
    ):
        cluster.wait_for_workers(2, timeout=60)
        with open_executor(cluster.scheduler_address, 1) as executor:
            np.testing.assert_array_equal(small_weights(executor, "exact"), expected_weights("exact"))
            assert executor.losses == 0
