"""What a process holds at its peak, against what was projected and what was allowed: sources x widths x commands.

    python tests/benchmarks/memory_cases.py                 # every case, a table
    python tests/benchmarks/memory_cases.py --only "text"   # those whose name has the word
    python tests/benchmarks/memory_cases.py --size 0.1      # a tenth of the rows, and of the room
    python tests/benchmarks/memory_cases.py --small         # those of the tests, small and under tight budgets
    python tests/benchmarks/memory_cases.py --cold          # compiling everything anew in every case
    python tests/benchmarks/memory_cases.py --library DIR   # with the library of another checkout, such as an older one

Each case runs in a fresh process. ``base`` is what that process holds once the library is imported; the budget is the
base and the room that the case names. An outcome is ``done``, or the first line of an error in words. A case is right
where it held at most its budget and ended in one of these two ways; where it was done, the peak is at most what was
projected as well. Older versions, before inspect and evaluate had a budget, run them without one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

MIB = 1 << 20
LIBRARIES = 96  # MiB that compiled code and libraries take on first use, in every budget
FILES = 40  # MiB of these that are library files, on systems that map files by small pages


@cache
def mapped_besides() -> int:
    """Return MiB of the engine's library files that are resident beyond ``FILES``.

    Systems that map files by large pages keep unread parts of libraries resident. Projections start from resident
    memory, so cases with tight budgets need as much more.
    """
    program = (
        "import streamkern as sk, resource\n"
        "files = lambda: int(open('/proc/self/statm').read().split()[2]) * resource.getpagesize()\n"
        "[getattr(sk, name) for name in sk.__all__]\n"
        "before = files()\n"
        "from streamkern.cpu import default_engine\n"
        "default_engine().loops\n"
        "print(files() - before)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return max(0, int(said) // MIB - FILES)


@dataclass(frozen=True)
class Case:
    """A command on a source.

    Attributes:
        source: a function of this module that writes rows, and its arguments; ``n`` is multiplied by the size.
        command: run, predict, evaluate, ingest or inspect.
        room: MiB allowed beyond the base and the libraries, at size 1.
        options: of the command.
        outcome: ``done``, ``refused``, or ``any`` of the two: at small sizes it may fit.
    """

    source: tuple[str, dict[str, Any]]
    command: str
    room: int
    options: dict[str, Any] = field(default_factory=dict)
    outcome: str = "done"


# ------------------------------------------------------------------------------------------------------------ sources


def _blocks(n: int, d: int, c: int, dtype: str, step: int = 2000) -> Any:
    rng = np.random.default_rng(0)
    for start in range(0, n, step):
        X = rng.integers(0, 256, (min(step, n - start), d)).astype(dtype)
        y = X[:, :3].sum(axis=1, dtype=np.float32)
        yield X, (np.repeat(y[:, None], c, axis=1) if c else y)


def zarr(folder: Path, n: int, d: int, c: int = 0, dtype: str = "uint8", chunk_rows: int | None = None) -> str:
    """The training layout."""
    import streamkern as sk

    names = [f"f{j}" for j in range(d)]
    blocks = _blocks(n, d, c, dtype)
    sk.write_zarr(str(folder / "d.zarr"), blocks, n_rows=n, target="y", columns=names, chunk_rows=chunk_rows)
    return str(folder / "d.zarr")


def parquet(folder: Path, n: int, d: int, c: int = 0, group: int = 100_000, text: int = 0, ids: int = 0) -> str:
    """A column each, as data frames are written; ``text`` letters in a column, and ``ids`` in another."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, writer = folder / "d.parquet", None
    for number, (X, y) in enumerate(_blocks(n, d, c, "float32", group)):
        columns = {f"f{j}": X[:, j] for j in range(d)}
        columns |= {f"y{j}": y[:, j] for j in range(c)} if c else {"y": y}
        if text:  # few different texts: pages hold a dictionary of them, and the footer counts no letters
            columns["text"] = pa.array([f"{int(v) % 20:02}" * (text // 2) for v in X[:, 0]])
        if ids:
            columns["id"] = pa.array([f"{number:04}{i:09}".ljust(ids, "x") for i in range(len(X))])
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()
    return str(path)


def coded_ids(folder: Path, n: int, d: int, ids: int) -> str:
    """A few long ids as a dictionary, which stores each once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    X, y = next(_blocks(n, d, 0, "float32", n))
    texts = pa.array([f"{i:02}".ljust(ids, "x") for i in range(20)])
    coded = pa.DictionaryArray.from_arrays(pa.array(np.arange(n, dtype=np.int32) % 20), texts)
    columns = {f"f{j}": X[:, j] for j in range(d)} | {"y": y, "id": coded}
    pq.write_table(pa.table(columns), folder / "d.parquet")
    return str(folder / "d.parquet")


def levels(folder: Path, n: int, d: int, text: int, columns: int, most: int) -> str:
    """Columns of text with up to ``most`` different values each of ``text`` letters, in small row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, writer, rng = folder / "d.parquet", None, np.random.default_rng(0)
    step = max(100, min(50_000, (8 << 20) // (text * columns)))

    def texts(numbers: Any, column: int) -> Any:
        return pa.array([f"{v:07}".ljust(text, "abcde"[column % 5]) for v in numbers])

    known = [texts(range(most), column) for column in range(columns)] if most < n else []
    for start in range(0, n, step):
        X = rng.random((min(step, n - start), d), dtype=np.float32)
        table = {f"f{j}": X[:, j] for j in range(d)} | {"y": X[:, 0]}
        for j in range(columns):
            if known:
                table[f"text{j}"] = known[j].take(pa.array(rng.integers(0, most, len(X))))
            else:
                table[f"text{j}"] = texts(range(start, start + len(X)), j)
        writer = writer or pq.ParquetWriter(path, pa.table(table).schema)
        writer.write_table(pa.table(table))
    writer.close()
    return str(path)


def pandas_parquet(folder: Path, n: int, d: int, parts: int = 1) -> str:
    """A file as pandas writes it, all rows in one row group; or a folder of several."""
    import pandas as pd

    (folder / "d.parquet").mkdir()
    for part in range(parts):
        X = np.random.default_rng(part).random((n // parts, d))
        frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(d)])
        frame.assign(y=X[:, 0]).to_parquet(folder / "d.parquet" / f"part{part}.parquet")
    return str(folder / "d.parquet")


def sparse_chunk(folder: Path, n: int, d: int, length: int) -> str:
    """A chunk file far longer than its array says, without taking room on the disk."""
    path = zarr(folder, n, d)
    chunk = max((file for file in Path(path).rglob("c/*") if file.is_file()), key=lambda file: file.stat().st_size)
    os.truncate(chunk, length)
    return path


def hdf5(folder: Path, n: int, d: int, c: int = 0) -> str:
    """Everything in one compressed chunk."""
    import h5py

    X, y = next(_blocks(n, d, c, "float32", n))
    with h5py.File(folder / "d.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=X.shape, compression="gzip", compression_opts=1)
        file.create_dataset("y", data=y)
    return str(folder / "d.h5")


def labels_in_one_chunk(folder: Path, n: int, d: int = 1) -> str:
    """Features in small chunks, and all labels in one."""
    import zarr as zarr_python

    group = zarr_python.create_group(str(folder / "d.zarr"))
    X = group.create_array("X", shape=(n, d), chunks=(200_000, d), dtype="uint8")
    y = group.create_array("y", shape=(n,), chunks=(n,), dtype="int64")
    for start in range(0, n, 200_000):
        X[start : start + 200_000] = (np.arange(start, min(n, start + 200_000)) % 251).astype(np.uint8)[:, None]
    y[:] = np.arange(n) % 10
    return str(folder / "d.zarr")


def table_in_zarr(folder: Path, n: int, d: int, text: int) -> str:
    """An array a column: numbers, a text of ``text`` letters with some hundreds of values, and a label that is text."""
    import zarr as zarr_python

    group, rng = zarr_python.create_group(str(folder / "d.zarr")), np.random.default_rng(0)
    numbers = {f"f{j}": rng.random(n, dtype=np.float32) for j in range(d)}
    towns = np.char.ljust(np.char.add("town ", rng.integers(0, 300, n).astype(str)), text, "x").astype(object)
    labels = np.where(numbers["f0"] > 0.5, "high", "low").astype(object)
    for name, values in {**numbers, "town": towns, "y": labels}.items():
        kind = str if values.dtype == object else values.dtype
        group.create_array(name, shape=(n,), chunks=(100_000,), dtype=kind)[:] = values
    return str(folder / "d.zarr")


def csv(folder: Path, n: int, d: int, fault: str = "") -> str:
    """A text table, with a fault after its first rows: a quote that is not closed, or one long field."""
    path = folder / "d.csv"
    with open(path, "w") as file:
        file.write(",".join([*(f"f{j}" for j in range(d)), "y"]) + "\n")
        row = ",".join(str(j % 7 / 4) for j in range(d))
        for start in range(0, n, 1000):
            file.write("".join(f"{i % 10}{row[1:]},{i % 3}\n" for i in range(start, min(n, start + 1000))))
            if start == 1000 and fault == "quote":
                file.write('"5 inch,' + row[2:] + ",1\n")
            if start == 1000 and fault == "long":
                file.write('"' + "x" * (20 * n) + '",' + row[2:] + ",1\n")
    return str(path)


# ------------------------------------------------------------------------------------------------------------ commands


def _run(source: str, folder: Path, memory: int, options: dict[str, Any]) -> tuple[int, int]:
    import streamkern as sk

    options = dict(options)
    target = options.pop("target", "y")
    columns, solver = options.pop("columns", None), options.pop("solver", "EigenPro")
    rows: Any = source
    if options.pop("dask", False):
        import dask.dataframe as dd

        rows = dd.read_parquet(source)
    data = sk.open_dataset(rows, target=target, columns=columns)
    data = data.augment(rows=options.pop("rows", None))
    scheduler, p = options.pop("scheduler", "threads"), options.pop("p", 300)
    arguments = options.pop("arguments", {})
    if leaves := options.pop("leaves", None):
        options["partition"] = sk.Partition(leaves=leaves)
    pipeline = sk.Pipeline(
        data, centers=sk.Uniform(p), kernel=sk.Laplace(300.0), solver=getattr(sk, solver)(**arguments),
        task=options.pop("task", "regression"), preprocess=tuple(eval(options.pop("preprocess", "()"), {"sk": sk})),
        **options,
    )  # fmt: skip
    result = sk.run(pipeline, folder / "run", memory=memory, threads=2, resources=sk.Resources(scheduler=scheduler))
    return result["projected_memory_bytes"], result["peak_memory_bytes"]


def _model(folder: Path, d: int, c: int, columns: list[str] | None, labels: int = 0) -> Path:
    """A model of random weights; with ``labels``, of classes whose names have so many letters."""
    import streamkern as sk
    from streamkern.data.targets import Classes, Continuous
    from streamkern.models.kernel_machine import KernelMachine

    rng = np.random.default_rng(0)
    Z, weights = rng.random((300, d), dtype=np.float32), rng.random((300, max(1, c)), dtype=np.float32)
    encoding: Any = Continuous(np.zeros(max(1, c)), flat=not c)
    if labels:
        encoding = Classes(np.array([f"{i:02}".ljust(labels, "x") for i in range(c)]))
    names = None if columns is None else tuple(columns)
    machine = KernelMachine(sk.Laplace(1.0), Z, weights, encoding, columns=names, metadata={"dtype": "float32"})
    machine.save(folder / "model.zarr")
    return folder / "model.zarr"


def _predict(source: str, folder: Path, memory: int, options: dict[str, Any]) -> tuple[int, int]:
    import streamkern as sk

    options = dict(options)
    model = _model(folder, options.pop("d"), options.pop("c", 0), options.pop("columns"), options.pop("labels", 0))
    made = sk.predict(model, source, folder / "out.parquet", memory=memory, threads=2, **options)
    return made.projected_memory_bytes, made.peak_memory_bytes


def _command(memory: int, *words: Any) -> tuple[int, int]:
    import streamkern.memory
    from streamkern.commands.parser import main

    bounded = words[0] == "ingest" or hasattr(streamkern.memory, "memory_limit")
    status = main([str(word) for word in (*words, "--threads", 2, *(["--memory", memory] if bounded else []))])
    if status:
        raise SystemExit(status)
    return 0, 0


def _evaluate(source: str, folder: Path, memory: int, options: dict[str, Any]) -> tuple[int, int]:
    model = _model(folder, options["d"], options.get("c", 0), options["columns"])
    target = options.get("target", ["y"])
    return _command(memory, "evaluate", model, source, "--target", *target)


def _ingest(source: str, folder: Path, memory: int, options: dict[str, Any]) -> tuple[int, int]:
    words = [word for name in options.get("target", ["y"]) for word in ("--target", name)]
    words += ["--shuffle"] if options.get("shuffle") else []
    columns = ["--columns", ",".join(options["columns"])] if "columns" in options else []
    return _command(memory, "ingest", source, folder / "out.zarr", *words, *columns)


def _inspect(source: str, folder: Path, memory: int, options: dict[str, Any]) -> tuple[int, int]:
    return _command(memory, "inspect", source)


COMMANDS: dict[str, Callable[..., tuple[int, int]]] = {
    "run": _run, "predict": _predict, "evaluate": _evaluate, "ingest": _ingest, "inspect": _inspect,
}  # fmt: skip

# --------------------------------------------------------------------------------------------------------------- cases

_PLAIN = ("zarr", {"n": 20_000, "d": 100})
_WIDE = [f"y{j}" for j in range(400)]
_NAMES = [f"f{j}" for j in range(2000)]

CASES: dict[str, Case] = {
    **{
        f"{solver}, plain": Case(_PLAIN, "run", 350, {"solver": solver, "arguments": {"epochs": 2}})
        for solver in ("EigenPro", "EigenPro1", "SGD", "SVRG")
    },
    "Direct, plain": Case(_PLAIN, "run", 350, {"solver": "Direct"}),
    "Falkon, plain": Case(_PLAIN, "run", 350, {"solver": "Falkon"}),
    "1,500 centers": Case(_PLAIN, "run", 400, {"p": 1500}),
    "float64": Case(_PLAIN, "run", 400, {"dtype": "float64"}),
    "two workers": Case(_PLAIN, "run", 450, {"scheduler": "processes:2"}),
    "wide targets, zarr": Case(("zarr", {"n": 100_000, "d": 10, "c": 400}), "run", 500, outcome="any"),
    "wide targets, parquet": Case(
        ("parquet", {"n": 100_000, "d": 10, "c": 400, "group": 25_000}), "run", 500, {"target": _WIDE}, outcome="any"
    ),
    "wide targets, workers": Case(
        ("zarr", {"n": 100_000, "d": 10, "c": 400}), "run", 500, {"scheduler": "processes:2"}, outcome="any"
    ),
    "few columns of wide chunks, zarr": Case(
        ("zarr", {"n": 40_000, "d": 2000, "dtype": "float32", "chunk_rows": 20_000}), "run", 300,
        {"columns": _NAMES[:4]}, outcome="any",
    ),
    "few columns of wide chunks, room enough": Case(
        ("zarr", {"n": 40_000, "d": 2000, "dtype": "float32", "chunk_rows": 20_000}), "run", 1300,
        {"columns": _NAMES[:4]},
    ),
    "one chunk, hdf5, room enough": Case(("hdf5", {"n": 40_000, "d": 500}), "ingest", 700),
    "one chunk, hdf5, ingest": Case(("hdf5", {"n": 40_000, "d": 500}), "ingest", 120, outcome="any"),
    "one large chunk is not refused": Case(
        ("zarr", {"n": 40_000, "d": 1000, "dtype": "float32", "chunk_rows": 40_000}), "run", 1200, {"rows": 3000}
    ),
    "long texts, run": Case(
        ("parquet", {"n": 200_000, "d": 4, "text": 4000}), "run", 400,
        {"columns": ["f0", "text"], "preprocess": "[sk.OneHot(['text'])]"}, outcome="any",
    ),
    "long texts, ingest": Case(
        ("parquet", {"n": 200_000, "d": 4, "text": 4000}), "ingest", 400, {"columns": ["f0", "text"]}, outcome="any"
    ),
    "long texts, inspect": Case(("parquet", {"n": 200_000, "d": 4, "text": 4000}), "inspect", 400, outcome="any"),
    "table in zarr, run": Case(
        ("table_in_zarr", {"n": 400_000, "d": 4, "text": 40}), "run", 500,
        {"task": "classification", "preprocess": "[sk.OneHot(['town'])]"},
    ),
    "table in zarr, logistic": Case(
        ("table_in_zarr", {"n": 400_000, "d": 4, "text": 40}), "run", 500,
        {"task": "classification", "preprocess": "[sk.TargetEncode(['town'])]", "solver": "LBFGS",
         "arguments": {"epochs": 3}},
    ),
    "partition": Case(_PLAIN, "run", 500, {"solver": "Direct", "leaves": 4}),
    "table in zarr, ingest": Case(("table_in_zarr", {"n": 400_000, "d": 4, "text": 40}), "ingest", 400),
    "table in zarr, long texts": Case(
        ("table_in_zarr", {"n": 200_000, "d": 4, "text": 1000}), "run", 400,
        {"task": "classification", "preprocess": "[sk.OneHot(['town'])]"}, outcome="any",
    ),
    "long labels, run": Case(
        ("parquet", {"n": 200_000, "d": 4, "text": 1000}), "run", 400,
        {"columns": ["f0", "f1"], "target": "text", "task": "classification"}, outcome="any",
    ),
    "quote that is not closed, ingest": Case(("csv", {"n": 400_000, "d": 20, "fault": "quote"}), "ingest", 250,
                                             outcome="refused"),
    "long field, ingest": Case(("csv", {"n": 3_000_000, "d": 2, "fault": "long"}), "ingest", 200, outcome="refused"),
    "csv, ingest": Case(("csv", {"n": 400_000, "d": 20}), "ingest", 700),
    "csv, inspect": Case(("csv", {"n": 400_000, "d": 20}), "inspect", 700),
    "csv of 200,000 columns": Case(("csv", {"n": 2, "d": 200_000}), "ingest", 200, outcome="any"),
    "predict 500 outputs": Case(
        ("parquet", {"n": 600_000, "d": 4, "group": 150_000}), "predict", 1000,
        {"d": 4, "c": 500, "columns": ["f0", "f1", "f2", "f3"]}, outcome="any",
    ),
    "predict, long ids": Case(
        ("parquet", {"n": 200_000, "d": 4, "ids": 2000}), "predict", 500,
        {"d": 4, "columns": ["f0", "f1", "f2", "f3"], "id": "id"}, outcome="any",
    ),
    "predict, long ids, room enough": Case(
        ("parquet", {"n": 200_000, "d": 4, "ids": 2000}), "predict", 5000,
        {"d": 4, "columns": ["f0", "f1", "f2", "f3"], "id": "id"},
    ),
    "predict, long ids, many chunks": Case(
        ("parquet", {"n": 300_000, "d": 4, "ids": 2000, "group": 20_000}), "predict", 3000,
        {"d": 4, "columns": ["f0", "f1", "f2", "f3"], "id": "id"},
    ),
    "predict": Case(
        ("parquet", {"n": 400_000, "d": 4, "ids": 20}), "predict", 700,
        {"d": 4, "columns": ["f0", "f1", "f2", "f3"], "id": "id"},
    ),
    "evaluate": Case(("parquet", {"n": 400_000, "d": 4}), "evaluate", 400,
                     {"d": 4, "columns": ["f0", "f1", "f2", "f3"]}),
    "evaluate, wide targets": Case(
        ("parquet", {"n": 100_000, "d": 4, "c": 400}), "evaluate", 300,
        {"d": 4, "c": 400, "columns": ["f0", "f1", "f2", "f3"], "target": _WIDE}, outcome="any",
    ),
    "labels in one chunk": Case(("labels_in_one_chunk", {"n": 30_000_000}), "run", 250, {"task": "classification"},
                                outcome="any"),
    "labels in one chunk, room enough": Case(
        ("labels_in_one_chunk", {"n": 30_000_000}), "run", 4000, {"task": "classification"}
    ),
    "labels in one chunk, ingest": Case(("labels_in_one_chunk", {"n": 30_000_000}), "ingest", 160, outcome="any"),
    "labels in one chunk, inspect": Case(("labels_in_one_chunk", {"n": 30_000_000}), "inspect", 250, outcome="any"),
    "wide chunks, inspect": Case(
        ("zarr", {"n": 40_000, "d": 2000, "dtype": "float32", "chunk_rows": 20_000}), "inspect", 300, outcome="any"
    ),
    "wide targets, room enough": Case(("zarr", {"n": 100_000, "d": 10, "c": 400}), "run", 2000),
    "wide chunks, inspect, room enough": Case(
        ("zarr", {"n": 40_000, "d": 2000, "dtype": "float32", "chunk_rows": 20_000}), "inspect", 2500
    ),
    "shuffle, wide targets, room enough": Case(
        ("parquet", {"n": 100_000, "d": 10, "c": 400, "group": 25_000}), "ingest", 7000,
        {"target": _WIDE, "shuffle": True},
    ),
    "predict, coded ids": Case(
        ("coded_ids", {"n": 300_000, "d": 4, "ids": 2000}), "predict", 3000,
        {"d": 4, "columns": ["f0", "f1", "f2", "f3"], "id": "id"},
    ),
    "predict, coded ids, little room": Case(
        ("coded_ids", {"n": 300_000, "d": 4, "ids": 2000}), "predict", 500,
        {"d": 4, "columns": ["f0", "f1", "f2", "f3"], "id": "id"}, outcome="any",
    ),
    "predict, long labels": Case(
        ("parquet", {"n": 600_000, "d": 4}), "predict", 700,
        {"d": 4, "c": 10, "labels": 2000, "columns": ["f0", "f1", "f2", "f3"]},
    ),
    "columns of long texts, run": Case(
        ("levels", {"n": 20_000, "d": 2, "text": 20_000, "columns": 3, "most": 1 << 30}), "run", 1500,
        {"preprocess": "[sk.OneHot(['text0', 'text1', 'text2'])]"},  outcome="any",
    ),
    "columns of long texts, ingest": Case(
        ("levels", {"n": 20_000, "d": 2, "text": 20_000, "columns": 3, "most": 1 << 30}), "ingest", 1500,
        outcome="any",
    ),
    "columns of long texts, few levels": Case(
        ("levels", {"n": 20_000, "d": 2, "text": 20_000, "columns": 3, "most": 2000}), "run", 1500,
        {"preprocess": "[sk.TargetEncode(['text0', 'text1', 'text2'])]"},
    ),
    "columns of long texts, inspect": Case(
        ("levels", {"n": 20_000, "d": 2, "text": 20_000, "columns": 3, "most": 1 << 30}), "inspect", 700,
        outcome="any",
    ),
    "columns of 9,000 levels": Case(
        ("levels", {"n": 400_000, "d": 2, "text": 20, "columns": 20, "most": 9000}), "run", 900,
        {"preprocess": "[sk.TargetEncode([f'text{j}' for j in range(20)])]"},
    ),
    "columns of 9,000 levels, little room": Case(
        ("levels", {"n": 400_000, "d": 2, "text": 20, "columns": 20, "most": 9000}), "run", 300,
        {"preprocess": "[sk.TargetEncode([f'text{j}' for j in range(20)])]"}, outcome="any",
    ),
    "columns of 50,000 levels": Case(
        ("levels", {"n": 400_000, "d": 2, "text": 20, "columns": 5, "most": 50_000}), "run", 500,
        {"preprocess": "[sk.TargetEncode([f'text{j}' for j in range(5)])]"}, outcome="refused",
    ),
    "columns of 50,000 levels, ingest": Case(
        ("levels", {"n": 400_000, "d": 2, "text": 20, "columns": 5, "most": 50_000}), "ingest", 500,
    ),
    "Dask frame": Case(
        ("pandas_parquet", {"n": 1_000_000, "d": 28, "parts": 2}), "run", 2000, {"dask": True}
    ),
    "Dask frame, little room": Case(
        ("pandas_parquet", {"n": 1_000_000, "d": 28, "parts": 2}), "run", 700, {"dask": True}, outcome="any"
    ),
    "sparse chunk file": Case(
        ("sparse_chunk", {"n": 20_000, "d": 100, "length": 8 << 30}), "run", 350, outcome="refused"
    ),
    "pandas' row group, predict": Case(
        ("pandas_parquet", {"n": 1_000_000, "d": 28}), "predict", 700,
        {"d": 28, "columns": [f"f{j}" for j in range(28)]},
    ),
    "pandas' row group, run": Case(("pandas_parquet", {"n": 1_000_000, "d": 28}), "run", 900),
    "shuffle, wide targets": Case(
        ("parquet", {"n": 100_000, "d": 10, "c": 400, "group": 25_000}), "ingest", 300,
        {"target": _WIDE, "shuffle": True}, outcome="any",
    ),
}  # fmt: skip


SMALL: dict[str, tuple[float, int]] = {
    # smaller than what 8797ecb failed at
    "one large chunk is not refused": (0.05, 0),
    "predict 500 outputs": (0.05, 0),
    # sizes at which commit 8797ecb held more than the budget, or than it had projected
    "wide targets, zarr": (0.4, 260),
    "wide targets, parquet": (0.3, 260),
    "few columns of wide chunks, zarr": (0.5, 260),
    "one chunk, hdf5, ingest": (1.5, 190),
    "long texts, run": (0.1, 260),
    "long texts, inspect": (0.05, 100),
    "long texts, ingest": (0.1, 190),
    "long labels, run": (0.3, 260),
    "quote that is not closed, ingest": (1.0, 90),
    "long field, ingest": (0.5, 80),
    "csv of 200,000 columns": (0.05, 136),
    "predict, long ids": (0.1, 200),
    "predict, long ids, many chunks": (0.1, 560),
    "labels in one chunk, ingest": (0.33, 190),
    "evaluate, wide targets": (0.1, 120),
    "wide chunks, inspect": (0.1, 100),
    "columns of 9,000 levels": (0.1, 560),
}
"""Cases that are tests: the size of their rows, and the MiB beyond the base; 0 for what the case allows."""


def child(name: str, source: str, folder: str, room: int, hard: bool) -> None:
    """Run a case in this process, and print its result as JSON; ``hard``: the system refuses more, too."""
    import streamkern as sk
    from streamkern.errors import StreamkernError
    from streamkern.memory import peak_resident_bytes, resident_bytes, share_heap

    share_heap()
    for public in sk.__all__:  # a name is imported when it is first used
        getattr(sk, public)
    base, case = resident_bytes(), CASES[name]
    memory = base + room
    if hard:  # libraries map far more than they hold, Arrow's allocator a GiB at once: what a run adds is bounded
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + room + 2048 * MIB,) * 2)
    said = {"outcome": "done", "projected": 0}
    try:
        said["projected"], _ = COMMANDS[case.command](source, Path(folder), memory, case.options)
    except StreamkernError as error:
        said |= {"outcome": f"{type(error).__name__}: {error.what}", "status": error.exit_status}
    except SystemExit as error:
        said |= {"outcome": "error in words", "status": error.code}
    print(json.dumps({**said, "base": base, "budget": memory, "peak": peak_resident_bytes()}))


def measured(
    name: str,
    folder: Path,
    size: float,
    *,
    room: int = 0,
    hard: bool = False,
    cold: bool = False,
    library: str = "",
    start: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Write the rows of a case, and run it in a process of its own.

    Args:
        name: of the case.
        folder: where rows are written.
        size: of the rows.
        room: MiB beyond the base and ``mapped_besides``, instead of what the case allows at this size.
        hard: whether the system bounds the process, too.
        cold: whether nothing is compiled yet.
        library: directory of another checkout, whose library runs the case.
        start: starts a file of Python, as the fixture ``imported`` of the tests does; a new interpreter if None.
    """
    case = CASES[name]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in (library, *sys.path) if p)}
    kind, arguments = case.source
    if "n" in arguments and arguments["n"] > 100:
        arguments = arguments | {"n": max(1000, int(arguments["n"] * size))}
    for key in ("chunk_rows", "group"):
        if key in arguments:
            arguments = arguments | {key: max(500, int(arguments[key] * size))}
    made = folder / (kind + "".join(f"-{key}{value}" for key, value in arguments.items()))
    if not made.exists():
        made.mkdir()
        (made / "source").write_text(globals()[kind](made, **arguments))
    source = (made / "source").read_text().strip()
    room = (room * MIB or int(LIBRARIES * MIB + case.room * MIB * max(size, 0.2))) + mapped_besides() * MIB
    with tempfile.TemporaryDirectory(dir=folder) as place:
        env |= {"NUMBA_CACHE_DIR": place} if cold else {}
        program = [os.path.abspath(__file__), "--child", name, source, place, str(room), str(int(hard))]
        if start is None:
            done = subprocess.Popen(
                [sys.executable, *program],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=place,
            )
        else:
            done = start("python", program, os.path.join(place, "said"), env=env, cwd=place)
        out, said = done.communicate()
    lines = out.strip().splitlines()
    if done.returncode or not lines:
        return {
            "outcome": f"DIED {done.returncode}: {said[-600:]}",
            "projected": 0,
            "base": 0,
            "budget": 0,
            "peak": 0,
        }
    found: dict[str, Any] = json.loads(lines[-1])
    if found["outcome"] == "error in words":
        found["outcome"] = said.strip()
    return found


def faults(name: str, found: dict[str, Any]) -> list[str]:
    """What is wrong with what came of a case."""
    wanted, outcome = CASES[name].outcome, found["outcome"]
    wrong = ["died, or a traceback"] * ("Traceback" in outcome or outcome.startswith("DIED"))
    wrong += ["above the budget"] * (found["peak"] > found["budget"])
    wrong += ["above the projection"] * (outcome == "done" and 0 < found["projected"] < found["peak"])
    wrong += [f"not {wanted}"] * (wanted != "any" and (outcome == "done") != (wanted == "done"))
    return wrong


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--size", type=float, default=1.0, help="of the sources and the room")
    parser.add_argument("--hard", action="store_true", help="under a limit of the address space, as ulimit -v sets it")
    parser.add_argument("--small", action="store_true", help="the cases of the tests, at their sizes and budgets")
    parser.add_argument("--cold", action="store_true", help="nothing is compiled yet when a case begins")
    parser.add_argument("--library", default="", help="another checkout, whose library runs the cases")
    parser.add_argument("--folder", help="where sources are kept from run to run")
    args = parser.parse_args()
    print(f"{'case':<40}{'base':>7}{'budget':>8}{'projected':>10}{'measured':>9}  MiB; outcome")
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        folder.mkdir(exist_ok=True)
        for name in SMALL if args.small else CASES:
            if args.only not in name:
                continue
            size, room = SMALL[name] if args.small else (args.size, 0)
            found = measured(name, folder, size, room=room, hard=args.hard, cold=args.cold, library=args.library)
            numbers = [f"{found[key] / MIB:.0f}" for key in ("base", "budget", "projected", "peak")]
            outcome, bad = found["outcome"].replace("\n", " ")[:150], faults(name, found)
            wrong += bool(bad)
            print(f"{name:<40}{numbers[0]:>7}{numbers[1]:>8}{numbers[2]:>10}{numbers[3]:>9}  {outcome}"
                  + (f"  <-- {', '.join(bad)}" if bad else ""), flush=True)  # fmt: skip
    print(f"{wrong} of the cases wrong" if wrong else "no case above its budget")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5], int(sys.argv[5]), bool(int(sys.argv[6])))
    else:
        main()
