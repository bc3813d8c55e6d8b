"""The median heuristic: one number, the same under any chunking, settled before the kernel is used."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.datasets import load_digits

import streamkern as sk
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.kernels import kernel_from_json
from streamkern.selection.median_bandwidth import MEDIAN_ROWS, median_distance

WIDE = np.dtype(np.float64)


def rows(n: int, d: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def test_the_median_is_that_of_the_kernel_s_norm():
    X = np.random.default_rng(0).normal(size=(300, 5))
    model = sk.KernelRegressor(kernel=sk.Laplace("median", norm=1), centers=sk.Uniform(20), scaling=None)
    found = model.fit(X, X[:, 0]).model_.kernel
    assert found.norm == 1
    assert found.bandwidth == pytest.approx(np.median(pdist(X, "cityblock")), rel=1e-6)


def test_of_few_rows_it_is_the_median_of_all_distances(executor) -> None:
    X = rows(200)
    found = median_distance(sk.from_arrays(X).scale(3.0), executor, WIDE)
    assert found == pytest.approx(3 * np.median(pdist(X)), rel=1e-12)


def test_of_many_rows_it_is_near_the_median_of_all_distances(executor) -> None:
    X = rows(3 * MEDIAN_ROWS)
    found = median_distance(sk.from_arrays(X), executor, WIDE)
    assert found == pytest.approx(np.median(pdist(X)), rel=0.03)


def test_rows_that_are_the_same_do_not_count_and_nothing_but_them_is_refused(executor) -> None:
    X = np.repeat([[0.0, 0.0], [3.0, 4.0]], [50, 3], axis=0)
    assert median_distance(sk.from_arrays(X), executor, WIDE) == 5.0
    with pytest.raises(sk.DataError, match="all the same"):
        median_distance(sk.from_arrays(X[:50]), executor, WIDE)


@settings(max_examples=8)
@given(n=st.integers(2, 1500), chunk=st.integers(40, 900), threads=st.integers(1, 3))
def test_chunks_and_threads_do_not_change_a_bit(tmp_path_factory, n, chunk, threads):
    X = rows(n, 3, seed=1)
    place = tmp_path_factory.mktemp("rows") / "rows.zarr"
    sk.write_zarr(place, X, np.zeros(n), target="y", chunk_rows=chunk)
    with ThreadsExecutor(threads) as many, ThreadsExecutor(1) as one:
        assert median_distance(sk.open_dataset(place, target="y"), many, WIDE) == median_distance(
            sk.from_arrays(X), one, WIDE
        )


@pytest.mark.parametrize(
    "kernel", [sk.Gaussian("median"), sk.Matern("median", 2.5), 2 * sk.Laplace("median") + sk.Linear() * sk.Cauchy(3)]
)
def test_a_kernel_that_asks_is_a_value_like_others_but_has_none_until_it_is_told(kernel: sk.Kernel) -> None:
    assert kernel.needs_median
    assert kernel_from_json(json.loads(json.dumps(kernel.to_json()))) == kernel
    with pytest.raises(sk.UsageError, match="none have been read"):
        kernel(rows(3))
    told = kernel.at_median(2.0)
    assert not told.needs_median
    assert told.at_median(9.0) == told
    assert "median" not in json.dumps(told.to_json())
    assert told(rows(3)).shape == (3, 3)
    with pytest.raises(sk.UsageError, match='or "median"'):
        sk.Laplace("mean")  # type: ignore[arg-type]


def test_an_estimator_keeps_what_was_typed_and_its_model_the_number(tmp_path: Path) -> None:
    kernel = sk.Laplace("median")
    X, y = load_digits(return_X_y=True)
    estimator = sk.KernelClassifier(kernel, 100, sk.Direct(), scaling="standard").fit(X[:600], y[:600])
    assert estimator.get_params()["kernel"] is kernel
    assert clone(estimator).kernel == kernel
    assert repr(kernel) in repr(estimator)
    Z = X[:600].std(axis=0)
    expected = np.median(pdist(X[:600] / np.where(Z > 0, Z, 1.0)))
    model = sk.load_model(estimator.save(tmp_path / "model.zarr"))
    assert model.kernel == estimator.model_.kernel
    assert model.kernel.bandwidth == pytest.approx(expected, rel=1e-5)
    same = sk.KernelClassifier(model.kernel, 100, sk.Direct(), scaling="standard").fit(X[:600], y[:600])
    assert same.model_.weights_sha256 == model.weights_sha256
    assert np.array_equal(model.predict(X[600:700]), estimator.predict(X[600:700]))


def test_kernels_of_centers_and_features_are_told_too() -> None:
    X, y = rows(400), rows(400)[:, 0]
    chosen = sk.KernelRegressor(sk.Laplace("median"), sk.RPCholesky(30, sk.Gaussian("median")), sk.Direct()).fit(X, y)
    told = sk.Gaussian(chosen.model_.kernel.bandwidth)
    same = sk.KernelRegressor(sk.Laplace("median"), sk.RPCholesky(30, told), sk.Direct()).fit(X, y)
    assert same.model_.weights_sha256 == chosen.model_.weights_sha256
    with pytest.raises(sk.UsageError, match="none have been read"):
        sk.RandomFourier(sk.Gaussian("median"), 64).basis(5, WIDE)
