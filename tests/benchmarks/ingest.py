"""Speed of ingest on one thread, by kind of source, with and without the global shuffle: decoded float32 a second.

    python tests/benchmarks/ingest.py [--rows 3000000] [--columns 18] [--memory 1GiB] [--repeats 3]

CPU seconds are those of the whole process, helpers' threads included; 150 MB a CPU second is the aim for parquet of
fixed-size binary rows. The rows are random numbers, which do not compress; the operating system's page cache is warm.

The floor is what the parts of a shuffled ingest to zarr take by themselves, in buffers that are there already: reading,
the order of the rows, gathering them, lz4, and writing files. Rows that do not fit in the memory are gathered, written
and read once more. Most of what is beyond it is the system handing out fresh pages, for arrays and for its page cache.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numcodecs import blosc
from pyarrow import csv, feather
from results import add_results, add_run

import streamkern as sk
from streamkern.formats.open_tables import open_tables
from streamkern.memory import format_bytes, parse_bytes, peak_resident_bytes
from streamkern.rng import row_hash


def write_sources(folder: Path, rows: int, columns: int) -> dict[str, Path]:
    """The same rows in files of several kinds; text has a tenth of them."""
    X = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    y = np.arange(rows) % 10
    paths = {name: folder / f"rows-{name.replace(' ', '-')}" for name in ("parquet binary", "parquet columns")}
    paths = {name: path.with_suffix(".parquet") for name, path in paths.items()}
    sk.write_parquet(paths["parquet binary"], X, y, target="label")
    table = pa.table({**{f"c{j}": X[:, j] for j in range(columns)}, "label": y})
    pq.write_table(table, paths["parquet columns"], row_group_size=100_000)
    paths |= {"feather": folder / "rows.feather", "npz": folder / "rows.npz", "csv": folder / "rows.csv"}
    feather.write_feather(table, str(paths["feather"]), compression="uncompressed", chunksize=100_000)
    np.savez(paths["npz"], X=X, label=y)
    csv.write_csv(table.slice(0, rows // 10), paths["csv"])
    return paths


def print_floor(path: Path, folder: Path, repeats: int) -> None:
    """MB of decoded float32 a CPU second of each part, and of all parts of an ingest."""
    source = open_tables(path, target="label")
    chunks = [source.read(chunk).X.copy() for chunk in range(len(source.bounds) - 1)]
    X, n, size = np.concatenate(chunks), int(source.bounds[-1]), sum(chunk.nbytes for chunk in chunks) / 1e6
    out, order = np.empty_like(chunks[0]), np.argsort(row_hash(np.arange(n), 4, 0))
    places = [order[start : start + len(out)] for start in range(0, n - len(out), len(out))]

    def write() -> None:
        with open(folder / "floor", "wb") as file:
            for chunk in chunks:
                file.write(chunk.data)

    def read_back() -> None:
        with open(folder / "floor", "rb") as file:
            for chunk in chunks:
                file.readinto(chunk.data)

    parts = {
        "read": lambda: [source.read(chunk) for chunk in range(len(source.bounds) - 1)],
        "order": lambda: np.argsort(row_hash(np.arange(n), 4, 0)),
        "gather": lambda: [np.take(X, some, axis=0, out=out, mode="clip") for some in places],
        "lz4": lambda: [blosc.compress(chunk, b"lz4", 5, 0) for chunk in chunks],
        "write": write,
        "read back": read_back,
    }
    blosc.set_nthreads(1)
    seconds = {}
    for name, part in parts.items():
        taken = []
        for _ in range(repeats):
            start = time.process_time()
            part()
            taken.append(time.process_time() - start)
        seconds[name] = statistics.median(taken)
        print(f"floor: {name:<33}{size / seconds[name]:>10.0f}")
    once = sum(seconds[name] for name in ("read", "order", "gather", "lz4", "write"))
    again = sum(seconds[name] for name in ("order", "gather", "write", "read back"))
    print(f"floor: shuffled in memory{size / once:>25.0f}\nfloor: by way of the disk{size / (once + again):>25.0f}")


def main() -> None:
    """Print MB of decoded float32 a second of CPU and of the clock, medians of the repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--columns", type=int, default=18)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--repeats", type=int, default=3)
    add_results(parser)
    options = parser.parse_args()
    measured: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        paths = write_sources(Path(name), options.rows, options.columns)
        out = Path(name) / "out"
        print(f"{options.rows:,} rows of {options.columns}, memory {options.memory}, one thread")
        print(f"{'source':<18}{'target':<10}{'order':<12}{'MB/CPU s':>10}{'MB/s':>10}")
        print_floor(paths["parquet binary"], Path(name), options.repeats)
        budget = (
            parse_bytes(options.memory) + peak_resident_bytes()
        )  # what making the sources left behind is not ingest's
        for source, path in paths.items():
            for format in ("zarr", "parquet"):
                for shuffle in (False, True):
                    cpu, wall = [], []
                    for _ in range(options.repeats):
                        start, began = time.process_time(), time.perf_counter()
                        made = sk.ingest(path, out, target="label", shuffle=shuffle, format=format, dtype="float32",
                                         memory=budget, threads=1)  # fmt: skip
                        size = made.rows * options.columns * 4 / 1e6
                        cpu.append(size / (time.process_time() - start))
                        wall.append(size / (time.perf_counter() - began))
                        shutil.rmtree(out)
                    order = "shuffled" if shuffle else "as it was"
                    numbers = f"{statistics.median(cpu):>10.0f}{statistics.median(wall):>10.0f}"
                    print(f"{source:<18}{format:<10}{order:<12}{numbers}", flush=True)
                    if source == "parquet binary":
                        name, line = "shuffled" if shuffle else "plain", measured.setdefault(format, {"to": format})
                        line[name], line[f"{name}_clock"] = (
                            round(statistics.median(cpu)),
                            round(statistics.median(wall)),
                        )
        print(f"peak memory {format_bytes(peak_resident_bytes())} of {format_bytes(budget)}")
    add_run(options.results, [*measured.values()])


if __name__ == "__main__":
    main()
