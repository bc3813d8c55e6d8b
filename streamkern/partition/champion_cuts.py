"""Warm start of a partition from a champion: its preprocessing and its cuts stay, and so does every leaf whose rows do.

A leaf is a function of its encoded rows and of the recipe: rows that have not changed are encoded and routed as they
were, and make the leaf that the run directory has kept.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from streamkern.data.statistics import Statistics
from streamkern.data.targets import Classes
from streamkern.errors import UnlikeChampionError
from streamkern.fitting.calibrate import with_decision_rule
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.fitting.recipe import Recipe
from streamkern.models.cut_tree import Partition
from streamkern.models.partitioned_machine import PartitionedMachine
from streamkern.storage.value_digest import digest
from streamkern.user_code_digest import described


class Champion:
    """The champion of a warm start; a digest of a pipeline contains its cuts only."""

    def __init__(self, model: PartitionedMachine) -> None:
        self.model = model


@dataclass(frozen=True)
class WarmPartition(Partition):
    """A partition with the cuts of a champion."""

    champion: Champion | None = None

    def to_json(self) -> dict[str, Any]:
        model = champion_of(self)
        return without_champion(self).to_json() | {"cuts": "" if model is None else model.tree.fingerprint}


def without_champion(partition: Partition) -> Partition:
    """The partition without its champion."""
    return Partition(**{each.name: getattr(partition, each.name) for each in fields(Partition)})


def champion_of(partition: Partition) -> PartitionedMachine | None:
    """Return the champion of a partition; None for a cold start."""
    champion = partition.champion if isinstance(partition, WarmPartition) else None
    return None if champion is None else champion.model


def from_champion(partition: Partition, model: PartitionedMachine) -> WarmPartition:
    """Return the partition with the cuts of a model."""
    return WarmPartition(**vars(partition), champion=Champion(model))


def settings_digest(recipe: Recipe, partition: Partition) -> str:
    """Digest of the settings that decide preprocessing, kernel and cuts besides the rows: a new one, new cuts."""
    return digest(
        without_champion(partition).to_json(), [described(step) for step in preprocessing_steps(recipe)], recipe.task,
        recipe.dtype, recipe.seed, described(recipe.kernel), described(recipe.metric),
    )  # fmt: skip


def champion_encoding(facts: Statistics, champion: PartitionedMachine) -> Statistics:
    """Return statistics with the champion's encoding; ``UnlikeChampionError`` where classes or outputs differ."""
    found, wanted = facts.encoding, champion.encoding
    alike = found is not None and found.kind == wanted.kind and found.outputs == wanted.outputs
    if isinstance(found, Classes) and isinstance(wanted, Classes):
        alike = alike and np.array_equal(found.values, wanted.values)
    if not alike:
        raise UnlikeChampionError(
            "The classes are not those of the champion.",
            where="the target",
            expected="the champion's classes",
            remedy="train from the start: --cold",
        )
    return replace(facts, encoding=with_decision_rule(wanted, None))
