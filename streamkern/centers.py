"""Where the centers of a kernel machine come from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.stream import Assembly
from streamkern.errors import DataError, UsageError
from streamkern.execute.base import Executor
from streamkern.sweep import gather
from streamkern.types import Array, IntArray


class CenterSet(NamedTuple):
    """Centers.

    Attributes:
        Z: shape (p, d), scaled as the dataset's rows are.
        ids: the row each was, shape (p,), or None where they are not rows.
    """

    Z: Array
    ids: IntArray | None


class Centers(Protocol):
    """A way of choosing centers."""

    def count(self, dataset: Dataset) -> int:
        """Number p of centers for this dataset."""
        ...

    def choose(self, dataset: Dataset, executor: Executor, dtype: np.dtype[Any]) -> CenterSet:
        """The centers: a function of the dataset's rows, never of its chunks or of the executor."""
        ...

    def to_json(self) -> dict[str, Any]:
        """What was asked for, for fingerprints and reports."""
        ...


@dataclass(frozen=True)
class Uniform:
    """p stored rows drawn without replacement, in one pass: those of smallest hash. They are not augmented.

    Args:
        p: how many.
        seed: which draw.

    Raises:
        UsageError: p is below 1.
    """

    p: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.p < 1:
            raise UsageError(f"p is {self.p}.", where="Uniform(p)", expected="at least 1 center")

    def count(self, dataset: Dataset) -> int:
        """Number p of centers."""
        return self.p

    def choose(self, dataset: Dataset, executor: Executor, dtype: np.dtype[Any]) -> CenterSet:
        """The rows drawn, in the draw's order, so that the first s of them are a uniform draw too.

        Raises:
            DataError: the dataset has fewer than p rows.
        """
        ids = dataset.draw(self.p, self.seed)
        Z, _ = gather(executor, Assembly(dataset.plain(), dtype=dtype), ids)
        return CenterSet(Z, ids)

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": "Uniform", **asdict(self)}


@dataclass(frozen=True, eq=False)
class Given:
    """The centers as an array.

    Args:
        Z: shape (p, d), in the units of the dataset's scaled rows.
    """

    Z: Array

    def count(self, dataset: Dataset) -> int:
        """Number p of centers."""
        return len(self.Z)

    def choose(self, dataset: Dataset, executor: Executor, dtype: np.dtype[Any]) -> CenterSet:
        """The array, checked.

        Raises:
            DataError: the width differs, there is no row, or a value is not finite.
        """
        Z = np.array(self.Z, dtype=dtype, order="C")
        if Z.ndim != 2 or not len(Z) or Z.shape[1] != dataset.n_features or not np.isfinite(Z).all():
            raise DataError(
                f"The given centers have shape {np.shape(self.Z)} or are not finite.",
                where="Given(Z)",
                expected=f"finite numbers of shape (p, {dataset.n_features})",
            )
        return CenterSet(Z, None)

    def to_json(self) -> dict[str, Any]:
        """Name and a digest of the values."""
        return {"name": "Given", "sha256": sha256(np.ascontiguousarray(self.Z, dtype=np.float64).tobytes()).hexdigest()}
