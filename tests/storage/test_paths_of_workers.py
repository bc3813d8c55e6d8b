"""A path means the same wherever a worker runs; a worker that does not see the data says so."""

from __future__ import annotations

import pickle
import shutil
from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.formats.training_zarr import write_zarr

X = np.arange(40.0).reshape(20, 2)


def written(kind: str, place: Path) -> Path:
    path = place / f"rows.{kind}"
    if kind == "zarr":
        write_zarr(path, X, X[:, 0])
    elif kind == "npy":
        np.save(path, X)
    else:
        table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "target": X[:, 0]})
        table.to_parquet(path) if kind == "parquet" else table.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("kind", ["zarr", "parquet", "csv", "npy"])
def test_a_relative_path_is_that_of_the_process_that_opened_it(kind: str, tmp_path: Path):
    """A worker in another directory reported lost chunks of a zarr store, which a sparse array would read as zeros."""
    path = written(kind, tmp_path)
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
    path = written(kind, tmp_path)
    there = pickle.dumps(sk.open_dataset(path, target="target"))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(sk.errors.StorageError, match=r"process \d+ on \S+ does not see the data") as caught:
        pickle.loads(there).source.read(0)
    assert str(path) in str(caught.value.where)
    assert str(Path.cwd()) in str(caught.value.expected)
