"""Damaged zarr: every fault is one error that names the chunk and says what to do."""

from __future__ import annotations

import shutil
from functools import partial

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from streamkern.errors import StorageError
from streamkern.formats.checked_zarr_array import WholeChunks
from streamkern.formats.open_tables import open_tables
from streamkern.formats.training_zarr import write_zarr
from streamkern.testing.source import read_all

open_zarr = partial(open_tables, format="zarr")

X = np.random.default_rng(0).normal(size=(100, 6))
y = np.random.default_rng(1).integers(0, 10, 100)


def stored_as(path, layout):
    """Write X and y in 25-row chunks; returns the file that holds rows 50 to 74 of X, and its key."""
    path = path / "rows.zarr"
    version = 2 if layout.startswith("v2") else 3
    group = zarr.create_group(str(path), zarr_format=version)
    options = {
        "v3 plain": {"compressors": None},
        "v2 plain": {"compressors": None},
        "v3 blosc": {"compressors": BloscCodec()},
        "v3 blosc crc32c": {"compressors": [BloscCodec(), Crc32cCodec()]},
        "v3 sharded": {"shards": (50, 6), "compressors": BloscCodec()},
        "v2 zstd": {"compressors": numcodecs.Zstd()},
    }
    stored = group.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(25, 6), **options.get(layout, {}))
    stored[:] = X
    group.create_array("y", data=y, chunks=25)
    key = {"v3 sharded": "X/c/1/0"}.get(layout, "X/2.0" if version == 2 else "X/c/2/0")
    return path, path / key, key


LAYOUTS = ["v3 zstd", "v3 blosc", "v3 blosc crc32c", "v3 plain", "v3 sharded", "v2 zstd", "v2 blosc", "v2 plain"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_missing_chunk_is_an_error_not_rows_of_zeros(tmp_path, layout):
    path, chunk, key = stored_as(tmp_path, layout)
    source = open_zarr(path, target="y")
    np.testing.assert_array_equal(read_all(source).X, X)
    chunk.unlink()
    with pytest.raises(StorageError, match=f"chunk {key} is not stored") as raised:
        read_all(source)
    assert f"{path}, array X, rows 50 to 74" in str(raised.value)
    assert "restore the chunk or write the array again" in str(raised.value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [0, 1, 16, 40, 200])
def test_a_truncated_chunk_is_named(tmp_path, layout, size):
    path, chunk, key = stored_as(tmp_path, layout)
    chunk.write_bytes(chunk.read_bytes()[:size])
    with pytest.raises(StorageError, match=f"chunk {key} cannot be read") as raised:
        read_all(open_zarr(path, target="y"))
    assert "rows 50 to 74" in str(raised.value)
    assert "truncated" in raised.value.remedy


def test_a_frame_that_says_it_is_not_compressed_and_is_shorter_is_refused(tmp_path):
    write_zarr(tmp_path / "a.zarr", np.zeros((5, 700), np.float32), checksum=False)
    source, chunk = open_zarr(tmp_path / "a.zarr"), tmp_path / "a.zarr" / "X" / "c" / "0" / "0"
    frame = bytearray(chunk.read_bytes())
    assert len(frame) < 5 * 700 * 4  # compressed
    frame[2] |= 2
    chunk.write_bytes(frame)
    with pytest.raises(StorageError, match="chunk X/c/0/0 cannot be read"):
        source.read(0)


@pytest.mark.parametrize("name", ["Blosc", "BZ2", "GZip", "LZ4", "LZMA", "Zlib", "Zstd"])
def test_no_truncation_gives_wrong_rows(tmp_path, name):
    codec = getattr(numcodecs, name)()
    array = zarr.create_array(str(tmp_path / "a"), data=X.round(1), chunks=(50, 6), compressors=codec, zarr_format=2)
    source, chunk = open_zarr(tmp_path / "a"), tmp_path / "a" / "1.0"
    whole = chunk.read_bytes()
    assert array.nchunks == 2
    for size in range(0, len(whole), 37):
        chunk.write_bytes(whole[:size])
        with pytest.raises(StorageError, match=r"chunk 1\.0 cannot be read"):
            source.read(0)


def test_an_inner_chunk_missing_from_its_shard_is_an_error(tmp_path):
    path, _, key = stored_as(tmp_path, "v3 sharded")
    array = zarr.open_group(path, mode="r+")["X"]
    array[75:] = 0  # zarr leaves a chunk of zeros out of the shard
    with pytest.raises(StorageError, match=f"chunk {key} is not stored(.|\n)*rows 75 to 99"):
        read_all(open_zarr(path, target="y"))


@pytest.mark.parametrize("name", ["X", "target"])
def test_a_flipped_bit_is_found_by_the_checksum(tmp_path, name):
    write_zarr(tmp_path / "a.zarr", X, y, chunk_rows=25)
    chunk = tmp_path / "a.zarr" / name / ("c/2/0" if name == "X" else "c/2")
    source = open_zarr(tmp_path / "a.zarr")
    whole = bytearray(chunk.read_bytes())
    for place in (0, len(whole) // 2, len(whole) - 1):
        chunk.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StorageError, match=f"chunk {name}/c/2"):
            read_all(source)
    chunk.write_bytes(whole)
    np.testing.assert_array_equal(read_all(source).X, X)


def test_a_missing_target_chunk_and_a_missing_column_are_named(tmp_path):
    group = zarr.create_group(str(tmp_path / "a.zarr"))
    for name, values in (("a", X[:, 0]), ("b", X[:, 1]), ("label", np.ones(100))):
        group.create_array(name, data=values, chunks=30)
    source = open_zarr(tmp_path / "a.zarr", target="label")
    (tmp_path / "a.zarr" / "b" / "c" / "3").unlink()
    with pytest.raises(StorageError, match=r"chunk b/c/3 is not stored(.|\n)*rows 90 to 99"):
        read_all(source)
    group["b"][90:] = X[90:, 1]
    (tmp_path / "a.zarr" / "label" / "c" / "0").unlink()
    with pytest.raises(StorageError, match="chunk label/c/0 is not stored"):
        read_all(source)


@pytest.mark.parametrize("version", [2, 3])
def test_a_sparse_array_is_read_where_it_is_declared(tmp_path, version):
    X = np.zeros((40, 3))
    X[25] = 1
    group = zarr.create_group(str(tmp_path / "a.zarr"), zarr_format=version)
    group.create_array("X", data=X, chunks=(10, 3))
    with pytest.raises(StorageError, match='"sparse": true'):
        open_zarr(tmp_path / "a.zarr").read(0)
    group["X"].attrs["streamkern"] = {"sparse": True}
    np.testing.assert_array_equal(read_all(open_tables(tmp_path / "a.zarr")).X, X)


def test_stored_zeros_and_nans_are_no_missing_chunks(tmp_path):
    write_zarr(tmp_path / "a.zarr", np.zeros((40, 3)), np.zeros(40), chunk_rows=10)
    assert read_all(open_zarr(tmp_path / "a.zarr")).X.sum() == 0
    array = zarr.create_array(
        str(tmp_path / "b"),
        shape=(40, 3),
        chunks=(10, 3),
        dtype="f4",
        fill_value=np.nan,
        config={"write_empty_chunks": True},
    )
    array[:] = np.nan
    assert np.isnan(read_all(open_zarr(tmp_path / "b")).X).all()
    (tmp_path / "b" / "c" / "1" / "0").unlink()
    with pytest.raises(StorageError, match="c/1/0 is not stored"):
        read_all(open_zarr(tmp_path / "b"))


def test_damaged_metadata_is_an_error_of_ours(tmp_path):
    write_zarr(tmp_path / "a.zarr", X)
    metadata = tmp_path / "a.zarr" / "zarr.json"
    metadata.write_text(metadata.read_text()[:40])
    with pytest.raises(StorageError, match="metadata is damaged"):
        open_zarr(tmp_path / "a.zarr")
    shutil.rmtree(tmp_path / "a.zarr")
    with pytest.raises(StorageError, match="nothing at this path"):
        open_tables(tmp_path / "a.zarr")


@pytest.mark.parametrize("layout", ["ours", "another"])
def test_a_chunk_too_large_for_memory_stays_a_memory_error(tmp_path, monkeypatch, layout):
    if layout == "ours":
        write_zarr(tmp_path / "a.zarr", X)
    else:
        zarr.create_group(tmp_path / "a.zarr").create_array("X", data=X, chunks=(len(X), 1))
    source = open_zarr(tmp_path / "a.zarr")

    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr(*((WholeChunks, "decoded") if layout == "ours" else (zarr.Array, "__getitem__")), no_memory)
    with pytest.raises(MemoryError):
        source.read(0)
