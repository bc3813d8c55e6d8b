"""Schema: name and kind of every column of a table, stored with the data and saved with the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from streamkern.defaults import COLUMN_KINDS
from streamkern.errors import UsageError


@dataclass(frozen=True)
class Column:
    """One column: a ``number``, ``category``, ``boolean`` (0 and 1) or ``datetime`` (seconds since 1970 in UTC).

    A category's values are ``text``, represented by codes, or numbers. ``missing`` is None if unknown without reading
    every row. A column is ``dated`` if dates are read as numbers, because the user declared it a ``number``. It is
    ``empty``, which is not saved, if no row has a value, so that nothing but a declaration tells the kind.
    """

    name: str
    kind: str = "number"
    text: bool = False
    missing: bool | None = None
    dated: bool = False
    empty: bool = False

    @property
    def plain(self) -> bool:
        """True if the column is read as stored, without conversion."""
        return self.kind in ("number", "boolean")


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order.

    Attributes:
        columns: the columns, with distinct names.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.columns, tuple) or not all(isinstance(column, Column) for column in self.columns):
            raise UsageError(
                f"columns is {self.columns!r}.", where="Schema(columns=...)", expected="a tuple of columns with kinds"
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def plain(self) -> bool:
        """True if all columns are numbers and booleans."""
        return all(column.plain for column in self.columns)

    @cached_property
    def missing(self) -> bool:
        """True if values are known to be missing."""
        return any(column.missing for column in self.columns)

    @cached_property
    def kinds(self) -> tuple[tuple[str, str, bool], ...]:
        """Name, kind and ``text`` of each column; they determine how values are read."""
        return tuple((column.name, column.kind, column.text) for column in self.columns)

    def positions(self, *kinds: str) -> tuple[int, ...]:
        """Return the positions of columns of these kinds."""
        return tuple(j for j, column in enumerate(self.columns) if column.kind in kinds)

    def picked(self, names: Iterable[str]) -> Schema:
        """Return a schema of some columns, in the given order."""
        known = {column.name: column for column in self.columns}
        return Schema(tuple(known[name] for name in names))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the columns as JSON-serialisable data."""
        marks = ("text", "missing", "dated")
        return [
            {"name": c.name, "kind": c.kind} | {mark: True for mark in marks if getattr(c, mark)} for c in self.columns
        ]

    def text_lines(self) -> list[str]:
        """Return a line for each column, for display."""
        width = max((len(column.name) for column in self.columns), default=0)
        gaps = {True: "values are missing", False: "", None: ""}
        return [f"{c.name:<{width}}  {c.kind:<8}  {gaps[c.missing]}".rstrip() for c in self.columns]

    @classmethod
    def from_json(cls, described: Any) -> Schema:
        """Return a schema from the output of ``to_json``.

        Raises:
            ValueError: ``described`` is not a schema.
        """
        columns = []
        for each in described if isinstance(described, list) else [None]:
            if (
                not isinstance(each, dict)
                or not isinstance(each.get("name"), str)
                or each.get("kind") not in COLUMN_KINDS
            ):
                raise ValueError("a column of the schema has no name, or no kind that is known")
            text = each.get("text", False)
            if type(text) is not bool or (text and each["kind"] != "category"):
                raise ValueError(f"the column {each['name']!r} of the schema cannot hold text")
            missing = True if each.get("missing") is True else None
            columns.append(Column(each["name"], each["kind"], text, missing, each.get("dated") is True))
        if len({column.name for column in columns}) < len(columns):
            raise ValueError("a column of the schema is named twice")
        return cls(tuple(columns))


def join_schemas(schemas: Iterable[Schema]) -> Schema:
    """Return the schema of several tables with equal kinds; a column has missing values if one table's has."""
    columns = []
    for same in zip(*(schema.columns for schema in schemas), strict=True):
        gaps = {column.missing for column in same}
        columns.append(replace(same[0], missing=True if True in gaps else None if None in gaps else False))
    return Schema(tuple(columns))


def joint_kinds(schemas: Sequence[Schema]) -> Schema:
    """Return each column's first known kind in tables of the same columns; one without values tells nothing."""
    each = zip(*(schema.columns for schema in schemas), strict=True)
    return Schema(tuple(next((column for column in same if not column.empty), same[0]) for same in each))


def declared(schema: Any) -> dict[str, Column]:
    """Return the user's declarations of columns, given as a Schema, as kinds by name, or as None."""
    if schema is None:
        return {}
    if isinstance(schema, Schema):
        return {column.name: column for column in schema.columns}
    if not isinstance(schema, Mapping) or not all(isinstance(name, str) for name in schema):
        raise UsageError(
            f"schema is {schema!r}.", where="schema", expected='kinds of columns by name: {"zip": "category"}'
        )
    for name, kind in schema.items():
        if kind not in COLUMN_KINDS:
            raise UsageError(
                f"The kind of column {name!r} is {kind!r}.",
                where="schema",
                expected=f"one of {', '.join(COLUMN_KINDS)}",
            )
    # The stored type determines whether a category's values are text.
    return {name: Column(name, kind) for name, kind in schema.items()}


def number_of(text: str) -> float:
    """Return the code of a text, equal in every process: a whole number of 52 bits, exact in float64."""
    return float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 12)
