"""KernelRegressor and KernelClassifier: kernel machines under scikit-learn's conventions.

``fit`` takes arrays (NumPy, pandas, polars, Dask) as scikit-learn does, or a ``Dataset`` that streams from disk.
"""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, column_or_1d, validate_data

from streamkern.centers import Centers
from streamkern.data import Dataset, from_arrays
from streamkern.data.class_weights import ClassWeight
from streamkern.data.dataset import unchanging
from streamkern.data.row_roles import RowRoles, roles_of_values
from streamkern.data.targets import Classes, Quantiles
from streamkern.errors import PrecisionError, UsageError
from streamkern.execute import open_executor, open_resources
from streamkern.fitting.arguments import completed, drawn_centers, require_arguments
from streamkern.fitting.device_placement import device_for
from streamkern.fitting.fitted import Fitted
from streamkern.fitting.precision_checks import in_float64
from streamkern.fitting.recipe import AUTO, Recipe
from streamkern.fitting.stage import Runner
from streamkern.kernels import Kernel, named_kernel
from streamkern.memory import peak_resident_bytes
from streamkern.models.cut_tree import Partition
from streamkern.models.kernel_machine import KernelMachine
from streamkern.partition.fit_partition import model_of
from streamkern.partition.one_or_leaves import fit_one_or_leaves, resolve_with_held_out
from streamkern.preprocessing.steps import AUTOMATIC, Step
from streamkern.progress import display_if_verbose
from streamkern.resources import Resources, given_resources
from streamkern.selection.learned_metric import AGOP
from streamkern.sklearn.calibration_mixins import (
    ClassifierCalibrationMixin,
    RegressorCalibrationMixin,
    has_probabilities,
)
from streamkern.sklearn.input_checks import (
    given_rows,
    given_target,
    has_text_names,
    require_no_target,
    with_parameter,
)
from streamkern.sklearn.partial_fit import ClassifierUpdates, RegressorUpdates, keeping_sums
from streamkern.sklearn.result import FitResult, solvers_of
from streamkern.solvers import Solver
from streamkern.solvers.lbfgs import Loss
from streamkern.sources.arrow_conversion import is_mixed
from streamkern.sources.input_types import is_dask_array, is_path, is_series, is_table, require_dense
from streamkern.sources.schema import Column, Schema
from streamkern.types import Array

_Estimator = TypeVar("_Estimator")


class _Scored:
    """It stands before scikit-learn's classes in the order of bases."""

    _metric: str
    predict: Any
    model_: KernelMachine
    _resources: Resources

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R², averaged over the outputs; for a classifier, the accuracy; of quantiles, minus the pinball loss.

        Args:
            X: rows as in ``fit``, or a ``Dataset`` with a target.
            y: targets or labels; None with a ``Dataset``.
            sample_weight: weights of the rows, shape (n,); None with a ``Dataset``, which has its own.

        Raises:
            DataError: as ``predict``; or a ``Dataset`` has a label that was not in the training data.
        """
        check_is_fitted(self)
        encoding = self.model_.encoding
        if isinstance(X, Dataset):
            require_no_target(y, sample_weight)
            with open_executor(self._resources.scheduler, self._resources.threads) as executor:
                found = self.model_.score(X, executor=executor)
            return float(-found[encoding.judged_by] if isinstance(encoding, Quantiles) else found[self._metric])
        if isinstance(encoding, Quantiles):
            errors = encoding.errors(self.predict(X), np.asarray(y, dtype=np.float64).reshape(-1, 1))
            w = np.ones(len(errors)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
            return -float(w @ errors.mean(axis=1) / (w.sum() or np.nan))
        return float(super().score(X, y, sample_weight))  # type: ignore[misc]


class _KernelEstimator(BaseEstimator):  # type: ignore[misc]
    _task: str
    class_weight: ClassWeight = None
    threshold: str | None = None

    def __init__(
        self,
        kernel: Kernel | str | None = None,
        centers: Centers | int | None = None,
        solver: Solver | str = AUTO,
        *,
        memory: str | int | None = None,
        metric: AGOP | None = None,
        partition: Partition | str | None = AUTO,
        scaling: str | None = AUTO,
        preprocess: Sequence[Step] | str | None = AUTOMATIC,
        validation: float | Dataset | None = None,
        dtype: str = AUTO,
        lanes: int = 4,
        threads: int | None = None,
        resources: Resources | None = None,
        seed: int = 0,
        verbose: int = 0,
        loss: Loss | None = None,
    ) -> None:
        self.kernel = kernel
        self.centers = centers
        self.solver = solver
        self.memory = memory
        self.metric = metric
        self.partition = partition
        self.scaling = scaling
        self.preprocess = preprocess
        self.validation = validation
        self.dtype = dtype
        self.lanes = lanes
        self.threads = threads
        self.resources = resources
        self.seed = seed
        self.verbose = verbose
        self.loss = loss

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``kernel__bandwidth=2.0`` sets the bandwidth of the kernel.

        Raises:
            UsageError: the kernel, solver, centers, metric or partition has no such parameter.
        """
        inside = {name: params.pop(name) for name in list(params) if name.startswith("kernel__")}
        parts = [name for name in params if name.partition("__")[0] in ("solver", "centers", "metric", "partition")]
        nested = {name: params.pop(name) for name in parts if "__" in name}
        super().set_params(**params)
        for name, value in nested.items():
            part, _, field = name.partition("__")
            setattr(self, part, with_parameter(getattr(self, part), field, value, self._where(part)))
        if inside:
            kernel = named_kernel(self.kernel, self._where("kernel"))
            if kernel is None:
                raise UsageError(
                    f"{next(iter(inside))} is given without a kernel.",
                    where=self._where("kernel"),
                    expected='a kernel whose parameters are set, such as "laplace"',
                )
            self.kernel = kernel.set_params(**{name.removeprefix("kernel__"): v for name, v in inside.items()})
        return self

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None, times: Any = None) -> Self:
        """Train the model.

        Args:
            X: rows, shape (n, d): a NumPy or Dask array, or a table. A table is a pandas, polars (also lazy), Arrow or
                Dask table, a dict of columns, or a list of dicts. Its columns may be text, dates, booleans and
                categories, with missing values. You can also give a ``Dataset`` with a target.
            y: targets or labels, shape (n,). For a regressor with c targets, shape (n, c). For a classifier of rows
                with several labels, zeros and ones, shape (n, L). None with a ``Dataset``.
            sample_weight: weights w >= 0, shape (n,): minimise Σ_i w_i ‖f(x_i) − y_i‖². Rows of weight 0 are left out,
                and only the ratios of weights matter. None with a ``Dataset``, which has its own.
            groups: a value for each row, shape (n,). Rows with equal values, such as the rows of a patient, form a
                group. The fit holds out only whole groups. If scikit-learn's cross-validation is to pass the groups to
                ``fit``, call ``set_fit_request(groups=True)``.
            times: a date or number for each row, shape (n,). When the fit holds out rows, it holds out the latest rows.

        Raises:
            UsageError: a parameter is out of range.
            PlanRefusedError: training would exceed ``memory``; raised before a row is read.
            PrecisionError: rounding in ``dtype`` is too large for kernel values of these rows.
            DataError: rows or targets cannot be used.
            NumericalError: training diverged or stagnated.
        """
        roles = {role: values for role, values in (("time", times), ("group", groups)) if values is not None}
        return self._trained(X, y, sample_weight, roles=roles)

    def _trained(
        self, X: Any, y: Any, sample_weight: Any, kept: bool = False, classes: Any = None,
        roles: Mapping[str, Any] | None = None,
    ) -> Self:  # fmt: skip
        """As ``fit``; ``kept`` requires ``Direct`` and keeps its sums, ``classes`` may name labels that no row has."""
        began = time.perf_counter()
        X, y, sample_weight = given_rows(X, y, sample_weight)
        if isinstance(X, Dataset) or is_dask_array(X):
            data = self._streamed(X, y, sample_weight)
        elif is_mixed(X):
            data = self._tabled(X, given_target(y), sample_weight)
        else:
            data = self._validated(X, given_target(y), sample_weight)
        if roles:
            data = replace(data, roles=_roles_of(roles, data, sample_weight))
        if classes is not None:
            data = replace(data, labels=tuple(np.unique(classes).tolist()))
        recipe, reason = self._recipe(data, kept), dict[str, str]()
        try:
            fitted = self._fitted(recipe)
        except PrecisionError as error:
            recipe, reason = in_float64(recipe, error)
            fitted = self._fitted(recipe)
        self.model_ = model_of(fitted, **reason)
        report = fitted.report | reason
        if fitted.calibration is not None and "threshold" in fitted.calibration.facts:
            report |= {"threshold": fitted.calibration.facts["threshold"]}
        if fitted.choice is not None:
            report |= {"kernel": fitted.choice.summary()}
        if fitted.metric is not None and fitted.columns is not None:
            report |= {"metric": fitted.metric.summary(fitted.columns)}
        held = fitted.problem.validation
        if self.validation is None and held is not None:
            report |= {"held_out": f"{len(held):,} rows, for probabilities or intervals: set by validation="}
        self.result_ = FitResult(
            solver=solvers_of(report) or fitted.footprint.cost_estimate.solver.to_json()["name"],
            kernel=repr(self.model_.kernel),
            centers=self.model_.n_centers,
            dtype=fitted.problem.dtype.name,
            seconds=time.perf_counter() - began,
            peak_bytes=peak_resident_bytes(),
            report=report,
            outcome=replace(fitted.outcome, sums=None),  # the model keeps them
            footprint=fitted.footprint,
        )
        return self

    def _where(self, name: str) -> str:
        return f"{type(self).__name__}({name}=...)"

    @property
    def _resources(self) -> Resources:
        return given_resources(self.resources, self.memory, self.threads)

    def _fitted(self, recipe: Recipe) -> Fitted:
        resources = self._resources
        budget = resources.budget
        recipe, _ = resolve_with_held_out(recipe, budget, resources.device)
        with (
            open_resources(resources) as executor,
            display_if_verbose(self.verbose) as display,
            unchanging(recipe.train, recipe.validation),
        ):
            runner = Runner() if display is None else Runner(lambda progress: display("step", vars(progress)))
            return fit_one_or_leaves(recipe, executor, budget, runner, device=device_for(recipe, resources.device))

    def predict(self, X: Any) -> Array:
        """Return predictions, shape (n,). For c targets or labels in each row, return shape (n, c).

        Args:
            X: rows as in ``fit``, a ``Dataset``, a path, or a list of paths.

        Raises:
            DataError: a feature is NaN or infinite (the message names the row), or columns differ from those of
                ``fit``.
        """
        outputs = self._outputs(X)  # first: raises NotFittedError
        return self.model_.decide(outputs)

    @property
    def feature_importances_(self) -> Array:
        """Return each column's share of the squared gradient of the outputs: shape (n_features_in_,), sum 1.

        The gradient is for features in units of their standard deviations. If preprocessing derives several features
        from a column, they count together. ``result_.report["metric"]`` lists the shares of the features. If a step
        mixes columns, as a random projection does, return one share for each feature after preprocessing.

        Raises:
            AttributeError: the model was fitted without a metric.
        """
        check_is_fitted(self)
        if "metric" not in self.model_.metadata:
            raise AttributeError(
                "feature_importances_ needs a metric: fit with metric=sk.AGOP(), or without a bandwidth if the fit is "
                "long enough for a search"
            )
        return np.array(self.model_.metadata["metric"]["by_column"])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted model as a zarr group with JSON attributes, which ``load_model`` reads.

        Args:
            path: the directory; an existing model is replaced.

        Returns:
            The path.

        Raises:
            StorageError: the disk is full or not writable; an existing model is unchanged.
        """
        check_is_fitted(self)
        return self.model_.save(path)

    def _outputs(self, X: Any, scales: bool = False) -> Array:
        """f(X), shape (n, c); with ``scales`` also the outputs for the scales of intervals, shape (n, 2c)."""
        check_is_fitted(self)
        require_dense(X)
        schema, by_name = self.model_.schema, self.model_.columns is not None and is_table(X)
        unlike = is_series(X) or (is_table(X) and is_mixed(X))  # the model names the column that is no number
        numbers = not (by_name or unlike) and (schema is None or (schema.plain and not is_mixed(X)))
        if numbers and not (isinstance(X, Dataset) or is_path(X) or is_dask_array(X)):
            # The model itself looks for NaN, block by block, and names the row.
            X = validate_data(self, X, reset=False, ensure_all_finite=False, order="C")
        with open_executor(self._resources.scheduler, self._resources.threads) as executor:
            return self.model_.decision_function(X, executor=executor, scales=scales)

    def _streamed(self, X: Any, y: Any, sample_weight: Any = None) -> Dataset:
        if isinstance(X, Dataset):
            require_no_target(y, sample_weight)
            data = X
        else:
            data = from_arrays(X, y, sample_weight=sample_weight)
        self._note_columns(data, named=True)
        return data

    def _note_columns(self, data: Dataset, named: bool) -> None:
        self.n_features_in_ = data.source.n_features
        if named and data.source.columns is not None:
            self.feature_names_in_ = np.array(data.source.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _tabled(self, X: Any, y: Any, sample_weight: Any) -> Dataset:
        X, y, sample_weight = self._checked(X, y, sample_weight, True)
        data = from_arrays(X, y, sample_weight=sample_weight)
        self._note_columns(data, named=is_table(X) and has_text_names(X))
        return data

    def _checked(self, X: Any, y: Any, sample_weight: Any, mixed: bool, reset: bool = True) -> tuple[Any, Any, Any]:
        """Check as scikit-learn does, in a first or later call, except the columns of a mixed table."""
        require_dense(X)
        if mixed:
            y = check_array(y, ensure_2d=False, dtype=None, ensure_all_finite=False)
        else:
            X, y = validate_data(
                self, X, y, reset=reset, ensure_all_finite=False, order="C", multi_output=True,
                y_numeric=self._task == "regression",
            )  # fmt: skip
        if self._task == "classification":
            y = classification_targets(y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
        return X, y, sample_weight

    def _validated(self, X: Any, y: Any, sample_weight: Any = None) -> Dataset:
        """Check as scikit-learn does."""
        names = [str(name) for name in X.columns] if (table := is_table(X)) else None
        named = not table or has_text_names(X)
        X, y, sample_weight = self._checked(X if named else X.set_axis(names, axis=1), y, sample_weight, False)
        if not named:
            del self.feature_names_in_
        if sample_weight is not None:
            taken = sample_weight > 0  # rows of weight 0 are dropped, so that they do not influence random draws
            X, y, sample_weight = X[taken], y[taken], sample_weight[taken]
        schema = None
        if table and names is not None and self.preprocess == AUTOMATIC:
            gaps = np.isnan(X).any(axis=0) if X.dtype.kind == "f" else np.zeros(X.shape[1], dtype=bool)
            schema = Schema(tuple(Column(name, missing=bool(gap)) for name, gap in zip(names, gaps, strict=True)))
        return from_arrays(X, y, columns=names, sample_weight=sample_weight, schema=schema)

    def _recipe(self, data: Dataset, kept: bool = False) -> Recipe:
        require_arguments(self, self._where)
        data._require_rows()
        recipe = Recipe(**completed(self, data, self._task, self._where))
        recipe.train._require_rows()
        if kept:
            recipe = replace(recipe, solver=keeping_sums(recipe.solver, self.partition, self._where("solver")))
        return replace(recipe, centers=drawn_centers(recipe.centers, recipe.seed, recipe.train))


def _roles_of(given: Mapping[str, Any], data: Dataset, sample_weight: Any) -> RowRoles:
    """Roles of the rows, from values of all rows given; those of weight 0 may have been dropped."""
    n = int(data.source.bounds[-1])
    values = {role: np.asarray(each) for role, each in given.items()}
    if sample_weight is not None:
        taken = np.asarray(sample_weight) > 0
        values = {role: v[taken] if v.shape == taken.shape != (n,) else v for role, v in values.items()}
    return roles_of_values(values, n)


class KernelRegressor(_Scored, RegressorUpdates, RegressorCalibrationMixin, RegressorMixin, _KernelEstimator):  # type: ignore[misc]
    """Least squares regression with a kernel machine; one output or several.

    The model is f(x) = Σ_j α_j k(x, z_j), with p centers z_j and weights α_j. The centers are usually training rows.

    Args:
        kernel: the kernel k, such as ``Laplace(10)`` or ``Laplace("median")``, or the name of one, such as
            ``"laplace"`` or ``"gaussian"``. None or ``"auto"``: a search on a sample of the rows tries Laplace kernels,
            with L1 and L2 distances. It chooses the distance, the bandwidth and the ridge. It also chooses a metric
            (weights of the features), or none. The choice has the smallest error on held-out rows of the sample. For a
            regressor, the kernel may also be the sum of a Laplace and a linear kernel. A name leaves the same choices
            to the search, among kernels of this name alone. The search takes at most half as long as the training
            after it. The limit is at least a few seconds. If every row is a center, it is at least half a minute
            without leaves (see ``partition``). With fewer than 400 rows, the search tries no metric but a
            given one. With fewer than 40 rows, there is no search. ``result_.report["kernel"]`` has the result. To try
            bandwidths with scikit-learn's ``GridSearchCV``, name a kernel, and pass a grid such as
            ``{"kernel__bandwidth": [1.0, 2.0]}``.
        centers: a number of rows to draw as centers, or an object such as ``Given(Z)``, for the rows of an array Z. If
            there are fewer rows than this number, all rows become centers, with a warning. None: with leaves (see
            ``partition``), every row of a leaf is a center. Without leaves, every row is a center on three conditions:
            there are at most 10,000 rows, the solver is ``Direct``, and the kernel is Laplace. In all other cases, the
            centers are random rows. Their number is the largest of three: 2,000; a quarter of the rows, up to 5,000; an
            eighth of the rows, up to 8,000. There are fewer centers if there is little memory, or if there are many
            features.
        solver: the solver. ``"auto"`` chooses by the work and memory that solvers would need. The first choice is
            ``Direct``, which solves the normal equations after one pass over the rows. If the kernel is searched, the
            second choice is ``Falkon``, which uses conjugate gradients. The last choice is ``EigenPro``, which takes
            minibatch steps. It makes 500,000 / n passes over n rows, at most 20. If this number is below 8, it makes 8
            passes, or fewer if these would take more than about two minutes.
        memory: memory limit of the process in bytes, or a size such as ``"8GiB"``; by default, half of the machine's
            memory.
        metric: ``AGOP()`` learns a metric for the distances in the kernel, such as weights of the features. If there is
            a search for the kernel, it learns this metric, too. None: no metric, unless such a search chooses one.
            ``feature_importances_`` has the result.
        partition: ``Partition()`` divides the rows into parts, called leaves, and trains a model in each. ``"auto"``
            divides tables of more than 10,000 rows into leaves so small that every row of a leaf is a center. It does
            so only if you give no centers or solver, no kernel but the name ``"laplace"``, and no
            ``Resources(device="cuda")``. The rows are then divided twice, and a prediction is the mean of the
            predictions of two leaves. None: one model.
        scaling: ``"standard"`` gives every feature mean 0 and variance 1 over the training rows, after all steps of
            ``preprocess``. Bandwidths and centers that you give are then in the scaled units. ``"auto"``:
            ``preprocess`` decides whether to scale. None: ``preprocess`` decides, but it never scales a table in which
            all columns are numbers.
        preprocess: ``"auto"`` prepares each column of a table by its kind. Missing values are filled and marked,
            categories and dates are encoded, and numbers are standardised. The normal quantiles of numbers (their ranks
            mapped to a normal distribution) are added as columns. A table in which all columns are numbers is
            standardised, and gets quantiles, only if the scales of its columns differ much. It stays unchanged if you
            give ``Given(Z)`` or a bandwidth, because these are in the units of the rows. You can also give a list of
            steps, such as ``Impute("mean")`` or ``OneHot((3,))``. They are fitted to the training rows in this order,
            and applied in every prediction. None: no steps. ``result_.report["preprocess"]`` has the steps.
        validation: a ``Dataset``, or a share of the rows, which is then held out of training. These rows are used for
            early stopping, and to learn probabilities or intervals. The model has the weights of the best pass.
            Training stops after ``patience`` passes without improvement. ``patience`` is a parameter of the solver.
            ``solver="auto"`` sets it to 3. None: no validation rows, with two exceptions. If there are at least 20,000
            rows, and ``solver="auto"`` chooses a solver other than ``Direct``, one row in twenty is held out, at most
            about 5,000. If ``fit`` gets times or groups, and at least 1,000 rows, some of the rows are held out
            (docs/how-to/related-rows.md). Probabilities or intervals are learned from these rows
            (``result_.report["held_out"]``).
        dtype: dtype of the arithmetic. ``"auto"``: float64 for arrays of float64 in memory; otherwise float32. If
            rounding in float32 is too large for the kernel values of these rows, the dtype is float64, and
            ``result_.report["arithmetic"]`` has the reason.
        lanes: number of parts that the rows of a training step are divided into. Threads compute the parts in parallel.
            The weights depend on this number. In a solver with minibatch steps, it determines the rows of each step.
            In other solvers, it changes only rounding errors.
        threads: number of threads of this process; by default, the number of cores. The weights do not depend on it.
        resources: a ``Resources``, for a cluster or a choice of device. None: threads of this process, and a GPU if the
            machine has one of a tested kind (docs/gpu.md).
        seed: seed of the centers, the held-out rows and the order of rows, an integer >= 0.
        verbose: 1 shows the progress of ``fit``; 0 shows nothing.
        loss: None for squares. ``"poisson"`` for counts, or counts divided by an exposure, which is then the
            ``sample_weight``: predictions are above 0. ``Pinball(levels)`` for quantiles: predictions have a column for
            each level, in ascending order. For a classifier, ``"logistic"``. A loss other than squares has the solver
            ``LBFGS``, is that of one model without leaves, and has no intervals.

    Attributes:
        model_: the trained ``KernelMachine``.
        n_features_in_: number d of features of a row.
        feature_names_in_: names of the features, shape (d,), if the rows had names.
        result_: a ``FitResult``; ``print(model.result_)`` shows a summary.
    """

    _task, _metric = "regression", "r2"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _whole(kind: type[_Estimator]) -> type[_Estimator]:
    """Insert the regressor's parameters, in order, and its attributes into a class's docstring."""
    shared, own = inspect.getdoc(KernelRegressor), inspect.getdoc(kind)
    if shared and own:  # python -OO removes docstrings
        first, rest = shared.partition("Args:\n")[2].split("    memory: ")
        summary, parameters, attributes = re.split("(?:The other .*\n\n)?Args:\n|\nAttributes:\n", own)
        rest, more = rest.split("\nAttributes:\n")
        kind.__doc__ = f"{summary}Args:\n{first}{parameters}    memory: {rest}\nAttributes:\n{attributes}\n{more}"
    return kind


@_whole
class KernelClassifier(_Scored, ClassifierUpdates, ClassifierCalibrationMixin, ClassifierMixin, _KernelEstimator):  # type: ignore[misc]
    """Classify rows by least squares on class indicators, and predict the most probable class.

    The output of each class is f(x) = Σ_j α_j k(x, z_j), with p centers z_j and weights α_j. The centers are usually
    training rows.

    Probabilities are learned from rows that the model was not fitted to. These are the ``validation`` rows, or with the
    solver ``Direct``, training rows that are left out one by one. Without probabilities, or with ``class_weight``, the
    prediction is the class with the largest output. With ``threshold`` and two classes, the second class is predicted
    if ``decision_function`` is above the threshold.

    The other parameters and attributes are those of ``KernelRegressor``.

    Args:
        class_weight: a dict from label to factor, which multiplies the sample weights of the rows with this label.
            Other labels have the factor 1. ``"balanced"`` gives all classes the same sum of weights. None: no factors.
            If rows have several labels: ``"balanced"``, or a list with one dict for each label, such as
            ``[{1: 20}, {0: 1, 1: 5}]``. Each dict has factors for the values 0 and 1 of a label, and a row gets the
            product of these factors. Probabilities are those of the unweighted rows.
        threshold: the metric that the threshold between two classes maximises: ``"balanced_accuracy"``, ``"f1"``,
            ``"accuracy"`` or ``"matthews_corrcoef"``. The threshold is chosen on the same rows as the probabilities. If
            rows have several labels, each label has a threshold. ``result_.report["threshold"]`` has the result. None:
            no threshold.

    Attributes:
        classes_: the labels, sorted, shape (K,). If rows have several labels, the numbers 0 to L - 1, shape (L,).
    """

    _task, _metric = "classification", "accuracy"

    def __init__(
        self,
        kernel: Kernel | str | None = None,
        centers: Centers | int | None = None,
        solver: Solver | str = AUTO,
        *,
        class_weight: ClassWeight = None,
        threshold: str | None = None,
        memory: str | int | None = None,
        metric: AGOP | None = None,
        partition: Partition | str | None = AUTO,
        scaling: str | None = AUTO,
        preprocess: Sequence[Step] | str | None = AUTOMATIC,
        validation: float | Dataset | None = None,
        dtype: str = AUTO,
        lanes: int = 4,
        threads: int | None = None,
        resources: Resources | None = None,
        seed: int = 0,
        verbose: int = 0,
        loss: Loss | None = None,
    ) -> None:
        super().__init__(
            kernel, centers, solver, memory=memory, metric=metric, partition=partition, scaling=scaling,
            preprocess=preprocess, validation=validation, dtype=dtype, lanes=lanes, threads=threads,
            resources=resources, seed=seed, verbose=verbose, loss=loss,
        )  # fmt: skip
        self.class_weight = class_weight
        self.threshold = threshold

    predict_proba = available_if(has_probabilities)(ClassifierCalibrationMixin.predict_proba)
    predict_log_proba = available_if(has_probabilities)(ClassifierCalibrationMixin.predict_log_proba)

    def _trained(
        self, X: Any, y: Any, sample_weight: Any, kept: bool = False, classes: Any = None,
        roles: Mapping[str, Any] | None = None,
    ) -> Self:  # fmt: skip
        super()._trained(X, y, sample_weight, kept, classes, roles)
        encoding = self.model_.encoding
        self.classes_ = encoding.values if isinstance(encoding, Classes) else np.arange(encoding.outputs)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def decision_function(self, X: Any) -> Array:
        """Return scores of the classes, shape (n, K); for two classes, the difference of their scores, shape (n,).

        If ``predict`` uses probabilities, the scores are their logarithms, up to a constant for each row. Otherwise
        they are the outputs of ``model_``. If rows have several labels, return the output of each label minus 1/2,
        shape (n, L).

        Args:
            X: as in ``predict``.

        Raises:
            DataError: as ``predict``.
        """
        outputs, encoding = self._outputs(X), self.model_.encoding
        if not isinstance(encoding, Classes):
            return np.asarray(outputs - np.asarray(0.5, dtype=outputs.dtype))
        scores = encoding.scores(outputs)
        return scores if scores.shape[1] > 2 else np.asarray(scores[:, 1] - scores[:, 0])


def classification_targets(y: Any) -> Any:
    """Return labels, shape (n,), or zeros and ones for several labels a row, shape (n, L)."""
    check_classification_targets(y)
    return y if type_of_target(y) == "multilabel-indicator" else column_or_1d(y, warn=True)
