"""Statistics from a sweep over the stored rows: ranges, moments, labels; errors name the first unusable row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamkern.cpu import host_loops
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, RawRows, Scan
from streamkern.data.targets import (
    Classes,
    Continuous,
    Encoding,
    Indicators,
    distinct_labels,
    not_finite_target,
    require_binary,
)
from streamkern.defaults import DOMINANT_FEATURE_SHARE, DOMINANT_VARIANCE_SHARE, MAX_CLASSES
from streamkern.errors import DataError
from streamkern.storage.serialize import serializable
from streamkern.types import Array


class LabelWeights(dict[Any, tuple[int, float, float]]):
    """Number of rows, total weight and largest weight of each label; adds by label."""

    @classmethod
    def of(cls, labels: Array, w: Array | None) -> LabelWeights:
        """Return the weights for labels (n,) and sample weights (n,), or None for weights of 1."""
        if labels.dtype == object and len(labels) and not isinstance(labels[0], str):
            labels = np.array(labels.tolist())  # such as booleans, whose type is kept
        values, codes = distinct_labels(labels)
        rows = np.bincount(codes, minlength=len(values))
        if w is None:
            return cls({value: (n, float(n), 1.0) for value, n in zip(values, rows.tolist(), strict=True)})
        mass, heaviest = np.bincount(codes, weights=w, minlength=len(values)), np.zeros(len(values))
        np.maximum.at(heaviest, codes, w)
        return cls(zip(values, zip(rows.tolist(), mass.tolist(), heaviest.tolist(), strict=True), strict=True))

    def __add__(self, other: LabelWeights) -> LabelWeights:
        total = LabelWeights(self)
        for label, (rows, mass, heaviest) in other.items():
            n, m, most = total.get(label, (0, 0.0, 0.0))
            total[label] = (n + rows, m + mass, max(most, heaviest))
        return total


class Extremes:
    """Lowest and highest value of each feature, shape (d,), or a number; adding takes the wider range."""

    def __init__(self, low: Array | float, high: Array | float) -> None:
        self.low = low
        self.high = high

    def __add__(self, other: Extremes) -> Extremes:
        return Extremes(np.minimum(self.low, other.low), np.maximum(self.high, other.high))


@dataclass(eq=False)
class RawScan:
    """The blocks of a scan, as stored or ``transformed`` but not scaled, with descriptions of their location."""

    scan: Scan
    transformed: bool = field(default=False, kw_only=True)

    def __len__(self) -> int:
        return len(self.scan)

    def block(self, key: tuple[int, ...]) -> tuple[RawRows, str]:
        raw, where = self.scan.raw(key)
        assembly = self.scan.assembly
        if self.transformed and assembly.dataset.transforms:
            raw = raw._replace(X=assembly.transformed(raw.X, raw.ids, where))
        return raw, where


@dataclass(eq=False)
class Moments:
    """Sum rows, extremes, Σ w(x − c), Σ w(x − c)², labels, Σ w(y − c₁), Σ w, weights and Σ w(y − c₁)².

    Stored rows are checked, too. Without sample weights every w is 1. Rows of weight 0 are counted, but only their
    labels are used. The pivots c (d,) and c₁ (c,) are near the rows, so that sums of differences keep float64's digits;
    c₁ None counts labels. ``labels`` names a target with several labels a row, each 0 or 1.
    """

    pivot: Array
    target_pivot: Array | None
    names: tuple[str, ...] | None = None
    labels: str | None = None

    def __call__(self, block: tuple[RawRows, str], state: Any) -> tuple[Any, ...]:
        loops = host_loops()
        raw, where = block
        rows, stored = len(raw.X), raw
        if raw.w is not None and not raw.w.all():
            kept = np.flatnonzero(raw.w)
            raw = RawRows(*(None if values is None else values[kept] for values in raw))  # type: ignore[arg-type]
        X, w = raw.X, raw.w
        if X.dtype.kind == "f":
            bad = loops.finite_rows(X)
            if bad >= 0:
                column = int(np.argmax(~np.isfinite(X[bad])))
                value = X[bad, column]
                raise DataError(
                    f"A feature is {'NaN' if np.isnan(value) else 'infinity'}.",
                    where=f"{where}, row {int(raw.ids[bad])}, {_feature(column, self.names)}",
                    expected="finite numbers; Input X contains NaN or infinity",
                    remedy="correct the value"
                    if not np.isnan(value)
                    else 'fill or leave out the rows with missing values: preprocess=(sk.Impute("mean"),) fills them',
                )
        low, high, first, second = loops.moments(X, w, self.pivot)
        _require_squares(X, Extremes(low, high), raw.ids, where, names=self.names)
        labels = self._labels(stored, where)
        total = squares = np.zeros(0)
        if raw.y is not None and self.target_pivot is not None:
            y = np.asarray(raw.y, dtype=np.float64).reshape(len(raw.y), len(self.target_pivot))
            bad = loops.finite_rows(y)
            if bad >= 0:
                raise not_finite_target(f"{where}, row {int(raw.ids[bad])}")
            least, most, total, squares = loops.moments(y, w, self.target_pivot)
            _require_squares(y, Extremes(least, most), raw.ids, where, "target")
            if self.labels is not None:
                require_binary(y, raw.ids, where)
        mass, heaviest = (len(X), 1.0) if w is None else (float(w.sum()), float(w.max(initial=0.0)))
        weights = Extremes(0.0, heaviest)
        return rows, Extremes(low, high), first, second, labels, total, mass, weights, squares

    def _labels(self, stored: RawRows, where: str) -> LabelWeights:
        """Rows of weight 0 have labels, too."""
        if stored.y is None or self.target_pivot is not None:
            return LabelWeights()
        labels = LabelWeights.of(_labels(stored, where), stored.w)
        if len(labels) > MAX_CLASSES:
            raise _too_many_labels(where)
        return labels


def _feature(column: int, names: Sequence[str] | None, what: str = "feature") -> str:
    return f"{what} {column}" + ("" if names is None else f" ({names[column]!r})")


def _require_squares(
    X: Array, ends: Extremes, ids: Array, where: str, name: str = "feature", names: Sequence[str] | None = None
) -> None:
    """Raise DataError, naming row and column, if the square of a value overflows float64."""
    max_magnitude = 1e150  # magnitude from which the square of a value may overflow float64
    if max(np.max(-ends.low, initial=0.0), np.max(ends.high, initial=0.0)) < max_magnitude:
        return
    row, column = (int(i) for i in np.argwhere(np.abs(X) >= max_magnitude)[0])
    raise DataError(
        f"A {name} is too large: {X[row, column]!s}.",
        where=f"{where}, row {int(ids[row])}, {_feature(column, names, name)}",
        expected=f"numbers of size up to {max_magnitude:.0e}, whose squares float64 holds",
        remedy="correct the value, or leave out the row",
    )


def require_range(dataset: Dataset, facts: Statistics, dtype: np.dtype[Any], centred: bool) -> None:
    """Check that squared distances fit a dtype; ``centred`` kernels are translation invariant: differences count."""
    with np.errstate(over="ignore", invalid="ignore"):
        ends = np.stack([facts.low * dataset.factor + dataset.shift, facts.high * dataset.factor + dataset.shift])
        sizes = np.abs(ends[1] - ends[0]) if centred else np.abs(ends).max(axis=0)
        if 4 * np.square(sizes).sum() < np.finfo(dtype).max:
            return
    column = int(np.argmax(sizes))
    low, high = facts.low[column], facts.high[column]
    extreme = low if abs(low) > abs(high) else high
    scan = RawScan(Scan(Assembly(dataset.plain())), transformed=True)
    for raw, where in map(scan.block, ((i,) for i in range(len(scan)))):
        rows = np.flatnonzero(raw.X[:, column] == extreme)
        if len(rows):
            raise DataError(
                f"A feature is too large for {dtype} arithmetic: {raw.X[rows[0], column]!s}.",
                where=f"{where}, row {int(raw.ids[rows[0]])}, {_feature(column, dataset.columns)}",
                expected=f"rows whose squared distances {dtype} holds, up to {np.finfo(dtype).max:.1e}",
                remedy='correct the value or leave out the row; or scale: scaling="standard"; or dtype="float64"',
            )


_REGRESSION_REMEDY = 'to predict values, use KernelRegressor, or task="regression" of a Pipeline'


def _too_many_labels(where: str) -> DataError:
    return DataError(
        f"The target has more than {MAX_CLASSES} different values.",
        where=where,
        expected="class labels",
        remedy=_REGRESSION_REMEDY,
    )


def _labels(raw: RawRows, where: str) -> Array:
    assert raw.y is not None
    y = raw.y
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        bad = int(np.argmax(~np.isfinite(y)))
        raise DataError(
            "A label is NaN or infinite.",
            where=f"{where}, row {int(raw.ids[bad])}",
            expected="finite labels; Input y contains NaN or infinity",
            remedy="leave out or fill the rows without a label",
        )
    if y.dtype.kind == "f" and (fractional := y != np.rint(y)).any():
        bad = int(np.argmax(fractional))
        raise DataError(
            f"The target has values that cannot be classes, such as {y[bad]!s}.",
            where=f"{where}, row {int(raw.ids[bad])}",
            expected="labels: texts, booleans or whole numbers",
            remedy=_REGRESSION_REMEDY,
        )
    if y.dtype.kind == "O":
        kinds = {type(value) for value in y.tolist()}
        if len(kinds) > 1:
            raise DataError(
                f"Labels have different types: {', '.join(sorted(kind.__name__ for kind in kinds))}.",
                where=where,
                expected="labels of one type",
                remedy="store the labels as one type; a missing label must be filled or its row left out",
            )
    return y


@serializable
@dataclass(frozen=True, eq=False)
class Statistics:
    """Facts about the rows of a dataset, after its transforms and before its factor and shift; arrays have shape (d,).

    The variance has divisor n; mean and variance are weighted by the sample weights. ``largest_weight`` is divided by
    their mean. ``labels`` are rows of each label, ``masses`` their total weight, ``heaviest`` their largest one; with
    several labels a row, by the label's number.
    """

    n: int
    low: Array
    high: Array
    mean: Array
    variance: Array
    labels: dict[Any, int]
    encoding: Encoding | None
    mean_weight: float = 1.0
    largest_weight: float = 1.0
    masses: dict[Any, float] = field(default_factory=dict)
    heaviest: dict[Any, float] = field(default_factory=dict)


def summarise(
    sums: tuple[Any, ...], moments: Moments, flat: bool, has_target: bool, known: Sequence[Any] | None = None
) -> Statistics:
    """Finish the sums of ``Moments`` of targets (n,) if ``flat``, with the ``known`` classes if the rows lack some."""
    n, ranges, first, second, labels, total, mass, weights, squares = sums
    counts, masses, heaviest = ({label: each[k] for label, each in labels.items()} for k in range(3))
    if not mass:
        raise DataError(
            "Every sample weight is 0.",
            where="the training rows",
            expected="at least one row of positive weight",
            remedy="check the column of weights",
        )
    shift = first / mass
    variance = np.maximum(second / mass - shift**2, 0.0)
    if n > 1 and not np.any(ranges.high > ranges.low):
        raise DataError(
            "Every feature is constant: all rows are the same point.",
            where="the training rows",
            expected="at least one feature that varies",
            remedy="check which columns were read",
        )
    encoding: Encoding | None = None
    if has_target and moments.target_pivot is None:
        values = sorted(labels if known is None else known)
        if len(values) < 2:
            raise DataError(
                f"The target has one class only: {values[0]!r}.",
                where="the target of the training rows",
                expected="at least two classes",
                remedy="check the target column, or the split",
            )
        if len(values) > MAX_CLASSES:  # each block has few enough classes, but not all together
            raise _too_many_labels("the target of the training rows")
        encoding = Classes(np.array(values))
    elif has_target and moments.target_pivot is not None:
        spread = np.sqrt(np.maximum(squares / mass - (total / mass) ** 2, 0.0))
        target_mean = moments.target_pivot + total / mass
        encoding = Continuous.of(target_mean, spread, flat)
        if moments.labels is not None:
            encoding = Indicators.named(len(target_mean), moments.labels)
            masses = dict(enumerate((mass * target_mean).tolist()))
    mean, mean_weight = moments.pivot + shift, mass / n
    return Statistics(
        n, ranges.low, ranges.high, mean, variance, counts, encoding, mean_weight,
        float(weights.high) / mean_weight, masses, heaviest,
    )  # fmt: skip


def scale_warning(variance: Array, columns: Sequence[str] | None = None) -> str | None:
    """Return a warning if few features, by their variance (d,) in the kernel, make up nearly all of two rows' distance.

    Pixels of an image, codes of categories and standardised features pass; metres with incomes do not.
    """
    varying = variance[variance > 0]
    if len(varying) < 2:
        return None
    order = np.argsort(-variance, kind="stable")
    most = int(np.searchsorted(np.cumsum(variance[order]), DOMINANT_VARIANCE_SHARE * varying.sum())) + 1
    if most > max(1, DOMINANT_FEATURE_SHARE * len(varying)):
        return None
    names = [repr(columns[i]) if columns is not None else str(i) for i in order[:most].tolist()]
    shown = ", ".join(names[:3]) + ", ..." * (most > 3)
    return (
        f"{most} of {len(varying)} features ({shown}) make up {DOMINANT_VARIANCE_SHARE:.0%} of the variance; the "
        f"kernel hardly sees "
        'the others: scaling="standard" gives all of them one unit'
    )
