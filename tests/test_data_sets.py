"""What people touch works on each shipped set: digits, images and a table of 18 columns."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import streamkern as sk
from streamkern.commands.parser import main

PIPELINES = Path(__file__).parent.parent / "pipelines"
FASHION = Path("/usr/share/datasets/fashion-mnist")

SETS = {
    # settings, where the rows are stored, the target, the width, and the least of the metric on test rows
    "digits": (["rows=3_000", "centers=200"], "data/digits.zarr", "digit", 64, ("accuracy", 0.93)),
    "fashion_mnist": (
        ["rows=3_000", "centers=200", "noise=0"], "data/fashion_mnist/test.zarr", "label", 784, ("accuracy", 0.72),
    ),
    "regression": (["rows=5_000", "centers=200", "epochs=2"], "data/regression.zarr", "y", 18, ("r2", 0.75)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_command_works(name, tmp_path, monkeypatch, capsys):
    if name == "fashion_mnist" and not FASHION.is_dir():
        pytest.skip("needs Debian's package dataset-fashion-mnist")
    monkeypatch.chdir(tmp_path)
    settings, store, target, width, (metric, least) = SETS[name]
    file, run = str(PIPELINES / f"{name}.py"), f"runs/{name}"

    def told(*words: str) -> str:
        capsys.readouterr()
        assert main(words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    planned = json.loads(told("plan", file, "--set", *settings, "--json"))
    assert {stage["device_memory"] for stage in planned["stages"]} == {None}
    told("run", file, "--set", *settings, "--quiet")
    result = json.loads(Path(run, "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "done"
    assert result["metrics"]["test"][metric] > least
    ran = [stage["name"] for stage in result["stages"] if stage["name"] != "save"]
    assert [stage["name"] for stage in planned["stages"]] == ran
    assert "done after" in told("status", run)
    assert Path(told("report", run).strip()).stat().st_size > 100_000
    assert json.loads(told("inspect", store, "--target", target, "--json"))["n_features"] == width
    model = f"{run}/model.zarr"
    score = json.loads(told("evaluate", model, store, "--target", target, "--json"))[metric]
    assert score > least
    told("predict", model, store, "answers.parquet")
    answers = pq.read_table("answers.parquet").column("prediction").to_numpy()
    rows = sk.open_dataset(store, target=target).source
    assert len(answers) == rows.bounds[-1]
    if metric == "accuracy":
        right = sum(int((answers[a:b] == rows.read(i).y).sum()) for i, (a, b) in enumerate(bounds(rows)))
        assert right / len(answers) == pytest.approx(score)


def bounds(rows: Any) -> list[tuple[int, int]]:
    return list(zip(rows.bounds[:-1].tolist(), rows.bounds[1:].tolist(), strict=True))
