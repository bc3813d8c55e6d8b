"""Seconds that a plan predicts against those that the run takes, on the shipped pipelines.

    python tests/benchmarks/plans.py [--quick]

Plan and run are commands, each a process of its own, as users start them: ``streamkern plan`` (once before, so that its
calibration is there) and ``streamkern run``. Seconds are those of the stages, by the clock.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RUNS = (
    ("pipelines/digits.py", {}),
    ("pipelines/digits.py", {"centers": "500", "rows": "1_000_000"}),
    ("pipelines/fashion_mnist.py", {"rows": "60_000", "noise": "0", "centers": "1000", "epochs": "5"}),
    ("pipelines/fashion_mnist.py", {"rows": "200_000", "centers": "1000"}),
    ("pipelines/fashion_mnist.py", {"rows": "60_000", "noise": "0", "centers": "5000", "epochs": "2"}),
    ("pipelines/fashion_mnist.py", {"rows": "200_000", "centers": "5000"}),
    ("pipelines/regression.py", {"epochs": "20"}),
    ("pipelines/hundred_million.py", {"rows": "400_000", "leaf_rows": "4000"}),
)


def measure(path: str, settings: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plan, then run: the plan and the result."""

    def streamkern(*words: str) -> str:
        values = [f"{name}={value}" for name, value in settings.items()]
        command = [
            sys.executable,
            "-m",
            "streamkern",
            *words[:1],
            path,
            *(["--set", *values] if values else []),
            *words[1:],
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    streamkern("plan")
    planned = json.loads(streamkern("plan", "--json"))
    with tempfile.TemporaryDirectory() as folder:
        streamkern("run", "--run-dir", folder, "--quiet")
        return planned, json.loads((Path(folder) / "result.json").read_text())


def main() -> None:
    """Stages of each run, then the whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first and the third only")
    options = parser.parse_args()
    print(f"{'stage':<14}{'predicted':>12}{'measured':>12}{'ratio':>8}")
    for index in (0, 2) if options.quick else range(len(RUNS)):
        path, settings = RUNS[index]
        planned, result = measure(path, settings)
        print(path, *(f"{name}={value}" for name, value in settings.items()))
        took: dict[str, float] = {}
        for stage in result["stages"]:
            name = stage.get("of", stage["name"])
            took[name] = took.get(name, 0.0) + stage["seconds"]
        rows = [(stage["name"], stage["seconds"], took.get(stage["name"], 0.0)) for stage in planned["stages"]]
        rows.append(("total", planned["seconds"], sum(took.values())))
        for name, predicted, measured in rows:
            ratio = predicted / measured if measured else float("nan")
            print(f"  {name:<12}{predicted:>10.2f} s{measured:>10.2f} s{ratio:>8.2f}")
        projected, peak = planned["projected_memory_bytes"], result["peak_memory_bytes"]
        print(f"  memory      {projected >> 20:>8} MiB{peak >> 20:>8} MiB", flush=True)


if __name__ == "__main__":
    main()
