"""Losses other than squares: their optima, their metrics, quantiles that do not cross, and what is refused."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, softmax
from scipy.stats import norm
from sklearn.metrics import mean_pinball_loss, mean_poisson_deviance, r2_score

import streamkern as sk
from streamkern.data.targets import Classes, Continuous, Quantiles, Rates, encoding_from_json, encoding_to_json
from streamkern.defaults import PINBALL_SMOOTHING
from streamkern.execute import open_executor
from streamkern.models.kernel_machine import KernelMachine
from streamkern.registry.model_comparison import compare_models
from streamkern.registry.promotion_gate import default_gate
from streamkern.registry.retrain import _compare
from streamkern.report.page import page
from streamkern.report.run_directory import read_run
from streamkern.solvers.lbfgs import loss_of

LAM, LEVELS = 1e-3, (0.1, 0.5, 0.9)
SOLVER = sk.LBFGS(ridge=LAM, tolerance=1e-12, epochs=300)


def counts(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows (n, 2), rates of claims (n,), exposures (n,) and true rates (n,)."""
    rng = np.random.default_rng(seed)
    X, exposure = rng.standard_normal((n, 2)), rng.uniform(0.2, 2.0, n)
    rate = np.exp(np.sin(2 * X[:, 0]) + 0.3 * X[:, 1])
    return X, rng.poisson(rate * exposure) / exposure, exposure, rate


def spread(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, 2) and targets (n,) whose spread depends on the row."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    return X, np.sin(2 * X[:, 0]) + (0.3 + 0.3 * np.abs(X[:, 1])) * rng.standard_normal(n)


def fitted(X, y, loss, *, sample_weight=None, **more) -> sk.KernelRegressor:
    how = {"solver": SOLVER, "dtype": "float64", "preprocess": None} | more
    model = sk.KernelRegressor(sk.Gaussian(1.0), centers=sk.Uniform(25), loss=loss, **how)
    return model.fit(X, y, sample_weight=sample_weight)


def by_newton(model: KernelMachine, X, w, loss, outputs: int) -> tuple[np.ndarray, float, float]:
    """Outputs on X at the optimum, by Newton's method for each output; the objective there, and of the model.

    ``loss`` gives losses, first and second derivatives (n,) of an output's values (n,) and its number.
    """
    K, Kz, w = model.kernel(X, model.Z), model.kernel(model.Z), w / w.sum()

    def value(a, k):
        return w @ loss(K @ a, k)[0] + 0.5 * LAM * a @ Kz @ a

    found, least, reached = [], 0.0, 0.0
    for k in range(outputs):
        a = np.zeros(K.shape[1])
        for _ in range(200):
            _, first, second = loss(K @ a, k)
            gradient = K.T @ (w * first) + LAM * Kz @ a
            change = np.linalg.lstsq(K.T @ ((w * second)[:, None] * K) + LAM * Kz, gradient, rcond=1e-14)[0]
            scale = 1.0
            while value(a - scale * change, k) > value(a, k) and scale > 1e-8:
                scale /= 2
            a = a - scale * change
        found.append(K @ a)
        least, reached = least + value(a, k), reached + value(model.weights[:, k], k)
    return np.stack(found, axis=1), least, reached


@pytest.mark.parametrize("weighted", [False, True])
def test_rates_are_those_that_newtons_method_finds(weighted):
    X, y, exposure, _ = counts()
    w = exposure if weighted else np.ones(len(y))
    model = fitted(X, y, "poisson", sample_weight=exposure if weighted else None).model_
    mean = np.average(y, weights=w)

    def loss(f, k):
        rate = np.exp(np.minimum(f, 50))
        return rate - y / mean * f, rate - y / mean, rate

    F, least, reached = by_newton(model, X, w, loss, 1)
    assert reached <= least + 1e-8
    np.testing.assert_allclose(model.predict(X), mean * np.exp(F[:, 0]), rtol=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
def test_quantiles_are_those_that_newtons_method_finds(weighted):
    X, y = spread()
    w = np.random.default_rng(1).uniform(0.2, 2.0, len(y)) if weighted else np.ones(len(y))
    model = fitted(X, y, sk.Pinball(LEVELS), sample_weight=w if weighted else None).model_
    encoding, h = model.encoding, PINBALL_SMOOTHING
    assert isinstance(encoding, Quantiles)

    def loss(f, k):
        above = (f - (y - encoding.mean[k]) / encoding.scale[k]) / h
        share = expit(above)
        return h * (np.logaddexp(0, above) - LEVELS[k] * above), share - LEVELS[k], share * (1 - share) / h

    F, least, reached = by_newton(model, X, w, loss, 3)
    assert reached <= least + 1e-6
    expected = np.sort(F * encoding.scale + encoding.mean, axis=1)
    np.testing.assert_allclose(model.predict(X), expected, atol=0.01 * y.std())


def test_rates_with_exposure_come_close_to_the_truth_and_beat_squares():
    (X, y, exposure, _), (Xt, yt, et, truth) = counts(3000), counts(4000, 1)
    how = {"kernel": sk.Laplace("median"), "centers": 300, "preprocess": None, "scaling": None}
    rate = sk.KernelRegressor(loss="poisson", solver=sk.LBFGS(ridge=1e-4), **how).fit(X, y, sample_weight=exposure)
    squares = sk.KernelRegressor(solver=sk.Direct(ridge=1e-4), **how).fit(X, y, sample_weight=exposure)

    def deviance(predicted):
        return mean_poisson_deviance(yt, np.maximum(predicted, 1e-3), sample_weight=et)

    best = deviance(truth)
    assert rate.predict(Xt).min() > 0
    assert deviance(rate.predict(Xt)) - best < 0.8 * (deviance(squares.predict(Xt)) - best)


def test_a_repeated_row_is_a_row_of_weight_two():
    X, y, _, _ = counts(200)
    twice = np.arange(200) % 3 == 0
    again, w = np.concatenate([X, X[twice]]), 1.0 + twice
    for loss in ("poisson", sk.Pinball(LEVELS)):
        how = {"centers": sk.Given(X[:25]), "kernel": sk.Gaussian(1.0), "dtype": "float64", "solver": SOLVER}
        one = sk.KernelRegressor(loss=loss, **how).fit(X, y, sample_weight=w)
        other = sk.KernelRegressor(loss=loss, **how).fit(again, np.concatenate([y, y[twice]]))
        np.testing.assert_allclose(one.predict(X), other.predict(X), atol=2e-3 * y.std())


def test_the_share_below_a_quantile_is_its_level_also_for_a_skewed_target():
    (X, y), (Xt, yt) = spread(4000), spread(4000, 1)
    changes = (lambda v: v, 0.02), (lambda v: 1e6 + 1e-3 * v, 0.02), (np.exp, 0.06)
    for change, most in changes:
        how = {"kernel": sk.Laplace("median"), "centers": 200, "solver": sk.LBFGS(ridge=1e-4)}
        model = sk.KernelRegressor(loss=sk.Pinball((0.05, 0.5, 0.95)), **how).fit(X, change(y))
        below = (change(yt)[:, None] <= model.predict(Xt)).mean(axis=0)
        np.testing.assert_allclose(below, (0.05, 0.5, 0.95), atol=most)


def test_quantiles_follow_the_spread_of_the_rows():
    (X, y), (Xt, yt) = spread(4000), spread(4000, 1)
    levels = (0.05, 0.95)
    how = {"kernel": sk.Laplace("median"), "centers": 200, "solver": sk.LBFGS(ridge=3e-4)}
    P = sk.KernelRegressor(loss=sk.Pinball(levels), **how).fit(X, y).predict(Xt)
    width = np.diff(P, axis=1)[:, 0]
    true = 2 * norm.ppf(0.95) * (0.3 + 0.3 * np.abs(Xt[:, 1]))
    assert np.corrcoef(width, true)[0, 1] > 0.75
    marginal = np.quantile(y, levels)
    for k, level in enumerate(levels):
        assert mean_pinball_loss(yt, P[:, k], alpha=level) < 0.8 * mean_pinball_loss(
            yt, np.full(len(yt), marginal[k]), alpha=level
        )


@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_sorted_quantiles_never_cross_and_never_lose_more(seed, k):
    rng = np.random.default_rng(seed)
    levels = tuple(np.sort(rng.choice(np.arange(1, 100), k, replace=False) / 100).tolist())
    encoding = Quantiles.about(Continuous(np.array([3.0])), levels, 3.0, 0.7)
    F, y = rng.normal(0, 3, (50, k)), rng.normal(3, 2, 50)
    decoded, encoded = encoding.decode(F.copy()), encoding.encode(y, np.arange(50), "")
    assert (np.diff(decoded, axis=1) >= 0).all()
    np.testing.assert_allclose(encoding.comparable(F) * encoding.scale + encoding.mean, decoded)
    unsorted, kept = encoding.errors(F, encoded).sum(), encoding.errors(encoding.comparable(F), encoded).sum()
    assert kept <= unsorted + 1e-9


@pytest.mark.parametrize("encoding", [
    Rates.about(Continuous(np.array([2.5]))), Quantiles.about(Continuous(np.array([1.0])), LEVELS, 1.0, 0.5),
    Continuous(np.array([1.0])), Classes(np.arange(3), logits=True),
], ids=lambda each: type(each).__name__)  # fmt: skip
def test_derivatives_are_those_of_the_loss(encoding):
    rng = np.random.default_rng(0)
    y = encoding.encode(rng.poisson(1.0, 20).clip(0, 2), np.arange(20), "")
    F, step = rng.normal(size=(20, encoding.outputs)), 1e-6
    found = F.copy()
    encoding.derivatives(found, y)
    for k in range(F.shape[1]):
        moved = [F.copy(), F.copy()]
        moved[0][:, k] -= step
        moved[1][:, k] += step
        before, after = (encoding.derivatives(each, y) for each in moved)
        np.testing.assert_allclose((after - before) / (2 * step), found[:, k], atol=1e-6)
    assert encoding_to_json(encoding_from_json(encoding_to_json(encoding))) == encoding_to_json(encoding)


def test_metrics_are_those_of_scikit_learn(tmp_path: Path):
    X, y, exposure, _ = counts()
    model = fitted(X, y, "poisson", sample_weight=exposure)
    rows = sk.from_arrays(X, y, sample_weight=exposure)
    found, predicted = model.model_.score(rows), model.predict(X)
    deviance = mean_poisson_deviance(y, predicted, sample_weight=exposure)
    assert found["poisson_deviance"] == pytest.approx(deviance, rel=1e-9)
    assert found["r2"] == pytest.approx(r2_score(y, predicted, sample_weight=exposure), rel=1e-9)
    assert model.score(X, y, exposure) == pytest.approx(found["r2"], rel=1e-9)
    quantiles = fitted(X, y, sk.Pinball(LEVELS), sample_weight=exposure)
    found, P = quantiles.model_.score(rows), quantiles.predict(X)
    losses = [mean_pinball_loss(y, P[:, k], alpha=level, sample_weight=exposure) for k, level in enumerate(LEVELS)]
    assert found["by_output"]["pinball_loss"] == pytest.approx(losses, rel=1e-9)
    assert found["pinball_loss"] == pytest.approx(np.mean(losses), rel=1e-9)
    assert quantiles.score(rows) == pytest.approx(-np.mean(losses), rel=1e-9)
    assert quantiles.score(X, y, exposure) == pytest.approx(-np.mean(losses), rel=1e-9)


@pytest.mark.parametrize("loss", ["poisson", sk.Pinball(LEVELS)], ids=["poisson", "pinball"])
def test_streams_threads_files_and_services_give_the_same_predictions(loss, tmp_path: Path):
    X, y, exposure, _ = counts()
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(rate=y, exposure=exposure)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    rows = sk.open_dataset(tmp_path / "rows.parquet", target="rate", weight="exposure")
    pipeline = sk.Pipeline(
        rows, kernel=sk.Gaussian(1.0), centers=sk.Uniform(25), loss=loss, task="regression", test=rows, dtype="float64",
        preprocess=None,
    )  # fmt: skip
    sk.plan(pipeline)
    results = [
        sk.run(pipeline, tmp_path / f"run{threads}", resources=sk.Resources(threads=threads)) for threads in (1, 2)
    ]
    models = [sk.load_model(result.run_dir / "model.zarr") for result in results]
    expected = models[0].predict(X)
    assert expected.shape == ((len(X),) if loss == "poisson" else (len(X), len(LEVELS)))
    np.testing.assert_array_equal(models[1].predict(X), expected)
    served = sk.Predictor(models[0])(X)
    np.testing.assert_array_equal(served.predictions, expected)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(models[0])).predict(X), expected)
    sk.predict(results[0].run_dir / "model.zarr", tmp_path / "rows.parquet", tmp_path / "predictions.parquet")
    found = pd.read_parquet(tmp_path / "predictions.parquet")
    np.testing.assert_array_equal(found.to_numpy().reshape(expected.shape), expected)
    if loss != "poisson":
        assert list(found.columns) == [f"prediction_{level}" for level in LEVELS]
    metric = "poisson_deviance" if loss == "poisson" else "pinball_loss"
    assert results[0].metrics["test"][metric] == pytest.approx(models[0].score(rows)[metric])


def test_validation_rows_stop_the_training_by_the_loss():
    X, y, exposure, _ = counts(1000)
    model = sk.KernelRegressor(
        sk.Gaussian(0.3), centers=sk.Uniform(300), loss="poisson", validation=0.3,
        solver=sk.LBFGS(ridge=1e-9, epochs=60, patience=2, tolerance=1e-9),
    ).fit(X, y, sample_weight=exposure)  # fmt: skip
    history = [entry["validation"]["poisson_deviance"] for entry in model.result_.outcome.history]
    assert len(history) < 60
    assert min(history) < 0.95 * history[-1] or min(history) == history[-1]
    assert model.model_.calibration is None
    with pytest.raises((AttributeError, sk.UsageError), match=r"intervals|predict_interval"):
        model.predict_interval(X)


def test_models_are_compared_by_the_loss_of_the_challenger():
    X, y, _, _ = counts(1500)
    rows = sk.from_arrays(X, y)
    rates, squares = fitted(X, y, "poisson").model_, fitted(X, y, None, solver=sk.Direct(ridge=LAM)).model_
    quantiles = fitted(X, y, sk.Pinball(LEVELS)).model_
    with open_executor("threads", 1) as executor:
        for challenger, metric in ((rates, "poisson_deviance"), (quantiles, "pinball_loss"), (squares, "mse")):
            for champion in (rates, squares, quantiles):
                found = compare_models(challenger, champion, rows, executor)
                assert np.isfinite(found.champion[metric])
                assert found.challenger[metric] == pytest.approx(challenger.score(rows)[metric], rel=1e-6)
                assert (found.test["p_value"] == 1.0) == (champion is challenger)
    for loss, metric in ((None, "mse"), ("poisson", "poisson_deviance"), (sk.Pinball(), "pinball_loss")):
        gate = default_gate("regression", loss)
        worse = {metric: 2.0, "p_value": 0.0, "n_test": 500.0}
        assert not gate.judge(worse, {metric: 1.0}).passed
        assert gate.judge(worse, {metric: 3.0}).passed


def test_gradients_of_rates_are_those_of_the_predictions():
    X, y, exposure, _ = counts()
    model = fitted(X, y, "poisson", sample_weight=exposure).model_
    found, step = sk.explain(model, X[:20]), 1e-5
    for column in range(2):
        moved = [X[:20].copy(), X[:20].copy()]
        moved[0][:, column] -= step
        moved[1][:, column] += step
        before, after = (model.predict(each) for each in moved)
        np.testing.assert_allclose(found.gradients[:, column], (after - before) / (2 * step), rtol=1e-3, atol=1e-5)


def test_what_no_loss_can_do_is_said_before_the_work():
    X, y, _, _ = counts(200)
    with pytest.raises(sk.UsageError, match=r"levels is .*\n.*Pinball"):
        sk.Pinball((0.9, 0.1))
    for levels in ((), (0.0, 0.5), "half", (0.5, 0.5)):
        with pytest.raises(sk.UsageError, match="levels is"):
            sk.Pinball(levels)
    assert sk.Pinball(0.5) == sk.Pinball((0.5,))
    wrong = {"hinge": "loss is 'hinge'", "logistic": "targets are those of a regression", 3: "loss is 3"}
    for loss, what in wrong.items():
        with pytest.raises(sk.UsageError, match=what):
            sk.KernelRegressor(loss=loss).fit(X, y)
    with pytest.raises(sk.UsageError, match="targets are those of a classification"):
        sk.KernelClassifier(loss="poisson").fit(X, y > 1)
    with pytest.raises(sk.UsageError, match="several columns"):
        sk.KernelRegressor(loss="poisson").fit(X, np.stack([y, y], axis=1))
    with pytest.raises(sk.UsageError, match="minimises squares"):
        sk.KernelRegressor(loss="poisson", solver=sk.Direct()).fit(X, y)
    with pytest.raises(sk.UsageError, match="cannot be combined"):
        sk.KernelRegressor(loss="poisson", partition=sk.Partition(leaves=2)).fit(X, y)
    with pytest.raises(sk.UsageError, match="partial_fit takes the solver Direct, and this is LBFGS"):
        sk.KernelRegressor(loss="poisson").partial_fit(X, y)
    y[17] = -2.0
    with pytest.raises(sk.DataError, match=r"A target is -2.*\n.*row 17"):
        fitted(X, y, "poisson")
    with pytest.raises(sk.DataError, match="mean of the targets is 0"):
        fitted(X, np.zeros(200), "poisson")


def test_mixed_rows_have_the_cross_entropy_of_their_shares():
    X, _, _, _ = counts(400)
    encoding = Classes(np.arange(3), logits=True)
    shares, F = np.random.default_rng(0).dirichlet(np.ones(3), 20), np.random.default_rng(1).normal(size=(20, 3))
    found = encoding.derivatives(D := F.copy(), shares)
    np.testing.assert_allclose(found, -(shares * log_softmax(F, axis=1)).sum(axis=1))
    np.testing.assert_allclose(D, softmax(F, axis=1) - shares)
    rows = sk.from_arrays(X, X[:, 0] > 0).augment(sk.augment.MixUp(0.4), copies=2)
    how = {"kernel": sk.Gaussian(2.0), "centers": 25, "solver": sk.LBFGS(ridge=1e-3)}
    model = sk.KernelClassifier(loss="logistic", **how).fit(rows)
    assert model.result_.report["decrement"] < 1e-3
    assert model.score(X, X[:, 0] > 0) > 0.9


def test_quantiles_of_a_constant_are_the_constant():
    X, _, _, _ = counts(200)
    found = fitted(X, np.full(200, 3.0), sk.Pinball(LEVELS)).predict(X)
    np.testing.assert_allclose(found, 3.0, atol=1e-5)


def test_the_logistic_loss_is_a_loss_like_others():
    X, y, _, _ = counts(300)
    labels = y > 1
    how = {"kernel": sk.Gaussian(1.0), "centers": 25, "seed": 0}
    one = sk.KernelClassifier(loss="logistic", **how).fit(X, labels)
    other = sk.KernelClassifier(solver=sk.LBFGS(), **how).fit(X, labels)
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def test_counts_that_squares_predict_below_zero_are_a_warning():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 2))
    y = rng.poisson(np.exp(2 * X[:, 0] - 1)).astype(float)
    how = {"kernel": sk.Gaussian(1.0), "centers": 50}
    for partition, ridge in ((None, 1e-6), (sk.Partition(leaves=3), 1e-2)):
        with pytest.warns(UserWarning, match=r"predicted below 0.* and no target is.*loss=.poisson"):
            sk.KernelRegressor(solver=sk.Direct(ridge=ridge), partition=partition, **how).fit(X, y)
    rates = sk.KernelRegressor(loss="poisson", solver=sk.LBFGS(epochs=300), **how).fit(X, y)
    assert rates.predict(X).min() > 0
    sk.KernelRegressor(solver=sk.Direct(ridge=1e-3), **how).fit(X, y - 1.0)


@pytest.mark.parametrize(("loss", "name"), [("poisson", "Poisson deviance"), (sk.Pinball(LEVELS), "pinball loss")])
def test_a_report_shows_the_loss_and_no_advice_about_means(loss, name, tmp_path: Path):
    X, y, exposure, _ = counts(400)
    rows = sk.from_arrays(X, y, sample_weight=exposure)
    sk.run(sk.Pipeline(rows, kernel=sk.Gaussian(1.0), centers=40, loss=loss, task="regression", test=rows,
                       validation=0.2, solver=sk.LBFGS(ridge=1e-3)), tmp_path / "run")  # fmt: skip
    shown = page([read_run(tmp_path / "run")])
    assert f"{name}, test" in shown
    assert "root mean squared error" not in shown
    assert "No better than the mean" not in shown


def test_a_few_far_targets_move_no_quantile():
    X, y = spread(1500)
    Xt, yt = spread(3000, 1)
    y[:5] = 1e4
    with_search = sk.KernelRegressor(loss=sk.Pinball((0.05, 0.5, 0.95)))
    by_hand = sk.KernelRegressor(
        sk.Laplace(4.0), 100, loss=sk.Pinball((0.05, 0.5, 0.95)), solver=sk.LBFGS(ridge=1e-4, epochs=200)
    )
    for model in (with_search, by_hand):
        below = (yt[:, None] <= model.fit(X, y).predict(Xt)).mean(axis=0)
        np.testing.assert_allclose(below, (0.05, 0.5, 0.95), atol=0.06)


def test_quantiles_of_other_levels_are_no_champion():
    X, y = spread(400)
    rows, models = sk.from_arrays(X, y), {}
    for levels in ((0.1, 0.9), (0.2, 0.8)):
        models[levels] = fitted(X, y, sk.Pinball(levels)).model_
    with open_executor("threads", 1) as executor:
        same, none = _compare(models[0.1, 0.9], models[0.1, 0.9], rows, executor)
        assert none is None
        assert same.champion is not None
        other, why = _compare(models[0.1, 0.9], models[0.2, 0.8], rows, executor)
        assert other.champion is None
        assert "something else" in str(why)


def test_one_column_in_two_dimensions_is_one_column():
    X, y, _, _ = counts(200)
    one, two = fitted(X, y, "poisson"), fitted(X, y[:, None], "poisson")
    np.testing.assert_allclose(two.predict(X).ravel(), one.predict(X))


def test_a_gate_and_a_plan_know_the_loss_of_the_solver():
    X, y = spread(400)
    rows = sk.from_arrays(X, y)
    levels = tuple(np.arange(1, 41) / 41)
    for how in ({"loss": sk.Pinball(levels)}, {"solver": sk.LBFGS(sk.Pinball(levels))}):
        job = sk.Pipeline(rows, kernel=sk.Gaussian(1.0), centers=30, task="regression", **how)
        assert loss_of(job) == sk.Pinball(levels)
        flops = sum(stage.flops for stage in sk.plan(job).stages)
        few = sum(stage.flops for stage in sk.plan(replace(job, loss=None, solver=sk.LBFGS(sk.Pinball(0.5)))).stages)
        assert flops > few
    assert loss_of(sk.Pipeline(rows, task="regression")) is None
