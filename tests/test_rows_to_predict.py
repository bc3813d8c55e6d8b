"""Rows given to a fitted model: found by name, and refused in the library's words."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamkern as sk

RNG = np.random.default_rng(0)
N = 200
PLAIN = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N), "c": RNG.integers(0, 9, N)})
MIXED = PLAIN.assign(
    t=RNG.choice(["x", "y"], N), when=pd.Timestamp("2024-01-15") + pd.to_timedelta(RNG.integers(0, 500, N), unit="D")
)


def fitted(X: Any, **settings: Any) -> sk.KernelRegressor:
    given: dict[str, Any] = {"kernel": sk.Laplace(3.0), "centers": 40, "solver": sk.Direct(1e-3), "partition": None}
    return sk.KernelRegressor(**(given | settings)).fit(X, (PLAIN.a + PLAIN.c).to_numpy())


@pytest.mark.parametrize("table", [PLAIN, MIXED], ids=["plain", "mixed"])
def test_a_series_is_refused_with_what_is_expected(table: pd.DataFrame) -> None:
    model = fitted(table)
    for given in (table.iloc[0], table["a"]):
        for call in (model.predict, model.model_.predict, sk.Predictor(model.model_)):
            with pytest.raises(sk.DataError, match=r"(?s)a Series is one column.*to_frame\(\)\.T.*give a frame"):
                call(given)
    with pytest.raises(sk.DataError, match="a Series is one column"):
        fitted(PLAIN["a"])
    row = table.iloc[0].to_frame().T
    np.testing.assert_allclose(model.predict(row), model.predict(table.head(1)), rtol=1e-5)


@pytest.mark.parametrize("preprocess", ["auto", None])
def test_columns_of_a_plain_frame_are_found_by_their_names(preprocess: str | None) -> None:
    model = fitted(PLAIN, preprocess=preprocess)
    want = model.predict(PLAIN.head(5))
    for given in (PLAIN[["c", "a", "b"]], PLAIN.assign(z=1.0)[["z", "b", "c", "a"]], PLAIN.assign(note="passed over")):
        np.testing.assert_array_equal(model.predict(given.head(5)), want)
    with pytest.raises(sk.DataError, match="column 'b' is not there"):
        model.predict(PLAIN.drop(columns="b"))
