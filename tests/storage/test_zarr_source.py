"""Zarr groups and arrays as sources: every layout that is read, the one that is written, and damage."""

import itertools
import pickle
import shutil
from functools import partial
from typing import Any, ClassVar

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.storage import LocalStore

from streamkern.errors import DataError, StorageError, UsageError
from streamkern.formats.checked_zarr_array import WholeChunks
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.formats.training_zarr import write_zarr
from streamkern.testing.source import read_all
from tests.storage.stored_suite import StoredSuite

open_zarr = partial(open_tables, format="zarr")


class TestTrainingLayout(StoredSuite):
    @pytest.fixture
    def expected_X(self):
        return np.random.default_rng(0).integers(0, 255, (3000, 3072)).astype(np.uint8)

    @pytest.fixture
    def expected_y(self):
        return np.random.default_rng(0).integers(0, 10, 3000)

    def write(self, folder, X, y):
        write_zarr(folder / "rows.zarr", X.reshape(-1, 32, 32, 3), y, target="label", overwrite=True)
        return folder / "rows.zarr"

    def opened(self, place):
        return open_zarr(place)


class TestVersion2ColumnsAFeature(StoredSuite):
    @pytest.fixture
    def expected_X(self):
        return np.random.default_rng(0).normal(size=(600_001, 5))

    @pytest.fixture
    def expected_y(self):
        return np.random.default_rng(0).normal(size=600_001) > 0

    def write(self, folder, X, y):
        group = zarr.create_group(folder / "rows.zarr", zarr_format=2, overwrite=True)
        for j in range(5):
            stored = group.create_array(f"c{j}", shape=len(X), chunks=10_000 * (1 + j % 2), dtype=">f8")
            stored[:] = X[:, j]
        stored = group.create_array("label", shape=len(y), chunks=len(y), dtype=bool)
        stored[:] = y
        return folder / "rows.zarr"


class TestShards(StoredSuite):
    @pytest.fixture
    def expected_y(self):
        return np.random.default_rng(0).normal(size=(101, 3))

    def write(self, folder, X, y):
        group = zarr.create_group(folder / "rows.zarr", overwrite=True)
        # The second axis is cut too, and the last shard goes past the last row.
        stored = group.create_array("X", shape=X.shape, shards=(24, 6), chunks=(8, 3), dtype=X.dtype)
        stored[:] = X
        group.create_array("label", data=y, chunks=(90, 2))
        return folder / "rows.zarr"


class TestRemoteStore(StoredSuite):
    facets: ClassVar[dict[str, Any]] = {"remote": True}

    @pytest.fixture
    def expected_y(self):
        return np.array(["shirt", "sandal", ""] * 33 + ["bag", "coat"], dtype=object)

    @pytest.fixture(autouse=True)
    def _small_chunks(self, monkeypatch):
        monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)

    def write(self, folder, X, y):
        place = f"memory://{folder}/rows.zarr"
        write_zarr(place, X, y, target="label", columns=list("abcdef"), chunk_rows=30, overwrite=True)
        return place


@pytest.fixture
def group(tmp_path):
    return zarr.create_group(str(tmp_path / "g.zarr"))


def fill(group, **arrays):
    for name, values in arrays.items():
        group.create_array(name, data=np.asarray(values))
    return group.store.root


def test_an_array_alone_is_features(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 3))
    zarr.create_array(str(tmp_path / "a"), data=X, chunks=(7, 3))
    source = open_tables(tmp_path / "a")
    np.testing.assert_array_equal(read_all(source).X, X)
    with pytest.raises(DataError, match=r"this is one array(.|\n)*open the group"):
        open_zarr(tmp_path / "a", target="label")


@pytest.mark.parametrize("name", ["X", "features", "data", "images"])
def test_conventional_names_are_preferred(group, name):
    path = fill(group, **{name: np.ones((4, 2)), "other": np.zeros((4, 3)), "y": np.arange(4)})
    source = open_zarr(path, target="y")
    assert source.n_features == 2
    np.testing.assert_array_equal(read_all(source).y, np.arange(4))


def test_which_array_holds_the_features_must_be_clear(group):
    path = fill(group, left=np.ones((4, 2)), right=np.zeros((4, 3)))
    with pytest.raises(DataError, match=r"left, right(.|\n)*columns=\['left'\]"):
        open_zarr(path)
    assert open_zarr(path, columns=["right"]).n_features == 3


def test_columns_select_and_order_features(group):
    path = fill(group, a=[1.0, 2.0], b=np.array([3, 4], np.int32), label=np.array([0, 1]), note=np.array([1j, 2j]))
    source = open_zarr(path, target="label", columns=["b", "a"])
    assert source.columns == ("b", "a")
    np.testing.assert_array_equal(read_all(source).X, [[3, 1], [4, 2]])
    with pytest.raises(DataError, match=r"dtype complex128(.|\n)*array note(.|\n)*columns="):
        open_zarr(path, target="label")
    with pytest.raises(DataError, match="'A' is not there"):
        open_zarr(path, target="label", columns=["A"])


@pytest.mark.parametrize(("write", "end"), [(write_zarr, "zarr"), (write_parquet, "parquet")])
def test_columns_of_the_training_layout_are_chosen_by_name(tmp_path, write, end):
    X, path = np.arange(12.0).reshape(3, 4), tmp_path / f"a.{end}"
    write(path, X, columns=["north", "east", "south", "west"])
    source = open_tables(path, columns=["west", "east"])
    assert source.columns == ("west", "east")
    np.testing.assert_array_equal(read_all(source).X, X[:, [3, 1]])
    with pytest.raises(DataError, match=r"'nort' is not there(.|\n)*did you mean 'north'"):
        open_tables(path, columns=["nort"])
    with pytest.raises(UsageError, match="'west' is given twice"):
        open_tables(path, columns=["west", "west"])
    write(tmp_path / f"b.{end}", X)
    with pytest.raises(UsageError, match="have no names"):
        open_tables(tmp_path / f"b.{end}", columns=["west"])


def test_a_default_target_can_be_named_in_the_attributes(group):
    path = fill(group, X=np.ones((4, 2)), label=np.arange(4), weight=np.ones(4))
    assert open_zarr(path).target is None
    group.attrs["streamkern"] = {"target": "label"}
    assert open_zarr(path).target.name == "label"
    assert open_zarr(path, target="weight").target.name == "weight"


def test_reads_are_stored_chunks_small_ones_together_never_across_shards(group):
    group.create_array("X", shape=(100_000, 64), chunks=(1000, 64), shards=(30_000, 64), dtype="f4")
    bounds = open_zarr(group.store.root).bounds
    assert set(range(0, 100_000, 30_000)) <= set(bounds.tolist())
    assert (bounds % 1000 == 0).all()
    sizes = np.diff(bounds) * 64 * 4
    assert sizes.max() <= 8 << 20
    assert np.median(sizes) >= 1 << 20
    big = zarr.create_array(group.store.root / "big", shape=(100, 1000, 1000), chunks=(3, 500, 1000), dtype="f4")
    assert np.diff(open_zarr(group.store.root / "big").bounds).max() == 3
    assert big.nchunks == 68


def test_blocks_are_written_as_they_come(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100)
    cuts = [0, 1, 40, 40, 63, 100]
    blocks = ((X[a:b], y[a:b]) for a, b in itertools.pairwise(cuts))
    write_zarr(tmp_path / "a.zarr", blocks, n_rows=100, chunk_rows=16)
    rows = read_all(open_zarr(tmp_path / "a.zarr"))
    np.testing.assert_array_equal(rows.X, X)
    np.testing.assert_array_equal(rows.y, y)
    stored = zarr.open_group(tmp_path / "a.zarr", mode="r")
    assert stored["X"].chunks == (16, 3)
    assert stored.attrs["streamkern"] == {"format": 1, "target": "target", "columns": None, "complete": True}


@pytest.mark.parametrize(("n_rows", "message"), [(99, "at least 1"), (101, "hold 100 rows")])
def test_a_wrong_number_of_rows_leaves_a_group_that_is_refused(tmp_path, n_rows, message):
    X = np.zeros((100, 3))
    with pytest.raises(DataError, match=message):
        write_zarr(tmp_path / "a.zarr", iter([(X[:50], None), (X[50:], None)]), n_rows=n_rows)
    with pytest.raises(StorageError, match=r"half-written(.|\n)*write it again"):
        open_zarr(tmp_path / "a.zarr")
    write_zarr(tmp_path / "a.zarr", X, overwrite=True)
    assert open_zarr(tmp_path / "a.zarr").bounds[-1] == 100


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_whole_chunks_are_read_in_the_thread_that_wants_them_and_aligned(tmp_path, monkeypatch, dtype, checksum):
    X = (1000 * np.random.default_rng(0).random((23, 700))).astype(dtype)  # floats that are not compressed
    write_zarr(tmp_path / "a.zarr", X, np.arange(23), chunk_rows=5, checksum=checksum)
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)
    source = open_zarr(tmp_path / "a.zarr")
    monkeypatch.setattr(LocalStore, "get", None)  # which the threads of zarr's loop would call
    found = read_all(source)
    np.testing.assert_array_equal(found.X, X, strict=True)
    np.testing.assert_array_equal(found.y, np.arange(23))
    assert all(source.read(chunk).X.flags.aligned for chunk in range(5))


def test_what_is_there_is_not_overwritten_unasked(tmp_path):
    X = np.ones((5, 3))
    write_zarr(tmp_path / "a.zarr", X)
    with pytest.raises(StorageError, match=r"this path already exists(.|\n)*overwrite=True"):
        write_zarr(tmp_path / "a.zarr", 2 * X)
    np.testing.assert_array_equal(read_all(open_zarr(tmp_path / "a.zarr")).X, X)
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("ten years")
    with pytest.raises(StorageError):
        write_zarr(home, X, overwrite=True)
    assert (home / "thesis.tex").read_text() == "ten years"


def test_labels_in_one_long_chunk_are_decoded_once_and_not_pickled(tmp_path, monkeypatch):
    group = zarr.create_group(str(tmp_path / "a.zarr"))
    group.create_array("X", data=np.zeros((3_000, 1000)), chunks=(250, 1000), config={"write_empty_chunks": True})
    group.create_array("y", data=np.random.default_rng(0).normal(size=3_000), chunks=3_000)
    source = open_zarr(tmp_path / "a.zarr", target="y")
    size = len(pickle.dumps(source))
    reads = []
    read = type(source._stored["y"]).read

    def counted(self, a, b):
        reads.append((self.array.basename, a, b))
        return read(self, a, b)

    monkeypatch.setattr(type(source._stored["y"]), "read", counted)
    read_all(source)
    assert reads.count(("y", 0, 3_000)) == 1
    assert len(pickle.dumps(source)) < size + 1000


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
