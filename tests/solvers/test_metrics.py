"""Metrics and curves from sums over blocks are scikit-learn's on the same rows; fifths of intervals are counted."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn import metrics as theirs

import streamkern as sk
from streamkern.calibration.intervals import relative_scales
from streamkern.data.targets import Classes, Continuous, Indicators
from streamkern.defaults import CURVE_STEPS, MAX_CURVES
from streamkern.evaluation import metrics as ours
from streamkern.evaluation.curves import curves_of
from streamkern.evaluation.metrics import MetricSums, Ranks, flat_metrics, metric_sums, metrics_of
from streamkern.execute import open_executor


def _rows(k: int, n: int = 4000, weighted: bool = False, digits: int = 2):
    rng = np.random.default_rng(k)
    y = rng.choice(k, n, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())
    F = rng.standard_normal((n, k)) + 1.5 * (y[:, None] == np.arange(k))
    P = np.exp(np.round(F, digits))  # ties
    F[::7] = np.round(F[::7])
    return F, y, rng.random(n) + 0.1 if weighted else None, P / P.sum(axis=1, keepdims=True)


def _sums(encoding, F, y, w, P=None) -> MetricSums:
    total = None
    for rows in np.array_split(np.arange(len(y)), 23):
        found = metric_sums(encoding, F[rows], y[rows], None if w is None else w[rows], None if P is None else P[rows])
        total = found if total is None else total + found
    return total


def _ece(P, y, w, bins=15):
    top, right = P.max(axis=1), P.argmax(axis=1) == y
    edges = np.linspace(0, 1, bins + 1)
    gap = 0.0
    for low, high in pairwise(edges):
        here = (top >= low) & ((top < high) | (high == 1))
        gap += abs(float(w[here] @ (top[here] - right[here])))
    return gap / w.sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [2, 3, 7])
def test_metrics_of_classes_are_scikit_learns(k, weighted):
    F, y, w, P = _rows(k, weighted=weighted, digits=15)
    found = metrics_of(Classes(np.arange(k)), _sums(Classes(np.arange(k)), F, y, w, P))
    taken, given = F.argmax(axis=1), {"sample_weight": w}
    average = {"average": "binary" if k == 2 else "macro", "zero_division": 0, **given}
    expected = {
        "balanced_accuracy": theirs.balanced_accuracy_score(y, taken, **given),
        "precision": theirs.precision_score(y, taken, **average),
        "recall": theirs.recall_score(y, taken, **average),
        "f1": theirs.f1_score(y, taken, **average),
        "log_loss": theirs.log_loss(y, P, **given),
        "brier": theirs.brier_score_loss(y, P[:, 1], **given)
        if k == 2
        else np.average(np.square(P - np.eye(k)[y]).sum(axis=1), weights=w),
        "auc": theirs.roc_auc_score(y, P[:, 1], **given)
        if k == 2
        else theirs.roc_auc_score(y, P, multi_class="ovr", **given),
        "average_precision": theirs.average_precision_score(y, P[:, 1] if k == 2 else P, **given),
        "ece": _ece(P, y, np.ones(len(y)) if w is None else w),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    by_class = theirs.precision_recall_fscore_support(y, taken, **given)
    for j in range(k):
        mine = found["by_class"][str(j)]
        assert [mine[name] for name in ("precision", "recall", "f1", "support")] == pytest.approx(
            [column[j] for column in by_class], abs=1e-9
        )
    assert "auc_error" not in found


def test_without_probabilities_scores_are_ordered_and_nothing_is_said_of_probabilities():
    F, y, _, _ = _rows(2)
    sums = _sums(Classes(np.arange(2)), F, y, None)
    found, made = metrics_of(Classes(np.arange(2)), sums), curves_of(Classes(np.arange(2)), sums, None)
    assert found["auc"] == pytest.approx(theirs.roc_auc_score(y, F[:, 1] - F[:, 0]), abs=1e-9)
    assert not {"log_loss", "brier", "ece"} & set(found)
    assert set(made) == {"curves", "decided"}
    assert made["curves"][0, 1] == pytest.approx((F[:, 1] - F[:, 0]).max(), abs=1e-9)


@pytest.mark.parametrize("k", [2, 4])
def test_beyond_the_cells_the_order_is_bounded_and_its_error_is_said(k, monkeypatch):
    monkeypatch.setattr(ours, "MAX_DISTINCT_SCORES", 2000)
    F, y, _, _ = _rows(k, n=30_000)
    total = None
    scores = F[:, 1:] - F[:, :1] if k == 2 else F
    for rows in np.array_split(np.arange(len(y)), 50):
        found = Ranks.of(scores[rows], y[rows], None)
        total = found if total is None else total + found
        assert sum(len(keys) for keys, _, _ in total.pieces) <= 2 * ours.MAX_DISTINCT_SCORES
    got = total.metrics(1 if k == 2 else k)
    hits = y[:, None] == ([1] if k == 2 else np.arange(k))
    for j in range(scores.shape[1]):
        exact = theirs.roc_auc_score(hits[:, j], scores[:, j])
        assert 0 < got["auc_error"][j] < 1e-2
        assert abs(got["auc"][j] - exact) <= got["auc_error"][j]
        assert got["auc"][j] == pytest.approx(exact, abs=2e-4)
        assert got["average_precision"][j] == pytest.approx(
            theirs.average_precision_score(hits[:, j], scores[:, j]), abs=3e-3
        )


def test_classes_that_the_rows_lack_and_labels_that_training_lacks():
    encoding = Classes(np.array(["a", "b", "c"]))
    F = np.array([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0], [0.7, 0.1, 0.2]], dtype=np.float32)
    y = np.array([0, 1, 1, -1])  # nobody is c, and one is of no class
    found = metrics_of(encoding, metric_sums(encoding, F, y, None))
    assert found["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert found["by_class"]["a"]["precision"] == pytest.approx(1 / 3)
    assert "auc" not in found["by_class"]["c"]
    # Of a, 0.9 is above all others; of b, 0.8 and 0.4 are above both.
    assert found["auc"] == 1.0
    one = metrics_of(encoding, metric_sums(encoding, F[:1], y[:1], None))
    assert one["auc"] is None


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_values_are_scikit_learns(weighted):
    rng = np.random.default_rng(0)
    y = rng.standard_normal((500, 2)) * [1, 1000]
    X = np.column_stack([y[:, 0] + 0.3 * rng.standard_normal(500), y[:, 1] / 1000])
    w = rng.random(500) + 0.1 if weighted else None
    model = sk.KernelRegressor(sk.Gaussian("median"), centers=40, threads=1).fit(X[:300], y[:300])
    data = sk.from_arrays(X[300:], y[300:], sample_weight=None if w is None else w[300:])
    found, given = model.model_.score(data), {"sample_weight": None if w is None else w[300:]}
    F = model.predict(X[300:])
    assert isinstance(model.model_.encoding, Continuous)
    for name, theirs_of in {
        "mae": theirs.mean_absolute_error,
        "rmse": theirs.root_mean_squared_error,
        "r2": theirs.r2_score,
    }.items():
        assert found[name] == pytest.approx(theirs_of(y[300:], F, **given), rel=1e-5)
        several = theirs_of(y[300:], F, multioutput="raw_values", **given)
        assert found["by_output"][name] == pytest.approx(several, rel=1e-5)


def test_names_for_gates_are_words():
    named = flat_metrics({"n": 3, "by_class": {"yes": {"f1": 1.0}, "1": {"f1": 0.5}, "not": {"f1": 0.1}}})
    assert named == {"n": 3, "f1.yes": 1.0, "f1.class_1": 0.5, "f1.class_not": 0.1}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [2, 3])
def test_points_lie_on_scikit_learns_curves(k, weighted):
    F, y, w, P = _rows(k, weighted=weighted)
    made = curves_of(Classes(np.arange(k)), _sums(Classes(np.arange(k)), F, y, w, P), None)
    assert np.unique(made["curves"][:, 0]).tolist() == list(range(k == 2, k))
    for j in range(k == 2, k):
        points, hit = made["curves"][made["curves"][:, 0] == j], y == j
        rate, recall, scores = theirs.roc_curve(hit, P[:, j], sample_weight=w, drop_intermediate=False)
        at = np.abs(scores[None, :] - points[:, 1:2]).argmin(axis=1)
        np.testing.assert_allclose(points[:, 1], scores[at], atol=1e-11)
        np.testing.assert_allclose(points[:, 2], rate[at], atol=1e-9)
        np.testing.assert_allclose(points[:, 3], recall[at], atol=1e-9)
        precision, found, cuts = theirs.precision_recall_curve(hit, P[:, j], sample_weight=w)
        at = np.abs(cuts[None, :] - points[:, 1:2]).argmin(axis=1)
        np.testing.assert_allclose(points[:, 4], precision[at], atol=1e-9)
        np.testing.assert_allclose(points[:, 3], found[at], atol=1e-9)
        assert len(points) <= 2 * CURVE_STEPS + 2
        assert np.diff(points[:, 3]).max() <= 1.5 / CURVE_STEPS
        assert points[-1, 2:4].tolist() == [1.0, 1.0]
        area = np.trapezoid(np.r_[0, points[:, 3]], np.r_[0, points[:, 2]])
        assert area == pytest.approx(theirs.roc_auc_score(hit, P[:, j], sample_weight=w), abs=1e-3)
    taken = F.argmax(axis=1)
    for j, false, true, precision in made["decided"]:
        rows = np.ones(len(y)) if w is None else w
        assert false == pytest.approx(np.average(taken[y != j] == j, weights=rows[y != j]))
        assert true == pytest.approx(np.average(taken[y == j] == j, weights=rows[y == j]))
        assert precision == pytest.approx(np.average(y[taken == j] == j, weights=rows[taken == j]))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["two", "three", "labels"])
def test_reliability_is_counted_in_bins(kind, weighted):
    F, y, w, P = _rows(3 if kind == "three" else 2, weighted=weighted)
    if kind == "labels":
        encoding = Indicators(np.zeros(2), names=("a", "b"))
        targets = np.stack([y, np.random.default_rng(0).integers(0, 2, len(y))], axis=1).astype(float)
        shown, hit = P.ravel(), targets.ravel() > 0.5
        weight = np.repeat(np.ones(len(y)) if w is None else w, 2)
    else:
        encoding, targets, weight = Classes(np.arange(P.shape[1])), y, np.ones(len(y)) if w is None else w
        shown, hit = (P[:, 1], y == 1) if kind == "two" else (P.max(axis=1), P.argmax(axis=1) == y)
    bins = curves_of(encoding, _sums(encoding, F, targets, w, P), None)["reliability"]
    cell = np.minimum((shown * 15).astype(int), 14)
    mass = np.bincount(cell, weight, 15)
    np.testing.assert_allclose(bins[:, 0], mass, rtol=1e-12)
    there = mass > 0
    np.testing.assert_allclose(bins[there, 1], (np.bincount(cell, weight * shown, 15)[there] / mass[there]), atol=1e-10)
    np.testing.assert_allclose(bins[there, 2], np.bincount(cell, weight * hit, 15)[there] / mass[there], atol=1e-10)
    assert np.isnan(bins[~there, 1:]).all()


def test_of_many_classes_those_with_the_least_area_are_kept():
    F, y, _, P = _rows(9)
    found = _sums(Classes(np.arange(9)), F, y, None, P)
    areas = [theirs.roc_auc_score(y == j, P[:, j]) for j in range(9)]
    made = curves_of(Classes(np.arange(9)), found, None)
    assert np.unique(made["curves"][:, 0]).tolist() == sorted(np.argsort(areas)[:MAX_CURVES].tolist())
    assert made["decided"][:, 0].tolist() == sorted(np.argsort(areas)[:MAX_CURVES].tolist())


def test_rows_of_one_class_have_no_curve():
    F, y, _, P = _rows(2)
    encoding = Classes(np.arange(2))
    made = curves_of(encoding, _sums(encoding, F, np.ones_like(y), None, P), None)
    assert set(made) == {"reliability"}


def test_beyond_the_cells_points_stay_near(monkeypatch):
    monkeypatch.setattr(ours, "MAX_DISTINCT_SCORES", 500)
    F, y, _, _ = _rows(2, n=30_000)
    P = 1 / (1 + np.exp(F[:, :1] - F[:, 1:]))
    encoding = Classes(np.arange(2))
    found = _sums(encoding, F, y, None, np.concatenate([1 - P, P], axis=1))
    assert sum(len(keys) for keys, _, _ in found.ranks.pieces) <= 2 * ours.MAX_DISTINCT_SCORES
    points = curves_of(encoding, found, None)["curves"]
    for _, score, rate, recall, _ in points[::20]:
        assert np.mean(P[y == 0, 0] >= score) == pytest.approx(rate, abs=1e-2)
        assert np.mean(P[y == 1, 0] >= score) == pytest.approx(recall, abs=1e-2)


@pytest.mark.parametrize("weighted", [False, True])
def test_fifths_of_intervals_are_counted_and_have_the_same_bits_for_any_threads(weighted):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 3))
    y = np.stack([np.sin(X[:, 0]), 1000 * X[:, 1]], axis=1) + (0.1 + np.abs(X[:, 2:])) * rng.standard_normal((6000, 2))
    model = (
        sk.KernelRegressor(sk.Gaussian("median"), centers=100, solver=sk.Direct(ridge=1e-3))
        .fit(X[:3000], y[:3000])
        .model_
    )
    w = rng.random(3000) + 0.1 if weighted else None
    data = sk.from_arrays(X[3000:], y[3000:], sample_weight=w)
    made = []
    for threads in (1, 2):
        with open_executor("threads", threads) as executor:
            made.append(model._score_in_detail(data, executor).details["fifths"])
    np.testing.assert_array_equal(*made)
    ends, weight = model.predict_interval(X[3000:]), np.ones(3000) if w is None else w
    scales = relative_scales(model.decision_function(X[3000:], scales=True)[:, 2:])
    for j in range(2):
        low, high = ends[:, j].T
        order = np.argsort(scales[:, j], kind="stable")
        inside, upto = ((low <= y[3000:, j]) & (y[3000:, j] <= high))[order], np.cumsum(weight[order])
        fifth = np.minimum((5 * (upto - weight[order] / 2) / upto[-1]).astype(int), 4)
        for i, (mass, share, width) in enumerate(made[0][j]):
            here = fifth == i
            assert mass == pytest.approx(weight.sum() / 5)
            assert share == pytest.approx(np.average(inside[here], weights=weight[order][here]), abs=3e-3)
            assert width == pytest.approx(np.average((high - low)[order][here], weights=weight[order][here]), rel=5e-3)
    assert made[0][0, -1, 2] > 2 * made[0][0, 0, 2]


def test_a_scale_that_is_one_for_all_has_one_coverage_in_every_fifth():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    y = X[:, 0] + rng.standard_normal(400)
    model = (
        sk.KernelRegressor(sk.Gaussian("median"), centers=20, solver=sk.Direct(ridge=1e-2)).fit(X[:90], y[:90]).model_
    )
    with open_executor("threads", 1) as executor:
        scored = model._score_in_detail(sk.from_arrays(X, y), executor)
    np.testing.assert_allclose(scored.details["fifths"][0, :, 1], scored.metrics["coverage_90"], rtol=1e-12)
