"""Models from a source that is not trusted: an error at once, also where checksums fit. See also fuzz_artifacts.py."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import blosc

import streamkern as sk
from streamkern.data.targets import Continuous
from streamkern.errors import UsageError
from streamkern.storage import artifact_arrays
from streamkern.storage.artifact import _save, load_artifact, save_artifact
from streamkern.storage.untrusted_files import (
    MAX_BRACKETS,
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    MAX_JSON_NAMES,
    MAX_JSON_VALUES,
    parse_json,
    read_file,
)
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


X = np.random.default_rng(0).normal(size=(800, 3))
CODES, VALUES = (X[:, 0] > 0).astype(np.int64), X[:, 1] + 0.1 * X[:, 2]
GIVEN: dict[str, Any] = {"memory": "4GiB", "threads": 1}
SMALL = {"centers": 20, "solver": sk.Direct(keep_sums=True), **GIVEN}

Metadata = dict[str, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    sk.KernelClassifier(**SMALL).fit(X, CODES).save(place / "classes")
    sk.KernelRegressor(**SMALL).fit(X, VALUES).save(place / "values")
    leaves = {"centers": 20, "solver": sk.Direct(), "partition": sk.Partition(leaves=4), **GIVEN}
    sk.KernelRegressor(**leaves).fit(X, VALUES).save(place / "leaves")
    sk.KernelClassifier(**leaves).fit(X, CODES + (X[:, 1] > 0)).save(place / "classes of leaves")
    return place


@pytest.fixture
def copy(models: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(models / name, tmp_path / name))


def craft(place: Path, change: Callable[[Metadata], Any] = lambda _: None, **arrays: Any) -> Path:
    """Change the description and arrays of an artifact, and make its checksums fit."""

    def changed(marks: Metadata) -> None:
        for name, values in arrays.items():
            shutil.rmtree(place / name, ignore_errors=True)
            marks["arrays"][name] = _save(place, name, values)
        change(marks["metadata"])

    return signed(place, changed)


def array_of(place: Path, name: str) -> Any:
    return zarr.open_group(place, mode="r")[name][...]


def used(place: Path) -> None:
    """All that a model is used for."""
    model = sk.load_model(place)
    call = sk.Predictor(model)
    call(X[:20])
    if "classes" in place.name:
        call.predict_proba(X[:20])
        model.prediction_set(X[:20])
    else:
        call.predict_interval(X[:20])
    if model.sums is not None:
        y = CODES if "classes" in place.name else VALUES
        sk.update_model(model, (X[:20], y[:20]), memory="4GiB", threads=1)


def refused_in_use(place: Path, message: str | None = None) -> None:
    def use() -> None:
        with pytest.raises(sk.errors.StorageError, match=message):
            used(place)

    require_quick(use, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes", "values", "leaves", "classes of leaves"])
def test_what_is_not_changed_is_used(name: str, copy: Callable[[str], Path]) -> None:
    used(craft(copy(name)))


# ------------------------------------------------------------------------------------------------------------- leaves


@pytest.mark.parametrize("member", ["leaf-00001", "sums"])
def test_what_lies_inside_a_model_is_no_link(member: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    place = copy("values" if member == "sums" else "leaves")
    (place / member).rename(tmp_path / "elsewhere")
    (place / member).symlink_to(tmp_path / "elsewhere")
    refused_in_use(place, "symbolic link")


INCOMPLETE = "description is incomplete"
KERNELS = {"name": "Sum", "parts": [{"name": "Laplace", "bandwidth": 1.0}] * 50_000}
CHANGES: list[tuple[str, Callable[[Metadata], Metadata], list[Metadata], str | None]] = [
    # model, what is changed, values of it, message
    ("leaves", lambda m: m["leaves"][1],
     [{"centers": float("inf")}, {"rows": -(10**9)}, {"rows": 10**400}, {"centers": 10**30}, {"centers": None}],
     INCOMPLETE),
    ("leaves", lambda m: m, [{"blend": blend} for blend in (float("nan"), 10**400, -1, "x")], INCOMPLETE),
    ("classes", lambda m: m["answers"]["fields"], [{"facts": "x"}, {"sets": 3}, {"below": "x"}, {"bias": None}], None),
    ("values", lambda m: m["sums"], [{"bytes": 10**400}, {"bytes": -5}, {"rows": float("inf")}, {"rows": 0}],
     INCOMPLETE),
    ("values", lambda m: m, [{"kernel": KERNELS}], "combined of 50,001"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "part", "value", "message"),
    [(name, part, value, message) for name, part, values, message in CHANGES for value in values],
)
def test_what_a_model_says_of_itself_is_of_its_type_and_bounded(name, part, value, message, copy):
    refused_in_use(craft(copy(name), lambda m: part(m).update(value)), message)


@pytest.mark.parametrize("name", ["constants", "directions", "cuts"])
@pytest.mark.parametrize("dtype", ["<U3", "complex128"])
def test_arrays_of_a_tree_are_real_numbers(name: str, dtype: str, copy: Callable[[str], Path]) -> None:
    place = copy("leaves")
    refused_in_use(craft(place, **{name: array_of(place, name).astype(dtype)}), "description is incomplete")


def test_a_tree_of_a_million_cuts_is_refused_at_once(copy: Callable[[str], Path]) -> None:
    m = 1_000_000
    children = np.stack([-1 - np.arange(m), np.arange(1, m + 1)], axis=1)
    children[-1, 1] = -1 - m
    arrays = {"directions": np.zeros((m, 3)), "cuts": np.zeros((m, 3)), "children": children}
    refused_in_use(
        craft(copy("leaves"), **arrays, constants=np.zeros((m + 1, 1))), "description is incomplete: 'leaves'"
    )


@pytest.mark.parametrize("kind", ["features", "outputs", "classes"])
def test_a_leaf_of_other_rows_or_outputs_is_refused(kind: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    place = copy("classes of leaves" if kind == "classes" else "leaves")
    if kind == "features":
        other = sk.KernelRegressor(**SMALL).fit(X[:, :2], VALUES)
    elif kind == "outputs":
        other = sk.KernelRegressor(**SMALL).fit(X, np.stack([VALUES, VALUES], axis=1))
    else:  # classes 0 and 7 of three
        other = sk.KernelClassifier(**SMALL).fit(X, 7 * CODES)
    other.save(tmp_path / "other")

    def all_the_same(metadata: Metadata) -> None:
        for leaf, facts in enumerate(metadata["leaves"]):
            shutil.rmtree(place / f"leaf-{leaf:05}", ignore_errors=True)
            shutil.copytree(tmp_path / "other", place / f"leaf-{leaf:05}")
            facts["fingerprint"] = other.model_.fingerprint

    refused_in_use(craft(place, all_the_same), r"The leaf \d takes [23] features and has [12] outputs")


# ------------------------------------------------------------------------------------------------- answers and sums


@pytest.mark.parametrize("name", ["classes", "values"])
@pytest.mark.parametrize("dtype", ["<U3", "complex128", "nan", "inf", "more"])
def test_numbers_of_answers_are_finite_and_fit(name, dtype, copy, models):
    found = sorted(each.name for each in (models / name).glob("answers_*"))
    assert len(found) >= 4
    for number, array in enumerate(found):
        place = copy(name).rename(models / f"{name} {dtype} {number}")
        values = array_of(place, array)
        if dtype == "more":
            values = np.concatenate([values, values, values])
        elif dtype in ("nan", "inf"):
            values = np.full(values.shape, float(dtype))
        else:
            values = values.astype(dtype)
        refused_in_use(craft(place, **{array: values}))
        shutil.rmtree(place)


@pytest.mark.parametrize(
    "name", ["gram", "moment", "ones", "targets", "mass", "rows", "unit", "ridge", "change", "factors"]
)
@pytest.mark.parametrize("value", ["x", -1.0, float("nan"), {"list": []}, 10**400])
def test_sums_are_of_their_types(name: str, value: Any, copy: Callable[[str], Path]) -> None:
    place = copy("values")
    craft(place / "sums", lambda m: m["sums"]["fields"].update({name: value}))
    refused_in_use(place, "The sums are not those of the model")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sums_are_finite_and_of_the_model(value: float, copy: Callable[[str], Path]) -> None:
    place = copy("values")
    for name in ("a0", "a1", "a2", "a3"):
        craft(place / "sums", **{name: np.full(array_of(place / "sums", name).shape, value)})
        refused_in_use(place, "The sums are not those of the model")


# --------------------------------------------------------------------------------- what a few letters of JSON ask for


def test_signs_in_texts_are_no_names_and_values():
    """A model of 185 columns of IPv6 addresses could be trained, and not saved."""
    texts = ["fe80::1,2", 'a "quoted": text, and a backslash \\', "c:\\"] * (MAX_JSON_NAMES // 2)
    data = json.dumps({"categories": texts}).encode()
    assert data.count(b":") > MAX_JSON_NAMES
    assert parse_json(data, "here") == {"categories": texts}


def test_json_of_many_values_is_not_parsed() -> None:
    def parse(text: bytes) -> None:
        with pytest.raises(sk.errors.StorageError, match="commas"):
            parse_json(text, "here")

    for text in (b"[" + b"1," * (MAX_JSON_VALUES + 1) + b"1]", b"{" + b'"a":1,' * (MAX_JSON_NAMES + 1) + b'"a":1}'):
        require_quick(partial(parse, text), 0.5)


@pytest.mark.parametrize("features", ["RandomFourier", "Nystrom"])
def test_what_is_drawn_from_a_description_counts(features: str, copy: Callable[[str], Path]) -> None:
    """A small file: 10⁶ functions of rows that a projection widens, or of as many centers, take terabytes."""
    M, wide = 1_000_000, 1 << 20
    kernel = {"name": "Laplace", "bandwidth": 1.0}
    described = {"name": features, "kernel": kernel} | ({"M": M, "seed": 0} if features == "RandomFourier" else {})
    width = wide if features == "RandomFourier" else 3
    step = {"name": "Project", "n_in": 3, "n_out": wide, "density": None, "seed": 0}

    def change(metadata: Metadata) -> None:
        metadata.update(features=described, transforms=[step] * (width == wide), answers=None)

    centers = np.zeros((0 if width == wide else M, width), np.float32)
    plain = {"factor": np.ones(()), "shift": np.zeros(())}  # whatever metric the model has
    place = craft(copy("values"), change, centers=centers, weights=np.zeros((M, 1), np.float32), **plain)
    refused_in_use(place, r"The arrays of this KernelMachine have [0-9.]+ GiB")


def test_a_projection_to_more_columns_than_any_array_states_is_refused(copy: Callable[[str], Path]) -> None:
    steps = [
        {"name": "Project", "n_in": 3, "n_out": 20_000_000, "density": None, "seed": 0},
        {"name": "Keep", "n_in": 20_000_000, "columns": [0, 1, 2]},
    ]
    refused_in_use(craft(copy("values"), lambda m: m.update(transforms=steps)), "cannot be applied")
    with pytest.raises(UsageError, match="components is 2,000,000"):
        sk.RandomProjection(2_000_000)


@pytest.mark.parametrize("bandwidth", [1e-320, 1e200, 10**400])
def test_a_bandwidth_whose_square_is_no_number_is_refused(bandwidth: float, copy: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match="The bandwidth is"):
        sk.Gaussian(bandwidth)
    refused_in_use(craft(copy("values"), lambda m: m.update(kernel={"name": "Laplace", "bandwidth": bandwidth})))


@pytest.mark.slow
def test_rows_that_preprocessing_widens_are_predicted_in_pieces() -> None:
    """A block has as many rows as fit where they are widest, and calls in memory have the same values in pieces."""
    wide = 20_000
    model = sk.KernelRegressor(
        centers=20, solver=sk.Direct(), preprocess=(sk.RandomProjection(wide), sk.RandomProjection(3)), **GIVEN
    ).fit(X, VALUES)
    assert model.model_._widest == wide
    assert model.model_._task_rows(sk.from_arrays(X)) * wide * 4 <= 8 << 20
    assert model.model_._drawn >= 8 * (3 + 3) * wide
    many = np.tile(X, (3, 1))
    at_once = sk.Predictor(model.model_)(many).predictions
    np.testing.assert_array_equal(at_once, np.tile(sk.Predictor(model.model_)(X).predictions, 3))
