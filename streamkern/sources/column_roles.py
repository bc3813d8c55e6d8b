"""Choice of the columns for features, targets, sample weights or ids, for all formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkern.errors import DataError, UsageError
from streamkern.sources.array_source import checked_names
from streamkern.sources.base import Source
from streamkern.sources.format_rules import (
    feature_dtype,
    first_names,
    positions,
    require_distinct,
    target_of,
    unknown_name_error,
)
from streamkern.sources.input_types import index_names
from streamkern.sources.schema import Column, Schema, declared
from streamkern.types import Target


@dataclass(frozen=True)
class Request:
    """The columns that a user selects, under the user's names.

    Several targets are c values a row; "" asks for no target or no weight, None for those recorded in the data.
    ``role`` names the target in errors, such as "id", since an id column takes the target's place in predictions. A
    ``lenient`` request is for inspection: it skips columns other than plain numbers, and reads nulls of whole numbers
    as NaN and nulls of labels as None. ``schema`` overrides types by kinds.
    ``time`` and ``group`` are no features unless ``columns`` names them, or did when the data were written, which is
    noted as ``featured``; "" asks for none, as of a target.
    """

    target: str | Sequence[str] | None = None
    columns: Sequence[str] | None = None
    weight: str | None = None
    role: str = "target"
    lenient: bool = False
    schema: Any = None
    exclude: Sequence[str] = ()
    time: str | None = None
    group: str | None = None
    featured: Sequence[str] | None = None

    def noted(self, notes: Mapping[str, Any]) -> Request:
        """Return the request with target, weight, time and group as recorded in the data, if the user names none."""
        names = ("target", "weight", "time", "group", "featured")
        noted: dict[str, Any] = {name: notes.get(name) for name in names if getattr(self, name) is None}
        return replace(self, **noted)

    @property
    def row_roles(self) -> list[str]:
        """Names of the columns of time and group."""
        return [name for name in (self.time, self.group) if name]

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets."""
        return (self.target,) if isinstance(self.target, str) and self.target else tuple(self.target or ())

    @property
    def named(self) -> list[str] | None:
        """All named columns, or None if the features are all columns without another role."""
        if self.columns is None:
            return None
        return list(dict.fromkeys([*self.columns, *self.targets, *([self.weight] if self.weight else [])]))


@dataclass(frozen=True)
class Field:
    """A stored column, or an array with several values a row, as the format declares it."""

    where: str  # file and name, for errors
    kind: str  # the format's name of its type
    dtype: np.dtype[Any] | None  # of numbers or booleans; ``object`` for text; None for anything else
    shape: tuple[int, ...] | None = ()  # of a row's values; None for lists and binaries, which can only be features
    length: int = 0  # values in each list or binary, if the declaration says so
    rows: int = 0  # of an array; 0 for columns of a table, which have equal lengths
    inferred: tuple[str, bool] | None = None  # kind implied by the type, and whether text; None for arrays and lists
    encoded: bool = False  # whether values must be converted to numbers, such as text, dates and decimals
    decimal: bool = False  # which targets and weights may be, too
    missing: bool | None = None  # None if unknown
    by_name_only: bool = False
    index: bool = False  # whether the format records that it is the index of the rows
    empty: bool = False  # whether no row has a value, and the type tells nothing

    @property
    def text(self) -> bool:
        """True if the values are text."""
        return self.inferred is not None and self.inferred[1]

    @property
    def wide(self) -> bool:
        """True if there are several values a row."""
        return self.shape != ()

    @property
    def number(self) -> bool:
        """True if the values can be features without conversion."""
        return self.dtype is not None and not self.encoded


@dataclass(frozen=True)
class Roles:
    """The role of each stored column that is read.

    If features are ``wide``, one column has all of a row. ``width`` values are stored in a row; the features are at the
    positions ``pick``, or all. ``schema`` is of features stored as columns of a table; None for arrays.
    ``non_features`` are (name, type) of the columns that a lenient request skips; ``left_out`` those of an index, which
    the user did not name.
    """

    features: tuple[str, ...]
    wide: bool
    width: int
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None
    pick: tuple[int, ...] | None
    schema: Schema | None
    targets: tuple[str, ...]
    target: Target | None
    weight: str | None
    non_features: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...] = ()
    time: str | None = None
    group: str | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row of features."""
        return max(1, self.width) * self.dtype.itemsize

    @property
    def stored(self) -> list[str]:
        """All columns that are read, without repetition."""
        return list(dict.fromkeys((*self.features, *self.targets, *([self.weight] if self.weight else []))))

    @property
    def kinds(self) -> list[Any]:
        """Return the kinds of the columns if some are not plain numbers, for fingerprints."""
        return [] if self.schema is None or self.schema.plain else [self.schema.kinds]

    def identity(self) -> list[Any]:
        """The roles as JSON-serialisable data, for fingerprints."""
        inside = [self.width] if self.wide else []
        names = [self.columns, self.pick] if self.wide else []
        features = [self.features[0] if self.wide else self.features, *inside, self.dtype.str, *names, *self.kinds]
        return [features, self.targets, self.target, *([self.weight] if self.weight else [])]


def opened_with_dates(opened: Callable[[Any], Source], time: str | None, schema: Any) -> Source:
    """Open rows by a schema; where the time would be text, which dates in a text table may be, as dates."""
    made = opened(schema)
    if time not in made.text:
        return made
    return opened({name: column.kind for name, column in declared(schema).items()} | {time: "datetime"})


def choose_columns(
    fields: Mapping[str, Field],
    request: Request,
    where: str,
    *,
    names: Sequence[str] | None = None,
    width: Callable[[str], int] = lambda name: 1,
) -> Roles:
    """Return the role of every stored column, or raise DataError or UsageError for a name that cannot have its role.

    ``names`` are those of the features in a column with all features of a row, if the data record them. ``width``
    returns the values of a row in a column of lists.
    """
    targets, columns, weight = request.targets, request.columns, request.weight or None
    kinds_given = declared(request.schema)
    _require_known(fields, request, kinds_given, where, names or ())
    if columns is not None and weight in columns:
        raise UsageError(
            f"The column {weight!r} is named as a feature and as the weight",
            where="weight",
            expected="one of the two",
            remedy="leave it out of columns",
        )
    chosen, inside, left_out = _feature_columns(fields, request, where)
    non_features: tuple[tuple[str, str], ...] = ()
    if request.lenient:
        chosen, non_features = _fitting({name: fields[name] for name in chosen})
    wide = _wide_column(fields, chosen, where)
    if wide is not None and columns is None and names is not None and set(names) & set(request.row_roles):
        inside = [name for name in names if name not in request.row_roles or name in (request.featured or ())]
    kinds = [_feature_dtype(fields[name]) for name in chosen]
    schema = None if wide is not None else _schema(fields, chosen, kinds_given, isinstance(request.schema, Schema))
    dtype = np.result_type(*kinds) if kinds else np.dtype(np.float64)
    if schema is not None and (not schema.plain or (schema.missing and dtype.kind != "f")):
        dtype = np.dtype(np.float64)
    _require_one_length(chosen, targets, weight, request.role, fields)
    size, pick = len(chosen), None
    feature_names: tuple[str, ...] | None = tuple(chosen)
    if wide is not None:
        field = fields[wide]
        size = math.prod(field.shape) if field.shape is not None else field.length or width(wide)
        if size == 0:
            raise DataError(
                "the rows have no features",
                where=field.where,
                expected="at least one feature",
                remedy="store rows of shape (n, d)",
            )
        feature_names = checked_names(names, size)
        if inside is not None:
            pick = tuple(positions(inside, feature_names, field.where).tolist())
            feature_names = tuple(inside)
    if weight is not None:
        _require_weight(weight, fields)
    return Roles(
        features=tuple(chosen), wide=wide is not None, width=size, dtype=dtype, columns=feature_names, pick=pick,
        schema=schema, targets=targets, target=_target(targets, request.role, fields, where), weight=weight,
        non_features=non_features, left_out=left_out, time=request.time or None, group=request.group or None,
    )  # fmt: skip


def _require_known(
    fields: Mapping[str, Field], request: Request, kinds: Mapping[str, Column], where: str, inner: Sequence[str]
) -> None:
    for role, name in [*(("excluded column", name) for name in request.exclude), *(("column", n) for n in kinds)]:
        if name not in fields and not (role == "column" and isinstance(request.schema, Schema)):
            raise unknown_name_error(role, name, fields, where)
    for name in request.row_roles:
        if name not in fields and name not in inner:
            raise unknown_name_error("column of time or group", name, [*fields, *inner], where)
    weights = [("weight", request.weight)] if request.weight else []
    for role, name in [*((request.role, name) for name in request.targets), *weights]:
        if name not in fields and name in inner:
            raise DataError(
                f"The {role} {name!r} is stored among the numbers of the features, not in a column of its own.",
                where=where,
                expected=f"one of: {first_names(list(fields))}",
                remedy=f"give the rows as they were before ingest, or name no {role}",
            )
        if name not in fields:
            raise unknown_name_error(role, name, fields, where)


def _feature_columns(
    fields: Mapping[str, Field], request: Request, where: str
) -> tuple[list[str], Sequence[str] | None, tuple[str, ...]]:
    """The columns of features, the names asked for inside the one wide column, and columns of an index."""
    targets, columns = request.targets, request.columns
    # An id is copied, so it may be a feature, too; a target may not.
    copied = {name for name in targets if request.role != "target" and name in set(columns or ())}
    if columns is not None or targets:
        require_distinct([*(columns or ()), *(name for name in targets if name not in copied)], where)
    weight = request.weight or None
    others = {name: fields[name] for name in fields if name in copied or (name not in targets and name != weight)}
    without = {*request.exclude, *request.row_roles}
    usual = [name for name, field in others.items() if not field.by_name_only and name not in without]
    by_name = index_names(fields)
    left_out = tuple(name for name in usual if columns is None and (fields[name].index or name in by_name))
    usual = [name for name in usual if name not in left_out]
    inside: Sequence[str] | None = None
    if columns is None:
        chosen = usual
    elif not (absent := [name for name in columns if name not in others]):
        chosen = list(columns)
    elif len(usual) == 1 and fields[usual[0]].wide:
        chosen, inside = usual, columns
    elif isinstance(request.schema, Schema):
        missing = absent[0]
        raise DataError(
            f"column {missing!r} is not there" + (f", nor are {first_names(absent[1:])}" if absent[1:] else ""),
            where=where,
            expected="every column of training",
            remedy="give the columns that the model was trained on; leave unknown values empty",
        )
    else:
        raise unknown_name_error("column", absent[0], others, where)
    if not chosen:
        raise DataError(
            "no columns are left to be features",
            where=where,
            expected="at least one column that is neither target nor weight",
            remedy="name fewer targets; or check that the path is that of the features"
            + (f" (its columns are: {', '.join(fields)})" if fields else ""),
        )
    return chosen, inside, left_out


def _wide_column(fields: Mapping[str, Field], chosen: Sequence[str], where: str) -> str | None:
    """A column with all features of a row must be the only one chosen."""
    wide = next((name for name in chosen if fields[name].wide), None)
    if wide is not None and len(chosen) > 1:
        raise DataError(
            f"column {wide!r} holds a row's features, and there are other feature columns: {', '.join(chosen)}",
            where=where,
            expected="one column of lists, binaries or arrays, or columns of numbers",
            remedy=f"pass columns=[{wide!r}], and target= for the column of targets",
        )
    return wide


def _require_weight(weight: str, fields: Mapping[str, Field]) -> None:
    field = fields[weight]
    if not ((field.number or field.decimal) and field.shape is not None and math.prod(field.shape) == 1):
        raise DataError(
            f"weight {weight!r} is a column of {field.kind}",
            where=field.where,
            expected="one number a row",
            remedy="convert the weights, or name another column",
        )


def _fitting(fields: dict[str, Field]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Names of columns that can be features without encoding, and (name, type) of the others."""
    chosen = [name for name, field in fields.items() if field.number and not field.wide]
    chosen = chosen or [name for name, field in fields.items() if field.number][:1]
    others = (name for name in fields if name not in chosen)
    return chosen, tuple((name, "string" if fields[name].text else fields[name].kind) for name in others)


def _schema(
    fields: Mapping[str, Field], chosen: Sequence[str], given: Mapping[str, Column], whole: bool
) -> Schema | None:
    """The user's kinds decide, if ``whole`` also which categories are text; else types. None is for arrays."""
    columns = []
    for name in chosen:
        field = fields[name]
        if field.inferred is None:
            return None
        said = given.get(name)
        kind, text = field.inferred if said is None else (said.kind, said.text if whole else field.text)
        dated = said.dated if whole and said is not None else kind == "number" and field.inferred[0] == "datetime"
        columns.append(
            Column(name, kind, text and kind == "category", field.missing, dated, field.empty and said is None)
        )
    return Schema(tuple(columns))


def _feature_dtype(field: Field) -> np.dtype[Any]:
    if field.inferred is not None and field.encoded:
        return np.dtype(np.float64)
    if field.dtype is None and field.wide:
        raise DataError(
            f"{field.kind} without a matching dtype and shape",
            where=field.where,
            expected='schema metadata under the key "streamkern": {"dtype": ..., "shape": [...]}',
            remedy="write the file with write_parquet, or add that metadata",
        )
    if field.dtype is None:
        convert = {"period": "table[name].dt.to_timestamp()", "interval": "table[name].astype(str)"}
        converted = next(
            (f"convert it: {how}; or " for kind, how in convert.items() if f"pandas.{kind}" in field.kind), ""
        )
        raise DataError(
            f"a column of {field.kind} cannot be a feature",
            where=field.where,
            expected="numbers, booleans, text, dates and times",
            remedy=f"{converted}leave it out: exclude=[...] (--exclude A,B); or choose columns with columns=[...] "
            "(--columns A,B)",
        )
    return feature_dtype(field.dtype, field.where)


def _target(targets: Sequence[str], role: str, fields: Mapping[str, Field], where: str) -> Target | None:
    if not targets:
        return None
    several = len(targets) > 1
    for field, name in ((fields[name], name) for name in targets):
        unfit = field.encoded and not (field.text or field.decimal)
        if (
            unfit
            or field.dtype is None
            or field.shape is None
            or (several and (field.wide or field.dtype.kind not in "biuf"))
        ):
            raise DataError(
                f"{role} {name!r} is a column of {field.kind}",
                where=where,
                expected="numbers in each of several targets" if several else "numbers, booleans or strings",
                remedy=f"convert the {role}, or name another one",
            )
    shape = (len(targets),) if several else fields[targets[0]].shape
    dtypes = [dtype for name in targets if (dtype := fields[name].dtype) is not None]
    return target_of(",".join(targets), np.result_type(*dtypes), shape or (), where)


def _require_one_length(
    chosen: Sequence[str], targets: Sequence[str], weight: str | None, role: str, fields: Mapping[str, Field]
) -> None:
    for name in (*chosen, *targets, *([weight] if weight else [])):
        first, other = fields[chosen[0]] if chosen else fields[name], fields[name]
        if other.rows != first.rows:
            kind = role if name in targets else "weight" if name == weight else None
            raise DataError(
                f"{first.rows} rows of features and {other.rows} of {kind}"
                if kind
                else f"columns {chosen[0]!r} and {name!r} have {first.rows} and {other.rows} rows",
                where=f"{first.where}; {other.where}",
                expected="columns of one length",
                remedy="choose those that belong together: columns=[...]; or write them again together",
            )
