"""Probabilities of classes: calibrated, the same everywhere, kept in the model."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import zarr
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import log_loss

import streamkern as sk
from streamkern.calibration import probabilities as module
from streamkern.calibration.out_of_sample import OutOfSample
from streamkern.calibration.probabilities import ProbabilityCalibration, calibrated_losses, fit_probabilities
from streamkern.cpu import default_engine
from streamkern.data.row_order import Scan
from streamkern.evaluation import metrics
from streamkern.fitting import calibrate as answers
from streamkern.fitting import solver_choice as auto
from streamkern.models import kernel_machine as model_module
from streamkern.serving import predict_files as serving
from streamkern.serving.predict_files import evaluate


def _halves(load):
    X, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order[::2]], y[order[::2]], X[order[1::2]], y[order[1::2]]


def _left_out(k=4, n=1500, weighted=False):
    rng = np.random.default_rng(k)
    y = rng.choice(k, n, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())
    F = 0.25 * rng.standard_normal((n, k)) + 0.5 * (y[:, None] == np.arange(k)) + 0.5 / k
    return OutOfSample(F, y, rng.random(n) + 0.1 if weighted else None, "validation", np.arange(n))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_newton_finds_the_mode_that_another_method_finds(own, weighted, monkeypatch):
    monkeypatch.setattr(module, "MAX_CLASSES_WITH_OWN_PARAMETERS", 100 if own else 1)
    rows = _left_out(weighted=weighted)
    fit = module._Newton(
        module._features(rows.outputs, False), rows.y,
        np.ones(len(rows.y)) if rows.w is None else rows.w / rows.w.mean(), default_engine(), own,
    )  # fmt: skip
    start = fit.theta.copy()
    found = minimize(
        lambda theta: (fit.loss(theta)[0], fit.slopes(theta, fit.loss(theta)[1])[0]),
        start, jac=True, method="BFGS", options={"gtol": 1e-8, "maxiter": 2000},
    )  # fmt: skip
    fit.solved()
    assert fit.loss(fit.theta)[0] <= found.fun + 1e-6
    # The gradient is that of the loss.
    theta = start + 0.1 * np.random.default_rng(0).standard_normal(len(start))
    gradient, hessian = fit.slopes(theta, fit.loss(theta)[1])
    step = 1e-5 * np.eye(len(theta))
    numeric = [(fit.loss(theta + e)[0] - fit.loss(theta - e)[0]) / 2e-5 for e in step]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-3)
    slope = lambda t: fit.slopes(t, fit.loss(t)[1])[0]  # noqa: E731
    np.testing.assert_allclose(
        hessian, [(slope(theta + e) - slope(theta - e)) / 2e-5 for e in step], rtol=1e-3, atol=1e-2
    )


@pytest.mark.parametrize("classes", [2, 4])
def test_losses_that_models_are_compared_by_are_of_what_outputs_tell_of_the_classes(classes):
    rows = _left_out(classes)
    F, y, ones = rows.outputs, rows.y, np.ones(len(rows.y))

    def loss(F, w=ones):
        return np.average(calibrated_losses(F, y, w, default_engine()), weights=w)

    shrunk = 0.5 * F + 0.5 / classes  # as of a large ridge: twice as far from 0 and 1
    squares = [np.square(each - np.eye(classes)[y]).mean() for each in (F, shrunk)]
    assert squares[1] > 1.1 * squares[0]
    assert loss(shrunk) == pytest.approx(loss(F), rel=0.05)
    noisy = F + 0.25 * np.random.default_rng(1).standard_normal(F.shape)
    assert loss(noisy) > 1.2 * loss(F)
    # Rows of weight 0, and so a class that only they have, do not count.
    w = np.where(y == 0, 0.0, 1.0)
    found = calibrated_losses(F, y, w, default_engine())
    assert not found[y == 0].any()
    np.testing.assert_array_equal(found[y > 0], calibrated_losses(F[y > 0], y[y > 0], w[y > 0], default_engine()))


def test_without_rows_that_say_otherwise_probabilities_are_the_outputs():
    calibration = ProbabilityCalibration(np.ones(3), np.zeros(3), np.zeros(3), {})
    F = np.array([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]])
    np.testing.assert_allclose(calibration.probabilities(F), F, atol=1e-3)
    extreme = np.array([[40.0, -40.0, 0.0], [-3.0, -3.0, -3.0]])
    assert np.isfinite(calibration.log_probabilities(extreme)).all()
    np.testing.assert_allclose(calibration.probabilities(extreme).sum(axis=1), 1.0)


def test_classes_that_the_rows_lack_share_the_others_parameters():
    rows = _left_out()
    F = np.column_stack([rows.outputs, np.zeros(len(rows.y))])
    found = fit_probabilities(OutOfSample(F, rows.y, None, "validation", rows.ids), default_engine())
    assert found.facts["missing"] == [4]
    P = found.probabilities(np.array([[0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0, 0.0]]))
    assert P.argmax(axis=1).tolist() == [4, 1]


@pytest.mark.slow
@pytest.mark.parametrize("wide", [(1.5, 1.5), (2.0, 0.0)])
def test_probabilities_of_either_softness_are_found(wide):
    rng = np.random.default_rng(5)
    n, k = 20_000, 5
    F = rng.beta(0.6, 0.6 * (k - 1), (n, k)) * 1.2 - 0.1
    truth = ProbabilityCalibration(np.full(k, 0.3), np.full(k, 0.3), np.zeros(k), {}, wide=np.array(wide))
    P = truth.probabilities(F)
    y = (rng.random((n, 1)) > P.cumsum(axis=1)).sum(axis=1)
    found = fit_probabilities(OutOfSample(F, y, None, "validation", np.arange(n)), default_engine())
    assert np.abs(found.probabilities(F) - P).mean() < 0.006


@pytest.mark.parametrize("seed", range(5))
def test_probabilities_of_two_classes_have_the_order_of_the_scores(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=60)
    f = y + 0.3 * rng.standard_normal(60)
    out_of_sample = OutOfSample(np.column_stack([1 - f, f]), y, None, "validation", np.arange(60))
    found = fit_probabilities(out_of_sample, default_engine())
    f = np.linspace(-2.0, 3.0, 200)
    log_p = found.log_probabilities(np.column_stack([1 - f, f]))
    assert (np.diff(log_p[:, 1] - log_p[:, 0]) > 0).all()


def test_predictions_are_the_most_probable_classes_through_every_door(tmp_path):
    rng = np.random.default_rng(0)
    C = rng.standard_normal((150, 12))
    y = np.repeat(np.arange(150), 9)
    X = C[y] + 0.6 * rng.standard_normal((len(y), 12))
    train = np.arange(len(y)) % 3 > 0
    model = sk.KernelClassifier(sk.Gaussian(4.0), centers=900, solver=sk.Direct(1e-6), threads=1).fit(
        X[train], y[train]
    )
    X, y = X[~train], y[~train]
    P, F = model.predict_proba(X), model.model_.decision_function(X)
    expected = P.argmax(axis=1)
    np.testing.assert_array_equal(model.decision_function(X).argmax(axis=1), expected)
    assert np.count_nonzero(expected != F.argmax(axis=1)) > 10
    assert np.mean(expected == y) > np.mean(F.argmax(axis=1) == y)
    np.testing.assert_array_equal(model.predict(X), expected)
    loaded = sk.load_model(model.save(tmp_path / "model.zarr"))
    assert loaded.fingerprint == model.model_.fingerprint
    np.testing.assert_array_equal(loaded.predict(X), expected)
    np.testing.assert_array_equal(sk.Predictor(loaded)(X).predictions, expected)
    np.save(tmp_path / "new.npy", X)
    sk.predict(loaded, tmp_path / "new.npy", tmp_path / "made.parquet", threads=1)
    np.testing.assert_array_equal(pd.read_parquet(tmp_path / "made.parquet")["prediction"], expected)
    assert loaded.score(sk.from_arrays(X, y))["accuracy"] == pytest.approx(np.mean(expected == y))


def test_weights_of_classes_decide_by_outputs():
    X, y, X_test, _ = _halves(load_digits)
    model = sk.KernelClassifier(centers=80, threads=1, class_weight="balanced").fit(X, y)
    np.testing.assert_array_equal(model.predict(X_test), model.decision_function(X_test).argmax(axis=1))


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits])
def test_leave_one_out_calibrates_as_well_as_rows_held_out(load):
    X, y, X_test, y_test = _halves(load)
    out_of_sample = sk.KernelClassifier(threads=1).fit(X, y)
    held_out = sk.KernelClassifier(threads=1, validation=0.3).fit(X, y)
    assert out_of_sample.model_.calibration.facts["source"] == "leave-one-out"
    assert held_out.model_.calibration.facts["source"] == "validation"
    losses = [log_loss(y_test, model.predict_proba(X_test)) for model in (out_of_sample, held_out)]
    uncalibrated = ProbabilityCalibration(np.ones(len(set(y))), np.zeros(len(set(y))), np.zeros(len(set(y))), {})
    plain = log_loss(y_test, uncalibrated.probabilities(out_of_sample.model_.decision_function(X_test)))
    assert losses[0] < 0.9 * plain
    assert losses[0] < 1.15 * losses[1]
    P = out_of_sample.predict_proba(X_test)
    np.testing.assert_array_equal(out_of_sample.predict(X_test), np.unique(y)[P.argmax(axis=1)])
    np.testing.assert_allclose(P.sum(axis=1), 1.0)
    np.testing.assert_allclose(out_of_sample.predict_log_proba(X_test), np.log(P), atol=1e-6)
    assert out_of_sample.model_.score(sk.from_arrays(X_test, y_test))["log_loss"] == pytest.approx(losses[0], abs=1e-6)


def test_a_classifier_without_rows_to_learn_them_from_says_what_gives_some():
    X, y, _, _ = _halves(load_breast_cancer)
    model = sk.KernelClassifier(centers=40, solver=sk.EigenPro(epochs=1), threads=1)
    assert hasattr(model, "predict_proba")
    model.fit(X, y)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError) as error:
        model.predict_proba(X)
    assert "validation=0.1" in str(error.value.__cause__)
    with pytest.raises(sk.UsageError, match="no probabilities"):
        model.model_.predict_proba(X)
    assert hasattr(model.set_params(validation=0.2).fit(X, y), "predict_proba")


@pytest.mark.parametrize("format", ["parquet", "zarr"])
def test_predictions_in_files(tmp_path, format):
    X, y, X_test, _ = _halves(load_breast_cancer)
    model = sk.KernelClassifier(centers=30, threads=1).fit(X, np.where(y == 1, "ok", "ill"))
    np.save(tmp_path / "new.npy", X_test)
    target = tmp_path / f"made.{format}"
    made = sk.predict(model.model_, tmp_path / "new.npy", target, probabilities=True, threads=1)
    P = model.predict_proba(X_test)
    if format == "parquet":
        frame = pd.read_parquet(target)
        assert made.columns == ("prediction", "probability_ill", "probability_ok")
        np.testing.assert_array_equal(frame[["probability_ill", "probability_ok"]].to_numpy(), P)
    else:
        np.testing.assert_array_equal(zarr.open_group(target)["probabilities"][:], P)


def test_sets_hold_each_class_as_often_as_they_say(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.choice(3, 6000, p=[0.8, 0.15, 0.05])
    X = rng.standard_normal((6000, 3)) + 1.2 * np.eye(3)[y]
    model = sk.KernelClassifier(sk.Gaussian("median"), centers=100, threads=1).fit(X[:3000], y[:3000])
    for coverage in (0.7, 0.9):
        found = model.prediction_set(X[3000:], coverage)
        assert found.shape == (3000, 3)
        inside = found[np.arange(3000), y[3000:]]
        for label in range(3):
            assert inside[y[3000:] == label].mean() == pytest.approx(coverage, abs=0.06)
    loaded = sk.load_model(model.save(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(loaded.prediction_set(X[3000:], 0.9), found)
    few = sk.KernelClassifier(sk.Gaussian("median"), centers=20, threads=1).fit(X[:60], y[:60])
    assert few.prediction_set(X[:50], 0.99)[:, 2].all()
    with pytest.raises(sk.UsageError, match="coverage"):
        model.prediction_set(X, 1.5)
    loaded.calibration = replace(
        loaded.calibration, sets=replace(loaded.calibration.sets, starts=np.array([0, 5, 2, 9]))
    )
    saved = loaded.save(tmp_path / "damaged.zarr")
    with pytest.raises(sk.errors.ModelFormatError, match="probabilities"):
        sk.load_model(saved)


@pytest.mark.slow
def test_rows_are_held_out_for_probabilities_where_no_direct_solver_leaves_rows_out(monkeypatch):
    monkeypatch.setattr(answers, "MIN_ROWS_TO_CALIBRATE", 3000)
    # Not by a budget that normal equations exceed: what tests before this one left in the process may exceed it first.
    monkeypatch.setattr(
        auto, "choose_solver", lambda *_, **__: auto.SolverChoice(sk.EigenPro(epochs=5), "EigenPro: a test")
    )
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    share = 1 / (1 + np.exp(-4 * X[:, 0]))
    y = np.where(rng.random(3000) < share, "yes", "no")
    model = sk.KernelClassifier(sk.Laplace("median"), 900).fit(X, y)
    assert model.result_.report["projection"]  # no direct solver
    held = int(model.result_.report["held_out"].split()[0])
    assert 100 < held < 200
    few = sk.KernelClassifier(sk.Laplace("median"), 900).fit(X[1:], y[1:])
    assert "held_out" not in few.result_.report
    assert not hasattr(few, "predict_proba")
    assert 0 < log_loss(y, model.predict_proba(X)) < 0.6


@pytest.mark.slow
def test_pipelines_hold_rows_out_by_the_same_rule(monkeypatch, tmp_path):
    monkeypatch.setattr(answers, "MIN_ROWS_TO_CALIBRATE", 600)
    monkeypatch.setattr(
        auto, "choose_solver", lambda *_, **__: auto.SolverChoice(sk.EigenPro(epochs=2), "EigenPro: a test")
    )
    X = np.random.default_rng(0).normal(size=(800, 3))
    data = sk.from_arrays(X, X[:, 0] > 0)
    pipeline = sk.Pipeline(data, sk.Laplace(2.0), sk.Uniform(40), "auto")
    result = sk.run(pipeline, tmp_path / "auto", threads=1)
    assert 20 < result["held_out"] < 70
    assert result["n_rows"] + result["held_out"] == 800
    assert result["probabilities"]["source"] == "validation"
    said = f"{result['held_out']} of 800 rows are held out for probabilities"
    assert any(said in choice for choice in sk.plan(pipeline, threads=1).choices)
    assert any(
        said in event.get("reason", "")
        for event in map(json.loads, (tmp_path / "auto/events.jsonl").read_text().splitlines())
    )
    for other in (
        replace(pipeline, solver=sk.EigenPro(epochs=1)),
        replace(pipeline, train=data.split(0.5)[0]),
        replace(pipeline, train=data.augment(copies=2)),
    ):
        found = sk.run(other, tmp_path / "other", threads=1)
        assert "held_out" not in found
        assert found["n_rows"] == len(other.train)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [True, False])
def test_memory_of_predictions_and_metrics_does_not_grow_with_the_rows(classes, tmp_path, monkeypatch):
    # Few rows fill what is held at a time: scores whose order is kept, a task, a part of a file.
    monkeypatch.setattr(metrics, "MAX_DISTINCT_SCORES", 100)
    monkeypatch.setattr(model_module, "_TASK_ROWS", 2000)
    monkeypatch.setattr(serving, "PART_BYTES", 1 << 16)
    held, raw = [], Scan.raw
    monkeypatch.setattr(Scan, "raw", lambda *key: held.append(tracemalloc.get_traced_memory()[0]) or raw(*key))
    rng, path = np.random.default_rng(0), tmp_path / "rows.zarr"
    X = rng.standard_normal((300_000, 3), dtype=np.float32)
    y = X[:, 0] + rng.standard_normal(len(X))
    y = (y > 0).astype(np.int8) if classes else y
    sk.write_zarr(path, X, y, target="y", chunk_rows=1000)
    kind, asked = sk.KernelRegressor, {"interval": 0.9}
    if classes:
        kind, asked = sk.KernelClassifier, {"probabilities": True}
    model = kind(sk.Gaussian(2.0), centers=20, solver=sk.Direct(ridge=1e-3)).fit(X[:2000], y[:2000]).model_
    for call in (
        lambda: sk.predict(model, path, tmp_path / "made.parquet", threads=2, **asked),
        lambda: evaluate(model, path, "y", resources=sk.Resources(threads=2)),
    ):
        held.clear()
        tracemalloc.start()
        call()
        tracemalloc.stop()
        third = len(held) // 3
        assert third > 40
        # Two numbers of each row would be 1.6 MB more.
        assert max(held[-third:]) < max(held[third:-third]) + (1 << 20), held[:: third // 5]


@pytest.mark.parametrize(("rows", "kinds", "wrong"), [(60, 6, 0.0), (60, 3, 0.1), (600, 6, 0.1), (600, 2, 0.0)])
@pytest.mark.parametrize("numbers", [False, True])
def test_a_table_of_few_distinct_rows_is_predicted_as_its_outputs_say(rows, kinds, wrong, numbers):
    """A column of a few values decides: nearly every row equals others."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, kinds, rows)
    y = np.where(rng.random(rows) < wrong, rng.integers(0, kinds, rows), kind)
    values = kind / 3.0 if numbers else np.array([f"kind {k}" for k in range(kinds)])[kind]
    X = pd.DataFrame({"x": values})
    model = sk.KernelClassifier().fit(X, y)
    assert model.score(X, y) >= 0.98 * (1 - wrong)
    P = model.predict_proba(X)
    assert P[np.arange(rows), y].mean() > 0.5 + 0.2 / kinds
    if rows > 100:
        assert P.max(axis=1).mean() == pytest.approx(model.score(X, y), abs=0.04)
