"""Weights of classes: those of rows, the same everywhere, and probabilities that do not know of them."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import check_class_weight_classifiers

import streamkern as sk
from streamkern.data.class_weights import ClassWeightedSource

SOLVERS = [
    sk.Direct(ridge=1e-3),
    sk.EigenPro(epochs=2),
    sk.Falkon(ridge=1e-3),
]


def _rare(n=1200, share=0.06, seed=0, labels=("no", "yes")):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(int)
    X = rng.standard_normal((n, 4)) + 1.2 * y[:, None]
    return X, np.array(labels)[y]


def _model(solver, **given):
    return sk.KernelClassifier(sk.Gaussian("median"), centers=80, solver=solver, threads=1, **given)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda each: type(each).__name__)
def test_they_are_weights_of_rows(solver, weighted):
    X, y = _rare()
    w = np.random.default_rng(1).random(len(y)) + 0.2 if weighted else None
    masses = np.bincount((y == "yes").astype(int), weights=w)
    balanced = (masses.sum() / (2 * masses))[(y == "yes").astype(int)]
    for given, factor in (("balanced", balanced), ({"yes": 8}, np.where(y == "yes", 8.0, 1.0))):
        rows = factor if w is None else factor * w
        found = _model(solver, class_weight=given).fit(X, y, w)
        expected = _model(solver).fit(X, y, rows)
        np.testing.assert_allclose(
            found.model_.decision_function(X),
            expected.model_.decision_function(X),
            atol=1e-6 if solver is SOLVERS[0] else 2e-4,
        )
    if not weighted:
        np.testing.assert_allclose(balanced, compute_sample_weight("balanced", y))


@pytest.mark.parametrize("given", [{"validation": 0.3}, {}, {"partition": sk.Partition(leaves=3)}])
def test_probabilities_are_those_of_the_rows_as_they_are(given):
    X, y = _rare(2400, 0.06)
    X_test, y_test = _rare(4000, 0.06, 1)
    plain, balanced = (_model(SOLVERS[0], class_weight=each, **given).fit(X, y) for each in (None, "balanced"))
    P, Q = (model.predict_proba(X_test)[:, 1] for model in (plain, balanced))
    assert abs(Q.mean() - (y_test == "yes").mean()) < 0.015
    assert brier_score_loss(y_test == "yes", Q) < 1.1 * brier_score_loss(y_test == "yes", P)
    assert (balanced.predict(X_test) == "yes").mean() > 2 * (y_test == "yes").mean()


@pytest.mark.slow
def test_the_search_for_a_kernel_weighs_its_errors(monkeypatch):
    from streamkern.selection import kernel_search as choice

    monkeypatch.setattr(choice, "SUBSAMPLE_SIZES", ((800, 60),))
    monkeypatch.setattr(choice, "MAX_SEARCH_SHARE", 1e9)
    X, y = _rare(1200, 0.06)
    factor = compute_sample_weight("balanced", y)
    models = [
        sk.KernelClassifier(centers=80, solver=sk.Direct(), threads=1, class_weight=given).fit(X, y, w)
        for given, w in (("balanced", None), (None, factor), (None, None), (None, 1000 * factor))
    ]
    trials = [model.result_.report["kernel"]["trials"] for model in models]
    # Not those on all rows, of which one has the default bandwidth: that follows the variance of the rows as they are.
    few = min(trial["rows"] for trial in trials[0])
    errors = [[trial["mse"] for trial in each if trial["rows"] == few] for each in trials]
    np.testing.assert_allclose(errors[0], errors[1], rtol=1e-6)
    np.testing.assert_allclose(errors[1], errors[3], rtol=1e-6)
    assert not np.allclose(errors[0][:4], errors[2][:4], rtol=0.05)


@pytest.mark.parametrize("labels", [("no", "yes"), (0, 7), (False, True), (1.0, 2.0)])
def test_labels_are_the_users(labels):
    X, y = _rare(labels=labels)
    made = _model(SOLVERS[0], class_weight={labels[1]: 5}).fit(X, y)
    assert made.model_.metadata["class_weight"] == {str(labels[0]): 1.0, str(labels[1]): 5.0}
    assert made.predict(X).dtype == y.dtype
    texts = np.array(y.astype(str), dtype=object)
    from_text = _model(SOLVERS[0], class_weight={str(labels[1]): 5}).fit(X, texts)
    np.testing.assert_array_equal(from_text.decision_function(X), made.decision_function(X))


def test_unknown_labels_and_other_values_are_refused():
    X, y = _rare()
    with pytest.raises(sk.UsageError, match="no training row has: 'maybe'"):
        _model(SOLVERS[0], class_weight={"maybe": 2}).fit(X, y)
    for wrong, text in (("even", "'even'"), ({"yes": -1}, "'yes' is -1"), ([1, 2], "[1, 2]"), ({"yes": np.nan}, "nan")):
        with pytest.raises(sk.UsageError) as error:
            _model(SOLVERS[0], class_weight=wrong).fit(X, y)
        assert text in str(error.value)
    with pytest.raises(sk.UsageError, match="weight 0"):
        _model(SOLVERS[0], class_weight={"yes": 0, "no": 0}).fit(X, y)
    with pytest.raises(sk.UsageError, match="the task is regression"):
        sk.Pipeline(sk.from_arrays(X, X[:, 0]), task="regression", class_weight="balanced")


def test_a_class_without_weight_is_left_out():
    X, y = _rare(labels=("a", "b"))
    y[:100] = "c"
    with pytest.warns(UserWarning, match="1 of 3 classes"):
        model = _model(SOLVERS[0], class_weight={"c": 0}).fit(X, y)
    assert (model.predict(X) != "c").all()
    assert model.predict_proba(X)[:, 2].max() < 0.1


def test_scikit_learns_check():
    check_class_weight_classifiers("KernelClassifier", sk.KernelClassifier(threads=1, memory="4GiB"))


def test_leaves_of_a_partition_and_tune_weigh_too():
    X, y = _rare(1200, 0.1)
    given = {"centers": 40, "solver": sk.Direct(ridge=1e-3), "partition": sk.Partition(leaves=3), "threads": 1}
    found = sk.KernelClassifier(sk.Gaussian("median"), class_weight="balanced", **given).fit(X, y)
    expected = sk.KernelClassifier(sk.Gaussian("median"), **given).fit(X, y, compute_sample_weight("balanced", y))
    np.testing.assert_allclose(found.model_.decision_function(X), expected.model_.decision_function(X), atol=1e-4)
    assert found.model_.metadata["class_weight"]["yes"] > 3


def test_what_it_reads_is_planned():
    X, y = _rare()
    data = sk.from_arrays(X, y)
    source = ClassWeightedSource(data.source)
    assert source.reading().row == data.source.reading().row + 16
    pipeline = sk.Pipeline(data, sk.Gaussian(2.0), sk.Uniform(60), sk.Direct(), class_weight="balanced")
    assert sk.plan(pipeline, threads=1, memory="4GiB").footprint.peak > 0


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_a_rare_class_are_held_out_by_its_share(weighted):
    X, y = _rare(1000, 0.0)
    y[:30] = "yes"
    w = np.full(len(y), 2.0) if weighted else None
    held = set()
    for seed in range(6):
        model = _model(SOLVERS[0], validation=0.1, seed=seed).fit(X, y, w)
        found = model.model_.calibration.sets.starts
        held.add((int(found[1] - found[0]), int(found[2] - found[1])))
    assert held == {(97, 3)}
    # Classes with rows enough are left to chance, which is the split of data sets.
    y[:500] = "yes"
    _, rest = sk.from_arrays(X, y, sample_weight=w).split(0.1, 0)
    assert len(rest) != 100
    model = _model(SOLVERS[0], validation=0.1).fit(X, y, w)
    assert model.model_.calibration.facts["rows"] == len(rest)
