"""Files as nobody means them: without rows among others, and changed between opening and reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
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

WRITE = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "feather": lambda frame, path: frame.to_feather(path),
}


@pytest.mark.parametrize("empty", [{1}, {0}, {2}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize("kind", WRITE)
def test_a_file_without_rows_among_others_is_passed_over(kind: str, empty: set[int], tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(4.0), "c": list("uvuv"), "y": [0.0, 1.0, 0.0, 1.0]})
    for i in range(3):
        WRITE[kind](frame[:0] if i in empty else frame, tmp_path / f"{i}.{kind}")
    if len(empty) == 3:
        with pytest.raises(sk.DataError, match=r"no row|empty"):
            sk.KernelRegressor(centers=2).fit(sk.open_dataset(tmp_path / f"*.{kind}", target="y"))
        return
    source = open_tables([tmp_path / f"*.{kind}"], "y")
    assert int(source.bounds[-1]) == 8
    np.testing.assert_array_equal(read_all(source)[0][:, 0], np.tile(np.arange(4.0), 2))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["columns", "list", "fixed"])
@pytest.mark.parametrize("empty", [{0}, {2}, {4}, {0, 1, 3, 4}, {0, 1, 2, 3, 4}], ids=str)
def test_row_groups_without_rows_are_passed_over(
    empty: set[int], layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, weights, predictions and errors are those of the same file without them."""
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(250, 2))
    kind = {"list": pa.list_(pa.float64()), "fixed": pa.list_(pa.float64(), 2)}.get(layout)
    features = {"a": X[:, 0], "b": X[:, 1]} if kind is None else {"X": pa.array(X.tolist(), kind)}
    text = [f"{i % 3}" * 40 for i in range(250)]
    table = pa.table({**features, "name": text, "y": X[:, 0]})
    parts = [table.slice(50 * i, 50) for i in range(5)]
    for name, groups in {
        "with": [part.slice(0, 0) if i in empty else part for i, part in enumerate(parts)],
        "without": [part for i, part in enumerate(parts) if i not in empty],
    }.items():
        for end, dropped in (("", []), (".rows", ["y"])):
            schema = table.drop_columns(dropped).schema
            with pq.ParquetWriter(tmp_path / f"{name}{end}.parquet", schema) as writer:
                for group in groups:
                    writer.write_table(group.drop_columns(dropped))
    assert pq.ParquetFile(tmp_path / "with.parquet").num_row_groups == 5
    columns = ["a", "b"] if kind is None else ["X"]
    with_, without = (open_tables([tmp_path / f"{name}.parquet"], "y", columns) for name in ("with", "without"))
    np.testing.assert_array_equal(read_all(with_).X, read_all(without).X)
    assert with_.bounds.tolist() == without.bounds.tolist()
    assert with_.reading() == without.reading()
    labelled, named = ({"target": "name"}, {"id": "name"})
    for roles in (labelled, named):
        found = [open_tables([tmp_path / f"{name}.parquet"], columns=columns, **roles) for name in ("with", "without")]
        assert found[0].reading() == found[1].reading()
    data = [sk.open_dataset(tmp_path / f"{name}.parquet", target="y", columns=columns) for name in ("with", "without")]
    if len(empty) == 5:
        with pytest.raises(sk.DataError, match=r"no row|empty"):
            sk.KernelRegressor(centers=2).fit(data[0])
        with pytest.raises(sk.DataError, match="empty"):
            sk.inspect(tmp_path / "with.rows.parquet")
        sk.ingest(tmp_path / "with.parquet", tmp_path / "with.zarr", target="y", columns=columns)
        assert len(sk.open_dataset(tmp_path / "with.zarr", target="y")) == 0
        return
    kept = [
        sk.run(
            sk.Pipeline(rows, sk.Laplace(2.0), sk.Uniform(20), sk.EigenPro(epochs=2, batch=20), task="regression"),
            tmp_path / f"run {i}",
        )["weights_sha256"]
        for i, rows in enumerate(data)
    ]
    assert kept[0] == kept[1]
    made = []
    for name in ("with", "without"):
        model, out = tmp_path / "run 0" / "model.zarr", tmp_path / f"{name}.out.parquet"
        sk.predict(model, tmp_path / f"{name}.rows.parquet", out, id="name")
        made.append(pq.read_table(out))
        sk.ingest(tmp_path / f"{name}.parquet", tmp_path / f"{name}.zarr", target="y", columns=columns, shuffle=True)
    assert made[0].equals(made[1])
    stored = [read_all(open_tables([tmp_path / f"{name}.zarr"], "y")).X for name in ("with", "without")]
    np.testing.assert_array_equal(*stored)
    assert sk.inspect(tmp_path / "with.rows.parquet").facts["rows"] == 50 * (5 - len(empty))


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


NAMES = [
    "",
    " ",
    "x" * 100_000,
    "θ",
    "🌡",
    'a"b',
    "a/b",
    "../x",
    "<b>",
    "prediction",
    "X",
    "id",
    "0",
    "%s",
    "{0}",
    "\u202eg",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:8]))
def test_a_column_may_have_any_name(name: str, tmp_path: Path) -> None:
    U = np.random.default_rng(0).normal(size=(60, 2))
    frame = pd.DataFrame({name: np.where(U[:, 0] > 1, np.nan, U[:, 0]), "c": list("uvw") * 20, "zz": U[:, 1]})
    for kind, write in WRITE.items():
        write(frame, tmp_path / f"t.{kind}")
    model = sk.KernelRegressor("laplace", 5, sk.Direct(), memory="4GiB", threads=1)
    model.fit(sk.open_dataset(tmp_path / "t.csv", target="zz")).save(tmp_path / "m")
    told = model.predict(frame[[name, "c"]])
    for kind in WRITE:
        sk.predict(tmp_path / "m", tmp_path / f"t.{kind}", tmp_path / f"{kind}.parquet", threads=1, memory="4GiB")
        np.testing.assert_array_equal(pq.read_table(tmp_path / f"{kind}.parquet")["prediction"], told)


def written(kind: str, path: Path, n: int) -> Path:
    X = np.random.default_rng(n).normal(size=(n, 2))
    if kind == "h5":
        with h5py.File(path, "w") as file:
            file["X"], file["y"] = X, X[:, 0]
    elif kind == "npz":
        np.savez(path, X=X, y=X[:, 0])
    else:
        WRITE[kind](pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": X[:, 0]}), path)
    return path


@pytest.mark.parametrize("rows", [200, 5, 0], ids=["longer", "shorter", "gone"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "feather", "h5", "npz"])
def test_a_file_that_changes_between_opening_and_reading_is_one_error(kind: str, rows: int, tmp_path: Path) -> None:
    """Feather and HDF5 raised IndexError where a file had become shorter, and read the first rows of a longer one."""
    path = written(kind, tmp_path / f"t.{kind}", 50)
    source = open_tables([path], "y", readers=READERS)
    path.unlink()
    if rows:
        written(kind, path, rows)
    if kind == "npz":
        assert len(read_all(source).X) == 50  # open since then: the rows are those of the file that was there
        return
    with pytest.raises(sk.errors.StorageError) as error:
        read_all(source)
    assert path.name in str(error.value.where)
