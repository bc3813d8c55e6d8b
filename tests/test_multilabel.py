"""Several labels a row: predictions of zeros and ones, a probability of each, scikit-learn's metrics, every door."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn import metrics
from sklearn.datasets import make_multilabel_classification

import streamkern as sk
from streamkern.data.targets import encoding_from_json, encoding_to_json
from streamkern.serving.predict import evaluate

NAMES = ("red", "green", "blue")


def _rows(n=900, seed=0):
    X, Y = make_multilabel_classification(2 * n, n_features=6, n_classes=3, n_labels=1, length=40, random_state=3)
    X = X / X.std(axis=0)
    part = slice(0, n) if seed == 0 else slice(n, None)
    return X[part], Y[part]


def _model(**given):
    given = {"solver": sk.Direct(ridge=1e-3), **given}
    return sk.KernelClassifier("gaussian", centers=120, threads=1, preprocess=None, **given)


def _reference(Y, T, F, P, w=None):
    return {
        "accuracy": metrics.accuracy_score(Y, T, sample_weight=w),
        "hamming_loss": metrics.hamming_loss(Y, T, sample_weight=w),
        "f1_micro": metrics.f1_score(Y, T, average="micro", sample_weight=w),
        "f1_macro": metrics.f1_score(Y, T, average="macro", sample_weight=w),
        "auc": metrics.roc_auc_score(Y, P, average="macro", sample_weight=w),
        "average_precision": metrics.average_precision_score(Y, P, average="macro", sample_weight=w),
        "log_loss": np.mean([metrics.log_loss(y, p, sample_weight=w) for y, p in zip(Y.T, P.T, strict=True)]),
        "brier": np.mean([metrics.brier_score_loss(y, p, sample_weight=w) for y, p in zip(Y.T, P.T, strict=True)]),
    }


@pytest.mark.parametrize("given", [{}, {"validation": 0.3}, {"solver": sk.EigenPro(epochs=4), "validation": 0.3}])
def test_each_label_is_a_classifier_of_its_own(given):
    X, Y = _rows()
    X_test, Y_test = _rows(seed=1)
    model = _model(**given).fit(X, Y)
    T, P, F = (f(X_test) for f in (model.predict, model.predict_proba, model.decision_function))
    assert T.shape == P.shape == F.shape == Y_test.shape
    np.testing.assert_array_equal(T, F > 0)
    assert model.classes_.tolist() == [0, 1, 2]
    assert metrics.f1_score(Y_test, T, average="macro") > 0.55
    assert metrics.roc_auc_score(Y_test, P) > 0.8
    for j in range(3):
        one = _model(**given).fit(X, Y[:, j])
        if "validation" not in given:  # which rows are held out depends on the classes
            np.testing.assert_allclose(F[:, j] + 0.5, one.model_.decision_function(X_test)[:, 1], atol=1e-5)
            # Two classes have two outputs, which need not sum to 1; a label has one.
            assert np.corrcoef(P[:, j], one.predict_proba(X_test)[:, 1])[0, 1] > 0.98
        assert abs(P[:, j].mean() - Y_test[:, j].mean()) < 0.06


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_are_scikit_learns(weighted):
    X, Y = _rows()
    X_test, Y_test = _rows(seed=1)
    w = np.random.default_rng(0).random(len(Y_test)) + 0.1 if weighted else None
    model = _model().fit(X, Y)
    T, P, F = (f(X_test) for f in (model.predict, model.predict_proba, model.decision_function))
    found = model.model_.score(sk.from_arrays(X_test, Y_test, sample_weight=w))
    expected = _reference(Y_test, T, F, P, w)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert model.score(X_test, Y_test, w) == pytest.approx(found["accuracy"], abs=1e-9)
    second = found["by_class"]["1"]
    assert second["auc"] == pytest.approx(metrics.roc_auc_score(Y_test[:, 1], P[:, 1], sample_weight=w), abs=1e-6)
    assert second["recall"] == pytest.approx(metrics.recall_score(Y_test[:, 1], T[:, 1], sample_weight=w), abs=1e-9)


def _stored(folder, X, Y):
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    for name, y in zip(NAMES, Y.T, strict=True):
        frame[name] = y
    frame.to_parquet(folder / "rows.parquet")
    return folder / "rows.parquet"


def test_columns_of_a_table_through_every_door(tmp_path):
    X, Y = _rows(500)
    path = _stored(tmp_path, X, Y)
    data = sk.open_dataset(path, target=list(NAMES))
    train, test = data.split(0.4)
    pipeline = sk.Pipeline(train, sk.Gaussian(2.0), sk.Uniform(60), sk.Direct(ridge=1e-3), test=test)
    results = [
        sk.run(pipeline, tmp_path / name, scheduler=name, threads=1 if name == "threads" else None)
        for name in ("threads", "processes:2")
    ]
    assert results[0].weights_sha256 == results[1].weights_sha256
    assert results[0].metrics == results[1].metrics
    assert list(results[0].metrics["test"]["by_class"]) == list(NAMES)
    assert "accuracy" in str(results[0])
    json.dumps(results[0])
    model = sk.load_model(results[0].model_path)
    T, P = model.predict(data), model.predict_proba(data)
    assert T.shape == (500, 3)
    np.testing.assert_array_equal(sk.Predictor(model)(X).predictions, T)
    np.testing.assert_allclose(sk.Predictor(model).predict_proba(X), P, atol=1e-6)
    assert sk.Predictor(model).labels == list(NAMES)
    made = sk.predict(model, path, tmp_path / "made.parquet", scores=True, probabilities=True, threads=1)
    table = pq.read_table(made.path).to_pandas()
    np.testing.assert_array_equal(table[[f"prediction_{name}" for name in NAMES]].to_numpy(), T)
    np.testing.assert_allclose(table[[f"probability_{name}" for name in NAMES]].to_numpy(), P, atol=1e-6)
    found = evaluate(model, path, list(NAMES), threads=1)
    expected = _reference(Y, T, None, P)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert model.encoding.names == NAMES
    assert sk.load_model(model.save(tmp_path / "again.zarr")).fingerprint == model.fingerprint


def test_what_it_cannot_do_is_said():
    X, Y = _rows(200)
    wrong = Y.copy()
    wrong[7, 1] = 2
    with pytest.raises(sk.DataError, match="A label is 2 in a target") as error:
        sk.run(sk.Pipeline(sk.from_arrays(X, wrong), sk.Gaussian(2.0), sk.Uniform(20), sk.Direct()))
    assert "row 7, label 1" in str(error.value)
    for given, text in (
        ({"class_weight": "balanced"}, "several labels a row"),
        ({"threshold": "f1"}, "several labels a row"),
        ({"partition": sk.Partition(leaves=2)}, "several labels a row"),
    ):
        with pytest.raises(sk.UsageError, match=text):
            _model(**given).fit(X, Y)
    model = _model().fit(X, Y)
    with pytest.raises(sk.UsageError, match="no sets of classes"):
        model.prediction_set(X)
    with pytest.raises(sk.UsageError, match="it is a classifier"):
        model.model_.predict_interval(X)
    with pytest.raises(sk.DataError, match="A label is 3 in a target"):
        model.model_.score(sk.from_arrays(X, 3 * Y))


def test_a_damaged_description_is_refused():
    encoding = _model().fit(*_rows(200)).model_.encoding
    told = encoding_to_json(encoding)
    assert encoding_from_json(told).names == encoding.names
    for name, wrong in (("names", ["one"]), ("mean", [1.0, 0.0, 0.0])):
        with pytest.raises(ValueError, match="labels of shape"):
            encoding_from_json(told | {name: wrong})
    calibration = _model().fit(*_rows(200)).model_.answers
    with pytest.raises(sk.ModelFormatError, match="parameters have shape"):
        replace(calibration, below=calibration.below[:2]).require(3)
    with pytest.raises(sk.ModelFormatError, match="not finite"):
        replace(calibration, bias=calibration.bias + np.nan).require(3)
