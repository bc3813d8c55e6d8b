"""The numbers of the front pages are those of docs/results, or stand in a short list of what is not measured."""

import importlib.util
import json
import re
import subprocess
import sys
from datetime import date
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from types import ModuleType

import pytest

from streamkern import defaults
from tests.benchmarks import results

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FILES = sorted((DOCS / "results").glob("*.json"))
PAGES = {"README.md": ROOT / "README.md"} | {name: DOCS / name for name in ("measured.md", "performance.md")}
NOT_MEASURED: dict[str, dict[str, str]] = {
    "README.md": {
        "3.11": "the oldest Python",
        "0.95": "the promise that tests/benchmarks/streaming.py holds to",
        **dict.fromkeys(("2016", "2017", "2018", "2022", "2023"), "when a paper appeared"),
    },
    "measured.md": {
        **dict.fromkeys(("1,000", "2,000", "5,000", "8,000", "20", "784"), "settings of a run"),
        "86.3%": "the accuracy to reach",
        **dict.fromkeys(("0.01", "300"), "the scales that a pipeline generates"),
        **dict.fromkeys(("18", "6", "20,000"), "columns, values and rows of generated data"),
        "10,000": "the rows of one model",
    },
    "performance.md": {
        **dict.fromkeys(("0", "1", "2"), "bounds, slopes that a formula expects, and operations in it"),
        "30": "operations of loops, and days between assumed failures",
        **dict.fromkeys(("4,096", "10,000", "5,000", "784", "256", "1,000", "192"), "settings"),
        **dict.fromkeys(("10", "0.1", "10%", "20", "5", "16"), "the assumed network and scatter"),
        "128": "the most tasks of a sweep",
    },
}
"""Numbers outside drawn blocks, code and links, and what they are."""
NUMBER = re.compile(r"(?<![\w.²])\d+(?:,\d{3})*(?:\.\d+)?%?")

WORDS = "two|three|four|five|six|seven|eight|nine|ten|twenty|hundred|[a-z]+fold"
UNITS = "s|ms|µs|ns|seconds?|minutes?|hours?|KiB|MiB|GiB|MB|GB|TB|[MG]i?B/s|points?|times"
MEASURED = re.compile(
    rf"(?<![\w.,²])(?:\d[\d,]*\.\d+(?:e[-−]?\d+)?%?|\d+(?:,\d{{3}})*(?:%|\s+(?:{UNITS})\b|\s+as\s+\w+\s+as\b)"
    rf"|\d{{1,3}},(?!\d00\b)\d{{3}}\b)|\b(?:{WORDS})\s+times\s+as\s+\w+|\b(?:two|[a-z]{{3,}}and)fold\b"
)
"""Numbers that look measured: decimals, percentages, numbers with a unit of time or memory or "times", and
thousands that are not round."""
EXEMPT = {
    **dict.fromkeys(("0.002", "0.9", "5%", "90%", "0.05"), "settings, and examples of input"),
    **dict.fromkeys(("1%", "0.3%", "0.25", "0.6", "1.7"), "thresholds and factors of choices, in defaults.py"),
    **dict.fromkeys(
        ("30 seconds", "10 minutes", "4 MiB", "16 MiB", "32 MiB", "256 MiB", "768 MiB"), "settings, limits"
    ),
    **dict.fromkeys(("1 GiB", "8 MB", "0.01", "0.49"), "of data and runs: sizes, and settings"),
    **dict.fromkeys(("0.95", "0.97", "95%"), "promises, bounds, and levels of intervals"),
    **dict.fromkeys(("3.11", "9.0", "127.0"), "versions, an address"),
    **dict.fromkeys(("32 times", "nine times as much"), "a ratio of two batches, and an example"),
    **dict.fromkeys(("1,024", "4,096", "16,384", "65,536"), "powers of two, in defaults.py"),
    **dict.fromkeys(("1,797", "7,688", "3,726"), "of data: rows of the digits, a gain in a table, a ratio of two sums"),
}
"""Numbers that look measured and are not, and what they are."""


@pytest.fixture(scope="module")
def measurements() -> ModuleType:
    """docs/measurements.py, as a module."""
    spec = importlib.util.spec_from_file_location("measurements", DOCS / "measurements.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["measurements"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_pages_show_the_results(measurements: ModuleType):
    stale = [page.name for page in measurements.PAGES if page.read_text(encoding="utf-8") != measurements.drawn(page)]
    assert stale == [], "run python docs/measurements.py"


def test_every_block_and_every_file_is_drawn(measurements: ModuleType):
    texts = "".join(page.read_text(encoding="utf-8") for page in measurements.PAGES)
    assert {found[2] for found in measurements.BLOCK.finditer(texts)} == set(measurements.BLOCKS)
    linked = set(re.findall(r"\[(\w+)\.json\]\(", texts))
    assert linked == {file.stem for file in FILES}


def test_models_are_compared_on_the_splits_that_all_have(measurements: ModuleType):
    right, wrong = ({"metric": "accuracy", "score": score} for score in (0.75, 0.0))
    models = {"a": {0: right}, "b": {0: right, 1: wrong}, "c": {1: right}, "d": {}}
    assert measurements.mean_errors(models, measurements.mistake, ("a", "b")) == {"a": 0.25, "b": 0.25}
    assert measurements.mean_errors(models, measurements.mistake, ("a", "b", "c")) == {}
    assert measurements.mean_errors(models, measurements.mistake, ("a", "b", "d")) == {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_run_says_how_and_where_it_was_measured(file: Path):
    text = file.read_text(encoding="utf-8")
    for run in json.loads(text):
        assert list(run) == ["command", "date", "machine", "load", "versions", "commit", "values"]
        assert re.match(r"(python|streamkern) ", run["command"])
        assert date.fromisoformat(run["date"]) >= date(2026, 11, 1)
        assert re.fullmatch(r"((AMD|Intel|NVIDIA) .*\(.+\)|processor not recorded), \d+ cores", run["machine"])
        assert run["commit"] is None or re.fullmatch(r"[0-9a-f]{8}", run["commit"])
        assert run["values"]
    assert text == results.dumped(json.loads(text))


@pytest.mark.parametrize("name", PAGES)
def test_numbers_of_a_page_are_drawn_or_not_measured(name: str, measurements: ModuleType):
    text = measurements.BLOCK.sub("", PAGES[name].read_text(encoding="utf-8"))
    for pattern in (r"(?ms)^```.*?^```$", r"`[^`]*`", r"\]\([^)]*\)", r"<!--.*?-->", r"ADR\s+\d+", r"EigenPro \d",
                    r"Figure \d", r"(?m)^\d\."):  # fmt: skip
        text = re.sub(pattern, " ", text)
    assert set(NUMBER.findall(text)) == set(NOT_MEASURED[name])


def test_no_page_has_a_measured_number_in_prose(measurements: ModuleType):
    found, seen = {}, set()
    for page in measurements.PAGES:
        if page.name in PAGES or page.parent.name == "adr":
            continue
        text = measurements.BLOCK.sub("", page.read_text(encoding="utf-8"))
        for pattern in (r"(?ms)^ *```.*?^ *```$", r"`[^`]*`", r"\]\([^)]*\)", r"<!--.*?-->"):
            text = re.sub(pattern, " ", text)
        numbers = {" ".join(each.split()) for each in MEASURED.findall(text)}
        seen |= numbers
        if measured := numbers - set(EXEMPT):
            found[page.name] = measured
    assert found == {}, "draw them from docs/results, or say it without the number"
    assert set(EXEMPT) <= seen


def test_defaults_on_pages_are_those_of_the_code():
    text = " ".join((DOCS / "reliability.md").read_text(encoding="utf-8").split())
    assert f"writes a checkpoint to its directory every {defaults.CHECKPOINT_SECONDS:.0f} seconds" in text


def test_the_front_pages_are_short():
    words = {name: len(page.read_text(encoding="utf-8").split()) for name, page in PAGES.items()}
    assert words["README.md"] <= 800
    assert words["measured.md"] + words["performance.md"] <= 4000


def test_losses_stand_beside_wins(measurements: ModuleType):
    readme, tables = PAGES["README.md"].read_text(encoding="utf-8"), measurements.compared()
    assert len(tables) == 8
    for table in tables:
        line = next(line for line in readme.splitlines() if line.startswith(f"| {table.name} |"))
        scores = [float(found) for found in re.findall(r"(?<!±)\d\.\d{4,5}", line)]
        assert scores == [round(each.score, table.decimals) for each in (table.ours, table.strongest)]
        assert table.won == line.split("|")[3].endswith("** ")
        assert table.won or table.name in readme.split("loses on")[1].split(";")[0].split(".")[0]


def test_means_and_errors_of_tables_are_those_of_paired_splits(measurements: ModuleType):
    drawn = measurements.tables()
    for table in measurements.compared():
        pairs = [
            (record["score"], table.strongest.splits[split]["score"]) for split, record in table.ours.splits.items()
        ]
        line = next(line for line in drawn.splitlines() if line.startswith(f"| {table.name}, "))
        places = table.decimals
        assert f"| {len(pairs)} |" in line
        assert f"{mean(ours for ours, _ in pairs):.{places}f}" in line
        if len(pairs) > 1:
            leads = [ours - theirs for ours, theirs in pairs]
            error = stdev(leads) / sqrt(len(leads))
            assert line.endswith(f"{mean(leads):+.{places}f}±{error:.{places}f} |".replace("-", "−"))
            assert f"±{stdev(ours for ours, _ in pairs):.{places}f}" in line


def test_the_picture_of_trees_is_the_one_its_script_draws(tmp_path: Path):
    subprocess.run([sys.executable, DOCS / "img" / "trees.py", tmp_path / "trees.svg"], check=True)
    assert (tmp_path / "trees.svg").read_bytes() == (DOCS / "img" / "trees.svg").read_bytes()
