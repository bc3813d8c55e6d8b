"""``partial_fit`` and ``forget`` of estimators, under scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from streamkern.data.dataset import Dataset
from streamkern.errors import UsageError
from streamkern.execute import open_resources
from streamkern.fitting.recipe import AUTO
from streamkern.models.kernel_machine import KernelMachine
from streamkern.resources import Resources
from streamkern.sklearn.input_checks import given_rows, given_target, require_no_target
from streamkern.sklearn.result import FitResult
from streamkern.solvers.direct import Direct
from streamkern.sources.arrow_conversion import is_mixed
from streamkern.sources.input_types import is_dask_array, is_table
from streamkern.types import Array
from streamkern.updates.update_model import rows_for, updated


def keeping_sums(solver: Any, partition: Any, where: str) -> Direct:
    """Return a solver that keeps sums, so that rows can be added to the fit."""
    chosen = Direct() if isinstance(solver, str) else solver
    leaves = partition not in (None, AUTO)
    if not hasattr(chosen, "keep_sums") or leaves:
        name = type(chosen).__name__
        raise UsageError(
            f"partial_fit takes the solver Direct, and this is {'one with a partition' if leaves else name}.",
            where=where,
            expected='sk.Direct(...) or "auto", without partition=',
        )
    return replace(chosen, keep_sums=True)


def has_sums(estimator: Any) -> bool:
    """Return True if rows can be added; else raise AttributeError, so that ``hasattr`` is false."""
    if hasattr(estimator, "model_") and estimator.model_.sums is None:
        raise AttributeError(
            "This model was fitted without keeping its sums: begin with partial_fit, or fit with "
            "solver=sk.Direct(keep_sums=True)"
        )
    return True


class _Updates:
    model_: KernelMachine
    result_: FitResult
    _resources: Resources
    _trained: Callable[..., Self]
    _checked: Callable[..., tuple[Any, Any, Any]]

    @available_if(has_sums)  # type: ignore[untyped-decorator]
    def forget(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Remove rows. Up to rounding, the weights become those of a model that never saw them.

        The call reads only these rows. The model must store the sums over rows in its normal equations. It stores them
        if it was trained by ``partial_fit``, or with ``solver=Direct(keep_sums=True)``. If a removed row is a center,
        the center stays, with a warning; ``update_model`` can remove it.

        Args:
            X: rows, as in ``fit``, that were passed to ``fit`` or ``partial_fit`` before. Pass each row once.
            y: targets of the rows; None with a ``Dataset``.
            sample_weight: weights of the rows; None with a ``Dataset``.

        Raises:
            AttributeError: the model does not store its sums.
            UsageError: the rows were augmented or target-encoded, so the contribution of a single row is unknown.
            DataError: rows cannot be used, or there are more than the model has seen.
            PlanRefusedError: the update would exceed ``memory``.
        """
        return self._updated(X, y, sample_weight, "forget")

    def _updated(self, X: Any, y: Any, sample_weight: Any, verb: str) -> Self:
        check_is_fitted(self)
        model = self.model_
        X, y, sample_weight = given_rows(X, y, sample_weight)
        if isinstance(X, Dataset):
            require_no_target(y, sample_weight)
            rows: Any = X
        else:
            y = given_target(y)
            if not is_dask_array(X):
                by_name = model.columns is not None and is_table(X)
                mixed = by_name or is_mixed(X) or (model.schema is not None and not model.schema.plain)
                X, y, sample_weight = self._checked(X, y, sample_weight, mixed, reset=False)
            rows = (X, y, sample_weight)
        data, resources = rows_for(model, rows), self._resources
        added, forgotten = (data, None) if verb == "add" else (None, data)
        with open_resources(resources) as executor:
            self.model_ = updated(model, added, forgotten, None, False, executor, resources.budget)
        report = self.result_.report | {"updates": self.model_.metadata["updates"]}
        self.result_ = replace(self.result_, report=report)
        return self


class RegressorUpdates(_Updates):
    """``partial_fit`` of a regressor."""

    @available_if(has_sums)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to the model, and read only these rows.

        The first call fits with the solver ``Direct``, and stores the sums over rows in its normal equations. Up to
        rounding, the weights become those of one fit to all rows so far. Preprocessing, kernel, centers and ridge are
        chosen on the rows of the first call, so pass enough of them. In place of the first call, you can call ``fit``
        of an estimator with ``solver=Direct(keep_sums=True)``. Intervals are learned again only if a call adds at
        least as many rows as the model had.

        Args:
            X: rows, as in ``fit``.
            y: targets; None with a ``Dataset``.
            sample_weight: weights w >= 0, shape (n,); by default 1. Only the ratios of weights matter, even
                between weights of different calls.

        Raises:
            AttributeError: the model does not store its sums.
            UsageError: the solver is not ``Direct``.
            DataError: as ``fit``; or columns differ from those of the first call.
            PlanRefusedError: the update would exceed ``memory``.
        """
        if hasattr(self, "model_"):
            return self._updated(X, y, sample_weight, "add")
        return self._trained(X, y, sample_weight, kept=True)


class ClassifierUpdates(_Updates):
    """``partial_fit`` of a classifier."""

    classes_: Array

    @available_if(has_sums)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to the model, and read only these rows.

        The first call fits with the solver ``Direct``, and stores the sums over rows in its normal equations. Up to
        rounding, the weights become those of one fit to all rows so far. Preprocessing, kernel, centers and ridge are
        chosen on the rows of the first call, so pass enough of them. In place of the first call, you can call ``fit``
        of an estimator with ``solver=Direct(keep_sums=True)``. Probabilities are learned again only if a call adds at
        least as many rows as the model had.

        Args:
            X: rows, as in ``fit``.
            y: labels; None with a ``Dataset``.
            classes: all labels of this and later calls, shape (K,), in the first call. None: the labels of its rows.
            sample_weight: weights w >= 0, shape (n,); by default 1. Only the ratios of weights matter, even
                between weights of different calls.

        Raises:
            AttributeError: the model does not store its sums.
            UsageError: the solver is not ``Direct``, or the classes differ.
            DataError: as ``fit``; a label is not among the classes; or columns differ from those of the first call.
            PlanRefusedError: the update would exceed ``memory``.
        """
        if not hasattr(self, "model_"):
            return self._trained(X, y, sample_weight, True, classes)
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise UsageError(
                f"The classes are {np.unique(classes).tolist()}, and were {self.classes_.tolist()}.",
                where="partial_fit(classes=...)",
                expected="the classes of the first call, or None",
                remedy="name the classes of all calls in the first call",
            )
        return self._updated(X, y, sample_weight, "add")
