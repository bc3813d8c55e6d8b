"""A large row group is decoded some rows at a time: the same rows, the same errors, and less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamkern.errors import CorruptChunkError, DataError
from streamkern.formats import parquet
from streamkern.formats.open_tables import open_tables
from streamkern.sources import remote_store
from streamkern.sources.base import Source

N = 1000
MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    whole = pa.array([None if i % 97 == 50 else i for i in range(N)])
    table = {
        "a": rng.normal(size=N), "whole": whole, "flag": rng.random(N) < 0.5,
        "town": [f"town {i % 30}" for i in range(N)], "day": pa.array(np.arange(N, dtype=np.int32), pa.date32()),
        "label": [f"label {i % 7}" for i in range(N)], "w": rng.random(N), "y": np.arange(N) % 3,
        "id": [f"{i:05}" for i in range(N)],
    }  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    return str(tmp_path / "rows.parquet")


def by(rows: int, monkeypatch: pytest.MonkeyPatch, path: str, *args: Any, **options: Any) -> Source:
    """Open a file whose row groups are decoded so many rows at a time."""
    monkeypatch.setattr(parquet, "rows_per_chunk", lambda size: rows)
    source = open_tables([path], *args, **options)
    assert len(source.bounds) == 2
    return source


FEATURES = ["a", "whole", "flag", "town", "day"]


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("label", {"columns": FEATURES, "weight": "w"}),
        ("y", {"columns": FEATURES}),
        (None, {"columns": ["y", "flag"]}),
        (None, {"columns": FEATURES, "id": "id"}),
        (["a", "w"], {"columns": ["whole"]}),
        ("whole", {"columns": ["a"], "lenient": True}),
    ],
)
def test_rows_of_some_at_a_time_are_those_of_all(
    target: Any, options: dict[str, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = by(N, monkeypatch, path, target, **options).read(0)
    for rows in (1, 64, 333, N - 1):
        found = by(rows, monkeypatch, path, target, **options)
        for mine, theirs in zip(found.read(0), whole, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert mine.dtype == theirs.dtype
                np.testing.assert_array_equal(mine, theirs)


def test_labels_are_shared_by_all_rows_of_a_row_group(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    y = by(64, monkeypatch, path, "label", columns=["a"]).read(0).y
    assert y is not None
    assert len({id(text) for text in y}) == 7


@pytest.mark.parametrize("kind", [pa.binary(16), pa.list_(pa.float64(), 2), pa.list_(pa.float64())])
def test_one_column_of_all_features_is_read_in_parts(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).normal(size=(N, 2))
    if pa.types.is_fixed_size_binary(kind):
        values = pa.array([row.tobytes() for row in X], kind)
        notes = {b"streamkern": b'{"format": 1, "dtype": "<f8", "shape": [2], "target": null, "columns": null}'}
    else:
        values, notes = pa.array(X.tolist(), kind), {}
    pq.write_table(pa.table({"X": values}).replace_schema_metadata(notes), tmp_path / "rows.parquet")
    np.testing.assert_array_equal(by(64, monkeypatch, str(tmp_path / "rows.parquet")).read(0).X, X)


def test_an_error_names_the_row_in_its_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values, kinds = ["1"] * N, {"schema": {"a": "number"}}
    values[700] = "much"
    y = [None if i == 900 else 1.0 for i in range(N)]
    pq.write_table(pa.table({"a": values, "b": np.ones(N), "y": y}), tmp_path / "r.parquet")
    with pytest.raises(DataError, match=r"(?s)'much'.*row 700 of it"):
        by(64, monkeypatch, str(tmp_path / "r.parquet"), **kinds).read(0)
    with pytest.raises(DataError, match=r"(?s)'y' is null.*row 900 of it"):
        by(64, monkeypatch, str(tmp_path / "r.parquet"), "y", columns=["b"]).read(0)
    w = [-1.0 if i == 800 else 1.0 for i in range(N)]
    pq.write_table(pa.table({"a": np.ones(N), "w": w}), tmp_path / "w.parquet")
    with pytest.raises(DataError, match=r"(?s)the weight is -1.*row 800 of it"):
        by(64, monkeypatch, str(tmp_path / "w.parquet"), weight="w").read(0)


def test_a_page_that_does_not_decode_is_read_again_and_then_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, failures = by(N, monkeypatch, path, columns=["a"]).read(0).X, [0]
    made = pq.ParquetFile.iter_batches

    def failing(self: Any, *args: Any, **options: Any) -> Any:
        for number, batch in enumerate(made(self, *args, **options)):
            if number == 5 and failures[0]:
                failures[0] -= 1
                raise OSError("a page does not decode")
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing)
    source = by(64, monkeypatch, path, columns=["a"])
    failures[0] = remote_store._MAX_READS - 1
    np.testing.assert_array_equal(source.read(0).X, whole)
    failures[0] = remote_store._MAX_READS
    with pytest.raises(CorruptChunkError, match="row group 0 cannot be read"):
        source.read(0)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_a_row_group_takes_its_rows_and_some_pages(compression: str, version: str, tmp_path: Path) -> None:
    """Not its rows twice, nor all of its pages: those of a column follow one another."""
    X = np.random.default_rng(0).normal(size=(400_000, 10))
    table, path = pa.table({f"f{j}": X[:, j] for j in range(10)}), str(tmp_path / "r.parquet")
    options = {"compression": compression, "data_page_version": version, "use_dictionary": False}
    if "max_rows_per_page" in (pq.ParquetWriter.__doc__ or ""):  # of later versions of Arrow
        options["max_rows_per_page"] = len(X)
    for page, pages in ((1 << 20, 20), (1 << 24, 61)):
        pq.write_table(table, path, data_page_size=page, **options)
        found = open_tables([path]).reading()
        assert found.row == 80
        assert pages < found.decoding / MIB < pages + 12


@pytest.mark.parametrize("dictionary", [False, True])
def test_what_a_read_takes_besides_its_rows_is_projected(dictionary: bool, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(400_000, 10))
    table = pa.table({f"f{j}": X[:, j] for j in range(10)})
    pq.write_table(table, tmp_path / "r.parquet", use_dictionary=dictionary)
    source, before, pool = open_tables([str(tmp_path / "r.parquet")]), pa.default_memory_pool(), None
    try:
        pa.set_memory_pool(pool := pa.proxy_memory_pool(before))
        source.read(0)
    finally:
        pa.set_memory_pool(before)
    assert 10 * MIB < pool.max_memory() < source.reading().decoding < 3 * pool.max_memory()
