"""Shuffle quality: the variation of labels between batches, relative to randomly drawn batches.

Neighbouring chunks of a sorted store are similar, so a step on their rows learns little more than from one row. The
measure is the variance of the batches' label means, divided by its value for a global shuffle: 1 is as good as random,
and m is the worst case for batches of m rows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_selection import selected_ids
from streamkern.data.targets import distinct_labels
from streamkern.defaults import MAX_SHUFFLE_RATIO, MAX_WHOLE_NUMBER_CLASSES, SHUFFLE_QUALITY_CHUNKS
from streamkern.rng import generator
from streamkern.types import Array


class LabelCounts:
    """Rows of each label; None if there are too many labels. Adds."""

    def __init__(self, counts: Counter[Any] | None) -> None:
        self.counts = counts if counts is None or len(counts) <= MAX_WHOLE_NUMBER_CLASSES else None

    @classmethod
    def of(cls, y: Array) -> LabelCounts:
        """Return the counts of labels, shape (n,); no counts if rows have several targets, shape (n, c)."""
        if y.ndim > 1:
            return cls(Counter())
        values, codes = distinct_labels(y)
        return cls(Counter(dict(zip(values, np.bincount(codes, minlength=len(values)).tolist(), strict=True))))

    def __add__(self, other: LabelCounts) -> LabelCounts:
        return LabelCounts(None if self.counts is None or other.counts is None else self.counts + other.counts)


def is_given(y: Array) -> Array:
    """Return a mask of the rows without a missing target."""
    if y.dtype.kind not in "fO":
        return np.ones(len(y), dtype=bool)
    missing = np.isnan(y) if y.dtype.kind == "f" else (y == None) | (y != y)  # noqa: E711
    return np.asarray(~missing.reshape(len(y), -1).any(axis=1))


def stream_ratio(dataset: Dataset, mix_chunks: int, lanes: int, batch: int) -> float | None:
    """Estimate the ratio for the batches of training, from a sample of chunks; None without labels in two of them.

    A batch has ``batch / lanes`` rows of each lane, and a lane draws from ``mix_chunks`` chunks at a time, chosen at
    random and mixed row by row. So the variance of a batch mean has two parts: of rows within the mixed chunks, and of
    the lanes' mixtures, which follows from the chunks' means.
    """
    source, bounds = dataset.source, dataset.source.bounds
    taken = np.flatnonzero(dataset.counts)
    if source.target is None or len(taken) < 2:
        return None
    if mix_chunks >= len(taken):
        return 1.0
    picks = generator("quality", 0).permutation(len(taken))[:SHUFFLE_QUALITY_CHUNKS]
    parts = []
    for chunk in np.sort(taken[picks]).tolist():
        y = source.read(chunk).y
        ids = selected_ids(dataset.rules, int(bounds[chunk]), int(bounds[chunk + 1]))
        assert y is not None
        y = y[ids - int(bounds[chunk])]
        if (given := is_given(y)).any():
            parts.append(_chunk_labels(y[given].astype(source.target.dtype, copy=False)))
    if len(parts) < 2:
        return None
    means, sizes, total = _label_means(parts)
    if total <= 0:
        return 1.0
    around, n = np.square(means - np.average(means, axis=0, weights=sizes)).sum(axis=1), float(sizes.sum())
    within = total - float(np.average(around, weights=sizes))
    # The means of small chunks also differ by chance, whatever the order (analysis of variance, any sizes).
    by_chance = (len(means) - 1) * within
    apart = max(0.0, float(sizes @ around - by_chance) / (n - float(np.square(sizes).sum()) / n))
    groups = lanes * max(1.0, batch / lanes / (mix_chunks * sizes.mean()))
    mixed = apart / mix_chunks * (len(taken) - mix_chunks) / (len(taken) - 1)
    return float((batch / groups * mixed + total - mixed) / total) if batch > groups else 1.0


def shuffle_warning(dataset: Dataset, mix_chunks: int, lanes: int, batch: int | None) -> str | None:
    """Return a warning if the rows of a batch will be too similar; a shuffle that ``ingest`` recorded is trusted.

    ``batch`` is None for solvers that use all rows in each step, independent of their order.
    """
    if batch is None or dataset.source.shuffled:
        return None
    ratio = stream_ratio(dataset, mix_chunks, lanes, batch)
    if ratio is None or ratio <= MAX_SHUFFLE_RATIO:
        return None
    return (
        f"the labels of batches vary {ratio:.1f} times as much as those of randomly drawn ones: the rows are stored in "
        "an order that says much about them. Shuffle them once, for instance with: streamkern ingest SOURCE OUTPUT "
        "--shuffle"
    )


class _ChunkLabels(NamedTuple):
    """Statistics of a chunk's labels; ``counts`` if they may be classes; ``spread`` is Σ ‖y − mean‖² of numbers."""

    rows: int
    counts: dict[Any, int] | None
    mean: Array
    spread: float


def _chunk_labels(y: Array) -> _ChunkLabels:
    counts, numbers = None, np.zeros((len(y), 1))
    if y.ndim == 1 and y.dtype.kind in "OUbiu":
        values, codes = distinct_labels(y)
        if y.dtype.kind in "OU" or len(values) <= MAX_WHOLE_NUMBER_CLASSES:
            counts = dict(zip(values, np.bincount(codes).tolist(), strict=True))
    if y.dtype.kind not in "OU":
        numbers = np.where(np.isfinite(y), y, 0).astype(np.float64).reshape(len(y), -1)
    mean = numbers.mean(axis=0)
    return _ChunkLabels(len(y), counts, mean, float(np.square(numbers - mean).sum()))


def _label_means(parts: list[_ChunkLabels]) -> tuple[Array, Array, float]:
    """Each part's mean label, shape (k, c), and rows, and the variance of all; classes are one-hot."""
    sizes = np.array([part.rows for part in parts])
    known = [part.counts for part in parts if part.counts is not None]
    if len(known) == len(parts):
        values = sorted(set().union(*known))
        if len(values) <= MAX_WHOLE_NUMBER_CLASSES or isinstance(values[0], str):
            counts = np.array([[found.get(value, 0) for value in values] for found in known], dtype=np.float64)
            shares = counts.sum(axis=0) / sizes.sum()
            return counts / sizes[:, None], sizes, float(1 - np.square(shares).sum())
    means = np.stack([part.mean for part in parts])
    apart = np.square(means - np.average(means, axis=0, weights=sizes)).sum(axis=1)
    return means, sizes, float((sum(part.spread for part in parts) + sizes @ apart) / sizes.sum())
