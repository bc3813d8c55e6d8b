"""Numbers of column chunks that are read from a footer: Arrow's own, or an error where Arrow would end the process."""

from __future__ import annotations

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
from streamkern.formats.parquet_footer import read_chunks
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
    assert source.schema is not None
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
