"""Sample weights: one more column of a source, read beside its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streamkern.errors import DataError, UsageError
from streamkern.storage.arrays import ArraySource
from streamkern.storage.base import Source, digest
from streamkern.types import Array, IntArray, Rows, Target


class WeightedSource:
    """Rows of a source, each with a weight.

    Every format reads its column of weights as it reads any feature, so that none of them knows of weights.

    Args:
        rows: the rows.
        weights: as many rows of one feature, w >= 0, in the same chunks.
        weight: what the weights are called.

    Attributes:
        shuffled: whether the rows are recorded to be in a uniformly random order.

    Raises:
        DataError: not one number a row.
    """

    def __init__(self, rows: Source, weights: Source, weight: str) -> None:
        n, given = int(rows.bounds[-1]), int(weights.bounds[-1])
        if given != n or weights.n_features != 1:
            raise DataError(
                f"{n} rows, and weights of shape ({given}, {weights.n_features})",
                where=f"weight {weight!r}",
                expected="one weight a row",
                remedy="give sample weights of shape (n,)",
            )
        assert np.array_equal(rows.bounds, weights.bounds), "chunks differ"
        self.rows, self.weights, self.weight = rows, weights, weight
        self.bounds: IntArray = rows.bounds
        self.n_features, self.columns = rows.n_features, rows.columns
        self.dtype: np.dtype[Any] = rows.dtype
        self.target: Target | None = rows.target
        self.shuffled = bool(getattr(rows, "shuffled", False))
        self.text: tuple[str, ...] = getattr(rows, "text", ())
        self.beside: dict[str, str] = getattr(rows, "beside", {})
        self.distant = bool(getattr(rows, "distant", False))

    @property
    def nulls(self) -> bool:
        """Whether a null among features is read as NaN."""
        return bool(getattr(self.rows, "nulls", False))

    @nulls.setter
    def nulls(self, value: bool) -> None:
        if hasattr(self.rows, "nulls"):
            self.rows.nulls = value

    @property
    def fingerprint(self) -> str:
        """Digest of the rows' and the weights'."""
        return digest("weighted", self.rows.fingerprint, self.weights.fingerprint)

    def read(self, chunk: int) -> Rows:
        """Rows of one chunk; see ``Source.read``.

        Raises:
            DataError: a weight is negative or not finite.
        """
        X, y, _ = self.rows.read(chunk)
        w = self.weights.read(chunk).X[:, 0].astype(np.float64)
        wrong = ~(np.isfinite(w) & (w >= 0))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise DataError(
                f"the weight is {w[at]}",
                where=f"{self.where(chunk)}, row {int(self.bounds[chunk]) + at}, weight {self.weight!r}",
                expected="a finite number >= 0",
                remedy="correct the weights; a row of weight 0 counts for nothing",
            )
        return Rows(X, y, w)

    def describe(self, chunk: int) -> Any:
        """What the columns beside the features hold in one chunk."""
        return self.rows.describe(chunk)  # type: ignore[attr-defined]

    def where(self, chunk: int) -> str:
        """The chunk in words."""
        return self.rows.where(chunk)


def weight_of(source: Source) -> str | None:
    """What the sample weights of a source are called; None where it has none."""
    return getattr(source, "weight", None)


def open_weighted(
    open_rows: Callable[[Sequence[str] | None], Source],
    open_column: Callable[[str], Source],
    columns: Sequence[str] | None,
    weight: str,
) -> WeightedSource:
    """Rows and their column of weights, which is no feature.

    Args:
        open_rows: opens the rows with some features, or with all.
        open_column: opens one column as the only feature.
        columns: features to use; all but the weight by default.
        weight: the column of weights.

    Raises:
        UsageError: the weight is among ``columns``.
        DataError: there is no such column of numbers.
    """
    if columns is not None and weight in columns:
        raise UsageError(
            f"The column {weight!r} is a feature and the weight",
            where="weight",
            expected="one of the two",
            remedy="leave it out of columns",
        )
    rows = open_rows(columns)
    if rows.columns is not None and weight in rows.columns:
        rows = open_rows([name for name in rows.columns if name != weight])
    return paired(rows, open_column(weight), weight)


def paired(rows: Source, weights: Any, weight: str) -> WeightedSource:
    """Rows with weights that another source holds, read in the chunks of the rows."""
    if hasattr(weights, "chunked_like"):
        weights.chunked_like(rows)
    elif int(weights.bounds[-1]) == int(rows.bounds[-1]):
        weights.bounds = rows.bounds  # of a source that is read by row numbers
    return WeightedSource(rows, weights, weight)


def with_weights(rows: Source, weights: Any, name: str = "sample_weight") -> WeightedSource:
    """Rows with weights in memory.

    Args:
        rows: the rows.
        weights: w >= 0, shape (n,).
        name: what to call them.

    Raises:
        DataError: not one number a row.
        UsageError: the rows have weights already.
    """
    if weight_of(rows) is not None:
        raise UsageError(
            "The rows have weights already.",
            where="sample_weight",
            expected="weights given once",
            remedy="leave sample_weight out, or open the rows without weight=",
        )
    given: Array = np.asarray(weights)
    if given.shape != (int(rows.bounds[-1]),):
        raise DataError(
            f"sample_weight has shape {given.shape}",
            where="sample_weight",
            expected=f"shape ({int(rows.bounds[-1])},): one weight a row",
            remedy="give one number a row",
        )
    return paired(rows, ArraySource(given[:, None].astype(np.float64)), name)
