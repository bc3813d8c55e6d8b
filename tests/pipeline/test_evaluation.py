"""What the evaluation keeps beside its metrics, for reports."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.defaults import EXAMPLE_COPIES, EXAMPLE_ROWS
from streamkern.evaluation import score
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.runs import run_stages as module
from streamkern.runs.run_stages import examples
from streamkern.storage.serialize import load_value

ROWS_OF = {"train": 600, "test": 200}


def kept(folder: Path, result: dict) -> tuple[dict, dict]:
    (name,) = [stage["artifact"] for stage in result["stages"] if stage["name"] == "evaluate"]
    facts = load_value(folder / "stages" / name, "evaluate")
    return facts.pop("arrays"), facts


@pytest.mark.slow
def test_confusion_counts_every_row_and_agrees_with_the_accuracy_and_with_predict(make: Callable, tmp_path: Path):
    pipeline = make()
    result = sk.run(pipeline, tmp_path / "run")
    arrays, facts = kept(tmp_path / "run", result)
    for part, n in ROWS_OF.items():
        counts = arrays[f"{part}_confusion"]
        assert counts.shape == (2, 2)
        assert counts.sum() == n
        assert counts.trace() / n == result["metrics"][part]["accuracy"]
    X, y, _ = pipeline.test.source.read(0)
    for index in range(1, len(pipeline.test.source.bounds) - 1):
        more = pipeline.test.source.read(index)
        X, y = np.concatenate([X, more.X]), np.concatenate([y, more.y])
    predicted = sk.load_model(tmp_path / "run" / "model.zarr").predict(X)
    expected = [[np.count_nonzero((y == i) & (predicted == j)) for j in (0, 1)] for i in (0, 1)]
    np.testing.assert_array_equal(arrays["test_confusion"], expected)
    assert facts["encoding"]["values"] == [0, 1]
    again = sk.run(pipeline, tmp_path / "run")
    assert again["metrics"] == result["metrics"]
    assert kept(tmp_path / "run", again)[0].keys() == arrays.keys()


def test_regression_keeps_a_fixed_sample_of_targets_and_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 5))
    y = X @ rng.standard_normal((5, 2)) + 100.0
    data = sk.from_arrays(X, y)
    pipeline = sk.Pipeline(data, centers=sk.Uniform(100), solver=sk.Direct(), task="regression", test=data, name="two")
    result = sk.run(pipeline, tmp_path / "all")
    arrays, _ = kept(tmp_path / "all", result)
    np.testing.assert_allclose(arrays["test_actual"], y)
    expected = sk.load_model(tmp_path / "all" / "model.zarr").predict(X)
    np.testing.assert_allclose(arrays["test_predicted"], expected, atol=1e-3)
    assert np.mean((arrays["test_predicted"] - y) ** 2) == pytest.approx(result["metrics"]["test"]["mse"], rel=1e-3)

    monkeypatch.setattr(score, "MAX_SAMPLED_ROWS", 40)
    few, _ = kept(tmp_path / "few", sk.run(pipeline, tmp_path / "few"))
    assert few["test_actual"].shape == (40, 2)
    where = [int(np.abs(y[:, 0] - value).argmin()) for value in few["test_actual"][:, 0]]
    np.testing.assert_array_equal(few["test_predicted"], arrays["test_predicted"][where])


@pytest.mark.slow
def test_more_classes_than_are_counted_leave_the_metrics_as_they_are(make, tmp_path, monkeypatch):
    counted = sk.run(make(), tmp_path / "counted")
    monkeypatch.setattr(score, "MAX_CONFUSION_CLASSES", 1)
    result = sk.run(make(), tmp_path / "not")
    assert result["metrics"] == counted["metrics"]
    assert "test_confusion" not in kept(tmp_path / "not", result)[0]


def test_examples_are_rows_as_stored_and_as_training_sees_them(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((500, 6)).astype(np.float32), rng.integers(0, 3, 500)
    data = sk.from_arrays(X, y).scale(2.0, 1.0)
    noisy = data.augment(sk.augment.GaussianNoise(0.1), copies=2, seed=5)
    encoding = sk.KernelClassifier(centers=sk.Uniform(20)).fit(data).model_.encoding
    with ThreadsExecutor() as executor:
        plain, shown = examples(data, encoding, executor), examples(noisy, encoding, executor)
        monkeypatch.setattr(module, "MAX_EXAMPLE_FEATURES", 5)
        assert examples(data, encoding, executor) == {}
    ids = shown["ids"]
    assert plain["rows"].shape == (EXAMPLE_ROWS, 1, 6)
    assert shown["rows"].shape == (EXAMPLE_ROWS, 1 + EXAMPLE_COPIES, 6)
    np.testing.assert_array_equal(shown["rows"][:, 0], X[ids] * 2 + 1)
    np.testing.assert_array_equal(shown["targets"], y[ids])
    np.testing.assert_array_equal(plain["rows"][:, 0], X[plain["ids"]] * 2 + 1)
    noise = shown["rows"][:, 1:] - shown["rows"][:, :1]
    assert np.abs(noise).min(axis=(0, 2)).max() > 0  # every copy is varied, and no two alike
    assert not np.allclose(noise[:, 0], noise[:, 1])
    assert noise.std() == pytest.approx(0.1, rel=0.2)
