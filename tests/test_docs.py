"""The documentation's Python and commands run as they are printed, and the picture is drawn by its script."""

import importlib.util
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs

import streamkern as sk
from streamkern import memory

DOCS = Path(__file__).parent.parent / "docs"
FASHION = Path("/usr/share/datasets/fashion-mnist")


def run(program: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL))


PAGES = [
    "index.md",
    "first-steps.md",
    *sorted(
        str(page.relative_to(DOCS))
        for folder in ("how-to", "maths", "reference")
        for page in (DOCS / folder).glob("*.md")
    ),
]
ON_S3 = "how-to/parquet-on-s3.md"
SECTIONS = {
    "ingest.md": "## Data that were never shuffled",
    "prediction.md": "## Saving, pickling and copying models",
    "report.md": "## Following a run from Python",
}
"""Last sections of pages of the guide that run by themselves."""
FENCE = re.compile(r"^```(python|sh|text)(?: title=\"(.*?)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


def same(told: str, found: str) -> bool:
    """Words equal, and numbers equal to 3%: other processors round otherwise."""
    values = [[float(each.replace(",", "")) for each in NUMBER.findall(text)] for text in (told, found)]
    words = [NUMBER.sub("#", text).split() for text in (told, found)]
    return words[0] == words[1] and np.allclose(*values, rtol=0.03)


def walk(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the blocks of a page one after another: Python in one namespace, commands in a shell. What has a title is a
    file to write, or not for here."""
    names: dict[str, Any] = {"__name__": "__main__"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    out = ""
    shown = (DOCS / page).read_text(encoding="utf-8")
    for kind, title, text in FENCE.findall(shown, shown.index(SECTIONS.get(page, "# "))):
        if kind == "text":
            assert same(text, out), f"{page} says\n{text}and it is\n{out}"
        elif kind == "python" and title.endswith(".py"):
            (folder / title).write_text(text, encoding="utf-8")
        elif kind == "python":
            code = compile(text, page, "exec")
            if not title:
                exec(code, names)
                out = capsys.readouterr().out
        else:
            shell = ["bash", "-euo", "pipefail", *(["-n"] if title else []), "-c", text]
            done = subprocess.run(
                shell, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{page}\n{text}{done.stderr}"
            out = done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", [*(page for page in PAGES if page != ON_S3), *SECTIONS])
def test_a_page_runs_and_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # A page's budgets are for a process of its own, not for one in which other tests have left their memory.
    pages, (held, mapped) = memory._pages, memory._pages()

    def pages_of_a_new_process() -> tuple[int, int]:
        now, files = pages()
        return (250 << 20) + max(0, now - held), max(0, files - mapped)

    monkeypatch.setattr(memory, "_pages", pages_of_a_new_process)
    walk(page, tmp_path, capsys)


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3fs.S3FileSystem]:
    """An S3 server on loopback, as the environment names it, with an empty bucket that other tests use too."""
    for name, value in {
        "ACCESS_KEY_ID": "EXAMPLE",
        "SECRET_ACCESS_KEY": "an-example",
        "DEFAULT_REGION": "us-east-1",
        "ENDPOINT_URL": s3_server,
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    store = s3fs.S3FileSystem(skip_instance_cache=True)
    if store.exists("example"):
        store.rm("example", recursive=True)
    store.mkdir("example")
    yield store
    store.rm("example", recursive=True)


@pytest.mark.slow
def test_parquet_on_s3_runs(bucket, tmp_path, monkeypatch, capsys):
    X = np.random.default_rng(0).normal(size=(600, 3))
    for day in range(3):
        rows = slice(200 * day, 200 * day + 200)
        sk.write_parquet(tmp_path / "day.parquet", X[rows], (X[rows, 0] > 0).astype(int), target="label")
        bucket.put(str(tmp_path / "day.parquet"), f"example/days/{day}.parquet")
    monkeypatch.chdir(tmp_path)
    walk(ON_S3, tmp_path, capsys)


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    found = set(re.findall(r"^::: (streamkern\.[\w.]+)$", text, re.MULTILINE))
    public = {f"streamkern.{name}" for name in sk.__all__} - {"streamkern.augment", "streamkern.errors"}
    errors = {e.__name__ for e in vars(sk.errors).values() if isinstance(e, type) and issubclass(e, sk.StreamkernError)}
    inside = {f"streamkern.errors.{name}" for name in errors - {*sk.__all__, "UnlikeChampionError"}}
    inside |= {f"streamkern.augment.{name}" for name in sk.augment.__all__}
    returned = {
        "centers.CenterSet", "data.Quarantined", "ingestion.ingest.Ingested", "inspection.inspect_dataset.Inspection",
        "registry.RetrainResult", "runs.plan.Plan", "runs.results.RunResult", "runs.tune.Trial", "runs.tune.Tuning",
        "serving.explain.Explanation", "serving.predict_files.PredictionResult", "sklearn.result.FitResult",
    }  # fmt: skip
    assert found == public | inside | {f"streamkern.{name}" for name in returned}


def test_every_output_on_a_page_is_compared_with_what_its_command_prints() -> None:
    loose = {}
    for page in DOCS.rglob("*.md"):
        name, text = str(page.relative_to(DOCS)), page.read_text(encoding="utf-8")
        begin = 0 if name in PAGES else text.index(SECTIONS[name]) if name in SECTIONS else len(text)
        if shown := [found[3] for found in FENCE.finditer(text) if found[1] == "text" and found.start() < begin]:
            loose[name] = shown
    assert loose == {}


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.stem)
def test_every_name_of_the_reference_is_in_an_example(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = "\n".join(block for kind, _, block in FENCE.findall(text) if kind == "python")
    names = {name.split(".")[-1] for name in re.findall(r"^::: (streamkern\.[\w.]+)$", text, re.MULTILINE)}
    assert {name for name in names if not re.search(rf"\b{name}\b", code)} == set()


def test_what_the_navigation_names_is_there() -> None:
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"[\w/-]+\.md", text)
    assert [page for page in named if not (DOCS / page).is_file()] == []
    unnamed = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if str(page.relative_to(DOCS)) not in named]
    assert [page for page in unnamed if not page.startswith("adr/0")] == []  # which a page of their own lists


def test_pages_are_few_and_each_is_two_clicks_from_the_first() -> None:
    """By links in the text: a navigation that is folded away on a phone does not count."""
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert len([page for page in pages if not page.startswith("adr/")]) <= 46
    near = {"index.md"}
    for _ in range(2):
        for page in near.copy():
            text = (DOCS / page).read_text(encoding="utf-8")
            found = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", text)
            near |= {os.path.normpath(Path(page).parent / link) for link in found}
    assert sorted(pages - near) == []


def test_the_page_of_the_command_line_is_current() -> None:
    spec = importlib.util.spec_from_file_location("commands", DOCS / "commands.py")
    commands = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(commands)
    assert commands.PAGE.read_text(encoding="utf-8") == commands.page(), "run python docs/commands.py"
    assert "| `--live` |" in commands.page()


@pytest.mark.slow
def test_the_readme_runs(tmp_path: Path) -> None:
    """In a process of its own: the block bounds the memory of its process."""
    accuracy, labels = run(blocks("../README.md"), tmp_path).splitlines()
    assert float(accuracy) > 0.98
    assert re.fullmatch(r"\[\d \d \d \d \d\]", labels)
    assert (tmp_path / "model.zarr").is_dir()


@pytest.mark.slow
def test_preprocessing_runs(tmp_path: Path) -> None:
    assert float(run(blocks("preprocessing.md"), tmp_path)) > 0.9
    assert (tmp_path / "model.zarr").is_dir()


@pytest.mark.slow
def test_augmentation_runs(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 784), dtype=np.uint8)
    sk.write_zarr(str(tmp_path / "images.zarr"), images, np.arange(50) % 5, target="label")
    assert run(blocks("augmentation.md") + "\nprint(len(train))", tmp_path) == "100000\n"


@pytest.mark.slow
@pytest.mark.skipif(not FASHION.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_the_picture_of_augmented_rows_is_the_one_its_script_draws(tmp_path: Path) -> None:
    script = DOCS / "img" / "augmentations.py"
    subprocess.run([sys.executable, script, FASHION, tmp_path / "drawn.png"], check=True, capture_output=True)
    drawn, kept = (tmp_path / "drawn.png").read_bytes(), (DOCS / "img" / "augmentations.png").read_bytes()
    assert len(kept) < 100_000
    assert drawn[:33] == kept[:33]  # the signature, and the header with width and height
    assert abs(len(drawn) - len(kept)) < 2000  # compressors differ
    # Other processors may round a pixel to its neighbour.
    assert np.abs(pixels(drawn) - pixels(kept)).mean() < 0.5


def pixels(png: bytes) -> np.ndarray:
    """The bytes of a PNG's rows: what compression leaves, in signed numbers."""
    parts, at = [], 8
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        if kind == b"IDAT":
            parts.append(png[at + 8 : at + 8 + length])
        at += 12 + length
    return np.frombuffer(zlib.decompress(b"".join(parts)), dtype=np.uint8).astype(int)
