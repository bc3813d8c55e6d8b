"""What the event log writes, and how often."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from streamkern import events as module
from streamkern.events import EARLY_STEP_SHARE, EventLog


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_listeners_hear_every_step_and_the_file_gets_early_ones_one_a_second_and_the_last(
    tmp_path: Path, clock: list[float]
):
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


def test_every_line_has_the_facts_and_none_of_the_events_loses_a_field_to_them(tmp_path: Path):
    count = iter(range(100))
    with EventLog(tmp_path / "log", facts=lambda: {"held": next(count)}) as log:
        log.emit("stage", name="a")
        log.emit("step", rows=1, total_rows=10)
    assert [line["held"] for line in lines(tmp_path / "log")] == [0, 1]
    assert [line["event"] for line in lines(tmp_path / "log")] == ["stage", "step"]


def test_half_a_line_of_a_killed_process_costs_no_other(tmp_path: Path):
    for content, expected in (('{"event": "a"}\n{"ev', 3), ('{"event": "a"}\n', 2), ("", 1)):
        path = tmp_path / f"log{expected}"
        path.write_text(content)
        with EventLog(path) as log:
            log.emit("b")
        found = path.read_text().splitlines()
        assert len(found) == expected
        assert json.loads(found[-1])["event"] == "b"
