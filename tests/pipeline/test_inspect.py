"""What inspect says of a data set is what NumPy says of its rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

import streamkern as sk
from streamkern.cli import main
from streamkern.pipeline.inspect import inspect
from streamkern.storage import layout, write_parquet


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 4)) * [1, 10, 0, 1e3] + [0, 5, 3, 0]
    X[[5, 600], 1], X[3, 3] = np.nan, np.inf
    return X, np.array(["cat", "dog", "owl"], dtype=object)[np.sort(rng.integers(0, 3, 700))]


def test_sketches_classes_and_chunks_are_those_of_the_rows(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(layout, "CHUNK_BYTES", 3200)
    X, y = rows
    write_parquet(tmp_path / "rows.parquet", X, y, target="animal", columns=["a", "b", "c", "d"])
    found = inspect(tmp_path / "rows.parquet", "animal").to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["rows"], found["n_features"], found["dtype"]) == (700, 4, "float64")
    assert found["chunks"] == {"count": 7, "min_rows": 100, "max_rows": 100, "max_bytes": 3200}
    assert found["bytes"] == {"decoded": 22400, "stored": (tmp_path / "rows.parquet").stat().st_size}
    assert found["target"] == {"name": "animal", "dtype": "object", "outputs": []}
    assert dict(found["classes"]) == dict(zip(*map(list, np.unique(y, return_counts=True)), strict=True))
    assert found["order"]["ratio"] > 20
    for j, sketch in enumerate(found["columns"]):
        x = X[:, j][np.isfinite(X[:, j])]
        assert sketch["name"] == "abcd"[j]
        assert (sketch["missing"], sketch["infinite"]) == (int(np.isnan(X[:, j]).sum()), int(np.isinf(X[:, j]).sum()))
        np.testing.assert_allclose([sketch["mean"], sketch["std"]], [x.mean(), x.std()], rtol=1e-9, atol=1e-12)
        assert (sketch["min"], sketch["max"]) == (x.min(), x.max())
        if x.min() < x.max():
            np.testing.assert_array_equal(sketch["histogram"], np.histogram(x, bins=16)[0])
        assert sum(sketch["histogram"]) == len(x)
    advice = "\n".join(found["advice"])
    for words in ("never vary: c", "missing and infinite", "--shuffle", "standardise"):
        assert words in advice


def test_what_is_found_does_not_depend_on_chunks_or_threads(rows, monkeypatch):
    X, y = rows
    one = inspect((X, y)).to_json()
    monkeypatch.setattr(layout, "CHUNK_BYTES", 100)
    with sk.open_executor("threads", 3) as executor:
        other = inspect((X, y), executor=executor).to_json()
    assert one["classes"] == other["classes"]
    assert [c["histogram"] for c in one["columns"]] == [c["histogram"] for c in other["columns"]]
    np.testing.assert_allclose([c["mean"] for c in one["columns"]], [c["mean"] for c in other["columns"]])


def test_a_shuffled_set_says_so_and_has_no_advice(tmp_path, capsys):
    y = np.repeat(np.arange(4), 500)
    X = np.random.default_rng(0).normal(size=(2000, 30)).astype(np.float32)
    sk.ingest((X, y), tmp_path / "out.zarr", target="label", shuffle=True, memory="8GiB")
    assert main(["inspect", str(tmp_path / "out.zarr")]) == 0
    text = capsys.readouterr().out
    for words in ("2,000 of 30 features", "recorded: global shuffle", "classes   4: 0 25.0%", "and 6 more columns"):
        assert words in text
    assert "advice" not in text
    assert main(["inspect", str(tmp_path / "out.zarr"), "--json", "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["order"]["recorded"] == "global"
    assert 0.3 < found["order"]["ratio"] < 3
    assert found["ingested"]["sources"] == ["builtins.tuple"]


def test_targets_that_are_numbers_are_no_classes_and_columns_of_nothing_have_no_numbers():
    X = np.full((50, 1), np.nan)
    found = inspect((X, np.random.default_rng(0).normal(size=50))).to_json()
    assert found["classes"] is None
    assert found["columns"][0]["mean"] is None
    assert found["columns"][0]["min"] is None
    assert "no finite value" in inspect(X).text()
    with pytest.raises(sk.DataError, match="empty"):
        inspect(np.zeros((0, 2)))


def test_what_has_no_number_or_is_on_two_lines_is_shown_on_one(tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 2))
    X[:, 1] = np.nan
    sk.write_zarr(tmp_path / "rows.zarr", X, np.array(["a\nb", "c"] * 15), target="label")
    text = inspect(tmp_path / "rows.zarr", "label").text()
    assert "2: 'a\\nb' 50.0%, c 50.0%" in text
    (line,) = [line for line in text.splitlines() if line.startswith("  f1 ")]
    assert line.split()[1:6] == ["-", "-", "-", "-", "30"]
    assert "inf" not in text.replace("infinite", "")
    assert "advice: 1 column(s) have no finite value: f1" in text


def test_a_model_is_told_to_be_one(tmp_path, capsys):
    X = np.random.default_rng(0).normal(size=(30, 2))
    sk.KernelRegressor(centers=sk.Uniform(5)).fit(X, X[:, 0]).save(tmp_path / "model.zarr")
    assert main(["inspect", str(tmp_path / "model.zarr")]) == 1
    assert "this is a saved model, not rows" in capsys.readouterr().err
