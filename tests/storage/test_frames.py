"""Whole chunks decoded without zarr's pipeline: the same rows, and the same errors."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import zarr
from numcodecs import blosc
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec
from zarr.storage import LocalStore

import streamkern as sk
from streamkern.formats.blosc import WholeChunks

ROWS, CHUNK = 23, 5


@pytest.fixture(autouse=True)
def _every_stored_chunk_is_one_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)


def stored(folder: Path, X: np.ndarray, checksum: bool = True) -> sk.Dataset:
    sk.write_zarr(folder / "rows.zarr", X, np.arange(len(X)), chunk_rows=CHUNK, checksum=checksum, overwrite=True)
    return sk.open_dataset(folder / "rows.zarr", target="target")


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_rows_are_those_of_zarrs_pipeline(dtype: object, checksum: bool, tmp_path: Path):
    X = np.random.default_rng(0).integers(0, 200, (ROWS, 7)).astype(dtype)
    source = stored(tmp_path, X, checksum).source
    # Files are read in the thread that wants them, not by the threads of zarr's loop.
    by_zarr = patch.object(LocalStore, "get", side_effect=AssertionError)
    with by_zarr, patch.object(WholeChunks, "decoded", side_effect=WholeChunks.decoded, autospec=True) as decoded:
        found = [source.read(chunk) for chunk in range(5)]
    assert decoded.call_count == 10  # features and targets of five chunks, the last of which is not whole
    np.testing.assert_array_equal(np.concatenate([rows.X for rows in found]), X)
    np.testing.assert_array_equal(np.concatenate([rows.y for rows in found]), np.arange(ROWS))
    assert {rows.X.dtype for rows in found} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    "layout",
    [
        {"compressors": GzipCodec()},
        {"compressors": None},
        {"filters": TransposeCodec(order=(1, 0)), "compressors": BloscCodec()},
        {"serializer": BytesCodec(endian="big"), "compressors": BloscCodec()},
        {"compressors": BloscCodec(), "chunks": (CHUNK, 2)},
        {"compressors": BloscCodec(), "shards": (2 * CHUNK, 4)},
        {"compressors": BloscCodec(), "zarr_format": 2},
    ],
    ids=lambda layout: "-".join(map(str, layout)),
)
def test_other_layouts_are_zarrs(layout: dict[str, object], tmp_path: Path):
    X = np.random.default_rng(0).random((ROWS, 4))
    if layout.get("zarr_format") == 2:
        from numcodecs import Blosc

        layout = layout | {"compressors": Blosc()}
    array = zarr.create_array(tmp_path / "a.zarr", data=None, shape=X.shape, dtype=X.dtype,
                              **({"chunks": (CHUNK, 4)} | layout))  # fmt: skip
    array[:] = X
    assert WholeChunks.of(array) is None
    source = sk.open_dataset(tmp_path / "a.zarr").source
    np.testing.assert_array_equal(np.concatenate([source.read(i).X for i in range(len(source.bounds) - 1)]), X)


def damaged(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
        return
    if how == "flipped":
        data[len(data) // 2] ^= 1
    elif how == "header":
        data[4] ^= 1  # how long the decoded frame is
    file.write_bytes(data[: len(data) // 2] if how == "truncated" else data)


@pytest.mark.parametrize(
    ("how", "checksum"),
    [("missing", True), ("flipped", True), ("truncated", True), ("truncated", False), ("header", False)],
)
def test_a_damaged_chunk_is_an_error_that_names_it(how: str, checksum: bool, tmp_path: Path):
    X = np.random.default_rng(0).random((ROWS, 7)) + 1.0
    source = stored(tmp_path, X, checksum).source
    damaged(tmp_path / "rows.zarr" / "X" / "c" / "1" / "0", how)
    np.testing.assert_array_equal(source.read(0).X, X[:CHUNK])
    with pytest.raises(sk.errors.CorruptChunkError) as caught:
        source.read(1)
    text = str(caught.value)
    assert "c/1/0" in text
    assert "rows 5 to 9" in text


@pytest.mark.parametrize("checksum", [True, False])
def test_numbers_that_are_not_compressed_are_read_in_place(checksum: bool, tmp_path: Path):
    X = np.random.default_rng(0).random((20, 700), dtype=np.float32)
    source = stored(tmp_path, X, checksum).source
    with patch("streamkern.formats.blosc.blosc.decompress", side_effect=AssertionError):
        found = [source.read(chunk).X for chunk in range(4)]
    np.testing.assert_array_equal(np.concatenate(found), X)
    assert all(rows.flags.aligned for rows in found)


def test_a_frame_that_says_it_is_not_compressed_and_is_shorter_is_refused(tmp_path: Path):
    X = np.zeros((5, 700), np.float32)
    source = stored(tmp_path, X, checksum=False).source
    file = next(path for path in (tmp_path / "rows.zarr" / "X").rglob("*") if path.is_file() and path.suffix != ".json")
    frame = bytearray(file.read_bytes())
    assert len(frame) < X.nbytes  # compressed
    frame[2] |= 2
    file.write_bytes(frame)
    with pytest.raises(sk.errors.CorruptChunkError):
        source.read(0)


def test_numbers_in_bytes_that_are_not_aligned_are_copied():
    X = np.random.default_rng(0).random((5, 700))
    frame = blosc.compress(X, b"lz4", 5, 0)
    for before in range(9):
        found = WholeChunks(X.shape, X.dtype, False).decoded(memoryview(bytes(before) + frame)[before:])
        assert found.flags.aligned
        np.testing.assert_array_equal(found, X)
