"""A table of every kind of column, trained as it is under a budget: ``python tests/benchmarks/table_stream.py``.

Writes a parquet file of ``--rows`` rows part by part: numbers with gaps and with heavy tails, text of few, some
hundreds and many values, dates, booleans, an id. Then runs a pipeline of six lines with ``streamkern run`` in a process
of its own and prints projected and measured memory, seconds of each stage and the score; and the seconds of predictions
with many and with 16 centers: the latter is the time of reading and encoding.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from results import add_results, add_run

import streamkern as sk

PIPELINE = """import streamkern as sk


def pipeline(rows: str):
    train, test = sk.open_dataset(rows, target="late", exclude=["id"]).split(0.1)
    return sk.Pipeline(train, centers=sk.Uniform(p=CENTERS), solver=sk.EigenPro(epochs=1), test=test)
"""
_PART = 1 << 17


def part(start: int, rows: int) -> pa.Table:
    """Rows from ``start`` on; the same for any parts."""
    rng = np.random.default_rng(start)
    carrier, town, street = (rng.integers(0, k, rows) for k in (6, 300, 20_000))
    distance, weight = rng.lognormal(6, 1, rows), rng.normal(70, 15, rows)
    when = np.datetime64("2024-01-01", "s") + rng.integers(0, 700 * 86_400, rows).astype("timedelta64[s]")
    hour = (when.astype(np.int64) // 3600) % 24
    risk = (
        0.4 * (carrier - 2.5) + np.sin(town) + np.sin(street / 3.0) + 0.3 * (hour > 17) + 0.5 * np.log(distance / 400)
    )
    late = risk + rng.logistic(size=rows) > 0
    gaps = rng.random(rows) < 0.1
    return pa.table(
        {
            "id": pa.array(np.arange(start, start + rows)),
            "when": pa.array(when),
            "carrier": pa.array(np.char.add("carrier ", carrier.astype(str))),
            "town": pa.array(np.char.add("town ", town.astype(str)), mask=gaps),
            "street": pa.array(np.char.add("street ", street.astype(str))),
            "distance": pa.array(distance),
            "weight": pa.array(weight, mask=rng.random(rows) < 0.05),
            "round_trip": pa.array(rng.random(rows) < 0.5),
            "late": pa.array(np.where(late, "late", "in time")),
        }
    )


def write(path: Path, rows: int) -> None:
    """Write the table in row groups of ``_PART`` rows."""
    with pq.ParquetWriter(path, part(0, 1).schema) as file:
        for start in range(0, rows, _PART):
            file.write_table(part(start, min(_PART, rows - start)))


def prediction(path: Path, centers: int) -> float:
    """Seconds of predictions of a file, read and encoded on the way, by a model of so many centers."""
    data = sk.open_dataset(path, target="late", exclude=["id"])
    model = sk.KernelClassifier(centers=centers, solver=sk.EigenPro(epochs=1)).fit(data)
    begun = time.perf_counter()
    model.predict(data)
    return time.perf_counter() - begun


STAGES = {
    "preprocess-targetencode": "target_means",
    "statistics": "statistics",
    "kernel": "kernel",
    "train": "training",
    "evaluate": "scoring",
}
"""Stages of a run, and their names in docs/results."""


def main() -> None:
    """Write the table, run the pipeline, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--centers", type=int, default=2_000)
    parser.add_argument("--memory", default="1GiB")
    add_results(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = place / "rows.parquet"
        write(rows, options.rows)
        print(f"{options.rows:,} rows, {rows.stat().st_size / 2**20:,.0f} MiB of parquet", flush=True)
        (place / "late.py").write_text(PIPELINE.replace("CENTERS", str(options.centers)))
        command = ["-m", "streamkern", "run", "late.py", "--set", f"rows={rows}", "--memory", options.memory]
        subprocess.run([sys.executable, *command, "--run-dir", "run"], cwd=place, check=True)
        result = json.loads((place / "run" / "result.json").read_text())
        memory = [result[name] / 2**20 for name in ("projected_memory_bytes", "peak_memory_bytes")]
        print(f"accuracy {result['metrics']['test']['accuracy']:.4f}")
        print("projected {:,.0f} MiB, peak {:,.0f} MiB".format(*memory))
        for stage in result["stages"]:
            print(f"{stage['name']:>24} {stage.get('seconds', 0):8.1f} s")
        write(rows, some := min(options.rows, 200_000))
        few, many = (prediction(rows, p) for p in (16, options.centers))
        print(f"{some:,} predictions: {many:.1f} s with {options.centers:,} centers, {few:.1f} s with 16")
    seconds: dict[str, float] = {}
    for stage in result["stages"]:
        name = stage.get("of", stage["name"])
        seconds[name] = seconds.get(name, 0.0) + stage.get("seconds", 0.0)
    line = {"rows": options.rows, "minutes": round(sum(seconds.values()) / 60, 2)}
    line |= {"peak_mib": round(memory[1]), "projected_mib": round(memory[0])}
    line |= {f"{name}_seconds": round(seconds[stage], 1) for stage, name in STAGES.items()}
    add_run(options.results, [line | {"predicted_rows": some, "prediction_seconds": round(many - few, 1)}])


if __name__ == "__main__":
    main()
