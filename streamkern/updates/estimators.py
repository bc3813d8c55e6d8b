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
from streamkern.execute import Scheduler, open_executor
from streamkern.memory import limited
from streamkern.model import KernelMachine
from streamkern.solvers.direct import Direct
from streamkern.solvers.estimator_inputs import given_target, require_no_target
from streamkern.storage.convert import is_dask_array, is_mixed
from streamkern.types import Array
from streamkern.updates.rows import rows_for, updated


def keeping_sums(solver: Any, partition: Any, where: str) -> Direct:
    """The solver of a fit that rows are then added to.

    Raises:
        UsageError: it is not ``Direct``, or there is a partition.
    """
    chosen = Direct() if isinstance(solver, str) else solver
    if not isinstance(chosen, Direct) or partition is not None:
        name = type(chosen).__name__
        raise UsageError(
            f"partial_fit takes the solver Direct, and this is {'one with a partition' if partition else name}.",
            where=where,
            expected='sk.Direct(...), None or "auto", without partition=',
        )
    return replace(chosen, keep_sums=True)


def has_sums(estimator: Any) -> bool:
    """Return True if rows can be added to a fitted estimator; one that is not fitted keeps its sums if it begins so.

    Raises:
        AttributeError: it was fitted without them.
    """
    if hasattr(estimator, "model_") and estimator.model_.sums is None:
        raise AttributeError(
            "This model was fitted without keeping its sums: begin with partial_fit, or fit with "
            "solver=sk.Direct(keep_sums=True)"
        )
    return True


class _Updates:
    """Base class of the classifier and the regressor."""

    model_: KernelMachine
    report_: dict[str, Any]
    scheduler: Scheduler
    threads: int | None
    _budget: Callable[[], int]
    _trained: Callable[..., Self]
    _checked: Callable[..., tuple[Any, Any, Any]]

    @available_if(has_sums)  # type: ignore[untyped-decorator]
    def forget(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Take rows away again: the weights become those of never having seen them, to rounding.

        A sweep over these rows alone. Centers that are forgotten rows stay, with a warning; ``update_model`` can remove
        them. See ``partial_fit`` for the parts that stay unchanged.

        Args:
            X: rows that ``fit`` or ``partial_fit`` were given, each once; as in ``fit``.
            y: their targets; None with a ``Dataset``.
            sample_weight: their weights; None with a ``Dataset``.

        Raises:
            AttributeError: the model was fitted without its sums.
            UsageError: the contributions of its rows are not known.
            DataError: rows that cannot be used, or more than the model has seen.
            PlanRefusedError: it would not fit the memory.
        """
        return self._updated(X, y, sample_weight, "forget")

    def _updated(self, X: Any, y: Any, sample_weight: Any, verb: str) -> Self:
        """The model with rows added or forgotten."""
        check_is_fitted(self)
        model = self.model_
        if isinstance(X, Dataset):
            require_no_target(y, sample_weight)
            rows: Any = X
        else:
            y = given_target(y)
            if not is_dask_array(X):
                mixed = is_mixed(X) or (model.schema is not None and not model.schema.plain)
                X, y, sample_weight = self._checked(X, y, sample_weight, mixed, reset=False)
            rows = (X, y, sample_weight)
        data, budget = rows_for(model, rows), self._budget()
        added, forgotten = (data, None) if verb == "add" else (None, data)
        with limited(budget), open_executor(self.scheduler, self.threads) as executor:
            self.model_ = updated(model, added, forgotten, None, False, executor, budget)
        self.report_ = self.report_ | {"updates": self.model_.metadata["updates"]}
        return self


class RegressorUpdates(_Updates):
    """Rows of a regressor."""

    @available_if(has_sums)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows, by a sweep over them alone: the first call is a fit by ``Direct`` that keeps its sums.

        Weights become those of one fit on all rows that were given, to rounding, with the preprocessing, kernel,
        centers and ridge that the first rows chose: give enough of them. A model fitted with
        ``solver=Direct(keep_sums=True)`` goes on from there. Intervals stay as they are until a call has as many rows
        as the model had; they are then made from those.

        Args:
            X: rows, as in ``fit``.
            y: targets; None with a ``Dataset``.
            sample_weight: weights w >= 0, shape (n,); only ratios matter, to those of other calls too, where rows
                without weights have 1.

        Raises:
            AttributeError: the model was fitted without its sums.
            UsageError: the solver is not ``Direct``.
            DataError: as ``fit``; or columns that are not those of the first call.
            PlanRefusedError: it would not fit the memory.
        """
        if hasattr(self, "model_"):
            return self._updated(X, y, sample_weight, "add")
        return self._trained(X, y, sample_weight, kept=True)


class ClassifierUpdates(_Updates):
    """Rows of a classifier."""

    classes_: Array

    @available_if(has_sums)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows, by a sweep over them alone: the first call is a fit by ``Direct`` that keeps its sums.

        Weights become those of one fit on all rows that were given, to rounding, with the preprocessing, kernel,
        centers and ridge that the first rows chose: give enough of them. A model fitted with
        ``solver=Direct(keep_sums=True)`` goes on from there. Probabilities stay as they are until a call has as many
        rows as the model had; they are then made from those.

        Args:
            X: rows, as in ``fit``.
            y: labels; None with a ``Dataset``.
            classes: all labels that may come, shape (K,), in the first call; None: those of the first rows.
            sample_weight: weights w >= 0, shape (n,); only ratios matter, to those of other calls too, where rows
                without weights have 1.

        Raises:
            AttributeError: the model was fitted without its sums.
            UsageError: the solver is not ``Direct``, or the classes are others.
            DataError: as ``fit``; a label that is not among the classes; or columns other than the first call's.
            PlanRefusedError: it would not fit the memory.
        """
        if not hasattr(self, "model_"):
            return self._trained(X, y, sample_weight, True, classes)
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise UsageError(
                f"The classes are {np.unique(classes).tolist()}, and were {self.classes_.tolist()}.",
                where="partial_fit(classes=...)",
                expected="the classes of the first call, or None",
                remedy="name all classes that may come in the first call",
            )
        return self._updated(X, y, sample_weight, "add")
