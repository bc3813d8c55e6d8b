"""Every bad input, end to end: one clear error, the exit status of the contract, and nothing earlier lost."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamkern as sk
from streamkern.commands.parser import main

PIPELINE = """
import streamkern as sk

def pipeline(path: str, test: str, p: int = 20, target: str = "label") -> sk.Pipeline:
    return sk.Pipeline(
        train=sk.open_dataset(path, target=target), test=sk.open_dataset(test, target="label"),
        kernel=sk.Gaussian(2.0), centers=sk.Uniform(p), solver=sk.EigenPro(epochs=2),
    )
"""


def good(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(np.int64)


def zarr(folder: Path, X: np.ndarray, y: np.ndarray) -> Path:
    sk.write_zarr(str(folder / "bad.zarr"), X, y, target="label", chunk_rows=100)
    return folder / "bad.zarr"


def with_value(value: float) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        X, y = good()
        X[217, 2] = value
        return zarr(folder, X, y)

    return make


def ragged(folder: Path) -> Path:
    rows = [[1.0, 2.0]] * 5 + [[1.0]] + [[3.0, 4.0]] * 5
    pq.write_table(pa.table({"x": rows, "label": [0, 1] * 5 + [0]}), folder / "bad.parquet")
    return folder / "bad.parquet"


def mistyped(folder: Path) -> Path:
    pq.write_table(pa.table({"a": [1.0] * 6, "b": [[b"x"]] * 6, "label": [0, 1] * 3}), folder / "bad.parquet")
    return folder / "bad.parquet"


def truncated_chunk(folder: Path) -> Path:
    place = zarr(folder, *good())
    chunks = sorted(file for file in place.rglob("*") if file.is_file() and file.name != "zarr.json")
    largest = max(chunks, key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    return place


def missing_chunk(folder: Path) -> Path:
    place = zarr(folder, *good())
    max((file for file in place.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size).unlink()
    return place


def corrupt_page(folder: Path) -> Path:
    X, y = good(4000)
    sk.write_parquet(folder / "bad.parquet", X, y, target="label")
    data = bytearray((folder / "bad.parquet").read_bytes())
    data[200:260] = bytes(60)
    (folder / "bad.parquet").write_bytes(data)
    return folder / "bad.parquet"


def empty(folder: Path) -> Path:
    pq.write_table(
        pa.table({"a": pa.array([], pa.float32()), "label": pa.array([], pa.int64())}), folder / "bad.parquet"
    )
    return folder / "bad.parquet"


def constant(folder: Path) -> Path:
    return zarr(folder, np.full((400, 4), 3.0, dtype=np.float32), good()[1])


def one_class(folder: Path) -> Path:
    return zarr(folder, good()[0], np.zeros(400, dtype=np.int64))


def fine(folder: Path) -> Path:
    return zarr(folder, *good())


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., int]:
    (tmp_path / "job.py").write_text(PIPELINE)
    sk.write_zarr(str(tmp_path / "good.zarr"), *good(seed=1), target="label")

    def run(path: Path, *settings: str, extra: tuple[str, ...] = (), test: str = "good.zarr") -> int:
        words = [f"path={path}", f"test={tmp_path / test}", *settings]
        return main(["run", str(tmp_path / "job.py"), "--set", *words, "--run-dir", str(tmp_path / "run"), *extra])

    return run


CASES = {
    "NaN": (with_value(np.nan), (), 1, ["NaN", "bad.zarr", "217", "feature 2", "fill or leave out"]),
    "infinity": (with_value(-np.inf), (), 1, ["infinity", "bad.zarr", "217", "feature 2"]),
    "ragged list": (ragged, (), 1, ["bad.parquet", "row"]),
    "mistyped column": (mistyped, (), 1, ["bad.parquet", "'b'"]),
    "missing target": (fine, ("target=lable",), 1, ["lable", "label", "bad.zarr"]),
    "truncated chunk": (truncated_chunk, (), 1, ["bad.zarr", "chunk"]),
    "missing chunk": (missing_chunk, (), 1, ["bad.zarr", "chunk"]),
    "corrupt page": (corrupt_page, (), 1, ["bad.parquet", "row group"]),
    "empty": (empty, (), 1, ["empty", "0 rows"]),
    "constant features": (constant, (), 1, ["constant", "check which columns"]),
    "one class": (one_class, (), 1, ["one class", "check the target"]),
    "fewer rows than centers": (fine, ("p=500",), 1, ["500", "400", "fewer centers"]),
    "nothing there": (lambda folder: folder / "nowhere.zarr", (), 1, ["nowhere.zarr"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_error_and_loses_nothing(case, job, tmp_path, capsys):
    make, settings, status, words = CASES[case]
    assert job(tmp_path / "good.zarr") == 0
    before = sk.load_model(tmp_path / "run/model.zarr").weights_sha256
    capsys.readouterr()

    (tmp_path / "bad").mkdir()
    assert job(make(tmp_path / "bad"), *settings) == status
    told = capsys.readouterr().err
    assert told.count("error:") == 1
    assert "Traceback" not in told
    for word in words:
        assert word in told, f"{word!r} is not in:\n{told}"

    assert sk.load_model(tmp_path / "run/model.zarr").weights_sha256 == before
    result = json.loads((tmp_path / "run/result.json").read_text())
    if result["status"] != "done":  # a pipeline that cannot even be described leaves the earlier result as it is
        assert result["status"] == "failed"
        assert result["last_done"]["weights_sha256"] == before
