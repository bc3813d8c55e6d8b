"""Predictions for stored rows, written part by part within a memory budget, and resumable."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.costs.dry_run import sums_in_flight
from streamkern.costs.footprint import require_sweep_memory
from streamkern.data import Dataset, drop_zero_weight_rows
from streamkern.data.dataset import unchanging
from streamkern.data.encoders import warn_unseen
from streamkern.data.row_selection import FilteredSource
from streamkern.data.splits import columns_of, names_in, rows_where
from streamkern.data.targets import Classes, Indicators, Quantiles
from streamkern.data.transforms import require_numbers
from streamkern.defaults import THREAD_BYTES
from streamkern.engine.base import ROW_TILE, TILE_BYTES
from streamkern.errors import DataError, StorageError, UsageError
from streamkern.evaluation.metrics import ranks_bytes
from streamkern.execute import Executor, open_executor, open_resources
from streamkern.formats.open_tables import open_tables
from streamkern.memory import check_memory, format_bytes, memory_limit, peak_resident_bytes
from streamkern.models.kernel_machine import KernelMachine, PredictedRows
from streamkern.progress import display_if_verbose, reporter
from streamkern.resources import Resources, given_resources
from streamkern.serving.open_model import AnyModel, open_model
from streamkern.serving.prediction_writers import FORMATS, SUFFIXES, OutputColumn, Predictions, record_at
from streamkern.sources.base import TEXT_BYTES, Source
from streamkern.sources.format_rules import first_names
from streamkern.sources.read_options import ReadOptions
from streamkern.sources.remote_store import is_remote
from streamkern.sources.schema import Schema
from streamkern.storage.untrusted_files import given_path
from streamkern.storage.value_digest import digest
from streamkern.types import Array
from streamkern.user_code_digest import unknown_code
from streamkern.version import VERSION

PART_ROWS, PART_BYTES = 1 << 20, 32 << 20
"""Most rows, and bytes, of a part, which an interruption loses."""

_KINDS = {"b": "booleans", "i": "whole numbers", "u": "whole numbers", "f": "floating-point numbers"}

Progress = Callable[[str, int, int], None]
"""Called with the activity, rows done, and rows in all."""


@dataclass(frozen=True)
class PredictionResult:
    """Result of ``predict``.

    Attributes:
        path: path of the predictions.
        rows: number of rows.
        columns: names of the columns in parquet.
        kept: rows written by an earlier, interrupted call; all rows if the output existed already.
        seconds: duration in seconds.
        rows_per_second: speed for the newly predicted rows, from the first read to the last write.
        peak_memory_bytes: peak memory of the process since its start.
        projected_memory_bytes: projected peak; 0 if there was nothing to do.
        memory_budget_bytes: memory limit of the process.
        stored_bytes: bytes on disk.
        unseen_categories: number of rows, by column, with a category that training did not see; it counts as missing.
    """

    path: str
    rows: int
    columns: tuple[str, ...]
    kept: int
    seconds: float
    rows_per_second: float
    peak_memory_bytes: int
    projected_memory_bytes: int
    memory_budget_bytes: int
    stored_bytes: int
    unseen_categories: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"columns": list(self.columns), "status": "done"}

    def __str__(self) -> str:
        kept = f", {self.kept:,} of them written before" if self.kept else ""
        columns = ", ".join(self.columns[:4]) + ", ..." * (len(self.columns) > 4)
        seen = ", ".join(f"{rows:,} rows in {name}" for name, rows in self.unseen_categories.items())
        return (
            f"{self.path}: {self.rows:,} rows ({columns}){kept}; "
            f"{self.rows_per_second:,.0f} rows/s, {self.seconds:.1f} s; {format_bytes(self.peak_memory_bytes)} at the "
            f"peak of {format_bytes(self.memory_budget_bytes)}; {format_bytes(self.stored_bytes)} on disk"
            + (f"; with categories that training did not see: {seen}" if seen else "")
        )


def predict(
    model: AnyModel, data: Any, output: str | os.PathLike[str], *, id: str | None = None, scores: bool = False,
    probabilities: bool = False, interval: float | None = None, where: str | None = None, format: str | None = None,
    memory: str | int | None = None, threads: int | None = None, resources: Resources | None = None,
    overwrite: bool = False, storage_options: dict[str, Any] | None = None,
    read_options: ReadOptions | Mapping[str, Any] | None = None, on_progress: Progress | None = None, verbose: int = 0,
) -> PredictionResult:  # fmt: skip
    """Predict every stored row, in order, and write the predictions as one parquet or CSV file or one zarr group.

    The column ``prediction`` has labels, of the same type as in training, or values (``prediction_0``, ... with several
    outputs). ``output`` appears when it is complete. After an interruption, the same call computes the
    missing parts. ``output`` then has the same bytes as without the interruption. If a complete ``output`` is parquet
    or zarr, the same call does nothing. If it is CSV, the call raises an error unless ``overwrite`` is given, because a
    CSV file does not record its model and data.

    Args:
        model: a saved model, a model in memory, or a fitted estimator. Or a model registry: a directory, a URL or a
            ``Registry``. Then its champion predicts, which is the version in use.
        data: a table in any format that training accepts, or a list of paths. It must have the columns of training;
            other columns are ignored.
        output: the local file (parquet, CSV) or directory (zarr) to create.
        id: a column of numbers or strings to copy, with a value in every row; it may also be a feature. Its name must
            differ from the columns of predictions.
        scores: write the model's outputs too: a column ``score_LABEL`` for each class; in zarr one array, ``scores``.
        probabilities: write the probabilities of the classes: ``probability_LABEL``; in zarr one array,
            ``probabilities``.
        interval: write the ends of an interval that contains the target with this probability: ``lower`` and ``upper``,
            or ``lower_0``, ``upper_0``, ``lower_1``, ... for several values; in zarr one array, ``interval``.
        where: a condition on columns of the data, as in ``Dataset.where``. Only rows that satisfy it are predicted.
        format: ``parquet``, ``csv`` or ``zarr``; by default from the ending of ``output``.
        memory: memory limit of the process in bytes, or a size such as ``"8GiB"``; by default, half of the machine's
            memory.
        threads: threads of this process; by default, its number of cores.
        resources: a ``Resources``, to compute on a Dask cluster or in worker processes.
        overwrite: replace existing predictions.
        storage_options: options for fsspec URLs of the data.
        read_options: for text tables, such as ``sk.read_options(delimiter=";", decimal=",")``.
        on_progress: function called with the activity, the rows done and the total rows.
        verbose: 1 shows the progress on standard error; 0 shows nothing.

    Raises:
        UsageError: parameters contradict one another.
        PlanRefusedError: the prediction would exceed ``memory``; the message has a remedy.
        MemoryLimitError: the process exceeded its memory limit; finished parts are kept.
        DataError: the columns, the number of features, or the kind of numbers (boolean, integer or floating-point)
            differ from training; or a row has NaN, and the message names the row.
        StorageError: model or data do not exist, ``output`` exists and may not be replaced, or the disk is full;
            finished parts are kept.
        BusyError: another process writes to ``output``.
    """
    began = time.perf_counter()
    given = given_resources(resources, memory, threads)
    budget = given.budget
    with memory_limit(budget):
        machine = open_model(model)
        place, format = _place(output, format)
        options = {"storage_options": storage_options, "memory": budget, "read_options": read_options}
        source = _satisfying(where, _open(machine, data, id, options), data, machine.schema, options)
        columns = _columns(machine, source, id, scores, probabilities, interval)
        _require_free_name(id, columns, format)
        n = int(source.bounds[-1])
        row_bytes = sum(column.row_bytes for column in columns)
        part_rows = int(np.clip(PART_BYTES // row_bytes, 1, PART_ROWS))
        identity = _identity(machine, source, id, scores, probabilities, interval, format, part_rows)
        record = {
            "fingerprint": identity, "model": machine.fingerprint, "weights_sha256": machine.weights_sha256,
            "data": source.fingerprint, "rows": n, "version": VERSION,
        }  # fmt: skip
        made = FORMATS[format](place, columns, n, part_rows, record)
        present = record_at(place)
        done: dict[str, Any] = {"kept": n, "rows_per_second": 0.0, "projected_memory_bytes": 0}
        if present is None or present["fingerprint"] != identity:
            _require_room(place, present is not None and overwrite)
            with open_executor(given.scheduler, given.threads) as executor, display_if_verbose(verbose) as display:
                done = _write_missing(machine, source, made, budget, executor, reporter(on_progress, display))
        else:
            made.work.clear()
        return PredictionResult(
            path=str(place),
            rows=n,
            columns=tuple(name for column in columns for name in column.fields or (column.name,)),
            seconds=time.perf_counter() - began,
            peak_memory_bytes=peak_resident_bytes(),
            memory_budget_bytes=budget,
            stored_bytes=sum(path.stat().st_size for path in (place, *place.rglob("*")) if path.is_file()),
            **done,
        )


def _identity(
    model: KernelMachine, source: Source, id: str | None, scores: bool, probabilities: bool, interval: float | None,
    format: str, part_rows: int,
) -> str:  # fmt: skip
    """A digest of everything that the bytes of the parts depend on."""
    parts = [model.fingerprint, source.fingerprint, id, scores, format, part_rows]
    parts += ["probabilities"] * probabilities + ([] if interval is None else [f"interval {float(interval)!r}"])
    if unknown_code(model.kernel, model.features) is not None:
        parts.append(secrets.token_hex(8))  # another release may have written files of an earlier call
    return digest(1, *parts)


def _write_missing(
    model: KernelMachine, source: Source, made: Predictions, budget: int, executor: Executor, show: Progress
) -> dict[str, Any]:
    """Write the parts that are missing, and return what ``PredictionResult`` says of it."""
    n, unseen = made.n, Counter[str]()
    held, working = _prediction_memory(model, Dataset(source))
    # Copies of a part: blocks, joined, as labels, as the format's arrays, being encoded; and the next part.
    held += 7 * min(n, made.part_rows) * sum(column.row_bytes for column in made.columns)
    held += made.noted_bytes + THREAD_BYTES
    projected = require_sweep_memory("prediction", source, working, budget, executor.slots, held)
    with made.writing():
        missing = made.missing()
        kept = n - sum(b - a for a, b in map(made.rows, missing))
        start = time.perf_counter()
        with unchanging(Dataset(source)):
            _write(model, source, made, missing, kept, executor, show, unseen)
        made.commit()
        warn_unseen(unseen, n - kept)
        rate = (n - kept) / (time.perf_counter() - start)
    return {
        "kept": kept, "rows_per_second": rate, "projected_memory_bytes": projected, "unseen_categories": dict(unseen)
    }  # fmt: skip


def _prediction_memory(model: KernelMachine, dataset: Dataset) -> tuple[int, int]:
    """The bytes of the model, and of a predicting thread, without those for reading rows."""
    source, c, itemsize = dataset.source, model.weights.shape[1], model.Z.dtype.itemsize
    made = model._output_dtype.itemsize
    row = source.reading().row
    task_rows = min(model._task_rows(dataset), int(np.diff(source.bounds).max(initial=1)))
    widest = max(source.n_features, model._widest)
    working = task_rows * (2 * (model.Z.shape[1] * itemsize + c * made) + (2 * widest * 8 if model.transforms else 0))
    centers, functions = model.held
    working += max(min(TILE_BYTES, ROW_TILE * functions * itemsize), functions * itemsize)
    # The rows of two tasks wait. Their texts are counted with chunks being read, except for a task of an earlier chunk.
    waiting = 2 * task_rows * (c * made + 8) + task_rows * (row - source.n_features * source.dtype.itemsize)
    return centers, working + waiting


def _write(
    model: KernelMachine, source: Source, made: Predictions, missing: Sequence[int], done: int, executor: Executor,
    on_progress: Progress, unseen: Counter[str],
) -> None:  # fmt: skip
    """Write the missing parts, where ``done`` rows are written already; each while the next is predicted."""
    names = {column.name for column in made.columns if not column.is_id}

    def write(part: int, held: list[PredictedRows]) -> int:
        nonlocal done
        made.write(part, [_values(model, held, column) for column in made.columns])
        done += sum(len(block.values) for block in held)
        return done

    neighbours = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1)
    stream = chain.from_iterable(
        model.stream_predictions(
            Dataset(source),
            executor=executor,
            outputs=bool({"scores", "probabilities"} & names),
            scales="interval" in names,
            rows=(made.rows(int(parts[0]))[0], made.rows(int(parts[-1]))[1]),
            unseen=unseen,
        )
        for parts in neighbours
        if len(parts)
    )
    with ThreadPoolExecutor(1, thread_name_prefix="streamkern-write") as writer:
        writing: Future[int] | None = None
        rest: PredictedRows | None = None
        for part in missing:
            held, rest = _taken(stream, rest, made.rows(part)[1] - made.rows(part)[0])
            check_memory()
            if writing is not None:
                on_progress("predict", writing.result(), made.n)
            writing = writer.submit(write, part, held)
        if writing is not None:
            on_progress("predict", writing.result(), made.n)


def _taken(
    stream: Iterator[PredictedRows], rest: PredictedRows | None, rows: int
) -> tuple[list[PredictedRows], PredictedRows | None]:
    """So many rows of ``rest`` and a stream, in blocks; and the rest of the last block, which alone is kept."""
    held: list[PredictedRows] = []
    while rows:
        block = next(stream) if rest is None else rest
        rest = block.part(slice(rows, None)) if len(block.values) > rows else None
        held.append(block if rest is None else block.part(slice(0, rows)))
        rows -= len(held[-1].values)
    return held, rest


def _values(model: KernelMachine, held: Sequence[PredictedRows], column: OutputColumn) -> Array:
    if column.is_id:
        found = [block.y for block in held if block.y is not None]
    elif column.name == "prediction":
        found = [block.values for block in held]
    else:
        found = [block.outputs for block in held if block.outputs is not None]
        if column.name == "interval":
            found = [model.intervals(F, column.coverage).reshape(len(F), -1) for F in found]
        elif column.name == "probabilities":
            found = [model.probabilities(F) for F in found]
    shape = (0, len(column.fields)) if column.fields else (0,)
    values = np.concatenate(found) if found else np.empty(shape, column.dtype)
    if column.name == "prediction" and not column.is_id and isinstance(model.encoding, Classes):
        values = model.encoding.values.astype(column.dtype)[values.astype(np.int64, copy=False)]
    return values


def _place(output: str | os.PathLike[str], format: str | None) -> tuple[Path, str]:
    url = given_path(output)
    if is_remote(url):
        raise UsageError(
            "predictions are written to local files only",
            where=url,
            expected="a local path",
            remedy="predict to a local file, then copy it to the store",
        )
    place = Path(os.path.abspath(url.removeprefix("file://")))
    format = format or next((name for name, ends in SUFFIXES.items() if place.suffix in ends), None)
    if format not in FORMATS:
        raise UsageError(
            "the format of the predictions is not known",
            where=url,
            expected="an output that ends in .parquet, .csv or .zarr",
            remedy=f"say which: {', '.join(FORMATS)} (--format)",
        )
    return place, format


def _require_room(place: Path, replace: bool) -> None:
    if os.path.lexists(place) and not replace:
        raise StorageError(
            "this path already exists",
            where=str(place),
            expected="nothing, or predictions of the same rows by the same model",
            remedy="choose another place, or remove it, or ask to overwrite it if it holds other predictions",
        )


def _open(model: KernelMachine, data: Any, id: str | None, options: dict[str, Any]) -> Source:
    """The id column takes the target's place."""
    names = model.columns
    try:
        source = open_tables([data], columns=names, schema=model.schema, id=id, **options)
    except UsageError as error:
        if names is None or id in names:
            raise
        raise DataError(
            f"The columns of training cannot be chosen: {error.what}.",
            where=error.where,
            expected=f"columns {first_names(names)}",
            remedy="store the rows with the names of their columns",
        ) from error
    where = source.where(0) if len(source.bounds) > 1 else "a table of no rows"
    if source.n_features != model.n_features:
        raise DataError(
            f"The rows have {source.n_features} features, and the model was trained on {model.n_features}.",
            where=where,
            expected=f"{model.n_features} features" if names is None else f"columns {first_names(names)}",
            remedy="give the columns of training, in their order",
        )
    if model.schema is not None:
        return source.conformed(model.schema)
    require_numbers(source, model.transforms)
    trained = model.metadata.get("dtype")
    kinds = [_KINDS[np.dtype(dtype).kind] for dtype in (source.dtype, trained or source.dtype)]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"The features are {kinds[0]} ({source.dtype}), and the model was trained on {kinds[1]} "
            f"({np.dtype(trained).name}).",
            where=where,
            expected=f"{kinds[1]}, as they were stored for training",
            remedy="check that the rows are in the units of training; if they are, store them in its dtype",
        )
    return source


def _fields(kind: str, names: Iterable[Any]) -> tuple[str, ...]:
    return tuple(f"{kind}_{name}" for name in names)


def _satisfying(
    condition: str | None, source: Source, data: Any, schema: Schema | None, options: dict[str, Any]
) -> Source:
    """Return the rows that satisfy a condition on any columns of the data, or all rows without a condition."""
    if condition is None:
        return source
    names = names_in(condition)
    kinds = {} if schema is None else {column.name: column.kind for column in schema.columns if column.name in names}
    named = open_tables([data], "", names, weight="", time="", group="", schema=kinds or None, **options)
    rule = rows_where(condition, columns_of(named), int(source.bounds[-1]))
    found = FilteredSource(source, (rule,))
    if not found.bounds[-1]:
        raise DataError(
            f"No row satisfies {condition!r}.", where="where", expected="at least one row", remedy="check the condition"
        )
    return found


def _columns(
    model: KernelMachine, source: Source, id: str | None, scores: bool, probabilities: bool, interval: float | None
) -> list[OutputColumn]:
    columns: list[OutputColumn] = []
    if id is not None:
        assert source.target is not None
        text = source.reading().row - source.n_features * source.dtype.itemsize
        columns.append(OutputColumn(id, source.target.dtype, text_bytes=text, is_id=True))
    dtype, encoding = model._output_dtype, model.encoding
    if isinstance(encoding, Classes | Indicators):
        if isinstance(encoding, Classes):
            names, kind = encoding.values.tolist(), encoding.values.dtype
            longest = max((sys.getsizeof(name) for name in names), default=0)
            made = np.dtype(object) if kind.kind in "UTO" else kind
            columns.append(OutputColumn("prediction", made, text_bytes=max(TEXT_BYTES, longest)))
        else:
            names = list(encoding.names)
            columns.append(OutputColumn("prediction", np.dtype(np.int64), _fields("prediction", names)))
        if scores:
            columns.append(OutputColumn("scores", dtype, _fields("score", names)))
        if probabilities:
            model.probabilities(np.zeros((0, len(names))))  # raises, if the model has none, before a row is read
            columns.append(OutputColumn("probabilities", np.dtype(np.float64), _fields("probability", names)))
    elif scores or probabilities:
        raise UsageError(
            f"The model predicts values, and has no {'scores' if scores else 'probabilities'} of classes.",
            where="scores" if scores else "probabilities",
            expected="a classifier",
            remedy=f"leave {'scores' if scores else 'probabilities'} out",
        )
    else:
        names = list(encoding.levels if isinstance(encoding, Quantiles) else range(model.weights.shape[1]))
        columns.append(OutputColumn("prediction", dtype, () if encoding.flat else _fields("prediction", names)))
    if interval is not None:
        c = model.weights.shape[1]
        model.intervals(np.zeros((0, 2 * c)), interval)  # raises, if the model has none, before a row is read
        endings = [""] if getattr(encoding, "flat", True) else [f"_{j}" for j in range(c)]
        fields = tuple(f"{end}{ending}" for ending in endings for end in ("lower", "upper"))
        columns.append(OutputColumn("interval", np.dtype(np.float64), fields, coverage=interval))
    return columns


def _require_free_name(id: str | None, columns: Sequence[OutputColumn], format: str) -> None:
    written = [
        name for c in columns if not c.is_id for name in (c.fields if c.fields and format != "zarr" else [c.name])
    ]
    if id in written:
        raise UsageError(
            f"The id column and a column of the predictions are both called {id!r}.",
            where="id",
            expected=f"a name other than {first_names(written)}",
            remedy=f"rename the column in the data, such as to {id + '_id'!r}; or leave the id out",
        )
    if id is not None and format == "zarr" and ("/" in id or id.startswith((".", "__")) or id == "zarr.json"):
        raise UsageError(
            f"An array of zarr cannot be called {id!r}.",
            where="id",
            expected="a name without '/' that does not begin with a point or two underscores",
            remedy="write parquet or CSV, rename the column in the data, or leave the id out",
        )


def evaluate(
    model: AnyModel,
    data: Any,
    target: str | Sequence[str],
    *,
    where: str | None = None,
    resources: Resources | None = None,
    read_options: ReadOptions | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Score a model on stored rows, as ``KernelMachine.score`` does; arguments are those of ``predict``."""
    given = given_resources(resources, None, None)
    budget = given.budget
    with open_resources(given) as executor:
        machine = open_model(model)
        options: dict[str, Any] = {"memory": budget, "read_options": read_options}
        source = open_tables([data], target, machine.columns, schema=machine.schema, **options)
        source = _satisfying(where, source, data, machine.schema, options)
        dataset = drop_zero_weight_rows(Dataset(source))
        held, working = _prediction_memory(machine, dataset)
        sums = sums_in_flight(executor.slots, max(1, dataset.base_rows // 1024)) + 2 * executor.slots
        held += sums * ranks_bytes(dataset.base_rows, machine.encoding.outputs)
        require_sweep_memory("evaluation", source, working, budget, executor.slots, held)
        with unchanging(dataset):
            return machine.score(dataset, executor=executor)
