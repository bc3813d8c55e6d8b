"""Which stored column a feature comes from."""

from __future__ import annotations

import numpy as np

import streamkern as sk
from streamkern.preprocessing.feature_origins import features_of
from tests.data.test_automatic import prepared


def test_features_of_a_table_come_from_the_columns_they_were_made_of() -> None:
    rng = np.random.default_rng(0)
    table = {
        "x=y": np.where(rng.random(200) < 0.2, np.nan, rng.normal(size=200)),
        "town": rng.choice(["a", "b", "c"], 200).tolist(),
        "z": rng.normal(size=200),
    }
    found = features_of(prepared(table, rng.normal(size=200)))
    assert found.names is not None
    assert found.origins is not None
    of = dict(zip(found.names, found.origins, strict=True))
    assert {name: of[name] for name in ("x=y", "x=y is missing", "town=a", "town=c", "z")} == {
        "x=y": 0, "x=y is missing": 0, "town=a": 1, "town=c": 1, "z": 2,
    }  # fmt: skip
    assert [sorted(found.names[j] for j in block) for block in found.categories] == [["town=a", "town=b", "town=c"]]
    sums = found.by_column(np.ones(len(of)))
    assert [found.names[q] for _, q in found.joined] == ["x=y (quantile)", "z (quantile)"]
    # The gradient of a number goes along its own axis and that of its quantiles: four times one of them.
    np.testing.assert_allclose(sums, np.array([4 + 1, 3, 4]) * len(of) / 12)


def test_columns_that_a_step_mixes_are_of_none() -> None:
    X = np.random.default_rng(0).normal(size=(50, 6))
    found = features_of(prepared(X, X[:, 0], preprocess=(sk.RandomProjection(3),)))
    assert found.origins is None
    np.testing.assert_array_equal(found.by_column(np.arange(3.0)), np.arange(3.0))
