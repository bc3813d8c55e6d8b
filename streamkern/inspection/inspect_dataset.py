"""Summary of a data set (schema, columns, classes, order of rows) from sweeps in bounded memory."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.costs.footprint import require_sweep_memory
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan, scan_rows
from streamkern.data.statistics import RawScan
from streamkern.defaults import COLUMN_KINDS, MAX_SHUFFLE_RATIO, REFERENCE_BATCH
from streamkern.errors import DataError
from streamkern.execute import Executor, open_resources
from streamkern.formats.open_tables import open_tables
from streamkern.inspection.column_sketches import HISTOGRAM_BINS, ColumnSketches, ColumnSums, Histogram
from streamkern.inspection.shuffle_quality import stream_ratio
from streamkern.memory import check_memory, format_bytes
from streamkern.preprocessing.category_steps import related_rows_notes
from streamkern.resources import Resources, given_resources
from streamkern.sources.base import MAX_DISTINCT_TEXTS, ColumnDescription, Source, shown_text
from streamkern.sources.ingest_record import ingest_record
from streamkern.sources.input_types import looks_like
from streamkern.storage.untrusted_files import given_path
from streamkern.sweep import ScanWork, sweep

MAX_SHOWN = 24
"""Columns and classes in the text; JSON has all."""

MAX_FREQUENT_VALUES = 5
"""Number of frequent values shown for a column of text; JSON has twenty times as many."""

_RAMP = " .:-=+*#%@"


@dataclass(frozen=True, eq=False)
class Inspection:
    """Facts about a data set, computed from all its rows.

    Attributes:
        facts: schema, chunks, bytes, classes, order and origin of the rows, JSON-serialisable.
        columns: summaries of the columns.
        names: names of the columns.
        others: name, type and contents of columns that cannot be features without encoding, such as text.
    """

    facts: dict[str, Any]
    columns: ColumnSketches
    names: list[str]
    others: list[tuple[str, str, ColumnDescription]]

    def to_json(self) -> dict[str, Any]:
        """Return all facts; undefined numbers are null. The bins of a histogram begin at the column's ``min``."""
        c = self.columns
        sketches = [
            {
                "name": name,
                "mean": _number(c.mean[j]),
                "std": _number(c.std[j]),
                "min": _number(c.low[j]),
                "max": _number(c.high[j]),
                "missing": int(c.missing[j]),
                "infinite": int(c.infinite[j]),
                "bin_width": _number(c.bin_width[j]),
                "histogram": c.counts(j).tolist(),
            }
            for j, name in enumerate(self.names)
        ]
        others = [_other_json(name, kind, found) for name, kind, found in self.others]
        return {**self.facts, "columns": sketches, "others": others}

    def text(self) -> str:
        """Return the inspection as text."""
        facts, c = self.facts, self.columns
        chunks, size = facts["chunks"], facts["bytes"]
        numbers = [j for j, name in enumerate(self.names) if name not in facts["text"]]  # no codes of text
        low, high = c.low[numbers].min(initial=math.inf), c.high[numbers].max(initial=-math.inf)
        stored = "" if size["stored"] is None else f", {format_bytes(size['stored'])} on disk"
        lines = [
            facts["path"],
            f"  rows      {facts['rows']:,} of {facts['n_features']:,} features ({facts['dtype']})",
            f"  bytes     {format_bytes(size['decoded'])} decoded{stored}",
            f"  chunks    {chunks['count']:,} of {chunks['min_rows']:,} to {chunks['max_rows']:,} rows "
            f"({format_bytes(chunks['max_bytes'])})",
            f"  range     {'no finite value' if low > high else f'{low:.6g} to {high:.6g}'}",
            f"  missing   {int(c.missing.sum()):,} values in {int((c.missing > 0).sum()):,} columns"
            + (f", {int(c.infinite.sum()):,} infinite" if c.infinite.any() else ""),
        ]
        lines += [*self._roles_lines(), *self._order_lines(), *self._table_lines(), *self._others_lines()]
        return "\n".join([*lines, *(f"advice: {text}" for text in facts["advice"])])

    def _roles_lines(self) -> list[str]:
        facts, target, lines = self.facts, self.facts["target"], list[str]()
        if target is not None:
            none = f", missing in {target['missing']:,} rows" if target["missing"] else ""
            lines.append(f"  target    {target['name']} ({target['dtype']}{target['outputs'] or ''}){none}")
        if facts["classes"]:
            counts = sorted(facts["classes"], key=lambda pair: -pair[1])
            given = sum(count for _, count in counts)
            listed = [f"{_shown(label)} {count / given:.1%}" for label, count in counts[:MAX_SHOWN]]
            lines.append(f"  classes   {len(counts)}: {', '.join(listed)}{_more(counts)}")
        for kind in COLUMN_KINDS:
            named = [_shown(column["name"]) for column in facts["schema"] or () if column["kind"] == kind]
            if named:
                lines.append(f"  {kind:<8}  {', '.join(named[:MAX_SHOWN])}{_more(named)}")
        if facts["left_out"]:
            names = ", ".join(_shown(name) for name in facts["left_out"][:MAX_SHOWN])
            lines.append(f"  left out  {names}: an index of the rows, unless --columns or columns= names it")
        return lines

    def _order_lines(self) -> list[str]:
        facts, order, made, lines = self.facts, self.facts["order"], self.facts["ingested"], list[str]()
        if order["ratio"] is not None:
            lines.append(
                f"  order     labels of {REFERENCE_BATCH} rows of a chunk vary {order['ratio']:.2f} times as at random"
            )
        elif facts["target"] is not None and self.names:
            lines.append("  order     not measured: labels are in one chunk alone, whose rows training mixes")
        elif facts["target"] is None and self.names:
            lines.append("  order     not known without the labels: --target NAME, target=NAME")
        if order["recorded"] is not None:
            lines.append(f"            recorded: {order['recorded']} shuffle")
        if made is not None:
            lines.append(f"  ingested  by streamkern {made['version']} from {', '.join(made['sources'][:3])}")
        return lines

    def _table_lines(self) -> list[str]:
        c, lines = self.columns, list[str]()
        shown = [_shown(name) for name in self.names[:MAX_SHOWN]]
        width = max([6, *map(len, shown)])
        heads = "  ".join(f"{head:>10}" for head in ("mean", "std", "min", "max"))
        if shown:
            lines.append(f"  {'column':<{width}}  {heads}  {'missing':>8}  sketch")
        for j, name in enumerate(shown):
            if self.names[j] in self.facts["text"]:
                lines.append(f"  {name:<{width}}  {'text, stored as codes':<46}  {int(c.missing[j]):>8,}")
                continue
            found = (c.mean[j], c.std[j], c.low[j], c.high[j])
            numbers = "  ".join(f"{value:>10.4g}" if math.isfinite(value) else f"{'-':>10}" for value in found)
            lines.append(
                f"  {name:<{width}}  {numbers}  {int(c.missing[j]):>8,}  |{_drawn(c.counts(j)):<{HISTOGRAM_BINS}}|"
            )
        if len(self.names) > MAX_SHOWN:
            lines.append(f"  and {len(self.names) - MAX_SHOWN:,} more columns: --json has them")
        return lines

    def _others_lines(self) -> list[str]:
        if not self.others:
            return []
        rows = self.facts["rows"]
        table = [_other_text(name, kind, found, rows) for name, kind, found in self.others[:MAX_SHOWN]]
        table.insert(0, ("column", "type", "missing", "distinct", "values"))
        w = [max(len(line[i]) for line in table) for i in range(4)]
        lines = [f"  {n:<{w[0]}}  {k:<{w[1]}}  {m:>{w[2]}}  {u:>{w[3]}}  {v}".rstrip() for n, k, m, u, v in table]
        if len(self.others) > MAX_SHOWN:
            lines.append(f"  and {len(self.others) - MAX_SHOWN:,} more of them: --json has them")
        return lines


def inspect(
    path: Any,
    target: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    schema: Any = None,
    exclude: Sequence[str] = (),
    header: bool = True,
    memory: str | int | None = None,
    threads: int | None = None,
    resources: Resources | None = None,
    storage_options: dict[str, Any] | None = None,
    read_options: Any = None,
) -> Inspection:
    """Summarise a data set: columns, missing values, classes and the order of rows. This reads all rows twice.

    Args:
        path: a path, glob or URL, as for ``open_dataset``; or arrays, or a frame.
        target: the column of targets, or several; by default, the one recorded by ``ingest`` or ``write_zarr``.
        columns: features to summarise.
        schema: kinds of columns by name, as for ``open_dataset``.
        exclude: columns to leave out.
        header: whether the first line of a text table names its columns.
        memory: memory limit of the process in bytes, or a size such as ``"8GiB"``; by default, half of the machine's
            memory.
        threads: threads of this process; by default, its number of cores.
        resources: a ``Resources``, to compute on a Dask cluster or in worker processes.
        storage_options: options for fsspec.
        read_options: for text tables, as for ``open_dataset``.

    Raises:
        StorageError: a chunk cannot be read.
        DataError: the files cannot be read as rows.
        PlanRefusedError: reading would exceed ``memory``; the message has a remedy.
        MemoryLimitError: the process exceeded its memory limit.
    """
    given = given_resources(resources, memory, threads)
    budget = given.budget
    with open_resources(given) as executor:
        read = partial(
            open_tables, [path], target, columns, header=header, exclude=exclude, storage_options=storage_options,
            memory=budget, read_options=read_options,
        )  # fmt: skip
        found = _inspected(Dataset(read(lenient=True)), path, executor, budget)
        with suppress(DataError):  # an unusable target, which is listed with the other columns
            rows = read(schema=schema)
            found.facts["schema"] = None if rows.schema is None else rows.schema.to_json()
            found.facts["advice"] += [] if rows.row_roles else related_rows_notes(Dataset(rows))
        return found


def _inspected(dataset: Dataset, path: Any, executor: Executor, budget: int) -> Inspection:
    source = dataset.source
    d = source.n_features
    if not source.non_features or not len(dataset):
        dataset._require_rows()
    block_rows = scan_rows(max(1, d))
    values = d + (0 if source.target is None else source.target.width)
    held = 8 * values * (12 + HISTOGRAM_BINS)  # sums of columns, and of their histograms
    require_sweep_memory("inspection", source, 4 * 8 * block_rows * values + 4 * held, budget, executor.slots)
    scan = RawScan(Scan(Assembly(dataset), block_rows))
    first = scan.block((0,))[0]
    pivot = np.where(np.isfinite(first.X[0]), first.X[0], 0).astype(np.float64)
    sums = sweep(executor, ScanWork(scan, ColumnSums(pivot, source.target)))
    histogram = Histogram.of(sums)
    (counts,) = sweep(executor, ScanWork(scan, histogram))
    sketches = ColumnSketches.of(sums, pivot, histogram.width, counts)
    names = [f"f{j}" for j in range(d)] if source.columns is None else list(source.columns)
    facts = _facts(dataset, path, sums[7:])
    others = []
    if source.non_features:
        found = sweep(executor, ScanWork(_Chunks(source), _blocks_unchanged))
        others = [(name, kind, what) for (name, kind), what in zip(source.non_features, found, strict=True)]
    facts["advice"] = _advice(sketches, names, facts) + _advice_on(others)
    return Inspection(facts, sketches, names, others)


@dataclass(eq=False)
class _Chunks:
    source: Source

    def __len__(self) -> int:
        return len(self.source.bounds) - 1

    def block(self, key: tuple[int, ...]) -> tuple[ColumnDescription, ...]:
        check_memory()
        return tuple(self.source.describe(key[0]))


def _blocks_unchanged(parts: tuple[ColumnDescription, ...], state: Any) -> tuple[ColumnDescription, ...]:
    return parts


def _facts(dataset: Dataset, path: Any, labels: tuple[Any, ...]) -> dict[str, Any]:
    source = dataset.source
    sizes = np.diff(source.bounds)
    row = source.n_features * source.dtype.itemsize
    named = isinstance(path, str | os.PathLike)
    record = ingest_record(path) if named else None
    classes = None
    if (target := source.target) is not None and labels[1].counts is not None and target.dtype.kind != "f":
        classes = [[label, count] for label, count in sorted(labels[1].counts.items())]
    return {
        "path": os.fspath(path) if named else f"{type(path).__name__} in memory",
        "rows": len(dataset),
        "n_features": source.n_features,
        "dtype": source.dtype.name,
        "target": None
        if target is None
        else {"name": target.name, "dtype": target.dtype.name, "outputs": list(target.outputs), "missing": labels[0]},
        "chunks": {
            "count": len(sizes),
            "min_rows": int(sizes.min()),
            "max_rows": int(sizes.max()),
            "max_bytes": int(sizes.max()) * row,
        },
        "bytes": {"decoded": len(dataset) * row, "stored": _stored_bytes(path) if named else None},
        "text": list(source.text),
        "left_out": list(source.left_out),
        "schema": None,
        "classes": classes,
        "order": {
            "ratio": stream_ratio(dataset, mix_chunks=1, lanes=1, batch=REFERENCE_BATCH),
            "batch": REFERENCE_BATCH,
            "recorded": None if record is None else record.get("shuffle"),
        },
        "fingerprint": source.fingerprint,
        "ingested": record,
    }


def _advice(columns: ColumnSketches, names: list[str], facts: dict[str, Any]) -> list[str]:
    advice = []
    ranges = [*zip(names, columns.low, columns.high, strict=True)]
    if constant := [name for name, low, high in ranges if low == high]:
        advice.append(f"{len(constant)} column(s) never vary: {_first(constant)}")
    if empty := [name for name, low, high in ranges if low > high]:
        advice.append(f"{len(empty)} column(s) have no finite value: {_first(empty)}")
    if columns.missing.any() or columns.infinite.any():
        missing = "missing values are filled where preprocess is automatic; infinite ones are errors"
        advice.append(missing if columns.infinite.any() else missing.partition(";")[0])
    if facts["target"] is not None and facts["target"]["missing"]:
        advice.append("rows without a label are errors in training: fill or drop them first")
    # Only for parquet and arrays; an empty field of a text file is a missing label.
    if unnamed := dict(facts["classes"] or ()).get("", 0):
        advice.append(f"{unnamed:,} labels are empty texts, which training treats as a class")
    ratio = facts["order"]["ratio"]
    if ratio is not None and ratio > MAX_SHUFFLE_RATIO:
        advice.append("the rows are sorted by label, or nearly so: streamkern ingest --shuffle")
    stds = columns.std[[name not in facts["text"] for name in names]]
    scales = stds[stds > 0]
    if len(scales) and scales.max() > 1e3 * scales.min():
        advice.append('the scales of columns differ more than a thousandfold: preprocess="auto" standardises them')
    return advice


def _advice_on(others: list[tuple[str, str, ColumnDescription]]) -> list[str]:
    texts = [(name, found) for name, kind, found in others if kind.startswith("string")]
    like = {}
    for name, found in texts:
        ends = [shown_text(end[1]) for end in (found.low, found.high) if end is not None]
        like[name] = looks_like(found.counts or ends)
    advice = [
        f"column {_shown(name)} is text that looks like {what}: convert it, or it counts as a category"
        for name, what in like.items()
        if what is not None
    ]
    ids = [name for name, found in texts if found.counts is None and like[name] is None]
    if ids:
        advice.append(f"more than {MAX_DISTINCT_TEXTS:,} different values; leave ids out: --exclude {_first(ids)}")
    return advice


def _other_json(name: str, kind: str, found: ColumnDescription) -> dict[str, Any]:
    text = kind.startswith("string")
    low, high = (None if end is None else shown_text(end[1]) for end in (found.low, found.high))
    counted = found.counts is not None and found.low is not None
    return {
        "name": name,
        "type": kind,
        "missing": found.missing,
        "distinct": len(found.counts) if found.counts is not None and counted else None,
        "more_than": MAX_DISTINCT_TEXTS if found.counts is None else None,
        "frequent": [[shown_text(value), n] for value, n in _frequent(found)[: 20 * MAX_FREQUENT_VALUES]],
        "shortest" if text else "min": low,
        "longest" if text else "max": high,
    }


def _other_text(name: str, kind: str, found: ColumnDescription, rows: int) -> tuple[str, str, str, str, str]:
    distinct = f"> {MAX_DISTINCT_TEXTS:,}" if found.counts is None else f"{len(found.counts):,}" if found.low else "-"
    words = []
    values = _frequent(found)
    if values:
        listed = ", ".join(
            f"{_shown(_cut(shown_text(value)))} {n / rows:.1%}" for value, n in values[:MAX_FREQUENT_VALUES]
        )
        words.append(listed + (", ..." if len(values) > MAX_FREQUENT_VALUES else ""))
    if found.low is not None and found.high is not None and len(values) != 1:
        low, high = shown_text(found.low[1]), shown_text(found.high[1])
        if kind.startswith("string"):
            short, long = int(found.low[0]), int(found.high[0])
            lengths = f"length {short}" if short == long else f"lengths {short} to {long}"
            words.append(f"{lengths}, {_cut(low)!r} to {_cut(high)!r}")
        else:
            words.append(f"{low.removesuffix('.000000000')} to {high.removesuffix('.000000000')}")
    return _shown(name), kind, f"{found.missing:,}", distinct, "; ".join(words)


def _frequent(found: ColumnDescription) -> list[tuple[str, int]]:
    return sorted((found.counts or {}).items(), key=lambda pair: (-pair[1], pair[0]))


def _cut(text: str) -> str:
    return text if len(text) <= 24 else text[:21] + "..."


def _stored_bytes(path: str | os.PathLike[str]) -> int | None:
    place = Path(given_path(path).removeprefix("file://"))
    if place.is_file():
        return place.stat().st_size
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) if place.is_dir() else None


def _shown(label: Any) -> str:
    text = str(label)
    return text if text and text.isprintable() else repr(text)


def _more(listed: Sequence[Any]) -> str:
    return f" and {len(listed) - MAX_SHOWN} more" if len(listed) > MAX_SHOWN else ""


def _first(names: Sequence[str]) -> str:
    return ", ".join(map(_shown, names[:5])) + (", ..." if len(names) > 5 else "")


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _drawn(counts: Any) -> str:
    """Counts as a line of marks; every nonzero count is visible."""
    top = max(1, int(counts.max(initial=0)))
    return "".join(_RAMP[0 if not n else 1 + (len(_RAMP) - 2) * int(n) // top] for n in counts)
