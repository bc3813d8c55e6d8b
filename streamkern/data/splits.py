"""Splits that keep groups whole and the future apart, and rows chosen by the values of their columns."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.row_roles import RowRoles, TimeOrder, moment
from streamkern.data.row_selection import HASH_SPAN, RowBitmap, SelectionRule, selected_blocks
from streamkern.errors import UsageError
from streamkern.sources.base import Source
from streamkern.sources.format_rules import unknown_name_error
from streamkern.sources.schema import number_of
from streamkern.types import Array, IntArray

Sides = tuple[RowBitmap, RowBitmap]
"""Rules of the rest and of the test rows."""


def split_by_roles(
    roles: RowRoles, rules: Sequence[SelectionRule], test: float, key: tuple[int, ...], gap: float = 0.0
) -> Sides:
    """Split by time, by group or by both, of which each has a share ``test``.

    Test rows are the latest, or those of the groups of smallest hash; with both, the latest rows of some of the groups
    that have late rows. The rest are the earlier rows, or the rows of the other groups; with both, the earlier rows of
    the other groups. Rows less than ``gap`` before the first test row are on neither side.
    """
    n = int(roles.source.bounds[-1])
    if roles.time is None:
        tested = _groups(roles, rules, test, key)
        return tested.complement(), tested
    order = TimeOrder(roles, rules)
    cut = order.cut(1 - test)
    late = RowBitmap.of(n, ((ids, codes >= cut) for ids, codes in order.blocks()))
    early = _before(roles, rules, late, gap)
    if roles.group is None:
        return early, late
    tested = _groups(roles, rules, test, key, late)
    return early & tested.complement(), late & tested


def split_after(roles: RowRoles, rules: Sequence[SelectionRule], after: float, gap: float) -> Sides:
    """Split at a time: test rows have it or a later one, the rest are earlier, by ``gap`` at least."""
    return (
        _marked(roles, rules, lambda time: (time < after) & (time <= after - gap)),
        _marked(roles, rules, lambda time: time >= after),
    )


def expanding_windows(roles: RowRoles, rules: Sequence[SelectionRule], count: int, gap: float) -> Iterator[Sides]:
    """Yield ``count`` splits: each is tested on the next part of the time, of equal rows, after all parts before it."""
    n, order = int(roles.source.bounds[-1]), TimeOrder(roles, rules)
    cuts = [order.cut(part / (count + 1)) for part in range(1, count + 1)]
    for cut, end in zip(cuts, [*cuts[1:], None], strict=True):
        late = RowBitmap.of(n, ((ids, codes >= cut) for ids, codes in order.blocks()))
        later = None if end is None else RowBitmap.of(n, ((ids, codes >= end) for ids, codes in order.blocks()))
        yield _before(roles, rules, late, gap), late if later is None else late & later.complement()


def _marked(roles: RowRoles, rules: Sequence[SelectionRule], test: Callable[[Any], Any]) -> RowBitmap:
    blocks = roles.blocks(rules)
    return RowBitmap.of(int(roles.source.bounds[-1]), ((ids, test(values.time)) for ids, values in blocks))


def _before(roles: RowRoles, rules: Sequence[SelectionRule], late: RowBitmap, gap: float) -> RowBitmap:
    """The rows that are not late, and earlier than every late row by ``gap`` at least."""
    if not gap:
        return late.complement()
    times = ((values.time, late.keep(ids)) for ids, values in roles.blocks(rules))
    first = min((float(np.min(time[kept])) for time, kept in times if kept.any()), default=np.inf)  # type: ignore[index]
    return _marked(roles, rules, lambda time: (time < first) & (time <= first - gap))


def _groups(
    roles: RowRoles, rules: Sequence[SelectionRule], test: float, key: tuple[int, ...], among: RowBitmap | None = None
) -> RowBitmap:
    """Rows of the groups whose hash is below a share of all hashes; of few groups, of one at least and not of all.

    With ``among``, groups that have none of these rows do not count.
    """
    least, most = HASH_SPAN, 0

    def below(bound: int) -> Iterator[tuple[IntArray, Any]]:
        nonlocal least, most
        for ids, values in roles.blocks(rules):
            hashes = values.hashes(*key)
            if len(counted := hashes if among is None else hashes[among.keep(ids)]):
                least, most = min(least, int(counted.min())), max(most, int(counted.max()))
            yield ids, hashes < np.uint64(bound)

    n, bound = int(roles.source.bounds[-1]), round(test * HASH_SPAN)
    marked = RowBitmap.of(n, below(bound))
    if least <= most and not least < bound <= most:  # few groups
        marked = RowBitmap.of(n, below(most if bound > most > least else least + 1))
    return marked


class Stored(NamedTuple):
    """A stored column: its source and position there, and its kind; whether its values are codes of texts."""

    source: Source
    position: int
    kind: str = "number"
    text: bool = False


def columns_of(*sources: Source) -> dict[str, Stored]:
    """Return the named columns of sources of the same rows; a later source's column replaces an earlier one's."""
    found: dict[str, Stored] = {}
    for source in sources:
        kinds = {} if source.schema is None else {column.name: column for column in source.schema.columns}
        for at, name in enumerate(source.columns or ()):
            kind = kinds.get(name)
            found[name] = Stored(source, at, *(() if kind is None else (kind.kind, kind.text)))
    return found


def names_in(condition: str) -> list[str]:
    """Return the names of columns in a condition, each once; UsageError if it cannot be read or names none."""
    found: list[str] = []
    for node in ast.walk(_parsed(condition)):
        if isinstance(node, ast.Name):
            found.append(node.id)
        elif isinstance(node, ast.Compare):  # if neither side is an identifier, the column's name is in quotes
            for sides in pairwise([node.left, *node.comparators]):
                if not any(isinstance(side, ast.Name) for side in sides):
                    found += [value for side in sides if isinstance(value := getattr(side, "value", None), str)]
    if not found:
        raise _unreadable(condition, _NotACondition("it names no column"))
    return list(dict.fromkeys(found))


def rows_where(
    condition: str, columns: Mapping[str, Stored], rows: int, rules: Sequence[SelectionRule] = ()
) -> RowBitmap:
    """Return the rows that rules select, of so many, and that satisfy a condition on stored columns.

    A condition is such as ``"price > 5 and shop in ('a', 'b')"``. A comparison with a missing value is false.

    Raises:
        UsageError: the condition is not comparisons of columns with values, joined by ``and``, ``or`` and ``not``.
        DataError: there is no such column.
    """
    tree = _parsed(condition)
    try:
        _satisfied(tree, columns, lambda name: np.empty(0))  # its errors, before rows are read
    except _NotACondition as error:
        raise _unreadable(condition, error) from error
    names = [name for name in names_in(condition) if name in columns]
    readers = {id(columns[name].source): _Ascending(columns[name].source) for name in names}

    def kept() -> Iterator[tuple[IntArray, Any]]:
        for ids in selected_blocks(rules, 0, rows):
            if len(ids):
                read = {key: reader.rows(ids) for key, reader in readers.items()}
                values = {n: read[id(columns[n].source)][:, columns[n].position] for n in names}
                yield ids, _satisfied(tree, columns, values.__getitem__)

    return RowBitmap.of(rows, kept())


class _Ascending:
    """Reads features by ascending ids, each chunk once, whatever the chunks are."""

    def __init__(self, source: Source) -> None:
        self.source, self._chunk, self._X = source, -1, np.empty((0, 0))

    def rows(self, ids: IntArray) -> Array:
        chunks = np.searchsorted(self.source.bounds, ids, side="right") - 1
        parts = []
        for chunk in np.unique(chunks).tolist():
            if chunk != self._chunk:
                self._chunk, self._X = chunk, self.source.read_checked(chunk).X
            parts.append(self._X[ids[chunks == chunk] - int(self.source.bounds[chunk])])
        return np.concatenate(parts)


_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal, ast.Eq: np.equal,
    ast.NotEq: np.not_equal, ast.In: np.isin, ast.NotIn: lambda x, values: ~np.isin(x, values),
}  # fmt: skip
_MIRRORED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}


def _parsed(condition: str) -> ast.expr:
    try:
        return ast.parse(condition.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _unreadable(condition, error) from error


def _unreadable(condition: str, error: Exception) -> UsageError:
    return UsageError(
        f"The condition {condition!r} cannot be read: {error}.",
        where="where",
        expected="comparisons of columns with values, joined by and, or, not: \"price > 5 and shop in ('a', 'b')\"",
        remedy="put a name that is not one word in quotes: \"'unit price' > 5\"",
    )


class _NotACondition(Exception):
    pass


def _satisfied(node: ast.expr, columns: Mapping[str, Stored], read: Callable[[str], Array]) -> Any:
    """The mask (n,) of the rows that satisfy a condition, from the columns' values; ``read`` has them by name."""
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return join.reduce([_satisfied(each, columns, read) for each in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_satisfied(node.operand, columns, read)
    if not isinstance(node, ast.Compare):
        raise _NotACondition(f"{ast.unparse(node)!r} is no comparison")
    parts, left = [], node.left
    for op, right in zip(node.ops, node.comparators, strict=True):
        parts.append(_compared(left, op, right, columns, read))
        left = right
    return np.logical_and.reduce(parts)


def _compared(
    left: ast.expr, op: ast.cmpop, right: ast.expr, columns: Mapping[str, Stored], read: Callable[[str], Array]
) -> Any:
    kind, name = type(op), _name(left, columns)
    if name is None:
        kind, name, right = _MIRRORED.get(kind, ast.Is), _name(right, columns), left
    if name is None or kind not in _COMPARISONS:
        raise _NotACondition(f"{ast.unparse(left)!r} is not compared with a value")
    try:
        given = ast.literal_eval(right)
    except (ValueError, TypeError) as error:
        raise _NotACondition(f"{ast.unparse(right)!r} is no value") from error
    several = kind in (ast.In, ast.NotIn)
    if several != isinstance(given, tuple | list | set):
        raise _NotACondition(f"{ast.unparse(right)!r} is {'no list' if several else 'a list'} of values")
    column = columns[name]
    if column.text and kind not in (ast.Eq, ast.NotEq, ast.In, ast.NotIn):
        raise _NotACondition(f"{name!r} is text, which is equal or not")
    wanted = np.array([_number(value, column, name) for value in given]) if several else _number(given, column, name)
    x = read(name)  # 0.1 equals a float32 value that was rounded from 0.1
    return _COMPARISONS[kind](x, np.asarray(wanted, x.dtype) if x.dtype.kind == "f" else wanted) & ~np.isnan(x)


def _name(node: ast.expr, columns: Mapping[str, Stored]) -> str | None:
    """Return the name of the column on one side of a comparison: an identifier, or any name in quotes; else None."""
    if isinstance(node, ast.Name) and node.id not in columns:
        raise unknown_name_error("column", node.id, columns, "where")
    named = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
    return named if isinstance(named, str) and named in columns else None


def _number(value: Any, column: Stored, name: str) -> float:
    if column.text:
        return number_of(str(value))
    if column.kind == "datetime":
        return moment(value, f"where({name!r})")
    with suppress(OverflowError):
        if isinstance(value, bool | int | float):
            return float(value)
    raise _NotACondition(f"{value!r} is not a {column.kind}, as {name!r} is")
