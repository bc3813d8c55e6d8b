"""Intervals hold what they say they hold, wherever the model and its scale are right or wrong."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.datasets import load_diabetes, make_friedman1

import streamkern as sk
from streamkern.calibration.intervals import Intervals, rank_scores


def _noisy(n=6000, seed=0):
    """Noise that grows with a feature."""
    X, y = make_friedman1(n, n_features=6, noise=0.0, random_state=seed)
    return X, y + (0.3 + 3 * X[:, 5]) * np.random.default_rng(seed).standard_normal(n)


def _inside(found, y):
    return (found[..., 0] <= y) & (y <= found[..., 1])


@pytest.fixture(scope="module")
def fitted():
    X, y = _noisy()
    # A metric that is learned for the mean drops the feature that only the noise depends on.
    model = sk.KernelRegressor(sk.Laplace("median"), centers=150, solver=sk.Direct(ridge=1e-4), threads=1)
    return model.fit(X[:3000], y[:3000])


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.99])
def test_they_cover_and_their_width_follows_the_noise(fitted, coverage):
    X, y = _noisy()
    found = fitted.predict_interval(X[3000:], coverage)
    assert found.shape == (3000, 2)
    assert _inside(found, y[3000:]).mean() == pytest.approx(coverage, abs=0.03)
    np.testing.assert_allclose(found.mean(axis=1), fitted.predict(X[3000:]), rtol=1e-5)
    width = np.diff(found, axis=1)[:, 0]
    parts = np.array_split(np.argsort(width), 5)
    noise = 0.3 + 3 * X[3000:, 5]
    assert noise[parts[-1]].mean() > 2 * noise[parts[0]].mean()
    if coverage == 0.9:
        shares = [_inside(found[part], y[3000:][part]).mean() for part in parts]
        assert min(shares) > 0.85
        assert max(shares) < 0.95
        assert fitted.model_.score(sk.from_arrays(X[3000:], y[3000:]))["coverage_90"] == pytest.approx(
            _inside(found, y[3000:]).mean(), abs=1e-9
        )


def test_few_rows_and_a_wrong_model_cover_too():
    X, y = load_diabetes(return_X_y=True)
    shares = []
    for seed in range(8):
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[:300], order[300:]
        model = sk.KernelRegressor(sk.Gaussian("median"), centers=30, solver=sk.Direct(ridge=10.0), threads=1)
        found = model.fit(X[train], y[train]).predict_interval(X[test])
        shares.append(_inside(found, y[test]).mean())
    assert np.mean(shares) == pytest.approx(0.9, abs=0.03)


def test_few_rows_have_no_finite_interval_for_a_high_coverage():
    X, y = load_diabetes(return_X_y=True)
    model = sk.KernelRegressor(centers=10, threads=1).fit(X[:20], y[:20])
    assert np.isfinite(model.predict_interval(X[20:25], 0.9)).all()
    assert np.isinf(model.predict_interval(X[20:25], 0.99)).all()


@pytest.mark.slow
def test_validation_rows_weights_and_several_outputs_in_unlike_units():
    X, y = _noisy()
    Y = np.column_stack([y, 1e5 + 1000 * X[:, 0] + 300 * np.random.default_rng(1).standard_normal(len(y))])
    w = np.where(X[:, 1] > 0.5, 2.0, 0.5)
    model = sk.KernelRegressor(centers=100, solver=sk.EigenPro(epochs=4), validation=0.3, threads=1)
    model.fit(X[:4000], Y[:4000], w[:4000])
    found = model.predict_interval(X[4000:])
    assert found.shape == (2000, 2, 2)
    inside = _inside(found, Y[4000:])
    np.testing.assert_allclose(w[4000:] @ inside / w[4000:].sum(), 0.9, atol=0.04)
    scored = model.model_.score(sk.from_arrays(X[4000:], Y[4000:], sample_weight=w[4000:]))
    assert scored["by_output"]["coverage_90"] == pytest.approx(w[4000:] @ inside / w[4000:].sum(), abs=1e-3)


def test_features_without_centers_have_one_width(tmp_path):
    X, y = _noisy(1000)
    data = sk.from_arrays(X, y)
    with_features = sk.Pipeline(train=data, features=sk.ReLUFeatures(80), solver=sk.Direct(1e-3), task="regression")
    result = sk.run(with_features, tmp_path / "run", threads=1)
    assert result["intervals"]["functions"] == 0
    width = np.diff(sk.load_model(result.model_path).predict_interval(X[:50]), axis=1)
    assert np.ptp(width) < 1e-4 * width.mean()


def test_a_saved_model_and_a_predictor_have_the_same_bits(fitted, tmp_path):
    X, _ = _noisy()
    expected = fitted.predict_interval(X[:64], 0.8)
    loaded = sk.load_model(fitted.save(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(loaded.predict_interval(X[:64], 0.8), expected)
    np.testing.assert_array_equal(sk.Predictor(loaded).predict_interval(X[:64], 0.8), expected)
    assert loaded.fingerprint == fitted.model_.fingerprint


@pytest.mark.parametrize("format", ["parquet", "zarr"])
def test_intervals_in_files(fitted, tmp_path, format):
    X, _ = _noisy()
    np.save(tmp_path / "new.npy", X[:500])
    target = tmp_path / f"made.{format}"
    made = sk.predict(fitted.model_, tmp_path / "new.npy", target, interval=0.9, threads=1)
    if format == "parquet":
        assert made.columns == ("prediction", "lower", "upper")
        found = pd.read_parquet(target)[["lower", "upper"]].to_numpy()
    else:
        found = zarr.open_group(target)["interval"][:]
    np.testing.assert_allclose(found, fitted.predict_interval(X[:500]), rtol=1e-12)
    again = sk.predict(fitted.model_, tmp_path / "new.npy", target, interval=0.5, threads=1, overwrite=True)
    assert again.kept == 0


@pytest.mark.slow
def test_the_same_bits_whatever_the_threads_and_after_a_second_run(tmp_path):
    X, y = _noisy(1500)
    pipeline = sk.Pipeline(
        train=sk.from_arrays(X[:1000], y[:1000]), test=sk.from_arrays(X[1000:], y[1000:]), centers=sk.Uniform(60),
        solver=sk.Direct(1e-4), task="regression",
    )  # fmt: skip
    assert any(choice.startswith("intervals: fitted to the outputs on") for choice in sk.plan(pipeline).choices)
    first, second = (sk.run(pipeline, tmp_path / str(threads), threads=threads) for threads in (1, 2))
    found = [sk.load_model(each.model_path).predict_interval(X[1000:]) for each in (first, second)]
    np.testing.assert_array_equal(*found)
    assert first.metrics == second.metrics
    assert first.metrics["test"]["coverage_90"] == pytest.approx(0.9, abs=0.05)


def _synthetic(m, seed):
    """Scales, and scores whose distribution depends on the scale."""
    rng = np.random.default_rng(seed)
    levels = np.stack([0.2 + rng.random(m), rng.lognormal(0.0, 1.0, m)], axis=1)
    heavy = np.stack([levels[:, 0] < 0.5, levels[:, 1] > 2.0], axis=1)
    scores = np.where(heavy, np.abs(rng.standard_t(2, (m, 2))), rng.random((m, 2)))
    return levels, scores, 0.5 + rng.random(m)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.97])
def test_every_fifth_of_the_scale_is_covered_whatever_the_distribution_of_its_errors(coverage):
    levels, scores, w = _synthetic(20_000, 0)
    mean = np.array([3.0, 0.1])
    made = Intervals(mean=mean, weights=np.zeros((0, 2)), facts={}, **rank_scores(scores, w, levels)._asdict())
    assert made.sound(2, 0)
    one = _quantile_of_all(scores, w, coverage)
    levels, scores, w = _synthetic(20_000, 1)
    inside = scores * levels * mean <= made.half_widths(levels, coverage)
    single = scores <= one
    for j in range(2):
        order = np.argsort(levels[:, j])
        parts = np.array_split(order, 5)
        shares = [np.average(inside[part, j], weights=w[part]) for part in parts]
        np.testing.assert_allclose(shares, coverage, atol=0.025)
        assert np.average(inside[:, j], weights=w) == pytest.approx(coverage, abs=0.01)
        assert max(abs(single[part, j].mean() - coverage) for part in parts) > 0.05 or coverage > 0.9


def _quantile_of_all(scores, w, coverage):
    """The quantile of each output's scores, with one more of the mean weight that is the worst."""
    order = np.argsort(scores, axis=0, kind="stable")
    shares = np.cumsum(w[order], axis=0) / (w.sum() * (1 + 1 / len(w)))
    at = [np.searchsorted(each, coverage) for each in shares.T]
    return np.take_along_axis(scores, order, axis=0)[at, [0, 1]]


def test_few_rows_share_a_quantile_and_so_do_few_of_a_fifth_for_a_high_coverage():
    levels, scores, w = _synthetic(499, 0)
    made = rank_scores(scores, w, levels)
    assert (made.starts[1:] == 499).all()
    several = Intervals(mean=np.ones(2), weights=np.zeros((0, 2)), facts={}, **made._asdict())
    np.testing.assert_array_equal(several.half_widths(levels, 0.9), _quantile_of_all(scores, w, 0.9) * levels)
    levels, scores, w = _synthetic(1000, 0)
    several = Intervals(mean=np.ones(2), weights=np.zeros((0, 2)), facts={}, **rank_scores(scores, w, levels)._asdict())
    assert len(np.unique((several.half_widths(levels, 0.9) / levels).round(9))) == 10
    # 200 rows of a fifth tell no quantile of 99.7%: it is that of all rows.
    np.testing.assert_allclose(several.half_widths(levels, 0.997), _quantile_of_all(scores, w, 0.997) * levels)
    assert np.isinf(several.half_widths(levels, 0.9999)).all()
    same = rank_scores(scores, w, np.ones_like(levels))
    assert (same.starts[1:] == 1000).all()
    assert rank_scores(scores[:0], w[:0], levels[:0]).starts.tolist() == [[0, 0]] * 6


def test_what_cannot_be_is_refused(fitted, tmp_path):
    X, y = _noisy(300)
    with pytest.raises(sk.UsageError, match="coverage"):
        fitted.predict_interval(X, 90)
    steps = sk.KernelRegressor(centers=20, solver=sk.EigenPro(epochs=1), threads=1).fit(X, y)
    with pytest.raises(sk.UsageError, match=r"validation=0\.1"):
        steps.predict_interval(X)
    classes = sk.KernelClassifier(centers=20, threads=1).fit(X, y > 14).model_
    with pytest.raises(sk.UsageError, match="classifier"):
        classes.predict_interval(X)
    with pytest.raises(sk.UsageError, match="values"):
        fitted.model_.predict_proba(X)
    np.save(tmp_path / "new.npy", X)
    with pytest.raises(sk.UsageError, match="classifier"):
        sk.predict(classes, tmp_path / "new.npy", tmp_path / "made.parquet", interval=0.9)
    model = sk.KernelRegressor(centers=20, threads=1).fit(X, y).model_
    model.calibration = Intervals(np.ones((3, 2)), np.ones((3, 2)), np.ones(2), np.zeros((0, 2)), {})
    saved = model.save(tmp_path / "model.zarr")
    with pytest.raises(sk.errors.ModelFormatError, match="intervals"):
        sk.load_model(saved)
    made = fitted.model_.calibration
    wrong = made.starts.copy()
    wrong[2] = wrong[3] + 1
    for damaged in ({"starts": wrong}, {"starts": made.starts[:-1]}, {"starts": made.starts + 1}, {"levels": None}):
        assert not replace(made, **damaged).sound(1, 1000)
