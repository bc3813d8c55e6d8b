"""Predictions from store to store: right, in order, the same after an interruption, and never half there."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.formats.open_tables import open_tables
from streamkern.models.kernel_machine import KernelMachine
from streamkern.serving import predict_files as module
from streamkern.serving.predict_files import predict
from streamkern.serving.prediction_writers import FORMATS as FORMATS_OF_PREDICTIONS
from streamkern.serving.prediction_writers import OutputColumn, record_at

FORMATS = ("parquet", "zarr")
NAMES = list("abcdef")


def frame(n: int, seed: int = 0) -> pd.DataFrame:
    rows = pd.DataFrame(np.random.default_rng(seed).normal(size=(n, len(NAMES))).astype("float32"), columns=NAMES)
    rows["key"] = [f"row-{i * 7 % n}" for i in range(n)]
    rows["label"] = np.where(rows.a + rows.b > 0, "yes", np.where(rows.c > 0, "maybe", "no"))
    return rows


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier of strings, a regressor of two values, and rows that are new to them."""
    folder = tmp_path_factory.mktemp("made")
    frame(400).to_parquet(folder / "train.parquet", index=False)
    train = sk.open_dataset(folder / "train.parquet", target="label", columns=NAMES)
    solver = sk.Direct()
    classifier = sk.KernelClassifier(kernel=sk.Gaussian(3.0), centers=sk.Uniform(50), solver=solver).fit(train)
    classifier.save(folder / "classes.zarr")
    X = frame(400)[NAMES]
    regressor = sk.KernelRegressor(kernel=sk.Gaussian(3.0), centers=sk.Uniform(50), solver=solver)
    regressor.fit(X, np.stack([X.a, X.b + X.c], axis=1)).save(folder / "values.zarr")
    frame(3000, seed=1).to_parquet(folder / "new.parquet", index=False, row_group_size=701)
    return folder


def read(place: Path) -> dict[str, list[Any]]:
    """Columns by name, however they are stored."""
    if place.suffix == ".parquet":
        return {name: values.to_list() for name, values in pd.read_parquet(place).items()}
    if place.suffix == ".csv":
        return {name: values.to_list() for name, values in pd.read_csv(place, keep_default_na=False).items()}
    found: dict[str, list[Any]] = {}
    for name, array in zarr.open_group(place, mode="r").arrays():
        fields = array.attrs.get("fields")
        values = np.asarray(array[:])
        found |= {name: values.tolist()} if fields is None else dict(zip(fields, values.T.tolist(), strict=True))
    return found


def contents(place: Path) -> dict[str, bytes]:
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


@pytest.mark.parametrize("format", [*FORMATS, "csv"])
def test_labels_scores_and_ids_are_those_of_the_rows_in_their_order(made: Path, tmp_path: Path, format: str):
    place = tmp_path / f"out.{format}"
    result = predict(made / "classes.zarr", made / "new.parquet", place, id="key", scores=True, memory="4GiB")
    model, rows = sk.load_model(made / "classes.zarr"), frame(3000, seed=1)
    outputs = model.decision_function(rows[NAMES])
    found = read(place)
    assert found["key"] == rows.key.to_list()
    assert found["prediction"] == model.predict(rows[NAMES]).tolist()
    for j, label in enumerate(["maybe", "no", "yes"]):
        np.testing.assert_allclose(found[f"score_{label}"], outputs[:, j], rtol=1e-4, atol=1e-5)
    assert set(result.columns) == set(found) == {"key", "prediction", "score_maybe", "score_no", "score_yes"}
    assert (result.rows, result.kept, result.path) == (3000, 0, str(place))
    assert result.rows_per_second > 0
    assert 0 < result.projected_memory_bytes < result.memory_budget_bytes == 4 << 30
    assert json.loads(json.dumps(result.to_json()))["status"] == "done"
    assert sorted(path.name for path in tmp_path.iterdir()) == [place.name]


@pytest.mark.parametrize("format", [*FORMATS, "csv"])
def test_predictions_that_are_all_zero_are_rows_like_others(tmp_path: Path, format: str):
    X = np.random.default_rng(0).normal(size=(200, 4))
    model = sk.KernelClassifier(kernel=sk.Gaussian(1.0), centers=sk.Uniform(20), solver=sk.Direct())
    machine = model.fit(X, (np.arange(200) == 7).astype(int)).model_
    predict(machine, X[100:], tmp_path / f"out.{format}")
    columns = None if format == "zarr" else ["prediction"]
    found = sk.open_dataset(tmp_path / f"out.{format}" / ("prediction" if format == "zarr" else ""), columns=columns)
    rows = found.source.read(0).X
    assert rows.shape == (100, 1)
    assert not rows.any()


@pytest.mark.parametrize("format", [*FORMATS, "csv"])
def test_several_values_a_row_and_from_zarr(made: Path, tmp_path: Path, format: str):
    rows = frame(900, seed=2)
    sk.write_zarr(str(tmp_path / "new.zarr"), rows[NAMES].to_numpy(), columns=NAMES, chunk_rows=130)
    predict(made / "values.zarr", tmp_path / "new.zarr", tmp_path / "out", format=format)
    place = (tmp_path / "out").rename(tmp_path / f"out.{format}")
    want = sk.load_model(made / "values.zarr").predict(rows[NAMES])
    found = read(place)
    np.testing.assert_allclose(found["prediction_0"], want[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["prediction_1"], want[:, 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", [*FORMATS, "csv"])
def test_parts_threads_and_processes_change_no_byte_of_a_row(made, tmp_path, format, monkeypatch):
    given = {"id": "key", "scores": True}
    outs = []
    workers = sk.Resources(scheduler="processes:1")
    elsewhere = {"resources": workers} if format == "parquet" else {}  # what is sent does not know the format
    for number, how in enumerate(({"threads": 1}, {"threads": 2}, elsewhere)):
        outs.append(tmp_path / f"{number}.{format}")
        predict(made / "classes.zarr", made / "new.parquet", outs[-1], **given, **how)
    assert contents(outs[0]) == contents(outs[1]) == contents(outs[2])
    monkeypatch.setattr(module, "PART_ROWS", 257)
    predict(made / "classes.zarr", made / "new.parquet", tmp_path / f"parts.{format}", **given)
    assert read(tmp_path / f"parts.{format}") == read(outs[0])


KILLED = """
import os, signal, sys
from pathlib import Path
from streamkern.serving import prediction_writers as predictions, predict_files as module
module.PART_ROWS = 257
after, model, data, target = int(sys.argv[1]), *sys.argv[2:]
for kind in predictions.FORMATS.values():
    def write(self, part, values, write=kind.write):
        global after
        after -= 1
        if after < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, part, values)
    kind.write = write
print(module.predict(model, data, target, id="key", scores=True).kept)
"""


@pytest.mark.slow
@pytest.mark.parametrize("format", [*FORMATS, "csv"])
def test_after_kill_9_it_goes_on_with_what_is_missing_and_gives_the_same_bytes(made, tmp_path, format, monkeypatch):
    place = tmp_path / f"out.{format}"
    words = [sys.executable, "-c", KILLED, "5", made / "classes.zarr", made / "new.parquet", place]
    assert subprocess.run(words, check=False).returncode == -9
    assert not place.exists()  # half a target is none
    with pytest.raises(sk.errors.StorageError):
        sk.open_dataset(place)
    monkeypatch.setattr(module, "PART_ROWS", 257)
    given = {"id": "key", "scores": True}
    folder = tmp_path / f".out.{format}.predict"
    lost = next(file for file in folder.rglob("*") if file.name == "2" or file.name.startswith("rows-000000000000514"))
    if lost.is_dir():
        lost /= "0"
    lost.unlink()  # of the five parts, one in the middle
    assert predict(made / "classes.zarr", made / "new.parquet", place, **given).kept == 4 * 257
    whole = tmp_path / f"whole.{format}"
    predict(made / "classes.zarr", made / "new.parquet", whole, **given)
    assert contents(place) == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([place.name, whole.name])


@pytest.mark.parametrize("format", [*FORMATS, "csv"])
def test_only_parts_that_are_missing_are_computed_again(made, tmp_path, format, monkeypatch):
    """Of twelve parts, the second and the last three."""
    monkeypatch.setattr(module, "PART_ROWS", 257)
    places, writer = [tmp_path / f"{name}.{format}" for name in ("whole", "out")], FORMATS_OF_PREDICTIONS[format]
    write, stream, steps, given = writer.write, KernelMachine.stream_predictions, list[tuple[int, int]](), {"id": "key"}
    predict(made / "classes.zarr", made / "new.parquet", places[0], **given)

    def fails(self: Any, part: int, values: Any) -> None:
        if part == 9:
            raise sk.errors.StorageError("no room")
        write(self, part, values)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write", fails)
        with pytest.raises(sk.errors.StorageError, match="no room"):
            predict(made / "classes.zarr", made / "new.parquet", places[1], **given)
    work = tmp_path / f".out.{format}.predict"
    for lost in [*work.rglob("c/1"), *work.rglob("rows-000000000000257-*")]:
        lost.unlink()
    progress: list[int] = []

    def notes(self: Any, *args: Any, rows: tuple[int, int], **how: Any) -> Any:
        steps.append(rows)
        return stream(self, *args, rows=rows, **how)

    monkeypatch.setattr(KernelMachine, "stream_predictions", notes)
    result = predict(
        made / "classes.zarr", made / "new.parquet", places[1], **given,
        on_progress=lambda activity, rows, of: progress.append(rows),
    )  # fmt: skip
    assert steps == [(257, 514), (9 * 257, 3000)]
    assert result.kept == 8 * 257
    assert progress[-4:] == [9 * 257, 10 * 257, 11 * 257, 3000]
    assert contents(places[0]) == contents(places[1])


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_done_is_not_done_again_and_nothing_else_is_replaced(made: Path, tmp_path: Path, format: str):
    place = tmp_path / f"out.{format}"
    first = predict(made / "classes.zarr", made / "new.parquet", place)
    before = contents(place)
    second = predict(made / "classes.zarr", made / "new.parquet", place)
    assert (first.kept, second.kept, second.rows_per_second) == (0, 3000, 0)
    with pytest.raises(sk.errors.StorageError, match="this path already exists"):
        predict(made / "classes.zarr", made / "new.parquet", place, scores=True)
    assert contents(place) == before
    assert predict(made / "classes.zarr", made / "new.parquet", place, scores=True, overwrite=True).kept == 0
    assert "score_no" in read(place)
    for other in (made / "new.parquet", made / "classes.zarr"):
        before = contents(other)
        with pytest.raises(sk.errors.StorageError, match="this path already exists"):
            predict(made / "classes.zarr", made / "new.parquet", other, overwrite=True)
        assert contents(other) == before
    assert record_at(made / "new.parquet") is None


def test_a_csv_file_reads_back_as_it_was_and_only_predictions_are_replaced(tmp_path: Path):
    labels = ['say "no"', "a,b", "", "two\nlines", "Ünï ", "007"]
    rows = pd.DataFrame({"x": np.arange(60) % 6 / 3.0, "key": [f"{i:03}" for i in range(60)]})
    data = sk.from_arrays(rows[["x"]], np.array(labels)[np.arange(60) % 6])
    model = sk.KernelClassifier(kernel=sk.Gaussian(0.2), centers=60, solver=sk.Direct(1e-6)).fit(data).model_
    place = tmp_path / "out.csv"
    predict(model, rows, place, id="key", scores=True)
    found = pd.read_csv(place, dtype={"key": str}, keep_default_na=False)
    assert found.key.to_list() == rows.key.to_list()
    assert found.prediction.to_list() == [labels[i % 6] for i in range(60)]
    outputs = np.column_stack([found[f"score_{label}"] for label in model.encoding.values]).astype(np.float32)
    np.testing.assert_array_equal(outputs, model.decision_function(rows).astype(np.float32))
    with pytest.raises(sk.errors.StorageError, match="this path already exists"):
        predict(model, rows, place)
    predict(model, rows, place, overwrite=True)
    assert list(pd.read_csv(place)) == ["prediction"]
    rows.assign(prediction=1).to_csv(other := tmp_path / "other.csv", index=False)
    for mine in (rows.assign(prediction=1), rows.assign(score_1=1)[["key", "score_1"]]):
        mine.to_csv(other, index=False)
        before = other.read_bytes()
        with pytest.raises(sk.errors.StorageError, match="this path already exists"):
            predict(model, rows, other, overwrite=True)
        assert other.read_bytes() == before


def test_a_target_in_the_hands_of_another_process_is_left_to_it(made: Path, tmp_path: Path):
    (tmp_path / ".out.zarr.predict").mkdir()
    program = "import fcntl,sys,time; file=open(sys.argv[1],'w'); fcntl.flock(file,2); print(flush=True); time.sleep(9)"
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / ".out.zarr.predict/lock"], stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        with pytest.raises(sk.errors.BusyError):
            predict(made / "classes.zarr", made / "new.parquet", tmp_path / "out.zarr")
        holder.kill()


def test_columns_are_found_by_name_and_others_are_passed_over(made: Path, tmp_path: Path):
    rows = frame(200, seed=3)
    rows[[*NAMES[::-1], "key", "label"]].assign(more=1.0).to_parquet(tmp_path / "other.parquet")
    predict(made / "classes.zarr", tmp_path / "other.parquet", tmp_path / "out.parquet")
    want = sk.load_model(made / "classes.zarr").predict(rows[NAMES])
    assert read(tmp_path / "out.parquet")["prediction"] == want.tolist()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (frame(50).drop(columns="d"), r"column 'd' is not there"),
        (frame(50).assign(d="text"), "The value 'text' of column 'd' is not a number"),
        (np.ones((20, 5), "float32"), "columns of training"),
        (np.ones((20, 6), "float32"), "columns of training"),
        (pd.DataFrame(np.ones((20, 6)), columns=list("uvwxyz")), "column 'a' is not there"),
    ],
    ids=["missing", "text", "narrow", "no names", "other names"],
)
def test_columns_other_than_those_of_training_are_refused(made: Path, tmp_path: Path, rows: Any, message: str):
    bad = tmp_path / "bad.zarr"
    if isinstance(rows, pd.DataFrame):
        rows.to_parquet(bad := tmp_path / "bad.parquet")
    else:
        sk.write_zarr(bad, rows)
    with pytest.raises(sk.DataError, match=message):
        predict(made / "classes.zarr", bad, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_another_width_is_refused_where_there_are_no_names(tmp_path: Path):
    rng = np.random.default_rng(0)
    model = sk.KernelRegressor(kernel=sk.Gaussian(3.0), centers=sk.Uniform(20), solver=sk.Direct())
    machine = model.fit(rng.normal(size=(100, 4)), rng.normal(size=100)).model_
    with pytest.raises(sk.DataError, match="5 features, and the model was trained on 4"):
        predict(machine, np.ones((10, 5)), tmp_path / "out.parquet")
    predict(machine, np.ones((0, 4)), tmp_path / "none.parquet")
    assert read(tmp_path / "none.parquet") == {"prediction": []}
    predict(machine, np.ones((0, 4)), tmp_path / "none.zarr")
    assert read(tmp_path / "none.zarr") == {"prediction": []}


def test_a_nan_is_named_by_its_row_and_nothing_stands_at_the_target(made, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PART_ROWS", 257)
    X = frame(2000)[NAMES].to_numpy().copy()
    X[1234, 2] = np.nan
    sk.write_zarr(str(tmp_path / "new.zarr"), X, columns=NAMES, chunk_rows=100)
    with pytest.raises(sk.DataError, match=r"row 1234\b"):
        predict(made / "classes.zarr", tmp_path / "new.zarr", tmp_path / "out.zarr", threads=1)
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": "out.xlsx"}, "format"),
        ({"target": "s3://bucket/out.parquet"}, "local files only"),
        ({"model": "values.zarr", "scores": True}, "no scores"),
        ({"id": "prediction"}, "both called 'prediction'"),
        ({"threads": 0}, "threads is 0"),
        ({"memory": "10MiB"}, r"needs .* and may use"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_written(made: Path, tmp_path: Path, monkeypatch, given, message: str):
    monkeypatch.chdir(tmp_path)
    rows = frame(30).rename(columns={"key": "prediction"})
    rows.to_parquet("rows.parquet")
    given = {"model": "classes.zarr", "data": "rows.parquet", "target": "out.parquet"} | given
    with pytest.raises(sk.UsageError, match=message):
        predict(made / given.pop("model"), given.pop("data"), given.pop("target"), **given)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.mark.parametrize("format", [*FORMATS, "csv"])
def test_a_full_disk_is_one_clear_error_and_with_room_it_goes_on(made, small_disk, format, monkeypatch):
    monkeypatch.setattr(module, "PART_ROWS", 257)
    filler, place = small_disk / "filler", small_disk / f"out.{format}"
    filler.write_bytes(bytes(1992 << 10))
    with pytest.raises(sk.errors.StorageError, match="the disk is full"):
        predict(made / "classes.zarr", made / "new.parquet", place, id="key", scores=True)
    assert not place.exists()
    filler.unlink()
    assert predict(made / "classes.zarr", made / "new.parquet", place, id="key", scores=True).kept > 0
    assert len(read(place)["prediction"]) == 3000


PEAK = """
import sys
from streamkern.serving.predict_files import predict
found = predict(sys.argv[1], sys.argv[2], sys.argv[3], id="key", scores=True, memory="2GiB", threads=2)
print(found.peak_memory_bytes, found.projected_memory_bytes)
"""


@pytest.mark.slow
def test_measured_peak_is_below_the_projected_one_and_rows_do_not_raise_it(made: Path, tmp_path: Path):
    peaks = []
    for n in (100_000, 400_000):
        sk.write_parquet(tmp_path / "rows.parquet", np.random.default_rng(0).random((n, 6), "float32"),
                         np.arange(n), target="key", columns=NAMES)  # fmt: skip
        files = made / "classes.zarr", tmp_path / "rows.parquet", tmp_path / f"{n}.parquet"
        words = [sys.executable, "-c", PEAK, *files]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        peak, projected = map(int, done.stdout.split())
        assert peak < projected
        peaks.append(peak)
    assert peaks[1] < peaks[0] + (64 << 20)


PAGE = (Path(__file__).parents[2] / "docs" / "prediction.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_commands_and_the_python_of_the_page_run_in_its_order(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, kept in (("model.zarr", "classes.zarr"), ("new.parquet", "new.parquet")):
        (tmp_path / name).symlink_to(made / kept)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
    assert len(lines) == 2
    out: list[str] = []
    for line in lines:  # in processes of their own, which hold less than one that has run other tests
        words = [sys.executable, "-m", "streamkern", *shlex.split(line)[1:]]
        out += subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "3,000 rows (key, prediction, score_maybe, score_no, ...)" in out[0]
    told = json.loads(out[-1])
    assert (told["status"], told["rows"], told["kept"]) == ("done", 3000, 0)
    assert told["peak_memory_bytes"] > 0 < told["rows_per_second"]
    assert read(tmp_path / "labels.zarr")["prediction"] == read(tmp_path / "scores.parquet")["prediction"]
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S))
    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "scores.parquet").read_bytes()
    assert any("(3, 3)" in line for line in out)


@pytest.mark.parametrize(
    ("words", "status"),
    [(["absent.zarr", "new.parquet", "o.parquet"], 1), (["m.zarr", "new.parquet", "o.xlsx"], 2),
     (["m.zarr", "new.parquet", "o.parquet", "--memory", "9MiB"], 2), (["m.zarr", "new.parquet", "m.zarr"], 1)],
)  # fmt: skip
def test_the_exit_status_says_how_it_ended(made: Path, tmp_path: Path, monkeypatch, words: list[str], status: int):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.parquet").symlink_to(made / "new.parquet")
    sk.load_model(made / "classes.zarr").save("m.zarr")
    assert main(["predict", *words]) == status


def test_the_footer_of_many_parts_of_many_columns_is_projected(tmp_path: Path):
    """Row groups of 500 outputs: 1.7 KiB each column, which no projection counted."""
    columns = [OutputColumn("prediction", np.dtype(np.float32), tuple(f"prediction_{j}" for j in range(120)))]
    made = FORMATS_OF_PREDICTIONS["parquet"](tmp_path / "p.parquet", columns, 160, 4, {"fingerprint": "f"})
    with made.writing():
        for part in made.missing():
            made.write(part, [np.zeros((4, 120), np.float32)])
        made.commit()
    footer = pq.read_metadata(tmp_path / "p.parquet")
    assert footer.num_row_groups == len(made) == 40
    # As objects that grow, and as bytes.
    assert 2 * footer.serialized_size <= made.noted_bytes <= 30 * footer.serialized_size
    assert FORMATS_OF_PREDICTIONS["zarr"](tmp_path / "p.zarr", columns, 160, 4, {"fingerprint": "f"}).noted_bytes == 0


@pytest.mark.parametrize("coded", [False, True])
def test_long_ids_that_are_stored_once_count_in_every_row(coded: bool, tmp_path: Path) -> None:
    """A dictionary of a few long texts is small in the file, and each row has a text of its own when it is an id."""
    n, texts = 4000, [f"{i}" * 1000 for i in range(10, 20)]
    X = np.random.default_rng(0).normal(size=(n, 2))
    ids = pa.array([texts[i % 10] for i in range(n)])
    ids = ids.dictionary_encode() if coded else ids
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "id": ids}), tmp_path / "t.parquet")
    source = open_tables([tmp_path / "t.parquet"], columns=["a", "b"], id="id")
    assert source.reading().row > 2000
    model = sk.KernelRegressor(sk.Laplace("median"), 10, sk.Direct()).fit(
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}), X[:, 0]
    )
    model.save(tmp_path / "m")
    sk.predict(tmp_path / "m", tmp_path / "t.parquet", tmp_path / "out.parquet", id="id")
    assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == ids.to_pylist()
