"""Where the time of a run went: few lines, and together the whole run."""

from __future__ import annotations

import json
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkern as sk
from streamkern.events import EventLog, merge_sums


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(found):
    return [line for line in found if line["event"] == "step"]


numbers = st.integers(-1000, 1000)
nested = st.dictionaries(st.sampled_from("abc"), numbers) | st.fixed_dictionaries(
    {},
    optional={"a": numbers, "workers": st.dictionaries(st.sampled_from("xy"), st.fixed_dictionaries({"n": numbers}))},
)


@given(st.lists(nested, min_size=1, max_size=5))
def test_mappings_add_up_name_by_name(mappings):
    total = reduce(merge_sums, mappings)
    for name in "abc":
        assert total.get(name, 0) == sum(mapping.get(name, 0) for mapping in mappings)
    for name in "xy":
        expected = sum(mapping.get("workers", {}).get(name, {}).get("n", 0) for mapping in mappings)
        assert total.get("workers", {}).get(name, {}).get("n", 0) == expected


def test_few_lines_hold_every_step(tmp_path):
    told = []
    with EventLog(tmp_path / "events.jsonl", (lambda *event: told.append(event),)) as events:
        for step in range(1, 2001):
            worker = f"worker {step % 3}"
            timeline = {"steps": 1, "compute": 2, "workers": {worker: {"lanes": 4}}}
            events.emit("step", step=step, rows=step, total_rows=10_000, timeline=timeline)
            if step == 700:
                events.emit("stage", name="other")
    found = lines(tmp_path / "events.jsonl")
    assert len(told) == 2001
    assert len(steps(found)) < 500
    total = reduce(merge_sums, (line["timeline"] for line in steps(found)))
    assert total == {
        "steps": 2000,
        "compute": 4000,
        "workers": {"worker 0": {"lanes": 2664}, "worker 1": {"lanes": 2668}, "worker 2": {"lanes": 2668}},
    }
    assert steps(found)[-1]["step"] == 2000
    before = [line for line in found[: [line["event"] for line in found].index("stage")]]
    assert before[-1]["step"] == 700  # what an event follows is written before it


@pytest.mark.slow
def test_the_timeline_of_a_run_on_workers_is_whole(tmp_path):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 2000)
    X = (rng.normal(size=(3, 8))[codes] + rng.normal(size=(2000, 8))).astype(np.float32)
    pipeline = sk.Pipeline(
        train=sk.from_arrays(X, codes),
        kernel=sk.Laplace(3.0),
        centers=sk.Uniform(80),
        solver=sk.EigenPro(epochs=2, batch=64),
    )
    told = []
    result = sk.run(
        pipeline,
        tmp_path,
        resources=sk.Resources(scheduler="processes:2"),
        listeners=(lambda *event: told.append(event),),
    )
    assert result["status"] == "done"
    found = lines(tmp_path / "events.jsonl")
    (cluster,) = [line for line in found if line["event"] == "cluster"]
    assert cluster["dashboard"].startswith("http")
    assert cluster["slots"] == 2
    number = sum(kind == "step" for kind, _ in told)
    total = reduce(merge_sums, (line["timeline"] for line in steps(found)))
    assert total["steps"] == number
    assert total["retries"] == total["losses"] == 0
    assert len(total["workers"]) == 2
    assert sum(share["lanes"] for share in total["workers"].values()) == number * pipeline.lanes
    each = [fields["timeline"] for kind, fields in told if kind == "step"]
    for name in ("compute", "wait", "reduce", "update"):
        np.testing.assert_allclose(total[name], sum(line[name] for line in each), rtol=1e-9)
    spent = total["reduce"] + total["update"] + max(s["compute"] + s["wait"] for s in total["workers"].values())
    assert 0 < spent < 1.05 * result["seconds"]
