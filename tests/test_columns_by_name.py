"""Columns go by name from every door that has names: in any order, with others beside them, and never by position."""

from typing import Any

import dask.dataframe
import numpy as np
import pandas as pd
import pytest

import streamkern as sk

SETTINGS: dict[str, Any] = {"solver": sk.Direct(), "partition": None, "memory": "4GiB", "threads": 1}
NAMES = {"text": ["a", "b", "c"], "integers": [7, 3, 5], "tuples": [("x", 1), ("x", 2), ("y", 1)]}


def table(names: list[Any], seed: int = 0, n: int = 80) -> pd.DataFrame:
    X = np.random.default_rng(seed).normal(size=(n, 3)) * [1, 5, 20]
    frame = pd.DataFrame({j: X[:, j] for j in range(3)})
    frame.columns = pd.MultiIndex.from_tuples(names) if isinstance(names[0], tuple) else names
    return frame


def values(X: pd.DataFrame) -> np.ndarray:
    return X.to_numpy() @ [3.0, 1.0, 0.2]


def as_dask(X: pd.DataFrame) -> Any:
    return dask.dataframe.from_pandas(X, npartitions=3)


FRAMES = [(name, "pandas") for name in NAMES] + [("text", "dask"), ("integers", "dask")]


@pytest.mark.slow
@pytest.mark.parametrize(("names", "door"), FRAMES)
@pytest.mark.parametrize("way", ["fit", "partial_fit"])
@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_columns_in_another_order_are_the_same_rows(names: str, door: str, way: str, kind: str) -> None:
    made = as_dask if door == "dask" else lambda X: X
    X = table(NAMES[names])
    y = values(X) if kind == "regressor" else (values(X) > 0).astype(int)
    model = (sk.KernelRegressor if kind == "regressor" else sk.KernelClassifier)(**SETTINGS)
    getattr(model, way)(made(X), y)
    assert model.model_.columns == tuple(str(name) for name in X.columns)
    later = table(NAMES[names], seed=1)
    expected = model.predict(later)
    turned = later[later.columns[[2, 0, 1]]]
    wider = turned.copy()
    wider[("more", 0) if names == "tuples" else "more"] = 1.0
    for rows in (later, turned, wider):
        np.testing.assert_array_equal(model.predict(rows), expected)
        np.testing.assert_array_equal(model.predict(made(rows)), expected)
    if way == "partial_fit":
        ordered, mixed = (sk.KernelRegressor(**SETTINGS).partial_fit(made(X), values(X)) for _ in range(2))
        ordered.partial_fit(made(later), values(later))
        mixed.partial_fit(made(later[later.columns[[2, 0, 1]]]), values(later))
        np.testing.assert_allclose(mixed.predict(X), ordered.predict(X), rtol=1e-9)


@pytest.mark.parametrize(("names", "door"), FRAMES)
def test_columns_of_other_names_are_refused(names: str, door: str) -> None:
    made = as_dask if door == "dask" else lambda X: X
    X = table(NAMES[names])
    model = sk.KernelRegressor(**SETTINGS).partial_fit(made(X), values(X))
    other = pd.DataFrame(X.to_numpy(), columns=["p", "q", "r"])
    for call in (model.predict, lambda rows: model.partial_fit(rows, values(X))):
        with pytest.raises((sk.DataError, ValueError), match=r"p|column|name"):
            call(made(other))


def test_rows_without_names_are_taken_by_position() -> None:
    X = table(NAMES["integers"])
    model = sk.KernelRegressor(**SETTINGS).fit(X, values(X))
    np.testing.assert_array_equal(model.predict(X.to_numpy()), model.predict(X))
    assert not hasattr(model, "feature_names_in_")  # as scikit-learn: names are texts


def test_gaps_in_a_dask_frame_of_numbers_are_filled_as_in_a_frame() -> None:
    X = table(NAMES["text"])
    y = values(X)
    X.iloc[::7, 1] = np.nan
    one, other = (sk.KernelRegressor(**SETTINGS).fit(rows, y) for rows in (X, as_dask(X)))
    assert one.result_.report["preprocess"] == other.result_.report["preprocess"]
    np.testing.assert_allclose(one.predict(X), other.predict(as_dask(X)), rtol=1e-4, atol=1e-4)
