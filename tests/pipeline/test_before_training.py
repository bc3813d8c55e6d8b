"""Before training: what evaluation would refuse is refused; after it: a model is saved before it is scored."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.fitting import stages as fitting
from streamkern.report import read_run, status

Make = Callable[..., sk.Pipeline]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 3)).astype("float32")
Y = np.arange(80) % 2


def other(rows: np.ndarray = X, y: np.ndarray | None = Y, **more: object) -> sk.Dataset:
    return sk.from_arrays(rows, y, **more)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "train_stably", lambda *_, **__: pytest.fail("it was trained"))


@pytest.mark.parametrize("name", ["test", "validation"])
@pytest.mark.parametrize(
    ("rows", "message", "where"),
    [
        (other(y=Y + (np.arange(80) == 9)), "The label 2 was not among the classes", "row 9"),
        (other(np.where(np.arange(240).reshape(80, 3) == 22, np.nan, X)), "A feature is NaN", "row 7, feature 1"),
        (other(X[:, :2]), "X has 2 features, but .* is expecting 3", "X"),
        (other(y=None), "has no target", "the target"),
        (other(columns=["a", "c", "b"]), "The columns differ from those of training: 'c'", ""),
    ],
)
@pytest.mark.usefixtures("untrained")
def test_rows_that_evaluation_would_refuse_are_refused_before_training(tmp_path, name, rows, message, where):
    pipeline = sk.Pipeline(other(columns=["a", "b", "c"]), sk.Laplace(2.0), sk.Uniform(10), **{name: rows})
    with pytest.raises(sk.DataError, match=message) as error:
        sk.run(pipeline, tmp_path / "run")
    assert str(error.value.where).startswith(f"the {name} rows")
    assert where in str(error.value.where)


@pytest.mark.usefixtures("untrained")
def test_categories_of_the_test_rows_are_looked_up_before_training(tmp_path: Path):
    city, later = X.copy(), X.copy()
    city[:, 0], later[:, 0] = Y, 7 * (np.arange(80) == 5)
    pipeline = sk.Pipeline(
        other(city), sk.Laplace(2.0), sk.Uniform(10), test=other(later), preprocess=(sk.OneHot((0,), unknown="error"),)
    )
    with pytest.raises(sk.DataError, match="The value 7") as error:
        sk.run(pipeline, tmp_path / "run")
    assert str(error.value.where).startswith("the test rows: ")
    assert "row 5" in str(error.value.where)


@pytest.mark.usefixtures("untrained")
def test_rows_that_are_scaled_otherwise_are_refused_before_training(tmp_path: Path):
    pipeline = sk.Pipeline(other().scale(0.5), sk.Laplace(2.0), sk.Uniform(10), test=other().scale(0.25))
    with pytest.raises(sk.UsageError, match="scaled in another way"):
        sk.run(pipeline, tmp_path / "run")


@pytest.mark.usefixtures("untrained")
def test_an_estimator_checks_its_validation_rows_before_training():
    model = sk.KernelClassifier(centers=10, validation=other(y=Y + 1), solver=sk.EigenPro(epochs=2, patience=1))
    with pytest.raises(sk.DataError, match="The label 2") as error:
        model.fit(other())
    assert str(error.value.where).startswith("the validation rows: ")


PIPELINE = """
import streamkern as sk

def pipeline() -> sk.Pipeline:
    data = sk.open_dataset({rows!r}, target="label")
    return sk.Pipeline(data, sk.Laplace(2.0), sk.Uniform(20), sk.EigenPro(epochs=1), test=data, name="clouds")
"""


def test_an_evaluation_that_fails_leaves_the_model_and_says_so(write_rows, tmp_path, monkeypatch, capsys):
    rows, folder = write_rows(tmp_path / "rows.zarr"), tmp_path / "run"
    (tmp_path / "p.py").write_text(PIPELINE.format(rows=str(rows)))
    command = ["run", str(tmp_path / "p.py"), "--run-dir", str(folder), "--quiet"]

    def fails(*_: object) -> None:
        raise sk.errors.StorageError("The test rows are gone.", where="rows", expected="rows", remedy="find them")

    with monkeypatch.context() as patch:
        patch.setattr(sk.KernelMachine, "_score_in_detail", fails)
        assert main(command) == 1
    told = capsys.readouterr().err
    assert "The test rows are gone" in told
    assert f"the model is trained and saved: streamkern evaluate {folder / 'model.zarr'} DATA" in told
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["model"]) == ("failed", "model.zarr")
    assert "metrics" not in result
    assert result["weights_sha256"] == sk.load_model(folder / "model.zarr").weights_sha256
    assert result["last_done"] is None
    assert "streamkern evaluate" in status(read_run(folder))["advice"]

    assert main(["evaluate", str(folder / "model.zarr"), str(rows), "--target", "label", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main(["resume", str(folder), "--quiet"]) == 0
    again = json.loads((folder / "result.json").read_text())
    assert again["status"] == "done"
    assert next(s for s in again["stages"] if s["name"] == "train")["cached"]
    assert again["metrics"]["test"] == alone
    assert again["weights_sha256"] == result["weights_sha256"]
