"""A learned metric on a stored table under a budget: ``python tests/benchmarks/metric_stream.py``.

Writes a zarr store of ``--rows`` rows of 30 columns, chunk by chunk, of which three matter. Runs a pipeline of a given
kernel, without a metric and with one, and one that leaves the kernel open, each by ``streamkern run`` in a process of
its own, and prints projected and measured memory, seconds by the clock and of the processor, and R².
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zarr
from results import add_results, add_run

PIPELINE = """import streamkern as sk


def pipeline(rows: str, kernel: str, metric: bool):
    train, test = sk.open_dataset(rows, target="y").split(0.01)
    return sk.Pipeline(
        train,
        kernel if kernel == "auto" else sk.Laplace("median"),
        centers=sk.Uniform(p=CENTERS),
        solver=sk.EigenPro(epochs=1),
        metric=sk.AGOP() if metric else None,
        test=test,
        task="regression",
    )
"""
_CHUNK = 1 << 18
_COLUMNS = 30


def write(path: Path, rows: int) -> None:
    """Write the store, a chunk at a time."""
    group = zarr.open_group(path, mode="w")
    X = group.create_array("X", shape=(rows, _COLUMNS), chunks=(min(_CHUNK, rows), _COLUMNS), dtype="float32")
    y = group.create_array("y", shape=(rows,), chunks=(min(_CHUNK, rows),), dtype="float32")
    for start in range(0, rows, _CHUNK):
        rng = np.random.default_rng(start)
        part = rng.normal(size=(min(_CHUNK, rows - start), _COLUMNS)).astype(np.float32)
        X[start : start + len(part)] = part
        noise = 0.1 * rng.normal(size=len(part))
        y[start : start + len(part)] = np.sin(2 * part[:, 3]) + part[:, 7] * part[:, 11] + noise


def run(place: Path, name: str, memory: str, **settings: object) -> tuple[float, dict[str, object]]:
    """Run the pipeline in a process of its own; its seconds by the clock, and its values."""
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "streamkern", "run", "table.py", *given, "--memory", memory, "--run-dir", name]
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result = json.loads((place / name / "result.json").read_text())
    projected, peak = (result[key] / 2**20 for key in ("projected_memory_bytes", "peak_memory_bytes"))
    print(
        f"{name:>12} {seconds:7.1f} s {processor:7.1f} s of the processor, projected {projected:,.0f} MiB, "
        f"peak {peak:,.0f} MiB, R² {result['metrics']['test']['r2']:.4f}",
        flush=True,
    )
    values = {
        "kernel": name,
        "processor_seconds": processor,
        "peak_mib": round(peak),
        "projected_mib": round(projected),
    }
    return seconds, values | {"r2": result["metrics"]["test"]["r2"]}


def main() -> None:
    """Write the store, run the three pipelines, print what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--centers", type=int, default=2_000)
    parser.add_argument("--memory", default="2GiB")
    add_results(parser)
    options = parser.parse_args()
    measured: list[dict[str, object]] = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            write(place / "rows.zarr", rows)
            print(f"{rows:,} rows of {_COLUMNS} columns, {options.centers:,} centers, {options.memory}", flush=True)
            (place / "table.py").write_text(PIPELINE.replace("CENTERS", str(options.centers)))
            store = {"rows": place / "rows.zarr"}
            plain, *found = run(place, "plain", options.memory, **store, kernel="laplace", metric="false")
            learned, *more = run(place, "metric", options.memory, **store, kernel="laplace", metric="true")
            chosen, *last = run(place, "chosen", options.memory, **store, kernel="auto", metric="false")
            print(
                f"with a metric {learned / plain:.2f}, chosen {chosen / plain:.2f} of the plain fit's time", flush=True
            )
            measured += [{"rows": rows} | values for values in (*found, *more, *last)]
    add_run(options.results, measured)


if __name__ == "__main__":
    main()
