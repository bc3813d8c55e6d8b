"""Metrics from sums over blocks are scikit-learn's on the same rows."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn import metrics as theirs

import streamkern as sk
from streamkern.data.targets import Classes, Continuous
from streamkern.evaluation import metrics as ours
from streamkern.evaluation.metrics import Ranks, flat_metrics, metric_sums, metrics_of


def _blocks(encoding, F, y, w, P=None, size=97):
    total = None
    for i in range(0, len(y), size):
        rows = slice(i, i + size)
        found = metric_sums(encoding, F[rows], y[rows], None if w is None else w[rows], None if P is None else P[rows])
        total = found if total is None else total + found
    return metrics_of(encoding, total)


def _rows(k, n=1500, weighted=False):
    rng = np.random.default_rng(k)
    y = rng.choice(k, n, p=np.arange(1, k + 1) / np.arange(1, k + 1).sum())
    F = (rng.standard_normal((n, k)) + 1.5 * (y[:, None] == np.arange(k))).astype(np.float32)
    P = np.exp(F.astype(np.float64))
    F[::7] = np.round(F[::7])  # ties
    return F, y, rng.random(n) + 0.1 if weighted else None, P / P.sum(axis=1, keepdims=True)


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
    F, y, w, P = _rows(k, weighted=weighted)
    found = _blocks(Classes(np.arange(k)), F, y, w, P)
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
    found = _blocks(Classes(np.arange(2)), F, y, None)
    assert found["auc"] == pytest.approx(theirs.roc_auc_score(y, F[:, 1] - F[:, 0]), abs=1e-9)
    assert not {"log_loss", "brier", "ece"} & set(found)


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
    model = sk.KernelRegressor("gaussian", centers=40, threads=1).fit(X[:300], y[:300])
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
