"""Every training row a center, where it is stored: EigenPro2 on rows that do not fit in memory, and its model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.formats import ArraySource
from streamkern.kernels.stored_centers import TILE_ROWS, tiles_of_blocks
from streamkern.storage.artifact_arrays import ArtifactArray


def rows(n: int = 3000, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(np.float32) + 2
    return X, np.sin(X[:, 0]) + X[:, 1] ** 2 / 4


def made(centers: sk.Centers, **changes: object) -> sk.Pipeline:
    X, y = rows()
    train, test = sk.Dataset(ArraySource(X, y, chunk_rows=331)).split(test=0.1)
    return sk.Pipeline(
        train, sk.Laplace(3.0), centers, sk.EigenPro2(epochs=2, batch=200), test=test, task="regression", **changes
    )  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("scaling", [None, "standard"])
def test_centers_that_stay_where_they_are_give_the_model_of_those_that_are_held(tmp_path: Path, scaling: str | None):
    n = len(made(sk.AllRows()).train)
    stored = sk.run(made(sk.AllRows(), scaling=scaling), tmp_path / "stored")
    held = sk.run(made(sk.Uniform(n), scaling=scaling), tmp_path / "held")
    assert stored["n_centers"] == held["n_centers"] == n
    assert stored["metrics"]["test"]["r2"] > 0.9
    models = [sk.load_model(tmp_path / name / "model.zarr") for name in ("stored", "held")]
    assert isinstance(models[0].Z, ArtifactArray)
    assert isinstance(models[1].Z, np.ndarray)
    X, _ = rows(500)
    np.testing.assert_allclose(*(model.decision_function(X) for model in models), rtol=2e-3, atol=2e-3)
    # The model is the one that was scored, and one that is saved again is it too.
    test = made(sk.AllRows()).test
    assert test is not None
    assert models[0].score(test) == stored["metrics"]["test"]
    models[0].save(tmp_path / "again")
    np.testing.assert_array_equal(
        sk.load_model(tmp_path / "again").decision_function(X), models[0].decision_function(X)
    )
    again = sk.run(made(sk.AllRows(), scaling=scaling), tmp_path / "stored")
    assert [stage["name"] for stage in again["stages"] if not stage["cached"]] == ["centers", "save"]


@pytest.mark.slow
def test_a_damaged_center_is_found(tmp_path: Path):
    sk.run(made(sk.AllRows()), tmp_path / "run")
    chunk = next(file for file in sorted((tmp_path / "run/model.zarr/centers/c").rglob("*")) if file.is_file())
    damaged = bytearray(chunk.read_bytes())
    damaged[len(damaged) // 2] ^= 8
    chunk.write_bytes(damaged)
    with pytest.raises(sk.errors.ModelFormatError, match="centers"):
        sk.load_model(tmp_path / "run/model.zarr")


@pytest.mark.parametrize(
    "solver", [sk.EigenPro(), sk.EigenPro(projection="inexact"), sk.Falkon(), sk.Direct(), sk.SGD()], ids=repr
)
def test_other_solvers_say_that_they_hold_their_centers(solver: Any, tmp_path: Path):
    X, y = rows(300)
    with pytest.raises(sk.UsageError, match="all rows"):
        sk.run(sk.Pipeline(sk.from_arrays(X, y), sk.Laplace(3.0), sk.AllRows(), solver, task="regression"), tmp_path)


def test_tiles_are_the_same_from_blocks_of_any_length():
    X = np.arange(5000.0)[:, None]
    for cut in (1, 700, 512, 9000):
        pieces = list(tiles_of_blocks(X[a : a + cut] for a in range(0, len(X), cut)))
        assert [where.stop - where.start for where, _ in pieces] == [*[TILE_ROWS] * 9, 5000 - 9 * TILE_ROWS]
        np.testing.assert_array_equal(np.concatenate([tile for _, tile in pieces]), X)
        assert all(where.start == tile[0, 0] for where, tile in pieces)


PROGRAM = """
import sys, numpy as np, streamkern as sk
n, d = 4000, 5440  # an eighth of the budget, which may be kept in memory, is not enough for them
path = sys.argv[1]
rng = np.random.default_rng(0)
blocks = ((X, X[:, 0] + X[:, 1]) for X in (rng.standard_normal((250, d), dtype=np.float32) for _ in range(n // 250)))
sk.write_zarr(path + "/data.zarr", blocks, n_rows=n)
def made(centers):
    data = sk.open_dataset(path + "/data.zarr", target="target")
    return sk.Pipeline(data, sk.Laplace(77.0), centers, sk.EigenPro2(epochs=1, s=100, batch=200), task="regression",
                       lanes=2)
try:
    sk.run(made(sk.Uniform(n)), path + "/held", memory="655MiB", threads=2)
except sk.errors.PlanRefusedError:
    print("refused")
sk.run(made(sk.AllRows()), path + "/stored", memory="655MiB", threads=2)
"""


@pytest.mark.slow
def test_rows_need_not_fit_in_memory(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused\n"
    result = json.loads((tmp_path / "stored/result.json").read_text())
    assert result["peak_memory_bytes"] <= result["projected_memory_bytes"] <= 655 << 20
