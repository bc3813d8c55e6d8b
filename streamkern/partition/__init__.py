"""Partitions: rows cut into leaves, a whole fit in each, and one model of them all."""

from __future__ import annotations

from streamkern.partition.fit import FittedPartition, fit_any, model_of, settled
from streamkern.partition.model import PartitionedMachine
from streamkern.partition.tree import Partition, Tree

__all__ = ["FittedPartition", "Partition", "PartitionedMachine", "Tree", "fit_any", "model_of", "settled"]
