"""Partitions: rows cut into leaves, a whole fit in each, and one model of them all."""

from __future__ import annotations

from streamkern.partition.choice import fit_any, settled
from streamkern.partition.fit import FittedPartition, model_of
from streamkern.partition.model import PartitionedMachine
from streamkern.partition.tree import CutTree, Partition

__all__ = ["CutTree", "FittedPartition", "Partition", "PartitionedMachine", "fit_any", "model_of", "settled"]
