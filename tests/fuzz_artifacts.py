"""Mutated and crafted models, checkpoints and registries: an error or a load, no crash, hang or huge allocation.

    python tests/fuzz_artifacts.py [--files 10000] [--seed 0]

Each case takes a saved model (plain, with preprocessing, of leaves, with sums, of several labels, of a table with the
logistic loss, or with its centers where they were stored), a checkpoint (one with a packed factor, too), a registry, or
a champion that training is to go on from, and changes one of its files. Either as an accident would:
flips bits, cuts it short, repeats or swaps stretches, replaces numbers in JSON by enormous or negative ones, or takes
the file of another array. Reading must then raise a StreamkernError or give what was saved. Or as an enemy would, who
makes the checksums fit: a FIFO, a device or a link in the place of a file, a file of a terabyte, a chunk that decodes
to more than the array states, JSON as deep or as large as it gets, values of the description replaced. Then what is
loaded may be another model; it predicts, or is refused with a StreamkernError.

In both, no case takes over a second of processor time or waits for anything. Python and NumPy allocate at most four
times the bytes that the case's manifests state, and 32 times those of its JSON (an empty list is three letters there,
and 64 bytes in Python); or what reading the artifact undamaged takes, with 16 KiB for the error, if that is more, as
manifests may be damaged to state nothing. A case that takes more is read again: what the interpreter loads once, such
as a module, counts only then. Memory that libraries allocate by themselves is seen as growth of the process: at most
64 MiB more, as the allocator keeps what it was given back. tests/test_fuzz.py runs fewer.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import pickle
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import blosc

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import streamkern as sk
from streamkern.events import EventLog
from streamkern.execute import ThreadsExecutor
from streamkern.memory import peak_resident_bytes, resident_bytes
from streamkern.registry.warm_start import with_warm_start
from streamkern.runs.checkpoints import Checkpoints
from streamkern.solvers import Checkpoint
from streamkern.storage.untrusted_files import MAX_JSON_BYTES
from streamkern.storage.value_digest import digest
from streamkern.testing.solver import small_problem
from tests.benchmarks.results import add_results, add_run

SECONDS, WAITED = 1.0, 20.0
FLOOR = 64 << 20
NASTY: list[Any] = [
    *(None, True, -1, 0, 1, 7, 2**31, 10**12, 10**18, 10**400, 1e308, -1e308, math.nan, math.inf, "", "x", "<U1000000"),
    *("|O", "V100000000", "../../../etc/passwd", "centers", [], {}, [[]], [1, "a", None], {"name": "Sum", "parts": []}),
    *({"name": "NTK", "depth": 10**9}, {"name": "Polynomial", "degree": 10**30}, "a" * 100_000, list(range(100_000))),
    *({"name": "RandomFourier", "M": 10**9, "seed": 0, "kernel": {"name": "Laplace", "bandwidth": 1.0}},),
    *([[0] * 1000] * 100, {"name": "Project", "n_in": 3, "n_out": 10**9, "density": None, "seed": 0}),
]


_NASTY = [pickle.dumps(value) for value in NASTY]  # copies are cheaper so
GOOD = {"an error", "a correct load", "a load of what was forged"}


class Hang(BaseException):
    """A case that waits for something."""


ACCIDENTS = ("flipped bits", "cut short", "inserted", "left out", "another number", "another word", "another file")
ATTACKS = ("FIFO", "file as a link", "folder as a link", "terabyte", "deep JSON", "bomb", "edit of one", "edits")
KINDS = (*ACCIDENTS, *ATTACKS)
"""Kinds of damage: case after case takes the next one, for each reader, so that a few cases have them all."""


NUMBERS = rb"-?\d+", [b"-1", b"0", b"1e308", b"99999999999999", b"18446744073709551616", b"null", b'"x"']
WORDS = rb'"[^"]*"', [b'"../../../etc/passwd"', b'"float64"', b'""', b"[]", b"{}", b'"os.system"']
"""Patterns of what an accident replaces, and what stands there then."""


def mutate(kind: int, data: bytes, luck: random.Random, others: list[Path]) -> bytes:
    """Another content for a file, by a number of ``ACCIDENTS``."""
    at = luck.randrange(len(data)) if data else 0
    if kind == 0 and data:
        changed = bytearray(data)
        for _ in range(luck.choice([1, 1, 1, 4, 32])):
            changed[luck.randrange(len(changed))] ^= 1 << luck.randrange(8)
        return bytes(changed)
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + luck.randbytes(luck.randrange(64)) + data[at:]
    if kind == 3:
        length = luck.randrange(1, 64)
        return data[:at] + data[at + length :]
    if kind in (4, 5):
        pattern, values = NUMBERS if kind == 4 else WORDS
        there = list(re.finditer(pattern, data))
        if not there:
            return b"" if kind == 4 else b"\x00" * len(data)
        found, other = luck.choice(there), luck.choice(values)
        return data[: found.start()] + other + data[found.end() :]
    return luck.choice(others).read_bytes()


def crafted(kind: str, case: Path, luck: random.Random) -> None:
    """Change an artifact or registry as somebody would who knows how it is read, in one way of ``ATTACKS``."""
    files = sorted(file for file in case.rglob("*") if file.is_file())
    file = luck.choice(files)
    if kind == "FIFO":
        file.unlink()
        os.mkfifo(file)
        return
    if kind.endswith("link"):
        target = luck.choice(["/dev/zero", "/dev/tty", "/dev/stdin", "/etc/passwd", str(file), "."])
        folders = [folder for folder in file.parents if case in folder.parents]
        place = luck.choice(folders) if folders and kind.startswith("folder") else file
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
        place.symlink_to(target)
        return
    if kind == "terabyte":
        with file.open("ab") as stream:
            stream.truncate(1 << 40)
        return
    if kind == "deep JSON":
        text = file.read_bytes() if file.suffix == ".json" else b"{}"
        deep = luck.choice([150, 1000, 100_000, 4_000_000])
        more = luck.choice(
            [b"[" * deep + b"]" * deep, b'{"a":' * deep + b"1" + b"}" * deep, b"[" + b"[]," * deep + b"1]"]
        )
        file.write_bytes(text.replace(b"{", b'{"deep": ' + more + b",", 1) if luck.random() < 0.8 else more)
        return
    documents = [file for file in files if file.name == "zarr.json" and b'"arrays"' in file.read_bytes()]
    if not documents:  # a case without arrays: its JSON is edited
        plain = [file for file in files if file.suffix == ".json"]
        document = luck.choice(plain or files)
        try:
            tree = json.loads(document.read_bytes())
        except ValueError:
            return
        edit(tree, luck)
        document.write_text(json.dumps(tree))
        return
    document = luck.choice(documents)
    content = json.loads(document.read_bytes())
    marks = content["attributes"]["streamkern"]
    name = luck.choice(sorted(marks["arrays"]))
    if kind == "bomb":
        bomb(document.parent, name, marks["arrays"][name], luck)
    else:
        for _ in range(1 if kind == "edit of one" else luck.choice([2, 5])):
            edit(luck.choice([marks["metadata"], marks["arrays"], luck.choice([*marks["arrays"].values(), {}])]), luck)
    marks["sha256"] = digest(marks["kind"], marks["arrays"], marks["metadata"])
    document.write_text(json.dumps(content))


@cache
def zeros(numbers: int) -> bytes:
    """A frame that decodes to so many zeros."""
    return bytes(blosc.compress(np.zeros(numbers), b"zstd", 1))


def bomb(place: Path, name: str, manifest: dict[str, Any], luck: random.Random) -> None:
    """Put a frame of zeros in the place of an array's first chunk, with the checksum of what is there now."""
    chunks = sorted(file for file in (place / name).rglob("*") if file.is_file() and file.name != "zarr.json")
    if not chunks:
        return
    frame = bytearray(zeros(luck.choice([1 << 10, 1 << 22, 1 << 25])))
    if luck.random() < 0.5:  # a header that states what the manifest does, or half of it
        stated = math.prod(manifest["shape"][1:]) * manifest["rows"] * 8
        frame[4:8] = stated.to_bytes(4, "little")
    if luck.random() < 0.5:
        frame[8:12] = luck.choice([0, 1, 1 << 10, (1 << 31) - 1, (1 << 32) - 1]).to_bytes(4, "little")
    if luck.random() < 0.3:
        for _ in range(8):
            frame[luck.randrange(16, len(frame))] = luck.randrange(256)
    chunks[0].write_bytes(frame)
    manifest["chunks"][0] = hashlib.sha256(frame).hexdigest()
    if luck.random() < 0.3:  # an honest one: the manifest states it too
        manifest["shape"] = [luck.choice([1 << 20, 1 << 40, 10**18]), *manifest["shape"][1:]]
        manifest["rows"] = manifest["shape"][0]


def edit(tree: Any, luck: random.Random) -> None:
    """Replace one value somewhere in JSON."""
    while isinstance(tree, dict | list) and tree:
        key = luck.choice(sorted(tree)) if isinstance(tree, dict) else luck.randrange(len(tree))
        if not isinstance(tree[key], dict | list) or not tree[key] or luck.random() < 0.2:
            if isinstance(tree, dict) and luck.random() < 0.1:
                del tree[key]
            else:
                tree[key] = pickle.loads(luck.choice(_NASTY))
            return
        tree = tree[key]


def stated(case: Path) -> int:
    """Bytes that a case may take by what its manifests state, as far as they can be read at all, and by their size."""
    total = 0
    for document in case.rglob("*.json*"):
        try:
            if document.is_symlink() or not document.is_file() or document.stat().st_size > MAX_JSON_BYTES:
                continue
            total += 32 * document.stat().st_size
            for array in json.loads(document.read_bytes())["attributes"]["streamkern"]["arrays"].values():
                total += 4 * math.prod(array["shape"]) * np.dtype(array["dtype"]).itemsize
        except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
            continue
    return max(0, total)


def measured(read: Callable[[], Any]) -> tuple[Any, float, int, int]:
    """What came of it, seconds of processor time, bytes of Python and NumPy at the peak, bytes the process grew by."""

    def late(number: int, frame: Any) -> None:
        raise Hang

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    tracemalloc.reset_peak()
    traced = tracemalloc.get_traced_memory()[0]
    before, begun = resident_bytes(), time.process_time()  # of a busy machine the clock says nothing
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, WAITED)
    found: Any = None
    try:
        found = read()
    except (Exception, Hang) as error:
        found = error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    taken = tracemalloc.get_traced_memory()[1] - traced
    return found, time.process_time() - begun, taken, max(0, peak_resident_bytes() - before)


def same(a: Any, b: Any) -> bool:
    """Whether two checkpoints, models or champions hold the same."""
    if isinstance(a, tuple):
        return same(a[0], b[0]) and a[1:] == b[1:]
    if isinstance(a, Checkpoint):
        return np.array_equal(a.state["alpha"], b.state["alpha"]) and a.position == b.position
    alike = np.array_equal(a.weights, b.weights) and np.array_equal(rows(a), rows(b)) and a.kernel == b.kernel
    return alike and a.weights_sha256 == b.weights_sha256  # of leaves, those of all of them


def rows(model: Any) -> Any:
    """Centers of a model, read where they stay on the disk."""
    return model.Z if isinstance(model.Z, np.ndarray) else np.vstack([tile for _, tile in model.Z.tiles()])


Read = Callable[[Path], Any]
Readers = list[tuple[Path, Read]]
READERS = 11
"""Kinds of artifacts: each of them is damaged in every way."""


def of_models(root: Path) -> Readers:
    """Save a model of each kind, and say how each is read and used."""
    X = np.random.default_rng(0).normal(size=(200, 3))
    y, kept = X[:, 0] > 0, sk.Direct(keep_sums=True)
    sk.KernelClassifier(centers=sk.Uniform(20), memory="4GiB").fit(X, y).save(root / "model")
    leaves = sk.KernelClassifier(centers=10, solver=sk.Direct(), partition=sk.Partition(leaves=4), memory="4GiB")
    leaves.fit(X, y).save(root / "leaves")
    sk.KernelRegressor(centers=20, solver=kept, memory="4GiB").fit(X, X[:, 1]).save(root / "sums")
    labels = sk.KernelClassifier(sk.Laplace("median"), centers=20, solver=sk.Direct(), memory="4GiB")
    labels.fit(X, (X > 0).astype(int)).save(root / "labels")

    table = np.column_stack([X[:, :2], np.arange(200) % 4])
    steps = (sk.Impute(), sk.OneHot([2]), sk.Standardise(), sk.RandomProjection(4), sk.Normalise())
    sk.run(
        sk.Pipeline(
            train=sk.from_arrays(table, X[:, 0]), features=sk.RandomFourier(sk.Laplace(2.0), 30),
            solver=sk.Direct(), preprocess=steps, task="regression",
        ),
        root / "run", memory="4GiB",
    )  # fmt: skip
    shutil.copytree(root / "run" / "model.zarr", root / "mapped")

    mixed = {
        "town": np.array([f"town {i % 30}" for i in range(200)], object),
        "when": np.datetime64("2026-01-01", "s") + np.arange(200) * np.timedelta64(5, "h"),
        "x": np.where(X[:, 0] > 1, np.nan, X[:, 0]),
        "flag": X[:, 1] > 0,
    }
    encode = (sk.TargetEncode(["town"]), sk.Dates(), sk.Impute(indicator=True), sk.Quantile(["x"]))
    softmax = sk.KernelClassifier(sk.Laplace("median"), centers=20, solver=sk.LBFGS(epochs=3), preprocess=encode)
    softmax.set_params(memory="4GiB").fit(mixed, np.arange(200) % 3).save(root / "table")

    sk.write_zarr(str(root / "rows.zarr"), X[:40].astype(np.float32), X[:40, 1])
    stored = sk.Pipeline(
        sk.open_dataset(root / "rows.zarr", target="target"), sk.Laplace(2.0), sk.AllRows(),
        sk.EigenPro2(epochs=1, s=20), task="regression",
    )  # fmt: skip
    sk.run(stored, root / "every", memory="4GiB")
    shutil.copytree(root / "every" / "model.zarr", root / "stored")

    def read(rows: Any, use: Callable[[Any, sk.Predictor, Any], Any], place: Path) -> Any:
        found = sk.load_model(place)
        use(found, sk.Predictor(found), rows)
        return found

    def update(found: Any, call: sk.Predictor, rows: Any) -> None:
        call.predict_interval(rows)
        sk.update_model(found, (rows, rows[:, 1]), memory="2GiB", threads=1)

    uses: dict[str, tuple[Any, Callable[[Any, sk.Predictor, Any], Any]]] = {
        "model": (X[:5], lambda found, call, rows: call(rows)),
        "mapped": (table[:5], lambda found, call, rows: call(rows)),
        "leaves": (X, lambda found, call, rows: (call(rows), call.predict_proba(rows), found.prediction_set(rows[:5]))),
        "sums": (X[:5], update),
        "labels": (X[:5], lambda found, call, rows: (call(rows), call.predict_proba(rows))),
        "table": (
            {name: column[:5] for name, column in mixed.items()},
            lambda found, call, rows: (call(rows), call.predict_proba(rows)),
        ),
        "stored": (X[:5].astype(np.float32), lambda found, call, rows: found.predict(rows)),
    }
    return [(root / name, partial(read, *use)) for name, use in uses.items()]


def of_trainings(root: Path) -> Readers:
    """Save checkpoints, a registry and a champion, and say how each is read and used."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    solver = sk.EigenPro(epochs=3, s=20, q=5, batch=50, projection="packed")
    pipeline = sk.Pipeline(sk.from_arrays(X, X[:, 0]), sk.Laplace(2.0), sk.Uniform(40), solver, task="regression")
    sk.run(pipeline, root / "begun", memory="4GiB", threads=1)
    model = sk.load_model(root / "begun" / "model.zarr")
    with ThreadsExecutor(1) as executor:
        factored = solver.prepare(small_problem(executor, X, X[:, 0], dtype=np.float32))
    for name, made in (("kept", {"W": rng.normal(size=(20, 20))}), ("packed", factored)):
        checkpoint = Checkpoint({"alpha": rng.normal(size=(20, 2)), "t": 3}, (1, 5), True, rows=100)
        with EventLog() as events, Checkpoints(root / "checkpoints" / name, events) as keeper:
            keeper.prepared = made
            keeper.interrupted(checkpoint)

    def latest(place: Path) -> Any:
        told: list[str] = []
        with EventLog(None, (lambda kind, fields: told.append(kind),)) as events, Checkpoints(place, events) as keeper:
            found = keeper.latest()
        if found is None or found[1] is None:
            assert told in (["warning"], []), told  # of what is no checkpoint at all nothing is said
            raise sk.StreamkernError("left out with a warning")
        return found

    def read_checkpoint(place: Path) -> Any:
        return latest(place)[0]

    models = sk.Registry(root / "registry", create=True)
    for _ in range(3):
        models.add(lambda place: model.save(place / "model.zarr"), {"rows": 200})
    for champion in (1, 3, 2):
        models.promote(champion)
        models.log({"status": "promoted", "champion": champion})
    model.save(root / "champion")

    def read_registry(place: Path) -> Any:
        models = sk.Registry(place)
        with models.lock():
            models.decisions()
        return models.load(), models.standing, models.record(), models.versions

    def read_champion(place: Path) -> Any:
        found = sk.load_model(place)
        goes_on, why_not = with_warm_start(pipeline, found)
        if why_not is None:
            sk.run(goes_on, place.parent / "on", memory="4GiB", threads=1, checkpoint_seconds=3600)
        return found

    return [
        (root / "checkpoints" / "kept", read_checkpoint), (root / "checkpoints" / "packed", read_checkpoint),
        (root / "registry", read_registry), (root / "champion", read_champion),
    ]  # fmt: skip


def main() -> int:
    """Fuzz, and count.

    Returns:
        0 if every case was an error or a correct load.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    add_results(parser)
    args = parser.parse_args()
    luck = random.Random(args.seed)
    outcomes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    slowest, largest, grew = 0.0, 0.0, 0
    warnings.simplefilter("ignore")  # of arithmetic with numbers that are forged
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        artifacts = (*of_models(root), *of_trainings(root))
        tracemalloc.start()
        readers = [(place, read, read(place), measured(lambda: read(place))[2]) for place, read in artifacts]  # noqa: B023
        assert len(readers) == READERS
        for number in range(args.files):
            origin, read, whole, whole_takes = readers[number % len(readers)]
            place = root / "case"
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(origin, place)
            done = KINDS[number // len(readers) % len(KINDS)]
            kinds[done] += 1
            if hostile := done in ATTACKS:
                crafted(done, place, luck)
            else:
                files = sorted(file for file in place.rglob("*") if file.is_file())
                file = luck.choice(files)
                file.write_bytes(mutate(KINDS.index(done), file.read_bytes(), luck, files))
                done = f"{done}, {file.relative_to(place)}"
            most = max(whole_takes + (16 << 10), min(stated(place), 1 << 40))
            again = partial(measured, partial(read, place))
            found, seconds, taken, grown = again()
            if taken > most or seconds > SECONDS:
                seconds, taken, grown = again()[1:]
            if isinstance(found, sk.StreamkernError):
                outcome = "an error"
            elif isinstance(found, BaseException):
                outcome = f"{type(found).__name__}: {found}"[:200].upper()
            elif same(found, whole):
                outcome = "a correct load"
            else:
                outcome = "a load of what was forged" if hostile else "ANOTHER LOAD"
            if seconds > SECONDS:
                outcome = f"TOO SLOW: {seconds:.1f} S, {outcome}"
            if taken > most or grown > most + FLOOR:
                outcome = f"TOO LARGE: {taken:,} OF {most:,} BYTES, PROCESS {grown >> 20} MIB, {outcome}"
            slowest, largest, grew = max(slowest, seconds), max(largest, taken / most), max(grew, grown - most)
            outcomes[outcome] += 1
            if number % 1000 == 999:
                print(f"{number + 1} cases, {time.process_time():.0f} s of processor time", file=sys.stderr, flush=True)
            if outcome not in GOOD:
                kept = Path(tempfile.mkdtemp(prefix="fuzz-"))
                with contextlib.suppress(OSError, shutil.Error):
                    shutil.copytree(place, kept / "case", symlinks=True)
                print(f"case {number}, {done}: {outcome}; kept in {kept}", flush=True)
    print(", ".join(f"{count} x {kind}" for kind, count in kinds.items()))
    print(f"slowest {slowest:.2f} s; allocated {largest:.2f} of what is allowed, at most; ", end="")
    print(f"the process grew by {max(0, grew) >> 20} MiB more than that, at most")
    print(", ".join(f"{count} x {outcome}" for outcome, count in outcomes.most_common()))
    line = {"kind": "artifacts", "changes": args.files, "errors": outcomes["an error"]}
    loads = {"loaded": outcomes["a correct load"], "another": outcomes["a load of what was forged"]}
    add_run(args.results, [line | loads])
    return 0 if set(outcomes) <= GOOD else 1


if __name__ == "__main__":
    sys.exit(main())
