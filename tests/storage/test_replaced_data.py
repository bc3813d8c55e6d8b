"""Data replaced by others of the same size and time: every kind of source notices, and so does what uses it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import zarr

import streamkern as sk
from streamkern.errors import StorageError
from streamkern.formats.open_tables import open_tables
from streamkern.ingestion.array_files import READERS

N = 600


def columns(seed: int) -> dict[str, Any]:
    values = np.random.default_rng(seed).integers(10, 99, (3, N)).astype(np.float64)
    return {"a": values[0], "b": values[1], "y": values[2]}


def csv(place: Path, seed: int) -> None:
    pa.csv.write_csv(pa.table(columns(seed)), place)


def parquet(place: Path, seed: int) -> None:
    pq.write_table(pa.table(columns(seed)), place, compression="none", use_dictionary=False, row_group_size=200)


def arrow(place: Path, seed: int) -> None:
    with pa.ipc.new_file(place, pa.table(columns(seed)).schema) as writer:
        writer.write_table(pa.table(columns(seed)))


def npz(place: Path, seed: int) -> None:
    np.savez(place, **columns(seed))


def hdf5(place: Path, seed: int) -> None:
    with h5py.File(place, "w", track_order=False) as file:
        for name, values in columns(seed).items():
            file.create_dataset(name, data=values, track_times=False)


def zarr_group(place: Path, seed: int) -> None:
    group = zarr.create_group(str(place))
    for name, values in columns(seed).items():
        group.create_array(name, data=values, chunks=(200,), compressors=None)


def partitioned(place: Path, seed: int) -> None:
    for part in range(2):
        (place / f"k={part}").mkdir(parents=True)
        parquet(place / f"k={part}" / "part.parquet", seed + part)


KINDS: dict[str, Callable[[Path, int], None]] = {
    "rows.csv": csv, "rows.parquet": parquet, "rows.arrow": arrow, "rows.npz": npz, "rows.h5": hdf5,
    "rows.zarr": zarr_group, "folder": partitioned,
}  # fmt: skip
OPENED = [kind for kind in KINDS if kind not in ("rows.npz", "rows.h5")]
"""Kinds that not only ``ingest`` reads."""


def files(place: Path) -> list[Path]:
    return sorted(file for file in (place.rglob("*") if place.is_dir() else [place]) if file.is_file())


def replace(place: Path, other: Path, in_place: bool) -> None:
    """Put the content of other data of the same sizes in the place of these."""
    assert len(files(place)) == len(files(other))
    for old, new in zip(files(place), files(other), strict=True):
        assert old.stat().st_size == new.stat().st_size, old
        if in_place:
            old.write_bytes(new.read_bytes())
        else:
            shutil.copyfile(new, temporary := old.with_name("temporary"))
            temporary.replace(old)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_the_same_size_are_noticed(kind: str, in_place: bool, tmp_path: Path) -> None:
    place, other = tmp_path / kind, tmp_path / "other" / kind
    other.parent.mkdir()
    KINDS[kind](place, 0)
    KINDS[kind](other, 1)
    source = open_tables([str(place)], "y", ["a", "b"], readers=READERS)
    before = source.fingerprint
    source.require_unchanged()
    assert open_tables([str(place)], "y", ["a", "b"], readers=READERS).fingerprint == before
    replace(place, other, in_place)
    with pytest.raises(StorageError, match=r"(?s)have changed since they were opened.*where: .*starts from the"):
        source.require_unchanged()
    assert open_tables([str(place)], "y", ["a", "b"], readers=READERS).fingerprint != before
    (shutil.rmtree if place.is_dir() else Path.unlink)(place)
    with pytest.raises(StorageError, match="have changed"):
        source.require_unchanged()


@pytest.mark.parametrize("replaced", ["X", "y", "w"])
def test_each_file_of_several_is_noticed(replaced: str, tmp_path: Path) -> None:
    for name, values in (("X", np.ones((N, 2))), ("y", np.ones(N)), ("w", np.ones(N))):
        np.save(tmp_path / f"{name}.npy", values)
    source = open_tables([str(tmp_path / "X.npy")], str(tmp_path / "y.npy"), weight=str(tmp_path / "w.npy"))
    joined = open_tables([str(tmp_path / "X.npy")] * 2)
    source.require_unchanged()
    np.save(tmp_path / f"{replaced}.npy", 2 * np.load(tmp_path / f"{replaced}.npy"))
    with pytest.raises(StorageError, match=rf"where: .*{replaced}\.npy"):
        source.require_unchanged()
    if replaced == "X":
        with pytest.raises(StorageError, match="have changed"):
            joined.require_unchanged()
    else:
        joined.require_unchanged()


@pytest.mark.parametrize("kind", KINDS)
def test_objects_of_a_store_are_noticed(kind: str, tmp_path: Path) -> None:
    place, other, url = tmp_path / kind, tmp_path / "other" / kind, f"memory://replaced/{kind}"
    other.parent.mkdir()
    KINDS[kind](place, 0)
    KINDS[kind](other, 1)
    fs = fsspec.filesystem("memory")
    fs.put(str(place), f"/replaced/{kind}", recursive=True)
    source = open_tables([url], "y", ["a", "b"], readers=READERS)
    before = source.fingerprint
    source.require_unchanged()
    assert open_tables([url], "y", ["a", "b"], readers=READERS).fingerprint == before
    last = [file for file in files(other) if file.name != "zarr.json"][-1]
    fs.pipe_file(f"/replaced/{kind}" + str(last).removeprefix(str(other)), last.read_bytes())
    with pytest.raises(StorageError, match="have changed"):
        source.require_unchanged()
    assert open_tables([url], "y", ["a", "b"], readers=READERS).fingerprint != before
    fs.rm("/replaced", recursive=True)
    with pytest.raises(StorageError, match="have changed"):
        source.require_unchanged()


def job(given: Path | sk.Dataset) -> sk.Pipeline:
    data = sk.open_dataset(given, target="y") if isinstance(given, Path) else given
    return sk.Pipeline(
        data, sk.Laplace(50.0), sk.Uniform(60), sk.EigenPro(epochs=4, batch=50), task="regression", test=data
    )  # fmt: skip


class StopError(Exception):
    pass


@pytest.mark.parametrize("kind", ["rows.parquet", "rows.zarr"])
def test_a_resume_with_replaced_data_begins_anew_and_says_so(kind: str, tmp_path: Path) -> None:
    place, other = tmp_path / kind, tmp_path / "other" / kind
    other.parent.mkdir()
    KINDS[kind](place, 0)
    KINDS[kind](other, 1)

    def stop(event: str, fields: dict[str, Any]) -> None:
        if event == "step" and fields["rows"] >= 1000:
            raise StopError

    with pytest.raises(StopError):
        sk.run(job(place), tmp_path / "run", threads=1, checkpoint_seconds=0, listeners=(stop,))
    replace(place, other, in_place=True)
    said: list[str] = []
    hear = lambda event, fields: said.append(str(fields.get("message", "")))  # noqa: E731
    result = sk.run(job(place), tmp_path / "run", threads=1, listeners=(hear,))
    assert any("train of the pipeline changed since the run that was interrupted" in text for text in said)
    assert result["resumed_rows"] == 0
    fresh = sk.run(job(other), tmp_path / "fresh", threads=1)
    assert result["weights_sha256"] == fresh["weights_sha256"]
    assert result["metrics"] == fresh["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["statistics", "train", "save"])
def test_data_that_are_replaced_during_a_run_are_an_error(when: str, tmp_path: Path) -> None:
    place, other = tmp_path / "rows.zarr", tmp_path / "other.zarr"
    zarr_group(place, 0)
    zarr_group(other, 1)

    def swap(event: str, fields: dict[str, Any]) -> None:
        name, state = ("evaluate", "begin") if when == "save" else (when, "end")
        if event == "stage" and (fields["name"], fields["state"]) == (name, state):
            replace(place, other, in_place=True)

    with pytest.raises(StorageError, match=r"(?s)have changed since they were opened.*rows\.zarr"):
        sk.run(job(place), tmp_path / "run", threads=1, listeners=(swap,))
    again = sk.run(job(place), tmp_path / "run", threads=1)
    assert not any(stage["cached"] for stage in again["stages"])
    assert again["weights_sha256"] == sk.run(job(other), tmp_path / "fresh", threads=1)["weights_sha256"]


def test_rows_replaced_after_they_were_opened_are_not_fitted_predicted_or_ingested(tmp_path: Path) -> None:
    place = tmp_path / "rows.csv"
    csv(place, 0)
    data = sk.open_dataset(place, target="y")
    csv(place, 1)
    with pytest.raises(StorageError, match="have changed"):
        sk.KernelRegressor(centers=20).fit(data)
    csv(place, 0)
    model = (
        sk.KernelRegressor(sk.Laplace("median"), centers=20)
        .fit(sk.open_dataset(place, target="y"))
        .save(tmp_path / "m.zarr")
    )

    def swap(*what: Any) -> None:
        csv(place, 1)

    with pytest.raises(StorageError, match="have changed"):
        sk.predict(model, place, tmp_path / "out.parquet", on_progress=swap)
    assert not (tmp_path / "out.parquet").exists()
    with pytest.raises(StorageError, match="have changed"):
        sk.ingest(place, tmp_path / "rows.zarr", target="y", on_progress=swap)
    assert not (tmp_path / "rows.zarr").exists()


def test_pieces_of_a_copy_are_the_same_and_those_of_other_rows_are_not(tmp_path: Path) -> None:
    """What a nightly retraining has read already: also where the files were copied, with their times."""
    X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
    places = [tmp_path / name / "rows.zarr" for name in ("one", "two")]
    for place, values in zip(places, (X, np.roll(X, 1, axis=0)), strict=True):
        sk.write_zarr(str(place), values, chunk_rows=100)
    copied = tmp_path / "copied" / "rows.zarr"
    shutil.copytree(places[0], copied)
    one, two, three = [open_tables([str(place)]).pieces() for place in (places[0], copied, places[1])]
    assert one == two
    for old, new in zip(files(places[1]), files(places[0]), strict=True):
        if old.stat().st_size == new.stat().st_size:  # of the same size, and given the same time
            os.utime(old, ns=(new.stat().st_atime_ns, new.stat().st_mtime_ns))
    assert not {digest for digest, _ in open_tables([str(places[1])]).pieces()} & {digest for digest, _ in one}
    assert len(three) == len(one) == 6
