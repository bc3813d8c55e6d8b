"""Estimators among scikit-learn's tools, with frames of every kind, and pickled."""

import pickle

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import streamkern as sk

RNG = np.random.default_rng(0)
NAMES = ["length", "width", "height"]
X = RNG.standard_normal((120, 3)) * [1.0, 10.0, 0.1] + 3
LABELS = np.where(X[:, 0] + X[:, 1] / 10 > 6, "large", "small")
FRAMES = {"pandas": pd.DataFrame(X, columns=NAMES), "polars": polars.DataFrame(dict(zip(NAMES, X.T, strict=True)))}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_pipeline_of_frames_keeps_names_and_predicts_labels(kind: str) -> None:
    frame = FRAMES[kind]
    model = make_pipeline(StandardScaler(), sk.KernelClassifier(centers=40)).set_output(transform=kind)
    model.fit(frame, LABELS)
    assert list(model[-1].feature_names_in_) == NAMES
    assert set(model.predict(frame)) == {"large", "small"}
    assert model.score(frame, LABELS) > 0.95
    plain = make_pipeline(StandardScaler(), sk.KernelClassifier(centers=40)).fit(X, LABELS)
    assert np.array_equal(plain.predict(X), model.predict(frame))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FRAMES)
def test_searches_and_scores_take_frames(kind: str) -> None:
    frame = FRAMES[kind]
    model = make_pipeline(StandardScaler(), sk.KernelClassifier())
    search = GridSearchCV(model, {"kernelclassifier__centers": [10, 40]}, cv=2, error_score="raise")
    assert search.fit(frame, LABELS).best_score_ > 0.7
    assert min(cross_val_score(search.best_estimator_, frame, LABELS, cv=3, error_score="raise")) > 0.7


def test_a_fitted_estimator_is_pickled_with_its_model() -> None:
    for model in (sk.KernelClassifier(centers=30).fit(X, LABELS), sk.KernelRegressor(centers=30).fit(X, X[:, 1])):
        again = pickle.loads(pickle.dumps(model))
        assert again.get_params().keys() == model.get_params().keys()
        assert np.array_equal(again.predict(X), model.predict(X))
        assert again.model_.weights_sha256 == model.model_.weights_sha256


def test_a_dask_frame_is_rows_once_its_chunks_are_known() -> None:
    frame = dd.from_pandas(pd.DataFrame(X, columns=NAMES), npartitions=3)
    rows = frame.to_dask_array(lengths=True)
    model = sk.KernelRegressor(centers=30).fit(rows, X[:, 1])
    assert model.score(sk.from_arrays(rows, X[:, 1])) > 0.98  # in float32, and in the order of its chunks
    assert np.array_equal(model.predict(frame), model.predict(rows))
