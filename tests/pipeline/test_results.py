"""What functions return, and how it and what it was made of are shown."""

import json
import pickle
from collections.abc import Callable

import numpy as np

import streamkern as sk
from streamkern.runs.results import RunResult

Make = Callable[..., sk.Pipeline]


def test_a_run_returns_what_it_wrote_by_key_and_by_name(write_rows, tmp_path, monkeypatch):
    rows = write_rows(tmp_path / "rows.zarr")
    (tmp_path / "p.py").write_text(
        "import streamkern as sk\ndef pipeline() -> sk.Pipeline:\n"
        f"    data = sk.open_dataset({str(rows)!r}, target='label')\n"
        "    return sk.Pipeline(data, sk.Laplace(2.0), sk.Uniform(20), test=data)\n"
    )
    folder = tmp_path / "run"
    result = sk.run(sk.load_pipeline(tmp_path / "p.py"), folder)
    assert isinstance(result, RunResult)
    assert result == result.to_json() == json.loads((folder / "result.json").read_text())
    assert (result.status, result.metrics, result.history) == ("done", result["metrics"], result["history"])
    assert result.seconds == result["seconds"]
    assert sk.load_model(result.model_path).weights_sha256 == result.weights_sha256
    assert repr(result).startswith("RunResult(done, test accuracy ")
    assert str(result).startswith("p: done in ")
    again = pickle.loads(pickle.dumps(result))
    assert (again, again.run_dir) == (result, folder)
    resumed = sk.resume(folder)
    assert isinstance(resumed, RunResult)
    assert resumed == result


def test_models_and_data_are_shown_on_a_line(make: Make):
    X = np.zeros((300, 784), dtype="float32")
    X[:, 0] = np.arange(300)
    data = sk.from_arrays(X, np.arange(300) % 2)
    shown = {
        repr(data): "Dataset(300 rows, 784 features, target 'target')",
        repr(data.augment(sk.augment.GaussianNoise(0.1), copies=3)): "GaussianNoise to 900 rows a pass",
        repr(sk.KernelClassifier(sk.Laplace(2.0), 30).fit(data).model_): "KernelMachine(Laplace(bandwidth=2.0), 30",
        repr(sk.KernelRegressor(sum([sk.Laplace(2.0)] * 9, sk.Laplace(1.0)), 30).fit(X, X[:, 0]).model_): "Sum(...)",
        repr(make().train): "target 'label'",
    }  # fmt: skip
    for text, words in shown.items():
        assert words in text
        assert len(text) < 120
        assert "\n" not in text
