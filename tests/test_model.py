"""A saved model is the model: to the bit, or an error; and it predicts in streams."""

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.data.targets import Classes, Continuous, Encoding
from streamkern.execute import ThreadsExecutor
from streamkern.storage.artifact import FORMAT, save_artifact
from streamkern.types import Array

D = 5


def machine(encoding: Encoding | None = None, seed: int = 0, **changes: Any) -> sk.KernelMachine:
    """A model with random centers and weights."""
    rng = np.random.default_rng(seed)
    encoding = encoding or Classes(np.array(["ant", "bee", "cat"]))
    Z, weights = rng.standard_normal((40, D)), rng.standard_normal((40, encoding.outputs))
    model = sk.KernelMachine(sk.Laplace(2.0), Z.astype(np.float32), weights.astype(np.float32), encoding)
    return replace(model, metadata={"passes": 3, "loss": 0.25}, **changes)


@pytest.fixture(scope="module")
def X() -> Array:
    return np.random.default_rng(1).standard_normal((3000, D)).astype(np.float32)


MODELS: dict[str, Callable[[], sk.KernelMachine]] = {
    "strings": machine,
    "integers": lambda: machine(Classes(np.array([-3, 0, 7]))),
    "small integers": lambda: machine(Classes(np.array([1, 2, 9], dtype=np.uint8))),
    "booleans": lambda: machine(Classes(np.array([False, True]))),
    "floats": lambda: machine(Classes(np.array([-0.5, 1.5, 2.25]))),
    "regression": lambda: machine(Continuous(np.array([0.1]))),
    "several outputs": lambda: machine(Continuous(np.array([0.1, -3.0]), flat=False)),
    "columns": lambda: machine(columns=("a", "b", "ç", "d e", "e")),
    "scaled": lambda: machine(factor=np.linspace(0.1, 1.3, D), shift=-0.3),
    "float64": lambda: replace(machine(), Z=machine().Z.astype(np.float64), weights=machine().weights.astype(float)),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_loaded_is_what_was_saved(name: str, X: Array, tmp_path: Path) -> None:
    model = MODELS[name]()
    path = model.save(tmp_path / "model.zarr")
    loaded = sk.load_model(path)
    assert np.array_equal(loaded.decision_function(X), model.decision_function(X))
    predicted = loaded.predict(X)
    assert np.array_equal(predicted, model.predict(X))
    assert predicted.dtype == model.predict(X).dtype
    assert (loaded.kernel, loaded.columns, loaded.metadata) == (model.kernel, model.columns, model.metadata)
    assert loaded.weights_sha256 == model.weights_sha256
    assert np.array_equal(loaded.factor, model.factor)
    assert np.array_equal(loaded.shift, model.shift)
    again = sk.load_model(loaded.save(tmp_path / "again.zarr"))
    assert np.array_equal(again.predict(X), predicted)


def test_loading_executes_no_code(X: Array, tmp_path: Path) -> None:
    path = machine().save(tmp_path / "model.zarr")
    sk.load_model(path)  # what is imported on first use is imported now
    seen: list[str] = []
    watching = True

    def hook(event: str, arguments: Any) -> None:
        # An audit hook sees what no module can hide, and stays for as long as the process lives.
        if watching and event in (
            "compile",
            "exec",
            "import",
            "marshal.loads",
            "pickle.find_class",
            "subprocess.Popen",
        ):
            seen.append(event)

    sys.addaudithook(hook)
    loaded = sk.load_model(path)
    watching = False
    assert not seen
    assert np.array_equal(loaded.predict(X), machine().predict(X))


def files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def same(a: sk.KernelMachine, b: sk.KernelMachine) -> bool:
    return (
        a.weights_sha256 == b.weights_sha256
        and np.array_equal(a.Z, b.Z)
        and np.array_equal(a.factor, b.factor)
        and np.array_equal(a.shift, b.shift)
        and (a.kernel, a.columns, a.metadata) == (b.kernel, b.columns, b.metadata)
        and repr(a.encoding) == repr(b.encoding)
    )


@pytest.mark.slow
def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    model = machine(columns=tuple("abcde"))
    path = model.save(tmp_path / "model.zarr")
    caught = 0
    for file in files(path):
        original = file.read_bytes()
        for position in np.unique(np.linspace(0, len(original) - 1, 40).astype(int)):
            for bit in (1, 64):
                damaged = bytearray(original)
                damaged[position] ^= bit
                file.write_bytes(damaged)
                try:
                    assert same(sk.load_model(path), model), f"{file}, byte {position}, bit {bit}"
                except sk.errors.ModelFormatError:
                    caught += 1
        file.write_bytes(original)
    assert caught > 100
    assert same(sk.load_model(path), model)


@pytest.mark.parametrize("how", ["missing", "empty", "half"])
def test_a_missing_or_truncated_file_is_found(how: str, tmp_path: Path) -> None:
    path = machine(shift=0.5).save(tmp_path / "model.zarr")
    for file in files(path):
        original = file.read_bytes()
        if how == "missing":
            file.unlink()
        else:
            file.write_bytes(original[: 0 if how == "empty" else len(original) // 2])
        with pytest.raises(sk.errors.ModelFormatError, match=r"model\.zarr"):
            sk.load_model(path)
        file.write_bytes(original)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(sk.errors.StorageError, match="no KernelMachine here"):
        sk.load_model(tmp_path / "nothing.zarr")
    save_artifact(tmp_path / "other.zarr", "Checkpoint", {"weights": np.ones(3)}, {})
    sk.write_zarr(str(tmp_path / "data.zarr"), np.ones((3, 2)), np.ones(3))
    (tmp_path / "text").mkdir()
    (tmp_path / "file").write_text("text")
    for name in ("other.zarr", "data.zarr", "text", "file"):
        with pytest.raises(sk.errors.ModelFormatError, match="not a KernelMachine"):
            sk.load_model(tmp_path / name)
    incomplete = {"kernel": machine().kernel.to_json()}
    arrays = {"centers": np.ones((2, 2)), "weights": np.ones((2, 1))}
    save_artifact(tmp_path / "half.zarr", "KernelMachine", arrays, incomplete)
    with pytest.raises(sk.errors.ModelFormatError, match="incomplete"):
        sk.load_model(tmp_path / "half.zarr")


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkern.storage.artifact.FORMAT", FORMAT + 1)
    path = machine().save(tmp_path / "model.zarr")
    monkeypatch.undo()
    with pytest.raises(sk.errors.ModelFormatError, match=f"format is {FORMAT + 1}"):
        sk.load_model(path)


# ---------------------------------------------------------------------------------------------- saving over a model


OLD = machine(seed=1)


@pytest.mark.parametrize("what", ["file", "folder", "data set"])
def test_what_is_no_model_is_not_replaced(what: str, tmp_path: Path) -> None:
    path = tmp_path / "precious.zarr"
    if what == "file":
        path.write_text("text")
    elif what == "folder":
        path.mkdir()
        (path / "thesis.tex").write_text("text")
    else:
        sk.write_zarr(str(path), np.ones((3, 2)), np.ones(3))
    before = [(file, file.read_bytes()) for file in files(tmp_path)]
    with pytest.raises(sk.errors.StorageError, match="is not a KernelMachine"):
        OLD.save(path)
    assert [(file, file.read_bytes()) for file in files(tmp_path)] == before


# -------------------------------------------------------------------------------------------------------- prediction


def test_other_columns_are_refused(X: Array, tmp_path: Path) -> None:
    names = list("abcde")
    model = machine(columns=tuple(names))
    expected = model.predict(X)
    with pytest.raises(sk.DataError, match="X has 4 features, but KernelMachine is expecting 5"):
        model.predict(X[:, :4])
    frame = pd.DataFrame(X, columns=names)
    swapped = frame[["a", "c", "b", "d", "e"]]
    assert np.array_equal(model.predict(swapped.assign(more="x")), expected), "columns are found by their names"
    with pytest.raises(sk.DataError, match="column 'c' is not there"):
        model.predict(swapped.drop(columns="c"))
    sk.write_parquet(str(tmp_path / "swapped.parquet"), swapped.to_numpy(), columns=list(swapped.columns))
    with pytest.raises(sk.DataError, match="'c' is where 'b' was"):
        model.predict(sk.open_dataset(tmp_path / "swapped.parquet"))
    assert np.array_equal(model.predict(sk.open_dataset(tmp_path / "swapped.parquet", columns=names)), expected)
    assert np.array_equal(model.predict(tmp_path / "swapped.parquet"), expected), "a path is opened by name"
    assert np.array_equal(model.predict(frame), expected)
    with pytest.raises(sk.UsageError, match="scaled in another way"):
        model.predict(sk.from_arrays(X).scale(2.0))


@pytest.mark.slow
def test_predictions_do_not_depend_on_where_rows_lie_nor_on_threads(X: Array, tmp_path: Path) -> None:
    model = machine(factor=np.linspace(0.5, 1.5, D), shift=0.1)
    with ThreadsExecutor(1) as one, ThreadsExecutor(3) as three:
        expected = model.decision_function(X, executor=one)
        assert np.array_equal(model.decision_function(X, executor=three), expected)
    for threads in (1, 2, 3):
        assert np.array_equal(model.decision_function(X, threads=threads), expected)
    labels = model.predict(X)
    for name, rows in (("small", 37), ("large", 5000)):
        sk.write_zarr(str(tmp_path / f"{name}.zarr"), X, labels, target="kind", chunk_rows=rows)
        sk.write_parquet(str(tmp_path / f"{name}.parquet"), X, labels, target="kind", row_group_rows=rows)
        for path in (tmp_path / f"{name}.zarr", tmp_path / f"{name}.parquet"):
            data = sk.open_dataset(path, target="kind")
            outputs = model.decision_function(data)
            assert outputs == pytest.approx(expected, abs=1e-4)
            assert np.array_equal(outputs.argmax(axis=1), expected.argmax(axis=1))
            assert model.score(data)["accuracy"] == 1.0
    assert np.array_equal(model.decision_function(tmp_path / "large.zarr"), expected)


def test_predictions_are_the_formula(X: Array) -> None:
    model = replace(machine(Continuous(np.array([3.0]))), factor=2.0, shift=1.0)
    K = sk.Laplace(2.0)(X.astype(np.float64) * 2 + 1, model.Z.astype(np.float64))
    assert model.predict(X) == pytest.approx((K @ model.weights)[:, 0] + 3.0, abs=1e-4)
    y = np.sin(X[:, 0].astype(np.float64))
    metrics = model.score(X, y)
    errors = model.predict(X) - y
    assert metrics["mse"] == pytest.approx(np.mean(np.square(errors)), rel=1e-5)
    assert metrics["r2"] == pytest.approx(1 - np.mean(np.square(errors)) / np.var(y), rel=1e-5)


def test_streamed_prediction_holds_blocks_and_not_rows(X: Array) -> None:
    model = machine()

    def peak(copies: int) -> tuple[int, int]:
        data = sk.from_arrays(X).augment(sk.augment.GaussianNoise(0.1), copies=copies)
        tracemalloc.start()
        rows = sum(len(outputs) for outputs in model._stream_outputs(data))
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return rows, held

    peak(1)
    (few, small), (many, large) = peak(10), peak(200)
    assert (few, many) == (10 * len(X), 200 * len(X))
    # Twenty times the rows: as many blocks again may be in flight where threads take turns otherwise, and no more.
    assert large < 2 * small + (1 << 18)
    assert large < many * D  # a byte a value: far from holding them


def test_no_rows_give_no_predictions() -> None:
    assert machine().predict(np.empty((0, D), dtype=np.float32)).shape == (0,)
    with pytest.raises(sk.DataError, match="empty"):
        machine().score(np.empty((0, D)), np.empty(0))
    with pytest.raises(sk.DataError, match="no target"):
        machine().score(np.ones((3, D)))
