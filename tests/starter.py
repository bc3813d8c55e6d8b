"""A process that imports once, and forks for each program that is started: two seconds saved with every one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

TIMED = 0.02
"""Seconds of a measurement of prices: no test depends on what it finds, and a plan takes thirty of them."""

COMMANDS = """
import dask.cli, distributed.cli.dask_scheduler, distributed.cli.dask_worker
import tests.warm
import streamkern.commands.data, streamkern.commands.pipelines, streamkern.commands.registry
import streamkern.commands.run_reports
"""
"""Imports of the commands, and what a fit loads."""

NAMES = """
import dask, pytest
import streamkern
for name in streamkern.__all__:
    getattr(streamkern, name)
"""
"""Imports of a user's program, which has computed nothing: what a fit loads counts as its own memory."""

STARTER = """
import json, os, runpy, signal, sys, traceback
{imports}
def streamkern_main(words):
    from streamkern.commands.parser import main
    return main(words)

def dask_main(words):
    sys.argv = ["dask", *words]
    try:
        return dask.cli.run_cli()
    except SystemExit as end:
        return end.code or 0

def python(words):
    sys.argv, sys.path[0] = words, os.getcwd()
    runpy.run_path(words[0], run_name="__main__")

programs = {"streamkern": streamkern_main, "dask": dask_main, "python": python}
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

    def __init__(
        self, ask: Callable[..., str], program: str, words: tuple[Any, ...], out: str | Path, **more: Any
    ) -> None:
        self._ask, self._out = ask, str(out)
        request = {"cwd": os.getcwd(), "env": dict(os.environ), "out": self._out} | more
        self.pid = int(ask(program=program, words=[str(word) for word in words], **request))
        self.returncode: int | None = None

    def poll(self, flags: int = os.WNOHANG) -> int | None:
        """The exit status, if it has ended."""
        if self.returncode is None and (answer := self._ask(wait=self.pid, flags=flags)):
            self.returncode = int(answer)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, at its end."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll(0 if end is None else os.WNOHANG) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("streamkern", timeout or 0.0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = 250) -> tuple[str, str]:
        """What it has said on stdout and stderr, at its end."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
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


@contextmanager
def starter(imports: str) -> Iterator[Callable[..., Command]]:
    """Starts ``streamkern``, ``dask`` or a file of Python: with words, a place for its output, ``cwd`` and ``env``."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, "-c", STARTER.replace("{imports}", imports)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    ) as p:  # fmt: skip
        assert p.stdin is not None
        assert p.stdout is not None
        requests, answers, lock = p.stdin, p.stdout, threading.Lock()

        def ask(**request: Any) -> str:
            with lock:
                requests.write(json.dumps(request) + "\n")
                requests.flush()
                return answers.readline().strip()

        yield partial(Command, ask)
        requests.close()
