"""Zarr arrays from a source that is not trusted: no codec that is not on the list is so much as made."""

import json
import os
import pickle
import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

from streamkern.errors import StorageError
from streamkern.formats.open_tables import open_tables
from streamkern.formats.zarr_checked_stores import forbidden_codec
from streamkern.testing.source import read_all
from tests.clock import require_quick

open_zarr = partial(open_tables, format="zarr")

X = np.arange(40.0).reshape(10, 4)


class Shell:
    """Unpickled, it runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def pickled(place: Path, mark: Path, consolidated: bool = False, **changes: Any) -> None:
    """A group of version 2 whose target is two object codecs, the second of which is pickle."""
    group = zarr.create_group(str(place), zarr_format=2)
    group.create_array("X", data=X, chunks=(10, 4))
    array = {
        "zarr_format": 2, "shape": [10], "chunks": [10], "dtype": "|O", "order": "C", "fill_value": None,
        "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "pickle", "protocol": 5}, **changes,
    }  # fmt: skip
    (place / "y").mkdir()
    (place / "y" / ".zarray").write_text(json.dumps(array))
    (place / "y" / "0").write_bytes(pickle.dumps(Shell(mark)))
    if consolidated:
        inside = {f"X/{name}": json.loads((place / "X" / name).read_text()) for name in (".zarray",)}
        documents = {".zgroup": {"zarr_format": 2}, **inside, "y/.zarray": array}
        (place / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": documents}))
        # What stands with the array itself is not looked at.
        (place / "y" / ".zarray").write_text(json.dumps({**array, "compressor": None}))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the numcodecs codecs that are made."""
    names: list[str] = []
    real = numcodecs.Pickle.__init__

    def noted(self: Any, *arguments: Any, **keywords: Any) -> None:
        names.append("pickle")
        real(self, *arguments, **keywords)

    monkeypatch.setattr(numcodecs.Pickle, "__init__", noted)
    return names


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"filters": [{"id": "pickle"}], "compressor": None},
        {"filters": None, "compressor": {"id": "pickle"}},
        {"filters": [{"id": "vlen-utf8"}, {"id": "pickle"}], "compressor": {"id": "zlib", "level": 1}},
        {"dtype": "<f8", "filters": None},
        {"filters": [{"id": "numcodecs.pickle", "name": "zstd"}], "compressor": None},
    ],
)
def test_pickle_is_never_made(tmp_path: Path, changes: dict[str, Any], consolidated: bool, made: list[str]) -> None:
    pickled(tmp_path / "rows.zarr", tmp_path / "mark", consolidated, **changes)
    with pytest.raises(StorageError, match=r"the array is not read(.|\n)*codecs among") as caught:
        read_all(open_zarr(tmp_path / "rows.zarr", target="y"))
    assert "y" in str(caught.value)
    assert not made
    assert not (tmp_path / "mark").exists()


def test_pickle_consolidated_in_version_3_is_never_made(tmp_path: Path, made: list[str]) -> None:
    pickled(tmp_path / "two", tmp_path / "mark")
    bad = json.loads((tmp_path / "two" / "y" / ".zarray").read_text())
    place = tmp_path / "rows.zarr"
    group = zarr.create_group(str(place))
    group.create_array("X", data=X)
    document = json.loads((place / "zarr.json").read_text())
    inside = {"X": json.loads((place / "X" / "zarr.json").read_text()), "y": {**bad, "node_type": "array"}}
    document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": inside}
    (place / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(StorageError, match="y: its codec 'pickle' is not one of those that are read"):
        open_tables(place)
    assert not made


def document_of(**changes: Any) -> dict[str, Any]:
    return {"node_type": "array", "codecs": [{"name": "bytes"}], **changes}


BAD: list[tuple[dict[str, Any], str]] = [
    (document_of(codecs=[{"name": "numcodecs.pickle"}]), "'pickle'"),
    (document_of(codecs=["pickle"]), "'pickle'"),
    (document_of(codecs=[{"name": "numcodecs.pickle", "id": "zstd"}]), "'pickle'"),
    (document_of(codecs=[{"id": "zstd"}]), "id"),
    (document_of(codecs=[{"name": "bytes"}, {"name": "my.plugin"}]), "my.plugin"),
    (document_of(codecs={"name": "bytes"}), "not a list"),
    (document_of(codecs=[[]]), "not one of"),
    (document_of(storage_transformers=[{"name": "x"}]), "storage transformers"),
    (document_of(codecs=[{"name": "numcodecs.astype", "configuration": {"decode_dtype": "O"}}]), "decode_dtype 'O'"),
    (document_of(codecs=[{"name": "sharding_indexed", "configuration": {"codecs": ["pickle"]}}]), "'pickle'"),
    (document_of(codecs=[{"name": "sharding_indexed", "configuration": {"index_codecs": ["json2"]}}]), "'json2'"),
    ({"dtype": "object", "filters": None, "compressor": None}, "'object'"),
    ({"dtype": "|O", "filters": None, "compressor": {"id": "zstd"}}, "vlen-utf8"),
    ({"dtype": "|O", "filters": [{"id": "vlen-utf8"}, {"id": "vlen-utf8"}]}, "vlen-utf8"),
    ({"dtype": "|O", "filters": [{"id": "zstd"}, {"id": "vlen-utf8"}]}, "vlen-utf8"),
    ({"dtype": "|O", "filters": [{"id": "json2"}]}, "'json2'"),
    ({"dtype": [["a", "<f8"], ["b", "|O"]]}, "dtype"),
    ({"dtype": [["a", [["b", "|O"]]]]}, "dtype"),
    ({"dtype": "<f8", "filters": ["pickle"]}, "pickle"),
    ({"dtype": "<f8", "filters": {}, "compressor": "pickle"}, "filters"),
    ({"metadata": {"a/.zarray": {"dtype": "<f8", "compressor": {"id": "pickle"}}}}, "a/.zarray: .*'pickle'"),
]


@pytest.mark.parametrize(("document", "reason"), BAD)
def test_what_is_refused_says_why(document: dict[str, Any], reason: str) -> None:
    assert re.search(reason, forbidden_codec(document) or "")


READ: dict[str, Callable[[Path], Any]] = {
    "sharded": lambda place: zarr.create_array(
        str(place), data=X, chunks=(5, 4), shards=(10, 4), compressors=[BloscCodec(), Crc32cCodec()]
    ),
    "transposed": lambda place: zarr.create_array(
        str(place), data=X, filters=[TransposeCodec(order=(1, 0))], compressors=[GzipCodec(), ZstdCodec()]
    ),
    "sharding by hand": lambda place: zarr.create_array(
        str(place), data=X, chunks=X.shape, serializer=ShardingCodec(chunk_shape=(5, 4)), compressors=None
    ),
    "big-endian": lambda place: zarr.create_array(
        str(place), data=X, serializer=BytesCodec(endian="big"), compressors=BloscCodec()
    ),
    "parts of rows": lambda place: zarr.create_array(str(place), data=X, chunks=(5, 2), compressors=BloscCodec()),
    "version 2, Blosc": lambda place: zarr.create_array(
        str(place), data=X, chunks=(5, 4), zarr_format=2, compressors=numcodecs.Blosc()
    ),
    "version 2, filters": lambda place: zarr.create_array(
        str(place), data=X, zarr_format=2, filters=[numcodecs.Delta(dtype="<f8"), numcodecs.Shuffle(8)],
        compressors=numcodecs.LZMA(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_zarr_writes_is_read(tmp_path: Path, name: str) -> None:
    READ[name](tmp_path / "a")
    np.testing.assert_array_equal(read_all(open_zarr(tmp_path / "a")).X, X)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.filterwarnings("ignore:.*[Cc]onsolidated metadata")
def test_text_is_read(tmp_path: Path, version: Any, consolidated: bool) -> None:
    words = np.array(["ant", "bee"] * 5, dtype=object)
    group = zarr.create_group(str(tmp_path / "a"), zarr_format=version)
    group.create_array("X", data=X)
    group.create_array("y", shape=(10,), dtype=str, chunks=(10,))[:] = words
    if consolidated:
        zarr.consolidate_metadata(str(tmp_path / "a"))
    assert read_all(open_zarr(tmp_path / "a", target="y")).y.tolist() == words.tolist()


# ------------------------------------------------------------------------------------ what hangs, or fills the memory


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", ["a FIFO", "a device", "a socket"])
@pytest.mark.parametrize("where", ["metadata", "chunk", "group"])
def test_only_regular_files_are_read(tmp_path, version, kind, where, monkeypatch):
    group = zarr.create_group(str(tmp_path / "rows"), zarr_format=version)
    group.create_array("X", data=X, chunks=(5, 4))
    names = {"metadata": ("X/.zarray", "X/zarr.json"), "chunk": ("X/1.0", "X/c/1/0"), "group": (".zgroup", "zarr.json")}
    file = tmp_path / "rows" / names[where][version - 2]
    file.unlink()
    if kind == "a FIFO":
        os.mkfifo(file)
    elif kind == "a device":
        file.symlink_to("/dev/zero")
    else:
        monkeypatch.chdir(file.parent)  # the names of sockets are short
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(file.name)

    def read() -> None:
        for use in (read_all, lambda source: source.pieces(), lambda source: source.fingerprint):
            with pytest.raises(StorageError, match=kind):
                use(open_tables(tmp_path / "rows", format="zarr"))

    require_quick(read, 5)


def test_a_chunk_in_another_place_is_read(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), data=X, chunks=(5, 4))
    (tmp_path / "a" / "c" / "1" / "0").rename(tmp_path / "elsewhere")
    (tmp_path / "a" / "c" / "1" / "0").symlink_to(tmp_path / "elsewhere")
    np.testing.assert_array_equal(read_all(open_zarr(tmp_path / "a")).X, X)


def test_a_blosc_frame_that_says_more_than_its_chunk_is_not_decoded(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), data=X, chunks=(10, 4), compressors=BloscCodec())
    bomb = numcodecs.blosc.compress(np.zeros(1 << 24), b"zstd", 1)
    (tmp_path / "a" / "c" / "0" / "0").write_bytes(bomb)
    with pytest.raises(StorageError, match="Blosc frame of 134217728 bytes, decoded, for a chunk of 320"):
        read_all(open_zarr(tmp_path / "a"))


def test_a_great_many_chunks_are_counted_and_not_listed(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(20_000_000, 1), chunks=(1, 1), dtype="f8")
    zarr.create_array(str(tmp_path / "b"), shape=(10**15, 10**6), chunks=(1, 10**6), dtype="f8")

    def count() -> None:
        assert len(open_zarr(tmp_path / "a").bounds) == 40
        with pytest.raises(StorageError, match="says that it has 1,000,000,000,000,000 rows"):
            open_zarr(tmp_path / "b")

    require_quick(count, 2)


def test_metadata_that_are_huge_or_deep_are_not_parsed(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), data=X)
    file = tmp_path / "a" / "zarr.json"
    whole = file.read_text()
    for text, expected in (
        (
            whole.replace('"attributes": {', '"attributes": {"a": ' + "[" * 5000 + "]" * 5000 + ", "),
            "inside one another",
        ),
        (whole + " " * (64 << 20), "bytes"),
    ):
        file.write_text(text)
        with pytest.raises(StorageError, match=expected):
            open_zarr(tmp_path / "a")
