"""Seconds from the start of Python to a trained model: the first time on a machine, and from then on.

    python tests/benchmarks/startup.py [--repeats 5] [--d 784] [--cold]

First, in turns: `import streamkern`, all public names and `streamkern --help`, with `import numpy` for scale.
Then each run is a fresh process that imports the library and fits 2,000 rows against 200 centers, one pass of a few
steps, so that what it takes is imports, set-up and compiled loops. ``--cold`` begins with an empty compilation cache
and says what the first run then takes. Seconds are by the clock, and those of the processor, which others do not
disturb.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from results import add_results, add_run

PROGRAM = """
import time
began = time.time() - time.process_time()
import sys
import numpy as np
import streamkern as sk
from streamkern import *
imported = time.time() - began, time.process_time()
rng = np.random.default_rng(0)
X, y = rng.random((2000, int(sys.argv[1])), dtype=np.float32), rng.integers(0, 10, 2000)
model = sk.KernelClassifier(
    kernel=sk.Laplace(bandwidth=10), centers=sk.Uniform(200), solver=sk.EigenPro(epochs=1), memory="2GiB"
)
model.fit(X, y)
import json
print(json.dumps({"imported": imported, "fitted": (time.time() - began, time.process_time())}))
"""


def run(d: int, **environment: str) -> dict[str, tuple[float, float]]:
    """Seconds by the clock and of the processor until the import is done, and until the model is fitted."""
    command = [sys.executable, "-c", PROGRAM, str(d)]
    told = subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True).stdout
    found: dict[str, tuple[float, float]] = json.loads(told)
    return found


STARTS = {
    "import numpy": ["-c", "import numpy"],
    "import streamkern": ["-c", "import streamkern"],
    "all public names": ["-c", "from streamkern import *"],
    "streamkern --help": ["-m", "streamkern", "--help"],
}


def starts(repeats: int) -> dict[str, float]:
    """Print and return what a process takes from its start to its end: medians, and ranges by the clock."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in STARTS}
    for _ in range(repeats):
        for name, words in STARTS.items():
            wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], check=True, capture_output=True)
            wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found[name].append((wall, cpu))
    for name, each in found.items():
        walls, cpus = zip(*each, strict=True)
        print(
            f"{name:18} {statistics.median(walls):5.2f} s ({min(walls):.2f} to {max(walls):.2f}), "
            f"processor {statistics.median(cpus):5.2f} s",
            flush=True,
        )
    return {name: statistics.median(wall for wall, _ in each) for name, each in found.items()}


def line(what: str, found: list[dict[str, tuple[float, float]]]) -> None:
    """Medians of some runs."""
    parts = []
    for name in ("imported", "fitted"):
        wall, cpu = (statistics.median(one[name][i] for one in found) for i in (0, 1))
        parts.append(f"{name} after {wall:5.2f} s (processor {cpu:5.2f} s)")
    print(f"{what:12} {', '.join(parts)}", flush=True)


def main() -> None:
    """Print the first run, if asked for, and those after it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--d", type=int, default=784)
    parser.add_argument("--cold", action="store_true")
    add_results(parser)
    options = parser.parse_args()
    seconds = starts(options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        cache = {"NUMBA_CACHE_DIR": folder} if options.cold else {}
        first = run(options.d, **cache)
        if options.cold:
            line("first run", [first])
            seconds["estimator fitted, first time on a machine"] = first["fitted"][0]
        later = [run(options.d, **cache) for _ in range(options.repeats)]
        line("later runs", later)
        seconds["estimator fitted, later"] = statistics.median(each["fitted"][0] for each in later)
    add_run(options.results, [{"what": what, "seconds": round(found, 2)} for what, found in seconds.items()])


if __name__ == "__main__":
    main()
