"""The same arguments, and none, are the same fit, to the bit: of an estimator, and of a pipeline."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import streamkern as sk

random = np.random.default_rng(0)
X = random.normal(size=(240, 3)) * [1.0, 5.0, 0.2]
VALUES, CLASSES = np.sin(X[:, 0]) + X[:, 2], np.where(X[:, 0] + X[:, 2] > 0, "up", "down")
BUDGET = "4GiB"


def estimator(task: str, **given: Any) -> Any:
    kind = sk.KernelRegressor if task == "regression" else sk.KernelClassifier
    return kind(**given, memory=BUDGET, threads=1)


def run_model(pipeline: sk.Pipeline, folder: Path) -> sk.KernelMachine:
    """The model that a run of the pipeline saves."""
    sk.run(pipeline, folder, memory=BUDGET, threads=1)
    return sk.load_model(folder / "model.zarr")


def require_equal(one: sk.KernelMachine, other: sk.KernelMachine, rows: Any) -> None:
    assert one.weights_sha256 == other.weights_sha256
    assert one.kernel == other.kernel
    assert type(one) is type(other)
    np.testing.assert_array_equal(one.decision_function(rows), other.decision_function(rows))


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    """Some arguments of a fit, each at random; many sets cannot be combined."""
    values: dict[str, list[Any]] = {
        "kernel": ["auto", "laplace", "gaussian", sk.Gaussian(2.0), sk.Laplace("median", norm=1)],
        "centers": [20, 500, sk.Uniform(25, seed=4)],
        "solver": ["auto", sk.Direct(), sk.Direct(1e-3), sk.EigenPro(epochs=2), sk.Falkon(epochs=3)],
        "validation": [0.2],
        "preprocess": [None, (sk.Standardise(),)],
        "scaling": ["auto", "standard", None],
        "dtype": ["auto", "float32", "float64"],
        "partition": ["auto", None, sk.Partition(leaves=2)],
        "metric": [sk.AGOP()],
        "lanes": [1, 3],
        "seed": [1, 7],
    }
    names = draw(st.lists(st.sampled_from(sorted(values)), unique=True, max_size=6))
    return {name: draw(st.sampled_from(values[name])) for name in names}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=25, deadline=None)
@drawn(given=arguments(), task=st.sampled_from(["regression", "classification"]))
def test_any_arguments_are_the_same_fit_or_the_same_error(given, task, tmp_path_factory):
    data = sk.from_arrays(X[:120], (VALUES if task == "regression" else CLASSES)[:120])
    found: list[Any] = []
    for make in (
        lambda: estimator(task, **given).fit(data).model_,
        lambda: run_model(sk.Pipeline(data, task=task, **given), tmp_path_factory.mktemp("run")),
    ):
        try:
            found.append(make())
        except sk.StreamkernError as error:
            found.append((type(error), error.what))
    if isinstance(found[0], tuple):
        assert found[0] == found[1]
    else:
        require_equal(*found, X[120:])


def mixed() -> pd.DataFrame:
    """A table with text, dates and gaps."""
    places = np.array(["Oslo", "Rome", "Bern"])
    when = pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(len(X)) % 90, unit="D")
    size = np.where(np.arange(len(X)) % 7 == 0, np.nan, X[:, 1])
    return pd.DataFrame({"a": X[:, 0], "size": size, "town": places[np.arange(len(X)) % 3], "when": when})


TABLES: dict[str, Any] = {
    "float64": X, "float32": X.astype(np.float32), "integers": np.round(3 * X).astype(int),
    "columns in Fortran's order": np.asfortranarray(X), "frame": pd.DataFrame(X, columns=list("abc")),
    "few rows": X[:30], "mixed": mixed(),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("name", TABLES)
def test_defaults_are_the_same_fit_through_every_door(name: str, task: str, tmp_path: Path) -> None:
    rows = TABLES[name]
    y = (VALUES if task == "regression" else CLASSES)[: len(rows)]
    data = sk.from_arrays(rows, y)
    fitted = estimator(task).fit(data).model_
    pipeline = sk.Pipeline(train=data, test=data) if task == "classification" else sk.Pipeline(data, task=task)
    require_equal(run_model(pipeline, tmp_path / "run"), fitted, data)
    require_equal(estimator(task).fit(rows, y).model_, fitted, data)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_defaults_are_the_same_fit_of_stored_rows(task: str, tmp_path: Path) -> None:
    mixed().assign(y=VALUES if task == "regression" else CLASSES).to_parquet(tmp_path / "rows.parquet")
    data = sk.open_dataset(tmp_path / "rows.parquet", "y")
    model = estimator(task).fit(data)
    assert model.result_.dtype == "float32"
    require_equal(run_model(sk.Pipeline(data, task=task), tmp_path / "run"), model.model_, data)


def test_labels_that_few_rows_have_are_held_out_by_class_through_every_door(tmp_path: Path) -> None:
    rare = np.where(np.arange(len(X)) % 40 == 0, "rare", "common")
    data, given = sk.from_arrays(X, rare), {"kernel": sk.Laplace(2.0), "centers": 20, "validation": 0.25}
    model = estimator("classification", **given).fit(X, rare)
    pipeline = sk.Pipeline(data, **given)
    assert isinstance(pipeline.validation, sk.Dataset)
    require_equal(run_model(pipeline, tmp_path / "run"), model.model_, X)


def test_float32_that_cannot_represent_the_kernel_becomes_float64_through_every_door(tmp_path: Path) -> None:
    rows = (X + 3e4).astype(np.float32)
    data, given = sk.from_arrays(rows, VALUES), {"kernel": sk.Linear(), "centers": 20, "preprocess": None}
    model = estimator("regression", **given).fit(data)
    assert model.result_.dtype == "float64"
    assert "arithmetic" in model.result_.report
    result = sk.run(sk.Pipeline(data, task="regression", **given), tmp_path / "run", memory=BUDGET, threads=1)
    assert (result["dtype"], result["arithmetic"]) == ("float64", model.result_.report["arithmetic"])
    require_equal(sk.load_model(result.model_path), model.model_, rows)


WRONG = {
    "solver": "newton", "centers": 0, "validation": 1.5, "lanes": 0, "metric": 3, "partition": "leaves",
    "dtype": "half", "threshold": "best", "preprocess": "none", "scaling": "minmax", "seed": -1,
}  # fmt: skip


WRONG_TYPES = [
    ("centers", X[:9]), ("centers", [3]), ("solver", sk.SGD), ("solver", None), ("seed", None), ("seed", 1.5),
    ("scaling", True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [*WRONG.items(), *WRONG_TYPES])
def test_an_argument_that_neither_takes_is_the_same_error(name: str, value: Any) -> None:
    data, given = sk.from_arrays(X, CLASSES), {name: value}
    said = []
    for make, kind in (
        (lambda: sk.KernelClassifier(**given, memory="4GiB").fit(data), "KernelClassifier"),
        (lambda: sk.Pipeline(data, **given), "Pipeline"),
    ):
        with pytest.raises(sk.UsageError) as found:
            make()
        assert f"{kind}({name}=" in str(found.value)
        said.append(found.value.what)
    assert said[0] == said[1]


def test_a_result_prints_itself() -> None:
    model = sk.KernelRegressor(sk.Laplace(2.0), 20, sk.EigenPro(epochs=3), validation=0.2, memory=BUDGET)
    found = model.fit(X, VALUES).result_
    text = repr(found)
    assert text == str(found)
    for said in ("EigenPro in ", "Laplace(bandwidth=2.0)", "3 passes over", "float64", f"r2 {found.metrics['r2']:.4g}"):
        assert said in text
    assert "4.0 GiB allowed" in text
    assert found.peak_bytes > 0
    assert found.footprint.peak <= 4 << 30
    parts = sk.KernelRegressor(centers=20, partition=sk.Partition(leaves=3), memory=BUDGET).fit(X, VALUES).result_
    assert " leaves" in repr(parts)
    assert parts.metrics == {}
