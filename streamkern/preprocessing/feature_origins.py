"""The stored column from which preprocessing made each feature."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.encoders import QUANTILE
from streamkern.types import Array

_MARK = "\0"  # between a column's name and the suffix of a feature; occurs in no name


class Features(NamedTuple):
    """The features of rows after preprocessing.

    ``origins`` is the stored column of each feature; None if a step mixes columns, when ``stored_names`` are the
    features'. ``categories`` are features that are indicators of one category each, column by column. ``joined`` are
    pairs of a number feature and its quantile feature.
    """

    names: tuple[str, ...] | None
    origins: tuple[int, ...] | None
    categories: tuple[tuple[int, ...], ...]
    stored: int
    stored_names: tuple[str, ...] | None
    joined: tuple[tuple[int, int], ...] = ()

    def summary(self, shares: Array) -> dict[str, Any]:
        """Return importances (d,), and their sums by column, with the names of both; JSON-serialisable."""
        return {
            "columns": None if self.names is None else list(self.names),
            "importances": shares.tolist(),
            "stored": None if self.stored_names is None else list(self.stored_names),
            "by_column": self.by_column(shares).tolist(),
        }

    def by_column(self, shares: Array) -> Array:
        """Return sums over each stored column's features, shape (stored,); the shares themselves if columns are mixed.

        A number and its quantiles rise together: their shares a and b count as (√a + √b)². The sum does not change.
        """
        if self.origins is None:
            return shares
        origins = np.array(self.origins)
        found = np.bincount(origins, shares, minlength=self.stored)
        for number, quantiles in self.joined:
            found[origins[number]] += 2 * np.sqrt(shares[number] * shares[quantiles])
        return np.asarray(found * (shares.sum() / found.sum()))


def features_of(dataset: Dataset) -> Features:
    """Return the features of a dataset, found by name: a feature's name starts with its column's name."""
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
    numbers = {column: feature for feature, (column, _, made) in enumerate(split) if not made}
    joined = tuple(
        (numbers[column], feature)
        for feature, (column, _, made) in enumerate(split)
        if made == QUANTILE and column in numbers
    )
    return Features(dataset.columns, origins, tuple(map(tuple, blocks.values())), width, dataset.source.columns, joined)
