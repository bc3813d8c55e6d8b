"""Fitted preprocessing from stored rows to features, row by row. A model saves it, and prediction applies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from streamkern.cpu import default_engine
from streamkern.data.encoders import ENCODERS, Encode, Encoder, Lookup, Names, Saved, TargetMeans, columns_of_arrays
from streamkern.defaults import MAX_COMPONENTS
from streamkern.errors import DataError, ModelFormatError
from streamkern.rng import normal_rows, uniform_rows
from streamkern.sources.base import Source
from streamkern.storage.serialize import serializable
from streamkern.types import Array, IntArray


class _SameColumns(Saved):
    @property
    def n_out(self) -> int:
        return self.n_in  # type: ignore[attr-defined,no-any-return]

    def names(self, names: Names) -> Names:
        return names


@serializable
@dataclass(frozen=True, eq=False)
class Affine(_SameColumns):
    """Features times ``factor`` plus ``shift``, both of shape (d,), float64."""

    factor: Array
    shift: Array

    @property
    def n_in(self) -> int:
        """Number of input features."""
        return len(self.factor)

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        X *= self.factor.astype(X.dtype)
        X += self.shift.astype(X.dtype)
        return X


@serializable
@dataclass(frozen=True, eq=False)
class Fill(Saved):
    """Replace missing values by the values (d,), where NaN keeps them; append indicators of them for some features."""

    values: Array
    indicators: tuple[int, ...] = ()

    @property
    def n_in(self) -> int:
        return len(self.values)

    @property
    def n_out(self) -> int:
        return len(self.values) + len(self.indicators)

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        missing = np.isnan(X)
        np.copyto(X, self.values.astype(X.dtype), where=missing)
        if not self.indicators:
            return X
        return np.concatenate([X, missing[:, list(self.indicators)].astype(X.dtype)], axis=1)

    def names(self, names: Names) -> Names:
        """Return the input names, and ``column is missing`` for an indicator."""
        return None if names is None else (*names, *(f"{names[column]} is missing" for column in self.indicators))


def require_numbers(source: Source, transforms: Sequence[Transform]) -> None:
    """Refuse rows with text or dates in a column that the model treats as numbers."""
    text, names, schema = set(source.text), source.columns, source.schema
    dates = set() if schema is None else {column.name for column in schema.columns if column.kind == "datetime"}
    text |= dates
    for transform in transforms:
        if isinstance(transform, Encode) and names is not None:
            text -= {names[column] for column in transform.columns}
        names = transform.names(names)
    for name in sorted(text & set(source.columns or ())):
        kind = "a date" if name in dates else "text"
        raise DataError(
            f"The feature {name!r} is {kind}, and cannot be a feature of a model that was trained on numbers there.",
            where=source.where(0),
            expected="numbers, as they were stored for training",
            remedy="store the column of training",
        )


@serializable
@dataclass(frozen=True)
class UnitRows(_SameColumns):
    """Divide rows by their Euclidean norm; a row of zeros is unchanged."""

    n_in: int

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        norms = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
        X /= np.where(norms > 0, norms, 1.0).astype(X.dtype)[:, None]
        return X


@serializable
@dataclass(frozen=True)
class Project(Saved):
    """Multiply rows by a random matrix, a function of the parameters, so that no array is saved."""

    n_in: int
    n_out: int
    density: float | None
    seed: int

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        # A product with a sparse matrix has Fortran order.
        return np.ascontiguousarray(X @ projection_matrix(self.n_in, self.n_out, self.density, self.seed, X.dtype))

    def names(self, names: Names) -> Names:
        return None


@dataclass(frozen=True, eq=False)
class LinearMap(Saved):
    """Multiply rows by a matrix (d, k), float64, such as the square root of a learned metric."""

    matrix: Array

    @property
    def n_in(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def n_out(self) -> int:
        return int(self.matrix.shape[1])

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        """Multiply; a row's result does not depend on the other rows, to the last bit."""
        if X.dtype not in self._factors:
            self._factors[X.dtype] = default_engine().right_factor(np.ascontiguousarray(self.matrix.T, X.dtype))
        return np.asarray(self._factors[X.dtype].times(X))

    @cached_property
    def _factors(self) -> dict[Any, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {"matrix": self.matrix}

    def names(self, names: Names) -> Names:
        """Return None: an output feature is a sum over all input features."""
        return None


@dataclass(frozen=True)
class ExpectedWidth(Saved):
    """A placeholder for a transform that is not fitted yet, to estimate the memory of a fit."""

    n_in: int
    n_out: int

    def apply(self, X: Array, ids: IntArray, where: str, lookup: Lookup | None = None) -> Array:
        raise NotImplementedError

    def names(self, names: Names) -> Names:
        return names if self.n_in == self.n_out else None


Transform = Affine | Fill | UnitRows | Project | LinearMap | ExpectedWidth | Encoder
"""A fitted preprocessing step, which acts on each row independently.

``apply`` takes rows (b, n_in), float32 or float64, which it may overwrite, to (b, n_out) of the same dtype, and counts
categories that training did not see in a ``Lookup``; ``names`` takes names of input features to those of output
features; ``to_json`` returns name and parameters, and arrays by name.
"""


@lru_cache(maxsize=2)
def projection_matrix(n_in: int, n_out: int, density: float | None, seed: int, dtype: np.dtype[Any]) -> Any:
    """Return the matrix of ``Project``, shape (n_in, n_out), mean 0, variance 1/n_out: it keeps norms on average.

    Normal entries, or ±1/√(density n_out) with the probability ``density`` and else 0 (Li, Hastie, Church 2006, "Very
    sparse random projections"), as a sparse matrix.
    """
    rows = np.arange(n_in, dtype=np.int64)
    if density is None:
        return (normal_rows(seed, 0, rows, n_out) / np.sqrt(n_out)).astype(dtype)
    from scipy.sparse import csr_array

    u = uniform_rows(seed, 0, rows, n_out)
    signs = (u < density / 2).astype(dtype) - (u > 1 - density / 2).astype(dtype)
    return csr_array(signs / dtype.type(np.sqrt(density * n_out)))


def transforms_for_prediction(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Return the transforms for rows other than the training rows."""
    return tuple(each.final() if isinstance(each, TargetMeans) else each for each in transforms)


def dump(transforms: Sequence[Transform]) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Describe transforms for ``load``: a description of each, and all their arrays, named by number."""
    described: list[dict[str, Any]] = []
    arrays: dict[str, Array] = {}
    for number, transform in enumerate(transforms):
        facts, own = transform.to_json()
        described.append(facts)
        arrays |= {f"transform{number}_{name}": array for name, array in own.items()}
    return described, arrays


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (*ENCODERS, Affine, Fill, UnitRows, Project, LinearMap)}


def load(described: Sequence[dict[str, Any]], arrays: dict[str, Array]) -> tuple[Transform, ...]:
    """Return the transforms that ``dump`` described; ModelFormatError or TypeError for an unknown or incomplete one."""
    made: list[Transform] = []
    for number, given in enumerate(described):
        facts = {name: _tuples(value) for name, value in given.items()}
        kind = facts.pop("name")
        prefix = f"transform{number}_"
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        if kind not in _KINDS:
            raise ModelFormatError(
                f"The preprocessing {kind!r} is not known.",
                where=f"transform {number}",
                expected="a preprocessing step of this release",
                remedy="read it with the release of streamkern that wrote it",
            )
        own = {part.name: own[part.name] for part in fields(_KINDS[kind]) if part.name in own}
        split = columns_of_arrays(facts, own) if issubclass(_KINDS[kind], Encoder) else own
        made.append(_KINDS[kind](**facts, **split))
        _require_sound(made[-1], 0 if len(made) == 1 else made[-2].n_out, number)
    return tuple(made)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _require_sound(made: Transform, width: int, number: int) -> None:
    """Raise ValueError if a transform that was read cannot be applied to rows; a width of 0 is unknown."""
    if isinstance(made, LinearMap) and (made.matrix.ndim != 2 or made.matrix.dtype != np.float64):
        raise ValueError(f"transform {number}, LinearMap, cannot be applied")
    max_features = 1 << 31  # most features of a saved transform
    sound = type(made.n_in) is int and 0 < made.n_in < max_features and width in (0, made.n_in)
    if isinstance(made, Affine | Fill):
        arrays = [made.values] if isinstance(made, Fill) else [made.factor, made.shift]
        sound = sound and all(a.shape == (made.n_in,) and a.dtype.kind == "f" for a in arrays)
        marked = made.indicators if isinstance(made, Fill) else ()
        sound = sound and all(type(column) is int and 0 <= column < made.n_in for column in marked)
    elif isinstance(made, Encoder):
        sound = sound and made.sound
    elif isinstance(made, Project):
        share = made.density is None or (isinstance(made.density, float | int) and 0 < made.density <= 1)
        sound = sound and share and type(made.seed) is int and type(made.n_out) is int
        sound = sound and 0 < made.n_out <= MAX_COMPONENTS
    if not sound:
        raise ValueError(f"transform {number}, {type(made).__name__}, cannot be applied")
