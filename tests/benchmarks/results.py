"""Runs of benchmarks as data: ``--results docs/results/NAME.json`` adds a run, and docs/measurements.py draws it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

BOOSTED = ("lightgbm", "xgboost", "catboost", "chimeraboost")
LIBRARIES = ("numpy", "numba", "scipy", *BOOSTED, "scikit-learn", "torch", "xrfm", "pytabkit")
ROOT = Path(__file__).parents[2]


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--results``."""
    parser.add_argument("--results", type=Path, metavar="FILE", help="add this run to a file of docs/results")


def add_run(file: Path | None, values: list[dict[str, Any]], packages: Sequence[str] = ()) -> None:
    """Add a run to a file of results, with command, date, machine, versions and commit; without a file, do nothing.

    Args:
        file: the file, which is made if it is missing.
        values: what was measured, an object for each line of a table.
        packages: further packages that other processes of the run have imported.
    """
    if file is None:
        return
    runs = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    runs.append(
        {
            "command": command(),
            "date": date.today().isoformat(),
            "machine": machine(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
            "load": None,
            "versions": {"python": platform.python_version()}
            | {name: version(name) for name in LIBRARIES if name in sys.modules or name in packages},
            "commit": commit(),
            "values": values,
        }
    )
    file.write_text(dumped(runs), encoding="utf-8")


def dumped(runs: list[dict[str, Any]]) -> str:
    """Return runs as JSON with a line for each value, so that changes can be read."""
    texts = []
    for run in runs:
        lines = [f"{json.dumps(name)}: {json.dumps(run[name], ensure_ascii=False)}" for name in run if name != "values"]
        values = ",\n      ".join(json.dumps(value, ensure_ascii=False) for value in run["values"])
        texts.append("  {\n    " + ",\n    ".join([*lines, f'"values": [\n      {values}\n    ]']) + "\n  }")
    return "[\n" + ",\n".join(texts) + "\n]\n"


def spread(values: list[float]) -> dict[str, float]:
    """Return median, lowest and highest of repetitions."""
    return {"median": median(values), "low": min(values), "high": max(values)}


def command() -> str:
    """Return how this process was started, without ``--results``."""
    program = Path(sys.argv[0]).resolve().relative_to(ROOT)
    module = sys.modules["__main__"].__spec__ is not None
    words = ["-m", ".".join(program.with_suffix("").parts)] if module else [str(program)]
    rest = sys.argv[1:]
    if "--results" in rest:
        at = rest.index("--results")
        del rest[at : at + 2]
    return shlex.join(["python", *words, *rest])


def machine(cpuinfo: str) -> str:
    """Return the processor's name, generation or family and model, and the number of cores."""
    fields = dict(line.split(":", 1) for line in cpuinfo.split("\n\n")[0].splitlines())
    found = {name.strip(): value.strip() for name, value in fields.items()}
    name = " ".join(found.get("model name", platform.machine()).replace("(R)", "").split()[:2])
    family, model = (int(found.get(key, 0)) for key in ("cpu family", "model"))
    kind = f"family {family}, model {model}"
    if name == "AMD EPYC" and family in (25, 26):
        newer = model in range(16, 32) or model >= 96
        kind = "Zen 5" if family == 26 else "Zen 4" if newer else "Zen 3"
    return f"{name} ({kind}), {len(os.sched_getaffinity(0))} cores"


def commit() -> str | None:
    """Return the commit of the checkout, or None outside one."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
