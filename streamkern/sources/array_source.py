"""NumPy arrays as a Source; and targets and sample weights in memory for the rows of any source."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from streamkern.errors import DataError, UsageError
from streamkern.sources.base import DerivedSource, Reading, Source
from streamkern.sources.format_rules import as_rows, as_target, check_chunk, feature_dtype, rows_per_chunk, target_of
from streamkern.sources.input_types import require_dense
from streamkern.sources.schema import Schema
from streamkern.storage.value_digest import array_content, digest
from streamkern.types import Array, IntArray, Rows


class ArraySource(Source):
    """Rows of an array (n, ...) in memory (or of a memory map), flattened; chunks of 4 MiB by default.

    Reads return read-only views if the array is C-contiguous and in native byte order.
    """

    def __init__(
        self,
        X: Any,
        y: Any = None,
        columns: Sequence[str] | None = None,
        target_name: str = "target",
        chunk_rows: int | None = None,
        schema: Schema | None = None,
    ) -> None:
        require_dense(X)
        X = np.asarray(X)
        y = None if y is None else np.asarray(y)
        self._declare(X, y, columns, target_name)
        self._X: Any = X
        self.schema = schema
        self._y: Any = None if y is None or self.target is None else as_target(y, self.target)
        if chunk_rows is None:
            chunk_rows = rows_per_chunk(self.n_features * self.dtype.itemsize)
        if chunk_rows < 1:
            raise UsageError(
                f"chunk_rows is {chunk_rows}", where="chunk_rows", expected="at least 1", remedy="leave chunk_rows out"
            )
        self.bounds = np.append(np.arange(0, len(X), chunk_rows, dtype=np.int64), np.int64(len(X)))
        self.in_memory = bool(len(X)) and X[:2].flags.c_contiguous and X.dtype.isnative
        self.from_memory = True

    def _declare(self, X: Any, y: Any, columns: Sequence[str] | None, target_name: str) -> None:
        require_rows(X.shape, "X")
        self.dtype = feature_dtype(X.dtype, "X")
        self.n_features = math.prod(X.shape[1:])
        self.columns = checked_names(columns, self.n_features)
        if y is not None:
            require_length(X.shape[0], y.shape)
            self.target = target_of(target_name, y.dtype, y.shape[1:], "y")

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the content, because arrays in memory have no metadata. Independent of chunks."""
        found = hashlib.blake2b(digest_size=32)
        for chunk in range(len(self.bounds) - 1):
            found.update(array_content(self.read(chunk).X))
        if self._y is not None:
            found.update(array_content(self._y))
        described = (int(self.bounds[-1]), self.n_features, self.dtype.str, self.columns, self.target)
        return digest("array", *described, found.hexdigest())

    def read(self, chunk: int) -> Rows:
        a, b = check_chunk(chunk, self.bounds)
        X = as_rows(self._X[a:b]).view()
        X.flags.writeable = False
        if self._y is None:
            return Rows(X, None)
        y = self._y[a:b]
        y.flags.writeable = False
        return Rows(X, y)

    def rows(self, ids: IntArray) -> Rows | None:
        return Rows(as_rows(self._X[ids]), None if self._y is None else self._y[ids]) if self.in_memory else None

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        return f"array in memory, chunk {chunk}, rows {a} to {b - 1}"


def require_rows(shape: tuple[int, ...], where: str) -> None:
    """Raise DataError unless ``shape`` has at least two axes, and at least one feature."""
    if len(shape) < 2 or 0 in shape[1:]:
        raise DataError(
            f"X has shape {shape}",
            where=where,
            expected="shape (n, d) with d at least 1",
            remedy="reshape it: X[:, None] makes one feature",
        )


def require_length(n: int, shape: tuple[int, ...]) -> None:
    """Raise DataError unless a target of this shape has one entry for each of ``n`` rows."""
    if not shape or shape[0] != n:
        raise DataError(
            f"{n} rows of features and a target of shape {shape}",
            where="y",
            expected=f"shape ({n},) or ({n}, c)",
            remedy="give one target a row",
        )


def checked_names(columns: Sequence[str] | None, n_features: int) -> tuple[str, ...] | None:
    """Return ``n_features`` names after checking that there is a distinct one for each feature."""
    if columns is None:
        return None
    if len(columns) != n_features or len(set(columns)) != n_features:
        raise UsageError(
            f"{len(set(columns))} distinct names for {n_features} features",
            where="columns",
            expected="one distinct name a feature",
            remedy="correct columns=[...] or leave it out",
        )
    return tuple(columns)


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
