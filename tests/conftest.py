"""One hypothesis profile for everyone, so that a failure in CI is the one seen at the desk; a cache of our own."""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import multiprocessing.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import pytest
from distributed.utils import get_mp_context
from hypothesis import given, settings
from hypothesis.strategies import just

from streamkern.costs import machine_speed as calibrate
from streamkern.costs.machine_speed import Prices
from streamkern.engine.operation_counts import Operations
from streamkern.memory import release_free_memory
from tests.starter import COMMANDS, NAMES, TIMED, Command, starter

# No deadline, because the first example pays for compilation; the per-test timeout stands in pyproject.toml.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci")

# A run starts hundreds of processes: each reads the modules that the first has compiled, whatever the environment says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Idle threads of BLAS and OpenMP sleep at once: by default they spin for a while, on a core that the other process of
# the tests would use. A library reads these variables when it is loaded: in the processes that this one starts.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Tests have a cache of their own, but the user's compiled loops.
os.environ.setdefault("NUMBA_CACHE_DIR", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))

calibrate.MEASUREMENT_SECONDS = TIMED

# Worker processes of this one are forks of a process that has imported what they need, which takes each two seconds;
# that they start as they do for users, anew, is seen where scripts, examples and pages are run.
dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
get_mp_context()  # which would choose what is imported, when it is first called
multiprocessing.set_forkserver_preload(["distributed", "distributed.nanny", "tests.warm"])
multiprocessing.util.get_temp_dir()  # here, where it lasts as long as this process does

# A run makes a hundred small files durable: where there is room in memory, no test waits for a disk to do so.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


LONG = (
    "test_memory.py", "test_docs.py", "test_cli.py", "test_estimators.py", "test_examples.py",
    "storage/test_writer.py", "solvers/test_eigenpro.py", "solvers/test_conformance.py", "solvers/test_costs.py",
    "report/test_browser.py", "execute/test_clusters.py", "registry/test_retrain.py",
)  # fmt: skip
"""Files of half a minute or more, of many tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Tests train for few passes and on noise, to be short: that such a fit is not good is no failure of theirs."""
    for message in (
        r"\w+ has not reached the exact solution, relative residual \S+ after \d+ pass",
        r"The model is no better on held-out rows than",
    ):
        config.addinivalue_line("filterwarnings", f"ignore:{message}:UserWarning")


QUICK_SECONDS = 60
"""A test without the mark ``slow`` took less than two on two cores; one that takes this long has to be marked."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that no process waits for one at the end."""
    for item in items:
        if not item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(QUICK_SECONDS))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    slow |= {Path(__file__).parent / name for name in LONG}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Modules and tests stay as long as the process: the collector need not walk through half a million objects."""

    @given(just(None))
    def example(nothing: None) -> None:
        """Hypothesis looks for who holds NumPy's generator, once, and finds nobody among objects that are frozen."""

    example()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache that is not the user's, and a place for what is temporary that is where ``tmp_path`` is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="session", autouse=True)
def known_prices() -> Iterator[None]:
    """Plans are priced without a measurement, which takes three seconds for each new shape; commands do measure."""
    prices = Prices(Operations(*[1e-10] * 11), step=1e-4, row=1e-7, moments=1e-7, byte=1e-9)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("plan", "tune"):  # the package's functions of these names hide the modules
            module = importlib.import_module(f"streamkern.runs.{name}")
            patch.setattr(module, "measured_prices", lambda *_: prices)
        yield


@pytest.fixture(scope="module", autouse=True)
def free_memory() -> Iterator[None]:
    """What the tests of a file have left goes back to the system: budgets of the next count what the process holds."""
    yield
    gc.collect()
    gc.freeze()
    release_free_memory()


@pytest.fixture(scope="session")
def forked() -> Iterator[Callable[..., Command]]:
    """Starts ``streamkern``, ``dask`` or a file of Python: with words, a place for its output, ``cwd`` and ``env``."""
    with starter(COMMANDS) as start:
        yield start


@pytest.fixture(scope="session")
def imported() -> Iterator[Callable[..., Command]]:
    """As ``forked``, for processes whose memory is measured: the public names are imported, and nothing is computed."""
    with starter(NAMES) as start:
        yield start


@pytest.fixture(scope="session")
def command(forked: Callable[..., Command], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Command]:
    """Starts ``streamkern`` with words, in the working directory, with further variables of the environment."""
    return lambda *words, **env: forked(
        "streamkern", words, tmp_path_factory.mktemp("command") / "out", env=os.environ | env
    )


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of an S3 server on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while server.poll() is None:
                with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
            assert server.poll() is None
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user of that server, as the environment has them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "an-example-of-a-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", place]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system takes root, and a kernel that lets it")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
