"""Files as nobody means them: without rows among others, and changed between opening and reading."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import streamkern as sk
from streamkern.formats.open_tables import open_tables
from streamkern.ingestion.array_files import READERS
from streamkern.testing.source import read_all
from tests.tables import save

TABLES = ["csv", "parquet", "feather"]


@pytest.mark.parametrize("empty", [{1}, {0}, {2}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize("kind", TABLES)
def test_a_file_without_rows_among_others_is_passed_over(kind: str, empty: set[int], tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(4.0), "c": list("uvuv"), "y": [0.0, 1.0, 0.0, 1.0]})
    for i in range(3):
        save(frame[:0] if i in empty else frame, tmp_path / f"{i}.{kind}")
    if len(empty) == 3:
        with pytest.raises(sk.DataError, match=r"no row|empty"):
            sk.KernelRegressor(centers=2).fit(sk.open_dataset(tmp_path / f"*.{kind}", target="y"))
        return
    source = open_tables([tmp_path / f"*.{kind}"], "y")
    assert int(source.bounds[-1]) == 8
    np.testing.assert_array_equal(read_all(source)[0][:, 0], np.tile(np.arange(4.0), 2))


@pytest.mark.parametrize("layout", ["columns", "list", "fixed"])
@pytest.mark.parametrize("empty", [{0}, {2}, {4}, {0, 1, 3, 4}, {0, 1, 2, 3, 4}], ids=str)
def test_row_groups_without_rows_are_passed_over(empty, layout, tmp_path, monkeypatch):
    """Chunks, and what is read of each, are those of the same file without them, whatever the columns are for."""
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)
    X = np.random.default_rng(0).normal(size=(250, 2))
    kind = {"list": pa.list_(pa.float64()), "fixed": pa.list_(pa.float64(), 2)}.get(layout)
    features = {"a": X[:, 0], "b": X[:, 1]} if kind is None else {"X": pa.array(X.tolist(), kind)}
    table = pa.table({**features, "name": [f"{i % 3}" * 40 for i in range(250)], "y": X[:, 0]})
    parts = [table.slice(50 * i, 50) for i in range(5)]
    for name, groups in {
        "with": [part.slice(0, 0) if i in empty else part for i, part in enumerate(parts)],
        "without": [part for i, part in enumerate(parts) if i not in empty],
    }.items():
        with pq.ParquetWriter(tmp_path / f"{name}.parquet", table.schema) as writer:
            for group in groups:
                writer.write_table(group)
    place = tmp_path / "with.parquet"
    assert pq.ParquetFile(place).num_row_groups == 5
    for roles in ({"target": "y"}, {"target": "name"}, {"id": "name"}):
        given: dict[str, Any] = {"columns": list(features), **roles}
        found, expected = (open_tables([tmp_path / f"{name}.parquet"], **given) for name in ("with", "without"))
        assert found.bounds.tolist() == expected.bounds.tolist()
        assert found.reading() == expected.reading()
        for chunk in range(5 - len(empty)):
            for mine, theirs in zip(found.read(chunk), expected.read(chunk), strict=True):
                np.testing.assert_array_equal(mine, theirs)
    if len(empty) < 5:
        assert sk.inspect(place, "y", columns=list(features)).facts["rows"] == 50 * (5 - len(empty))
        return
    with pytest.raises(sk.DataError, match=r"no row|empty"):
        sk.KernelRegressor(centers=2).fit(sk.open_dataset(place, target="y", columns=list(features)))
    with pytest.raises(sk.DataError, match="empty"):
        sk.inspect(place)
    sk.ingest(place, tmp_path / "with.zarr", target="y", columns=list(features))
    assert len(sk.open_dataset(tmp_path / "with.zarr", target="y")) == 0


@pytest.mark.parametrize("kind", ["parquet", "feather", "csv", "table", "batch"])
def test_two_columns_of_one_name_are_one_error(kind: str, tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1.0, 2.0])] * 3, names=["a", "a", "y"])
    given: Any = {"table": table, "batch": table.to_batches()[0]}.get(kind, tmp_path / f"t.{kind}")
    if kind == "parquet":
        pq.write_table(table, given)
    elif kind == "feather":
        feather.write_feather(table, given)
    elif kind == "csv":
        given.write_text("a,a,y\n1,1,0\n")
    with pytest.raises(sk.DataError, match=r"'a'"):
        open_tables([given], "y")


NAMES = ["", " ", "x" * 100_000, "θ", "🌡", 'a"b', "a/b", "../x", "<b>", "prediction", "X", "id", "0", "%s", "{0}"]
NAMES.append("\u202eg")  # which turns the direction of writing


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:8]))
def test_a_column_may_have_any_name(name: str, tmp_path: Path) -> None:
    U = np.random.default_rng(0).normal(size=(60, 2))
    frame = pd.DataFrame({name: np.where(U[:, 0] > 1, np.nan, U[:, 0]), "c": list("uvw") * 20, "zz": U[:, 1]})
    for kind in TABLES:
        save(frame, tmp_path / f"t.{kind}")
    model = sk.KernelRegressor(sk.Laplace("median"), 5, sk.Direct(), memory="4GiB", threads=1)
    model.fit(sk.open_dataset(tmp_path / "t.csv", target="zz")).save(tmp_path / "m")
    told = model.predict(frame[[name, "c"]])
    for kind in TABLES:
        sk.predict(tmp_path / "m", tmp_path / f"t.{kind}", tmp_path / f"{kind}.parquet", threads=1, memory="4GiB")
        np.testing.assert_array_equal(pq.read_table(tmp_path / f"{kind}.parquet")["prediction"], told)


@pytest.mark.parametrize("rows", [200, 5, 0], ids=["longer", "shorter", "gone"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "feather", "h5", "npz", "npy"])
def test_a_file_that_changes_between_opening_and_reading_is_one_error(kind: str, rows: int, tmp_path: Path) -> None:
    """Feather and HDF5 raised IndexError where a file had become shorter, and read the first rows of a longer one."""
    rows_of = lambda n: pd.DataFrame(np.random.default_rng(n).normal(size=(n, 3)), columns=list("aby"))  # noqa: E731
    path = save(rows_of(50), tmp_path / f"t.{kind}")
    source = open_tables([path], None if kind == "npy" else "y", readers=READERS)
    path.unlink()
    if rows:
        save(rows_of(rows), path)
    if kind == "npz":
        assert len(read_all(source).X) == 50  # open since then: the rows are those of the file that was there
        return
    with pytest.raises(sk.errors.StorageError) as error:
        read_all(source)
    assert path.name in str(error.value.where)
