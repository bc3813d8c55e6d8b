"""Types of columns: of kindred files, of all values and not of one odd one, and of those that are refused."""

import datetime
import decimal
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
from streamkern.sources.arrow_conversion import as_table, kind_of_array, kind_of_type, table_of_arrays
from streamkern.testing.source import read_all

DAY = datetime.datetime(2026, 3, 14, 15, 9)
NULLS = pa.nulls(2)
WHOLE, FRACTIONS = pa.array([1, 2]), pa.array([1.5, None])
WORDS = pa.array(["x", "y"])
TIMES = pa.array([DAY, None], pa.timestamp("us"))
PAIRS: dict[str, tuple[Any, Any]] = {
    "nulls and text": (NULLS, WORDS),
    "nulls and whole numbers": (NULLS, WHOLE),
    "nulls and flags": (NULLS, pa.array([True, False])),
    "nulls and times": (NULLS, TIMES),
    "text and large text": (WORDS, pa.array(["x", "z"], pa.large_string())),
    "text and categories": (WORDS, pa.array(["z", "x"]).dictionary_encode()),
    "whole numbers and fractions": (WHOLE, FRACTIONS),
    "whole numbers of two widths": (pa.array([1, 2], pa.int8()), pa.array([1, 3])),
    "whole numbers with and without a sign": (pa.array([1, 2], pa.uint32()), pa.array([-1, 2])),
    "floats of two widths": (pa.array([1, 2], pa.float32()), pa.array([0.1, 0.2])),
    "times of two units": (TIMES.cast(pa.timestamp("ms")), TIMES),
    "dates and times": (pa.array([DAY.date(), None]), TIMES),
    "durations of two units": (pa.array([1, 2], pa.duration("s")), pa.array([1, 2], pa.duration("ms"))),
    "decimals of two scales": (pa.array([decimal.Decimal("1.5")] * 2), pa.array([decimal.Decimal("0.25")] * 2)),
    "decimals and fractions": (pa.array([decimal.Decimal("1.5")] * 2), FRACTIONS),
}


def written(folder: Path, *columns: Any) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{number}.parquet" for number in range(len(columns))]
    for path, column in zip(paths, columns, strict=True):
        pq.write_table(pa.table({"a": [1.0, 2.0], "c": column, "y": [0, 1]}), path)
    return paths


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("pair", PAIRS)
def test_kindred_types_in_one_folder_are_one_column(tmp_path: Path, pair: str, first: int):
    one, other = PAIRS[pair][:: 1 - 2 * first]
    written(tmp_path / "both", one, other)
    source = sk.open_dataset(tmp_path / "both", "y").source
    schema = {column.name: column.kind for column in source.schema.columns}
    alone = {"text": "category", "times": "datetime", "flags": "boolean"}
    assert schema["c"] == next((kind for word, kind in alone.items() if word in pair), "number")
    want: list[float] = []
    for name, column in (("one", one), ("other", other)):
        (path,) = written(tmp_path / name, column)
        kinds = None if column is NULLS else {"c": schema["c"]}
        want += (
            [np.nan] * 2
            if column is NULLS
            else read_all(sk.open_dataset(path, "y", schema=kinds).source).X[:, 1].tolist()
        )
    np.testing.assert_array_equal(read_all(source).X[:, 1], want)
    model = sk.KernelRegressor(kernel=sk.Laplace(1.0), centers=4, solver=sk.Direct(1e-3))
    model.fit(sk.open_dataset(tmp_path / "both", "y"))
    assert np.isfinite(model.predict(sk.open_dataset(tmp_path / "both", "y"))).all()
    assert sk.ingest(tmp_path / "both", tmp_path / "both.zarr", target="y").rows == 4


@pytest.mark.parametrize(
    ("pair", "want"),
    [
        ((WHOLE, pa.array([1.5, 2.5])), [1.0, 2.0, 1.5, 2.5]),
        ((pa.array([1.5, 2.5]), WHOLE), [1.5, 2.5, 1.0, 2.0]),
        ((WORDS, WORDS.dictionary_encode()), ["x", "y", "x", "y"]),
        ((pa.array([1, 2], pa.int8()), pa.array([300, 4])), [1, 2, 300, 4]),
    ],
)
def test_targets_of_kindred_types_are_of_the_wider(tmp_path: Path, pair: Any, want: list[Any]):
    written(tmp_path / "both", *pair)
    source = sk.open_dataset(tmp_path / "both", "c", columns=["a"]).source
    found = [source.read(chunk).y for chunk in range(2)]
    assert [label for part in found for label in part.tolist()] == want
    assert {part.dtype for part in found} == {source.target.dtype}


@pytest.mark.parametrize("pair", [(WHOLE, WORDS), (pa.array([True, False]), WHOLE), (WORDS, TIMES)])
def test_types_of_other_kinds_are_one_error_that_names_both_files(tmp_path: Path, pair: Any):
    written(tmp_path / "both", *pair)
    with pytest.raises(sk.DataError, match=r"column 'c' is (.|\n)*1\.parquet and (.|\n)*0\.parquet"):
        sk.open_dataset(tmp_path / "both", "y")


HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def write_folders(place: Path, *keys: str) -> None:
    """Write two rows into the folder of each key."""
    for key in keys:
        (place / f"year={key}").mkdir()
        pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), place / f"year={key}" / "part.parquet")


@pytest.mark.parametrize(
    ("odd", "value"),
    [(HIVE_NULL, np.nan), ("12345678901234567890", 12345678901234567890.0), ("2020.5", 2020.5), ("-3", -3.0),
     ("123456789012345678901", 123456789012345678901.0), ("nan", np.nan), ("NaN", np.nan), ("1e-05", 1e-5)],
)  # fmt: skip
def test_a_partition_key_of_numbers_stays_one(tmp_path: Path, odd: str, value: float) -> None:
    write_folders(tmp_path, "2020", odd, "2021")
    data = sk.open_dataset(tmp_path, "y", columns=["x", "year"])
    assert [column.kind for column in data.source.schema.columns] == ["number", "number"]
    found = read_all(data.source).X[:, 1]
    np.testing.assert_array_equal(np.sort(found.astype(np.float64)), np.sort(np.repeat([2020.0, value, 2021.0], 2)))


def test_a_partition_key_nan_among_texts_is_a_text(tmp_path: Path) -> None:
    write_folders(tmp_path, "nan", "oslo")
    data = sk.open_dataset(tmp_path, columns=["x", "year"])
    assert data.source.schema.columns[1].kind == "category"
    assert not data.source.schema.columns[1].missing


def test_digits_of_other_scripts_in_partition_keys_are_texts(tmp_path: Path) -> None:
    write_folders(tmp_path, "٢٠٢٠", "2021")
    data = sk.open_dataset(tmp_path, columns=["x", "year"])
    assert data.source.schema.columns[1].kind == "category"
    read_all(data.source)
    assert set(data.source.words(1).values()) == {"٢٠٢٠", "2021"}


NUMBERS: list[tuple[list[Any], str]] = [
    ([1, 2**64], "decimal128(38, 0)"),
    ([1, 2**64 - 1], "uint64"),
    ([1, None, 2**64], "decimal128(38, 0)"),
    ([-1, 2**63], "decimal128(38, 0)"),
    ([1.5, 2**64], "double"),
    ([1, 10**40], "double"),
    ([np.int64(1), np.nan, 2**65], "decimal128(38, 0)"),
]


@pytest.mark.parametrize(("values", "kind"), NUMBERS)
def test_one_large_number_does_not_make_numbers_text(values: list[Any], kind: str) -> None:
    other = list(range(len(values)))
    editions = [
        {"a": values, "b": other},
        [{"a": a, "b": b} for a, b in zip(values, other, strict=True)],
        pd.DataFrame({"a": pd.Series(values, dtype=object), "b": other}),
        np.array([values, other], dtype=object).T,
    ]
    rows = as_table([list(pair) for pair in zip(values, other, strict=True)], ["a", "b"])
    assert str(rows.schema.field("a").type) == kind
    for edition in editions:
        table = as_table(edition, None if isinstance(edition, dict) else ["a", "b"])
        assert str(table.schema.field("a").type) == kind
        data = sk.from_arrays(edition, columns=["a", "b"])
        expected = [np.nan if value is None else float(value) for value in values]
        np.testing.assert_array_equal(data.source.read(0).X[:, 0].astype(np.float64), expected)


def test_values_of_other_types_are_texts_as_before() -> None:
    assert as_table({"a": [True, 2**64]}).schema.field("a").type == pa.string()
    assert as_table({"a": ["x", 2**64]}).schema.field("a").type == pa.string()


def test_labels_beyond_float64_are_whole_or_refused(tmp_path: Path) -> None:
    large = [2**63 + k for k in range(4)]
    table = pa.table({"x": np.arange(8.0), "y": pa.array(large * 2, pa.uint64())})
    pq.write_table(table, tmp_path / "rows.parquet")
    model = sk.KernelClassifier(solver=sk.Direct(), centers=8).fit(sk.open_dataset(tmp_path / "rows.parquet", "y"))
    assert model.classes_.tolist() == large
    decimals = table.set_column(1, "y", pa.array([10**20 + k for k in range(8)], pa.decimal128(38, 0)))
    pq.write_table(decimals, tmp_path / "rows.parquet")
    with pytest.raises(sk.DataError, match="100000000000000000000"):
        sk.open_dataset(tmp_path / "rows.parquet", "y").source.read(0)


@pytest.mark.parametrize("labels", [[-1, 2**63, 2**63 + 1], [2**64, 2**64 + 1, 5]])
def test_labels_in_a_list_stay_apart_or_are_refused(labels: list[int]) -> None:
    X = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(sk.DataError, match="digits"):
        sk.KernelClassifier(solver=sk.Direct(), centers=8).fit(X, labels * 10)


def test_a_first_file_without_values_leaves_the_kind_to_the_others(tmp_path: Path) -> None:
    for part, towns in enumerate([[None] * 4, ["Oslo", "Rome", None, "Rome"], [None] * 4]):
        frame = pd.DataFrame({"town": towns, "x": np.arange(4.0) + part, "y": np.arange(4) % 2})
        frame.to_csv(tmp_path / f"part-{part}.csv", index=False)
    data = sk.open_dataset(tmp_path / "part-*.csv", "y")
    assert data.source.schema.columns[0].kind == "category"
    rows = read_all(data.source).X
    assert np.isnan(rows[:, 0]).tolist() == [True] * 4 + [False, False, True, False] + [True] * 4
    assert rows[5, 0] == rows[7, 0] != rows[4, 0]
    frames = [pd.read_csv(tmp_path / f"part-{part}.csv") for part in range(3)]
    frames[0]["town"] = frames[0]["town"].astype(object)
    sk.ingest(frames, tmp_path / "rows.zarr", target="y")
    assert sk.open_dataset(tmp_path / "rows.zarr").source.text == ("town",)


def test_files_that_contradict_each_other_are_an_error_that_names_schema(tmp_path: Path) -> None:
    for part, values in enumerate([[1, 2], ["Oslo", "Rome"]]):
        pd.DataFrame({"c": values, "y": [0, 1]}).to_csv(tmp_path / f"part-{part}.csv", index=False)
    data = sk.open_dataset(tmp_path / "part-*.csv", "y")
    with pytest.raises(sk.DataError, match=r"(?s)Oslo.*schema=\{'c': \"category\"\}"):
        data.source.read(1)
    declared = sk.open_dataset(tmp_path / "part-*.csv", "y", schema={"c": "category"})
    assert len(np.unique(read_all(declared.source).X)) == 4


@pytest.mark.parametrize(
    "values",
    [np.zeros(2, kind) for kind in ("?", "i1", "u8", ">i4", "f2", "f8", ">f8", "M8[D]", "M8[Y]", "M8[ns]", "m8[s]")]
    + [np.array(["a", "b"], kind) for kind in ("U3", "O", np.dtypes.StringDType())],
    ids=lambda values: str(values.dtype),
)
def test_the_kind_of_an_array_is_that_of_the_column_that_it_becomes(values: np.ndarray) -> None:
    assert kind_of_array(values.dtype) == kind_of_type(table_of_arrays({"a": values}).column("a").type)


N = 12
X = np.arange(N) / 2
RECORDS = np.zeros(N, dtype=[("a", "f8"), ("b", "i4"), ("c", "U3")])
RECORDS["a"], RECORDS["b"], RECORDS["c"] = X, np.arange(N), ["u", "v"] * 6
LIKE: dict[str, Any] = {"kernel": sk.Laplace(2.0), "centers": sk.Uniform(6), "solver": sk.Direct(1e-3)}


def column(data: sk.Dataset, name: str) -> tuple[str, list[float]]:
    at = data.source.schema.names.index(name)
    return data.source.schema.columns[at].kind, read_all(data.source).X[:, at].tolist()


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
