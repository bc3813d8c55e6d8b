"""What rows of one group, or of one time, do to the numbers of a model, with and without their time and group.

    python -m tests.benchmarks.related_rows calibration optimism year [--seeds 8] [--groups 400 2000]
    python -m tests.benchmarks.related_rows splits [--rows 100000000] [--folder /tmp]

Tables are generated: rows of a group share most of their features and an effect that no feature explains, as those of a
patient do; or the function drifts with time. ``calibration`` scores intervals and probabilities on many new groups,
``optimism`` compares the error on test rows of a split with that on new groups or on the next part of time, ``year``
does so each week of a year. ``splits`` writes a parquet file of row groups of a million rows, and splits it in a new
process for each way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streamkern as sk
from streamkern.types import Array
from tests.benchmarks.results import add_results, add_run

WITHIN = {"alike": 0.1, "half alike": 0.5}
"""Spread of features within groups, where that between groups is 1."""
GROUPS = (("alike", 400, 10), ("half alike", 400, 10), ("alike", 2000, 5))
"""Kinds of groups, how many, and their rows."""
WAYS = {"at random": False, "by group or time": True}
CHUNK = 1_000_000


def grouped(seed: int, within: float, groups: int = 400, size: int = 10) -> tuple[Array, Array, Array]:
    """Features, targets and groups of rows."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), size)
    X = rng.normal(size=(groups, 3))[group] + within * rng.normal(size=(len(group), 3))
    effect = 0.5 * rng.normal(size=groups)[group]
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] + effect + 0.3 * rng.normal(size=len(group)), group


def drifting(seed: int, rows: int, per_time: int, turn: float) -> tuple[Array, Array, Array]:
    """Features, targets and times of rows, whose function turns by so much in all."""
    rng = np.random.default_rng(seed)
    X, day = rng.normal(size=(rows, 4)), np.arange(rows) // per_time
    season = np.stack([np.cos(turn * day / day[-1]), np.sin(turn * day / day[-1])], axis=1)
    shock = 0.4 * rng.normal(size=day[-1] + 1)[day]
    return X, 2 * np.sin((X[:, :2] * season).sum(axis=1)) + shock + 0.3 * rng.normal(size=rows), day


def calibration(seeds: int, numbers: list[int]) -> Iterator[dict[str, Any]]:
    """Coverage of intervals of 90%, and the error of probabilities, on 4,000 new groups."""
    for kind, groups, size in (each for each in GROUPS if each[1] in numbers):
        within = WITHIN[kind]
        found: dict[str, list[list[float]]] = {"without groups": [], "with groups=": []}
        for seed in range(seeds):
            X, y, group = grouped(seed, within, groups, size)
            new, wanted, _ = grouped(1000 + seed, within, 4000, 5)
            for way, scores in found.items():
                given = group if way == "with groups=" else None
                values = sk.KernelRegressor(threads=2).fit(X, y, groups=given).model_
                classes = sk.KernelClassifier(threads=2).fit(X, (y > 0).astype(int), groups=given).model_
                told = values.score(sk.from_arrays(new, wanted))
                sure = classes.score(sk.from_arrays(new, (wanted > 0).astype(int)))
                scores.append([100 * told["coverage_90"], told["rmse"], sure["ece"], sure["log_loss"]])
        for way, scores in found.items():
            names = ("coverage of 90% intervals, %", "RMSE", "calibration error", "log loss")
            said = {"groups": f"{groups:,}, {kind}", "fit": way}
            yield line("calibration", said, names, scores, (1, 4, 4, 4))


def optimism(seeds: int) -> Iterator[dict[str, Any]]:
    """The RMSE that test rows promise, and that on rows which are met later."""

    def new_groups(seed: int) -> tuple[Any, ...]:
        X, y, group = grouped(seed, WITHIN["alike"])
        new, wanted, _ = grouped(1000 + seed, WITHIN["alike"], 4000, 5)
        return X, y, {"group": group}, new, wanted

    def next_days(seed: int) -> tuple[Any, ...]:
        X, y, day = drifting(seed, 5000, 20, 3.0)
        return X[:4000], y[:4000], {"time": day[:4000]}, X[4000:], y[4000:]

    for met, rows in {"new groups": new_groups, "the next days": next_days}.items():
        for way, known in WAYS.items():
            found = []
            for seed in range(seeds):
                X, y, roles, new, wanted = rows(seed)
                rest, test = sk.from_arrays(X, y, **(roles if known else {})).split(0.2, seed)
                model = sk.KernelRegressor(threads=2).fit(rest).model_
                promised, true = (model.score(side)["rmse"] for side in (test, sk.from_arrays(new, wanted)))
                found.append([promised, true, 100 * (promised / true - 1)])
            names = ("RMSE promised", "RMSE met", "promised / met − 1, %")
            yield line("optimism", {"rows met": met, "split": way}, names, found, (3, 3, 1))


def year(seeds: int) -> Iterator[dict[str, Any]]:
    """Each week of a year a model is trained on the weeks so far, scored on its test rows, and met by the next week."""
    weeks, rows = 52, 200
    for way in ("at random", "the latest fifth", "the latest week"):
        found = []
        for seed in range(seeds):
            X, y, day = drifting(seed, weeks * rows, rows // 5, 3.0)
            scores = []
            for n in range(4 * rows, weeks * rows, rows):
                data = sk.from_arrays(X[:n], y[:n], **({} if way == "at random" else {"time": day[:n]}))
                rest, test = data.split(0.2, after=day[n - rows] if way == "the latest week" else None)
                solver = sk.Direct(1e-4)
                fitted = sk.KernelRegressor(sk.Gaussian(2.0), centers=150, solver=solver, threads=2).fit(rest)
                following = sk.from_arrays(X[n : n + rows], y[n : n + rows])
                scores.append([fitted.model_.score(side)["mse"] for side in (test, following)])
            promised, met = np.sqrt(np.mean(scores, axis=0))
            near = [abs((told / true) ** 0.5 - 1) <= 0.25 for told, true in scores]
            found.append([promised, met, 100 * (promised / met - 1), 100 * float(np.mean(near))])
        names = ("RMSE promised", "RMSE of the next week", "promised / met − 1, %", "weeks within 25%, %")
        yield line("year", {"test rows": way}, names, found, (3, 3, 1, 0))


def line(
    table: str, said: dict[str, str], names: tuple[str, ...], found: list[list[float]], digits: tuple[int, ...]
) -> dict[str, Any]:
    """A line of a table: means over seeds, with standard deviations."""
    mean, sd = np.mean(found, axis=0), np.std(found, axis=0, ddof=1)
    spreads = {
        name: {"mean": round(float(m), k), "sd": round(float(s), k)}
        for name, m, s, k in zip(names, mean, sd, digits, strict=True)
    }
    made = {"table": table, **said, **spreads}
    sys.stdout.write(f"{json.dumps(made)}\n")
    sys.stdout.flush()
    return made


SPLITS: dict[str, tuple[dict[str, str], Callable[[Any], Any]]] = {
    "by time": ({"time": "time"}, lambda data: data.split(0.2)),
    "by group": ({"group": "group"}, lambda data: data.split(0.2)),
    "by both": ({"time": "time", "group": "group"}, lambda data: data.split(0.2)),
    "after a time": ({"time": "time"}, lambda data: data.split(after=1_650_000_000)),
}


def write(file: Path, rows: int) -> None:
    """Write rows chunk by chunk: times of two years in no order within a chunk, 200,000 groups, one feature."""
    rng = np.random.default_rng(0)
    schema = pa.schema({"time": pa.int64(), "group": pa.int32(), "x": pa.float32()})
    with pq.ParquetWriter(file, schema) as writer:
        for start in range(0, rows, CHUNK):
            n = min(CHUNK, rows - start)
            times = 1_600_000_000 + (60_000_000 * (start + rng.integers(0, 3 * CHUNK, n))) // rows
            columns = [times, rng.integers(0, 200_000, n, dtype=np.int32), rng.random(n, dtype=np.float32)]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=CHUNK)


def peak() -> int:
    """Most bytes that this process held."""
    with Path("/proc/self/status").open() as file:
        (kib,) = [line.split()[1] for line in file if line.startswith("VmHWM")]
    return 1024 * int(kib)


def split_here(file: Path, way: str) -> dict[str, Any]:
    """Split the file's rows in this process: seconds, memory, and reads of chunks."""
    roles, split = SPLITS[way]
    data = sk.open_dataset(file, **roles)
    assert data.roles is not None
    source, reads = type(data.roles.source), [0]
    read = source.read

    def counting(self: Any, chunk: int) -> Any:
        reads[0] += 1
        return read(self, chunk)

    source.read = counting  # type: ignore[method-assign]
    before, start = peak(), time.perf_counter()
    rest, test = split(data)
    seconds = time.perf_counter() - start
    return {
        "table": "splits", "split": way, "rows": data.base_rows, "rest": rest.base_rows, "test": test.base_rows,
        "s": round(seconds, 1), "reads of each chunk of rows": round(reads[0] / (len(data.source.bounds) - 1), 2),
        "peak MiB before the split": before >> 20, "peak MiB after it": peak() >> 20,
    }  # fmt: skip


def splits(rows: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Write a file, and split it in new processes."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        file = Path(made) / "rows.parquet"
        write(file, rows)
        for way in SPLITS:
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.related_rows",
                "split",
                "--file",
                str(file),
                "--way",
                way,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            sys.stdout.write(done.stdout)
            yield json.loads(done.stdout)


def main() -> None:
    """Measure what is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures: dict[str, Callable[[int], Iterator[dict[str, Any]]]] = {
        "calibration": lambda seeds: calibration(seeds, given.groups), "optimism": optimism, "year": year,
    }  # fmt: skip
    parser.add_argument("measured", nargs="+", choices=[*measures, "splits", "split"])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--groups", type=int, nargs="+", default=sorted({groups for _, groups, _ in GROUPS}))
    parser.add_argument("--rows", type=int, default=100 * CHUNK)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--file", type=Path)
    parser.add_argument("--way", choices=SPLITS)
    add_results(parser)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.measured == ["split"]:
        sys.stdout.write(f"{json.dumps(split_here(given.file, given.way))}\n")
        return
    values = []
    for name in given.measured:
        values += splits(given.rows, given.folder) if name == "splits" else measures[name](given.seeds)
    add_run(given.results, values)


if __name__ == "__main__":
    main()
