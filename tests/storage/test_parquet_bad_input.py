"""Parquet that cannot be used: every fault is one error that names file, row group and column, and says what to do."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamkern.errors import DataError, StorageError, UsageError
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.testing.source import read_all


def write(path, row_group_size=10, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def fails(path, message, kind=DataError, **options):
    with pytest.raises(kind, match=message) as raised:
        read_all(open_tables(path, **options))
    assert raised.value.remedy
    return str(raised.value)


def test_a_null_target_is_named_by_column_file_row_group_and_row(tmp_path):
    columns = {"x": [float(i) for i in range(30)], "label": list(range(30))}
    columns["label"][23] = None
    path = write(tmp_path / "a.parquet", **columns)
    text = fails(path, "column 'label' is null", target="label")
    assert f"{path}, row group 2, row 3 of it (row 23 of the dataset)" in text
    assert "leave out the rows without a target" in text


def test_the_folder_of_nulls_is_a_null_partition_key(tmp_path):
    for name in ("a", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"kind={name}").mkdir()
        write(tmp_path / f"kind={name}" / "part.parquet", x=[1.0, 2.0])
    assert "__HIVE_DEFAULT_PARTITION__" in fails(tmp_path, "column 'kind' is null", target="kind")
    assert open_tables(tmp_path).bounds[-1] == 4


def test_a_null_in_an_unused_column_does_no_harm(tmp_path):
    path = write(tmp_path / "a.parquet", x=[1.0, 2.0], other=[None, 1.0])
    np.testing.assert_array_equal(read_all(open_tables(path, columns=["x"])).X, [[1], [2]])


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32())])
def test_ragged_lists_name_the_first_bad_row(tmp_path, kind):
    rows = [[1.0, 2.0, 3.0]] * 25 + [[1.0, 2.0]] + [[1.0]] * 4
    path = write(tmp_path / "a.parquet", x=pa.array(rows, kind))
    text = fails(path, "column 'x' has 2 values where other rows have 3")
    assert f"{path}, row group 2, row 5 of it (row 25 of the dataset)" in text


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2)])
def test_a_null_inside_a_list_or_for_a_list_is_named(tmp_path, kind):
    path = write(tmp_path / "a.parquet", x=pa.array([[1, 2]] * 12 + [[1, None]], kind))
    assert "row group 1, row 2 of it" in fails(path, "'x' holds a null in its list")
    path = write(tmp_path / "b.parquet", x=pa.array([[1, 2]] * 12 + [None], kind))
    # Before version 25, pyarrow does not read a list of fixed size that is null, and does not say in which row it is.
    assert "row group 1" in fails(path, "'x' is null|lists to be of size", (DataError, StorageError))


@pytest.mark.parametrize("values", [[b"a", b"b"], [{"a": 1}, {"a": 2}], [["a"], ["b"]]])
def test_a_feature_that_is_no_number_is_named_with_a_way_out(tmp_path, values):
    path = write(tmp_path / "a.parquet", x=[1.0, 2.0], name=values)
    text = fails(path, "cannot be a feature")
    assert f"{path}, column 'name'" in text
    assert "leave it out: exclude=[...] (--exclude A,B)" in text


def test_dates_decimals_and_text_are_features_and_a_null_is_missing(tmp_path):
    dates = [datetime.date(1970, 1, 2), None]
    decimals = pa.array(["1.5", None]).cast(pa.decimal128(5, 2))
    source = open_tables(write(tmp_path / "a.parquet", x=["", "b"], when=dates, price=decimals))
    assert [column.kind for column in source.schema.columns] == ["category", "datetime", "number"]
    np.testing.assert_array_equal(read_all(source).X[0], [np.nan, 86_400, 1.5])
    np.testing.assert_array_equal(read_all(source).X[1, 1:], [np.nan, np.nan])


@pytest.mark.parametrize("values", [[datetime.date(2020, 1, 1)] * 2, [[1.0], [2.0]], [b"a", b"b"]])
def test_a_target_that_cannot_be_one_is_named(tmp_path, values):
    fails(write(tmp_path / "a.parquet", x=[1.0, 2.0], when=values), "target 'when' is a column of", target="when")


def test_lists_beside_other_columns_ask_which(tmp_path):
    path = write(tmp_path / "a.parquet", image=[[1.0, 2.0]] * 2, label=[0, 1], weight=[1.0, 1.0])
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
    first = write(tmp_path / "1.parquet", x=np.arange(3.0), label=np.arange(3))
    second = write(tmp_path / "2.parquet", **other)
    assert f"{second} and {first}" in fails(tmp_path, message, target="label")


def test_files_may_differ_in_order_and_in_what_is_not_used(tmp_path):
    write(tmp_path / "1.parquet", x=[1.0], label=[1], a=[1])
    write(tmp_path / "2.parquet", a=["b"], label=[2], x=[2.0])
    rows = read_all(open_tables(tmp_path, target="label", columns=["x"]))
    assert rows.X.ravel().tolist() == rows.y.tolist() == [1, 2]


def test_files_of_the_training_layout_must_hold_the_same_dtype_and_shape(tmp_path):
    write_parquet(tmp_path / "1.parquet", np.zeros((3, 2), np.float32))
    write_parquet(tmp_path / "2.parquet", np.zeros((3, 2), np.int32))
    assert "2.parquet" in fails(tmp_path, "the dtype or shape of their rows differs")


def test_fixed_size_binary_needs_its_dtype_and_shape(tmp_path):
    path = write(tmp_path / "a.parquet", x=pa.array([b"12345678"] * 3, pa.binary(8)))
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
        path = write(tmp_path / "b.parquet", 2500, **{f"c{j}": np.sort(X[:, j].astype(np.int64)) for j in range(40)})
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
    path = write(tmp_path / "rows", x=[1.0])
    assert open_tables(path, format="parquet").bounds.tolist() == [0, 1]


def test_a_place_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(StorageError, match=r"cannot be written(.|\n)*choose another place"):
        write_parquet(tmp_path / "nowhere" / "a.parquet", np.zeros((3, 2)))
    with pytest.raises(UsageError, match="cannot be called 'X'"):
        write_parquet(tmp_path / "a.parquet", np.zeros((3, 2)), np.zeros(3), target="X")
    with pytest.raises(DataError, match="complex128 cannot be used"):
        write_parquet(tmp_path / "a.parquet", np.zeros((3, 2), complex))
    assert list(tmp_path.iterdir()) == []
