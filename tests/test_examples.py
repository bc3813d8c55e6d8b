"""Every example runs as it is, in an empty folder, and says what it is there to show."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ELSEWHERE = ("serve",)  # in tests/serving/test_predictor.py


def example(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(folder)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def numbers(text: str, before: str) -> list[float]:
    return [float(each) for each in re.findall(rf"{before} (-?[0-9.]+)", text)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before", "count", "least"),
    [
        ("first_model", "accuracy", 1, 0.98),
        ("regression", "R2", 1, 0.96),
        ("solvers", "accuracy", 6, 0.97),
        ("preprocessing", "accuracy", 1, 0.97),
        ("sklearn_tools", "accuracy", 1, 0.92),
    ],
)
def test_it_learns(name, before, count, least, tmp_path, monkeypatch, capsys):
    out = example(name, tmp_path, monkeypatch, capsys)
    found = numbers(out, before)
    assert len(found) == count
    assert min(found) >= least
    assert "False" not in out


@pytest.mark.slow
def test_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = example("kernels", tmp_path, monkeypatch, capsys).splitlines()
    assert len(lines) == 6
    assert min(float(line.split()[0]) for line in lines) >= 0.97


def test_noisy_copies_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plain, noisy = numbers(example("augment", tmp_path, monkeypatch, capsys), "accuracy")
    assert noisy > plain > 0.85


@pytest.mark.slow
def test_training_stops_early(tmp_path, monkeypatch, capsys):
    out = example("early_stopping", tmp_path, monkeypatch, capsys)
    assert numbers(out, "after")[0] < 60
    assert numbers(out, "best")[0] < min(numbers(out, "first")[0], numbers(out, "last")[0])


@pytest.mark.slow
def test_more_features_are_better(tmp_path, monkeypatch, capsys):
    few, more, many = numbers(example("large_features", tmp_path, monkeypatch, capsys), "accuracy")
    assert few < more
    assert many > 0.97


@pytest.mark.slow
def test_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = example("resume", tmp_path, monkeypatch, capsys)
    assert out == "interrupted in the second of four passes\nresumed: done\nequal: True\n"


def program(name: str, folder: Path) -> str:
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_memory_stays_within_what_was_projected(tmp_path: Path) -> None:
    out = program("out_of_core", tmp_path)  # a process of its own: the budget is for all of a process
    assert numbers(out, "accuracy")[0] > 0.94
    assert numbers(out, "peak")[0] <= numbers(out, "projected")[0] <= 600


@pytest.mark.slow
def test_worker_processes_give_the_same_bits(tmp_path: Path) -> None:
    assert program("cluster", tmp_path).endswith("equal: True\n")  # its workers import the script again


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in EXAMPLES.glob("*.py") if not re.search(rf'"{path.stem}(\.py)?"', text)] == []
