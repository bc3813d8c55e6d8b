"""Thresholds between two classes: the best of all cuts, kept in the model, used wherever something is decided."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

import streamkern as sk
from streamkern.calibration.thresholds import METRICS, best_threshold
from streamkern.serving.predict_files import evaluate

SCORES = {name: getattr(metrics, name if name == "matthews_corrcoef" else f"{name}_score") for name in METRICS}


def _rare(n, seed=0):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.08).astype(int)
    return rng.standard_normal((n, 3)) + 1.1 * y[:, None], y


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_no_cut_is_better(metric, weighted):
    rng = np.random.default_rng(3)
    y = rng.random(300) < 0.2
    s = np.round(rng.standard_normal(300) + 1.2 * y - 1.0, 1)  # with ties
    w = rng.random(300) if weighted else None
    cut = best_threshold(metric, s, y, w)
    every = [SCORES[metric](y, s > c, sample_weight=w) for c in [*(np.unique(s) - 0.05), 9.0]]
    assert cut.best == pytest.approx(max(every), abs=1e-12)
    assert SCORES[metric](y, s > cut.value, sample_weight=w) == pytest.approx(cut.best, abs=1e-12)
    assert cut.plain == pytest.approx(SCORES[metric](y, s > 0, sample_weight=w), abs=1e-12)


def test_a_class_that_is_missing_and_a_cut_that_is_best_already():
    assert best_threshold("f1", np.arange(3.0), np.zeros(3, dtype=bool)) is None
    assert best_threshold("f1", np.array([-1.0, -0.5, 0.5, 2.0]), np.array([0, 0, 1, 1], dtype=bool)).value == 0.0
    assert best_threshold("accuracy", np.array([-1.0, -0.5, -3.0]), np.array([1, 1, 0], dtype=bool)).value == -2.0


@pytest.mark.parametrize("given", [{}, {"validation": 0.3}, {"partition": sk.Partition(leaves=2)}])
def test_every_door_decides_by_it(given, tmp_path):
    X, y = _rare(1500)
    X_test, y_test = _rare(1500, 1)
    named = np.array(["no", "yes"])
    model = sk.KernelClassifier(
        sk.Gaussian("median"),
        centers=60,
        solver=sk.Direct(ridge=1e-3),
        threshold="balanced_accuracy",
        threads=1,
        **given,
    ).fit(X, named[y])
    found = model.result_.report["threshold"]
    expected = named[(model.decision_function(X_test) > found["value"]).astype(int)]
    assert found["value"] < 0
    np.testing.assert_array_equal(model.predict(X_test), expected)
    plain = metrics.balanced_accuracy_score(y_test, model.decision_function(X_test) > 0)
    balanced = metrics.balanced_accuracy_score(named[y_test], expected)
    assert balanced > plain + 0.05
    assert found["score"] > found["score_without"]
    # The probability at the threshold parts the same rows.
    P = model.predict_proba(X_test)[:, 1]
    assert P[expected == "yes"].min() >= found["probability"] - 1e-6 >= P[expected == "no"].max() - 2e-6
    model.save(tmp_path / "model.zarr")
    loaded = sk.load_model(tmp_path / "model.zarr")
    assert loaded.fingerprint == model.model_.fingerprint
    np.testing.assert_array_equal(loaded.predict(X_test), expected)
    np.testing.assert_array_equal(sk.Predictor(loaded)(X_test).predictions, expected)
    rows = pd.DataFrame(X_test, columns=["x0", "x1", "x2"]).assign(target=named[y_test])
    rows.to_parquet(tmp_path / "rows.parquet")
    scored = evaluate(loaded, tmp_path / "rows.parquet", "target")
    assert scored["balanced_accuracy"] == pytest.approx(balanced, abs=1e-6)
    assert scored["accuracy"] == pytest.approx(np.mean(expected == named[y_test]), abs=1e-6)
    made = sk.predict(loaded, X_test, tmp_path / "made.parquet", threads=1)
    np.testing.assert_array_equal(pd.read_parquet(made.path)["prediction"], expected)


@pytest.mark.slow
def test_runs_keep_it_with_weights_of_classes_and_workers_find_the_same(tmp_path):
    X, y = _rare(1200)
    train, held = sk.from_arrays(X, np.where(y, "yes", "no")).split(0.3)
    pipeline = sk.Pipeline(
        train, sk.Gaussian(2.0), sk.Uniform(60), sk.EigenPro(epochs=4), test=held, validation=held, threshold="f1",
        class_weight="balanced", scaling="standard",
    )  # fmt: skip
    results = [
        sk.run(pipeline, tmp_path / name, resources=sk.Resources(scheduler=name), threads=threads)
        for name, threads in (("threads", 1), ("processes:2", None))
    ]
    assert results[0].weights_sha256 == results[1].weights_sha256
    found = [result["probabilities"]["threshold"] for result in results]
    assert found[0] == found[1]
    assert found[0]["metric"] == "f1"
    model = sk.load_model(results[0].model_path)
    assert model.encoding.cut == found[0]["value"]
    assert model.metadata["class_weight"] == results[0]["class_weight"]
    assert results[0]["class_weight"].keys() == {"no", "yes"}
    # Metrics are those of the rows as they are; the threshold was chosen on the test rows.
    assert results[0].metrics["test"]["f1"] == pytest.approx(found[0]["score"], abs=1e-6)
    assert results[0].metrics["train"]["accuracy"] == model.score(train)["accuracy"]
    manifest = json.loads((tmp_path / "threads" / "manifest.json").read_text())
    assert (manifest["threshold"], manifest["class_weight"]) == ("f1", "balanced")
    assert sk.run(pipeline, tmp_path / "threads", threads=2).weights_sha256 == results[0].weights_sha256
    other = sk.run(replace(pipeline, threshold="accuracy"), tmp_path / "threads", threads=1)
    assert other["probabilities"]["threshold"]["metric"] == "accuracy"
    assert other.weights_sha256 == results[0].weights_sha256
    weighed = sk.run(replace(pipeline, class_weight={"yes": 3}), tmp_path / "threads", threads=1)
    assert weighed["class_weight"] == {"no": 1.0, "yes": 3.0}
    assert weighed.weights_sha256 != results[0].weights_sha256


@pytest.mark.slow
def test_what_it_cannot_do_is_said():
    X, y = _rare(400)
    for given, text in (
        ({"threshold": "recall"}, "'recall'"),
        ({"threshold": "f1", "solver": sk.EigenPro(epochs=1)}, "without held-out rows"),
    ):
        with pytest.raises(sk.UsageError) as error:
            sk.KernelClassifier(sk.Gaussian("median"), centers=20, threads=1, **given).fit(X, y)
        assert text in str(error.value)
    with pytest.raises(sk.UsageError, match="3 classes"):
        sk.KernelClassifier(sk.Gaussian("median"), centers=20, threads=1, threshold="f1").fit(X, np.arange(400) % 3)
    with pytest.raises(sk.UsageError, match="no classes"):
        sk.run(sk.Pipeline(sk.from_arrays(X, X[:, 0]), solver=sk.Direct(), task="regression", threshold="f1"))
    held = sk.from_arrays(X[:20], np.zeros(20, dtype=int))
    model = sk.KernelClassifier(sk.Gaussian("median"), centers=20, threads=1, threshold="f1", validation=held)
    with (
        pytest.warns(UserWarning, match="keeps its default"),
        pytest.warns(UserWarning, match="are not among the 20"),
    ):
        model.fit(X, y)
