"""The page of a run: what it says, before any browser sees it."""

import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from sklearn.metrics import average_precision_score, precision_score, recall_score, roc_auc_score

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.report import read_run
from streamkern.report.bokeh_plots import number_text
from streamkern.report.html_markup import png
from streamkern.report.page import page, write_report
from streamkern.report.result_sentences import (
    baseline,
    frequent_confusions,
    next_steps,
    result_sentence,
    wilson_interval,
)
from streamkern.storage.serialize import load_value
from streamkern.testing.source import read_all
from tests.report.conftest import intervals, probabilities


class Words(HTMLParser):
    """The text of a page, and the tags it opens."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags, self._silent = "", [], 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._silent += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._silent else data + " "


def evaluation(folder: Path) -> tuple[dict, dict]:
    result = json.loads((folder / "result.json").read_text())
    (name,) = [stage["artifact"] for stage in result["stages"] if stage["name"] == "evaluate"]
    facts = load_value(folder / "stages" / name, "evaluate")
    return facts.pop("arrays"), facts


@pytest.mark.slow
def test_the_page_says_what_the_result_says(finished: Path):
    result = json.loads((finished / "result.json").read_text())
    said = Words(page([read_run(finished)])).text
    test = result["metrics"]["test"]
    expected = f"{test['accuracy']:.2%}" if "accuracy" in test else f"{np.sqrt(test['mse']):.4g}"
    assert expected in said
    assert result["weights_sha256"] in said
    assert json.loads((finished / "manifest.json").read_text())["train"]["fingerprint"] in said
    assert f"{result['solver_report']['q']:,} of" in said
    for stage in result["stages"]:
        assert stage["name"] in said
    for name, version in json.loads((finished / "manifest.json").read_text())["versions"].items():
        assert name in said
        assert version in said
    assert "4.0 GiB" in said  # the budget


@pytest.mark.slow
def test_classes_are_counted_against_one_another(runs: dict[str, Path]):
    counts = evaluation(runs["digits"])[0]["test_confusion"]
    html = page([read_run(runs["digits"])])
    body = html[html.index('class="heat"') :]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", body[: body.index("</table>")])
    found = np.array([0 if cell == "·" else int(cell) for cell in cells]).reshape(10, 10)
    np.testing.assert_array_equal(found, counts)
    assert baseline(read_run(runs["digits"]), "test") == counts.sum(axis=1).max() / counts.sum()


@pytest.mark.slow
def test_residuals_are_told_with_their_quantiles(runs: dict[str, Path]):
    arrays, _ = evaluation(runs["columns"])
    said = Words(page([read_run(runs["columns"])])).text
    error = arrays["test_predicted"] - arrays["test_actual"]
    for q in (0.05, 0.5, 0.95):
        assert f"{np.quantile(error, q):.4g}" in said
    assert baseline(read_run(runs["columns"]), "test") == pytest.approx(arrays["test_actual"].std(), rel=1e-3)


def cells(html: str, caption: str) -> list[list[str]]:
    """The rows of the table with a caption."""
    body = html[html.index(f"<caption><span>{caption}</span>") :]
    body = body[body.index("<tbody>") : body.index("</table>")]
    return [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in body.split("<tr>")[1:]]


def test_probabilities_are_shown_beside_what_became_of_them(answering: dict[str, Path]):
    """The numbers of the tables, counted from the predictions of the saved model."""
    folder, (X, y) = answering["answers"], read_all(probabilities().test.source)[:2]
    P, hit = sk.load_model(folder / "model.zarr").predict_proba(X)[:, 1], y == "yes"
    html = page([read_run(folder)])
    cell = np.minimum((P * 15).astype(int), 14)
    found = cells(html, "Observed by predicted probability")
    expected = [
        [f"{(cell == i).sum():,}", f"{P[cell == i].mean():.4f}", f"{hit[cell == i].mean():.4f}"]
        for i in np.unique(cell)
    ]
    assert [row[1:] for row in found] == expected
    taken = sk.load_model(folder / "model.zarr").predict(X) == "yes"
    (row,) = cells(html, "Curves by class")
    assert row == [
        "yes", f"{hit.sum()}", f"{roc_auc_score(hit, P):.4f}", f"{average_precision_score(hit, P):.4f}",
        f"{recall_score(hit, taken):.4f}", f"{precision_score(hit, taken):.4f}",
    ]  # fmt: skip
    shown = np.array(cells(html, "By the least score that counts as it"), dtype=float)
    assert len(shown) == 12
    for score, false, true, precision in shown:
        for share, rows in ((false, ~hit), (true, hit)):  # numbers are shown with four digits
            least, most = (np.mean(P[rows] >= score * (1 + sign * 5e-4)) for sign in (1, -1))
            assert least - 1e-4 <= share <= most + 1e-4
        assert precision == pytest.approx(true * hit.sum() / (true * hit.sum() + false * (~hit).sum()), abs=5e-3)


def test_coverage_is_shown_by_fifth_of_the_predicted_scale(answering: dict[str, Path]):
    folder, (X, y) = answering["intervals"], read_all(intervals().test.source)[:2]
    model = sk.load_model(folder / "model.zarr")
    ends = model.predict_interval(X)
    width, inside = ends[:, 1] - ends[:, 0], (ends[:, 0] <= y) & (y <= ends[:, 1])
    # So many have too few rows in each fifth: there widths are the scale, times one quantile of all.
    most = model.predict_interval(X, coverage=1 - 2 / len(model.calibration.scores))
    scale = most[:, 1] - most[:, 0]
    found = cells(page([read_run(folder)]), "Coverage of 90% intervals by fifth of the predicted scale")
    for row, part in zip(found, np.array_split(np.argsort(scale, kind="stable"), 5), strict=True):
        assert float(row[1].replace(",", "")) == pytest.approx(len(part), abs=1)
        assert float(row[2].rstrip("%")) == pytest.approx(100 * inside[part].mean(), abs=0.4)
        assert float(row[3]) == pytest.approx(width[part].mean(), rel=5e-3)
    assert max(float(row[3]) for row in found) > 2 * min(float(row[3]) for row in found)


@pytest.mark.slow
def test_labels_of_rows_that_have_several_have_a_line_each(answering: dict[str, Path]):
    result = json.loads((answering["labels"] / "result.json").read_text())
    metrics = result["metrics"]["test"]["by_class"]
    html = page([read_run(answering["labels"])])
    assert [row[0] for row in cells(html, "By label, of test rows")] == [*metrics]
    assert [row[2] for row in cells(html, "By label, of test rows")] == [f"{m['recall']:.4f}" for m in metrics.values()]
    assert [row[2] for row in cells(html, "Curves by class")] == [f"{m['auc']:.4f}" for m in metrics.values()]
    rows = [float(row[1].replace(",", "")) for row in cells(html, "Observed by predicted probability")]
    assert sum(rows) == 3 * result["metrics"]["test"]["n"]


@pytest.mark.slow
def test_rows_that_are_images_are_shown_with_their_copies_and_others_as_numbers(runs: dict[str, Path]):
    images = [attrs for tag, attrs in Words(page([read_run(runs["digits"])])).tags if tag == "img"]
    assert len(images) == 8 * 4
    assert all(attrs["alt"] and attrs["src"].startswith("data:image/png;base64,") for attrs in images)
    assert [tag for tag, _ in Words(page([read_run(runs["columns"])])).tags].count("img") == 0
    assert "x18" in Words(page([read_run(runs["columns"])])).text
    wide = Words(page([read_run(runs["digits"])], image_shape=(4, 16)))
    assert {attrs["width"] for tag, attrs in wide.tags if tag == "img"} == {"16"}
    if "fashion" in runs:
        assert "RandomCrop" in Words(page([read_run(runs["fashion"])])).text


@pytest.mark.slow
def test_where_the_time_of_training_went_is_the_sum_over_its_steps(runs: dict[str, Path]):
    record = read_run(runs["digits"])
    timeline = {"compute": 1.0, "wait": 0.5, "reduce": 0.25, "update": 0.125}
    record.steps = [record.steps[-1] | {"timeline": timeline} for _ in range(3)]
    said = Words(page([record])).text
    for part, seconds in (
        ("computing", 3),
        ("waiting for rows", 1.5),
        ("adding up", 0.75),
        ("update of the state", 0.375),
    ):
        assert re.search(rf"{part}[^0-9]*{seconds:.2f} s", said)
    record.steps = []
    assert f"{record.result['data_wait_fraction']:.1%}" in Words(page([record])).text


def test_everything_that_comes_from_a_run_is_escaped(runs: dict[str, Path], tmp_path: Path):
    shutil.copytree(runs["digits"], tmp_path / "run")
    bad = "<script>alert(1)</script>"
    manifest = json.loads((tmp_path / "run/manifest.json").read_text()) | {"name": bad, "file": bad, "scheduler": bad}
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    with (tmp_path / "run/events.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1.0, "event": "warning", "message": bad}) + "\n")
    html = page([read_run(tmp_path / "run")])
    assert bad not in html
    assert bad in Words(html).text


@pytest.mark.parametrize("state", ["running", "dead", "failed", "refused", "diverged", "interrupted"])
def test_a_run_without_a_model_has_a_page_that_says_why_and_what_to_do(state, runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs["digits"], folder)
    shutil.rmtree(folder / "stages")
    (folder / "result.json").unlink()
    if state not in ("running", "dead"):
        manifest = json.loads((folder / "manifest.json").read_text())
        failure = {"status": state, "run": manifest["run"], "error": "Too much.\n  do: take less", "stages": []}
        (folder / "result.json").write_text(json.dumps(failure))
    record = read_run(folder)
    if state == "running":
        record.owner = 1
    said = Words(page([record])).text
    assert state in said
    assert "training rows seen" not in said  # a plot's axis is drawn, not written
    if state in ("failed", "refused", "diverged", "interrupted"):
        assert "Too much." in result_sentence(record)
        assert "take less." in next_steps(record)
    if state in ("dead", "interrupted", "failed"):
        assert "continues from the kept results" in said


@pytest.mark.parametrize("state", ["running", "dead", "failed"])
def test_the_stage_that_a_run_did_not_finish_has_a_bar_up_to_the_last_event(state, runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs["digits"], folder)
    (folder / "result.json").unlink()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    begin = next(i for i, e in enumerate(events) if e["event"] == "stage" and e["name"] == "train")
    assert events[begin]["state"] == "begin"
    earlier = [e for e in events[:begin] if e["event"] == "stage" and e["state"] == "end"]
    longest = max(e["seconds"] for e in earlier)
    kept = [*events[: begin + 1], events[begin + 1] | {"time": events[begin]["time"] + 4 * longest}]
    if state == "failed":
        kept.append({"time": events[begin]["time"] + 5 * longest, "event": "run", "state": "failed", "error": "No."})
        run = json.loads((folder / "manifest.json").read_text())["run"]
        failure = {"status": "failed", "run": run, "error": "No.", "stages": earlier}
        (folder / "result.json").write_text(json.dumps(failure))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept))
    record = read_run(folder)
    if state == "running":
        record.owner = 1
    assert record.state == state
    html = page([record])
    time = html[html.index('<section id="time"') : html.index('<section id="memory"')]
    bars = re.findall(r'<th scope="row">([^<]*)</th><td>.*?width:([0-9.]+)%.*?<b>([^<]*)</b>', time)
    assert [name for name, _, _ in bars[: len(earlier) + 1]] == [*(e["name"] for e in earlier), "train, unfinished"]
    words = f"{5 * longest:.2f} s" if state == "failed" else f"≥ {4 * longest:.2f} s"
    assert bars[len(earlier)] == ("train, unfinished", "100.0", words)
    assert [name for name, _, _ in bars].count("train, unfinished") == 1
    widths = [float(width) for name, width, _ in bars[: len(earlier)]]
    assert max(widths) == (20.0 if state == "failed" else 25.0)


def test_several_runs_are_compared_by_what_differs(runs: dict[str, Path]):
    html = page([read_run(runs["digits"]), read_run(runs["digits-short"])])
    differences = html[html.index('id="differences"') : html.index('id="learning"')]
    assert "solver.epochs" in differences
    assert "kernel.bandwidth" not in differences
    said = Words(html).text
    for name in ("digits", "digits-short"):
        result = json.loads((runs[name] / "result.json").read_text())
        assert f"accuracy {result['metrics']['test']['accuracy']:.4g}" in said
        assert result["weights_sha256"][:12] in said
    same = page([read_run(runs["digits"]), read_run(runs["digits"])])
    assert "the runs have the same settings" in same


@pytest.mark.slow
def test_the_command_writes_the_page_where_it_says(runs, tmp_path, capsys):
    digits = runs["digits"]
    assert main(["report", str(digits)]) == 0
    assert capsys.readouterr().out.strip() == str(digits / "report.html")
    assert (digits / "report.html").stat().st_size > 100_000
    assert main(["report", str(digits), str(runs["columns"]), "--out", str(tmp_path / "two.html")]) == 0
    assert "Comparison" in (tmp_path / "two.html").read_text()
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(digits), "--image-shape", "8x8x2"])
    with pytest.raises(sk.errors.StorageError, match="cannot be written"):
        write_report([read_run(digits)], tmp_path / "missing" / "page.html")
    assert not list(tmp_path.glob(".*"))


def test_what_the_numbers_suggest_is_said(runs: dict[str, Path]):
    record = read_run(runs["digits"])
    record.result = record.result | {
        "metrics": {"train": {"accuracy": 0.99, "n": 10}, "test": {"accuracy": 0.6, "n": 10, "mse": 1.0}},
        "history": [{"pass": i + 1, "loss": 0.5**i, "rows": i + 1} for i in range(3)],
        "data_wait_fraction": 0.5,
        "stages": [*record.result["stages"], {"name": "train", "seconds": 20.0, "cached": False}],
    }
    said = " ".join(next_steps(record))
    for part in ("39.0 points above", "fell by 50%", "waited for data 50%"):
        assert part in said
    record.result["metrics"] = {"train": {"accuracy": 0.99, "n": 10}}
    assert "No test rows" in " ".join(next_steps(record))


def test_intervals_are_wilsons():
    assert wilson_interval(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    low, high = wilson_interval(1.0, 10)
    assert high == 1.0
    assert low == pytest.approx(0.7225, abs=1e-4)


def test_commonest_mistakes_come_first():
    counts = np.array([[5, 2, 0], [7, 9, 0], [0, 1, 3]])
    assert frequent_confusions(counts, ["a", "b", "c"]) == [("b", "a", 7), ("a", "b", 2), ("c", "b", 1)]


def test_png_holds_the_pixels():
    for pixels in (np.arange(12, dtype=np.uint8).reshape(3, 4), np.arange(36, dtype=np.uint8).reshape(3, 4, 3)):
        np.testing.assert_array_equal(np.asarray(PIL.Image.open(io.BytesIO(png(pixels)))), pixels)


def test_numbers_are_written_for_people():
    assert [number_text(v) for v in (0, 0.05, 1234.5, 1e-7, 2.5e9)] == ["0", "0.05", "1,234", "1e-7", "2.5e9"]
