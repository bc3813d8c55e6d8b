"""Accuracy against seconds of every solver on Fashion-MNIST, at the same centers.

    python tests/benchmarks/solvers.py [--centers 1000 5000] [--only Direct Falkon] [--rows 60000]

A solver runs alone in a process of its own, on data in memory, as many passes as are worth showing; a line a solver:
what its setup took, then the test accuracy after a pass and the seconds since the start, scoring left out. The random
features are as many as there are centers. ``--results`` adds what docs/choosing-a-solver.md has: first and last pass at
1,000 centers, and ``EigenPro``'s passes at 5,000.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from results import add_results, add_run

SOLVERS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "EigenPro, exact": ("EigenPro", {"epochs": 5, "projection": "exact"}, None),
    "EigenPro, inexact": ("EigenPro", {"epochs": 5, "projection": "inexact"}, None),
    "EigenPro, delayed": ("EigenPro", {"epochs": 5, "projection": "delayed"}, None),
    "Falkon": ("Falkon", {"epochs": 10}, None),
    "Direct": ("Direct", {}, None),
    "EigenPro1, kernel values": ("EigenPro1", {"epochs": 5}, None),
    "EigenPro1, Fourier": ("EigenPro1", {"epochs": 5}, "fourier"),
    "Direct, Fourier": ("Direct", {}, "fourier"),
    "SGD, Fourier": ("SGD", {"epochs": 5, "average": True}, "fourier"),
    "SVRG, Fourier": ("SVRG", {"epochs": 5}, "fourier"),
    "GradientDescent, Nystrom": ("GradientDescent", {"epochs": 10}, "nystrom"),
}


def measure(name: str, p: int, rows: int) -> dict[str, Any]:
    """Setup seconds, and (accuracy, seconds) by pass."""
    import numpy as np

    import streamkern as sk
    from streamkern.centers import CenterSet
    from streamkern.data.targets import Classes
    from streamkern.execute import open_executor
    from streamkern.runs import load_pipeline
    from streamkern.solvers import Problem, train

    kind, settings, features = SOLVERS[name]
    solver = getattr(sk, kind)(**settings)
    job = load_pipeline("pipelines/fashion_mnist.py", {"rows": str(rows), "noise": "0", "centers": str(p)})
    kernel = sk.Laplace(20.0)
    maps = {
        None: None,
        "fourier": sk.RandomFourier(sk.Laplace(20.0), p),
        "nystrom": sk.Nystrom(kernel),
    }
    with open_executor("threads", None) as executor:
        chosen = job.centers.choose(job.train, executor, np.dtype(np.float32))
        if features == "fourier":
            chosen = CenterSet(chosen.Z[:0], None)
        problem = Problem(
            job.train, Classes(np.arange(10)), kernel, chosen, executor, validation=job.test, features=maps[features],
            cache_bytes=256 << 20,
        )  # fmt: skip
        start = time.perf_counter()
        iteration = solver.setup(problem)
        ready = time.perf_counter() - start
        outcome = train(problem, iteration)
    passes = [
        (entry["validation"]["accuracy"], ready + entry["seconds"] - entry["scoring_seconds"])
        for entry in outcome.history
    ]
    return {"setup": ready, "passes": passes, "failure": None if outcome.failure is None else outcome.failure.message}


def recorded(name: str, p: int, setup: float, passes: list[tuple[float, float]]) -> list[dict[str, Any]]:
    """Return lines of docs/results, at most one."""
    kind, *how = name.replace("Fourier", "Fourier features").replace("Nystrom", "Nyström features").split(", ")
    title, percent = ", ".join([f"`{kind}`", *how]), [round(100 * accuracy, 2) for accuracy, _ in passes]
    if p == 1000 and passes:
        found: dict[str, Any] = {"table": "accuracy", "solver, p = 1,000": title, "set-up, s": round(setup, 1)}
        first = "" if kind == "Falkon" else percent[0]  # Falkon's is for the right-hand side
        found |= {"after the first pass, %": first, "after the last, %": percent[-1]}
        return [found | {"end, s": round(passes[-1][1], 1)}]
    if p == 5000 and kind == "EigenPro":
        each = dict(zip(("pass 1, %", "2, %", "3, %", "4, %", "5, %"), percent, strict=True))
        return [{"table": "passes", "solver, p = 5,000": title} | each]
    return []


def main() -> None:
    """A process a solver, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--centers", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--only", nargs="+", default=[], help="solvers whose names begin so")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--side")
    add_results(parser)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options.centers[0], options.rows)))
        return
    lines = []
    for p in options.centers:
        for name in SOLVERS:
            if options.only and not name.startswith(tuple(options.only)):
                continue
            command = [sys.executable, __file__, "--side", name, "--centers", str(p), "--rows", str(options.rows)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"p = {p:,}  {name:<26} failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            told = json.loads(done.stdout)
            passes = "  ".join(f"{accuracy:.2%} {seconds:.1f} s" for accuracy, seconds in told["passes"])
            failed = "" if told["failure"] is None else f"  {told['failure']}"
            print(f"p = {p:,}  {name:<26} setup {told['setup']:5.1f} s   {passes}{failed}", flush=True)
            lines += [] if failed else recorded(name, p, told["setup"], told["passes"])
    if lines:
        add_run(options.results, lines, ["numpy", "numba"])


if __name__ == "__main__":
    main()
