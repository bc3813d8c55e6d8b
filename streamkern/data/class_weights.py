"""Class weights: a factor for each class, which multiplies the sample weights of the class's rows.

With several labels a row, each label has two factors, for rows with and without it, and a row's factors are multiplied,
as in scikit-learn's ``compute_sample_weight``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Statistics
from streamkern.data.targets import Classes, Encoding, Indicators, labels_text
from streamkern.errors import UsageError
from streamkern.sources.base import DerivedSource, Reading, Source
from streamkern.storage.serialize import serializable
from streamkern.storage.value_digest import digest
from streamkern.types import Array, Rows

ClassWeight = Mapping[Any, float] | Sequence[Mapping[Any, float]] | str | None
"""``"balanced"``, weights by label, or None; of several labels a row a list with weights of 0 and 1 for each."""


class ClassWeightedSource(DerivedSource):
    """The rows of a source, with sample weights multiplied by the weight of the row's class.

    ``factors`` has shape (K,); with several labels, for rows without and with each label, (L, 2). A plan, which only
    needs the rows' width and reading cost, has no ``encoding``.
    """

    def __init__(self, source: Source, encoding: Encoding | None = None, factors: Array | None = None) -> None:
        super().__init__(source)
        self.encoding, self.factors = encoding, factors
        self.weight, self.in_memory = source.weight or "class_weight", False

    @cached_property
    def fingerprint(self) -> str:
        assert self.encoding is not None
        assert self.factors is not None
        return digest("class weights", self.source.fingerprint, _labels(self.encoding), self.factors.tolist())

    def reading(self) -> Reading:
        found = self.source.reading()
        return found._replace(row=found.row + 16)

    def read(self, chunk: int) -> Rows:
        X, y, w = self.source.read(chunk)
        if self.encoding is None or self.factors is None or y is None:
            return Rows(X, y, w)
        ids = np.arange(self.bounds[chunk], self.bounds[chunk + 1])
        factors = row_factors(self.factors, self.encoding.encode(y, ids, self.source.where(chunk)))
        return Rows(X, y, factors if w is None else w * factors)


def row_factors(factors: Array, y: Array) -> Array:
    """Return weights (n,) of rows by class codes y (n,), or by zeros and ones y (n, L)."""
    return factors[y] if y.ndim == 1 else np.where(y > 0.5, factors[:, 1], factors[:, 0]).prod(axis=1)


def _labels(encoding: Encoding) -> list[Any]:
    return encoding.values.tolist() if isinstance(encoding, Classes) else list(getattr(encoding, "names", ()))


def require_class_weight(class_weight: Any, where: str) -> None:
    """Raise UsageError if a value is neither None, "balanced", nor a dict of numbers >= 0 with a positive one."""
    expected = '"balanced", or a dict of a number >= 0 for each label, such as {"fraud": 20}; labels it lacks have 1'
    expected += "; of several labels a row a list of a dict for each label, such as [{1: 20}, {0: 1, 1: 5}]"
    if class_weight is None or (isinstance(class_weight, str) and class_weight == "balanced"):
        return
    several = class_weight if isinstance(class_weight, list | tuple) else [class_weight]
    if not several or not all(isinstance(each, Mapping) for each in several):
        raise UsageError(f"The weights of classes are {class_weight!r}.", where=where, expected=expected)
    for label, weight in chain.from_iterable(each.items() for each in several):
        real = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        if not (real and np.isfinite(weight) and weight >= 0):
            raise UsageError(f"The weight of class {label!r} is {weight!r}.", where=where, expected=expected)


@serializable
class WeightTotals(NamedTuple):
    """Sum and largest of the rows' weights."""

    mass: float
    largest: float


def weighted_by_class(
    data: Dataset, facts: Statistics, class_weight: ClassWeight, totals: Callable[[Dataset], WeightTotals]
) -> tuple[Dataset, Statistics]:
    """Return rows with class weights, and statistics that include the weights.

    ``"balanced"`` gives all classes the same sum of sample weights: a class of mass m_k, among K classes of total mass
    M, has the weight M / (K m_k), as in scikit-learn; each of several labels a row counts as two classes, for which
    ``totals`` sums weights in one sweep.
    """
    encoding = facts.encoding
    if class_weight is None:
        return data, facts
    if isinstance(encoding, Indicators):
        weighted = _over(data, encoding, _label_factors(encoding, facts, class_weight))
        mass, largest = totals(weighted)
    else:
        assert isinstance(encoding, Classes)
        factors = _class_factors(encoding, facts, class_weight)
        weighted, labels = _over(data, encoding, factors), encoding.values.tolist()
        mass = float(np.array([facts.masses.get(label, 0.0) for label in labels]) @ factors)
        largest = float((np.array([facts.heaviest.get(label, 0.0) for label in labels]) * factors).max())
    if not mass > 0:
        raise UsageError(
            "All rows have the weight 0 by their classes.",
            where="class_weight",
            expected="a positive weight for one class at least",
        )
    mean = mass / facts.n
    return weighted, replace(facts, mean_weight=mean, largest_weight=largest / mean)


def _class_factors(encoding: Classes, facts: Statistics, class_weight: ClassWeight) -> Array:
    if not isinstance(class_weight, str | Mapping):
        assert class_weight is not None
        raise UsageError(
            f"There are weights for {len(class_weight)} labels a row, and the target has one label a row.",
            where="class_weight",
            expected='"balanced", or one dict',
            remedy="pass one dict",
        )
    labels = encoding.values.tolist()
    if isinstance(class_weight, str):
        mass = np.array([facts.masses.get(label, 0.0) for label in labels])
        return np.where(mass > 0, mass.sum() / (len(labels) * np.where(mass > 0, mass, 1.0)), 1.0)
    if unknown := [label for label in class_weight if label not in set(labels)]:
        shown = ", ".join(map(repr, unknown[:5])) + ", ..." * (len(unknown) > 5)
        raise UsageError(
            f"There are weights for labels that no training row has: {shown}.",
            where="class_weight",
            expected="labels among " + labels_text(encoding.values),
            remedy="write the labels as the target has them: 1 is not '1'",
        )
    return np.array([float(class_weight.get(label, 1.0)) for label in labels])


def _label_factors(encoding: Indicators, facts: Statistics, class_weight: ClassWeight) -> Array:
    """Return weights for rows without and with each label, shape (L, 2)."""
    L, whole = encoding.outputs, facts.mean_weight * facts.n
    if isinstance(class_weight, str):
        have = np.array([facts.masses[j] for j in range(L)])
        masses = np.clip(np.column_stack([whole - have, have]), 0.0, whole)
        some = masses > 1e-9 * whole  # may be a rounding error if all rows have the label
        return np.where(some, whole / (some.sum(axis=1)[:, None] * np.where(some, masses, 1.0)), 1.0)
    given = class_weight if isinstance(class_weight, list | tuple) else ()
    if len(given) != L:
        found = f"{len(given)} dicts" if given else "one dict"
        raise UsageError(
            f"The weights of classes are {found}, and the target has {L} labels a row.",
            where="class_weight",
            expected=f'"balanced", or a list of {L} dicts with weights of 0 and 1',
        )
    for name, each in zip(encoding.names, given, strict=True):
        if unknown := [key for key in each if key not in (0, 1)]:
            raise UsageError(
                f"The weights of the label {name!r} name {unknown[0]!r}.",
                where="class_weight",
                expected="weights of 0 and 1, such as {1: 20}",
            )
    return np.array([[float(each.get(0, 1.0)), float(each.get(1, 1.0))] for each in given])


def weighted_like(data: Dataset, train: Dataset) -> Dataset:
    """Return rows with the training rows' class weights, if there are any."""
    source = train.source
    return _over(data, source.encoding, source.factors) if isinstance(source, ClassWeightedSource) else data


def weighted_by(data: Dataset, encoding: Any, factors: Array | None) -> Dataset:
    """Return rows with known class weights, see ``ClassWeightedSource``; unchanged for None."""
    return data if factors is None else _over(data, encoding, factors)


def planned_weights(data: Dataset, class_weight: ClassWeight) -> Dataset:
    """Return rows with the memory and time of class weights, to estimate costs; they cannot be read."""
    return data if class_weight is None else _over(data, None, None)


def without_class_weights(data: Dataset) -> Dataset:
    """Return the rows without their class weights."""
    source = data.source
    return replace(data, source=source.source) if isinstance(source, ClassWeightedSource) else data


def class_factors(data: Dataset) -> Array | None:
    """Return class weights, see ``ClassWeightedSource``; None if the rows have none."""
    return data.source.factors if isinstance(data.source, ClassWeightedSource) else None


def described_weights(data: Dataset) -> dict[str, float]:
    """Return class weights by label, or by ``label=1`` and ``label=0`` for several labels; empty without weights."""
    source = data.source
    if not isinstance(source, ClassWeightedSource) or source.encoding is None or source.factors is None:
        return {}
    names, factors = list(map(str, _labels(source.encoding))), source.factors
    if factors.ndim > 1:
        names = [f"{name}={there}" for name in names for there in (0, 1)]
    return {name: float(f"{each:.6g}") for name, each in zip(names, factors.ravel().tolist(), strict=True)}


def _over(data: Dataset, encoding: Encoding | None, factors: Array | None) -> Dataset:
    return replace(data, source=ClassWeightedSource(data.source, encoding, factors))
