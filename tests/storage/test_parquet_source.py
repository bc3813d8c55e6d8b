"""Parquet data sets as sources: every layout that is read, the one that is written, and faults, which name a place."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamkern.errors import DataError, StorageError, UsageError
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


def fails(path, message, kind=DataError, **options):
    with pytest.raises(kind, match=message) as raised:
        read_all(open_tables(path, **options))
    assert raised.value.remedy
    return str(raised.value)


def test_a_null_target_is_named_by_column_file_row_group_and_row(tmp_path):
    columns = {"x": [float(i) for i in range(30)], "label": list(range(30))}
    columns["label"][23] = None
    path = write_columns(tmp_path / "a.parquet", **columns)
    text = fails(path, "column 'label' is null", target="label")
    assert f"{path}, row group 2, row 3 of it (row 23 of the dataset)" in text
    assert "leave out the rows without a target" in text


def test_the_folder_of_nulls_is_a_null_partition_key(tmp_path):
    for name in ("a", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"kind={name}").mkdir()
        write_columns(tmp_path / f"kind={name}" / "part.parquet", x=[1.0, 2.0])
    assert "__HIVE_DEFAULT_PARTITION__" in fails(tmp_path, "column 'kind' is null", target="kind")
    assert open_tables(tmp_path).bounds[-1] == 4


def test_a_null_in_an_unused_column_does_no_harm(tmp_path):
    path = write_columns(tmp_path / "a.parquet", x=[1.0, 2.0], other=[None, 1.0])
    np.testing.assert_array_equal(read_all(open_tables(path, columns=["x"])).X, [[1], [2]])


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32())])
def test_ragged_lists_name_the_first_bad_row(tmp_path, kind):
    rows = [[1.0, 2.0, 3.0]] * 25 + [[1.0, 2.0]] + [[1.0]] * 4
    path = write_columns(tmp_path / "a.parquet", x=pa.array(rows, kind))
    text = fails(path, "column 'x' has 2 values where other rows have 3")
    assert f"{path}, row group 2, row 5 of it (row 25 of the dataset)" in text


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2)])
def test_a_null_inside_a_list_or_for_a_list_is_named(tmp_path, kind):
    path = write_columns(tmp_path / "a.parquet", x=pa.array([[1, 2]] * 12 + [[1, None]], kind))
    assert "row group 1, row 2 of it" in fails(path, "'x' holds a null in its list")
    path = write_columns(tmp_path / "b.parquet", x=pa.array([[1, 2]] * 12 + [None], kind))
    # Before version 25, pyarrow does not read a list of fixed size that is null, and does not say in which row it is.
    assert "row group 1" in fails(path, "'x' is null|lists to be of size", (DataError, StorageError))


@pytest.mark.parametrize("values", [[b"a", b"b"], [{"a": 1}, {"a": 2}], [["a"], ["b"]]])
def test_a_feature_that_is_no_number_is_named_with_a_way_out(tmp_path, values):
    path = write_columns(tmp_path / "a.parquet", x=[1.0, 2.0], name=values)
    text = fails(path, "cannot be a feature")
    assert f"{path}, column 'name'" in text
    assert "leave it out: exclude=[...] (--exclude A,B)" in text


def test_dates_decimals_and_text_are_features_and_a_null_is_missing(tmp_path):
    dates = [datetime.date(1970, 1, 2), None]
    decimals = pa.array(["1.5", None]).cast(pa.decimal128(5, 2))
    source = open_tables(write_columns(tmp_path / "a.parquet", x=["", "b"], when=dates, price=decimals))
    assert [column.kind for column in source.schema.columns] == ["category", "datetime", "number"]
    np.testing.assert_array_equal(read_all(source).X[0], [np.nan, 86_400, 1.5])
    np.testing.assert_array_equal(read_all(source).X[1, 1:], [np.nan, np.nan])


@pytest.mark.parametrize("values", [[datetime.date(2020, 1, 1)] * 2, [[1.0], [2.0]], [b"a", b"b"]])
def test_a_target_that_cannot_be_one_is_named(tmp_path, values):
    fails(
        write_columns(tmp_path / "a.parquet", x=[1.0, 2.0], when=values), "target 'when' is a column of", target="when"
    )


def test_lists_beside_other_columns_ask_which(tmp_path):
    path = write_columns(tmp_path / "a.parquet", image=[[1.0, 2.0]] * 2, label=[0, 1], weight=[1.0, 1.0])
    assert "columns=['image']" in fails(path, "'image' holds a row's features, and there are other", target="label")
    assert open_tables(path, target="label", columns=["image"]).n_features == 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"x": np.arange(3) > 1, "label": np.arange(3)}, "column 'x' is bool and double"),
        ({"label": np.arange(3)}, "column 'x' is missing and double"),
        ({"x": np.arange(3.0), "label": np.arange(3), "z": np.arange(3.0)}, "column 'z' is double and missing"),
        ({"x": np.arange(3.0), "label": ["a", "b", "c"]}, "column 'label' is string and int64"),
    ],
)
def test_files_that_differ_are_both_named(tmp_path, other, message):
    first = write_columns(tmp_path / "1.parquet", x=np.arange(3.0), label=np.arange(3))
    second = write_columns(tmp_path / "2.parquet", **other)
    assert f"{second} and {first}" in fails(tmp_path, message, target="label")


def test_files_may_differ_in_order_and_in_what_is_not_used(tmp_path):
    write_columns(tmp_path / "1.parquet", x=[1.0], label=[1], a=[1])
    write_columns(tmp_path / "2.parquet", a=["b"], label=[2], x=[2.0])
    rows = read_all(open_tables(tmp_path, target="label", columns=["x"]))
    assert rows.X.ravel().tolist() == rows.y.tolist() == [1, 2]


def test_files_of_the_training_layout_must_hold_the_same_dtype_and_shape(tmp_path):
    write_parquet(tmp_path / "1.parquet", np.zeros((3, 2), np.float32))
    write_parquet(tmp_path / "2.parquet", np.zeros((3, 2), np.int32))
    assert "2.parquet" in fails(tmp_path, "the dtype or shape of their rows differs")


def test_fixed_size_binary_needs_its_dtype_and_shape(tmp_path):
    path = write_columns(tmp_path / "a.parquet", x=pa.array([b"12345678"] * 3, pa.binary(8)))
    assert '"dtype"' in fails(path, "without a matching dtype and shape")


@pytest.fixture
def dataset(tmp_path):
    X = np.random.default_rng(0).integers(0, 255, (6000, 2000)).astype(np.uint8)
    path = tmp_path / "a.parquet"
    write_parquet(path, X, np.arange(6000))
    return path, X


@pytest.mark.parametrize("layout", ["streamkern", "snappy columns"])
def test_a_corrupt_page_is_named_by_file_and_row_group(tmp_path, dataset, layout):
    path, X = dataset
    if layout == "snappy columns":
        path = write_columns(
            tmp_path / "b.parquet", 2500, **{f"c{j}": np.sort(X[:, j].astype(np.int64)) for j in range(40)}
        )
    footer = pq.read_metadata(path)
    whole = bytearray(path.read_bytes())
    column = footer.row_group(1).column(0)
    middle = column.data_page_offset + column.total_compressed_size // 2
    whole[middle : middle + 8] = b"\xff" * 8
    path.write_bytes(whole)
    source = open_tables(path)
    with pytest.raises(StorageError, match=f"{path}, row group 1") as raised:
        read_all(source)
    assert "row group 1 cannot be read" in str(raised.value)
    assert "restore it from a copy" in str(raised.value)


@pytest.mark.parametrize("size", [0, 5, 11, 4000, -1])
def test_a_truncated_file_is_named_when_it_is_opened(dataset, size):
    path, _ = dataset
    path.write_bytes(path.read_bytes()[:size])
    text = fails(path, "no readable footer", StorageError)
    assert str(path) in text
    assert "truncated" in text


def test_an_unknown_path_says_what_was_looked_for(tmp_path):
    with pytest.raises(StorageError, match=r"zarr\.json(.|\n)*\*\.parquet(.|\n)*relative paths"):
        open_tables(tmp_path / "nothing")
    with pytest.raises(StorageError, match=r"neither zarr nor parquet(.|\n)*format='parquet'"):
        open_tables(tmp_path)
    with pytest.raises(UsageError, match=r"'csv' is not known(.|\n)*'zarr' or 'parquet'"):
        open_tables(tmp_path, format="csv")
    path = write_columns(tmp_path / "rows", x=[1.0])
    assert open_tables(path, format="parquet").bounds.tolist() == [0, 1]


def test_a_place_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(StorageError, match=r"cannot be written(.|\n)*choose another place"):
        write_parquet(tmp_path / "nowhere" / "a.parquet", np.zeros((3, 2)))
    with pytest.raises(UsageError, match="cannot be called 'X'"):
        write_parquet(tmp_path / "a.parquet", np.zeros((3, 2)), np.zeros(3), target="X")
    with pytest.raises(DataError, match="complex128 cannot be used"):
        write_parquet(tmp_path / "a.parquet", np.zeros((3, 2), complex))
    assert list(tmp_path.iterdir()) == []
