"""Fitted preprocessing: from stored rows to features, row by row. A model keeps it, and prediction applies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from streamkern.engine import default_engine
from streamkern.errors import DataError, ModelFormatError
from streamkern.rng import normal_rows, uniform_rows
from streamkern.storage.base import Source
from streamkern.types import Array, IntArray

Names = tuple[str, ...] | None
"""Names of features, or None where they have none."""


class Transform(Protocol):
    """A fitted step of preprocessing: what it does to a row depends on the row alone."""

    @property
    def n_in(self) -> int:
        """Features of a row that comes in."""
        ...

    @property
    def n_out(self) -> int:
        """Features of a row that goes out."""
        ...

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Rows X, shape (b, n_in), float32 or float64, to rows (b, n_out) of the same dtype. X may be changed.

        Args:
            X: rows.
            ids: their ids, shape (b,), for messages.
            where: where they lie, for messages.

        Raises:
            DataError: a value that the transform was not fitted for.
        """
        ...

    def names(self, names: Names) -> Names:
        """Names of the features that go out, from those of the ones that come in."""
        ...

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Name and parameters, JSON-serialisable, and arrays by name."""
        ...


_WIDEST = 1 << 31  # features that a saved transform may have


@dataclass(frozen=True, eq=False)
class Affine:
    """Features times ``factor`` plus ``shift``.

    Args:
        factor: shape (d,), float64.
        shift: shape (d,), float64.
    """

    factor: Array
    shift: Array

    @property
    def n_in(self) -> int:
        """The width d."""
        return len(self.factor)

    @property
    def n_out(self) -> int:
        """The width d."""
        return len(self.factor)

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Scale in place."""
        X *= self.factor.astype(X.dtype)
        X += self.shift.astype(X.dtype)
        return X

    def names(self, names: Names) -> Names:
        """The same."""
        return names

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Its arrays."""
        return {"name": "Affine"}, {"factor": self.factor, "shift": self.shift}


@dataclass(frozen=True, eq=False)
class Fill:
    """A value for each feature that is missing (NaN).

    Args:
        values: shape (d,), float64.
    """

    values: Array

    @property
    def n_in(self) -> int:
        """The width d."""
        return len(self.values)

    @property
    def n_out(self) -> int:
        """The width d."""
        return len(self.values)

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Fill in place."""
        np.copyto(X, self.values.astype(X.dtype), where=np.isnan(X))
        return X

    def names(self, names: Names) -> Names:
        """The same."""
        return names

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Its values."""
        return {"name": "Fill"}, {"values": self.values}


@dataclass(frozen=True, eq=False)
class Encode:
    """Columns of categories as indicators, or as codes, in the place where they stood; other columns stay.

    Args:
        n_in: columns of a row that comes in.
        columns: positions of the columns of categories, ascending.
        categories: the values of each of them, ascending.
        one_hot: whether a column becomes an indicator for each category, or one code: the category's rank.
        unknown: ``error``, or ``ignore`` for indicators of 0 or the code −1.
    """

    n_in: int
    columns: tuple[int, ...]
    categories: tuple[Array, ...]
    one_hot: bool
    unknown: str

    @property
    def n_out(self) -> int:
        """Columns that stay, and indicators or codes."""
        return self.n_in + (sum(len(values) - 1 for values in self.categories) if self.one_hot else 0)

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Encode."""
        widths = self._widths()
        begins = np.concatenate([[0], np.cumsum(widths)])
        out = np.zeros((len(X), int(begins[-1])), dtype=X.dtype)
        rest = np.ones(self.n_in, dtype=bool)
        rest[list(self.columns)] = False
        out[:, begins[:-1][rest]] = X[:, rest]
        for column, values in zip(self.columns, self.categories, strict=True):
            x = X[:, column]
            codes = np.minimum(np.searchsorted(values, x), len(values) - 1)
            known = values[codes] == x
            if self.unknown == "error" and not known.all():
                i = int(np.argmin(known))
                raise DataError(
                    f"The value {x[i]:g} was not among the categories of the training data.",
                    where=f"{where}, row {int(ids[i])}, feature {column}",
                    expected="one of " + ", ".join(f"{v:g}" for v in values[:12]) + (", ..." * (len(values) > 12)),
                    remedy='correct the value, or fit with unknown="ignore"',
                )
            if self.one_hot:
                out[np.flatnonzero(known), begins[column] + codes[known]] = 1.0
            else:
                out[:, begins[column]] = np.where(known, codes, -1)
        return out

    def names(self, names: Names) -> Names:
        """``column=value`` for an indicator."""
        if names is None:
            return None
        made: list[str] = []
        of = dict(zip(self.columns, self.categories, strict=True))
        for column, name in enumerate(names):
            one = self.one_hot and column in of
            made += [f"{name}={_short(value)}" for value in of[column]] if one else [name]
        return tuple(made)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Its columns, and the categories of all of them end to end."""
        facts = {"n_in": self.n_in, "columns": list(self.columns), "one_hot": self.one_hot, "unknown": self.unknown}
        sizes = [len(values) for values in self.categories]
        return {"name": "Encode", **facts, "sizes": sizes}, {"categories": np.concatenate(self.categories)}

    def _widths(self) -> list[int]:
        widths = [1] * self.n_in
        if self.one_hot:
            for column, values in zip(self.columns, self.categories, strict=True):
                widths[column] = len(values)
        return widths


def require_numbers(source: Source, transforms: Sequence[Transform]) -> None:
    """Refuse rows whose text a model takes for numbers.

    Args:
        source: stored rows.
        transforms: what the model does to them, in order.

    Raises:
        DataError: a feature is text, and none of the transforms makes categories of it.
    """
    text, names = set(source.text), source.columns
    for transform in transforms:
        if isinstance(transform, Encode) and names is not None:
            text -= {names[column] for column in transform.columns}
        names = transform.names(names)
    for name in sorted(text & set(source.columns or ())):
        raise DataError(
            f"The feature {name!r} is text, and cannot be a feature of a model that was trained on numbers there.",
            where=source.where(0),
            expected="numbers, as they were stored for training",
            remedy="store the column of training",
        )


def _short(value: float) -> str:
    """A number that is not mistaken for another."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))


@dataclass(frozen=True)
class UnitRows:
    """Rows divided by their Euclidean norm; a row of zeros stays.

    Args:
        n_in: d.
    """

    n_in: int

    @property
    def n_out(self) -> int:
        """The width d."""
        return self.n_in

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Divide in place."""
        norms = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
        X /= np.where(norms > 0, norms, 1.0).astype(X.dtype)[:, None]
        return X

    def names(self, names: Names) -> Names:
        """The same."""
        return names

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The width."""
        return {"name": "UnitRows", "n_in": self.n_in}, {}


@dataclass(frozen=True)
class Project:
    """Rows times a random matrix that is a function of its parameters: nothing is stored of it.

    Args:
        n_in: d.
        n_out: k.
        density: share of entries that are not 0; None for normal entries.
        seed: which matrix.
    """

    n_in: int
    n_out: int
    density: float | None
    seed: int

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Multiply."""
        # A product with a sparse matrix comes transposed.
        return np.ascontiguousarray(X @ projection(self.n_in, self.n_out, self.density, self.seed, X.dtype))

    def names(self, names: Names) -> Names:
        """None."""
        return None

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Its parameters."""
        return {"name": "Project", **vars(self)}, {}


@dataclass(frozen=True, eq=False)
class LinearMap:
    """Rows times a matrix, such as the square root of a learned metric.

    Args:
        matrix: shape (d, k), float64.
    """

    matrix: Array

    @property
    def n_in(self) -> int:
        """D."""
        return int(self.matrix.shape[0])

    @property
    def n_out(self) -> int:
        """K."""
        return int(self.matrix.shape[1])

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """Multiply: the bits of a row do not depend on the rows beside it."""
        if X.dtype not in self._factors:
            self._factors[X.dtype] = default_engine().right_factor(np.ascontiguousarray(self.matrix.T, X.dtype))
        return np.asarray(self._factors[X.dtype].times(X))

    @cached_property
    def _factors(self) -> dict[Any, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {"matrix": self.matrix}

    def names(self, names: Names) -> Names:
        """None: a feature that goes out is a sum over those that come in."""
        return None

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Its matrix."""
        return {"name": "LinearMap"}, {"matrix": self.matrix}


@dataclass(frozen=True)
class Expected:
    """Stands for a transform that is not fitted yet, in a projection of what a fit will hold.

    Args:
        n_in: features that come in.
        n_out: features that are expected to go out.
    """

    n_in: int
    n_out: int

    def apply(self, X: Array, ids: IntArray, where: str) -> Array:
        """There is nothing to apply yet."""
        raise NotImplementedError

    def names(self, names: Names) -> Names:
        """Not known."""
        return None

    def to_json(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Its widths."""
        return {"name": "Expected", **vars(self)}, {}


@lru_cache(maxsize=2)
def projection(n_in: int, n_out: int, density: float | None, seed: int, dtype: np.dtype[Any]) -> Any:
    """The matrix of a ``Project``, shape (n_in, n_out), of mean 0 and variance 1/n_out, so that norms stay on average.

    Normal entries, or ±1/√(density n_out) with the probability ``density`` and else 0 (Li, Hastie, Church 2006, "Very
    sparse random projections"), as a sparse matrix.
    """
    rows = np.arange(n_in, dtype=np.int64)
    if density is None:
        return (normal_rows(seed, 0, rows, n_out) / np.sqrt(n_out)).astype(dtype)
    u = uniform_rows(seed, 0, rows, n_out)
    signs = (u < density / 2).astype(dtype) - (u > 1 - density / 2).astype(dtype)
    return sparse.csr_array(signs / dtype.type(np.sqrt(density * n_out)))


def through(transforms: Sequence[Transform], X: Array, ids: IntArray, where: str) -> Array:
    """Rows through transforms in order."""
    for transform in transforms:
        X = transform.apply(X, ids, where)
    return X


def dump(transforms: Sequence[Transform]) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """What ``load`` reads: a description of each, and all their arrays, named by number."""
    described: list[dict[str, Any]] = []
    arrays: dict[str, Array] = {}
    for number, transform in enumerate(transforms):
        facts, own = transform.to_json()
        described.append(facts)
        arrays |= {f"transform{number}_{name}": array for name, array in own.items()}
    return described, arrays


def load(described: Sequence[dict[str, Any]], arrays: dict[str, Array]) -> tuple[Transform, ...]:
    """The transforms that ``dump`` described.

    Raises:
        ModelFormatError: one is unknown.
        KeyError: an array or a parameter is missing.
    """
    made: list[Transform] = []
    for number, given in enumerate(described):
        facts = dict(given)
        kind = facts.pop("name")
        prefix = f"transform{number}_"
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        if kind == "Affine":
            made.append(Affine(own["factor"], own["shift"]))
        elif kind == "Fill":
            made.append(Fill(own["values"]))
        elif kind == "Encode":
            ends = np.cumsum(facts["sizes"])[:-1]
            categories = tuple(np.split(own["categories"], ends))
            made.append(Encode(facts["n_in"], tuple(facts["columns"]), categories, facts["one_hot"], facts["unknown"]))
        elif kind == "LinearMap":
            made.append(LinearMap(own["matrix"]))
        elif kind == "UnitRows":
            made.append(UnitRows(**facts))
        elif kind == "Project":
            made.append(Project(**facts))
        else:
            raise ModelFormatError(
                f"The preprocessing {kind!r} is not known.",
                where=f"transform {number}",
                expected="a preprocessing step of this release",
                remedy="read it with the release of streamkern that wrote it",
            )
        _require_sound(made[-1], 0 if len(made) == 1 else made[-2].n_out, number)
    return tuple(made)


def _require_sound(made: Transform, width: int, number: int) -> None:
    """Raise ValueError if a transform that was read cannot be applied to rows.

    Args:
        made: the transform.
        width: of the rows that come in; 0 if not known.
        number: of the transform in its chain.
    """
    if isinstance(made, LinearMap) and (made.matrix.ndim != 2 or made.matrix.dtype != np.float64):
        raise ValueError(f"transform {number}, LinearMap, cannot be applied")
    sound = type(made.n_in) is int and 0 < made.n_in < _WIDEST and width in (0, made.n_in)
    if isinstance(made, Affine | Fill):
        arrays = [made.values] if isinstance(made, Fill) else [made.factor, made.shift]
        sound = sound and all(a.shape == (made.n_in,) and a.dtype.kind == "f" for a in arrays)
    elif isinstance(made, Encode):
        inside = all(type(column) is int and 0 <= column < made.n_in for column in made.columns)
        filled = all(values.ndim == 1 and len(values) and values.dtype.kind == "f" for values in made.categories)
        sound = sound and inside and filled and len(made.columns) == len(set(made.columns)) == len(made.categories)
        sound = sound and type(made.one_hot) is bool and made.unknown in ("error", "ignore")
    elif isinstance(made, Project):
        share = made.density is None or (isinstance(made.density, float | int) and 0 < made.density <= 1)
        sound = sound and share and type(made.seed) is int and type(made.n_out) is int and 0 < made.n_out < _WIDEST
    if not sound:
        raise ValueError(f"transform {number}, {type(made).__name__}, cannot be applied")
