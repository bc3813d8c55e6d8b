"""Encoding of targets as numbers, class codes or values in units of their own, and the losses of outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from streamkern.defaults import MAX_LOG_RATE, MAX_OFFSET, MAX_TARGET_OFFSET, PINBALL_SMOOTHING, UNLIKE_SCALE_RATIO
from streamkern.engine.residuals import residual
from streamkern.errors import DataError
from streamkern.storage.serialize import serializable
from streamkern.types import Array, IntArray

_TINY = float(np.finfo(np.float32).tiny)


class ClassProbabilities(Protocol):
    """Convert outputs to probabilities."""

    def most_probable(self, outputs: Array) -> IntArray:
        """Return codes of the most probable classes, shape (n,), for outputs (n, K)."""

    def scores(self, outputs: Array) -> Array:
        """Return class scores, shape (n, K), ordered as the probabilities, for outputs (n, K)."""


def distinct_labels(y: Array) -> tuple[list[Any], IntArray]:
    """Return the distinct labels, ascending, and each row's index among them, shape (n,); objects become texts.

    An array of texts in NumPy would take four bytes in every row for each letter of the longest text.
    """
    if y.dtype != object:
        found, codes = np.unique(y, return_inverse=True)
        return found.tolist(), codes
    texts = [str(label) for label in y.tolist()]
    values = sorted(set(texts))
    number = {text: code for code, text in enumerate(values)}
    return values, np.array([number[text] for text in texts], dtype=np.int64)


@serializable
@dataclass(frozen=True, eq=False)
class Classes:
    """Classification: K independent outputs with targets in {0, 1} for the sorted labels ``values`` (K,).

    The prediction is the most probable class if the model has ``probabilities``, else that of the largest output. With
    two classes, the second is predicted if its output minus the first's exceeds ``cut``. ``logits``, as from
    ``LBFGS``, are compared with the targets after a softmax.
    """

    values: Array
    kind: str = "classification"
    cut: float = 0.0
    logits: bool = False
    probabilities: ClassProbabilities | None = None

    curvature: ClassVar[float] = 0.25
    """Bound of p(1 − p), the second derivative of the logistic loss (Böhning 1992)."""

    @property
    def least_squares(self) -> bool:
        """True if the outputs minimise squares."""
        return not self.logits

    def derivatives(self, F: Array, y: Array) -> Array:
        """Turn logits (n, K) into derivatives of the logistic loss in place; return losses (n,).

        Targets are codes (n,), or the shares of classes in mixed rows (n, K).
        """
        F -= F.max(axis=1)[:, None]
        of_class = (F[np.arange(len(F)), y] if y.ndim == 1 else (F * y).sum(axis=1)).astype(np.float64)
        np.exp(F, out=F)
        total = F.sum(axis=1)
        F /= total[:, None]
        residual(F, y)
        losses: Array = np.log(total.astype(np.float64)) - of_class
        return losses

    def comparable(self, F: Array) -> Array:
        """Return outputs (n, K) on the scale of the targets in {0, 1}: F itself, or the softmax of logits."""
        if not self.logits:
            return F
        from scipy.special import softmax

        return np.asarray(softmax(F, axis=1))

    def scores(self, F: Array) -> Array:
        """Return scores (n, K), of which the largest decides, unless there is a threshold."""
        return F if self.probabilities is None else self.probabilities.scores(F)

    def decided(self, F: Array) -> IntArray:
        """Return codes of the classes predicted from outputs (n, K), shape (n,)."""
        if self.probabilities is not None:
            return self.probabilities.most_probable(F)
        if self.cut:
            return (F[:, 1] - F[:, 0] > self.cut).astype(np.int64)
        return np.asarray(F.argmax(axis=1))

    @property
    def outputs(self) -> int:
        return len(self.values)

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        return {label: code for code, label in enumerate(self.values.tolist())}

    def encode(self, y: Array, row_ids: IntArray, where: str) -> Array:
        """Return class codes (n,), int64, of labels (n,)."""
        if y.size != len(y):
            raise DataError(
                f"Targets have {y.shape[1]} values a row.",
                where=where,
                expected="one label a row",
                remedy="name one target column, or use a regressor",
            )
        y = y.reshape(len(y))
        if y.dtype == object and self.values.dtype.kind == "U":
            # As an array of texts, each row would take four bytes for each letter of the longest label.
            codes = np.array([self._numbers.get(label, -1) for label in y.tolist()], dtype=np.int64)
            if not (codes < 0).any():
                return codes
        try:
            codes = np.searchsorted(self.values, y)
        except TypeError as error:
            raise DataError(
                f"Labels of type {y.dtype} cannot be compared with the classes' {self.values.dtype}.",
                where=where,
                expected=f"labels of type {self.values.dtype}, as in training",
                remedy="store the labels in the type of training",
            ) from error
        codes = np.minimum(codes, len(self.values) - 1)
        wrong = self.values[codes] != y
        if np.any(wrong):
            i = int(np.argmax(wrong))
            raise DataError(
                f"The label {y[i : i + 1].tolist()[0]!r} was not among the classes of the training data.",
                where=f"{where}, row {int(row_ids[i])}",
                expected="one of " + labels_text(self.values),
                remedy="correct the label, leave the row out, or train again on data with this class",
            )
        return np.asarray(codes, dtype=np.int64)


@serializable
@dataclass(frozen=True, eq=False)
class Continuous:
    """Regression: the mean (c,), float64, is subtracted before training and added to predictions.

    ``flat`` targets have shape (n,). The precision of predictions is ``float64`` if float32 cannot distinguish targets.
    Outputs of unlike units are divided by ``scale`` (c,), powers of two.
    """

    mean: Array
    flat: bool = True
    kind: str = "regression"
    precision: str = "float32"
    scale: Array | None = None

    least_squares: ClassVar[bool] = True
    curvature: ClassVar[float] = 1.0
    """About the second derivative of the loss."""
    judged_by: ClassVar[str] = "mse"
    """Name of the metric that is the mean of ``errors``."""
    degree: ClassVar[int] = 2
    """``errors`` in stored units are those in encoded units times this power of the unit."""

    @classmethod
    def of(cls, mean: Array, spread: Array, flat: bool) -> Continuous:
        """Return the encoding of targets, (n,) if ``flat``, from their mean and standard deviations, (c,)."""
        precision = "float64" if np.any(has_large_offset(mean, spread, MAX_TARGET_OFFSET)) else "float32"
        varying = spread[spread > 0]
        scale = None
        if len(varying) and varying.max() > UNLIKE_SCALE_RATIO * varying.min():
            # Powers of two change no digit: each output's weights are those of a fit to it alone, times the power.
            scale = np.exp2(np.round(np.log2(np.where(spread > 0, spread, 1.0))))
        return cls(mean, flat, precision=precision, scale=scale)

    @property
    def outputs(self) -> int:
        return len(self.mean)

    def encode(self, y: Array, row_ids: IntArray, where: str) -> Array:
        """Return centred values (n, c), float64, of targets (n,) or (n, c)."""
        try:
            values = np.asarray(y, dtype=np.float64).reshape(len(y), math.prod(y.shape[1:]))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"A target is not a number: {error}.",
                where=where,
                expected="finite numbers",
                remedy="convert the target to numbers, or use a classifier for labels",
            ) from error
        if values.shape[1] != len(self.mean):
            raise DataError(
                f"Targets have {values.shape[1]} values a row.",
                where=where,
                expected=f"{len(self.mean)} as in training",
                remedy="name the target columns of training",
            )
        bad = ~np.isfinite(values).all(axis=1)
        if np.any(bad):
            raise not_finite_target(f"{where}, row {int(row_ids[np.argmax(bad)])}")
        values = values - self.mean
        return values if self.scale is None else values / self.scale

    @property
    def unit(self) -> Array | float:
        """Factor from encoded to stored units of the targets: shape (c,), or 1."""
        return 1.0 if self.scale is None else self.scale

    def comparable(self, F: Array) -> Array:
        """Return outputs (n, c) on the scale of the encoded targets."""
        return F

    def slope(self, F: Array) -> Array | float:
        """Return the derivative of predictions in stored units by outputs (n, c): shape (n, c), (c,), or 1."""
        return self.unit

    def derivatives(self, F: Array, y: Array) -> Array:
        """Turn outputs (n, c) into derivatives of half their squared errors in place; return those, (n,), summed."""
        residual(F, y)
        losses: Array = 0.5 * np.square(F, dtype=np.float64).sum(axis=1)
        return losses

    @property
    def errors_per_loss(self) -> float:
        """Errors in stored units for each unit of the loss."""
        return float(np.ravel(self.unit)[0]) * (2.0 if isinstance(self, Rates) else 1.0)

    def errors(self, F: Array, y: Array) -> Array:
        """Return errors (n, c), float64, of comparable outputs (n, c) and encoded targets."""
        return np.asarray(np.square(np.subtract(F, y, dtype=np.float64)))

    def dtype(self, working: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of predictions of a model that computes in ``working``."""
        return np.result_type(working, np.dtype(self.precision))

    def decode(self, outputs: Array) -> Array:
        """Return outputs (n, c) in stored units, with the mean added in float64. ``outputs`` may be overwritten."""
        outputs = self.comparable(outputs)
        dtype = self.dtype(outputs.dtype)
        if self.scale is not None:
            outputs = outputs.astype(dtype) * self.scale.astype(dtype)
        out = outputs if dtype == outputs.dtype else None
        return np.add(outputs, self.mean, out=out, dtype=np.float64, casting="same_kind")


@serializable
@dataclass(frozen=True, eq=False)
class Rates(Continuous):
    """Poisson regression: outputs are logarithms of rates in units of the mean rate; targets are at least 0."""

    least_squares: ClassVar[bool] = False
    judged_by: ClassVar[str] = "poisson_deviance"
    degree: ClassVar[int] = 1

    @classmethod
    def about(cls, encoding: Continuous) -> Rates:
        """Return the encoding of targets whose mean is that of an encoding of one column."""
        if not encoding.mean[0] > 0:
            raise DataError(
                f"The mean of the targets is {encoding.mean[0]:g}.",
                where='the target of the training rows, with loss="poisson"',
                expected="counts, or counts divided by the exposure: at least 0, and some above",
                remedy="check the target column, or leave loss out",
            )
        return cls(np.zeros(1), encoding.flat, scale=encoding.mean.copy())

    def encode(self, y: Array, row_ids: IntArray, where: str) -> Array:
        return _require_counts(super().encode(y, row_ids, where), y, row_ids, where)

    def comparable(self, F: Array) -> Array:
        return np.asarray(np.exp(np.minimum(F, MAX_LOG_RATE)))

    def slope(self, F: Array) -> Array | float:
        return self.comparable(F) * self.unit

    def derivatives(self, F: Array, y: Array) -> Array:
        """Turn outputs (n, 1) into derivatives of half the deviance in place; return it, (n,), at targets y (n, 1)."""
        np.minimum(F, MAX_LOG_RATE, out=F)
        logs, z = F[:, 0].astype(np.float64), y[:, 0]
        np.exp(F, out=F)
        losses: Array = F[:, 0].astype(np.float64) - z - z * (logs - np.log(np.maximum(z, _TINY)))
        F -= y
        return losses

    def errors(self, F: Array, y: Array) -> Array:
        rate, z = np.maximum(F.astype(np.float64), _TINY), y
        return np.asarray(2.0 * (rate - z - z * (np.log(rate) - np.log(np.maximum(z, _TINY)))))


@serializable
@dataclass(frozen=True, eq=False)
class Roots(Continuous):
    """Square roots of counts, whose variance depends little on the mean (Bartlett 1936): for a search by squares."""

    @classmethod
    def about(cls, encoding: Continuous) -> Roots:
        """Return the encoding about the root of the mean."""
        return cls(np.sqrt(np.maximum(encoding.mean, 0.0)), encoding.flat)

    def encode(self, y: Array, row_ids: IntArray, where: str) -> Array:
        values = Continuous(np.zeros_like(self.mean)).encode(y, row_ids, where)
        return np.asarray(np.sqrt(_require_counts(values, y, row_ids, where)) - self.mean)


def _require_counts(values: Array, y: Array, row_ids: IntArray, where: str) -> Array:
    """Return encoded values (n, 1) of targets y, none of which is below 0."""
    if (values < 0).any():
        row = int(np.argmax(values[:, 0] < 0))
        raise DataError(
            f"A target is {float(np.ravel(y[row])[0]):g}.",
            where=f"{where}, row {int(row_ids[row])}",
            expected='at least 0 for loss="poisson"',
            remedy="correct or leave out the row, or leave loss out",
        )
    return values


@serializable
@dataclass(frozen=True, eq=False)
class Quantiles(Continuous):
    """Quantile regression: an output for each of the ``levels``, in ascending order; the unit is that of an error.

    The loss is the pinball loss, smoothed by a logistic density (He, Pan, Tan and Zhou 2023). Outputs are sorted before
    they are compared, which never raises the loss (Chernozhukov, Fernández-Val and Galichon 2010).
    """

    flat: bool = False
    levels: tuple[float, ...] = ()

    least_squares: ClassVar[bool] = False
    judged_by: ClassVar[str] = "pinball_loss"
    degree: ClassVar[int] = 1
    curvature: ClassVar[float] = 0.25
    """About the density of normal errors, in their unit, at a quantile."""

    @classmethod
    def about(cls, encoding: Continuous, levels: tuple[float, ...], median: float, error: float) -> Quantiles:
        """Return the encoding of targets with a median, and errors of a size, in stored units."""
        from scipy.special import ndtri

        least = float(np.finfo(np.float32).eps) * max(1.0, abs(median))  # of a constant target
        unit = np.exp2(np.round(np.log2(error if error > 0 else least)))
        mean = median + unit * ndtri(np.array(levels))
        return cls(mean, precision=encoding.precision, scale=np.full(len(levels), unit), levels=levels)

    def encode(self, y: Array, row_ids: IntArray, where: str) -> Array:
        one = Continuous(np.zeros(1)).encode(y, row_ids, where)
        assert self.scale is not None
        return np.asarray((one - self.mean) / self.scale)

    def comparable(self, F: Array) -> Array:
        assert self.scale is not None
        offset = self.mean / self.scale
        return np.asarray((np.sort(F + offset, axis=1) - offset).astype(F.dtype))

    def derivatives(self, F: Array, y: Array) -> Array:
        """Turn outputs (n, K) into derivatives of the loss in place; return its sum over outputs, (n,)."""
        levels = np.array(self.levels)
        F -= y
        F /= PINBALL_SMOOTHING
        above = F.astype(np.float64)
        F *= 0.5
        np.tanh(F, out=F)
        F *= 0.5
        F += (0.5 - levels).astype(F.dtype)
        losses = PINBALL_SMOOTHING * (np.logaddexp(0.0, above) - levels * above)
        return np.asarray(losses.sum(axis=1))

    def errors(self, F: Array, y: Array) -> Array:
        above = np.subtract(F, y, dtype=np.float64)
        return np.asarray(np.where(above > 0, 1.0, 0.0) * above - np.array(self.levels) * above)


@serializable
@dataclass(frozen=True, eq=False)
class Indicators(Continuous):
    """Multilabel classification: several labels a row, each an output with targets in {0, 1}.

    A label is predicted if its output is greater than 1/2, or than its cut. The mean is 0: nothing is subtracted.
    """

    flat: bool = False
    kind: str = "multilabel"
    names: tuple[str, ...] = ()
    cuts: tuple[float, ...] = ()

    @classmethod
    def named(cls, outputs: int, name: str) -> Indicators:
        """Return the encoding of ``outputs`` labels; ``name`` joins the columns' names by commas, or names an array."""
        columns = tuple(name.split(","))
        return cls(np.zeros(outputs), names=columns if len(columns) == outputs else tuple(map(str, range(outputs))))

    def encode(self, y: Array, row_ids: IntArray, where: str) -> Array:
        values = super().encode(y, row_ids, where)
        require_binary(values, row_ids, where)
        return values

    def decided(self, F: Array) -> IntArray:
        """Return zeros and ones predicted from outputs (n, L), shape (n, L)."""
        return ((np.array(self.cuts) if self.cuts else 0.5) < F).astype(np.int64)


Encoding = Classes | Continuous
"""The encoding of stored targets as the numbers that a solver fits, and its inverse, of ``outputs`` columns."""


def has_large_offset(mean: Array, spread: Array, least: float = MAX_OFFSET) -> Array:
    """Return a mask of the columns with an offset: |mean| > ``least`` standard deviations."""
    return np.abs(mean) > least * spread


def not_finite_target(where: str) -> DataError:
    """Return the error for a row whose target is NaN or infinite."""
    return DataError(
        "A target is NaN or infinite.",
        where=where,
        expected="finite numbers; Input y contains NaN or infinity",
        remedy="leave out or fill the rows without a target",
    )


def require_binary(y: Array, row_ids: IntArray, where: str) -> None:
    """Refuse labels that are neither 0 nor 1."""
    wrong = (y != 0) & (y != 1)
    if wrong.any():
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        raise DataError(
            f"A label is {y[row, column]:g} in a target of several columns.",
            where=f"{where}, row {int(row_ids[row])}, label {column}",
            expected="0 or 1 in every column of the target of a classifier",
            remedy="name one target column; or use a regressor for values",
        )


def as_values(y: Array, outputs: int) -> Array:
    """Return encoded targets as values (n, c), float64: class codes (n,) become indicators, values stay."""
    if y.ndim > 1:
        return y
    values = np.zeros((len(y), outputs))
    values[np.arange(len(y)), y] = 1.0
    return values


def encoding_to_json(encoding: Encoding | None) -> dict[str, Any] | None:
    """Return the encoding as JSON-serialisable data; None stays None."""
    if isinstance(encoding, Classes):
        # Probabilities are saved with the model's answers. A model that predicts by outputs has another fingerprint.
        more = {"decides": "probability"} if encoding.probabilities else {}
        more |= {name: value for name in ("cut", "logits") if (value := getattr(encoding, name))}
        values = encoding.values
        return {"kind": encoding.kind, "dtype": values.dtype.str, "values": values.tolist(), **more}
    if isinstance(encoding, Indicators):
        cuts = {"cuts": list(encoding.cuts)} if encoding.cuts else {}
        return {"kind": encoding.kind, "mean": encoding.mean.tolist(), "names": list(encoding.names), **cuts}
    if isinstance(encoding, Continuous):
        # Only written if not the default, so that the fingerprints of existing models do not change.
        precision = {} if encoding.precision == "float32" else {"precision": encoding.precision}
        scale = {} if encoding.scale is None else {"scale": encoding.scale.tolist()}
        if isinstance(encoding, Quantiles):
            scale |= {"levels": list(encoding.levels)}
        elif isinstance(encoding, Rates):
            scale |= {"loss": "poisson"}
        elif isinstance(encoding, Roots):  # for keys of a search
            scale |= {"roots": True}
        return {"kind": encoding.kind, "mean": encoding.mean.tolist(), "flat": encoding.flat, **precision, **scale}
    return None


def encoding_from_json(data: dict[str, Any] | None) -> Encoding | None:
    """Return the encoding that ``encoding_to_json`` described."""
    if data is None:
        return None
    classes_bytes = 256 << 20  # bound for the labels of a saved model
    if data["kind"] == "classification":
        dtype = np.dtype(data["dtype"])
        # A short dtype string can declare texts of any width, which is allocated for every value.
        if dtype.kind not in "biufU" or dtype.itemsize * len(data["values"]) > classes_bytes:
            raise ValueError(f"{len(data['values'])} classes of dtype {dtype.str}")
        values = np.array(data["values"], dtype=dtype)
        if values.ndim != 1:
            raise ValueError(f"classes of shape {values.shape}")
        cut = float(data.get("cut", 0.0))
        if not math.isfinite(cut) or (cut and len(values) != 2):
            raise ValueError(f"a threshold of {cut} between {len(values)} classes")
        return Classes(values, cut=cut, logits=bool(data.get("logits", False)))
    mean = np.array(data["mean"], dtype=np.float64)
    if data["kind"] == "multilabel":
        if np.any(mean) or mean.ndim != 1 or len(data["names"]) != len(mean):
            raise ValueError(f"{len(data['names'])} names for labels of shape {mean.shape}")
        cuts = tuple(map(float, data.get("cuts", ())))
        if len(cuts) not in (0, len(mean)) or not np.isfinite(cuts).all():
            raise ValueError(f"cuts {cuts} of {len(mean)} labels")
        return Indicators(mean, names=tuple(map(str, data["names"])), cuts=cuts)
    precision = {name: name for name in ("float32", "float64")}[data.get("precision", "float32")]
    scale = np.array(data["scale"], dtype=np.float64) if "scale" in data else None
    if scale is not None and (scale.shape != mean.shape or not np.all(scale > 0)):
        raise ValueError(f"units of shape {scale.shape}")
    if "levels" in data:
        levels = tuple(map(float, data["levels"]))
        if scale is None or len(levels) != len(mean) or not all(0 < level < 1 for level in levels):
            raise ValueError(f"levels {levels} of {len(mean)} outputs")
        return Quantiles(mean, False, precision=precision, scale=scale, levels=levels)
    if "loss" in data:
        if scale is None or mean.shape != (1,) or mean[0] or data["loss"] != "poisson":
            raise ValueError(f"a loss {data['loss']!r} of {len(mean)} outputs")
        return Rates(mean, bool(data["flat"]), precision=precision, scale=scale)
    return Continuous(mean, bool(data["flat"]), precision=precision, scale=scale)


def labels_text(values: Array) -> str:
    """Return up to twelve labels for messages, and the number of all if there are more."""
    shown = ", ".join(repr(v) for v in values[:12].tolist())
    return shown if len(values) <= 12 else f"{shown}, ... ({len(values)} classes)"
