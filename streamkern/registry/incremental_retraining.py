"""Retraining that only reads new rows, and adds them to the champion's sums and profile."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan
from streamkern.data.statistics import RawScan
from streamkern.data.targets import Classes
from streamkern.execute import open_executor
from streamkern.execute.base import Parts
from streamkern.models.kernel_machine import KernelMachine
from streamkern.registry import drift
from streamkern.registry.known_rows import ReusableSums, reusable_sums
from streamkern.registry.model_comparison import ModelComparison, without_scaling
from streamkern.registry.model_registry import Registry
from streamkern.runs.pipeline_definition import Pipeline
from streamkern.storage.artifact import load_artifact
from streamkern.sweep import ScanWork, sweep
from streamkern.updates.update_model import update_model

PROFILE, UPDATED = "Profile", "updated.zarr"
"""Artifact kind of a version's profile; and path of the new model before it becomes a version."""


@dataclass(frozen=True, eq=False)
class IncrementalUpdate:
    """The data of one retraining: the champion's profile, and counts of the present rows in the same bins."""

    reusable_part: ReusableSums
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
        added = self.reusable_part.added
        validation = None if validation is None else without_scaling(validation)
        new = None if added is None else without_scaling(added)
        model = update_model(
            champion, new, forget, validation=validation, drop_centers=True, resources=settings["resources"]
        )
        model.save(place)
        swept = sum(0 if rows is None else rows.base_rows for rows in (added, forget))
        return {
            "history": [{"rows": swept}],
            "weights_sha256": model.weights_sha256,
            "solver": "Direct",
            "metrics": {},
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
    reusable_part = reusable_sums(pipeline, sums, champion, models.record(number), forget)
    if isinstance(reusable_part, str):
        return None, reusable_part
    before = profile_of(models, number)
    targets = before.target_edges if len(before.target_edges) else None
    tally: Parts = (before.n, before.counts, before.target_counts, dict(before.labels))
    with open_executor("threads", threads) as executor:
        for rows, sign in ((reusable_part.added, 1), (forget, -1)):
            if rows is not None:
                rows = replace(without_scaling(rows), source=rows.source.conformed(champion.schema))
                tallied = drift.ColumnTally(before.edges, targets)
                n, counts, found, labels = sweep(executor, ScanWork(RawScan(Scan(Assembly(rows))), tallied))
                if sign > 0 and isinstance(champion.encoding, Classes):
                    known = set(map(str, champion.encoding.values.tolist()))
                    if strange := sorted(set(labels) - known):
                        return None, f"the label {strange[0]!r} is new"
                both = {label: tally[3].get(label, 0) + sign * labels.get(label, 0) for label in {*tally[3], *labels}}
                tally = (tally[0] + sign * n, tally[1] + sign * counts, tally[2] + sign * found, both)
    return IncrementalUpdate(reusable_part, before, tally), None
