"""A data set that gains rows is the old rows plus the new, when it is opened again."""

from pathlib import Path

import numpy as np
import pytest
import zarr

import streamkern as sk
from streamkern.data.row_order import Assembly, Scan
from streamkern.testing.source import read_all

X = np.random.default_rng(0).normal(size=(130, 4)).astype(np.float32)
Y = np.arange(130)
W = 1.0 + np.arange(130.0)
OLD = 75


def begin(folder: Path, kind: str) -> Path:
    if kind == "ingested":
        sk.ingest((X[:OLD], Y[:OLD], W[:OLD]), folder / "rows.zarr", target="label")
        return folder / "rows.zarr"
    if kind == "zarr":
        sk.write_zarr(folder / "rows.zarr", X[:OLD], Y[:OLD], target="label", chunk_rows=20)
        return folder / "rows.zarr"
    (folder / "days").mkdir()
    for day in range(3):
        rows = slice(25 * day, 25 * day + 25)
        sk.write_parquet(
            folder / "days" / f"day-{day + 8}.parquet", X[rows], Y[rows], target="label", row_group_rows=10
        )
    return folder / "days"


def grow(place: Path, kind: str) -> None:
    if kind == "parquet":
        sk.write_parquet(place / "day-11.parquet", X[OLD:], Y[OLD:], target="label", row_group_rows=30)
        return
    group = zarr.open_group(place, mode="a")
    for name, values in (("X", X), ("label", Y), ("weight", W)):
        if name in group:
            group[name].append(values[OLD:])


@pytest.mark.parametrize("kind", ["zarr", "parquet", "ingested"])
def test_what_has_grown_is_the_old_rows_plus_the_new(tmp_path: Path, kind: str) -> None:
    place = begin(tmp_path, kind)
    before = sk.open_dataset(place, target="label")
    old_test = before.split(0.3)[1]
    varied = Scan(Assembly(before.augment(sk.augment.GaussianNoise(1.0), copies=1))).block((0,))
    kept = before.fingerprint
    grow(place, kind)
    after = sk.open_dataset(place, target="label")
    rows = read_all(after.source)
    np.testing.assert_array_equal(rows.X, X)
    np.testing.assert_array_equal(rows.y, Y)
    if kind == "ingested":
        np.testing.assert_array_equal(rows.w, W)
    assert after.fingerprint != kept
    # Every old row keeps its id, and so its side of a split and its noise.
    new_test = after.split(0.3)[1]
    ids = np.arange(OLD)
    np.testing.assert_array_equal(new_test.rules[0].keep(ids), old_test.rules[0].keep(ids))
    again = Scan(Assembly(after.augment(sk.augment.GaussianNoise(1.0), copies=1))).block((0,))
    common = np.isin(again.ids, varied.ids)
    np.testing.assert_array_equal(again.X[common], varied.X[np.isin(varied.ids, again.ids)])
    # What was opened before goes on with the rows that were there.
    np.testing.assert_array_equal(read_all(before.source).X, X[:OLD])
