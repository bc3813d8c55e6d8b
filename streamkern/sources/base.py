"""The contract of a source: stored rows in chunks."""

from __future__ import annotations

import hashlib
import math
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streamkern.errors import DataError
from streamkern.memory import check_memory
from streamkern.sources.format_rules import first_names
from streamkern.sources.schema import Schema
from streamkern.types import Array, IntArray, Rows, Target

MAX_DISTINCT_TEXTS = 1000
"""Most distinct values that are counted."""

_SHORT = 60

ExtremeValue = tuple[float, str]
"""Sort key and text of a value; the key is the length of a text, or 0 if the text itself sorts correctly."""


@dataclass(frozen=True)
class ColumnDescription:
    """Description of a column that cannot be a feature as stored (text, dates, decimals), in bounded memory; adds.

    ``counts`` are rows of each value, with long values shortened by ``text_key``; None if there are too many. ``low``
    is the shortest text, or lowest other value, ``high`` the longest or highest; None without values or an order.
    """

    missing: int
    counts: Counter[str] | None
    low: ExtremeValue | None
    high: ExtremeValue | None

    def __add__(self, other: ColumnDescription) -> ColumnDescription:
        counts = None
        if self.counts is not None and other.counts is not None:
            counts = self.counts + other.counts
        return ColumnDescription(
            self.missing + other.missing,
            counts if counts is None or len(counts) <= MAX_DISTINCT_TEXTS else None,
            min((end for end in (self.low, other.low) if end is not None), default=None),
            max((end for end in (self.high, other.high) if end is not None), default=None),
        )


def text_key(text: str) -> str:
    """Return a text, or for a long text its beginning, a line end, and a digest."""
    if len(text) <= _SHORT:
        return text
    return f"{text[:_SHORT]}...\n{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def shown_text(made: str) -> str:
    """Return a key's text for display; of a long text the beginning."""
    return made.partition("...\n")[0] + "..." if len(made) > _SHORT else made


class Reading(NamedTuple):
    """Bytes that reading takes, from metadata, or from a few rows if lengths of texts are unknown.

    A ``row`` in memory has features, target and weight. ``decoding`` is the peak of a read, in addition to the returned
    rows; ``once`` is a further peak of the source, for any number of threads; ``libraries`` is the memory of decoders
    after their first use.
    """

    row: int
    decoding: int
    once: int = 0
    libraries: int = 0


TEXT_BYTES = 64
"""Bytes of a short text as an object."""

TEXT_SAMPLE = 1000
"""Rows from which the length of texts is estimated, where the format does not state it: see ``text_bytes``."""


class Source(ABC):
    """Stored rows in chunks, with random access by chunk; thread-safe and picklable.

    Opening a source reads metadata only. Row ``i`` of the source is row ``i - bounds[c]`` of chunk ``c`` with
    ``bounds[c] <= i < bounds[c + 1]``; the same row has the same number under any chunking. The attributes below, its
    *facets*, are set when it is opened and never changed.

    Attributes:
        bounds: row numbers where chunks begin, and the end: shape (n_chunks + 1,), from 0 to the number of rows.
        n_features: width d of a row.
        dtype: stored dtype of the features.
        columns: names of the d features, or None if the format has no names.
        target: name, dtype and shape of the targets, or None.
        weight: name of the sample weights, or None if ``read`` returns no weights.
        schema: names and kinds of the features of a table, or None for arrays of numbers.
        non_features: (name, type) of columns that cannot be features and were skipped, if opened with ``lenient``.
        left_out: columns of an index, such as that of pandas, which are no features unless the user names them.
        time: name of the column of time, or None; see ``streamkern.data.row_roles``.
        group: name of the column of groups, or None.
        shuffled: whether the rows are recorded to be in a uniformly random order.
        remote: whether reads wait for a network, so that several chunks should be read at once.
        in_memory: whether rows are views of arrays in memory, so that a read allocates nothing.
        from_memory: whether rows are an array or a table that the user holds in memory, however they are read.
    """

    bounds: IntArray
    n_features: int
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None = None
    target: Target | None = None
    weight: str | None = None
    schema: Schema | None = None
    non_features: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    time: str | None = None
    group: str | None = None
    shuffled: bool = False
    remote: bool = False
    in_memory: bool = False
    from_memory: bool = False

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest that identifies the rows, computed from metadata without reading all rows."""

    def pieces(self) -> list[tuple[str, int]]:
        """Return (digest, rows) of the separately stored parts, in order, to detect which of them changed.

        Digests are of metadata, as in ``fingerprint``, which is returned for all rows if the parts are unknown.
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

    def rows(self, ids: IntArray) -> Rows | None:
        """Return copies of rows by number, in any order, of arrays in memory; None where rows are read by chunk."""
        return None

    def require_unchanged(self) -> None:
        """Raise StorageError if a file or an object was replaced or removed since it was opened, by its metadata."""
        return

    def reading(self) -> Reading:
        """Return an upper bound of the bytes to read a chunk, from metadata and at most a few rows.

        The default fits formats whose stored rows are as large as decoded rows.
        """
        row = self._row_bytes()
        return Reading(row, 0 if self.in_memory else 2 * self._most_rows() * row)

    def _most_rows(self) -> int:
        return int(np.diff(self.bounds).max(initial=0))

    def _row_bytes(self, text: int = TEXT_BYTES) -> int:
        row = self.n_features * self.dtype.itemsize + 8 * (self.weight is not None)
        if self.target is not None:
            row += self.target.width * (text if self.target.dtype == object else self.target.dtype.itemsize)
        return row

    def read_checked(self, chunk: int) -> Rows:
        """Return the rows of one chunk, as ``read`` does, or raise MemoryLimitError above the current limit."""
        a, b = self.bounds[chunk : chunk + 2].tolist() if 0 <= chunk < len(self.bounds) - 1 else (0, 0)
        coming = 0 if self.in_memory else (b - a) * self.n_features * self.dtype.itemsize
        large = 16 << 20  # bytes of a chunk from which a memory error names it
        check_memory(coming, self.where(chunk) if coming > large else None)
        rows = self.read(chunk)
        check_memory()
        return rows

    @abstractmethod
    def where(self, chunk: int) -> str:
        """Return a chunk's location for messages: file, chunk number, rows."""

    def where_row(self, chunk: int, row: int) -> str:
        """Return the location of row ``row`` of a chunk, for messages."""
        return f"{self.where(chunk)}, row {int(self.bounds[chunk]) + row}"

    @property
    def row_roles(self) -> list[str]:
        """Names of the columns of time and group."""
        return [name for name in (self.time, self.group) if name is not None]

    @property
    def text(self) -> tuple[str, ...]:
        """Names of text features; their values are numeric codes."""
        return () if self.schema is None else tuple(column.name for column in self.schema.columns if column.text)

    def words(self, column: int) -> Mapping[float, str]:
        """Return texts of a feature by code, for the chunks that this process has read."""
        return {}

    def conformed(self, schema: Schema | None) -> Source:
        """Return the rows with values read by the kinds of another schema, such as the model's.

        Raises:
            DataError: a column is stored as numbers but should be text, or the reverse; or the columns differ.
        """
        if schema is None or (self.schema is not None and self.schema.kinds == schema.kinds):
            return self
        where = self.where(0) if len(self.bounds) > 1 else "the rows"
        if self.schema is None:
            if texts := [column.name for column in schema.columns if column.text]:
                raise kind_mismatch_error(texts[0], False, where)
            return self
        for mine, wanted in zip(self.schema.columns, schema.columns, strict=False):
            if mine.text != wanted.text and mine.name != wanted.name:
                raise column_mismatch_error(self.schema.names, schema.names, where)
            if mine.text != wanted.text:
                raise kind_mismatch_error(mine.name, mine.text, where)
        return self

    def describe(self, chunk: int) -> Sequence[ColumnDescription]:
        """Return a description of the values of every non-feature in one chunk, in the order of ``non_features``."""
        return ()

    def weights(self, chunk: int) -> Array:
        """Return the sample weights of one chunk, shape (n,), float64; the default reads all of its rows."""
        w = self.read(chunk).w
        assert w is not None
        return w

    def _weights(self, values: Array, chunk: int, start: int = 0) -> Array:
        """Check the weights of a chunk from its row ``start`` on; return them as float64, shape (n,)."""
        w = values.reshape(-1).astype(np.float64)
        wrong = ~(np.isfinite(w) & (w >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"the weight is {w[row]}",
                where=f"{self.where_row(chunk, start + row)}, weight {self.weight!r}",
                expected="a finite number >= 0",
                remedy="correct the weights; a row of weight 0 is ignored",
            )
        return w


def text_bytes(texts: Any) -> int:
    """Estimate bytes of a text as an object, with its reference: the mean of a sample, and three standard errors."""
    found = np.array([sys.getsizeof(text) for text in texts if isinstance(text, str)], dtype=np.float64)
    if not len(found):
        return TEXT_BYTES
    return max(TEXT_BYTES, math.ceil(8 + float(found.mean()) + 3 * float(found.std()) / math.sqrt(len(found))))


FACETS = tuple(Source.__annotations__)
"""Names of the facets of a source."""


class DerivedSource(Source):
    """Base class of sources made from another source; facets are the other's unless a subclass changes them."""

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

    def describe(self, chunk: int) -> Sequence[ColumnDescription]:
        return self.source.describe(chunk)

    def reading(self) -> Reading:
        return self.source.reading()

    def words(self, column: int) -> Mapping[float, str]:
        return self.source.words(column)

    def conformed(self, schema: Schema | None) -> Source:
        inner = self.source.conformed(schema)
        if inner is self.source:
            return self
        made = copy(self)
        made.__dict__.pop("fingerprint", None)
        made._take(inner)
        return made

    def _take(self, source: Source) -> None:
        self.source, self.schema, self.dtype = source, source.schema, source.dtype


def kind_mismatch_error(name: str, text: bool, where: str) -> DataError:
    """Return the error for a column that is text in training and numbers now, or the reverse."""
    return DataError(
        f"The feature {name!r} is {'text' if text else 'stored as numbers'}, and the model was trained on "
        f"{'numbers' if text else 'text'}.",
        where=where,
        expected="a column of the same kind as in training",
        remedy="store the column as it was stored for training",
    )


def column_mismatch_error(found: Sequence[str], expected: Sequence[str], where: str) -> DataError:
    """Return the error for columns that differ from training in names or order."""
    place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), 0)
    return DataError(
        f"The columns differ from those of training: {found[place]!r} is where {expected[place]!r} was.",
        where=where,
        expected=first_names(expected),
        remedy="open the data with columns=[...] as in training",
    )
