"""All that a card is asked in a quarter of an hour: tests, ceilings, blocks, steps and whole runs, by a deadline.

    python tests/benchmarks/card.py --dry-run                   # the steps, their seconds, and the MiB that travel
    python tests/benchmarks/card.py first --out DIR             # at most 470 s
    python tests/benchmarks/card.py second --out DIR            # at most 210 s, after a green first
    python tests/benchmarks/card.py --gather FOLDER             # wheels and images for a machine without a network

A step is a process of its own, with a limit: the smaller of its own and what is left. What it prints goes to DIR/log as
it comes, a line of it to DIR/summary, and what it measures to DIR/results.json; a step that fails, hangs or is killed
costs the others nothing. DIR has three files whatever happens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
IMAGES = Path("/usr/share/datasets/fashion-mnist")
WHEELS = (
    "dask", "distributed", "zarr", "numcodecs", "msgspec", "tornado", "donfig", "google-crc32c", "partd", "locket",
    "tblib", "zict",
)  # fmt: skip
"""Packages that a machine with PyTorch, CuPy, Numba, scikit-learn and Arrow lacks."""
MOST_BYTES = 60 << 20
RUNS = Path(tempfile.gettempdir()) / "streamkern-card"
KEPT = ("seconds", "samples_per_second", "data_wait_fraction", "peak_memory_bytes", "stages", "device", "solver_report")
"""Of a run's result."""
LAST_WORDS = 5.0
"""Seconds between asking a step to end and killing it."""


class Step(NamedTuple):
    """A step: its name, its limit and expected duration in seconds, and its command."""

    name: str
    limit: float
    expected: float
    command: tuple[str, ...]


def python(*words: str) -> tuple[str, ...]:
    """A command of this interpreter."""
    return (sys.executable, *words)


def tested(*words: str) -> tuple[str, ...]:
    """Tests of the card."""
    return python(
        "-m",
        "pytest",
        "-m",
        "gpu",
        "tests/gpu",
        "-q",
        "-W",
        "default",
        "--timeout",
        "60",
        "-p",
        "no:cacheprovider",
        *words,
    )


def run(*settings: str) -> tuple[str, ...]:
    """A whole run on Fashion-MNIST, in a directory that its settings name."""
    source = os.environ.get("FASHION", str(IMAGES))
    folder = RUNS / "-".join(settings)
    return python(
        "-m", "streamkern", "run", "pipelines/fashion_mnist.py", "--device", "cuda", "--memory", "100GiB",
        "--checkpoint-seconds", "100000", "--quiet", "--run-dir", str(folder), "--set", *settings, f"source={source}",
    )  # fmt: skip


FIRST = (
    Step("warm", 60, 25, python("-m", "streamkern", "doctor")),
    Step("ceilings", 60, 20, python("tests/benchmarks/gpu.py", "ceilings")),
    Step("loops", 90, 45, tested("-k", "not digits and not memory and not rate and not nothing")),
    Step("blocks", 60, 25, python("tests/benchmarks/gpu.py", "blocks")),
    Step("steps", 50, 20, python("tests/benchmarks/gpu.py", "steps")),
    Step("p=5000", 60, 25, run("rows=60000", "noise=0", "centers=5000")),
    Step("6M rows", 70, 30, run("rows=6000000", "centers=10000")),
    Step("digits", 80, 40, tested("-k", "digits or memory or rate or nothing")),
    Step("p=60000", 100, 70, run("rows=60000", "noise=0", "centers=60000")),
)
SECOND = (Step("120M rows", 195, 90, run("rows=120000000", "centers=10000")),)
PLANS: Mapping[str, tuple[float, tuple[Step, ...]]] = {"first": (470.0, FIRST), "second": (210.0, SECOND)}


def perform(steps: Sequence[Step], seconds: float, out: Path) -> int:
    """Run steps in turn by a deadline; returns how many did not end well."""
    end, failed, results = time.monotonic() + seconds, 0, dict[str, Any]()
    out.mkdir(parents=True, exist_ok=True)
    for name in ("log", "summary"):
        (out / name).write_text("")
    _keep(out, results)
    for step in steps:
        start = time.monotonic()
        limit = min(step.limit, end - start - LAST_WORDS)
        said = ""
        if limit <= 0:
            status = "no time"
        else:
            status, said = _run(step, limit, out / "log")
        spent = time.monotonic() - start
        failed += status != "ok"
        results[step.name] = {"status": status, "seconds": round(spent, 1), **_measured(said), **_of_run(step)}
        _keep(out, results)
        with (out / "summary").open("a") as summary:
            line = f"{step.name:10} {status:12} {spent:6.1f} s of {step.limit:.0f}"
            summary.write(line + "\n")
        print(line, flush=True)
    return failed


def _run(step: Step, limit: float, log: Path) -> tuple[str, str]:
    """Run a step in a process group of its own; returns how it ended, and what it printed."""
    before = log.stat().st_size
    with log.open("a") as file:
        file.write(f"\n==== {step.name}: {' '.join(step.command)}\n")
        file.flush()
        try:
            process = subprocess.Popen(
                step.command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"not begun: {error}", ""
        try:
            code = process.wait(limit)
            status = "ok" if code == 0 else f"status {code}"
        except subprocess.TimeoutExpired:
            status = "out of time"
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                    process.wait(LAST_WORDS if sign == signal.SIGTERM else None)
                    break
                except subprocess.TimeoutExpired:
                    continue
                except ProcessLookupError:
                    break
    with log.open(errors="replace") as file:
        file.seek(before)
        return status, file.read()


def _measured(said: str) -> dict[str, Any]:
    """What a step measured: lines of JSON, of a benchmark or of a run."""
    found: dict[str, Any] = {}
    for line in said.splitlines():
        text = line.removeprefix("RESULT ")
        if text.startswith("{"):
            try:
                found |= json.loads(text)
            except ValueError:
                continue
    return found


def _of_run(step: Step) -> dict[str, Any]:
    """What a whole run says of itself: its result, or the last of its events if it was cut short."""
    if "--run-dir" not in step.command:
        return {}
    folder, found = Path(step.command[step.command.index("--run-dir") + 1]), dict[str, Any]()
    try:
        result = json.loads((folder / "result.json").read_text())
        found = {name: result.get(name) for name in KEPT}
        (found["solver_report"] or {}).pop("spectrum", None)
        found["test"] = {name: result["metrics"]["test"][name] for name in ("accuracy", "mse")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # it was not written, or not to its end
    with contextlib.suppress(OSError):
        found["events"] = [line[:2000] for line in (folder / "events.jsonl").read_text().splitlines()[-4:-1]]
    return found


def _keep(out: Path, results: dict[str, Any]) -> None:
    staged = out / "results.json.new"
    staged.write_text(json.dumps(results, indent=1))
    staged.replace(out / "results.json")


def gather(folder: Path) -> int:
    """Download the wheels of a machine without a network, copy the images, and return the bytes that travel."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [word for n in ("2_28", "2_27", "2_17") for word in ("--platform", f"manylinux_{n}_x86_64")]
    subprocess.run(
        python(
            "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12",
            "--implementation", "cp", *platforms, "--platform", "manylinux2014_x86_64", "--platform", "any",
            "--dest", str(folder / "wheels"), *WHEELS,
        ),
        check=True,
    )  # fmt: skip
    for file in sorted(IMAGES.glob("*.gz")):
        (folder / "fashion-mnist").mkdir(exist_ok=True)
        shutil.copy(file, folder / "fashion-mnist")
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def tree_bytes() -> int:
    """Bytes of the files that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sum((ROOT / name).stat().st_size for name in listed.split("\0") if name and (ROOT / name).is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", nargs="?", choices=PLANS)
    parser.add_argument("--out", type=Path, default=Path("card"))
    parser.add_argument("--steps", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--seconds", type=float, help="the deadline")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--gather", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.gather is not None:
        carried, tree = gather(args.gather), tree_bytes()
        print(f"carried {carried / 2**20:.1f} MiB, tree {tree / 2**20:.1f} MiB, in all {(carried + tree) / 2**20:.1f}")
        return int(carried + tree > MOST_BYTES)
    if args.dry_run:
        for name, (seconds, steps) in PLANS.items():
            print(f"{name}: at most {seconds:.0f} s, {sum(step.expected for step in steps):.0f} s expected")
            for step in steps:
                print(
                    f"  {step.name:10} {step.expected:4.0f} s, at most {step.limit:4.0f}   {' '.join(step.command[1:])}"
                )
        print(f"the tree: {tree_bytes() / 2**20:.1f} MiB")
        return 0
    if args.plan is None:
        parser.error("a plan, --dry-run or --gather")
    seconds, steps = PLANS[args.plan]
    if args.steps is not None:
        steps = tuple(step for step in steps if step.name in args.steps)
    return min(1, perform(steps, args.seconds or seconds, args.out))


if __name__ == "__main__":
    sys.exit(main())
