"""The logistic loss: its optimum, its bits, its probabilities, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss

import streamkern as sk
from streamkern.costs.dry_run import CostEstimate, ProblemSize
from streamkern.data.targets import Classes
from streamkern.selection import kernel_search as choice
from streamkern.selection.kernel_search import search_for, with_ridge

LAM = 1e-3


def rows(n: int = 900, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    logits = np.stack([2 * np.sin(2 * X[:, 0]), X[:, 1] ** 2 - 1, X[:, 2]], axis=1)[:, :k]
    return X, (logits + rng.gumbel(size=(n, k))).argmax(axis=1)


def fitted(X, y, *, sample_weight=None, **given) -> sk.KernelClassifier:
    how = {
        "solver": sk.LBFGS(ridge=LAM, tolerance=1e-10, epochs=200),
        "dtype": "float64",
        "preprocess": None,
    } | given
    return sk.KernelClassifier(sk.Gaussian(1.5), centers=sk.Uniform(30), **how).fit(X, y, sample_weight=sample_weight)


def by_newton(K, Kz, y, w, k):
    """The optimum in plain NumPy, by Newton's method on all p K weights at once; and its objective."""
    p, Y, w = K.shape[1], np.eye(k)[y], w / w.sum()

    def value(A):
        return -w @ (log_softmax(K @ A, axis=1) * Y).sum(axis=1) + 0.5 * LAM * np.sum(A * (Kz @ A))

    A = np.zeros((p, k))
    for _ in range(20):
        P = softmax(K @ A, axis=1)
        gradient = K.T @ (w[:, None] * (P - Y)) + LAM * Kz @ A
        curved = w[:, None, None] * (P[:, :, None] * np.eye(k) - P[:, :, None] * P[:, None, :])
        H = np.einsum("np,nkl,nq->pkql", K, curved, K, optimize=True) + LAM * np.einsum("pq,kl->pkql", Kz, np.eye(k))
        change = np.linalg.lstsq(H.reshape(p * k, p * k), gradient.ravel(), rcond=1e-13)[0].reshape(p, k)
        scale = 1.0
        while value(A - scale * change) > value(A) and scale > 1e-6:
            scale /= 2
        A = A - scale * change
    return A, value


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [2, 3])
def test_it_finds_the_optimum_that_newtons_method_finds(k, weighted):
    X, y = rows(400, k)
    w = np.random.default_rng(1).random(len(y)) + 0.1 if weighted else np.ones(len(y))
    model = fitted(X, y, sample_weight=w if weighted else None).model_
    K = model.kernel(X, model.Z)
    A, value = by_newton(K, model.kernel(model.Z), y, w, k)
    assert value(model.weights) == pytest.approx(value(A), rel=1e-6)
    expected = softmax(K @ A, axis=1)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-3)
    assert model.score(X, y)["log_loss"] == pytest.approx(log_loss(y, expected), rel=1e-3)


@pytest.mark.parametrize("bound", [0.002, 4.0])
def test_a_step_that_is_too_long_is_made_shorter(bound, monkeypatch):
    X, y = rows()
    expected = fitted(X, y)
    monkeypatch.setattr(Classes, "curvature", bound)
    other = fitted(X, y, solver=sk.LBFGS(ridge=LAM, tolerance=1e-10, epochs=400))
    assert other.result_.report["objective"] == pytest.approx(expected.result_.report["objective"], rel=1e-6)


def test_passes_that_are_too_few_are_said():
    X, y = rows()
    with pytest.warns(UserWarning, match=r"LBFGS has not reached .* after 2 passes of at most 2.*more epochs"):
        model = fitted(X, y, solver=sk.LBFGS(ridge=1e-6, epochs=2))
    assert model.result_.report["decrement"] > 0.01


@pytest.mark.slow
def test_threads_change_no_bit_and_float32_is_near():
    X, y = rows(2000)
    one, two = (fitted(X, y, threads=threads, dtype="float32") for threads in (1, 2))
    np.testing.assert_array_equal(one.model_.weights, two.model_.weights)
    wide = fitted(X, y).predict_proba(X)
    np.testing.assert_allclose(one.predict_proba(X), wide, atol=2e-3)


def test_probabilities_are_the_softmax_and_a_saved_model_has_the_same_bits(tmp_path: Path):
    X, y = rows()
    model = fitted(X, y, dtype="float32")
    F, P = model.model_.decision_function(X), model.predict_proba(X)
    np.testing.assert_allclose(P, softmax(F.astype(np.float64), axis=1), atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), P.argmax(axis=1))
    saved = sk.load_model(model.save(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(saved.predict_proba(X), P)
    np.testing.assert_array_equal(sk.Predictor(tmp_path / "model.zarr").predict_proba(X[:7]), P[:7])
    assert saved.encoding.logits
    # Squared errors are those of probabilities, as for least squares: a gate may compare the two.
    metrics = saved.score(X, y)
    assert metrics["mse"] == pytest.approx(np.mean(np.square(P - np.eye(3)[y])), rel=1e-5)
    assert metrics["log_loss"] == pytest.approx(log_loss(y, P), rel=1e-6)
    with pytest.raises(sk.UsageError, match="validation"):
        model.prediction_set(X)


@pytest.mark.parametrize("k", [2, 3])
def test_validation_rows_correct_what_training_rows_made_too_sure(k):
    X, y = rows(500, k)
    X_test, y_test = rows(4000, k, seed=5)
    model = sk.KernelClassifier(
        sk.Gaussian(0.7), centers=sk.Uniform(150), solver=sk.LBFGS(ridge=1e-7, epochs=60), validation=0.3
    ).fit(X, y)
    P = model.predict_proba(X_test)
    plain = softmax(model.model_.decision_function(X_test).astype(np.float64), axis=1)
    assert log_loss(y_test, P) < log_loss(y_test, plain) - 0.05
    assert model.model_.calibration.logits
    inside = model.prediction_set(X_test, coverage=0.9)[np.arange(len(y_test)), y_test]
    assert 0.8 < inside.mean() < 0.97


def test_weights_of_classes_and_a_threshold_go_with_it():
    X, y = rows(3000, 2)
    keep = (y == 0) | (np.random.default_rng(0).random(len(y)) < 0.1)
    X, y = X[keep], y[keep]
    plain, balanced = fitted(X, y), fitted(X, y, class_weight="balanced")
    assert np.mean(balanced.predict(X) == 1) > 2 * np.mean(plain.predict(X) == 1)
    cut = fitted(X, y, validation=0.3, threshold="balanced_accuracy")
    assert cut.result_.report["threshold"]["value"] != 0
    np.testing.assert_array_equal(
        cut.predict(X),
        (np.diff(cut.model_.decision_function(X), axis=1)[:, 0] > cut.result_.report["threshold"]["value"]),
    )
    with pytest.raises(sk.UsageError, match="without held-out rows"):
        fitted(X, y, threshold="f1")


@pytest.mark.slow
def test_runs_resume_to_the_same_bits_and_are_planned(tmp_path: Path):
    X, y = rows(4000)
    sk.write_zarr(tmp_path / "rows.zarr", X.astype("float32"), y, target="label", chunk_rows=500)
    data = sk.open_dataset(tmp_path / "rows.zarr", target="label")
    job = sk.Pipeline(
        train=data, test=data, kernel=sk.Gaussian(1.5), centers=sk.Uniform(60), solver=sk.LBFGS(ridge=LAM), name="a"
    )
    whole = sk.run(job, tmp_path / "whole")
    assert whole["probabilities"]["source"] == "softmax"
    planned = sk.plan(job)
    assert {stage.name for stage in planned.stages} >= {"train", "evaluate"}

    def stop(kind, fields):
        if kind == "step" and fields["pass_"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sk.run(job, tmp_path / "cut", listeners=(stop,), checkpoint_seconds=0)
    again = sk.run(job, tmp_path / "cut")
    assert again["resumed_rows"] > 0
    assert again.weights_sha256 == whole.weights_sha256
    assert again.metrics == whole.metrics


def test_a_search_for_the_kernel_is_that_of_least_squares_and_gives_it_the_ridge():
    size = ProblemSize(25_000, 5000, 14, 2, lanes=4, slots=2, blocks=80)  # a linear part takes no smaller sample here
    found = [search_for(CostEstimate(solver, size), 25_000, 4 << 30) for solver in (sk.LBFGS(), sk.Direct())]
    assert None not in found
    assert [each.linear for each in found] == [False, True]
    assert replace(found[0], linear=True) == found[1]
    assert with_ridge(sk.LBFGS(), 1e-3) == sk.LBFGS(ridge=1e-3)
    assert with_ridge(sk.LBFGS(ridge=1e-2), 1e-3) == sk.LBFGS(ridge=1e-2)


@pytest.mark.slow
def test_where_squares_want_no_ridge_it_has_one(monkeypatch: pytest.MonkeyPatch):
    """Borders without noise, as on covtype: with no ridge, logits are far too sure."""

    def made(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        X = np.random.default_rng(seed).random((n, 5)).astype(np.float32)
        return X, (np.floor(2 * X[:, 0]) + np.floor(3 * X[:, 1])).astype(int) % 3

    def loss() -> float:
        model = sk.KernelClassifier(centers=1000, solver=sk.LBFGS(), memory="4GiB").fit(*made(1200, 0))
        X, y = made(4000, 1)
        return float(log_loss(y, model.predict_proba(X)))

    found = loss()
    monkeypatch.setattr(choice, "MIN_LOGISTIC_RIDGE", 0.0)
    assert found < 0.95 * loss()


def test_what_it_cannot_do_is_said(tmp_path: Path):
    X, y = rows(400)
    with pytest.raises(sk.UsageError, match="ridge is 0"):
        sk.LBFGS(ridge=0.0)
    with pytest.raises(sk.UsageError, match="'logistic', and the targets are those of a regression"):
        sk.KernelRegressor(sk.Gaussian(1.0), centers=20, solver=sk.LBFGS()).fit(X, y.astype(float))
    with pytest.raises(sk.UsageError, match="the targets have several columns"):
        fitted(X, np.eye(3, dtype=int)[y])
    waves = sk.RandomFourier(sk.Gaussian(1.0), 32)
    with pytest.raises(sk.UsageError, match="features"):
        sk.run(sk.Pipeline(sk.from_arrays(X, y), features=waves, solver=sk.LBFGS()), tmp_path / "run")
    with pytest.raises(sk.UsageError, match="cannot be blended"):
        fitted(X, y, partition=sk.Partition(leaves=2))
