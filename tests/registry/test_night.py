"""Nights that read their new rows alone: which rows those are, what comes of them, and when every row is read again."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.registry import RetrainResult
from streamkern.registry.incremental_retraining import training_record
from streamkern.registry.model_registry import Registry
from streamkern.registry.retrain import data_profile
from streamkern.storage.artifact import load_artifact

GATE = "accuracy > 0"


def day(k: int, n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(k)
    X = rng.standard_normal((n, 3))
    return pd.DataFrame(X, columns=list("abc")).assign(y=np.where(X[:, 0] + 0.3 * rng.standard_normal(n) > 0, "u", "d"))


def pipeline(place: Path, **changes: Any) -> sk.Pipeline:
    train, test = (sk.open_dataset(place / name, target="y") for name in ("rows", "test.parquet"))
    solver = sk.Direct(1e-4, keep_sums=True)
    given: dict[str, Any] = {"train": train, "test": test, "kernel": sk.Laplace(3.0), "centers": sk.Uniform(30)}
    return sk.Pipeline(**(given | {"solver": solver, "name": "nightly", "preprocess": None} | changes))


def night(place: Path, **given: Any) -> RetrainResult:
    changes = given.pop("changes", {})
    return sk.retrain(pipeline(place, **changes), place / "models", gate=GATE, **given)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("nights")
    (place / "rows").mkdir()
    for k in range(3):
        day(k).to_parquet(place / "rows" / f"day{k}.parquet")
    day(99).to_parquet(place / "test.parquet")
    assert night(place)["start"] == "cold"
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "night", copy_function=shutil.copy2)  # with the times of the files
    return tmp_path / "night"


def weights_of(place: Path, frames: list[pd.DataFrame], centers: np.ndarray) -> np.ndarray:
    rows = pd.concat(frames, ignore_index=True)
    solver = sk.Direct(1e-4)
    given = {"preprocess": None, "dtype": "float32"}
    model = sk.KernelClassifier(sk.Laplace(3.0), centers=sk.Given(centers), solver=solver, **given)
    return model.fit(rows[["a", "b", "c"]].to_numpy(), rows["y"]).model_.weights


def test_a_new_file_is_added_and_the_others_are_not_read(place: Path):
    day(3).to_parquet(place / "rows" / "day3.parquet")
    (place / "rows" / "day0.parquet").chmod(0o000)
    found = night(place)
    told = [found[name] for name in ("status", "start", "reused_rows", "why_cold")]
    assert told == ["promoted", "sums", 1200, None]
    models = Registry(place / "models")
    model, centers = models.load(), models.load(1).Z
    assert np.array_equal(model.Z, centers)
    expected = weights_of(place, [day(k) for k in range(4)], centers)
    assert np.linalg.norm(model.weights - expected) < 1e-4 * np.linalg.norm(expected)  # kernel values in float32
    record = models.record(2)
    kept = [record[name] for name in ("start", "rows", "trained_rows", "centers_rows")]
    assert kept == ["sums", 1600, 400, 1200]
    assert record["metrics"]["test"]["accuracy"] == found["challenger"]["accuracy"]
    assert night(place)["status"] == "unchanged"
    # The profile is that of all rows.
    (place / "rows" / "day0.parquet").chmod(0o644)
    before, after = (load_artifact(models.path(k) / "profile.zarr", "Profile") for k in (1, 2))
    assert after[1]["n"] == 1600
    assert np.array_equal(before[0]["edges"], after[0]["edges"])
    assert (after[0]["counts"].sum(axis=1) == 1600).all()
    with ThreadsExecutor(1) as executor:
        whole = data_profile(pipeline(place), executor, np.zeros(1), model)
    assert whole.labels == after[1]["labels"]


def test_rows_of_a_rewritten_file_are_taken_away(place: Path):
    old = place / "old.parquet"
    shutil.move(place / "rows" / "day1.parquet", old)
    day(1)[25:].to_parquet(place / "rows" / "day1.parquet")
    found = night(place, forget=sk.open_dataset(old, target="y"))
    assert (found["start"], found["reused_rows"], found["status"]) == ("sums", 800, "promoted")
    model, before = (Registry(place / "models").load(k) for k in (2, 1))
    gone = {row.tobytes() for row in day(1)[["a", "b", "c"]].to_numpy(np.float32)[:25]}
    stay = np.array([row.tobytes() not in gone for row in before.Z + np.asarray(before.origin, np.float32)])
    assert model.n_centers == stay.sum()
    expected = weights_of(place, [day(0), day(1)[25:], day(2)], before.Z[stay])
    assert np.linalg.norm(model.weights - expected) < 1e-4 * np.linalg.norm(expected)
    labels = load_artifact(Registry(place / "models").path(2) / "profile.zarr", "Profile")[1]["labels"]
    assert sum(labels.values()) == 1175


def test_the_command_line_takes_forgotten_rows(place: Path, capsys: pytest.CaptureFixture[str]):
    (place / "nightly.py").write_text(
        "import streamkern as sk\n\n"
        "def pipeline():\n"
        f"    train, test = (sk.open_dataset({str(place)!r} + n, target='y') for n in ('/rows', '/test.parquet'))\n"
        "    return sk.Pipeline(train=train, test=test, kernel=sk.Laplace(3.0), centers=sk.Uniform(30),\n"
        "        solver=sk.Direct(1e-4, keep_sums=True), preprocess=None)\n"
    )
    shutil.move(place / "rows" / "day1.parquet", place / "old.parquet")
    words = ["retrain", str(place / "nightly.py"), "--registry", str(place / "models"), "--gate", GATE, "--quiet"]
    assert main([*words, "--forget", str(place / "old.parquet")]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["start"], last["reused_rows"]) == ("sums", 800)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda place: os.utime(place / "rows" / "day1.parquet"), "400 stored rows of the champion's have changed"),
        (lambda place: (place / "rows" / "day1.parquet").unlink(), "400 stored rows of the champion's have changed"),
        (lambda place: day(8, 1000).to_parquet(place / "rows" / "day8.parquet"), "the rows have grown from 1,200 to"),
        (
            lambda place: day(8).assign(y="new").to_parquet(place / "rows" / "day8.parquet"),
            "the label 'new' is new",
        ),
        (lambda place: day(7).to_parquet(place / "test.parquet"), "no rows are new"),
    ],
)
def test_every_row_is_read_again_where_the_sums_do_not_fit(place: Path, change: Any, why: str):
    change(place)
    found = night(place)
    assert (found["start"], found["reused_rows"]) == ("cold", 0)
    assert why in found["why_cold"]


def test_another_definition_is_another_fit(place: Path):
    day(3).to_parquet(place / "rows" / "day3.parquet")
    other = {"solver": sk.Direct(1e-3, keep_sums=True)}
    assert night(place, changes=other)["why_cold"] == "the definition differs from the champion's"
    chosen = pipeline(place).train.split(0.1)[0]
    assert night(place, changes=other | {"train": chosen})["why_cold"] == "other rows are chosen than for the champion"
    assert night(place, changes={"solver": sk.Direct(1e-3)})["start"] == "cold"
    assert night(place, changes=other, cold=True)["why_cold"] == "requested"


def test_rows_to_forget_that_are_too_few_are_another_fit(place: Path):
    (place / "rows" / "day1.parquet").unlink()
    found = night(place, forget=sk.from_arrays(day(1)[["a", "b", "c"]][:7], day(1)["y"][:7]))
    assert found["why_cold"].endswith("have changed or are gone, and 7 are to be forgotten")


def test_rows_that_cannot_be_forgotten_are_not_read(place: Path):
    encoded = {"preprocess": (sk.TargetEncode(("a",)),)}
    assert night(place, changes=encoded)["start"] == "cold"
    shutil.move(place / "rows" / "day1.parquet", place / "old.parquet")
    old = sk.open_dataset(place / "old.parquet", target="y")
    (place / "old.parquet").unlink()
    found = night(place, forget=old, changes=encoded)
    assert found["why_cold"] == (
        "no row can be subtracted from the champion: categories were encoded by the targets of other rows"
    )


def append(path: Path, frame: pd.DataFrame) -> None:
    group = zarr.open_group(path, mode="a")
    group["X"].append(frame[["a", "b", "c"]].to_numpy(np.float32))
    group["target"].append((frame["y"] == "u").to_numpy(np.int64))


@pytest.mark.slow
def test_rows_appended_to_a_zarr_array_are_added_in_the_middle_of_a_chunk_too(tmp_path: Path):
    store, frame = tmp_path / "rows.zarr", day(0, 1000)
    sk.write_zarr(store, frame[["a", "b", "c"]].to_numpy(np.float32), (frame["y"] == "u").to_numpy(np.int64),
                  chunk_rows=300)  # fmt: skip

    def made() -> sk.Pipeline:
        train, test = sk.open_dataset(store, target="target").split(0.3)
        return sk.Pipeline(
            train=train, test=test, kernel=sk.Laplace(3.0), centers=sk.Uniform(30), name="nightly", preprocess=None,
            solver=sk.Direct(1e-4, keep_sums=True),
        )  # fmt: skip

    first = made()
    assert [rows for _, _, rows in training_record(first)["pieces"]] == [300, 300, 300, 100]
    sk.retrain(first, tmp_path / "models", gate=GATE)
    for k in (1, 2):
        before = len(made().train)
        append(store, day(k, 150))
        found = sk.retrain(made(), tmp_path / "models", gate=GATE)
        assert (found["start"], found["reused_rows"]) == ("sums", before)
        model = sk.Registry(tmp_path / "models").load()
        assert model.sums.rows == len(made().train)
    model = Registry(tmp_path / "models").load()
    given = {"train": made().train, "centers": sk.Given(model.Z), "task": "classification"}
    whole = sk.Pipeline(kernel=sk.Laplace(3.0), solver=sk.Direct(1e-4), preprocess=None, **given)
    sk.run(whole, tmp_path / "whole")
    expected = sk.load_model(tmp_path / "whole" / "model.zarr").weights
    assert np.linalg.norm(model.weights - expected) < 1e-4 * np.linalg.norm(expected)
    group = zarr.open_group(store, mode="a")
    group["X"][1290] = 9.0  # in the last chunk: its rows are others, and some of them were there
    append(store, day(3, 10))
    assert sk.retrain(made(), tmp_path / "models", gate=GATE)["start"] == "cold"


def test_a_store_over_a_network_keeps_sums(place: Path, monkeypatch: pytest.MonkeyPatch):
    where = f"memory://{place.name}-{os.getpid()}/models"
    monkeypatch.chdir(place)
    sk.retrain(pipeline(place), where, gate=GATE)
    day(3).to_parquet(place / "rows" / "day3.parquet")
    found = sk.retrain(pipeline(place), where, gate=GATE)
    assert (found["start"], found["reused_rows"]) == ("sums", 1200)
    assert Registry(where).load().sums.load().rows == 1600
