"""Retraining that only reads new rows, and adds them to the champion's sums and profile.

Known rows are found by the pieces in which rows are stored. A piece is a file of parquet, a table of several, or the
stored chunks of some rows of a zarr array in a local store. Digests are of metadata: name, size, time. If the last
piece has grown, its earlier rows are compared by content.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_selection import OutsideRanges
from streamkern.data.subsample import read_rows
from streamkern.data.targets import Classes
from streamkern.data.transforms import dump
from streamkern.defaults import TAIL_BYTES
from streamkern.execute import open_executor
from streamkern.execute.base import Parts
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.models.kernel_machine import KernelMachine
from streamkern.registry import drift
from streamkern.registry.model_comparison import ModelComparison, without_scaling
from streamkern.registry.model_registry import Registry
from streamkern.runs.pipeline_definition import Pipeline
from streamkern.sources.base import Source
from streamkern.storage.artifact import load_artifact
from streamkern.storage.value_digest import array_content, digest
from streamkern.updates.update_model import update_model
from streamkern.user_code_digest import described

PROFILE, UPDATED = "Profile", "updated.zarr"
"""Artifact kind of a version's profile; and path of the new model before it becomes a version."""


@dataclass(frozen=True, eq=False)
class IncrementalUpdate:
    """The data of one retraining: new rows, the number of rows that are not read, and the champion's profile.

    ``tally`` are counts of the present rows in the profile's bins.
    """

    added: Dataset | None
    reused: int
    before: drift.DataProfile
    tally: Parts

    def train(
        self,
        champion: KernelMachine,
        place: Path,
        validation: Dataset | None,
        forget: Dataset | None,
        settings: dict[str, Any],
    ) -> dict[str, Any]:
        """Add the new rows to the champion and save it; return the fields of a ``run``'s result."""
        started = time.perf_counter()
        new, validation = (None if rows is None else without_scaling(rows) for rows in (self.added, validation))
        model = update_model(
            champion, new, forget, validation=validation, drop_centers=True, resources=settings["resources"]
        )
        model.save(place)
        swept = sum(0 if rows is None else rows.base_rows for rows in (self.added, forget))
        return {
            "history": [{"rows": swept}],
            "weights_sha256": model.weights_sha256,
            "solver": "Direct",
            "seconds": time.perf_counter() - started,
            "resumed_rows": 0,
        }

    def profile(self, paired: ModelComparison) -> tuple[drift.DataProfile, drift.Drift]:
        """Return distributions of the present training rows, in the champion's bins, and their drift."""
        n, counts, targets, labels = self.tally
        edges = drift.edges_of(paired.challenger_scores[:, None])
        made = replace(
            self.before, n=int(n), counts=counts, target_counts=targets, labels=dict(labels), score_edges=edges,
            score_counts=drift.count(paired.challenger_scores[:, None], edges),
        )  # fmt: skip
        return made, drift.measure_drift(self.before, self.tally, paired.champion_scores)


def profile_of(models: Registry, version: int | None) -> drift.DataProfile:
    """Return the profile that a version of a registry was stored with."""
    return drift.DataProfile.load(*models.read(version, "profile.zarr", lambda at: load_artifact(at, PROFILE)))


def incremental_update(
    pipeline: Pipeline,
    sums: dict[str, Any],
    champion: KernelMachine,
    models: Registry,
    forget: Dataset | None,
    threads: int | None,
) -> tuple[IncrementalUpdate | None, str | None]:
    """Return an update of the champion's sums; or None and the reason why every row must be read again."""
    number = models.champion
    reusable = reusable_sums(pipeline, sums, champion, models.record(number), forget)
    if isinstance(reusable, str):
        return None, reusable
    before = profile_of(models, number)
    tally: Parts = (before.n, before.counts, before.target_counts, dict(before.labels))
    with open_executor("threads", threads) as executor:
        for rows, sign in ((reusable[0], 1), (forget, -1)):
            if rows is not None:
                rows = replace(without_scaling(rows), source=rows.source.conformed(champion.schema))
                n, counts, found, labels = drift.column_tally(rows, before.edges, before.target_edges, executor)
                if sign > 0 and isinstance(champion.encoding, Classes):
                    known = set(map(str, champion.encoding.values.tolist()))
                    if strange := sorted(set(labels) - known):
                        return None, f"the label {strange[0]!r} is new"
                both = {label: tally[3].get(label, 0) + sign * labels.get(label, 0) for label in {*tally[3], *labels}}
                tally = (tally[0] + sign * n, tally[1] + sign * counts, tally[2] + sign * found, both)
    return IncrementalUpdate(*reusable, before, tally), None


# ------------------------------------------------------------------------------------------------------ known rows


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
) -> tuple[Dataset | None, int] | str:
    """Return the new rows and the number of rows that are not read, or why the champion's sums cannot be reused.

    Rows to ``forget`` have their original values.
    """
    before = record.get("sums")
    if champion.sums is None or before is None:
        return "the champion keeps no sums"
    if forget is not None and champion.sums.bound:
        return f"no row can be subtracted from the champion: {champion.sums.bound}"
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
    added = replace(pipeline.train.plain(), rules=(OutsideRanges(tuple(kept)), *pipeline.train.rules))
    if not added.base_rows and not lost:
        return "no rows are new"
    return added if added.base_rows else None, pipeline.train.base_rows - added.base_rows


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
