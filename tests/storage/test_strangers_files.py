"""Data files that a stranger made: only regular files are read, nothing outside them, and every fault is one error."""

import json
import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import streamkern as sk
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.formats.training_zarr import write_zarr
from streamkern.ingestion.array_files import READERS
from streamkern.memory import memory_limit, parse_bytes, peak_resident_bytes
from streamkern.report.run_directory import read_run
from streamkern.serving.prediction_writers import record_at
from tests import fuzz_data

DAMAGED = Path(__file__).parent / "damaged"
X = np.random.default_rng(0).normal(size=(60, 3))
Y, TEXT = X[:, 0].copy(), np.array(["u", "v", "w"] * 20, dtype=object)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """End a test that waits for the writer of a FIFO, as such a test would wait for ever."""

    def end(*_: Any) -> None:
        pytest.exit("a read waits for ever", returncode=1)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("end", ["csv", "csv.gz", "txt", "arrow", "npy", "npz", "h5", "parquet"])
def test_a_fifo_in_place_of_a_file_is_refused(end: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"data.{end}")
    for open_it in (
        lambda: open_tables([tmp_path / f"data.{end}"], "y"),
        lambda: sk.open_dataset(tmp_path / f"data.{end}", target="y"),
        lambda: sk.ingest(tmp_path / f"data.{end}", tmp_path / "new.zarr", target="y"),
        lambda: sk.inspect(tmp_path / f"data.{end}"),
    ):
        with pytest.raises(sk.errors.StorageError, match="FIFO"):
            open_it()


@pytest.mark.parametrize("pattern", ["", "*.parquet"])
def test_a_fifo_among_parquet_files_is_refused(pattern: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / "1.parquet", X, Y)
    os.mkfifo(tmp_path / "2.parquet")
    with pytest.raises(sk.errors.StorageError, match="FIFO"):
        open_tables([str(tmp_path / pattern)])


@pytest.mark.parametrize("make", ["ours", "shards", "version 2", "text"])
def test_a_chunk_file_larger_than_its_chunk_is_refused_before_it_is_read(make: str, tmp_path: Path) -> None:
    """zarr reads a file as a whole: a sparse file of gigabytes costs its author nothing."""
    place = tmp_path / "z.zarr"
    if make in ("ours", "text"):
        write_zarr(place, X, TEXT if make == "text" else Y)
    else:
        group = zarr.create_group(str(place), zarr_format=2 if make == "version 2" else 3)
        shards = {"shards": (60, 3)} if make == "shards" else {}
        group.create_array("X", data=X + 9, chunks=(20, 3), **shards)
        group.create_array("target", data=Y + 9)
    chunk = max((place / ("target" if make == "text" else "X")).rglob("*0*"), key=lambda path: len(path.parts))
    with open(chunk, "r+b") as file:
        file.truncate(64 << 30)
    source, before = open_tables([place], "target"), peak_resident_bytes()
    with memory_limit(parse_bytes("8GiB")), pytest.raises((sk.errors.StorageError, sk.MemoryLimitError)) as error:
        source.read(0)
    assert chunk.name in str(error.value.where)
    assert peak_resident_bytes() < before + (1 << 30)


def test_chunks_without_rows_are_refused(tmp_path: Path) -> None:
    write_zarr(tmp_path / "z.zarr", X, Y)
    place = tmp_path / "z.zarr" / "target" / "zarr.json"
    document = json.loads(place.read_text())
    document["chunk_grid"]["configuration"]["chunk_shape"] = [0]
    place.write_text(json.dumps(document))
    with pytest.raises(sk.errors.StorageError, match=r"chunks of shape \(0,\)|no zarr array"):
        open_tables([tmp_path / "z.zarr"])


def test_a_fifo_in_place_of_predictions_or_of_a_log_is_not_opened(tmp_path: Path) -> None:
    for name in ("out.csv", "out.parquet"):
        os.mkfifo(tmp_path / name)
        assert record_at(tmp_path / name) is None
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    os.mkfifo(tmp_path / "run" / "events.jsonl")
    with pytest.raises(sk.errors.StorageError, match="FIFO"):
        read_run(tmp_path / "run")


def external(file: h5py.File, path: Path) -> None:
    path.write_bytes(Y.tobytes())
    file.create_dataset("X", shape=(30, 2), dtype="f8", external=[(str(path), 0, 480)])


def virtual(file: h5py.File, path: Path) -> None:
    with h5py.File(path, "w") as other:
        other["d"] = X[:, :2]
    layout = h5py.VirtualLayout((60, 2), "f8")
    layout[:] = h5py.VirtualSource(str(path), "d", (60, 2))
    file.create_virtual_dataset("X", layout)


@pytest.mark.parametrize("make", [external, virtual])
def test_an_hdf5_dataset_whose_values_are_in_other_files_is_refused(make, tmp_path):
    """The values of a file of the machine would become rows."""
    with h5py.File(tmp_path / "data.h5", "w") as file:
        make(file, tmp_path / "secret")
        file["other"] = X
    with pytest.raises(sk.errors.StorageError, match="stored in other files") as error:
        open_tables([tmp_path / "data.h5"], columns=["X"], readers=READERS)
    assert "dataset X" in str(error.value.where)
    # What is not read does not matter.
    assert open_tables([tmp_path / "data.h5"], columns=["other"], readers=READERS).n_features == 3


def test_an_hdf5_dataset_that_becomes_external_after_opening_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "data.h5"
    with h5py.File(place, "w") as file:
        file["X"] = X[:30, :2]
    source = open_tables([place], readers=READERS)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        external(file, tmp_path / "secret")
    with open(tmp_path / "other.h5", "ab") as file:
        file.truncate(place.stat().st_size)
    os.replace(tmp_path / "other.h5", place)
    with pytest.raises(sk.errors.StorageError):
        source.read(0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Data sets in every layout."""
    return fuzz_data.originals(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_forged_metadata_are_one_error_or_rows(seed: int, whole: list[Path], tmp_path: Path) -> None:
    """Errors of NumPy, Arrow, zarr, h5py and zipfile never reach the user; thousands: tests/fuzz_data.py."""
    for number in range(100):
        place = fuzz_data.case(number, seed, whole, tmp_path)
        assert fuzz_data.outcome(place) in fuzz_data.GOOD, (place.name, number)


@pytest.mark.slow
def test_forged_parquet_footers_are_one_error_or_rows(whole: list[Path], tmp_path: Path) -> None:
    """Arrow's accessors of column chunks would end the process for some of them."""
    for original in (place for place in whole if place.suffix == ".parquet"):
        data = original.read_bytes()
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        for number in range(40):
            footer = fuzz_data.forged_footer(data[start:-8], random.Random(number))
            place = tmp_path / original.name
            place.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
            assert fuzz_data.outcome(place) in fuzz_data.GOOD, (original.name, number)


@pytest.mark.parametrize("width", [2**31, 2**62])
def test_an_array_of_damaged_width_is_refused_before_its_chunks_are_counted(width: int, tmp_path: Path) -> None:
    group = zarr.create_group(str(tmp_path / "t.zarr"), zarr_format=3)
    group.create_array("X", data=X, chunks=(20, 3), shards=(20, 3))
    document = tmp_path / "t.zarr" / "X" / "zarr.json"
    stated = json.loads(document.read_text())
    stated["shape"] = [60, width]
    document.write_text(json.dumps(stated))
    with (
        memory_limit(parse_bytes("1GiB")),
        pytest.raises(sk.errors.StorageError, match="a row of the array is stored in"),
    ):
        sk.open_dataset(tmp_path / "t.zarr")


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize(
    ("version", "layout"),
    [(2, {}), (3, {}), (3, {"shards": (40, 3)}), (3, {"compressors": zarr.codecs.BloscCodec()}),
     (3, {"compressors": None})],
)  # fmt: skip
@pytest.mark.parametrize("side", ["own", "consolidated"])
def test_consolidated_metadata_that_say_something_else_are_refused(version, layout, side, tmp_path):
    group = zarr.create_group(str(tmp_path / "t.zarr"), zarr_format=version)
    group.create_array("X", data=X, chunks=(20, 3), **layout)
    zarr.consolidate_metadata(str(tmp_path / "t.zarr"))
    assert len(sk.open_dataset(tmp_path / "t.zarr")) == 60
    names = {(2, "own"): "X/.zarray", (2, "consolidated"): ".zmetadata", (3, "own"): "X/zarr.json"}
    document = tmp_path / "t.zarr" / names.get((version, side), "zarr.json")
    text = document.read_text()
    document.write_text(re.sub(r'("shape": \[\s*)60(,\s*3\b)', r"\g<1>40\2", text))
    assert document.read_text() != text
    with pytest.raises(sk.errors.StorageError, match="in the consolidated metadata of its group it has"):
        sk.open_dataset(tmp_path / "t.zarr")


def test_sizes_that_no_memory_holds_are_an_error_in_words() -> None:
    with pytest.raises(sk.MemoryLimitError, match="the system refused to allocate memory"):
        sk.inspect(DAMAGED / "huge_size.feather", "target")
