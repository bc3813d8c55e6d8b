"""The one module that replaces files and directories: at every step of it the old one or the new one is there whole.

A process is killed, or finds the disk full, at step k of replacing something, for every k. A step is whatever changes a
disk: a file opened for writing, a directory made, a rename, an exchange, a removal, a lock, a sync. Python's audit
events tell of them, so that the steps are those that are taken and no list of them can be forgotten. Every user of the
module is put through it; this file is the program that is killed as well.
"""

import contextlib
import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import streamkern as sk
from streamkern.costs.machine_speed import SpeedMeasurements
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.ingestion import ingest as ingest_module
from streamkern.ingestion.ingest import ingest
from streamkern.registry.registry_storage import DirectoryStore
from streamkern.report.page import write_text
from streamkern.serving.prediction_writers import FORMATS, OutputColumn, record_at
from streamkern.sources import format_rules
from streamkern.storage import atomic_writes
from streamkern.storage.artifact import load_artifact, save_artifact
from streamkern.testing.source import read_all

OLD, NEW = 1, 2

# ---------------------------------------------------------------------------------- who replaces what, and who reads it


class User(NamedTuple):
    """Somebody who replaces something: ``write(folder, OLD or NEW)``, and ``read(folder)``, which says which it is."""

    write: Callable[[Path, int], None]
    read: Callable[[Path], int]
    resumes: bool = False
    exchange: bool = True


def in_halves(folder: Path, which: int) -> None:
    with atomic_writes.staged(folder / "text") as staging, staging.open("w") as file:
        for _ in range(2):
            file.write(str(which) * 1000)
            file.flush()
            os.fsync(file.fileno())


def read_halves(folder: Path) -> int:
    text = (folder / "text").read_text()
    assert len(text) == 2000
    assert set(text) <= {"1", "2"}
    assert len(set(text)) == 1
    return int(text[0])


def measure(folder: Path, which: int) -> None:
    calibration = SpeedMeasurements(1, folder)
    calibration.seconds = {}
    calibration.measured("answer", lambda: float(which))


def read_measured(folder: Path) -> int:
    return int(SpeedMeasurements(1, folder).seconds["answer"])


def save(folder: Path, which: int) -> None:
    save_artifact(folder / "model.zarr", "Number", {"a": np.full((300, 2), which), "b": np.ones(which)}, {"is": which})


def load(folder: Path) -> int:
    arrays, metadata = load_artifact(folder / "model.zarr", "Number")
    assert (arrays["a"] == metadata["is"]).all()
    assert len(arrays["b"]) == metadata["is"]
    return int(metadata["is"])


def write_file(folder: Path, which: int) -> None:
    write_parquet(folder / "rows.parquet", np.full((40, 2), which, "f4"), np.arange(40), row_group_rows=7)


def read_file(folder: Path) -> int:
    X = read_all(open_tables(folder / "rows.parquet")).X
    assert X.shape == (40, 2)
    assert (X[0, 0] == X).all()
    return int(X[0, 0])


def ingested(name: str, **options: Any) -> User:
    def write(folder: Path, which: int) -> None:
        X = np.arange(30, dtype="f4").reshape(10, 3) * which
        ingest(X, folder / name, overwrite=True, memory="8GiB", **options)

    def read(folder: Path) -> int:
        X = read_all(open_tables(atomic_writes.target_or_previous(folder / name), format=name.rpartition(".")[2])).X
        X = X[np.argsort(X[:, 0])]
        which = round(float(X[1, 0] / 3))
        np.testing.assert_array_equal(X, np.arange(30).reshape(10, 3) * which)
        return which

    return User(write, read, True)


def predicted(old: str, new: str) -> User:
    def write(folder: Path, which: int) -> None:
        columns = [OutputColumn("prediction", np.dtype("f4"))]
        made = FORMATS[new if which == NEW else old](folder / "out", columns, 10, 5, {"fingerprint": which})
        if (record_at(folder / "out") or {}).get("fingerprint") == which:
            made.work.clear()
            return
        with made.writing():
            for part in made.missing():
                a, b = made.rows(part)
                made.write(part, [np.full(b - a, which, "f4")])
            made.commit()

    def read(folder: Path) -> int:
        place = atomic_writes.target_or_previous(folder / "out")
        which = record_at(place)["fingerprint"]
        inside = place if place.is_file() else place / "prediction"
        columns = ["prediction"] if place.is_file() else None
        X = read_all(open_tables(inside, columns=columns, format="parquet" if place.is_file() else "zarr")).X
        assert X.shape == (10, 1)
        assert (which == X).all()
        return int(which)

    return User(write, read, True)


def register(folder: Path, which: int) -> None:
    """A version is added and the one before removed, as a retraining with ``keep=1`` does."""
    store = DirectoryStore(folder / "models")
    store.make()
    with store.lock(None):
        store.tidy(0)
        if which not in store.numbers():
            number, staging = store.claim(which)
            save(staging, which)
            store.add(number, staging)
        store.replace("champion.json", {"champion": which}, None)
        for number in store.numbers():
            if number < which:
                store.remove(number)


def read_champion(folder: Path) -> int:
    store = DirectoryStore(folder / "models")
    which = json.loads(store.read("champion.json")[0])["champion"]
    for number in store.numbers():
        assert load(store.folder(number, "")) == number
    assert which in store.numbers()
    return int(which)


USERS = {
    "file": User(in_halves, read_halves),
    "calibration": User(measure, read_measured),
    "parquet": User(write_file, read_file),
    "artifact": User(save, load),
    "registry": User(register, read_champion, True),
    "ingest zarr": ingested("out.zarr"),
    "ingest zarr shuffled": ingested("out.zarr", shuffle=True, seed=1),
    "ingest parquet": ingested("out.parquet"),
    "predict parquet": predicted("parquet", "parquet"),
    "predict zarr": predicted("zarr", "zarr"),
    "predict zarr over parquet": predicted("parquet", "zarr"),
    "predict parquet over zarr": predicted("zarr", "parquet"),
}
for name in ("artifact", "ingest zarr", "predict zarr"):
    USERS[f"{name} without exchange"] = USERS[name]._replace(exchange=False)

# ------------------------------------------------------------------------------------ the program that comes to its end

_REMOVES = ("os.remove", "os.rmdir", "fcntl.flock")
_EVENTS = ("os.mkdir", "os.rename", "os.truncate", *_REMOVES)


class Steps:
    """Counts steps below a folder; at step ``last`` kills the process, or says that the disk is full."""

    def __init__(self, folder: Path, last: int, kills: bool) -> None:
        self.folder, self.last, self.kills, self.taken, self.exchanged = str(folder), last, kills, 0, 0
        sys.addaudithook(self.hear)
        fsync, exchange = os.fsync, atomic_writes._exchange

        def synced(handle: int) -> None:
            self.step()
            fsync(handle)

        def exchanged(a: Path, b: Path) -> bool:
            self.step()
            self.exchanged = self.exchanged or self.taken
            return exchange(a, b)

        os.fsync, atomic_writes._exchange = synced, exchanged

    def hear(self, event: str, details: tuple[Any, ...]) -> None:
        if event == "open":
            counts = bool(details[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            counts = event in _EVENTS and (self.kills or event not in _REMOVES)
        # A lock has the number of a file, and what is removed by way of its directory has no whole path.
        where = str(details[0]) if counts else "/"
        if where.startswith(self.folder) or not where.startswith("/"):
            self.step()

    def step(self) -> None:
        self.taken += 1
        if self.taken == self.last:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def forked(work: Callable[[], int]) -> int:
    """Exit status of work in a child; -9 if it was killed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        status = work()
    except OSError as error:  # a store's own are put in words by the registry
        told = "disk is full" in str(error) or not isinstance(error, sk.errors.StorageError)
        status = 50 if told and (isinstance(error, sk.errors.StorageError) or error.errno == errno.ENOSPC) else 60
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 60
    sys.stderr.flush()
    os._exit(status)


def attacked(name: str, folder: Path, kills: bool) -> int:
    """Replace OLD by NEW with an end at every step; how many steps there are.

    Without exchange, from the first one that differs: those before are attacked with it.
    """
    user = USERS[name]
    format_rules.CHUNK_BYTES, ingest_module.PART_CHUNKS = 60, 1  # five rows a chunk
    if name.endswith("shuffled"):
        ingest_module.ROW_EXTRA = (8 << 30) // 10  # by way of runs on the disk
    if not user.exchange:
        atomic_writes._exchange = lambda a, b: False
    before = folder.with_name("before")
    before.mkdir()
    assert forked(lambda: user.write(before, OLD) or 0) == 0
    kept, first = 0, 1
    if not user.exchange:
        shutil.copytree(before, folder)

        def counted() -> int:
            steps = Steps(folder, 1000, kills)
            user.write(folder, NEW)
            return steps.exchanged

        first = forked(counted)
        assert 0 < first < 200
    for step in range(first, 1000):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)

        def replaced(step: int = step) -> int:
            steps = Steps(folder, step, kills)
            user.write(folder, NEW)
            return 70 if steps.taken >= step else 0

        ended = forked(replaced)
        found = forked(lambda step=step, ended=ended: gone_on(user, folder, (step, ended)))
        assert found in (OLD, NEW), (step, ended, found)
        if ended == 50:
            # A version of the registry that was added stays added where the champion could not be replaced.
            assert found == OLD or name == "registry", (step, "an error, and something was replaced")
        elif ended in (0, 70):  # what fails after the commit, or may, is no error
            assert found == NEW or (name == "calibration" and not kills), step
        else:
            assert (kills, ended) == (True, -signal.SIGKILL), step
        kept += found == OLD
        if ended == 0:
            assert kept
            return step - 1
    raise AssertionError("there is no end to the steps")


def gone_on(user: User, folder: Path, when: tuple[int, int]) -> int:
    """What is there; the next process, which this is, then replaces it as if nothing had happened."""
    if when[1] == 50 and not user.resumes:
        assert leftovers(folder) == [], (when, leftovers(folder))
    found = user.read(folder)
    user.write(folder, NEW)
    assert user.read(folder) == NEW, when
    assert leftovers(folder) == [], (when, leftovers(folder))
    return found


def serve() -> None:
    """Reads what is to be attacked, a line each, and answers with the steps; with an empty line where it failed."""
    pa.table({"x": [1]}).to_pandas()  # imports what every child would import again
    gc.disable()  # a collection in a child would copy the pages of all that is imported
    gc.freeze()
    for line in sys.stdin:
        name, place, fault = json.loads(line)

        def attack(name: str = name, folder: Path = Path(place), kills: bool = fault == "kill") -> int:
            os.dup2(os.open(folder.with_name("said"), os.O_WRONLY | os.O_CREAT), 2)
            print(attacked(name, folder, kills), flush=True)
            return 0

        if forked(attack):
            print(flush=True)


def leftovers(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob(".*") if path.name != ".lock")


# ------------------------------------------------------------------------------------------------------------- tests


COVERED = {"ingest zarr"}
"""Users whose steps are among those of others, of rows that are shuffled on the way."""
FULL = ("file", "artifact", "registry", "ingest zarr shuffled", "ingest parquet", "predict zarr",
        "artifact without exchange")  # fmt: skip
FAULTS = [*((name, "kill") for name in USERS if name not in COVERED), *((name, "full disk") for name in FULL)]


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[..., str]]:
    """Asks this file, as a program that has imported everything once."""
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        asked, answers = p.stdin, p.stdout

        def one(*what: str) -> str:
            print(json.dumps(what), file=asked, flush=True)
            return answers.readline().strip()

        yield one


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}, {fault}" for name, fault in FAULTS])
def test_at_every_step_the_old_one_or_the_new_one_is_there_and_the_next_process_goes_on(name, fault, tmp_path, ask):
    answer = ask(name, str(tmp_path / "folder"), fault)
    assert answer, (tmp_path / "said").read_text()[-3000:]
    steps = int(answer)
    assert steps >= (5 if fault == "full disk" else 9), "few steps: are they counted?"


def test_everything_is_on_the_disk_before_it_gets_its_name_and_the_name_after(tmp_path, monkeypatch):
    """What a power cut may take: a file that was not synced, and a name whose directory was not."""
    order: list[str] = []
    sync, exchange = atomic_writes._sync, atomic_writes._exchange
    monkeypatch.setattr(atomic_writes, "_sync", lambda path: (order.append(str(path)), sync(path)))
    monkeypatch.setattr(atomic_writes, "_exchange", lambda a, b: (order.append("exchange"), exchange(a, b))[1])
    for which in (OLD, NEW):
        order.clear()
        with atomic_writes.staged(tmp_path / "made", folder=True) as staging:
            (staging / "inner").mkdir()
            for name in ("a", "inner/b"):
                (staging / name).write_text(str(which))
        inside = {str(staging / name) for name in (".", "a", "inner", "inner/b")}
        before, after = order[:4], order[4:]
        assert set(before) == inside
        assert after == (["exchange"] if which == NEW else []) + [str(tmp_path)]
    assert (tmp_path / "made/inner/b").read_text() == str(NEW)


def test_a_file_takes_no_directory_s_place(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter").write_text("years of work")
    with pytest.raises(sk.errors.StorageError, match="Is a directory"):
        write_text(tmp_path / "thesis", "")
    assert (tmp_path / "thesis/chapter").read_text() == "years of work"
    assert os.listdir(tmp_path) == ["thesis"]


def test_clearing_what_a_dead_process_left_touches_no_other_name(tmp_path: Path) -> None:
    keep = [".model.tmp", ".model.backup.old", ".model.mine.tmp", ".models.0123abcd.tmp", ".lock", "model.0123abcd.tmp"]
    for name in [*keep, ".model.0123abcd.tmp", ".model.89abcdef.old"]:
        (tmp_path / name).touch()
    write_text(tmp_path / "model", "text")
    assert sorted(os.listdir(tmp_path)) == sorted([*keep, "model"])


def test_threads_take_turns_and_readers_see_whole_files(tmp_path: Path) -> None:
    path, stop = tmp_path / "text", threading.Event()
    write_text(path, "0" * 10_000)

    def write(number: int) -> None:
        while not stop.is_set():
            write_text(path, str(number) * 10_000)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    seen = {path.read_text() for _ in range(300)}
    stop.set()
    for thread in threads:
        thread.join()
    assert {(len(text), len(set(text))) for text in seen} == {(10_000, 1)}
    assert os.listdir(tmp_path) == ["text"]


HOLDER = """
import sys, time
from pathlib import Path
from streamkern.storage.atomic_writes import locked
with locked(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(60)
"""


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(sk.errors.BusyError, match=rf"process {holder.pid}\b"), atomic_writes.locked(tmp_path):
            pass
        assert atomic_writes.lock_owner(tmp_path / ".lock") == holder.pid
        holder.kill()
    assert atomic_writes.lock_owner(tmp_path / ".lock") is None
    with atomic_writes.locked(tmp_path):
        assert atomic_writes.lock_owner(tmp_path / ".lock") == os.getpid()


def test_a_lock_whose_file_was_removed_while_it_was_waited_for_is_taken_on_the_new_file(tmp_path, monkeypatch):
    """A workspace is removed with its lock when it is done: whoever had waited held a file without a name."""
    folder, inside, waited = tmp_path / "work", [], threading.Event()

    def sleep(seconds: float) -> None:
        waited.set()
        time.sleep(seconds)

    monkeypatch.setattr(atomic_writes, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    monkeypatch.setattr(atomic_writes, "_SHORT_WAIT_SECONDS", 60.0)  # of patience: the machine may be busy

    def second() -> None:
        with atomic_writes.locked(folder):
            monkeypatch.setattr(atomic_writes, "_SHORT_WAIT_SECONDS", 0.0)
            with contextlib.suppress(sk.errors.BusyError), atomic_writes.locked(folder):
                inside.append("two at a time")
            inside.append("one")

    waits = threading.Thread(target=second)
    with atomic_writes.locked(folder):
        waits.start()
        assert waited.wait(60)
        shutil.rmtree(folder)
    waits.join()
    assert inside == ["one"]


@pytest.mark.parametrize("moment", ["mkdir", "open"])
def test_a_directory_removed_while_its_lock_is_taken_is_made_again(tmp_path, monkeypatch, moment):
    folder, removed = tmp_path / "work", []
    owner, name = (os, "mkdir") if moment == "mkdir" else (os, "open")
    real = getattr(owner, name)

    def removing(path: Any, *args: Any, **kwargs: Any) -> Any:
        if not removed and Path(path) in (folder, folder / ".lock"):
            removed.append(path)
            if moment == "mkdir":  # as pathlib finds it that looks once more after the directory has gone
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            shutil.rmtree(folder)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(owner, name, removing)
    with atomic_writes.locked(folder):
        assert (folder / ".lock").exists()
    assert removed


def test_after_an_exchange_the_old_data_are_not_taken_for_parts_of_the_new(tmp_path, monkeypatch):
    """Killed between exchange and removal, and then the user moved the result away."""
    work = atomic_writes.Workspace(tmp_path / "out", "ingest", "room")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/part").write_text("old")
    with work.held():
        assert work.begin({"rows": 1}) == 0
        (work.data / "part").write_text("new")
        work.note(1)
        monkeypatch.setattr(atomic_writes, "_remove", lambda path: None)
        monkeypatch.setattr(work, "discard", lambda: None)
        work.commit()
        monkeypatch.undo()
    assert (tmp_path / "out/part").read_text() == "new"
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    with work.held():
        assert work.begin({"rows": 1}) == 0
        assert os.listdir(work.data) == []


if __name__ == "__main__":
    serve()
