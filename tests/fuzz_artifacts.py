"""Mutated models, checkpoints and registries: an error or a correct load, never a crash, a hang or a huge allocation.

    python tests/fuzz_artifacts.py [--files 10000] [--seed 0]

Each case takes a saved model, a checkpoint or a registry, and changes one of its files: flips bits, cuts it short,
repeats or swaps stretches, replaces numbers in JSON by enormous or negative ones, or takes the file of another array.
Reading must then raise a StreamkernError or give what was saved, within seconds and a few megabytes. tests/test_fuzz.py
runs fewer.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import streamkern as sk
from streamkern.events import EventLog
from streamkern.pipeline.checkpoints import Checkpoints
from streamkern.solvers import Checkpoint

SECONDS = 5.0
BYTES = 256 << 20


def mutate(data: bytes, luck: random.Random, others: list[Path]) -> bytes:
    """Another content for a file."""
    kind = luck.randrange(7)
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
    if kind == 4:
        numbers = list(re.finditer(rb"-?\d+", data))
        if numbers:
            found = luck.choice(numbers)
            other = luck.choice([b"-1", b"0", b"1e308", b"99999999999999", b"18446744073709551616", b"null", b'"x"'])
            return data[: found.start()] + other + data[found.end() :]
        return b""
    if kind == 5:
        words = list(re.finditer(rb'"[^"]*"', data))
        if words:
            found = luck.choice(words)
            other = luck.choice([b'"../../../etc/passwd"', b'"float64"', b'""', b"[]", b"{}", b'"os.system"'])
            return data[: found.start()] + other + data[found.end() :]
        return b"\x00" * len(data)
    return luck.choice(others).read_bytes()


def same(a: Any, b: Any) -> bool:
    """Whether two checkpoints, models or champions hold the same."""
    if isinstance(a, tuple):
        return same(a[0], b[0]) and a[1:] == b[1:]
    if isinstance(a, Checkpoint):
        return np.array_equal(a.state["alpha"], b.state["alpha"]) and a.position == b.position
    return np.array_equal(a.weights, b.weights) and np.array_equal(a.Z, b.Z) and a.kernel == b.kernel


def main() -> int:
    """Fuzz, and count.

    Returns:
        0 if every case was an error or a correct load.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    luck = random.Random(args.seed)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        rng = np.random.default_rng(0)
        X = rng.normal(size=(200, 3))
        model = sk.KernelClassifier(centers=sk.Uniform(20), memory="1GiB").fit(X, X[:, 0] > 0)
        model.save(root / "model")
        checkpoint = Checkpoint({"alpha": rng.normal(size=(20, 2)), "t": 3}, (1, 5), True, rows=100)
        with EventLog() as events, Checkpoints(root / "kept", events) as keeper:
            keeper.prepared = {"W": rng.normal(size=(20, 20))}
            keeper.interrupted(checkpoint)

        def read_checkpoint(place: Path) -> Any:
            told: list[str] = []
            with (
                EventLog(None, (lambda kind, fields: told.append(kind),)) as events,
                Checkpoints(place, events) as keeper,
            ):
                found = keeper.latest()
            if found is None or found[1] is None:
                assert told == ["warning"], told
                raise sk.StreamkernError("left out with a warning")
            return found[0]

        models = sk.Registry(root / "registry", create=True)
        for _ in range(3):
            models.add(lambda place: model.save(place / "model.zarr"), {"rows": 200})
        for champion in (1, 3, 2):
            models.promote(champion)
            models.log({"status": "promoted", "champion": champion})

        def read_registry(place: Path) -> Any:
            models = sk.Registry(place)
            with models.lock():
                models.decisions()
            return models.load(), models.standing, models.record(), models.versions

        readers: list[tuple[Path, Callable[[Path], Any], Any]] = [
            (root / "model", sk.load_model, sk.load_model(root / "model")),
            (root / "kept", read_checkpoint, checkpoint),
            (root / "registry", read_registry, read_registry(root / "registry")),
        ]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(args.files):
            origin, read, whole = readers[number % len(readers)]
            place = root / "case"
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(origin, place)
            files = sorted(file for file in place.rglob("*") if file.is_file())
            file = luck.choice(files)
            file.write_bytes(mutate(file.read_bytes(), luck, files))
            begun = time.process_time()  # of a busy machine the clock says nothing; a hang is for whoever waits
            try:
                outcome = "a correct load" if same(read(place), whole) else "ANOTHER LOAD"
            except sk.StreamkernError:
                outcome = "an error"
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"[:200].upper()
            if time.process_time() - begun > SECONDS:
                outcome = "TOO SLOW"
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            if grown > BYTES:
                outcome = f"TOO LARGE: {grown >> 20} MIB"
            outcomes[outcome] += 1
            if outcome not in ("an error", "a correct load"):
                kept = Path(tempfile.mkdtemp(prefix="fuzz-"))
                shutil.copytree(place, kept / "case")
                print(f"case {number}, {file.relative_to(place)}: {outcome}; kept in {kept}", flush=True)
                if grown > BYTES:
                    break
    print(", ".join(f"{count} x {outcome}" for outcome, count in outcomes.most_common()))
    return 0 if set(outcomes) <= {"an error", "a correct load"} else 1


if __name__ == "__main__":
    sys.exit(main())
