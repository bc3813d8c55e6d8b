"""Several labels a row: predictions of zeros and ones, a probability of each, scikit-learn's metrics, every door."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn import metrics
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.utils.class_weight import compute_sample_weight

import streamkern as sk
from streamkern.data.targets import encoding_from_json, encoding_to_json
from streamkern.report import read_run
from streamkern.report.page import write_report
from streamkern.serving.predict_files import evaluate

NAMES = ("red", "green", "blue")


def _rows(n=900, seed=0):
    X, Y = make_multilabel_classification(2 * n, n_features=6, n_classes=3, n_labels=1, length=40, random_state=3)
    X = X / X.std(axis=0)
    part = slice(0, n) if seed == 0 else slice(n, None)
    return X[part], Y[part]


def _model(**given):
    given = {"solver": sk.Direct(ridge=1e-3), "centers": 120, **given}
    return sk.KernelClassifier(sk.Gaussian("median"), threads=1, preprocess=None, **given)


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


@pytest.mark.slow
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


def _require_files(model, path, folder, Y, T, F, P, **how):
    """The predictions of a file, and the metrics of its rows, are those in memory."""
    made = sk.predict(model, path, folder / "made.parquet", probabilities=True, threads=1, **how)
    table = pq.read_table(made.path).to_pandas()
    np.testing.assert_array_equal(table[[f"prediction_{name}" for name in NAMES]].to_numpy(), T)
    np.testing.assert_allclose(table[[f"probability_{name}" for name in NAMES]].to_numpy(), P, atol=1e-6)
    found = evaluate(model, path, list(NAMES))
    expected = _reference(Y, T, F, P)
    tied = np.floor(P * 2.0**40)  # scores that lie closer together count as equal, as documented
    expected |= {
        name: metric(Y, tied)
        for name, metric in (("auc", metrics.roc_auc_score), ("average_precision", metrics.average_precision_score))
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


WEIGHTS = [{1: 3.0}, {}, {0: 0.5, 1: 2.0}]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("solver", [sk.Direct(ridge=1e-3), sk.EigenPro(epochs=2)])
def test_weights_of_labels_are_those_of_rows(solver, weighted):
    X, Y = _rows(600)
    w = np.random.default_rng(1).random(len(Y)) + 0.2 if weighted else np.ones(len(Y))
    share = w @ Y / w.sum()
    balanced = np.where(Y == 1, 0.5 / share, 0.5 / (1 - share)).prod(axis=1)
    if not weighted:
        np.testing.assert_allclose(balanced, compute_sample_weight("balanced", Y))
    listed = compute_sample_weight([{0: 1.0, 1: 1.0} | each for each in WEIGHTS], Y)
    for given, factor in (("balanced", balanced), (WEIGHTS, listed)):
        found = _model(solver=solver, class_weight=given).fit(X, Y, w if weighted else None)
        expected = _model(solver=solver).fit(X, Y, w * factor)
        np.testing.assert_allclose(found.decision_function(X), expected.decision_function(X), atol=2e-4)
    assert found.model_.metadata["class_weight"] == {"0=0": 1, "0=1": 3, "1=0": 1, "1=1": 1, "2=0": 0.5, "2=1": 2}


def test_a_label_that_all_rows_have_is_balanced_already():
    X, Y = _rows(300)
    Y[:, 1] = 1
    found = _model(class_weight="balanced").fit(X, Y).model_.metadata["class_weight"]
    assert found["1=0"] == found["1=1"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"validation": 0.3}, {"partition": sk.Partition(leaves=2)}])
def test_probabilities_do_not_know_of_weights(given):
    losses = []
    for seed in (0, 1):  # one half and the other: a cut for heavy rows may lie elsewhere, which is 4 to 12% of the loss
        X, Y = _rows(1500, seed)
        X_test, Y_test = _rows(1500, 1 - seed)
        plain, heavy = (_model(class_weight=each, **given).fit(X, Y) for each in (None, [{1: 2.5}] * 3))
        assert heavy.predict(X_test).mean() > plain.predict(X_test).mean() + 0.03
        P, Q = (model.predict_proba(X_test) for model in (plain, heavy))
        np.testing.assert_allclose(Q.mean(axis=0), Y_test.mean(axis=0), atol=0.05)
        losses.append(
            [np.mean([metrics.log_loss(y, p) for y, p in zip(Y_test.T, each.T, strict=True)]) for each in (P, Q)]
        )
    before, after = np.mean(losses, axis=0)
    assert after < 1.1 * before


@pytest.mark.slow
def test_each_label_has_the_threshold_that_is_best_on_rows_left_out():
    X, Y = _rows(1200)
    held = sk.from_arrays(*_rows(600, seed=1))
    model = _model(threshold="f1", validation=held).fit(X, Y)
    found = model.result_.report["threshold"]
    X_held, Y_held = _rows(600, seed=1)
    F = model.model_.decision_function(X_held)
    np.testing.assert_array_equal(model.predict(X_held), (np.array(found["value"]) < F).astype(int))
    for j in range(3):
        shares = [metrics.f1_score(Y_held[:, j], F[:, j] > cut) for cut in np.unique(F[:, j])]
        assert found["score"][j] == pytest.approx(max(shares), abs=1e-9)
        assert found["score"][j] == pytest.approx(metrics.f1_score(Y_held[:, j], F[:, j] > found["value"][j]), abs=1e-9)
        assert found["score_without"][j] == pytest.approx(metrics.f1_score(Y_held[:, j], F[:, j] > 0.5), abs=1e-9)
    assert found["metric"] == "f1"
    none = sk.from_arrays(X_held, np.column_stack([Y_held[:, 0], np.zeros((600, 2), dtype=int)]))
    with pytest.warns(UserWarning, match=r"have the label\(s\) 1, 2: their thresholds keep the default"):
        assert _model(threshold="f1", validation=none).fit(X, Y).result_.report["threshold"]["value"][1:] == [0.5, 0.5]


def test_leaves_have_the_outputs_of_each_label_by_itself():
    X, Y = _rows()
    # Cuts do not look at targets: the leaves are the same for all labels together and for each alone.
    given = {"partition": sk.Partition(leaves=3), "centers": 60}
    kernel = {"solver": sk.Direct(ridge=1e-3), "threads": 1, "preprocess": None}
    several = sk.KernelClassifier(sk.Gaussian("median"), **given, **kernel).fit(X, Y)
    for j in range(3):
        one = sk.KernelClassifier(sk.Gaussian("median"), **given, **kernel).fit(X, Y[:, j])
        np.testing.assert_allclose(
            several.decision_function(X)[:, j] + 0.5, one.model_.decision_function(X)[:, 1], atol=1e-4
        )
    # Labels that are the same on one side: leaves of constant outputs.
    Y[X[:, 0] > np.median(X[:, 0])] = [1, 0, 1]
    P = sk.KernelClassifier(sk.Gaussian("median"), **given, **kernel).fit(X, Y).predict_proba(X)
    assert metrics.roc_auc_score(Y, P) > 0.8


COMBINED = {
    "nothing": {},
    "weights and thresholds": {"class_weight": "balanced", "threshold": "f1"},
    "leaves, weights and thresholds": {
        "partition": sk.Partition(leaves=3), "class_weight": WEIGHTS, "threshold": "balanced_accuracy"
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("given", COMBINED.values(), ids=COMBINED.keys())
def test_combinations_have_the_same_bits_on_threads_and_workers_after_a_second_run_and_through_every_door(
    given, tmp_path
):
    X, Y = _rows(700)
    path = _stored(tmp_path, X, Y)
    data = sk.open_dataset(path, target=list(NAMES))
    train, test = data.split(0.4)
    pipeline = sk.Pipeline(train, sk.Gaussian(2.0), sk.Uniform(40), sk.Direct(ridge=1e-3), test=test, **given)
    results = [
        sk.run(
            pipeline, tmp_path / name, resources=sk.Resources(scheduler=name), threads=1 if name == "threads" else None
        )
        for name in ("threads", "processes:2")
    ]
    (tmp_path / "threads" / "result.json").unlink()  # resumed from what is kept
    results.append(sk.run(pipeline, tmp_path / "threads", threads=2))
    assert len({result.weights_sha256 for result in results}) == 1
    assert results[0].metrics == results[1].metrics == results[2].metrics
    models = [sk.load_model(result.model_path) for result in results]
    assert len({model.fingerprint for model in models}) == 1
    assert list(results[0].metrics["test"]["by_class"]) == list(NAMES)
    assert "accuracy" in str(results[0])
    json.dumps(results[0])
    model = models[0]
    assert model.encoding.names == NAMES
    assert sk.load_model(model.save(tmp_path / "again.zarr")).fingerprint == model.fingerprint
    T, P, F = model.predict(data), model.predict_proba(data), model.decision_function(data)
    cuts = np.array(model.encoding.cuts or [0.5] * 3)
    np.testing.assert_array_equal(T, (cuts < F).astype(int))
    assert bool(model.encoding.cuts) == ("threshold" in given)
    few = sk.load_model(results[0].model_path)  # leaves are read when rows come to them
    np.testing.assert_array_equal(sk.Predictor(few)(X[:5]).predictions, T[:5])
    np.testing.assert_allclose(sk.Predictor(few).predict_proba(X[:5]), P[:5], atol=1e-6)
    assert sk.Predictor(few).labels == list(NAMES)
    _require_files(model, path, tmp_path, Y, T, F, P)
    if "class_weight" in given:
        assert set(results[0]["class_weight"]) == {f"{name}={there}" for name in NAMES for there in (0, 1)}
    if "threshold" in given:
        assert results[0]["probabilities"]["threshold"]["labels"] == list(NAMES)
        assert "threshold red" in write_report([read_run(tmp_path / "threads")], tmp_path / "report.html").read_text()


def test_rows_are_added_and_forgotten_under_weights_and_thresholds_of_labels():
    X, Y = _rows(600)
    made = sk.KernelClassifier(
        sk.Gaussian(2.0), centers=sk.Given(X[:50]), solver=sk.Direct(1e-3, keep_sums=True), preprocess=None, threads=1,
        dtype="float64", class_weight=WEIGHTS, threshold="f1",
    )  # fmt: skip
    first, whole = clone(made).fit(X[:400], Y[:400]), clone(made).fit(X, Y)
    model = clone(made).partial_fit(X[:400], Y[:400]).partial_fit(X[400:], Y[400:])
    np.testing.assert_allclose(model.decision_function(X), whole.decision_function(X), atol=1e-6)
    assert model.model_.encoding.cuts == tuple(model.model_.calibration.cuts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.forget(X[400:], Y[400:])
    np.testing.assert_allclose(model.decision_function(X), first.decision_function(X), atol=1e-6)


def test_what_it_cannot_do_is_said():
    X, Y = _rows(200)
    wrong = Y.copy()
    wrong[7, 1] = 2
    with pytest.raises(sk.DataError, match="A label is 2 in a target") as error:
        sk.run(sk.Pipeline(sk.from_arrays(X, wrong), sk.Gaussian(2.0), sk.Uniform(20), sk.Direct()))
    assert "row 7, label 1" in str(error.value)
    for given, text in (
        ({"class_weight": {1: 2.0}}, "one dict, and the target has 3 labels"),
        ({"class_weight": [{1: 2.0}, {}]}, "2 dicts, and the target has 3 labels"),
        ({"class_weight": [{1: 2.0}, {}, {"red": 2.0}]}, "the label '2' name 'red'"),
        ({"class_weight": [{1: 0.0, 0: 0.0}, {}, {}]}, "weight 0"),
        ({"class_weight": [{1: -1.0}, {}, {}]}, "is -1"),
        ({"threshold": "f1", "solver": sk.EigenPro(epochs=1)}, "without held-out rows"),
    ):
        with pytest.raises(sk.UsageError, match=text):
            _model(**given).fit(X, Y)
    with pytest.raises(sk.UsageError, match="weights for 3 labels a row, and the target has one label"):
        _model(class_weight=[{}, {}, {}]).fit(X, Y[:, 0])
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
    for wrong in ([0.5], [0.5, 0.5, np.inf]):
        with pytest.raises(ValueError, match="of 3 labels"):
            encoding_from_json(told | {"cuts": wrong})
    assert encoding_from_json(told | {"cuts": [0.1, 0.2, 0.3]}).cuts == (0.1, 0.2, 0.3)
    calibration = _model().fit(*_rows(200)).model_.calibration
    assert calibration.sound(3)
    nan = calibration.bias + np.nan
    for damaged in ({"cuts": np.zeros(2)}, {"below": calibration.below[:2]}, {"bias": nan}):
        assert not replace(calibration, **damaged).sound(3)
