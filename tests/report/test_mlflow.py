"""Runs in a real store of MLflow, which is SQLite and a directory. Skipped where MLflow is not installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk

try:
    from mlflow import MlflowClient
except ModuleNotFoundError:
    MlflowClient = None

needs_mlflow = pytest.mark.skipif(MlflowClient is None, reason="MLflow is not installed")
its_warnings = pytest.mark.filterwarnings("default")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    data = sk.from_arrays(rng.standard_normal((300, 3)), rng.integers(0, 2, 300))
    train, test = data.split(test=0.2)

    def run(**solver: float) -> Path:
        pipeline = sk.Pipeline(
            train=train, test=test, kernel=sk.Laplace(2.0), centers=sk.Uniform(20), name="clouds",
            solver=sk.EigenPro(epochs=3, **solver), validation=test,
        )  # fmt: skip
        try:
            sk.run(pipeline, tmp_path / "run")
        except sk.errors.NumericalError:
            assert solver
        return tmp_path / "run"

    return run


@needs_mlflow
@its_warnings
def test_a_run_is_logged_once_with_what_it_was_and_what_came_out(runs: Callable[..., Path], tmp_path: Path):
    place, uri = runs(), f"sqlite:///{tmp_path}/mlflow.db"
    number = sk.log_to_mlflow(place, uri, model=True)
    assert sk.log_to_mlflow(place, uri) == number
    client = MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("streamkern").experiment_id])
    result = json.loads((place / "result.json").read_text())
    assert (found.info.status, found.info.run_name) == ("FINISHED", "clouds")
    assert found.data.params["solver.name"] == "EigenPro"
    assert found.data.params["seed"] == "0"
    assert found.data.metrics["test.accuracy"] == result["metrics"]["test"]["accuracy"]
    assert found.data.tags["streamkern.weights_sha256"] == result["weights_sha256"]
    passes = client.get_metric_history(number, "validation.accuracy")
    assert [each.value for each in passes] == [entry["validation"]["accuracy"] for entry in result["history"]]
    copy = client.download_artifacts(number, "model.zarr", str(tmp_path))
    assert sk.load_model(copy).weights_sha256 == result["weights_sha256"]
    assert {file.path for file in client.list_artifacts(number)} == {"manifest.json", "result.json", "model.zarr"}


@needs_mlflow
@its_warnings
def test_a_run_that_failed_is_logged_as_failed(runs: Callable[..., Path], tmp_path: Path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    number = sk.log_to_mlflow(runs(step=1e9), uri)
    found = MlflowClient(tracking_uri=uri).get_run(number)
    assert (found.info.status, found.data.tags["streamkern.state"]) == ("FAILED", "diverged")
    with pytest.raises(sk.UsageError, match="no run"):
        sk.log_to_mlflow(tmp_path / "nowhere", uri)


def test_without_mlflow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(sk.UsageError, match="mlflow") as caught:
        sk.log_to_mlflow(tmp_path)
    assert "streamkern[mlflow]" in str(caught.value)
