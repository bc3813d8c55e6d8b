"""Types whose meaning is plain are used; others are one error with the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import streamkern as sk
from streamkern.formats.open_tables import open_tables
from streamkern.ingestion.array_files import READERS

N = 12
X = np.arange(N) / 2
RECORDS = np.zeros(N, dtype=[("a", "f8"), ("b", "i4"), ("c", "U3")])
RECORDS["a"], RECORDS["b"], RECORDS["c"] = X, np.arange(N), ["u", "v"] * 6
LIKE: dict[str, Any] = {"kernel": sk.Laplace(2.0), "centers": sk.Uniform(6), "solver": sk.Direct(1e-3)}


def column(data: sk.Dataset, name: str) -> tuple[str, list[float]]:
    at = data.source.schema.names.index(name)
    rows = np.concatenate([data.source.read(chunk).X for chunk in range(len(data.source.bounds) - 1)])
    return data.source.schema.columns[at].kind, rows[:, at].tolist()


def test_records_are_a_table(tmp_path: Path):
    frame = pd.DataFrame({name: RECORDS[name].tolist() for name in RECORDS.dtype.names})
    want = sk.KernelRegressor(**LIKE).fit(frame, X).predict(frame)
    for given in (RECORDS, RECORDS.view(np.recarray), RECORDS[["c", "b", "a"]]):
        model = sk.KernelRegressor(**LIKE).fit(RECORDS, X)
        np.testing.assert_allclose(model.predict(given), want, rtol=1e-6)
        assert sk.from_arrays(given, X).source.columns == given.dtype.names
        assert sk.predict(model.model_, given, tmp_path / "out.csv", overwrite=True).rows == N
        np.testing.assert_allclose(sk.Predictor(model.model_)(given).predictions, want, rtol=1e-6)


@pytest.mark.parametrize("door", ["zarr", "zarr group", "npy", "npz", "h5"])
@pytest.mark.parametrize("target", [None, "a"])
def test_records_in_a_file_are_one_error_that_names_the_fields(tmp_path: Path, door: str, target: str | None):
    records, path = RECORDS[["a", "b"]].copy(), tmp_path / f"t.{door.partition(' ')[0]}"
    if door == "zarr":
        zarr.create_array(str(path), data=records, zarr_format=2)
    elif door == "zarr group":
        zarr.open_group(path, mode="w", zarr_format=2).create_array("table", data=records)
    elif door == "h5":
        with h5py.File(path, "w") as file:
            file["table"] = records
    else:
        (np.save if door == "npy" else np.savez)(path, records)
    with pytest.raises(sk.DataError, match=r"structured: its fields are a, b(.|\n)*write each field"):
        open_tables([path], target, readers=READERS)


@pytest.mark.parametrize("name", ["t.zarr.zip", "t.zip"])
def test_a_zipped_store_is_one_error_with_the_command_that_unpacks_it(tmp_path: Path, name: str):
    with zarr.storage.ZipStore(tmp_path / name, mode="w") as store:
        zarr.open_group(store, mode="w").create_array("X", data=np.eye(3))
    with pytest.raises(sk.errors.StorageError, match=r"zip archive(.|\n)*python -m zipfile -e"):
        sk.open_dataset(tmp_path / name)


@pytest.mark.filterwarnings("error")
def test_a_clock_without_seconds_is_the_same_category():
    model = sk.KernelRegressor(kernel=sk.Laplace(1.0), centers=4, solver=sk.Direct(1e-3))
    model.fit({"c": ["01:30", "23:05"] * 10}, np.arange(20) % 2)
    one, other = model.predict({"c": ["01:30", "01:30:00"]})
    assert one == other


def test_intervals_are_categories_of_their_text():
    cut = pd.cut(X, 3)
    text = pd.Series([str(value) for value in cut])
    for given in (cut, pd.Series(cut), pd.array(cut), pd.Series(list(cut), dtype=object)):
        frame = pd.DataFrame({"x": X, "c": given})
        want = column(sk.from_arrays(pd.DataFrame({"x": X, "c": text})), "c")
        assert column(sk.from_arrays(frame), "c") == want
    frame.loc[2, "c"] = None
    assert np.isnan(column(sk.from_arrays(frame), "c")[1][2])


@pytest.mark.parametrize("door", ["frame", "parquet"])
@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (pd.period_range("2026-01", periods=N, freq="M"), "to_timestamp"),
        (pd.interval_range(0, periods=N), "astype"),
    ],
)
def test_periods_and_stored_intervals_are_one_error_with_the_conversion(tmp_path, values, remedy, door):
    frame = pd.DataFrame({"x": X, "c": values})
    if door == "frame" and remedy == "astype":
        pytest.skip("an interval in a frame is a category")
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "t.parquet")
    with pytest.raises(sk.DataError, match=rf"cannot be a feature(.|\n)*column 'c'(.|\n)*{remedy}"):
        sk.open_dataset(tmp_path / "t.parquet" if door == "parquet" else frame)
