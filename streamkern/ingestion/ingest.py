"""Conversion of any table to the training layout, in a directory next to the target, which appears by one rename."""

from __future__ import annotations

import itertools
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numcodecs import BitRound

from streamkern.errors import DataError, PlanRefusedError, UsageError
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.formats.training_zarr import TrainingZarr
from streamkern.ingestion.array_files import READERS
from streamkern.ingestion.external_shuffle import ROW_EXTRA, SortedRun, SortedRuns
from streamkern.ingestion.upload import ZarrUpload
from streamkern.memory import format_bytes, memory_limit, parse_bytes, release_free_memory, resident_bytes
from streamkern.progress import display_if_verbose, reporter
from streamkern.redaction import redacted
from streamkern.resources import Resources, given_resources
from streamkern.sources.base import Source
from streamkern.sources.column_roles import opened_with_dates
from streamkern.sources.format_rules import (
    blocks_of,
    existing_output_error,
    feature_dtype,
    require_compression,
    rows_per_chunk,
)
from streamkern.sources.ingest_record import RECORD, ingest_record
from streamkern.sources.read_options import ReadOptions
from streamkern.sources.remote_store import is_remote
from streamkern.storage.atomic_writes import Workspace, write_json
from streamkern.storage.untrusted_files import given_path
from streamkern.storage.value_digest import digest
from streamkern.types import Array, Rows, Target
from streamkern.version import VERSION

_WORDS_KEPT = 1000

T = TypeVar("T")
U = TypeVar("U")

FORMATS = ("zarr", "parquet")
PART_CHUNKS = 64
"""Row groups in a parquet file: about 256 MiB, the most that an interruption loses."""

OVERHEAD_BYTES, THREAD_BYTES = 48 << 20, 24 << 20
"""Bytes of decoders and codecs after their first use, and bytes that each thread keeps."""

Progress = Callable[[str, int, int], None]
"""Called with the activity, rows done, and rows in all."""


@dataclass(frozen=True)
class Ingested:
    """Result of ``ingest``.

    Attributes:
        path: path of the data set.
        rows: number of rows.
        n_features: number of features of a row.
        dtype: stored dtype of the features.
        target: name of the target, or None.
        shuffled: whether the rows are in a random order.
        seconds: duration in seconds.
        kept: rows written by an earlier, interrupted call; all rows if the data set existed already.
        decoded_bytes: bytes of all rows in memory, in the stored dtypes.
        stored_bytes: bytes on disk.
    """

    path: str
    rows: int
    n_features: int
    dtype: str
    target: str | None
    shuffled: bool
    seconds: float
    kept: int
    decoded_bytes: int
    stored_bytes: int

    def __str__(self) -> str:
        what = f"{self.rows:,} rows of {self.n_features} features ({self.dtype})"
        order = "in random order" if self.shuffled else "in the order of the sources"
        speed = f"{format_bytes(self.decoded_bytes)} in {self.seconds:.1f} s"
        kept = f", {self.kept:,} rows of them written before" if self.kept else ""
        return f"{self.path}: {what}, {order}; {speed}{kept}; {format_bytes(self.stored_bytes)} on disk"


def ingest(
    sources: Any, output: str | os.PathLike[str], *, target: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None, weight: str | None = None, time: str | None = None,
    group: str | None = None, shuffle: bool = False, seed: int = 0,
    format: str | None = None, dtype: str | None = None, shard: int | str | None = None, compression: str = "fast",
    keep_bits: int | None = None, memory: int | str | None = None, threads: int | None = None,
    resources: Resources | None = None, header: bool = True, missing: str = "nan", schema: Any = None,
    exclude: Sequence[str] = (), overwrite: bool = False, storage_options: dict[str, Any] | None = None,
    read_options: ReadOptions | Mapping[str, Any] | None = None, on_progress: Progress | None = None, verbose: int = 0,
) -> Ingested:  # fmt: skip
    """Write the rows of tables or arrays as a zarr or parquet dataset, in the library's layout for training.

    Zarr v3 output has compressed chunks of about 4 MiB with a CRC-32C each. Parquet output is a directory of files with
    one binary column and page checksums. A repeated call writes only the parts that are missing.

    Args:
        sources: one source or a list of sources. A source is a path, glob or fsspec URL (parquet, zarr, CSV, Arrow,
            npy, npz, HDF5). It may also be an array (NumPy or Dask), a pair (X, y) of arrays, a frame (pandas, polars,
            lazy polars or Dask), or an Arrow table.
        output: a local directory to create. For zarr it may be the URL of a store; the data are first written to the
            local disk below TMPDIR, and then uploaded.
        target: the column of targets; several columns for several outputs.
        columns: features to use, in this order.
        weight: the column of sample weights >= 0; stored as float64. ``open_dataset`` then uses it by default.
        time: the column with the time of each row, as in ``open_dataset``, which then uses it by default.
        group: the column with the group of each row, as in ``open_dataset``, which then uses it by default.
        shuffle: put the rows in a uniformly random order. Rows that do not fit in memory are written twice.
        seed: seed of the order. The order depends only on the seed and on the order of the sources.
        format: ``zarr`` or ``parquet``; by default from the ending of ``output``.
        dtype: store features in this dtype; unchanged by default. An integer dtype must hold all values exactly.
        shard: combine zarr chunks into shards of this many bytes, to store fewer objects.
        compression: as in ``write_zarr``; only for zarr.
        keep_bits: round float features to this many bits after the leading bit, to save space; exact by default. The
            relative change of a value is at most 2^-(keep_bits + 1).
        memory: memory limit of the process in bytes, or a size such as ``"8GiB"``; by default, half of the machine's
            memory.
        threads: number of threads that decode and write; by default, the number of cores of the process.
        resources: a ``Resources`` with memory and threads.
        header: whether the first line of a text table names its columns.
        missing: ``nan`` stores a missing value among features as NaN; ``error`` raises an error.
        schema: kinds of columns by name, as in ``open_dataset``; they are stored with the data.
        exclude: columns to leave out.
        overwrite: replace an earlier result of ``ingest``.
        storage_options: options for fsspec.
        read_options: for text tables, such as ``sk.read_options(delimiter=";", decimal=",")``.
        on_progress: function called with the activity, the rows done and the total rows.
        verbose: 1 shows the progress on standard error; 0 shows nothing.

    Raises:
        UsageError: parameters contradict one another.
        PlanRefusedError: ``memory`` is too small for one chunk of a source.
        MemoryLimitError: the process exceeded its memory limit; finished parts are kept.
        StorageError: a source cannot be read, ``output`` exists and may not be replaced, or the disk is full.
        DataError: rows cannot be stored.
        BusyError: another process writes to ``output``.
    """
    began = perf_counter()
    url = given_path(output)
    store = ZarrUpload(url, storage_options) if is_remote(url) else None
    place = Path(os.path.abspath(url.removeprefix("file://"))) if store is None else store.place
    of_zarr = [*(["shard"] if shard is not None else []), *(["compression"] if compression != "fast" else [])]
    format = _format(Path(url), format, of_zarr, store is not None)
    listed = sources if isinstance(sources, list) else [sources]
    require_compression(compression, "ingest")
    if missing not in ("error", "nan"):
        raise UsageError(f"missing is {missing!r}", where="ingest", expected="'error' or 'nan'")
    budget = (given := given_resources(resources, memory, threads)).budget
    with memory_limit(budget):
        opened = partial(
            open_tables, listed, target, weight=weight, header=header, exclude=exclude,
            storage_options=storage_options, memory=budget, read_options=read_options, readers=READERS,
        )  # fmt: skip
        source, noted = _with_roles(opened, columns, schema, dtype, keep_bits, time=time, group=group)
        out = np.dtype(source.dtype) if dtype is None else _dtype(dtype)
        kept_target = None if source.target is None else _renamed(source.target)
        options = _layout_options(
            source, out, kept_target, format=format, seed=seed if shuffle else None, shard=shard, missing=missing,
            compression=compression, keep_bits=keep_bits, noted=noted,
        )  # fmt: skip
        record = {
            "fingerprint": digest(1, source.fingerprint, source.columns, source.n_features, options),
            "rows": int(source.bounds[-1]),
            "sources": [_described(one) for one in listed], "source_fingerprint": source.fingerprint,
            "version": VERSION, **options,
        }  # fmt: skip
        job = _Job(source, place, out, kept_target, record, given.slots)
        if store is not None and store.prepare(str(record["fingerprint"]), overwrite):
            return replace(job.result(began, kept=job.n), path=redacted(url))
        made = job.result(began, job.write_unless_present(overwrite, store is not None, budget, on_progress, verbose))
        return made if store is None else replace(made, path=store.send())


def _with_roles(
    opened: Callable[..., Source], columns: Any, schema: Any, dtype: Any, keep_bits: int | None, **roles: str | None
) -> tuple[Source, dict[str, Any]]:
    """Open rows with the columns of time and group behind the features; return also what the record notes of them."""
    source = opened(columns, schema=schema, **roles)
    if not source.row_roles:
        return source, {}
    exact = "keep_bits" if keep_bits is not None else "dtype" if dtype not in (None, "float64") else None
    if exact is not None:
        raise UsageError(
            f"{exact} would round the columns of time and group, {' and '.join(source.row_roles)}",
            where="ingest",
            expected="numbers as they are",
            remedy=f"leave {exact} out",
        )
    columns = [*(source.columns or ()), *(name for name in source.row_roles if name not in (source.columns or ()))]
    made = opened_with_dates(lambda schema: opened(columns, schema=schema, time="", group=""), source.time, schema)
    noted: dict[str, Any] = {role: name for role in roles if (name := getattr(source, role)) is not None}
    featured = [name for name in source.row_roles if name in (source.columns or ())]
    return made, noted | ({"featured": featured} if featured else {})


def _layout_options(
    source: Source, dtype: np.dtype[Any], target: Target | None, *, format: str, seed: int | None,
    shard: int | str | None, missing: str, compression: str, keep_bits: int | None,
    noted: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The options that decide the stored bytes, as recorded; ``seed`` is None without a shuffle."""
    options: dict[str, Any] = {
        "format": format,
        "dtype": dtype.str,
        "shuffle": None if seed is None else "global",
        "seed": seed,
        "shard": None if shard is None else parse_bytes(shard, "shard"),
        "target": None if target is None else target.name,
        "missing": missing,
    }
    if compression != "fast":
        options["compression"] = compression
    if keep_bits is not None:
        options["keep_bits"] = _kept_bits(keep_bits, dtype, bool(source.text))
    if source.schema is not None and (source.schema.missing or not source.schema.plain):
        options["schema"] = source.schema.to_json()
        options["text"] = list(source.text)
        if source.text and dtype != np.float64:
            raise UsageError(
                f"the column {source.text[0]!r} contains text, whose numbers do not fit in {dtype}",
                where="ingest(dtype=...)",
                expected="float64",
                remedy="leave dtype out, or encode the text as small numbers first",
            )
    options |= noted
    if source.weight is not None:
        options["weight"] = "sample_weight" if options["target"] == "weight" else "weight"
    return options


class _Job:
    """One ingest. Its workspace has the folders ``data`` and, if rows are shuffled on disk, ``runs``."""

    def __init__(
        self,
        source: Source,
        place: Path,
        dtype: np.dtype[Any],
        target: Target | None,
        record: dict[str, Any],
        threads: int,
    ) -> None:
        self.source, self.place, self.dtype, self.target = source, place, dtype, target
        self.record, self.threads, self.on_progress = record, threads, reporter(None, None)
        self.weight: str | None = record.get("weight")
        self.n = int(source.bounds[-1])
        self.work = Workspace(place, "ingest", "room for the rows, and as much again where they are shuffled")
        self._shuffled = record["shuffle"] is not None
        self._piece_rows = rows_per_chunk(source.n_features * dtype.itemsize)

    def write_unless_present(
        self, overwrite: bool, remote: bool, budget: int, on_progress: Progress | None, verbose: int
    ) -> int:
        """Return the number of rows written before."""
        present = ingest_record(self.place)
        same = present is not None and present["fingerprint"] == self.record["fingerprint"]
        if same and (not overwrite or remote):
            self.work.clear()
            return self.n
        if remote:  # made from other rows or options
            shutil.rmtree(self.place, ignore_errors=True)
        if os.path.lexists(self.place) and not (overwrite and present is not None):
            raise existing_output_error(str(self.place), overwrite, "an earlier result of ingest")
        with display_if_verbose(verbose) as display, self.work.held():
            self.on_progress = reporter(on_progress, display)
            return self.run(budget)

    def run(self, budget: int) -> int:
        """Return the number of rows kept from an earlier attempt."""
        row = self.source.n_features * self.dtype.itemsize
        as_read, rows = self.source.reading(), int(np.diff(self.source.bounds).max(initial=0))
        kept = as_read.row - self.source.n_features * self.source.dtype.itemsize  # bytes of a row's target and weight
        chunk, cast = rows * as_read.row, rows * row * (self.dtype != self.source.dtype)
        shard, piece = self.record["shard"] or 0, self._piece_rows * (row + kept)
        readers = min(self.threads, len(self.source.bounds) - 1)
        # Chunks being read, and one being copied into pieces; pieces, and their encoded bytes.
        reading = readers * (chunk + as_read.decoding + cast) + chunk + cast + as_read.once
        # When shuffling, all rows are read before the first is written.
        # Floats without repetitions do not shrink when encoded, and are copied once more with their checksum.
        writing, encoding = (self.threads + 1) * max(shard, piece), 2 * self.threads * piece
        side = max(reading, 3 * writing + encoding) if self._shuffled else reading + 2 * writing + encoding
        runs = SortedRuns(
            self.work.folder / "runs", self.source.n_features, self.dtype, self.target, self.record["seed"] or 0,
            self.weight is not None,
        )  # fmt: skip
        release_free_memory()
        base = resident_bytes() + OVERHEAD_BYTES + self.threads * THREAD_BYTES
        room = int(0.8 * (budget - base)) - side
        held = room // (runs.row_bytes + ROW_EXTRA)
        least = self._piece_rows if self._shuffled else 0
        if held < least or room < 0:
            needed = int((side + least * (runs.row_bytes + ROW_EXTRA)) / 0.8) + base
            raise PlanRefusedError(
                f"The memory of {format_bytes(budget)} is too little: chunks of the sources have "
                f"up to {format_bytes(chunk)}.",
                where="memory",
                expected=f"at least {format_bytes(needed * 1.05)} with {self.threads} thread(s)",
                remedy="give more memory, or fewer threads; or write the sources in smaller chunks (row groups)",
            )
        plan = {name: self.record[name] for name in ("fingerprint", "version")} | {"piece_rows": self._piece_rows}
        pieces = self.work.begin(plan, self._zarr if self.record["format"] == "zarr" else lambda: None)
        runs.folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(self.threads) as pool:
            if self._shuffled and held >= self.n and not runs.done:
                return self._write(runs, held, pieces, pool, self._gathered(runs, pool))
            kept = self._scatter(runs, held, pool) if self._shuffled and runs.done < self.n else 0
            return max(kept, self._write(runs, held, pieces, pool))

    def result(self, began: float, kept: int) -> Ingested:
        y = 0 if self.target is None else self.target.width * self.target.dtype.itemsize
        stored = sum(path.stat().st_size for path in self.place.rglob("*") if path.is_file())
        return Ingested(
            path=str(self.place), rows=self.n, n_features=self.source.n_features, dtype=self.dtype.name,
            target=None if self.target is None else self.target.name, shuffled=self._shuffled,
            seconds=perf_counter() - began, kept=kept,
            decoded_bytes=self.n * (self.source.n_features * self.dtype.itemsize + y), stored_bytes=stored,
        )  # fmt: skip

    def _gathered(self, runs: SortedRuns, pool: ThreadPoolExecutor) -> SortedRun:
        """Hold all rows in memory, if they fit, so that no temporary files are needed."""
        run, bounds = runs.empty(self.n), self.source.bounds
        chunks = range(len(bounds) - 1)
        for chunk, rows in zip(chunks, self._ordered(pool, self._read, chunks), strict=True):
            run.put(int(bounds[chunk]), rows)
            self.on_progress("gather", int(bounds[chunk + 1]), self.n)
        return run

    def _scatter(self, runs: SortedRuns, held: int, pool: ThreadPoolExecutor) -> int:
        """Write the remaining rows as runs of at most ``held``; return how many were already in runs."""
        done, bounds = runs.done, self.source.bounds
        groups: list[range] = []
        first = int(np.searchsorted(bounds, done))
        while first < len(bounds) - 1:
            last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + held, side="right")) - 1)
            groups.append(range(first, last))
            first = last
        whole = runs.empty(max((int(bounds[group.stop] - bounds[group.start]) for group in groups), default=0))
        chunks = self._ordered(pool, self._read, (chunk for group in groups for chunk in group))
        for group in groups:
            begin, end = int(bounds[group.start]), int(bounds[group.stop])
            run = whole.first(end - begin)
            for chunk, rows in zip(group, chunks, strict=False):
                run.put(int(bounds[chunk]) - begin, rows)
                self.on_progress("scatter", int(bounds[chunk + 1]), self.n)
            runs.write(begin, run)
        return done

    def _write(
        self, runs: SortedRuns, held: int, pieces: int, pool: ThreadPoolExecutor, run: SortedRun | None = None
    ) -> int:
        """Write the remaining pieces, and commit; return how many rows were already written."""
        group = self._zarr() if self.record["format"] == "zarr" else None
        size = self._piece_rows if group is None else group.piece_rows
        start: int = min(pieces * size * (PART_CHUNKS if group is None else 1), self.n)
        if run is not None:
            rows = runs.permuted(run, start, size)
        else:
            rows = runs.shuffled(start, held, size) if self._shuffled else self._stored(start, pool)
        blocks = blocks_of(rows, None, size)
        written = start
        counts = self._parts(blocks, pieces) if group is None else self._pieces(group, blocks, pieces, pool)
        for done, count in enumerate(counts, start=pieces + 1):
            self.work.note(done)
            written += count
            self.on_progress("write", written, self.n)
        assert written == self.n, (written, self.n)
        self.source.require_unchanged()
        record = self.record | ({"words": words} if (words := self._words()) else {})
        if group is not None:
            group.complete(ingest=record)
        else:
            write_json(self.work.data / RECORD, record)
        self.work.commit()
        return start

    def _words(self) -> dict[str, list[str]]:
        """Return texts of the columns with few distinct texts, for names of features and messages."""
        found = {}
        for j, column in enumerate(self.source.schema.columns if self.source.schema else ()):
            words = sorted(self.source.words(j).values()) if column.text else []
            if 0 < len(words) <= _WORDS_KEPT:
                found[column.name] = words
        return found

    def _zarr(self) -> TrainingZarr:
        return TrainingZarr(
            self.work.data, (self.n, self.source.n_features), self.dtype, self.target, self.source.columns,
            record=self.record, shard_bytes=self.record["shard"], weight=self.weight,
            compression=self.record.get("compression", "fast"),
        )  # fmt: skip

    def _pieces(
        self, group: TrainingZarr, blocks: Iterator[Rows], pieces: int, pool: ThreadPoolExecutor
    ) -> Iterator[int]:
        """Yield the number of rows of each chunk or shard."""

        def write(item: tuple[int, Rows]) -> int:
            group.write(*item)
            return int(item[1].X.shape[0])

        return self._ordered(pool, write, enumerate(blocks, start=pieces))

    def _parts(self, blocks: Iterator[Rows], pieces: int) -> Iterator[int]:
        """Write blocks as row groups; yield the number of rows of each file."""
        y = None if self.target is None else np.empty((0, *self.target.outputs), self.target.dtype)
        none = Rows(np.empty((0, self.source.n_features), self.dtype), y, None if self.weight is None else np.empty(0))
        while (first := next(blocks, None if pieces else none)) is not None:
            counts: list[int] = []

            def counted(some: Iterable[Rows], counts: list[int] = counts) -> Iterator[Rows]:
                for block in some:
                    counts.append(len(block.X))
                    yield block

            write_parquet(
                self.work.data / f"part-{pieces:06}.parquet",
                counted(itertools.chain([first], itertools.islice(blocks, PART_CHUNKS - 1))),
                target="target" if self.target is None else self.target.name,
                row_group_rows=self._piece_rows,
                columns=self.source.columns,
                weight=self.weight or "weight",
            )
            pieces += 1
            yield sum(counts)

    def _read(self, chunk: int) -> Rows:
        X, y, w = self.source.read_checked(chunk)
        if self.record["missing"] == "error":
            _require_values(X, self.source, chunk)
        X = X if X.dtype == self.dtype else _cast(X, self.dtype, self.source.where(chunk))
        bits = self.record.get("keep_bits")
        return Rows(X if bits is None else _rounded(X, bits), y, w)

    def _stored(self, start: int, pool: ThreadPoolExecutor) -> Iterator[Rows]:
        bounds = self.source.bounds
        chunks = range(int(np.searchsorted(bounds, start, side="right")) - 1, len(bounds) - 1)
        for chunk, rows in zip(chunks, self._ordered(pool, self._read, chunks), strict=True):
            yield rows.each(itemgetter(slice(max(0, start - int(bounds[chunk])), None)))

    def _ordered(self, pool: ThreadPoolExecutor, work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        """All threads compute; results come in order."""
        if self.threads == 1:
            yield from map(work, items)
            return
        waiting: deque[Future[U]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= self.threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _format(place: Path, format: str | None, given: Sequence[str], remote: bool) -> str:
    format = format or ("parquet" if place.suffix in (".parquet", ".pq", ".parq") else "zarr")
    if remote and format == "parquet":
        raise UsageError(
            "a folder of parquet files does not show that it is complete: readers of the store would see a part of it",
            where="ingest(format=...)",
            expected="zarr, for a URL",
            remedy="ingest to a URL that ends in .zarr, or to a local directory and copy it to the store",
        )
    if format not in FORMATS or (given and format != "zarr"):
        raise UsageError(
            f"format {format!r} is not known" if format not in FORMATS else f"{given[0]} is an option of zarr alone",
            where="ingest",
            expected=f"one of {', '.join(FORMATS)}",
            remedy="correct the format" if format not in FORMATS else f"leave {given[0]} out",
        )
    return format


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return feature_dtype(np.dtype(name), "dtype")
    except (TypeError, DataError) as error:
        raise UsageError(
            f"{name!r} is not a dtype of features", where="dtype", expected="float32, float64, uint8, ..."
        ) from error


def _kept_bits(bits: int, dtype: np.dtype[Any], text: bool) -> int:
    if dtype.kind != "f" or text or not 1 <= bits <= np.finfo(dtype).nmant:
        most = f"1 to {np.finfo(dtype).nmant} for {dtype}" if dtype.kind == "f" and not text else "features of floats"
        raise UsageError(
            f"{bits} bits cannot be kept of {'text' if text else dtype}",
            where="keep_bits",
            expected=most,
            remedy="correct keep_bits, or leave it out",
        )
    return bits


def _rounded(X: Array, bits: int) -> Array:
    """Keep ``bits`` bits after the leading one, except in missing values and those that overflow."""
    rounded: Array = BitRound(bits).encode(np.ascontiguousarray(X)).view(X.dtype).reshape(X.shape)
    return np.where(np.isfinite(X) & np.isfinite(rounded), rounded, X)


def _require_values(X: Array, source: Source, chunk: int) -> None:
    if X.dtype.kind != "f" or not (gaps := np.isnan(X)).any():
        return
    row, column = map(int, np.argwhere(gaps)[0])
    name = column if source.columns is None else repr(source.columns[column])
    raise DataError(
        f"a value of column {name} is missing",
        where=source.where_row(chunk, row),
        expected="a value in every row",
        remedy='fill or drop such rows first, or store them as NaN: missing="nan", --missing nan',
    )


def _cast(X: Array, dtype: np.dtype[Any], where: str) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        made = X.astype(dtype)
        wrong = made != X if dtype.kind in "biu" else ~np.isfinite(made) & np.isfinite(X)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            f"{X[row, column]!s} does not fit in {dtype.name}",
            where=f"{where}, row {row} of these, feature {column}",
            expected=f"values that {dtype.name} holds",
            remedy="choose a wider dtype, or leave it out",
        )
    return made


def _renamed(target: Target) -> Target:
    """A target cannot have the name of an array next to it, such as the features'."""
    name = target.name.rpartition("/")[2]
    name = "target" if name == "X" or "," in name or name[:1] in ("", ".") else name
    return Target(name, target.dtype, target.outputs)


def _described(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return redacted(os.fspath(source))
    return f"{type(source).__module__}.{type(source).__qualname__}"
