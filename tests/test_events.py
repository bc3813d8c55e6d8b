"""What the event log writes, and how often: few lines, and together the whole run."""

import itertools
import json
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern import events as module
from streamkern.events import EARLY_STEP_SHARE, EventLog, merge_sums


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in found if line["event"] == "step"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_listeners_hear_every_step_and_the_file_gets_early_ones_one_a_second_and_the_last(tmp_path, clock):
    heard: list[int] = []
    n, pace = 4000, 0.01  # 40 seconds
    with EventLog(tmp_path / "log", (lambda kind, fields: heard.append(fields["rows"]),)) as log:
        for i in range(1, n + 1):
            log.emit("step", rows=i, total_rows=n)
            clock[0] += pace
    assert heard == list(range(1, n + 1))
    rows = [line["rows"] for line in lines(tmp_path / "log")]
    assert rows[0] == 1
    assert rows[-1] == n
    assert len([r for r in rows if r * pace <= 1]) > 20  # a short run has a curve
    gaps = [(b - a) * pace for a, b in itertools.pairwise(rows)]
    assert max(gaps) <= 1.0 + 2 * pace
    assert all(
        gap >= EARLY_STEP_SHARE * a * pace - 2 * pace or gap >= 1.0 - 2 * pace
        for a, gap in zip(rows, gaps[:-1], strict=False)
    )
    assert len(rows) < 180


def test_few_lines_hold_every_step_and_each_has_the_facts(tmp_path: Path):
    count = itertools.count()
    with EventLog(tmp_path / "log", facts=lambda: {"held": next(count)}) as log:
        for step in range(1, 2001):
            timeline = {"steps": 1, "compute": 2, "workers": {f"worker {step % 3}": {"lanes": 4}}}
            log.emit("step", step=step, rows=step, total_rows=10_000, timeline=timeline)
            if step == 700:
                log.emit("stage", name="other")
    found = lines(tmp_path / "log")
    assert [line["held"] for line in found] == list(range(len(found)))
    assert len(steps(found)) < 500
    total = reduce(merge_sums, (line["timeline"] for line in steps(found)))
    workers = {"worker 0": {"lanes": 2664}, "worker 1": {"lanes": 2668}, "worker 2": {"lanes": 2668}}
    assert total == {"steps": 2000, "compute": 4000, "workers": workers}
    assert steps(found)[-1]["step"] == 2000
    before = [line["event"] for line in found].index("stage") - 1
    assert found[before]["step"] == 700  # what an event follows is written before it


def test_half_a_line_of_a_killed_process_costs_no_other(tmp_path: Path):
    for content, expected in (('{"event": "a"}\n{"ev', 3), ('{"event": "a"}\n', 2), ("", 1)):
        path = tmp_path / f"log{expected}"
        path.write_text(content)
        with EventLog(path) as log:
            log.emit("b")
        found = path.read_text().splitlines()
        assert len(found) == expected
        assert json.loads(found[-1])["event"] == "b"


@pytest.mark.slow
def test_the_timeline_of_a_run_on_workers_is_whole(tmp_path: Path):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 2000)
    X = (rng.normal(size=(3, 8))[codes] + rng.normal(size=(2000, 8))).astype(np.float32)
    pipeline = sk.Pipeline(sk.from_arrays(X, codes), sk.Laplace(3.0), sk.Uniform(80), sk.EigenPro(epochs=2, batch=64))
    told: list[dict[str, Any]] = []
    result = sk.run(
        pipeline,
        tmp_path,
        resources=sk.Resources(scheduler="processes:2"),
        listeners=(lambda kind, fields: told.append({"event": kind, **fields}),),
    )
    assert result["status"] == "done"
    found = lines(tmp_path / "events.jsonl")
    (cluster,) = [line for line in found if line["event"] == "cluster"]
    assert cluster["dashboard"].startswith("http")
    assert cluster["slots"] == 2
    each = [step["timeline"] for step in steps(told)]
    total = reduce(merge_sums, (line["timeline"] for line in steps(found)))
    assert total["steps"] == len(each)
    assert total["retries"] == total["losses"] == 0
    assert len(total["workers"]) == 2
    assert sum(share["lanes"] for share in total["workers"].values()) == len(each) * pipeline.lanes
    for name in ("compute", "wait", "reduce", "update"):
        np.testing.assert_allclose(total[name], sum(line[name] for line in each), rtol=1e-9)
    spent = total["reduce"] + total["update"] + max(s["compute"] + s["wait"] for s in total["workers"].values())
    assert 0 < spent < 1.05 * result["seconds"]
