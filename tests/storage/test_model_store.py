"""A registry in a store over a network: what two machines may do to it at once, and what readers see meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import s3fs

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.data.targets import Continuous
from streamkern.models.kernel_machine import KernelMachine
from streamkern.registry.model_registry import Registry
from streamkern.registry.registry_storage import CHAMPION, MAX_JSON_BYTES

PIPELINE = """
import streamkern as sk

def pipeline(seed: int = 0):
    train, test = sk.open_dataset("rows.zarr", target="label").split(test=0.3)
    return sk.Pipeline(train=train, test=test, kernel=sk.Laplace(2.0), centers=sk.Uniform(30), seed=seed)
"""


def filling(number: int) -> Callable[[Path], None]:
    """A model that predicts its number."""
    Z, zero = np.zeros((2, 3), np.float32), np.zeros((2, 1), np.float32)
    model = KernelMachine(sk.Laplace(1.0), Z, zero, Continuous(np.array([float(number)])))
    return lambda place: model.save(place / "model.zarr")


def add(models: Registry, **record: object) -> int:
    return models.add(filling(max(models.versions, default=0) + 1), record)


def says(model: KernelMachine) -> int:
    return int(model.predict(np.zeros((1, 3), np.float32))[0])


@pytest.fixture
def url(s3_server: str, credentials: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    bucket = f"models-{abs(hash(request.node.nodeid)) % 10**9}"
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/kept/models"


@pytest.fixture
def store(url: str) -> s3fs.S3FileSystem:
    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


@pytest.fixture
def three(url: str) -> Registry:
    models = Registry(url, create=True)
    for number in (1, 2, 3):
        assert add(models, name=f"model {number}") == number
    models.promote(1)
    return models


@pytest.mark.slow
def test_versions_are_added_promoted_rolled_back_and_pruned(url: str):
    with pytest.raises(sk.UsageError, match="no model registry"):
        Registry(url)
    models = Registry(url, create=True)
    assert (models.versions, models.champion) == ([], None)
    with pytest.raises(sk.UsageError, match="no champion"):
        models.load()
    for number in (1, 2, 3):
        assert add(models, name=f"model {number}") == number
        models.promote(number)
    reader = Registry(url)
    assert (reader.champion, reader.standing.before, says(reader.load())) == (3, (2, 1), 3)
    assert (says(reader.load("000001")), reader.record()["name"]) == (1, "model 3")
    assert models.rollback() == reader.champion == 2
    assert models.prune(1) == []  # the last one, the champion and the one before it
    models.promote(3)
    assert models.prune(1) == [1]
    assert reader.versions == [2, 3]
    for wrong in ("../../etc", "9"):
        with pytest.raises(sk.UsageError, match="version"):
            reader.load(wrong)
    with pytest.raises(sk.UsageError, match="not in a local directory"):
        reader.path()


@pytest.mark.slow
def test_of_two_machines_one_replaces_the_champion(three: Registry, url: str):
    other = Registry(url)
    before, tag = three._standing()
    other.promote(2)
    with pytest.raises(sk.errors.BusyError, match="changed the champion meanwhile"):
        three._set(before, tag)  # it has read before, and puts afterwards
    with pytest.raises(sk.errors.BusyError, match="Version 2 became the champion"):
        three.promote(3, 1)
    assert (other.champion, three.standing.before) == (2, (1,))
    first = Registry(url.replace("kept", "new"), create=True)
    assert add(first) == 1
    assert first._store.claim(1)[0] == 2
    with pytest.raises(sk.errors.BusyError):  # none was there when it was read
        first._set(before, None), first._set(three.standing, None)


@pytest.mark.slow
def test_machines_that_add_at_once_have_different_numbers(three: Registry, url: str):
    found: list[int] = []

    def one() -> None:
        found.append(Registry(url).add(filling(9), {}))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [4, 5, 6, 7]
    assert three.versions == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_a_version_is_there_when_its_record_is(three: Registry, store: s3fs.S3FileSystem, url: str):
    store.rm_file(f"{url}/versions/000002/record.json")  # as if it were being sent, or removed
    assert three.versions == [1, 3]
    with three.lock():
        assert store.exists(f"{url}/versions/000002/claim")  # it may be on its way
    three.promote(3)
    with three.lock():
        assert not store.exists(f"{url}/versions/000002")
    store.rm_file(f"{url}/versions/000003/record.json")
    assert add(three) == 4


@pytest.mark.slow
def test_a_promotion_that_was_decided_is_carried_out(three: Registry):
    three.promote(3)
    number = add(three, decision={"promote": True, "champion": 3})
    with three.lock():
        assert three.champion == number
    assert [line["status"] for line in three.decisions()] == ["promoted"]


@pytest.mark.slow
def test_damage_is_told_and_the_champion_stays(three: Registry, store: s3fs.S3FileSystem, url: str):
    (chunk,) = store.glob(f"{url}/versions/000002/model.zarr/weights/c/0/0")
    store.pipe_file(chunk, store.cat_file(chunk)[:-1] + b"\x55")
    with pytest.raises(sk.errors.ModelFormatError):
        three.promote(2)
    record = f"{url}/versions/000003/record.json"
    store.pipe_file(record, store.cat_file(record).replace(b"model 3", b"model 4"))
    with pytest.raises(sk.errors.ModelFormatError, match="checksum"):
        three.record(3)
    assert says(three.load()) == 1
    store.pipe_file(f"{url}/{CHAMPION}", bytes(MAX_JSON_BYTES + 1))
    with pytest.raises(sk.errors.StorageError, match="bytes"):
        three.load()
    store.pipe_file(f"{url}/{CHAMPION}", b"{")
    with pytest.raises(sk.errors.ModelFormatError, match="damaged"):
        three.load()
    three.promote(3)
    assert three.champion == 3


@pytest.mark.slow
def test_no_object_leads_out_of_the_copy(three: Registry, monkeypatch: pytest.MonkeyPatch):
    objects = three._store.objects
    whole = objects.find

    def find(path: str) -> dict[str, dict[str, object]]:
        return whole(path) | {f"{path}/../../../evil": {"size": 1}}

    monkeypatch.setattr(objects, "find", find)
    with pytest.raises(sk.errors.StorageError, match="not a file name"):
        objects.download("versions/000001/model.zarr", Path("nowhere"))
    assert not Path("nowhere").exists()


@pytest.mark.slow
def test_readers_always_get_a_whole_champion(three: Registry, url: str):
    stop, errors, seen = threading.Event(), [], []

    def read() -> None:
        reader = Registry(url)
        while not stop.is_set():
            try:
                seen.append(says(reader.load()))
            except Exception as error:
                errors.append(error)
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(4):
            number = add(three)
            three.promote(number)
            three._store.remove(number - 1)  # worse than ``prune``
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert seen == sorted(seen)


def test_a_store_without_conditions_is_written_all_the_same():
    models = Registry("memory://models", create=True)
    assert [add(models), add(models)] == [1, 2]
    models.promote(1)
    models.promote(2)
    models.log({"status": "promoted"})
    again = Registry("memory://models")
    assert (again.champion, says(again.load()), again.rollback(), len(again.decisions())) == (2, 2, 1, 1)


@pytest.mark.slow
def test_nights_with_models_on_s3(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("nightly.py").write_text(PIPELINE)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    X = (rng.standard_normal((600, 4)) + 1.5 * y[:, None]).astype("float32")
    sk.write_zarr("rows.zarr", X, y, target="label", chunk_rows=100)

    def night(*words: str) -> tuple[int, str]:
        status = main(["retrain", "nightly.py", "--registry", url, "--quiet", *words])
        return status, json.loads(capsys.readouterr().out.splitlines()[-1])["status"]

    assert night() == (0, "promoted")
    assert night() == (0, "unchanged")
    with Registry(url).lock(Path("runs/nightly")):  # another process of this machine
        assert night("--set", "seed=1") == (75, "failed")
    assert night("--set", "seed=1", "--gate", "accuracy > 2") == (0, "rejected")
    assert main(["models", url]) == 0
    assert capsys.readouterr().out.count("accuracy") == 2
    assert main(["models", url, "promote", "2"]) == 0
    assert main(["predict", url, "rows.zarr", "out.parquet"]) == 0
    expected = sk.Predictor(Registry(url).load())(X).predictions
    assert np.array_equal(pd.read_parquet("out.parquet")["prediction"], expected)
    assert main(["evaluate", url, "rows.zarr", "--target", "label"]) == 0
    assert [line["status"] for line in Registry(url).decisions()] == ["promoted", "unchanged", "rejected"]
