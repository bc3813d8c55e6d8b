"""Mutated data files of every format: an error in words or rows, no raw error, crash, hang or huge allocation.

    python tests/fuzz_data.py [--files 10000] [--seed 0] [--first 0]

Each case takes a small data set (zarr of versions 2 and 3, shards, parquet as pandas, Arrow, this library and lists
write it, Feather, CSV, compressed CSV, NumPy's files, HDF5) and changes one value of a document or a parquet footer,
bytes of a file, or does what an accident would (``fuzz_artifacts.mutate``). It is opened, read and inspected: a
StreamkernError or rows come of it. No case waits for anything, or takes the process ``MIN_RELATIVE_SCALE`` bytes more
than it held. tests/storage/test_strangers_files.py runs fewer.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import gzip
import json
import random
import resource
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import streamkern as sk
from streamkern.formats import parquet_footer
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.formats.training_zarr import write_zarr
from streamkern.ingestion.array_files import READERS
from streamkern.memory import resident_bytes
from tests.benchmarks.results import add_results, add_run
from tests.fuzz_artifacts import ACCIDENTS, measured, mutate

FLOOR = 256 << 20
SECONDS = 5.0
ADDRESSES = 8 << 30
X = np.random.default_rng(0).normal(size=(60, 3))
Y, TEXT = X[:, 0].copy(), np.array(["u", "v", "w"] * 20, dtype=object)
NASTY: list[Any] = [
    *(None, True, -1, 0, 7, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "x", "<U1000000", "|O", 1.5),
    *([], {}, [[]], [1, "a", None], {"name": "x"}, "float32", "<f4", "int8", "string", [60], [0, 0], [-1, 3], "1"),
    *([2**62, 3], [2**40, 3], "../../../etc/passwd", "a" * 1000, [0] * 1000),
]
DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata", "_streamkern.json")
TEXTS = (".csv", ".gz", ".txt")
TEXT_KIND, LIST_KIND, STRUCT_KIND = 8, 9, 12
LISTS = (b"\x0c", b"\x05", b"\x08", b"\x1c\0", b"\xfc\xff\xff\xff\x07")
GOOD = {"an error in words", "rows"}
INGESTED = (".npz", ".h5")
"""Endings of files that ``ingest`` alone reads."""


def originals(folder: Path) -> list[Path]:
    """Write whole data sets in every layout."""
    write_zarr(folder / "ours.zarr", X, Y, chunk_rows=20, columns=list("abc"))
    write_zarr(folder / "text.zarr", X, TEXT, chunk_rows=20)
    for version in (2, 3):
        group = zarr.create_group(str(folder / f"v{version}.zarr"), zarr_format=version)  # type: ignore[arg-type]
        group.create_array("X", data=X + 9, chunks=(20, 3))
        group.create_array("target", data=Y + 9, chunks=(20,))
    zarr.consolidate_metadata(str(folder / "v2.zarr"))
    group = zarr.create_group(str(folder / "shards.zarr"))
    group.create_array("X", data=X + 9, chunks=(10, 3), shards=(20, 3))
    group.create_array("target", data=Y + 9)
    frame = pd.DataFrame({"a": X[:, 0], "b": TEXT, "c": pd.date_range("2020", periods=60), "target": Y})
    frame.to_parquet(folder / "frame.parquet", row_group_size=20)
    frame.to_feather(folder / "frame.feather")
    write_parquet(folder / "ours.parquet", X, Y, row_group_rows=20, columns=list("abc"))
    pq.write_table(pa.table({"X": pa.array(X.tolist()), "target": Y}), folder / "lists.parquet")
    mixed = pa.table(
        {
            "whole": pa.array(range(60), pa.int32()),
            "flag": [True, False] * 30,
            "day": pa.array(range(60), pa.date32()),
            "price": pa.array(range(60), pa.decimal128(9, 2)),
            "half": X[:, 1].astype(np.float16),
            "text": [None if i % 7 == 0 else f"text {i}" for i in range(60)],
            "word": pa.array(TEXT).dictionary_encode(),
            "target": Y,
        }
    )
    pq.write_table(mixed, folder / "mixed.parquet", row_group_size=25)
    pq.write_table(mixed, folder / "indexed.parquet", 25, write_page_index=True, data_page_version="2.0", version="1.0")
    pq.write_table(
        mixed, folder / "plain.parquet", 25, write_statistics=False, use_dictionary=False, compression="none"
    )
    sk.ingest(folder / "frame.parquet", folder / "made.zarr", target="target", shuffle=True)
    sk.ingest(folder / "frame.parquet", folder / "made", target="target", format="parquet")
    np.savez(folder / "t.npz", X=X, target=Y)
    np.savez_compressed(folder / "c.npz", X=X, target=Y)
    with h5py.File(folder / "t.h5", "w") as store:
        store["X"], store["target"] = X, Y
    frame.to_csv(folder / "frame.csv", index=False)
    with gzip.open(folder / "frame.csv.gz", "wt") as file:
        frame.to_csv(file, index=False)
    frame.to_csv(folder / "frame.txt", index=False, sep="\t")
    np.save(folder / "t.npy", X)
    return sorted(folder.iterdir())


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to every value of a document."""
    yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in inside:
        yield from places(member, (*at, key))


def forged(document: Any, chance: random.Random) -> Any:
    """Return a document with one value replaced or left out."""
    document = copy.deepcopy(document)
    at = chance.choice(list(places(document)))
    if not at:
        return chance.choice(NASTY)
    inside = document
    for key in at[:-1]:
        inside = inside[key]
    if isinstance(inside, dict) and chance.random() < 0.2:
        del inside[at[-1]]
    else:
        inside[at[-1]] = copy.deepcopy(chance.choice(NASTY))
    return document


def forged_footer(footer: bytes, chance: random.Random) -> bytes:
    """Return a parquet footer with one of its values replaced, or some of its bytes."""
    data = bytearray(footer)
    if chance.random() < 0.5:
        start, stop, kind = chance.choice(spans(footer))
        number = chance.choice((0, 1, 2, 3, 7, 60, 127, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1))
        text = chance.randbytes(chance.choice((0, 1, 3, 7, 9, 200)))
        values = {TEXT_KIND: varint(len(text)) + text, STRUCT_KIND: b"\0", LIST_KIND: chance.choice(LISTS)}
        data[start:stop] = values.get(kind, varint(number))
        return bytes(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at, length = chance.randrange(len(data)), chance.choice((1, 1, 2, 9, 50))
        if (how := chance.random()) < 0.6:
            data[at] = chance.randrange(256)
        elif how < 0.8:
            data[at] ^= 1 << chance.randrange(8)
        elif how < 0.9:
            del data[at : at + length]
        else:
            data[at:at] = data[at : at + length]
    return bytes(data)


@cache
def spans(footer: bytes) -> list[tuple[int, int, int]]:
    """Return (start, stop, kind) of every value in a parquet footer."""
    found = []

    class Spans(parquet_footer._Reader):
        def value(self, kind: int, in_list: bool = False) -> Any:
            start, value = self._at, super().value(kind, in_list)
            found.append((start, self._at, kind))
            return value

    Spans(footer).value(STRUCT_KIND)
    return found


def varint(number: int) -> bytes:
    """Return an integer in seven bits a byte, the lowest first."""
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def forge(place: Path, chance: random.Random) -> None:
    """Change a document of a data set, a parquet file's footer or marks, or any bytes of another file."""
    files = sorted(file for file in (place.rglob("*") if place.is_dir() else [place]) if file.is_file())
    documents = [file for file in files if file.name in DOCUMENTS]
    if documents and chance.random() < 0.9:
        file = chance.choice(documents)
        file.write_text(json.dumps(forged(json.loads(file.read_text()), chance)))
        return
    file = chance.choice(files)
    data = bytearray(file.read_bytes())
    if file.suffix == ".parquet":
        if (how := chance.random()) < 0.5:
            footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
            changed = forged_footer(bytes(data[footer:-8]), chance)
            file.write_bytes(data[:footer] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
            return
        if how < 0.7:
            table = pq.read_table(file)
            marks = json.loads((table.schema.metadata or {}).get(b"streamkern", b'{"format": 1, "columns": ["a"]}'))
            table = table.replace_schema_metadata({"streamkern": json.dumps(forged(marks, chance))})
            pq.write_table(table, file, row_group_size=20)
            return
    if chance.random() < 0.4 or file.suffix in TEXTS:
        kind = chance.randrange(len(ACCIDENTS) - 1)  # there is no other file
        file.write_bytes(mutate(kind, file.read_bytes(), chance, files))
        return
    for _ in range(chance.choice((1, 1, 2, 4))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    file.write_bytes(data)


def read(place: Path) -> int:
    """Open, read and inspect a data set: its rows."""
    target = None if place.suffix == ".npy" else "target"
    source = open_tables([place], target, memory=1 << 30, readers=READERS)
    source.fingerprint, source.pieces(), source.reading()
    for chunk in range(min(len(source.bounds) - 1, 4)):
        source.read(chunk), source.where(chunk)
    if place.suffix not in INGESTED:
        sk.inspect(place, target)
    return int(source.bounds[-1])


def case(number: int, seed: int, whole: list[Path], folder: Path) -> Path:
    """Copy a data set and change it: the case of a number."""
    chance = random.Random(1_000_003 * seed + number)
    original = whole[number % len(whole)]
    place = folder / original.name
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    shutil.copytree(original, place) if original.is_dir() else shutil.copy(original, place)
    forge(place, chance)
    return place


def outcome(place: Path) -> str:
    """What comes of reading a case; in capitals, what must not."""
    held = resident_bytes()
    found, seconds, _, grown = measured(lambda: read(place))
    if isinstance(found, sk.StreamkernError):
        said = "an error in words"
    elif isinstance(found, BaseException):
        said = f"{type(found).__name__}: {found}"[:300].upper()
    else:
        said = "rows"
    if seconds > SECONDS:
        said = f"TOO SLOW: {seconds:.1f} S, {said}"
    if grown > FLOOR:
        said = f"TOO LARGE: {held >> 20} MIB GREW BY {grown >> 20}, {said}"
    return said


def main() -> int:
    """Fuzz, and count.

    Returns:
        0 if every case was an error in words or rows.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    add_results(parser)
    args = parser.parse_args()
    outcomes: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    warnings.simplefilter("ignore")
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))  # a case may end itself, and not the machine
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "whole").mkdir()
        whole = originals(folder / "whole")
        for place in whole:
            read(place)
        for number in range(args.first, args.first + args.files):
            place = case(number, args.seed, whole, folder)
            said = outcome(place)
            formats[place.name] += 1
            outcomes[said] += 1
            if said not in GOOD:
                print(f"case {number} of seed {args.seed}, {place.name}: {said}", flush=True)
    print(", ".join(f"{count} x {kind}" for kind, count in sorted(formats.items())))
    print(", ".join(f"{count} x {said}" for said, count in outcomes.most_common()))
    line = {"kind": "data", "changes": args.files, "errors": outcomes["an error in words"]}
    add_run(args.results, [line | {"rows": outcomes["rows"]}])
    return 0 if set(outcomes) <= GOOD else 1


if __name__ == "__main__":
    sys.exit(main())
