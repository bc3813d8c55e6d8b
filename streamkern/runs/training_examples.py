"""A few training rows, as stored and as training saw them, for a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, RawRows, Scan
from streamkern.data.statistics import RawScan
from streamkern.data.targets import Encoding
from streamkern.defaults import EXAMPLE_COPIES, EXAMPLE_ROWS, MAX_EXAMPLE_FEATURES
from streamkern.execute.base import Executor, Parts, Stack
from streamkern.rng import Draw
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array


def examples(dataset: Dataset, encoding: Encoding, executor: Executor) -> dict[str, Array]:
    """Draw training rows, always the same, scaled, and their first copies.

    ``rows``, shape (k, 1 + copies, d), float32: first as stored, then augmented if the dataset is; ``targets``,
    encoded, (k,) or (k, c); ``ids`` (k,). Nothing where rows are wider than ``MAX_EXAMPLE_FEATURES``.
    """
    if dataset.n_features > MAX_EXAMPLE_FEATURES:
        return {}
    dataset = dataset._relative_to(0.0)  # in the units that the user knows
    ids = np.sort(dataset.draw(min(EXAMPLE_ROWS, dataset.base_rows), Draw.EXAMPLES))
    scan = Scan(Assembly(dataset), only=ids)
    shown = _Examples(Assembly(dataset.plain(), encoding), Assembly(dataset) if dataset.augmentations else None)
    (pieces,) = sweep(executor, ScanWork(RawScan(scan), shown))
    found, rows, targets = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return {"ids": found, "rows": rows, "targets": targets}


@dataclass(eq=False)
class _Examples:
    plain: Assembly
    varied: Assembly | None

    def __call__(self, found: tuple[RawRows, str], state: Any) -> Parts:
        raw, where = found
        every = np.arange(len(raw.ids), dtype=np.int64)
        block = self.plain.build(raw, every, (), where)
        versions = [block.X]
        for copy in range(EXAMPLE_COPIES if self.varied is not None else 0):
            assert self.varied is not None
            versions.append(self.varied.build(raw._replace(copies=np.full_like(every, copy)), every, (), where).X)
        return (Stack(((raw.ids, np.stack(versions, axis=1), block.y),)),)
