"""Any table to the training layout: the same rows, in a random order if asked for, complete or not there at all."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather
from scipy import stats

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.formats.training_zarr import write_zarr
from streamkern.ingestion import ingest as ingest_module
from streamkern.ingestion.ingest import ingest
from streamkern.sources import format_rules
from streamkern.sources.ingest_record import ingest_record
from streamkern.storage import atomic_writes
from streamkern.testing.source import read_all

FORMATS = ("zarr", "parquet")
BUDGET = "8GiB"


def table(n: int = 500, d: int = 3, dtype: str = "f4") -> tuple[np.ndarray, np.ndarray]:
    """Rows that tell which they are, and labels that follow from them."""
    X = np.arange(n * d).reshape(n, d).astype(dtype)
    return X, np.arange(n) % 7


def rows_of(path) -> list[tuple]:
    X, y, _ = read_all(open_tables(path))
    labels = [None] * len(X) if y is None else y.tolist()
    return [(*row, label) for row, label in zip(X.tolist(), labels, strict=True)]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 400)


def every_file(folder: Path, X, y, rows: int):
    """The same rows in files of every kind."""
    names = [f"c{j}" for j in range(X.shape[1])]
    frame = pd.DataFrame({**dict(zip(names, X.T, strict=True)), "label": y})
    write_parquet(folder / "binary.parquet", X, y, target="label", row_group_rows=rows, columns=names)
    frame.to_parquet(folder / "columns.parquet", row_group_size=rows)
    lists = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), X.shape[1]), "label": y})
    pq.write_table(lists, folder / "lists.parquet", row_group_size=rows)
    write_zarr(folder / "rows.zarr", X, y, target="label", chunk_rows=rows, columns=names)
    frame.to_csv(folder / "text.csv", index=False)
    feather.write_feather(frame, str(folder / "rows.feather"), chunksize=rows)
    np.savez(folder / "rows.npz", X=X, label=y)
    with h5py.File(folder / "rows.h5", "w") as file:
        file["X"], file["label"] = X, y
    return sorted(path for path in folder.iterdir() if not path.name.endswith(".out"))


@settings(max_examples=4)
@given(
    n=st.integers(1, 60),
    d=st.integers(1, 4),
    dtype=st.sampled_from(["u1", "i2", "f4", "f8"]),
    rows=st.integers(1, 70),
    chunk_bytes=st.integers(1, 300),
    shuffle=st.booleans(),
    format=st.sampled_from(FORMATS),
    threads=st.integers(1, 3),
)
def test_any_format_and_chunking_gives_the_same_multiset_of_rows(
    n, d, dtype, rows, chunk_bytes, shuffle, format, threads
):
    X, y = table(n, d, dtype)
    expected = sorted([(*row, label) for row, label in zip(X.tolist(), y.tolist(), strict=True)])
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        paths = every_file(Path(name), X, y, rows)
        patch.setattr(format_rules, "CHUNK_BYTES", chunk_bytes)
        orders = set()
        for path in paths:
            out = path.with_suffix(path.suffix + ".out")
            made = ingest(path, out, target="label", shuffle=shuffle, format=format, threads=threads, memory=BUDGET)
            assert (made.rows, made.n_features, made.target) == (n, d, "label")
            found = rows_of(out)
            assert sorted(found) == expected
            orders.add(tuple(found))
        assert len(orders) == 1  # the order depends on the seed and the rows' numbers alone


def test_a_model_trained_on_what_was_ingested_has_the_labels_of_the_source(tmp_path, small_chunks):
    X = np.random.default_rng(0).normal(size=(300, 2))
    y = np.where(X[:, 0] > 0, "right", "left")
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "side": y}).sort_values("side").to_csv(tmp_path / "t.csv", index=False)
    ingest(tmp_path / "t.csv", tmp_path / "t.zarr", target="side", shuffle=True, memory=BUDGET)
    model = sk.KernelClassifier(sk.Gaussian(2.0), 50, sk.Direct(1e-3)).fit(sk.open_dataset(tmp_path / "t.zarr"))
    assert model.classes_.tolist() == ["left", "right"]
    assert np.mean(model.predict(pd.DataFrame(X, columns=["a", "b"])) == y) > 0.9


@pytest.mark.parametrize("memory", ["few", "many"])
def test_the_order_is_the_same_for_any_memory_threads_and_chunks(tmp_path, monkeypatch, memory):
    X, y = table(1500)
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 1000)
    ingest((X, y), tmp_path / "one", shuffle=True, seed=3, memory=BUDGET)
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 333)
    # Rows held at a time: as many as leave several runs and buckets, or all of them.
    monkeypatch.setattr(ingest_module, "ROW_EXTRA", (8 << 30) // 400 if memory == "few" else 24)
    runs = []
    monkeypatch.setattr(ingest_module.SortedRuns, "write", lambda self, a, run, w=ingest_module.SortedRuns.write: (
        runs.append(a), w(self, a, run)))  # fmt: skip
    ingest((X, y), tmp_path / "two", shuffle=True, seed=3, memory=BUDGET, threads=4)
    assert (len(runs) > 5) == (memory == "few")
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "two")
    ingest((X, y), tmp_path / "three", shuffle=True, seed=4, memory=BUDGET)
    assert rows_of(tmp_path / "three") != rows_of(tmp_path / "one")


@pytest.mark.parametrize("seed", range(3))
def test_the_shuffle_passes_a_chi_squared_test_on_position(tmp_path, seed):
    n, parts = 100_000, 20
    ingest(np.arange(n, dtype=np.int32)[:, None], tmp_path / "out", shuffle=True, seed=seed, memory=BUDGET)
    was = read_all(open_tables(tmp_path / "out")).X[:, 0]
    counts = np.histogram2d(np.arange(n), was, bins=parts)[0]
    p = stats.chi2.sf(((counts - n / parts**2) ** 2 / (n / parts**2)).sum(), (parts - 1) ** 2)
    assert 1e-4 < p < 1 - 1e-4
    # Neighbours before are no neighbours after: the distance of places is that of two independent ones.
    place = np.empty(n, dtype=np.int64)
    place[was] = np.arange(n)
    gaps = np.abs(np.diff(place)) / n
    assert stats.kstest(gaps[::2], lambda x: 1 - (1 - x) ** 2).pvalue > 1e-4


def test_shards_hold_the_rows_in_fewer_files(tmp_path, monkeypatch):
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 1200)
    X, y = table(2000)
    ingest((X, y), tmp_path / "plain.zarr", memory=BUDGET)
    ingest((X, y), tmp_path / "shards.zarr", shard=6000, memory=BUDGET)
    files = [sum(path.is_file() for path in (tmp_path / name).rglob("*")) for name in ("plain.zarr", "shards.zarr")]
    assert files[0] > 3 * files[1]
    assert zarr.open_array(tmp_path / "shards.zarr" / "X").shards == (500, 3)
    assert rows_of(tmp_path / "shards.zarr") == rows_of(tmp_path / "plain.zarr")


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_small_files_hold_the_same_rows(tmp_path, dtype):
    X, y = np.random.default_rng(0).integers(0, 1000, (5000, 3)).astype(dtype), np.arange(5000) % 7
    fast = ingest((X, y), tmp_path / "fast.zarr", memory=BUDGET)
    small = ingest((X, y), tmp_path / "small.zarr", compression="small", memory=BUDGET)
    write_zarr(tmp_path / "written.zarr", X, y, compression="small")
    assert small.stored_bytes < (0.8 if dtype[0] == "f" else 0.95) * fast.stored_bytes
    assert rows_of(tmp_path / "small.zarr") == rows_of(tmp_path / "written.zarr") == rows_of(tmp_path / "fast.zarr")


def test_floats_that_do_not_repeat_are_stored_as_they_are(tmp_path):
    """They are copied; shuffled, they are a tenth smaller, and decoding takes several times as long."""
    X = np.random.default_rng(0).normal(size=(5000, 4)).astype("f4")
    write_zarr(tmp_path / "X.zarr", X)
    (chunk,) = [path for path in (tmp_path / "X.zarr" / "X").rglob("0") if path.is_file()]
    assert X.tobytes() in chunk.read_bytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("format", FORMATS)
def test_rounded_features_keep_their_leading_bits_and_their_gaps(tmp_path, format, dtype):
    X = np.random.default_rng(0).lognormal(sigma=9, size=(4000, 3)).astype(dtype)
    X[0], X[1] = [np.nan, np.inf, -np.inf], [0, np.finfo(dtype).max, np.finfo(dtype).tiny]
    whole = ingest((X, X[:, 0] > 1), tmp_path / f"whole.{format}", memory=BUDGET)
    options = {"compression": "small"} if format == "zarr" else {}
    made = ingest((X, X[:, 0] > 1), tmp_path / f"rounded.{format}", keep_bits=5, memory=BUDGET, **options)
    found = read_all(open_tables(made.path)).X
    np.testing.assert_array_equal(found[:2], X[:2])
    np.testing.assert_allclose(found[2:], X[2:], rtol=2**-6)
    assert len(np.unique(np.frexp(found[2:])[0])) <= 33  # 1/2 with five more bits, to 1
    assert format == "parquet" or made.stored_bytes < 0.6 * whole.stored_bytes


@pytest.mark.parametrize("format", FORMATS)
def test_no_rows_are_a_data_set_of_no_rows(tmp_path, format):
    for shuffle in (False, True):
        made = ingest(
            (np.zeros((0, 3)), np.zeros(0)), tmp_path / f"{shuffle}", shuffle=shuffle, format=format, memory=BUDGET
        )
        assert made.rows == 0
        assert rows_of(made.path) == []


def test_a_flipped_byte_is_found(tmp_path):
    ingest(table(), tmp_path / "out.zarr", memory=BUDGET)
    chunk = tmp_path / "out.zarr" / "X" / "c" / "0" / "0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(sk.errors.StorageError, match="X/c/0/0"):
        rows_of(tmp_path / "out.zarr")


@pytest.mark.parametrize("format", FORMATS)
def test_the_record_says_where_rows_come_from_and_no_secret(tmp_path, format):
    np.savez(tmp_path / "rows.npz", X=np.eye(3), label=np.arange(3))
    ingest(tmp_path / "rows.npz", tmp_path / "out", target="label", shuffle=True, seed=5, format=format, memory=BUDGET)
    record = ingest_record(tmp_path / "out")
    assert record["sources"] == [str(tmp_path / "rows.npz")]
    assert (record["rows"], record["shuffle"], record["seed"]) == (3, "global", 5)
    assert record["version"] == sk.__version__
    assert len(record["source_fingerprint"]) == 64
    described = ingest_module._described("s3://key:secret@bucket/rows.csv?token=secret")
    assert described == "s3://***@bucket/rows.csv?***"
    write_zarr(tmp_path / "other.zarr", np.eye(3))
    assert ingest_record(tmp_path / "other.zarr") is None


def test_repeating_a_finished_ingest_does_nothing_and_changed_sources_are_told(tmp_path):
    write_parquet(tmp_path / "rows.parquet", *table())
    first = ingest(tmp_path / "rows.parquet", tmp_path / "out.zarr", memory=BUDGET)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out.zarr").rglob("*")}
    again = ingest(tmp_path / "rows.parquet", tmp_path / "out.zarr", memory=BUDGET)
    assert (first.kept, again.kept) == (0, 500)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out.zarr").rglob("*")}
    write_parquet(tmp_path / "rows.parquet", *table(600))
    with pytest.raises(sk.errors.StorageError, match="this path already exists"):
        ingest(tmp_path / "rows.parquet", tmp_path / "out.zarr", memory=BUDGET)
    assert ingest(tmp_path / "rows.parquet", tmp_path / "out.zarr", overwrite=True, memory=BUDGET).rows == 600
    assert len(rows_of(tmp_path / "out.zarr")) == 600
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_what_ingest_has_not_made_is_never_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(sk.errors.StorageError, match="this path already exists"):
        ingest(table(), tmp_path / "out", overwrite=True, memory=BUDGET)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


# -------------------------------------------------------------------------------------------------- interruptions

KILLED = """
import json, os, random, signal, sys, threading
from streamkern.ingestion import ingest as module
from streamkern.sources import format_rules
from streamkern.ingestion.ingest import ingest
format_rules.CHUNK_BYTES, module.PART_CHUNKS, module.ROW_EXTRA = 16 << 10, 8, 1_600_000  # runs of about 4,000 rows
folder, kills = sys.argv[1], int(sys.argv[2])
random.seed(1)
for name, more in json.loads(sys.argv[3]).items():
    told = []
    options = dict(target="label", memory="8GiB", **more)
    ingest(f"{folder}/rows.parquet", f"{folder}/{name}", on_progress=lambda *_: told.append(1), **options)
    os.rename(f"{folder}/{name}", f"{folder}/{name}.whole")
    killed, share = 0, len(told) // kills  # of the work, about, from kill to kill
    for attempt in range(kills):
        when, late, calls = random.randrange(share // 2, (3 * share + 1) // 2), random.uniform(0, 0.01), []
        child = os.fork()
        if not child:
            die = lambda: os.kill(os.getpid(), signal.SIGKILL)
            def hear(*_):  # milliseconds later; or, where the machine is busy with something else, by then
                if len(calls) == when:
                    threading.Timer(late, die).start()
                elif len(calls) > when + share:
                    die()
                calls.append(1)
            ingest(f"{folder}/rows.parquet", f"{folder}/{name}", on_progress=hear, **options)
            os._exit(0)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    made = ingest(f"{folder}/rows.parquet", f"{folder}/{name}", **options)
    print(json.dumps([name, killed, made.kept]))
"""


@pytest.mark.slow
def test_killed_at_any_moment_and_repeated_completes_without_a_wrong_row(tmp_path):
    X = np.random.default_rng(0).normal(size=(40_000, 8)).astype(np.float32)
    X[:, 0] = np.arange(40_000)
    write_parquet(tmp_path / "rows.parquet", X, X[:, 0] % 10, target="label", row_group_rows=500)
    jobs = {
        "a.zarr": {"shuffle": True},
        "b.zarr": {"threads": 2, "shard": 1 << 17},
        "c.parquet": {"shuffle": True, "threads": 2},
    }
    program = [sys.executable, "-c", KILLED, str(tmp_path), "6", json.dumps(jobs)]
    out = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    told = [json.loads(line) for line in out.splitlines()]
    assert [name for name, _, _ in told] == list(jobs)
    assert sum(killed for _, killed, _ in told) >= 10, told
    assert all(kept > 0 for _, _, kept in told), told
    for name in jobs:
        whole, found = read_all(open_tables(tmp_path / f"{name}.whole")), read_all(open_tables(tmp_path / name))
        np.testing.assert_array_equal(found.X, whole.X)
        np.testing.assert_array_equal(found.y, whole.y)
        np.testing.assert_array_equal(found.X[np.argsort(found.X[:, 0])], X)
        np.testing.assert_array_equal(found.y, found.X[:, 0] % 10)
    assert [path.name for path in tmp_path.glob(".*")] == []  # nothing is left over


class Stop(Exception):
    pass


def stopping(after: int):
    calls = iter(range(after))

    def tell(what: str, rows: int, total: int) -> None:
        if next(calls, None) is None:
            raise Stop

    return tell


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_half_written_set_is_never_read(tmp_path, monkeypatch, format, shuffle):
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 400)
    monkeypatch.setattr(ingest_module, "PART_CHUNKS", 2)
    # 16 chunks are scattered if they are shuffled; then 16 chunks or 8 files are written.
    for after in (0, 5, 16, 18, 22) if shuffle else (0, 1, 5):
        out = tmp_path / f"{after}.{format}"
        with pytest.raises(Stop):
            ingest(table(), out, shuffle=shuffle, on_progress=stopping(after), memory=BUDGET)
        folder = atomic_writes.unfinished_folder(out)
        for place in (out, folder / "data"):
            with pytest.raises(sk.errors.StorageError, match="has not been completed"):
                sk.open_dataset(place)
        # Another data set to the same place begins anew, and the same one goes on.
        ingest(table(100), out, shuffle=shuffle, memory=BUDGET)
        assert sorted(rows_of(out)) == sorted(rows_of_arrays(table(100)))
        assert not folder.exists()


def test_chunks_of_zeros_that_are_written_after_an_interruption_are_stored(tmp_path, small_chunks):
    X, out = np.zeros((500, 3), "f4"), tmp_path / "out.zarr"
    with pytest.raises(Stop):
        ingest(X, out, on_progress=stopping(3), memory=BUDGET)
    assert 0 < ingest(X, out, memory=BUDGET).kept < 500
    np.testing.assert_array_equal(read_all(open_tables(out)).X, X)


def rows_of_arrays(rows) -> list[tuple]:
    return [(*x, label) for x, label in zip(rows[0].tolist(), rows[1].tolist(), strict=True)]


def test_work_from_before_the_machine_was_started_is_not_trusted(tmp_path, small_chunks, monkeypatch):
    monkeypatch.setattr(ingest_module, "ROW_EXTRA", (8 << 30) // 100)
    with pytest.raises(Stop):
        ingest(table(), tmp_path / "out", shuffle=True, on_progress=stopping(25), memory=BUDGET)
    runs = list((atomic_writes.unfinished_folder(tmp_path / "out") / "runs").glob("run-*"))
    assert runs
    for run in runs:
        run.write_bytes(bytes(run.stat().st_size))  # as a file is whose pages never reached the disk
    monkeypatch.setattr(atomic_writes, "boot_id", lambda: "another")
    assert ingest(table(), tmp_path / "out", shuffle=True, memory=BUDGET).kept == 0
    assert sorted(rows_of(tmp_path / "out")) == sorted(rows_of_arrays(table()))


@pytest.mark.parametrize("left", ["all", "no plan"])
def test_killed_while_it_puts_the_result_in_place_it_is_done_or_begins_anew(tmp_path, small_chunks, monkeypatch, left):
    monkeypatch.setattr(
        atomic_writes.Workspace,
        "discard",
        lambda self: None if left == "all" else (self.folder / "plan.json").unlink(),
    )
    ingest(table(), tmp_path / "out", shuffle=True, memory=BUDGET)
    monkeypatch.undo()
    os.rename(tmp_path / "out", tmp_path / "elsewhere")
    assert ingest(table(), tmp_path / "out", shuffle=True, memory=BUDGET).kept == 0
    assert sorted(rows_of(tmp_path / "out")) == sorted(rows_of_arrays(table()))


def test_a_lost_run_is_an_error_and_no_loss_of_rows(tmp_path, small_chunks, monkeypatch):
    monkeypatch.setattr(ingest_module, "ROW_EXTRA", (8 << 30) // 100)
    with pytest.raises(Stop):
        ingest(table(), tmp_path / "out", shuffle=True, on_progress=stopping(18), memory=BUDGET)
    runs = sorted((atomic_writes.unfinished_folder(tmp_path / "out") / "runs").glob("run-*"))
    assert len(runs) > 2
    runs[1].unlink()
    with pytest.raises(sk.errors.StorageError, match="a run is missing"):
        ingest(table(), tmp_path / "out", shuffle=True, memory=BUDGET)


@pytest.mark.parametrize(("before", "after"), [(24, (8 << 30) // 100), ((8 << 30) // 100, 24)])
def test_it_goes_on_with_less_or_more_memory(tmp_path, small_chunks, monkeypatch, before, after):
    monkeypatch.setattr(ingest_module, "ROW_EXTRA", 24)
    ingest(table(), tmp_path / "whole", shuffle=True, memory=BUDGET)
    monkeypatch.setattr(ingest_module, "ROW_EXTRA", before)
    with pytest.raises(Stop):
        ingest(table(), tmp_path / "out", shuffle=True, on_progress=stopping(25), memory=BUDGET)
    monkeypatch.setattr(ingest_module, "ROW_EXTRA", after)
    assert ingest(table(), tmp_path / "out", shuffle=True, memory=BUDGET).kept > 0
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "whole")


def test_two_at_a_time_are_refused(tmp_path, small_chunks):
    refused = []

    def tell(what: str, rows: int, total: int) -> None:
        if not refused:
            with pytest.raises(sk.errors.BusyError, match="ingesting to this place") as error:
                ingest(table(), tmp_path / "out", memory=BUDGET)
            refused.append(error)

    ingest(table(), tmp_path / "out", on_progress=tell, memory=BUDGET)
    assert refused


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("n", [30_000, 100_000])
def test_a_full_disk_is_one_clear_error_and_with_room_it_goes_on(tmp_path, small_disk, monkeypatch, format, n, capsys):
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 50_000)
    monkeypatch.setattr(ingest_module, "ROW_EXTRA", (8 << 30) // 10_000)  # by way of the disk
    X = np.random.default_rng(0).normal(size=(n, 9)).astype(np.float32)
    np.save(tmp_path / "rows.npy", X)
    out = small_disk / "out"
    command = ["ingest", str(tmp_path / "rows.npy"), str(out), "--shuffle", "--format", format, "--memory", BUDGET]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "the disk is full" in error
    assert "Traceback" not in error
    assert str(atomic_writes.unfinished_folder(out)) in error
    with pytest.raises(sk.errors.StorageError, match="has not been completed"):
        sk.open_dataset(out)
    subprocess.run(["mount", "-o", "remount,size=30m", small_disk], check=True)
    assert main(command) == 0
    assert sorted(map(tuple, read_all(open_tables(out, format=format)).X.tolist())) == sorted(map(tuple, X.tolist()))


# ---------------------------------------------------------------------------------------------------------- memory

MEASURED = """
import sys
from streamkern.memory import peak_resident_bytes, resident_bytes
from streamkern.ingestion.ingest import ingest
import pyarrow.compute, pyarrow.parquet
import streamkern.formats.dask_source
folder, room = sys.argv[1], int(sys.argv[2])
budget = resident_bytes() + (room << 20)
made = ingest(f"{folder}/rows.parquet", f"{folder}/out", shuffle=True, memory=budget, threads=int(sys.argv[3]))
print(made.decoded_bytes, peak_resident_bytes(), budget)
"""


@pytest.mark.slow
def test_memory_stays_within_the_budget(tmp_path):
    block = np.random.default_rng(0).normal(size=(30_000, 18)).astype(np.float32)
    write_parquet(tmp_path / "rows.parquet", ((block, block[:, 0]) for _ in range(100)))
    program = [sys.executable, "-c", MEASURED, str(tmp_path), "180", "2"]
    out = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    decoded, peak, budget = map(int, out.split())
    assert decoded > 210e6
    assert peak <= budget


def test_too_little_memory_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(sk.errors.PlanRefusedError, match="too little") as error:
        ingest(table(), tmp_path / "out", shuffle=True, memory="20MiB")
    assert "at least" in error.value.expected
    assert list(tmp_path.iterdir()) == []
    asked = error.value.expected.removeprefix("at least ").partition(" with")[0]
    assert ingest(table(), tmp_path / "out", shuffle=True, memory=asked).rows == 500


# --------------------------------------------------------------------------------------------------------- bad input


def test_features_in_another_dtype_are_what_they_were_or_an_error(tmp_path):
    ingest(np.array([[0.5], [255.0]]), tmp_path / "a", dtype="float32", memory=BUDGET)
    assert open_tables(tmp_path / "a").dtype == np.float32
    ingest(np.array([[0.0], [255.0]]), tmp_path / "b", dtype="uint8", memory=BUDGET)
    assert read_all(open_tables(tmp_path / "b")).X.tolist() == [[0], [255]]
    for value, dtype in ((256.0, "uint8"), (0.5, "int32"), (1e300, "float32"), (np.nan, "int8")):
        with pytest.raises(sk.DataError, match=rf"does not fit in {dtype}"):
            ingest(np.array([[0.0], [value]]), tmp_path / "c", dtype=dtype, memory=BUDGET)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "csv"}, "'csv' is not known"),
        ({"missing": "drop"}, "missing is 'drop'"),
        ({"format": "parquet", "shard": 100}, "shard is an option of zarr alone"),
        ({"shard": "0"}, r"'0' is not a positive size.\n  where: shard"),
        ({"format": "parquet", "compression": "small"}, "compression is an option of zarr alone"),
        ({"compression": "zip"}, "'zip' is not known"),
        ({"keep_bits": 24}, "24 bits cannot be kept of float32.*1 to 23 for float32"),
        ({"keep_bits": 0}, "0 bits cannot be kept"),
        ({"keep_bits": 5, "dtype": "int32"}, "5 bits cannot be kept of int32"),
        ({"dtype": "str"}, "'str' is not a dtype"),
        ({"output": "memory://bucket/rows.parquet"}, "does not show that it is complete"),
        ({"sources": []}, "no sources"),
    ],
)
def test_parameters_that_contradict_each_other(tmp_path, options, message):
    with pytest.raises(sk.UsageError, match=f"(?s){message}"):
        ingest(**{"sources": table(), "output": tmp_path / "out", "memory": BUDGET, **options})


def test_a_missing_value_names_the_row_and_leaves_nothing_that_could_be_read(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,\n")
    with pytest.raises(sk.DataError, match=r"(?s)column 'b' is missing.*row 1"):
        ingest(tmp_path / "t.csv", tmp_path / "out", memory=BUDGET, missing="error")
    assert not (tmp_path / "out").exists()
    ingest(tmp_path / "t.csv", tmp_path / "out", memory=BUDGET)
    np.testing.assert_array_equal(read_all(open_tables(tmp_path / "out")).X, [[1, 2], [3, np.nan]])
    assert sk.inspect(tmp_path / "t.csv").to_json()["columns"][1]["missing"] == 1


def test_targets_that_no_array_can_be_called_are_renamed(tmp_path):
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["train/x"], file["train/label"] = np.eye(3), np.arange(3)
    ingest(tmp_path / "t.h5", tmp_path / "a", target="train/label", memory=BUDGET)
    assert open_tables(tmp_path / "a").target.name == "label"
    pd.DataFrame(np.eye(3), columns=["a", "b", "c"]).to_csv(tmp_path / "t.csv", index=False)
    for format in FORMATS:
        ingest(tmp_path / "t.csv", tmp_path / format, target=["c", "a"], format=format, memory=BUDGET)
        assert read_all(open_tables(tmp_path / format)).y.tolist() == [[0, 1], [0, 0], [1, 0]]


def test_the_command_line_takes_several_sources_and_says_what_it_has_made(tmp_path, capsys):
    for part in (1, 2):
        (tmp_path / f"{part}.csv").write_text("".join(f"{i % 2},{part},{i}\n" for i in range(10)))
    words = [str(tmp_path / "1.csv"), str(tmp_path / "2.csv"), str(tmp_path / "out.zarr"), "--target", "f0"]
    assert main(["ingest", *words, "--no-header", "--shuffle", "--seed", "2", "--columns", "f2,f1"]) == 0
    assert "20 rows of 2 features (uint8), in random order" in capsys.readouterr().out
    assert sorted(rows_of(tmp_path / "out.zarr")) == sorted((i, p, i % 2) for p in (1, 2) for i in range(10))
    words = [str(tmp_path / "1.csv"), str(tmp_path / "small.zarr"), "--no-header", "--dtype", "float32"]
    assert main(["ingest", *words, "--compression", "small", "--keep-bits", "2"]) == 0
    assert {row[2] for row in rows_of(tmp_path / "small.zarr")} == {0, 1, 2, 3, 4, 5, 6, 7, 8}  # 9 is halfway
    assert main(["ingest", str(tmp_path / "nothing.csv"), str(tmp_path / "x")]) == 1
