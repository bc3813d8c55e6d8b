"""One hypothesis profile for everyone, so that a failure in CI is the one seen at the desk; a cache of our own."""

from __future__ import annotations

import gc
import json
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed.utils import get_mp_context
from hypothesis import settings

from streamkern.memory import release

# No deadline, because the first example pays for compilation; the per-test timeout stands in pyproject.toml.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci")

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with a test that takes long come first, so that no process waits for one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache that is not the user's, and a place for what is temporary that is where ``tmp_path`` is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="module", autouse=True)
def free_memory() -> Iterator[None]:
    """What the tests of a file have left goes back to the system: budgets of the next count what the process holds."""
    yield
    gc.collect()
    release()


# Imports once and forks for each command: two seconds saved with every one that is started only to be killed.
STARTER = """
import json, os, runpy, signal, sys, traceback
import dask.cli, distributed.cli.dask_scheduler, distributed.cli.dask_worker
import tests.warm
from streamkern.cli import main
import streamkern.commands.data, streamkern.commands.models, streamkern.commands.runs, streamkern.commands.serving
import streamkern.commands.training, streamkern.commands.tuning

def dask_main(words):
    sys.argv = ["dask", *words]
    try:
        return dask.cli.run_cli()
    except SystemExit as end:
        return end.code or 0

def python(words):
    sys.argv, sys.path[0] = words, os.getcwd()
    runpy.run_path(words[0], run_name="__main__")

programs = {"streamkern": main, "dask": dask_main, "python": python}
running = set()
for line in sys.stdin:
    told = json.loads(line)
    if "wait" in told:
        pid, status = os.waitpid(told["wait"], told["flags"])
        running.discard(pid)
        print(os.waitstatus_to_exitcode(status) if pid else "", flush=True)
        continue
    pid = os.fork()
    if not pid:
        os.environ.clear()
        os.environ.update(told["env"])
        os.chdir(told["cwd"])
        for number, name in enumerate((os.devnull, told["out"] + "1", told["out"] + "2")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), number)
        status = 1
        try:
            status = programs[told["program"]](told["words"])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status or 0)
    running.add(pid)
    print(pid, flush=True)
for pid in running:  # of a test that was interrupted: nobody else would end them
    os.kill(pid, signal.SIGKILL)
"""


class Command:
    """A program with its words in a process of its own, which can be sent signals; as ``subprocess.Popen`` has it."""

    def __init__(self, ask: Callable[..., str], program: str, words: tuple[Any, ...], out: Path, **more: Any) -> None:
        self._ask, self._out = ask, str(out)
        told = {"cwd": os.getcwd(), "env": dict(os.environ), "out": self._out} | more
        self.pid = int(ask(program=program, words=[str(word) for word in words], **told))
        self.returncode: int | None = None

    def poll(self, flags: int = os.WNOHANG) -> int | None:
        """The exit status, if it has ended."""
        if self.returncode is None and (told := self._ask(wait=self.pid, flags=flags)):
            self.returncode = int(told)
        return self.returncode

    def wait(self) -> int:
        """The exit status, at its end."""
        status = self.poll(0)
        assert status is not None
        return status

    def communicate(self, timeout: float = 250) -> tuple[str, str]:
        """What it has said on stdout and stderr, at its end."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                self.kill()
                raise subprocess.TimeoutExpired("streamkern", timeout)
            time.sleep(0.01)
        out, err = (Path(self._out + number).read_text() for number in "12")
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


@pytest.fixture(scope="session")
def forked() -> Iterator[Callable[..., Command]]:
    """Starts ``streamkern``, ``dask`` or a file of Python: with words, a place for its output, ``cwd`` and ``env``."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as p:  # fmt: skip
        assert p.stdin is not None
        assert p.stdout is not None
        asked, answers, lock = p.stdin, p.stdout, threading.Lock()

        def ask(**told: Any) -> str:
            with lock:
                asked.write(json.dumps(told) + "\n")
                asked.flush()
                return answers.readline().strip()

        yield partial(Command, ask)
        asked.close()


@pytest.fixture(scope="session")
def command(forked: Callable[..., Command], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Command]:
    """Starts ``streamkern`` with words, in the working directory, with further variables of the environment."""
    return lambda *words, **env: forked(
        "streamkern", words, tmp_path_factory.mktemp("command") / "out", env=os.environ | env
    )
