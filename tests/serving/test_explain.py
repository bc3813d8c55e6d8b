"""Columns that a model depends on, against what is known: permutation importance, central differences, the truth."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sklearn.inspection import permutation_importance

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.errors import UsageError
from streamkern.report import read_run
from streamkern.serving.explain import row_gradients

AGOP = sk.AGOP(rounds=2, rows=2000, centers=200)


def smooth(n: int = 2500, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Columns in several units, of falling weight."""
    X = np.random.default_rng(0).normal(size=(n, d))
    return X * np.geomspace(0.1, 50, d), np.sin(X * np.geomspace(1.5, 0.1, d)).sum(axis=1)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_shares_rank_columns_as_permutation_importance_does(kind: str) -> None:
    X, y = smooth()
    model = sk.KernelRegressor(sk.Gaussian("median"), 300, metric=sk.AGOP(2, kind, 2000, 200), memory="4GiB")
    model.fit(X[:2000], y[:2000])
    permuted = permutation_importance(model, X[2000:], y[2000:], n_repeats=5, random_state=0)
    assert spearmanr(model.feature_importances_, permuted.importances_mean).statistic >= 0.9


def test_two_columns_that_say_the_same_share_what_either_had() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1500, 4))
    y = 2 * X[:, 0] + X[:, 1]
    twin = np.column_stack([X, X[:, 0]])
    found = [
        sk.KernelRegressor(sk.Gaussian("median"), 200, metric=AGOP, memory="4GiB").fit(rows, y).feature_importances_
        for rows in (X, twin)
    ]
    assert found[0][0] == pytest.approx(0.8, abs=0.05)
    assert found[1][0] == pytest.approx(found[1][4], rel=0.2)
    assert found[1][0] < 0.8 * found[0][0]


def test_gradients_are_differences_of_predictions_in_the_units_of_the_columns() -> None:
    X, y = smooth(1200, 4)
    rows = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "town": np.where(X[:, 3] > 0, "up", "down").tolist()}
    y = y + 2.0 * (X[:, 3] > 0)
    steps = (sk.OneHot(("town",)), sk.Standardise())  # without quantiles, whose curves have corners
    model = sk.KernelRegressor(
        sk.Gaussian("median"), 100, metric=AGOP, preprocess=steps, memory="4GiB", dtype="float64"
    )
    model = model.fit(rows, y).model_
    few = {name: values[:20] for name, values in rows.items()}
    values, gradients = row_gradients(model, few)
    np.testing.assert_allclose(values, model.predict(few))
    assert gradients.shape == (20, 4)
    assert np.isnan(gradients[:, 3]).all()
    for j, name in enumerate("abc"):
        step = 1e-4 * np.std(rows[name])
        ahead, behind = (model.predict(few | {name: few[name] + h}) for h in (step, -step))
        np.testing.assert_allclose(gradients[:, j], (ahead - behind) / (2 * step), rtol=2e-3, atol=1e-3)


def test_steps_of_differences_suit_a_column_whatever_its_offset() -> None:
    """A step in proportion to the values was two days for a date, and a hundred spreads for a column about 1e6."""
    rng = np.random.default_rng(0)
    n = 1500
    moments = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.uniform(0, 30, n), unit="D")
    rows = pd.DataFrame({"t": moments, "far": 1e6 + rng.normal(size=n), "tiny": 1e-9 * rng.normal(size=n)})
    hours = rows["t"].dt.hour + rows["t"].dt.minute / 60
    y = np.sin(2 * np.pi * hours / 24) + np.sin(2 * (rows["far"] - 1e6)) + 1e9 * rows["tiny"]
    model = sk.KernelRegressor(sk.Gaussian(3.0), 400, sk.Direct(1e-6), dtype="float64", memory="4GiB").fit(rows, y)
    few = rows.iloc[:20]
    _, found = row_gradients(model.model_, few)
    for j, (name, step) in enumerate({"t": pd.Timedelta(minutes=5), "far": 1e-3, "tiny": 1e-12}.items()):
        h = step.total_seconds() if isinstance(step, pd.Timedelta) else step
        ahead, behind = (model.predict(few.assign(**{name: few[name] + s * step})) for s in (1, -1))
        right = (ahead - behind) / (2 * h)
        assert np.median(np.abs(found[:, j] - right)) < 0.02 * np.abs(right).max()  # quantiles have corners


def test_the_gradient_of_a_class_is_that_of_its_score() -> None:
    X, y = smooth(900, 3)
    model = sk.KernelClassifier(sk.Gaussian("median"), 80, memory="4GiB", dtype="float64", scaling="standard")
    model.fit(X, np.digitize(y, [-1, 1]))
    labels, gradients = row_gradients(model.model_, X[:5])
    np.testing.assert_array_equal(labels, model.predict(X[:5]))
    h = np.array([1e-5, 0, 0]) * X[:, 0].std()
    top = np.argmax(model.model_.decision_function(X[:5]), axis=1)
    ahead, behind = (model.model_.decision_function(X[:5] + s * h)[np.arange(5), top] for s in (1, -1))
    np.testing.assert_allclose(gradients[:, 0], (ahead - behind) / (2 * h[0]), rtol=1e-3, atol=1e-6)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    X, y = smooth(1000, 3)
    data = sk.from_arrays(X, y, columns=["small", "middle", "large"])
    given: dict[str, Any] = {"solver": sk.Direct(), "task": "regression", "preprocess": "auto"}
    agop = sk.AGOP(1, "full", 800, 60)
    pipeline = sk.Pipeline(data, sk.Gaussian("median"), sk.Uniform(80), metric=agop, **given)
    sk.run(pipeline, folder / "run", memory="4GiB")
    np.savetxt(folder / "rows.csv", X[:5], delimiter=",", header="small,middle,large", comments="")
    return folder


def test_a_command_explains_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(run / "run")]) == 0
    out = capsys.readouterr().out
    for word in ("share of each column", "direction 1", "middle"):
        assert word in out
    assert main(["explain", str(run / "run"), str(run / "rows.csv"), "--rows", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(told["importances"]) == pytest.approx(1.0)
    assert len(told["rows"]) == 3
    assert told["columns"] == ["small", "middle", "large"]
    assert main(["explain", str(run / "run"), str(run / "rows.csv")]) == 0
    assert "gradient of each row" in capsys.readouterr().out


def test_the_report_shows_shares(run: Path) -> None:
    page = pytest.importorskip("streamkern.report.page")
    html = page.page([read_run(run / "run")])
    assert "Important columns" in html
    assert "middle" in html


def test_models_without_gradients_are_refused() -> None:
    X, y = smooth(300, 3)
    both = sk.KernelRegressor(sk.Gaussian("median"), 40, memory="4GiB").fit(X, np.column_stack([y, -y])).model_
    with pytest.raises(UsageError, match="Gradients"):
        sk.explain(both, X[:3])
    mixed = (sk.RandomProjection(2),)
    model = sk.KernelRegressor(sk.Gaussian("median"), 40, metric=AGOP, preprocess=mixed, memory="4GiB").fit(X, y).model_
    with pytest.raises(UsageError, match="combines columns"):
        sk.explain(model, X[:3])
    assert sk.explain(model).columns == ("feature 0", "feature 1")
    found = sk.explain(both)
    assert found.importances is None
    assert "without a metric" in found.text()
