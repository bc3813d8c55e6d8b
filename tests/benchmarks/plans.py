"""Seconds that a plan predicts against those that the run takes, on the shipped pipelines.

    python tests/benchmarks/plans.py [--quick]

Each run is a process of its own after its plan's. Beside wall time stands the processor time of the run over its
threads: less than wall time where one thread works alone, and what remains of it on a machine that does other things.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile

RUNS = (
    ("pipelines/digits.py", {}),
    ("pipelines/digits.py", {"centers": "500", "rows": "1_000_000"}),
    ("pipelines/fashion_mnist.py", {"rows": "60_000", "noise": "0", "centers": "1000", "epochs": "5"}),
    ("pipelines/fashion_mnist.py", {"rows": "200_000", "centers": "1000"}),
    ("pipelines/fashion_mnist.py", {"rows": "60_000", "noise": "0", "centers": "5000", "epochs": "2"}),
    ("pipelines/fashion_mnist.py", {"rows": "200_000", "centers": "5000"}),
    ("pipelines/regression.py", {"epochs": "20"}),
)


def measure(path: str, settings: dict[str, str]) -> dict[str, object]:
    """Plan, then run."""
    import time

    import streamkern as sk
    from streamkern.execute.threads import default_threads
    from streamkern.pipeline import load_pipeline

    planned = sk.plan(load_pipeline(path, settings))
    spent: dict[str, float] = {}
    last = time.process_time()

    def listener(kind: str, fields: dict[str, object]) -> None:
        nonlocal last
        if kind == "stage" and fields["state"] == "end":
            now = time.process_time()
            spent[str(fields["name"])], last = (now - last) / default_threads(), now

    with tempfile.TemporaryDirectory() as folder:
        last = time.process_time()
        result = sk.run(load_pipeline(path, settings), folder, listeners=(listener,))
    took = {stage["name"]: stage["seconds"] for stage in result["stages"]}
    return {
        "stages": [
            (stage.name, stage.seconds, took[stage.name], spent[stage.name], stage.memory) for stage in planned.stages
        ],
        "peak": result["peak_memory_bytes"],
        "projected": planned.footprint.peak,
    }


def main() -> None:
    """A process a run; stages, then the whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first and the third only")
    parser.add_argument("--side", type=int)
    options = parser.parse_args()
    if options.side is not None:
        print(json.dumps(measure(*RUNS[options.side])))
        return
    print(f"{'stage':<14}{'predicted':>12}{'measured':>12}{'ratio':>8}{'processor':>12}")
    for index in (0, 2) if options.quick else range(len(RUNS)):
        path, settings = RUNS[index]
        command = [sys.executable, __file__, "--side", str(index)]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(path, *(f"{name}={value}" for name, value in settings.items()))
        rows = [(name, a, b, cpu) for name, a, b, cpu, _ in told["stages"]]
        rows.append(("total", *(sum(row[i] for row in rows) for i in (1, 2, 3))))
        for name, predicted, took, cpu in rows:
            print(f"  {name:<12}{predicted:>10.2f} s{took:>10.2f} s{predicted / took:>8.2f}{cpu:>10.2f} s")
        print(f"  memory      {told['projected'] >> 20:>8} MiB{told['peak'] >> 20:>8} MiB", flush=True)


if __name__ == "__main__":
    main()
