"""KernelRegressor and KernelClassifier: kernel machines under scikit-learn's conventions.

``fit`` takes arrays (NumPy, pandas, polars, Dask) as scikit-learn does, or a ``Dataset`` that streams from disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from streamkern.centers import Centers, Uniform
from streamkern.data import Dataset, from_arrays
from streamkern.data.preprocess import Step, require_steps
from streamkern.data.targets import Classes
from streamkern.errors import PrecisionError, UsageError
from streamkern.execute import open_executor
from streamkern.kernels import FeatureMap, Kernel
from streamkern.memory import default_budget, parse_bytes
from streamkern.model import KernelMachine
from streamkern.solvers import Solver
from streamkern.solvers.auto import AUTO, resolved
from streamkern.solvers.bandwidth import AUTO_KERNEL
from streamkern.solvers.fit import Fitted, fit
from streamkern.solvers.metric import AGOP
from streamkern.solvers.placement import device_for
from streamkern.storage.dask import is_dask_array
from streamkern.types import Array

MAX_CENTERS = 2000
"""Most centers by default: as many rows as the preconditioner looks at, and a setup of a few seconds."""


@dataclass(frozen=True, eq=False)
class _Recipe:
    """An estimator's parameters, validated and with their defaults filled in: a ``solvers.fit.Recipe``."""

    train: Dataset
    validation: Dataset | None
    kernel: Kernel | None
    centers: Centers
    solver: Solver
    task: str
    standardise: bool
    seed: int
    lanes: int
    dtype: str
    features: FeatureMap | None = None
    metric: AGOP | None = None
    preprocess: tuple[Step, ...] = ()


class _KernelEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share; see them for the parameters."""

    _task: str

    def __init__(
        self,
        kernel: Kernel | str | None = None,
        centers: Centers | int | None = None,
        solver: Solver | str | None = None,
        *,
        memory: str | int | None = None,
        metric: AGOP | None = None,
        scaling: str | None = None,
        preprocess: Sequence[Step] | None = None,
        validation: float | Dataset | None = None,
        dtype: str = "auto",
        lanes: int = 4,
        threads: int | None = None,
        scheduler: str = "threads",
        random_state: int = 0,
        device: str = "auto",
    ) -> None:
        self.kernel = kernel
        self.centers = centers
        self.solver = solver
        self.memory = memory
        self.metric = metric
        self.scaling = scaling
        self.preprocess = preprocess
        self.validation = validation
        self.dtype = dtype
        self.lanes = lanes
        self.threads = threads
        self.scheduler = scheduler
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Args:
            X: rows, shape (n, d): NumPy, pandas, polars or Dask; or a ``Dataset`` with a target.
            y: targets, shape (n,), or (n, c) for a regressor; None with a ``Dataset``.
            sample_weight: weights w >= 0, shape (n,): minimise Σ_i w_i ‖f(x_i) − y_i‖². Rows of weight 0 are left out,
                and only the weights' ratios matter. None with a ``Dataset``, which has its own.

        Raises:
            UsageError: a parameter is out of range.
            PlanRefusedError: it would not fit the memory; said before a row is read.
            PrecisionError: ``dtype`` cannot represent the kernel on these rows.
            DataError: rows or targets that cannot be used, or fewer rows than centers.
            NumericalError: training diverged or stagnated.
        """
        if isinstance(X, Dataset) or is_dask_array(X):
            data, dtype = self._streamed(X, y, sample_weight), "float32"
        else:
            data, dtype = self._validated(X, y, sample_weight)
        reason: dict[str, str] = {}
        try:
            fitted = self._fitted(self._recipe(data, dtype))
        except PrecisionError as error:
            if self.dtype != "auto" or dtype == "float64":
                raise
            reason = {"arithmetic": f"float64: {error.what}"}
            fitted = self._fitted(self._recipe(data, "float64"))
        self.model_ = KernelMachine.of(fitted, **reason)
        self.outcome_ = fitted.outcome
        self.report_ = fitted.report | reason
        if fitted.metric is not None:
            self.report_ |= {"metric": fitted.metric.summary(fitted.columns)}
        self.footprint_ = fitted.footprint
        return self

    def _fitted(self, recipe: _Recipe) -> Fitted:
        budget = default_budget() if self.memory is None else parse_bytes(self.memory)
        recipe, _ = resolved(recipe, budget)
        with open_executor(self.scheduler, self.threads) as executor:
            return fit(recipe, executor, budget, device=device_for(recipe, self.device))

    def predict(self, X: Any) -> Array:
        """Labels, shape (n,), or values, shape (n,) or (n, c).

        Args:
            X: rows as in ``fit``, a ``Dataset``, or a path.

        Raises:
            DataError: a feature is NaN or infinite (the message names the row), or columns are not those of ``fit``.
        """
        outputs = self._outputs(X)
        return self.model_.decide(outputs)

    @property
    def feature_importances_(self) -> Array:
        """Share of each feature in the squared gradient of the outputs, in units of its standard deviation: shape (d,).

        Features are those after ``preprocess``, in the order of ``report_["metric"]["columns"]``. They sum to 1.

        Raises:
            AttributeError: the model was fitted without a metric.
        """
        check_is_fitted(self)
        if "metric" not in self.model_.metadata:
            raise AttributeError("feature_importances_ comes with a metric: fit with metric=sk.AGOP()")
        return np.array(self.model_.metadata["metric"]["importances"])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted model, to be read by ``load_model``. See ``KernelMachine.save``.

        Raises:
            StorageError: the disk is full or not writable; an earlier model is still there.
        """
        check_is_fitted(self)
        return self.model_.save(path)

    def _outputs(self, X: Any) -> Array:
        """f(X), shape (n, c)."""
        check_is_fitted(self)
        if not (isinstance(X, Dataset | str | os.PathLike) or is_dask_array(X)):
            # The model looks for NaN itself, block by block, and can say in which row.
            X = validate_data(self, X, reset=False, ensure_all_finite=False, order="C")
        with open_executor(self.scheduler, self.threads) as executor:
            return self.model_.decision_function(X, executor=executor)

    def _score(self, data: Dataset, y: Any, sample_weight: Any, metric: str) -> float:
        """One metric over a dataset, in a stream."""
        check_is_fitted(self)
        _no_target(y, sample_weight)
        with open_executor(self.scheduler, self.threads) as executor:
            return float(self.model_.score(data, executor=executor)[metric])

    def _streamed(self, X: Any, y: Any, sample_weight: Any = None) -> Dataset:
        """A dataset, or one over Dask arrays: nothing is read yet."""
        if isinstance(X, Dataset):
            _no_target(y, sample_weight)
            data = X
        else:
            data = from_arrays(X, y, sample_weight=sample_weight)
        self.n_features_in_ = data.source.n_features
        if data.source.columns is not None:
            self.feature_names_in_ = np.array(data.source.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return data

    def _validated(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Dataset, str]:
        """Arrays in memory as scikit-learn checks them, and the dtype to compute in."""
        X, y = validate_data(
            self, X, y, ensure_all_finite=False, order="C", multi_output=True, y_numeric=self._task == "regression"
        )
        if self._task == "classification":
            check_classification_targets(y)
            y = column_or_1d(y, warn=True)
        columns = getattr(self, "feature_names_in_", None)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            taken = sample_weight > 0  # without the others, all that is drawn is drawn as if they were not there
            X, y, sample_weight = X[taken], y[taken], sample_weight[taken]
        data = from_arrays(X, y, columns=None if columns is None else columns.tolist(), sample_weight=sample_weight)
        return data, "float64" if X.dtype == np.float64 else "float32"

    def _recipe(self, data: Dataset, dtype: str) -> _Recipe:
        def require(right: bool, name: str, expected: str) -> None:
            if not right:
                raise UsageError(
                    f"{name} is {getattr(self, name)!r}.", where=f"{type(self).__name__}({name}=...)", expected=expected
                )

        auto = isinstance(self.kernel, str) and self.kernel == AUTO
        right = auto or isinstance(self.kernel, Kernel | None)
        kernel: Any = AUTO_KERNEL if auto else self.kernel
        require(right, "kernel", 'a kernel such as sk.Laplace(10) or sk.Laplace("median"), or "auto"')
        known = self.solver in (None, AUTO) if isinstance(self.solver, str | None) else hasattr(self.solver, "setup")
        require(known, "solver", 'a solver such as sk.EigenPro(...), or "auto"')
        require(isinstance(self.metric, AGOP | None), "metric", "sk.AGOP(), or None")
        require(self.scaling in (None, "standard"), "scaling", 'None or "standard"')
        require_steps(self.preprocess or (), f"{type(self).__name__}(preprocess=...)")
        require(self.dtype in ("auto", "float32", "float64"), "dtype", '"auto", "float32" or "float64"')
        require(_is_count(self.lanes), "lanes", "at least 1")
        require(self.threads is None or _is_count(self.threads), "threads", "at least 1")
        natural = isinstance(self.random_state, int | np.integer) and self.random_state >= 0
        require(natural, "random_state", "an integer >= 0: results never depend on a global state")
        require(
            self.centers is None or _is_count(self.centers) or hasattr(self.centers, "choose"),
            "centers",
            "a number of rows to draw, at least 1, or a choice such as sk.Uniform(1000) or sk.Given(Z)",
        )
        seed = int(self.random_state)
        data.require_rows()
        validation = self.validation
        if validation is not None and not isinstance(validation, Dataset):
            share = isinstance(validation, float | np.floating) and 0 < validation < 1
            require(share, "validation", "a fraction between 0 and 1, or a Dataset")
            data, held = data.split(float(validation), seed)
            data.require_rows()
            validation = held.plain()
        centers = self.centers
        if centers is None:
            centers = Uniform(min(MAX_CENTERS, data.base_rows), seed)
        elif isinstance(centers, int | np.integer):
            centers = Uniform(int(centers), seed)
        solver: Any = AUTO if self.solver is None else self.solver
        return _Recipe(
            data,
            validation,
            kernel,
            centers,
            solver,
            self._task,
            self.scaling == "standard",
            seed,
            int(self.lanes),
            dtype if self.dtype == "auto" else self.dtype,
            metric=self.metric,
            preprocess=tuple(self.preprocess or ()),
        )


class KernelRegressor(RegressorMixin, _KernelEstimator):  # type: ignore[misc]
    """Least squares regression with a kernel machine; one output or several.

    Args:
        kernel: the kernel. "auto": ``Laplace("median")``, whose bandwidth is the median distance of two rows. None:
            Laplace with the root mean square distance of two rows as bandwidth, σ² = 2 Σ_j var(x_j), which puts a
            typical kernel value near 1/e whatever the units.
        centers: where the p centers come from: a number of rows to draw, or a choice such as ``Given(Z)``. None: all
            rows, at most 2000, drawn uniformly.
        solver: the solver. None, or "auto": ``Direct``, one pass of normal equations, where that is less work and fits;
            else EigenPro over as many passes as it takes to see 500,000 rows, from 1 to 20.
        memory: bytes the process may hold, or a size such as ``"8GiB"``; half of the machine's by default.
        metric: what is learned about the features before the kernel, such as ``AGOP()``; None for nothing. With a
            metric ``feature_importances_`` says what it found.
        scaling: ``"standard"`` gives every feature mean 0 and variance 1 over the training rows; kernel and given
            centers are in those units. None takes rows as they are.
        preprocess: steps such as ``Impute("mean")`` or ``OneHot((3,))``, fitted to the training rows in this order,
            before ``scaling``; the model keeps them and applies them in prediction.
        validation: rows to stop early on: a share of the rows, held out of training, or a ``Dataset``. How many passes
            may bring no improvement is the solver's ``patience``, 3 by default; ``Direct`` takes one pass.
        dtype: of the streaming arithmetic. ``"auto"``: float64 for arrays of float64 in memory, else float32; and
            float64 where float32 cannot represent the kernel on these rows: ``report_["arithmetic"]`` has the reason.
        lanes: blocks of a step; fixes the order of sums, so other lanes have other bits.
        threads: threads of this process; its cores by default. The weights do not depend on it.
        scheduler: where blocks run: ``threads``, ``processes:N`` or the address of a Dask scheduler.
        random_state: seed, an integer, of the centers, the held-out rows and the order of rows.
        device: where training computes blocks: ``"cpu"``, ``"cuda"``, or ``"auto"``, so far the CPU.

    Attributes:
        model_: the ``KernelMachine``.
        n_features_in_: width d of a row.
        feature_names_in_: names of the features, shape (d,), where the rows had names.
        outcome_: how training ended: passes, rows, seconds, history.
        report_: what the solver found out: batch, step, spectrum.
        footprint_: projected memory, in bytes.
    """

    _task = "regression"

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R², averaged over the outputs.

        Args:
            X: rows as in ``fit``, or a ``Dataset`` with a target, which is scored in a stream.
            y: targets; None with a ``Dataset``.
            sample_weight: weights of the rows, shape (n,); None with a ``Dataset``, which has its own.

        Raises:
            DataError: as ``predict``.
        """
        if isinstance(X, Dataset):
            return self._score(X, y, sample_weight, "r2")
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class KernelClassifier(ClassifierMixin, _KernelEstimator):  # type: ignore[misc]
    """Classification by least squares on class indicators: the class of the largest output is the prediction.

    There is no ``predict_proba``: the outputs are scores, not probabilities.

    Args:
        kernel: parameters and attributes are those of ``KernelRegressor``.
        centers: see there.
        solver: see there.
        memory: see there.
        metric: see there.
        scaling: see there.
        preprocess: see there.
        validation: see there.
        dtype: see there.
        lanes: see there.
        threads: see there.
        scheduler: see there.
        random_state: see there.
        device: see there.

    Attributes:
        classes_: the labels, sorted, shape (K,).
    """

    _task = "classification"

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train; see ``KernelRegressor.fit``."""
        super().fit(X, y, sample_weight)
        encoding = self.model_.encoding
        assert isinstance(encoding, Classes)
        self.classes_ = encoding.values
        return self

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy.

        Args:
            X: rows as in ``fit``, or a ``Dataset`` with a target, which is scored in a stream.
            y: labels; None with a ``Dataset``.
            sample_weight: weights of the rows, shape (n,); None with a ``Dataset``, which has its own.

        Raises:
            DataError: as ``predict``; or, in a ``Dataset``, a label that was not in the training data.
        """
        if isinstance(X, Dataset):
            return self._score(X, y, sample_weight, "accuracy")
        return float(super().score(X, y, sample_weight))

    def decision_function(self, X: Any) -> Array:
        """A score for each class, shape (n, K); for two classes the second's less the first's, shape (n,).

        Args:
            X: as in ``predict``.

        Raises:
            DataError: as ``predict``.
        """
        outputs = self._outputs(X)
        return outputs if outputs.shape[1] > 2 else np.asarray(outputs[:, 1] - outputs[:, 0])


def _no_target(y: Any, sample_weight: Any = None) -> None:
    if y is not None or sample_weight is not None:
        raise UsageError("A Dataset and y are both given.", where="y", expected="None: the Dataset has its own target")


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)
