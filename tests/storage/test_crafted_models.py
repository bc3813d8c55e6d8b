"""Models whose author makes the checksums fit: leaves, sums, answers and what is drawn from a description."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.errors import UsageError
from streamkern.storage.artifact import _save
from streamkern.storage.untrusted_files import MAX_JSON_NAMES, MAX_JSON_VALUES, parse_json
from tests.clock import require_quick
from tests.storage.test_artifact_attacks import signed

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
    import zarr

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


def refused(place: Path, message: str | None = None) -> None:
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
    refused(place, "symbolic link")


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
def test_what_a_model_says_of_itself_is_of_its_type_and_bounded(
    name: str, part: Callable[[Metadata], Metadata], value: Metadata, message: str | None, copy: Callable[[str], Path]
) -> None:
    refused(craft(copy(name), lambda m: part(m).update(value)), message)


@pytest.mark.parametrize("name", ["constants", "directions", "cuts"])
@pytest.mark.parametrize("dtype", ["<U3", "complex128"])
def test_arrays_of_a_tree_are_real_numbers(name: str, dtype: str, copy: Callable[[str], Path]) -> None:
    place = copy("leaves")
    refused(craft(place, **{name: array_of(place, name).astype(dtype)}), "description is incomplete")


def test_a_tree_of_a_million_cuts_is_refused_at_once(copy: Callable[[str], Path]) -> None:
    m = 1_000_000
    children = np.stack([-1 - np.arange(m), np.arange(1, m + 1)], axis=1)
    children[-1, 1] = -1 - m
    arrays = {"directions": np.zeros((m, 3)), "cuts": np.zeros((m, 3)), "children": children}
    refused(craft(copy("leaves"), **arrays, constants=np.zeros((m + 1, 1))), "description is incomplete: 'leaves'")


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

    refused(craft(place, all_the_same), r"The leaf \d takes [23] features and has [12] outputs")


# ------------------------------------------------------------------------------------------------- answers and sums


@pytest.mark.parametrize("name", ["classes", "values"])
@pytest.mark.parametrize("dtype", ["<U3", "complex128", "nan", "inf", "more"])
def test_numbers_of_answers_are_finite_and_fit(
    name: str, dtype: str, copy: Callable[[str], Path], models: Path
) -> None:
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
        refused(craft(place, **{array: values}))
        shutil.rmtree(place)


@pytest.mark.parametrize(
    "name", ["gram", "moment", "ones", "targets", "mass", "rows", "unit", "ridge", "change", "factors"]
)
@pytest.mark.parametrize("value", ["x", -1.0, float("nan"), {"list": []}, 10**400])
def test_sums_are_of_their_types(name: str, value: Any, copy: Callable[[str], Path]) -> None:
    place = copy("values")
    craft(place / "sums", lambda m: m["sums"]["fields"].update({name: value}))
    refused(place, "The sums are not those of the model")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sums_are_finite_and_of_the_model(value: float, copy: Callable[[str], Path]) -> None:
    place = copy("values")
    for name in ("a0", "a1", "a2", "a3"):
        craft(place / "sums", **{name: np.full(array_of(place / "sums", name).shape, value)})
        refused(place, "The sums are not those of the model")


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
    place = craft(copy("values"), change, centers=centers, weights=np.zeros((M, 1), np.float32))
    refused(place, r"The arrays of this KernelMachine have [0-9.]+ GiB")


def test_a_projection_to_more_columns_than_any_array_states_is_refused(copy: Callable[[str], Path]) -> None:
    steps = [
        {"name": "Project", "n_in": 3, "n_out": 20_000_000, "density": None, "seed": 0},
        {"name": "Keep", "n_in": 20_000_000, "columns": [0, 1, 2]},
    ]
    refused(craft(copy("values"), lambda m: m.update(transforms=steps)), "cannot be applied")
    with pytest.raises(UsageError, match="components is 2,000,000"):
        sk.RandomProjection(2_000_000)


@pytest.mark.parametrize("bandwidth", [1e-320, 1e200, 10**400])
def test_a_bandwidth_whose_square_is_no_number_is_refused(bandwidth: float, copy: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match="The bandwidth is"):
        sk.Gaussian(bandwidth)
    refused(craft(copy("values"), lambda m: m.update(kernel={"name": "Laplace", "bandwidth": bandwidth})))


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
