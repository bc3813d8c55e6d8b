"""The index that pandas and Dask write beside the columns is no feature, by any door, unless the user names it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import streamkern as sk


def table(n: int = 60) -> pd.DataFrame:
    """Return noise sorted by its label, then shuffled: the index alone tells the label."""
    random = np.random.default_rng(0)
    made = pd.DataFrame({"a": random.normal(size=n), "b": random.normal(size=n), "label": np.arange(n) * 2 // n})
    return made.sample(frac=1, random_state=1)


INDEXES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "unnamed": lambda made: made,
    "named": lambda made: made.rename_axis("row"),
    "multi": lambda made: made.set_index([made.index // 9, made.index % 9]),
    "named multi": lambda made: made.set_index([made.index // 9, made.index % 9]).rename_axis(["day", "hour"]),
}
LEFT_OUT = {
    "unnamed": ("__index_level_0__",),
    "named": ("row",),
    "multi": ("__index_level_0__", "__index_level_1__"),
    "named multi": ("day", "hour"),
}


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask
@pytest.mark.parametrize("door", ["parquet", "feather", "arrow", "dask"])
def test_the_index_is_left_out(tmp_path: Path, index: str, door: str) -> None:
    made, place = INDEXES[index](table()), tmp_path / f"rows.{door}"
    left_out = LEFT_OUT[index]
    if door == "parquet":
        made.to_parquet(place)
    elif door == "feather":
        feather.write_feather(pa.Table.from_pandas(made), place)
    elif door == "dask":
        if "multi" in index:
            pytest.skip("Dask has no indexes of several levels")
        dask.dataframe.from_pandas(made, npartitions=2).to_parquet(place)
        left_out = ("__null_dask_index__",) if index == "unnamed" else left_out
        place = place / "*.parquet"
    if door == "arrow":
        data = sk.from_arrays(pa.Table.from_pandas(made), exclude=["label"])
    else:
        data = sk.open_dataset(place, "label", format="parquet" if door == "dask" else None)
    assert data.columns == ("a", "b")
    assert sorted(data.source.left_out) == sorted(left_out)


@pytest.mark.parametrize("index", INDEXES)
def test_the_nameless_first_columns_of_csv_are_left_out(tmp_path: Path, index: str) -> None:
    INDEXES[index](table()).to_csv(tmp_path / "rows.csv")
    data = sk.open_dataset(tmp_path / "rows.csv", "label")
    if "named" in index.split():
        assert set(data.columns or ()) > {"a", "b"}  # a name that a CSV file does not mark as an index
        return
    assert data.columns == ("a", "b")
    for frame in (pd.read_csv(tmp_path / "rows.csv"), polars.read_csv(tmp_path / "rows.csv")):
        model = sk.KernelClassifier(solver=sk.Direct(), centers=20).fit(frame[["a", "b"]], frame["label"])
        assert sk.from_arrays(frame, exclude=["label"]).columns == ("a", "b")
        whole = sk.KernelClassifier(solver=sk.Direct(), centers=20)
        whole.fit(
            frame.drop(columns="label") if isinstance(frame, pd.DataFrame) else frame.drop("label"), frame["label"]
        )
        assert whole.model_.columns == ("a", "b")
        np.testing.assert_array_equal(whole.predict(frame), model.predict(frame))


def test_polars_reads_the_index_as_a_column_which_is_left_out(tmp_path: Path) -> None:
    table().to_parquet(tmp_path / "rows.parquet")
    frame = polars.read_parquet(tmp_path / "rows.parquet")
    assert sk.from_arrays(frame, exclude=["label"]).columns == ("a", "b")
    model = sk.KernelClassifier(solver=sk.Direct(), centers=20).fit(frame.drop("label"), frame["label"])
    assert model.model_.columns == ("a", "b")


def test_it_is_taken_on_purpose_and_named_where_rows_are_described(tmp_path: Path) -> None:
    table().to_parquet(tmp_path / "rows.parquet")
    path = tmp_path / "rows.parquet"
    assert sk.open_dataset(path, "label", columns=["a", "__index_level_0__"]).columns == ("a", "__index_level_0__")
    assert sk.open_dataset(path, "__index_level_0__").columns == ("a", "b", "label")
    assert "left out  __index_level_0__" in sk.inspect(path, "label").text()
    data = sk.open_dataset(path, "label")
    plan = sk.plan(sk.Pipeline(data, centers=sk.Uniform(20), kernel=sk.Laplace(1.0)), memory="4GiB")
    assert any("left out" in line and "__index_level_0__" in line for line in plan.choices)
    model = sk.KernelClassifier(solver=sk.Direct(), centers=20).fit(data)
    assert any("__index_level_0__" in line for line in model.result_.report["preprocess"])
    sk.ingest([path], tmp_path / "rows.zarr", target="label")
    assert sk.open_dataset(tmp_path / "rows.zarr").columns == ("a", "b")


def test_files_with_and_without_an_index_are_one_table(tmp_path: Path) -> None:
    table().reset_index(drop=True).to_parquet(tmp_path / "part-0.parquet")
    table().to_parquet(tmp_path / "part-1.parquet")
    assert sk.open_dataset(tmp_path, "label").columns == ("a", "b")


def test_damaged_metadata_name_no_index(tmp_path: Path) -> None:
    damaged: list[Any] = [b"{", b"[]", b'{"index_columns": 7}', b'{"index_columns": [{"kind": "range"}]}']
    for metadata in damaged:
        made = pa.table({"a": [1.0, 2.0]}).replace_schema_metadata({b"pandas": metadata})
        pq.write_table(made, tmp_path / "rows.parquet")
        assert sk.open_dataset(tmp_path / "rows.parquet").columns == ("a",)


def test_a_nameless_first_column_of_texts_is_left_out(tmp_path: Path) -> None:
    made = table().rename(index=lambda row: f"row {row}")
    made.to_csv(tmp_path / "rows.csv")
    data = sk.open_dataset(tmp_path / "rows.csv", "label")
    assert (data.columns, data.source.left_out) == (("a", "b"), ("",))
    assert sk.open_dataset(tmp_path / "rows.csv", "label", columns=["", "a"]).columns == ("", "a")


def test_the_index_is_left_out_of_a_file_that_was_read_and_written_again(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "0.csv")
    for i in range(2):
        pd.read_csv(tmp_path / f"{i}.csv").to_csv(tmp_path / f"{i + 1}.csv")
        assert sk.open_dataset(tmp_path / f"{i + 1}.csv", "label").columns == ("a", "b")
    assert sk.from_arrays(pd.read_csv(tmp_path / "2.csv"), exclude=["label"]).columns == ("a", "b")
