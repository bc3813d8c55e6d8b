"""Parquet datasets as sources: every layout that is read, and the one that is written."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamkern.errors import UsageError
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.testing.source import read_all
from tests.storage.stored_suite import StoredSuite


class ParquetSuite(StoredSuite):
    @pytest.fixture
    def expected_X(self):
        # Row groups of 4 MB, because small ones are read together.
        return np.random.default_rng(0).integers(0, 200, (3500, 3000)).astype(np.uint8)

    @pytest.fixture
    def expected_y(self):
        return np.random.default_rng(0).integers(0, 10, 3500)


class TestTrainingLayout(ParquetSuite):
    def write(self, folder, X, y):
        write_parquet(folder / "rows.parquet", X.reshape(-1, 30, 100), y, target="label")
        return folder / "rows.parquet"

    def opened(self, place):
        return open_tables(place)


class TestListsInSeveralFiles(ParquetSuite):
    def write(self, folder, X, y):
        for part, (a, b) in enumerate([(0, 700), (700, 1000), (1000, 3500)]):
            offsets = np.arange(b - a + 1, dtype=np.int32) * X.shape[1]
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(X[a:b].ravel()))
            pq.write_table(pa.table({"label": y[a:b], "x": lists}), folder / f"part-{part}.parquet", row_group_size=600)
        return folder


class TestFixedSizeListsAndTextTarget(ParquetSuite):
    @pytest.fixture
    def expected_y(self):
        return np.array(["bag", "coat", "shirt", "", "sandal"] * 700, dtype=object)

    def write(self, folder, X, y):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
        table = pa.table({"x": lists, "label": pa.array(y).dictionary_encode()})
        pq.write_table(table, folder / "rows.pq", row_group_size=1000)
        return folder


class TestColumnsAFeature(ParquetSuite):
    @pytest.fixture
    def expected_X(self):
        return np.random.default_rng(0).normal(size=(200_000, 8))

    @pytest.fixture
    def expected_y(self):
        return np.random.default_rng(0).normal(size=200_000) > 0

    def write(self, folder, X, y):
        table = pa.table({"label": y, **{f"c{j}": X[:, j] for j in range(X.shape[1])}})
        pq.write_table(table, folder / "rows.parquet", row_group_size=70_000, compression="none")
        return folder


def write_columns(path, row_group_size=10, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def test_columns_of_several_dtypes_promote(tmp_path):
    mixed = write_columns(
        tmp_path / "b.parquet", a=np.arange(4, dtype=np.uint8), b=np.ones(4, np.float32), c=[True] * 4
    )
    assert open_tables(mixed).dtype == np.float32
    np.testing.assert_array_equal(read_all(open_tables(mixed)).X, [[i, 1, 1] for i in range(4)])


@pytest.mark.parametrize("dtype", [bool, "u1", "i2", "u8", "f2", "f4", "f8"])
def test_feature_dtypes_are_kept(tmp_path, dtype):
    X = np.random.default_rng(0).integers(0, 2, (50, 4)).astype(dtype)
    write_parquet(tmp_path / "a.parquet", X, row_group_rows=13)
    write_columns(tmp_path / "b.parquet", **{f"c{j}": X[:, j] for j in range(4)})
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4)
    write_columns(tmp_path / "c.parquet", x=lists)
    write_columns(tmp_path / "d.parquet", x=lists.cast(pa.large_list(lists.type.value_type)))
    for name in "abcd":
        source = open_tables(tmp_path / f"{name}.parquet")
        assert source.dtype == dtype
        np.testing.assert_array_equal(read_all(source).X, X)


def test_columns_select_and_order_features(tmp_path):
    path = write_columns(tmp_path / "a.parquet", a=[1.0, 2.0], name=["x", "y"], b=[3.0, 4.0], label=[0, 1])
    source = open_tables(path, target="label", columns=["b", "a"])
    assert source.columns == ("b", "a")
    np.testing.assert_array_equal(read_all(source).X, [[3, 1], [4, 2]])
    with pytest.raises(UsageError, match="'label' is given twice"):
        open_tables(path, target="label", columns=["a", "label"])


def test_several_targets_are_outputs(tmp_path):
    X, y = np.arange(12.0).reshape(6, 2), np.arange(18.0).reshape(6, 3)
    write_parquet(tmp_path / "a.parquet", X, y, target="wind")
    source = open_tables(tmp_path / "a.parquet")
    assert source.target.outputs == (3,)
    np.testing.assert_array_equal(read_all(source).y, y)
    one = open_tables(tmp_path / "a.parquet", target=["wind_2", "wind_0"])
    np.testing.assert_array_equal(read_all(one).y, y[:, [2, 0]])


def test_hive_partitions_are_columns_if_asked_for(tmp_path):
    for year, kind in ((9, "a b"), (10, "c")):
        folder = tmp_path / f"year={year}" / f"kind={kind.replace(' ', '%20')}"
        folder.mkdir(parents=True)
        write_columns(folder / "part.parquet", x=np.full(3, float(year)))
    source = open_tables(tmp_path, target="kind")
    assert source.columns == ("x",)
    # Natural order: year 9 comes before year 10.
    assert read_all(source).y.tolist() == ["a b"] * 3 + ["c"] * 3
    source = open_tables(tmp_path, target="year", columns=["x"])
    assert source.target.dtype == np.int64
    np.testing.assert_array_equal(read_all(source).y, [9, 9, 9, 10, 10, 10])
    np.testing.assert_array_equal(read_all(open_tables(tmp_path, columns=["year", "x"])).X[:, 0], [9] * 3 + [10] * 3)
    assert read_all(open_tables(f"{tmp_path}/year=*/*/part.parquet", target="year")).y.tolist() == [9] * 3 + [10] * 3


def test_files_are_in_natural_order_and_others_are_passed_over(tmp_path):
    for part in (1, 2, 10, 11):
        write_columns(tmp_path / f"part-{part}.parquet", x=[float(part)])
    for name in ("_SUCCESS", ".part-3.parquet", "_temporary.parquet", "notes.txt"):
        (tmp_path / name).write_bytes(b"not parquet")
    assert read_all(open_tables(tmp_path)).X.ravel().tolist() == [1, 2, 10, 11]
    assert read_all(open_tables(f"{tmp_path}/part-1*.parquet")).X.ravel().tolist() == [1, 10, 11]
    write_columns(tmp_path / "_12.parquet", x=[12.0])
    assert read_all(open_tables(f"{tmp_path}/_1*.parquet")).X.tolist() == [[12]]


def test_a_chunk_is_a_row_group_small_ones_of_a_file_together(tmp_path):
    for part in range(2):
        write_columns(tmp_path / f"{part}.parquet", row_group_size=1000, x=np.arange(500_500.0), z=np.arange(500_500.0))
    source = open_tables(tmp_path)
    assert 500_500 in source.bounds
    sizes = np.diff(source.bounds) * 16
    assert sizes.max() <= 8 << 20
    assert np.median(sizes) >= 1 << 20
    big = write_columns(
        tmp_path / "big.parquet", row_group_size=1_000_000, x=np.zeros(1_000_000), z=np.zeros(1_000_000)
    )
    assert open_tables(big).bounds.tolist() == [0, 1_000_000]


def test_fixed_size_layouts_are_read_without_a_copy(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 4))
    write_parquet(tmp_path / "a.parquet", X)
    write_columns(
        tmp_path / "b.parquet", row_group_size=50, x=pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4)
    )
    for name in "ab":
        assert not open_tables(tmp_path / f"{name}.parquet").read(0).X.flags.owndata


def test_the_training_layout_says_what_it_holds(tmp_path):
    write_parquet(tmp_path / "a.parquet", np.zeros((50, 3, 2), np.float32), np.arange(50), row_group_rows=20)
    footer = pq.read_metadata(tmp_path / "a.parquet")
    marks = json.loads(footer.metadata[b"streamkern"])
    assert marks == {"format": 1, "dtype": "<f4", "shape": [3, 2], "target": "target", "columns": None}
    assert footer.num_row_groups == 3
    assert not footer.row_group(0).column(0).has_dictionary_page
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_blocks_are_written_as_they_come_and_a_failure_leaves_what_was_there(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(100, 3)), np.array(["a", "bc"] * 50, dtype=object)
    write_parquet(
        tmp_path / "a.parquet", ((X[a : a + 30], y[a : a + 30]) for a in range(0, 100, 30)), row_group_rows=16
    )
    np.testing.assert_array_equal(read_all(open_tables(tmp_path / "a.parquet")).X, X)
    assert read_all(open_tables(tmp_path / "a.parquet")).y.tolist() == y.tolist()

    def blocks():
        yield X, y
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_parquet(tmp_path / "a.parquet", blocks(), row_group_rows=16)
    np.testing.assert_array_equal(read_all(open_tables(tmp_path / "a.parquet")).X, X)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]
