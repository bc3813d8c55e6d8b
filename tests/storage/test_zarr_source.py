"""Zarr groups and arrays as sources: every layout that is read, and the one that is written."""

from __future__ import annotations

import itertools
import pickle
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

from streamkern.errors import DataError, StorageError, UsageError
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.formats.training_zarr import write_zarr
from streamkern.testing.source import read_all
from tests.storage.stored_suite import StoredSuite

open_zarr = partial(open_tables, format="zarr")


class TestTrainingLayout(StoredSuite):
    @pytest.fixture
    def expected_X(self):
        return np.random.default_rng(0).integers(0, 255, (3000, 3072)).astype(np.uint8)

    @pytest.fixture
    def expected_y(self):
        return np.random.default_rng(0).integers(0, 10, 3000)

    def write(self, folder, X, y):
        write_zarr(folder / "rows.zarr", X.reshape(-1, 32, 32, 3), y, target="label", overwrite=True)
        return folder / "rows.zarr"

    def opened(self, place):
        return open_zarr(place)


class TestVersion2ColumnsAFeature(StoredSuite):
    @pytest.fixture
    def expected_X(self):
        return np.random.default_rng(0).normal(size=(600_001, 5))

    @pytest.fixture
    def expected_y(self):
        return np.random.default_rng(0).normal(size=600_001) > 0

    def write(self, folder, X, y):
        group = zarr.create_group(folder / "rows.zarr", zarr_format=2, overwrite=True)
        for j in range(5):
            stored = group.create_array(f"c{j}", shape=len(X), chunks=10_000 * (1 + j % 2), dtype=">f8")
            stored[:] = X[:, j]
        stored = group.create_array("label", shape=len(y), chunks=len(y), dtype=bool)
        stored[:] = y
        return folder / "rows.zarr"


class TestShards(StoredSuite):
    @pytest.fixture
    def expected_y(self):
        return np.random.default_rng(0).normal(size=(101, 3))

    def write(self, folder, X, y):
        group = zarr.create_group(folder / "rows.zarr", overwrite=True)
        # The second axis is cut too, and the last shard goes past the last row.
        stored = group.create_array("X", shape=X.shape, shards=(24, 6), chunks=(8, 3), dtype=X.dtype)
        stored[:] = X
        group.create_array("label", data=y, chunks=(90, 2))
        return folder / "rows.zarr"


class TestRemoteStore(StoredSuite):
    facets: ClassVar[dict[str, Any]] = {"remote": True}

    @pytest.fixture
    def expected_y(self):
        return np.array(["shirt", "sandal", ""] * 33 + ["bag", "coat"], dtype=object)

    @pytest.fixture(autouse=True)
    def _small_chunks(self, monkeypatch):
        monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)

    def write(self, folder, X, y):
        place = f"memory://{folder}/rows.zarr"
        write_zarr(place, X, y, target="label", columns=list("abcdef"), chunk_rows=30, overwrite=True)
        return place


@pytest.fixture
def group(tmp_path):
    return zarr.create_group(str(tmp_path / "g.zarr"))


def fill(group, **arrays):
    for name, values in arrays.items():
        group.create_array(name, data=np.asarray(values))
    return group.store.root


def test_an_array_alone_is_features(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 3))
    zarr.create_array(str(tmp_path / "a"), data=X, chunks=(7, 3))
    source = open_tables(tmp_path / "a")
    np.testing.assert_array_equal(read_all(source).X, X)
    with pytest.raises(DataError, match=r"this is one array(.|\n)*open the group"):
        open_zarr(tmp_path / "a", target="label")


@pytest.mark.parametrize("name", ["X", "features", "data", "images"])
def test_conventional_names_are_preferred(group, name):
    path = fill(group, **{name: np.ones((4, 2)), "other": np.zeros((4, 3)), "y": np.arange(4)})
    source = open_zarr(path, target="y")
    assert source.n_features == 2
    np.testing.assert_array_equal(read_all(source).y, np.arange(4))


def test_which_array_holds_the_features_must_be_clear(group):
    path = fill(group, left=np.ones((4, 2)), right=np.zeros((4, 3)))
    with pytest.raises(DataError, match=r"left, right(.|\n)*columns=\['left'\]"):
        open_zarr(path)
    assert open_zarr(path, columns=["right"]).n_features == 3


def test_columns_select_and_order_features(group):
    path = fill(group, a=[1.0, 2.0], b=np.array([3, 4], np.int32), label=np.array([0, 1]), note=np.array([1j, 2j]))
    source = open_zarr(path, target="label", columns=["b", "a"])
    assert source.columns == ("b", "a")
    np.testing.assert_array_equal(read_all(source).X, [[3, 1], [4, 2]])
    with pytest.raises(DataError, match=r"dtype complex128(.|\n)*array note(.|\n)*columns="):
        open_zarr(path, target="label")
    with pytest.raises(DataError, match="'A' is not there"):
        open_zarr(path, target="label", columns=["A"])


@pytest.mark.parametrize(("write", "end"), [(write_zarr, "zarr"), (write_parquet, "parquet")])
def test_columns_of_the_training_layout_are_chosen_by_name(tmp_path, write, end):
    X, path = np.arange(12.0).reshape(3, 4), tmp_path / f"a.{end}"
    write(path, X, columns=["north", "east", "south", "west"])
    source = open_tables(path, columns=["west", "east"])
    assert source.columns == ("west", "east")
    np.testing.assert_array_equal(read_all(source).X, X[:, [3, 1]])
    with pytest.raises(DataError, match=r"'nort' is not there(.|\n)*did you mean 'north'"):
        open_tables(path, columns=["nort"])
    with pytest.raises(UsageError, match="'west' is given twice"):
        open_tables(path, columns=["west", "west"])
    write(tmp_path / f"b.{end}", X)
    with pytest.raises(UsageError, match="have no names"):
        open_tables(tmp_path / f"b.{end}", columns=["west"])


def test_a_default_target_can_be_named_in_the_attributes(group):
    path = fill(group, X=np.ones((4, 2)), label=np.arange(4), weight=np.ones(4))
    assert open_zarr(path).target is None
    group.attrs["streamkern"] = {"target": "label"}
    assert open_zarr(path).target.name == "label"
    assert open_zarr(path, target="weight").target.name == "weight"


def test_reads_are_stored_chunks_small_ones_together_never_across_shards(group):
    group.create_array("X", shape=(100_000, 64), chunks=(1000, 64), shards=(30_000, 64), dtype="f4")
    bounds = open_zarr(group.store.root).bounds
    assert set(range(0, 100_000, 30_000)) <= set(bounds.tolist())
    assert (bounds % 1000 == 0).all()
    sizes = np.diff(bounds) * 64 * 4
    assert sizes.max() <= 8 << 20
    assert np.median(sizes) >= 1 << 20
    big = zarr.create_array(group.store.root / "big", shape=(100, 1000, 1000), chunks=(3, 500, 1000), dtype="f4")
    assert np.diff(open_zarr(group.store.root / "big").bounds).max() == 3
    assert big.nchunks == 68


def test_blocks_are_written_as_they_come(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100)
    cuts = [0, 1, 40, 40, 63, 100]
    blocks = ((X[a:b], y[a:b]) for a, b in itertools.pairwise(cuts))
    write_zarr(tmp_path / "a.zarr", blocks, n_rows=100, chunk_rows=16)
    rows = read_all(open_zarr(tmp_path / "a.zarr"))
    np.testing.assert_array_equal(rows.X, X)
    np.testing.assert_array_equal(rows.y, y)
    stored = zarr.open_group(tmp_path / "a.zarr", mode="r")
    assert stored["X"].chunks == (16, 3)
    assert stored.attrs["streamkern"] == {"format": 1, "target": "target", "columns": None, "complete": True}


@pytest.mark.parametrize(("n_rows", "message"), [(99, "at least 1"), (101, "hold 100 rows")])
def test_a_wrong_number_of_rows_leaves_a_group_that_is_refused(tmp_path, n_rows, message):
    X = np.zeros((100, 3))
    with pytest.raises(DataError, match=message):
        write_zarr(tmp_path / "a.zarr", iter([(X[:50], None), (X[50:], None)]), n_rows=n_rows)
    with pytest.raises(StorageError, match=r"half-written(.|\n)*write it again"):
        open_zarr(tmp_path / "a.zarr")
    write_zarr(tmp_path / "a.zarr", X, overwrite=True)
    assert open_zarr(tmp_path / "a.zarr").bounds[-1] == 100


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_whole_chunks_are_read_in_the_thread_that_wants_them_and_aligned(tmp_path, monkeypatch, dtype, checksum):
    X = (1000 * np.random.default_rng(0).random((23, 700))).astype(dtype)  # floats that are not compressed
    write_zarr(tmp_path / "a.zarr", X, np.arange(23), chunk_rows=5, checksum=checksum)
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)
    source = open_zarr(tmp_path / "a.zarr")
    monkeypatch.setattr(LocalStore, "get", None)  # which the threads of zarr's loop would call
    found = read_all(source)
    np.testing.assert_array_equal(found.X, X, strict=True)
    np.testing.assert_array_equal(found.y, np.arange(23))
    assert all(source.read(chunk).X.flags.aligned for chunk in range(5))


def test_what_is_there_is_not_overwritten_unasked(tmp_path):
    X = np.ones((5, 3))
    write_zarr(tmp_path / "a.zarr", X)
    with pytest.raises(StorageError, match=r"this path already exists(.|\n)*overwrite=True"):
        write_zarr(tmp_path / "a.zarr", 2 * X)
    np.testing.assert_array_equal(read_all(open_zarr(tmp_path / "a.zarr")).X, X)
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("ten years")
    with pytest.raises(StorageError):
        write_zarr(home, X, overwrite=True)
    assert (home / "thesis.tex").read_text() == "ten years"


def test_labels_in_one_long_chunk_are_decoded_once_and_not_pickled(tmp_path, monkeypatch):
    group = zarr.create_group(str(tmp_path / "a.zarr"))
    group.create_array("X", data=np.zeros((3_000, 1000)), chunks=(250, 1000), config={"write_empty_chunks": True})
    group.create_array("y", data=np.random.default_rng(0).normal(size=3_000), chunks=3_000)
    source = open_zarr(tmp_path / "a.zarr", target="y")
    size = len(pickle.dumps(source))
    reads = []
    read = type(source._stored["y"]).read

    def counted(self, a, b):
        reads.append((self.array.basename, a, b))
        return read(self, a, b)

    monkeypatch.setattr(type(source._stored["y"]), "read", counted)
    read_all(source)
    assert reads.count(("y", 0, 3_000)) == 1
    assert len(pickle.dumps(source)) < size + 1000
