"""Several sources as one: their rows follow one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streamkern.errors import DataError
from streamkern.sources.base import ColumnDescription, DerivedSource, Reading, Source
from streamkern.sources.format_rules import check_chunk
from streamkern.sources.schema import Schema, join_schemas, joint_kinds
from streamkern.storage.value_digest import digest
from streamkern.types import Array, Rows, Target


def join(sources: list[Source]) -> Source:
    """Return the rows of several sources as one; columns get the kinds that all can have, others are refused."""
    schemas = [source.schema for source in sources if source.schema is not None]
    if len(schemas) == len(sources) and len({schema.names for schema in schemas}) == 1:
        kinds = joint_kinds(schemas)
        sources = [source.conformed(kinds) for source in sources]
    for source in sources[1:]:
        _require_alike(sources[0], source)
    return sources[0] if len(sources) == 1 else JoinedSource(sources)


class JoinedSource(DerivedSource):
    """The concatenated rows of several sources, which do not count as shuffled, even if all sources are."""

    def __init__(self, parts: Sequence[Source]) -> None:
        first = parts[0]
        super().__init__(first)
        self._parts = parts
        self.shuffled, self.remote = False, any(part.remote for part in parts)
        self.dtype = np.result_type(*(part.dtype for part in parts))
        self.in_memory = all(part.in_memory and part.dtype == self.dtype for part in parts)
        self.from_memory = all(part.from_memory for part in parts)
        schemas = [part.schema for part in parts if part.schema is not None]
        self.schema = join_schemas(schemas) if len(schemas) == len(parts) else None
        if first.target is not None:
            dtypes = [part.target.dtype for part in parts if part.target is not None]
            self.target = Target(first.target.name, np.result_type(*dtypes), first.target.outputs)
        chunks = [len(part.bounds) - 1 for part in parts]
        rows = [int(part.bounds[-1]) for part in parts]
        self._first_chunk = np.cumsum([0, *chunks])
        starts = np.cumsum([0, *rows])
        pieces = [part.bounds[:-1] + start for part, start in zip(parts, starts, strict=False)]
        self.bounds = np.concatenate([*pieces, starts[-1:]]).astype(np.int64)

    @property
    def fingerprint(self) -> str:
        return digest("joined", [part.fingerprint for part in self._parts])

    def pieces(self) -> list[tuple[str, int]]:
        return [piece for part in self._parts for piece in part.pieces()]

    def require_unchanged(self) -> None:
        for part in self._parts:
            part.require_unchanged()

    def reading(self) -> Reading:
        found = [part.reading() for part in self._parts]
        wider = 0 if self.in_memory else self._most_rows() * self._row_bytes()  # a part with a narrower dtype is copied
        return Reading(
            max(self._row_bytes(), *(each.row for each in found)),
            wider + max(each.decoding for each in found),
            sum(each.once for each in found),
            max(each.libraries for each in found),
        )

    def read(self, chunk: int) -> Rows:
        part, inside = self._find(chunk)
        X, y, w = part.read(inside)
        X = X.astype(np.result_type(X.dtype, self.dtype), copy=False)
        if y is not None and self.target is not None and y.dtype != object:  # objects: text, or labels with nulls
            y = y.astype(self.target.dtype, copy=False)
        return Rows(X, y, w)

    def weights(self, chunk: int) -> Array:
        part, inside = self._find(chunk)
        return part.weights(inside)

    def words(self, column: int) -> Mapping[float, str]:
        return {number: text for part in self._parts for number, text in part.words(column).items()}

    def conformed(self, schema: Schema | None) -> Source:
        parts = [part.conformed(schema) for part in self._parts]
        return self if all(a is b for a, b in zip(parts, self._parts, strict=True)) else JoinedSource(parts)

    def describe(self, chunk: int) -> Sequence[ColumnDescription]:
        part, inside = self._find(chunk)
        return part.describe(inside)

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        part, inside = self._find(chunk)
        own = part.where(inside)
        return own if part is self._parts[0] else f"{own} (rows {a} to {b - 1} of all)"

    def where_row(self, chunk: int, row: int) -> str:
        part, inside = self._find(chunk)
        return part.where_row(inside, row)

    def _find(self, chunk: int) -> tuple[Source, int]:
        check_chunk(chunk, self.bounds)
        part = int(np.searchsorted(self._first_chunk, chunk, side="right")) - 1
        return self._parts[part], chunk - int(self._first_chunk[part])


def _require_alike(first: Source, other: Source) -> None:
    what, remedy = None, "choose common columns with columns=[...], or ingest them separately"
    texts = sorted({*first.text} ^ {*other.text})
    numbers, others = ({*(each.columns or ())} for each in (first, other))
    mixed = sorted((numbers & {*dict(other.non_features)}) | (others & {*dict(first.non_features)}))
    if mixed:
        held = (dict(each.non_features).get(mixed[0], "numbers") for each in (other, first))
        what = f"column {mixed[0]!r} holds {' and '.join(held)}"
        remedy = f"give the column one kind in all tables, or leave it out: exclude={mixed[:1]!r}"
    elif other.n_features != first.n_features or other.columns != first.columns:
        what = f"{other.n_features} features ({_names(other)}) and {first.n_features} ({_names(first)})"
    elif texts:
        kinds = "text and numbers" if texts[0] in other.text else "numbers and text"
        what = f"column {texts[0]!r} holds {kinds}"
    elif dict(other.non_features).keys() != dict(first.non_features).keys():
        what = f"columns {', '.join(dict(other.non_features))} and {', '.join(dict(first.non_features))}"
    elif (other.target is None) != (first.target is None):
        what = "one has a target and the other has none"
    elif (other.weight is None) != (first.weight is None):
        what = "one has weights and the other has none"
    elif other.target is not None and first.target is not None:
        one, two = other.target, first.target
        if one.outputs != two.outputs or (one.dtype == object) != (two.dtype == object):
            what = f"targets of {one.dtype}{one.outputs} and {two.dtype}{two.outputs}"
    if what is not None:
        places = [s.where(0) if len(s.bounds) > 1 else "a table of no rows" for s in (other, first)]
        raise DataError(
            f"two tables differ: {what}",
            where=" and ".join(places),
            expected="the same columns in every table",
            remedy=remedy,
        )


def _names(source: Source) -> str:
    return "unnamed" if source.columns is None else ", ".join(source.columns[:4]) + ", ..." * (source.n_features > 4)
