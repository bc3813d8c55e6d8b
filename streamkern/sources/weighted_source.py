"""Targets and sample weights in memory for the rows of any source."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from streamkern.errors import DataError, UsageError
from streamkern.sources.array_source import ArraySource, require_length
from streamkern.sources.base import DerivedSource, Reading, Source
from streamkern.sources.format_rules import as_target, target_of
from streamkern.storage.value_digest import digest
from streamkern.types import Array, Rows


class WeightedSource(DerivedSource):
    """The rows of a source, with weights w >= 0, shape (n,), in memory."""

    def __init__(self, source: Source, weights: Any, name: str = "sample_weight") -> None:
        super().__init__(source)
        if source.weight is not None:
            raise UsageError(
                "The rows have weights already.",
                where="sample_weight",
                expected="weights from one of the two",
                remedy="leave sample_weight out, or open the rows without weight=",
            )
        given: Array = np.asarray(weights)
        if given.shape != (int(source.bounds[-1]),):
            raise DataError(
                f"sample_weight has shape {given.shape}",
                where="sample_weight",
                expected=f"shape ({int(source.bounds[-1])},): one weight a row",
                remedy="give one number a row",
            )
        try:
            self._w: Array = given.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"sample_weight has values of type {given.dtype}: {error}",
                where="sample_weight",
                expected="one number a row",
                remedy="convert the weights to numbers",
            ) from error
        self.weight, self.in_memory = name, False

    @cached_property
    def fingerprint(self) -> str:
        return digest("weighted", self.source.fingerprint, ArraySource(self._w[:, None]).fingerprint)

    def reading(self) -> Reading:
        found = self.source.reading()
        return found._replace(row=found.row + 8)

    def read(self, chunk: int) -> Rows:
        X, y, _ = self.source.read(chunk)
        return Rows(X, y, self.weights(chunk))

    def weights(self, chunk: int) -> Array:
        return self._weights(self._w[self.bounds[chunk] : self.bounds[chunk + 1]], chunk)


class TargetedSource(DerivedSource):
    """The rows of a source, with targets in memory."""

    def __init__(self, source: Source, y: Any, name: str = "target") -> None:
        super().__init__(source)
        y = np.asarray(y)
        require_length(int(source.bounds[-1]), y.shape)
        self.target = target_of(name, y.dtype, y.shape[1:], "y")
        self._y: Array = as_target(y, self.target)
        self.in_memory = False

    @cached_property
    def fingerprint(self) -> str:
        y = self._y.tolist() if self._y.dtype == object else ArraySource(self._y.reshape(len(self._y), -1)).fingerprint
        return digest("targeted", self.source.fingerprint, y, self.target)

    def read(self, chunk: int) -> Rows:
        X, _, w = self.source.read(chunk)
        return Rows(X, self._y[self.bounds[chunk] : self.bounds[chunk + 1]], w)
