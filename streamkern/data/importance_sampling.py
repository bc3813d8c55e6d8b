"""Importance sampling: rows are drawn with replacement, in proportion to given chances."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from streamkern.data.row_order import Stream
from streamkern.rng import generator
from streamkern.types import Array, IntArray


@dataclass(eq=False)
class ImportanceSampledStream(Stream):
    """A stream whose rows are drawn with replacement, by relative ``chances`` (source rows,), 0 for never."""

    chances: Array = field(default_factory=lambda: np.ones(0))

    @classmethod
    def instead_of(cls, stream: Stream, chances: Array) -> ImportanceSampledStream:
        """Return draws with the step size of a stream."""
        return cls(**{f.name: getattr(stream, f.name) for f in fields(Stream)}, chances=chances)

    def _reset(self) -> None:
        super()._reset()
        self._ends = np.cumsum(self.chances)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in super().__getstate__().items() if name != "_ends"}

    def _rows(self, pass_: int, lane: int, start: int, stop: int) -> tuple[IntArray, IntArray, set[int]]:
        random = generator("draws", self.seed, pass_, lane, start)
        ids = np.searchsorted(self._ends, random.random(stop - start) * self._ends[-1], side="right")
        # Sorted by id, so that a chunk's rows are neighbours; the window is shuffled later.
        return np.sort(ids), random.integers(self.assembly.dataset._full_rounds, size=stop - start), set()
