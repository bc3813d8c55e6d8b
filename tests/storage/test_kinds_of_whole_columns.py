"""One odd value does not decide a column's kind: kinds come from all values, or from a declared schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamkern as sk
from streamkern.sources.arrow_conversion import as_table, kind_of_array, kind_of_type, table_of_arrays

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
    assert data.source.schema is not None
    assert [column.kind for column in data.source.schema.columns] == ["number", "number"]
    found = np.concatenate([data.source.read(chunk).X for chunk in range(len(data.source.bounds) - 1)])[:, 1]
    np.testing.assert_array_equal(np.sort(found.astype(np.float64)), np.sort(np.repeat([2020.0, value, 2021.0], 2)))


def test_a_partition_key_nan_among_texts_is_a_text(tmp_path: Path) -> None:
    write_folders(tmp_path, "nan", "oslo")
    data = sk.open_dataset(tmp_path, columns=["x", "year"])
    assert data.source.schema is not None
    assert data.source.schema.columns[1].kind == "category"
    assert not data.source.schema.columns[1].missing


def test_digits_of_other_scripts_in_partition_keys_are_texts(tmp_path: Path) -> None:
    write_folders(tmp_path, "٢٠٢٠", "2021")
    data = sk.open_dataset(tmp_path, columns=["x", "year"])
    assert data.source.schema is not None
    assert data.source.schema.columns[1].kind == "category"
    for chunk in range(2):
        data.source.read(chunk)
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
    assert data.source.schema is not None
    assert data.source.schema.columns[0].kind == "category"
    rows = np.concatenate([data.source.read(chunk).X for chunk in range(len(data.source.bounds) - 1)])
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
    assert len(np.unique(np.concatenate([declared.source.read(chunk).X for chunk in range(2)]))) == 4


@pytest.mark.parametrize(
    "values",
    [np.zeros(2, kind) for kind in ("?", "i1", "u8", ">i4", "f2", "f8", ">f8", "M8[D]", "M8[Y]", "M8[ns]", "m8[s]")]
    + [np.array(["a", "b"], kind) for kind in ("U3", "O", np.dtypes.StringDType())],
    ids=lambda values: str(values.dtype),
)
def test_the_kind_of_an_array_is_that_of_the_column_that_it_becomes(values: np.ndarray) -> None:
    assert kind_of_array(values.dtype) == kind_of_type(table_of_arrays({"a": values}).column("a").type)
