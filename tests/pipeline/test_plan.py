"""Plans: costs grow with what causes them, and what cannot fit is refused before a row is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import streamkern as sk
from streamkern.pipeline.plan import gemm_rate

Make = Callable[..., sk.Pipeline]
RATE = 1e10


def test_a_plan_names_every_stage_of_a_run(make: Make, tmp_path: Path):
    stages = [stage.name for stage in sk.plan(make(), rate=RATE).stages]
    assert stages == [stage["name"] for stage in sk.run(make(), tmp_path / "run")["stages"]][:-1]


def test_a_plan_reads_and_writes_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pipeline = make()
    monkeypatch.setattr(type(pipeline.train.source), "read", lambda *args: pytest.fail("a plan has read rows"))
    before = sorted(tmp_path.rglob("*"))
    sk.plan(pipeline, rate=RATE)
    assert sorted(tmp_path.rglob("*")) == before


def test_passes_multiply_the_work_and_not_the_memory(make: Make):
    one, four = (sk.plan(make(solver=sk.EigenPro(epochs=n)), rate=RATE, threads=1) for n in (1, 4))
    train = [next(stage for stage in p.stages if stage.name == "train") for p in (one, four)]
    assert train[1].rows == 4 * train[0].rows == 7200
    assert train[1].flops == pytest.approx(4 * train[0].flops)
    assert abs(train[1].memory - train[0].memory) < 16 << 20  # the process itself may have grown in between


def test_more_centers_take_more_of_everything(make: Make):
    few, many = (sk.plan(make(centers=sk.Uniform(p)), rate=RATE, threads=1) for p in (20, 500))
    assert sum(s.flops for s in many.stages) > 10 * sum(s.flops for s in few.stages)
    assert many.footprint.stages["train"] > few.footprint.stages["train"]


def test_time_is_work_over_the_rate(make: Make):
    slow, fast = (sk.plan(make(), rate=rate, threads=1) for rate in (1e6, 1e7))
    total = [sum(s.seconds for s in p.stages) for p in (slow, fast)]
    assert total[0] == pytest.approx(10 * total[1], rel=0.01)


def test_the_table_and_the_json_say_the_same(make: Make):
    plan = sk.plan(make(), rate=RATE, memory="2GiB")
    data = json.loads(json.dumps(plan.to_json()))
    assert data["memory_budget_bytes"] == 2 << 30
    assert data["projected_memory_bytes"] == plan.footprint.peak == max(s["memory"] for s in data["stages"])
    lines = plan.text().splitlines()
    for stage in data["stages"]:
        (row,) = [line for line in lines if line.startswith(stage["name"])]
        assert f"{stage['rows']:,}" in row.split()
    assert "2.0 GiB" in plan.text()
    assert [choice for choice in data["choices"] if f"- {choice}" not in lines] == []


def test_a_plan_that_cannot_fit_says_what_would(make: Make):
    with pytest.raises(sk.PlanRefusedError) as caught:
        sk.plan(make(), memory="20MB", rate=RATE)
    error = caught.value
    assert error.exit_status == 2
    assert error.remedy is not None
    assert error.expected is not None
    needed = error.expected.removeprefix("a budget of at least ")
    assert sk.plan(make(), memory="4GiB", rate=RATE).budget == 4 << 30
    assert needed.endswith("MiB")


def test_fewer_rows_than_centers_are_refused(make: Make):
    with pytest.raises(sk.DataError, match="600"):
        sk.plan(make(centers=sk.Uniform(601)), rate=RATE)


@pytest.mark.parametrize("size", ["lots", "-1", "0", "5 PiB", "GiB"])
def test_a_memory_that_is_no_size_is_refused(make: Make, size: str):
    with pytest.raises(sk.UsageError):
        sk.plan(make(), memory=size, rate=RATE)


def test_the_rate_of_matrix_products_is_a_rate():
    assert 1e8 < gemm_rate() < 1e13
