"""The estimators keep scikit-learn's conventions, and reach what a direct solver reaches."""

import inspect
import itertools
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import streamkern as sk
from streamkern.types import Array


@pytest.mark.slow
@parametrize_with_checks([sk.KernelRegressor(), sk.KernelClassifier()])
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    name = check.func.__name__
    if name != "check_array_api_input":
        check(estimator)
        return
    # scikit-learn skips this one unless the variable was set before SciPy was imported.
    code = (
        "import functools, streamkern, sklearn.utils.estimator_checks as checks; "
        f"checks.{name}(*{check.args!r}, streamkern.{type(estimator).__name__}(), **{check.keywords!r})"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "SCIPY_ARRAY_API": "1"}, check=True, timeout=120)


def laplace(U: Array, V: Array, bandwidth: float) -> Array:
    return np.exp(-euclidean_distances(U, V) / bandwidth)


@pytest.fixture(scope="module")
def diabetes() -> tuple[Array, ...]:
    X, y = load_diabetes(return_X_y=True)
    return tuple(train_test_split(StandardScaler().fit_transform(X), y, random_state=0))


@pytest.fixture(scope="module")
def digits() -> tuple[Array, ...]:
    return tuple(train_test_split(*load_digits(return_X_y=True), random_state=0))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_regression_converges_to_the_interpolant(diabetes: tuple[Array, ...], dtype: str) -> None:
    X, X_test, y, y_test = diabetes
    model = sk.KernelRegressor(sk.Laplace(float(np.sqrt(2 * X.var(axis=0).sum()))), dtype=dtype).fit(X, y)
    kernel = model.model_.kernel
    exact = KernelRidge(alpha=1e-8, kernel="precomputed").fit(laplace(X, X, kernel.bandwidth), y - y.mean())
    expected = exact.predict(laplace(X_test, X, kernel.bandwidth)) + y.mean()
    assert np.abs(model.predict(X_test) - expected).max() < 1e-2 * y.std()
    r2 = 1 - np.square(expected - y_test).sum() / np.square(y_test - y_test.mean()).sum()
    assert model.score(X_test, y_test) == pytest.approx(r2, abs=1e-3)


@pytest.mark.slow
def test_classification_is_as_good_as_kernel_ridge(digits: tuple[Array, ...]) -> None:
    X, X_test, y, y_test = digits
    model = sk.KernelClassifier().fit(X, y)
    K, K_test = (laplace(Q, X, model.model_.kernel.bandwidth) for Q in (X, X_test))
    exact = KernelRidge(alpha=1e-6, kernel="precomputed").fit(K, np.eye(10)[y])
    outputs = exact.predict(K_test)
    found = model.model_.decision_function(X_test).argmax(axis=1)
    assert np.mean(found == y_test) == pytest.approx(np.mean(outputs.argmax(axis=1) == y_test), abs=0.003)
    assert model.score(X_test, y_test) == pytest.approx(np.mean(found == y_test), abs=0.01)
    assert np.abs(model.model_.decision_function(X_test) - outputs).max() < 0.02


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kernel", "rows"),
    [
        pytest.param(None, "repeated", id="every row three times"),
        pytest.param(None, "three", id="three different rows"),
        pytest.param(None, "far", id="a large offset"),
        pytest.param(sk.Gaussian(5.0), "plain", id="rank below the rounding error"),
        pytest.param(sk.Laplace(1000.0), "plain", id="nearly constant kernel"),
        pytest.param(sk.Gaussian(0.01), "plain", id="nearly diagonal kernel"),
    ],
)
def test_ill_conditioned_kernels_are_fitted(kernel: sk.Kernel | None, rows: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 3))
    if rows == "repeated":
        X = np.repeat(X[:200], 3, axis=0)
    elif rows == "three":
        X = rng.integers(0, 3, (600, 1)).astype(float)
    y = np.sin(X[:, 0])
    if rows == "far":
        X = 1e6 * X + 1e8
    assert sk.KernelRegressor(kernel, dtype=dtype).fit(X, y).score(X, y) > 0.99


def test_fewer_centers_than_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 4))
    y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
    kernel = sk.Gaussian(2.0)
    model = sk.KernelRegressor(kernel, centers=300).fit(X[:2500], y[:2500])
    assert model.model_.Z.shape == (300, 4)
    K = kernel(X, model.model_.Z.astype(np.float64))
    best = np.linalg.lstsq(K[:2500], y[:2500], rcond=1e-10)[0]
    r2 = 1 - np.square(K[2500:] @ best - y[2500:]).sum(axis=0) / np.square(y[2500:] - y[2500:].mean(axis=0)).sum(axis=0)
    assert model.score(X[2500:], y[2500:]) > r2.mean() - 0.05
    assert model.predict(X[2500:]).shape == (500, 2)


def test_small_numbers_of_rows() -> None:
    X = np.arange(8.0)[:, None]
    for n in (1, 2, 3, 4, 5, 7):
        assert sk.KernelRegressor().fit(X[:n], X[:n, 0]).predict(X[:n]) == pytest.approx(X[:n, 0], abs=1e-2)


@pytest.mark.slow
def test_every_way_of_giving_rows_gives_the_same_model(digits: tuple[Array, ...], tmp_path: Path) -> None:
    X, X_test, y, y_test = digits
    X = X.astype(np.float32)
    names = [f"pixel{i}" for i in range(64)]
    frame = pd.DataFrame(X, columns=names)
    sk.write_zarr(str(tmp_path / "train.zarr"), X, y, target="digit")
    sk.write_zarr(str(tmp_path / "test.zarr"), X_test, target=None)
    model = sk.KernelClassifier(centers=200).fit(X, y)
    expected = model.predict(X_test)
    weights = model.model_.weights_sha256
    fitted = {
        "list": sk.KernelClassifier(centers=200, dtype="float32").fit(X.tolist(), y.tolist()),
        "pandas": sk.KernelClassifier(centers=200).fit(frame, pd.Series(y)),
        "dask": sk.KernelClassifier(centers=200).fit(da.from_array(X, chunks=(len(X), 64)), y),
        "dataset": sk.KernelClassifier(centers=200).fit(sk.from_arrays(X, y)),
        "zarr": sk.KernelClassifier(centers=200).fit(sk.open_dataset(tmp_path / "train.zarr", target="digit")),
    }
    for name, other in fitted.items():
        assert other.model_.weights_sha256 == weights, name
    assert list(fitted["pandas"].feature_names_in_) == names
    assert np.array_equal(fitted["pandas"].predict(pd.DataFrame(X_test, columns=names)), expected)
    assert np.array_equal(model.predict(da.from_array(X_test, chunks=(100, 64))), expected)
    assert np.array_equal(model.predict(sk.from_arrays(X_test)), expected)
    assert np.array_equal(model.predict(tmp_path / "test.zarr"), expected)
    assert model.score(sk.from_arrays(X_test, y_test)) == model.score(X_test, y_test)


def test_validation_stops_early(diabetes: tuple[Array, ...]) -> None:
    X, X_test, y, y_test = diabetes
    solver = sk.EigenPro(epochs=20, patience=3)
    held = sk.KernelRegressor(sk.Laplace("median"), solver=solver, validation=0.25).fit(X, y)
    assert held.result_.outcome.passes < 20
    assert held.score(X_test, y_test) > sk.KernelRegressor(sk.Laplace("median")).fit(X, y).score(X_test, y_test)
    given = sk.KernelRegressor(sk.Laplace("median"), solver=solver, validation=sk.from_arrays(X_test, y_test)).fit(X, y)
    assert given.score(X_test, y_test) > held.score(X_test, y_test) - 0.05
    with pytest.raises(sk.UsageError, match="patience"):
        sk.KernelRegressor(solver=sk.EigenPro(patience=1)).fit(X, y)


def test_clone_pipeline_and_search(diabetes: tuple[Array, ...], digits: tuple[Array, ...]) -> None:
    X, _, y, _ = diabetes
    model = sk.KernelRegressor(sk.Laplace(4.0), centers=sk.Uniform(50, seed=3), solver=sk.EigenPro(epochs=2))
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert "n_jobs" not in copy.get_params()
    assert len(cross_val_score(model, X, y, cv=3)) == 3
    search = GridSearchCV(sk.KernelRegressor(centers=100), {"kernel": [sk.Laplace(5.0), sk.Gaussian(5.0)]}, cv=2)
    assert search.fit(X, y).best_params_["kernel"] in (sk.Laplace(5.0), sk.Gaussian(5.0))
    A, _, a, _ = (part[:300] for part in digits)
    assert make_pipeline(StandardScaler(), sk.KernelClassifier()).fit(A, a).score(A, a) > 0.99


def test_a_fit_that_cannot_hold_its_memory_is_refused_before_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).random((4000, 50))

    def never(*arguments: Any) -> None:
        raise AssertionError("rows were read")

    monkeypatch.setattr("streamkern.fitting.preparation.statistics", never)
    with pytest.raises(sk.errors.PlanRefusedError, match="a budget of at least") as caught:
        sk.KernelRegressor(memory="100MiB").fit(X, X[:, 0])
    assert caught.value.exit_status == 2


# ------------------------------------------------------------------------------------------------------- small things


def small(n: int = 60) -> tuple[Array, Array]:
    X = np.random.default_rng(0).standard_normal((n, 3))
    return X, X[:, 0] > 0


def test_a_grid_of_bandwidths_is_searched() -> None:
    X, y = small()
    for kernel in (sk.Laplace(1.0), "laplace"):
        search = GridSearchCV(
            sk.KernelClassifier(kernel), {"kernel__bandwidth": [0.01, 2.0]}, cv=2, error_score="raise"
        )
        assert search.fit(X, y).best_params_ == {"kernel__bandwidth": 2.0}
        assert search.best_estimator_.model_.kernel == sk.Laplace(2.0)
        assert search.estimator.kernel == kernel
    model = sk.KernelClassifier(2.0 * sk.Laplace(1.0))
    model.set_params(kernel__kernel__bandwidth=3.0, kernel__scale=1, lanes=2)
    assert (model.kernel, model.lanes) == (1.0 * sk.Laplace(3.0), 2)
    for kernel in (2.0 * sk.Laplace(1.0) + sk.Polynomial(2, 1), sk.Matern("median", 2.5), sk.NTK(2)):
        assert clone(sk.KernelClassifier(kernel)).kernel == kernel
    with pytest.raises(sk.UsageError, match="is given without a kernel"):
        sk.KernelClassifier().set_params(kernel__bandwidth=1.0)
    with pytest.raises(ValueError, match="Invalid parameter"):
        model.set_params(width=1.0)


def test_classes_have_the_same_kernel_by_the_name_laplace_as_by_default() -> None:
    X, y = small()
    named, meant = (sk.KernelClassifier(kernel).fit(X, y) for kernel in ("Laplace", None))
    assert named.model_.weights_sha256 == meant.model_.weights_sha256


def test_centers_beyond_the_rows_are_all_rows_with_a_warning() -> None:
    X, y = small()
    everything = sk.KernelClassifier(centers=60).fit(X, y).model_
    for centers in (61, sk.Uniform(500)):
        with pytest.warns(UserWarning, match="60 rows for (61|500) centers: all rows are centers"):
            model = sk.KernelClassifier(centers=centers).fit(X, y).model_
        assert model.weights_sha256 == everything.weights_sha256


BOTH = (sk.KernelClassifier, sk.KernelRegressor)


def unusable_targets() -> Iterator[tuple[Any, str, str, tuple[Any, ...]]]:
    """Targets of three rows, what is said of them, and where; and the estimators that say so."""
    for y, told in (
        (["a", None, "b"], "None"),
        (np.array([1.0, None, 2.0], dtype=object), "None"),
        (pd.Series(["a", None, "b"], dtype="string"), "<NA>"),
        (pd.Series([1, None, 2], dtype="Int64"), "<NA>"),
        (pd.Series([pd.Timestamp(0), pd.NaT, pd.Timestamp(0)], dtype=object), "NaT"),
    ):
        yield y, f"A target is missing: {told}", "y, row 1", BOTH
    yield [1, "1", 2], "Targets are of two types: 1 and '1'", "y, rows 0 and 1", BOTH
    mixed = np.array(["a", "b", True], dtype=object)
    yield mixed, "Targets are of two types: 'a' and True", "y, rows 0 and 2", BOTH
    for value, told in ((np.nan, "missing"), (-np.inf, "infinite")):
        y = np.arange(6.0).reshape(3, 2)
        y[1, 1] = value
        for targets in (y, y[:, 1], pd.Series(y[:, 1]), pd.DataFrame(y).astype("float32")[1]):
            yield targets, f"A target is {told}.", "y, row 1", (sk.KernelRegressor,)


@pytest.mark.parametrize(("y", "told", "where", "kinds"), list(unusable_targets()))
def test_targets_that_cannot_be_used_are_told_by_their_rows(y: Any, told: str, where: str, kinds: Any) -> None:
    table = pd.DataFrame({"town": list("xyz"), "a": [1, 2, 3]})
    for kind, X in itertools.product(kinds, (np.eye(3), table)):
        with pytest.raises(sk.DataError, match=told) as error:
            kind().fit(X, y)
        assert error.value.where == where


@pytest.mark.slow
def test_decimals_are_targets_and_weights(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=200), rng.integers(1, 5, 200)
    prices, weights = ([Decimal(int(k)) / 4 for k in values] for values in (1000 * x, w))
    table = pa.table({"x": x, "price": prices, "w": weights})
    pq.write_table(table, tmp_path / "a.parquet")
    sk.ingest(tmp_path / "a.parquet", tmp_path / "a.zarr", target="price", weight="w")
    y = np.array(prices, dtype=float)
    model = sk.KernelRegressor(seed=0, memory="4GiB")
    features = table.select(["x"])
    expected = model.fit(features, y).predict(features)
    for given in (prices, table["price"], pd.Series(prices)):
        np.testing.assert_array_equal(model.fit(features, given).predict(features), expected)
    expected = model.fit(features, y, sample_weight=w / 4).predict(features)
    for source in (
        sk.open_dataset(tmp_path / "a.parquet", target="price", weight="w"),
        sk.open_dataset(tmp_path / "a.zarr", target="price"),
    ):
        np.testing.assert_allclose(model.fit(source).predict(features), expected, atol=0.5)
    none = table.set_column(1, "price", pa.array([None, *prices[1:]]))
    pq.write_table(none, tmp_path / "b.parquet")
    with pytest.raises(sk.DataError, match="null"):
        model.fit(sk.open_dataset(tmp_path / "b.parquet", target="price", weight="w"))


def test_booleans_that_are_objects_are_booleans() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X[:, 0] > 0
    model = sk.KernelClassifier(seed=0).fit(X, y)
    for given in (y.astype(object), pd.Series(y, dtype=object), y.tolist()):
        again = sk.KernelClassifier(seed=0).fit(X, given)
        assert again.classes_.dtype == bool
        np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_no_target_at_all_is_told() -> None:
    table = pd.DataFrame({"town": list("xyz"), "a": [1, 2, 3]})
    for X in (np.eye(3), table):
        with pytest.raises(sk.UsageError, match="There is no target"):
            sk.KernelRegressor().fit(X)
    with pytest.raises(sk.UsageError, match=r"(?s)y is the text 'a'.*fit\(table\.drop\(columns='a'\), table\['a'\]\)"):
        sk.KernelRegressor().fit(table, "a")


def test_values_that_are_no_classes_are_refused_with_the_remedy(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) / 4
    told = r"(?s)values that cannot be classes, such as 0\.25.*row 1.*task=\"regression\" of a Pipeline"
    with pytest.raises(sk.DataError, match=told):
        sk.run(sk.Pipeline(sk.from_arrays(X, y)), tmp_path / "run", memory="8GiB")
    with pytest.raises(sk.DataError, match=told):
        sk.KernelClassifier().fit(sk.from_arrays(X, y))
    assert list(sk.KernelClassifier().fit(sk.from_arrays(X, np.rint(y) % 3)).classes_) == [0, 1, 2]


def test_every_parameter_of_an_estimator_is_described_once_and_whole() -> None:
    described = {}
    for kind in (sk.KernelRegressor, sk.KernelClassifier):
        text = inspect.getdoc(kind) or ""
        assert "see there" not in text + (inspect.getdoc(kind.fit) or "")
        args = text.partition("Args:")[2].partition("Attributes:")[0]
        described[kind] = args
        names = re.findall(r"^    (\w+): ", args, re.MULTILINE)
        assert names == list(inspect.signature(kind).parameters)
    own = r"^    (?:class_weight|threshold): .*\n(?:        .*\n)*"  # of classes alone
    assert re.sub(own, "", described[sk.KernelClassifier], flags=re.MULTILINE) == described[sk.KernelRegressor]


def test_parameters_of_a_solver_are_searched_by_their_names() -> None:
    X, y = small()
    search = GridSearchCV(
        sk.KernelClassifier(sk.Laplace("median"), 20, solver=sk.Direct()), {"solver__ridge": [1e-6, 1e-2]}, cv=2,
        error_score="raise",
    ).fit(X, y)  # fmt: skip
    assert search.best_estimator_.solver.ridge in (1e-6, 1e-2)
    assert sk.KernelClassifier(centers=sk.Uniform(5)).set_params(centers__p=7).centers.p == 7
    for wrong, words in (({"solver__rigde": 1.0}, "no parameter 'rigde'"), ({"metric__rounds": 1}, "None")):
        with pytest.raises(sk.UsageError, match=words):
            sk.KernelClassifier(solver=sk.Direct()).set_params(**wrong)


@pytest.mark.parametrize("search", [False, True])
def test_a_warning_points_at_the_line_of_the_caller(search: bool) -> None:
    X, y = small()
    X = X * np.array([1e3, *[1e-3] * (X.shape[1] - 1)], dtype=X.dtype)
    model = sk.KernelClassifier(sk.Laplace("median"), 10**6, solver=sk.Direct(), preprocess=None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        GridSearchCV(model, {"lanes": [4]}, cv=2).fit(X, y) if search else model.fit(X, y)
    mine = [each for each in found if "centers" in str(each.message) or "variance" in str(each.message)]
    assert mine
    assert {each.filename for each in mine} == {__file__}
