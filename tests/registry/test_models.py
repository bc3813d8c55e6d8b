"""Versions, the champion, and readers that look while both change: in a directory, and in a store over a network."""

import gc
import json
import os
import shutil
import threading
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.data.targets import Continuous
from streamkern.defaults import MAX_EARLIER_CHAMPIONS
from streamkern.models.kernel_machine import KernelMachine
from streamkern.registry.model_registry import Registry
from streamkern.registry.registry_storage import CHAMPION, MAX_JSON_BYTES


def model(number: int) -> KernelMachine:
    """A model that predicts its number wherever it is asked."""
    Z, zero = np.zeros((2, 3), np.float32), np.zeros((2, 1), np.float32)
    return KernelMachine(sk.Laplace(1.0), Z, zero, Continuous(np.array([float(number)])))


def says(machine: KernelMachine) -> int:
    return int(machine.predict(np.zeros((1, 3), np.float32))[0])


def add(models: Registry, **record: object) -> int:
    expected = max(models.versions, default=0) + 1
    return models.add(lambda place: model(expected).save(place / "model.zarr"), record)


S3 = pytest.param("s3", marks=pytest.mark.slow)
a_directory = pytest.mark.parametrize("where", ["directory"], indirect=True)
a_store = pytest.mark.parametrize("where", [S3], indirect=True)


@pytest.fixture(params=["directory", S3])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place for a registry, in tests that do not say which: a directory, and a bucket of its own."""
    if request.param == "directory":
        return str(tmp_path / "models")
    request.getfixturevalue("credentials")
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3_server"))
    bucket = f"models-{abs(hash(request.node.nodeid)) % 10**9}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/kept/models"


@pytest.fixture
def files(where: str) -> fsspec.AbstractFileSystem:
    """The file system that the registry is in."""
    return fsspec.filesystem(where.partition("://")[0] if "://" in where else "file", skip_instance_cache=True,
                             use_listings_cache=False)  # fmt: skip


@pytest.fixture
def models(where: str) -> Registry:
    return Registry(where, create=True)


@pytest.fixture
def five(models: Registry) -> Registry:
    for number in range(1, 6):
        assert add(models, name=f"model {number}") == number
    return models


@a_directory
def test_a_predictor_answers_with_the_champion(five: Registry):
    five.promote(3)
    expected = five.load()
    for given in (five, five.where):
        assert sk.Predictor(given).model.fingerprint == expected.fingerprint


def test_promote_and_rollback(five: Registry, where: str):
    with pytest.raises(sk.UsageError, match="no model registry"):
        Registry(where.replace("models", "others"))
    with pytest.raises(sk.UsageError, match="no champion"):
        five.load()
    assert five.champion is None
    reader = Registry(where)
    for number in (2, 3, 5):
        five.promote(number)
        assert (reader.champion, says(reader.load())) == (number, number)
    assert five.promote(5) == 5  # and does not forget the others
    assert reader.standing.before == (3, 2)
    assert [five.rollback(), five.rollback()] == [3, 2]
    with pytest.raises(sk.UsageError, match="no earlier"):
        five.rollback()
    assert (reader.champion, says(reader.load("4")), says(reader.load("000004"))) == (2, 4, 4)
    assert reader.record(4)["name"] == "model 4"


@a_directory
@pytest.mark.parametrize(
    "name", ["../../etc", "..", "", "-1", "1/../2", "000001/model.zarr", "٣", "1e3", " 1", "/etc", "9" * 30]
)
def test_what_is_no_version_number_is_refused(five: Registry, name: str):
    for ask in (five.load, five.record, five.path, five.promote):
        with pytest.raises(sk.UsageError, match="not a version"):
            ask(name)


@a_store
def test_versions_of_a_store_have_numbers_and_no_path(five: Registry):
    for wrong in ("../../etc", "9"):
        with pytest.raises(sk.UsageError, match="version"):
            five.load(wrong)
    with pytest.raises(sk.UsageError, match="not in a local directory"):
        five.path(1)


def test_pruning_keeps_the_last_ones_the_champion_and_the_one_before_it(five: Registry):
    for number in (1, 2):
        five.promote(number)
    assert five.prune(2) == [3]
    assert five.versions == [1, 2, 4, 5]
    five.promote(4)
    assert five.prune(1) == [1]
    assert five.versions == [2, 4, 5]
    assert five.rollback() == 2
    with pytest.raises(sk.UsageError):
        five.prune(0)


@a_directory
def test_a_version_that_an_open_model_in_leaves_reads_from_is_pruned_later(models: Registry):
    """Leaves are read when rows first come to them: a champion that was open for some nights stopped predicting."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    fit = sk.KernelRegressor(sk.Laplace(2.0), 30, sk.Direct(), partition=sk.Partition(leaves=4)).fit(X, X[:, 0])
    models.add(lambda place: fit.model_.save(place / "model.zarr"), {})
    models.promote(1)
    served = sk.Predictor(models)
    for number in (2, 3, 4):
        add(models)
        models.promote(number)
    assert models.prune(1) == [2]
    np.testing.assert_allclose(served(X).predictions, fit.predict(X), rtol=1e-4, atol=1e-4)
    kept = models.load(1)
    del served
    gc.collect()
    assert models.prune(1) == []
    shutil.rmtree(models.path(1))  # by hand
    with pytest.raises(sk.errors.StorageError, match="leaf of the model is no longer there"):
        kept.predict(X)
    del kept


def test_numbers_are_never_given_twice(five: Registry, files: fsspec.AbstractFileSystem):
    five.promote(5)
    five.promote(1)
    files.rm(f"{five.where}/versions/000005", recursive=True)
    assert add(five) == 6


@a_directory
def test_earlier_champions_are_remembered_up_to_a_bound(models: Registry):
    add(models), add(models)
    for _ in range(MAX_EARLIER_CHAMPIONS + 3):
        for number in (1, 2):
            models.promote(number)
    assert models.standing.before == (1,)


@a_directory
@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b'{"format": 1}', b'{"format":1,"champion":"../x","before":[],"decided":1}', b"\xff\xfe"],
)
def test_a_damaged_champion_file_is_told_and_a_promotion_mends_it(five: Registry, damage: bytes):
    five.promote(3)
    (Path(five.where) / "champion.json").write_bytes(damage)
    with pytest.raises(sk.errors.ModelFormatError, match=r"damaged"):
        five.load()
    with five.lock():  # recovery promotes nothing by itself
        pass
    with pytest.raises(sk.errors.ModelFormatError):
        _ = five.champion
    five.promote(4)
    assert five.champion == 4


@a_directory
def test_a_later_format_is_refused(five: Registry):
    five.promote(3)
    for place in (Path(five.where) / "champion.json", five.path(3) / "record.json"):
        place.write_text(json.dumps(json.loads(place.read_text()) | {"format": 99}))
    for ask in (five.load, lambda: five.record(3)):
        with pytest.raises(sk.errors.ModelFormatError, match="format is 99"):
            ask()


def test_a_flipped_byte_is_found_and_the_champion_stays(five: Registry, files: fsspec.AbstractFileSystem):
    five.promote(1)
    (chunk,) = files.glob(f"{five.where}/versions/000002/model.zarr/weights/c/0/0")
    files.pipe_file(chunk, files.cat_file(chunk)[:-1] + b"\x55")
    with pytest.raises(sk.errors.ModelFormatError):
        five.promote(2)
    record = f"{five.where}/versions/000003/record.json"
    files.pipe_file(record, files.cat_file(record).replace(b"model 3", b"model 4"))
    with pytest.raises(sk.errors.ModelFormatError, match="checksum"):
        five.record(3)
    assert says(five.load()) == 1
    for damage, message in ((bytes(MAX_JSON_BYTES + 1), "bytes"), (b"{", "damaged")):
        files.pipe_file(f"{five.where}/{CHAMPION}", damage)
        with pytest.raises(sk.errors.StorageError, match=message):
            five.load()
    five.promote(3)
    assert five.champion == 3


@a_directory
def test_registries_of_format_1_still_load(five: Registry, tmp_path: Path):
    """The layout written out by hand: what is on users' disks."""
    other = tmp_path / "old"
    shutil.copytree(five.path(2) / "model.zarr", other / "versions/000002/model.zarr")
    record = {"format": 1, "version": 2, "created": "2026-01-01T00:00:00Z", "name": "old"}
    seal = "d9b2f544bd7ec4ee7ac8c25fc97f9305196a39d663e2e47045da9a9bdfed5478"
    (other / "versions/000002/record.json").write_text(json.dumps(record | {"sha256": seal}))
    (other / "champion.json").write_text('{"format": 1, "champion": 2, "before": [1], "decided": 2, "since": "2026"}')
    old = Registry(other)
    assert (old.champion, says(old.load()), old.record()["name"]) == (2, 2, "old")


@a_directory
def test_what_a_killed_process_left_is_put_right(five: Registry):
    five.promote(1)
    versions = Path(five.where) / "versions"
    (versions / ".000006.part.tmp").mkdir()
    os.rename(versions / "000003", versions / ".000003.part.tmp")
    with five.lock():
        assert sorted(place.name for place in versions.iterdir()) == ["000001", "000002", "000004", "000005"]
    assert five.champion == 1


@pytest.mark.parametrize(("champion", "promote", "after"), [(1, True, 6), (1, False, 1), (2, True, 1)])
def test_a_promotion_that_was_decided_is_carried_out(five: Registry, champion: int, promote: bool, after: int):
    for number in (5, 1):
        five.promote(number)
    add(five, decision={"promote": promote, "champion": champion})
    with five.lock():
        assert five.champion == after
    assert [line["status"] for line in five.decisions()] == ["promoted"] * (after == 6)


def test_a_rollback_is_not_undone_by_recovery(five: Registry):
    five.promote(1)
    number = add(five, decision={"promote": True, "champion": 1})
    five.promote(number)
    five.rollback()
    with five.lock():
        assert five.champion == 1


@a_directory
def test_half_a_line_of_the_log_costs_no_other(models: Registry):
    models.log({"status": "one"})
    with (Path(models.where) / "decisions.jsonl").open("ab") as file:
        file.write(b'{"status": "tw')
    models.log({"status": "three"})
    assert [line["status"] for line in models.decisions()] == ["one", "three"]


def test_readers_always_get_a_whole_champion(models: Registry):
    """A writer that adds, promotes and prunes as fast as it can, and readers that load the champion all the while."""
    add(models)
    models.promote(1)
    stop = threading.Event()
    errors: list[Exception] = []
    seen: list[list[int]] = [[], []]
    begin = threading.Barrier(3)

    def read(mine: list[int]) -> None:
        reader = Registry(models.where)
        try:
            mine.append(says(reader.load()))
            begin.wait()
            while not stop.is_set():
                mine.append(says(reader.load()))
            mine.append(says(reader.load()))
        except Exception as error:
            errors.append(error)
            begin.abort()

    def turn() -> None:
        number = add(models)
        models.promote(number)
        # Worse than ``prune``, which leaves the champion before this one.
        models._store.remove(number - 1)

    readers = [threading.Thread(target=read, args=(mine,)) for mine in seen]
    for reader in readers:
        reader.start()
    try:
        begin.wait()
        for _ in range(10):
            turn()
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert errors == []
    for mine in seen:
        assert (mine[0], mine[-1]) == (1, 11)
        assert mine == sorted(mine)


def test_a_command_without_a_registry_or_a_version_says_what_is_missing(tmp_path, capsys):
    Registry(tmp_path, create=True)
    for words, message in (
        (["retrain", "job.py"], "No registry is given"),
        (["models", str(tmp_path), "promote"], "No version is given"),
    ):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert message in told
        assert "\n  where: " in told


# ------------------------------------------------------------------------------------- several machines, and one store


@a_store
def test_of_two_machines_one_replaces_the_champion(five: Registry, where: str):
    five.promote(1)
    other = Registry(where)
    before, tag = five._standing()
    other.promote(2)
    with pytest.raises(sk.errors.BusyError, match="changed the champion meanwhile"):
        five._set(before, tag)  # it has read before, and puts afterwards
    with pytest.raises(sk.errors.BusyError, match="Version 2 became the champion"):
        five.promote(3, 1)
    assert (other.champion, five.standing.before) == (2, (1,))
    first = Registry(where.replace("kept", "new"), create=True)
    assert add(first) == 1
    assert first._store.claim(1)[0] == 2
    with pytest.raises(sk.errors.BusyError):  # none was there when it was read
        first._set(before, None), first._set(five.standing, None)


@a_store
def test_machines_that_add_at_once_have_different_numbers(five: Registry):
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(add(Registry(five.where)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == five.versions[5:] == [6, 7, 8, 9]


@a_store
def test_a_version_is_there_when_its_record_is(five: Registry, files: fsspec.AbstractFileSystem):
    files.rm_file(f"{five.where}/versions/000002/record.json")  # as if it were being sent, or removed
    assert five.versions == [1, 3, 4, 5]
    with five.lock():
        assert files.exists(f"{five.where}/versions/000002/claim")  # it may be on its way
    five.promote(5)
    with five.lock():
        assert not files.exists(f"{five.where}/versions/000002")
    files.rm_file(f"{five.where}/versions/000005/record.json")
    assert add(five) == 6


@a_store
def test_no_object_leads_out_of_the_copy(five: Registry, monkeypatch: pytest.MonkeyPatch):
    objects = five._store.objects
    whole = objects.find

    def find(path: str) -> dict[str, dict[str, object]]:
        return whole(path) | {f"{path}/../../../evil": {"size": 1}}

    monkeypatch.setattr(objects, "find", find)
    with pytest.raises(sk.errors.StorageError, match="not a file name"):
        objects.download("versions/000001/model.zarr", Path("nowhere"))
    assert not Path("nowhere").exists()


def test_a_store_without_conditions_is_written_all_the_same():
    models = Registry("memory://models", create=True)
    assert [add(models), add(models)] == [1, 2]
    models.promote(1)
    models.promote(2)
    models.log({"status": "promoted"})
    again = Registry("memory://models")
    assert (again.champion, says(again.load()), again.rollback(), len(again.decisions())) == (2, 2, 1, 1)


PIPELINE = """
import streamkern as sk

def pipeline(seed: int = 0):
    train, test = sk.open_dataset("rows.zarr", target="label").split(test=0.3)
    return sk.Pipeline(train=train, test=test, kernel=sk.Laplace(2.0), centers=sk.Uniform(30), seed=seed)
"""


@a_store
def test_nights_with_models_on_s3(where, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("nightly.py").write_text(PIPELINE)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    X = (rng.standard_normal((600, 4)) + 1.5 * y[:, None]).astype("float32")
    sk.write_zarr("rows.zarr", X, y, target="label", chunk_rows=100)

    def night(*words: str) -> tuple[int, str]:
        status = main(["retrain", "nightly.py", "--registry", where, "--quiet", *words])
        return status, json.loads(capsys.readouterr().out.splitlines()[-1])["status"]

    assert night() == (0, "promoted")
    assert night() == (0, "unchanged")
    with Registry(where).lock(Path("runs/nightly")):  # another process of this machine
        assert night("--set", "seed=1") == (75, "failed")
    assert night("--set", "seed=1", "--gate", "accuracy > 2") == (0, "rejected")
    assert main(["models", where]) == 0
    assert capsys.readouterr().out.count("accuracy") == 2
    assert main(["models", where, "promote", "2"]) == 0
    assert main(["predict", where, "rows.zarr", "out.parquet"]) == 0
    expected = sk.Predictor(Registry(where).load())(X).predictions
    assert np.array_equal(pd.read_parquet("out.parquet")["prediction"], expected)
    assert main(["evaluate", where, "rows.zarr", "--target", "label"]) == 0
    assert [line["status"] for line in Registry(where).decisions()] == ["promoted", "unchanged", "rejected"]
