"""Detection of rows already in a champion's sums and of new rows, by the pieces in which rows are stored.

A piece is a file of parquet, a table of several, or the stored chunks of some rows of a zarr array in a local store.
Digests are of metadata: name, size, time. If the last piece has grown, its earlier rows are compared by content.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_selection import OutsideRanges
from streamkern.data.subsample import read_rows
from streamkern.data.transforms import dump
from streamkern.defaults import TAIL_BYTES
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.models.kernel_machine import KernelMachine
from streamkern.runs.pipeline_definition import Pipeline
from streamkern.sources.base import Source
from streamkern.storage.value_digest import array_content, digest
from streamkern.user_code_digest import described


class ReusableSums(NamedTuple):
    """The reuse of a champion's sums: the new rows, and the number of rows that are not read."""

    added: Dataset | None
    reused: int


def training_record(pipeline: Pipeline) -> dict[str, Any]:
    """Return a record of a pipeline's training rows and settings, stored with a version that keeps sums."""
    train, source = pipeline.train, pipeline.train.source
    pieces, start = list[list[Any]](), 0
    digits = 16  # characters of a stored digest, since there are many pieces
    for name, rows in source.pieces():
        pieces.append([name[:digits], start, rows])
        start += rows
    tail = pieces[-1] if pieces else None
    small = tail is not None and tail[2] * source.reading().row <= TAIL_BYTES
    return {
        "definition": digest(
            [described(part) for part in (pipeline.kernel, pipeline.metric, pipeline.centers, pipeline.features)],
            [described(step) for step in preprocessing_steps(pipeline)],
            [described(pipeline.solver), pipeline.task, pipeline.seed, pipeline.lanes, pipeline.dtype],
            [str(pipeline.class_weight), pipeline.threshold],
            [source.columns, source.n_features, source.target is not None and source.target.outputs, source.weight],
            [np.asarray(value, dtype=np.float64).tolist() for value in (train.factor, train.shift)],
            dump(train.transforms)[0],
        ),
        "rules": digest([rule.to_json() for rule in train.rules]) if train.rules else "",
        "pieces": pieces,
        "tail": _content(source, tail[1], tail[1] + tail[2]) if small and tail is not None else "",
    }


def reusable_sums(
    pipeline: Pipeline, now: dict[str, Any], champion: KernelMachine, record: dict[str, Any], forget: Dataset | None
) -> ReusableSums | str:
    """Return the reuse of the champion's sums, or why not; rows to ``forget`` have their original values."""
    before = record.get("sums")
    if champion.sums is None or before is None:
        return "the champion keeps no sums"
    if before["definition"] != now["definition"]:
        return "the definition differs from the champion's"
    if before["rules"] != now["rules"]:
        return "other rows are chosen than for the champion"
    kept, gone = _known_ranges(pipeline.train.source, before, now)
    lost = sum(rows for _, _, rows in gone)
    if lost != (0 if forget is None else forget.base_rows):
        given = "" if forget is None else f", and {forget.base_rows:,} are to be forgotten"
        return f"{lost:,} stored rows of the champion's have changed or are gone{given}"
    if lost and now["rules"]:
        return "rows are chosen by their numbers, and some are gone"
    added: Dataset | None = replace(pipeline.train.plain(), rules=(OutsideRanges(tuple(kept)), *pipeline.train.rules))
    assert added is not None
    if not added.base_rows:
        if not lost:
            return "no rows are new"
        added = None
    n = 0 if added is None else added.base_rows
    return ReusableSums(added, pipeline.train.base_rows - n)


def _known_ranges(
    source: Source, before: dict[str, Any], now: dict[str, Any]
) -> tuple[list[tuple[int, int]], list[Any]]:
    """Return ranges of present stored rows that the champion has seen, and the champion's pieces that are gone."""

    def name(piece: list[Any]) -> tuple[Any, ...]:
        return tuple(piece) if now["rules"] else (piece[0], piece[2])

    waiting = Counter(name(piece) for piece in before["pieces"])
    kept, fresh = [], []
    for piece in now["pieces"]:
        if waiting[name(piece)]:
            waiting[name(piece)] -= 1
            kept.append((piece[1], piece[1] + piece[2]))
        else:
            fresh.append(piece)
    gone = []
    for piece in before["pieces"]:
        if waiting[name(piece)]:
            waiting[name(piece)] -= 1
            gone.append(piece)
    last = before["pieces"][-1]
    if gone == [last] and before["tail"]:
        for _, start, rows in fresh:
            where = start == last[1] or not now["rules"]
            if where and rows >= last[2] and _content(source, start, start + last[2]) == before["tail"]:
                kept.append((start, start + last[2]))
                return sorted(kept), []
    return sorted(kept), gone


def _content(source: Source, a: int, b: int) -> str:
    found = hashlib.blake2b(digest_size=16)
    for values in read_rows(source, np.arange(a, b, dtype=np.int64)):
        if values is not None:
            found.update(array_content(values))
    return found.hexdigest()
