"""Named arrays as a source: one array of all features, or one for each feature; and arrays of targets and weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streamkern.errors import DataError
from streamkern.formats.arrow_tables import TableSource
from streamkern.sources.arrow import pa
from streamkern.sources.arrow_conversion import kind_of_array, table_of_arrays
from streamkern.sources.base import TEXT_BYTES, TEXT_SAMPLE, Reading, text_bytes
from streamkern.sources.column_roles import Field, Request, Roles, choose_columns
from streamkern.sources.format_rules import as_rows, as_target, check_chunk, first_names, rows_per_chunk
from streamkern.storage.value_digest import digest
from streamkern.types import Array, IntArray, Rows

FEATURE_NAMES = ("X", "features", "data", "images")
"""Names by which the features are recognised among several arrays, in order of preference."""


class Unpacked(NamedTuple):
    """Shape (n, ...) and dtype of an array as it is read, after its numbers are unpacked."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class StoredRows(ABC):
    """A stored array that is read by rows; picklable and thread-safe. ``where`` is its file and name.

    Strings of variable width have the dtype ``object``.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    where: str

    @abstractmethod
    def read(self, a: int, b: int) -> Array:
        """Return rows a to b, in their stored shape; StorageError if they cannot be read."""

    def read_kept(self, a: int, b: int) -> Array:
        """Return rows a to b, caching stored chunks that are larger than a read."""
        return self.read(a, b)

    @abstractmethod
    def holding(self, rows: int, text: int, kept: bool) -> tuple[int, int]:
        """Return bytes of decoding besides the rows, for each read and once for all, with ``text`` bytes a text."""


def may_be_read(name: str, arrays: Container[str], request: Request) -> bool:
    """Return False for an array that the user's choice of arrays leaves out, so that its attributes do not matter."""
    wanted = request.named
    by_array = wanted is not None and all(each in arrays for each in wanted)
    return name not in request.exclude and (wanted is None or not by_array or name in wanted)


def roles_of(
    arrays: Mapping[str, Unpacked | StoredRows],
    request: Request,
    path: str,
    where: Callable[[str], str],
    names: list[str] | None = None,
    nameable: bool = False,
    index: Collection[str] = (),
    missing: Collection[str] = (),
) -> Roles:
    """Return the roles of arrays, with the errors of ``choose_columns``.

    The features are one array of two or more axes (``X``, ``features``, ``data`` or ``images`` if there are several),
    else all one-dimensional arrays, sorted by name: the columns of a table, which may hold text, dates and times.
    ``names`` are those of the features, if the data record them; without, the user's columns may name them if
    ``nameable``. Arrays of ``index`` count the rows; those of ``missing`` have a number for missing values.
    """
    require_unstructured(arrays, where)
    several = [name for name, array in arrays.items() if len(array.shape) > 1 and name not in request.targets]
    known = [name for name in FEATURE_NAMES if name in several][:1] or several
    fields = {
        name: replace(
            _field(where(name), arrays[name]),
            rows=arrays[name].shape[0],
            by_name_only=bool(several) and name not in known,
            index=name in index,
            missing=True if name in missing else None,
        )
        for name in sorted(arrays)
        if arrays[name].shape
    }
    columns = request.columns
    if nameable and columns is not None and len(known) == 1 and not set(columns) <= set(arrays):
        names, columns = list(columns), None
    request = replace(request, columns=columns, lenient=request.lenient and not several)
    return choose_columns(fields, request, path, names=names)


def require_unstructured(arrays: Mapping[str, Unpacked | StoredRows], where: Callable[[str], str]) -> None:
    """Raise DataError for an array of records with named fields."""
    for name, array in arrays.items():
        if np.dtype(array.dtype).names is not None:
            raise DataError(
                f"This array is structured: its fields are {first_names(np.dtype(array.dtype).names or ())}.",
                where=where(name),
                expected="an array for each column, or one array of shape (n, d)",
                remedy="write each field as an array of its own; or, if they fit in memory, pass them as a table: "
                "sk.from_arrays(structured[[...]], structured[...])",
            )


def _field(where: str, array: Unpacked | StoredRows) -> Field:
    dtype = np.dtype(array.dtype)
    field = Field(where, f"{dtype}{list(array.shape)}", dtype, tuple(array.shape[1:]))
    kind = None if field.wide else kind_of_array(dtype)
    if kind is None:
        return field
    made = dtype if dtype.kind in "biuf" else np.dtype(np.float64 if dtype.kind in "mM" else object)
    return replace(field, dtype=made, inferred=kind, encoded=dtype.kind not in "biuf")


class NamedArrays(TableSource):
    """Rows of arrays that are read by row number; ``arrays`` include those that a lenient request skips."""

    def __init__(
        self,
        arrays: Mapping[str, StoredRows],
        roles: Roles,
        request: Request,
        places: Sequence[Any],
        bounds: IntArray | None = None,
        **facets: Any,
    ) -> None:
        if not roles.wide:
            pa.types  # noqa: B018  # imports Arrow now, before a plan measures the memory in use
        self._arrays = {name: arrays[name] for name in read_of(roles)}
        self._first = self._arrays[roles.features[0]]
        self._places = tuple(places)
        n, rows = self._first.shape[0], rows_per_chunk(roles.row_bytes)
        if bounds is None:
            bounds = np.append(np.arange(0, n, rows, dtype=np.int64), np.int64(n))
        super().__init__(roles, request, np.diff(bounds).tolist(), **facets)

    @property
    def fingerprint(self) -> str:
        roles = self._roles
        weight = [] if roles.weight is None else [roles.weight]
        places = [place.identity for place in self._places]
        return digest("arrays", [places, roles.features], self.columns, self.target, *weight, *roles.kinds)

    def reading(self) -> Reading:
        roles, rows = self._roles, self._most_rows()
        texts = {name: self._text_bytes(name) for name, array in self._arrays.items() if array.dtype.kind in "OTU"}
        text = max((texts.get(name, TEXT_BYTES) for name in roles.targets), default=TEXT_BYTES)
        found = {
            name: array.holding(rows, texts.get(name, TEXT_BYTES), name not in roles.features)
            for name, array in self._arrays.items()
        }
        decoding = max(holds for holds, _ in found.values())  # arrays are read one after another
        decoding += rows * roles.row_bytes if roles.pick is not None else 0
        # A column is converted to Arrow through objects for text, and then to numbers.
        decoding += 0 if roles.wide else 2 * rows * max(texts.get(name, 8) for name in roles.features)
        y = 0
        if self.target is not None and any(self._arrays[name].dtype != self.target.dtype for name in roles.targets):
            y = rows * (self._row_bytes(text) - self.n_features * self.dtype.itemsize)  # in the stored dtype
        elif len(roles.targets) > 1:
            y = rows * self._row_bytes(text)  # before they are joined
        return Reading(self._row_bytes(text), decoding + y, sum(kept for _, kept in found.values()))

    def _text_bytes(self, name: str) -> int:
        """Estimate the bytes of a text as an object from a sample."""
        found = self._arrays[name].read(0, min(self._most_rows(), TEXT_SAMPLE)).reshape(-1)
        return text_bytes(found.tolist()) if len(found) else TEXT_BYTES

    def _read(self, chunk: int) -> Rows:
        a, b = check_chunk(chunk, self.bounds)
        roles, y = self._roles, None
        if roles.wide:
            X = as_rows(self._first.read(a, b))
            X = X if roles.pick is None else np.ascontiguousarray(X[:, list(roles.pick)])
        else:
            X = self._narrow(chunk, self._table(chunk, roles.features))
        if self.target is not None:
            values = [self._arrays[name].read_kept(a, b) for name in roles.targets]
            y = as_target(values[0] if len(values) == 1 else np.stack(values, axis=1), self.target)
        return Rows(X, y, None if roles.weight is None else self.weights(chunk))

    def weights(self, chunk: int) -> Array:
        a, b = check_chunk(chunk, self.bounds)
        assert self.weight is not None
        return self._weights(self._arrays[self.weight].read_kept(a, b), chunk)

    def _table(self, chunk: int, names: Sequence[str]) -> Any:
        a, b = check_chunk(chunk, self.bounds)
        return table_of_arrays({name: self._arrays[name].read(a, b) for name in names})

    def where(self, chunk: int) -> str:
        a, b = check_chunk(chunk, self.bounds)
        return f"{self._first.where}, chunk {chunk}, rows {a} to {b - 1}"


def read_of(roles: Roles) -> list[str]:
    """Return names of the arrays to read: those with a role, and those that are only described."""
    return [*roles.stored, *(name for name, _ in roles.non_features)]
