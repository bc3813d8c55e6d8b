"""The few types that every layer shares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""A host array. Device arrays enter through the backends only."""

IntArray: TypeAlias = NDArray[np.int64]


class Rows(NamedTuple):
    """Rows of one chunk in the stored dtype: C-contiguous X (n, d); y (n,) or (n, c), and weights w (n,), or None."""

    X: Array
    y: Array | None
    w: Array | None = None

    def each(self, change: Callable[[Array], Array]) -> Rows:
        """The same change of every array that is there."""
        y, w = (None if values is None else change(values) for values in (self.y, self.w))
        return Rows(change(self.X), y, w)


class Parameters:
    """Base of frozen dataclasses of a user's settings: a kernel, a solver, a step."""

    def to_json(self) -> dict[str, Any]:
        """Name and parameters as JSON-serialisable data, for fingerprints, reports and saved models."""
        inside = {name: value.to_json() for name, value in vars(self).items() if isinstance(value, Parameters)}
        return {"name": type(self).__name__, **asdict(self), **inside}  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Target:
    """Description of the target column, known without reading rows.

    Attributes:
        dtype: its stored dtype; strings are ``object``.
        outputs: trailing shape: () for one value a row, (c,) for c values.
    """

    name: str
    dtype: np.dtype[Any]
    outputs: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Values of a row."""
        return math.prod(self.outputs)
