"""Online predictions: a model loaded once and used by many threads, with every row checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.encoders import Lookup
from streamkern.data.row_order import Assembly
from streamkern.data.targets import Classes, Indicators
from streamkern.errors import DataError, UsageError
from streamkern.serving.open_model import AnyModel, open_model
from streamkern.sources.format_rules import first_names
from streamkern.sources.input_types import has_text, is_path, is_table, require_dense
from streamkern.types import Array


class RowPredictions(NamedTuple):
    """Predictions for some rows.

    Attributes:
        predictions: labels, shape (n,), or values, shape (n,) or (n, c).
        outputs: scores of the classes, or values, shape (n, c).
    """

    predictions: Array
    outputs: Array


_NUMBERS = (int, float, np.bool_, np.number, np.ndarray)
_NOT_NUMBERS, _SEND_NUMBERS = "Rows contain a value that is not a number.", "send numbers only: [[0.1, 0.2], ...]"


class Predictor:
    """Predict rows in memory, with a model that is loaded and prepared once for many calls.

    ``predictor(X)`` returns a named tuple for rows X. For a classifier, ``predictions`` are labels, and ``outputs`` are
    scores of the classes. For a regressor, both are the predicted values. Several threads may call it at the same time.
    BLAS may use several threads for one call. For many parallel calls, set the environment variable OMP_NUM_THREADS=1
    before Python starts.

    Args:
        model: path of a saved model, a model in memory, or a fitted estimator. Or a model registry; its champion, the
            version in use, then predicts.
        max_rows: largest number of rows of one call.

    Attributes:
        model: the model.
        max_rows: largest number of rows of one call.

    Raises:
        StorageError: there is no model at this path.
        ModelFormatError: the files are not a model, or are damaged.
        UsageError: ``max_rows`` is below 1, or the registry has no champion.
    """

    def __init__(self, model: AnyModel, *, max_rows: int = 10_000) -> None:
        if max_rows < 1:
            raise UsageError(f"max_rows is {max_rows}.", where="Predictor(max_rows=...)", expected="at least 1")
        self.model = open_model(model)
        self.max_rows = max_rows
        self._outputs = self.model._output_function()

    @property
    def n_features(self) -> int:
        """Number of features of a row."""
        return self.model.n_features

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the features, in their order, or None."""
        return self.model.columns

    @property
    def labels(self) -> list[Any] | None:
        """The classes or labels, in the order of the columns of ``outputs``; None if the model predicts values."""
        encoding = self.model.encoding
        if isinstance(encoding, Indicators):
            return list(encoding.names)
        return encoding.values.tolist() if isinstance(encoding, Classes) else None

    def __call__(self, X: Any, columns: Sequence[str] | None = None) -> RowPredictions:
        """Return predictions and outputs for rows.

        Args:
            X: as in ``predict_proba``.
            columns: as in ``predict_proba``.

        Raises:
            DataError: as ``predict_proba``.
        """
        outputs = self._outputs(self._checked(X, columns))
        return RowPredictions(self.model.decide(outputs), outputs)

    def predict_proba(self, X: Any, columns: Sequence[str] | None = None) -> Array:
        """Return probabilities of the classes, in the order of ``labels``: shape (n, K), float64.

        Args:
            X: rows as in training, shape (n, d): an array or lists. Or a table, in which columns are found by name: a
                frame, a list of dicts, one row as a dict, or an Arrow table.
            columns: names of the features, to be checked against the model's.

        Raises:
            UsageError: the model has no probabilities, see ``KernelMachine.predict_proba``.
            DataError: X has values other than numbers, another width, other columns, too many rows, NaN or infinity.
        """
        return self.model.probabilities(self._outputs(self._checked(X, columns)))

    def predict_interval(self, X: Any, coverage: float = 0.9, columns: Sequence[str] | None = None) -> Array:
        """Return ends of intervals that contain the target with probability ``coverage``.

        The shape is (n, 2), or (n, c, 2) for c outputs.

        Args:
            X: as in ``predict_proba``.
            coverage: the probability, between 0 and 1.
            columns: as in ``predict_proba``.

        Raises:
            UsageError: the model has no intervals, see ``KernelMachine.predict_interval``.
            DataError: as ``predict_proba``.
        """
        return self.model.intervals(self._with_scales(self._checked(X, columns)), coverage)

    def unseen_categories(self, X: Any) -> dict[str, int]:
        """Return, for each column, the number of rows with a category that was not in the training rows.

        Args:
            X: as in ``predict_proba``.

        Raises:
            DataError: as ``predict_proba``.
        """
        _require_rows(X)
        dataset = self.model.dataset(X)
        lookup, assembly = Lookup(dataset.source), Assembly(dataset.plain())
        for chunk in range(len(dataset.source.bounds) - 1):
            rows = dataset.source.read(chunk).X
            assembly.transformed(rows, np.arange(len(rows), dtype=np.int64), "the rows", lookup)
        return dict(lookup.unseen)

    @cached_property
    def _with_scales(self) -> Callable[[Array], Array]:
        return self.model._output_function(scales=True)

    def _checked(self, X: Any, columns: Sequence[str] | None) -> Array:
        _require_rows(X)
        expected = f"at most {self.max_rows:,} rows of {self.n_features} numbers"
        if columns is not None and self.columns is not None and tuple(columns) != self.columns:
            raise DataError(
                "The columns differ from those of training.",
                where="columns",
                expected=first_names(self.columns),
                remedy="send the columns of training, in their order",
            )
        many = max(map(_length, X.values()), default=0) if isinstance(X, Mapping) else _length(X)
        if many > self.max_rows:
            raise _error(f"There are {many:,} rows.", expected, "split the rows into several calls")
        schema = self.model.schema
        if is_table(X) or (schema is not None and len(X) and (has_text(X) or not schema.plain)):
            return self.model._rows_of(X)
        if isinstance(X, list | tuple):
            # Checked before NumPy, which would convert all values to text if one is, each as wide as the longest.
            kinds = {kind for row in X if isinstance(row, list | tuple) for kind in set(map(type, row))}
            if not all(issubclass(kind, _NUMBERS) for kind in kinds):
                raise _error(_NOT_NUMBERS, expected, _SEND_NUMBERS)
        try:
            rows = np.asarray(X)
        except ValueError as error:  # lists of different lengths
            remedy = "give every row the same number of values"
            raise _error("The rows have different lengths.", expected, remedy) from error
        if rows.dtype.kind not in "biuf" and rows.size:
            raise _error(_NOT_NUMBERS, expected, _SEND_NUMBERS)
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            if rows.size or rows.ndim != 1:
                remedy = "send a list of rows, each of the width of training"
                raise _error(f"The rows have shape {rows.shape}.", expected, remedy)
            rows = np.empty((0, self.n_features))  # an empty list
        return np.ascontiguousarray(rows)


def _require_rows(X: Any) -> None:
    """Raise DataError for what no service may be given as rows: a path, which it would open, and sparse rows."""
    require_dense(X)
    if is_path(X):
        expected = "rows in memory: a table, a dict, or lists of numbers"
        remedy = "of a file: sk.load_model(model).predict(path), or streamkern predict"
        raise _error(f"This is a path, or a text: {X!r}.", expected, remedy)


def _length(values: Any) -> int:
    """Return the number of values of a column, or of rows of a table; 1 for a single value."""
    try:
        return 1 if isinstance(values, str | bytes) else len(values)
    except TypeError:
        return 1


def _error(what: str, expected: str, remedy: str) -> DataError:
    return DataError(what, where="the rows", expected=expected, remedy=remedy)
