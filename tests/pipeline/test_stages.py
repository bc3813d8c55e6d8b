"""The order of stages stands once: every reader reads the list, and every stage can be killed and gone on with."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.costs.stage_work import StageWork
from streamkern.fitting import stages
from streamkern.fitting.preparation import rows_key
from streamkern.fitting.stage import Stage
from streamkern.progress import Display
from streamkern.report.page import page
from streamkern.report.run_directory import read_run
from streamkern.report.run_status import status
from streamkern.runs.caching_runner import CachingRunner

Make = Callable[..., sk.Pipeline]
DUMMY_BYTES = 3 << 30


@pytest.fixture
def dummy(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[Any]]:
    """A stage between centers and eigensystem, in the list and nowhere else: what it computed, and what it gave."""
    computed: list[int] = []
    taken: list[Any] = []

    def run(fit: Any) -> dict[str, int]:
        computed.append(len(fit.centers.Z))
        if isinstance(fit.runner, CachingRunner):
            assert status(read_run(fit.runner.folder))["stage"] == "dummy"
        return {"centers": len(fit.centers.Z)}

    stage = Stage(
        "dummy", run, take=lambda fit, found: taken.append(found),
        key=lambda fit: (rows_key(fit.data), fit.recipe.seed),
        memory=lambda shape: DUMMY_BYTES, work=lambda shape: StageWork(shape.stored_rows, read=shape.stored_bytes),
    )  # fmt: skip
    at = stages.MODEL_STAGES.index(stages.CENTERS) + 1
    listed = (*stages.MODEL_STAGES[:at], stage, *stages.MODEL_STAGES[at:])
    monkeypatch.setattr(stages, "MODEL_STAGES", listed)
    return computed, taken


def names(found: Any) -> list[str]:
    """Names of the stages of a plan or a result."""
    return [each.name if hasattr(each, "name") else each["name"] for each in found]


@pytest.mark.slow
def test_a_stage_in_the_list_is_planned_projected_run_kept_and_shown(make: Make, tmp_path: Path, dummy: Any):
    expected = ["statistics", "check-test", "centers", "dummy", "eigensystem", "train", "save", "evaluate"]
    planned = sk.plan(make(), memory="8GiB")
    assert names(planned.stages) == [name for name in expected if name != "save"]
    assert planned.footprint.stages["dummy"] == DUMMY_BYTES
    assert planned.footprint.largest == "dummy"
    assert "\ndummy " in planned.text()
    with pytest.raises(sk.errors.PlanRefusedError, match="the dummy stage is the largest"):
        sk.plan(make(), memory="2GiB")
    seen: list[str] = []
    folder = tmp_path / "run"

    def listen(kind: str, fields: dict[str, Any]) -> None:
        if kind == "stage" and fields["state"] == "begin":
            seen.append(fields["name"])

    with (tmp_path / "said").open("w") as stream:
        result = sk.run(make(), folder, memory="8GiB", listeners=(listen, Display(stream)))
    assert names(result["stages"]) == seen == expected
    assert result["projected_memory_bytes"] > DUMMY_BYTES
    assert "\ndummy: " in (tmp_path / "said").read_text()
    assert "dummy" in page([read_run(folder)])
    assert json.loads((folder / "result.json").read_text())["stages"][3]["name"] == "dummy"
    again = sk.run(make(), folder, memory="8GiB")
    assert dummy == ([40], 2 * [{"centers": 40}])  # the second run took what the first had kept
    assert {stage["name"]: stage["cached"] for stage in again["stages"]}["dummy"]
    fitted = sk.KernelClassifier(sk.Laplace(2.0), centers=40).fit(make().train)
    assert fitted.result_.footprint.stages["dummy"] == DUMMY_BYTES


def test_data_that_change_while_they_are_trained_on_leave_the_last_model(tmp_path: Path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)

    def written(rows: int) -> sk.Dataset:
        (tmp_path / "rows.parquet").unlink(missing_ok=True)
        sk.write_parquet(tmp_path / "rows.parquet", X[:rows], X[:rows, 0] > 0, target="y")
        return sk.open_dataset(tmp_path / "rows.parquet", target="y")

    def pipeline(data: sk.Dataset, seed: int) -> sk.Pipeline:
        return sk.Pipeline(data, sk.Laplace(2.0), sk.Uniform(50, seed), sk.Direct(), seed=seed)

    def change(kind: str, fields: dict[str, Any]) -> None:
        if kind == "stage" and (fields["name"], fields["state"]) == ("train", "end"):
            written(390)

    good = sk.run(pipeline(written(400), 0), tmp_path / "run")
    with pytest.raises(sk.errors.StorageError, match="changed since they were opened"):
        sk.run(pipeline(written(400), 1), tmp_path / "run", listeners=(change,))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], "model" in result) == ("failed", False)
    assert result["last_done"]["weights_sha256"] == good.weights_sha256
    assert sk.load_model(tmp_path / "run" / "model.zarr").weights_sha256 == good.weights_sha256


def test_a_diagnosis_takes_what_normal_equations_take_whatever_is_measured_beside_it(make: Make):
    plain, validated = (
        sk.plan(make(centers=sk.Uniform(400), diagnose=True, validation=rows), threads=2)
        for rows in (None, make().train.plain().sample(300))
    )
    assert plain.footprint.stages["diagnostics"] == validated.footprint.stages["diagnostics"]
    direct = sk.plan(make(centers=sk.Uniform(400), solver=sk.Direct()), threads=2).footprint
    assert plain.footprint.stages["diagnostics"] == pytest.approx(direct.stages["train"] + direct.extra, rel=0.1)


def test_beside_a_plan_a_part_with_a_line_of_its_own_is_in_no_other_line():
    X = np.random.default_rng(0).normal(size=(1600, 3)).astype(np.float32)
    pipeline = sk.Pipeline(
        sk.from_arrays(X, X[:, 0]), sk.Laplace(2.0), task="regression", partition=sk.Partition(rows=400)
    )
    parts = {"level-1": "levels", "scatter": "levels", "leaf-0": "leaves", "leaf-1": "leaves"}
    ended = [{"name": n, "of": of, "seconds": 1.0 + i, "cached": False} for i, (n, of) in enumerate(parts.items())]
    result = {"stages": ended, "seconds": 12.0, "peak_memory_bytes": 1 << 30}
    table = sk.plan(pipeline, memory="2GiB").text(result).splitlines()
    took = {line.split()[0]: line.split()[-1] for line in table}
    assert (took["levels"], took["scatter"], took["leaves"]) == ("1.0", "2.0", "7.0")


PROGRAM = """
import json, os, signal, sys, threading, time
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import streamkern as sk
from streamkern.partition import grow_tree, leaf_rows

leaf_rows._BLOCK_ROWS, leaf_rows.RUN_BYTES = 250, 1 << 12  # several runs of few rows
grow_tree.SAMPLE_ROWS, grow_tree.MIN_SAMPLE_ROWS_OF_LEAF = 300, 250  # one level by the sample, the next by counts
kind, place, seconds = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
killed = json.loads((place / "killed.json").read_text()) if (place / "killed.json").exists() else None
rng = np.random.default_rng(0)
X = rng.normal(size=(1600, 4)).astype(np.float32)
y = (np.sin(3 * X[:, 0]) + X[:, 1] > 0).astype(np.int64)
begun, dying = {}, threading.Lock()

def die(name):
    dying.acquire()  # for good: two threads may want to
    (place / "killed").write_text(json.dumps([*killed, name]))
    (place / "killed").replace(place / "killed.json")
    os.kill(os.getpid(), signal.SIGKILL)

def listen(what, fields):
    if what != "stage":
        return
    name, now = fields["name"], time.perf_counter()
    if fields["state"] != "begin":
        begun[name] = now - begun.get(name, now)  # one that is kept has no beginning
        return
    begun[name] = now
    if killed is not None and killed.count(name) == 0:
        die(name)
    if killed is not None and killed.count(name) == 1:
        timer = threading.Timer(seconds[name] / 2, die, (name,))
        timer.daemon = True
        timer.start()

def rows(n, first=0):
    path = place.parent / f"{kind}-{n}-{first}.parquet"
    if not path.exists():
        at = np.arange(first, n)
        columns = {f"x{j}": X[at, j] for j in range(4)} | {"y": y[at]}
        if kind == "grouped":
            columns |= {"code": pa.array([f"c{i}" for i in at * 7 % 90]), "shop": at * 13 % 60}
        pq.write_table(pa.table(columns), path, row_group_size=200)
    return sk.open_dataset(path, "y", group="shop" if kind == "grouped" else None)

test = rows(1600, 1300)
given = {
    "plain": dict(kernel=sk.Laplace("median"), centers=60, solver=sk.EigenPro(epochs=3), validation=0.1),
    "search": dict(centers=80, solver=sk.Falkon(epochs=3)),
    "leaves": dict(partition=sk.Partition(rows=500), validation=0.1),
    "calibrated": dict(
        kernel=sk.Laplace(2.0), centers=80, solver=sk.Direct(), threshold="f1", class_weight="balanced", diagnose=True
    ),
    "metric": dict(kernel=sk.Laplace("median"), metric=sk.AGOP(rounds=1), centers=80, solver=sk.Direct()),
    "retrained": dict(centers=80, solver=sk.Direct()),
    "grouped": dict(centers=80, solver=sk.Falkon(epochs=3), validation=0.2),
}[kind]
if kind == "retrained":
    models = place / "registry"
    if killed is None or not killed:
        sk.retrain(sk.Pipeline(rows(900), test=test, **given, name="nightly"), models)
    result = sk.retrain(
        sk.Pipeline(rows(1300), test=test, **given, name="nightly"), models, gate="accuracy > 0", threads=2,
        listeners=(listen,),
    )
    assert result.status == "promoted"
    print(json.dumps([begun, sk.Registry(models).load().weights_sha256, result.version]))
else:
    result = sk.run(sk.Pipeline(rows(1300), test=test, **given), place / "run", threads=2, listeners=(listen,))
    print(json.dumps([begun, result.weights_sha256, result["metrics"]]))
"""


KINDS = {
    "plain": {"statistics", "check-validation", "check-test", "bandwidth", "centers", "eigensystem", "train"},
    "search": {"preprocess-joinquantiles", "statistics", "kernel", "centers", "train"},
    "metric": {"metric", "bandwidth", "train"},
    "leaves": {"kernel", "level-sample", "level-1", "scatter", "leaf-0"},
    "calibrated": {"calibrate", "diagnostics"},
    "retrained": {"kernel", "train"},
    "grouped": {"preprocess-auto", "statistics", "kernel", "check-validation", "train"},
}
"""Kinds of fit, and some of the stages of each."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_the_beginning_and_in_the_middle_of_every_stage_a_run_ends_with_the_same_bits(kind, forked, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def ran(place: Path, seconds: dict[str, float] | None = None) -> Any:
        place.mkdir(exist_ok=True)
        words = ("program.py", kind, str(place), json.dumps(seconds))
        return forked("python", words, place / "out", cwd=str(tmp_path))

    process = ran(tmp_path / "whole")
    out, said = process.communicate()
    assert process.returncode == 0, said
    begun, *expected = json.loads(out.splitlines()[-1])
    stages_begun = {name for name in begun if name != "save"}
    assert KINDS[kind] <= stages_begun
    assert {"train", "leaf-0"} & stages_begun
    assert "evaluate" in stages_begun
    place = tmp_path / "killed"
    place.mkdir()
    (place / "killed.json").write_text("[]")
    for _ in range(2 * len(begun) + 1):
        process = ran(place, begun)
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.communicate()
    killed = json.loads((place / "killed.json").read_text())
    assert set(killed) == set(begun)
    assert len(killed) > len(begun)  # the second of a stage of a few milliseconds comes after its end
    out, said = process.communicate()
    assert process.returncode == 0, said
    assert json.loads(out.splitlines()[-1])[1:] == expected
