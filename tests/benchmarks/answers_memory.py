"""Peak memory of probabilities, intervals and metrics against the number of rows.

    python -m tests.benchmarks.answers_memory [ROWS ...]        # 1,000,000 and 10,000,000 by default

Generated rows of four columns lie in a zarr group; a classifier and a regressor of 50 centers are fitted to few of
them. Each line is one command in a process of its own, under ``--memory``: the most that it held, and processor
seconds.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import streamkern as sk
from streamkern.memory import format_bytes
from tests.benchmarks.results import add_results, add_run

CHUNK, COLUMNS = 50_000, 4
TITLES = {
    "predict --probabilities": "`predict --probabilities`, MiB",
    "predict --interval": "`predict --interval`, MiB",
    "evaluate, classes": "`evaluate`, classifier, MiB",
    "evaluate, values": "`evaluate`, regressor, MiB",
}
"""Commands, and their names in docs/results."""


def generated(path: Path, rows: int, classes: bool) -> None:
    """Write rows and a target whose noise depends on a column."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, COLUMNS), dtype=np.float32)
    y = X[:, 0] + (0.2 + np.abs(X[:, 1])) * rng.standard_normal(rows, dtype=np.float32)
    sk.write_zarr(path, X, (y > 0).astype(np.int8) if classes else y, target="y", chunk_rows=CHUNK)


RUN = """
import resource, sys
from streamkern.commands.parser import main
status = main(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_SELF)
with open("/proc/self/status") as file:
    (peak,) = [line.split()[1] for line in file if line.startswith("VmHWM")]
print(status, peak, usage.ru_utime + usage.ru_stime)
"""


def taken(command: list[str]) -> tuple[int, float]:
    """Peak bytes and processor seconds of a command of streamkern."""
    ended = subprocess.run([sys.executable, "-c", RUN, *command], capture_output=True, text=True, check=True)
    status, peak, seconds = ended.stdout.splitlines()[-1].split()
    if status not in ("0", "None"):
        raise SystemExit(f"streamkern {' '.join(command)} ended with status {status}: {ended.stderr}")
    return int(peak) * 1024, float(seconds)


def main() -> None:
    """A line for each command and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", type=int, default=[1_000_000, 10_000_000])
    parser.add_argument("--memory", default="768MiB", help="budget of each command")
    add_results(parser)
    given = parser.parse_args()
    print(f"{'command':<24}{'rows':>12}{'peak':>12}{'seconds':>9}")
    peaks: dict[int, dict[str, int]] = {rows: {} for rows in given.rows}
    with tempfile.TemporaryDirectory() as folder:
        for classes in (True, False):
            few, model = Path(folder) / "few.zarr", Path(folder) / "model.zarr"
            generated(few, 5000, classes)
            kind = sk.KernelClassifier if classes else sk.KernelRegressor
            rows_of = sk.open_dataset(few, target="y")
            kind(sk.Gaussian(2.0), centers=50, solver=sk.Direct(ridge=1e-3)).fit(rows_of).save(model)
            for rows in given.rows:
                data, out = Path(folder) / f"{rows}.zarr", Path(folder) / "out.zarr"
                generated(data, rows, classes)
                asked = ["--probabilities"] if classes else ["--interval", "0.9"]
                for name, command in {
                    f"predict {asked[0]}": ["predict", model, data, out, *asked, "--overwrite"],
                    f"evaluate, {'classes' if classes else 'values'}": ["evaluate", model, data, "--target", "y"],
                }.items():
                    peak, seconds = taken([*map(str, command), "--memory", given.memory])
                    print(f"{name:<24}{rows:>12,}{format_bytes(peak):>12}{seconds:>9.1f}", flush=True)
                    peaks[rows][name] = round(peak / 2**20)
                shutil.rmtree(data)
                shutil.rmtree(out)
            shutil.rmtree(few)
    lines = [
        {"table": "memory", "rows": rows} | {title: found[name] for name, title in TITLES.items()}
        for rows, found in peaks.items()
    ]
    add_run(given.results, lines)


if __name__ == "__main__":
    main()
