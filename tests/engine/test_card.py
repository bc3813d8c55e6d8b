"""A rehearsal of the session on a card: its measurements on the stand-in, and what it brings home however steps end."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import card, gpu
from tests.benchmarks.card import PLANS, Step, perform, python
from tests.cuda_host import needs_compiler
from tests.cupy_host import stand_in

FILES = {"log", "summary", "results.json"}
IGNORES = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)


def step(name: str, program: str, limit: float = 30.0) -> Step:
    return Step(name, limit, 1.0, python("-c", program))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Last words of half a second."""
    monkeypatch.setattr(card, "LAST_WORDS", 0.5)


def results(out: Path) -> dict[str, Any]:
    assert {path.name for path in out.iterdir()} == FILES
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    lines = (out / "summary").read_text().splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == list(found)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_step_that_fails_hangs_or_is_killed_costs_the_others_nothing(tmp_path: Path):
    steps = (
        step("good", """print('RESULT {"rate": 3}'); print('{"more": [1, 2]}')"""),
        step("fails", "import sys; print('oh dear', file=sys.stderr); sys.exit(3)"),
        step("babbles", """print('RESULT {"half'); print('{]'); print('RESULT 7'); print('{"right": 1}')"""),
        step("bytes", r"import sys; sys.stdout.buffer.write(b'\xff\xfe{' + bytes(range(256))); print('\n{\"a\": 2}')"),
        step("killed", "import os; os.kill(os.getpid(), 9)"),
        step("deaf", IGNORES, limit=1.5),
        Step("absent", 5.0, 1.0, ("/no/such/program",)),
        step("last", """print('{"end": true}')"""),
    )
    start = time.monotonic()
    assert perform(steps, 60, tmp_path / "out") == 4
    assert time.monotonic() - start < 30
    found = results(tmp_path / "out")
    assert {name: each["status"] for name, each in found.items()} == {
        "good": "ok", "fails": "status 3", "babbles": "ok", "bytes": "ok", "killed": f"status {-signal.SIGKILL}",
        "deaf": "out of time", "absent": found["absent"]["status"], "last": "ok",
    }  # fmt: skip
    assert found["absent"]["status"].startswith("not begun")
    assert (found["good"]["rate"], found["good"]["more"], found["babbles"]["right"]) == (3, [1, 2], 1)
    assert (found["bytes"]["a"], found["last"]["end"]) == (2, True)
    log = (tmp_path / "out" / "log").read_text(errors="replace")
    assert "oh dear" in log
    assert [line.split()[1].rstrip(":") for line in log.splitlines() if line.startswith("==== ")] == list(found)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_the_deadline_cuts_a_step_and_those_behind_it_do_not_begin(tmp_path: Path):
    start = time.monotonic()
    steps = (step("quick", "pass"), step("long", "import time; time.sleep(600)"), step("tail", "print('begun')"))
    assert perform(steps, 3, tmp_path) == 2
    assert time.monotonic() - start < 6
    assert [each["status"] for each in results(tmp_path).values()] == ["ok", "out of time", "no time"]
    assert "begun" not in (tmp_path / "log").read_text().split("==== tail")[-1].replace("print('begun')", "")


def _runs(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_child_that_ignores_the_end_of_its_step_is_killed(tmp_path: Path):
    """It would hold the card's memory: also where the step's own process ends as it is asked to, or by itself."""
    for ending in ("time.sleep(600)", "sys.exit(0)"):
        pid, out = tmp_path / f"{len(ending)}", tmp_path / f"out{len(ending)}"
        child = f"open({str(pid)!r}, 'w').write(str(__import__('os').getpid())); {IGNORES}"
        program = (
            f"import pathlib, subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}])\n"
            f"while not pathlib.Path({str(pid)!r}).exists(): time.sleep(0.01)\n"
            f"time.sleep(0.3); {ending}"
        )
        perform((step("parent", program, limit=3.0),), 30, out)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and _runs(int(pid.read_text())):
            time.sleep(0.05)
        assert not _runs(int(pid.read_text())), ending


def test_what_is_there_is_there_when_the_session_itself_is_killed(tmp_path: Path):
    """The three files after each step, whole: the machine may be taken away at any moment."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from tests.benchmarks.card import Step, perform, python\n"
        "perform((Step('one', 9, 1, python('-c', 'print(\\'{\"a\": 1}\\')')),"
        " Step('two', 60, 1, python('-c', 'import time; print(\\'begun\\', flush=True); time.sleep(20)'))), 90,"
        " Path(sys.argv[2]))\n"
    )
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", program, str(card.ROOT), str(out)], start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (out.is_dir() and "begun\n" in _text(out / "log")):
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert json.loads((out / "results.json").read_text())["one"]["a"] == 1
    assert "one" in (out / "summary").read_text()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("result", [None, "{", "[]", '{"metrics": null}', '{"seconds": 3, "metrics": {"test": {}}}'])
def test_a_run_that_was_cut_short_leaves_its_last_events(tmp_path: Path, result: str | None):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "events.jsonl").write_text("".join(f'{{"event": {k}}}\n' for k in range(9)))
    if result is not None:
        (folder / "result.json").write_text(result)
    made = Step("run", 30, 1, python("-c", "pass", "--run-dir", str(folder)))
    assert perform((made,), 60, tmp_path / "out") == 0
    assert results(tmp_path / "out")["run"]["events"][-1] == '{"event": 7}'


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_is_expected_to_end_before_its_deadline(plan: str):
    """With a third to spare for all but the long runs; and each step fits into its own limit and the deadline."""
    seconds, steps = PLANS[plan]
    assert sum(each.expected for each in steps) <= seconds
    assert len({each.name for each in steps}) == len(steps)
    for each in steps:
        assert 1.3 * each.expected <= each.limit <= seconds
        assert each.command[0] == sys.executable
        for word in each.command[1:]:
            if word.endswith(".py"):
                assert (card.ROOT / word).is_file(), word


SMALL = gpu.Sizes(
    rows=24, step_rows=40, centers=30, outputs=3, d=20, widths=(5, 20), square=16, compared=(20, 30), near=8, stored=60,
    prepared=(4, 10), copied=2 << 20, sent=1 << 20, repeats=1,
)  # fmt: skip


def numbers(found: Any) -> Iterator[float]:
    if isinstance(found, dict):
        for value in found.values():
            yield from numbers(value)
    elif not isinstance(found, str):
        yield found


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("command", gpu.COMMANDS)
def test_a_measurement_runs_to_its_end_on_the_stand_in(command: str, capsys: pytest.CaptureFixture[str]):
    with stand_in() as module:
        found = gpu.COMMANDS[command](module.open_device(), SMALL)
    measured = list(numbers(json.loads(json.dumps(found, allow_nan=False))))
    assert len(measured) > 10
    assert min(measured) >= 0
    assert capsys.readouterr().out


@pytest.mark.slow
def test_every_test_of_a_card_is_in_one_step():
    """And each measurement is a command of the benchmark."""
    steps = [each for _, plan in PLANS.values() for each in plan]
    measured = [each.command[-1] for each in steps if "tests/benchmarks/gpu.py" in each.command]
    assert measured == list(gpu.COMMANDS)
    chosen = [collected(*each.command) for each in steps if "pytest" in each.command]
    assert sorted(itertools.chain(*chosen)) == sorted(collected(*card.tested()))
    assert all(chosen)


def collected(*command: str) -> list[str]:
    """The tests that a command of pytest would run."""
    said = subprocess.run([*command, "--collect-only"], cwd=card.ROOT, capture_output=True, text=True, check=True)
    return [line for line in said.stdout.splitlines() if "::" in line]


@pytest.mark.slow
@pytest.mark.skipif(not card.IMAGES.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_a_whole_run_of_a_plan_brings_its_numbers_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With few rows on the CPU, by the command that a card is given."""
    (tmp_path / "pipelines").symlink_to(card.ROOT / "pipelines")
    monkeypatch.setattr(card, "ROOT", tmp_path)
    monkeypatch.setattr(card, "RUNS", tmp_path / "runs")
    command = ["cpu" if word == "cuda" else word for word in card.run("rows=600", "noise=0", "centers=50")]
    assert perform((Step("run", 100, 1, tuple(command)),), 120, tmp_path / "out") == 0, _text(tmp_path / "out" / "log")
    found = results(tmp_path / "out")["run"]
    assert set(found) >= {*card.KEPT, "test", "events"}
    assert 0 < found["test"]["accuracy"] < 1
    assert all(found[name] is not None for name in card.KEPT)
