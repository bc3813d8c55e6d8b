"""Attributes of the CF conventions are decoded as xarray does, in zarr and HDF5, or refused by name."""

import base64
import os
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import streamkern as sk
from streamkern.data import Dataset
from streamkern.formats.open_tables import open_tables
from streamkern.ingestion.array_files import READERS

DAYS = np.array([0, 45000, 44999, 20000, 45000], dtype=np.int32)
PACKED: dict[str, tuple[np.ndarray, dict[str, Any], np.ndarray]] = {
    # name: stored numbers, attributes, values
    "scaled": (
        np.array([100, -32768, 250, -5, 0], dtype=np.int16),
        {"scale_factor": 0.1, "add_offset": 273.0, "_FillValue": -32768},
        np.array([283.0, np.nan, 298.0, 272.5, 273.0]),
    ),
    "missing": (
        np.array([7, 99, 3, 99, 1], dtype=np.uint8), {"missing_value": 99}, np.array([7, np.nan, 3, np.nan, 1]),
    ),
    "missing of 64 bits": (
        np.array([1, 2, -(2**63) + 2, 2**63 - 1, 4]), {"_FillValue": -(2**63) + 2, "missing_value": 2**63 - 1},
        np.array([1, 2, np.nan, np.nan, 4]),
    ),
    "several missing": (
        np.array([1.5, -1.0, -9.0, 2.0, 0.25], dtype=np.float32),
        {"missing_value": [-1.0, -9.0]},
        np.array([1.5, np.nan, np.nan, 2.0, 0.25]),
    ),
    "floats": (
        np.array([1.5, 1e20, 3.0, 2.0, 0.25]),
        {"_FillValue": 1e20, "scale_factor": 2.0},
        np.array([3.0, np.nan, 6.0, 4.0, 0.5]),
    ),
    "days": (
        DAYS,
        {"units": "days since 1900-01-01", "_FillValue": 0},
        np.where(DAYS == 0, np.nan, (DAYS - 25567) * 86400.0),
    ),
    "hours": (
        np.array([0.0, 1.5, np.nan, 24.0, 2.0]),
        {"units": "hours since 2024-02-28 12:00:00", "calendar": "proleptic_gregorian"},
        1_709_121_600 + 3600 * np.array([0.0, 1.5, np.nan, 24.0, 2.0]),
    ),
    "not packed": (
        np.array([1, 2, 3, -32768, 0], dtype=np.int16), {"units": "K", "long_name": "x"},
        np.array([1.0, 2, 3, -32768, 0]),
    ),
}  # fmt: skip


def written(path: Path, arrays: dict[str, tuple[np.ndarray, dict[str, Any]]], edition: str) -> Path:
    """Write arrays with attributes: as zarr of a version, or as HDF5."""
    if edition == "hdf5":
        with h5py.File(path / "rows.h5", "w") as file:
            for name, (stored, attributes) in arrays.items():
                made = file.create_dataset(name, data=stored)
                for attribute, value in attributes.items():
                    of_array = attribute in ("_FillValue", "missing_value") and not isinstance(value, str)
                    made.attrs[attribute] = np.array(np.atleast_1d(value), dtype=stored.dtype) if of_array else value
        return path / "rows.h5"
    group = zarr.create_group(path / "rows.zarr", zarr_format=int(edition[-1]))
    for name, (stored, attributes) in arrays.items():
        made = group.create_array(name, shape=stored.shape, chunks=stored.shape, dtype=stored.dtype,
                                  config={"write_empty_chunks": True}, attributes=attributes)  # fmt: skip
        made[:] = stored
    return path / "rows.zarr"


def opened(path: Path, *roles: str, **choice: Any) -> Dataset:
    """Open rows for training, or those that ``ingest`` would read."""
    return Dataset(open_tables([path], *roles, **choice, readers=READERS))


EDITIONS = ["zarr 3", "zarr 2", "hdf5"]


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", PACKED)
def test_attributes_are_decoded(tmp_path: Path, edition: str, name: str) -> None:
    stored, attributes, expected = PACKED[name]
    other = np.arange(len(stored), dtype=np.float64)
    data = opened(written(tmp_path, {"x": (stored, attributes), "y": (other, {})}, edition), "y")
    found = data.source.read(0).X[:, 0]
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=1e-6)
    filled = sk.KernelRegressor(solver=sk.Direct(), centers=3).fit(data)
    assert np.isfinite(filled.predict(data)).all()
    assert data.source.schema.columns[0].kind == ("datetime" if "since" in attributes.get("units", "") else "number")


@pytest.mark.parametrize("edition", EDITIONS)
def test_features_in_one_array_and_targets_are_decoded(tmp_path: Path, edition: str) -> None:
    X = np.arange(20, dtype=np.int16).reshape(10, 2)
    y = np.arange(10, dtype=np.int16)
    attributes = {"scale_factor": 0.5, "add_offset": 1.0}
    data = opened(written(tmp_path, {"X": (X, attributes), "y": (y, attributes)}, edition), "y")
    rows = data.source.read(0)
    np.testing.assert_array_equal(rows.X, X * 0.5 + 1)
    np.testing.assert_array_equal(rows.y, y * 0.5 + 1)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"units": "days since 1900-01-01", "calendar": "360_day"}, "calendar"),
    ({"units": "days since 0001-01-01"}, "units"),
    ({"units": "months since 2000-01-01"}, "units"),
    ({"units": "days since the flood"}, "units"),
    ({"_Unsigned": "true"}, "_Unsigned"),
    ({"scale_factor": "a tenth"}, "scale_factor"),
    ({"_FillValue": "none?"}, "_FillValue"),
]


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize(("attributes", "named"), REFUSED)
def test_what_is_not_decoded_is_refused_by_name(tmp_path, edition, attributes, named):
    other = np.arange(5.0)
    path = written(tmp_path, {"x": (DAYS, attributes), "y": (other, {}), "z": (other, {})}, edition)
    with pytest.raises(sk.DataError, match=named):
        opened(path, "y")
    assert opened(path, "y", exclude=["x"]).columns == ("z",)
    assert opened(path, "y", columns=["z"]).columns == ("z",)


def test_numbers_of_missing_values_as_xarray_stores_them(tmp_path: Path) -> None:
    """In version 2 of zarr as the fill value, in version 3 as base64."""
    group = zarr.create_group(tmp_path / "two.zarr", zarr_format=2)
    stored = np.array([5, -32768, 7], dtype=np.int16)
    for name, attributes in (("x", {"_ARRAY_DIMENSIONS": ["row"]}), ("plain", {})):
        group.create_array(name, shape=(3,), chunks=(3,), dtype="i2", fill_value=-32768, attributes=attributes)[:] = (
            stored
        )
    data = sk.open_dataset(tmp_path / "two.zarr")
    np.testing.assert_array_equal(data.source.read(0).X, [[5, 5], [-32768, np.nan], [7, 7]])
    text = base64.standard_b64encode(struct.pack("<d", 9.5)).decode()
    path = written(tmp_path, {"x": (np.array([9.5, 1.0]), {"_FillValue": text})}, "zarr 3")
    np.testing.assert_array_equal(opened(path).source.read(0).X[:, 0], [np.nan, 1.0])


@pytest.mark.parametrize("edition", ["zarr 3", "zarr 2", "hdf5"])
def test_a_coordinate_that_counts_the_rows_is_an_index(tmp_path: Path, edition: str) -> None:
    if edition == "hdf5":
        path = tmp_path / "rows.h5"
        with h5py.File(path, "w") as file:
            file["index"], file["x"], file["phony"] = np.arange(4), np.arange(4.0), np.zeros(4)
            file["index"].make_scale("index")
            file["phony"].make_scale("This is a netCDF dimension but not a netCDF variable.         4")
            file["x"].dims[0].attach_scale(file["index"])
    else:
        path = tmp_path / "rows.zarr"
        version = int(edition[-1])
        group = zarr.create_group(path, zarr_format=version)
        for name, values in (("index", np.arange(4)), ("x", np.arange(4.0))):
            named: dict[str, Any] = {"attributes": {"_ARRAY_DIMENSIONS": ["index"]}} if version == 2 else {
                "dimension_names": ["index"]}  # fmt: skip
            group.create_array(name, shape=(4,), chunks=(4,), dtype=values.dtype,
                               config={"write_empty_chunks": True}, **named)[:] = values  # fmt: skip
    data = opened(path)
    assert (data.columns, data.source.left_out) == (("x",), ("index",))


def test_another_scale_is_another_data_set(tmp_path: Path) -> None:
    found = set()
    for scale in (0.1, 0.2):
        (tmp_path / str(scale)).mkdir()
        path = written(tmp_path / str(scale), {"x": (DAYS, {"scale_factor": scale})}, "hdf5")
        found.add(opened(path).fingerprint)
    assert len(found) == 2


def test_pieces_differ_where_numbers_are_unpacked_in_another_way(tmp_path: Path) -> None:
    found = []
    for scale in (0.5, 2.0):
        group = zarr.create_group(str(tmp_path / "rows.zarr"), zarr_format=2, overwrite=True)
        made = group.create_array("X", data=np.arange(12, dtype=np.int16).reshape(4, 3), chunks=(2, 3))
        made.attrs["scale_factor"] = scale
        for file in (tmp_path / "rows.zarr").rglob("*"):
            os.utime(file, (1e9, 1e9))
        found.append([name for name, _ in sk.open_dataset(tmp_path / "rows.zarr").source.pieces()])
    assert not set(found[0]) & set(found[1])
