"""The contract of a source: chunked rows at rest."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from streamkern.errors import DataError
from streamkern.memory import check
from streamkern.storage.described import Described
from streamkern.storage.layout import few
from streamkern.storage.schema import Schema
from streamkern.types import Array, IntArray, Rows, Target


class Reading(NamedTuple):
    """Bytes that reading takes: from metadata, or from a few rows where texts are of unknown length.

    Attributes:
        row: of a row as it is read: features, target, weight.
        decoding: most that a read holds while it decodes a chunk, beyond the rows that it returns.
        once: most that the source holds besides, however many threads read.
        libraries: memory of decoders from their first use on.
    """

    row: int
    decoding: int
    once: int = 0
    libraries: int = 0


TEXT_BYTES = 64
"""Bytes that a short text takes as an object."""

_LARGE = 16 << 20  # bytes of a chunk from which on an error of memory names it


class Source(ABC):
    """Chunked rows at rest: random access by chunk, safe to use from many threads, picklable.

    Opening a source reads metadata only. Row ``i`` of the source is row ``i - bounds[c]`` of chunk ``c`` with
    ``bounds[c] <= i < bounds[c + 1]``; the same row has the same number under any chunking. A format sets the facets
    below when it is opened; nobody sets them afterwards.

    Attributes:
        bounds: row numbers where chunks begin, and the end: shape (n_chunks + 1,), from 0 to the number of rows.
        n_features: width d of a row.
        dtype: stored dtype of the features.
        columns: names of the d features, or None where the format has no names.
        target: name, dtype and shape of the targets, or None.
        weight: name of the sample weights, or None: ``read`` gives weights where it is set.
        schema: names and kinds of the features of a table, or None for arrays of numbers.
        non_features: (name, type) of the columns that cannot be features, where a lenient opening passed over them.
        shuffled: whether the rows are recorded to be in a uniformly random order.
        remote: whether a read is a round trip to a store, so that it pays to read several chunks at once.
        in_memory: whether rows are views of arrays in memory, so that a read takes none.
    """

    bounds: IntArray
    n_features: int
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None = None
    target: Target | None = None
    weight: str | None = None
    schema: Schema | None = None
    non_features: tuple[tuple[str, str], ...] = ()
    shuffled: bool = False
    remote: bool = False
    in_memory: bool = False

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest that identifies the rows: of metadata, never a read of everything."""

    def pieces(self) -> list[tuple[str, int]]:
        """Return (digest, rows) of the parts that are stored separately, in order: which of them are as they were.

        A digest is one of metadata, as ``fingerprint``, which is that of all rows where nothing smaller is known.
        """
        return [(self.fingerprint, int(self.bounds[-1]))]

    @abstractmethod
    def read(self, chunk: int) -> Rows:
        """Return the rows of one chunk. They may be a read-only view of stored arrays: copy before writing into them.

        Raises:
            IndexError: there is no such chunk.
            StorageError: the chunk is missing, truncated or corrupt; the message names file and chunk.
            DataError: the rows differ from the metadata, or a weight is negative or not finite.
        """

    def require_unchanged(self) -> None:
        """Raise an error if the metadata of the files changed since they were opened; do nothing for rows in memory.

        Raises:
            StorageError: a file or an object is another, or gone.
        """
        return

    def reading(self) -> Reading:
        """Return the bytes that reading a chunk takes at most, from metadata and at most a few rows.

        The default fits a format that decodes the requested rows from as many stored bytes.
        """
        row = self._row_bytes()
        return Reading(row, 0 if self.in_memory else 2 * self._most_rows() * row)

    def _most_rows(self) -> int:
        """Rows of the largest chunk."""
        return int(np.diff(self.bounds).max(initial=0))

    def _row_bytes(self, text: int = TEXT_BYTES) -> int:
        """Bytes of a row as it is read, with ``text`` bytes for a label that is text."""
        row = self.n_features * self.dtype.itemsize + 8 * (self.weight is not None)
        if self.target is not None:
            row += self.target.width * (text if self.target.dtype == object else self.target.dtype.itemsize)
        return row

    def read_checked(self, chunk: int) -> Rows:
        """Return the rows of one chunk, as ``read`` does, within the memory budget in force.

        Raises:
            MemoryLimitError: the budget does not hold the chunk, or the process holds more with it than it may.
        """
        a, b = self.bounds[chunk : chunk + 2].tolist() if 0 <= chunk < len(self.bounds) - 1 else (0, 0)
        coming = 0 if self.in_memory else (b - a) * self.n_features * self.dtype.itemsize
        check(coming, self.where(chunk) if coming > _LARGE else None)
        rows = self.read(chunk)
        check()
        return rows

    @abstractmethod
    def where(self, chunk: int) -> str:
        """Return the chunk in words a person can find it by: file, chunk number, rows."""

    def where_row(self, chunk: int, row: int) -> str:
        """Return row ``row`` of a chunk in words a person can find it by."""
        return f"{self.where(chunk)}, row {int(self.bounds[chunk]) + row}"

    @property
    def text(self) -> tuple[str, ...]:
        """Names of features that are text: their values are numbers that stand for it."""
        return () if self.schema is None else tuple(column.name for column in self.schema.columns if column.text)

    def words(self, column: int) -> Mapping[float, str]:
        """Return texts of a feature by their numbers: of the chunks that this process has read."""
        return {}

    def conformed(self, schema: Schema | None) -> Source:
        """Return these rows with their values read by the kinds of another schema, such as that of training.

        Raises:
            DataError: a column is stored as numbers, and should be text, or the other way round; or the columns are
                others.
        """
        if schema is None or (self.schema is not None and self.schema.kinds == schema.kinds):
            return self
        where = self.where(0) if len(self.bounds) > 1 else "the rows"
        if self.schema is None:
            if texts := [column.name for column in schema.columns if column.text]:
                raise unlike_kind(texts[0], False, where)
            return self
        for mine, wanted in zip(self.schema.columns, schema.columns, strict=False):
            if mine.text != wanted.text and mine.name != wanted.name:
                raise unlike_columns(self.schema.names, schema.names, where)
            if mine.text != wanted.text:
                raise unlike_kind(mine.name, mine.text, where)
        return self

    def describe(self, chunk: int, rows: IntArray | None = None) -> Sequence[Described]:
        """Return a description of the values of every non-feature in one chunk, in the order of ``non_features``.

        Args:
            chunk: the chunk.
            rows: ascending positions in the chunk of the rows to describe; all by default.

        Raises:
            StorageError: as ``read``.
        """
        return ()

    def _weights(self, values: Array, chunk: int) -> Array:
        """Sample weights of a chunk as float64, shape (n,), checked."""
        w = values.reshape(-1).astype(np.float64)
        wrong = ~(np.isfinite(w) & (w >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"the weight is {w[row]}",
                where=f"{self.where_row(chunk, row)}, weight {self.weight!r}",
                expected="a finite number >= 0",
                remedy="correct the weights; a row of weight 0 is ignored",
            )
        return w


def text_bytes(texts: Any) -> int:
    """Bytes that a text takes as an object, with its reference: a quarter more than the mean of these."""
    found = [sys.getsizeof(text) for text in texts if isinstance(text, str)]
    return max(TEXT_BYTES, math.ceil(8 + 1.25 * sum(found) / len(found)) if found else 0)


FACETS = tuple(Source.__annotations__)
"""Names of the facets that a source declares."""


class DerivedSource(Source):
    """The rows of another source, changed in some way: every facet is the other's unless a subclass changes it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        for facet in FACETS:
            setattr(self, facet, getattr(source, facet))

    def require_unchanged(self) -> None:
        self.source.require_unchanged()

    def where(self, chunk: int) -> str:
        return self.source.where(chunk)

    def where_row(self, chunk: int, row: int) -> str:
        return self.source.where_row(chunk, row)

    def describe(self, chunk: int, rows: IntArray | None = None) -> Sequence[Described]:
        return self.source.describe(chunk, rows)

    def reading(self) -> Reading:
        return self.source.reading()

    def words(self, column: int) -> Mapping[float, str]:
        return self.source.words(column)

    def conformed(self, schema: Schema | None) -> Source:
        inner = self.source.conformed(schema)
        return self if inner is self.source else self._over(inner)

    def _over(self, source: Source) -> Source:
        """The same change of other rows."""
        made = copy(self)
        made.__dict__.pop("fingerprint", None)
        made._take(source)
        return made

    def _take(self, source: Source) -> None:
        self.source, self.schema, self.dtype = source, source.schema, source.dtype


def unlike_kind(name: str, text: bool, where: str) -> DataError:
    """The error for a column that is text in one place and numbers in another."""
    return DataError(
        f"The feature {name!r} is {'text' if text else 'stored as numbers'}, and the model was trained on "
        f"{'numbers' if text else 'text'} there.",
        where=where,
        expected="the kind of column that training had",
        remedy="store the column of training",
    )


def unlike_columns(found: Sequence[str], expected: Sequence[str], where: str) -> DataError:
    """The error for rows whose columns are not those of training, in their order."""
    place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), 0)
    return DataError(
        f"The columns differ from those of training: {found[place]!r} is where {expected[place]!r} was.",
        where=where,
        expected=few(expected),
        remedy="open the data with columns=[...] as in training",
    )


def content(values: Array) -> bytes | memoryview:
    """Bytes that identify the values of an array in C order; of objects, such as texts, a digest of them."""
    if values.dtype == object:
        return digest(values.tolist()).encode()
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def digest(*parts: Any) -> str:
    """Hex SHA-256 of JSON-serialisable parts, in order."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
