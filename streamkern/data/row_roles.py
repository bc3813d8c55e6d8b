"""Time and group of rows: which rows may not be on two sides of a split, from the stored columns that say so.

All rows of a group stay together: a hash of the group's value decides where, so that a group stays on its side while
data grow. Rows of one time stay together, too, and no side has rows between those of the other.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.row_selection import FilteredSource, SelectionRule, count_selected, selected_blocks
from streamkern.data.subsample import read_rows
from streamkern.defaults import MAX_EXACT_TIMES, MAX_FOLDS_OF_BOTH
from streamkern.errors import DataError, StorageError, UsageError
from streamkern.rng import HashFamily, row_hash
from streamkern.sources.array_source import ArraySource
from streamkern.sources.base import Source
from streamkern.sources.column_roles import opened_with_dates
from streamkern.sources.schema import Column, Schema, declared, number_of
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
        part = FilteredSource(self.source, rules)
        for chunk in range(len(part.bounds) - 1):
            values = self._values(part.read_checked(chunk).X.astype(np.float64, copy=False))
            if values.time is not None and not np.isfinite(values.time).all():
                raise DataError(
                    f"A row has no time in {self.time!r}.",
                    where=part.where_row(chunk, int(np.argmin(np.isfinite(values.time)))),
                    expected="a time in every row",
                    remedy="fill the times, or leave such rows out",
                )
            yield part.ids(chunk), values

    def folds(self, rules: Sequence[SelectionRule], count: int) -> Folds:
        """Return folds of the selected rows: ``count`` in time, ``count`` of groups, or some of each; kept."""
        kept: dict[str, Folds] = self.__dict__.setdefault("_folds", {})
        key = digest([rule.to_json() for rule in rules], count)
        if key not in kept:
            steps = 1 if self.time is None else min(count, MAX_FOLDS_OF_BOTH if self.group is not None else count)
            parts = 1 if self.group is None else min(count, MAX_FOLDS_OF_BOTH if self.time is not None else count)
            numbers = np.zeros(int(self.source.bounds[-1]), dtype=np.uint8)
            if self.time is not None:
                order = TimeOrder(self, rules)
                cuts = np.array([order.cut(step / steps) for step in range(1, steps)], dtype=order.codes.dtype)
                for ids, codes in order.blocks():
                    numbers[ids] = parts * np.searchsorted(cuts, codes, side="right")
            for ids, values in self.blocks(rules) if self.group is not None else ():
                numbers[ids] += (values.hashes(HashFamily.FOLDS) % np.uint64(parts)).astype(np.uint8)
            kept[key] = Folds(numbers, steps, parts)
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
    # float64 rounds whole numbers of more than 53 bits, so that two groups could become one; categories are exact.
    # Columns that are stored in one array have kinds already, and cannot be opened with others.
    whole = {source.group: "category"} if source.group is not None else {}
    try:
        roles = opened_with_dates(lambda schema: reopened(names, schema), source.time, (whole | kinds) or None)
    except DataError:
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
    found, kinds = [], []
    for role, values in given.items():
        array = np.asarray(values)
        if array.shape != (rows,):
            raise DataError(
                f"The {role} has shape {array.shape}, and there are {rows} rows.",
                where=role,
                expected=f"one value a row: shape ({rows},)",
                remedy="take the values of these rows, in their order",
            )
        dated = role == "time" and array.dtype.kind not in "biuf"
        if array.dtype.kind == "M":
            array = np.where(np.isnat(array), np.nan, array.astype("datetime64[us]").astype(np.int64) / 1e6)
        elif array.dtype.kind not in "bf" and not (array.dtype.kind in "iu" and _exact(array)):
            values = array.tolist()
            array = np.array(
                [moment(v, "time") for v in values] if role == "time" else list(map(_group_number, values))
            )
        kinds.append(Column(role, "datetime" if dated else "number"))
        found.append(array.astype(np.float64))
    time, group = (role if role in given else None for role in ("time", "group"))
    source = ArraySource(np.stack(found, axis=1), columns=list(given), schema=Schema(tuple(kinds)))
    return RowRoles(source, time, group)


def _exact(whole: Array) -> bool:
    return not len(whole) or max(abs(int(whole.min())), abs(int(whole.max()))) <= 1 << 53


def _group_number(value: Any) -> float:
    """A number of a group, equal for equal values; NaN where it is missing."""
    try:
        missing = value is None or bool(value != value)
    except TypeError:  # pandas' NA is neither equal nor different
        missing = True
    if missing:
        return np.nan
    return float(value) if isinstance(value, int | float) and abs(value) <= 1 << 53 else number_of(str(value))


@serializable
@dataclass(frozen=True, eq=False)
class Folds:
    """The fold of each stored row, (n,) uint8.

    ``steps`` folds follow one another in time, each divided into ``parts`` by a hash of the group; 1 where rows have no
    time or no group. Fold t of part g is number t * parts + g.
    """

    numbers: Array
    steps: int
    parts: int

    def __call__(self, ids: IntArray) -> IntArray:
        """Return the folds of rows by id, (n,)."""
        return np.asarray(self.numbers[ids], dtype=np.int64)


class TimeOrder:
    """The order of selected rows in time, by a code a row: a later row never has a smaller code.

    A code is the time itself, in 64 bits. Of more than ``MAX_EXACT_TIMES`` rows it is the time since the first row's,
    rounded to float32: rows whose times differ by less than 1e-7 of the span may have one code, and stay together.
    """

    def __init__(self, roles: RowRoles, rules: Sequence[SelectionRule]) -> None:
        """Read the times of the rows that rules select."""
        self.roles, self.rules, bounds = roles, rules, roles.source.bounds
        self._wide, origin, done = bounds[-1] <= MAX_EXACT_TIMES, 0.0, 0
        rows = int(count_selected(rules, bounds[:-1], bounds[1:]).sum())
        self.codes: Any = np.empty(rows, dtype=np.uint64 if self._wide else np.uint32)
        for ids, values in roles.blocks(rules):
            assert values.time is not None
            if not done and not self._wide:
                origin = float(values.time[0])
            self.codes[done : done + len(ids)] = _codes(values.time - origin, self._wide)
            done += len(ids)

    def cut(self, share: float) -> int:
        """Return the code from which on rows are late, so that as near as possible to ``share`` of the rows are early.

        Both sides have rows, unless all rows have one time. Histograms, of 16 bits of the codes each, find it.
        """
        n = len(self.codes)
        wanted, early, code, with_it = min(max(round(share * n), 1), n - 1), 0, 0, 0
        for shift in range(48 if self._wide else 16, -1, -16):
            counts = self._histogram(shift, code)
            digit = int(np.searchsorted(early + np.cumsum(counts), wanted, side="right"))
            early, with_it, code = early + int(counts[:digit].sum()), int(counts[digit]), (code << 16) + digit
        with_it += early
        late = early > 0 and (with_it == n or wanted - early <= with_it - wanted)  # the time that the cut falls on
        return code + (not late)

    def blocks(self) -> Iterator[tuple[IntArray, Any]]:
        """Yield ids and codes of the rows, in blocks."""
        done = 0
        for ids in selected_blocks(self.rules, 0, int(self.roles.source.bounds[-1])):
            yield ids, self.codes[done : done + len(ids)]
            done += len(ids)

    def _histogram(self, shift: int, above: int) -> IntArray:
        """Counts of the 16 bits from ``shift`` on, of the codes whose bits above them are these."""
        found, top = np.zeros(1 << 16, dtype=np.int64), shift + 16 == 8 * self.codes.itemsize
        for start in range(0, len(self.codes), 1 << 20):
            codes = self.codes[start : start + (1 << 20)] >> shift
            codes = codes if top else codes[codes >> 16 == above]
            found += np.bincount((codes & 0xFFFF).astype(np.int64), minlength=1 << 16)
        return found


def _codes(since: Array, wide: bool) -> Any:
    """Codes of numbers (n,), in their order: uint64, or uint32 of the numbers rounded to float32."""
    rounded: Any = since.astype(np.float64 if wide else np.float32) + 0  # -0.0 and 0.0 are one time
    bits = rounded.view(np.uint64 if wide else np.uint32)
    sign = bits.dtype.type(8 * bits.itemsize - 1)
    return np.where(bits >> sign, ~bits, bits | bits.dtype.type(1) << sign)


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
    if isinstance(made, datetime.datetime) and made == made:  # unlike a missing one of pandas
        return (made if made.tzinfo else made.replace(tzinfo=datetime.UTC)).timestamp()
    if isinstance(made, int | float | np.number) and not isinstance(made, bool) and np.isfinite(made):
        return float(made)
    raise UsageError(
        f"{value!r} is not a time.", where=where, expected='a date such as "2012-06-01", or a number of the column'
    )


def duration(value: Any, where: str) -> float:
    """Return a length of time >= 0 in the column's unit; that of a timedelta is seconds."""
    made: Any = value
    if isinstance(value, np.timedelta64):
        with suppress(TypeError):  # months have no length
            made = float(value / np.timedelta64(1, "s"))
    elif isinstance(value, datetime.timedelta):
        made = value.total_seconds()
    number = isinstance(made, int | float | np.number) and not isinstance(made, bool | np.timedelta64)
    if number and 0 <= made < np.inf:
        return float(made)
    raise UsageError(f"{value!r} is not a gap.", where=where, expected="a timedelta, or a number >= 0 in its unit")
