"""Time and group of rows: which rows may not be on two sides of a split, from the stored columns that say so.

All rows of a group stay together: a hash of the group's value decides where, so that a group stays on its side while
data grow. Rows of one time stay together, too, and no side has rows between those of the other.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.row_selection import SelectionRule, selected_ids
from streamkern.data.subsample import read_rows
from streamkern.errors import DataError, StorageError, UsageError
from streamkern.rng import HashFamily, row_hash
from streamkern.sources.array_source import ArraySource
from streamkern.sources.base import Source
from streamkern.sources.column_roles import opened_with_dates
from streamkern.sources.schema import declared, number_of
from streamkern.storage.serialize import serializable
from streamkern.storage.value_digest import digest
from streamkern.types import Array, IntArray


class RoleValues(NamedTuple):
    """Times (n,) and groups (n,) of rows, float64, each None where the rows have none; missing groups are one group."""

    time: Array | None
    group: Array | None

    def hashes(self, *key: int) -> Any:
        """Return hashes of the groups under a key, (n,) uint64, equal for the rows of a group."""
        assert self.group is not None
        values = np.where(np.isnan(self.group), np.inf, self.group + 0.0)  # -0.0 and 0.0 are one group
        return row_hash(values.view(np.int64), *key)


@dataclass(frozen=True, eq=False)
class RowRoles:
    """Time and group of stored rows: a source of the same rows, the names of the two columns, and their positions."""

    source: Source
    time: str | None = None
    group: str | None = None
    positions: tuple[int, ...] = (0, 1)

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of the rows and their roles."""
        return digest("roles", self.source.fingerprint, self.time, self.group, self.positions)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_folds"}

    def of_rows(self, ids: IntArray) -> RoleValues:
        """Return the values of rows by id, in the order of the ids."""
        order = np.argsort(ids, kind="stable")
        X = np.empty((len(ids), self.source.n_features))
        X[order] = read_rows(self.source, ids[order]).X
        return self._values(X)

    def taken(self, ids: IntArray) -> RowRoles:
        """Return the roles of some rows, which are numbered anew, in memory."""
        columns = [values for values in self.of_rows(ids) if values is not None]
        names = [name for name in (self.time, self.group) if name is not None]
        return RowRoles(ArraySource(np.stack(columns, axis=1), columns=names), self.time, self.group)

    def blocks(self, rules: Sequence[SelectionRule]) -> Iterator[tuple[IntArray, RoleValues]]:
        """Yield ids and values of the rows that rules select, chunk by chunk; a chunk without any is not read.

        Raises:
            DataError: a row has no time.
        """
        for chunk, ids in enumerate(selected_in_chunks(self.source.bounds, rules)):
            if not len(ids):
                continue
            start = int(self.source.bounds[chunk])
            values = self._values(self.source.read_checked(chunk).X[ids - start].astype(np.float64, copy=False))
            if values.time is not None and np.isnan(values.time).any():
                raise DataError(
                    f"A row has no time in {self.time!r}.",
                    where=self.source.where_row(chunk, int(ids[np.argmax(np.isnan(values.time))]) - start),
                    expected="a time in every row",
                    remedy="fill the times, or leave such rows out",
                )
            yield ids, values

    def folds(self, rules: Sequence[SelectionRule], count: int) -> Folds:
        """Return ``count`` folds of the selected rows, at most 255: read once, and kept."""
        kept: dict[str, Folds] = self.__dict__.setdefault("_folds", {})
        key = digest([rule.to_json() for rule in rules], count)
        if key not in kept:
            numbers = np.zeros(int(self.source.bounds[-1]), dtype=np.uint8)
            if self.time is None:
                for ids, values in self.blocks(rules):
                    numbers[ids] = values.hashes(HashFamily.FOLDS) % np.uint64(count)
            else:
                order = TimeOrder(self, rules)
                cuts = np.array([order.cut(number / count) for number in range(1, count)])
                for ids, codes in order.blocks():
                    numbers[ids] = np.searchsorted(cuts, codes, side="right")
            kept[key] = Folds(count, numbers, self.time is not None)
        return kept[key]

    def _values(self, X: Array) -> RoleValues:
        at = iter(self.positions)
        return RoleValues(*(None if name is None else X[:, next(at)] for name in (self.time, self.group)))


def roles_of_columns(source: Source, schema: Any, reopened: Callable[[list[str], Any], Source]) -> RowRoles | None:
    """Return the roles that a source's columns have; ``reopened`` opens some columns as features, by a schema."""
    names = source.row_roles
    if not names:
        return None
    kinds = {name: column.kind for name, column in declared(schema).items() if name in names}
    roles = opened_with_dates(lambda schema: reopened(names, schema), source.time, kinds or None)
    if int(roles.bounds[-1]) != int(source.bounds[-1]):
        raise StorageError(
            f"{roles.bounds[-1]:,} rows have {' and '.join(names)}, and {source.bounds[-1]:,} rows have features.",
            where=roles.where(0) if len(roles.bounds) > 1 else "the rows",
            expected="data that do not change while they are opened",
            remedy="open them again",
        )
    return RowRoles(roles, source.time, source.group)


def roles_of_values(given: Mapping[str, Any], rows: int) -> RowRoles:
    """Return roles given as arrays or columns (n,) by role, ``time`` and ``group``; equal values are one group."""
    found = []
    for role, values in given.items():
        array = np.asarray(values)
        if array.shape != (rows,):
            raise DataError(
                f"The {role} has shape {array.shape}, and there are {rows} rows.",
                where=role,
                expected=f"one value a row: shape ({rows},)",
            )
        if array.dtype.kind == "M":
            array = np.where(np.isnat(array), np.nan, array.astype("datetime64[us]").astype(np.int64) / 1e6)
        elif array.dtype.kind not in "biuf":
            if role == "time":
                array = np.array([moment(value, "time") for value in array.tolist()])
            else:
                array = np.array([np.nan if value is None else number_of(str(value)) for value in array.tolist()])
        found.append(array.astype(np.float64))
    time, group = (role if role in given else None for role in ("time", "group"))
    return RowRoles(ArraySource(np.stack(found, axis=1), columns=list(given)), time, group)


def selected_in_chunks(bounds: IntArray, rules: Sequence[SelectionRule]) -> Iterator[IntArray]:
    """Yield the ids that rules select in each chunk, ascending."""
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        chosen = selected_ids(rules, start, stop)
        yield np.arange(start, stop, dtype=np.int64) if chosen is None else chosen


@serializable
@dataclass(frozen=True, eq=False)
class Folds:
    """The fold of each stored row, (n,) uint8; all rows of a group are in one, and ``ordered`` folds ascend in time."""

    count: int
    numbers: Array
    ordered: bool = False

    def __call__(self, ids: IntArray) -> IntArray:
        """Return the folds of rows by id, (n,)."""
        return np.asarray(self.numbers[ids], dtype=np.int64)


class TimeOrder:
    """The order of selected rows in time, by a code of 32 bits a row: a later row never has a smaller code.

    A code is the time since the first row's, rounded to float32: rows whose times differ by less than 1e-7 of the span
    may have one code, and stay together as rows of one time do.
    """

    def __init__(self, roles: RowRoles, rules: Sequence[SelectionRule]) -> None:
        """Read the times of the rows that rules select."""
        self.roles, self.rules, self._origin = roles, rules, 0.0
        parts = [np.empty(0, dtype=np.uint32)]
        for _, values in roles.blocks(rules):
            assert values.time is not None
            self._origin = self._origin if len(parts) > 1 else float(values.time[0])
            parts.append(_codes(values.time - self._origin))
        self.codes = np.concatenate(parts)

    def cut(self, share: float) -> int:
        """Return the code from which on rows are late, so that as near as possible to ``share`` of the rows are early.

        Both sides have rows, unless all rows have one time. Two histograms, of half a code each, find it.
        """
        n = len(self.codes)
        wanted = min(max(round(share * n), 1), n - 1)
        high = self._histogram(lambda codes: codes >> 16)
        top = int(np.searchsorted(np.cumsum(high), wanted, side="right"))
        low = self._histogram(lambda codes: codes[codes >> 16 == top] & 0xFFFF)
        up_to = int(high[:top].sum()) + np.cumsum(low)
        at = int(np.searchsorted(up_to, wanted, side="right"))
        early, with_it = int(up_to[at] - low[at]), int(up_to[at])
        late = early > 0 and (with_it == n or wanted - early <= with_it - wanted)  # the time that the cut falls on
        return (top << 16) + at + (not late)

    def before(self, code: int, gap: float) -> int:
        """Return the code of the time that is ``gap`` before a code's."""
        if gap == 0:
            return code
        bits = np.uint32(code & 0x7FFFFFFF if code >> 31 else ~code & 0xFFFFFFFF)
        return int(_codes(np.array([bits], dtype=np.uint32).view(np.float32).astype(np.float64) - gap)[0])

    def blocks(self) -> Iterator[tuple[IntArray, Any]]:
        """Yield ids and codes of the rows, chunk by chunk."""
        done = 0
        for ids in selected_in_chunks(self.roles.source.bounds, self.rules):
            yield ids, self.codes[done : done + len(ids)]
            done += len(ids)

    def _histogram(self, part: Callable[[Any], Any]) -> IntArray:
        found = np.zeros(1 << 16, dtype=np.int64)
        for start in range(0, len(self.codes), 1 << 20):
            found += np.bincount(part(self.codes[start : start + (1 << 20)]), minlength=1 << 16)
        return found


def _codes(since: Array) -> Any:
    """Codes of numbers (n,), rounded to float32, in their order: uint32."""
    bits = (since.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0.0 and 0.0 are one time
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def moment(value: Any, where: str) -> float:
    """Return a time as a number: of a date, seconds since 1970 in UTC; UsageError if it is neither."""
    made: Any = value
    if isinstance(value, str):
        try:
            made = datetime.datetime.fromisoformat(value)
        except ValueError:
            made = None
    elif isinstance(value, np.datetime64):
        made = value.astype("datetime64[us]").item()
    if isinstance(made, datetime.date) and not isinstance(made, datetime.datetime):
        made = datetime.datetime(made.year, made.month, made.day)
    if isinstance(made, datetime.datetime):
        return (made if made.tzinfo else made.replace(tzinfo=datetime.UTC)).timestamp()
    if isinstance(made, int | float | np.number) and not isinstance(made, bool) and np.isfinite(made):
        return float(made)
    raise UsageError(
        f"{value!r} is not a time.", where=where, expected='a date such as "2012-06-01", or a number of the column'
    )


def duration(value: Any, where: str) -> float:
    """Return a length of time >= 0 in the column's unit; that of a timedelta is seconds."""
    made = value.item() if isinstance(value, np.timedelta64) else value
    made = made.total_seconds() if isinstance(made, datetime.timedelta) else made
    if isinstance(made, int | float | np.number) and not isinstance(made, bool) and 0 <= made < np.inf:
        return float(made)
    raise UsageError(f"{value!r} is no gap.", where=where, expected="a timedelta, or a number >= 0 in the time's unit")
