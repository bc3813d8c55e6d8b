"""Row groups of parquet: what a footer says of them, and how a large one is decoded, some rows at a time."""

import base64
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import streamkern as sk
from streamkern.errors import CorruptChunkError, DataError
from streamkern.formats import parquet
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet_footer import read_chunks
from streamkern.sources import remote_store
from streamkern.sources.base import Source
from tests import fuzz_data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Parquet files of several writers and layouts."""
    folder = tmp_path_factory.mktemp("whole")
    files = [place for place in fuzz_data.originals(folder) if place.suffix == ".parquet"]
    for letters in (0, 1, 127, 128, 300):
        pq.write_table(pa.table({"a": ["x" * letters] * 9, "b": [None] * 9}), folder / f"{letters}.parquet", 4)
    pl = pytest.importorskip("polars")
    pl.DataFrame({"a": ["u", None, "w"], "b": [1.0, 2.0, 3.0], "c": [[1], [2, 3], None]}).write_parquet(
        folder / "pl.parquet"
    )
    nested = {"s": [{"p": 1, "q": [1, None]}] * 9, "m": pa.array([[(1, "x")]] * 9, pa.map_(pa.int64(), pa.string()))}
    pq.write_table(pa.table(nested), folder / "nested.parquet", row_group_size=4)
    pq.write_table(pa.table({"a": pa.array([], pa.int8())}), folder / "empty.parquet")
    pq.write_table(pa.table({}), folder / "none.parquet")
    pq.write_table(pa.table({f"column {j}": [j, None] for j in range(300)}), folder / "wide.parquet", row_group_size=1)
    return files + sorted({*folder.glob("*.parquet")} - {*files})


def footer_of(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def with_footer(data: bytes, footer: bytes) -> bytes:
    return data[: -8 - len(footer_of(data))] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def test_the_numbers_are_arrows(whole: list[Path]) -> None:
    for place in whole:
        metadata = pq.read_metadata(place)
        found = read_chunks(footer_of(place.read_bytes()), len(metadata.schema))
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        assert found.rows == tuple(group.num_rows for group in groups)
        assert found.numbers.shape == (len(groups), len(metadata.schema), 5)
        for group, of_group in zip(groups, found.numbers.tolist(), strict=True):
            for j, (values, size, pages, dictionary, nulls) in enumerate(of_group):
                column = group.column(j)
                assert values == column.num_values
                assert size == column.total_uncompressed_size
                assert pages == column.data_page_offset
                assert dictionary == (column.dictionary_page_offset if column.has_dictionary_page else -1)
                if column.is_stats_set:
                    assert nulls == (column.statistics.null_count if column.statistics.has_null_count else -1)


def test_a_minimum_of_the_wrong_length_does_not_matter(tmp_path: Path) -> None:
    """Arrow ends the process where it is asked for these statistics."""
    place = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.5, 2.5, None], "y": [0.0, 1.0, 2.0]}), place)
    data, minimum = place.read_bytes(), struct.pack("<d", 1.5)
    place.write_bytes(with_footer(data, footer_of(data).replace(b"\x08" + minimum, b"\x07" + minimum[1:])))
    source = sk.open_dataset(place, target="y").source
    assert source.schema.columns[0].missing


def test_a_row_group_with_other_columns_than_the_schema_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.5, 2.5], "y": [0.0, 1.0]}), place)
    data = place.read_bytes()
    columns = b"\x19\x2c\x26"  # two structs, whose first field is an offset
    assert footer_of(data).count(columns) == 1
    place.write_bytes(with_footer(data, footer_of(data).replace(columns, b"\x19\x1c\x26")))
    with pytest.raises(sk.errors.StorageError, match="no readable footer"):
        sk.open_dataset(place, target="y")


class _Keys(pe.KmsClient):
    """Keys that are kept beside what they encrypt."""

    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, name: str) -> bytes:
        return base64.b64decode(wrapped)


def test_an_encrypted_column_is_an_error_where_it_is_read(tmp_path: Path) -> None:
    place, table = (
        tmp_path / "t.parquet",
        pa.table({"a": np.arange(9.0), "secret": np.arange(9.0), "y": np.arange(9.0)}),
    )
    settings = pe.EncryptionConfiguration("footer", column_keys={"column": ["secret"]}, plaintext_footer=True)
    secrets = pe.CryptoFactory(_Keys).file_encryption_properties(pe.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(place, table.schema, encryption_properties=secrets) as writer:
        writer.write_table(table)
    np.testing.assert_array_equal(
        sk.open_dataset(place, target="y", columns=["a"]).source.read(0).X[:, 0], np.arange(9)
    )
    with pytest.raises(sk.errors.CorruptChunkError, match="decrypt"):
        sk.open_dataset(place, target="y").source.read(0)


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
def test_rows_of_some_at_a_time_are_those_of_all(target, options, path, monkeypatch):
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
    assert len({id(text) for text in y}) == 7


@pytest.mark.parametrize("kind", [pa.binary(16), pa.list_(pa.float64(), 2), pa.list_(pa.float64())])
def test_one_column_of_all_features_is_read_in_parts(kind, tmp_path, monkeypatch):
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
