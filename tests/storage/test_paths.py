"""A path that exists is that file or store, whatever its name has in it; ``~`` is the user's home."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.serving.predictor import Predictor

NAMES = ("a[1]", "a*", "a?b", "_a", ".a", "a b#c", "~a")
FORMATS = ("csv", "parquet", "feather", "npy", "zarr", "zarr without an ending", "a folder of parquet")


def written(folder: Path, name: str, format: str) -> Path:
    table = pd.DataFrame({"x": np.arange(6.0), "y": np.arange(6)})
    path = folder / (name if " of " in format or " an " in format else f"{name}.{format}")
    if format == "csv":
        table.to_csv(path, index=False)
    elif format == "parquet":
        table.to_parquet(path, index=False)
    elif format == "feather":
        table.to_feather(path)
    elif format == "npy":
        np.save(path, table.to_numpy())
    elif " of " in format:
        path.mkdir()
        table.to_parquet(path / "part.parquet", index=False)
    else:
        sk.write_zarr(str(path), table.to_numpy())
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


def test_patterns_still_match_several_files_and_leave_out_those_that_spark_hides(tmp_path: Path):
    for name in ("part-1", "part-2", "_SUCCESS", ".part-3"):
        written(tmp_path, name, "parquet")
    assert len(sk.open_dataset(tmp_path)) == len(sk.open_dataset(tmp_path / "*.parquet")) == 12
    assert len(sk.open_dataset(tmp_path / "_*.parquet")) == 6


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
