"""A path that exists is that data set, whatever its name has in it, and means the same wherever a worker runs."""

import os
import pickle
import shutil
from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.serving.predictor import Predictor
from tests.tables import save

NAMES = ("a[1]", "a*", "a?b", "_a", ".a", "a b#c", "~a")
FORMATS = ("csv", "parquet", "feather", "npy", "zarr", "zarr without an ending", "a folder of parquet")


def written(folder: Path, name: str, format: str) -> Path:
    table = pd.DataFrame({"x": np.arange(6.0), "y": np.arange(6)})
    path = folder / (name if " of " in format or " an " in format else f"{name}.{format}")
    if " of " not in format:
        return save(table, path)
    path.mkdir()
    save(table, path / "part.parquet")
    return path


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_a_path_that_exists_is_that_data_set(tmp_path: Path, monkeypatch, name: str, format: str):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, name, format)
    for decoy in ("a1", "ab", "axb"):
        if not (tmp_path / decoy).exists():
            written(tmp_path, decoy, format)
    for given in (path, path.name, str(path)):
        assert len(sk.open_dataset(given)) == 6
    sk.ingest(path.name, tmp_path / f"{name}.ingested.zarr")
    assert len(sk.open_dataset(tmp_path / f"{name}.ingested.zarr")) == 6


def test_home_is_found_on_every_door(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    written(tmp_path, "t", "csv")
    data = sk.open_dataset("~/t.csv", "y")
    assert len(data) == len(sk.open_dataset(Path("~/t.csv"))) == len(sk.open_dataset("~/*.csv")) == 6
    model = sk.KernelRegressor(kernel=sk.Laplace(1.0), centers=4, solver=sk.Direct(1e-3)).fit(data)
    assert model.save("~/m.zarr") == tmp_path / "m.zarr"
    assert sk.ingest("~/t.csv", "~/t.zarr", target="y").rows == 6
    sk.ingest("~/t.csv", "~/p.parquet", target="y")
    assert sk.load_model("~/m.zarr").predict([[1.0]]).shape == Predictor("~/m.zarr")([[1.0]]).predictions.shape
    assert sk.load_model("~/m.zarr").predict("~/t.csv").shape == (6,)
    sk.predict("~/m.zarr", ["~/t.csv", "~/t.csv"], "~/out.csv")
    sk.write_zarr("~/w.zarr", np.eye(3))
    sk.write_parquet("~/w.parquet", np.eye(3))
    assert {path.name for path in tmp_path.iterdir()} == {
        "t.csv", "m.zarr", "t.zarr", "p.parquet", "out.csv", "w.zarr", "w.parquet"
    }  # fmt: skip
    assert len(sk.open_dataset("~/w.parquet")) == len(sk.open_dataset("~/w.zarr")) == 3
    assert main(["inspect", "~/t.csv"]) == 0
    assert main(["predict", "~/m.zarr", "~/t.csv", "~/cli.csv"]) == 0
    assert not os.path.lexists("~")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_folder_that_exists_is_that_folder_in_a_pattern_too(tmp_path: Path, name: str, format: str):
    (tmp_path / name).mkdir()
    for part in ("1", "2"):
        written(tmp_path / name, part, format)
    assert len(sk.open_dataset(tmp_path / name / f"*.{format}")) == 12
    assert len(sk.open_dataset(tmp_path / name / f"[12].{format}")) == 12


def rows_of_numbers(folder: Path, kind: str) -> Path:
    X = np.arange(40.0).reshape(20, 2)
    path = folder / f"rows.{kind}"
    if kind == "zarr":
        sk.write_zarr(path, X, X[:, 0])
        return path
    return save(pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "target": X[:, 0]}), path)


@pytest.mark.parametrize("kind", ["zarr", "parquet", "csv", "npy"])
def test_a_relative_path_is_that_of_the_process_that_opened_it(kind: str, tmp_path: Path):
    """A worker in another directory reported lost chunks of a zarr store, which a sparse array would read as zeros."""
    path = rows_of_numbers(tmp_path, kind)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with chdir(tmp_path):
        data = sk.open_dataset(path.name, **({} if kind == "npy" else {"target": "target"}))
    with chdir(elsewhere):
        there = pickle.loads(pickle.dumps(data))
        np.testing.assert_array_equal(there.source.read(0).X[:20], data.source.read(0).X[:20])
        assert str(path) in there.source.where(0)


@pytest.mark.parametrize("kind", ["zarr", "parquet", "csv"])
def test_a_worker_that_does_not_see_the_data_says_where_it_looked(kind: str, tmp_path: Path):
    path = rows_of_numbers(tmp_path, kind)
    there = pickle.dumps(sk.open_dataset(path, target="target"))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(sk.errors.StorageError, match=r"process \d+ on \S+ does not see the data") as caught:
        pickle.loads(there).source.read(0)
    assert str(path) in str(caught.value.where)
    assert str(Path.cwd()) in str(caught.value.expected)
