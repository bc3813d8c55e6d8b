"""Models from a source that is not trusted: an error at once, whatever the files are. See also fuzz_artifacts.py."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import blosc

import streamkern as sk
from streamkern.data.targets import Continuous
from streamkern.storage import artifact_arrays
from streamkern.storage.artifact import load_artifact, save_artifact
from streamkern.storage.untrusted_files import MAX_BRACKETS, MAX_JSON_BYTES, MAX_JSON_DEPTH, parse_json, read_file
from streamkern.storage.value_digest import digest
from tests.clock import require_quick

Z = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = sk.KernelMachine(sk.Laplace(2.0), Z, Z[:, :1].copy(), Continuous(np.array([0.1])))
    return made.save(tmp_path / "model.zarr")


def signed(model: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change what the artifact says of itself, and make its checksum fit."""
    content = json.loads((model / "zarr.json").read_text())
    marks = content["attributes"]["streamkern"]
    change(marks)
    marks["sha256"] = digest(marks["kind"], marks["arrays"], marks["metadata"])
    (model / "zarr.json").write_text(json.dumps(content))
    return model


def refused(model: Path, message: str, kind: type[sk.errors.StorageError] = sk.errors.ModelFormatError) -> None:
    def load() -> None:
        with pytest.raises(kind, match=message):
            sk.load_model(model)

    require_quick(load, 1)


FILES = ["zarr.json", "weights/zarr.json", "weights/c/0/0"]


@pytest.mark.parametrize("name", FILES)
def test_only_regular_files_are_read(model: Path, name: str, tmp_path: Path) -> None:
    file = model / name
    whole = file.read_bytes()
    (tmp_path / "copy").write_bytes(whole)
    for target in ("FIFO", "/dev/zero", tmp_path / "copy"):
        file.unlink()
        if target == "FIFO":
            os.mkfifo(file)
        else:
            file.symlink_to(target)
        refused(model, "FIFO" if target == "FIFO" else "symbolic link")
    file.unlink()
    file.write_bytes(whole)
    sk.load_model(model)


def test_a_directory_inside_a_model_is_no_link_and_the_model_may_be_one(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    sk.load_model(tmp_path / "link")
    shutil.move(model / "weights", tmp_path / "weights")
    (model / "weights").symlink_to(tmp_path / "weights")
    refused(model, "symbolic link")


def test_a_model_saved_over_a_fifo_does_not_wait(model: Path, tmp_path: Path) -> None:
    loaded = sk.load_model(model)
    (tmp_path / "other").mkdir()
    os.mkfifo(tmp_path / "other" / "zarr.json")
    with pytest.raises(sk.errors.StorageError, match="already exists and is not"):
        loaded.save(tmp_path / "other")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_too_large_is_not_read(model: Path, name: str) -> None:
    with (model / name).open("ab") as file:
        file.truncate(1 << 40)
    refused(model, "1,099,511,627,776 bytes")


def test_a_checksum_is_compared_before_anything_is_decoded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = model / "weights" / "c" / "0" / "0"
    chunk.write_bytes(blosc.compress(np.zeros((40, 1), np.float32), b"zstd", 1))
    decoded: list[bytes] = []
    real = blosc.decompress
    monkeypatch.setattr(artifact_arrays.blosc, "decompress", lambda *given: [decoded.append(given[0]), real(*given)])
    refused(model, "'weights' cannot be read: the chunk is damaged: its checksum differs")
    assert chunk.read_bytes() not in decoded


def frame(**numbers: int) -> bytes:
    """A Blosc frame of the weights with other numbers in its header, or of 128 MiB."""
    made = bytearray(blosc.compress(np.zeros(numbers.pop("values", 40), np.float32), b"zstd", 1))
    for name, value in numbers.items():
        at = {"decoded": 4, "block": 8, "stored": 12}[name]
        made[at : at + 4] = value.to_bytes(4, "little")
    return bytes(made)


@pytest.mark.parametrize(
    "bomb",
    [
        frame(values=1 << 25),
        frame(values=1 << 25, decoded=160),
        frame(decoded=2**32 - 1),
        frame(block=0),
        frame(block=2**32 - 1),
        frame(stored=2**31),
        frame()[:-1],
        b"",
        b"\0" * 16,
    ],
)
def test_a_chunk_is_decoded_to_what_the_manifest_states_and_no_more(model: Path, bomb: bytes) -> None:
    (model / "weights" / "c" / "0" / "0").write_bytes(bomb)
    signed(model, lambda marks: marks["arrays"]["weights"].update(chunks=[hashlib.sha256(bomb).hexdigest()]))
    refused(model, "'weights' cannot be read: (the chunk|the file has)")


MANIFESTS: list[tuple[dict[str, Any], str]] = [
    ({"shape": [20_000_000, 1], "rows": 1}, "it has 20000000 chunks, and the manifest 1"),
    ({"shape": [10**18, 1], "rows": 10**18}, "its shape"),
    ({"shape": [10**12, 1], "rows": 10**12}, "a chunk has 4,000,000,000,000 bytes"),
    ({"shape": list(range(100_000))}, "its shape"),
    ({"shape": [-1, 1]}, "its shape"),
    ({"shape": [40.0, 1]}, "its shape"),
    ({"shape": "40"}, "incomplete"),
    ({"rows": 0}, "its shape"),
    ({"dtype": "|O"}, "its dtype"),
    ({"dtype": "<U1000000000"}, "its dtype"),
    ({"chunks": ["../../x"]}, "SHA-256"),
    ({"zarr.json": "0" * 64}, "is damaged"),
]


@pytest.mark.parametrize(("changes", "message"), MANIFESTS)
def test_a_manifest_that_no_array_can_have_is_refused(model: Path, changes: dict[str, Any], message: str) -> None:
    signed(model, lambda marks: marks["arrays"]["weights"].update(changes))
    refused(model, message)


def test_an_array_larger_than_the_memory_is_refused(model: Path) -> None:
    manifest = {"shape": [1 << 40, 1], "rows": 1 << 28, "chunks": ["0" * 64] * (1 << 12)}
    signed(model, lambda marks: marks["arrays"]["weights"].update(manifest))
    refused(model, r"The arrays of this KernelMachine have 4096\.0 GiB", sk.errors.StorageError)


@pytest.mark.parametrize("name", ["../model.zarr/weights", "/etc", "", ".", "a/b", "a\0b"])
def test_names_do_not_lead_out_of_the_artifact(model: Path, name: str) -> None:
    signed(model, lambda marks: marks["arrays"].update({name: marks["arrays"]["weights"]}))
    refused(model, "no array is called so")


DESCRIPTIONS: list[Callable[[dict[str, Any]], Any]] = [
    lambda metadata: metadata.update(encoding={"kind": "classification", "dtype": "<U500000000", "values": ["a"]}),
    lambda metadata: metadata.update(encoding={"kind": "classification", "dtype": "|O", "values": ["a"]}),
    lambda metadata: metadata.update(encoding={"kind": "classification", "dtype": "<U1", "values": [["a"]]}),
    lambda metadata: metadata.update(kernel={"name": "NTK", "depth": 10**9}),
    lambda metadata: metadata.update(kernel=[]),
    lambda metadata: metadata.update(transforms=[{"name": "UnitRows", "n_in": "5"}]),
    lambda metadata: metadata.update(transforms=[{"name": "UnitRows", "n_in": 10**12}]),
    lambda metadata: metadata.update(
        transforms=[{"name": "Project", "n_in": 3, "n_out": 5, "density": 2.0, "seed": 0}]
    ),
]


@pytest.mark.parametrize("number", range(len(DESCRIPTIONS)))
def test_a_description_that_no_model_has_is_refused(model: Path, number: int) -> None:
    signed(model, lambda marks: DESCRIPTIONS[number](marks["metadata"]))
    refused(model, "description is incomplete|does not take")


# -------------------------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 10_000_000,
        b"[" + b"[]," * MAX_BRACKETS + b"1]",
        b'{"a":' * (MAX_JSON_DEPTH + 1) + b"1" + b"}" * (MAX_JSON_DEPTH + 1),
        b'["\\\\",' + b"[" * 300 + b"]" * 300 + b"]",
        b" " * (MAX_JSON_BYTES + 1),
    ],
    ids=["open", "many", "objects", "after a backslash", "long"],
)
def test_json_is_bounded_before_it_is_parsed(text: bytes) -> None:
    def parse() -> None:
        with pytest.raises(sk.errors.StorageError, match="inside one another"):
            parse_json(text, "here")

    require_quick(parse, 1)


@pytest.mark.parametrize("value", [["[0, 1)"] * 300, ['"[', '\\"{', "\\\\["] * 200, [[["x"]]] * 1000])
def test_brackets_in_strings_are_not_nested(value: Any) -> None:
    assert parse_json(json.dumps(value).encode(), "here") == value


def test_a_file_is_read_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_file(tmp_path / "a", 5) == b"12345"
    with pytest.raises(sk.errors.StorageError, match="5 bytes"):
        read_file(tmp_path / "a", 4)
    with pytest.raises(sk.errors.StorageError, match="a directory"):
        read_file(tmp_path, 4)


# ------------------------------------------------------------------------------------------------------- the format


ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "float32": Z, "scalar": np.array(2.5), "empty": np.empty((0, 3)), "narrow": np.empty((3, 0)),
    "bool": np.array([True, False]), "text": np.array(["ant", "höhle"]), "big": np.arange(5, dtype=">i4"),
    "complex": np.arange(3) * 1j, "half": np.arange(4, dtype=np.float16), "bytes": np.arange(7, dtype=np.uint8),
    "long": np.arange(1_500_000, dtype=np.int64), "cube": np.arange(24.0).reshape(2, 3, 4),
}  # fmt: skip


def test_zarr_reads_what_is_written_and_it_comes_back(tmp_path: Path) -> None:
    save_artifact(tmp_path / "a", "Thing", ARRAYS, {})
    group = zarr.open_group(tmp_path / "a", mode="r")
    loaded, _ = load_artifact(tmp_path / "a", "Thing")
    assert sorted(group.array_keys()) == sorted(loaded) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(group[name][...], array)
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype.newbyteorder("=")
        assert loaded[name].shape == array.shape


def test_what_cannot_be_saved_says_so(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="object"):
        save_artifact(tmp_path / "a", "Thing", {"a": np.array([None])}, {})
    with pytest.raises(ValueError, match="cannot be called"):
        save_artifact(tmp_path / "a", "Thing", {"../a": Z}, {})


def test_a_model_with_pickle_in_version_2_is_not_a_model(tmp_path: Path) -> None:
    """The attack as it was: metadata of zarr version 2 in the place of a model."""
    place = tmp_path / "model.zarr"
    place.mkdir()
    marks = {"format": 1, "kind": "KernelMachine", "sha256": {"weights": "0"}, "metadata": {}}
    (place / ".zgroup").write_text('{"zarr_format": 2}')
    (place / ".zattrs").write_text(json.dumps({"streamkern": {**marks, "metadata_sha256": digest({})}}))
    refused(place, "not a KernelMachine")
