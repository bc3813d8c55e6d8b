"""Random faults thrown at runs, until so many have been survived: ``python tests/soak/soak.py --faults 200``.

Every run is started, broken, and resumed until it is done; then its weights and metrics must equal those of an
undisturbed run, bit for bit. Each fault must lead to one of three outcomes: the run continues; it ends with
one error and can be resumed; it was killed and can be resumed. Any other outcome ends the script with status 1.

As root, run directories are on a small file system of their own, which can be filled up; else that fault is left out.
Where libfaketime is installed, clocks jump.
"""

import argparse
import ctypes.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import streamkern as sk

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks.results import add_results, add_run
from tests.execute.conftest import Cluster
from tests.starter import COMMANDS, Command, starter

PIPELINE = Path(__file__).with_name("pipeline.py")
PAUSE = "0.01"
SOLVERS = ("exact", "delayed", "falkon")
PATIENCE = float(os.environ.get("SOAK_PATIENCE", 120.0))  # seconds of a run; more on a machine that is not quiet


Process = subprocess.Popen[str] | Command


class LostError(Exception):
    """Something that should have survived did not."""


class Soak:
    """The runs, and the faults.

    Args:
        folder: scratch space.
        seed: of the choice of faults and moments.
        small: where run directories are: a small file system, or just a directory.
        fork: starts programs, as ``tests/starter.py`` does.
    """

    def __init__(self, folder: Path, seed: int, small: Path, fork: Callable[..., Command]) -> None:
        self.folder, self.small, self.fork = folder, small, fork
        self.started = 0
        self.luck = random.Random(seed)
        self.cluster: Cluster | None = None
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.runs = 0
        rng = np.random.default_rng(0)
        X = rng.normal(size=(2000, 6)).astype(np.float32)
        self.data = folder / "data.zarr"
        sk.write_zarr(self.data, X, np.sin(X[:, 0]) + X[:, 1], chunk_rows=150)
        self.expected = {}
        for solver in SOLVERS:
            done = folder / f"undisturbed-{solver}"
            self._finish(self._command(done, "threads", solver), done)
            self.expected[solver] = self._result(done)
        self.faults: dict[str, Callable[[], str]] = {
            "kill -9 of the driver": lambda: self.signal_driver(signal.SIGKILL),
            "SIGTERM to the driver": lambda: self.signal_driver(signal.SIGTERM),
            "SIGINT to the driver": lambda: self.signal_driver(signal.SIGINT),
            "kill -9 of a worker": lambda: self.hurt_workers(1),
            "kill -9 of all workers, others join": lambda: self.hurt_workers(2),
            "a worker stops for two seconds": self.stall_worker,
            "kill -9 of the scheduler": self.kill_scheduler,
            "a flipped byte in the last checkpoint": lambda: self.damage("checkpoints/*/0*", newest=True),
            "a flipped byte in what the solver prepared": lambda: self.damage("checkpoints/*/prepared"),
            "a flipped byte in the result of a stage": lambda: self.damage("stages/*"),
            "a flipped byte in a chunk of the data": self.damage_data,
            "a second run on the same directory": self.second_run,
        }
        if small != folder:
            self.faults["a full disk"] = self.fill_disk
        if FAKETIME is not None:
            self.faults["the clock jumps"] = self.jump_clock
        self._new_run()

    # ------------------------------------------------------------------------------------------------------- runs

    def _scheduler(self) -> str:
        """Bring up whatever is missing of a scheduler and two workers; its address."""
        if self.cluster is None or self.cluster.scheduler.poll() is not None:
            self.stop_cluster()
            self.cluster = Cluster(self.fork, Path(tempfile.mkdtemp(dir=self.folder)))
        self.cluster.keep(2)
        return self.cluster.address

    def stop_cluster(self) -> None:
        """Leave no process of it."""
        if self.cluster is not None:
            self.cluster.kill()
            self.cluster = None

    def _new_run(self) -> None:
        self.runs += 1
        self.solver = self.luck.choice(SOLVERS)
        self.run_dir = self.small / f"run{self.runs}"

    def _command(self, run_dir: Path, scheduler: str, solver: str) -> list[str]:
        if (run_dir / "manifest.json").exists() and self.luck.random() < 0.5:
            return ["resume", str(run_dir), "--scheduler", scheduler]
        return [
            "run", str(PIPELINE), "--set", f"data={self.data}", f"solver={solver}", "--run-dir", str(run_dir),
            "--checkpoint-seconds", "0.05", "--scheduler", scheduler, "--memory", "1GiB",
        ]  # fmt: skip

    def start(self, scheduler: str = "threads", env: dict[str, str] | None = None) -> Process:
        """Begin the run, or go on with it, and wait until it says so."""
        begun = self._count("begin")
        process = self._popen(self._command(self.run_dir, scheduler, self.solver), env or {})
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and self._count("begin") <= begun:
            if time.monotonic() > deadline:
                raise LostError("the run did not begin")
            time.sleep(0.01)
        return process

    def _popen(self, words: list[str], env: dict[str, str]) -> Process:
        if env:  # what is loaded before Python takes a new process
            return subprocess.Popen(
                [sys.executable, "-m", "streamkern", *words], text=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, cwd=self.folder, env={**os.environ, **env},
            )  # fmt: skip
        self.started += 1
        said = self.folder / f"said-{self.started}-"
        return self.fork("streamkern", words, said, cwd=str(self.folder))

    def _finish(self, words: list[str], run_dir: Path) -> None:
        process = self._popen(words, {})
        _, said = process.communicate(timeout=PATIENCE)
        if process.returncode:
            raise LostError(f"{' '.join(words)} ended with {process.returncode}: {said[-1500:]}")

    def end(self, process: Process, allowed: tuple[int, ...] = ()) -> str:
        """Wait for the run's end, and say what it was in a word."""
        try:
            _, said = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise LostError(f"the run hangs: {process.communicate()[1][-1500:]}") from error
        if process.returncode == 0:
            self.check()
            return "the run continues"
        if process.returncode not in allowed:
            raise LostError(f"exit status {process.returncode}: {said[-1500:]}")
        if process.returncode > 0 and "Traceback" in said:
            raise LostError(f"a traceback in place of an error: {said[-1500:]}")
        return {1: "one error, then resumed"}.get(process.returncode, "stopped, then resumed")

    def check(self) -> None:
        """The run is done: its weights are those of the undisturbed one."""
        result, expected = self._result(self.run_dir), self.expected[self.solver]
        for name in ("weights_sha256", "metrics"):
            if result[name] != expected[name]:
                raise LostError(f"{name} of {self.run_dir} is {result[name]}, undisturbed {expected[name]}")
        shutil.rmtree(self.run_dir)
        self._new_run()

    @staticmethod
    def _result(run_dir: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
        if found["status"] != "done":
            raise LostError(f"{run_dir} says {found['status']}")
        return found

    def _count(self, state: str) -> int:
        with suppress(FileNotFoundError):
            return (self.run_dir / "events.jsonl").read_text().count(f'"event": "run", "state": "{state}"')
        return 0

    def wait(self, process: Process, most: float = 1.2) -> None:
        """Some of the time that a run takes."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.luck.uniform(0.0, most))

    # ----------------------------------------------------------------------------------------------------- faults

    def signal_driver(self, number: signal.Signals) -> str:
        """At a random moment."""
        process = self.start()
        self.wait(process)
        process.send_signal(number)
        return self.end(process, (-number, 128 + number))

    def hurt_workers(self, count: int) -> str:
        """They are gone at once; others join."""
        process = self.start(self._scheduler())
        self.wait(process)
        for worker in self.luck.sample(self.cluster.workers, count):
            worker.kill()
            worker.wait()
        self._scheduler()
        return self.end(process)

    def stall_worker(self) -> str:
        """It neither works nor answers for a while."""
        process = self.start(self._scheduler())
        self.wait(process)
        worker = self.luck.choice(self.cluster.workers)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        worker.send_signal(signal.SIGCONT)
        return self.end(process)

    def kill_scheduler(self) -> str:
        """The cluster is no more."""
        process = self.start(self._scheduler())
        self.wait(process)
        self.cluster.scheduler.kill()
        self.cluster.scheduler.wait()
        said = self.end(process, (1,))
        self.stop_cluster()
        return said

    def damage(self, pattern: str, newest: bool = False) -> str:
        """A byte of what an interrupted run has left is another one."""
        process = self.start()
        while process.poll() is None and not any(self.run_dir.glob(pattern)):
            time.sleep(0.01)
        self.wait(process)
        process.kill()
        process.communicate()
        places = sorted(place for place in self.run_dir.glob(pattern) if not place.name.startswith("."))
        files = [file for place in places[-1 if newest else 0 :] for file in place.rglob("*") if file.is_file()]
        if files:  # else the run was done
            flip(self.luck.choice(sorted(files)), self.luck)
        return self.end(self.start())

    def damage_data(self) -> str:
        """Of one chunk of features, until the run has ended; its time of change is as before."""
        chunk = self.luck.choice(sorted(file for file in (self.data / "X/c").rglob("*") if file.is_file()))
        healthy, stamp = chunk.read_bytes(), chunk.stat()
        flip(chunk, self.luck)
        os.utime(chunk, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        process = self.start()
        try:
            return self.end(process, (1,))
        finally:
            chunk.write_bytes(healthy)
            os.utime(chunk, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    def second_run(self) -> str:
        """It is told that the directory is busy, and the first one goes on."""
        log = self.run_dir / "events.jsonl"
        before = len(log.read_text().splitlines()) if log.exists() else 0
        process = self.start()
        second = self._popen(self._command(self.run_dir, "threads", self.solver), {})
        _, said = second.communicate(timeout=PATIENCE)
        if second.returncode not in (0, 75):  # 0: the first one was done before
            raise LostError(f"a second run ended with {second.returncode}: {said[-1500:]}")
        lines = log.read_text().splitlines()[before:]
        states = [event["state"] for event in map(json.loads, lines) if event["event"] == "run"]
        if any(pair == ("begin", "begin") for pair in pairwise(states)):
            raise LostError("two runs on one directory")
        return self.end(process)

    def fill_disk(self) -> str:
        """For a while, or until the run has ended."""
        process = self.start()
        self.wait(process)
        ballast = self.small / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        self.wait(process, 2.0)
        if self.luck.random() < 0.5:
            ballast.unlink()
            return self.end(process, (1,))
        try:
            return self.end(process, (1,))
        finally:
            ballast.unlink()

    def jump_clock(self) -> str:
        """By up to two years, forth or back, at the next start."""
        assert FAKETIME is not None
        days = self.luck.choice([-700, -1, 1, 700])
        process = self.start(
            env={"LD_PRELOAD": FAKETIME, "FAKETIME": f"{days:+}d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        )
        self.wait(process)
        process.kill()
        return self.end(process, (-signal.SIGKILL,))

    # ------------------------------------------------------------------------------------------------------- soak

    def soak(self, faults: int) -> None:
        """Throw faults, each kind as often as another, then let the last run end."""
        names = sorted(self.faults)
        for number in range(faults):
            if number % len(names) == 0:
                self.luck.shuffle(names)
            name = names[number % len(names)]
            try:
                outcome = self.faults[name]()
            except LostError as error:
                raise LostError(f"fault {number + 1}, {name}: {error}") from error
            self.outcomes[name, outcome] += 1
            print(f"{number + 1:4} {name}: {outcome}", flush=True)
        self.end(self.start())

    def table(self) -> str:
        """Faults and outcomes, for the documentation."""
        rows = [f"| {name} | {outcome} | {n} |" for (name, outcome), n in sorted(self.outcomes.items())]
        return "\n".join(["| fault | what happens | times |", "| --- | --- | --: |", *rows])


def flip(file: Path, luck: random.Random) -> None:
    """Another bit in one byte of a file."""
    content = bytearray(file.read_bytes())
    if content:
        content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
        file.write_bytes(content)


def _faketime() -> str | None:
    found = ctypes.util.find_library("faketimeMT") or next(
        (str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None
    )
    return found


FAKETIME = _faketime()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 24 MiB, or the folder itself where none may be mounted."""
    place = folder / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], capture_output=True, check=False
    )
    try:
        yield place if mounted.returncode == 0 else folder
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(place)], check=False)


def main() -> int:
    """Run the soak.

    Returns:
        0 if nothing was lost.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    add_results(parser)
    args = parser.parse_args()
    begun = time.monotonic()
    os.environ["PAUSE"] = PAUSE  # of all that is started here
    signal.signal(signal.SIGINT, signal.default_int_handler)  # where a shell has it ignored, so would the runs
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as name,
        small_disk(Path(name)) as small,
        starter(COMMANDS) as fork,
    ):
        soak = Soak(Path(name), args.seed, small, fork)
        try:
            soak.soak(args.faults)
        except LostError as error:
            print(f"LOST: {error}", flush=True)
            return 1
        finally:
            soak.stop_cluster()
        print(f"\n{soak.table()}\n")
        lines = [{"table": "faults", "fault": name, "outcome": what} for name, what in sorted(soak.outcomes)]
        add_run(args.results, [line | {"times": soak.outcomes[line["fault"], line["outcome"]]} for line in lines])
        print(
            f"{args.faults} faults of {len(soak.faults)} kinds with seed {args.seed} in {soak.runs} runs: nothing lost "
            f"({time.monotonic() - begun:.0f} s)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
