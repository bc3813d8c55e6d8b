"""Plans: costs grow with what causes them, and what cannot fit is refused before a row is read."""

import importlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.costs import footprint
from streamkern.costs.machine_speed import Prices, Shapes, SpeedMeasurements
from streamkern.engine.operation_counts import Operations
from streamkern.formats import ArraySource
from streamkern.memory import format_bytes

Make = Callable[..., sk.Pipeline]
PRICES = Prices(Operations(*[1e-10] * 11), step=1e-4, row=1e-7, moments=1e-7, byte=1e-9)


@pytest.mark.slow
def test_a_plan_names_every_stage_of_a_run(make: Make, tmp_path: Path):
    stages = [stage.name for stage in sk.plan(make(), prices=PRICES).stages]
    assert stages == [stage["name"] for stage in sk.run(make(), tmp_path / "run")["stages"] if stage["name"] != "save"]


def test_a_plan_reads_and_writes_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pipeline = make()
    monkeypatch.setattr(type(pipeline.train.source), "read", lambda *args: pytest.fail("a plan has read rows"))
    before = sorted(tmp_path.rglob("*"))
    sk.plan(pipeline, prices=PRICES)
    assert sorted(tmp_path.rglob("*")) == before


def test_passes_multiply_the_work_and_not_the_memory(make: Make):
    one, four = (sk.plan(make(solver=sk.EigenPro(epochs=n)), prices=PRICES, threads=1) for n in (1, 4))
    train = [next(stage for stage in p.stages if stage.name == "train") for p in (one, four)]
    assert train[1].rows == 4 * train[0].rows == 7200
    assert train[1].flops == pytest.approx(4 * train[0].flops)
    assert abs(train[1].memory - train[0].memory) < 16 << 20  # the process itself may have grown in between


def test_time_is_work_at_its_price(make: Make):
    slow, fast = (
        sk.plan(make(centers=sk.Uniform(500)), prices=Prices(Operations(*[price] * 11), 0, 0, 0, 0), threads=1)
        for price in (1e-7, 1e-8)
    )
    for one, other in zip(slow.stages[3:], fast.stages[3:], strict=True):
        assert one.seconds == pytest.approx(10 * other.seconds)
    assert slow.seconds == sum(stage.seconds for stage in slow.stages)


def test_threads_share_what_is_read_in_them(make: Make):
    free = Operations(*[1e-30] * 11)
    reading = [sk.plan(make(), prices=Prices(free, 0, 1e-3, 1e-9, 1e-6), threads=n).stages for n in (1, 4)]
    one, four = ({stage.name: stage.seconds for stage in stages} for stages in reading)
    assert four["evaluate"] == pytest.approx(one["evaluate"] / 4)
    assert four["train"] == pytest.approx(one["train"])  # rows of minibatches are read on a thread of their own


def test_passes_that_do_not_stay_in_memory_are_read_again(monkeypatch: pytest.MonkeyPatch):
    # Whatever ran in this process before. (The package's function plan hides the module of that name.)
    monkeypatch.setattr(importlib.import_module("streamkern.runs.plan"), "load_libraries", lambda: 200 << 20)
    X = np.zeros((60_000, 400), dtype=np.float32)
    data = sk.from_arrays(X, np.arange(60_000) % 2)
    job = sk.Pipeline(train=data, kernel=sk.Laplace(1.0), centers=sk.Uniform(10), solver=sk.EigenPro(epochs=4))
    for memory, times in (("4GiB", 1), ("700MiB", 4)):
        (train,) = [s for s in sk.plan(job, memory=memory, prices=PRICES, threads=1).stages if s.name == "train"]
        assert train.passes == 4
        assert train.bytes_read == times * X.nbytes


@pytest.mark.parametrize(
    "parts",
    [
        {"solver": sk.Direct()},
        {"solver": sk.Falkon(epochs=3)},
        {"solver": sk.LBFGS(epochs=3)},
        {"solver": sk.SVRG(epochs=2)},
        {"solver": sk.SGD(), "features": sk.RandomFourier(sk.Gaussian(2.0), 64), "centers": None},
        {"centers": sk.KMeans(30)},
        {"centers": sk.RPCholesky(30, sk.Gaussian(2.0))},
        {"validation": True, "solver": sk.EigenPro(epochs=3, patience=1)},
        {"dtype": "float64"},
        {"task": "regression"},
    ],
    ids=str,
)
def test_any_pipeline_has_a_plan_with_every_number(make: Make, parts: dict[str, Any]):
    if parts.get("validation"):
        parts = parts | {"validation": make().test}
    made = sk.plan(make(**parts), prices=PRICES)
    for stage in made.stages:
        assert stage.seconds >= 0
        assert stage.memory <= made.footprint.peak
    assert made.seconds > 0
    assert made.solver == type(parts.get("solver", sk.EigenPro())).__name__


def test_the_table_and_the_json_say_the_same(make: Make):
    plan = sk.plan(make(), prices=PRICES, memory="4GiB")
    data = json.loads(json.dumps(plan.to_json()))
    assert data["memory_budget_bytes"] == 4 << 30
    assert data["projected_memory_bytes"] == plan.footprint.peak == max(s["memory"] for s in data["stages"])
    lines = plan.text().splitlines()
    for stage in data["stages"]:
        (row,) = [line for line in lines if line.startswith(stage["name"])]
        assert f"{stage['rows']:,}" in row.split()
    assert "4.0 GiB" in plan.text()
    assert [choice for choice in data["choices"] if f"- {choice}" not in lines] == []


@pytest.mark.parametrize("longest", ["preprocess-onehot", "preprocess-" + "x" * 30])
def test_the_columns_of_the_table_end_in_one_place_whatever_stages_are_called(make: Make, longest: str):
    made = sk.plan(make(), prices=PRICES)
    wide = replace(made.stages[0], name=longest, rows=123_456_789_012)
    lines = replace(made, stages=(wide, *made.stages)).text().splitlines()
    head, stages, total = lines[0], lines[1 : len(made.stages) + 2], lines[len(made.stages) + 2]
    assert {len(line) for line in (head, *stages, total)} == {len(head)}
    for word, of in (("rows", lambda s: f"{s.rows:,}"), ("GFLOP", lambda s: f"{s.flops / 1e9:,.1f}")):
        end = head.index(word) + len(word)
        for line, stage in zip(stages, (wide, *made.stages), strict=True):
            assert line[:end].endswith(f" {of(stage)}")


# ------------------------------------------------------------------------------------------------------- calibration


@pytest.fixture
def shapes() -> Shapes:
    return Shapes(sk.Laplace(2.0), None, 40, 6, 2, np.dtype(np.float32), 4)


@pytest.mark.slow
def test_a_calibration_measures_once_and_is_kept(make, shapes, tmp_path, monkeypatch):
    monkeypatch.setattr("streamkern.costs.machine_speed.MEASUREMENT_SECONDS", 0.002)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = SpeedMeasurements(2).prices(shapes, make().train)
    for price in (*astuple(first.work), first.step, first.row, first.moments, first.byte):
        assert 0 < price < 1
    (file,) = (tmp_path / "cache/streamkern").iterdir()
    assert file.name.startswith("calibration-")
    again = SpeedMeasurements(2)
    monkeypatch.setattr(again, "_timed", lambda *args: pytest.fail("measured again"))
    assert again.prices(shapes, make().train) == first
    assert SpeedMeasurements(1).path != file  # other threads, other prices
    monkeypatch.setenv("OPENBLAS_CORETYPE", "other")
    assert SpeedMeasurements(2).path != file


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'"x"', b'{"gemm": "fast", "eigen": -1, "numbers": NaN, "byte": 0}', b"\xff\xfe"]
)
def test_a_damaged_calibration_is_measured_again(tmp_path: Path, content: bytes):
    path = SpeedMeasurements(1, tmp_path).path
    path.write_bytes(content)
    damaged = SpeedMeasurements(1, tmp_path)
    assert damaged.seconds == {}
    assert damaged.measured("gemm", lambda: 2.0) == 2.0
    assert SpeedMeasurements(1, tmp_path).seconds == {"gemm": 2.0}


def test_a_calibration_that_cannot_be_kept_is_used_all_the_same(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert SpeedMeasurements(1, tmp_path / "file" / "below").measured("gemm", lambda: 2.0) == 2.0


def test_a_plan_says_what_a_second_sweep_would_add(make: Make, monkeypatch: pytest.MonkeyPatch):
    pipeline = make(solver=sk.Direct(), centers=sk.Uniform(500))
    roomy = sk.plan(pipeline, prices=PRICES, threads=1, memory="8GiB")
    assert " more where rounding spoils the first solution\n" in roomy.text()
    assert "rounding spoils" not in sk.plan(make(), prices=PRICES).text()
    monkeypatch.setattr(footprint, "FRESH_BYTES", 9 << 30)
    tight = sk.plan(pipeline, prices=PRICES, threads=1, memory="8GiB")
    assert re.search(r" more would be needed where .* from a budget of 9\.[0-9] GiB\n", tight.text())


def test_a_plan_for_a_cluster_says_what_a_worker_holds_and_refuses_what_is_more(make: Make):
    one, eight = (
        sk.plan(
            make(centers=sk.Uniform(500)),
            prices=PRICES,
            resources=sk.Resources(worker_memory="2GiB", worker_threads=n),
        )
        for n in (1, 8)
    )
    held = one.footprint.worker_parts
    assert one.to_json()["projected_worker_bytes"] == one.footprint.worker_bytes(1) > sum(held.values())
    assert eight.footprint.worker_bytes(8) - one.footprint.worker_bytes(1) == pytest.approx(7 * held["thread"], rel=0.1)
    said = r"a worker of a cluster, 8 thread\(s\), needs .* in addition to its process: .*centers .*, libraries"
    assert re.search(said, eight.text())
    largest = max(held, key=lambda name: held[name])
    assert one.footprint.worker_text().split(", ")[0].endswith(f"{largest} {format_bytes(held[largest])}")
    given = sk.Resources(worker_memory="300MiB", worker_threads=8)
    with pytest.raises(sk.errors.PlanRefusedError) as caught:
        sk.plan(make(centers=sk.Uniform(500)), prices=PRICES, resources=given)
    assert "A worker needs" in str(caught.value)
    assert "centers" in str(caught.value)
    enough = re.search(r"at least (.*)$", caught.value.expected or "")
    given = sk.Resources(worker_memory=enough[1], worker_threads=8)
    sk.plan(make(centers=sk.Uniform(500)), prices=PRICES, resources=given)


def many(n: int, p: int, solver: Any, d: int = 64) -> sk.Pipeline:
    """Rows that take no memory."""
    X, y = (np.broadcast_to(np.float32(0), shape) for shape in ((n, d), (n, 1)))
    rows = sk.Dataset(ArraySource(X, y, chunk_rows=4096))
    centers = sk.AllRows() if p == n else sk.Uniform(p)
    return sk.Pipeline(rows, sk.Laplace(5.0), centers, solver, task="regression", preprocess=())


@pytest.mark.slow
def test_a_plan_of_a_million_centers_is_refused_in_seconds():
    """Of delayed projection a cycle of steps is looked at, which is long where p is large and the batch small."""
    start = time.process_time()
    with pytest.raises(sk.errors.PlanRefusedError, match=r"use at most [0-9,]+ centers"):
        sk.plan(many(1_200_000, 1_000_000, sk.EigenPro()), prices=PRICES, memory="8GiB")
    assert time.process_time() - start < 30


def test_a_worker_that_is_too_small_is_told_how_many_centers_fit():
    given = {"prices": PRICES, "resources": sk.Resources("8GiB", worker_memory="3GiB")}
    with pytest.raises(sk.errors.PlanRefusedError) as caught:
        sk.plan(many(100_000, 30_000, sk.EigenPro(projection="inexact"), 4000), **given)
    found = re.search(r"use at most ([0-9,]+) centers$", str(caught.value.remedy))
    sk.plan(many(100_000, int(found[1].replace(",", "")), sk.EigenPro(projection="inexact"), 4000), **given)
    given["resources"] = sk.Resources("8GiB", worker_memory="200MiB")
    with pytest.raises(sk.errors.PlanRefusedError) as caught:
        sk.plan(many(100_000, 100, sk.EigenPro(projection="inexact"), 4000), **given)
    assert caught.value.remedy == "give workers more memory"


def test_a_worker_that_has_no_room_for_every_weight_is_refused_with_what_would_do():
    given = sk.Resources("4GiB", worker_memory="600MiB")
    with pytest.raises(sk.errors.PlanRefusedError, match=r"weights 122\.1 MiB") as caught:
        sk.plan(many(1_000_000, 1_000_000, sk.EigenPro2(batch=1000)), prices=PRICES, resources=given)
    assert caught.value.remedy == "give workers more memory; or use EigenPro with fewer centers, or a partition"
