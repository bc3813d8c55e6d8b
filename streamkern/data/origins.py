"""The stored column that each feature comes from, after preprocessing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.encoders import QUANTILE
from streamkern.types import Array

_MARK = "\0"  # separates the name of a column from the name of a feature made of it; occurs in no name


class Features(NamedTuple):
    """The features of rows after preprocessing.

    Attributes:
        names: of the features, or None.
        origins: the stored column of each; None where a step mixes columns.
        categories: features that are indicators of one category each, column by column.
        stored: number of stored columns.
        stored_names: their names, or None; those of the features where columns are mixed.
        joined: pairs of a number and its quantiles.
    """

    names: tuple[str, ...] | None
    origins: tuple[int, ...] | None
    categories: tuple[tuple[int, ...], ...]
    stored: int
    stored_names: tuple[str, ...] | None
    joined: tuple[tuple[int, int], ...] = ()

    def by_column(self, shares: Array) -> Array:
        """Sums over the features of each stored column, shape (stored,); the shares themselves where columns are mixed.

        A number and its quantiles rise together, and so do the outputs along both: (√a + √b)² of their shares a and b.
        All shares have the sum that they had.

        Args:
            shares: one for each feature, shape (d,).
        """
        if self.origins is None:
            return shares
        origins = np.array(self.origins)
        found = np.bincount(origins, shares, minlength=self.stored)
        for number, quantiles in self.joined:
            found[origins[number]] += 2 * np.sqrt(shares[number] * shares[quantiles])
        return np.asarray(found * (shares.sum() / found.sum()))


def features_of(dataset: Dataset) -> Features:
    """Return the features of a dataset: steps name the features they make of a column after the column."""
    width = dataset.source.n_features
    marked: tuple[str, ...] | None = tuple(f"{column}{_MARK}" for column in range(width))
    for transform in dataset.transforms:
        marked = transform.names(marked)
    if marked is None:
        return Features(dataset.columns, None, (), width, dataset.columns)
    split = [name.partition(_MARK) for name in marked]
    origins = tuple(int(column) for column, _, _ in split)
    blocks: dict[int, list[int]] = {}
    for feature, (_, _, made) in enumerate(split):
        if made.startswith("="):
            blocks.setdefault(origins[feature], []).append(feature)
    joined = tuple(
        (split.index((column, _MARK, "")), feature)
        for feature, (column, _, made) in enumerate(split)
        if made == QUANTILE and (column, _MARK, "") in split
    )
    return Features(dataset.columns, origins, tuple(map(tuple, blocks.values())), width, dataset.source.columns, joined)
