"""Both models of a comparison have the metrics that their own ``score`` has."""

import numpy as np
import pytest

import streamkern as sk
from streamkern.evaluation.metrics import flat_metrics
from streamkern.execute import open_executor
from streamkern.registry.model_comparison import compare_models


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_metrics_are_those_of_score(task):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 3))
    f = X[:, 0] + 0.5 * rng.standard_normal(900)
    if task == "classification":
        estimator, y = sk.KernelClassifier, np.where(f > 1, "yes", "no")
    else:
        estimator, y = sk.KernelRegressor, 40 + 3 * f
    # Each scales the stored rows itself.
    models = [
        estimator(sk.Gaussian("median"), centers=p, threads=1, preprocess=steps).fit(X[:600], y[:600]).model_
        for p, steps in ((20, "auto"), (60, (sk.UnitRange(),)))
    ]
    test = sk.from_arrays(X[600:], y[600:])
    with open_executor("threads", 1) as executor:
        paired = compare_models(models[1], models[0], test, executor)
    for model, found in ((models[1], paired.challenger), (models[0], paired.champion)):
        expected = flat_metrics(model.score(test))
        expected["n_test"] = expected.pop("n")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == pytest.approx(np.nan if value is None else value, rel=1e-6, nan_ok=True), name


def test_what_one_model_alone_has_is_not_a_number():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    y = np.array(["a", "b", "c"])[rng.integers(3, size=300)]
    two = y != "c"
    new = sk.KernelClassifier(sk.Gaussian("median"), centers=20, threads=1).fit(X, y).model_
    old = sk.KernelClassifier(sk.Gaussian("median"), centers=20, threads=1).fit(X[two], y[two]).model_
    with open_executor("threads", 1) as executor:
        paired = compare_models(new, old, sk.from_arrays(X, y), executor)
    assert np.isfinite(paired.challenger["recall.c"])
    assert np.isnan(paired.champion["recall.c"])
