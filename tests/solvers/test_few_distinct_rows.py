"""Every solver on tables of few distinct rows: no crash, no NaN, and about as good as the mean of equal rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.types import Array

SOLVERS: dict[str, Any] = {
    "auto": "auto", "direct": sk.Direct(), "eigenpro": sk.EigenPro(), "eigenpro1": sk.EigenPro1(),
    "falkon": sk.Falkon(), "svrg": sk.SVRG(), "eigenpro2": sk.EigenPro2(), "logistic": sk.LBFGS(), "sgd": sk.SGD(),
}  # fmt: skip


def tables() -> Iterator[tuple[str, Any, Array, Array, Array]]:
    """Name, rows, labels, values, and which rows are equal."""
    random = np.random.default_rng(0)
    k = np.repeat(np.arange(5), 400)
    random.shuffle(k)
    noise = 0.1 * random.normal(size=2000)
    few, k, noise = random.normal(size=(5, 3)), k[:700], noise[:700]
    yield "five rows", few[k], k % 3, np.array([1.0, 5, 2, 8, 3])[k] + noise, k
    g, h = random.integers(0, 6, 1000), random.integers(0, 4, 1000)
    words = pd.DataFrame({"g": np.array(list("abcdef"))[g], "h": np.array(list("wxyz"))[h]})
    yield "categories", words, (g + h) % 3, 2.0 * g + h, 4 * g + h
    k = random.integers(0, 8, 600)
    yield "a constant column", np.stack([k.astype(float), np.full(600, 7.0)], 1), k % 2, 3 * np.sin(k), k
    k = random.integers(0, 60, 600)
    yield "one-hot", np.eye(60)[k], k % 4, (k % 7).astype(float), k
    k = random.integers(0, 10, 1000)
    p = random.random(10)
    labels, values = (random.random(1000) < p[k]).astype(int), 4 * p[k] + random.normal(size=1000)
    yield "other labels of equal rows", np.stack([k.astype(float), k % 3], 1), labels, values, k


CASES = {case[0]: case[1:] for case in tables()}


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", CASES)
def test_few_distinct_rows_are_learned_as_a_table_of_means_learns_them(name: str, solver: str) -> None:
    X, labels, values, equal = CASES[name]
    given: dict[str, Any] = {"solver": SOLVERS[solver], "seed": 0}
    given |= {} if solver == "auto" else {"centers": sk.AllRows() if solver == "eigenpro2" else 200}
    classifier = sk.KernelClassifier(**given).fit(X, labels)
    assert np.isfinite(classifier.decision_function(X)).all()
    best = pd.Series(labels).groupby(equal).transform(lambda rows: rows.mode()[0]).to_numpy()
    slack = 0.03 if solver != "sgd" else 1.0  # plain steps are slow, and only must not break
    assert classifier.score(X, labels) > np.mean(best == labels) - slack
    if solver == "logistic":
        return
    found = sk.KernelRegressor(**given).fit(X, values).predict(X)
    assert np.isfinite(found).all()
    means = pd.Series(values).groupby(equal).transform("mean").to_numpy()
    error, least = (np.mean(np.square(each - values)) / values.var() for each in (found, means))
    assert error < least + slack


def test_models_are_not_compared_by_rounding_errors() -> None:
    """A metric chosen by rounding errors made EigenPro2 converge slowly."""
    X, _, values, _ = CASES["categories"]
    model = sk.KernelRegressor(solver=sk.EigenPro2(), centers=sk.AllRows(), seed=0).fit(X, values)
    assert model.result_.report["kernel"]["metric"] == "none"
    assert model.result_.report["kernel"]["reason"].endswith("its error is one of rounding")
    assert model.score(X, values) > 1 - 1e-4
