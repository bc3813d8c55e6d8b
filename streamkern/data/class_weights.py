"""Weights of classes: a factor for each class, which multiplies the sample weight of every row of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Statistics
from streamkern.data.targets import Classes, labels_in_words
from streamkern.errors import UsageError
from streamkern.storage.base import DerivedSource, Reading, Source, digest
from streamkern.types import Array, Rows

BALANCED = "balanced"

ClassWeight = Mapping[Any, float] | str | None
"""``"balanced"``, weights by label, or None."""


class ClassWeightedSource(DerivedSource):
    """Rows of a source, whose sample weights are multiplied by the weight of their class.

    Args:
        source: the rows, with one label a row.
        encoding: the classes; None where a plan asks how wide rows are and what reading them takes: nothing is
            multiplied.
        factors: weights of the classes, shape (K,).
    """

    def __init__(self, source: Source, encoding: Classes | None = None, factors: Array | None = None) -> None:
        super().__init__(source)
        self.encoding, self.factors = encoding, factors
        self.weight, self.in_memory = source.weight or "class_weight", False

    @cached_property
    def fingerprint(self) -> str:
        assert self.encoding is not None
        assert self.factors is not None
        return digest("class weights", self.source.fingerprint, self.encoding.values.tolist(), self.factors.tolist())

    def reading(self) -> Reading:
        """Return the bytes that reading a chunk takes; see ``Source.reading``."""
        found = self.source.reading()
        return found._replace(row=found.row + 16)

    def read(self, chunk: int) -> Rows:
        """Return the rows of one chunk; see ``Source.read``.

        Raises:
            DataError: a label is not among the classes.
        """
        X, y, w = self.source.read(chunk)
        if self.encoding is None:
            return Rows(X, y, w)
        assert y is not None
        assert self.factors is not None
        ids = np.arange(self.bounds[chunk], self.bounds[chunk + 1])
        factors = self.factors[self.encoding.encode(y, ids, self.source.where(chunk))]
        return Rows(X, y, factors if w is None else w * factors)


def require_class_weight(class_weight: Any, where: str) -> None:
    """Refuse what cannot be weights of classes.

    Raises:
        UsageError: it is neither "balanced" nor a dict of numbers >= 0 of which one is positive, nor None.
    """
    expected = '"balanced", or a dict of a number >= 0 for each label, such as {"fraud": 20}; labels it lacks have 1'
    if class_weight is None or (isinstance(class_weight, str) and class_weight == BALANCED):
        return
    if not isinstance(class_weight, Mapping):
        raise UsageError(f"The weights of classes are {class_weight!r}.", where=where, expected=expected)
    for label, weight in class_weight.items():
        real = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        if not (real and np.isfinite(weight) and weight >= 0):
            raise UsageError(f"The weight of class {label!r} is {weight!r}.", where=where, expected=expected)


def weighted_by_class(data: Dataset, facts: Statistics, class_weight: ClassWeight) -> tuple[Dataset, Statistics]:
    """Rows with the weights of their classes, and statistics that know of them.

    ``"balanced"`` gives all classes one sum of sample weights: a class of mass m_k, of K classes and M in all, has the
    weight M / (K m_k), as in scikit-learn.

    Args:
        data: training rows.
        facts: their statistics.
        class_weight: as a user gives it; None changes nothing.

    Raises:
        UsageError: a label of the dict is not among the classes, or all classes have the weight 0.
    """
    encoding = facts.encoding
    if class_weight is None:
        return data, facts
    if not isinstance(encoding, Classes):
        raise UsageError(
            "There are weights of classes, and several labels a row.",
            where="class_weight",
            expected="one label a row",
            remedy="leave class_weight out, or weigh rows by sample_weight",
        )
    labels = encoding.values.tolist()
    mass = np.array([facts.masses.get(label, 0.0) for label in labels])
    if isinstance(class_weight, str):
        factors = np.where(mass > 0, mass.sum() / (len(labels) * np.where(mass > 0, mass, 1.0)), 1.0)
    else:
        if unknown := [label for label in class_weight if label not in set(labels)]:
            shown = ", ".join(map(repr, unknown[:5])) + ", ..." * (len(unknown) > 5)
            raise UsageError(
                f"There are weights for labels that no training row has: {shown}.",
                where="class_weight",
                expected="labels among " + labels_in_words(encoding.values),
                remedy="write the labels as the target has them: 1 is not '1'",
            )
        factors = np.array([float(class_weight.get(label, 1.0)) for label in labels])
    mean = float(mass @ factors) / facts.n
    if not mean > 0:
        raise UsageError(
            "All rows have the weight 0 by their classes.",
            where="class_weight",
            expected="a positive weight for one class at least",
        )
    heaviest = np.array([facts.heaviest.get(label, 0.0) for label in labels])
    weighted = replace(facts, mean_weight=mean, largest_weight=float((heaviest * factors).max()) / mean)
    return _over(data, encoding, factors), weighted


def weighted_like(data: Dataset, train: Dataset) -> Dataset:
    """Rows with the weights of classes that the training rows have, if those have some."""
    source = train.source
    if not isinstance(source, ClassWeightedSource):
        return data
    return _over(data, source.encoding, source.factors)


def weighted_by(data: Dataset, encoding: Any, factors: Array | None) -> Dataset:
    """Rows with weights of classes, shape (K,), that are known; as they are for None."""
    return data if factors is None else _over(data, encoding, factors)


def planned_weights(data: Dataset, class_weight: ClassWeight) -> Dataset:
    """Rows that take what reading takes with weights of classes: for projections, not for reading."""
    return data if class_weight is None else _over(data, None, None)


def without_class_weights(data: Dataset) -> Dataset:
    """The rows without the weights of their classes."""
    source = data.source
    return replace(data, source=source.source) if isinstance(source, ClassWeightedSource) else data


def class_factors(data: Dataset) -> Array | None:
    """Weights of the classes, shape (K,); None where rows have no weight by their class."""
    return data.source.factors if isinstance(data.source, ClassWeightedSource) else None


def described_weights(data: Dataset) -> dict[str, float]:
    """Weight of each class by its label; empty where there are none."""
    source = data.source
    if not isinstance(source, ClassWeightedSource) or source.encoding is None or source.factors is None:
        return {}
    return {
        str(label): float(f"{each:.6g}") for label, each in zip(source.encoding.values, source.factors, strict=True)
    }


def _over(data: Dataset, encoding: Classes | None, factors: Array | None) -> Dataset:
    return replace(data, source=ClassWeightedSource(data.source, encoding, factors))
