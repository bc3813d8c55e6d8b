"""A thousand classes through training, predict, evaluate and the report: one accuracy, and a page of some size."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.report import read_run
from streamkern.report.page import page
from streamkern.report.result_sentences import baseline

K, EACH = 1000, 6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a thousand classes with names, of which the first half lie apart and the others in pairs."""
    folder = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(K, 12))
    centers[K // 2 :] = np.repeat(centers[K // 2 :: 2], 2, axis=0)
    for name in ("train", "test"):
        code = np.repeat(np.arange(K), EACH if name == "train" else 2)
        X = (centers[code] + 0.2 * rng.normal(size=(len(code), 12))).astype(np.float32)
        columns = {f"f{j}": X[:, j] for j in range(12)} | {"y": [f"<b>{c:04}</b>" for c in code]}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    train, test = (sk.open_dataset(folder / f"{name}.parquet", target="y") for name in ("train", "test"))
    pipeline = sk.Pipeline(train, sk.Laplace(4.0), sk.Uniform(1500), sk.Direct(ridge=1e-4), test=test, name="many")
    sk.run(pipeline, folder / "run")
    return folder


@pytest.mark.slow
def test_metrics_are_those_of_the_predictions(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sk.predict(made / "run" / "model.zarr", made / "test.parquet", made / "out.parquet", scores=True)
    found, rows = pq.read_table(made / "out.parquet"), pq.read_table(made / "test.parquet")
    assert len(found.column_names) == 1 + K
    right = np.mean(np.array(found["prediction"]) == np.array(rows["y"]))
    assert 0.5 < right < 0.95
    result = json.loads((made / "run" / "result.json").read_text())
    assert result["metrics"]["test"]["accuracy"] == pytest.approx(right)
    words = ["evaluate", str(made / "run" / "model.zarr"), str(made / "test.parquet"), "--target", "y"]
    assert main([*words, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["accuracy"] == pytest.approx(right)
    assert "by_class" not in evaluated  # beyond a hundred classes
    assert evaluated["log_loss"] < 4  # of log(1000) = 6.9 by chance; classes share their parameters
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"accuracy {right:.4g}" in said
    assert len(said) < 3000


def test_the_page_is_one_that_can_be_read(made: Path) -> None:
    record = read_run(made / "run")
    html = page([record])
    assert len(html) < 2 << 20
    outside = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.search("<b>0[0-9]{3}", outside)
    assert len(outside) < 1 << 16
    assert re.search(r"There are 1,?000 classes|20 classes of 1,?000", html)
    assert baseline(record, "test") is None
    assert main(["report", str(made / "run"), "--out", str(made / "report.html")]) == 0
    assert (made / "report.html").stat().st_size < 2 << 20
