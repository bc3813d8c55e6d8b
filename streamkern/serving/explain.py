"""Explain a model: shares of columns in the gradient of its outputs, directions, and gradients of single rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.data.encoders import Encode, Lookup, TargetMeans
from streamkern.data.row_order import Assembly, RawRows
from streamkern.data.targets import Classes, Continuous
from streamkern.data.transforms import LinearMap
from streamkern.errors import UsageError
from streamkern.kernels import Expansion
from streamkern.models.kernel_machine import KernelMachine
from streamkern.serving.open_model import AnyModel, open_model
from streamkern.sources.remote_store import is_remote
from streamkern.storage.untrusted_files import given_path
from streamkern.types import Array


@dataclass(frozen=True, eq=False)
class Explanation:
    """The columns and directions that a model depends on.

    Attributes:
        columns: names of the stored columns, or their positions if they have no names.
        importances: each column's share of the squared gradient of the outputs, shape (columns,), sum 1. None if the
            model was fitted without a metric.
        directions: directions of a full metric, the most important first: share, and features with their loadings.
        predictions: predictions for the rows, shape (n,) or (n, c).
        gradients: derivatives of the predicted value, or of the score of the predicted class, shape (n, columns). They
            are in the units of each column, and NaN for a category.
    """

    columns: tuple[str, ...]
    importances: Array | None
    directions: tuple[dict[str, Any], ...]
    predictions: Array | None = None
    gradients: Array | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON-serialisable data; gradients by a category are None."""
        rows = None
        if self.gradients is not None and self.predictions is not None:
            rows = [
                {"prediction": value, "gradient": [None if np.isnan(g) else float(g) for g in row]}
                for value, row in zip(self.predictions.tolist(), self.gradients, strict=True)
            ]
        return {
            "columns": list(self.columns),
            "importances": None if self.importances is None else self.importances.tolist(),
            "directions": list(self.directions),
            "rows": rows,
        }

    def text(self) -> str:
        """Return bars and tables for a terminal."""
        return "\n".join([*self._bars(), *self._directions(), *self._rows()])

    def _bars(self) -> Iterator[str]:
        if self.importances is None:
            yield "no shares of columns: the model was fitted without a metric"
            return
        wide = max(len(name) for name in self.columns)
        yield "share of each column in the squared gradient, in units of its standard deviation"
        widest = 40
        for j in np.argsort(-self.importances, kind="stable"):
            share = float(self.importances[j])
            yield f"{self.columns[j]:<{wide}} {share:>6.1%} {'█' * round(widest * share)}".rstrip()

    def _directions(self) -> Iterator[str]:
        for number, found in enumerate(self.directions, 1):
            loadings = ", ".join(f"{value:+.2f} {name}" for name, value in found["loadings"])
            yield f"direction {number} ({found['share']:.1%} of the metric): {loadings}"

    def _rows(self) -> Iterator[str]:
        if self.gradients is None or self.predictions is None:
            return
        yield "gradient of each row's prediction, per unit of the column (none of a category)"
        yield f"{'prediction':>12}" + "".join(f"{name[:13]:>14}" for name in self.columns)
        for value, row in zip(self.predictions.tolist(), self.gradients, strict=True):
            shown = f"{value:.5g}" if isinstance(value, float) else str(value)
            yield f"{shown:>12}" + "".join(f"{'' if np.isnan(g) else f'{g:.4g}':>14}" for g in row)


def explain(model: AnyModel, rows: Any = None, *, most: int | None = 20) -> Explanation:
    """Return how much a model depends on each column, the main directions of its metric, and gradients for rows.

    The metric is a linear map of the features, learned in the fit (see ``AGOP``). Gradients are the derivatives of the
    predicted value, or of the score of the predicted class, by the columns. A model without a metric has only
    gradients.

    Args:
        model: a model or a fitted estimator in memory; or the path of a saved model, of a run's directory, or of a
            registry of models.
        rows: rows to compute gradients for, as for ``KernelMachine.predict``; None for no gradients.
        most: use only this many of the first rows; None for all.

    Raises:
        UsageError: ``rows`` are given, but the model uses a feature map or has several outputs.
        DataError: the columns of the rows differ from training.
        StorageError: there is no model.
    """
    made = open_model(_place(model))
    names = made.columns or tuple(f"column {j}" for j in range(made.n_features))
    metric = made.metadata.get("metric")
    shares = None
    if metric is not None:
        shares = np.array(metric["by_column"])
        if len(shares) != len(names):  # a step mixes columns
            names = tuple(f"feature {j}" for j in range(len(shares)))
    if rows is None:
        return Explanation(names, shares, _directions(made))
    if len(names) != made.n_features:
        raise UsageError(
            "Preprocessing combines columns, so no feature belongs to a single column.",
            where="explain(rows=...)",
            expected="a model whose features come from one column each",
            remedy="leave the rows out to get shares of features",
        )
    predictions, gradients = row_gradients(made, rows, most)
    return Explanation(names, shares, _directions(made), predictions, gradients)


def row_gradients(model: KernelMachine, rows: Any, most: int | None = None) -> tuple[Array, Array]:
    """Return predictions (n,), and derivatives (n, columns) of the value or the predicted class's score.

    Derivatives are by stored columns, in their units: analytic for the model, finite differences in float64 for the
    preprocessing; NaN for categories. ``most`` is the number of first rows to use. UsageError if the model uses a
    feature map, has several outputs, or its centers are not in memory.
    """
    (scan, basis), c = model.blocks(rows), model.weights.shape[1]
    if not isinstance(basis, Expansion) or (c > 1 and not isinstance(model.encoding, Classes)):
        raise UsageError(
            f"Gradients of {model!r} are not available.",
            where="explain(rows=...)",
            expected="kernel values at centers in memory, and one output or classes",
            remedy="leave the rows out",
        )
    assembly, dataset = scan.assembly, scan.assembly.dataset
    lookup = Lookup(dataset.source)
    exact = replace(assembly, dtype=np.dtype(np.float64))
    left = most
    predictions, gradients = [], []
    for index in range(len(scan)):
        raw, where = scan.raw((index,))
        raw = RawRows(*(None if each is None else each[:left] for each in raw))  # type: ignore[arg-type]
        X = assembly.build(raw, np.arange(len(raw.ids)), (), where, lookup).X
        F = basis.predict(X, model.weights)
        signs = None
        if c > 1:
            signs = np.zeros((len(X), c))
            signs[np.arange(len(X)), F.argmax(axis=1)] = 1.0
        g = basis.engine.gradients(basis, X, model.weights, signs).astype(np.float64)
        slope, outputs = np.ones(1), F
        if isinstance(model.encoding, Continuous):
            slope, outputs = np.atleast_1d(model.encoding.slope(F)), model.encoding.decode(F)
        gradients.append(slope * _by_column(exact, raw, where, g, lookup))
        predictions.append(model.decide(outputs).reshape(len(X)))
        if left is not None and (left := left - len(X)) <= 0:
            break
    return np.concatenate(predictions), np.concatenate(gradients)


def _by_column(assembly: Assembly, raw: RawRows, where: str, g: Array, lookup: Lookup) -> Array:
    """Convert gradients by features, (b, d), to gradients by stored columns, (b, columns)."""
    index = np.arange(len(raw.ids))
    stored = np.asarray(raw.X, dtype=np.float64)
    found = np.full(stored.shape, np.nan)

    def features(X: Array) -> Array:
        return np.asarray(assembly.build(raw._replace(X=X), index, (), where, lookup).X, dtype=np.float64)

    schema, transforms = assembly.dataset.source.schema, assembly.dataset.transforms
    categories = set() if schema is None else set(schema.positions("category"))
    if transforms and isinstance(transforms[0], Encode | TargetMeans):
        categories |= set(transforms[0].columns)
    relative_step = 1e-5  # of the features, at least, in a difference for their derivative by a column
    min_step_divisor = 1e4  # the first step that is tried, in units in the last place of a column's values
    steps = 20  # steps that are tried, each ten times the one before
    for column in range(stored.shape[1]):
        if column in categories:
            continue
        size = float(np.nanmax(np.abs(stored[:, column]), initial=0.0))
        for step in min_step_divisor * np.spacing(size if size > 0 else 1.0) * 10.0 ** np.arange(steps):
            before, after = stored.copy(), stored.copy()
            before[:, column] -= step
            after[:, column] += step
            change = features(after) - features(before)
            if np.nanmax(np.abs(change), initial=0.0) > relative_step:
                break
        found[:, column] = np.sum(g * change, axis=1) / (2 * step)
    return found


def _directions(model: KernelMachine) -> tuple[dict[str, Any], ...]:
    last = model.transforms[-1] if model.transforms else None
    metric = model.metadata.get("metric")
    if metric is None or not isinstance(last, LinearMap):
        return ()
    values, vectors = np.linalg.eigh(last.matrix @ last.matrix.T)
    names = metric["columns"] or [f"feature {j}" for j in range(len(values))]
    found = []
    max_directions = 3  # number of a full metric's directions that are shown
    max_loadings = 5  # number of a direction's features that are shown
    for k in range(1, min(max_directions, len(values)) + 1):
        vector = vectors[:, -k] * np.sign(vectors[np.abs(vectors[:, -k]).argmax(), -k])
        top = np.argsort(-np.abs(vector), kind="stable")[:max_loadings]
        loadings = [[names[j], float(vector[j])] for j in top]
        found.append({"share": float(values[-k] / values.sum()), "loadings": loadings})
    return tuple(found)


def _place(model: AnyModel) -> AnyModel:
    if not isinstance(model, str | os.PathLike) or is_remote(os.fspath(model)):
        return model
    inside = Path(given_path(model)) / "model.zarr"
    return inside if inside.exists() else model
